/* The dot kernel for kernels of three rows, two output rows at a time with four products where six would be: Winograd's
 * minimal filtering F(2,3), along the columns, exact in whole numbers.
 *
 * Four input rows d0..d3 and the three rows g0..g2 of a filter make two output rows:
 *
 *   a0 = g0 (d0 - d2)    a1 = (g0 + g1 + g2) (d1 + d2)          2 (g0 d0 + g1 d1 + g2 d2) = 2 a0 + a1 + a2
 *   a3 = g2 (d1 - d3)    a2 = (g0 - g1 + g2) (d2 - d1)          2 (g0 d1 + g1 d2 + g2 d3) = a1 - a2 - 2 a3
 *
 * The left factors are small odd numbers, the right ones ("sides") fit a byte: differences are staged 128 higher, and so are
 * sums of signed levels. Two sums are kept per filter and register of pixels. They begin as a0 and a3, become a0 - a3 and
 * a0 + a3, and go on with a1 and a2: their sum and their difference are then twice the two rows. One of them is in registers
 * at a time, so that as many filters share the loads as in the dot kernel.
 *
 * Staging is that of the dot kernel for the convolution with four rows of taps and a stride of two rows ("the view"). The
 * pixels of all input blocks lie in a row, so that registers run on from one block to the next: two rows of a small map are
 * few pixels. */
#if LANES == 16

enum {
    ROWS_SIDES = 4,
    ROWS_NUMBERS = 1 << 23, /* of a filter at most: twice its sum fits 32 bits */
};

typedef uint8_t vsides __attribute__((vector_size(64), may_alias)); /* sums and differences of levels, modulo 256 */

/* Lanes of a register that are next to each other in a map. */
typedef struct {
    ptrdiff_t to; /* of lane 0, for the first of two rows, from the map of a filter in the first block */
    __mmask16 lanes;
} rows_part;

typedef struct {
    dot_plan view; /* how the input is staged */
    dot_plan out;  /* the same with the rows of the output and what belongs to filters: two starts each, codes in `nibbles` */
    int steps;      /* of one quad: columns of taps */
    int side_words; /* of one side of one quad, all blocks */
    int registers;  /* of pixels, of all blocks */
    int32_t *offset;     /* [quad of a chunk][column]: bytes from a pixel to what the tap reads of side 0 */
    int32_t *from;       /* [row of taps][column]: words of the view */
    int32_t *part_begin; /* (registers + 1) */
    rows_part *parts;
} rows_plan;

typedef struct {
    dot_scratch dot;  /* staged: one quad of one block */
    uint32_t *sides;  /* [quad of the chunk][side][copy][input block][row][pixel] */
} rows_scratch;

/* ------------------------------------------------------------------------------------------------- plan */

static sb_conv view_in_pairs(const sb_conv *conv) {
    sb_conv view = *conv;
    view.weight.kernel_h = 4;
    view.stride_h = 2;
    view.out_height = (conv->out_height + 1) / 2;
    return view;
}

static bool lay_out_rows(const sb_conv *conv, rows_plan *plan) {
    *plan = (rows_plan){.steps = conv->weight.kernel_w};
    if (conv->weight.kernel_h != 3 || conv->stride_h != 1 || conv->dilation_h != 1 ||
        (int64_t)conv->weight.depth * 3 * conv->weight.kernel_w > ROWS_NUMBERS)
        return false;
    const sb_conv view = view_in_pairs(conv);
    if (!lay_out_dot(&view, &plan->view))
        return false;
    plan->out = plan->view;
    plan->out.rows = 2 * plan->view.rows;
    plan->out.vectors = (plan->out.rows * plan->out.width + LANES - 1) / LANES;
    if ((int64_t)plan->view.quad_words * conv->weight.blocks > 2 * DOT_MOST_WORDS)
        return false;
    plan->side_words = plan->view.copies * conv->weight.blocks * plan->view.rows * plan->view.row_words;
    plan->registers = (conv->weight.blocks * plan->view.rows * plan->view.width + LANES - 1) / LANES;
    return true;
}

