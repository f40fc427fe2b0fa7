/* Planning for the dot kernel (levels_dot.h): units, planes, weights as nibbles. */

enum {
    DOT_WIDTH = 256,               /* columns of a unit at most: a multiple of LANES */
    DOT_PIXELS = 1024,             /* of a unit at most, where it has several rows */
    DOT_STAGED_BYTES = 40 * 1024,  /* of a chunk of one input block: most of a first-level cache */
    DOT_MOST_WORDS = 1 << 16,      /* of one quad: beyond are kernels and dilations that nobody has */
    DOT_SLACK = 2 * LANES,         /* words before and behind buffers, read or written for nothing */
    DOT_FILTERS = 8,               /* that share the loads of levels: a batch */
    DOT_COLUMNS = 3,               /* registers of pixels that share the signs of a batch, at most */
    DOT_FEW_PIXELS = 4 * LANES,    /* units are not made smaller than this */
    DOT_JOB_PIECES = 2 * TABLE_MAX_VECTORS,
};

typedef int32_t vword_u __attribute__((vector_size(64), may_alias, aligned(4)));
typedef int8_t vbyte __attribute__((vector_size(64), may_alias));

typedef struct {
    int row;           /* input row of its row 0, for the output row 0 */
    int rows, first;   /* first: of its rows among those of all planes */
} dot_plane;

typedef struct {
    int width, rows, x_units, y_units; /* columns and rows of a unit, units beside and below each other */
    int vectors;                       /* registers of pixels of a unit, */
    size_t map_floats;                 /* and room for them in the map of a filter */
    int taps, quads, chunk_quads, chunks;
    int batches, banks;                /* of filters; batches of one bank */
    bool by_rows;                      /* registers never run over the ends of rows: one copy serves all columns of taps */
    int copies, row_words;             /* of a plane; words of a row of a copy */
    int planes_count, plane_rows, quad_words;
    int input_rows, pitch;             /* that the taps of a unit read, interleaved */
    dot_plane planes[SB_FAST_STRIDE];

    int32_t *offset;      /* [quad of a chunk][tap]: bytes from a pixel to what the tap reads */
    int32_t *range;       /* [input block][2]: batches with filters that the block needs */
    uint32_t *map_offset; /* (out, blocks): of the filter's map among those of its block, in floats */
    int32_t *start;       /* [bank][filter]: of its sums */
    uint16_t *place;      /* (filters): in the order of the batches */
    uint8_t *used;        /* (filters): used while they are put in order */
    uint8_t *nibbles;     /* [bank][chunk][batch][two steps][filter], a step being a tap of a quad */
} dot_plan;

/* Input words that belong into one register of a copy. */
typedef struct {
    int32_t source, target;
    __mmask16 lanes; /* which exist; the others are padding */
} dot_copy;

typedef struct {
    uint32_t *interleaved; /* one quad: [input row][pixel] */
    uint32_t *staged;      /* [input block][quad of the chunk][plane][copy][row][pixel] */
    size_t staged_words;
    float *maps;           /* [input block][filter][register][lane], map_floats apart; whole numbers until the last chunk */
    const float **map;     /* [input block] */
    dot_copy *copies;
    int copies_count, copies_x; /* copies_x: they serve all units in this column that lie inside the input; -1: none */
} dot_scratch;

/* ------------------------------------------------------------------------------------------------- plan */

/* Maps are an odd number of registers apart: the merge reads the same pixels of many of them in turn, which at the usual powers of
 * two would meet in a few sets of the first-level cache. */
static size_t find_map_floats(int vectors) { return (size_t)(vectors | 1) * LANES; }

/* Planes of a unit of so many rows, and the words of a quad. */
static void plan_dot_planes(const sb_conv *conv, int rows, dot_plan *plan) {
    int first[SB_FAST_STRIDE], last[SB_FAST_STRIDE];
    for (int phase = 0; phase < conv->stride_h; phase++) {
        first[phase] = 1;
        last[phase] = 0; /* no tap reads it */
    }
    for (int ky = conv->weight.kernel_h - 1; ky >= 0; ky--) {
        const int y = ky * conv->dilation_h - conv->pad_top, row = floor_divide(y, conv->stride_h);
        const int phase = y - row * conv->stride_h;
        if (first[phase] > last[phase])
            last[phase] = row;
        first[phase] = row;
    }
    plan->rows = rows;
    plan->input_rows = (rows - 1) * conv->stride_h + (conv->weight.kernel_h - 1) * conv->dilation_h + 1;
    plan->planes_count = plan->plane_rows = 0;
    for (int phase = 0; phase < conv->stride_h; phase++)
        if (first[phase] <= last[phase]) {
            dot_plane *plane = &plan->planes[plan->planes_count++];
            *plane = (dot_plane){first[phase] * conv->stride_h + phase, rows + last[phase] - first[phase], plan->plane_rows};
            plan->plane_rows += plane->rows;
        }
    plan->quad_words = plan->plane_rows * plan->copies * plan->row_words;
}

