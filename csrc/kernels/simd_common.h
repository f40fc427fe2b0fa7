/* What the vector kernels share: scratch memory, and the function that follows a convolution. */
#include <float.h>
#include <math.h>

#include "../kernels.h"

#define CYCLES_PER_NANOSECOND 3.0 /* of the core that costs are estimated for */

/* Takes the next `bytes` of scratch memory; only counts them where there is no memory yet. */
static void *carve(uint8_t *memory, size_t *used, size_t bytes) {
    void *taken = memory ? memory + *used : NULL;
    *used += (bytes + SB_ALIGNMENT - 1) / SB_ALIGNMENT * SB_ALIGNMENT;
    return taken;
}

/* ReLU and its relatives are limits, and cost nothing where a kernel stores its result anyway. */
typedef struct {
    float low, high;
} limits;

static bool is_limit(sb_function f) {
    return f.kind == SB_NONE || f.kind == SB_RELU || f.kind == SB_RELU6 || f.kind == SB_HARDTANH;
}

static limits limits_of(sb_function f) {
    switch (f.kind) {
    case SB_RELU: return (limits){0, INFINITY};
    case SB_RELU6: return (limits){0, 6};
    case SB_HARDTANH: return (limits){f.a, f.b};
    default: return (limits){-INFINITY, INFINITY};
    }
}

/* The function that follows a convolution, where it is not a clamp. */
static void apply_rest(const sb_conv *conv, float *out) {
    if (!is_limit(conv->then))
        simd_function(conv->then, out, out, (size_t)conv->weight.out * conv->out_height * conv->out_width);
}