static int rows_chunk_steps(const rows_plan *plan, int chunk) {
    return dot_chunk_steps(&plan->view, chunk) / plan->view.taps * plan->steps;
}

/* Bytes of a batch of filters in a chunk: nibbles of g0, of g2, then the factors of a1 and of a2, a byte each. */
static size_t rows_sign_bytes(const rows_plan *plan, int chunk) {
    return (size_t)(rows_chunk_steps(plan, chunk) + 1) / 2 * DOT_FILTERS;
}

static size_t rows_factor_bytes(const rows_plan *plan, int chunk) {
    return (size_t)rows_chunk_steps(plan, chunk) * DOT_FILTERS;
}

static size_t rows_batch_bytes(const rows_plan *plan, int chunk) {
    return 2 * (rows_sign_bytes(plan, chunk) + rows_factor_bytes(plan, chunk));
}

static size_t rows_bank_bytes(const rows_plan *plan) {
    const size_t whole = (plan->view.chunks - 1) * rows_batch_bytes(plan, 0);
    return (whole + rows_batch_bytes(plan, plan->view.chunks - 1)) * plan->view.batches;
}

static double rows_cost(const sb_conv *conv) {
    rows_plan plan;
    if (dot_cost(conv) < 0 || !lay_out_rows(conv, &plan))
        return -1;
    const double k = conv->weight.blocks, steps = (double)plan.view.quads * plan.steps * ROWS_SIDES;
    const int row_registers = (plan.view.width + LANES - 1) / LANES;
    const double copies = plan.view.by_rows ? 0 : (double)plan.view.plane_rows * plan.view.copies * row_registers;
    const double list = plan.view.by_rows ? 0 : copies * 15 + 300;
    const double stage = k * plan.view.quads * (copies * 4 + (double)plan.view.input_rows * plan.view.pitch * 5 / LANES);
    const double transform = (double)plan.view.quads * plan.side_words / LANES * 14;
    const double product = plan.registers == 1 ? 0.86 : plan.registers == 2 || plan.registers == 4 ? 0.545 : 0.53;
    const double multiply = plan.registers * plan.view.batches * DOT_FILTERS * (steps * product + plan.view.chunks * 13.0);
    const double merge = (double)conv->weight.out / conv->groups * plan.out.vectors * (5 + 2 * k);
    return (double)plan.view.x_units * plan.view.y_units * conv->groups * (stage + transform + list + multiply + merge) /
           CYCLES_PER_NANOSECOND;
}

static size_t place_rows(const sb_conv *conv, uint8_t *memory, rows_plan *plan) {
    const dot_plan *view = &plan->view;
    const size_t filters = (size_t)view->banks * view->batches * DOT_FILTERS;
    const size_t runs = (size_t)conv->weight.blocks * view->rows, most = runs * (view->width / LANES + 2);
    size_t used = 0;
    carve(memory, &used, sizeof *plan);
    place_dot_filters(conv, memory, &used, &plan->out);
    plan->offset = carve(memory, &used, (size_t)view->chunk_quads * plan->steps * sizeof *plan->offset);
    plan->from = carve(memory, &used, (size_t)ROWS_SIDES * plan->steps * sizeof *plan->from);
    plan->part_begin = carve(memory, &used, ((size_t)plan->registers + 1) * sizeof *plan->part_begin);
    plan->parts = carve(memory, &used, most * sizeof *plan->parts);
    plan->out.start = carve(memory, &used, filters * 2 * sizeof *plan->out.start);
    plan->out.nibbles = carve(memory, &used, view->banks * rows_bank_bytes(plan));
    return used;
}

static size_t rows_prepared_size(const sb_conv *conv) {
    rows_plan plan;
    return lay_out_rows(conv, &plan) ? place_rows(conv, NULL, &plan) : 0;
}

