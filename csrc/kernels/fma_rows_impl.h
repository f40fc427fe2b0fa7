/* Dense convolutions by minimal filtering down the columns (Winograd): strips of four output rows, with six or seven
 * products where there would be twelve or sixteen.
 *
 * With a vertical stride s the rows of a kernel fall into s phases (row mod s), and each phase is a convolution of up to
 * four rows without a stride. Four of its output rows y are
 *
 *     y = out · ((weight · g) × (data · d))
 *
 * for the rows g of a filter and the six or seven input rows d that they meet, with three small matrices, and × element by
 * element. The combinations of input rows ("sides") are built once for all filters, those of the filters when the model is
 * opened; products of all channels, columns and phases are added up before `out` makes rows of them.
 *
 * The matrices are those of polynomials that are multiplied by their values at the points 0, 1, -1, 1/2, -2 (and -1/2) and
 * infinity. Roundings weigh up to ten times as much as in plain sums, the more the more numbers are added: filters of many
 * numbers are left to the plain kernel, so that errors stay at some millionths of the largest output. A number that is not
 * finite spoils all rows of the strips that read it. */

enum {
    STRIP = 4,
    STRIP_TAPS = 4,
    STRIP_SIDES = STRIP + STRIP_TAPS - 1,
    STRIP_NUMBERS_3 = 128 * 9, /* of a filter at most, with three rows to a phase, */
    STRIP_NUMBERS_4 = 8 * 49,  /* and with four */
};

typedef struct {
    float data[STRIP_SIDES][STRIP_SIDES], weight[STRIP_SIDES][STRIP_TAPS];
    float power[STRIP][STRIP_SIDES]; /* of each point: the rows of `out` */
} strip_matrices;

typedef struct {
    flat_plan view;  /* the input in planes, for strips as rows: those with the same row mod 4 s */
    flat_plan sides; /* [channel][phase][column mod stride][side] instead of planes */
    int taps, count; /* rows of a phase; sides */
    int steps;       /* phases times columns of taps */
} strip_plan;

typedef struct {
    flat_scratch flat;
    float *sides;
    vfloat *sums;    /* [side][filter][register], then [row][filter][register] */
} strip_scratch;

/* ------------------------------------------------------------------------------------------------- plan */

static double strip_point(int side) {
    static const double points[STRIP_SIDES - 1] = {0, 1, -1, 0.5, -2, -0.5};
    return points[side];
}

/* Coefficients of the product of x - point over all points but one, those of low powers first. */
static void multiply_out(int points, int but, double *coefficient) {
    int degree = 0;
    coefficient[0] = 1;
    for (int p = 0; p < points; p++) {
        if (p == but)
            continue;
        coefficient[degree + 1] = 0;
        for (int i = degree + 1; i > 0; i--)
            coefficient[i] = coefficient[i - 1] - strip_point(p) * coefficient[i];
        coefficient[0] *= -strip_point(p);
        degree++;
    }
}

/* Rows of `data` are made about as large as the input by powers of two, which `weight` takes back. */
static void find_strip_matrices(int taps, strip_matrices *matrices) {
    const int points = STRIP + taps - 2; /* the last side is that of infinity */
    for (int side = 0; side <= points; side++) {
        double coefficient[STRIP_SIDES] = {0}, divisor = 1, total = 0, scale = 1;
        multiply_out(points, side, coefficient);
        for (int p = 0; p < points && side < points; p++)
            if (p != side)
                divisor *= strip_point(side) - strip_point(p);
        for (int i = 0; i <= points; i++)
            total += coefficient[i] < 0 ? -coefficient[i] : coefficient[i];
        while (total * scale > 2.8)
            scale /= 2;
        for (int i = 0; i <= points; i++)
            matrices->data[side][i] = (float)(coefficient[i] * scale);
        double power = 1;
        for (int i = 0; i < STRIP; i++, power *= side < points ? strip_point(side) : 0) {
            const double value = side < points ? power : i == STRIP - 1;
            matrices->power[i][side] = (float)value;
        }
        power = 1;
        for (int i = 0; i < taps; i++, power *= side < points ? strip_point(side) : 0)
            matrices->weight[side][i] = (float)((side < points ? power / divisor : i == taps - 1) / scale);
    }
}

