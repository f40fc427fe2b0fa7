/* Vectors of levels and of their sums: SHORTS lanes of 16 bits in a register, twice as many as there are floats. */
#include "table.h"

enum { SHORTS = 2 * LANES };

typedef int16_t vshort __attribute__((vector_size(4 * LANES), may_alias));
typedef int16_t vshort_u __attribute__((vector_size(4 * LANES), may_alias, aligned(1)));
typedef int8_t vlevels __attribute__((vector_size(2 * LANES), may_alias));
typedef int8_t vlevels_u __attribute__((vector_size(2 * LANES), may_alias, aligned(1)));

ALWAYS_INLINE vshort widen(const int8_t *p) { return __builtin_convertvector(*(const vlevels_u *)p, vshort); }

ALWAYS_INLINE int32_t load_four(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return four;
}

ALWAYS_INLINE int64_t load_eight(const int8_t *p) {
    int64_t eight;
    memcpy(&eight, p, sizeof eight);
    return eight;
}

/* Rows of `width` levels from several places of a channel, side by side. */
ALWAYS_INLINE vshort gather_rows(const int8_t *in, const ptrdiff_t *at, const int width) {
#define FOUR(i) load_four(in + at[i])
#define EIGHT(i) load_eight(in + at[i])
    typedef int32_t fours __attribute__((vector_size(2 * LANES)));
#if LANES == 4
    (void)width;
    const vlevels rows = (vlevels)(fours){FOUR(0), FOUR(1)};
#else
    typedef int64_t eights __attribute__((vector_size(2 * LANES)));
#if LANES == 8
    const vlevels rows = width == 4 ? (vlevels)(fours){FOUR(0), FOUR(1), FOUR(2), FOUR(3)}
                                    : (vlevels)(eights){EIGHT(0), EIGHT(1)};
#else
    const vlevels rows =
        width == 4 ? (vlevels)(fours){FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7)}
        : width == 8 ? (vlevels)(eights){EIGHT(0), EIGHT(1), EIGHT(2), EIGHT(3)}
                     : (vlevels)_mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(in + at[0]))),
                                                        _mm_loadu_si128((const __m128i *)(in + at[1])), 1);
#endif
#endif
#undef FOUR
#undef EIGHT
    return __builtin_convertvector(rows, vshort);
}

/* The lanes of sums as 32-bit numbers: half 0 or 1. */
ALWAYS_INLINE vword widen_half(vshort v, const int half) {
#if LANES == 16
    return (vword)_mm512_cvtepi16_epi32(half ? _mm512_extracti64x4_epi64((__m512i)v, 1) : _mm512_castsi512_si256((__m512i)v));
#elif LANES == 8
    return (vword)_mm256_cvtepi16_epi32(half ? _mm256_extracti128_si256((__m256i)v, 1) : _mm256_castsi256_si128((__m256i)v));
#elif defined(__SSE2__)
    const __m128i twice = half ? _mm_unpackhi_epi16((__m128i)v, (__m128i)v) : _mm_unpacklo_epi16((__m128i)v, (__m128i)v);
    return (vword)_mm_srai_epi32(twice, 16);
#else
    typedef int16_t part __attribute__((vector_size(8)));
    const part low = {v[0], v[1], v[2], v[3]}, high = {v[4], v[5], v[6], v[7]};
    return __builtin_convertvector(half ? high : low, vword);
#endif
}

/* `count` levels, every `stride`-th one; the lanes behind them are zeros, and their memory is not touched. */
ALWAYS_INLINE vshort load_levels(const int8_t *source, int count, int stride) {
    if (stride == 1 && count == SHORTS)
        return widen(source);
#if LANES == 16
    if (stride == 1)
        return (vshort)_mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8((__mmask32)(((uint64_t)1 << count) - 1), source));
    if (stride == 2) /* the first byte of every pair */
        return (vshort)_mm512_maskz_loadu_epi8(~(__mmask64)0 >> (65 - 2 * count), source) << 8 >> 8;
#endif
    int8_t lanes[SHORTS] = {0};
    for (int lane = 0; lane < count; lane++)
        lanes[lane] = source[(ptrdiff_t)lane * stride];
    return widen(lanes);
}