/* Where the lanes of each register go. */
static void find_parts(rows_plan *plan, int blocks) {
    const int width = plan->view.width, rows = plan->view.rows, pixels = blocks * rows * width;
    const ptrdiff_t block_floats = (ptrdiff_t)plan->out.batches * DOT_FILTERS * plan->out.vectors * LANES;
    rows_part *part = plan->parts;
    for (int first = 0, r = 0; first < pixels; first += LANES, r++) {
        for (int lane = 0; lane < LANES && first + lane < pixels;) {
            const int row = (first + lane) / width, x = (first + lane) % width;
            const int end = lane + width - x < LANES ? lane + width - x : LANES;
            *part++ = (rows_part){row / rows * block_floats + 2 * (row % rows) * width + x - lane, lanes_between(lane, end)};
            lane = end;
        }
        plan->part_begin[r + 1] = (int32_t)(part - plan->parts);
    }
}

/* What the two factors of a sum are, of four channels: two bits each, 0..3 for -3, -1, 1, 3. */
static uint8_t pack_factors(unsigned g0, unsigned g1, unsigned g2) {
    unsigned code = 0;
    for (int c = 0; c < 4; c++)
        code |= ((g0 >> c & 1) + (g1 >> c & 1) + (g2 >> c & 1)) << 2 * c;
    return (uint8_t)code;
}

static int sum_of_factors(unsigned code) {
    return 2 * (int)((code & 3) + (code >> 2 & 3) + (code >> 4 & 3) + (code >> 6)) - 12;
}

/* Where the two sums of a filter begin: what staging raises is taken off. */
static void start_rows_sums(const sb_conv *conv, const int *signs, const int *factors, int32_t *start, size_t apart) {
    const int first = conv->levels.is_signed ? 64 * factors[0] : 0, second = 64 * factors[1];
    start[0] = -128 * signs[0] - first - second;
    start[apart] = -128 * signs[1] + first - second;
}

/* The codes of one filter, and its starts. */
static void pack_rows_filter(const sb_conv *conv, const rows_plan *plan, int filter, uint8_t *bank, int place, int32_t *start) {
    const size_t depth = (size_t)conv->weight.depth, columns = (size_t)plan->steps;
    int signs[2] = {0}, factors[2] = {0};
    for (int chunk = 0; chunk < plan->view.chunks; chunk++) {
        const size_t bytes = rows_batch_bytes(plan, chunk), sign_bytes = rows_sign_bytes(plan, chunk);
        uint8_t *sign = bank + place / DOT_FILTERS * bytes + place % DOT_FILTERS, *factor = sign + 2 * sign_bytes;
        for (int step = 0; step < rows_chunk_steps(plan, chunk); step++, factor += DOT_FILTERS) {
            const size_t channel = ((size_t)chunk * plan->view.chunk_quads + step / columns) * 4;
            unsigned g[3];
            for (int ky = 0; ky < 3; ky++) {
                const size_t bit = ((size_t)filter * 3 * columns + ky * columns + step % columns) * depth + channel;
                g[ky] = table_source_code(conv->weight.bits, bit, depth - channel < 4 ? (int)(depth - channel) : 4);
            }
            for (int side = 0; side < 2; side++) {
                const unsigned nibble = g[2 * side];
                sign[side * sign_bytes + step / 2 * DOT_FILTERS] |= (uint8_t)(nibble << step % 2 * 4);
                signs[side] += 2 * __builtin_popcount(nibble) - 4;
                const uint8_t code = pack_factors(g[0], side ? ~g[1] : g[1], g[2]);
                factor[side * rows_factor_bytes(plan, chunk)] = code;
                factors[side] += sum_of_factors(code);
            }
        }
        bank += bytes * plan->view.batches;
    }
    start_rows_sums(conv, signs, factors, start, 1);
}

