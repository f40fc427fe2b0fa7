/* A parsed program, its plan, and what the files of the core share. docs/format.md describes the file. */
#ifndef SUBBIT_PROGRAM_H
#define SUBBIT_PROGRAM_H

#include "kernels.h"
#include "subbit.h"

#include <stdatomic.h>

/* Limits of the format; src/subbit/format/limits.py has the same. */
#define SB_MAJOR 1
#define SB_MINOR 1
#define SB_MINOR_OF_LEVELS 1
#define SB_HEADER_SIZE 32
#define SB_CHECKED_FROM 16
#define SB_MAX_FILE UINT32_MAX
#define SB_MAX_OPS 16384
#define SB_MAX_INPUTS 4096
#define SB_MAX_DIM (1 << 24)
#define SB_MAX_ELEMENTS (1 << 28)
#define SB_MAX_WEIGHTS (1 << 30)
#define SB_MAX_FILTER (1 << 24)
#define SB_MAX_FILTERS (1 << 16)
#define SB_MAX_BLOCKS (1 << 24) /* of all stacked weights together: their indices may take nothing in the file */
#define SB_MAX_SHARED (1 << 27) /* numbers of shared weights together: they take nothing in the file */
#define SB_MAX_NAME 255
#define SB_MAX_LABELS (1 << 16)
#define SB_MAX_LABEL 1023
#define SB_MIN_FACTOR 0x1p-24 /* of an upsampling */
#define SB_MAX_FACTOR 0x1p24
#define SB_MIN_STEP 0x1p-64 /* between two levels of an input */
#define SB_MAX_STEP 0x1p64
#define SB_MAX_ARENA ((uint64_t)1 << (sizeof(size_t) > 4 ? 32 : 31))
/* Opening may allocate SB_OPEN_FIXED + SB_OPEN_PER_BYTE * size of the file: a small file never asks for much. */
#define SB_OPEN_FIXED ((uint64_t)256 << 20)
#define SB_OPEN_PER_BYTE 256

/* ------------------------------------------------------------------------------------------------ errors */

/* Fills `error` (which may be NULL) and returns `status`. */
sb_status sb_fail(sb_error *error, sb_status status, int32_t op, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 4, 5)))
#endif
    ;

/* ------------------------------------------------------------------------------------------------ memory */

/* All memory of a model: every allocation goes through here and is counted, headers and all. */
typedef struct sb_heap {
    void *blocks;
    uint64_t bytes;
    uint64_t limit; /* 0: none */
    bool refused;   /* the limit was in the way, not a lack of memory */
} sb_heap;

/* Zeroed memory aligned to SB_ALIGNMENT, its size rounded up to it; NULL when there is none. */
void *sb_alloc(sb_heap *heap, uint64_t count, uint64_t size);
void sb_free_all(sb_heap *heap);
/* What it means that sb_alloc gave nothing. */
sb_status sb_alloc_failure(const sb_heap *heap);

/* --------------------------------------------------------------------------------------------- operations */

typedef struct sb_shape {
    int32_t rank;
    int32_t dims[SB_MAX_RANK];
} sb_shape;

static inline size_t sb_elements(const sb_shape *shape) {
    size_t count = 1;
    for (int32_t i = 0; i < shape->rank; i++) count *= (size_t)shape->dims[i];
    return count;
}

/* The last two dimensions as a plane; (C, L) counts as (C, 1, L). */
static inline int32_t sb_height(const sb_shape *shape) { return shape->rank > 2 ? shape->dims[shape->rank - 2] : 1; }
static inline int32_t sb_width(const sb_shape *shape) { return shape->dims[shape->rank - 1]; }
static inline int32_t sb_planes(const sb_shape *shape) {
    return (int32_t)(sb_elements(shape) / ((size_t)sb_height(shape) * (size_t)sb_width(shape)));
}

