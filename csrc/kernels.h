/* What the executor asks of a kernel, and the table of kernels of one instruction set.
 *
 * Memory: values are row-major without a batch, (channels, height, width). Every pointer to a value, to scratch and to
 * prepared weights is aligned to SB_ALIGNMENT, and its size is rounded up to a multiple of it: a kernel may read and
 * write the rest of the last SB_ALIGNMENT bytes of what it was given; nobody relies on what is there. `in`, `added`
 * and `out` of a convolution never overlap, except that `added` may be `out` where the kernel adds in place; the
 * element-wise kernels work in place. Kernels allocate nothing. A pool may be given some planes or rows of a value alone, and
 * element-wise kernels and means any numbers: these are aligned to their elements, and nothing behind them is touched.
 *
 * A row of another instruction set is one `sb_kernels` with NULL where the portable kernel should serve.
 */
#ifndef SUBBIT_KERNELS_H
#define SUBBIT_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SB_ALIGNMENT 64

/* Convolutions beyond these go to the portable row; the other rows need not fear that their offsets overflow an int.
 * Elements of a value (2^28) and of a weight (2^30) fit one as well. */
#define SB_FAST_KERNEL 128
#define SB_FAST_STRIDE 16
#define SB_FAST_DILATION 32
#define SB_FAST_PADDING 4096
#define SB_FAST_SPAN (1 << 28) /* rows under the taps of an output row, times their width, times both strides */

/* Element-wise functions, numbered as in the file; SB_NONE is the identity. */
typedef enum sb_function_kind {
    SB_RELU, SB_RELU6, SB_LEAKY_RELU, SB_HARDTANH, SB_SIGMOID, SB_HARD_SIGMOID, SB_SILU, SB_HARD_SWISH,
    SB_GELU, SB_GELU_TANH, SB_TANH, SB_SIGN, SB_ABS, SB_ELU, SB_SOFTPLUS, SB_MISH,
    SB_EXP, SB_LOG, SB_SQRT, SB_FUNCTIONS,
    SB_NONE = 255
} sb_function_kind;

typedef struct sb_function {
    uint8_t kind; /* sb_function_kind */
    float a, b;   /* leaky_relu slope; hardtanh min, max; elu alpha; softplus beta, threshold */
} sb_function;

typedef enum sb_arithmetic { SB_ADD, SB_SUB, SB_MUL, SB_DIV, SB_MAXIMUM, SB_MINIMUM, SB_ARITHMETICS } sb_arithmetic;

typedef enum sb_weight_kind { SB_DENSE, SB_BINARY, SB_STACKED_BITS, SB_STACKED_VALUES } sb_weight_kind;

/* The weight of a convolution. Filter t of the layer has k blocks of s channels each; block i is
 *     ratio[t][i] * stored filter index[t][i]
 * and the output is scale[t] * (filter t * input) + shift[t]. A dense or binary weight has k = 1 and stores
 * every filter: index and ratio are NULL then, and filter t is stored filter t. */
typedef struct sb_weight {
    uint8_t kind;               /* sb_weight_kind */
    bool binary_input;          /* the input counts as its signs, +1 for x >= 0; zero padding comes after that */
    bool half;                  /* values are fp16 instead of fp32 */
    int32_t out;                /* c_out */
    int32_t filters;            /* m, stored filters */
    int32_t blocks;             /* k */
    int32_t depth;              /* s, channels of a stored filter */
    int32_t kernel_h, kernel_w;
    const uint8_t *bits;        /* SB_BINARY, SB_STACKED_BITS: (m, kernel_h, kernel_w, s), LSB first, 1 is +1, no gaps
                                   between filters; any alignment, nothing readable beyond the last byte */
    const uint8_t *values;      /* SB_DENSE, SB_STACKED_VALUES: (m, s, kernel_h, kernel_w), little-endian, unaligned */
    const uint16_t *index;      /* (c_out, k) below m, or NULL */
    const float *ratio;         /* (c_out, k), or NULL: all ones */
    const float *scale;         /* (c_out), or NULL: all ones */
    const float *shift;         /* (c_out), or NULL: all zeros */
} sb_weight;

/* Whole numbers of seven bits that stand for the input of a layer of ±1 filters: 0..127, or -64..63. Both fit a signed
 * byte, which is how they are stored. docs/format.md defines the arithmetic, to the last bit. */
typedef struct sb_levels {
    float step;     /* 0: there are none, the layer computes in fp32 */
    bool is_signed;
} sb_levels;

static inline int sb_lowest_level(sb_levels levels) { return levels.is_signed ? -64 : 0; }
static inline int sb_highest_level(sb_levels levels) { return levels.is_signed ? 63 : 127; }
static inline bool sb_same_levels(sb_levels a, sb_levels b) { return a.step == b.step && a.is_signed == b.is_signed; }

struct sb_conv_kernel;
struct sb_op_time;

/* One convolution of a model, everything known when it is opened. Channel c of group g is input channel
 * g * blocks * depth + c; filters g * out / groups ... belong to group g. A fully connected layer is a convolution of a
 * 1 x 1 kernel over (in, 1, rows), transposed by the executor when it has more than one row. */
