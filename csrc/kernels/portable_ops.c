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

void sb_prelu(const sb_op *op, const sb_shape *shape, const float *in, float *out) {
    const size_t channels = op->prelu.count == 1 ? 1 : (size_t)op->prelu.count;
    const size_t inner = sb_elements(shape) / channels;
    for (size_t c = 0; c < channels; c++)
        for (size_t i = c * inner; i < (c + 1) * inner; i++) out[i] = in[i] < 0 ? op->prelu.slope[c] * in[i] : in[i];
}

void sb_layer_norm(const sb_op *op, const sb_shape *shape, const float *in, float *out) {
    const split s = split_at(shape, op->affine.dim);
    for (size_t line = 0; line < s.outer * s.inner; line++) {
        const size_t start = line / s.inner * s.size * s.inner + line % s.inner;
        double sum = 0, squares = 0;
        for (size_t i = 0; i < s.size; i++) sum += in[start + i * s.inner];
        const double mean = sum / (double)s.size;
        for (size_t i = 0; i < s.size; i++) {
            const double distance = in[start + i * s.inner] - mean;
            squares += distance * distance;
        }
        const float factor = (float)(1 / sqrt(squares / (double)s.size + (double)op->affine.eps));
        for (size_t i = 0; i < s.size; i++) {
            const float normal = (float)(in[start + i * s.inner] - mean) * factor;
            out[start + i * s.inner] =
                normal * (op->affine.scale ? op->affine.scale[i] : 1) + (op->affine.shift ? op->affine.shift[i] : 0);
        }
    }
}

void sb_softmax(int32_t dim, const sb_shape *shape, const float *in, float *out) {
    const split s = split_at(shape, dim);
    for (size_t line = 0; line < s.outer * s.inner; line++) {
        const size_t start = line / s.inner * s.size * s.inner + line % s.inner;
        float largest = in[start], sum = 0;
        for (size_t i = 1; i < s.size; i++) largest = fmaxf(largest, in[start + i * s.inner]);
        for (size_t i = 0; i < s.size; i++) sum += out[start + i * s.inner] = expf(in[start + i * s.inner] - largest);
        for (size_t i = 0; i < s.size; i++) out[start + i * s.inner] /= sum;
    }
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

/* out, contiguous of shape `to`, from `in` with the given steps */
static void gather(const float *in, const int64_t *steps, const sb_shape *to, float *out) {
    walk w = {.rank = to->rank};
    memcpy(w.dims, to->dims, sizeof w.dims);
    memcpy(w.steps[0], steps, sizeof w.steps[0]);
    do *out++ = in[w.offset[0]];
    while (walk_on(&w));
}

void sb_slice(const sb_op *op, const sb_shape *from, const sb_shape *to, const float *in, float *out) {
    const split source = split_at(from, op->slice.dim), target = split_at(to, op->slice.dim);
    for (size_t o = 0; o < target.outer; o++) {
        for (size_t i = 0; i < target.size; i++) {
            const size_t position = (size_t)op->slice.start + i * (size_t)op->slice.step;
            memcpy(out, in + (o * source.size + position) * source.inner, sizeof(float) * source.inner);
            out += source.inner;
        }
    }
}

void sb_permute(const sb_op *op, const sb_shape *from, const sb_shape *to, const float *in, float *out) {
    int64_t own[SB_MAX_RANK] = {0}, steps[SB_MAX_RANK] = {0};
    row_major_steps(from, own);
    for (int32_t d = 0; d < to->rank; d++) steps[d] = own[op->dims.dims[d]];
    gather(in, steps, to, out);
}

void sb_mean(const sb_kernels *kernels, const sb_op *op, const sb_shape *from, const float *in, float *out) {
    walk kept = {0}, gone = {0};
    int64_t steps[SB_MAX_RANK] = {0};
    row_major_steps(from, steps);
    for (int32_t d = 0; d < from->rank; d++) {
        bool reduced = false;
        for (int32_t i = 0; i < op->dims.count; i++) reduced |= op->dims.dims[i] == d;
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

static float adaptive_window(bool average, const float *plane, int64_t width, int64_t y0, int64_t y1, int64_t x0,
                             int64_t x1) {
    float sum = 0, best = -INFINITY;
    for (int64_t y = y0; y < y1; y++) {
        for (int64_t x = x0; x < x1; x++) {
            const float value = plane[y * width + x];
            sum += value;
            if (value > best || value != value) best = value;
        }
    }
    return average ? sum / (float)((y1 - y0) * (x1 - x0)) : best;
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

void sb_pad(const sb_op *op, const sb_shape *from, const sb_shape *to, const float *in, float *out) {
    const int64_t height = sb_height(from), width = sb_width(from);
    for (int32_t c = 0; c < sb_planes(from); c++, in += height * width) {
        for (int64_t y = 0; y < sb_height(to); y++) {
            const int64_t row = padded_source(op->pad.mode, y - op->pad.amounts[0], height);
            for (int64_t x = 0; x < sb_width(to); x++) {
                const int64_t column = padded_source(op->pad.mode, x - op->pad.amounts[2], width);
                *out++ = row < 0 || column < 0 ? op->pad.value : in[row * width + column];
            }
        }
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

void sb_upsample(const sb_op *op, const sb_shape *from, const sb_shape *to, const float *in, float *out) {
    const int64_t height = sb_height(from), width = sb_width(from), rows = sb_height(to), columns = sb_width(to);
    for (int32_t c = 0; c < sb_planes(from); c++, in += height * width) {
        for (int64_t y = 0; y < rows; y++) {
            const sample v = sample_at(op, 0, y, height, rows);
            for (int64_t x = 0; x < columns; x++) {
                const sample h = sample_at(op, 1, x, width, columns);
                const float *upper = in + v.low * width, *lower = in + v.high * width;
                const float above = (1 - h.share) * upper[h.low] + h.share * upper[h.high];
                const float below = (1 - h.share) * lower[h.low] + h.share * lower[h.high];
                *out++ = (1 - v.share) * above + v.share * below;
            }
        }
    }
}
