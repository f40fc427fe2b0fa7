/* Reading a file piece by piece: the part of the parser that counts bytes.
 *
 * Each read is checked against the end of its section, and each number against its limit. The first failure is kept;
 * after it every function returns zeros or NULL, so that a caller may check `status` once for many reads. */
#ifndef SUBBIT_READER_H
#define SUBBIT_READER_H

#include "program.h"

/* What is left of a section. */
typedef struct sb_section {
    const uint8_t *next, *end;
} sb_section;

typedef struct sb_reader {
    sb_section program, payload;
    sb_heap *heap;
    sb_error *error;
    sb_status status; /* the first failure */
    int32_t op;       /* being read, -1 outside */
    const sb_op *ops; /* of the program, those before `op` complete */
    int64_t blocks;   /* of all stacked weights so far */
    int64_t shared;   /* numbers of the filters of shared weights so far */
    bool half;        /* numbers are fp16 with a common exponent */
    uint8_t minor;    /* version of the file */
} sb_reader;

#define SB_FAIL(p, code, ...) \
    ((p)->status = (p)->status ? (p)->status : sb_fail((p)->error, (code), (p)->op, __VA_ARGS__))

/* The next `count` bytes of a section; NULL when there are not that many, or after a failure. */
const uint8_t *sb_take(sb_reader *p, sb_section *section, uint64_t count);
uint8_t sb_read_byte(sb_reader *p, sb_section *section);
/* Seven bits per byte, least significant first, in as few bytes as possible. */
int32_t sb_read_uint(sb_reader *p, sb_section *section, int64_t highest);
/* A dimension: 1..SB_MAX_DIM. */
int32_t sb_read_size(sb_reader *p, sb_section *section);
int32_t sb_read_sint(sb_reader *p);
float sb_read_real(sb_reader *p, sb_section *section);
double sb_read_double(sb_reader *p);
uint8_t sb_read_choice(sb_reader *p, int choices);
/* Equal values are stored once: first * 2 + (they differ), then the others if they differ. */
void sb_read_tuple(sb_reader *p, int32_t *values, int count);
int32_t sb_read_rank(sb_reader *p);
int32_t sb_read_dim(sb_reader *p);
sb_shape sb_read_shape(sb_reader *p, int32_t rank);
/* Memory of the model; a failure when there is none. */
void *sb_reserve(sb_reader *p, uint64_t count, uint64_t size);
/* Numbers in place: `count` values and, for fp16, their common exponent; all are checked to be finite. */
const uint8_t *sb_take_reals(sb_reader *p, int64_t count, int *exponent);
/* `rows` rows of `columns` numbers as fp32; each row is written behind `skip` untouched places. */
float *sb_read_reals(sb_reader *p, int64_t rows, int64_t columns, int64_t skip);
/* A count in the program section and as many numbers in the payload. */
float *sb_read_vector(sb_reader *p, int32_t *count);
/* Packed bits in place; those behind the last one must be clear. */
const uint8_t *sb_take_bits(sb_reader *p, int64_t count);

#endif