typedef enum sb_opcode {
    SB_OP_CONV = 1, SB_OP_LINEAR, SB_OP_AFFINE, SB_OP_ACTIVATION, SB_OP_PRELU, SB_OP_POOL, SB_OP_ADAPTIVE_POOL,
    SB_OP_MEAN, SB_OP_ARITHMETIC, SB_OP_CONSTANT, SB_OP_CONCAT, SB_OP_SLICE, SB_OP_RESHAPE, SB_OP_PERMUTE,
    SB_OP_LAYER_NORM, SB_OP_PAD, SB_OP_UPSAMPLE, SB_OP_SOFTMAX, SB_OP_END
} sb_opcode;

typedef enum sb_pad_mode {
    SB_PAD_CONSTANT, SB_PAD_REFLECT, SB_PAD_REPLICATE, SB_PAD_CIRCULAR, SB_PAD_MODES
} sb_pad_mode;

typedef struct sb_op {
    uint8_t code; /* sb_opcode */
    int32_t input_count;
    const int32_t *inputs; /* values, all written before this operation */
    const char *name;
    union {
        struct {
            sb_weight weight;
            int32_t stride[2], padding[4], dilation[2], groups; /* padding: top, bottom, left, right */
            bool shared;  /* the weight is that of an earlier operation, with another scale and shift */
            int exponent; /* of the stored values; already part of the scale */
            sb_levels levels; /* of the input; the step is already part of the scale */
        } conv; /* and Linear, which has the weight alone */
        struct {
            const float *scale, *shift; /* NULL: ones, zeros */
            int32_t scale_count, shift_count;
            int32_t dim; /* of LayerNorm */
            float eps;   /* of LayerNorm */
        } affine;        /* and LayerNorm */
        sb_function function;
        struct {
            const float *slope;
            int32_t count;
        } prelu;
        struct {
            bool average, ceil_mode, count_include_pad;
            int32_t kernel[2], stride[2], padding[2], dilation[2], divisor;
            int32_t output[2]; /* of AdaptivePool; 0 keeps the size of the input */
        } pool;
        struct {
            int32_t count, dims[SB_MAX_RANK];
            bool keepdim;
        } dims; /* Mean, Permute */
        uint8_t arithmetic;
        struct {
            sb_shape shape;
            const float *value;
        } constant;
        int32_t dim; /* Concat, Softmax */
        struct {
            int32_t dim, start, stop, step;
        } slice;
        sb_shape shape; /* Reshape; one entry may be -1 */
        struct {
            uint8_t mode;
            int32_t amounts[4];
            float value;
        } pad;
        struct {
            bool bilinear, align_corners;
            int32_t output[2]; /* 0: floor(input * factor) */
            double factor[2];  /* 0: none was given */
        } upsample;
    };
} sb_op;

typedef struct sb_program {
    sb_shape input;
    int32_t op_count, output; /* value that is the result */
    sb_op *ops;
    size_t label_count;
    const char **labels;
    sb_preprocessing preprocessing;
} sb_program;

/* Reads a whole file into `program`, with everything allocated from `heap`. A pure function of the bytes, and the only
 * code that trusts nothing it reads: behind it every count, index and number has been checked. */
sb_status sb_parse(const uint8_t *bytes, size_t size, sb_heap *heap, sb_program *program, sb_error *error);

/* -------------------------------------------------------------------------------------------------- plan */

typedef struct sb_value {
    sb_shape shape;
    size_t offset;         /* in the arena, bytes */
    const float *constant; /* instead of a place in the arena */
} sb_value;

/* Values that layers of ±1 filters read as levels have a second place for these. Between two such layers the levels
 * alone are written, and pooled; the fp32 numbers only where somebody reads them. */
typedef struct sb_slot {
    int32_t value;       /* whose levels these are */
    int32_t first, last; /* operations that write and last read them */
    sb_levels levels;
    size_t offset; /* in the arena, bytes */
} sb_slot;

enum { SB_NO_SLOT = -1, SB_NO_VALUE = -1, SB_NO_OP = -1 };