/* As many rows as the cache holds at once, and then as many quads. */
static bool lay_out_dot(const sb_conv *conv, dot_plan *plan) {
    const sb_weight *weight = &conv->weight;
    *plan = (dot_plan){
        .width = conv->out_width < DOT_WIDTH ? conv->out_width : DOT_WIDTH,
        .taps = weight->kernel_h * weight->kernel_w,
        .quads = (weight->depth + 3) / 4,
        .banks = weight->index ? 1 : conv->groups,
    };
    plan->x_units = (conv->out_width + plan->width - 1) / plan->width;
    plan->by_rows = conv->stride_w == 1 && plan->width % LANES == 0;
    plan->copies = plan->by_rows ? 1 : weight->kernel_w;
    plan->row_words = plan->width + (plan->by_rows ? (weight->kernel_w - 1) * conv->dilation_w : 0);
    plan->pitch = plan->x_units == 1 ? conv->width
                                     : (plan->width - 1) * conv->stride_w + (weight->kernel_w - 1) * conv->dilation_w + 1;
    int rows = conv->out_height;
    if (rows > DOT_PIXELS / plan->width)
        rows = DOT_PIXELS / plan->width;
    for (;; rows = (rows + 1) / 2) {
        plan_dot_planes(conv, rows, plan);
        const int64_t words = (int64_t)plan->quads * plan->quad_words;
        if (rows == 1 || rows * plan->width <= DOT_FEW_PIXELS || words * 4 <= DOT_STAGED_BYTES)
            break;
    }
    if (plan->quad_words > DOT_MOST_WORDS || (int64_t)plan->input_rows * plan->pitch > DOT_MOST_WORDS)
        return false;
    plan->y_units = (conv->out_height + plan->rows - 1) / plan->rows;
    plan->vectors = (plan->rows * plan->width + LANES - 1) / LANES;
    plan->map_floats = find_map_floats(plan->vectors);
    const int most = DOT_STAGED_BYTES / (plan->quad_words * 4);
    plan->chunks = most < 1 ? plan->quads : (plan->quads + most - 1) / most;
    plan->chunk_quads = (plan->quads + plan->chunks - 1) / plan->chunks;
    plan->chunks = (plan->quads + plan->chunk_quads - 1) / plan->chunk_quads;
    plan->batches = (filters_per_group(conv) + DOT_FILTERS - 1) / DOT_FILTERS;
    return true;
}

static int dot_chunk_steps(const dot_plan *plan, int chunk) {
    const int left = plan->quads - chunk * plan->chunk_quads;
    return (left < plan->chunk_quads ? left : plan->chunk_quads) * plan->taps;
}

/* Bytes of one batch of filters in a chunk. */
static size_t dot_batch_bytes(const dot_plan *plan, int chunk) {
    return (size_t)(dot_chunk_steps(plan, chunk) + 1) / 2 * DOT_FILTERS;
}

static size_t dot_bank_bytes(const dot_plan *plan) {
    return ((plan->chunks - 1) * dot_batch_bytes(plan, 0) + dot_batch_bytes(plan, plan->chunks - 1)) * plan->batches;
}

/* Input words are the pixels of a unit moved by a constant: copies may run on over row ends. */
static bool runs_on(const sb_conv *conv, const dot_plan *plan) {
    return plan->x_units == 1 && conv->stride_h == 1 && conv->stride_w == 1 && conv->width == conv->out_width;
}