typedef struct sb_conv {
    int32_t channels, height, width;  /* of the input */
    int32_t out_height, out_width;
    int32_t stride_h, stride_w;
    int32_t pad_top, pad_left;        /* bottom and right follow from the output size */
    int32_t dilation_h, dilation_w;
    int32_t groups;
    sb_weight weight;
    const float *added;               /* added to the output before `then`, of its shape; NULL: nothing */
    sb_function then;                 /* applied to every output; both may differ between calls of run */
    const struct sb_conv_kernel *kernel;
    const void *prepared;             /* what kernel->prepare wrote, or NULL */
    struct sb_op_time *times;         /* where a kernel adds the time of its stages; NULL: nobody asked */
    sb_levels levels;                 /* of the input; its step is part of weight.scale */
    sb_levels out_levels;             /* of what is written to level_out */
    int8_t *level_out;                /* the output as levels; NULL: nobody reads them */
    /* Where `out` and `level_out` have no room for all of the output: the row that they begin with, and how many rows of
     * every channel there are. Only for pieces of a kernel with band_rows; 0: there is room for all rows. */
    int32_t first_row, room_rows;
} sb_conv;

typedef struct sb_conv_kernel {
    const char *name;
    /* Estimated nanoseconds on one core, negative where the kernel cannot do this convolution; the cheapest serves. */
    double (*cost)(const sb_conv *conv);
    /* Bytes of prepared weights, still packed; NULL: none. They are made once, when the model is opened. */
    size_t (*prepared_size)(const sb_conv *conv);
    void (*prepare)(const sb_conv *conv, void *prepared); /* `prepared` is zeroed */
    /* Bytes of scratch for run; NULL: none. */
    size_t (*scratch_size)(const sb_conv *conv);
    void (*run)(const sb_conv *conv, const float *in, float *out, void *scratch);
    bool adds_in_place; /* `added` and `out` may be one memory: every number is read before its place is written, once */
    bool writes_levels; /* `run` can write level_out as well; `out` may be NULL then, as with run_levels */
    /* Instead of `run` where the input consists of levels. `out` is NULL where nobody reads it, and may be NULL only
     * with a `then` that is a limit. */
    void (*run_levels)(const sb_conv *conv, const int8_t *in, float *out, void *scratch);
    /* For several threads on one image, all of them with their own scratch: into how many pieces the output of a prepared
     * convolution falls, and `run` or `run_levels` for the pieces first .. last - 1. `then` is a limit. NULL: cannot. */
    int32_t (*pieces)(const sb_conv *conv);
    void (*run_pieces)(const sb_conv *conv, int32_t first, int32_t last, const float *in, float *out, void *scratch);
    void (*run_level_pieces)(const sb_conv *conv, int32_t first, int32_t last, const int8_t *in, float *out,
                             void *scratch);
    /* Rows of the output in each of the pieces of run_pieces, the last one perhaps excepted, where these are bands from the
     * top that know of first_row and room_rows. NULL: they are not. */
    int32_t (*band_rows)(const sb_conv *conv);
} sb_conv_kernel;

/* Max or average pooling of (channels, height, width). */
typedef struct sb_pool {
    bool average, count_include_pad;
    int32_t channels, height, width, out_height, out_width;
    int32_t kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
    int32_t pad_bottom, pad_right;    /* part of the window that counts for count_include_pad */
    int32_t divisor;                  /* 0: the number of elements under the window */
    size_t in_plane, out_plane;       /* elements from one channel to the next */
} sb_pool;

typedef struct sb_kernels {
    const char *name;                     /* "portable", "avx2" ... as in SUBBIT_ISA */
    const sb_conv_kernel *const *convs;   /* ends with NULL */
    void (*function)(sb_function f, const float *in, float *out, size_t count);
    /* out[i] = f(a[i * a_step], b[i * b_step]), steps 0 or 1 */
    void (*arithmetic)(sb_arithmetic f, const float *a, size_t a_step, const float *b, size_t b_step, float *out,
                       size_t count);
    void (*affine)(float scale, float shift, const float *in, float *out, size_t count);
    void (*means)(const float *in, size_t count, float *out, size_t rows); /* out[i]: of the i-th `count` numbers */
    void (*pool)(const sb_pool *pool, const float *in, float *out);
    void (*round)(sb_levels levels, const float *in, int8_t *out, size_t count); /* to the nearest levels */
    /* Maxima of levels; `lowest` where a window lies outside the input. */
    void (*pool_levels)(const sb_pool *pool, int8_t lowest, const int8_t *in, int8_t *out);
    /* The fastest that this row could be, see profile.c; NULL: unknown. `memory` has 4096 floats. */
    uint64_t (*multiply_add_loop)(size_t rounds, float *memory);
    uint64_t (*popcount_loop)(size_t rounds, float *memory);
    uint64_t (*look_up_loop)(size_t rounds, float *memory);
} sb_kernels;

extern const sb_kernels sb_kernels_portable;

/* One function on one number: the definition of every sb_function_kind. */
float sb_apply(sb_function f, float x);

/* Functions that only cut off: kernels apply them where they store their results. */
static inline bool sb_is_limit(sb_function f) {
    return f.kind == SB_NONE || f.kind == SB_RELU || f.kind == SB_RELU6 || f.kind == SB_HARDTANH;
}

#endif
