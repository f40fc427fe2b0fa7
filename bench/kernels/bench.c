/* Times convolution kernels on single layers, checked against a plain loop in double precision.
 *
 *   bench [row] [kernel] [layer…]      layer: channels,size,filters,blocks,out,kernel,stride
 *
 * With 0 blocks the layer is dense, of as many groups as there would be filters: 96,28,96,0,96,3,1 is depthwise.
 *
 * Prints the shortest of many repeats; the machine may be busy. Kernels on levels, marked by a +, write levels alone while
 * they are timed. See docs/kernels.md.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../csrc/kernels.h"
#include "../../csrc/subbit.h"

extern const sb_kernels sb_kernels_sse2, sb_kernels_avx2, sb_kernels_avx512, sb_kernels_neon;

static const sb_kernels *const rows[] = {
#if defined(__x86_64__)
    &sb_kernels_avx512, &sb_kernels_avx2, &sb_kernels_sse2,
#else
    &sb_kernels_neon,
#endif
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *memory(size_t bytes)
{
    const size_t rounded = (bytes + SB_ALIGNMENT) / SB_ALIGNMENT * SB_ALIGNMENT;
    void *p = aligned_alloc(SB_ALIGNMENT, rounded);
    if (!p)
        exit(1);
    return memset(p, 0, rounded);
}

static uint64_t state = 88172645463325252u;

static unsigned random_below(unsigned n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 33) % n;
}

static float random_value(void) { return (float)random_below(20001) / 10000.0f - 1.0f; }

static float *random_values(size_t count)
{
    float *values = memory(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = random_value();
    return values;
}

/* What one of the bench's layers is made of. */
typedef struct {
    int channels, size, filters, blocks, out, kernel, stride;
} Layer;

static sb_conv random_conv(const Layer *l)
{
    sb_conv conv = {
        .channels = l->channels, .height = l->size, .width = l->size,
        .stride_h = l->stride, .stride_w = l->stride, .pad_top = l->kernel / 2, .pad_left = l->kernel / 2,
        .dilation_h = 1, .dilation_w = 1, .groups = l->blocks ? 1 : l->filters, .then = {.kind = SB_RELU},
        .weight = {.kind = l->blocks ? SB_STACKED_BITS : SB_DENSE, .out = l->out, .kernel_h = l->kernel, .kernel_w = l->kernel,
                   .filters = l->blocks ? l->filters : l->out, .blocks = l->blocks ? l->blocks : 1,
                   .depth = l->channels / (l->blocks ? l->blocks : l->filters)},
    };
    conv.out_height = conv.out_width = (l->size + 2 * (l->kernel / 2) - l->kernel) / l->stride + 1;
    conv.weight.scale = random_values((size_t)l->out);
    conv.weight.shift = random_values((size_t)l->out);
    if (!l->blocks) {
        conv.weight.values = (const uint8_t *)random_values((size_t)l->out * conv.weight.depth * l->kernel * l->kernel);
        return conv;
    }
    const size_t bits = (size_t)l->filters * conv.weight.depth * l->kernel * l->kernel;
    uint8_t *packed = memory(bits / 8 + 1);
    for (size_t i = 0; i < bits / 8 + 1; i++)
        packed[i] = (uint8_t)random_below(256);
    uint16_t *index = memory((size_t)l->out * l->blocks * sizeof *index);
    for (int i = 0; i < l->out * l->blocks; i++)
        index[i] = (uint16_t)random_below((unsigned)l->filters);
    conv.weight.bits = packed;
    conv.weight.index = index;
    float *ratio = random_values((size_t)l->out * l->blocks);
    for (int t = 0; t < l->out; t++)
        ratio[t * l->blocks] = 1; /* as in every stored weight */
    conv.weight.ratio = ratio;
    return conv;
}

/* Levels, and the same numbers as floats. */
static int8_t *random_levels(size_t count, float *values)
{
    int8_t *levels = memory(count);
    for (size_t i = 0; i < count; i++)
        values[i] = levels[i] = (int8_t)random_below(128);
    return levels;
}

/* Weight of a stored filter; bits have the channel innermost, values the tap. */
static double weight_at(const sb_weight *w, size_t filter, int ky, int kx, int s)
{
    const size_t taps = (size_t)w->kernel_h * w->kernel_w, tap = (size_t)ky * w->kernel_w + kx;
    const size_t bit = (filter * taps + tap) * w->depth + s;
    if (w->values)
        return ((const float *)w->values)[(filter * w->depth + s) * taps + tap];
    return w->bits[bit / 8] >> bit % 8 & 1 ? 1 : -1;
}

static double plain_sum(const sb_conv *c, const float *in, int t, int y, int x)
{
    const sb_weight *w = &c->weight;
    const int first = t / (w->out / c->groups) * w->blocks * w->depth;
    double total = 0;
    for (int i = 0; i < w->blocks; i++) {
        double sum = 0;
        const size_t filter = w->index ? w->index[t * w->blocks + i] : (size_t)t;
        for (int ky = 0; ky < w->kernel_h; ky++)
            for (int kx = 0; kx < w->kernel_w; kx++)
                for (int s = 0; s < w->depth; s++) {
                    const int iy = y * c->stride_h + ky - c->pad_top, ix = x * c->stride_w + kx - c->pad_left;
                    if (iy < 0 || ix < 0 || iy >= c->height || ix >= c->width)
                        continue;
                    sum += weight_at(w, filter, ky, kx, s) * in[((size_t)(first + i * w->depth + s) * c->height + iy) * c->width + ix];
                }
        total += w->ratio ? w->ratio[t * w->blocks + i] * sum : sum;
    }
    total = total * w->scale[t] + w->shift[t];
    return total > 0 ? total : 0;
}

