/* The arithmetic of levels_dot_rows.h with filters in the lanes, for maps whose pixels of all input blocks hardly fill a
 * register: two of 4 x 4, or one of up to 32 pixels. There the factors of a filter would be looked up for one register of
 * pixels alone. Here those of 32 filters are expanded from packed bits, one side at a time, and the pixels ("places", each for two
 * rows) are broadcast.
 *
 * A quad of the input is one or two registers, and what a column of taps reads of it for all places is one permutation for each of
 * the four rows. In the end sums are transposed, and the maps are those of dot rows. On maps of four columns, places at the
 * edges leave out the column of taps that meets padding there: a sixth of the products. */
#if LANES == 16

enum {
    FEW_FILTERS = 2,             /* registers of filters that share the loads of places, */
    FEW_PLACES = 8,              /* of which so many share factors that are expanded */
    FEW_REGISTERS = 2,           /* of input pixels, of a quad */
    FEW_SIDES_BYTES = 128 * 1024 /* at most: half of a small second-level cache */
};

/* Places by the columns of taps that they meet. */
typedef enum { ALL_COLUMNS, ALL_BUT_FIRST, ALL_BUT_LAST, FEW_EDGES } few_edge;

/* Bits of the factors of the sides: a sign is one bit, a multiple -3 + 2 low + 4 high. */
enum { BIT_FIRST, BIT_LAST, BIT_SUM, BIT_DIFFERENCE = BIT_SUM + 2, FACTOR_BITS = BIT_DIFFERENCE + 2 };

typedef struct {
    int32_t word[LANES]; /* among those of the registers of a quad */
    __mmask16 inside;     /* the others are padding, or no places */
} few_words;

typedef struct {
    rows_plan rows;  /* of which places, maps and the merge are used */
    int registers;   /* of filters, a multiple of FEW_FILTERS */
    int places;      /* in fours */
    int steps;       /* of a filter: columns of taps of all quads */
    bool edges;      /* rows of four pixels, three columns of taps around each of them */
    ptrdiff_t from[FEW_REGISTERS]; /* levels from those of the quad's first channel */
    __mmask16 pixels[FEW_REGISTERS];
    few_words *words; /* [register of places][column][row of four] */
    uint64_t *bits;   /* [registers of filters][bit of a factor][step][register]: of four channels of each filter */
    int32_t *start;   /* [registers of filters][edge][sum][filter] */
} few_plan;

typedef struct {
    dot_scratch dot; /* its maps */
    uint32_t *sides; /* [register of places][side][step][place] */
    vword *sums;     /* [sum][place][register of filters] */
} few_scratch;

/* ------------------------------------------------------------------------------------------------- plan */

static bool lay_out_few(const sb_conv *conv, few_plan *plan) {
    const int pixels = conv->height * conv->width, blocks = conv->weight.blocks;
    *plan = (few_plan){0};
    rows_plan *rows = &plan->rows;
    if (conv->groups > 1 || blocks > FEW_REGISTERS || pixels > LANES * FEW_REGISTERS / blocks || !lay_out_rows(conv, rows) ||
        rows->view.x_units * rows->view.y_units > 1)
        return false;
    plan->registers = (conv->weight.filters + FEW_FILTERS * LANES - 1) / (FEW_FILTERS * LANES) * FEW_FILTERS;
    plan->places = (blocks * rows->view.rows * rows->view.width + 3) / 4 * 4;
    plan->steps = rows->view.quads * rows->steps;
    plan->edges = conv->width == 4 && rows->view.width == 4 && rows->steps == 3 && conv->dilation_w == 1 && conv->pad_left == 1;
    rows->out.batches = rows->view.batches = plan->registers * LANES / DOT_FILTERS;
    for (int r = 0; r < FEW_REGISTERS; r++) {
        const int first = blocks > 1 ? 0 : r * LANES;
        plan->from[r] = (blocks > 1 ? (ptrdiff_t)r * conv->weight.depth * pixels : 0) + first;
        plan->pixels[r] = lanes_between(0, pixels - first);
        if (!plan->pixels[r])
            plan->from[r] = 0;
    }
    return (size_t)rows->registers * ROWS_SIDES * plan->steps * LANES * sizeof(uint32_t) <= FEW_SIDES_BYTES;
}

