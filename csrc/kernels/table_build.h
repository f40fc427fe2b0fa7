/* The first stage of the table kernel: where the pixels of a block lie, and their signed sums as the table of a chunk.
 *
 * Rows that fill registers go straight from the input to the table (build_tuple). Where segments share registers, small
 * maps are gathered by a permutation on the way (gather_tuple, 16 lanes); others are staged as vectors first.
 * Included by table_impl.h. */

/* ------------------------------------------------------------------------------------- where pixels lie */

/* A vector of padding: zeros in the table of every tuple of a chunk. */
static void clear_vector(const table_plan *table, const table_scratch *scratch, int vector) {
    const size_t floats = (size_t)table->entries * LANES;
    for (int tuple = 0; tuple < table->chunk_tuples; tuple++)
        memset(scratch->table + tuple * tuple_floats(table) + vector * floats, 0, floats * sizeof(float));
}

/* Lists where pixels of a row of one plane go, if there are any. What is padding is cleared now, once for all chunks. */
static void plan_row(const sb_conv *conv, const table_plan *table, const table_segment *segment, const table_plane *plane,
                     int row, int lane, table_scratch *scratch) {
    const int width = table->slot < LANES ? table->slot : LANES;
    const ptrdiff_t first = (ptrdiff_t)segment->input_block * conv->weight.depth * conv->height * conv->width;
    const int y = plane->row + (segment->y + row) * conv->stride_h;
    for (int v = 0; v < table->vectors; v++) {
        const int x = plane->column + (segment->x + v * LANES) * conv->stride_w;
        const int vector = plane->first + row * table->vectors + v;
        if (y < 0 || y >= conv->height || x >= conv->width) {
            if (table->segments == 1)
                clear_vector(table, scratch, vector);
            continue;
        }
        const int count = conv->stride_w == 1 ? conv->width - x : (conv->width - 1 - x) / conv->stride_w + 1;
        scratch->whole = scratch->whole && count >= width;
        scratch->copies[scratch->copies_count++] = (pixel_copy){
            .source = first + (ptrdiff_t)y * conv->width + x,
            .target = vector * LANES + lane,
            .count = count < width ? count : width,
        };
    }
}

/* Are the planes pairs of the even and the odd columns of the same rows? */
static bool planes_are_pairs(const sb_conv *conv, const table_plan *table) {
    bool pairs = conv->stride_w == 2 && table->planes_count % 2 == 0;
    for (int p = 0; pairs && p < table->planes_count; p += 2)
        pairs = table->planes[p].row == table->planes[p + 1].row && table->planes[p].column < table->planes[p + 1].column;
    return pairs;
}

/* Lists where the pixels of one segment of every channel go, planes that are pairs row by row in turns. */
static void plan_segment(const sb_conv *conv, const table_plan *table, const table_segment *segment, int lane,
                         table_scratch *scratch) {
    const int together = scratch->pairs ? 2 : 1;
    for (int p = 0; p < table->planes_count; p += together)
        for (int row = 0; row < table->planes[p].rows; row++)
            for (int i = 0; i < together; i++)
                plan_row(conv, table, segment, &table->planes[p + i], row, lane, scratch);
}

#if LANES >= 16
/* Adds the pixels of row y that a segment sees in a plane to a vector; false where that would take a third run. */
static bool gather_row(const sb_conv *conv, const table_plan *table, int input_block, int y, int column, int lane,
                       struct gathered_vector *vector) {
    const int at = y * conv->width;
    const ptrdiff_t plane = (ptrdiff_t)conv->height * conv->width;
    const ptrdiff_t from = input_block * conv->weight.depth * plane + at / LANES * LANES;
    if (!vector->lanes)
        vector->from[0] = vector->from[1] = from;
    const int which = vector->from[0] == from ? 0 : 1;
    if (which && vector->from[1] != from && vector->from[1] != vector->from[0])
        return false;
    vector->from[which] = from;
    for (int i = 0, x = column; i < table->slot && x < conv->width; i++, x += conv->stride_w) {
        vector->select[lane + i] = which * LANES + at % LANES + x;
        vector->lanes |= (__mmask16)(1u << (lane + i));
    }
    return true;
}

