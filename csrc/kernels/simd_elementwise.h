/* Element-wise functions. */
#include "../kernels.h"

static void simd_function(sb_function f, const float *in, float *out, size_t count) {
    for (size_t i = 0; i < count; i++)
        out[i] = sb_apply(f, in[i]);
}
