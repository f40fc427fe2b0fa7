/* The readable kernels: what each operation means, and the fall-back where no faster kernel serves. */
#ifndef SUBBIT_PORTABLE_H
#define SUBBIT_PORTABLE_H

#include "../program.h"

extern const sb_conv_kernel sb_portable_conv; /* any convolution */
extern const sb_conv_kernel sb_portable_xnor; /* signs of the input against bits */
extern const sb_conv_kernel sb_portable_levels; /* levels of the input against bits */

/* The nearest level of every number; maxima of levels. */
void sb_round_to_levels(sb_levels levels, const float *in, int8_t *out, size_t count);
void sb_pool_levels(const sb_pool *pool, int8_t lowest, const int8_t *in, int8_t *out);

/* Computes into `map` (out_height x out_width) the convolution of one block of input channels with one stored filter:
 * input channels block * depth ... of the whole input. */
typedef void (*sb_map_function)(const void *state, int64_t block, int32_t filter, float *map);

/* Builds the whole output from such maps: stacks, scales, shifts, and applies the fused function. Each map is computed
 * once per group and added to every filter that uses it, block by block, so that
 *     out[t] = then(scale[t] * ((ratio[t][0] * map + ratio[t][1] * map) + ...) + shift[t]).
 * `map` is scratch for one map; it is not used for weights that are not stacked. */
void sb_stack_maps(const sb_conv *conv, sb_map_function compute, const void *state, float *map, float *out);

/* The outputs 0..count-1 whose input position x * stride + offset lies in 0..size-1 are *begin ... *end - 1. */
void sb_valid_range(int64_t offset, int32_t stride, int32_t size, int32_t count, int32_t *begin, int32_t *end);

/* Operations without a row in the kernel table. Shapes are those of the values; `in` and `out` may be the same where
 * the plan writes in place. */
void sb_affine_op(const sb_kernels *kernels, const sb_op *op, const sb_shape *shape, const float *in, float *out);
void sb_prelu(const sb_kernels *kernels, const sb_op *op, const sb_shape *shape, const float *in, float *out);
void sb_layer_norm(const sb_kernels *kernels, const sb_op *op, const sb_shape *shape, const float *in, float *out);
void sb_softmax(const sb_kernels *kernels, int32_t dim, const sb_shape *shape, const float *in, float *out);
void sb_adaptive_pool(const sb_kernels *kernels, const sb_op *op, const sb_shape *from, const sb_shape *to,
                      const float *in, float *out);
void sb_mean(const sb_kernels *kernels, const sb_op *op, const sb_shape *from, const float *in, float *out);
void sb_broadcast(const sb_kernels *kernels, sb_arithmetic f, const sb_shape *a_shape, const float *a,
                  const sb_shape *b_shape, const float *b, const sb_shape *shape, float *out);
void sb_slice(const sb_op *op, const sb_shape *from, const sb_shape *to, const float *in, float *out);
void sb_permute(const sb_op *op, const sb_shape *from, const sb_shape *to, const float *in, float *out);
void sb_pad(const sb_op *op, const sb_shape *from, const sb_shape *to, const float *in, float *out);
void sb_upsample(const sb_op *op, const sb_shape *from, const sb_shape *to, const float *in, float *out);

#endif