/* Small maps, of which a run of LANES has whole rows: where each vector of a block lies; false where some need more than two. */
static bool plan_gathering(const sb_conv *conv, const table_plan *table, int unit_of_group, int block,
                           const table_scratch *scratch) {
    if (table->segments == 1 || table->x_tiles > 1 || LANES % conv->width || conv->height * conv->width % LANES)
        return false;
    memset(scratch->gathered, 0, table->table_vectors * sizeof *scratch->gathered);
    for (int i = 0; i < table->segments; i++) {
        const table_segment segment = find_segment(conv, table, unit_of_group, block * table->segments + i);
        for (const table_plane *plane = table->planes; segment.rows && plane < table->planes + table->planes_count; plane++)
            for (int row = 0; row < plane->rows; row++) {
                const int y = plane->row + (segment.y + row) * conv->stride_h;
                if (y >= 0 && y < conv->height &&
                    !gather_row(conv, table, segment.input_block, y, plane->column, i * table->slot,
                                &scratch->gathered[plane->first + row]))
                    return false;
            }
    }
    return true;
}
#endif

static void plan_block(const sb_conv *conv, const table_plan *table, int unit_of_group, int block,
                       table_scratch *scratch) {
    scratch->copies_count = 0;
#if LANES >= 16
    scratch->gathers = plan_gathering(conv, table, unit_of_group, block, scratch);
    if (scratch->gathers)
        return;
#endif
    scratch->whole = true;
    scratch->pairs = table->segments > 1 && planes_are_pairs(conv, table);
    for (int i = 0; i < 2 && table->segments > 1; i++)
        memset(scratch->stage[i], 0, (size_t)table->channels * table->table_vectors * ENTRY_BYTES);
    for (int i = 0; i < table->segments; i++) {
        const table_segment segment = find_segment(conv, table, unit_of_group, block * table->segments + i);
        if (segment.rows)
            plan_segment(conv, table, &segment, table->segments > 1 ? i * table->slot : 0, scratch);
    }
    scratch->pairs = scratch->pairs && scratch->whole;
}

/* ---------------------------------------------------------------------------------- straight to the table */

/* `count` pixels of a register, read with a stride; the lanes behind them are zeros. Nothing behind the last pixel is read. */
ALWAYS_INLINE vfloat load_pixels(const float *source, int count, int stride) {
    if (stride == 1)
        return count == LANES ? vload(source) : vload_part(source, 0, count);
    if (stride == 2 && count == LANES)
        return even_lanes(vload(source), vload_part(source + LANES, 0, LANES - 1));
    if (stride == 2) {
        const int floats = 2 * count - 1, low = floats < LANES ? floats : LANES;
        return even_lanes(vload_part(source, 0, low), vload_part(source + low, 0, floats - low));
    }
    float lanes[LANES] = {0};
    for (int lane = 0; lane < count; lane++)
        lanes[lane] = source[(ptrdiff_t)lane * stride];
    return vload(lanes);
}

/* All signed sums of so many channels: bit i of a sum's number is the sign of channel i. */
ALWAYS_INLINE void find_sums(const vfloat *x, const int channels, vfloat *sums) {
    sums[0] = -x[0];
    sums[1] = x[0];
    UNROLL
    for (int c = 1; c < channels; c++) {
        const int count = 1 << c;
        UNROLL
        for (int i = 0; i < count; i++) {
            sums[i + count] = sums[i] + x[c];
            sums[i] = sums[i] - x[c];
        }
    }
}

/* Those of a tuple for one vector of pixels. Half a table has the second half of them. */
ALWAYS_INLINE void store_sums(const vfloat *x, const int channels, const int entries, float *sums) {
    const int few = channels / 2;
    vfloat low[8], high[8];
    find_sums(x, few, low);
    find_sums(x + few, channels - few, high);
    UNROLL
    for (int i = 0; i < entries; i++) {
        const int number = (1 << channels) - entries + i;
        *(vfloat *)(sums + i * LANES) = low[number % (1 << few)] + high[number >> few];
    }
}

ALWAYS_INLINE void build_vectors(const table_scratch *scratch, const float *in, size_t plane, int present, int stride,
                                 const int channels, const int entries, float *table) {
    const pixel_copy *copy = scratch->copies, *end = copy + scratch->copies_count;
    if (scratch->whole && present == channels && stride == 1)
        for (; copy < end; copy++) {
            const float *from = in + copy->source;
            vfloat x[TABLE_MAX_CHANNELS];
            UNROLL
            for (int c = 0; c < channels; c++)
                x[c] = vload(from + c * plane);
            store_sums(x, channels, entries, table + (size_t)copy->target * entries);
        }
    for (; copy < end; copy++) {
        vfloat x[TABLE_MAX_CHANNELS];
        UNROLL
        for (int c = 0; c < channels; c++)
            x[c] = c < present ? load_pixels(in + c * plane + copy->source, copy->count, stride) : zero_vector;
        store_sums(x, channels, entries, table + (size_t)copy->target * entries);
    }
}

