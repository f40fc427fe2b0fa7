/* Convolution in plain C, for every kind of weight, stride, padding, dilation and number of groups.
 *
 * A stored filter is unpacked into floats, one at a time, and slid over its block of input channels. Sums run over
 * channels, then kernel rows, then kernel columns, in fp32. */
#include "portable.h"

#include "../half.h"

#include <string.h>

void sb_valid_range(int64_t offset, int32_t stride, int32_t size, int32_t count, int32_t *begin, int32_t *end) {
    const int64_t first = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
    const int64_t last = offset >= size ? -1 : (size - 1 - offset) / stride;
    *begin = (int32_t)(first < count ? first : count);
    *end = (int32_t)(last + 1 < count ? last + 1 : count);
    if (*end < *begin) *end = *begin;
}

/* ------------------------------------------------------------------------------------------------ stacking */

static void finish_map(const sb_conv *conv, int32_t t, float *map, size_t count) {
    const sb_weight *weight = &conv->weight;
    if (weight->scale || weight->shift)
        sb_kernels_portable.affine(weight->scale ? weight->scale[t] : 1, weight->shift ? weight->shift[t] : 0, map, map,
                                   count);
    if (conv->added)
        sb_kernels_portable.arithmetic(SB_ADD, map, 1, conv->added + (size_t)t * count, 1, map, count);
    if (conv->then.kind != SB_NONE) sb_kernels_portable.function(conv->then, map, map, count);
}

static void add_scaled(float scale, const float *map, float *out, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] += scale * map[i];
}

/* Adds the map of (block i, filter j) to every filter of a group that uses it; computes it when the first one does. */
static void add_map(const sb_conv *conv, int32_t group, int32_t i, int32_t j, sb_map_function compute,
                    const void *state, float *map, float *out) {
    const sb_weight *weight = &conv->weight;
    const size_t plane = (size_t)conv->out_height * (size_t)conv->out_width;
    const int32_t per_group = weight->out / conv->groups;
    bool computed = false;
    for (int32_t t = group * per_group; t < (group + 1) * per_group; t++) {
        const size_t entry = (size_t)t * (size_t)weight->blocks + (size_t)i;
        if (weight->index[entry] != j) continue;
        if (!computed) compute(state, (int64_t)group * weight->blocks + i, j, map);
        computed = true;
        add_scaled(weight->ratio ? weight->ratio[entry] : 1, map, out + (size_t)t * plane, plane);
    }
}

void sb_stack_maps(const sb_conv *conv, sb_map_function compute, const void *state, float *map, float *out) {
    const sb_weight *weight = &conv->weight;
    const size_t plane = (size_t)conv->out_height * (size_t)conv->out_width;
    if (!weight->index) {
        for (int32_t t = 0; t < weight->out; t++)
            compute(state, t / (weight->out / conv->groups), t, out + (size_t)t * plane);
    } else {
        memset(out, 0, sizeof(float) * plane * (size_t)weight->out);
        for (int32_t group = 0; group < conv->groups; group++)
            for (int32_t i = 0; i < weight->blocks; i++)
                for (int32_t j = 0; j < weight->filters; j++) add_map(conv, group, i, j, compute, state, map, out);
    }
    for (int32_t t = 0; t < weight->out; t++) finish_map(conv, t, out + (size_t)t * plane, plane);
}

/* ------------------------------------------------------------------------------------------- convolution */

typedef struct state {
    const sb_conv *conv;
    const float *in;
    float *filter; /* (depth, kernel_h, kernel_w) */
} state;

static int64_t filter_size(const sb_weight *weight) {
    return (int64_t)weight->depth * weight->kernel_h * weight->kernel_w;
}

static void load_filter(const sb_weight *weight, int32_t number, float *filter) {
    const int64_t size = filter_size(weight), taps = (int64_t)weight->kernel_h * weight->kernel_w;
    if (weight->values) {
        for (int64_t i = 0; i < size; i++) filter[i] = sb_load_value(weight->values, weight->half, number * size + i);
        return;
    }
    for (int64_t tap = 0; tap < taps; tap++) { /* stored with the channel innermost */
        for (int32_t c = 0; c < weight->depth; c++) {
            const int64_t bit = number * size + tap * weight->depth + c;
            filter[c * taps + tap] = weight->bits[bit / 8] >> (bit % 8) & 1 ? 1.0f : -1.0f;
        }
    }
}