static void rows_prepare(const sb_conv *conv, void *prepared) {
    const int per_bank = filters_per_group(conv);
    const sb_conv view = view_in_pairs(conv);
    rows_plan *plan = prepared;
    lay_out_rows(conv, plan);
    place_rows(conv, prepared, plan);
    const int run = plan->side_words / plan->view.copies, quad_words = ROWS_SIDES * plan->side_words;
    for (int step = 0; step < plan->view.chunk_quads * plan->steps; step++) {
        const int column = step % plan->steps;
        plan->offset[step] = 4 * (step / plan->steps * quad_words + column * (plan->view.by_rows ? conv->dilation_w : run));
    }
    for (int tap = 0; tap < ROWS_SIDES * plan->steps; tap++)
        plan->from[tap] = find_dot_tap(&view, &plan->view, tap);
    order_dot_filters(conv, &plan->out);
    find_parts(plan, conv->weight.blocks);
    for (int filter = 0; filter < conv->weight.filters; filter++) {
        const int bank = filter / per_bank, place = plan->out.place[filter];
        const size_t at = (size_t)bank * plan->out.batches * DOT_FILTERS + place;
        pack_rows_filter(conv, plan, filter, plan->out.nibbles + bank * rows_bank_bytes(plan), place, plan->out.start + 2 * at);
    }
}

static size_t carve_rows(const sb_conv *conv, const rows_plan *plan, uint8_t *memory, rows_scratch *scratch) {
    size_t used = carve_dot_scratch(conv, &plan->view, plan->out.vectors, 1, memory, &scratch->dot);
    const size_t words = (size_t)plan->view.chunk_quads * ROWS_SIDES * plan->side_words;
    scratch->sides = carve(memory, &used, (words + DOT_SLACK) * sizeof *scratch->sides);
    return used;
}

static size_t rows_scratch_size(const sb_conv *conv) {
    rows_plan plan;
    rows_scratch scratch;
    return lay_out_rows(conv, &plan) ? carve_rows(conv, &plan, NULL, &scratch) : 0;
}

/* ------------------------------------------------------------------------------------------------ stage */

static vsides raise_of_sums(const sb_conv *conv) { return (vsides){0} + (uint8_t)(conv->levels.is_signed ? 128 : 0); }

/* The sides of four rows. */
ALWAYS_INLINE void store_sides(const vsides *d, __mmask16 lanes, vsides raise_sum, size_t side_words, uint32_t *to) {
    const vsides raise = (vsides){0} + 128;
    vsides side[ROWS_SIDES];
    side[0] = d[0] - d[2] + raise;
    side[1] = d[1] + d[2] + raise_sum;
    side[2] = d[2] - d[1] + raise;
    side[3] = d[1] - d[3] + raise;
    UNROLL
    for (int i = 0; i < ROWS_SIDES; i++)
        _mm512_mask_storeu_epi32(to + i * side_words, lanes, (__m512i)side[i]);
}

ALWAYS_INLINE void build_side_registers(const uint32_t *const *row, int at, __mmask16 lanes, vsides raise_sum,
                                        size_t side_words, uint32_t *to) {
    vsides d[ROWS_SIDES];
    UNROLL
    for (int i = 0; i < ROWS_SIDES; i++)
        d[i] = (vsides)*(const vword_u *)(row[i] + at);
    store_sides(d, lanes, raise_sum, side_words, to + at);
}

/* The sides of one copy of a quad of a block: `count` words from each of four rows of taps on. */
static void build_sides(const uint32_t *staged, const int32_t *from, int columns, int count, vsides raise_sum,
                        size_t side_words, uint32_t *to) {
    const uint32_t *row[ROWS_SIDES];
    for (int ky = 0; ky < ROWS_SIDES; ky++)
        row[ky] = staged + from[ky * columns];
    int at = 0;
    for (; at + LANES <= count; at += LANES)
        build_side_registers(row, at, 0xffff, raise_sum, side_words, to);
    if (at < count)
        build_side_registers(row, at, lanes_between(0, count - at), raise_sum, side_words, to);
}

