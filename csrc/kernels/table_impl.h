/* The table kernel for one instruction set: build (table_build.h), look up (table_look_up.h), merge (table_merge.h), see
 * table.h. Included by simd_impl.h. */
#include "table.h"

enum {
    ENTRY_BYTES = LANES * sizeof(float),
    ENTRY_SHIFT = LANES == 16 ? 6 : LANES == 8 ? 5 : 4, /* log2 of ENTRY_BYTES */
};

static const vfloat zero_vector;

/* Input pixels that belong into one register, or into one segment of it: where they are, and how many exist. */
typedef struct {
    ptrdiff_t source; /* from the first channel of the group */
    int32_t target;   /* lane, counted through all vectors of the block */
    int32_t count;    /* lanes behind it are zeros */
} pixel_copy;

#if LANES >= 16
/* A vector of pixels that lie in two runs of LANES of a channel: lane l is lane select[l] of both, 0 where not in `lanes`. */
struct gathered_vector {
    ptrdiff_t from[2]; /* from the first channel of the group */
    __mmask16 lanes;
    int32_t select[LANES];
};
#endif

typedef struct {
    float *table;      /* [tuple of the chunk][vector][entry][lane] */
    float *stage[2];   /* [channel of the tuple][vector][lane], used in turn where segments share registers */
    float *maps;       /* [block of the unit][place in its list][row][vector][lane] */
    const float **map; /* [input block]: its first map, for the region that is merged */
    pixel_copy *copies;
    int copies_count;
    bool whole;        /* all copies fill registers, or segments of them */
    struct gathered_vector *gathered; /* [vector] */
    bool gathers;      /* all vectors are such ones: nothing is staged */
    bool pairs;        /* whole copies come in twos: the even columns of a row, then its odd ones */
} table_scratch;

/* Of the table of a tuple. */
static size_t tuple_floats(const table_plan *table) {
    return (size_t)table->table_vectors * table->entries * LANES;
}

static size_t carve_table_scratch(const sb_conv *conv, const table_plan *table, uint8_t *memory, table_scratch *scratch) {
    const size_t registers = (size_t)table->rows * table->vectors;
    size_t used = 0;
    scratch->table = carve(memory, &used, table->chunk_tuples * tuple_floats(table) * sizeof(float));
    for (int i = 0; i < 2; i++)
        scratch->stage[i] = carve(memory, &used, (size_t)table->channels * table->table_vectors * ENTRY_BYTES);
    scratch->maps = carve(memory, &used, (size_t)table->unit_blocks * table->max_list * registers * ENTRY_BYTES);
    scratch->map = carve(memory, &used, (size_t)conv->weight.blocks * sizeof *scratch->map);
    scratch->copies =
        carve(memory, &used, (size_t)table->table_vectors * table->segments * sizeof *scratch->copies);
#if LANES >= 16
    scratch->gathered = carve(memory, &used, (table->segments > 1 ? table->table_vectors : 0) * sizeof *scratch->gathered);
#endif
    scratch->copies_count = 0;
    return used;
}

/* A segment's place in the image. Segments are numbered region by region, input block by input block. */
typedef struct {
    int input_block, x, y; /* x, y: output pixel of lane 0, row 0 */
    int begin, end, rows;  /* lanes and rows that are output; none where there is no such region */
} table_segment;

static table_segment find_segment(const sb_conv *conv, const table_plan *table, int unit_of_group, int number) {
    const int region = unit_of_group * table->unit_regions + number / conv->weight.blocks;
    const int tile = region % table->x_tiles;
    table_segment segment = {
        .input_block = number % conv->weight.blocks,
        .x = tile * (table->slot - table->left - table->right),
        .y = region / table->x_tiles * table->rows,
        .begin = tile ? table->left : 0,
        .end = tile + 1 < table->x_tiles ? table->slot - table->right : table->slot,
    };
    if (segment.end > conv->out_width - segment.x)
        segment.end = conv->out_width - segment.x;
    segment.rows = conv->out_height - segment.y < table->rows ? conv->out_height - segment.y : table->rows;
    if (region >= table->x_tiles * table->y_tiles)
        segment.rows = 0;
    return segment;
}

#include "table_build.h"

/* ---------------------------------------------------------------------------------------------- look up */

/* What the look-ups of one chunk and block work on. */
typedef struct {
    const table_plan *table;
    const void *sums;      /* the table itself */
    const uint8_t *codes;
    const uint16_t *list;  /* of filters */
    int listed, tuples;
    float *maps;           /* [place in the list][register][lane] */
    bool first, last;      /* chunk, or span of them: maps hold nothing yet; integers become floats */
    int16_t *span;         /* where sums of 16 bits are kept from chunk to chunk, as the maps are laid out, */
    bool span_begins, span_ends; /* which they are until they go to the maps */
    bool narrow;           /* slots share registers of integers */
} look_up_job;

