/* Planning for the dot kernels with two rows at a time (levels_dot_rows.h): where pixels are, weights as codes. */

enum {
    ROWS_SIDES = 4,
    ROWS_NUMBERS = 1 << 21, /* of a filter at most: what is added up on the way to its sums fits 32 bits */
};

typedef uint8_t vsides __attribute__((vector_size(64), may_alias)); /* sums and differences of levels, modulo 256 */

/* Lanes of a register that are next to each other in a map. */
typedef struct {
    ptrdiff_t to; /* of lane 0, for the first of two rows, from the map of a filter in the first block */
    __mmask16 lanes;
} rows_part;

/* What 16 pixels of a block read of the interleaved input, for the first row and column of taps: permuted words. */
typedef struct {
    int32_t word;        /* where 32 of them begin */
    int32_t lane[LANES]; /* from there */
} rows_pick;

typedef struct {
    dot_plan view; /* how the input is staged */
    dot_plan out;  /* the same with the rows of the output and what belongs to filters: two starts each, codes in `nibbles` */
    int steps;      /* of one quad: columns of taps */
    int side_words; /* of one side of one quad, all blocks */
    int registers;  /* of pixels, of all blocks */
    int32_t *offset;     /* [quad of a chunk][column]: bytes from a pixel to what the tap reads of side 0 */
    int32_t *from;       /* [row of taps][column]: words of the view */
    int32_t *part_begin; /* (registers + 1) */
    rows_part *parts;
    bool picks;          /* the input is not staged, its words are picked */
    int block_registers; /* that the pixels of a block take */
    rows_pick *pick;     /* [register of a block] */
    __mmask16 *inside;   /* [register of a block][column of taps]: pixels for which it reads columns of the input */
} rows_plan;

/* Pixels of a register for which a column of taps, in each of four rows of taps, reads pixels of the input. */
typedef struct {
    __mmask16 row[ROWS_SIDES];
} rows_mask;

typedef struct {
    dot_scratch dot;  /* staged: one quad of one block */
    uint32_t *sides;  /* [quad of the chunk][side][copy][input block][row][pixel] */
    rows_mask *masks; /* [register of a block][column of taps], where words are picked */
} rows_scratch;

/* ------------------------------------------------------------------------------------------------- plan */

static sb_conv view_in_pairs(const sb_conv *conv) {
    sb_conv view = *conv;
    view.weight.kernel_h = 4;
    view.stride_h = 2;
    view.out_height = (conv->out_height + 1) / 2;
    return view;
}

/* What a pixel of a block reads for the first row and column of taps, among the interleaved words. */
static int find_rows_word(const sb_conv *conv, const dot_plan *view, int pixel) {
    return pixel / view->width * 2 * view->pitch + pixel % view->width - conv->pad_left;
}

/* Are the words that 16 pixels read always among 32 from the first one's on, and in the buffer with its slack? They do not go
 * back from one row to the next unless the output is much wider than the input. */
static bool can_pick_words(const sb_conv *conv, const dot_plan *view) {
    const int pixels = view->rows * view->width, last_column = (conv->weight.kernel_w - 1) * conv->dilation_w;
    if (view->by_rows || conv->stride_w > 1 || conv->pad_left > DOT_SLACK || view->width > 2 * view->pitch + 1)
        return false;
    for (int first = 0; first < pixels; first += LANES) {
        const int last = first + LANES < pixels ? first + LANES - 1 : pixels - 1, word = find_rows_word(conv, view, first);
        if (find_rows_word(conv, view, last) - word >= 2 * LANES ||
            word + 3 * view->pitch + last_column > view->input_rows * view->pitch)
            return false;
    }
    return true;
}