/* Sums moved by `lanes` as shift_lanes does it for floats, in a row of several registers, */
#if LANES == 16
ALWAYS_INLINE vshort shift_shorts(vshort v, vshort neighbour, const int16_t *select, int lanes) {
    (void)lanes;
    return (vshort)_mm512_permutex2var_epi16((__m512i)v, _mm512_loadu_si512(select), (__m512i)neighbour);
}
#else
#if LANES == 8
#define FROM(i) i, i + 1, i + 2, i + 3, i + 4, i + 5, i + 6, i + 7, i + 8, i + 9, i + 10, i + 11, i + 12, i + 13, i + 14, i + 15
#else
#define FROM(i) i, i + 1, i + 2, i + 3, i + 4, i + 5, i + 6, i + 7
#endif
#define SHIFTS(n)                                                                                                      \
    case n: return __builtin_shufflevector(neighbour, v, FROM(SHORTS - n));                                            \
    case -n: return __builtin_shufflevector(v, neighbour, FROM(n));
ALWAYS_INLINE vshort shift_shorts(vshort v, vshort neighbour, const int16_t *select, int lanes) {
    vshort around[3];
    (void)select;
    switch (lanes) {
        SHIFTS(1)
        SHIFTS(2)
        SHIFTS(3)
        SHIFTS(4)
    default: /* through memory */
        around[0] = around[2] = neighbour;
        around[1] = v;
        return *(const vshort_u *)((const int16_t *)&around[1] - lanes);
    }
}
#undef SHIFTS
#undef FROM
#endif

/* and in rows of one register, or of a part of it (`narrow`): what comes from outside is zero. */
#if LANES == 16
ALWAYS_INLINE vshort shift_row_of_shorts(vshort v, const table_step *step, bool narrow) {
    (void)narrow;
    const __m512i select = _mm512_loadu_si512(step->select_short);
    return (vshort)_mm512_maskz_permutexvar_epi16(step->inside, select, (__m512i)v);
}
#else
ALWAYS_INLINE vshort shift_row_of_shorts(vshort v, const table_step *step, bool narrow) {
    const vshort moved = shift_shorts(v, (vshort){0}, step->select_short, step->lanes);
    if (!narrow)
        return moved;
    const vshort from = *(const vshort_u *)step->select_short;
    return moved & (vshort)(from < SHORTS);
}
#endif

/* The nearest levels of n floats, stored as bytes. Where `v` is NaN x86 gives the second operand of a minimum, which is
 * the highest level. */
typedef struct {
    float factor, lowest, highest; /* factor: 1 / step */
} level_range;

static level_range range_of(sb_levels levels) {
    return (level_range){1 / levels.step, (float)sb_lowest_level(levels), (float)sb_highest_level(levels)};
}

#if defined(__SSE2__)
ALWAYS_INLINE __m128i round4(float4 v, level_range to) {
    const __m128 scaled = (__m128)(v * splat4(to.factor));
    return _mm_cvtps_epi32(_mm_max_ps(_mm_min_ps(scaled, _mm_set1_ps(to.highest)), _mm_set1_ps(to.lowest)));
}
ALWAYS_INLINE void store_levels4(int8_t *p, float4 v, level_range to) {
    const __m128i words = _mm_packs_epi32(round4(v, to), _mm_setzero_si128());
    const int32_t levels = _mm_cvtsi128_si32(_mm_packs_epi16(words, words));
    memcpy(p, &levels, sizeof levels);
}
#else
ALWAYS_INLINE void store_levels4(int8_t *p, float4 v, level_range to) {
    const float4 scaled = v * splat4(to.factor), highest = splat4(to.highest), lowest = splat4(to.lowest);
    const float4 below = choose4(scaled < highest, scaled, highest);
    const float4 rounded = choose4(below > lowest, below, lowest) + splat4(0x1.8p23f); /* the level is in the low bits */
    for (int lane = 0; lane < 4; lane++)
        p[lane] = (int8_t)((word4)rounded)[lane];
}
#endif
#if LANES >= 8
ALWAYS_INLINE void store_levels8(int8_t *p, float8 v, level_range to) {
    const __m256 scaled = (__m256)(v * splat8(to.factor));
    const __m256i level = _mm256_cvtps_epi32(
        _mm256_max_ps(_mm256_min_ps(scaled, _mm256_set1_ps(to.highest)), _mm256_set1_ps(to.lowest)));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(level), _mm256_extracti128_si256(level, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(words, words));
}
#endif
#if LANES >= 16
/* Rounding is monotonic, so that the lowest level may come behind it: of bytes, one maximum does for four registers. Numbers
 * below all integers become the least of them, and what is packed saturates. */
ALWAYS_INLINE __m512i round16(float16 v, level_range to) {
    return _mm512_cvtps_epi32(_mm512_min_ps((__m512)(v * splat16(to.factor)), _mm512_set1_ps(to.highest)));
}

