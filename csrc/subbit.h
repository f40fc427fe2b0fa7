/* subbit: run packed convolutional networks (.sbit files). This header is the whole API.
 *
 *     sb_model *model;
 *     sb_context *context;
 *     sb_error error;
 *     if (sb_open(bytes, size, NULL, &model, &error) || sb_context_create(model, &context, &error))
 *         return fprintf(stderr, "%s\n", error.message), 1;
 *     sb_run(context, images, count, logits);
 *     sb_context_destroy(context);
 *     sb_close(model);
 *
 * A model is read-only once opened and may be shared by any number of threads; a context belongs to one thread at a
 * time. sb_run allocates nothing. Needs libc, libm and POSIX threads; nothing else.
 */
#ifndef SUBBIT_H
#define SUBBIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define SB_API __declspec(dllexport)
#else
#define SB_API __attribute__((visibility("default")))
#endif

#define SB_MAX_RANK 6

typedef enum sb_status {
    SB_OK = 0,
    SB_ERROR_MAGIC,      /* not a .sbit file */
    SB_ERROR_BYTE_ORDER, /* a big-endian file, or a damaged byte-order mark */
    SB_ERROR_VERSION,    /* written by another version of the format */
    SB_ERROR_LENGTH,     /* truncated, trailing bytes, or sections that do not fill the file */
    SB_ERROR_CHECKSUM,   /* content damaged */
    SB_ERROR_PROGRAM,    /* an operation or attribute that does not exist or makes no sense */
    SB_ERROR_VALUE,      /* NaN, infinity, an index without a filter, padding bits that are set */
    SB_ERROR_TEXT,       /* names or labels that are not UTF-8 */
    SB_ERROR_LIMIT,      /* over a limit of the format, or over one of sb_options */
    SB_ERROR_SHAPE,      /* operations whose shapes do not fit each other or the input */
    SB_ERROR_MEMORY,     /* allocation failed */
    SB_ERROR_ISA,        /* an instruction set that is unknown, or that this machine lacks */
    SB_ERROR_ARGUMENT    /* a NULL pointer or an impossible size given by the caller */
} sb_status;

typedef struct sb_error {
    sb_status status;
    int32_t op;        /* number of the operation it concerns, -1 for none */
    char message[240]; /* always terminated */
} sb_error;

/* Zero-initialise and set what is needed. */
typedef struct sb_options {
    int32_t input_rank;                /* 0: the input shape of the file; otherwise its rank */
    int32_t input_shape[SB_MAX_RANK];  /* another input shape, without batch */
    uint64_t max_memory;               /* bytes of sb_memory; 0: the limits of docs/format.md */
    uint64_t max_work;                 /* of sb_work; 0: none */
    const char *isa;                   /* "portable", "avx2", ...; NULL: $SUBBIT_ISA, or the best of this machine */
} sb_options;

typedef struct sb_model sb_model;
typedef struct sb_context sb_context;

/* Checks and plans a file. The bytes are used in place: keep them alive and unchanged until sb_close.
 * `options` and `error` may be NULL. On failure *model is NULL. */
SB_API sb_status sb_open(const void *bytes, size_t size, const sb_options *options, sb_model **model, sb_error *error);
SB_API void sb_close(sb_model *model);

/* Shapes without batch: fill `shape`, return the rank. Value 0 is the input, operation i writes value i + 1. */
SB_API int32_t sb_input_shape(const sb_model *model, int32_t shape[SB_MAX_RANK]);
SB_API int32_t sb_output_shape(const sb_model *model, int32_t shape[SB_MAX_RANK]);
SB_API int32_t sb_value_shape(const sb_model *model, size_t value, int32_t shape[SB_MAX_RANK]);

