/* Dense convolutions, and stacks of real-valued filters: every register of pixels meets several filters (flat_impl.h).
 *
 * Prepared weights are fp32, [group of FLAT_FILTERS filters][channel][tap][filter], zeros behind the last filter. */
#include "../half.h"

enum {
    FMA_STAGED_BYTES = 32 * 1024,
    FMA_BAND_ROWS = 16, /* of the output, at most: bands are what several threads share */
};

typedef struct {
    flat_scratch flat;
    vfloat *maps; /* [input block][filter][register of the tile] */
} fma_scratch;

/* Stored filters that serve one group of channels: a bank serves all of them, other filters belong to one. */
static int filters_per_group(const sb_conv *conv) {
    return conv->weight.index ? conv->weight.filters : conv->weight.out / conv->groups;
}

static int filter_batches(const sb_conv *conv) { return (filters_per_group(conv) + FLAT_FILTERS - 1) / FLAT_FILTERS; }

static size_t batch_floats(const sb_conv *conv) {
    return (size_t)conv->weight.depth * conv->weight.kernel_h * conv->weight.kernel_w * FLAT_FILTERS;
}

static flat_plan plan_fma(const sb_conv *conv) {
    return plan_flat(conv, conv->weight.blocks * conv->weight.depth, FMA_BAND_ROWS);
}

static double fma_cost(const sb_conv *conv) {
    if (!conv->weight.values || conv->weight.binary_input)
        return -1;
    const flat_plan plan = plan_fma(conv);
    const double bands = (double)((conv->out_height + plan.band_rows - 1) / plan.band_rows);
    const double tiles = (double)((plan.max_vectors + FLAT_REGISTERS - 1) / FLAT_REGISTERS);
    const double batches = (double)filter_batches(conv) * conv->weight.blocks;
    const double multiply = (double)batch_floats(conv) * plan.max_vectors * 0.5 + tiles * 40;
    const bool whole = plan.by_row ? conv->out_width >= LANES : plan.pitch == conv->out_width;
    const double parts = whole ? 0 : plan.band_rows * 25.0; /* registers that rows end in */
    const double write = (double)conv->weight.out / conv->groups * ((conv->weight.blocks + 1.0) * plan.max_vectors * 2 + parts);
    const double stage = plan.in_place ? 0 : stage_cost(conv, &plan);
    return bands * (conv->groups * (batches * multiply + write) + stage) / CYCLES_PER_NANOSECOND;
}

static size_t fma_prepared_size(const sb_conv *conv) {
    const int banks = conv->weight.index ? 1 : conv->groups;
    return (size_t)banks * filter_batches(conv) * batch_floats(conv) * sizeof(float);
}

static void fma_prepare(const sb_conv *conv, void *prepared) {
    const sb_weight *weight = &conv->weight;
    const int per_group = filters_per_group(conv);
    const size_t size = (size_t)weight->depth * weight->kernel_h * weight->kernel_w;
    float *weights = prepared;
    for (int filter = 0; filter < weight->filters; filter++) {
        const int group = filter / per_group, in_group = filter % per_group;
        const size_t batch = (size_t)group * filter_batches(conv) + in_group / FLAT_FILTERS;
        for (size_t i = 0; i < size; i++)
            weights[(batch * size + i) * FLAT_FILTERS + in_group % FLAT_FILTERS] =
                sb_load_value(weight->values, weight->half, (int64_t)(filter * size + i));
    }
}

static size_t carve_fma_scratch(const sb_conv *conv, const flat_plan *plan, uint8_t *memory, fma_scratch *scratch) {
    const size_t maps = (size_t)conv->weight.blocks * filter_batches(conv) * FLAT_FILTERS;
    size_t used = 0;
    scratch->maps = carve(memory, &used, maps * FLAT_REGISTERS * LANES * sizeof(float));
    return carve_flat_scratch(conv, plan, memory, used, &scratch->flat);
}

static size_t fma_scratch_size(const sb_conv *conv) {
    const flat_plan plan = plan_fma(conv);
    fma_scratch scratch;
    return carve_fma_scratch(conv, &plan, NULL, &scratch);
}