/* Every kind of tuple: its channels, and the entries of its table. */
#define EACH_TUPLE(USE) USE(4, 8) USE(4, 16) USE(5, 16) USE(5, 32) USE(6, 32) USE(6, 64)
#define TUPLE_KIND(channels, entries) ((channels) << 8 | (entries))

/* A tuple whose rows fill registers: straight from the input to the table. Vectors of padding were cleared before. */
static NEVER_INLINE void build_tuple(const table_plan *table, const table_scratch *scratch, const float *in, size_t plane,
                                     int present, int stride, float *sums) {
    switch (TUPLE_KIND(table->channels, table->entries)) {
#define BUILD(channels, entries) \
    case TUPLE_KIND(channels, entries): \
        build_vectors(scratch, in, plane, present, stride, channels, entries, sums); \
        break;
        EACH_TUPLE(BUILD)
#undef BUILD
    }
}

/* ------------------------------------------------------------------------------------------------- staged */

/* `count` pixels to a segment of `width` lanes. */
ALWAYS_INLINE void stage_pixels(float *target, const float *source, int count, const int width, int stride) {
    if (stride == 1 && count == width)
        memcpy(target, source, (size_t)width * sizeof(float));
    else if (stride == 2 && count == width)
        UNROLL
        for (int lane = 0; lane < width; lane += 4)
            store4(target + lane, __builtin_shufflevector(load4(source + 2 * lane), load4(source + 2 * lane + 3), 0, 2, 5, 7));
    else
        vstore_part(target, load_pixels(source, count, stride), 0, width);
}

/* The even and the odd ones of 2·width pixels to two segments. */
ALWAYS_INLINE void stage_pair(float *even, float *odd, const float *source, const int width) {
#if LANES >= 8
    if (width == 8) {
        const float8 a = load8(source), b = load8(source + 8);
        store8(even, __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14));
        store8(odd, __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15));
        return;
    }
#endif
    for (int lane = 0; lane < width; lane += 4) {
        const float4 a = load4(source + 2 * lane), b = load4(source + 2 * lane + 4);
        store4(even + lane, __builtin_shufflevector(a, b, 0, 2, 4, 6));
        store4(odd + lane, __builtin_shufflevector(a, b, 1, 3, 5, 7));
    }
}

/* A tuple of which several segments share a register: staged as vectors first, [channel][vector][lane]. */
ALWAYS_INLINE void stage_tuple(const table_plan *table, const table_scratch *scratch, const float *in, size_t plane,
                               int channels, const int width, int stride, float *stage) {
    const pixel_copy *const end = scratch->copies + scratch->copies_count;
    for (int c = 0; c < channels; c++, in += plane, stage += table->table_vectors * LANES)
        if (scratch->pairs)
            for (const pixel_copy *copy = scratch->copies; copy < end; copy += 2)
                stage_pair(stage + copy[0].target, stage + copy[1].target, in + copy->source, width);
        else
            for (const pixel_copy *copy = scratch->copies; copy < end; copy++)
                stage_pixels(stage + copy->target, in + copy->source, copy->count, width, stride);
    if (channels < table->channels)
        memset(stage, 0, (size_t)(table->channels - channels) * table->table_vectors * ENTRY_BYTES);
}

static NEVER_INLINE void stage_tuple_in_halves(const table_plan *table, const table_scratch *scratch, const float *in,
                                               size_t plane, int channels, int stride, float *stage) {
    stage_tuple(table, scratch, in, plane, channels, 8, stride, stage);
}

static NEVER_INLINE void stage_tuple_in_fours(const table_plan *table, const table_scratch *scratch, const float *in,
                                              size_t plane, int channels, int stride, float *stage) {
    stage_tuple(table, scratch, in, plane, channels, 4, stride, stage);
}