ALWAYS_INLINE __m128i lowest16(level_range to) {
    return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_set1_ps(to.lowest)));
}

ALWAYS_INLINE void store_levels16(int8_t *p, float16 v, level_range to) {
    _mm_storeu_si128((__m128i *)p, _mm_max_epi8(_mm512_cvtsepi32_epi8(round16(v, to)), lowest16(to)));
}

/* Four registers to one of bytes: packed, fours of them lie in turns. */
ALWAYS_INLINE __m512i pack_levels64(const float16 *v, level_range to) {
    const __m512i low = _mm512_packs_epi32(round16(v[0], to), round16(v[1], to));
    const __m512i high = _mm512_packs_epi32(round16(v[2], to), round16(v[3], to));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i levels = _mm512_max_epi8(_mm512_packs_epi16(low, high), _mm512_broadcast_i32x4(lowest16(to)));
    return _mm512_permutexvar_epi32(order, levels);
}

ALWAYS_INLINE void store_levels64(int8_t *p, const float16 *v, level_range to) { _mm512_storeu_si512(p, pack_levels64(v, to)); }
#endif
#define vstore_levels PASTE(store_levels, LANES)

static void simd_round(sb_levels levels, const float *in, int8_t *out, size_t count) {
    const level_range to = range_of(levels);
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        vstore_levels(out + i, vload(in + i), to);
    sb_kernels_portable.round(levels, in + i, out + i, count - i);
}

/* ------------------------------------------------------------------------- windows of 2 x 2, side by side */

ALWAYS_INLINE vshort larger_shorts(vshort a, vshort b) {
#if LANES == 16
    return (vshort)_mm512_max_epi16((__m512i)a, (__m512i)b);
#elif LANES == 8
    return (vshort)_mm256_max_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (vshort)_mm_max_epi16((__m128i)a, (__m128i)b);
#else
    const vshort first = a > b;
    return (a & first) | (b & ~first);
#endif
}

/* The larger of each pair of neighbours in 2 · SHORTS levels. */
ALWAYS_INLINE vshort larger_neighbours(const int8_t *p) {
    const vshort pairs = *(const vshort_u *)p; /* little-endian: the first of a pair is the low byte */
    return larger_shorts(pairs << 8 >> 8, pairs >> 8);
}

ALWAYS_INLINE void store_narrow(int8_t *p, vshort v) {
#if LANES == 16
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi16_epi8((__m512i)v));
#else
    *(vlevels_u *)p = __builtin_convertvector(v, vlevels);
#endif
}

/* The larger of each pair of neighbours, `count` pairs. */
static void pool_neighbouring_levels(const int8_t *in, int8_t *out, size_t count) {
    size_t i = 0;
    for (; i + SHORTS <= count; i += SHORTS)
        store_narrow(out + i, larger_neighbours(in + 2 * i));
    for (; i < count; i++)
        out[i] = in[2 * i] > in[2 * i + 1] ? in[2 * i] : in[2 * i + 1];
}

/* The larger of rows 2i and 2i + 1, of `width` levels each. */
ALWAYS_INLINE void pool_neighbouring_rows(const int8_t *in, int8_t *out, size_t rows, const size_t width) {
    for (size_t row = 0; row < rows; row++, in += 2 * width, out += width)
        for (size_t x = 0; x < width; x++)
            out[x] = in[x] > in[width + x] ? in[x] : in[width + x];
}

/* Are all planes, and the halves of both of their sides, one run of memory? */
static bool halves_in_one_run(const sb_pool *pool) {
    return pool->height == 2 * pool->out_height && pool->width == 2 * pool->out_width &&
           pool->in_plane == (size_t)pool->height * pool->width &&
           pool->out_plane == (size_t)pool->out_height * pool->out_width;
}

/* Halves both sides of all planes: columns first, then rows, some rows at a time. */
static bool pool_level_halves(const sb_pool *pool, const int8_t *in, int8_t *out) {
    enum { ROOM = 4096 };
    const size_t width = (size_t)pool->out_width, rows = (size_t)pool->channels * pool->out_height;
    if (pool->kernel_h != 2 || pool->kernel_w != 2 || pool->stride_h != 2 || pool->stride_w != 2 || pool->pad_top ||
        pool->pad_left || pool->dilation_h != 1 || pool->dilation_w != 1 || !halves_in_one_run(pool) || width > ROOM / 2)
        return false;
    int8_t halves[ROOM];
    const size_t step = ROOM / (2 * width);
    for (size_t row = 0; row < rows; row += step) {
        const size_t count = rows - row < step ? rows - row : step;
        pool_neighbouring_levels(in + 4 * row * width, halves, 2 * count * width);
        switch (width) {
        case 1: pool_neighbouring_levels(halves, out + row, count); break;
        case 2: pool_neighbouring_rows(halves, out + row * width, count, 2); break;
        case 4: pool_neighbouring_rows(halves, out + row * width, count, 4); break;
        case 8: pool_neighbouring_rows(halves, out + row * width, count, 8); break;
        case 16: pool_neighbouring_rows(halves, out + row * width, count, 16); break;
        default: pool_neighbouring_rows(halves, out + row * width, count, width);
        }
    }
    return true;
}

