/* The table kernel for one instruction set: build, look up, merge (see table.h). Included by simd_*.c. */
#include "table.h"

enum {
    ENTRY_BYTES = LANES * sizeof(float),
    ENTRY_SHIFT = LANES == 16 ? 6 : LANES == 8 ? 5 : 4, /* log2 of ENTRY_BYTES */
};

static const vfloat zero_vector;

/* Input pixels that belong into one register, or into one segment of it: where they are, and how many exist. */
typedef struct {
    ptrdiff_t source; /* from the first channel of the group */
    int32_t target;   /* lane, counted through all vectors of the block */
    int32_t count;    /* lanes behind it are zeros */
} pixel_copy;

#if LANES >= 16
/* A vector of pixels that lie in two runs of LANES of a channel: lane l is lane select[l] of both, 0 where not in `lanes`. */
struct gathered_vector {
    ptrdiff_t from[2]; /* from the first channel of the group */
    __mmask16 lanes;
    int32_t select[LANES];
};
#endif

typedef struct {
    float *table;      /* [tuple of the chunk][vector][entry][lane] */
    float *stage[2];   /* [channel of the tuple][vector][lane], used in turn where segments share registers */
    float *maps;       /* [block of the unit][place in its list][row][vector][lane] */
    const float **map; /* [input block]: its first map, for the region that is merged */
    pixel_copy *copies;
    int copies_count;
    bool whole;        /* all copies fill registers, or segments of them */
    struct gathered_vector *gathered; /* [vector] */
    bool gathers;      /* all vectors are such ones: nothing is staged */
    bool pairs;        /* and each but the first of two continues its columns: even ones, then odd ones */
} table_scratch;

/* Of the table of a tuple. */
static size_t tuple_floats(const table_plan *table) {
    return (size_t)table->table_vectors * table->entries * LANES;
}

static size_t carve_table_scratch(const sb_conv *conv, const table_plan *table, uint8_t *memory, table_scratch *scratch) {
    const size_t registers = (size_t)table->rows * table->vectors;
    size_t used = 0;
    scratch->table = carve(memory, &used, table->chunk_tuples * tuple_floats(table) * sizeof(float));
    for (int i = 0; i < 2; i++)
        scratch->stage[i] = carve(memory, &used, (size_t)table->channels * table->table_vectors * ENTRY_BYTES);
    scratch->maps = carve(memory, &used, (size_t)table->unit_blocks * table->max_list * registers * ENTRY_BYTES);
    scratch->map = carve(memory, &used, (size_t)conv->weight.blocks * sizeof *scratch->map);
    scratch->copies =
        carve(memory, &used, (size_t)table->table_vectors * table->segments * sizeof *scratch->copies);
#if LANES >= 16
    scratch->gathered = carve(memory, &used, (table->segments > 1 ? table->table_vectors : 0) * sizeof *scratch->gathered);
#endif
    scratch->copies_count = 0;
    return used;
}

/* A segment's place in the image. Segments are numbered region by region, input block by input block. */
typedef struct {
    int input_block, x, y; /* x, y: output pixel of lane 0, row 0 */
    int begin, end, rows;  /* lanes and rows that are output; none where there is no such region */
} table_segment;

static table_segment find_segment(const sb_conv *conv, const table_plan *table, int unit_of_group, int number) {
    const int region = unit_of_group * table->unit_regions + number / conv->weight.blocks;
    const int tile = region % table->x_tiles;
    table_segment segment = {
        .input_block = number % conv->weight.blocks,
        .x = tile * (table->slot - table->left - table->right),
        .y = region / table->x_tiles * table->rows,
        .begin = tile ? table->left : 0,
        .end = tile + 1 < table->x_tiles ? table->slot - table->right : table->slot,
    };
    if (segment.end > conv->out_width - segment.x)
        segment.end = conv->out_width - segment.x;
    segment.rows = conv->out_height - segment.y < table->rows ? conv->out_height - segment.y : table->rows;
    if (region >= table->x_tiles * table->y_tiles)
        segment.rows = 0;
    return segment;
}

/* ------------------------------------------------------------------------------------------------ build */

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

/* ---------------------------------------------------------------------------------------------- look up */

