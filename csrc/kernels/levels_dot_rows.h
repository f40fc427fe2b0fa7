/* The dot kernel for kernels of three rows, two output rows at a time with four products where six would be: Winograd's
 * minimal filtering F(2,3), along the columns, exact in whole numbers.
 *
 * Four input rows d0..d3 and the three rows g0..g2 of a filter make two output rows:
 *
 *   a0 = g0 (d0 - d2)    a1 = (g0 + g1 + g2) (d1 + d2)          2 (g0 d0 + g1 d1 + g2 d2) = 2 a0 + a1 + a2
 *   a3 = g2 (d1 - d3)    a2 = (g0 - g1 + g2) (d2 - d1)          2 (g0 d1 + g1 d2 + g2 d3) = a1 - a2 - 2 a3
 *
 * The left factors are small odd numbers, the right ones ("sides") fit a byte: differences are staged 128 higher, and so are
 * sums of signed levels. Two sums are kept per filter and register of pixels. They begin as a1 and a2, become a1 + a2 and
 * a1 - a2, and go on with 2 a0 and -2 a3: they are then twice the two rows. One of them is in registers at a time, so that
 * as many filters share the loads as in the dot kernel.
 *
 * Staging is that of the dot kernel for the convolution with four rows of taps and a stride of two rows ("the view"), or, for
 * most maps whose rows do not fill registers, words are picked from the interleaved input without being staged. The
 * pixels of all input blocks lie in a row, so that registers run on from one block to the next: two rows of a small map are
 * few pixels. */
#if LANES == 16

#include "levels_dot_rows_plan.h"

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

/* Which pixels exist for what, in a unit: the same for all quads. `conv` and `unit` are those of the view, here and below. */
static void list_pick_masks(const sb_conv *conv, const rows_plan *plan, const dot_unit *unit, rows_mask *masks) {
    const dot_plan *view = &plan->view;
    const int above = unit->y * 2 - conv->pad_top;
    for (int r = 0; r < plan->block_registers; r++) {
        __mmask16 rows[ROWS_SIDES]; /* pixels for which a row of taps reads rows of the input */
        for (int i = 0; i < ROWS_SIDES; i++) {
            const int begin = -floor_divide(above + i, 2), end = floor_divide(conv->height - 1 - above - i, 2) + 1;
            rows[i] = lanes_between(begin * view->width - r * LANES, end * view->width - r * LANES);
        }
        for (int column = 0; column < plan->steps; column++, masks++)
            for (int i = 0; i < ROWS_SIDES; i++)
                masks->row[i] = rows[i] & plan->inside[r * plan->steps + column];
    }
}

/* The sides of all columns of taps of a quad of a block, without copies between. */
static NEVER_INLINE void pick_sides(const sb_conv *conv, const rows_plan *plan, const rows_scratch *scratch, vsides raise_sum,
                                    uint32_t *to) {
    const int pixels = plan->view.rows * plan->view.width, registers = plan->block_registers, columns = plan->steps;
    const size_t copy_words = (size_t)conv->weight.blocks * pixels, side_words = (size_t)plan->side_words;
    const size_t pitch = (size_t)plan->view.pitch, apart = (size_t)conv->dilation_w;
    const rows_mask *mask = scratch->masks;
    const rows_pick *pick = plan->pick;
    for (int r = 0; r < registers; r++, pick++, to += LANES) {
        const __m512i lane = _mm512_loadu_si512(pick->lane);
        const __mmask16 exist = lanes_between(0, pixels - r * LANES);
        const uint32_t *from = scratch->dot.interleaved + pick->word;
        uint32_t *target = to;
        for (int column = 0; column < columns; column++, mask++, from += apart, target += copy_words) {
            vsides d[ROWS_SIDES];
            UNROLL
            for (int i = 0; i < ROWS_SIDES; i++)
                d[i] = (vsides)_mm512_maskz_permutex2var_epi32(mask->row[i], _mm512_loadu_si512(from + i * pitch), lane,
                                                               _mm512_loadu_si512(from + i * pitch + LANES));
            store_sides(d, exist, raise_sum, side_words, target);
        }
    }
}