/* `conv` and `unit` are those of the view. */
static void stage_rows_chunk(const sb_conv *conv, const rows_plan *plan, const dot_unit *unit, const rows_scratch *scratch,
                             const int8_t *in, int chunk) {
    const dot_plan *view = &plan->view;
    const int first = chunk * view->chunk_quads, quads = rows_chunk_steps(plan, chunk) / plan->steps;
    const int run = view->rows * view->row_words, copy_words = conv->weight.blocks * run;
    const vsides raise_sum = raise_of_sums(conv);
    for (int block = 0; block < conv->weight.blocks; block++)
        for (int quad = 0; quad < quads; quad++) {
            uint32_t *sides = scratch->sides + (size_t)quad * ROWS_SIDES * plan->side_words + block * run;
            stage_dot_quad(conv, view, unit, &scratch->dot, in, block, first + quad, (vbyte){0}, scratch->dot.staged);
            for (int copy = 0; copy < view->copies; copy++)
                build_sides(scratch->dot.staged, plan->from + copy, plan->steps, run, raise_sum, plan->side_words,
                            sides + copy * copy_words);
        }
}

/* --------------------------------------------------------------------------------------------- multiply */

typedef struct {
    const int32_t *offset, *start;
    const uint8_t *codes[ROWS_SIDES], *x[ROWS_SIDES][DOT_COLUMNS];
    int steps;
    bool first, last;              /* chunk: maps hold nothing yet; integers become floats */
    const rows_part *part[DOT_COLUMNS], *part_end[DOT_COLUMNS];
    float *map;                    /* of the first filter, in the first block */
    size_t map_floats, row_floats;
} rows_job;

/* The factors of four channels for every byte of codes. */
#define FACTOR(byte, channel) ((2 * ((byte) >> 2 * (channel) & 3) - 3) & 0xffu) << 8 * (channel)
#define FACTORS1(byte) (FACTOR(byte, 0) | FACTOR(byte, 1) | FACTOR(byte, 2) | FACTOR(byte, 3))
#define FACTORS4(byte) FACTORS1(byte), FACTORS1((byte) + 1), FACTORS1((byte) + 2), FACTORS1((byte) + 3)
#define FACTORS16(byte) FACTORS4(byte), FACTORS4((byte) + 4), FACTORS4((byte) + 8), FACTORS4((byte) + 12)
#define FACTORS64(byte) FACTORS16(byte), FACTORS16((byte) + 16), FACTORS16((byte) + 32), FACTORS16((byte) + 48)
static const uint32_t rows_factors[256] = {FACTORS64(0u), FACTORS64(64u), FACTORS64(128u), FACTORS64(192u)};
#undef FACTOR
#undef FACTORS1
#undef FACTORS4
#undef FACTORS16
#undef FACTORS64

/* Sums that earlier chunks left in the maps. */
ALWAYS_INLINE vword load_parts(const rows_part *part, const rows_part *end, const float *map) {
    __m512i sum = _mm512_setzero_si512();
    for (; part < end; part++)
        sum = _mm512_mask_loadu_epi32(sum, part->lanes, map + part->to);
    return (vword)sum;
}

ALWAYS_INLINE void store_parts(const rows_part *part, const rows_part *end, vword sum, bool last, float *map) {
    const __m512i v = last ? (__m512i)__builtin_convertvector(sum, vfloat) : (__m512i)sum;
    for (; part < end; part++)
        _mm512_mask_storeu_epi32(map + part->to, part->lanes, v);
}

/* Takes other sums into registers. */
ALWAYS_INLINE void exchange(vword *sum, vword *other, const int count) {
    UNROLL
    for (int i = 0; i < count; i++) {
        const vword now = sum[i];
        sum[i] = other[i];
        other[i] = now;
    }
}

/* From a3 and a0 to a0 - a3 and a0 + a3. */
ALWAYS_INLINE void add_first_sides(vword *sum, vword *other, const int count) {
    UNROLL
    for (int i = 0; i < count; i++) {
        const vword a0 = other[i];
        other[i] = a0 + sum[i];
        sum[i] = a0 - sum[i];
    }
}

