/* The dot kernel on levels: sums of four products of bytes by one instruction (VPDPBUSD of AVX-512 VNNI), pixels in the
 * lanes. No table is built, which pays where few filters, a stride or a 1 x 1 kernel would hardly use one.
 *
 * A lane is a word of four channels ("a quad") of one pixel; the four signs of a filter's tap are broadcast beside it.
 * The input of a unit of output rows is staged so that the lanes of a register are always 16 pixels of the output in a row,
 * over the ends of its rows, for every tap:
 *
 *   plane     the input rows that some taps read: those with the same row mod stride
 *   copy      a plane for one column of taps, as wide as the unit: what this tap column reads for each pixel, padding
 *             included. Taps of a column are whole rows apart. Where the rows of a unit are whole registers and there is no
 *             stride along them, one copy with a margin serves all columns.
 *
 * Levels must not be negative there: signed ones are staged 64 higher, padding too, and the sums start at -64 times the
 * sum of the filter's signs. */
#if LANES == 16
#include "levels_dot_plan.h"

/* ------------------------------------------------------------------------------------------------ stage */

/* Output pixels of a unit. */
typedef struct {
    int x, y, rows;
} dot_unit;

/* Lanes begin..end-1, of which some may lie outside the register. */
ALWAYS_INLINE __mmask16 lanes_between(int begin, int end) {
    begin = begin < 0 ? 0 : begin;
    end = end < LANES ? end : LANES;
    return (__mmask16)(begin < end ? (1u << end) - (1u << begin) : 0);
}

/* Lists what a column of taps reads of the rows of one plane, `column` being what it reads for x = 0. */
static void list_running_copies(const sb_conv *conv, const dot_plan *plan, const dot_unit *unit, const dot_plane *plane,
                                int column, int target, dot_scratch *scratch) {
    const int width = plan->width, words = plane->rows * width;
    const int begin = column < 0 ? -column : 0, end = column > 0 ? width - column : width; /* of each row */
    int row = 0, x = 0; /* of the next lane */
    for (int at = 0; at < words; at += LANES) {
        __mmask16 lanes = 0;
        for (int lane = 0; lane < LANES; x = 0, row++) {
            const int y = plane->row + unit->y + row;
            if (y >= 0 && y < conv->height && row < plane->rows)
                lanes |= lanes_between((begin > x ? begin : x) - x + lane, end - x + lane);
            if (width - x > LANES - lane) {
                x += LANES - lane;
                break;
            }
            lane += width - x;
        }
        scratch->copies[scratch->copies_count++] = (dot_copy){lanes ? at + column : 0, target + at, lanes};
    }
}

static void list_row_copies(const sb_conv *conv, const dot_plan *plan, const dot_unit *unit, const dot_plane *plane,
                            int column, int target, dot_scratch *scratch) {
    const int stride = conv->stride_w, from = plan->x_units == 1 ? 0 : unit->x * stride - conv->pad_left;
    const int begin = -floor_divide(column, stride), end = floor_divide(conv->width - 1 - column, stride) + 1;
    const int above = unit->y * conv->stride_h - conv->pad_top;
    for (int row = 0; row < plane->rows; row++) {
        const int y = plane->row + (unit->y + row) * conv->stride_h;
        const bool inside = y >= 0 && y < conv->height;
        for (int x = 0; x < plan->width; x += LANES) {
            const int left = unit->x + x;
            const __mmask16 lanes = inside ? lanes_between(begin - left, end - left) : 0;
            const int source = (y - above) * plan->pitch + left * stride + column - from;
            scratch->copies[scratch->copies_count++] = (dot_copy){lanes ? source : 0, target + row * plan->width + x, lanes};
        }
    }
}

/* Do all taps of all pixels lie in rows of the input? */
static bool lies_inside(const sb_conv *conv, const dot_plan *plan, const dot_unit *unit) {
    bool inside = true;
    for (const dot_plane *plane = plan->planes; plane < plan->planes + plan->planes_count; plane++)
        inside = inside && plane->row + unit->y * conv->stride_h >= 0 &&
                 plane->row + (unit->y + plane->rows - 1) * conv->stride_h < conv->height;
    return inside;
}