static void stage_rows_chunk(const sb_conv *conv, const rows_plan *plan, const dot_unit *unit, const rows_scratch *scratch,
                             const int8_t *in, int chunk) {
    const dot_plan *view = &plan->view;
    const int first = chunk * view->chunk_quads, quads = rows_chunk_steps(plan, chunk) / plan->steps;
    const int run = view->rows * view->row_words, copy_words = conv->weight.blocks * run;
    const vsides raise_sum = raise_of_sums(conv);
    for (int block = 0; block < conv->weight.blocks; block++)
        for (int quad = 0; quad < quads; quad++) {
            uint32_t *sides = scratch->sides + (size_t)quad * ROWS_SIDES * plan->side_words + block * run;
            if (plan->picks) {
                const size_t channel = (size_t)block * conv->weight.depth + (size_t)(first + quad) * 4;
                interleave_unit(conv, view, unit, in + channel * conv->height * conv->width, quad_channels(conv, first + quad),
                                (vbyte){0}, scratch->dot.interleaved);
                pick_sides(conv, plan, scratch, raise_sum, sides);
                continue;
            }
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
ALWAYS_INLINE vword load_parts(const rows_part *part, const rows_part *end, const float *map, const bool whole) {
    if (whole)
        return *(const vword *)(map + part->to);
    __m512i sum = _mm512_setzero_si512();
    for (; part < end; part++)
        sum = _mm512_mask_loadu_epi32(sum, part->lanes, map + part->to);
    return (vword)sum;
}

ALWAYS_INLINE void store_parts(const rows_part *part, const rows_part *end, vword v, float *map, const bool whole) {
    if (whole) {
        *(vword *)(map + part->to) = v;
        return;
    }
    for (; part < end; part++)
        _mm512_mask_storeu_epi32(map + part->to, part->lanes, (__m512i)v);
}

/* From a1 and a2 to a1 + a2 and a1 - a2. */
ALWAYS_INLINE void add_middle_sides(vword *first, vword *second, const int count) {
    UNROLL
    for (int i = 0; i < count; i++) {
        const vword a1 = first[i];
        first[i] = a1 + second[i];
        second[i] = a1 - second[i];
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

/* Registers of pixels in maps: where the sums of one of two rows go, and come from with several chunks. A copy of what the job
 * has: for all that the compiler knows, a register that is stored may be part of the job. */
typedef struct {
    const rows_part *part[DOT_COLUMNS], *end[DOT_COLUMNS];
    float *map; /* of the first filter */
    size_t map_floats;
} rows_target;

/* Goes on with what the chunk before has left. */
ALWAYS_INLINE void load_row(vword *sum, const rows_target *from, const int columns, const bool whole) {
    UNROLL
    for (int i = 0; i < DOT_FILTERS * columns; i++) {
        const int f = i / columns, c = i % columns;
        sum[i] += load_parts(from->part[c], from->end[c], from->map + f * from->map_floats, whole);
    }
}

/* Whole numbers, twice the sums, until the last chunk makes them floats. */
ALWAYS_INLINE void store_row(const vword *sum, const rows_target *to, const int columns, const bool whole, const bool last) {
    rows_part first[DOT_COLUMNS]; /* copies again, for the same reason */
    UNROLL
    for (int c = 0; c < columns; c++)
        first[c] = *to->part[c];
    float *map = to->map;
    UNROLL
    for (int f = 0; f < DOT_FILTERS; f++, map += to->map_floats)
        UNROLL
        for (int c = 0; c < columns; c++) {
            const vword v = sum[f * columns + c];
            store_parts(whole ? &first[c] : to->part[c], whole ? NULL : to->end[c],
                        last ? (vword)__builtin_convertvector(v >> 1, vfloat) : v, map, whole);
        }
}

/* One row, from what the sides that both rows have in common came to. */
ALWAYS_INLINE void finish_row(const rows_job *job, vword *sum, const int side, const rows_target *target, const int columns,
                              const bool whole) {
    if (!job->first)
        load_row(sum, target, columns, whole);
    add_signed(sum, job->x[side], job->offset, job->steps, job->codes[side], dot_signs_twice, columns);
    if (job->last)
        store_row(sum, target, columns, whole, true);
    else
        store_row(sum, target, columns, whole, false);
}

/* Both rows of a batch of filters at `columns` registers of pixels, a constant of the caller. `whole`: each is one whole
 * register of a map. */
ALWAYS_INLINE void rows_tile(const rows_job *job, const int columns, const bool whole) {
    vword sum[DOT_FILTERS * DOT_COLUMNS], other[DOT_FILTERS * DOT_COLUMNS];
    const int count = DOT_FILTERS * columns;
    rows_target target = {.map = job->map, .map_floats = job->map_floats};
    UNROLL
    for (int c = 0; c < columns; c++) {
        target.part[c] = job->part[c];
        target.end[c] = job->part_end[c];
    }
    UNROLL
    for (int i = 0; i < count; i++)
        sum[i] = (vword){0} + (job->first ? job->start[i / columns * 2] : 0);
    add_multiples(sum, job->x[1], job->offset, job->steps, job->codes[1], columns);
    UNROLL
    for (int i = 0; i < count; i++)
        other[i] = sum[i];
    IN_MEMORY(other);
    UNROLL
    for (int i = 0; i < count; i++)
        sum[i] = (vword){0} + (job->first ? job->start[i / columns * 2 + 1] : 0);
    add_multiples(sum, job->x[2], job->offset, job->steps, job->codes[2], columns);
    add_middle_sides(other, sum, count);
    IN_MEMORY(other);
    target.map += job->row_floats;
    finish_row(job, sum, 3, &target, columns, whole);
    target.map -= job->row_floats;
    UNROLL
    for (int i = 0; i < count; i++)
        sum[i] = other[i];
    finish_row(job, sum, 0, &target, columns, whole);
}

static NEVER_INLINE void rows_tile_1(const rows_job *job) { rows_tile(job, 1, false); }
static NEVER_INLINE void rows_tile_2(const rows_job *job) { rows_tile(job, 2, false); }
static NEVER_INLINE void rows_tile_3(const rows_job *job) { rows_tile(job, 3, false); }
static NEVER_INLINE void whole_rows_tile_1(const rows_job *job) { rows_tile(job, 1, true); }
static NEVER_INLINE void whole_rows_tile_2(const rows_job *job) { rows_tile(job, 2, true); }
static NEVER_INLINE void whole_rows_tile_3(const rows_job *job) { rows_tile(job, 3, true); }
static void (*const rows_tiles[2][DOT_COLUMNS + 1])(const rows_job *) = {
    {NULL, rows_tile_1, rows_tile_2, rows_tile_3}, {NULL, whole_rows_tile_1, whole_rows_tile_2, whole_rows_tile_3}};

static NEVER_INLINE void multiply_rows_chunk(const rows_plan *plan, int blocks, const rows_scratch *scratch, int bank,
                                             int chunk) {
    const dot_plan *view = &plan->view, *out = &plan->out;
    const int block_pixels = view->rows * view->width;
    const size_t bytes = rows_batch_bytes(plan, chunk), map_floats = out->map_floats;
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
            rows_tiles[view->by_rows][count](&job);
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
    if (plan->picks)
        list_pick_masks(&view, plan, &of_view, scratch->masks);
    else if (!plan->view.by_rows)
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
