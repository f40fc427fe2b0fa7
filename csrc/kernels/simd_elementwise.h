/* Element-wise functions and arithmetic on vectors. */
#include "../kernels.h"
#include "simd_curves.h"

/* ReLU and its relatives are limits, and cost nothing where a convolution stores its result anyway. */
typedef struct {
    float low, high;
} limits;

static bool is_limit(sb_function f) {
    return f.kind == SB_NONE || f.kind == SB_RELU || f.kind == SB_RELU6 || f.kind == SB_HARDTANH;
}

static limits limits_of(sb_function f) {
    switch (f.kind) {
    case SB_RELU: return (limits){0, INFINITY};
    case SB_RELU6: return (limits){0, 6};
    case SB_HARDTANH: return (limits){f.a, f.b};
    default: return (limits){-INFINITY, INFINITY};
    }
}

ALWAYS_INLINE vfloat vlimit(vfloat x, limits range) {
    return vat_most(vat_least(x, vsplat(range.low)), vsplat(range.high));
}

ALWAYS_INLINE vfloat apply_vector(const int kind, sb_function f, vfloat x) {
    const limits six = {0, 6};
    switch (kind) {
    case SB_LEAKY_RELU: return vat_least(x, vsplat(0)) + vsplat(f.a) * vat_most(x, vsplat(0));
    case SB_HARD_SIGMOID: return vlimit(x + vsplat(3), six) / vsplat(6);
    case SB_HARD_SWISH: return x * vlimit(x + vsplat(3), six) / vsplat(6);
    case SB_SIGMOID: return vsigmoid(x);
    case SB_SILU: return x * vsigmoid(x);
    case SB_GELU: return vgelu(x);
    case SB_GELU_TANH: return vgelu_tanh(x);
    case SB_TANH: return vtanh(x);
    case SB_SIGN: return vsign(x);
    case SB_ABS: return vabs(x);
    case SB_ELU: return vchoose((vword)(x < 0), vsplat(f.a) * vexpm1(x), x);
    case SB_SOFTPLUS: return vsoftplus(x, f.a, f.b);
    case SB_MISH: return vmish(x);
    case SB_EXP: return vexp(x);
    case SB_LOG: return vlog(x);
    case SB_SQRT: return vsqrt(x);
    default: return vlimit(x, limits_of(f));
    }
}

ALWAYS_INLINE void map_vectors(const int kind, sb_function f, const float *in, float *out, size_t count) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        vstore(out + i, apply_vector(kind, f, vload(in + i)));
    if (i < count)
        vstore_part(out + i, apply_vector(kind, f, vload_part(in + i, 0, (int)(count - i))), 0, (int)(count - i));
}

static void simd_function(sb_function f, const float *in, float *out, size_t count) {
#define CURVE(kind) \
    case kind: map_vectors(kind, f, in, out, count); break
    switch (f.kind) {
    case SB_RELU6:
    case SB_HARDTANH:
    CURVE(SB_RELU);
    CURVE(SB_LEAKY_RELU);
    CURVE(SB_HARD_SIGMOID);
    CURVE(SB_HARD_SWISH);
    CURVE(SB_SIGMOID);
    CURVE(SB_SILU);
    CURVE(SB_GELU);
    CURVE(SB_GELU_TANH);
    CURVE(SB_TANH);
    CURVE(SB_SIGN);
    CURVE(SB_ABS);
    CURVE(SB_ELU);
    CURVE(SB_SOFTPLUS);
    CURVE(SB_MISH);
    CURVE(SB_EXP);
    CURVE(SB_LOG);
    CURVE(SB_SQRT);
    default: sb_kernels_portable.function(f, in, out, count);
    }
#undef CURVE
}

ALWAYS_INLINE vfloat combine(const sb_arithmetic f, vfloat a, vfloat b) {
    switch (f) {
    case SB_ADD: return a + b;
    case SB_SUB: return a - b;
    case SB_MUL: return a * b;
    default: return a / b;
    }
}

ALWAYS_INLINE void combine_vectors(const sb_arithmetic f, const float *a, size_t a_step, const float *b, size_t b_step,
                                   float *out, size_t count) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        vstore(out + i, combine(f, a_step ? vload(a + i) : vsplat(*a), b_step ? vload(b + i) : vsplat(*b)));
    if (i < count) {
        const int rest = (int)(count - i);
        const vfloat x = a_step ? vload_part(a + i, 0, rest) : vsplat(*a);
        const vfloat y = b_step ? vload_part(b + i, 0, rest) : vsplat(*b);
        vstore_part(out + i, combine(f, x, y), 0, rest);
    }
}

static void simd_arithmetic(sb_arithmetic f, const float *a, size_t a_step, const float *b, size_t b_step, float *out,
                            size_t count) {
    switch (f) {
    case SB_ADD: combine_vectors(SB_ADD, a, a_step, b, b_step, out, count); break;
    case SB_SUB: combine_vectors(SB_SUB, a, a_step, b, b_step, out, count); break;
    case SB_MUL: combine_vectors(SB_MUL, a, a_step, b, b_step, out, count); break;
    case SB_DIV: combine_vectors(SB_DIV, a, a_step, b, b_step, out, count); break;
    default: sb_kernels_portable.arithmetic(f, a, a_step, b, b_step, out, count);
    }
}

static void simd_affine(float scale, float shift, const float *in, float *out, size_t count) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        vstore(out + i, vsplat(scale) * vload(in + i) + vsplat(shift));
    for (; i < count; i++)
        out[i] = scale * in[i] + shift;
}

/* out[i] = mean of the i-th `count` numbers */
static void simd_means(const float *in, size_t count, float *out, size_t rows) {
    const vfloat factor = vsplat(1.0f / (float)count);
    for (size_t row = 0; row < rows; row++, in += count) {
        vfloat sum = {0};
        size_t i = 0;
        for (; i + LANES <= count; i += LANES)
            sum += vload(in + i);
        if (i < count)
            sum += vload_part(in + i, 0, (int)(count - i));
        out[row] = add_lanes(sum * factor);
    }
}