/* Rows of the longest phase. */
static int strip_taps(const sb_conv *conv) { return (conv->weight.kernel_h + conv->stride_h - 1) / conv->stride_h; }

/* All phases are as long as the longest: the others have a row of zeros, and the input row that it meets is staged too. */
static sb_conv view_in_strips(const sb_conv *conv) {
    sb_conv view = *conv;
    view.weight.kernel_h = (strip_taps(conv) + STRIP - 1) * conv->stride_h;
    view.stride_h = STRIP * conv->stride_h;
    view.out_height = conv->out_height / STRIP;
    return view;
}

static bool plan_strips(const sb_conv *conv, strip_plan *plan) {
    const sb_weight *weight = &conv->weight;
    const int taps = strip_taps(conv);
    const int64_t numbers = (int64_t)weight->depth * weight->kernel_h * weight->kernel_w;
    *plan = (strip_plan){.taps = taps, .count = STRIP + taps - 1, .steps = conv->stride_h * weight->kernel_w};
    if (numbers > (taps == 3 ? STRIP_NUMBERS_3 : STRIP_NUMBERS_4) || !weight->values || weight->binary_input ||
        weight->index || conv->dilation_h > 1 || taps < 3 || taps > STRIP_TAPS ||
        conv->stride_h * STRIP > SB_FAST_STRIDE || conv->out_height % STRIP)
        return false;
    const sb_conv view = view_in_strips(conv);
    plan->view = plan_flat(&view, weight->depth, FMA_BAND_ROWS / STRIP);
    plan->view.row_step = STRIP * conv->out_width;
    plan->sides = plan->view;
    plan->sides.planes = conv->stride_h * conv->stride_w * plan->count;
    plan->sides.plane_floats = plan->view.band_rows * plan->view.pitch + FLAT_REGISTERS * LANES;
    return true;
}

static size_t strip_batch_floats(const sb_conv *conv, const strip_plan *plan) {
    return (size_t)plan->count * conv->weight.depth * plan->steps * FLAT_FILTERS;
}

static double strip_cost(const sb_conv *conv) {
    strip_plan plan;
    if (!plan_strips(conv, &plan))
        return -1;
    const double bands = (double)((conv->out_height / STRIP + plan.view.band_rows - 1) / plan.view.band_rows);
    const double tiles = (double)((plan.view.max_vectors + FLAT_REGISTERS - 1) / FLAT_REGISTERS) * bands * conv->groups;
    const double tile = FLAT_FILTERS * FLAT_REGISTERS;
    const double multiply = (double)strip_batch_floats(conv, &plan) * FLAT_REGISTERS * 0.53 + plan.count * (20 + tile);
    const double write = tile * (plan.count * 1.5 + STRIP * 3);
    const double sides = (double)conv->channels * plan.sides.planes * plan.sides.plane_floats / LANES;
    const double build = sides * (plan.count + 2.0) * bands;
    return (tiles * filter_batches(conv) * (multiply + write) + stage_cost(conv, &plan.view) * bands + build) /
           CYCLES_PER_NANOSECOND;
}

static size_t strip_prepared_size(const sb_conv *conv) {
    strip_plan plan;
    if (!plan_strips(conv, &plan))
        return 0;
    size_t used = 0;
    carve(NULL, &used, sizeof(strip_matrices));
    return used + (size_t)conv->groups * filter_batches(conv) * strip_batch_floats(conv, &plan) * sizeof(float);
}

/* [group][batch of filters][side][channel][phase][column][filter] */
static float *strip_weights(void *prepared) {
    size_t used = 0;
    carve(prepared, &used, sizeof(strip_matrices));
    return (float *)((uint8_t *)prepared + used);
}

