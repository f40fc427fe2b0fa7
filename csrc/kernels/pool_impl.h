/* Pooling on vectors: the rows under a window are combined into one, then its columns, a register of windows at a time.
 * Long rows are done in sections. What reaches far beyond is left to the portable row, and so are averages of
 * windows with gaps. */

enum { POOL_WIDTH = 1024 };

/* NaN wins, as in the portable row: x86 gives the second operand where either is NaN. */
ALWAYS_INLINE vfloat larger_or_nan(vfloat a, vfloat b) {
    const vword nan = (vword)(a != a);
    return (vfloat)((nan & (vword)a) | (~nan & (vword)vat_least(b, a)));
}

ALWAYS_INLINE vfloat pool_pair(const bool average, vfloat a, vfloat b) {
    if (average)
        return a + b;
    return larger_or_nan(a, b);
}

enum { POOL_ROWS = 3 }; /* that are combined at a time */

/* `count` rows of the input, and what was combined before if they are not the first ones, as one row. */
ALWAYS_INLINE void combine_rows(const bool average, const float *const *rows, const int count, bool first, int width,
                                float *to) {
    for (int x = 0; x < width; x += LANES) {
        const int left = width - x, lanes = left < LANES ? left : LANES;
        vfloat v = lanes == LANES ? vload(rows[0] + x) : vload_part(rows[0] + x, 0, lanes);
        UNROLL
        for (int i = 1; i < count; i++)
            v = pool_pair(average, v, lanes == LANES ? vload(rows[i] + x) : vload_part(rows[i] + x, 0, lanes));
        if (!first)
            v = pool_pair(average, vload(to + x), v);
        if (lanes == LANES)
            vstore(to + x, v);
        else
            vstore_part(to + x, v, 0, lanes);
    }
}

/* The input rows under the windows of output row y as one row, behind the padding; the rest holds what counts for nothing. */
ALWAYS_INLINE int pool_rows(const sb_pool *pool, const pool_section *section, const bool average, const float *plane, int y,
                            float *row) {
    const float *rows[POOL_ROWS];
    const int width = section->width;
    float *to = row + section->pad;
    int used = 0;
    for (int ky = 0; ky < pool->kernel_h; ky++) {
        const int in_y = y * pool->stride_h - pool->pad_top + ky * pool->dilation_h;
        if (in_y < 0 || in_y >= pool->height)
            continue;
        rows[used++ % POOL_ROWS] = plane + (size_t)in_y * pool->width + section->begin;
        if (used % POOL_ROWS == 0)
            combine_rows(average, rows, POOL_ROWS, used == POOL_ROWS, width, to);
    }
    if (used % POOL_ROWS == 2)
        combine_rows(average, rows, 2, used == 2, width, to);
    else if (used % POOL_ROWS == 1)
        combine_rows(average, rows, 1, used == 1, width, to);
    return used;
}

/* How many elements of a window count for an average, along one dimension. */
static int pool_extent(int first, int kernel, int size, int pad_end, bool with_pad) {
    int end = first + kernel < size + pad_end ? first + kernel : size + pad_end;
    if (!with_pad) {
        end = end < size ? end : size;
        first = first < 0 ? 0 : first;
    }
    return end > first ? end - first : 0;
}

/* Every `stride`-th number in so many lanes; the others' memory is not touched. */
ALWAYS_INLINE vfloat gather_lanes(const float *from, int stride, int lanes) {
#if LANES == 16
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return (vfloat)_mm512_mask_i32gather_ps(_mm512_setzero_ps(), (__mmask16)((1u << lanes) - 1),
                                            _mm512_mullo_epi32(lane, _mm512_set1_epi32(stride)), from, 4);
#elif LANES == 8
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (vfloat)_mm256_mask_i32gather_ps(_mm256_setzero_ps(), from, _mm256_mullo_epi32(lane, _mm256_set1_epi32(stride)),
                                            _mm256_castsi256_ps((__m256i)lanes_between8(0, lanes)), 4);
#else
    float numbers[LANES] = {0};
    for (int lane = 0; lane < lanes; lane++)
        numbers[lane] = from[lane * stride];
    return vload(numbers);
#endif
}

