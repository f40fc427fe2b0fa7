/* Operations that move, normalise or resample values. */
#include "portable.h"

#include <math.h>
#include <string.h>

/* A value seen around one dimension: (outer, size, inner). */
typedef struct split {
    size_t outer, size, inner;
} split;

static split split_at(const sb_shape *shape, int32_t dim) {
    split s = {1, (size_t)shape->dims[dim], 1};
    for (int32_t i = 0; i < dim; i++) s.outer *= (size_t)shape->dims[i];
    for (int32_t i = dim + 1; i < shape->rank; i++) s.inner *= (size_t)shape->dims[i];
    return s;
}

/* ----------------------------------------------------------------------------------------- along channels */

void sb_affine_op(const sb_kernels *kernels, const sb_op *op, const sb_shape *shape, const float *in, float *out) {
    const split s = split_at(shape, 0);
    for (size_t c = 0; c < s.size; c++)
        kernels->affine(op->affine.scale ? op->affine.scale[c] : 1, op->affine.shift ? op->affine.shift[c] : 0,
                        in + c * s.inner, out + c * s.inner, s.inner);
}

void sb_prelu(const sb_kernels *kernels, const sb_op *op, const sb_shape *shape, const float *in, float *out) {
    const size_t channels = op->prelu.count == 1 ? 1 : (size_t)op->prelu.count;
    const size_t inner = sb_elements(shape) / channels;
    for (size_t c = 0; c < channels; c++)
        kernels->function((sb_function){.kind = SB_LEAKY_RELU, .a = op->prelu.slope[c]}, in + c * inner, out + c * inner, inner);
}

/* Numbers that are worked on together, and parts of a sum or a maximum: loops over them become loops over vectors. */
enum { TOGETHER = 64, PARTS = 8 };

