/* The portable row of the kernel table: functions, arithmetic and pooling. NaN in gives NaN out, as in PyTorch. */
#include "portable.h"

#include <math.h>

static inline float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

static inline float softplus(float x, float beta, float threshold) {
    return x * beta > threshold ? x : log1pf(expf(x * beta)) / beta;
}

static inline float apply(int kind, float a, float b, float x) {
    switch (kind) {
        case SB_RELU: return x < 0 ? 0 : x;
        case SB_RELU6: return clamp(x, 0, 6);
        case SB_LEAKY_RELU: return x < 0 ? a * x : x;
        case SB_HARDTANH: return clamp(x, a, b);
        case SB_SIGMOID: return 1 / (1 + expf(-x));
        case SB_HARD_SIGMOID: return clamp(x + 3, 0, 6) / 6;
        case SB_SILU: return x / (1 + expf(-x));
        case SB_HARD_SWISH: return x * clamp(x + 3, 0, 6) / 6;
        case SB_GELU: return 0.5f * x * erfcf(x * -0.70710678118654752f); /* 1 + erf would lose the tail, */
        case SB_GELU_TANH: return x / (1 + expf(-1.59576912160573072f * (x + 0.044715f * x * x * x))); /* and 1 + tanh */
        case SB_TANH: return tanhf(x);
        case SB_SIGN: return (float)((x > 0) - (x < 0));
        case SB_ABS: return fabsf(x);
        case SB_ELU: return x < 0 ? a * expm1f(x) : x;
        case SB_SOFTPLUS: return softplus(x, a, b);
        case SB_MISH: return x * tanhf(softplus(x, 1, 20));
        case SB_EXP: return expf(x);
        case SB_LOG: return logf(x);
        case SB_SQRT: return sqrtf(x);
        default: return x;
    }
}

float sb_apply(sb_function f, float x) { return apply(f.kind, f.a, f.b, x); }

/* The switch stands outside the loop, so that each loop is over one known function. */
static void function(sb_function f, const float *in, float *out, size_t count) {
#define LOOP(kind) \
    case kind: for (size_t i = 0; i < count; i++) out[i] = apply(kind, f.a, f.b, in[i]); break
    switch (f.kind) {
        LOOP(SB_RELU); LOOP(SB_RELU6); LOOP(SB_LEAKY_RELU); LOOP(SB_HARDTANH);
        LOOP(SB_SIGMOID); LOOP(SB_HARD_SIGMOID); LOOP(SB_SILU); LOOP(SB_HARD_SWISH);
        LOOP(SB_GELU); LOOP(SB_GELU_TANH); LOOP(SB_TANH); LOOP(SB_SIGN);
        LOOP(SB_ABS); LOOP(SB_ELU); LOOP(SB_SOFTPLUS); LOOP(SB_MISH);
        LOOP(SB_EXP); LOOP(SB_LOG); LOOP(SB_SQRT); LOOP(SB_NONE);
        default: break;
    }
#undef LOOP
}

static void arithmetic(sb_arithmetic f, const float *a, size_t a_step, const float *b, size_t b_step, float *out,
                       size_t count) {
#define LOOP(kind, result) \
    case kind: \
        for (size_t i = 0; i < count; i++) { \
            const float x = a[i * a_step], y = b[i * b_step]; \
            out[i] = (result); \
        } \
        break
    switch (f) {
        LOOP(SB_ADD, x + y);
        LOOP(SB_SUB, x - y);
        LOOP(SB_MUL, x * y);
        LOOP(SB_DIV, x / y);
        LOOP(SB_MAXIMUM, x > y || x != x ? x : y);
        LOOP(SB_MINIMUM, x < y || x != x ? x : y);
        default: break;
    }
#undef LOOP
}

static void affine(float scale, float shift, const float *in, float *out, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = scale * in[i] + shift;
}

static void means(const float *in, size_t count, float *out, size_t rows) {
    for (size_t row = 0; row < rows; row++, in += count) {
        double sum = 0;
        for (size_t i = 0; i < count; i++) sum += in[i];
        out[row] = (float)(sum / (double)count);
    }
}

/* ------------------------------------------------------------------------------------------------ pooling */

static float window_max(const sb_pool *pool, const float *plane, int64_t top, int64_t left) {
    float best = -INFINITY;
    int32_t y_begin, y_end, x_begin, x_end; /* the part of the window that lies inside the input */
    sb_valid_range(top, pool->dilation_h, pool->height, pool->kernel_h, &y_begin, &y_end);
    sb_valid_range(left, pool->dilation_w, pool->width, pool->kernel_w, &x_begin, &x_end);
    for (int32_t ky = y_begin; ky < y_end; ky++) {
        const float *row = plane + (top + (int64_t)ky * pool->dilation_h) * pool->width;
        for (int32_t kx = x_begin; kx < x_end; kx++) {
            const float value = row[left + (int64_t)kx * pool->dilation_w];
            if (value > best || value != value) best = value;
        }
    }
    return best;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static float window_mean(const sb_pool *pool, const float *plane, int64_t top, int64_t left) {
    /* padding counts, what hangs over it does not */
    const int64_t bottom = smaller(top + pool->kernel_h, (int64_t)pool->height + pool->pad_bottom);
    const int64_t right = smaller(left + pool->kernel_w, (int64_t)pool->width + pool->pad_right);
    const int64_t with_pad = (bottom - top) * (right - left);
    const int64_t y0 = larger(top, 0), y1 = smaller(bottom, pool->height);
    const int64_t x0 = larger(left, 0), x1 = smaller(right, pool->width);
    if (y0 >= y1 || x0 >= x1) return 0;
    float sum = 0;
    for (int64_t y = y0; y < y1; y++)
        for (int64_t x = x0; x < x1; x++) sum += plane[y * pool->width + x];
    const int64_t inside = (y1 - y0) * (x1 - x0);
    return sum / (float)(pool->divisor ? pool->divisor : pool->count_include_pad ? with_pad : inside);
}

static void pool_planes(const sb_pool *pool, const float *in, float *out) {
    for (int32_t c = 0; c < pool->channels; c++) {
        const float *plane = in + (size_t)c * pool->in_plane;
        float *to = out + (size_t)c * pool->out_plane;
        for (int32_t y = 0; y < pool->out_height; y++) {
            for (int32_t x = 0; x < pool->out_width; x++) {
                const int64_t top = (int64_t)y * pool->stride_h - pool->pad_top;
                const int64_t left = (int64_t)x * pool->stride_w - pool->pad_left;
                *to++ = pool->average ? window_mean(pool, plane, top, left) : window_max(pool, plane, top, left);
            }
        }
    }
}

static const sb_conv_kernel *const CONVS[] = {&sb_portable_conv, &sb_portable_xnor, &sb_portable_levels, NULL};

const sb_kernels sb_kernels_portable = {
    .name = "portable", .convs = CONVS, .function = function, .arithmetic = arithmetic, .affine = affine,
    .means = means,
    .pool = pool_planes, .round = sb_round_to_levels, .pool_levels = sb_pool_levels};