/* What the look-ups of one chunk and block work on. */
typedef struct {
    const table_plan *table;
    const void *sums;      /* the table itself */
    const uint8_t *codes;
    const uint16_t *list;  /* of filters */
    int listed, tuples;
    float *maps;           /* [place in the list][register][lane] */
    bool first, last;      /* chunk, or span of them: maps hold nothing yet; integers become floats */
    int16_t *span;         /* where sums of 16 bits are kept from chunk to chunk, as the maps are laid out, */
    bool span_begins, span_ends; /* which they are until they go to the maps */
    bool narrow;           /* slots share registers of integers */
} look_up_job;

ALWAYS_INLINE vfloat look_up_floats_shift(vfloat sum, vfloat other, const table_step *step, const int vectors,
                                          const look_up_job *job) {
    (void)vectors, (void)job;
    return shift_lanes(sum, other, step->select, step->lanes);
}

ALWAYS_INLINE void look_up_floats_add(const look_up_job *job, size_t place, vfloat sum) {
    float *map = job->maps + place;
    *(vfloat *)map = sum + (job->first ? (vfloat){0} : *(const vfloat *)map);
}

/* +1, and -1 as far behind it as the highest bit of a code is worth in the offset of an entry, for every kind of tuple. */
static const float entry_factors[32 * LANES + 1] = {[0] = 1, [8 * LANES] = -1, [16 * LANES] = -1, [32 * LANES] = -1};

ALWAYS_INLINE vfloat look_up_floats_factor(uint64_t word, const int entries) {
    const uint8_t *factors = (const uint8_t *)entry_factors;
    return vsplat(*(const float *)(factors + (word & (unsigned)entries << ENTRY_SHIFT)));
}

ALWAYS_INLINE vfloat look_up_floats_plus(vfloat sum, vfloat factor, vfloat entry, const bool half) {
    return half ? sum + factor * entry : sum + entry;
}

#define vsum vfloat
#define SUM_LANES LANES
#define SUM_CHANNELS 6
#define SUM_ENTRIES(registers, channels) table_entries(false, LANES, registers, channels)
#define SUM_REGISTERS (LANES == 16 ? 16 : LANES == 8 ? 12 : 8)
#define LOOK_UP(suffix) look_up_floats##suffix
#include "table_look_up.h"

/* ------------------------------------------------------------------------------------------------ merge */

/* Pixels of the output that a register, or one segment of it, goes to. */
typedef struct {
    size_t offset; /* of lane 0 in the plane of a channel */
    int begin, end;
} table_piece;

/* What is merged at once: the maps of one region into the channels of one group. */
typedef struct {
    const sb_conv *conv;
    const float *const *map;    /* [input block] */
    const uint32_t *map_offset; /* (out, blocks) */
    size_t begin, end;          /* output channels */
    table_piece pieces[TABLE_MAX_VECTORS];
    int pieces_count;
    bool whole;                 /* all lanes of all pieces are output */
    float *out;
} merge_job;

static void find_pieces(const sb_conv *conv, const table_plan *table, const table_segment *segment, merge_job *job) {
    const int width = table->slot < LANES ? table->slot : LANES;
    job->pieces_count = 0;
    job->whole = true;
    for (int row = 0; row < segment->rows; row++)
        for (int v = 0; v < table->vectors; v++) {
            table_piece *piece = &job->pieces[job->pieces_count++];
            const int x = segment->x + v * width, begin = segment->begin - v * width, end = segment->end - v * width;
            piece->offset = (size_t)(segment->y + row) * conv->out_width + x;
            piece->begin = begin < 0 ? 0 : begin < width ? begin : width;
            piece->end = end < piece->begin ? piece->begin : end < width ? end : width;
            job->whole = job->whole && piece->end - piece->begin == width;
        }
}

#define WIDTH 4
#include "table_merge.h"
#if LANES >= 8
#define WIDTH 8
#include "table_merge.h"
#endif
#if LANES >= 16
#define WIDTH 16
#include "table_merge.h"
#include "table_merge_packed.h"
#endif

static void merge_unit(const sb_conv *conv, const table_plan *table, const table_scratch *scratch, int unit, float *out) {
    const int blocks = conv->weight.blocks, units = table->units / conv->groups, group = unit / units;
    const size_t block_floats = (size_t)table->max_list * table->rows * table->vectors * LANES;
    const size_t per_group = (size_t)(conv->weight.out / conv->groups);
    merge_job job = {
        .conv = conv, .map = scratch->map, .map_offset = table->map_offset, .out = out,
        .begin = group * per_group, .end = (group + 1) * per_group,
    };
#if LANES >= 16
    if (table_merges_packed(conv, table)) {
        const size_t rows = (size_t)(unit % units) * table->unit_regions * table->rows;
        merge_packed(&job, table, scratch->maps, rows * conv->out_width);
        return;
    }
#endif
    for (int region = 0; region < table->unit_regions; region++) {
        const table_segment segment = find_segment(conv, table, unit % units, region * blocks);
        find_pieces(conv, table, &segment, &job);
        for (int i = 0; i < blocks; i++) {
            const int number = region * blocks + i;
            scratch->map[i] = scratch->maps + number / table->segments * block_floats +
                              (table->segments > 1 ? number % table->segments * table->slot : 0);
        }
        if (table->slot >= LANES)
            PASTE(merge_region, LANES)(&job);
#if LANES >= 16
        else if (table->slot == 8)
            merge_region8(&job);
#endif
        else
            merge_region4(&job);
    }
}