/* As add_signed, for factors. */
ALWAYS_INLINE void add_multiples(vword *sum, const uint8_t *const *at, const int32_t *offset, int steps, const uint8_t *codes,
                                 const int columns) {
    vword x[DOT_COLUMNS];
    for (int step = 0; step < steps; step++, codes += DOT_FILTERS) {
        UNROLL
        for (int c = 0; c < columns; c++)
            x[c] = *(const vword_u *)(at[c] + offset[step]);
        UNROLL
        for (int i = 0; i < DOT_FILTERS * columns; i++)
            sum[i] = add_products(sum[i], x[i % columns], (vword){0} + (int32_t)rows_factors[codes[i / columns]]);
    }
}

/* Both rows of a batch of filters at `columns` registers of pixels, a constant of the caller. */
ALWAYS_INLINE void rows_tile(const rows_job *job, const int columns) {
    vword sum[DOT_FILTERS * DOT_COLUMNS], other[DOT_FILTERS * DOT_COLUMNS];
    const int count = DOT_FILTERS * columns;
    UNROLL
    for (int i = 0; i < count; i++) {
        const int f = i / columns, c = i % columns;
        const float *map = job->map + f * job->map_floats;
        if (job->first) {
            sum[i] = (vword){0} + job->start[2 * f];
            other[i] = (vword){0} + job->start[2 * f + 1];
        } else {
            sum[i] = load_parts(job->part[c], job->part_end[c], map);
            other[i] = -load_parts(job->part[c], job->part_end[c], map + job->row_floats);
        }
    }
    add_signed(sum, job->x[0], job->offset, job->steps, job->codes[0], columns);
    exchange(sum, other, count);
    add_signed(sum, job->x[3], job->offset, job->steps, job->codes[3], columns);
    add_first_sides(sum, other, count);
    add_multiples(sum, job->x[1], job->offset, job->steps, job->codes[1], columns);
    exchange(sum, other, count);
    add_multiples(sum, job->x[2], job->offset, job->steps, job->codes[2], columns);
    UNROLL
    for (int i = 0; i < count; i++) {
        const int f = i / columns, c = i % columns;
        float *map = job->map + f * job->map_floats;
        store_parts(job->part[c], job->part_end[c], (other[i] + sum[i]) >> 1, job->last, map);
        store_parts(job->part[c], job->part_end[c], (other[i] - sum[i]) >> 1, job->last, map + job->row_floats);
    }
}

static NEVER_INLINE void rows_tile_1(const rows_job *job) { rows_tile(job, 1); }
static NEVER_INLINE void rows_tile_2(const rows_job *job) { rows_tile(job, 2); }
static NEVER_INLINE void rows_tile_3(const rows_job *job) { rows_tile(job, 3); }
static void (*const rows_tiles[DOT_COLUMNS + 1])(const rows_job *) = {NULL, rows_tile_1, rows_tile_2, rows_tile_3};

