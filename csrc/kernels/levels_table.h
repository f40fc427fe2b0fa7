/* The table kernel on levels: table.h with 16-bit sums, two for each float of a register.
 *
 * Tuples are quads here. The sums of a span of chunks are sure to fit 16 bits (table_plan.c chooses it so); from span to
 * span they are added in 32 bits, and after the last one they become the floats that are merged. Everything up to there
 * is exact. */

enum { LEVEL_VECTOR_SHORTS = TABLE_ENTRIES * SHORTS }; /* of the table, per vector of pixels */

enum { MAX_SEGMENTS = SHORTS / 4 };

/* Where the pixels of a register come from that several whole rows share. */
typedef struct {
    vshort inside;                  /* all bits of the lanes that are no padding */
    ptrdiff_t source[MAX_SEGMENTS]; /* from the first channel of the group; anywhere in it where a segment is padding */
} shared_register;

typedef struct {
    int16_t *table;   /* [quad of the chunk][vector][entry][lane] */
    int8_t *stage[2]; /* [channel of the quad][vector][lane], used in turn where segments share registers */
    int16_t *span;    /* [place in the list of a block][row][vector][lane]: sums over the chunks that 16 bits hold */
    float *maps;      /* [block of the unit][place in its list][row][vector][lane]; whole numbers until the last chunk */
    const float **map; /* [input block]: its first map, for the region that is merged */
    pixel_copy *copies;
    int copies_count;
    shared_register *shared; /* [vector], where gathers_rows */
} level_scratch;

static size_t carve_level_scratch(const sb_conv *conv, const table_plan *table, uint8_t *memory, level_scratch *scratch) {
    const size_t registers = (size_t)table->rows * table->vectors;
    size_t used = 0;
    scratch->table = carve(memory, &used, (size_t)table->chunk_tuples * table->table_vectors * LEVEL_VECTOR_SHORTS * 2);
    for (int i = 0; i < 2; i++)
        scratch->stage[i] = carve(memory, &used, (size_t)TABLE_QUAD * table->table_vectors * SHORTS);
    scratch->span = carve(memory, &used, (size_t)table->max_list * registers * SHORTS * 2);
    scratch->maps = carve(memory, &used, (size_t)table->unit_blocks * table->max_list * registers * SHORTS * 4);
    scratch->map = carve(memory, &used, (size_t)conv->weight.blocks * sizeof *scratch->map);
    scratch->copies = carve(memory, &used, (size_t)table->table_vectors * table->segments * sizeof *scratch->copies);
    scratch->copies_count = 0;
    scratch->shared = carve(memory, &used, (size_t)table->table_vectors * sizeof *scratch->shared);
    return used;
}

/* Do registers consist of whole rows of the input? Then they are put together as they are read. */
static bool gathers_rows(const sb_conv *conv, const table_plan *table) {
    return table->segments > 1 && conv->stride_w == 1 && conv->width == table->slot && table->x_tiles == 1;
}

/* Where all segments of a unit share registers, those of one input block lie side by side, so that the merge takes
 * several regions at once; otherwise the segments are numbered region by region. */
static bool sorted_by_block(const table_plan *table) { return table->unit_blocks == 1; }

static table_segment find_level_segment(const sb_conv *conv, const table_plan *table, int unit_of_group, int number) {
    const int regions = table->unit_regions, blocks = conv->weight.blocks;
    return find_segment(conv, table, unit_of_group,
                        sorted_by_block(table) ? number % regions * blocks + number / regions : number);
}

/* ------------------------------------------------------------------------------------------------ build */

static void clear_level_vector(const table_plan *table, const level_scratch *scratch, int vector) {
    for (int quad = 0; quad < table->chunk_tuples; quad++)
        memset(scratch->table + ((size_t)quad * table->table_vectors + vector) * LEVEL_VECTOR_SHORTS, 0,
               LEVEL_VECTOR_SHORTS * sizeof(int16_t));
}