static void strip_prepare(const sb_conv *conv, void *prepared) {
    const sb_weight *weight = &conv->weight;
    const int per_group = filters_per_group(conv), columns = weight->kernel_w, stride = conv->stride_h;
    strip_matrices *matrices = prepared;
    strip_plan plan;
    plan_strips(conv, &plan);
    find_strip_matrices(plan.taps, matrices);
    for (int filter = 0; filter < weight->filters; filter++) {
        const int group = filter / per_group, in_group = filter % per_group;
        const size_t batch = (size_t)group * filter_batches(conv) + in_group / FLAT_FILTERS;
        float *to = strip_weights(prepared) + batch * strip_batch_floats(conv, &plan) + in_group % FLAT_FILTERS;
        for (int side = 0; side < plan.count; side++)
            for (int i = 0; i < weight->depth * plan.steps; i++, to += FLAT_FILTERS) {
                const int channel = i / plan.steps, phase = i % plan.steps / columns, column = i % columns;
                double sum = 0;
                for (int tap = 0; tap < plan.taps && phase + tap * stride < weight->kernel_h; tap++) {
                    const int64_t row = (int64_t)(filter * weight->depth + channel) * weight->kernel_h + phase + tap * stride;
                    sum += (double)matrices->weight[side][tap] *
                           sb_load_value(weight->values, weight->half, row * columns + column);
                }
                *to = (float)sum;
            }
    }
}

static size_t carve_strips(const sb_conv *conv, const strip_plan *plan, uint8_t *memory, strip_scratch *scratch) {
    const sb_conv view = view_in_strips(conv);
    const size_t tile = FLAT_FILTERS * FLAT_REGISTERS * LANES * sizeof(float);
    size_t used = 0;
    scratch->sums = carve(memory, &used, (size_t)(plan->count + STRIP) * tile);
    scratch->sides = carve(memory, &used, (size_t)plan->sides.channels * plan->sides.planes * plan->sides.plane_floats *
                                              sizeof(float));
    return carve_flat_scratch(&view, &plan->view, memory, used, &scratch->flat);
}

static size_t strip_scratch_size(const sb_conv *conv) {
    strip_plan plan;
    strip_scratch scratch;
    return plan_strips(conv, &plan) ? carve_strips(conv, &plan, NULL, &scratch) : 0;
}

/* ------------------------------------------------------------------------------------------------ sides */

/* `row`: the first pixel of each input row that meets the first strip; `count`, a constant of the caller: how many. */
ALWAYS_INLINE void combine_input_rows(const strip_matrices *matrices, const float *const *row, int floats, size_t side_floats,
                                float *to, const int count) {
    for (int at = 0; at < floats; at += LANES) {
        vfloat d[STRIP_SIDES];
        UNROLL
        for (int i = 0; i < count; i++)
            d[i] = vload(row[i] + at);
        UNROLL
        for (int side = 0; side < count; side++) { /* the point 0 alone reads the first row, infinity alone the last */
            const int first = side ? 1 : 0, last = side < count - 1 ? count - 2 : count - 1;
            vfloat sum = matrices->data[side][first] * d[first];
            UNROLL
            for (int i = first + 1; i <= last; i++)
                sum += matrices->data[side][i] * d[i];
            vstore(to + side * side_floats + at, sum);
        }
    }
}