/* Every `stride`-th number, in `lanes` lanes at least. `known`: the stride as a constant of the caller, 0 where it is another one. */
ALWAYS_INLINE vfloat load_strided(const float *from, const int known, int stride, int lanes) {
    if (known == 1)
        return vload(from);
    if (known == 2)
        return even_lanes(vload(from), vload(from + LANES));
    if (known == 4)
        return even_lanes(even_lanes(vload(from), vload(from + LANES)),
                          even_lanes(vload(from + 2 * LANES), vload(from + 3 * LANES)));
    return gather_lanes(from, stride, lanes);
}

ALWAYS_INLINE vfloat pool_columns(const sb_pool *pool, const bool average, const int known, const float *row, int x, int lanes) {
    vfloat result = {0};
    for (int kx = 0; kx < pool->kernel_w; kx++) {
        const vfloat v = load_strided(row + x * pool->stride_w + kx * pool->dilation_w, known, pool->stride_w, lanes);
        result = kx ? pool_pair(average, result, v) : v;
    }
    return result;
}

ALWAYS_INLINE void pool_plane(const sb_pool *pool, const pool_section *section, const bool average, const int known,
                              const float *plane, float *row, const float *columns, float *out) {
    for (int y = 0; y < pool->out_height; y++, out += pool->out_width) {
        const int used = pool_rows(pool, section, average, plane, y, row);
        const int top = y * pool->stride_h - pool->pad_top;
        const int rows = pool_extent(top, pool->kernel_h, pool->height, pool->pad_bottom, pool->count_include_pad);
        for (int x = 0; x < section->windows; x += LANES) {
            const int lanes = section->windows - x < LANES ? section->windows - x : LANES;
            vfloat v = pool_columns(pool, average, known, row, x, lanes);
            if (average)
                v /= vsplat(pool->divisor ? (float)pool->divisor : (float)rows) * vload(columns + x);
            if (!used)
                v = vsplat(average ? 0.0f : -INFINITY);
            if (lanes == LANES)
                vstore(out + x, v);
            else
                vstore_part(out + x, v, 0, lanes);
        }
    }
}

ALWAYS_INLINE void pool_strided_plane(const sb_pool *pool, const pool_section *section, const bool average, const float *plane,
                                      float *row, const float *columns, float *out) {
    switch (pool->stride_w) {
    case 1: pool_plane(pool, section, average, 1, plane, row, columns, out); break;
    case 2: pool_plane(pool, section, average, 2, plane, row, columns, out); break;
    case 4: pool_plane(pool, section, average, 4, plane, row, columns, out); break;
    default: pool_plane(pool, section, average, 0, plane, row, columns, out);
    }
}

/* ------------------------------------------------------------------------- windows of 2 x 2, side by side */

/* The chunks 0, 2, … (odd: 1, 3, …) of `width` lanes of the two registers together, packed. */
ALWAYS_INLINE vfloat pack_chunks(vfloat a, vfloat b, const int width, const bool odd) {
    int32_t select[16];
    UNROLL
    for (int lane = 0; lane < LANES; lane++)
        select[lane] = lane / width * 2 * width + lane % width + (odd ? width : 0);
    return permute_pair(a, b, select);
}

/* The largest of each pair of neighbours in 2·LANES floats. */
ALWAYS_INLINE vfloat pool_neighbours(const float *p) {
    const vfloat a = vload(p), b = vload(p + LANES);
    return larger_or_nan(even_lanes(a, b), odd_lanes(a, b));
}

/* Rows of less than two registers: the planes form one run of rows, of which each register of pairs holds several. */
ALWAYS_INLINE void pool_narrow(const float *in, float *out, size_t outputs, const int width) {
    for (size_t i = 0; i < outputs; i += LANES) {
        const vfloat a = pool_neighbours(in + 4 * i), b = pool_neighbours(in + 4 * i + 2 * LANES);
        vstore(out + i, larger_or_nan(pack_chunks(a, b, width, false), pack_chunks(a, b, width, true)));
    }
}