static NEVER_INLINE void multiply_rows_chunk(const rows_plan *plan, int blocks, const rows_scratch *scratch, int bank,
                                             int chunk) {
    const dot_plan *view = &plan->view, *out = &plan->out;
    const int block_pixels = view->rows * view->width;
    const size_t bytes = rows_batch_bytes(plan, chunk), map_floats = (size_t)out->vectors * LANES;
    const size_t sign_bytes = rows_sign_bytes(plan, chunk), factor_bytes = rows_factor_bytes(plan, chunk);
    const uint8_t *codes = out->nibbles + bank * rows_bank_bytes(plan) + chunk * rows_batch_bytes(plan, 0) * out->batches;
    rows_job job = {
        .offset = plan->offset, .steps = rows_chunk_steps(plan, chunk), .first = chunk == 0, .last = chunk + 1 == view->chunks,
        .map_floats = map_floats, .row_floats = (size_t)view->width,
    };
    for (int first = 0, count; first < plan->registers; first += count) {
        const int left = plan->registers - first, tiles = (left + DOT_COLUMNS - 1) / DOT_COLUMNS;
        count = (left + tiles - 1) / tiles;
        for (int c = 0; c < count; c++) {
            const int pixel = (first + c) * LANES, margins = pixel / view->width * (view->row_words - view->width);
            for (int side = 0; side < ROWS_SIDES; side++)
                job.x[side][c] = (const uint8_t *)(scratch->sides + (size_t)side * plan->side_words + pixel + margins);
            job.part[c] = plan->parts + plan->part_begin[first + c];
            job.part_end[c] = plan->parts + plan->part_begin[first + c + 1];
        }
        int begin = out->batches, end = 0;
        const int last_block = ((first + count) * LANES - 1) / block_pixels;
        for (int block = first * LANES / block_pixels; block <= last_block && block < blocks; block++) {
            begin = out->range[2 * block] < begin ? out->range[2 * block] : begin;
            end = out->range[2 * block + 1] > end ? out->range[2 * block + 1] : end;
        }
        for (int batch = begin; batch < end; batch++) {
            const size_t filter = (size_t)batch * DOT_FILTERS;
            job.codes[0] = codes + batch * bytes;
            job.codes[3] = job.codes[0] + sign_bytes;
            job.codes[1] = job.codes[3] + sign_bytes;
            job.codes[2] = job.codes[1] + factor_bytes;
            job.start = out->start + 2 * ((size_t)bank * out->batches * DOT_FILTERS + filter);
            job.map = scratch->dot.maps + filter * map_floats;
            rows_tiles[count](&job);
        }
    }
}

/* --------------------------------------------------------------------------------------------------- run */

static void run_rows_unit(const sb_conv *conv, const rows_plan *plan, rows_scratch *scratch, int number, const int8_t *in,
                          float *out) {
    const int group = number / (plan->out.x_units * plan->out.y_units);
    const dot_unit unit = find_dot_unit(conv, &plan->out, number);
    const sb_conv view = view_in_pairs(conv);
    const dot_unit of_view = {unit.x, unit.y / 2, (unit.rows + 1) / 2};
    uint64_t since = BEGIN_STAGE(conv);
    if (!plan->view.by_rows)
        list_copies(&view, &plan->view, &of_view, &scratch->dot);
    for (int chunk = 0; chunk < plan->view.chunks; chunk++) {
        stage_rows_chunk(&view, plan, &of_view, scratch, input_of_group(conv, in, group), chunk);
        END_STAGE(conv, build, &since);
        multiply_rows_chunk(plan, conv->weight.blocks, scratch, plan->view.banks > 1 ? group : 0, chunk);
        END_STAGE(conv, look_up, &since);
    }
    merge_dot_unit(conv, &plan->out, &unit, &scratch->dot, group, out);
    END_STAGE(conv, merge, &since);
}

static int32_t rows_pieces(const sb_conv *conv) {
    const rows_plan *plan = conv->prepared;
    return plan->out.x_units * plan->out.y_units * conv->groups;
}

static void rows_run_pieces(const sb_conv *conv, int32_t first, int32_t last, const int8_t *in, float *out, void *memory) {
    const rows_plan *plan = conv->prepared;
    rows_scratch scratch;
    carve_rows(conv, plan, memory, &scratch);
    if (plan->view.by_rows) /* the margins of all units */
        memset(scratch.dot.staged, 0, scratch.dot.staged_words * sizeof *scratch.dot.staged);
    for (int unit = first; unit < last; unit++)
        run_rows_unit(conv, plan, &scratch, unit, in, out);
}

static void rows_run(const sb_conv *conv, const int8_t *in, float *out, void *memory) {
    rows_run_pieces(conv, 0, rows_pieces(conv), in, out, memory);
    if (out)
        apply_rest(conv, out);
}

static const sb_conv_kernel dot_rows_kernel = {
    .name = "dot rows", .cost = rows_cost, .prepared_size = rows_prepared_size, .prepare = rows_prepare,
    .scratch_size = rows_scratch_size, .adds_in_place = true, .run_levels = rows_run, .pieces = rows_pieces, .run_level_pieces = rows_run_pieces,
};

#endif