static double few_cost(const sb_conv *conv) {
    few_plan plan;
    if (dot_cost(conv) < 0 || !lay_out_few(conv, &plan))
        return -1;
    const rows_plan *rows = &plan.rows;
    const double k = conv->weight.blocks;
    const double stage = rows->view.quads * (30.0 + rows->registers * rows->steps * 20.0);
    const double places = plan.places * (plan.edges ? 5.0 / 6.0 : 1.0); /* on average over columns of taps */
    const double multiply = plan.registers * (plan.steps * (places * ROWS_SIDES * 0.53 + 3.0) + rows->registers * 400.0);
    const double merge = conv->weight.out * rows->out.vectors * (3 + 2 * k);
    return (stage + multiply + merge + 300) / CYCLES_PER_NANOSECOND;
}

static size_t place_few(const sb_conv *conv, uint8_t *memory, few_plan *plan) {
    rows_plan *rows = &plan->rows;
    const size_t most = (size_t)conv->weight.blocks * rows->view.rows * (rows->view.width / LANES + 2);
    size_t used = 0;
    carve(memory, &used, sizeof *plan);
    place_dot_filters(conv, memory, &used, &rows->out);
    rows->part_begin = carve(memory, &used, ((size_t)rows->registers + 1) * sizeof *rows->part_begin);
    rows->parts = carve(memory, &used, most * sizeof *rows->parts);
    plan->words = carve(memory, &used, (size_t)rows->registers * rows->steps * ROWS_SIDES * sizeof *plan->words);
    plan->bits = carve(memory, &used, (size_t)plan->registers * FACTOR_BITS * plan->steps * sizeof *plan->bits);
    plan->start = carve(memory, &used, (size_t)plan->registers * FEW_EDGES * 2 * LANES * sizeof *plan->start);
    return used;
}

static size_t few_prepared_size(const sb_conv *conv) {
    few_plan plan;
    return lay_out_few(conv, &plan) ? place_few(conv, NULL, &plan) : 0;
}

/* What a column of taps reads of one of four rows, for the places of a register. */
static few_words find_words(const sb_conv *conv, const rows_plan *rows, int first, int column, int row) {
    const int width = rows->view.width, block_places = rows->view.rows * width;
    const int pixels = conv->weight.blocks > 1 ? LANES : 0; /* from one block to the next */
    few_words words = {0};
    for (int lane = 0; lane < LANES && first + lane < conv->weight.blocks * block_places; lane++) {
        const int block = (first + lane) / block_places, place = (first + lane) % block_places;
        const int y = place / width * 2 + row - conv->pad_top;
        const int x = place % width * conv->stride_w + column * conv->dilation_w - conv->pad_left;
        if (y < 0 || y >= conv->height || x < 0 || x >= conv->width)
            continue;
        words.word[lane] = block * pixels + y * conv->width + x;
        words.inside |= (__mmask16)(1u << lane);
    }
    return words;
}

/* Does a column of taps count for places at an edge? */
ALWAYS_INLINE bool meets_column(few_edge edge, int column, int columns) {
    return edge == ALL_COLUMNS || column != (edge == ALL_BUT_FIRST ? 0 : columns - 1);
}

ALWAYS_INLINE few_edge edge_of_place(int place) {
    return place % 4 == 0 ? ALL_BUT_FIRST : place % 4 == 3 ? ALL_BUT_LAST : ALL_COLUMNS;
}