static void list_copies(const sb_conv *conv, const dot_plan *plan, const dot_unit *unit, dot_scratch *scratch) {
    const int columns = conv->weight.kernel_w, x = lies_inside(conv, plan, unit) ? unit->x : -1;
    if (x >= 0 && x == scratch->copies_x)
        return;
    scratch->copies_x = x;
    scratch->copies_count = 0;
    for (int p = 0; p < plan->planes_count; p++)
        for (int kx = 0; kx < columns; kx++) {
            const dot_plane *plane = &plan->planes[p];
            const int target = (plane->first * columns + kx * plane->rows) * plan->width;
            (runs_on(conv, plan) ? list_running_copies : list_row_copies)(
                conv, plan, unit, plane, kx * conv->dilation_w - conv->pad_left, target, scratch);
        }
}

/* Words of four channels of 16 pixels: those of each channel side by side in a register, then transposed. */
ALWAYS_INLINE vword interleave_pixels(const int8_t *in, size_t plane, const int channels, __mmask16 pixels, vbyte raise) {
    const __m512i quarters = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m512i rows = _mm512_zextsi128_si512(_mm_maskz_loadu_epi8(pixels, in));
    UNROLL
    for (int c = 1; c < channels; c++)
        rows = _mm512_mask_broadcast_i32x4(rows, (__mmask16)(0xf << 4 * c), _mm_maskz_loadu_epi8(pixels, in + c * plane));
    return (vword)((vbyte)_mm512_shuffle_epi8(_mm512_permutexvar_epi32(quarters, rows), bytes) + raise);
}

/* Rows of pixels as words. */
typedef struct {
    const int8_t *in; /* of the first channel */
    size_t plane;     /* from one channel to the next */
    ptrdiff_t in_step, to_step; /* from one row to the next */
    int rows, count;
    vbyte raise;
    uint32_t *to;
} interleave_job;

ALWAYS_INLINE void interleave(const interleave_job *job, const int channels) {
    const __mmask16 rest = lanes_between(0, job->count % LANES);
    const vbyte raise = job->raise;
    const int8_t *in = job->in;
    uint32_t *to = job->to;
    for (int row = 0; row < job->rows; row++, in += job->in_step, to += job->to_step) {
        int x = 0;
        for (; x + LANES <= job->count; x += LANES)
            *(vword_u *)(to + x) = interleave_pixels(in + x, job->plane, channels, 0xffff, raise);
        if (rest)
            _mm512_mask_storeu_epi32(to + x, rest, (__m512i)interleave_pixels(in + x, job->plane, channels, rest, raise));
    }
}

static NEVER_INLINE void interleave_quad(const interleave_job *job, int channels) {
    switch (channels) {
    case 1: interleave(job, 1); break;
    case 2: interleave(job, 2); break;
    case 3: interleave(job, 3); break;
    default: interleave(job, 4);
    }
}

/* The rows of the input that a unit reads, of one quad. Where all rows are read from end to end they are one. */
static void interleave_unit(const sb_conv *conv, const dot_plan *plan, const dot_unit *unit, const int8_t *in, int channels,
                            vbyte raise, uint32_t *to) {
    const int first = plan->x_units == 1 ? 0 : unit->x * conv->stride_w - conv->pad_left;
    const int begin = first < 0 ? 0 : first, last = first + plan->pitch, end = last < conv->width ? last : conv->width;
    const int above = unit->y * conv->stride_h - conv->pad_top, below = above + plan->input_rows;
    const int top = above < 0 ? 0 : above, bottom = below < conv->height ? below : conv->height;
    if (begin >= end || top >= bottom)
        return;
    interleave_job job = {
        .in = in + (size_t)top * conv->width + begin, .plane = (size_t)conv->height * conv->width, .in_step = conv->width,
        .to = to + (size_t)(top - above) * plan->pitch + begin - first, .to_step = plan->pitch,
        .rows = bottom - top, .count = end - begin, .raise = raise,
    };
    if (plan->x_units == 1) {
        job.count *= job.rows;
        job.rows = 1;
    }
    interleave_quad(&job, channels);
}

/* The same straight into the one copy of a plane, and padding above and below. Margins of rows are padding already, unless
 * there are units beside each other. */