static NEVER_INLINE void build_strip_sides(const sb_conv *conv, const strip_plan *plan, const strip_scratch *scratch) {
    const int phases = conv->stride_h, stride = STRIP * phases, columns = conv->stride_w;
    const flat_plan *view = &plan->view;
    const float *planes = scratch->flat.staged;
    const size_t channel_floats = (size_t)view->planes * view->plane_floats, side_floats = (size_t)plan->sides.plane_floats;
    float *to = scratch->sides;
    for (int c = 0; c < view->channels; c++, planes += channel_floats)
        for (int phase = 0; phase < phases; phase++)
            for (int x_phase = 0; x_phase < columns; x_phase++, to += plan->count * side_floats) {
                if (columns > 1 && !reads_column_phase(conv, x_phase))
                    continue; /* nor is it staged */
                const float *row[STRIP_SIDES];
                for (int i = 0; i < plan->count; i++) {
                    const int y = phase + i * phases - conv->pad_top, first = floor_divide(y, stride);
                    const int plane = (y - first * stride) * columns + x_phase;
                    row[i] = planes + (ptrdiff_t)plane * view->plane_floats + (first - view->y_low) * view->pitch;
                }
                if (plan->count == STRIP_SIDES)
                    combine_input_rows(conv->prepared, row, view->band_rows * view->pitch, side_floats, to, STRIP_SIDES);
                else
                    combine_input_rows(conv->prepared, row, view->band_rows * view->pitch, side_floats, to, STRIP_SIDES - 1);
            }
}

/* --------------------------------------------------------------------------------------------- multiply */

/* Rows of a strip from the sums of its sides; points 0, 1 and -1 come first, infinity last. */
ALWAYS_INLINE void make_strip(const strip_matrices *matrices, const vfloat *m, vfloat *row, const int count) {
    enum { TILE = FLAT_FILTERS * FLAT_REGISTERS };
    const vfloat even = m[TILE] + m[2 * TILE], odd = m[TILE] - m[2 * TILE];
    row[0] = m[0] + even;
    row[1] = odd;
    row[2] = even;
    row[3] = odd + m[(count - 1) * TILE];
    UNROLL
    for (int side = 3; side < count - 1; side++)
        UNROLL
        for (int i = 0; i < STRIP; i++)
            row[i] += matrices->power[i][side] * m[side * TILE];
}

ALWAYS_INLINE void make_rows(const strip_matrices *matrices, const vfloat *sums, vfloat *rows, const int count) {
    enum { TILE = FLAT_FILTERS * FLAT_REGISTERS };
    for (int at = 0; at < TILE; at++) {
        vfloat row[STRIP];
        make_strip(matrices, sums + at, row, count);
        UNROLL
        for (int i = 0; i < STRIP; i++)
            rows[i * TILE + at] = row[i];
    }
}

static NEVER_INLINE void make_rows_6(const strip_matrices *matrices, const vfloat *sums, vfloat *rows) {
    make_rows(matrices, sums, rows, STRIP_SIDES - 1);
}
static NEVER_INLINE void make_rows_7(const strip_matrices *matrices, const vfloat *sums, vfloat *rows) {
    make_rows(matrices, sums, rows, STRIP_SIDES);
}

/* Levels of a strip at two registers of pixels: side by side in each row, or not. */
ALWAYS_INLINE void write_strip_levels(vfloat v[2][STRIP], int8_t *first, int8_t *second, size_t row, level_range to) {
#if LANES == 16
    if (second == first + LANES) {
        UNROLL
        for (int i = 0; i < STRIP; i += 2, first += 2 * row) {
            const vfloat rows[4] = {v[0][i], v[1][i], v[0][i + 1], v[1][i + 1]};
            const __m512i levels = pack_levels64(rows, to);
            _mm256_storeu_si256((__m256i *)first, _mm512_castsi512_si256(levels));
            _mm256_storeu_si256((__m256i *)(first + row), _mm512_extracti64x4_epi64(levels, 1));
        }
        return;
    }
#endif
    UNROLL
    for (int i = 0; i < STRIP; i++, first += row, second += row) {
        vstore_levels(first, v[0][i], to);
        vstore_levels(second, v[1][i], to);
    }
}

/* From the sums of the sides to the output, for tiles of whole registers to which nothing is added: rows are never in memory
 * between. `count`, `floats` and `levels` are constants of the caller. */
