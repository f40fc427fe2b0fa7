/* Convolution of the signs of the input with ±1 filters, on XNOR and popcount.
 *
 * With bits for signs, a product of two signs is +1 where the bits agree, so a sum over n products is
 * n - 2 * popcount(a ^ b). Zero padding contributes nothing: taps that fall outside the input are left out of the
 * count. All sums are integers and exact. */
#include "portable.h"

#include <string.h>

static int popcount(uint64_t word) {
#if defined(__GNUC__)
    return __builtin_popcountll(word);
#else
    int count = 0;
    for (; word; word &= word - 1) count++;
    return count;
#endif
}

static int64_t words_of(const sb_weight *weight) { return (weight->depth + 63) / 64; }

static int64_t taps_of(const sb_weight *weight) { return (int64_t)weight->kernel_h * weight->kernel_w; }

/* Filters as (m, taps, words): the bits of each tap start a new word, clear at its end. */
static size_t prepared_size(const sb_conv *conv) {
    const sb_weight *weight = &conv->weight;
    return sizeof(uint64_t) * (size_t)(weight->filters * taps_of(weight) * words_of(weight));
}

static void prepare(const sb_conv *conv, void *prepared) {
    const sb_weight *weight = &conv->weight;
    uint64_t *words = prepared;
    for (int64_t tap = 0; tap < weight->filters * taps_of(weight); tap++) {
        for (int32_t c = 0; c < weight->depth; c++) {
            const int64_t bit = tap * weight->depth + c;
            words[tap * words_of(weight) + c / 64] |= (uint64_t)(weight->bits[bit / 8] >> (bit % 8) & 1) << (c % 64);
        }
    }
}

/* Signs of the input as (blocks of all groups, pixels, words). */
static void pack_input(const sb_conv *conv, const float *in, uint64_t *signs) {
    const sb_weight *weight = &conv->weight;
    const int64_t pixels = (int64_t)conv->height * conv->width, words = words_of(weight);
    memset(signs, 0, sizeof *signs * (size_t)((int64_t)conv->groups * weight->blocks * pixels * words));
    for (int32_t channel = 0; channel < conv->channels; channel++) {
        const int32_t block = channel / weight->depth, c = channel % weight->depth;
        uint64_t *word = signs + block * pixels * words + c / 64;
        const float *plane = in + channel * pixels;
        for (int64_t p = 0; p < pixels; p++) word[p * words] |= (uint64_t)(plane[p] >= 0) << (c % 64);
    }
}

typedef struct state {
    const sb_conv *conv;
    const uint64_t *signs;
} state;

/* The sum at one output pixel: of the taps inside the input, agreements less disagreements. */
static int64_t sum_at(const sb_conv *conv, const uint64_t *signs, const uint64_t *filter, int32_t y, int32_t x) {
    const sb_weight *weight = &conv->weight;
    const int64_t words = words_of(weight);
    int64_t taps = 0, differ = 0;
    for (int32_t ky = 0; ky < weight->kernel_h; ky++) {
        const int64_t row = (int64_t)y * conv->stride_h + (int64_t)ky * conv->dilation_h - conv->pad_top;
        if (row < 0 || row >= conv->height) continue;
        for (int32_t kx = 0; kx < weight->kernel_w; kx++) {
            const int64_t column = (int64_t)x * conv->stride_w + (int64_t)kx * conv->dilation_w - conv->pad_left;
            if (column < 0 || column >= conv->width) continue;
            const uint64_t *pixel = signs + (row * conv->width + column) * words;
            const uint64_t *tap = filter + ((int64_t)ky * weight->kernel_w + kx) * words;
            for (int64_t w = 0; w < words; w++) differ += popcount(pixel[w] ^ tap[w]);
            taps++;
        }
    }
    return taps * weight->depth - 2 * differ;
}

static void convolve(const void *opaque, int64_t block, int32_t number, float *map) {
    const state *s = opaque;
    const sb_conv *conv = s->conv;
    const int64_t words = words_of(&conv->weight);
    const uint64_t *signs = s->signs + block * conv->height * conv->width * words;
    const uint64_t *filter = (const uint64_t *)conv->prepared + number * taps_of(&conv->weight) * words;
    for (int32_t y = 0; y < conv->out_height; y++)
        for (int32_t x = 0; x < conv->out_width; x++)
            map[(int64_t)y * conv->out_width + x] = (float)sum_at(conv, signs, filter, y, x);
}

static size_t signs_bytes(const sb_conv *conv) {
    const size_t blocks = (size_t)conv->groups * (size_t)conv->weight.blocks;
    return sizeof(uint64_t) * blocks * (size_t)conv->height * (size_t)conv->width * (size_t)words_of(&conv->weight);
}

static size_t scratch_size(const sb_conv *conv) {
    return signs_bytes(conv) + sizeof(float) * (size_t)conv->out_height * (size_t)conv->out_width;
}

static void run(const sb_conv *conv, const float *in, float *out, void *scratch) {
    uint64_t *signs = scratch;
    float *map = (float *)((uint8_t *)scratch + signs_bytes(conv));
    pack_input(conv, in, signs);
    sb_stack_maps(conv, convolve, &(state){conv, signs}, map, out);
}

static double cost(const sb_conv *conv) {
    const sb_weight *weight = &conv->weight;
    /* filters of a few channels would take up to 64 times their size as words */
    if (!weight->binary_input || !weight->bits || weight->depth < 8) return -1;
    const double maps = weight->index ? (double)weight->filters * weight->blocks * conv->groups : weight->out;
    const double plane = (double)conv->out_height * conv->out_width;
    const double input = (double)conv->channels * conv->height * conv->width;
    return plane * maps * (double)(taps_of(weight) * words_of(weight)) + input;
}

const sb_conv_kernel sb_portable_xnor = {
    .name = "portable xnor", .cost = cost, .prepared_size = prepared_size, .prepare = prepare,
    .scratch_size = scratch_size, .run = run};