static double dot_cost(const sb_conv *conv) {
    dot_plan plan;
    if (!__builtin_cpu_supports("avx512vnni") || !conv->weight.bits || conv->weight.binary_input ||
        conv->weight.filters > UINT16_MAX || !lay_out_dot(conv, &plan))
        return -1;
    const double k = conv->weight.blocks, columns = k * plan.vectors, steps = (double)plan.quads * plan.taps;
    const double row_registers = runs_on(conv, &plan) ? plan.width / (double)LANES : (plan.width + LANES - 1) / LANES;
    const double copies = plan.by_rows ? 0 : plan.plane_rows * plan.copies * row_registers;
    const double list = plan.by_rows ? 0 : copies * 15 + 300, copy = conv->stride_w > 1 ? 6 : 3;
    const double stage = k * plan.quads * (copies * copy + (double)plan.input_rows * plan.pitch * 5 / LANES);
    const double product = columns == 1 ? 0.77 : 0.53;
    const double multiply = columns * plan.batches * DOT_FILTERS * (steps * product + plan.chunks * 3.0);
    const double merge = (double)conv->weight.out / conv->groups * plan.vectors * (3 + 2 * k);
    return (double)plan.x_units * plan.y_units * conv->groups * (stage + list + multiply + merge) / CYCLES_PER_NANOSECOND;
}

/* What says which filters a block needs, and where their maps are. */
static void place_dot_filters(const sb_conv *conv, uint8_t *memory, size_t *used, dot_plan *plan) {
    const size_t blocks = (size_t)conv->weight.blocks, filters = (size_t)conv->weight.filters;
    plan->range = carve(memory, used, 2 * blocks * sizeof *plan->range);
    plan->map_offset = carve(memory, used, (size_t)conv->weight.out * blocks * sizeof *plan->map_offset);
    plan->place = carve(memory, used, filters * sizeof *plan->place);
    plan->used = carve(memory, used, filters * sizeof *plan->used);
}

static size_t place_dot(const sb_conv *conv, uint8_t *memory, dot_plan *plan) {
    size_t used = 0;
    carve(memory, &used, sizeof *plan);
    place_dot_filters(conv, memory, &used, plan);
    plan->offset = carve(memory, &used, (size_t)plan->chunk_quads * plan->taps * sizeof *plan->offset);
    plan->start = carve(memory, &used, (size_t)plan->banks * plan->batches * DOT_FILTERS * sizeof *plan->start);
    plan->nibbles = carve(memory, &used, plan->banks * dot_bank_bytes(plan));
    return used;
}

static size_t dot_prepared_size(const sb_conv *conv) {
    dot_plan plan;
    return lay_out_dot(conv, &plan) ? place_dot(conv, NULL, &plan) : 0;
}

/* Words from a pixel of a unit to what a tap reads. */
static int find_dot_tap(const sb_conv *conv, const dot_plan *plan, int tap) {
    const int y = tap_y(conv, tap), column = tap % conv->weight.kernel_w;
    const dot_plane *plane = plan->planes;
    while ((y - plane->row) % conv->stride_h)
        plane++;
    const int row = plane->first * plan->copies + (y - plane->row) / conv->stride_h;
    return row * plan->row_words + column * (plan->by_rows ? conv->dilation_w : plane->rows * plan->width);
}

/* Puts the filters of a bank in an order in which those that only the first blocks need come first, and those that only the
 * last ones need come last: each of two blocks then needs one range of them, and few batches are computed for nothing. */
static void sort_dot_filters(const sb_conv *conv, dot_plan *plan) {
    enum { EARLY = 1, LATE = 2 };
    static const uint8_t order[] = {EARLY, EARLY | LATE, LATE, 0};
    const sb_weight *weight = &conv->weight;
    const int k = weight->blocks;
    for (int t = 0; t < weight->out; t++)
        for (int i = 0; i < k; i++)
            plan->used[weight->index[(size_t)t * k + i]] |= i < (k + 1) / 2 ? EARLY : LATE;
    uint16_t place = 0;
    for (size_t use = 0; use < sizeof order; use++)
        for (int filter = 0; filter < weight->filters; filter++)
            if (plan->used[filter] == order[use])
                plan->place[filter] = place++;
}

/* The order of the filters, the ranges of each block, and where the maps of each output are. */
static void order_dot_filters(const sb_conv *conv, dot_plan *plan) {
    const sb_weight *weight = &conv->weight;
    const int k = weight->blocks, per_bank = filters_per_group(conv);
    for (int filter = 0; filter < weight->filters; filter++)
        plan->place[filter] = (uint16_t)(filter % per_bank);
    if (weight->index)
        sort_dot_filters(conv, plan);
    for (int i = 0; i < k; i++) {
        int32_t *range = plan->range + 2 * i;
        range[0] = plan->batches;
        for (int t = 0; t < weight->out; t++) {
            const size_t at = (size_t)t * k + i;
            const int place = plan->place[weight->index ? weight->index[at] : t], batch = place / DOT_FILTERS;
            range[0] = batch < range[0] ? batch : range[0];
            range[1] = batch < range[1] ? range[1] : batch + 1;
            plan->map_offset[at] = (uint32_t)(place * plan->map_floats);
        }
    }
}