static void stage_dot_plane(const sb_conv *conv, const dot_plan *plan, const dot_unit *unit, const dot_plane *plane,
                            const int8_t *in, int channels, vbyte raise, uint32_t *to) {
    const int first = unit->x - conv->pad_left, last = first + plan->row_words, stride = conv->stride_h;
    const int begin = first < 0 ? 0 : first, end = last < conv->width ? last : conv->width;
    const int y = plane->row + unit->y * stride, rows = plane->rows;
    int top = y < 0 ? -floor_divide(y, stride) : 0, bottom = floor_divide(conv->height - 1 - y, stride) + 1;
    top = top < rows ? top : rows;
    bottom = bottom < top || begin >= end ? top : bottom < rows ? bottom : rows;
    const size_t row_bytes = (size_t)plan->row_words * sizeof *to, margins = plan->x_units > 1 ? bottom - top : 0;
    if (top + margins) /* mostly there are none */
        memset(to, raise[0], row_bytes * (top + margins));
    if (bottom < rows)
        memset(to + bottom * plan->row_words, raise[0], row_bytes * (rows - bottom));
    const interleave_job job = {
        .in = in + (ptrdiff_t)(y + top * stride) * conv->width + begin, .plane = (size_t)conv->height * conv->width,
        .in_step = (ptrdiff_t)stride * conv->width, .to = to + top * plan->row_words + begin - first,
        .to_step = plan->row_words, .rows = bottom - top, .count = end - begin, .raise = raise,
    };
    interleave_quad(&job, channels);
}

/* Every `stride`-th word from `source` on, `padding` in the other lanes. At least one lane exists, or `source` does: with a
 * stride of 2 what is read besides lies in the slack. */
ALWAYS_INLINE vword load_words(const uint32_t *source, __mmask16 lanes, int stride, vword padding) {
    if (stride == 1)
        return (vword)_mm512_mask_loadu_epi32((__m512i)padding, lanes, source);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    if (stride > 2)
        return (vword)_mm512_mask_i32gather_epi32((__m512i)padding, lanes, _mm512_mullo_epi32(lane, _mm512_set1_epi32(stride)),
                                                  source, 4);
    const __m512i low = _mm512_loadu_si512(source), high = _mm512_loadu_si512(source + LANES);
    const __m512i even = _mm512_permutex2var_epi32(low, _mm512_slli_epi32(lane, 1), high);
    return (vword)_mm512_mask_blend_epi32(lanes, (__m512i)padding, even);
}

ALWAYS_INLINE void copy_words(const dot_scratch *scratch, const int stride, vword padding, uint32_t *staged) {
    for (const dot_copy *copy = scratch->copies; copy < scratch->copies + scratch->copies_count; copy++)
        *(vword_u *)(staged + copy->target) = load_words(scratch->interleaved + copy->source, copy->lanes, stride, padding);
}

/* Registers reach over the ends of copies: what comes behind is written later. */
static NEVER_INLINE void copy_dot_quad(const dot_scratch *scratch, int stride, vword padding, uint32_t *staged) {
    if (stride == 1)
        copy_words(scratch, 1, padding, staged);
    else if (stride == 2)
        copy_words(scratch, 2, padding, staged);
    else
        copy_words(scratch, stride, padding, staged);
}

/* One quad of one input block, `raise` higher, padding too. */
static void stage_dot_quad(const sb_conv *conv, const dot_plan *plan, const dot_unit *unit, const dot_scratch *scratch,
                           const int8_t *in, int block, int quad, vbyte raise, uint32_t *staged) {
    const size_t channel = (size_t)block * conv->weight.depth + (size_t)quad * 4;
    const int channels = quad_channels(conv, quad);
    in += channel * conv->height * conv->width;
    if (plan->by_rows) {
        for (int p = 0; p < plan->planes_count; p++)
            stage_dot_plane(conv, plan, unit, &plan->planes[p], in, channels, raise,
                            staged + plan->planes[p].first * plan->row_words);
    } else {
        interleave_unit(conv, plan, unit, in, channels, raise, scratch->interleaved);
        copy_dot_quad(scratch, conv->stride_w, (vword)raise, staged);
    }
}

