/* One row of the kernel table, for the instruction set that it is compiled for.
 * Included by simd_*.c with ROW, the name of the row. */
#include "simd.h"

#include "simd_elementwise.h"
#include "simd_common.h"
#include "levels_simd.h"
#include "flat_impl.h"
#include "fma_impl.h"
#include "fma_rows_impl.h"
#include "lanes_merge.h"
#include "fma_lanes_impl.h"
#include "direct_impl.h"
#include "depthwise_impl.h"
#include "linear_impl.h"
#include "pool_impl.h"
#include "xnor_impl.h"
#include "table_impl.h"
#include "lanes_impl.h"
#include "levels_table.h"
#include "levels_lanes.h"
#include "levels_dot.h"
#include "levels_dot_rows.h"
#include "levels_dot_rows_lanes.h"
#include "levels_dot_lanes.h"
#include "limits_impl.h"

#define STRING2(x) #x
#define STRING(x) STRING2(x)

static const sb_conv_kernel *const convs[] = {
    &table_kernel, &table_5_kernel, &table_6_kernel, &level_table_kernel,
#if LANES >= 8
    &lanes_kernel, &level_lanes_kernel,
#endif
#if LANES == 16
    &popcount_kernel, &dot_kernel, &dot_rows_kernel, &dot_rows_lanes_kernel, &dot_lanes_kernel,
#endif
    &xnor_kernel, &fma_kernel, &fma_rows_kernel, &fma_lanes_kernel, &direct_kernel, &depthwise_kernel, &linear_kernel, NULL,
};

const sb_kernels PASTE(sb_kernels_, ROW) = {
    .name = STRING(ROW),
    .convs = convs,
    .function = simd_function,
    .arithmetic = simd_arithmetic,
    .affine = simd_affine,
    .means = simd_means,
    .pool = simd_pool,
    .round = simd_round,
    .pool_levels = simd_pool_levels,
    .multiply_add_loop = multiply_add_loop,
    .look_up_loop = look_up_loop,
    .popcount_loop = popcount_loop,
};
