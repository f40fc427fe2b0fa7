/* Vectors of floats for the instruction set that this file is compiled for.
 *
 * The kernels are written once, on the compiler's vector types; a small file per instruction set
 * (simd_sse2.c, simd_avx2.c, simd_avx512.c, simd_neon.c) includes them under its own compile flags. LANES is the
 * number of floats in a register. What the vector types cannot express well sits here, once per instruction set:
 * loads and stores of a part of a register, lane shifts across registers, and pairs taken apart.
 */
#ifndef SUBBIT_SIMD_H
#define SUBBIT_SIMD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512VL__)
#define LANES 16
#include <immintrin.h>
#elif defined(__AVX2__)
#define LANES 8
#include <immintrin.h>
#else
#define LANES 4
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define NEVER_INLINE __attribute__((noinline)) /* stages that a profile should tell apart */

/* Unrolls the loop that follows completely: its trip count is a constant after inlining, and what it indexes are registers. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif

/* Keeps the compiler from looking behind a computed pointer and folding it into the instructions that use it. */
#define HIDE(pointer) __asm__("" : "+r"(pointer))

/* Keeps a vector in a register: copies of arrays of vectors must not become copies of memory. */
#if LANES == 16
#define KEEP(vector) __asm__("" : "+v"(vector))
#elif defined(__SSE2__)
#define KEEP(vector) __asm__("" : "+x"(vector))
#else
#define KEEP(vector) __asm__("" : "+w"(vector))
#endif

/* What was stored in an array is in memory now, and is read again where it is needed: left alone, compilers keep copies of large
 * ones in registers and spill them one by one. */
#define IN_MEMORY(array) __asm__ volatile("" : : "r"(array) : "memory")

/* floatN is aligned, floatN_u may start at any float. Both may alias arrays of floats. */
#define DECLARE_VECTOR(n)                                                                                              \
    typedef float float##n __attribute__((vector_size(4 * n), may_alias));                                             \
    typedef float float##n##_u __attribute__((vector_size(4 * n), may_alias, aligned(4)));                             \
    typedef int32_t word##n __attribute__((vector_size(4 * n), may_alias));                                             \
    ALWAYS_INLINE float##n load##n(const float *p) { return *(const float##n##_u *)p; }                               \
    ALWAYS_INLINE void store##n(float *p, float##n v) { *(float##n##_u *)p = v; }                                      \
    ALWAYS_INLINE float##n splat##n(float x) { return x - (float##n){0}; }

DECLARE_VECTOR(4)
#if LANES >= 8
DECLARE_VECTOR(8)
#endif
#if LANES >= 16
DECLARE_VECTOR(16)
#endif

/* Smaller and larger of two; where `v` is NaN the result is NaN, as in the portable kernels. */
#if defined(__SSE2__)
#define DECLARE_LIMITS(n, max, min)                                                                                    \
    ALWAYS_INLINE float##n at_least##n(float##n v, float##n low) { return (float##n)max(low, v); }                     \
    ALWAYS_INLINE float##n at_most##n(float##n v, float##n high) { return (float##n)min(high, v); }
DECLARE_LIMITS(4, _mm_max_ps, _mm_min_ps)
#if LANES >= 8
DECLARE_LIMITS(8, _mm256_max_ps, _mm256_min_ps)
#endif
#if LANES >= 16
DECLARE_LIMITS(16, _mm512_max_ps, _mm512_min_ps)
#endif
#else
ALWAYS_INLINE float4 choose4(word4 mask, float4 yes, float4 no) {
    return (float4)((mask & (word4)yes) | (~mask & (word4)no));
}
ALWAYS_INLINE float4 at_least4(float4 v, float4 low) { return choose4(v < low, low, v); }
ALWAYS_INLINE float4 at_most4(float4 v, float4 high) { return choose4(v > high, high, v); }
#endif

#define PASTE2(a, b) a##b
#define PASTE(a, b) PASTE2(a, b)
typedef PASTE(float, LANES) vfloat;
typedef PASTE(word, LANES) vword;
#define vload PASTE(load, LANES)
#define vstore PASTE(store, LANES)
#define vsplat PASTE(splat, LANES)
#define vat_least PASTE(at_least, LANES)
#define vat_most PASTE(at_most, LANES)