static void pool_wide(const float *in, float *out, size_t rows, size_t width) {
    for (size_t row = 0; row < rows; row++, in += 4 * width)
        for (size_t x = 0; x < width; x += LANES, out += LANES)
            vstore(out, larger_or_nan(pool_neighbours(in + 2 * x), pool_neighbours(in + 2 * width + 2 * x)));
}

/* Halves both sides of all planes by maxima, where whole registers do it; false where they do not. */
static bool pool_halves(const sb_pool *pool, const float *in, float *out) {
    const size_t outputs = (size_t)pool->channels * pool->out_height * pool->out_width;
    if (pool->average || pool->kernel_h != 2 || pool->kernel_w != 2 || pool->stride_h != 2 || pool->stride_w != 2 ||
        pool->pad_top || pool->pad_left || pool->dilation_h != 1 || pool->dilation_w != 1 ||
        !halves_in_one_run(pool))
        return false;
    if (pool->out_width % LANES == 0) {
        pool_wide(in, out, (size_t)pool->channels * pool->out_height, (size_t)pool->out_width);
        return true;
    }
    if (outputs % LANES)
        return false;
    switch (pool->out_width) {
    case 1: pool_narrow(in, out, outputs, 1); return true;
    case 2: pool_narrow(in, out, outputs, 2); return true;
#if LANES >= 8
    case 4: pool_narrow(in, out, outputs, 4); return true;
#endif
#if LANES >= 16
    case 8: pool_narrow(in, out, outputs, 8); return true;
#endif
    default: return false;
    }
}

/* ------------------------------------------------------------------------------------------- any pooling */

/* One section of all planes. */
static NEVER_INLINE void pool_section_of_planes(const sb_pool *pool, const pool_section *section, const float *in, float *out) {
    float row[POOL_WIDTH + 4 * LANES], columns[POOL_WIDTH + LANES];
    const int reach = (section->windows - 1) * pool->stride_w + (pool->kernel_w - 1) * pool->dilation_w + 1;
    for (int i = 0; i < reach + 4 * LANES; i++)
        row[i] = pool->average ? 0.0f : -INFINITY;
    for (int i = 0; i < section->windows + LANES; i++) {
        const int first = (section->x + i) * pool->stride_w - pool->pad_left;
        columns[i] = pool->divisor ? 1.0f : (float)pool_extent(first, pool->kernel_w, pool->width, pool->pad_right, pool->count_include_pad);
    }
    out += section->x;
    for (int c = 0; c < pool->channels; c++) {
        if (pool->average)
            pool_strided_plane(pool, section, true, in, row, columns, out);
        else
            pool_strided_plane(pool, section, false, in, row, columns, out);
        in += pool->in_plane;
        out += pool->out_plane;
    }
}

static void simd_pool(const sb_pool *pool, const float *in, float *out) {
    if (pool_halves(pool, in, out))
        return;
    const int64_t window = (int64_t)(pool->kernel_w - 1) * pool->dilation_w + 1;
    const int64_t last = (int64_t)(pool->out_width - 1 + LANES) * pool->stride_w; /* no coordinate overflows */
    if (window > POOL_WIDTH || pool->stride_w > POOL_WIDTH / 4 || last > INT32_MAX / 2 || pool->kernel_h > POOL_WIDTH || pool->dilation_h > POOL_WIDTH ||
        (pool->average && (pool->dilation_h > 1 || pool->dilation_w > 1))) {
        sb_kernels_portable.pool(pool, in, out);
        return;
    }
    pool_section section = {0};
    for (int x = 0; x < pool->out_width; x += section.windows) {
        section = find_pool_section(pool, x, POOL_WIDTH);
        pool_section_of_planes(pool, &section, in, out);
    }
}