/* The bits of one filter, and where its two sums begin (see pack_rows_filter). */
static void pack_few_filter(const sb_conv *conv, const few_plan *plan, int filter, int place) {
    const size_t depth = (size_t)conv->weight.depth, columns = (size_t)plan->rows.steps;
    const size_t lane = (size_t)place % LANES, r = (size_t)place / LANES % FEW_FILTERS, first = (size_t)place / LANES - r;
    const size_t side_bits = (size_t)plan->steps * FEW_FILTERS;
    uint64_t *bits = plan->bits + first * FACTOR_BITS * plan->steps + r;
    int32_t *start = plan->start + (2 * first * FEW_EDGES + r) * LANES + lane;
    int signs[FEW_EDGES][2] = {{0}}, factors[FEW_EDGES][2] = {{0}};
    for (size_t step = 0; step < (size_t)plan->steps; step++) {
        const size_t channel = step / columns * 4;
        unsigned g[3];
        for (int ky = 0; ky < 3; ky++) {
            const size_t bit = ((size_t)filter * 3 * columns + ky * columns + step % columns) * depth + channel;
            g[ky] = table_source_code(conv->weight.bits, bit, quad_channels(conv, (int)(step / columns)));
        }
        for (int side = 0; side < 2; side++) {
            const unsigned codes = pack_factors(g[0], side ? ~g[1] : g[1], g[2]);
            uint64_t low = 0, high = 0;
            for (int c = 0; c < 4; c++) {
                low |= (uint64_t)(codes >> 2 * c & 1) << c;
                high |= (uint64_t)(codes >> (2 * c + 1) & 1) << c;
            }
            uint64_t *at = bits + step * FEW_FILTERS, *multiple = at + (BIT_SUM + 2 * side) * side_bits;
            at[(BIT_FIRST + side) * side_bits] |= (uint64_t)g[2 * side] << 4 * lane;
            multiple[0] |= low << 4 * lane;
            multiple[side_bits] |= high << 4 * lane;
            for (few_edge edge = 0; edge < FEW_EDGES; edge++) {
                const bool meets = meets_column(edge, (int)(step % columns), (int)columns);
                signs[edge][side] += meets ? 2 * __builtin_popcount(g[2 * side]) - 4 : 0;
                factors[edge][side] += meets ? sum_of_factors(codes) : 0;
            }
        }
    }
    for (few_edge edge = 0; edge < FEW_EDGES; edge++, start += 2 * FEW_FILTERS * LANES)
        start_rows_sums(conv, signs[edge], factors[edge], start, FEW_FILTERS * LANES);
}

static void few_prepare(const sb_conv *conv, void *prepared) {
    few_plan *plan = prepared;
    lay_out_few(conv, plan);
    place_few(conv, prepared, plan);
    rows_plan *rows = &plan->rows;
    order_dot_filters(conv, &rows->out);
    find_parts(rows, conv->weight.blocks);
    few_words *words = plan->words;
    for (int r = 0; r < rows->registers; r++)
        for (int column = 0; column < rows->steps; column++)
            for (int row = 0; row < ROWS_SIDES; row++)
                *words++ = find_words(conv, rows, r * LANES, column, row);
    for (int filter = 0; filter < conv->weight.filters; filter++)
        pack_few_filter(conv, plan, filter, rows->out.place[filter]);
}

static size_t carve_few(const sb_conv *conv, const few_plan *plan, uint8_t *memory, few_scratch *scratch) {
    const rows_plan *rows = &plan->rows;
    size_t used = carve_dot_scratch(conv, &rows->view, rows->out.map_floats, 0, memory, &scratch->dot);
    const size_t registers = (size_t)rows->registers * ROWS_SIDES * plan->steps;
    scratch->sides = carve(memory, &used, registers * LANES * sizeof *scratch->sides);
    scratch->sums = carve(memory, &used, (size_t)rows->registers * 2 * LANES * FEW_FILTERS * sizeof *scratch->sums);
    return used;
}