/* Lanes begin..end-1 of the n floats at p; the others read as zero, and their memory is not touched. */
#if LANES == 16
#define PARTIAL(n, mask_type, load, store)                                                                             \
    ALWAYS_INLINE float##n load_part##n(const float *p, int begin, int end)                                            \
    {                                                                                                                  \
        return (float##n)load((mask_type)((1u << end) - (1u << begin)), p);                                            \
    }                                                                                                                  \
    ALWAYS_INLINE void store_part##n(float *p, float##n v, int begin, int end)                                         \
    {                                                                                                                  \
        store(p, (mask_type)((1u << end) - (1u << begin)), v);                                                         \
    }
PARTIAL(16, __mmask16, _mm512_maskz_loadu_ps, _mm512_mask_storeu_ps)
PARTIAL(8, __mmask8, _mm256_maskz_loadu_ps, _mm256_mask_storeu_ps)
PARTIAL(4, __mmask8, _mm_maskz_loadu_ps, _mm_mask_storeu_ps)
#elif LANES == 8
ALWAYS_INLINE word8 lanes_between8(int begin, int end) {
    const word8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
    return (lane >= begin) & (lane < end);
}
#define PARTIAL(n, half, load, store)                                                                                  \
    ALWAYS_INLINE float##n load_part##n(const float *p, int begin, int end)                                            \
    {                                                                                                                  \
        return (float##n)load(p, half((__m256i)lanes_between8(begin, end)));                                           \
    }                                                                                                                  \
    ALWAYS_INLINE void store_part##n(float *p, float##n v, int begin, int end)                                         \
    {                                                                                                                  \
        store(p, half((__m256i)lanes_between8(begin, end)), v);                                                        \
    }
PARTIAL(8, , _mm256_maskload_ps, _mm256_maskstore_ps)
PARTIAL(4, _mm256_castsi256_si128, _mm_maskload_ps, _mm_maskstore_ps)
#else
ALWAYS_INLINE float4 load_part4(const float *p, int begin, int end) {
    float part[4] = {0};
    for (int lane = begin; lane < end; lane++)
        part[lane] = p[lane];
    return load4(part);
}
ALWAYS_INLINE void store_part4(float *p, float4 v, int begin, int end) {
    for (int lane = begin; lane < end; lane++)
        p[lane] = v[lane];
}
#endif
#define vload_part PASTE(load_part, LANES)
#define vstore_part PASTE(store_part, LANES)

/* The sum of all lanes: halves are added until one is left. */
ALWAYS_INLINE float add_lanes(vfloat v) {
#if LANES == 16
    const float8 eight = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                         __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#elif LANES == 8
    const float8 eight = v;
#endif
#if LANES >= 8
    float4 sum = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
#else
    float4 sum = v;
#endif
    sum += __builtin_shufflevector(sum, sum, 2, 3, 0, 1);
    return sum[0] + sum[1];
}

/* Even and odd elements of the 2·LANES floats (a, b): the two column phases of a stride of 2. */
#if LANES == 16
ALWAYS_INLINE vfloat even_lanes(vfloat a, vfloat b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
ALWAYS_INLINE vfloat odd_lanes(vfloat a, vfloat b) {
    return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
#elif LANES == 8
ALWAYS_INLINE vfloat even_lanes(vfloat a, vfloat b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14); }
ALWAYS_INLINE vfloat odd_lanes(vfloat a, vfloat b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15); }
#else
ALWAYS_INLINE vfloat even_lanes(vfloat a, vfloat b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6); }
ALWAYS_INLINE vfloat odd_lanes(vfloat a, vfloat b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7); }
#endif

/* Lane l becomes lane select[l] of the pair (a, b). */
#if LANES == 16
ALWAYS_INLINE vfloat permute_pair(vfloat a, vfloat b, const int32_t *select) {
    return (vfloat)_mm512_permutex2var_ps(a, _mm512_loadu_si512(select), b);
}
#elif LANES == 8
ALWAYS_INLINE vfloat permute_pair(vfloat a, vfloat b, const int32_t *select) {
    const __m256i from = _mm256_loadu_si256((const __m256i *)select);
    const __m256 from_b = _mm256_castsi256_ps(_mm256_slli_epi32(from, 28)); /* bit 3 to the sign */
    return (vfloat)_mm256_blendv_ps(_mm256_permutevar8x32_ps(a, from), _mm256_permutevar8x32_ps(b, from), from_b);
}
#else
ALWAYS_INLINE vfloat permute_pair(vfloat a, vfloat b, const int32_t *select) {
    vfloat result;
    for (int lane = 0; lane < 4; lane++)
        result[lane] = select[lane] < 4 ? a[select[lane] & 3] : b[select[lane] & 3];
    return result;
}
#endif

/* The pixels of a row moved by `lanes` (> 0: to higher lanes), `select` being the lane selection that does it:
 * select[l] < LANES takes that lane of v, LANES and above a lane of its neighbour in the row. */