/* A batch of filters at one tile of pixels, on its own: all registers of the machine are needed. */
#define SUM_TILE(registers)                                                                                            \
    static NEVER_INLINE void sum_tile_##registers(const flat_plan *plan, const float *staged, const int32_t *tap_offset, \
                                                  int taps, int channels, const flat_vector *vectors,                  \
                                                  const float *weights, vfloat *to) {                                  \
        vfloat sum[FLAT_FILTERS * FLAT_REGISTERS];                                                                     \
        flat_tile(plan, staged, tap_offset, taps, channels, vectors, weights, FLAT_FILTERS, registers, sum);           \
        UNROLL                                                                                                         \
        for (int i = 0; i < FLAT_FILTERS * registers; i++)                                                             \
            to[i / registers * FLAT_REGISTERS + i % registers] = sum[i];                                               \
    }
SUM_TILE(1)
SUM_TILE(2)
#if LANES == 16
SUM_TILE(3)
SUM_TILE(4)
#endif
#undef SUM_TILE

/* By the number of registers. */
static void (*const sum_tiles[FLAT_REGISTERS + 1])(const flat_plan *, const float *, const int32_t *, int, int,
                                                   const flat_vector *, const float *, vfloat *) = {
    NULL, sum_tile_1, sum_tile_2,
#if LANES == 16
    sum_tile_3, sum_tile_4,
#endif
};

/* Registers of the next tile: four and three rather than six and one. */
static int next_tile(int left) {
    const int tiles = (left + FLAT_REGISTERS - 1) / FLAT_REGISTERS;
    return (left + tiles - 1) / tiles;
}

/* All maps of one tile of pixels: every input block with every filter. */
static NEVER_INLINE void multiply_tile(const sb_conv *conv, const flat_plan *plan, const fma_scratch *scratch,
                                       const float *staged, const flat_vector *vectors, int count, const float *weights) {
    const int taps = conv->weight.kernel_h * conv->weight.kernel_w, depth = conv->weight.depth;
    const size_t block_floats = (size_t)depth * plan->planes * plan->plane_floats;
    const int batches = filter_batches(conv);
    vfloat *map = scratch->maps;
    for (int block = 0; block < conv->weight.blocks; block++)
        for (int batch = 0; batch < batches; batch++, map += FLAT_FILTERS * FLAT_REGISTERS)
            sum_tiles[count](plan, staged + block * block_floats, scratch->flat.tap_offset, taps, depth, vectors,
                             weights + batch * batch_floats(conv), map);
}

static NEVER_INLINE void merge_tile(const sb_conv *conv, const flat_scratch *scratch, const vfloat *maps_of_tile,
                                    int group, const flat_vector *vectors, int count, const flat_finish *finish) {
    const sb_weight *weight = &conv->weight;
    const size_t k = (size_t)weight->blocks, maps = (size_t)filter_batches(conv) * FLAT_FILTERS;
    const size_t per_group = (size_t)(weight->out / conv->groups);
    for (size_t t = group * per_group; t < (group + 1) * per_group; t++) {
        vfloat sum[FLAT_REGISTERS] = {{0}};
        for (size_t i = 0; i < k; i++) {
            const size_t filter = weight->index ? weight->index[t * k + i] : t - group * per_group;
            const vfloat *map = maps_of_tile + (i * maps + filter) * FLAT_REGISTERS;
            const vfloat ratio = vsplat(weight->ratio ? weight->ratio[t * k + i] : 1.0f);
            UNROLL
            for (int r = 0; r < FLAT_REGISTERS; r++)
                sum[r] += ratio * map[r];
        }
        write_vectors(finish, scratch, t, vectors, count, sum);
    }
}

/* The sums of a batch of filters that are not shared, at `count` vectors, go to the output. */
static void write_batch(const sb_conv *conv, const flat_scratch *scratch, int group, int batch, const flat_vector *vectors,
                        int count, const vfloat *sum, const flat_finish *finish) {
    const int per_group = filters_per_group(conv), rest = per_group - batch * FLAT_FILTERS;
    const int channels = rest < FLAT_FILTERS ? rest : FLAT_FILTERS;
    const size_t t = (size_t)group * per_group + batch * FLAT_FILTERS;
    if (!finish->added && !(finish->out && finish->levels) && are_whole(vectors, count))
        (finish->levels ? write_levels : write_floats)(finish, scratch, t, channels, vectors, sum, count);
    else
        for (int f = 0; f < channels; f++)
            write_vectors(finish, scratch, t + f, vectors, count, sum + f * FLAT_REGISTERS);
}