/* The codes of a tap, and on to the next. */
ALWAYS_INLINE uint32_t read_codes(const uint8_t **codes, int tap_bytes) {
    uint32_t word;
    memcpy(&word, *codes, sizeof word);
    *codes += tap_bytes;
    return word;
}

ALWAYS_INLINE vfloat look_up_floats_shift(vfloat sum, vfloat other, const table_step *step, const int vectors,
                                          const look_up_job *job) {
    (void)vectors, (void)job;
    return shift_lanes(sum, other, step->select, step->lanes);
}

ALWAYS_INLINE void look_up_floats_add(const look_up_job *job, size_t place, const vfloat *sum, const int count) {
    vfloat *map = (vfloat *)(job->maps + place);
    if (job->first)
        UNROLL
        for (int i = 0; i < count; i++)
            map[i] = sum[i];
    else
        UNROLL
        for (int i = 0; i < count; i++)
            map[i] += sum[i];
}

/* +1, and -1 as far behind it as the highest bit of a code is worth in the offset of an entry, for every kind of tuple. */
static const float entry_factors[32 * LANES + 1] = {[0] = 1, [8 * LANES] = -1, [16 * LANES] = -1, [32 * LANES] = -1};

ALWAYS_INLINE vfloat look_up_floats_factor(uint64_t word, const int entries) {
    const uint8_t *factors = (const uint8_t *)entry_factors;
    return vsplat(*(const float *)(factors + (word & (unsigned)entries << ENTRY_SHIFT)));
}

ALWAYS_INLINE vfloat look_up_floats_plus(vfloat sum, vfloat factor, vfloat entry, const bool half) {
    return half ? sum + factor * entry : sum + entry;
}

#define vsum vfloat
#define SUM_LANES LANES
#define SUM_CHANNELS 6
#define SUM_ENTRIES(registers, channels) table_entries(false, LANES, registers, channels)
#define SUM_REGISTERS (LANES == 16 ? 16 : LANES == 8 ? 12 : 8)
#define LOOK_UP(suffix) look_up_floats##suffix
#include "table_look_up.h"

/* ------------------------------------------------------------------------------------------------ merge */

/* Pixels of the output that a register, or one segment of it, goes to. */
typedef struct {
    size_t offset; /* of lane 0 in the plane of a channel */
    int begin, end;
} table_piece;

/* What is merged at once: the maps of one region into the channels of one group. */
typedef struct {
    const sb_conv *conv;
    const float *const *map;    /* [input block] */
    const uint32_t *map_offset; /* (out, blocks) */
    size_t begin, end;          /* output channels */
    table_piece pieces[TABLE_MAX_VECTORS];
    int pieces_count;
    bool whole;                 /* all lanes of all pieces are output */
    float *out;
} merge_job;

static void find_pieces(const sb_conv *conv, const table_plan *table, const table_segment *segment, merge_job *job) {
    const int width = table->slot < LANES ? table->slot : LANES;
    job->pieces_count = 0;
    job->whole = true;
    for (int row = 0; row < segment->rows; row++)
        for (int v = 0; v < table->vectors; v++) {
            table_piece *piece = &job->pieces[job->pieces_count++];
            const int x = segment->x + v * width, begin = segment->begin - v * width, end = segment->end - v * width;
            piece->offset = (size_t)(segment->y + row) * conv->out_width + x;
            piece->begin = begin < 0 ? 0 : begin < width ? begin : width;
            piece->end = end < piece->begin ? piece->begin : end < width ? end : width;
            job->whole = job->whole && piece->end - piece->begin == width;
        }
}

#define WIDTH 4
#include "table_merge.h"
#if LANES >= 8
#define WIDTH 8
#include "table_merge.h"
#endif
#if LANES >= 16
#define WIDTH 16
#include "table_merge.h"
#include "table_merge_packed.h"
#endif

