/* Pooling on vectors: the rows under a window are combined into one, then its columns, a register of windows at a time.
 * What reaches beyond POOL_WIDTH pixels is left to the portable row, and so are averages of windows with gaps. */

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

/* The input rows under the windows of output row y as one row, at row[pad_left]; the rest holds what counts for nothing. */
ALWAYS_INLINE int pool_rows(const sb_pool *pool, const bool average, const float *plane, int y, float *row) {
    const float *rows[POOL_ROWS];
    float *to = row + pool->pad_left;
    int used = 0;
    for (int ky = 0; ky < pool->kernel_h; ky++) {
        const int in_y = y * pool->stride_h - pool->pad_top + ky * pool->dilation_h;
        if (in_y < 0 || in_y >= pool->height)
            continue;
        rows[used++ % POOL_ROWS] = plane + (size_t)in_y * pool->width;
        if (used % POOL_ROWS == 0)
            combine_rows(average, rows, POOL_ROWS, used == POOL_ROWS, pool->width, to);
    }
    if (used % POOL_ROWS == 2)
        combine_rows(average, rows, 2, used == 2, pool->width, to);
    else if (used % POOL_ROWS == 1)
        combine_rows(average, rows, 1, used == 1, pool->width, to);
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

/* Every `stride`-th number, in `lanes` lanes at least. `known`: the stride as a constant of the caller, 0 where it is another one. */
ALWAYS_INLINE vfloat load_strided(const float *from, const int known, int stride, int lanes) {
    if (known == 1)
        return vload(from);
    if (known == 2)
        return even_lanes(vload(from), vload(from + LANES));
    float numbers[LANES] = {0};
    for (int lane = 0; lane < lanes; lane++)
        numbers[lane] = from[lane * stride];
    return vload(numbers);
}

ALWAYS_INLINE vfloat pool_columns(const sb_pool *pool, const bool average, const int known, const float *row, int x, int lanes) {
    vfloat result = {0};
    for (int kx = 0; kx < pool->kernel_w; kx++) {
        const vfloat v = load_strided(row + x * pool->stride_w + kx * pool->dilation_w, known, pool->stride_w, lanes);
        result = kx ? pool_pair(average, result, v) : v;
    }
    return result;
}

ALWAYS_INLINE void pool_plane(const sb_pool *pool, const bool average, const int known, const float *plane, float *row,
                              const float *columns, float *out) {
    for (int y = 0; y < pool->out_height; y++, out += pool->out_width) {
        const int used = pool_rows(pool, average, plane, y, row);
        const int top = y * pool->stride_h - pool->pad_top;
        const int rows = pool_extent(top, pool->kernel_h, pool->height, pool->pad_bottom, pool->count_include_pad);
        for (int x = 0; x < pool->out_width; x += LANES) {
            const int lanes = pool->out_width - x < LANES ? pool->out_width - x : LANES;
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

ALWAYS_INLINE void pool_strided_plane(const sb_pool *pool, const bool average, const float *plane, float *row,
                                      const float *columns, float *out) {
    switch (pool->stride_w) {
    case 1: pool_plane(pool, average, 1, plane, row, columns, out); break;
    case 2: pool_plane(pool, average, 2, plane, row, columns, out); break;
    default: pool_plane(pool, average, 0, plane, row, columns, out);
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

static void simd_pool(const sb_pool *pool, const float *in, float *out) {
    if (pool_halves(pool, in, out))
        return;
    float row[POOL_WIDTH + 4 * LANES], columns[POOL_WIDTH + LANES];
    const int64_t last = (int64_t)(pool->out_width - 1) * pool->stride_w + (int64_t)(pool->kernel_w - 1) * pool->dilation_w;
    const int64_t reach = last + 1 > pool->pad_left + pool->width ? last + 1 : (int64_t)pool->pad_left + pool->width;
    if (reach > POOL_WIDTH || pool->stride_w > POOL_WIDTH || pool->kernel_h > POOL_WIDTH || pool->dilation_h > POOL_WIDTH ||
        (pool->average && (pool->dilation_h > 1 || pool->dilation_w > 1))) {
        sb_kernels_portable.pool(pool, in, out);
        return;
    }
    for (int i = 0; i < reach + 4 * LANES; i++)
        row[i] = pool->average ? 0.0f : -INFINITY;
    for (int x = 0; x < pool->out_width + LANES; x++) {
        const int first = x * pool->stride_w - pool->pad_left;
        columns[x] = pool->divisor ? 1.0f : (float)pool_extent(first, pool->kernel_w, pool->width, pool->pad_right, pool->count_include_pad);
    }
    for (int c = 0; c < pool->channels; c++) {
        if (pool->average)
            pool_strided_plane(pool, true, in, row, columns, out);
        else
            pool_strided_plane(pool, false, in, row, columns, out);
        in += pool->in_plane;
        out += pool->out_plane;
    }
}