/* Lists where the levels of one segment of every channel go, as plan_segment does it. */
static void plan_level_segment(const sb_conv *conv, const table_plan *table, const table_segment *segment, int lane,
                               level_scratch *scratch) {
    const int width = table->slot < SHORTS ? table->slot : SHORTS;
    const ptrdiff_t first = (ptrdiff_t)segment->input_block * conv->weight.depth * conv->height * conv->width;
    for (const table_plane *plane = table->planes; plane < table->planes + table->planes_count; plane++)
        for (int at = 0; at < plane->rows * table->vectors; at++) {
            const int y = plane->row + (segment->y + at / table->vectors) * conv->stride_h;
            const int x = plane->column + (segment->x + at % table->vectors * SHORTS) * conv->stride_w;
            const int vector = plane->first + at;
            if (y < 0 || y >= conv->height || x >= conv->width) {
                if (table->segments == 1)
                    clear_level_vector(table, scratch, vector);
                continue;
            }
            const int count = (conv->width - 1 - x) / conv->stride_w + 1;
            scratch->copies[scratch->copies_count++] = (pixel_copy){
                .source = first + (ptrdiff_t)y * conv->width + x,
                .target = vector * SHORTS + lane,
                .count = count < width ? count : width,
            };
        }
}

/* The same for whole rows that share registers. */
static void plan_shared_registers(const sb_conv *conv, const table_plan *table, const table_segment *segment, int number,
                                  level_scratch *scratch) {
    const ptrdiff_t first = (ptrdiff_t)segment->input_block * conv->weight.depth * conv->height * conv->width;
    for (const table_plane *plane = table->planes; plane < table->planes + table->planes_count; plane++)
        for (int row = 0; row < plane->rows; row++) {
            const int y = plane->row + (segment->y + row) * conv->stride_h;
            const bool inside = segment->rows && y >= 0 && y < conv->height;
            shared_register *shared = &scratch->shared[plane->first + row];
            shared->source[number] = inside ? first + (ptrdiff_t)y * conv->width : 0;
            memset((int16_t *)&shared->inside + number * table->slot, inside ? -1 : 0, (size_t)table->slot * sizeof(int16_t));
        }
}

static void plan_level_block(const sb_conv *conv, const table_plan *table, int unit_of_group, int block,
                             level_scratch *scratch) {
    scratch->copies_count = 0;
    if (gathers_rows(conv, table)) {
        for (int i = 0; i < table->segments; i++) {
            const table_segment segment = find_level_segment(conv, table, unit_of_group, block * table->segments + i);
            plan_shared_registers(conv, table, &segment, i, scratch);
        }
        return;
    }
    for (int i = 0; i < 2 && table->segments > 1; i++)
        memset(scratch->stage[i], 0, (size_t)TABLE_QUAD * table->table_vectors * SHORTS);
    for (int i = 0; i < table->segments; i++) {
        const table_segment segment = find_level_segment(conv, table, unit_of_group, block * table->segments + i);
        if (segment.rows)
            plan_level_segment(conv, table, &segment, table->segments > 1 ? i * table->slot : 0, scratch);
    }
}

ALWAYS_INLINE void store_level_sums(vshort a, vshort b, vshort c, vshort d, int16_t *sums) {
    const vshort low[4] = {-(a + b), a - b, b - a, a + b};
    const vshort high[4] = {-(c + d), c - d, d - c, c + d};
    UNROLL
    for (int entry = 0; entry < TABLE_ENTRIES; entry++)
        *(vshort *)(sums + entry * SHORTS) = low[entry % 4] + high[entry / 4];
}

/* A quad whose rows fill registers: straight from the input to the table. Vectors of padding were cleared before. */
static NEVER_INLINE void build_level_quad(const level_scratch *scratch, const int8_t *in, size_t plane, int channels,
                                          int stride, int16_t *table) {
    for (int i = 0; i < scratch->copies_count; i++) {
        const pixel_copy *copy = &scratch->copies[i];
        vshort x[TABLE_QUAD];
        UNROLL
        for (int c = 0; c < TABLE_QUAD; c++)
            x[c] = c < channels ? load_levels(in + c * plane + copy->source, copy->count, stride) : (vshort){0};
        store_level_sums(x[0], x[1], x[2], x[3], table + (size_t)copy->target * TABLE_ENTRIES);
    }
}