SB_API size_t sb_op_count(const sb_model *model);
SB_API const char *sb_op_kind(const sb_model *model, size_t op);   /* "Conv", "Pool", ...; NULL out of range */
SB_API const char *sb_op_name(const sb_model *model, size_t op);   /* path of its module, "" where none is stored */
SB_API const char *sb_op_kernel(const sb_model *model, size_t op); /* kernel of a Conv or Linear, "" otherwise */

SB_API size_t sb_label_count(const sb_model *model);
SB_API const char *sb_label(const sb_model *model, size_t number); /* UTF-8; NULL out of range */

/* How a picture becomes the input: cover (height, width) and cut out the centre, scale to 0..1, subtract mean, divide by std. */
typedef struct sb_preprocessing {
    int32_t channels; /* 0: the file says nothing */
    int32_t height, width;
    const float *mean, *std; /* per channel, owned by the model */
} sb_preprocessing;
SB_API void sb_get_preprocessing(const sb_model *model, sb_preprocessing *preprocessing);

/* Bytes of one context's working memory; and all bytes that sb_open and one context allocate. */
SB_API size_t sb_arena_size(const sb_model *model);
SB_API size_t sb_memory(const sb_model *model);

/* Multiply-adds of one input at most, an element that is moved or goes through a function counted as one. The time of a
 * run has no other limit: a small file may describe a network that takes hours. */
SB_API uint64_t sb_work(const sb_model *model);

SB_API sb_status sb_context_create(const sb_model *model, sb_context **context, sb_error *error);
SB_API void sb_context_destroy(sb_context *context);

/* `images` inputs one behind the other to as many outputs. */
SB_API sb_status sb_run(sb_context *context, const float *in, size_t images, float *out);

/* Threads of its own over the images of a batch, or over rows and blocks of a single image where its layers are large
 * enough to gain from it: results are those of sb_run, whatever their number. A team belongs to
 * one caller at a time, who computes beside threads - 1 others; it does not survive fork. */
typedef struct sb_team sb_team;
SB_API sb_status sb_team_create(const sb_model *model, int32_t threads, sb_team **team, sb_error *error);
SB_API sb_status sb_team_run(sb_team *team, const float *in, size_t images, float *out);
SB_API void sb_team_destroy(sb_team *team);

/* Called with the value that operation `op` has just written. */
typedef void (*sb_observer)(void *user, size_t op, const float *value, int32_t rank, const int32_t *shape);
/* One image, every operation on its own (nothing fused), with a look at each value. `out` may be NULL. */
SB_API sb_status sb_run_observed(sb_context *context, const float *in, float *out, sb_observer observer, void *user);

/* Nanoseconds of one operation, summed over images. The stages are those of the kernels that have them. */
typedef struct sb_op_time {
    uint64_t total;
    uint64_t build;   /* tables of partial sums */
    uint64_t look_up;
    uint64_t merge;   /* scales, activation, and the way to the output */
} sb_op_time;
/* sb_run with a look at the clock around every operation and stage, added to times[0 .. sb_op_count - 1]. */
SB_API sb_status sb_run_timed(sb_context *context, const float *in, size_t images, float *out, sb_op_time *times);

/* Multiply-adds of single numbers that one core could reach with the model's instruction set, per second, measured in
 * some milliseconds: with fused multiply-adds, with look-ups of partial sums, each of which stands for four, and with
 * counts of the bits in which signs differ, each of which stands for 32. 0: unknown. */
typedef struct sb_limits {
    double multiply_adds, look_ups, popcounts;
} sb_limits;
SB_API sb_status sb_measure_limits(const sb_model *model, sb_limits *limits);

SB_API const char *sb_isa(const sb_model *model);        /* row of the kernel table that this model uses */
SB_API const char *sb_features(void);                    /* what this machine offers: "avx2 fma avx512f ..." */
SB_API const char *sb_version(void);                     /* "1.1": the file format this core reads */
SB_API const char *sb_status_name(sb_status status);     /* "checksum", "limit", ... */

#ifdef __cplusplus
}
#endif
#endif
