/* Curves on vectors: e^x, the logarithm and what is made of them, to some millionths of their value. NaN and infinite numbers
 * give what they give in the portable row. */
#include <math.h>

typedef uint32_t vbits __attribute__((vector_size(4 * LANES), may_alias)); /* numbers as bits, which may overflow */

ALWAYS_INLINE vfloat vchoose(vword mask, vfloat yes, vfloat no) {
    return (vfloat)((mask & (vword)yes) | (~mask & (vword)no));
}

ALWAYS_INLINE vfloat vabs(vfloat x) { return (vfloat)((vword)x & 0x7fffffff); }

ALWAYS_INLINE vfloat vsign(vfloat x) {
    return (vfloat)(((vword)(x > 0) & (vword)vsplat(1)) | ((vword)(x < 0) & (vword)vsplat(-1)));
}

ALWAYS_INLINE vfloat vsqrt(vfloat x) {
#if LANES == 16
    return (vfloat)_mm512_sqrt_ps((__m512)x);
#elif LANES == 8
    return (vfloat)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE2__)
    return (vfloat)_mm_sqrt_ps((__m128)x);
#else
    UNROLL
    for (int lane = 0; lane < LANES; lane++)
        x[lane] = sqrtf(x[lane]);
    return x;
#endif
}

/* x = n ln 2 + r; returns r. */
ALWAYS_INLINE vfloat split_exponent(vfloat x, vword *n) {
    const vfloat sum = x * vsplat(1.44269504f) + vsplat(0x1.8p23f); /* rounds to an integer, which is in the low bits */
    const vfloat rounded = sum - vsplat(0x1.8p23f);
    *n = (vword)((vbits)sum - (vbits)vsplat(0x1.8p23f));
    return (x - rounded * vsplat(0x1.62e400p-1f)) - rounded * vsplat(0x1.7f7d1cp-20f);
}

/* 2^n for n from -126 to 127. */
ALWAYS_INLINE vfloat power_of_two(vword n) { return (vfloat)(((vbits)n + 127) << 23); }

/* (e^r - 1 - r) / r^2 for the small r of split_exponent. */
ALWAYS_INLINE vfloat exponential_rest(vfloat r) {
    vfloat p = vsplat(1.3888889e-3f);
    p = p * r + vsplat(8.3333333e-3f);
    p = p * r + vsplat(4.1666667e-2f);
    p = p * r + vsplat(1.6666667e-1f);
    return p * r + vsplat(0.5f);
}

/* 2^n as two factors: the result may be infinite or denormal. */
ALWAYS_INLINE vfloat vexp(vfloat x) {
    vword n;
    const vfloat r = split_exponent(vat_most(vat_least(x, vsplat(-104.0f)), vsplat(89.0f)), &n);
    const vfloat p = (exponential_rest(r) * r + vsplat(1)) * r + vsplat(1);
    const vword half = n >> 1;
    return p * power_of_two(half) * power_of_two((vword)((vbits)n - (vbits)half));
}

/* e^x - 1 for x up to 0, others count as 0. */
ALWAYS_INLINE vfloat vexpm1(vfloat x) {
    vword n;
    const vfloat r = split_exponent(vat_most(vat_least(x, vsplat(-87.0f)), vsplat(0)), &n);
    const vfloat scale = power_of_two(n);
    return scale * (exponential_rest(r) * r * r + r) + (scale - vsplat(1));
}

/* x = 2^n m with m around 1; log m = 2 artanh s with s = (m - 1) / (m + 1). */
ALWAYS_INLINE vfloat vlog(vfloat x) {
    const vword tiny = (vword)(x < vsplat(0x1p-126f));
    const vbits bits = (vbits)vchoose(tiny, x * vsplat(0x1p23f), x);
    const vword n = (vword)(bits - 0x3f3504f3) >> 23; /* m from the square root of 1/2 on */
    const vfloat m = (vfloat)(bits - ((vbits)n << 23)), exponent = __builtin_convertvector(n + (tiny & -23), vfloat);
    const vfloat s = (m - vsplat(1)) / (m + vsplat(1)), square = s * s;
    vfloat p = vsplat(2.0f / 9);
    p = p * square + vsplat(2.0f / 7);
    p = p * square + vsplat(2.0f / 5);
    p = p * square + vsplat(2.0f / 3);
    const vfloat log = exponent * vsplat(0x1.62e400p-1f) + (s * square * p + exponent * vsplat(0x1.7f7d1cp-20f) + (s + s));
    const vfloat positive = vchoose((vword)(x == vsplat(INFINITY)), x, log);
    return vchoose((vword)(x > 0), positive, vchoose((vword)(x == 0), vsplat(-INFINITY), vsplat(NAN)));
}

/* log(1 + x) for x from 0 on: what adding 1 rounds away is put back. */
ALWAYS_INLINE vfloat vlog1p(vfloat x) {
    const vfloat sum = x + vsplat(1), lost = (x - (sum - vsplat(1))) / sum;
    return vlog(sum) + vchoose((vword)(x < vsplat(0x1p24f)), lost, vsplat(0));
}

ALWAYS_INLINE vfloat vsigmoid(vfloat x) { return vsplat(1) / (vsplat(1) + vexp(-x)); }

ALWAYS_INLINE vfloat vtanh(vfloat x) {
    const vfloat e = vexpm1(vsplat(-2) * vabs(x)), positive = -e / (e + vsplat(2));
    return (vfloat)((vword)vabs(positive) | ((vword)x & INT32_MIN));
}

ALWAYS_INLINE vfloat vsoftplus(vfloat x, float beta, float threshold) {
    const vfloat scaled = x * vsplat(beta);
    return vchoose((vword)(scaled > vsplat(threshold)), x, vlog1p(vexp(scaled)) / vsplat(beta));
}

/* tanh(log(1 + w)) is w (w + 2) / (w (w + 2) + 2) with w = e^x. */
ALWAYS_INLINE vfloat vmish(vfloat x) {
    const vfloat w = vexp(vat_most(x, vsplat(20))), product = w * (w + vsplat(2));
    return x * (product / (product + vsplat(2)));
}

/* x times the normal distribution function. Of |x| its upper tail is half of erfc(t) with t = |x| / sqrt 2; k p was fitted to
 * exp(t^2) erfc(t), with p a polynomial in k = 1 / (1 + t / 2). */
ALWAYS_INLINE vfloat vgelu(vfloat x) {
    static const float fitted[] = {0.28208640f, 0.28237554f,  0.24310179f, 0.20269521f,  -0.026646536f,
                                   0.27809897f, -0.48722890f, 0.28458947f, -0.059072029f};
    const vfloat k = vsplat(1) / (vsplat(1) + vsplat(0.35355339f) * vabs(x));
    vfloat p = vsplat(fitted[8]);
    UNROLL
    for (int i = 7; i >= 0; i--)
        p = p * k + vsplat(fitted[i]);
    const vfloat tail = vsplat(0.5f) * k * p * vexp(vsplat(-0.5f) * x * x);
    return x * vchoose((vword)(x < 0), tail, vsplat(1) - tail);
}

/* With (1 + tanh u) / 2 = sigmoid(2 u). */
ALWAYS_INLINE vfloat vgelu_tanh(vfloat x) {
    return x / (vsplat(1) + vexp(vsplat(-1.5957691f) * (x + vsplat(0.044715f) * x * x * x)));
}