static void stage_dot_chunk(const sb_conv *conv, const dot_plan *plan, const dot_unit *unit, const dot_scratch *scratch,
                            const int8_t *in, int chunk) {
    const int first = chunk * plan->chunk_quads, quads = dot_chunk_steps(plan, chunk) / plan->taps;
    const vbyte raise = (vbyte){0} - (int8_t)sb_lowest_level(conv->levels);
    for (int block = 0; block < conv->weight.blocks; block++)
        for (int quad = 0; quad < quads; quad++)
            stage_dot_quad(conv, plan, unit, scratch, in, block, first + quad, raise,
                           scratch->staged + ((size_t)block * plan->chunk_quads + quad) * plan->quad_words);
}

/* --------------------------------------------------------------------------------------------- multiply */

/* What one batch of filters and one tile of registers of pixels work on. */
typedef struct {
    const int32_t *offset, *start;
    const uint8_t *nibbles;
    int steps;
    bool first, last;             /* chunk: maps hold nothing yet; integers become floats */
    const uint8_t *x[DOT_COLUMNS];
    float *map[DOT_COLUMNS];      /* of the first filter */
    size_t map_floats;
} dot_job;

/* The signs of two steps for every byte of two nibbles, times 1 and times 2. */
typedef const uint32_t (*signs_of_bytes)[2];
#define SIGN(n, nibble, bit) ((nibble) >> (bit) & 1 ? n : 0x100u - n) << 8 * (bit)
#define SIGNS(n, nibble) (SIGN(n, nibble, 0) | SIGN(n, nibble, 1) | SIGN(n, nibble, 2) | SIGN(n, nibble, 3))
#define SIGNS1(n, byte) {SIGNS(n, (byte) & 15), SIGNS(n, (byte) >> 4)}
#define SIGNS4(n, byte) SIGNS1(n, byte), SIGNS1(n, (byte) + 1), SIGNS1(n, (byte) + 2), SIGNS1(n, (byte) + 3)
#define SIGNS16(n, byte) SIGNS4(n, byte), SIGNS4(n, (byte) + 4), SIGNS4(n, (byte) + 8), SIGNS4(n, (byte) + 12)
#define SIGNS64(n, byte) SIGNS16(n, byte), SIGNS16(n, (byte) + 16), SIGNS16(n, (byte) + 32), SIGNS16(n, (byte) + 48)
static const uint32_t dot_signs[256][2] = {SIGNS64(1u, 0), SIGNS64(1u, 64), SIGNS64(1u, 128), SIGNS64(1u, 192)};
static const uint32_t dot_signs_twice[256][2] = {SIGNS64(2u, 0), SIGNS64(2u, 64), SIGNS64(2u, 128), SIGNS64(2u, 192)};
#undef SIGN
#undef SIGNS
#undef SIGNS1
#undef SIGNS4
#undef SIGNS16
#undef SIGNS64

/* Adds the products of four unsigned and four signed bytes in every lane. */
ALWAYS_INLINE vword add_products(vword sum, vword levels, vword signs) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(levels), "v"(signs)); /* as count_bits does it */
    return sum;
}

/* Adds the products of a batch of filters of signs to its sums at `columns` registers of pixels, a constant of the caller. */
ALWAYS_INLINE void add_signed(vword *sum, const uint8_t *const *at, const int32_t *offset, int steps, const uint8_t *nibbles,
                              const signs_of_bytes all_signs, const int columns) {
    vword x[2 * DOT_COLUMNS];
    for (int step = 0; step + 2 <= steps; step += 2, nibbles += DOT_FILTERS) {
        UNROLL
        for (int c = 0; c < columns; c++) {
            x[c] = *(const vword_u *)(at[c] + offset[step]);
            x[columns + c] = *(const vword_u *)(at[c] + offset[step + 1]);
        }
        UNROLL
        for (int f = 0; f < DOT_FILTERS; f++) {
            const uint32_t *signs = all_signs[nibbles[f]];
            UNROLL
            for (int i = 0; i < 2 * columns; i++)
                sum[f * columns + i % columns] =
                    add_products(sum[f * columns + i % columns], x[i], (vword){0} + (int32_t)signs[i / columns]);
        }
    }
    if (steps % 2) {
        UNROLL
        for (int c = 0; c < columns; c++)
            x[c] = *(const vword_u *)(at[c] + offset[steps - 1]);
        UNROLL
        for (int i = 0; i < DOT_FILTERS * columns; i++)
            sum[i] = add_products(sum[i], x[i % columns], (vword){0} + (int32_t)all_signs[nibbles[i / columns]][0]);
    }
}