ALWAYS_INLINE void write_strips(const strip_matrices *matrices, const vfloat *sums, const flat_finish *finish,
                                const flat_scratch *scratch, size_t t, int channels, const flat_vector *vectors, size_t row,
                                const int count, const bool floats, const bool levels) {
    const flat_finish local = *finish;
    const strip_matrices constants = *matrices;
    size_t at[FLAT_REGISTERS];
    UNROLL
    for (int r = 0; r < FLAT_REGISTERS; r++)
        at[r] = t * local.plane + scratch->parts[vectors[r].first_part].pixel - local.skipped;
    for (int c = 0; c < channels; c++) {
        const vfloat scale = vsplat(local.scale ? local.scale[t + c] : 1.0f);
        const vfloat shift = vsplat(local.shift ? local.shift[t + c] : 0.0f);
        UNROLL
        for (int r = 0; r < FLAT_REGISTERS; r += 2, sums += 2) {
            vfloat v[2][STRIP];
            UNROLL
            for (int side = 0; side < 2; side++) {
                make_strip(&constants, sums + side, v[side], count);
                UNROLL
                for (int i = 0; i < STRIP; i++) {
                    v[side][i] = vlimit(v[side][i] * scale + shift, local.range);
                    if (floats)
                        vstore(local.out + at[r + side] + i * row, v[side][i]);
                }
            }
            if (levels)
                write_strip_levels(v, local.levels + at[r], local.levels + at[r + 1], row, local.to);
            at[r] += local.plane;
            at[r + 1] += local.plane;
        }
    }
}

typedef void write_strips_function(const strip_matrices *matrices, const vfloat *sums, const flat_finish *finish,
                                   const flat_scratch *scratch, size_t t, int channels, const flat_vector *vectors, size_t row);
#define WRITE_STRIPS(name, count, floats, levels) \
    static NEVER_INLINE void name(const strip_matrices *matrices, const vfloat *sums, const flat_finish *finish, \
                                  const flat_scratch *scratch, size_t t, int channels, const flat_vector *vectors, size_t row) { \
        write_strips(matrices, sums, finish, scratch, t, channels, vectors, row, count, floats, levels); \
    }
WRITE_STRIPS(write_strip_floats_6, STRIP_SIDES - 1, true, false)
WRITE_STRIPS(write_strip_floats_7, STRIP_SIDES, true, false)
WRITE_STRIPS(write_strip_levels_6, STRIP_SIDES - 1, false, true)
WRITE_STRIPS(write_strip_levels_7, STRIP_SIDES, false, true)
WRITE_STRIPS(write_strip_both_6, STRIP_SIDES - 1, true, true)
WRITE_STRIPS(write_strip_both_7, STRIP_SIDES, true, true)
#undef WRITE_STRIPS
/* [all sides][floats][levels] */
static write_strips_function *const strip_writers[2][2][2] = {
    {{NULL, write_strip_levels_6}, {write_strip_floats_6, write_strip_both_6}},
    {{NULL, write_strip_levels_7}, {write_strip_floats_7, write_strip_both_7}},
};

/* One batch of filters at one tile of pixels of strips, from `first` on. */
static void multiply_strips(const sb_conv *conv, const strip_plan *plan, const strip_scratch *scratch, const float *weights,
                            int group, int batch, int first, const flat_finish *finish) {
    enum { TILE = FLAT_FILTERS * FLAT_REGISTERS };
    const flat_vector *vectors = scratch->flat.vectors + first;
    const int left = scratch->flat.vectors_count - first, count = left < FLAT_REGISTERS ? left : FLAT_REGISTERS;
    const size_t floats = strip_batch_floats(conv, plan);
    const bool all_sides = plan->count == STRIP_SIDES;
    weights += batch * floats;
    for (int side = 0; side < plan->count; side++)
        sum_tiles[FLAT_REGISTERS](&plan->sides, scratch->sides + (size_t)side * plan->sides.plane_floats, scratch->flat.tap_offset, plan->steps,
                                  conv->weight.depth, vectors, weights + side * (floats / plan->count), scratch->sums + side * TILE);
    if (!finish->added && is_whole_tile(vectors, count)) {
        const int per_group = filters_per_group(conv), rest = per_group - batch * FLAT_FILTERS;
        strip_writers[all_sides][finish->out != NULL][finish->levels != NULL](
            conv->prepared, scratch->sums, finish, &scratch->flat, (size_t)group * per_group + batch * FLAT_FILTERS,
            rest < FLAT_FILTERS ? rest : FLAT_FILTERS, vectors, (size_t)conv->out_width);
        return;
    }
    vfloat *rows = scratch->sums + plan->count * TILE;
    (all_sides ? make_rows_7 : make_rows_6)(conv->prepared, scratch->sums, rows);
    for (int i = 0; i < STRIP; i++)
        write_batch(conv, &scratch->flat, group, batch, vectors, count, rows + i * TILE, &finish[i]);
}