static void merge_unit(const sb_conv *conv, const table_plan *table, const table_scratch *scratch, int unit, float *out) {
    const int blocks = conv->weight.blocks, units = table->units / conv->groups, group = unit / units;
    const size_t block_floats = (size_t)table->max_list * table->rows * table->vectors * LANES;
    const size_t per_group = (size_t)(conv->weight.out / conv->groups);
    merge_job job = {
        .conv = conv, .map = scratch->map, .map_offset = table->map_offset, .out = out,
        .begin = group * per_group, .end = (group + 1) * per_group,
    };
#if LANES >= 16
    if (table_merges_packed(conv, table)) {
        const size_t rows = (size_t)(unit % units) * table->unit_regions * table->rows;
        merge_packed(&job, table, scratch->maps, rows * conv->out_width);
        return;
    }
#endif
    for (int region = 0; region < table->unit_regions; region++) {
        const table_segment segment = find_segment(conv, table, unit % units, region * blocks);
        find_pieces(conv, table, &segment, &job);
        for (int i = 0; i < blocks; i++) {
            const int number = region * blocks + i;
            scratch->map[i] = scratch->maps + number / table->segments * block_floats +
                              (table->segments > 1 ? number % table->segments * table->slot : 0);
        }
        if (table->slot >= LANES)
            PASTE(merge_region, LANES)(&job);
#if LANES >= 16
        else if (table->slot == 8)
            merge_region8(&job);
#endif
        else
            merge_region4(&job);
    }
}

/* --------------------------------------------------------------------------------------------------- run */

static void run_unit(const sb_conv *conv, const table_plan *table, table_scratch *scratch, int unit, const float *in,
                     float *out) {
    const sb_weight *weight = &conv->weight;
    const int units = table->units / conv->groups, group = unit / units, registers = table->rows * table->vectors;
    const float *group_in = in + (size_t)group * weight->blocks * weight->depth * conv->height * conv->width;
    uint64_t since = BEGIN_STAGE(conv);
    for (int block = 0; block < table->unit_blocks; block++) {
        const uint32_t *list = &table->list_begin[group * table->unit_blocks + block];
        look_up_job job = {
            .table = table,
            .sums = scratch->table,
            .codes = table->codes,
            .list = table->list + list[0],
            .listed = (int)(list[1] - list[0]),
            .maps = scratch->maps + (size_t)block * table->max_list * registers * LANES,
        };
        plan_block(conv, table, unit % units, block, scratch);
        for (int chunk = 0; chunk < table->chunks; chunk++) {
            build_chunk(conv, table, scratch, group_in, chunk);
            END_STAGE(conv, build, &since);
            job.tuples = table_chunk_tuples(table, chunk);
            job.first = chunk == 0;
            look_up_floats_all[table->channels][table->vectors][registers](&job);
            job.codes += (size_t)weight->filters * table->taps * table_tap_bytes(job.tuples, table->channels);
            END_STAGE(conv, look_up, &since);
        }
    }
    merge_unit(conv, table, scratch, unit, out);
    END_STAGE(conv, merge, &since);
}

static int32_t table_pieces(const sb_conv *conv) { return ((const table_plan *)conv->prepared)->units; }

static void table_run_pieces(const sb_conv *conv, int32_t first, int32_t last, const float *in, float *out,
                             void *memory) {
    const table_plan *table = conv->prepared;
    table_scratch scratch;
    carve_table_scratch(conv, table, memory, &scratch);
    for (int unit = first; unit < last; unit++)
        run_unit(conv, table, &scratch, unit, in, out);
}

static void table_run(const sb_conv *conv, const float *in, float *out, void *memory) {
    table_run_pieces(conv, 0, table_pieces(conv), in, out, memory);
    apply_rest(conv, out);
}

/* A kernel for tuples of so many channels. */
#define TABLE_KERNEL(kernel, name_of_it, channels) \
    static double kernel##_cost(const sb_conv *conv) { \
        table_plan table; \
        return !is_depthwise(conv) && table_lay_out(conv, LANES, channels, &table) ? table.cost / CYCLES_PER_NANOSECOND : -1; \
    } \
    static size_t kernel##_prepared_size(const sb_conv *conv) { return table_prepared_size(conv, LANES, channels); } \
    static void kernel##_prepare(const sb_conv *conv, void *prepared) { table_prepare(conv, LANES, channels, prepared); } \
    static size_t kernel##_scratch_size(const sb_conv *conv) { \
        table_plan table; \
        table_scratch scratch; \
        return table_lay_out(conv, LANES, channels, &table) ? carve_table_scratch(conv, &table, NULL, &scratch) : 0; \
    } \
    static const sb_conv_kernel kernel = { \
        .name = name_of_it, .cost = kernel##_cost, .prepared_size = kernel##_prepared_size, .prepare = kernel##_prepare, \
        .scratch_size = kernel##_scratch_size, .run = table_run, .adds_in_place = true, .pieces = table_pieces, \
        .run_pieces = table_run_pieces, \
    };
TABLE_KERNEL(table_kernel, "table", TABLE_QUAD)
TABLE_KERNEL(table_5_kernel, "table 5", 5)
TABLE_KERNEL(table_6_kernel, "table 6", 6)
#undef TABLE_KERNEL