/* The nibbles of one filter, and the sum of its signs. */
static int pack_dot_filter(const sb_conv *conv, const dot_plan *plan, int filter, uint8_t *bank, int place) {
    const size_t depth = (size_t)conv->weight.depth, first = (size_t)filter * plan->taps * depth;
    int signs = 0;
    for (int chunk = 0; chunk < plan->chunks; chunk++) {
        const size_t bytes = dot_batch_bytes(plan, chunk);
        uint8_t *to = bank + place / DOT_FILTERS * bytes + place % DOT_FILTERS;
        for (int step = 0; step < dot_chunk_steps(plan, chunk); step++) {
            const size_t channel = ((size_t)chunk * plan->chunk_quads + step / plan->taps) * 4;
            const size_t bit = first + step % plan->taps * depth + channel;
            const unsigned nibble = table_source_code(conv->weight.bits, bit, depth - channel < 4 ? (int)(depth - channel) : 4);
            to[step / 2 * DOT_FILTERS] |= (uint8_t)(nibble << step % 2 * 4);
            signs += 2 * __builtin_popcount(nibble) - 4;
        }
        bank += bytes * plan->batches;
    }
    return signs;
}

static void dot_prepare(const sb_conv *conv, void *prepared) {
    const sb_weight *weight = &conv->weight;
    const int per_bank = filters_per_group(conv), lowest = sb_lowest_level(conv->levels);
    dot_plan *plan = prepared;
    lay_out_dot(conv, plan);
    place_dot(conv, prepared, plan);
    for (int step = 0; step < plan->chunk_quads * plan->taps; step++)
        plan->offset[step] = 4 * (step / plan->taps * plan->quad_words + find_dot_tap(conv, plan, step % plan->taps));
    order_dot_filters(conv, plan);
    for (int filter = 0; filter < weight->filters; filter++) {
        const int bank = filter / per_bank, place = plan->place[filter];
        const int signs = pack_dot_filter(conv, plan, filter, plan->nibbles + bank * dot_bank_bytes(plan), place);
        plan->start[bank * plan->batches * DOT_FILTERS + place] = lowest * signs;
    }
}

/* Scratch for a unit, of which some quads are staged at a time. Its maps may be larger than those of the plan that stages. */
static size_t carve_dot_scratch(const sb_conv *conv, const dot_plan *plan, size_t map_floats, size_t quads, uint8_t *memory,
                                dot_scratch *scratch) {
    const size_t filters = (size_t)plan->batches * DOT_FILTERS;
    const size_t blocks = (size_t)conv->weight.blocks, columns = (size_t)(plan->width + LANES - 1) / LANES;
    size_t used = 0;
    uint32_t *interleaved = carve(memory, &used, ((size_t)plan->input_rows * plan->pitch + 2 * DOT_SLACK) * 4);
    scratch->interleaved = interleaved ? interleaved + DOT_SLACK : NULL;
    scratch->staged = carve(memory, &used, (quads * plan->quad_words + DOT_SLACK) * 4);
    scratch->staged_words = quads * plan->quad_words;
    scratch->maps = carve(memory, &used, blocks * filters * map_floats * sizeof(float));
    scratch->map = carve(memory, &used, blocks * sizeof *scratch->map);
    scratch->copies = carve(memory, &used, (size_t)plan->plane_rows * plan->copies * columns * sizeof *scratch->copies);
    scratch->copies_x = -1;
    return used;
}

static size_t carve_dot(const sb_conv *conv, const dot_plan *plan, uint8_t *memory, dot_scratch *scratch) {
    const size_t quads = (size_t)conv->weight.blocks * plan->chunk_quads;
    return carve_dot_scratch(conv, plan, plan->map_floats, quads, memory, scratch);
}

static size_t dot_scratch_size(const sb_conv *conv) {
    dot_plan plan;
    dot_scratch scratch;
    return lay_out_dot(conv, &plan) ? carve_dot(conv, &plan, NULL, &scratch) : 0;
}