/* A quad of which whole rows of `slot` pixels share registers. */
ALWAYS_INLINE void gather_level_quad(const table_plan *table, const level_scratch *scratch, const int8_t *in, size_t plane,
                                     int channels, const int slot, int16_t *sums) {
    for (int v = 0; v < table->table_vectors; v++, sums += LEVEL_VECTOR_SHORTS) {
        const shared_register *shared = &scratch->shared[v];
        vshort x[TABLE_QUAD];
        UNROLL
        for (int c = 0; c < TABLE_QUAD; c++)
            x[c] = (c < channels ? gather_rows(in + c * plane, shared->source, slot) : (vshort){0}) & shared->inside;
        store_level_sums(x[0], x[1], x[2], x[3], sums);
    }
}

static NEVER_INLINE void gather_levels(const sb_conv *conv, const table_plan *table, const level_scratch *scratch,
                                       const int8_t *in, int channels, int16_t *sums) {
    const size_t plane = (size_t)conv->height * conv->width;
    if (table->slot == 4)
        gather_level_quad(table, scratch, in, plane, channels, 4, sums);
#if LANES >= 8
    else if (table->slot == 8)
        gather_level_quad(table, scratch, in, plane, channels, 8, sums);
#endif
#if LANES >= 16
    else
        gather_level_quad(table, scratch, in, plane, channels, 16, sums);
#endif
}

/* Every second one of 2 · `width` levels: of the pairs that start at an even place, the first or the second. */
ALWAYS_INLINE void stage_pairs(int8_t *target, const int8_t *pairs, const bool second, const int width) {
    typedef int16_t pairs4 __attribute__((vector_size(8), may_alias, aligned(1)));
    typedef int8_t firsts4 __attribute__((vector_size(4), may_alias, aligned(1)));
    typedef int16_t pairs8 __attribute__((vector_size(16), may_alias, aligned(1)));
    typedef int8_t firsts8 __attribute__((vector_size(8), may_alias, aligned(1)));
    if (width == 4)
        *(firsts4 *)target = __builtin_convertvector(*(const pairs4 *)pairs >> (second ? 8 : 0), firsts4);
    else
        for (int lane = 0; lane < width; lane += 8)
            *(firsts8 *)(target + lane) = __builtin_convertvector(*(const pairs8 *)(pairs + 2 * lane) >> (second ? 8 : 0), firsts8);
}

/* A quad of which several segments of `width` lanes share a register: staged as bytes first, [channel][vector][lane].
 * Rows of an even width (`paired`) have their pairs at even places throughout, and both of each pair are there. */
ALWAYS_INLINE void stage_level_quad(const table_plan *table, const level_scratch *scratch, const int8_t *in,
                                    size_t plane, int channels, const int width, int stride, bool paired,
                                    int8_t *stage) {
    for (int c = 0; c < channels; c++, in += plane, stage += table->table_vectors * SHORTS)
        for (int i = 0; i < scratch->copies_count; i++) {
            const pixel_copy *copy = &scratch->copies[i];
            if (stride == 1 && copy->count == width)
                memcpy(stage + copy->target, in + copy->source, (size_t)width);
            else if (stride == 2 && paired && copy->count == width && copy->source % 2)
                stage_pairs(stage + copy->target, in + copy->source - 1, true, width);
            else if (stride == 2 && paired && copy->count == width)
                stage_pairs(stage + copy->target, in + copy->source, false, width);
            else
                for (int lane = 0; lane < copy->count; lane++)
                    stage[copy->target + lane] = in[copy->source + (ptrdiff_t)lane * stride];
        }
    if (channels < TABLE_QUAD)
        memset(stage, 0, (size_t)(TABLE_QUAD - channels) * table->table_vectors * SHORTS);
}

static NEVER_INLINE void stage_levels(const sb_conv *conv, const table_plan *table, const level_scratch *scratch,
                                      const int8_t *in, int channels, int8_t *stage) {
    const size_t plane = (size_t)conv->height * conv->width;
    const bool paired = conv->width % 2 == 0;
    if (table->slot == 4)
        stage_level_quad(table, scratch, in, plane, channels, 4, conv->stride_w, paired, stage);
#if LANES >= 8
    else if (table->slot == 8)
        stage_level_quad(table, scratch, in, plane, channels, 8, conv->stride_w, paired, stage);
#endif
#if LANES >= 16
    else
        stage_level_quad(table, scratch, in, plane, channels, 16, conv->stride_w, paired, stage);
#endif
}

