/* Fully connected layers of one row with real-valued weights, used as they are stored: fp16 or fp32, at any address.
 *
 * A dense layer is a dot product per output. A stack is one per filter and input block, then a sum per output. */

enum {
    LINEAR_ROWS = 4,                /* dot products that share the loads of the input */
    LINEAR_AHEAD = 2 * LINEAR_ROWS, /* rows from what is read to what is fetched meanwhile */
};

typedef uint16_t half_lanes __attribute__((vector_size(2 * LANES), may_alias, aligned(1)));
typedef float unaligned_lanes __attribute__((vector_size(4 * LANES), may_alias, aligned(1)));
typedef uint32_t bit_lanes __attribute__((vector_size(4 * LANES)));

/* fp16 to fp32 in the lanes. Where no instruction does it, the exponent is moved and then corrected by a product, which
 * serves subnormals as well; files hold neither NaN nor infinity. */
ALWAYS_INLINE vfloat load_halves(const uint8_t *p) {
#if LANES == 16
    return (vfloat)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#else
    const bit_lanes half = __builtin_convertvector(*(const half_lanes *)p, bit_lanes);
    const vfloat magnitude = (vfloat)((half & 0x7fffu) << 13) * vsplat(0x1p112f);
    return (vfloat)((bit_lanes)magnitude | (half & 0x8000u) << 16);
#endif
}

ALWAYS_INLINE vfloat load_stored(const uint8_t *values, const bool half, size_t i) {
    return half ? load_halves(values + 2 * i) : (vfloat) * (const unaligned_lanes *)(values + 4 * i);
}

/* Weights are used once and come from far away, and with several rows at a time the processor sees no pattern in it. Of the
 * rows to come, this fetches as many bytes as a step of the loop below reads of each of its rows. */
ALWAYS_INLINE void fetch_rows(const uint8_t *values, const bool half, size_t first, const int rows) {
    const int bytes = rows * LANES * (half ? 2 : 4);
    const uintptr_t from = (uintptr_t)values + first * (half ? 2 : 4); /* perhaps behind the last row: never read */
    UNROLL
    for (int line = 0; line < bytes; line += SB_ALIGNMENT)
        __builtin_prefetch((const void *)(from + line));
}

/* `rows` dot products of neighbouring filters, each `depth` long. */
ALWAYS_INLINE void dot_rows(const uint8_t *values, const bool half, size_t first, int depth, const float *in,
                            const int rows, float *out) {
    vfloat sum[LINEAR_ROWS];
    int c = 0;
    UNROLL
    for (int r = 0; r < rows; r++)
        sum[r] = (vfloat){0};
    for (; c + LANES <= depth; c += LANES) {
        const vfloat x = vload(in + c);
        UNROLL
        for (int r = 0; r < rows; r++)
            sum[r] += x * load_stored(values, half, first + (size_t)r * depth + c);
        fetch_rows(values, half, first + (size_t)LINEAR_AHEAD * depth + (size_t)rows * c, rows);
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        out[r] = add_lanes(sum[r]);
        for (int rest = c; rest < depth; rest++)
            out[r] += in[rest] * sb_load_value(values, half, (int64_t)(first + (size_t)r * depth + rest));
    }
}

ALWAYS_INLINE void dot_filters(const sb_weight *weight, const bool half, const float *in, float *out) {
    const size_t depth = (size_t)weight->depth;
    int filter = 0;
    for (; filter + LINEAR_ROWS <= weight->filters; filter += LINEAR_ROWS)
        dot_rows(weight->values, half, filter * depth, weight->depth, in, LINEAR_ROWS, out + filter);
    for (; filter < weight->filters; filter++)
        dot_rows(weight->values, half, filter * depth, weight->depth, in, 1, out + filter);
}

static double linear_cost(const sb_conv *conv) {
    const sb_weight *weight = &conv->weight;
    if (!weight->values || weight->binary_input || conv->groups != 1 || weight->kernel_h * weight->kernel_w != 1 ||
        conv->height * conv->width != 1 || conv->out_height * conv->out_width != 1 || conv->pad_top || conv->pad_left)
        return -1;
    const double products = (double)weight->filters * (weight->depth / LANES * (weight->half ? 3.0 : 1.0) + 12);
    return weight->blocks * (products + weight->out) / CYCLES_PER_NANOSECOND;
}

static size_t linear_scratch_size(const sb_conv *conv) {
    return (size_t)conv->weight.blocks * conv->weight.filters * sizeof(float);
}

static void linear_run(const sb_conv *conv, const float *in, float *out, void *memory) {
    const sb_weight *weight = &conv->weight;
    const size_t k = (size_t)weight->blocks;
    float *maps = memory; /* [input block][filter] */
    for (size_t i = 0; i < k; i++) {
        if (weight->half)
            dot_filters(weight, true, in + i * weight->depth, maps + i * weight->filters);
        else
            dot_filters(weight, false, in + i * weight->depth, maps + i * weight->filters);
    }
    merge_single_pixel(conv, maps, (size_t)weight->filters, 0, (size_t)conv->weight.out, out);
    apply_rest(conv, out);
}

static const sb_conv_kernel linear_kernel = {
    .name = "linear", .cost = linear_cost, .scratch_size = linear_scratch_size, .run = linear_run,
};
