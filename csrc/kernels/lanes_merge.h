/* The merge of kernels that have filters in the lanes. The pixels of an output channel lie side by side, but those of a map
 * [pixel][filter] far apart: maps are flipped first. */

/* Four filters at four pixels: from one row per pixel to one per filter. */
ALWAYS_INLINE void flip_four(const float *in, size_t pixel_step, float *out, size_t filter_step) {
    const float4 a = load4(in), b = load4(in + pixel_step), c = load4(in + 2 * pixel_step), d = load4(in + 3 * pixel_step);
    const float4 low = __builtin_shufflevector(a, b, 0, 4, 1, 5), high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const float4 low2 = __builtin_shufflevector(c, d, 0, 4, 1, 5), high2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    store4(out, __builtin_shufflevector(low, low2, 0, 1, 4, 5));
    store4(out + filter_step, __builtin_shufflevector(low, low2, 2, 3, 6, 7));
    store4(out + 2 * filter_step, __builtin_shufflevector(high, high2, 0, 1, 4, 5));
    store4(out + 3 * filter_step, __builtin_shufflevector(high, high2, 2, 3, 6, 7));
}

/* Maps [pixel][filter] to [filter][pixel], in fours of pixels. */
static void flip_pixels(const float *maps, size_t pixels, size_t filters, float *flipped) {
    const size_t fours = (pixels + 3) / 4;
    for (size_t filter = 0; filter < filters; filter += 4, flipped += fours * 16)
        for (size_t four = 0; four < fours; four++)
            flip_four(maps + four * 4 * filters + filter, filters, flipped + four * 4, fours * 4);
}

/* `count` fours of pixels of the output channels `begin` .. `end` - 1, from four `first` on; their maps were flipped. Filters
 * that are not shared begin with that of channel `begin`. */
ALWAYS_INLINE void merge_fours(const sb_conv *conv, size_t filters, const float *flipped, size_t begin, size_t end, int first,
                               const int count, float *out) {
    const sb_weight *weight = &conv->weight;
    const size_t k = (size_t)weight->blocks, pixels = (size_t)conv->out_height * conv->out_width;
    const size_t filter_floats = (pixels + 3) / 4 * 4;
    const limits range = limits_of(conv->then);
    for (size_t t = begin; t < end; t++) {
        const float *ratio = weight->ratio ? weight->ratio + t * k : NULL;
        float4 sum[4];
        UNROLL
        for (int p = 0; p < count; p++)
            sum[p] = (float4){0};
        for (size_t i = 0; i < k; i++) {
            const size_t filter = weight->index ? weight->index[t * k + i] : t - begin;
            const float *map = flipped + (i * filters + filter) * filter_floats + (size_t)first * 4;
            const float4 factor = splat4(ratio ? ratio[i] : 1.0f);
            UNROLL
            for (int p = 0; p < count; p++)
                sum[p] += factor * load4(map + p * 4);
        }
        const float4 scale = splat4(weight->scale ? weight->scale[t] : 1.0f);
        const float4 shift = splat4(weight->shift ? weight->shift[t] : 0.0f);
        UNROLL
        for (int p = 0; p < count; p++) {
            const size_t pixel = (size_t)(first + p) * 4, at = t * pixels + pixel;
            const int rest = (int)(pixels - pixel);
            float4 v = sum[p] * scale + shift;
            if (conv->added)
                v += rest >= 4 ? load4(conv->added + at) : load_part4(conv->added + at, 0, rest);
            v = at_most4(at_least4(v, splat4(range.low)), splat4(range.high));
            if (rest >= 4)
                store4(out + at, v);
            else
                store_part4(out + at, v, 0, rest);
        }
    }
}

/* All pixels of these channels. */
static NEVER_INLINE void merge_flipped(const sb_conv *conv, size_t filters, const float *flipped, size_t begin, size_t end,
                                       float *out) {
    const int fours = (conv->out_height * conv->out_width + 3) / 4;
    int first = 0;
    for (; first + 4 <= fours; first += 4)
        merge_fours(conv, filters, flipped, begin, end, first, 4, out);
    for (; first < fours; first++)
        merge_fours(conv, filters, flipped, begin, end, first, 1, out);
}