static NEVER_INLINE void combine_staged_levels(const int8_t *stage, int vectors, int16_t *table) {
    const size_t channel = (size_t)vectors * SHORTS;
    for (int v = 0; v < vectors; v++, stage += SHORTS, table += LEVEL_VECTOR_SHORTS)
        store_level_sums(widen(stage), widen(stage + channel), widen(stage + 2 * channel), widen(stage + 3 * channel),
                         table);
}

/* The table of a chunk. Staging runs one quad ahead: sums would wait for the stores of narrower pieces. */
static void build_level_chunk(const sb_conv *conv, const table_plan *table, const level_scratch *scratch,
                              const int8_t *in, int chunk) {
    const size_t plane = (size_t)conv->height * conv->width;
    const size_t quad_shorts = (size_t)table->table_vectors * LEVEL_VECTOR_SHORTS;
    const int first = chunk * table->chunk_tuples, quads = table_chunk_tuples(table, chunk);
    const bool gathers = gathers_rows(conv, table), stages = table->segments > 1 && !gathers;
    for (int quad = 0; quad < quads + stages; quad++) {
        const int8_t *quad_in = in + (size_t)(first + quad) * TABLE_QUAD * plane;
        const int channels = quad_channels(conv, first + quad);
        int16_t *sums = scratch->table + quad * quad_shorts;
        if (gathers)
            gather_levels(conv, table, scratch, quad_in, channels, sums);
        else if (!stages)
            build_level_quad(scratch, quad_in, plane, channels, conv->stride_w, sums);
        else if (quad < quads)
            stage_levels(conv, table, scratch, quad_in, channels, scratch->stage[quad % 2]);
        if (quad > 0 && stages)
            combine_staged_levels(scratch->stage[(quad - 1) % 2], table->table_vectors, sums - quad_shorts);
    }
}

/* ---------------------------------------------------------------------------------------------- look up */

ALWAYS_INLINE vshort look_up_levels_shift(vshort sum, vshort other, const table_step *step, const int vectors,
                                          const look_up_job *job) {
    return vectors == 1 ? shift_row_of_shorts(sum, step, job->narrow) : shift_shorts(sum, other, step->select_short, step->lanes);
}

ALWAYS_INLINE void add_level_sum(const look_up_job *job, size_t place, vshort sum) {
    vshort *span = (vshort *)(job->span + place);
    if (!job->span_begins)
        sum += *span;
    if (!job->span_ends) {
        *span = sum;
        return;
    }
    float *map = job->maps + place;
    UNROLL
    for (int half = 0; half < 2; half++, map += LANES) {
        vword wide = widen_half(sum, half);
        if (!job->first)
            wide += *(const vword *)map;
        if (job->last)
            *(vfloat *)map = __builtin_convertvector(wide, vfloat);
        else
            *(vword *)map = wide;
    }
}

ALWAYS_INLINE void look_up_levels_add(const look_up_job *job, size_t place, const vshort *sum, const int count) {
    const look_up_job local = *job; /* a vector that is stored might be part of the original */
    UNROLL
    for (int i = 0; i < count; i++)
        add_level_sum(&local, place + (size_t)i * SHORTS, sum[i]);
}

ALWAYS_INLINE vshort look_up_levels_factor(uint64_t word, const int entries) {
    (void)word, (void)entries;
    return (vshort){0};
}

ALWAYS_INLINE vshort look_up_levels_plus(vshort sum, vshort factor, vshort entry, const bool half) {
    (void)factor, (void)half;
    return sum + entry;
}

#define vsum vshort
#define SUM_LANES SHORTS
#define SUM_CHANNELS 4
#define SUM_ENTRIES(registers, channels) TABLE_ENTRIES
#define SUM_REGISTERS 8
#define LOOK_UP(suffix) look_up_levels##suffix
#include "table_look_up.h"

/* ------------------------------------------------------------------------------------------------ merge */

/* Neighbouring lanes of a map, and the pixels of the output that they go to: one run of them, or one per segment. */
typedef struct {
    int map;             /* of lane 0 in the map of the first segment */
    int parts;
    size_t offset[4];    /* of lane 0 of each part in the plane of a channel */
    int begin[4], end[4]; /* lanes of each part that are output */
} level_piece;

