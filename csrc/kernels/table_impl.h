/* The table kernel for one instruction set: build, look up, merge (see table.h). Included by simd_*.c. */
#include "table.h"

enum {
    ENTRY_BYTES = LANES * sizeof(float),
    ENTRY_SHIFT = LANES == 16 ? 6 : LANES == 8 ? 5 : 4, /* log2 of ENTRY_BYTES */
    ENTRY_MASK = (TABLE_ENTRIES - 1) << ENTRY_SHIFT,
    VECTOR_FLOATS = TABLE_ENTRIES * LANES, /* of the table, per vector of pixels */
};

/* Input pixels that belong into one register, or into one segment of it: where they are, and how many exist. */
typedef struct {
    ptrdiff_t source; /* from the first channel of the group */
    int32_t target;   /* in the staging area of one channel */
    int32_t count;    /* lanes behind it are zeros */
} pixel_copy;

typedef struct {
    float *table;      /* [quad of the chunk][vector][entry][lane] */
    float *stage[2];   /* [channel of the quad][vector][lane] */
    float *maps;       /* [block of the unit][place in its list][row][vector][lane] */
    const float **map; /* [input block]: its first map, for the region that is merged */
    pixel_copy *copies;
    int copies_count;
} table_scratch;

static size_t carve_table_scratch(const sb_conv *conv, const table_plan *table, uint8_t *memory, table_scratch *scratch) {
    const size_t registers = (size_t)table->rows * table->vectors;
    size_t used = 0;
    scratch->table = carve(memory, &used, (size_t)table->chunk_quads * table->table_vectors * VECTOR_FLOATS * 4);
    for (int i = 0; i < 2; i++)
        scratch->stage[i] = carve(memory, &used, (size_t)TABLE_QUAD * table->table_vectors * ENTRY_BYTES);
    scratch->maps = carve(memory, &used, (size_t)table->unit_blocks * table->max_list * registers * ENTRY_BYTES);
    scratch->map = carve(memory, &used, (size_t)conv->weight.blocks * sizeof *scratch->map);
    scratch->copies =
        carve(memory, &used, (size_t)table->table_vectors * table->segments * sizeof *scratch->copies);
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

/* ------------------------------------------------------------------------------------------------ build */

/* Lists the copies that fill the staging area of a channel; what they leave out is padding and stays zero. */
static void plan_copies(const sb_conv *conv, const table_plan *table, int unit_of_group, int block, table_scratch *scratch) {
    const int width = table->slot < LANES ? table->slot : LANES;
    const ptrdiff_t plane_size = (ptrdiff_t)conv->height * conv->width;
    scratch->copies_count = 0;
    for (int i = 0; i < table->segments; i++) {
        const table_segment segment = find_segment(conv, table, unit_of_group, block * table->segments + i);
        for (int p = 0; segment.rows && p < table->planes_count; p++) {
            const table_plane *plane = &table->planes[p];
            for (int row = 0; row < plane->rows; row++) {
                const int y = plane->row + (segment.y + row) * conv->stride_h;
                for (int v = 0; y >= 0 && y < conv->height && v < table->vectors; v++) {
                    const int x = plane->column + (segment.x + v * LANES) * conv->stride_w;
                    int count = (conv->width - x + conv->stride_w - 1) / conv->stride_w;
                    if (conv->width <= x)
                        continue;
                    if (count > width)
                        count = width;
                    scratch->copies[scratch->copies_count++] = (pixel_copy){
                        .source = (ptrdiff_t)segment.input_block * conv->weight.depth * plane_size +
                                  (ptrdiff_t)y * conv->width + x,
                        .target = (plane->first + row * table->vectors + v) * LANES + i * width * (width < LANES),
                        .count = count,
                    };
                }
            }
        }
    }
    for (int i = 0; i < 2; i++)
        memset(scratch->stage[i], 0, (size_t)TABLE_QUAD * table->table_vectors * ENTRY_BYTES);
}

/* `count` of the `width` lanes at target, read with a stride; full registers are the common case. */
ALWAYS_INLINE void copy_pixels(float *target, const float *source, int count, const int width, int stride) {
    if (stride == 1 && count == width) {
#if LANES >= 16
        if (width == 16)
            return store16(target, load16(source));
#endif
#if LANES >= 8
        if (width == 8)
            return store8(target, load8(source));
#endif
        return store4(target, load4(source));
    }
    if (stride == 1) {
#if LANES >= 16
        if (width == 16)
            return store16(target, load_part16(source, 0, count));
#endif
#if LANES >= 8
        if (width == 8)
            return store8(target, load_part8(source, 0, count));
#endif
        return store4(target, load_part4(source, 0, count));
    }
    if (stride == 2 && width == LANES && count == LANES) {
        /* 2·LANES − 1 floats are certain to exist; the odd lane of the second load may not. */
        return vstore(target, even_lanes(vload(source), vload_part(source + LANES, 0, LANES - 1)));
    }
    for (int lane = 0; lane < count; lane++)
        target[lane] = source[(ptrdiff_t)lane * stride];
}

ALWAYS_INLINE void stage_channel(const table_scratch *scratch, const float *channel, float *stage, const int width,
                                 int stride) {
    for (int i = 0; i < scratch->copies_count; i++) {
        const pixel_copy *copy = &scratch->copies[i];
        copy_pixels(stage + copy->target, channel + copy->source, copy->count, width, stride);
    }
}

/* The pixels of a quad as vectors. A quad at the end of a block may have fewer than four channels. */
static NEVER_INLINE void stage_quad(const sb_conv *conv, const table_plan *table, const table_scratch *scratch, const float *in, int quad,
                       float *stage) {
    const size_t plane_size = (size_t)conv->height * conv->width;
    const int channels_left = conv->weight.depth - quad * TABLE_QUAD;
    for (int c = 0; c < TABLE_QUAD; c++, stage += table->table_vectors * LANES) {
        const float *channel = in + ((size_t)quad * TABLE_QUAD + c) * plane_size;
        if (c >= channels_left)
            memset(stage, 0, (size_t)table->table_vectors * ENTRY_BYTES);
        else if (table->slot >= LANES)
            stage_channel(scratch, channel, stage, LANES, conv->stride_w);
        else if (table->slot == 8)
            stage_channel(scratch, channel, stage, 8, conv->stride_w);
        else
            stage_channel(scratch, channel, stage, 4, conv->stride_w);
    }
}

/* All 16 signed sums of a quad; bit i of an entry's number is the sign of channel i. */
static NEVER_INLINE void combine_quad(const float *stage, float *table, int vectors) {
    const size_t channel = (size_t)vectors * LANES;
    for (int v = 0; v < vectors; v++, stage += LANES, table += VECTOR_FLOATS) {
        const vfloat a = vload(stage), b = vload(stage + channel);
        const vfloat c = vload(stage + 2 * channel), d = vload(stage + 3 * channel);
        const vfloat low[4] = {-(a + b), a - b, b - a, a + b};
        const vfloat high[4] = {-(c + d), c - d, d - c, c + d};
#pragma GCC unroll 16
        for (int entry = 0; entry < TABLE_ENTRIES; entry++)
            *(vfloat *)(table + entry * LANES) = low[entry % 4] + high[entry / 4];
    }
}

/* Staging runs one quad ahead, so that the sums do not wait for stores of narrower pieces. */
static void build_chunk(const sb_conv *conv, const table_plan *table, const table_scratch *scratch, const float *in,
                        int chunk) {
    const int first = chunk * table->chunk_quads, quads = table_chunk_quads(table, chunk);
    stage_quad(conv, table, scratch, in, first, scratch->stage[0]);
    for (int quad = 0; quad < quads; quad++) {
        if (quad + 1 < quads)
            stage_quad(conv, table, scratch, in, first + quad + 1, scratch->stage[(quad + 1) % 2]);
        combine_quad(scratch->stage[quad % 2], scratch->table + (size_t)quad * table->table_vectors * VECTOR_FLOATS,
                     table->table_vectors);
    }
}

/* ---------------------------------------------------------------------------------------------- look up */

/* What the look-ups of one chunk and block work on. */
typedef struct {
    const table_plan *table;
    const float *sums;     /* the table itself */
    const uint8_t *nibbles;
    const uint16_t *list;  /* of filters */
    int listed, quads;
    float *maps;           /* [place in the list][register][lane] */
    bool first;            /* chunk: maps hold nothing yet */
} look_up_job;

/* Sums of `filters` filters, each over `registers` vectors of pixels: rows of `vectors` registers side by side.
 * All three are constants of the caller, so that every sum stays in a register. */
ALWAYS_INLINE void look_up_filters(const look_up_job *job, int position, const int filters, const int registers,
                                   const int vectors) {
    const table_plan *table = job->table;
    const int quads = job->quads, tap_bytes = table_tap_bytes(quads);
    const size_t quad_bytes = (size_t)table->table_vectors * TABLE_ENTRIES * ENTRY_BYTES;
    const uint8_t *nibbles[TABLE_MAX_VECTORS];
    vfloat sum[2 * TABLE_MAX_VECTORS], parked[2 * TABLE_MAX_VECTORS];
    const int32_t *tap_vector = table->tap_vector;
#pragma GCC unroll 8
    for (int f = 0; f < filters; f++)
        nibbles[f] = job->nibbles + (size_t)job->list[position + f] * table->taps * tap_bytes;
#pragma GCC unroll 16
    for (int i = 0; i < filters * registers; i++)
        parked[i] = sum[i] = (vfloat){0};

    for (int s = 0; s < table->steps_count; s++) {
        const table_step *step = &table->steps[s];
        for (int tap = 0; tap < step->taps; tap++) {
            const uint8_t *entries = (const uint8_t *)job->sums + *tap_vector++ * (TABLE_ENTRIES * ENTRY_BYTES);
            uint64_t word[TABLE_MAX_VECTORS];
#pragma GCC unroll 8
            for (int f = 0; f < filters; f++) {
                uint32_t packed;
                memcpy(&packed, nibbles[f], sizeof packed);
                word[f] = (uint64_t)packed << ENTRY_SHIFT;
                nibbles[f] += tap_bytes;
            }
            for (int quad = 0; quad < quads; quad++, entries += quad_bytes)
#pragma GCC unroll 8
                for (int f = 0; f < filters; f++) {
                    const uint8_t *entry = entries + (word[f] & ENTRY_MASK);
                    HIDE(entry); /* one address per nibble: base + index in every load would double the work of issue */
                    word[f] >>= 4;
#pragma GCC unroll 8
                    for (int r = 0; r < registers; r++)
                        sum[f * registers + r] += *(const vfloat *)(entry + r * (TABLE_ENTRIES * ENTRY_BYTES));
                }
        }
        for (int repeat = 0; repeat < step->repeats; repeat++) {
            vfloat shifted[2 * TABLE_MAX_VECTORS];
            const bool up = step->lanes > 0;
#pragma GCC unroll 16
            for (int i = 0; i < filters * registers; i++) {
                const int column = i % vectors;
                const vfloat before = column ? sum[column ? i - 1 : 0] : (vfloat){0};
                const vfloat behind = column + 1 < vectors ? sum[column + 1 < vectors ? i + 1 : 0] : (vfloat){0};
                shifted[i] = shift_lanes(sum[i], vectors == 1 ? before : up ? before : behind, step->select, step->lanes);
            }
#pragma GCC unroll 16
            for (int i = 0; i < filters * registers; i++)
                sum[i] = shifted[i];
        }
        if (step->park)
#pragma GCC unroll 16
            for (int i = 0; i < filters * registers; i++) {
                parked[i] = sum[i];
                sum[i] = (vfloat){0};
            }
        if (step->unpark)
#pragma GCC unroll 16
            for (int i = 0; i < filters * registers; i++)
                sum[i] += parked[i];
    }

    vfloat *map = (vfloat *)(job->maps + (size_t)position * registers * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < filters * registers; i++)
        map[i] = sum[i] + (job->first ? (vfloat){0} : map[i]);
}

/* Blocks of few registers take several filters at once, or the additions would wait for each other. */
#define DEFINE_LOOK_UP(registers, vectors, filters)                                                                    \
    static void look_up_##registers##_##vectors(const look_up_job *job)                                                     \
    {                                                                                                                  \
        int position = 0;                                                                                              \
        for (; position + filters <= job->listed; position += filters)                                                 \
            look_up_filters(job, position, filters, registers, vectors);                                               \
        for (; position < job->listed; position++)                                                                     \
            look_up_filters(job, position, 1, registers, vectors);                                                     \
    }
DEFINE_LOOK_UP(1, 1, 8)
DEFINE_LOOK_UP(2, 1, 4)
DEFINE_LOOK_UP(3, 1, 3)
DEFINE_LOOK_UP(4, 1, 2)
DEFINE_LOOK_UP(5, 1, 1)
DEFINE_LOOK_UP(6, 1, 1)
DEFINE_LOOK_UP(7, 1, 1)
DEFINE_LOOK_UP(8, 1, 1)
DEFINE_LOOK_UP(2, 2, 4)
DEFINE_LOOK_UP(4, 2, 2)
DEFINE_LOOK_UP(6, 2, 1)
DEFINE_LOOK_UP(8, 2, 1)
DEFINE_LOOK_UP(4, 4, 2)
DEFINE_LOOK_UP(8, 4, 1)
DEFINE_LOOK_UP(8, 8, 1)

static void (*const look_ups[][TABLE_MAX_VECTORS + 1])(const look_up_job *) = {
    [1] = {NULL, look_up_1_1, look_up_2_1, look_up_3_1, look_up_4_1, look_up_5_1, look_up_6_1, look_up_7_1,
           look_up_8_1},
    [2] = {[2] = look_up_2_2, [4] = look_up_4_2, [6] = look_up_6_2, [8] = look_up_8_2},
    [4] = {[4] = look_up_4_4, [8] = look_up_8_4},
    [8] = {[8] = look_up_8_8},
};

/* ------------------------------------------------------------------------------------------------ merge */

/* Pixels of the output that a register, or one segment of it, goes to. */
typedef struct {
    size_t offset; /* of lane 0 in the plane of a channel */
    int begin, end;
} table_piece;

static void find_pieces(const sb_conv *conv, const table_plan *table, const table_segment *segment, int width,
                        table_piece *piece) {
    for (int row = 0; row < segment->rows; row++)
        for (int v = 0; v < table->vectors; v++, piece++) {
            const int x = segment->x + v * width, begin = segment->begin - v * width, end = segment->end - v * width;
            piece->offset = (size_t)(segment->y + row) * conv->out_width + x;
            piece->begin = begin < 0 ? 0 : begin < width ? begin : width;
            piece->end = end < piece->begin ? piece->begin : end < width ? end : width;
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
#endif

static void merge_unit(const sb_conv *conv, const table_plan *table, const table_scratch *scratch, int unit, float *out) {
    const int blocks = conv->weight.blocks, units = table->units / conv->groups;
    const size_t block_floats = (size_t)table->max_list * table->rows * table->vectors * LANES;
    for (int region = 0; region < table->unit_regions; region++) {
        const table_segment segment = find_segment(conv, table, unit % units, region * blocks);
        for (int i = 0; i < blocks; i++) {
            const int number = region * blocks + i;
            scratch->map[i] = scratch->maps + number / table->segments * block_floats +
                              (table->segments > 1 ? number % table->segments * table->slot : 0);
        }
        if (table->slot >= LANES)
            PASTE(merge_region, LANES)(conv, table, &segment, unit / units, scratch->map, out);
#if LANES >= 16
        else if (table->slot == 8)
            merge_region8(conv, table, &segment, unit / units, scratch->map, out);
#endif
        else
            merge_region4(conv, table, &segment, unit / units, scratch->map, out);
    }
}

/* --------------------------------------------------------------------------------------------------- run */

static void run_unit(const sb_conv *conv, const table_plan *table, table_scratch *scratch, int unit, const float *in,
                     float *out) {
    const sb_weight *weight = &conv->weight;
    const int units = table->units / conv->groups, group = unit / units, registers = table->rows * table->vectors;
    const float *group_in = in + (size_t)group * weight->blocks * weight->depth * conv->height * conv->width;
    for (int block = 0; block < table->unit_blocks; block++) {
        const uint32_t *list = &table->list_begin[group * table->unit_blocks + block];
        look_up_job job = {
            .table = table,
            .sums = scratch->table,
            .nibbles = table->nibbles,
            .list = table->list + list[0],
            .listed = (int)(list[1] - list[0]),
            .maps = scratch->maps + (size_t)block * table->max_list * registers * LANES,
        };
        plan_copies(conv, table, unit % units, block, scratch);
        for (int chunk = 0; chunk < table->chunks; chunk++) {
            build_chunk(conv, table, scratch, group_in, chunk);
            job.quads = table_chunk_quads(table, chunk);
            job.first = chunk == 0;
            look_ups[table->vectors][registers](&job);
            job.nibbles += (size_t)weight->filters * table->taps * table_tap_bytes(job.quads);
        }
    }
    merge_unit(conv, table, scratch, unit, out);
}

static double table_cost(const sb_conv *conv) {
    table_plan table;
    return table_lay_out(conv, LANES, &table) ? table.cost / CYCLES_PER_NANOSECOND : -1;
}

static size_t table_prepared_size_here(const sb_conv *conv) { return table_prepared_size(conv, LANES); }

static void table_prepare_here(const sb_conv *conv, void *prepared) { table_prepare(conv, LANES, prepared); }

static size_t table_scratch_size(const sb_conv *conv) {
    table_plan table;
    table_scratch scratch;
    return table_lay_out(conv, LANES, &table) ? carve_table_scratch(conv, &table, NULL, &scratch) : 0;
}

static void table_run(const sb_conv *conv, const float *in, float *out, void *memory) {
    const table_plan *table = conv->prepared;
    table_scratch scratch;
    carve_table_scratch(conv, table, memory, &scratch);
    for (int unit = 0; unit < table->units; unit++)
        run_unit(conv, table, &scratch, unit, in, out);
    apply_rest(conv, out);
}

static const sb_conv_kernel table_kernel = {
    "table", table_cost, table_prepared_size_here, table_prepare_here, table_scratch_size, table_run,
};