static bool lay_out_rows(const sb_conv *conv, rows_plan *plan) {
    *plan = (rows_plan){.steps = conv->weight.kernel_w};
    if (conv->weight.kernel_h != 3 || conv->stride_h != 1 || conv->dilation_h != 1 ||
        (int64_t)conv->weight.depth * 3 * conv->weight.kernel_w > ROWS_NUMBERS)
        return false;
    const sb_conv view = view_in_pairs(conv);
    if (!lay_out_dot(&view, &plan->view))
        return false;
    plan->out = plan->view;
    plan->out.rows = 2 * plan->view.rows;
    plan->out.vectors = (plan->out.rows * plan->out.width + LANES - 1) / LANES;
    plan->out.map_floats = find_map_floats(plan->out.vectors);
    if ((int64_t)plan->view.quad_words * conv->weight.blocks > 2 * DOT_MOST_WORDS)
        return false;
    plan->side_words = plan->view.copies * conv->weight.blocks * plan->view.rows * plan->view.row_words;
    plan->registers = (conv->weight.blocks * plan->view.rows * plan->view.width + LANES - 1) / LANES;
    plan->block_registers = (plan->view.rows * plan->view.width + LANES - 1) / LANES;
    plan->picks = can_pick_words(conv, &plan->view);
    return true;
}

static int rows_chunk_steps(const rows_plan *plan, int chunk) {
    return dot_chunk_steps(&plan->view, chunk) / plan->view.taps * plan->steps;
}

/* Bytes of a batch of filters in a chunk: nibbles of g0, of -g2, then the factors of a1 and of a2, a byte each. */
static size_t rows_sign_bytes(const rows_plan *plan, int chunk) {
    return (size_t)(rows_chunk_steps(plan, chunk) + 1) / 2 * DOT_FILTERS;
}

static size_t rows_factor_bytes(const rows_plan *plan, int chunk) {
    return (size_t)rows_chunk_steps(plan, chunk) * DOT_FILTERS;
}

static size_t rows_batch_bytes(const rows_plan *plan, int chunk) {
    return 2 * (rows_sign_bytes(plan, chunk) + rows_factor_bytes(plan, chunk));
}

static size_t rows_bank_bytes(const rows_plan *plan) {
    const size_t whole = (plan->view.chunks - 1) * rows_batch_bytes(plan, 0);
    return (whole + rows_batch_bytes(plan, plan->view.chunks - 1)) * plan->view.batches;
}

static double rows_cost(const sb_conv *conv) {
    rows_plan plan;
    if (dot_cost(conv) < 0 || !lay_out_rows(conv, &plan))
        return -1;
    const double k = conv->weight.blocks, steps = (double)plan.view.quads * plan.steps * ROWS_SIDES;
    const int row_registers = (plan.view.width + LANES - 1) / LANES;
    const double copies = plan.view.by_rows || plan.picks ? 0 : (double)plan.view.plane_rows * plan.view.copies * row_registers;
    const double list = plan.view.by_rows || plan.picks ? 0 : copies * 15 + 300;
    const double stage = k * plan.view.quads * (copies * 4 + (double)plan.view.input_rows * plan.view.pitch * 5 / LANES);
    const double transform = (double)plan.view.quads * plan.side_words / LANES * (plan.picks ? 26 : 14);
    const double product = plan.registers == 1 ? 0.86 : plan.registers == 2 || plan.registers == 4 ? 0.545 : 0.53;
    const double multiply = plan.registers * plan.view.batches * DOT_FILTERS * (steps * product + plan.view.chunks * 13.0);
    const double merge = (double)conv->weight.out / conv->groups * plan.out.vectors * (3 + 2 * k);
    return (double)plan.view.x_units * plan.view.y_units * conv->groups * (stage + transform + list + multiply + merge) /
           CYCLES_PER_NANOSECOND;
}

