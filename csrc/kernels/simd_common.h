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

/* The merge of a single pixel from maps of one number each, [input block][filter] with `filters` to a block. Sums are
 * gathered one by one; what follows is done on vectors, where a limit costs no mispredicted branch. */
static NEVER_INLINE void merge_single_pixel(const sb_conv *conv, const float *maps, size_t filters, float *out) {
    const sb_weight *weight = &conv->weight;
    const size_t count = (size_t)weight->out, k = (size_t)weight->blocks;
    const limits range = limits_of(conv->then);
    for (size_t t = 0; t < count; t++) {
        float sum = 0;
        for (size_t i = 0; i < k; i++)
            sum += (weight->ratio ? weight->ratio[t * k + i] : 1.0f) *
                   maps[i * filters + (weight->index ? weight->index[t * k + i] : t)];
        out[t] = sum;
    }
    for (size_t t = 0; t < count; t += LANES) {
        const int lanes = count - t < LANES ? (int)(count - t) : LANES;
        vfloat v = vload_part(out + t, 0, lanes);
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