/* --------------------------------------------------------------------------------------------------- run */

static int32_t strip_pieces(const sb_conv *conv) {
    strip_plan plan;
    plan_strips(conv, &plan);
    return (conv->out_height / STRIP + plan.view.band_rows - 1) / plan.view.band_rows;
}

static int32_t strip_band_rows(const sb_conv *conv) {
    strip_plan plan;
    plan_strips(conv, &plan);
    return plan.view.band_rows * STRIP;
}

static void strip_run_pieces(const sb_conv *conv, int32_t first, int32_t last, const float *in, float *out, void *memory) {
    const sb_conv view = view_in_strips(conv);
    strip_plan plan;
    strip_scratch scratch;
    plan_strips(conv, &plan);
    carve_strips(conv, &plan, memory, &scratch);
    const float *weights = strip_weights((void *)conv->prepared);
    const size_t group_floats = (size_t)filter_batches(conv) * strip_batch_floats(conv, &plan);
    const int rows = plan.view.band_rows, batches = filter_batches(conv);
    flat_finish finish[STRIP];
    for (int i = 0; i < STRIP; i++) {
        finish[i] = finish_of(conv, out);
        const size_t row = (size_t)i * conv->out_width;
        finish[i].out = out ? out + row : NULL;
        finish[i].levels = conv->level_out ? conv->level_out + row : NULL;
        finish[i].added = conv->added ? conv->added + row : NULL;
    }
    for (int step = 0; step < plan.steps; step++) {
        const int x = tap_x(conv, step % conv->weight.kernel_w), column = floor_divide(x, conv->stride_w);
        const int plane = step / conv->weight.kernel_w * conv->stride_w + x - column * conv->stride_w;
        scratch.flat.tap_offset[step] = plane * plan.count * plan.sides.plane_floats + column - plan.view.x_low;
    }
    for (int y = first * rows; y < view.out_height && y < last * rows; y += rows) {
        list_vectors(&view, &plan.view, y, view.out_height - y < rows ? view.out_height - y : rows, &scratch.flat);
        for (int group = 0; group < conv->groups; group++) {
            stage_band(&view, &plan.view, in + (size_t)group * plan.view.channels * conv->height * conv->width, y,
                       scratch.flat.staged);
            build_strip_sides(conv, &plan, &scratch);
            for (int tile = 0; tile < scratch.flat.vectors_count; tile += FLAT_REGISTERS)
                for (int batch = 0; batch < batches; batch++)
                    multiply_strips(conv, &plan, &scratch, weights + group * group_floats, group, batch, tile, finish);
        }
    }
}

static void strip_run(const sb_conv *conv, const float *in, float *out, void *memory) {
    strip_run_pieces(conv, 0, strip_pieces(conv), in, out, memory);
    apply_rest(conv, out);
}

static const sb_conv_kernel fma_rows_kernel = {
    .name = "fma rows", .cost = strip_cost, .prepared_size = strip_prepared_size, .prepare = strip_prepare,
    .scratch_size = strip_scratch_size, .run = strip_run, .adds_in_place = true, .writes_levels = true, .pieces = strip_pieces,
    .run_pieces = strip_run_pieces, .band_rows = strip_band_rows,
};