/* Sums of x - mean, and of its square, in a fixed number of parts. */
static double sum_of(const float *x, size_t count, double mean, bool squared) {
    double sums[PARTS] = {0};
    size_t i = 0;
    for (; i + PARTS <= count; i += PARTS)
        for (size_t j = 0; j < PARTS; j++) {
            const double distance = x[i + j] - mean;
            sums[j] += squared ? distance * distance : distance;
        }
    for (size_t j = 0; i < count; i++, j++) sums[j] += squared ? (x[i] - mean) * (x[i] - mean) : x[i] - mean;
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

static float normal_factor(const sb_op *op, double squares, size_t size) {
    return (float)(1 / sqrt(squares / (double)size + (double)op->affine.eps));
}

/* A piece at a time, since `in` may be `out`. */
static void normalise_line(const sb_kernels *kernels, const sb_op *op, size_t size, const float *in, float *out) {
    const double mean = sum_of(in, size, 0, false) / (double)size;
    const float factor = normal_factor(op, sum_of(in, size, mean, true), size);
    float piece[TOGETHER];
    for (size_t i = 0; i < size; i += TOGETHER) {
        const size_t count = size - i < TOGETHER ? size - i : TOGETHER;
        memcpy(piece, in + i, count * sizeof *piece);
        for (size_t j = 0; j < count; j++) piece[j] = (float)(piece[j] - mean) * factor;
        memcpy(out + i, piece, count * sizeof *piece);
    }
    if (op->affine.scale) kernels->arithmetic(SB_MUL, out, 1, op->affine.scale, 1, out, size);
    if (op->affine.shift) kernels->arithmetic(SB_ADD, out, 1, op->affine.shift, 1, out, size);
}

/* `count` lines side by side, whose elements are `step` apart; `in` may be `out`, so rows are copied first. */
static void normalise_lines(const sb_op *op, size_t size, size_t step, size_t count, const float *in, float *out) {
    double mean[TOGETHER] = {0}, squares[TOGETHER] = {0};
    float factor[TOGETHER], row[TOGETHER];
    for (size_t i = 0; i < size; i++)
        for (size_t j = 0; j < count; j++) mean[j] += in[i * step + j];
    for (size_t j = 0; j < count; j++) mean[j] /= (double)size;
    for (size_t i = 0; i < size; i++)
        for (size_t j = 0; j < count; j++) {
            const double distance = in[i * step + j] - mean[j];
            squares[j] += distance * distance;
        }
    for (size_t j = 0; j < count; j++) factor[j] = normal_factor(op, squares[j], size);
    for (size_t i = 0; i < size; i++) {
        const float scale = op->affine.scale ? op->affine.scale[i] : 1, shift = op->affine.shift ? op->affine.shift[i] : 0;
        memcpy(row, in + i * step, count * sizeof *row);
        for (size_t j = 0; j < count; j++) row[j] = (float)(row[j] - mean[j]) * factor[j] * scale + shift;
        memcpy(out + i * step, row, count * sizeof *row);
    }
}

void sb_layer_norm(const sb_kernels *kernels, const sb_op *op, const sb_shape *shape, const float *in, float *out) {
    const split s = split_at(shape, op->affine.dim);
    for (size_t o = 0; o < s.outer; o++, in += s.size * s.inner, out += s.size * s.inner)
        if (s.inner == 1)
            normalise_line(kernels, op, s.size, in, out);
        else
            for (size_t j = 0; j < s.inner; j += TOGETHER)
                normalise_lines(op, s.size, s.inner, s.inner - j < TOGETHER ? s.inner - j : TOGETHER, in + j, out + j);
}

static const sb_function exponential = {.kind = SB_EXP};

/* NaN counts or not: with one of them all shares are NaN. */
static float largest_of(const float *x, size_t count) {
    float best[PARTS];
    size_t i = 0;
    for (size_t j = 0; j < PARTS; j++) best[j] = x[0];
    for (; i + PARTS <= count; i += PARTS)
        for (size_t j = 0; j < PARTS; j++) best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
    for (; i < count; i++) best[0] = x[i] > best[0] ? x[i] : best[0];
    for (size_t j = 1; j < PARTS; j++) best[0] = best[j] > best[0] ? best[j] : best[0];
    return best[0];
}

static void softmax_line(const sb_kernels *kernels, size_t size, const float *in, float *out) {
    const float largest = largest_of(in, size);
    kernels->affine(1, -largest, in, out, size);
    kernels->function(exponential, out, out, size);
    const float sum = (float)sum_of(out, size, 0, false);
    kernels->arithmetic(SB_DIV, out, 1, &sum, 0, out, size);
}

static void softmax_lines(const sb_kernels *kernels, size_t size, size_t step, size_t count, const float *in, float *out) {
    float largest[TOGETHER], sum[TOGETHER] = {0};
    memcpy(largest, in, count * sizeof *largest);
    for (size_t i = 1; i < size; i++)
        for (size_t j = 0; j < count; j++) largest[j] = in[i * step + j] > largest[j] ? in[i * step + j] : largest[j];
    for (size_t i = 0; i < size; i++) {
        float *row = out + i * step;
        kernels->arithmetic(SB_SUB, in + i * step, 1, largest, 1, row, count);
        kernels->function(exponential, row, row, count);
        for (size_t j = 0; j < count; j++) sum[j] += row[j];
    }
    for (size_t i = 0; i < size; i++) kernels->arithmetic(SB_DIV, out + i * step, 1, sum, 1, out + i * step, count);
}

void sb_softmax(const sb_kernels *kernels, int32_t dim, const sb_shape *shape, const float *in, float *out) {
    const split s = split_at(shape, dim);
    for (size_t o = 0; o < s.outer; o++, in += s.size * s.inner, out += s.size * s.inner)
        if (s.inner == 1)
            softmax_line(kernels, s.size, in, out);
        else
            for (size_t j = 0; j < s.inner; j += TOGETHER)
                softmax_lines(kernels, s.size, s.inner, s.inner - j < TOGETHER ? s.inner - j : TOGETHER, in + j, out + j);
}

/* ------------------------------------------------------------------------------------------------- walking */

/* Walks through `dims` in row-major order with an offset into two arrays whose steps per dimension are given. */
typedef struct walk {
    int32_t rank;
    int32_t dims[SB_MAX_RANK], position[SB_MAX_RANK];
    int64_t steps[2][SB_MAX_RANK], offset[2];
} walk;

static bool walk_on(walk *w) {
    for (int32_t d = w->rank - 1; d >= 0; d--) {
        for (int k = 0; k < 2; k++) w->offset[k] += w->steps[k][d];
        if (++w->position[d] < w->dims[d]) return true;
        w->position[d] = 0;
        for (int k = 0; k < 2; k++) w->offset[k] -= w->steps[k][d] * w->dims[d];
    }
    return false;
}

static void row_major_steps(const sb_shape *shape, int64_t *steps) {
    int64_t step = 1;
    for (int32_t d = shape->rank - 1; d >= 0; d--) {
        steps[d] = step;
        step *= shape->dims[d];
    }
}

/* out, contiguous of shape `to`, from `in` with the given steps: in runs where the last dimensions are contiguous there too */
static void gather(const float *in, const int64_t *steps, const sb_shape *to, float *out) {
    walk w = {.rank = to->rank};
    int64_t run = 1, step = 1;
    memcpy(w.dims, to->dims, sizeof w.dims);
    memcpy(w.steps[0], steps, sizeof w.steps[0]);
    for (; w.rank > 0 && (steps[w.rank - 1] == run || w.dims[w.rank - 1] == 1); w.rank--) run *= w.dims[w.rank - 1];
    if (run == 1 && w.rank > 0) { /* then of the last dimension */
        w.rank--;
        run = w.dims[w.rank];
        step = steps[w.rank];
    }
    do {
        const float *from = in + w.offset[0];
        if (step == 1)
            memcpy(out, from, sizeof(float) * (size_t)run);
        else
            for (int64_t i = 0; i < run; i++) out[i] = from[i * step];
        out += run;
    } while (walk_on(&w));
}

void sb_slice(const sb_op *op, const sb_shape *from, const sb_shape *to, const float *in, float *out) {
    const split source = split_at(from, op->slice.dim), target = split_at(to, op->slice.dim);
    const size_t step = (size_t)op->slice.step, run = step == 1 ? target.size * source.inner : source.inner;
    in += (size_t)op->slice.start * source.inner;
    for (size_t o = 0; o < target.outer; o++, in += source.size * source.inner)
        for (size_t i = 0; i < target.size * source.inner; i += run, out += run)
            if (run == 1)
                *out = in[i * step];
            else
                memcpy(out, in + i * step, sizeof(float) * run);
}

void sb_permute(const sb_op *op, const sb_shape *from, const sb_shape *to, const float *in, float *out) {
    int64_t own[SB_MAX_RANK] = {0}, steps[SB_MAX_RANK] = {0};
    row_major_steps(from, own);
    for (int32_t d = 0; d < to->rank; d++) steps[d] = own[op->dims.dims[d]];
    gather(in, steps, to, out);
}

/* Means of `size` numbers that are `inner` apart. */
static void mean_lines(size_t size, size_t inner, const float *in, float *out) {
    for (size_t first = 0; first < inner; first += TOGETHER) {
        const size_t count = inner - first < TOGETHER ? inner - first : TOGETHER;
        double sum[TOGETHER] = {0};
        for (size_t i = 0; i < size; i++)
            for (size_t j = 0; j < count; j++) sum[j] += in[i * inner + first + j];
        for (size_t j = 0; j < count; j++) *out++ = (float)(sum[j] / (double)size);
    }
}

void sb_mean(const sb_kernels *kernels, const sb_op *op, const sb_shape *from, const float *in, float *out) {
    walk kept = {0}, gone = {0};
    int64_t steps[SB_MAX_RANK] = {0};
    int32_t last = 0; /* that is gone */
    row_major_steps(from, steps);
    for (int32_t d = 0; d < from->rank; d++) {
        bool reduced = false;
        for (int32_t i = 0; i < op->dims.count; i++) reduced |= op->dims.dims[i] == d;
        if (reduced) last = d;
        walk *w = reduced ? &gone : &kept;
        w->dims[w->rank] = from->dims[d];
        w->steps[0][w->rank++] = steps[d];
    }
    /* the last dimensions alone, as in a global mean: numbers side by side */
    size_t rows = 1;
    for (int32_t d = 0; d < kept.rank; d++) rows *= (size_t)kept.dims[d];
    const size_t count = sb_elements(from) / rows;
    if (kept.rank == 0 || kept.steps[0][kept.rank - 1] == (int64_t)count) {
        kernels->means(in, count, out, rows);
        return;
    }
    /* dimensions one behind the other: lines side by side */
    if (gone.steps[0][0] * gone.dims[0] == steps[last] * (int64_t)count) {
        const size_t inner = (size_t)steps[last], outer = rows / inner;
        for (size_t o = 0; o < outer; o++) mean_lines(count, inner, in + o * count * inner, out + o * inner);
        return;
    }
    do {
        double sum = 0;
        do sum += in[kept.offset[0] + gone.offset[0]];
        while (walk_on(&gone));
        *out++ = (float)(sum / (double)count);
    } while (walk_on(&kept));
}

/* Steps of an operand over the shape of the result: 0 where it is broadcast. */
static void broadcast_steps(const sb_shape *operand, const sb_shape *shape, int64_t *steps) {
    int64_t own[SB_MAX_RANK] = {0};
    row_major_steps(operand, own);
    for (int32_t d = 0; d < shape->rank; d++) {
        const int32_t of_operand = d - (shape->rank - operand->rank);
        steps[d] = of_operand < 0 || operand->dims[of_operand] == 1 ? 0 : own[of_operand];
    }
}

void sb_broadcast(const sb_kernels *kernels, sb_arithmetic f, const sb_shape *a_shape, const float *a,
                  const sb_shape *b_shape, const float *b, const sb_shape *shape, float *out) {
    walk w = {.rank = shape->rank};
    memcpy(w.dims, shape->dims, sizeof w.dims);
    broadcast_steps(a_shape, shape, w.steps[0]);
    broadcast_steps(b_shape, shape, w.steps[1]);
    /* the last dimensions in which each operand is either walked through or repeated as a whole form one run */
    size_t run = 1, a_step = 0, b_step = 0;
    for (bool first = true; w.rank > 0; w.rank--) {
        const int32_t d = w.rank - 1;
        if (w.dims[d] == 1) continue;
        const bool moves_a = w.steps[0][d] != 0, moves_b = w.steps[1][d] != 0;
        if (!first && (moves_a != (a_step != 0) || moves_b != (b_step != 0))) break;
        a_step = moves_a;
        b_step = moves_b;
        run *= (size_t)w.dims[d];
        first = false;
    }
    do {
        kernels->arithmetic(f, a + w.offset[0], a_step, b + w.offset[1], b_step, out, run);
        out += run;
    } while (walk_on(&w));
}

/* -------------------------------------------------------------------------------------------------- planes */

static float window_sum(const float *plane, int64_t width, int64_t y0, int64_t y1, int64_t x0, int64_t x1) {
    float sum = 0;
    for (int64_t y = y0; y < y1; y++)
        for (int64_t x = x0; x < x1; x++) sum += plane[y * width + x];
    return sum;
}

static inline float larger_or_nan(float best, float value) { return value > best || value != value ? value : best; }

static float window_largest(const float *plane, int64_t width, int64_t y0, int64_t y1, int64_t x0, int64_t x1) {
    float best = -INFINITY;
    for (int64_t y = y0; y < y1; y++)
        for (int64_t x = x0; x < x1; x++) best = larger_or_nan(best, plane[y * width + x]);
    return best;
}

static float adaptive_window(bool average, const float *plane, int64_t width, int64_t y0, int64_t y1, int64_t x0,
                             int64_t x1) {
    return average ? window_sum(plane, width, y0, y1, x0, x1) / (float)((y1 - y0) * (x1 - x0))
                   : window_largest(plane, width, y0, y1, x0, x1);
}

/* Window o of n over a size covers floor(o * size / n) ... ceil((o + 1) * size / n) - 1. */
void sb_adaptive_pool(const sb_kernels *kernels, const sb_op *op, const sb_shape *from, const sb_shape *to,
                      const float *in, float *out) {
    const int64_t height = sb_height(from), width = sb_width(from), rows = sb_height(to), columns = sb_width(to);
    if (op->pool.average && rows * columns == 1) {
        kernels->means(in, (size_t)(height * width), out, (size_t)sb_planes(from));
        return;
    }
    for (int32_t c = 0; c < sb_planes(from); c++, in += height * width)
        for (int64_t y = 0; y < rows; y++)
            for (int64_t x = 0; x < columns; x++)
                *out++ = adaptive_window(op->pool.average, in, width, y * height / rows,
                                         ((y + 1) * height + rows - 1) / rows, x * width / columns,
                                         ((x + 1) * width + columns - 1) / columns);
}

/* Where position i of a padded line comes from, -1 for the constant. */
static int64_t padded_source(uint8_t mode, int64_t i, int64_t size) {
    if (i >= 0 && i < size) return i;
    switch (mode) {
        case SB_PAD_REFLECT: return i < 0 ? -i : 2 * (size - 1) - i;
        case SB_PAD_REPLICATE: return i < 0 ? 0 : size - 1;
        case SB_PAD_CIRCULAR: return i < 0 ? i + size : i - size;
        default: return -1;
    }
}

static void pad_columns(const sb_op *op, const float *row, int64_t width, int64_t begin, int64_t end, float *out) {
    for (int64_t x = begin; x < end; x++) {
        const int64_t column = padded_source(op->pad.mode, x - op->pad.amounts[2], width);
        out[x] = !row || column < 0 ? op->pad.value : row[column];
    }
}

void sb_pad(const sb_op *op, const sb_shape *from, const sb_shape *to, const float *in, float *out) {
    const int64_t height = sb_height(from), width = sb_width(from), columns = sb_width(to), left = op->pad.amounts[2];
    const int64_t begin = left < 0 ? 0 : left; /* of what is copied as it stands */
    const int64_t end = left + width < columns ? left + width : columns;
    for (int32_t c = 0; c < sb_planes(from); c++, in += height * width)
        for (int64_t y = 0; y < sb_height(to); y++, out += columns) {
            const int64_t source = padded_source(op->pad.mode, y - op->pad.amounts[0], height);
            const float *row = source < 0 ? NULL : in + source * width;
            pad_columns(op, row, width, 0, row ? begin : columns, out);
            if (!row) continue;
            memcpy(out + begin, row + begin - left, sizeof(float) * (size_t)(end - begin));
            pad_columns(op, row, width, end, columns, out);
        }
}

/* PyTorch's coordinate arithmetic: where output position o lies in the input, as two neighbours and the share of the
 * second one. A line that keeps its size is copied; nearest to exactly twice the size repeats each element. */
typedef struct sample {
    int64_t low, high;
    float share;
} sample;

static sample sample_at(const sb_op *op, int axis, int64_t o, int64_t size, int64_t out_size) {
    const double factor = op->upsample.factor[axis];
    const float scale = factor > 0 ? (float)(1 / factor) : (float)size / (float)out_size;
    if (out_size == size) return (sample){o, o, 0};
    if (!op->upsample.bilinear) {
        const int64_t position = out_size == 2 * size ? o / 2 : (int64_t)((float)o * scale);
        const int64_t nearest = position < size ? position : size - 1;
        return (sample){nearest, nearest, 0};
    }
    float position;
    if (op->upsample.align_corners)
        position = out_size > 1 ? (float)(size - 1) / (float)(out_size - 1) * (float)o : 0;
    else
        position = fmaxf(scale * ((float)o + 0.5f) - 0.5f, 0);
    const int64_t low = (int64_t)position < size - 1 ? (int64_t)position : size - 1;
    const float share = position - (float)low;
    return (sample){low, low + (low < size - 1), share < 0 ? 0 : share > 1 ? 1 : share};
}

enum { UPSAMPLED = 256 }; /* columns of the output at a time */

/* Columns of the output: where each lies in a row of the input. */
typedef struct sampled_line {
    int64_t first, count;
    int64_t low[UPSAMPLED], high[UPSAMPLED];
    float share[UPSAMPLED];
} sampled_line;

static void pick_columns(const sampled_line *at, const float *restrict row, float *restrict out) {
    for (int64_t x = 0; x < at->count; x++) out[x] = row[at->low[x]];
}

static void blend_columns(const sampled_line *at, const float *restrict row, float *restrict out) {
    for (int64_t x = 0; x < at->count; x++)
        out[x] = (1 - at->share[x]) * row[at->low[x]] + at->share[x] * row[at->high[x]];
}

static void blend_rows(int64_t count, const float *restrict upper, const float *restrict lower, float share,
                       float *restrict out) {
    for (int64_t x = 0; x < count; x++) out[x] = (1 - share) * upper[x] + share * lower[x];
}

/* These columns of one plane. Output rows read the same two input rows several times: these are blended once. */
static void upsample_plane(const sb_op *op, const sb_shape *from, const sb_shape *to, const sampled_line *at, const float *in,
                           float *out) {
    const int64_t height = sb_height(from), width = sb_width(from), rows = sb_height(to), row_floats = sb_width(to);
    const bool blends = op->upsample.bilinear && width != row_floats, mixes = op->upsample.bilinear && height != rows;
    float line[2][UPSAMPLED], *upper = line[0], *lower = line[1];
    int64_t in_upper = -1, in_lower = -1;
    for (int64_t y = 0; y < rows; y++, out += row_floats) {
        const sample v = sample_at(op, 0, y, height, rows);
        if (in_lower == v.low) {
            float *other = upper;
            upper = lower, lower = other;
            in_lower = in_upper, in_upper = v.low;
        }
        if (in_upper != v.low) (blends ? blend_columns : pick_columns)(at, in + v.low * width, upper);
        in_upper = v.low;
        if (!mixes) {
            memcpy(out, upper, sizeof(float) * (size_t)at->count);
            continue;
        }
        if (in_lower != v.high) (blends ? blend_columns : pick_columns)(at, in + v.high * width, lower);
        in_lower = v.high;
        blend_rows(at->count, upper, lower, v.share, out);
    }
}

void sb_upsample(const sb_op *op, const sb_shape *from, const sb_shape *to, const float *in, float *out) {
    const int64_t width = sb_width(from), row_floats = sb_width(to);
    sampled_line at;
    for (at.first = 0; at.first < row_floats; at.first += UPSAMPLED) {
        at.count = row_floats - at.first < UPSAMPLED ? row_floats - at.first : UPSAMPLED;
        for (int64_t x = 0; x < at.count; x++) {
            const sample h = sample_at(op, 1, at.first + x, width, row_floats);
            at.low[x] = h.low, at.high[x] = h.high, at.share[x] = h.share;
        }
        for (int64_t c = 0; c < sb_planes(from); c++)
            upsample_plane(op, from, to, &at, in + c * sb_height(from) * width, out + c * sb_height(to) * row_floats + at.first);
    }
}