/* What is merged at once: the maps of one region, or of all regions of a unit, into the channels of one group. */
typedef struct {
    const sb_conv *conv;
    const float *const *map;    /* [input block] */
    const uint32_t *map_offset; /* (out, blocks) */
    size_t begin, end;          /* output channels */
    level_piece pieces[2 * TABLE_MAX_VECTORS];
    int pieces_count, part_width;
    bool straight;              /* every piece goes to one run of the output, all of its lanes */
    float *out;                 /* NULL: levels alone */
} level_merge_job;

#if LANES >= 16
/* Two parts of eight lanes, all of which are output. */
ALWAYS_INLINE bool in_halves(const level_piece *piece) {
    return piece->parts == 2 && piece->end[0] - piece->begin[0] == 8 && piece->end[1] - piece->begin[1] == 8;
}
#endif

/* Lanes begin..end-1 of a part of at most `width`; most often these are four or eight. */
ALWAYS_INLINE void copy_part(float *to, const float *from, int begin, int end, const int width) {
    if (width >= 8 && end - begin == 8)
        memcpy(to + begin, from + begin, 8 * sizeof(float));
    else if (end - begin == 4)
        memcpy(to + begin, from + begin, 4 * sizeof(float));
    else
        for (int lane = begin; lane < end; lane++)
            to[lane] = from[lane];
}

/* Adds the pieces of `regions` regions whose segments lie side by side, from segment `number` of the unit on. */
static void find_level_pieces(const sb_conv *conv, const table_plan *table, int unit_of_group, int number, int regions,
                              int width, level_merge_job *job) {
    const int part_width = width < table->slot ? width : table->slot;
    job->pieces_count = 0;
    job->part_width = part_width;
    job->straight = true;
    for (int row = 0; row < table->rows; row++)
        for (int x = 0; x < regions * table->slot; x += width) {
            level_piece piece = {.map = row * table->vectors * SHORTS + x};
            bool output = false;
            for (int lane = x; lane < x + width; lane += part_width, piece.parts++) {
                const table_segment segment = find_level_segment(conv, table, unit_of_group, number + lane / table->slot);
                const int inside = lane % table->slot, end = segment.end - inside, begin = segment.begin - inside;
                size_t *offset = &piece.offset[piece.parts];
                if (row < segment.rows && end > 0 && begin < part_width) {
                    *offset = (size_t)(segment.y + row) * conv->out_width + segment.x + inside;
                    piece.begin[piece.parts] = begin < 0 ? 0 : begin;
                    piece.end[piece.parts] = end < part_width ? end : part_width;
                    output = true;
                }
                job->straight = job->straight && piece.end[piece.parts] - piece.begin[piece.parts] == part_width &&
                                *offset == piece.offset[0] + (size_t)(piece.parts * part_width);
            }
            if (output)
                job->pieces[job->pieces_count++] = piece;
        }
}

#define WIDTH 4
#include "levels_merge.h"
#if LANES >= 8
#define WIDTH 8
#include "levels_merge.h"
#endif
#if LANES >= 16
#define WIDTH 16
#include "levels_merge.h"
#endif

static void merge_level_unit(const sb_conv *conv, const table_plan *table, const level_scratch *scratch, int unit,
                             float *out) {
    const int blocks = conv->weight.blocks, units = table->units / conv->groups, group = unit / units;
    const int together = sorted_by_block(table) ? table->unit_regions : 1;
    const int width = together * table->slot < LANES ? together * table->slot : LANES;
    const size_t block_floats = (size_t)table->max_list * table->rows * table->vectors * SHORTS;
    const size_t per_group = (size_t)(conv->weight.out / conv->groups);
    level_merge_job job = {
        .conv = conv, .map = scratch->map, .map_offset = table->map_offset, .out = out,
        .begin = group * per_group, .end = (group + 1) * per_group,
    };
    for (int region = 0; region < table->unit_regions; region += together) {
        find_level_pieces(conv, table, unit % units, region * blocks, together, width, &job);
        for (int i = 0; i < blocks; i++) {
            const int number = region * blocks + i * together;
            scratch->map[i] = scratch->maps + number / table->segments * block_floats +
                              (table->segments > 1 ? number % table->segments * table->slot : 0);
        }
        if (width == LANES)
            PASTE(merge_level_pieces, LANES)(&job);
#if LANES >= 16
        else if (width == 8)
            merge_level_pieces8(&job);
#endif
        else
            merge_level_pieces4(&job);
    }
}