/* map += weight * in, where the tap (ky, kx) meets the input */
static void add_tap(const sb_conv *conv, int32_t ky, int32_t kx, float weight, const float *in, float *map) {
    const int64_t top = (int64_t)ky * conv->dilation_h - conv->pad_top;
    const int64_t left = (int64_t)kx * conv->dilation_w - conv->pad_left;
    int32_t y_begin, y_end, x_begin, x_end;
    sb_valid_range(top, conv->stride_h, conv->height, conv->out_height, &y_begin, &y_end);
    sb_valid_range(left, conv->stride_w, conv->width, conv->out_width, &x_begin, &x_end);
    for (int32_t y = y_begin; y < y_end; y++) {
        const int64_t row = (y * (int64_t)conv->stride_h + top) * conv->width + left;
        float *sums = map + (int64_t)y * conv->out_width;
        if (conv->stride_w == 1) {
            for (int32_t x = x_begin; x < x_end; x++) sums[x] += weight * in[row + x];
        } else {
            for (int32_t x = x_begin; x < x_end; x++) sums[x] += weight * in[row + x * (int64_t)conv->stride_w];
        }
    }
}

static void convolve(const void *opaque, int64_t block, int32_t number, float *map) {
    const state *s = opaque;
    const sb_conv *conv = s->conv;
    const sb_weight *weight = &conv->weight;
    const int64_t plane = (int64_t)conv->height * conv->width;
    const float *in = s->in + block * weight->depth * plane;
    load_filter(weight, number, s->filter);
    memset(map, 0, sizeof(float) * (size_t)conv->out_height * (size_t)conv->out_width);
    if (plane == 1 && filter_size(weight) == weight->depth && conv->out_height == 1 && conv->out_width == 1 &&
        !conv->pad_top && !conv->pad_left) {
        for (int32_t c = 0; c < weight->depth; c++) map[0] += s->filter[c] * in[c]; /* a fully connected layer */
        return;
    }
    const float *tap = s->filter;
    for (int32_t c = 0; c < weight->depth; c++)
        for (int32_t ky = 0; ky < weight->kernel_h; ky++)
            for (int32_t kx = 0; kx < weight->kernel_w; kx++) add_tap(conv, ky, kx, *tap++, in + c * plane, map);
}

static size_t aligned(size_t bytes) { return (bytes + SB_ALIGNMENT - 1) / SB_ALIGNMENT * SB_ALIGNMENT; }

static size_t filter_bytes(const sb_conv *conv) { return aligned(sizeof(float) * (size_t)filter_size(&conv->weight)); }

static size_t map_bytes(const sb_conv *conv) {
    return aligned(sizeof(float) * (size_t)conv->out_height * (size_t)conv->out_width);
}

/* One filter, one map, and the signs of the input where they are asked for. */
static size_t scratch_size(const sb_conv *conv) {
    const size_t input = (size_t)conv->channels * (size_t)conv->height * (size_t)conv->width;
    return filter_bytes(conv) + map_bytes(conv) + (conv->weight.binary_input ? sizeof(float) * input : 0);
}

static void run(const sb_conv *conv, const float *in, float *out, void *scratch) {
    float *filter = scratch;
    float *map = filter + filter_bytes(conv) / sizeof(float);
    if (conv->weight.binary_input) {
        float *signs = map + map_bytes(conv) / sizeof(float);
        const size_t input = (size_t)conv->channels * (size_t)conv->height * (size_t)conv->width;
        for (size_t i = 0; i < input; i++) signs[i] = in[i] >= 0 ? 1.0f : -1.0f;
        in = signs;
    }
    sb_stack_maps(conv, convolve, &(state){conv, in, filter}, map, out);
}

static double cost(const sb_conv *conv) {
    const sb_weight *weight = &conv->weight;
    const double maps = weight->index ? (double)weight->filters * weight->blocks * conv->groups : weight->out;
    const double plane = (double)conv->out_height * conv->out_width;
    const double values = maps * (double)filter_size(weight); /* each is unpacked, which few pixels do not make up for */
    return 0.5 * plane * (values + (double)weight->out * weight->blocks) + 8 * values + 12 * maps * plane;
}

const sb_conv_kernel sb_portable_conv = {.name = "portable", .cost = cost, .scratch_size = scratch_size, .run = run};
