/* Layers on levels in plain C: the definition that every other row must equal, bit for bit.
 *
 * Sums of levels are whole numbers and exact: a filter has at most 2^24 of them, and 127 * 2^24 fits 32 bits. What
 * follows is fp32 in a fixed order, without fused multiply-adds (docs/format.md). */
#include "portable.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------ rounding */

static int8_t nearest_level(sb_levels levels, float x) {
    const float lowest = (float)sb_lowest_level(levels), highest = (float)sb_highest_level(levels);
    const float scaled = x * (1 / levels.step);
    const float below = scaled < highest ? scaled : highest; /* NaN becomes the highest level: it wins every maximum */
    return (int8_t)rintf(below > lowest ? below : lowest);
}

void sb_round_to_levels(sb_levels levels, const float *in, int8_t *out, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = nearest_level(levels, in[i]);
}

/* --------------------------------------------------------------------------------------------- convolution */

typedef struct state {
    const sb_conv *conv;
    const int8_t *in;
    int32_t *sums; /* one map */
} state;

static bool is_positive(const uint8_t *bits, int64_t bit) { return bits[bit / 8] >> (bit % 8) & 1; }

/* Adds or subtracts one input plane, moved by one tap. */
static void add_tap(const sb_conv *conv, int32_t ky, int32_t kx, bool positive, const int8_t *in, int32_t *sums) {
    const int64_t dy = (int64_t)ky * conv->dilation_h - conv->pad_top;
    const int64_t dx = (int64_t)kx * conv->dilation_w - conv->pad_left;
    int32_t y_begin, y_end, x_begin, x_end;
    sb_valid_range(dy, conv->stride_h, conv->height, conv->out_height, &y_begin, &y_end);
    sb_valid_range(dx, conv->stride_w, conv->width, conv->out_width, &x_begin, &x_end);
    for (int32_t y = y_begin; y < y_end; y++) {
        const int64_t row = (y * (int64_t)conv->stride_h + dy) * conv->width + dx;
        int32_t *out = sums + (int64_t)y * conv->out_width;
        for (int32_t x = x_begin; x < x_end; x++) {
            const int8_t level = in[row + x * (int64_t)conv->stride_w];
            out[x] += positive ? level : -level;
        }
    }
}

static void convolve(const void *opaque, int64_t block, int32_t number, float *map) {
    const state *s = opaque;
    const sb_conv *conv = s->conv;
    const sb_weight *weight = &conv->weight;
    const int64_t plane = (int64_t)conv->height * conv->width, pixels = (int64_t)conv->out_height * conv->out_width;
    const int8_t *in = s->in + block * weight->depth * plane;
    int64_t bit = (int64_t)number * weight->kernel_h * weight->kernel_w * weight->depth;
    memset(s->sums, 0, sizeof *s->sums * (size_t)pixels);
    for (int32_t ky = 0; ky < weight->kernel_h; ky++)
        for (int32_t kx = 0; kx < weight->kernel_w; kx++)
            for (int32_t c = 0; c < weight->depth; c++)
                add_tap(conv, ky, kx, is_positive(weight->bits, bit++), in + c * plane, s->sums);
    for (int64_t i = 0; i < pixels; i++) map[i] = (float)s->sums[i];
}

static size_t rounded(size_t bytes) { return (bytes + SB_ALIGNMENT - 1) / SB_ALIGNMENT * SB_ALIGNMENT; }

static size_t map_bytes(const sb_conv *conv) {
    return rounded(sizeof(float) * (size_t)conv->out_height * (size_t)conv->out_width);
}

/* Sums of one filter, its map, and the whole output for those who ask for levels alone. */
static size_t scratch_size(const sb_conv *conv) { return (2 + (size_t)conv->weight.out) * map_bytes(conv); }

static void run_levels(const sb_conv *conv, const int8_t *in, float *out, void *scratch) {
    float *map = scratch, *whole = map + 2 * map_bytes(conv) / sizeof(float);
    if (!out) out = whole;
    const state s = {conv, in, (int32_t *)scratch + map_bytes(conv) / sizeof(float)};
    sb_stack_maps(conv, convolve, &s, map, out);
    const size_t count = (size_t)conv->weight.out * (size_t)conv->out_height * (size_t)conv->out_width;
    if (conv->level_out) sb_round_to_levels(conv->out_levels, out, conv->level_out, count);
}

static double cost(const sb_conv *conv) {
    const sb_weight *weight = &conv->weight;
    const double taps = (double)weight->kernel_h * weight->kernel_w * weight->depth;
    const double maps = weight->index ? (double)weight->filters * weight->blocks * conv->groups : weight->out;
    const double plane = (double)conv->out_height * conv->out_width;
    return 0.5 * plane * (maps * taps + (double)weight->out * weight->blocks) + 4 * maps * taps;
}

const sb_conv_kernel sb_portable_levels = {
    .name = "portable", .cost = cost, .scratch_size = scratch_size, .run_levels = run_levels};

/* ------------------------------------------------------------------------------------------------- pooling */

static int8_t window_max(const sb_pool *pool, int8_t lowest, const int8_t *plane, int64_t top, int64_t left) {
    int8_t best = lowest;
    int32_t y_begin, y_end, x_begin, x_end; /* the part of the window that lies inside the input */
    sb_valid_range(top, pool->dilation_h, pool->height, pool->kernel_h, &y_begin, &y_end);
    sb_valid_range(left, pool->dilation_w, pool->width, pool->kernel_w, &x_begin, &x_end);
    for (int32_t ky = y_begin; ky < y_end; ky++) {
        const int8_t *row = plane + (top + (int64_t)ky * pool->dilation_h) * pool->width;
        for (int32_t kx = x_begin; kx < x_end; kx++) {
            const int8_t level = row[left + (int64_t)kx * pool->dilation_w];
            if (level > best) best = level;
        }
    }
    return best;
}

void sb_pool_levels(const sb_pool *pool, int8_t lowest, const int8_t *in, int8_t *out) {
    for (int32_t c = 0; c < pool->channels; c++) {
        const int8_t *plane = in + (size_t)c * pool->in_plane;
        int8_t *to = out + (size_t)c * pool->out_plane;
        for (int32_t y = 0; y < pool->out_height; y++)
            for (int32_t x = 0; x < pool->out_width; x++)
                *to++ = window_max(pool, lowest, plane, (int64_t)y * pool->stride_h - pool->pad_top,
                                    (int64_t)x * pool->stride_w - pool->pad_left);
    }
}