/* --------------------------------------------------------------------------------------------------- run */

static void run_level_unit(const sb_conv *conv, const table_plan *table, level_scratch *scratch, int unit,
                           const int8_t *in, float *out) {
    const sb_weight *weight = &conv->weight;
    const int units = table->units / conv->groups, group = unit / units, registers = table->rows * table->vectors;
    const int8_t *group_in = in + (size_t)group * weight->blocks * weight->depth * conv->height * conv->width;
    uint64_t since = BEGIN_STAGE(conv);
    for (int block = 0; block < table->unit_blocks; block++) {
        const uint32_t *list = &table->list_begin[group * table->unit_blocks + block];
        look_up_job job = {
            .table = table,
            .sums = scratch->table,
            .codes = table->codes,
            .list = table->list + list[0],
            .listed = (int)(list[1] - list[0]),
            .maps = scratch->maps + (size_t)block * table->max_list * registers * SHORTS,
            .span = scratch->span,
            .first = true,
            .span_begins = true,
            .narrow = table->segments > 1,
        };
        plan_level_block(conv, table, unit % units, block, scratch);
        for (int chunk = 0; chunk < table->chunks; chunk++) {
            build_level_chunk(conv, table, scratch, group_in, chunk);
            END_STAGE(conv, build, &since);
            job.tuples = table_chunk_tuples(table, chunk);
            job.last = chunk + 1 == table->chunks;
            job.span_ends = table->span_ends[chunk];
            look_up_levels_all[TABLE_QUAD][table->vectors][registers](&job);
            job.first = job.first && !job.span_ends;
            job.span_begins = job.span_ends;
            job.codes += (size_t)weight->filters * table->taps * table_tap_bytes(job.tuples, TABLE_QUAD);
            END_STAGE(conv, look_up, &since);
        }
    }
    merge_level_unit(conv, table, scratch, unit, out);
    END_STAGE(conv, merge, &since);
}

/* The estimate counts loads; 32 lanes of them leave more time between the loads than 16 or 8, and rows that do not fill
 * their slots are read and written in pieces. */
static double level_table_cost(const sb_conv *conv) {
    table_plan table;
    if (!table_lay_out(conv, SHORTS, TABLE_QUAD, &table))
        return -1;
    const double measured = LANES < 16 ? 1 : conv->out_width % table.slot ? 1.8 : 1.35;
    return measured * table.cost / CYCLES_PER_NANOSECOND;
}

static size_t level_table_prepared_size(const sb_conv *conv) { return table_prepared_size(conv, SHORTS, TABLE_QUAD); }

static void level_table_prepare(const sb_conv *conv, void *prepared) {
    table_prepare(conv, SHORTS, TABLE_QUAD, prepared);
}

static size_t level_table_scratch_size(const sb_conv *conv) {
    table_plan table;
    level_scratch scratch;
    return table_lay_out(conv, SHORTS, TABLE_QUAD, &table) ? carve_level_scratch(conv, &table, NULL, &scratch) : 0;
}

static void level_table_run_pieces(const sb_conv *conv, int32_t first, int32_t last, const int8_t *in, float *out,
                                   void *memory) {
    const table_plan *table = conv->prepared;
    level_scratch scratch;
    carve_level_scratch(conv, table, memory, &scratch);
    for (int unit = first; unit < last; unit++)
        run_level_unit(conv, table, &scratch, unit, in, out);
}

static void level_table_run(const sb_conv *conv, const int8_t *in, float *out, void *memory) {
    level_table_run_pieces(conv, 0, table_pieces(conv), in, out, memory);
    if (out)
        apply_rest(conv, out);
}

static const sb_conv_kernel level_table_kernel = {
    .name = "table", .cost = level_table_cost, .prepared_size = level_table_prepared_size,
    .prepare = level_table_prepare, .scratch_size = level_table_scratch_size, .adds_in_place = true, .run_levels = level_table_run,
    .pieces = table_pieces, .run_level_pieces = level_table_run_pieces,
};