ALWAYS_INLINE void dot_tile(const dot_job *job, const int columns) {
    vword sum[DOT_FILTERS * DOT_COLUMNS];
    UNROLL
    for (int f = 0; f < DOT_FILTERS; f++)
        UNROLL
        for (int c = 0; c < columns; c++) {
            if (job->first)
                sum[f * columns + c] = (vword){0} + job->start[f];
            else
                sum[f * columns + c] = *(const vword *)(job->map[c] + f * job->map_floats);
        }
    add_signed(sum, job->x, job->offset, job->steps, job->nibbles, dot_signs, columns);
    UNROLL
    for (int f = 0; f < DOT_FILTERS; f++)
        UNROLL
        for (int c = 0; c < columns; c++) {
            float *map = job->map[c] + f * job->map_floats;
            if (job->last)
                *(vfloat *)map = __builtin_convertvector(sum[f * columns + c], vfloat);
            else
                *(vword *)map = sum[f * columns + c];
        }
}

static NEVER_INLINE void dot_tile_1(const dot_job *job) { dot_tile(job, 1); }
static NEVER_INLINE void dot_tile_2(const dot_job *job) { dot_tile(job, 2); }
static NEVER_INLINE void dot_tile_3(const dot_job *job) { dot_tile(job, 3); }
static void (*const dot_tiles[DOT_COLUMNS + 1])(const dot_job *) = {NULL, dot_tile_1, dot_tile_2, dot_tile_3};

/* All registers of pixels of all blocks, a few at a time, with all filters that their blocks need. */
static NEVER_INLINE void multiply_dot_chunk(const dot_plan *plan, int blocks, const dot_scratch *scratch, int bank, int chunk) {
    const size_t bytes = dot_batch_bytes(plan, chunk), map_floats = plan->map_floats;
    const size_t block_floats = (size_t)plan->batches * DOT_FILTERS * map_floats;
    const uint8_t *nibbles = plan->nibbles + bank * dot_bank_bytes(plan) + chunk * dot_batch_bytes(plan, 0) * plan->batches;
    const int columns = blocks * plan->vectors;
    dot_job job = {
        .offset = plan->offset, .steps = dot_chunk_steps(plan, chunk), .first = chunk == 0,
        .last = chunk + 1 == plan->chunks, .map_floats = map_floats,
    };
    for (int first = 0, count; first < columns; first += count) {
        const int left = columns - first, tiles = (left + DOT_COLUMNS - 1) / DOT_COLUMNS;
        count = (left + tiles - 1) / tiles; /* two and two rather than three and one */
        int begin = plan->batches, end = 0;
        float *map[DOT_COLUMNS];
        for (int c = 0; c < count; c++) {
            const int block = (first + c) / plan->vectors, vector = (first + c) % plan->vectors;
            const int32_t *range = plan->range + 2 * block;
            begin = range[0] < begin ? range[0] : begin;
            end = range[1] > end ? range[1] : end;
            const int pixel = vector * LANES, margins = pixel / plan->width * (plan->row_words - plan->width);
            const size_t block_words = (size_t)plan->chunk_quads * plan->quad_words;
            job.x[c] = (const uint8_t *)(scratch->staged + block * block_words + pixel + margins);
            map[c] = scratch->maps + block * block_floats + vector * LANES;
        }
        for (int batch = begin; batch < end; batch++) {
            const int filter = batch * DOT_FILTERS;
            job.nibbles = nibbles + batch * bytes;
            job.start = plan->start + bank * plan->batches * DOT_FILTERS + filter;
            for (int c = 0; c < count; c++)
                job.map[c] = map[c] + filter * map_floats;
            dot_tiles[count](&job);
        }
    }
}

/* ------------------------------------------------------------------------------------------------- merge */

/* The output pixels of a register; none where the unit reaches beyond the output. */
static level_piece find_dot_piece(const sb_conv *conv, const dot_plan *plan, const dot_unit *unit, int vector) {
    const int row = vector * LANES / plan->width, x = unit->x + vector * LANES % plan->width;
    const int left = plan->x_units == 1 ? unit->rows * plan->width - vector * LANES : conv->out_width - x;
    return (level_piece){
        .map = vector * LANES,
        .parts = 1,
        .offset = {(size_t)(unit->y + row) * conv->out_width + x},
        .end = {row >= unit->rows || left < 0 ? 0 : left < LANES ? left : LANES},
    };
}

