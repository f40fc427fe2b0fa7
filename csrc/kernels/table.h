/* The table kernel: convolutions with ±1 filters by look-up of partial sums, pixels in the lanes.
 *
 * Four input channels a, b, c, d ("a tuple") have 16 signed sums ±a±b±c±d. They, or the half that the others are negatives
 * of, are built once per pixel, as vectors over pixels, in the first-level cache; a filter tap over a tuple is then a
 * code of four bits, and its contribution to a vector of pixels is one aligned load-and-add. Tuples of five or six
 * channels need fewer look-ups and larger tables, which many filters make up for: these are kernels of their own.
 *
 *   segment   `rows` consecutive output rows of one input block, at most `slot` pixels wide
 *   block     what is looked up together: the accumulators of one filter are rows · vectors registers
 *   region    the segments of all k input blocks for the same output pixels
 *   unit      the regions that are merged together; units are independent of each other
 *
 * A slot is a power of two of lanes. Narrow slots share a register, wide ones take several:
 *
 *   slot = LANES/2   | segment 0, row r | segment 1, row r |      one register per row step
 *   slot = 2·LANES   | segment 0, row r, left half || right half |   two registers per row step
 *
 * so that a step in y is always a whole register and never misaligns. A step in x is a shift of the *accumulators*,
 * done once per filter and column of taps (see table_step). Zero padding in x comes with the shift, in y with rows of
 * zeros in the table. Strides split the input into phases (row mod stride, column mod stride), each a plane of
 * its own in the table, in which a tap again is a plain offset.
 */
#ifndef SUBBIT_TABLE_H
#define SUBBIT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../kernels.h"

enum {
    TABLE_QUAD = 4,          /* channels of a tuple, at least; of levels always, */
    TABLE_ENTRIES = 16,      /* which have so many signed sums */
    TABLE_MAX_CHANNELS = 6,  /* of a tuple */
    TABLE_MAX_VECTORS = 8,   /* registers of accumulators per filter */
    TABLE_MAX_TUPLES = 8,    /* per chunk: the codes of one tap fit a word, */
    TABLE_WORD_BITS = 32,    /* of so many bits */
    TABLE_MAX_LANES = 16,
    TABLE_MAX_SHORTS = 32,   /* lanes of 16 bits, for sums of levels */
};

/* One plane of the table: the input pixels (row ≡ phase_y, column ≡ phase_x) modulo the strides. */
typedef struct {
    int row, column; /* input row and column of table row 0, lane 0, for the output pixel (0, 0) */
    int rows;        /* table rows */
    int first;       /* index of its first vector */
} table_plane;

/* Columns of taps that read at the same lane offset.
 *
 * With A[o] the sum of the look-ups of all taps at offset o, an output lane x is Σ_o A[o][x + o]. Offsets are
 * visited from both ends towards 0, shifting what has been summed by the distance to the next offset:
 *   negative offsets, ascending: sums move to higher lanes; the result is parked;
 *   positive offsets, descending: sums move to lower lanes; the parked sums are added; offset 0 comes last.
 */
typedef struct {
    int32_t select[TABLE_MAX_LANES]; /* the lanes that a shift takes, see shift_lanes */
    int16_t select_short[TABLE_MAX_SHORTS]; /* the same for lanes of 16 bits, */
    uint32_t inside;                 /* and which of them come from the register itself */
    int lanes;                       /* of one shift */
    int repeats;                     /* shifts wider than a register are done in several */
    int taps;                        /* how many taps are looked up before the shift */
    bool park, unpark;               /* after the shift */
} table_step;

typedef struct table_plan {
    int lanes, slot, vectors, rows;    /* vectors: registers per row of a slot */
    int channels;                      /* of a tuple */
    int entries;                       /* of the table per tuple and vector: all signed sums, or half of them */
    int segments;                      /* per block: lanes / slot, at least 1 */
    int x_tiles, y_tiles, left, right; /* left, right: lanes of a slot lost to the halo between two tiles */
    int unit_regions, unit_blocks, units;
    int taps, steps_count, planes_count, table_vectors;
    int tuples, chunk_tuples, chunks;
    int most_tuples;                   /* of a chunk, whatever the filters and the cache */
    bool whole_chunks;                 /* chunks of TABLE_MAX_TUPLES are possible nevertheless: these filters allow it */
    int max_list;                      /* longest list of filters */
    double cost;                       /* estimated cycles */

    table_step *steps;
    table_plane *planes;
    int32_t *tap_vector;               /* per tap in order of the steps: vector offset into the table */
    int32_t *tap_source;               /* and its place in the stored filter, row · kernel_w + column */
    uint16_t *list;                    /* filters that block b of group g needs, */
    uint32_t *list_begin;              /* from list_begin[g · unit_blocks + b] */
    uint32_t *map_offset;              /* (out, blocks): of the filter's map among those of its block, in floats */
    uint16_t *place;                   /* (filters): used while the lists are made */
    uint8_t *codes;                    /* chunk, filter, tap, tuple */
    bool *span_ends;                   /* (chunks): sums of 16 bits might not hold the next chunk as well */
    uint16_t *span_positive, *chunk_positive; /* (filters): used while the spans are found */
} table_plan;

/* Geometry for registers of `lanes` floats, or twice as many sums of levels in 16 bits where the input consists of
 * levels, and tuples of `channels`; false where the kernel cannot do this convolution. */
bool table_lay_out(const sb_conv *conv, int lanes, int channels, table_plan *table);
/* Bytes that `table_prepare` needs, and the table with everything it points to, in one piece of memory. */
size_t table_prepared_size(const sb_conv *conv, int lanes, int channels);
void table_prepare(const sb_conv *conv, int lanes, int channels, void *prepared);

/* `channels` bits of stored filters from `bit` on, at most TABLE_MAX_CHANNELS. */
unsigned table_source_code(const uint8_t *bits, size_t bit, int channels);

static inline int table_chunk_tuples(const table_plan *table, int chunk) {
    const int rest = table->tuples - chunk * table->chunk_tuples;
    return rest < table->chunk_tuples ? rest : table->chunk_tuples;
}

/* Half of the sums are enough where adding a sum and adding its negative are one instruction: a fused multiply-add with
 * +1 or -1. The highest bit of a code then says whether it negates, and its other bits, inverted where it does, number the
 * sum. Rows of four lanes keep all sums, since SSE2 has no such instruction; and so do blocks of few registers, for which
 * loading the factor would be much of the work. */
static inline int table_entries(bool levels, int lanes, int registers, int channels) {
    return 1 << (levels || lanes == 4 || registers <= 2 ? channels : channels - 1);
}

/* Is the output of every unit merged in whole registers, see table_merge_packed.h? Rows of a quarter of one are; those of half
 * a register gain nothing. */
static inline bool table_merges_packed(const sb_conv *conv, const table_plan *table) {
    const int rows = table->unit_regions * table->rows, together = 4;
    return table->lanes == TABLE_MAX_LANES && table->slot * together == table->lanes && table->x_tiles == 1 &&
           conv->weight.blocks <= 2 && table->rows <= 2 && conv->out_width == table->slot &&
           conv->out_height % rows == 0 && rows % together == 0;
}

/* Bytes of one tap of one filter in a chunk of so many tuples: codes one behind the other, no more bits than channels. */
static inline int table_tap_bytes(int chunk_tuples, int channels) { return (chunk_tuples * channels + 7) / 8; }

#endif