/* -------------------------------------------------------------------------------------- any other windows */

/* Windows next to each other, of a row of the output, and what they read of a row of the input. */
typedef struct {
    int x, windows;
    int begin, width; /* pixels of the input */
    int pad;          /* places of the buffer before them */
} pool_section;

/* The section of as many windows from x on as `most` pixels hold; one window fits. */
static pool_section find_pool_section(const sb_pool *pool, int x, int most) {
    const int window = (pool->kernel_w - 1) * pool->dilation_w + 1, room = (most - window) / pool->stride_w + 1;
    const int left = pool->out_width - x, windows = left < room ? left : room;
    const int first = x * pool->stride_w - pool->pad_left, last = first + (windows - 1) * pool->stride_w + window;
    const int begin = first < 0 ? 0 : first, end = last < pool->width ? last : pool->width;
    return (pool_section){x, windows, begin, end > begin ? end - begin : 0, begin - first};
}

enum { POOL_ROW = 1024 }; /* levels of a section of a row, padding included */

ALWAYS_INLINE void raise_levels(int8_t *levels, const int8_t *to, int count) {
    for (int i = 0; i < count; i++)
        levels[i] = levels[i] < to[i] ? to[i] : levels[i];
}

/* A section of one row of the output: maxima down the window in a row with its padding, then along the window at every place, of
 * which the stride takes some. */
static NEVER_INLINE void pool_level_section(const sb_pool *pool, const pool_section *section, int8_t lowest,
                                            const int8_t *plane, int y, int8_t *out) {
    int8_t row[POOL_ROW], best[POOL_ROW];
    const int places = (section->windows - 1) * pool->stride_w + 1, reach = (pool->kernel_w - 1) * pool->dilation_w;
    memset(row, lowest, (size_t)(places + reach));
    for (int ky = 0; ky < pool->kernel_h; ky++) {
        const int from = y * pool->stride_h - pool->pad_top + ky * pool->dilation_h;
        if (from >= 0 && from < pool->height)
            raise_levels(row + section->pad, plane + (size_t)from * pool->width + section->begin, section->width);
    }
    memcpy(best, row, (size_t)places);
    for (int x = pool->dilation_w; x <= reach; x += pool->dilation_w)
        raise_levels(best, row + x, places);
    if (pool->stride_w == 2)
        for (int x = 0; x < section->windows; x++)
            out[x] = best[2 * x];
    else
        for (int x = 0; x < section->windows; x++)
            out[x] = best[x * pool->stride_w];
}

static bool pool_level_rows(const sb_pool *pool, int8_t lowest, const int8_t *in, int8_t *out) {
    const int64_t window = (int64_t)(pool->kernel_w - 1) * pool->dilation_w + 1, last = (int64_t)pool->out_width * pool->stride_w;
    const int64_t below = (int64_t)(pool->out_height - 1) * pool->stride_h + (int64_t)(pool->kernel_h - 1) * pool->dilation_h;
    if (window > POOL_ROW || pool->stride_w > POOL_ROW / 4 || last > INT32_MAX / 2 || below > INT32_MAX)
        return false;
    pool_section section = {0};
    for (int x = 0; x < pool->out_width; x += section.windows) {
        section = find_pool_section(pool, x, POOL_ROW);
        for (int c = 0; c < pool->channels; c++)
            for (int y = 0; y < pool->out_height; y++)
                pool_level_section(pool, &section, lowest, in + c * pool->in_plane, y,
                                   out + c * pool->out_plane + (size_t)y * pool->out_width + x);
    }
    return true;
}

static void simd_pool_levels(const sb_pool *pool, int8_t lowest, const int8_t *in, int8_t *out) {
    if (!pool_level_halves(pool, in, out) && !pool_level_rows(pool, lowest, in, out))
        sb_kernels_portable.pool_levels(pool, lowest, in, out);
}