#if LANES >= 8
ALWAYS_INLINE vfloat shift_lanes(vfloat v, vfloat neighbour, const int32_t *select, int lanes) {
    (void)lanes;
    return permute_pair(v, neighbour, select);
}
#else
ALWAYS_INLINE vfloat shift_lanes(vfloat v, vfloat neighbour, const int32_t *select, int lanes) {
    (void)select;
    switch (lanes) { /* rows are never narrower than a register here: plain shifts are enough */
    case 1: return __builtin_shufflevector(neighbour, v, 3, 4, 5, 6);
    case 2: return __builtin_shufflevector(neighbour, v, 2, 3, 4, 5);
    case 3: return __builtin_shufflevector(neighbour, v, 1, 2, 3, 4);
    case -1: return __builtin_shufflevector(v, neighbour, 1, 2, 3, 4);
    case -2: return __builtin_shufflevector(v, neighbour, 2, 3, 4, 5);
    case -3: return __builtin_shufflevector(v, neighbour, 3, 4, 5, 6);
    default: return neighbour; /* a whole register */
    }
}
#endif

/* The signed sums of a quad in one register, looked up by a nibble in every lane of a word.
 *
 * 16 lanes hold all sums. 8 lanes hold those in which channel 3 counts +1; a nibble is stored so that its bit 3 says
 * "negate" and its other bits, inverted where it does, number the sum. */
#if LANES == 16
typedef __m512i lane_selector;
static const float lane_signs[4][16] = {
    {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1},
    {-1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1},
    {-1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1},
    {-1, -1, -1, -1, -1, -1, -1, -1, 1, 1, 1, 1, 1, 1, 1, 1},
};
static inline uint32_t lane_nibble(unsigned nibble) { return nibble; }
ALWAYS_INLINE lane_selector load_selector(const uint32_t *words) { return _mm512_load_si512(words); }
ALWAYS_INLINE lane_selector next_selector(lane_selector words) { return _mm512_srli_epi32(words, 4); }
ALWAYS_INLINE vfloat select_sums(const float *sums, lane_selector words) {
    return (vfloat)_mm512_permutexvar_ps(words, _mm512_load_ps(sums));
}
#elif LANES == 8
typedef __m256i lane_selector;
static const float lane_signs[4][8] = {
    {-1, 1, -1, 1, -1, 1, -1, 1},
    {-1, -1, 1, 1, -1, -1, 1, 1},
    {-1, -1, -1, -1, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, 1, 1, 1},
};
static inline uint32_t lane_nibble(unsigned nibble) { return nibble & 8 ? nibble & 7 : 8 | (~nibble & 7); }
ALWAYS_INLINE lane_selector load_selector(const uint32_t *words) { return _mm256_load_si256((const __m256i *)words); }
ALWAYS_INLINE lane_selector next_selector(lane_selector words) { return _mm256_srli_epi32(words, 4); }
ALWAYS_INLINE vfloat select_sums(const float *sums, lane_selector words) {
    const __m256 sign = _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(words, 28)), _mm256_set1_ps(-0.0f));
    return (vfloat)_mm256_xor_ps(_mm256_permutevar8x32_ps(_mm256_load_ps(sums), words), sign);
}
#endif

/* Bits set per byte, and bytes added up per lane. */
ALWAYS_INLINE vword count_byte_bits(vword v) {
#if LANES == 16
    const __m512i counts = _mm512_set4_epi32(0x04030302, 0x03020201, 0x03020201, 0x02010100);
    const __m512i low = _mm512_and_si512((__m512i)v, _mm512_set1_epi8(15));
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16((__m512i)v, 4), _mm512_set1_epi8(15));
    return (vword)_mm512_add_epi8(_mm512_shuffle_epi8(counts, low), _mm512_shuffle_epi8(counts, high));
#elif LANES == 8
    const __m256i counts = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2,
                                            2, 3, 2, 3, 3, 4);
    const __m256i low = _mm256_and_si256((__m256i)v, _mm256_set1_epi8(15));
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16((__m256i)v, 4), _mm256_set1_epi8(15));
    return (vword)_mm256_add_epi8(_mm256_shuffle_epi8(counts, low), _mm256_shuffle_epi8(counts, high));
#else
    typedef uint8_t bytes __attribute__((vector_size(16)));
    bytes b = (bytes)v;
    b -= b >> 1 & 0x55;
    b = (b & 0x33) + (b >> 2 & 0x33);
    return (vword)((b + (b >> 4)) & 0x0f);
#endif
}

ALWAYS_INLINE vword add_bytes(vword v) {
    const vword pairs = (v & 0x00ff00ff) + (v >> 8 & 0x00ff00ff);
    return (pairs & 0xffff) + (pairs >> 16);
}

/* Bits set per lane by one instruction, where the caller has made sure that it exists. */
#if LANES == 16
ALWAYS_INLINE vword count_bits(vword v) {
    vword count; /* an intrinsic could not be inlined into callers that know nothing of the instruction */
    __asm__("vpopcntd %1, %0" : "=v"(count) : "v"(v));
    return count;
}
#else
ALWAYS_INLINE vword count_bits(vword v) { return add_bytes(count_byte_bits(v)); }
#endif

#endif
