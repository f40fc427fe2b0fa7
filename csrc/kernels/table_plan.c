/* Planning for the table kernel: geometry of slots and tiles, cost, order of the taps, weights as codes. */
#include "table.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__unix__)
#include <unistd.h>
#endif

enum {
    CACHE_BYTES = 32 * 1024, /* the smallest first-level cache of data around */
    CACHE_LIMIT = 40 * 1024, /* what a table of floats may take: larger chunks make up for what a small cache lacks */
};

static int ceil_div(int a, int b) { return (a + b - 1) / b; }
static int floor_div(int a, int b) { return a >= 0 ? a / b : -ceil_div(-a, b); }
static int floor_mod(int a, int b) { return a - b * floor_div(a, b); }
static int smaller(int a, int b) { return a < b ? a : b; }
static int larger(int a, int b) { return a > b ? a : b; }

static int greatest_common_divisor(int a, int b) {
    while (b) {
        const int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Where the taps of one dimension read: tap i at position start + i·dilation = offset·stride + phase. */
typedef struct {
    int count, stride, start, dilation;
} axis_taps;

static axis_taps rows_of(const sb_conv *c) {
    return (axis_taps){c->weight.kernel_h, c->stride_h, -c->pad_top, c->dilation_h};
}

static axis_taps columns_of(const sb_conv *c) {
    return (axis_taps){c->weight.kernel_w, c->stride_w, -c->pad_left, c->dilation_w};
}

static int axis_position(const axis_taps *axis, int tap) { return axis->start + tap * axis->dilation; }
static int axis_offset(const axis_taps *axis, int tap) { return floor_div(axis_position(axis, tap), axis->stride); }
static int axis_phase(const axis_taps *axis, int tap) { return floor_mod(axis_position(axis, tap), axis->stride); }

/* Smallest and largest offset among the taps of one phase; false if no tap has it. */
static bool phase_range(const axis_taps *axis, int phase, int *low, int *high) {
    *low = INT_MAX;
    *high = INT_MIN;
    for (int tap = 0; tap < axis->count; tap++)
        if (axis_phase(axis, tap) == phase) {
            *low = smaller(*low, axis_offset(axis, tap));
            *high = larger(*high, axis_offset(axis, tap));
        }
    return *low <= *high;
}

/* --------------------------------------------------------------------------------------------- geometry */

/* Tiles of a row: each slot but the first loses `left` lanes, each but the last `right`, to its neighbour's pixels. */
static bool tile_columns(const sb_conv *conv, table_plan *table) {
    const axis_taps columns = columns_of(conv);
    table->left = larger(0, -axis_offset(&columns, 0));
    table->right = larger(0, axis_offset(&columns, columns.count - 1));
    const int step = table->slot - table->left - table->right;
    for (table->x_tiles = 1;; table->x_tiles++) {
        const int end = (table->x_tiles - 1) * step + table->slot;
        const bool sees_all = (int64_t)end * conv->stride_w >= conv->width;
        if (conv->out_width <= (sees_all ? end : end - table->right))
            return true;
        if (step <= 0)
            return false;
    }
}

/* Counts the planes and the vectors of all of them; lists them too where `planes` is given. */
static void lay_out_planes(const sb_conv *conv, table_plan *table, table_plane *planes) {
    const axis_taps rows = rows_of(conv), columns = columns_of(conv);
    int low, high, left, right;
    table->planes_count = 0;
    table->table_vectors = 0;
    for (int y = 0; y < rows.stride; y++) {
        if (!phase_range(&rows, y, &low, &high))
            continue;
        for (int x = 0; x < columns.stride; x++) {
            if (!phase_range(&columns, x, &left, &right))
                continue;
            const table_plane plane = {low * rows.stride + y, x, high - low + table->rows, table->table_vectors};
            if (planes)
                planes[table->planes_count] = plane;
            table->planes_count++;
            table->table_vectors += plane.rows * table->vectors;
        }
    }
}

static bool has_levels(const sb_conv *conv) { return conv->levels.step > 0; }

static int lane_bytes(const sb_conv *conv) { return has_levels(conv) ? (int)sizeof(int16_t) : (int)sizeof(float); }

/* Levels that 16 bits can add up, whatever they are. */
static int most_levels(const sb_conv *conv) {
    return INT16_MAX / larger(-sb_lowest_level(conv->levels), sb_highest_level(conv->levels));
}

static int bits_set(uint8_t byte) {
    static const uint8_t counts[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    return counts[byte & 15] + counts[byte >> 4];
}

/* Do the sums over `signs` signs, `positive` of them +1, fit 16 bits? Levels from 0 to 127 add up to at most 127 times the +1s,
 * and to at least -127 times the -1s. */
static bool sums_fit(const sb_conv *conv, int signs, int positive) {
    const int most = most_levels(conv);
    return conv->levels.is_signed ? signs <= most : positive <= most && signs - positive <= most;
}

/* Do the sums of chunks of TABLE_MAX_TUPLES fit, given how many signs of each kind the filters have there? */
static bool whole_chunks_fit(const sb_conv *conv) {
    const sb_weight *weight = &conv->weight;
    const int taps = weight->kernel_h * weight->kernel_w, bytes = weight->depth / 8, step = TABLE_MAX_TUPLES * TABLE_QUAD / 8;
    if (conv->levels.is_signed || weight->depth % 8 || (bytes > step && bytes % step))
        return false;
    for (int filter = 0; filter < weight->filters; filter++)
        for (int first = 0; first < bytes; first += step) {
            const int width = smaller(step, bytes - first);
            int ones = 0;
            for (int tap = 0; tap < taps; tap++)
                for (int i = 0; i < width; i++)
                    ones += bits_set(weight->bits[((size_t)filter * taps + tap) * bytes + first + i]);
            if (!sums_fit(conv, width * 8 * taps, ones))
                return false;
        }
    return true;
}

/* Tuples whose sums over all taps are sure to fit; 0 where those of a single one may not. */
static int most_tuples(const sb_conv *conv) {
    if (!has_levels(conv))
        return TABLE_MAX_TUPLES;
    const int tuples = most_levels(conv) / (TABLE_QUAD * conv->weight.kernel_h * conv->weight.kernel_w);
    return tuples > 1 ? smaller(TABLE_MAX_TUPLES, tuples / 2 * 2) : tuples;
}

/* Bytes of the first-level cache, asked for once: in a virtual machine the answer takes long. */
static int first_level_cache(void) {
    static atomic_int known;
    int bytes = atomic_load_explicit(&known, memory_order_relaxed);
    if (!bytes) {
        bytes = CACHE_BYTES;
#if defined(_SC_LEVEL1_DCACHE_SIZE)
        const long size = sysconf(_SC_LEVEL1_DCACHE_SIZE);
        bytes = size > CACHE_BYTES ? (int)(size < 2 * CACHE_BYTES ? size : 2 * CACHE_BYTES) : CACHE_BYTES;
#endif
        atomic_store_explicit(&known, bytes, memory_order_relaxed);
    }
    return bytes;
}

/* What the table of a chunk may take. Sums of floats depend on their order, which should not depend on the machine. */
static int cache_bytes(const sb_conv *conv) { return has_levels(conv) ? first_level_cache() * 5 / 6 : CACHE_LIMIT; }

/* Chunks of equal size, as large as the cache allows. An odd number of quads would waste half a byte. */
static void choose_chunks(const sb_conv *conv, table_plan *table) {
    const int tuple_bytes = table->table_vectors * table->entries * table->lanes * lane_bytes(conv);
    const int step = table->channels == TABLE_QUAD ? 2 : 1;
    const int cached = smaller(TABLE_WORD_BITS / table->channels, larger(step, cache_bytes(conv) / tuple_bytes / step * step));
    table->tuples = ceil_div(conv->weight.depth, table->channels);
    const bool whole = table->whole_chunks && cached >= TABLE_MAX_TUPLES;
    const int most = whole ? TABLE_MAX_TUPLES : smaller(table->most_tuples, cached);
    table->chunks = ceil_div(table->tuples, most);
    table->chunk_tuples = ceil_div(table->tuples, table->chunks);
    if (table->chunk_tuples > 1)
        table->chunk_tuples = ceil_div(table->chunk_tuples, step) * step;
    table->chunks = ceil_div(table->tuples, table->chunk_tuples);
}

static int table_bytes(const sb_conv *conv, const table_plan *table) {
    return table->chunk_tuples * table->table_vectors * table->entries * table->lanes * lane_bytes(conv);
}

/* Cycles, roughly, of a core with two loads and one store a cycle. Wide tuples leave less of the first-level cache to the maps,
 * which every chunk adds to, and to their own entries between two chunks. */
static double estimate(const sb_conv *conv, const table_plan *table) {
    const int registers = table->rows * table->vectors, shifts = table->left + table->right;
    const int per_group = conv->weight.out / conv->groups;
    const bool wide = table->channels > TABLE_QUAD;
    const bool fits = table_bytes(conv, table) <= CACHE_LIMIT; /* sums in the second level are far away */
    const int loads = registers + (table->entries < 1 << table->channels); /* of a code: its factor too */
    const double load_bound = loads * 0.5, decode_bound = (loads + 4.5) / 6;
    const double look_up = (load_bound > decode_bound ? load_bound : decode_bound) * (fits ? 1.3 : 1.8);
    const double entry = wide ? 1 + table->lanes / 10.0 : 1.3;
    const double store = table->table_vectors * (table->entries * entry * (fits ? 1 : 3) + 6.0);
    const double build = table->tuples * (store + 4.0 * table->segments);
    const double chunk = registers * ((wide ? 6.5 : 1.5) + shifts) + 12;
    const double filter = table->tuples * table->taps * look_up + table->chunks * chunk;
    double merge = per_group * (registers * (conv->weight.blocks + 2.0) * table->segments / 2 + 10);
    if (table_merges_packed(conv, table)) {
        const double vectors = (double)table->unit_regions * registers / table->segments;
        merge = per_group * (vectors * (3.0 * conv->weight.blocks + 4) + 6) / table->unit_regions;
    }
    if (has_levels(conv)) { /* in floats, half as many a register; regions that lie side by side are merged together */
        const int together = table->unit_blocks == 1 ? table->unit_regions : 1, lanes = together * table->slot;
        const double vectors = (double)table->rows * lanes / smaller(lanes, table->lanes / 2);
        merge = per_group * (vectors * (conv->weight.blocks + 4.0) + 10) / together;
    }
    return (double)table->units * (table->unit_blocks * (build + filter * table->max_list) + table->unit_regions * merge);
}

/* Input blocks whose filters a block of the unit lists. An input block that comes in several blocks of the unit, as
 * with 3 of them in registers of 2 segments, needs its filters in the same places everywhere: then all list all. */
static int inputs_per_block(const sb_conv *conv, const table_plan *table) {
    const int k = conv->weight.blocks;
    return k % table->segments == 0 ? table->segments : k;
}

static bool try_layout(const sb_conv *conv, table_plan *table, int slot, int rows) {
    const sb_weight *weight = &conv->weight;
    table->slot = slot;
    table->vectors = larger(1, slot / table->lanes);
    table->segments = larger(1, table->lanes / slot);
    table->y_tiles = ceil_div(conv->out_height, rows);
    table->rows = ceil_div(conv->out_height, table->y_tiles);
    table->entries = table_entries(has_levels(conv), table->lanes, table->rows * table->vectors, table->channels);
    if (!tile_columns(conv, table))
        return false;
    table->unit_regions = table->segments / greatest_common_divisor(table->segments, weight->blocks);
    table->unit_blocks = table->unit_regions * weight->blocks / table->segments;
    table->units = conv->groups * ceil_div(table->x_tiles * table->y_tiles, table->unit_regions);
    table->max_list = smaller(weight->filters, weight->out / conv->groups * inputs_per_block(conv, table));
    lay_out_planes(conv, table, NULL);
    choose_chunks(conv, table);
    table->cost = estimate(conv, table);
    return true;
}

bool table_lay_out(const sb_conv *conv, int lanes, int channels, table_plan *table) {
    const sb_weight *weight = &conv->weight;
    if ((weight->kind != SB_BINARY && weight->kind != SB_STACKED_BITS) || weight->binary_input ||
        weight->filters >= UINT16_MAX)
        return false;
    int best_slot = 0, best_rows = 0;
    double best = 0;
    *table = (table_plan){
        .lanes = lanes, .taps = weight->kernel_h * weight->kernel_w, .channels = channels, .most_tuples = most_tuples(conv),
    };
    if (table->most_tuples == 0)
        return false;
    table->whole_chunks = has_levels(conv) && whole_chunks_fit(conv);
    for (int slot = 4; slot <= TABLE_MAX_VECTORS * lanes; slot *= 2)
        for (int rows = 1; rows * larger(1, slot / lanes) <= TABLE_MAX_VECTORS; rows++)
            if (try_layout(conv, table, slot, rows) && (!best_slot || table->cost < best)) {
                best = table->cost;
                best_slot = slot;
                best_rows = rows;
            }
    return best_slot && try_layout(conv, table, best_slot, best_rows);
}

/* ----------------------------------------------------------------------------------------- order of taps */

static int find_tap_vector(const sb_conv *conv, const table_plan *table, int row, int column) {
    const axis_taps rows = rows_of(conv), columns = columns_of(conv);
    const int position = axis_position(&rows, row), phase = axis_phase(&columns, column);
    for (const table_plane *plane = table->planes;; plane++)
        if (plane->column == phase && floor_mod(position - plane->row, rows.stride) == 0)
            return plane->first + (position - plane->row) / rows.stride * table->vectors;
}

/* The lane selection for a shift by step->lanes within slots. */
static void select_lanes(const table_plan *table, table_step *step) {
    const int lanes = table->lanes, slot = smaller(table->slot, lanes);
    for (int lane = 0; lane < lanes; lane++) {
        const int from = lane - step->lanes, first = lane / slot * slot;
        const bool inside = from >= first && from < first + slot;
        const int selected = inside ? from : lanes + (slot == lanes ? (from + lanes) % lanes : 0);
        if (lane < TABLE_MAX_LANES)
            step->select[lane] = selected;
        step->select_short[lane] = (int16_t)selected;
        if (inside)
            step->inside |= (uint32_t)1 << lane;
    }
}

/* Appends the step for one offset; `next` is the offset that its sums are shifted to. */
static void add_step(const sb_conv *conv, table_plan *table, int offset, int next, int *taps) {
    const axis_taps columns = columns_of(conv);
    table_step *step = &table->steps[table->steps_count++];
    const int distance = next - offset, width = smaller(table->slot, table->lanes);
    step->repeats = ceil_div(abs(distance), width);
    while (step->repeats && distance % step->repeats) /* equal parts: 18 lanes are two shifts of 9 */
        step->repeats++;
    step->lanes = step->repeats ? distance / step->repeats : 0;
    select_lanes(table, step);
    for (int column = 0; column < columns.count; column++)
        if (axis_offset(&columns, column) == offset)
            for (int row = 0; row < conv->weight.kernel_h; row++) {
                table->tap_vector[*taps] = find_tap_vector(conv, table, row, column);
                table->tap_source[(*taps)++] = row * columns.count + column;
                step->taps++;
            }
}

/* Offsets grow with the column, so the distinct ones are found by walking the columns. */
static void plan_steps(const sb_conv *conv, table_plan *table) {
    const axis_taps columns = columns_of(conv);
    const int count = columns.count;
    int taps = 0;
    for (int i = 0; i < count; i++) { /* from the left up to 0 */
        const int offset = axis_offset(&columns, i), next = i + 1 < count ? axis_offset(&columns, i + 1) : 0;
        if (offset < 0 && next != offset)
            add_step(conv, table, offset, smaller(next, 0), &taps);
    }
    const int negative = table->steps_count;
    for (int i = count - 1; i >= 0; i--) { /* from the right down to 0 */
        const int offset = axis_offset(&columns, i), next = i ? axis_offset(&columns, i - 1) : 0;
        if (offset > 0 && next != offset)
            add_step(conv, table, offset, larger(next, 0), &taps);
    }
    if (negative && table->steps_count > negative) {
        table->steps[negative - 1].park = true;
        table->steps[table->steps_count - 1].unpark = true;
    }
    add_step(conv, table, 0, 0, &taps);
}

/* ---------------------------------------------------------------------------------------------- weights */

unsigned table_source_code(const uint8_t *bits, size_t bit, int channels) {
    const size_t byte = bit / 8;
    const int shift = (int)(bit % 8);
    unsigned code = (unsigned)bits[byte] >> shift;
    if (shift + channels > 8) /* nothing behind the last filter is read */
        code |= (unsigned)bits[byte + 1] << (8 - shift);
    return code & ((1u << channels) - 1);
}

/* The number of a sum in the table, with the bit that negates it where the table holds half of them. */
static unsigned find_entry(const table_plan *table, unsigned code) {
    const unsigned all = (1u << table->channels) - 1, half = (unsigned)table->entries;
    return half > all ? code : code & half ? code ^ half : ~code & all;
}

/* As many bits as are stored, up to rounding. */
static size_t codes_size(const sb_conv *conv, const table_plan *table) {
    const size_t taps = (size_t)table->taps * conv->weight.filters;
    const int whole = table->chunks - 1;
    const size_t bytes = taps * whole * table_tap_bytes(table->chunk_tuples, table->channels) +
                         taps * table_tap_bytes(table_chunk_tuples(table, whole), table->channels);
    return bytes + 2 * sizeof(uint32_t); /* the kernel reads whole words, and those of a tap too many */
}

/* The codes of a tap in a chunk; `bit` is the first of its channels in the stored filters. */
static void pack_tap(const sb_conv *conv, const table_plan *table, size_t bit, int first, int tuples, uint8_t *out) {
    uint32_t word = 0;
    for (int tuple = 0, channel = first; tuple < tuples; tuple++, channel += table->channels) {
        const int channels = smaller(table->channels, conv->weight.depth - channel);
        const unsigned code = table_source_code(conv->weight.bits, bit + (size_t)(tuple * table->channels), channels);
        word |= (uint32_t)find_entry(table, code) << tuple * table->channels;
    }
    for (int i = 0; i < table_tap_bytes(tuples, table->channels); i++)
        out[i] = (uint8_t)(word >> 8 * i);
}

static void pack_codes(const sb_conv *conv, table_plan *table) {
    const size_t depth = (size_t)conv->weight.depth;
    uint8_t *out = table->codes;
    for (int chunk = 0; chunk < table->chunks; chunk++) {
        const int tuples = table_chunk_tuples(table, chunk), first = chunk * table->chunk_tuples * table->channels;
        for (size_t filter = 0; filter < (size_t)conv->weight.filters; filter++)
            for (int tap = 0; tap < table->taps; tap++, out += table_tap_bytes(tuples, table->channels))
                pack_tap(conv, table, (filter * table->taps + table->tap_source[tap]) * depth + first, first, tuples, out);
    }
}

/* Counts the +1s of every filter in a chunk; returns where the next one begins. */
static const uint8_t *count_positive(const sb_conv *conv, const table_plan *table, int tuples, const uint8_t *codes) {
    const int bytes = table->taps * table_tap_bytes(tuples, table->channels);
    for (int filter = 0; filter < conv->weight.filters; filter++, codes += bytes) {
        int positive = 0;
        for (int i = 0; i < bytes; i++)
            positive += bits_set(codes[i]);
        table->chunk_positive[filter] = (uint16_t)positive;
    }
    return codes;
}

/* Spans of chunks that are added up in 16 bits, as long as every filter allows. A chunk alone is sure to fit. */
static void find_spans(const sb_conv *conv, table_plan *table) {
    const int filters = conv->weight.filters;
    const uint8_t *codes = table->codes;
    int span_signs = 0;
    for (int chunk = 0; chunk < table->chunks; chunk++) {
        const int tuples = table_chunk_tuples(table, chunk);
        const int signs = table->taps * tuples * TABLE_QUAD; /* channels that do not exist count as -1: never too few */
        codes = count_positive(conv, table, tuples, codes);
        bool fits = chunk > 0;
        for (int filter = 0; filter < filters && fits; filter++)
            fits = sums_fit(conv, span_signs + signs, table->span_positive[filter] + table->chunk_positive[filter]);
        if (chunk > 0)
            table->span_ends[chunk - 1] = !fits;
        span_signs = signs + (fits ? span_signs : 0);
        for (int filter = 0; filter < filters; filter++)
            table->span_positive[filter] =
                (uint16_t)(table->chunk_positive[filter] + (fits ? table->span_positive[filter] : 0));
    }
    table->span_ends[table->chunks - 1] = true;
}

/* Which filters each block has to look up: a shared filter that no output channel uses there is left out. */
static void list_filters(const sb_conv *conv, table_plan *table) {
    const sb_weight *weight = &conv->weight;
    const int k = weight->blocks, per_group = weight->out / conv->groups, inputs = inputs_per_block(conv, table);
    const uint32_t map_floats = (uint32_t)(table->rows * table->vectors * table->lanes);
    const uint16_t unused = UINT16_MAX;
    uint16_t *place = table->place;
    uint32_t filled = 0;
    for (int group = 0; group < conv->groups; group++)
        for (int block = 0; block < table->unit_blocks; block++) {
            const uint32_t begin = filled;
            table->list_begin[group * table->unit_blocks + block] = begin;
            memset(place, 0xff, (size_t)weight->filters * sizeof *place);
            for (int n = 0; n < inputs; n++) {
                const int input = (block * inputs + n) % k;
                for (int t = group * per_group; t < (group + 1) * per_group; t++) {
                    const size_t entry = (size_t)t * k + input;
                    const uint16_t filter = weight->index ? weight->index[entry] : (uint16_t)t;
                    if (place[filter] == unused) {
                        place[filter] = (uint16_t)(filled - begin);
                        table->list[filled++] = filter;
                    }
                    table->map_offset[entry] = place[filter] * map_floats;
                }
            }
        }
    table->list_begin[conv->groups * table->unit_blocks] = filled;
}

/* ------------------------------------------------------------------------------------------------- plan */

/* Takes the next `bytes` of a piece of memory; only counts them where there is no memory yet. */
static void *take(uint8_t *memory, size_t *used, size_t bytes) {
    void *taken = memory ? memory + *used : NULL;
    *used += (bytes + SB_ALIGNMENT - 1) / SB_ALIGNMENT * SB_ALIGNMENT;
    return taken;
}

static size_t place_arrays(const sb_conv *conv, table_plan *table, uint8_t *memory) {
    const sb_weight *weight = &conv->weight;
    const size_t lists = (size_t)conv->groups * table->unit_blocks;
    size_t used = 0;
    take(memory, &used, sizeof *table);
    table->steps = take(memory, &used, (weight->kernel_w + 1) * sizeof *table->steps);
    table->planes = take(memory, &used, table->planes_count * sizeof *table->planes);
    table->tap_vector = take(memory, &used, table->taps * sizeof *table->tap_vector);
    table->tap_source = take(memory, &used, table->taps * sizeof *table->tap_source);
    table->list_begin = take(memory, &used, (lists + 1) * sizeof *table->list_begin);
    table->list = take(memory, &used, lists * table->max_list * sizeof *table->list);
    table->map_offset = take(memory, &used, (size_t)weight->out * weight->blocks * sizeof *table->map_offset);
    table->place = take(memory, &used, weight->filters * sizeof *table->place);
    table->codes = take(memory, &used, codes_size(conv, table));
    table->span_ends = take(memory, &used, table->chunks * sizeof *table->span_ends);
    table->span_positive = take(memory, &used, weight->filters * sizeof *table->span_positive);
    table->chunk_positive = take(memory, &used, weight->filters * sizeof *table->chunk_positive);
    return used;
}

size_t table_prepared_size(const sb_conv *conv, int lanes, int channels) {
    table_plan table;
    return table_lay_out(conv, lanes, channels, &table) ? place_arrays(conv, &table, NULL) : 0;
}

void table_prepare(const sb_conv *conv, int lanes, int channels, void *prepared) {
    table_plan *table = prepared;
    table_lay_out(conv, lanes, channels, table);
    place_arrays(conv, table, prepared);
    lay_out_planes(conv, table, table->planes);
    plan_steps(conv, table);
    pack_codes(conv, table);
    if (has_levels(conv))
        find_spans(conv, table);
    list_filters(conv, table);
}