/* --------------------------------------------------------------------------------------------------- run */

static void run_unit(const sb_conv *conv, const table_plan *table, table_scratch *scratch, int unit, const float *in,
                     float *out) {
    const sb_weight *weight = &conv->weight;
    const int units = table->units / conv->groups, group = unit / units, registers = table->rows * table->vectors;
    const float *group_in = in + (size_t)group * weight->blocks * weight->depth * conv->height * conv->width;
    uint64_t since = BEGIN_STAGE(conv);
    for (int block = 0; block < table->unit_blocks; block++) {
        const uint32_t *list = &table->list_begin[group * table->unit_blocks + block];
        look_up_job job = {
            .table = table,
            .sums = scratch->table,
            .codes = table->codes,
            .list = table->list + list[0],
            .listed = (int)(list[1] - list[0]),
            .maps = scratch->maps + (size_t)block * table->max_list * registers * LANES,
        };
        plan_block(conv, table, unit % units, block, scratch);
        for (int chunk = 0; chunk < table->chunks; chunk++) {
            build_chunk(conv, table, scratch, group_in, chunk);
            END_STAGE(conv, build, &since);
            job.tuples = table_chunk_tuples(table, chunk);
            job.first = chunk == 0;
            look_up_floats_all[table->channels][table->vectors][registers](&job);
            job.codes += (size_t)weight->filters * table->taps * table_tap_bytes(job.tuples, table->channels);
            END_STAGE(conv, look_up, &since);
        }
    }
    merge_unit(conv, table, scratch, unit, out);
    END_STAGE(conv, merge, &since);
}

static int32_t table_pieces(const sb_conv *conv) { return ((const table_plan *)conv->prepared)->units; }

static void table_run_pieces(const sb_conv *conv, int32_t first, int32_t last, const float *in, float *out,
                             void *memory) {
    const table_plan *table = conv->prepared;
    table_scratch scratch;
    carve_table_scratch(conv, table, memory, &scratch);
    for (int unit = first; unit < last; unit++)
        run_unit(conv, table, &scratch, unit, in, out);
}

static void table_run(const sb_conv *conv, const float *in, float *out, void *memory) {
    table_run_pieces(conv, 0, table_pieces(conv), in, out, memory);
    apply_rest(conv, out);
}

/* A kernel for tuples of so many channels. */
#define TABLE_KERNEL(kernel, name_of_it, channels) \
    static double kernel##_cost(const sb_conv *conv) { \
        table_plan table; \
        return table_lay_out(conv, LANES, channels, &table) ? table.cost / CYCLES_PER_NANOSECOND : -1; \
    } \
    static size_t kernel##_prepared_size(const sb_conv *conv) { return table_prepared_size(conv, LANES, channels); } \
    static void kernel##_prepare(const sb_conv *conv, void *prepared) { table_prepare(conv, LANES, channels, prepared); } \
    static size_t kernel##_scratch_size(const sb_conv *conv) { \
        table_plan table; \
        table_scratch scratch; \
        return table_lay_out(conv, LANES, channels, &table) ? carve_table_scratch(conv, &table, NULL, &scratch) : 0; \
    } \
    static const sb_conv_kernel kernel = { \
        .name = name_of_it, .cost = kernel##_cost, .prepared_size = kernel##_prepared_size, .prepare = kernel##_prepare, \
        .scratch_size = kernel##_scratch_size, .run = table_run, .adds_in_place = true, .pieces = table_pieces, \
        .run_pieces = table_run_pieces, \
    };
TABLE_KERNEL(table_kernel, "table", TABLE_QUAD)
TABLE_KERNEL(table_5_kernel, "table 5", 5)
TABLE_KERNEL(table_6_kernel, "table 6", 6)
#undef TABLE_KERNEL
