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

/* Does every group read one channel, and several pixels of it? Kernels that share their work between filters are not for it. */
static inline bool is_depthwise(const sb_conv *conv) {
    return conv->groups > 1 && conv->weight.blocks * conv->weight.depth == 1 &&
           conv->weight.kernel_h * conv->weight.kernel_w > 1 && !conv->weight.binary_input;
}

/* The function that follows a convolution, where it is not a limit. */
static void apply_rest(const sb_conv *conv, float *out) {
    if (!is_limit(conv->then))
        simd_function(conv->then, out, out, (size_t)conv->weight.out * conv->out_height * conv->out_width);
}

/* The merge of a single pixel of the output channels `begin` .. `end` - 1 from maps of one number each, [input block][filter]
 * with `filters` to a block; those that are not shared begin with that of channel `begin`. Sums are gathered one by one; what
 * follows is done on vectors, where a limit costs no mispredicted branch. */
static NEVER_INLINE void merge_single_pixel(const sb_conv *conv, const float *maps, size_t filters, size_t begin, size_t end,
                                            float *out) {
    const sb_weight *weight = &conv->weight;
    const size_t k = (size_t)weight->blocks;
    const limits range = limits_of(conv->then);
    for (size_t t = begin; t < end; t += LANES) {
        const int lanes = end - t < LANES ? (int)(end - t) : LANES;
        float sums[LANES] = {0};
        for (int lane = 0; lane < lanes; lane++)
            for (size_t i = 0; i < k; i++) {
                const size_t entry = (t + lane) * k + i;
                sums[lane] += (weight->ratio ? weight->ratio[entry] : 1.0f) *
                              maps[i * filters + (weight->index ? weight->index[entry] : t + lane - begin)];
            }
        vfloat v = vload(sums);
        if (weight->scale)
            v *= vload_part(weight->scale + t, 0, lanes);
        if (weight->shift)
            v += vload_part(weight->shift + t, 0, lanes);
        if (conv->added)
            v += vload_part(conv->added + t, 0, lanes);
        vstore_part(out + t, vlimit(v, range), 0, lanes);
    }
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