ALWAYS_INLINE void combine_tuple(const float *stage, int vectors, const int channels, const int entries, float *sums) {
    const size_t plane = (size_t)vectors * LANES;
    for (int v = 0; v < vectors; v++, stage += LANES, sums += entries * LANES) {
        vfloat x[TABLE_MAX_CHANNELS];
        UNROLL
        for (int c = 0; c < channels; c++)
            x[c] = vload(stage + c * plane);
        store_sums(x, channels, entries, sums);
    }
}

static NEVER_INLINE void combine_staged(const table_plan *table, const float *stage, float *sums) {
    switch (TUPLE_KIND(table->channels, table->entries)) {
#define COMBINE(channels, entries) \
    case TUPLE_KIND(channels, entries): \
        combine_tuple(stage, table->table_vectors, channels, entries, sums); \
        break;
        EACH_TUPLE(COMBINE)
#undef COMBINE
    }
}

/* ----------------------------------------------------------------------------------------------- gathered */

#if LANES >= 16
ALWAYS_INLINE void gather_vectors(const table_scratch *scratch, int vectors, const float *in, size_t plane, int present,
                                  const int channels, const int entries, float *sums) {
    for (int v = 0; v < vectors; v++, sums += entries * LANES) {
        const struct gathered_vector *vector = &scratch->gathered[v];
        const __m512i select = _mm512_loadu_si512(vector->select);
        vfloat x[TABLE_MAX_CHANNELS];
        UNROLL
        for (int c = 0; c < channels; c++) {
            const float *from = in + c * plane;
            x[c] = c < present ? (vfloat)_mm512_maskz_permutex2var_ps(vector->lanes, vload(from + vector->from[0]), select,
                                                                      vload(from + vector->from[1]))
                               : zero_vector;
        }
        store_sums(x, channels, entries, sums);
    }
}

static NEVER_INLINE void gather_tuple(const table_plan *table, const table_scratch *scratch, const float *in, size_t plane,
                                      int present, float *sums) {
    switch (TUPLE_KIND(table->channels, table->entries)) {
#define GATHER(channels, entries) \
    case TUPLE_KIND(channels, entries): \
        gather_vectors(scratch, table->table_vectors, in, plane, present, channels, entries, sums); \
        break;
        EACH_TUPLE(GATHER)
#undef GATHER
    }
}
#endif

/* ------------------------------------------------------------------------------------------------ a chunk */

/* The channels of a tuple that exist. */
static int tuple_channels(const sb_conv *conv, int tuple, int channels) {
    const int left = conv->weight.depth - tuple * channels;
    return left < channels ? left : channels;
}

static inline int quad_channels(const sb_conv *conv, int quad) { return tuple_channels(conv, quad, TABLE_QUAD); }

/* The table of a chunk. Staging runs one tuple ahead: sums would wait for the stores of narrower pieces. */
static void build_chunk(const sb_conv *conv, const table_plan *table, const table_scratch *scratch, const float *in,
                        int chunk) {
    const size_t plane = (size_t)conv->height * conv->width;
    const int first = chunk * table->chunk_tuples, tuples = table_chunk_tuples(table, chunk);
#if LANES >= 16
    for (int tuple = 0; scratch->gathers && tuple < tuples; tuple++)
        gather_tuple(table, scratch, in + (size_t)(first + tuple) * table->channels * plane, plane,
                     tuple_channels(conv, first + tuple, table->channels), scratch->table + tuple * tuple_floats(table));
    if (scratch->gathers)
        return;
#endif
    for (int tuple = 0; tuple <= tuples; tuple++) {
        const float *tuple_in = in + (size_t)(first + tuple) * table->channels * plane;
        const int channels = tuple_channels(conv, first + tuple, table->channels);
        if (tuple < tuples && table->segments == 1)
            build_tuple(table, scratch, tuple_in, plane, channels, conv->stride_w,
                        scratch->table + tuple * tuple_floats(table));
        else if (tuple < tuples && table->slot == 8)
            stage_tuple_in_halves(table, scratch, tuple_in, plane, channels, conv->stride_w, scratch->stage[tuple % 2]);
        else if (tuple < tuples)
            stage_tuple_in_fours(table, scratch, tuple_in, plane, channels, conv->stride_w, scratch->stage[tuple % 2]);
        if (tuple > 0 && table->segments > 1)
            combine_staged(table, scratch->stage[(tuple - 1) % 2], scratch->table + (tuple - 1) * tuple_floats(table));
    }
}