/* Largest error beside the largest value, over a sample of the outputs. */
static double error_of(const sb_conv *c, const float *in, const float *out)
{
    double worst = 0, largest = 0;
    for (int n = 0; n < 2000; n++) {
        const int t = (int)random_below((unsigned)c->weight.out);
        const int y = (int)random_below((unsigned)c->out_height), x = (int)random_below((unsigned)c->out_width);
        const double want = plain_sum(c, in, t, y, x);
        worst = fmax(worst, fabs(want - out[((size_t)t * c->out_height + y) * c->out_width + x]));
        largest = fmax(largest, fabs(want));
    }
    return worst / largest;
}

static void run(const sb_conv *conv, const float *in, const int8_t *levels, float *out, void *scratch)
{
    if (levels)
        conv->kernel->run_levels(conv, levels, out, scratch);
    else
        conv->kernel->run(conv, in, out, scratch);
}

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The shortest time of each stage in many repeats, which fill `out`. */
static sb_op_time shortest_stages(sb_conv conv, const float *in, const int8_t *levels, float *out, void *scratch)
{
    sb_op_time best = {.build = UINT64_MAX, .look_up = UINT64_MAX, .merge = UINT64_MAX};
    for (int i = 0; i < 200; i++) {
        sb_op_time stages = {0};
        conv.times = &stages;
        run(&conv, in, levels, levels && i ? NULL : out, scratch);
        best.build = smaller(best.build, stages.build);
        best.look_up = smaller(best.look_up, stages.look_up);
        best.merge = smaller(best.merge, stages.merge);
    }
    return best;
}

static void bench(const sb_kernels *row, const sb_conv_kernel *kernel, const Layer *layer)
{
    sb_conv conv = random_conv(layer);
    conv.kernel = kernel;
    if (kernel->run_levels)
        conv.levels = conv.out_levels = (sb_levels){.step = 1};
    const double cost = kernel->cost(&conv);
    if (cost < 0)
        return;
    const size_t in_count = (size_t)conv.channels * conv.height * conv.width;
    const size_t out_count = (size_t)conv.weight.out * conv.out_height * conv.out_width;
    float *in = random_values(in_count), *out = memory(out_count * sizeof *out);
    const int8_t *levels = kernel->run_levels ? random_levels(in_count, in) : NULL;
    conv.level_out = levels ? memory(out_count) : NULL;
    if (kernel->prepare) {
        void *prepared = memory(kernel->prepared_size(&conv));
        kernel->prepare(&conv, prepared);
        conv.prepared = prepared;
    }
    void *scratch = memory(kernel->scratch_size ? kernel->scratch_size(&conv) : 0);
    double best = 1e9;
    const double begin = now();
    for (int i = 0; i < 20 || now() - begin < 1.0; i++) {
        const double start = now();
        run(&conv, in, levels, levels ? NULL : out, scratch);
        best = fmin(best, now() - start);
    }
    const sb_op_time stages = shortest_stages(conv, in, levels, out, scratch);
    const double macs = (double)conv.weight.depth * conv.weight.blocks * conv.weight.filters * layer->kernel * layer->kernel *
                        conv.out_height * conv.out_width;
    printf("%-7s %s%-*s %4d ch %3dx%-3d m %3d k %d %dx%d/%d %8.1f us %6.1f GMAC/s (estimated %7.1f us) "
           "stages %5.1f %6.1f %5.1f error %.0e\n",
           row->name, kernel->name, 9 - (int)strlen(kernel->name), levels ? "+" : "", layer->channels, layer->size, layer->size, conv.weight.filters, layer->blocks,
           layer->kernel, layer->kernel, layer->stride, best * 1e6, macs / best * 1e-9, cost * 1e-3,
           1e-3 * (double)stages.build, 1e-3 * (double)stages.look_up, 1e-3 * (double)stages.merge,
           error_of(&conv, in, out));
}

static const Layer standard[] = {
    {64, 32, 32, 2, 64, 3, 1},  {64, 32, 16, 2, 64, 3, 1},  {64, 32, 8, 2, 64, 3, 1},   {128, 16, 64, 2, 128, 3, 1},
    {128, 16, 32, 2, 128, 3, 1}, {128, 16, 16, 2, 128, 3, 1}, {256, 8, 128, 2, 256, 3, 1}, {256, 8, 64, 2, 256, 3, 1},
    {256, 8, 32, 2, 256, 3, 1}, {512, 4, 256, 2, 512, 3, 1}, {512, 4, 128, 2, 512, 3, 1}, {512, 4, 64, 2, 512, 3, 1},
    {512, 2, 256, 2, 512, 3, 1}, {512, 2, 128, 2, 512, 3, 1}, {512, 2, 64, 2, 512, 3, 1},
    {64, 32, 32, 2, 128, 3, 2}, {64, 32, 32, 2, 128, 1, 2}, {64, 56, 16, 2, 64, 3, 1},  {512, 7, 128, 2, 512, 3, 1},
};

int main(int count, char **arguments)
{
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        if (count > 1 && strcmp(arguments[1], rows[r]->name))
            continue;
        for (const sb_conv_kernel *const *kernel = rows[r]->convs; *kernel; kernel++) {
            if (count > 2 && strcmp(arguments[2], (*kernel)->name))
                continue;
            if (count <= 3)
                for (size_t i = 0; i < sizeof standard / sizeof *standard; i++)
                    bench(rows[r], *kernel, &standard[i]);
            for (int i = 3; i < count; i++) {
                Layer l;
                if (sscanf(arguments[i], "%d,%d,%d,%d,%d,%d,%d", &l.channels, &l.size, &l.filters, &l.blocks, &l.out,
                           &l.kernel, &l.stride) == 7)
                    bench(rows[r], *kernel, &l);
            }
        }
    }
    return 0;
}