static size_t few_scratch_size(const sb_conv *conv) {
    few_plan plan;
    few_scratch scratch;
    return lay_out_few(conv, &plan) ? carve_few(conv, &plan, NULL, &scratch) : 0;
}

/* ------------------------------------------------------------------------------------------------ stage */

/* The sides of all columns of taps of a quad. */
ALWAYS_INLINE void build_few_sides(const few_plan *plan, const int8_t *in, size_t plane, const int channels, vsides raise_sum,
                                   uint32_t *to) {
    const size_t side_words = (size_t)plan->steps * LANES;
    const __m512i first = (__m512i)interleave_pixels(in + plan->from[0], plane, channels, plan->pixels[0], (vbyte){0});
    const __m512i second = (__m512i)interleave_pixels(in + plan->from[1], plane, channels, plan->pixels[1], (vbyte){0});
    const few_words *words = plan->words;
    for (int r = 0; r < plan->rows.registers; r++, to += ROWS_SIDES * side_words)
        for (int column = 0; column < plan->rows.steps; column++, words += ROWS_SIDES) {
            vsides d[ROWS_SIDES];
            UNROLL
            for (int i = 0; i < ROWS_SIDES; i++)
                d[i] = (vsides)_mm512_maskz_permutex2var_epi32(words[i].inside, first, _mm512_loadu_si512(words[i].word), second);
            store_sides(d, 0xffff, raise_sum, side_words, to + column * LANES);
        }
}

static NEVER_INLINE void stage_few(const sb_conv *conv, const few_plan *plan, const few_scratch *scratch, const int8_t *in) {
    const size_t plane = (size_t)conv->height * conv->width, quad_words = (size_t)plan->rows.steps * LANES;
    const vsides raise_sum = raise_of_sums(conv);
    const int quads = conv->weight.depth / 4;
    uint32_t *sides = scratch->sides;
    for (int quad = 0; quad < quads; quad++, in += 4 * plane, sides += quad_words)
        build_few_sides(plan, in, plane, 4, raise_sum, sides);
    switch (conv->weight.depth % 4) {
    case 1: build_few_sides(plan, in, plane, 1, raise_sum, sides); break;
    case 2: build_few_sides(plan, in, plane, 2, raise_sum, sides); break;
    case 3: build_few_sides(plan, in, plane, 3, raise_sum, sides); break;
    default: break;
    }
}

/* --------------------------------------------------------------------------------------------- multiply */

/* The factors of one side: where their bits are, and what a sign stands for. */
typedef struct {
    const uint64_t *bits; /* [step][register of filters]; those of the higher bits of multiples come behind all others */
    int8_t sign; /* 0: not signs but multiples */
} few_side;

/* The factors of a register of filters for four channels. */
ALWAYS_INLINE vword expand_factors(const uint64_t *bits, size_t all_bits, int8_t sign, const bool multiples) {
    if (!multiples)
        return (vword)_mm512_mask_blend_epi8(bits[0], _mm512_set1_epi8(-sign), _mm512_set1_epi8(sign));
    const __m512i least = _mm512_set1_epi8(-3), two = _mm512_set1_epi8(2), four = _mm512_set1_epi8(4);
    const __m512i odd = _mm512_mask_add_epi8(least, bits[0], least, two);
    return (vword)_mm512_mask_add_epi8(odd, bits[all_bits], odd, four);
}

/* Adds the products of one side to the sums of two registers of filters at `places` places, a constant of the caller. `edges`:
 * steps come in threes, one for each column of taps, of which places at an edge leave one out. */
