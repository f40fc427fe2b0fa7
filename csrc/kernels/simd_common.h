/* What the vector kernels share: scratch memory, and the function that follows a convolution. */
#include "../clock.h"
#include "../kernels.h"
#include "../subbit.h"

#define CYCLES_PER_NANOSECOND 3.0 /* of the core that costs are estimated for */

/* Takes the next `bytes` of scratch memory; only counts them where there is no memory yet. */
static void *carve(uint8_t *memory, size_t *used, size_t bytes) {
    void *taken = memory ? memory + *used : NULL;
    *used += (bytes + SB_ALIGNMENT - 1) / SB_ALIGNMENT * SB_ALIGNMENT;
    return taken;
}

/* The function that follows a convolution, where it is not a limit. */
static void apply_rest(const sb_conv *conv, float *out) {
    if (!is_limit(conv->then))
        simd_function(conv->then, out, out, (size_t)conv->weight.out * conv->out_height * conv->out_width);
}

/* Adds the time since `*since` to a stage, where somebody asked for it. */
#define END_STAGE(conv, stage, since)                                                                                  \
    do {                                                                                                               \
        if ((conv)->times) {                                                                                           \
            const uint64_t now = sb_nanoseconds();                                                                     \
            (conv)->times->stage += now - *(since);                                                                    \
            *(since) = now;                                                                                            \
        }                                                                                                              \
    } while (0)
#define BEGIN_STAGE(conv) ((conv)->times ? sb_nanoseconds() : 0)