static size_t place_rows(const sb_conv *conv, uint8_t *memory, rows_plan *plan) {
    const dot_plan *view = &plan->view;
    const size_t filters = (size_t)view->banks * view->batches * DOT_FILTERS;
    const size_t runs = (size_t)conv->weight.blocks * view->rows, most = runs * (view->width / LANES + 2);
    size_t used = 0;
    carve(memory, &used, sizeof *plan);
    place_dot_filters(conv, memory, &used, &plan->out);
    plan->offset = carve(memory, &used, (size_t)view->chunk_quads * plan->steps * sizeof *plan->offset);
    plan->from = carve(memory, &used, (size_t)ROWS_SIDES * plan->steps * sizeof *plan->from);
    plan->part_begin = carve(memory, &used, ((size_t)plan->registers + 1) * sizeof *plan->part_begin);
    plan->parts = carve(memory, &used, most * sizeof *plan->parts);
    plan->pick = carve(memory, &used, (size_t)plan->block_registers * sizeof *plan->pick);
    plan->inside = carve(memory, &used, (size_t)plan->block_registers * plan->steps * sizeof *plan->inside);
    plan->out.start = carve(memory, &used, filters * 2 * sizeof *plan->out.start);
    plan->out.nibbles = carve(memory, &used, view->banks * rows_bank_bytes(plan));
    return used;
}

static size_t rows_prepared_size(const sb_conv *conv) {
    rows_plan plan;
    return lay_out_rows(conv, &plan) ? place_rows(conv, NULL, &plan) : 0;
}

/* Where the lanes of each register go. */
static void find_parts(rows_plan *plan, int blocks) {
    const int width = plan->view.width, rows = plan->view.rows, pixels = blocks * rows * width;
    const ptrdiff_t block_floats = (ptrdiff_t)(plan->out.batches * DOT_FILTERS * plan->out.map_floats);
    rows_part *part = plan->parts;
    for (int first = 0, r = 0; first < pixels; first += LANES, r++) {
        for (int lane = 0; lane < LANES && first + lane < pixels;) {
            const int row = (first + lane) / width, x = (first + lane) % width;
            const int end = lane + width - x < LANES ? lane + width - x : LANES;
            *part++ = (rows_part){row / rows * block_floats + 2 * (row % rows) * width + x - lane, lanes_between(lane, end)};
            lane = end;
        }
        plan->part_begin[r + 1] = (int32_t)(part - plan->parts);
    }
}

static void find_picks(const sb_conv *conv, rows_plan *plan) {
    const dot_plan *view = &plan->view;
    for (int r = 0; r < plan->block_registers; r++) {
        rows_pick *pick = &plan->pick[r];
        pick->word = find_rows_word(conv, view, r * LANES);
        for (int lane = 0; lane < LANES && r * LANES + lane < view->rows * view->width; lane++) {
            pick->lane[lane] = find_rows_word(conv, view, r * LANES + lane) - pick->word;
            for (int column = 0; column < plan->steps; column++) {
                const int x = (r * LANES + lane) % view->width + column * conv->dilation_w - conv->pad_left;
                if (x >= 0 && x < conv->width)
                    plan->inside[r * plan->steps + column] |= (__mmask16)(1u << lane);
            }
        }
    }
}

/* What the two factors of a sum are, of four channels: two bits each, 0..3 for -3, -1, 1, 3. */
static uint8_t pack_factors(unsigned g0, unsigned g1, unsigned g2) {
    unsigned code = 0;
    for (int c = 0; c < 4; c++)
        code |= ((g0 >> c & 1) + (g1 >> c & 1) + (g2 >> c & 1)) << 2 * c;
    return (uint8_t)code;
}

static int sum_of_factors(unsigned code) {
    return 2 * (int)((code & 3) + (code >> 2 & 3) + (code >> 4 & 3) + (code >> 6)) - 12;
}

/* Where the two sums of a filter begin: what staging raises is taken off. `signs`: sums of those of its first and last row. */
static void start_rows_sums(const sb_conv *conv, const int *signs, const int *factors, int32_t *start, size_t apart) {
    start[0] = -128 * (signs[0] - signs[1]) - (conv->levels.is_signed ? 128 * factors[0] : 0);
    start[apart] = -128 * (signs[0] + signs[1] + factors[1]);
}