ALWAYS_INLINE void few_tile(const few_side *factors, const uint32_t *side, int steps, vword *sums, const int places,
                            const bool edges, const bool multiples) {
    const int columns = edges ? 3 : 1;
    const size_t all_bits = (size_t)steps * FEW_FILTERS;
    const uint64_t *bits = factors->bits;
    const int8_t sign = factors->sign;
    vword sum[FEW_FILTERS * FEW_PLACES];
    UNROLL
    for (int i = 0; i < FEW_FILTERS * places; i++)
        sum[i] = sums[i];
    for (int step = 0; step < steps; step += columns) {
        UNROLL
        for (int column = 0; column < columns; column++, side += LANES, bits += FEW_FILTERS) {
            const vword first = expand_factors(bits, all_bits, sign, multiples);
            const vword second = expand_factors(bits + 1, all_bits, sign, multiples);
            UNROLL
            for (int place = 0; place < places; place++) {
                if (edges && !meets_column(edge_of_place(place), column, columns))
                    continue;
                const vword levels = (vword){0} + (int32_t)side[place];
                sum[2 * place] = add_products(sum[2 * place], levels, first);
                sum[2 * place + 1] = add_products(sum[2 * place + 1], levels, second);
            }
        }
    }
    UNROLL
    for (int i = 0; i < FEW_FILTERS * places; i++)
        sums[i] = sum[i];
}

typedef void few_tile_of(const few_side *factors, const uint32_t *side, int steps, vword *sums);

#define FEW_TILE(name, places, edges, multiples)                                                                       \
    static NEVER_INLINE void name(const few_side *factors, const uint32_t *side, int steps, vword *sums) {             \
        few_tile(factors, side, steps, sums, places, edges, multiples);                                                \
    }
FEW_TILE(few_signs_4, 4, false, false)
FEW_TILE(few_signs_8, 8, false, false)
FEW_TILE(few_multiples_4, 4, false, true)
FEW_TILE(few_multiples_8, 8, false, true)
FEW_TILE(few_edge_signs_4, 4, true, false)
FEW_TILE(few_edge_signs_8, 8, true, false)
FEW_TILE(few_edge_multiples_4, 4, true, true)
FEW_TILE(few_edge_multiples_8, 8, true, true)
#undef FEW_TILE

/* [edges][multiples][eight places] */
static few_tile_of *const few_tiles[2][2][2] = {
    {{few_signs_4, few_signs_8}, {few_multiples_4, few_multiples_8}},
    {{few_edge_signs_4, few_edge_signs_8}, {few_edge_multiples_4, few_edge_multiples_8}}};

/* One side at all places. */
static void add_few_side(const few_plan *plan, const few_scratch *scratch, int side, few_side factors, vword *sums) {
    for (int place = 0; place < plan->places; place += FEW_PLACES, sums += FEW_FILTERS * FEW_PLACES) {
        const size_t first = ((size_t)(place / LANES) * ROWS_SIDES + side) * plan->steps * LANES + place % LANES;
        few_tile_of *tile = few_tiles[plan->edges][factors.sign == 0][plan->places - place > 4];
        tile(&factors, scratch->sides + first, plan->steps, sums);
    }
}

/* Registers of filters become registers of places. */
ALWAYS_INLINE void transpose(vword *v) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    UNROLL
    for (int distance = 1; distance < LANES; distance *= 2) {
        const __m512i apart = _mm512_set1_epi32(distance);
        const __mmask16 upper = _mm512_test_epi32_mask(lane, apart);
        const __m512i low = _mm512_mask_add_epi32(lane, upper, lane, _mm512_set1_epi32(LANES - distance));
        const __m512i high = _mm512_mask_add_epi32(_mm512_add_epi32(lane, apart), upper, lane, _mm512_set1_epi32(LANES));
        UNROLL
        for (int i = 0; i < LANES; i++)
            if (!(i & distance)) {
                const __m512i a = (__m512i)v[i], b = (__m512i)v[i + distance];
                v[i] = (vword)_mm512_permutex2var_epi32(a, low, b);
                v[i + distance] = (vword)_mm512_permutex2var_epi32(a, high, b);
            }
    }
}