typedef struct sb_step {
    bool alias;       /* its value is its input in another shape: nothing to do */
    bool fused;       /* an addition or activation that a convolution before it already did */
    int32_t writer;   /* the operation whose kernel computes its value: that convolution, or itself */
    int32_t added;    /* of a convolution: the value that the addition fused into it adds, or SB_NO_VALUE */
    int32_t result;   /* the value that its kernel writes: its own, or that of the last operation fused into it */
    int32_t partner;  /* of a convolution and a maximum that are done in turns, band by band: the other one, or SB_NO_OP */
    int32_t pieces;   /* of an operation that several threads may do together; 0: one does it */
    size_t scratch, scratch_size; /* offset in the arena, bytes */
    sb_conv *conv;    /* Conv, Linear */
    sb_pool pool;     /* Pool */
    int32_t reads, writes; /* slots of its input and of its result (with what is fused into it), or SB_NO_SLOT */
    bool rounds;      /* it fills the slot that it reads */
    bool floats;      /* its result is needed in fp32 */
} sb_step;

typedef struct sb_plan {
    sb_value *values; /* op_count + 1 */
    sb_step *steps;   /* op_count */
    size_t arena;     /* bytes */
    bool shared_steps; /* some have pieces */
    sb_slot *slots;
    int32_t slot_count;
} sb_plan;

/* Shapes, kernels, prepared weights and a place for every value. */
sb_status sb_plan_program(const sb_program *program, const sb_kernels *kernels, sb_heap *heap, sb_plan *plan,
                          sb_error *error);

/* Which values are kept as levels: fills the slots and what the steps say of them, all but their offsets. Needs room for
 * two slots per operation, and for one number and one flag per value. */
void sb_plan_levels(const sb_program *program, sb_plan *plan, int32_t *slot_of, bool *floats);

/* Rows of a convolution's output that are kept while it takes turns with a maximum: those of a band, and those before them that
 * the next window still needs. */
static inline int32_t sb_band_room(const sb_conv *conv, const sb_pool *pool) {
    return conv->kernel->band_rows(conv) + (pool->kernel_h - 1) * pool->dilation_h;
}

static inline bool sb_has_levels(const sb_op *op) {
    return (op->code == SB_OP_CONV || op->code == SB_OP_LINEAR) && op->conv.levels.step > 0;
}

/* The shape that each operation gives: checks that the operations fit each other. `values` has op_count + 1 entries. */
sb_status sb_infer_shapes(const sb_program *program, sb_value *values, sb_error *error);

/* Multiply-adds of one run at most, elements that are moved or go through a function counted as one; the largest number
 * where there are more. */
uint64_t sb_count_work(const sb_program *program, const sb_value *values);

struct sb_model {
    sb_heap heap;
    sb_program program;
    sb_plan plan;
    sb_kernels kernels;
    uint64_t work;
};

struct sb_context {
    const sb_model *model;
    uint8_t *arena; /* aligned */
};

/* Runs the plan on the input that is already in the arena. `observer` and `times` may be NULL. */
void sb_execute(const sb_context *context, sb_observer observer, void *user, sb_op_time *times);
/* One image on several threads. The thread that leads runs the plan, and offers the pieces of large steps; others take
 * some of them while they have time. Nobody waits for a thread that is not running. */
typedef struct sb_crew {
    _Atomic uint64_t offer; /* number of the offer << 32 | pieces that nobody has taken */
    atomic_int done;        /* pieces of it */
    atomic_bool over;       /* there will be no more offers */
    int32_t op;             /* whose pieces they are */
} sb_crew;

/* sb_execute, with the help of those who call sb_help with the same crew. */
void sb_lead(const sb_context *context, sb_crew *crew);
/* Takes pieces until crew->over; `leader` has the values, scratch memory is in `own`. */
void sb_help(const sb_context *leader, const sb_context *own, sb_crew *crew);

void sb_take_input(const sb_context *context, size_t number, const float *in);
void sb_give_output(const sb_context *context, size_t number, float *out);
/* Image `number` of `in` to its place in `out`; `times` may be NULL. */
void sb_run_image(const sb_context *context, size_t number, const float *in, float *out, sb_op_time *times);

/* -------------------------------------------------------------------------------------------- dispatch */

/* The kernels for `isa` (NULL: the best), with every gap of the row filled by the portable kernel. */
sb_status sb_select_kernels(const char *isa, sb_kernels *kernels, sb_error *error);

#endif