/* The codes of one filter, and its starts. */
static void pack_rows_filter(const sb_conv *conv, const rows_plan *plan, int filter, uint8_t *bank, int place, int32_t *start) {
    const size_t depth = (size_t)conv->weight.depth, columns = (size_t)plan->steps;
    int signs[2] = {0}, factors[2] = {0};
    for (int chunk = 0; chunk < plan->view.chunks; chunk++) {
        const size_t bytes = rows_batch_bytes(plan, chunk), sign_bytes = rows_sign_bytes(plan, chunk);
        uint8_t *sign = bank + place / DOT_FILTERS * bytes + place % DOT_FILTERS, *factor = sign + 2 * sign_bytes;
        for (int step = 0; step < rows_chunk_steps(plan, chunk); step++, factor += DOT_FILTERS) {
            const size_t channel = ((size_t)chunk * plan->view.chunk_quads + step / columns) * 4;
            unsigned g[3];
            for (int ky = 0; ky < 3; ky++) {
                const size_t bit = ((size_t)filter * 3 * columns + ky * columns + step % columns) * depth + channel;
                g[ky] = table_source_code(conv->weight.bits, bit, depth - channel < 4 ? (int)(depth - channel) : 4);
            }
            for (int side = 0; side < 2; side++) {
                const unsigned nibble = g[2 * side];
                sign[side * sign_bytes + step / 2 * DOT_FILTERS] |= (uint8_t)((side ? nibble ^ 15 : nibble) << step % 2 * 4);
                signs[side] += 2 * __builtin_popcount(nibble) - 4;
                const uint8_t code = pack_factors(g[0], side ? ~g[1] : g[1], g[2]);
                factor[side * rows_factor_bytes(plan, chunk)] = code;
                factors[side] += sum_of_factors(code);
            }
        }
        bank += bytes * plan->view.batches;
    }
    start_rows_sums(conv, signs, factors, start, 1);
}

static void rows_prepare(const sb_conv *conv, void *prepared) {
    const int per_bank = filters_per_group(conv);
    const sb_conv view = view_in_pairs(conv);
    rows_plan *plan = prepared;
    lay_out_rows(conv, plan);
    place_rows(conv, prepared, plan);
    const int run = plan->side_words / plan->view.copies, quad_words = ROWS_SIDES * plan->side_words;
    for (int step = 0; step < plan->view.chunk_quads * plan->steps; step++) {
        const int column = step % plan->steps;
        plan->offset[step] = 4 * (step / plan->steps * quad_words + column * (plan->view.by_rows ? conv->dilation_w : run));
    }
    for (int tap = 0; tap < ROWS_SIDES * plan->steps; tap++)
        plan->from[tap] = find_dot_tap(&view, &plan->view, tap);
    order_dot_filters(conv, &plan->out);
    find_parts(plan, conv->weight.blocks);
    if (plan->picks)
        find_picks(conv, plan);
    for (int filter = 0; filter < conv->weight.filters; filter++) {
        const int bank = filter / per_bank, place = plan->out.place[filter];
        const size_t at = (size_t)bank * plan->out.batches * DOT_FILTERS + place;
        pack_rows_filter(conv, plan, filter, plan->out.nibbles + bank * rows_bank_bytes(plan), place, plan->out.start + 2 * at);
    }
}

static size_t carve_rows(const sb_conv *conv, const rows_plan *plan, uint8_t *memory, rows_scratch *scratch) {
    size_t used = carve_dot_scratch(conv, &plan->view, plan->out.map_floats, 1, memory, &scratch->dot);
    const size_t words = (size_t)plan->view.chunk_quads * ROWS_SIDES * plan->side_words;
    scratch->sides = carve(memory, &used, (words + DOT_SLACK) * sizeof *scratch->sides);
    scratch->masks = carve(memory, &used, (size_t)plan->block_registers * plan->steps * sizeof *scratch->masks);
    return used;
}

static size_t rows_scratch_size(const sb_conv *conv) {
    rows_plan plan;
    rows_scratch scratch;
    return lay_out_rows(conv, &plan) ? carve_rows(conv, &plan, NULL, &scratch) : 0;
}