/* The maps of one register of filters at one register of places, of the upper of two rows, or of the lower. */
static NEVER_INLINE void store_few(const few_plan *plan, const vword *sums, int r, bool lower, float *map) {
    const rows_plan *rows = &plan->rows;
    const size_t map_floats = rows->out.map_floats;
    vword v[LANES];
    UNROLL
    for (int i = 0; i < LANES; i++)
        v[i] = sums[FEW_FILTERS * i] >> 1;
    transpose(v);
    map += lower ? rows->view.width : 0;
    UNROLL
    for (int f = 0; f < LANES; f++, map += map_floats)
        store_parts(rows->parts + rows->part_begin[r], rows->parts + rows->part_begin[r + 1],
                    (vword)__builtin_convertvector(v[f], vfloat), map, false);
}

/* Two registers of filters, `first` being the number of the first of their filters. */
static void multiply_few(const few_plan *plan, const few_scratch *scratch, size_t first) {
    const size_t side_bits = (size_t)plan->steps * FEW_FILTERS;
    const uint64_t *bits = plan->bits + first / LANES * FACTOR_BITS * plan->steps;
    const vword *start = (const vword *)(plan->start + 2 * FEW_EDGES * first);
    const int count = (plan->rows.registers * LANES) * FEW_FILTERS;
    vword *upper = scratch->sums, *lower = scratch->sums + count;
    for (int i = 0; i < count; i++) {
        const vword *begin = start + (plan->edges ? edge_of_place(i / FEW_FILTERS) : ALL_COLUMNS) * 2 * FEW_FILTERS;
        upper[i] = begin[i % FEW_FILTERS];
        lower[i] = begin[FEW_FILTERS + i % FEW_FILTERS];
    }
    add_few_side(plan, scratch, 1, (few_side){.bits = bits + BIT_SUM * side_bits}, upper);
    add_few_side(plan, scratch, 2, (few_side){.bits = bits + BIT_DIFFERENCE * side_bits}, lower);
    add_middle_sides(upper, lower, count);
    add_few_side(plan, scratch, 0, (few_side){bits + BIT_FIRST * side_bits, 2}, upper);
    add_few_side(plan, scratch, 3, (few_side){bits + BIT_LAST * side_bits, -2}, lower);
    for (int i = 0; i < plan->rows.registers * FEW_FILTERS; i++) {
        const int r = i / FEW_FILTERS, f = i % FEW_FILTERS;
        const size_t at = (size_t)r * LANES * FEW_FILTERS + f;
        float *map = scratch->dot.maps + (first + f * LANES) * plan->rows.out.map_floats;
        store_few(plan, upper + at, r, false, map);
        store_few(plan, lower + at, r, true, map);
    }
}

/* --------------------------------------------------------------------------------------------------- run */

static void few_run(const sb_conv *conv, const int8_t *in, float *out, void *memory) {
    const few_plan *plan = conv->prepared;
    const dot_unit unit = find_dot_unit(conv, &plan->rows.out, 0);
    few_scratch scratch;
    uint64_t since = BEGIN_STAGE(conv);
    carve_few(conv, plan, memory, &scratch);
    stage_few(conv, plan, &scratch, in);
    END_STAGE(conv, build, &since);
    for (int r = 0; r < plan->registers; r += FEW_FILTERS)
        multiply_few(plan, &scratch, (size_t)r * LANES);
    END_STAGE(conv, look_up, &since);
    merge_dot_unit(conv, &plan->rows.out, &unit, &scratch.dot, 0, out);
    END_STAGE(conv, merge, &since);
    if (out)
        apply_rest(conv, out);
}

static const sb_conv_kernel dot_rows_lanes_kernel = {
    .name = "dot rows lanes", .cost = few_cost, .prepared_size = few_prepared_size, .prepare = few_prepare,
    .scratch_size = few_scratch_size, .adds_in_place = true, .run_levels = few_run,
};

#endif