/* Whole registers together, others each on its own: these take longer. */
static void merge_dot_unit(const sb_conv *conv, const dot_plan *plan, const dot_unit *unit, const dot_scratch *scratch,
                           int group, float *out) {
    const size_t per_group = (size_t)(conv->weight.out / conv->groups);
    level_merge_job job = {
        .conv = conv, .map = scratch->map, .map_offset = plan->map_offset, .out = out, .begin = group * per_group,
        .end = (group + 1) * per_group, .part_width = LANES, .straight = true,
    };
    for (int i = 0; i < conv->weight.blocks; i++)
        scratch->map[i] = scratch->maps + (size_t)i * plan->batches * DOT_FILTERS * plan->map_floats;
    for (int vector = 0; vector < plan->vectors; vector++) {
        const level_piece piece = find_dot_piece(conv, plan, unit, vector);
        if (piece.end[0] == LANES)
            job.pieces[job.pieces_count++] = piece;
        else if (piece.end[0]) {
            level_merge_job rest = job;
            rest.straight = false;
            rest.pieces_count = 1;
            rest.pieces[0] = piece;
            merge_level_pieces16(&rest);
        }
        if (job.pieces_count == DOT_JOB_PIECES || vector + 1 == plan->vectors) {
            merge_level_pieces16(&job);
            job.pieces_count = 0;
        }
    }
}

/* --------------------------------------------------------------------------------------------------- run */

static dot_unit find_dot_unit(const sb_conv *conv, const dot_plan *plan, int number) {
    const int y = number % plan->y_units * plan->rows, left = conv->out_height - y;
    const int x_unit = number % (plan->x_units * plan->y_units) / plan->y_units;
    return (dot_unit){x_unit * plan->width, y, left < plan->rows ? left : plan->rows};
}

static const int8_t *input_of_group(const sb_conv *conv, const int8_t *in, int group) {
    return in + (size_t)group * conv->weight.blocks * conv->weight.depth * conv->height * conv->width;
}

static void run_dot_unit(const sb_conv *conv, const dot_plan *plan, dot_scratch *scratch, int number, const int8_t *in,
                         float *out) {
    const int group = number / (plan->x_units * plan->y_units);
    const dot_unit unit = find_dot_unit(conv, plan, number);
    uint64_t since = BEGIN_STAGE(conv);
    if (!plan->by_rows)
        list_copies(conv, plan, &unit, scratch);
    for (int chunk = 0; chunk < plan->chunks; chunk++) {
        stage_dot_chunk(conv, plan, &unit, scratch, input_of_group(conv, in, group), chunk);
        END_STAGE(conv, build, &since);
        multiply_dot_chunk(plan, conv->weight.blocks, scratch, plan->banks > 1 ? group : 0, chunk);
        END_STAGE(conv, look_up, &since);
    }
    merge_dot_unit(conv, plan, &unit, scratch, group, out);
    END_STAGE(conv, merge, &since);
}

static int32_t dot_pieces(const sb_conv *conv) {
    const dot_plan *plan = conv->prepared;
    return plan->x_units * plan->y_units * conv->groups;
}

static void dot_run_pieces(const sb_conv *conv, int32_t first, int32_t last, const int8_t *in, float *out, void *memory) {
    const dot_plan *plan = conv->prepared;
    dot_scratch scratch;
    carve_dot(conv, plan, memory, &scratch);
    if (plan->by_rows) /* the margins of all units */
        memset(scratch.staged, -sb_lowest_level(conv->levels), scratch.staged_words * sizeof *scratch.staged);
    for (int unit = first; unit < last; unit++)
        run_dot_unit(conv, plan, &scratch, unit, in, out);
}

static void dot_run(const sb_conv *conv, const int8_t *in, float *out, void *memory) {
    dot_run_pieces(conv, 0, dot_pieces(conv), in, out, memory);
    if (out)
        apply_rest(conv, out);
}

static const sb_conv_kernel dot_kernel = {
    .name = "dot", .cost = dot_cost, .prepared_size = dot_prepared_size, .prepare = dot_prepare,
    .scratch_size = dot_scratch_size, .adds_in_place = true, .run_levels = dot_run, .pieces = dot_pieces, .run_level_pieces = dot_run_pieces,
};

#endif