/* One batch of filters that are not shared at one tile of `count` registers, from `first` on, straight to the output. */
static NEVER_INLINE void multiply_batch(const sb_conv *conv, const flat_plan *plan, const flat_scratch *scratch,
                                        const float *staged, const float *weights, int group, int batch, int first, int count,
                                        const flat_finish *finish) {
    const int taps = conv->weight.kernel_h * conv->weight.kernel_w;
    const flat_vector *vectors = scratch->vectors + first;
    vfloat sum[FLAT_FILTERS * FLAT_REGISTERS];
    sum_tiles[count](plan, staged, scratch->tap_offset, taps, conv->weight.depth, vectors,
                     weights + batch * batch_floats(conv), sum);
    write_batch(conv, scratch, group, batch, vectors, count, sum, finish);
}

/* Filters that are not shared. Those of a batch stay in the first-level cache, or the pixels of a tile, and meet all of the
 * others: filters where all of the staged input stays there too, since few channels are then written at a time. */
static void multiply_band(const sb_conv *conv, const flat_plan *plan, const flat_scratch *scratch, const float *staged,
                          const float *weights, int group, const flat_finish *finish) {
    const size_t bytes = (size_t)plan->channels * plan->planes * plan->plane_floats * sizeof(float);
    const int batches = filter_batches(conv), vectors = scratch->vectors_count;
    if (bytes <= FMA_STAGED_BYTES)
        for (int batch = 0; batch < batches; batch++)
            for (int first = 0, count; first < vectors; first += count) {
                count = next_tile(vectors - first);
                multiply_batch(conv, plan, scratch, staged, weights, group, batch, first, count, finish);
            }
    else
        for (int first = 0, count; first < vectors; first += count) {
            count = next_tile(vectors - first);
            for (int batch = 0; batch < batches; batch++)
                multiply_batch(conv, plan, scratch, staged, weights, group, batch, first, count, finish);
        }
}

/* Filters of a bank, which the output channels share. */
static void multiply_bank(const sb_conv *conv, const flat_plan *plan, const fma_scratch *scratch, const float *staged,
                          const float *weights, int group, const flat_finish *finish) {
    for (int first = 0, count; first < scratch->flat.vectors_count; first += count) {
        const flat_vector *vectors = scratch->flat.vectors + first;
        count = next_tile(scratch->flat.vectors_count - first);
        multiply_tile(conv, plan, scratch, staged, vectors, count, weights);
        merge_tile(conv, &scratch->flat, scratch->maps, group, vectors, count, finish);
    }
}

/* A piece is a band of output rows. */
static int32_t fma_pieces(const sb_conv *conv) {
    const flat_plan plan = plan_fma(conv);
    return (conv->out_height + plan.band_rows - 1) / plan.band_rows;
}

static int32_t fma_band_rows(const sb_conv *conv) { return plan_fma(conv).band_rows; }

static void fma_run_pieces(const sb_conv *conv, int32_t first, int32_t last, const float *in, float *out, void *memory) {
    const flat_plan plan = plan_fma(conv);
    const size_t group_weights = (size_t)filter_batches(conv) * batch_floats(conv);
    const float *weights = conv->prepared;
    const flat_finish finish = finish_of(conv, out);
    fma_scratch scratch;
    carve_fma_scratch(conv, &plan, memory, &scratch);
    find_tap_offsets(conv, &plan, scratch.flat.tap_offset);
    for (int y = first * plan.band_rows; y < conv->out_height && y < last * plan.band_rows; y += plan.band_rows) {
        const int rows = conv->out_height - y < plan.band_rows ? conv->out_height - y : plan.band_rows;
        list_vectors(conv, &plan, y, rows, &scratch.flat);
        for (int group = 0; group < conv->groups; group++) {
            const float *group_in = in + (size_t)group * plan.channels * conv->height * conv->width;
            const float *staged = plan.in_place ? group_in : scratch.flat.staged;
            if (!plan.in_place)
                stage_band(conv, &plan, group_in, y, scratch.flat.staged);
            if (conv->weight.index)
                multiply_bank(conv, &plan, &scratch, staged, weights, group, &finish);
            else
                multiply_band(conv, &plan, &scratch.flat, staged, weights + group * group_weights, group, &finish);
        }
    }
}

static void fma_run(const sb_conv *conv, const float *in, float *out, void *memory) {
    fma_run_pieces(conv, 0, fma_pieces(conv), in, out, memory);
    apply_rest(conv, out);
}

static const sb_conv_kernel fma_kernel = {
    .name = "fma", .cost = fma_cost, .prepared_size = fma_prepared_size, .prepare = fma_prepare,
    .scratch_size = fma_scratch_size, .run = fma_run, .adds_in_place = true, .writes_levels = true, .pieces = fma_pieces,
    .run_pieces = fma_run_pieces, .band_rows = fma_band_rows,
};
