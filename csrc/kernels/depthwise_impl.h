/* Depthwise convolutions: every group reads one channel, with any kind of weight.
 *
 * A channel is staged as flat_impl.h does it, in a buffer that stays in the first-level cache from one channel to the next, unless
 * rows are very long: only its margins, which are the same for all of them, are ever filled with zeros. Registers of pixels run on over the ends of rows,
 * and sums are written row by row. */

enum {
    DEPTHWISE_BYTES = 20 * 1024, /* of a staged channel */
    DEPTHWISE_REGISTERS = 8,     /* of pixels at a time: as many sums hide that each waits for the one before */
    DEPTHWISE_CHANNELS = 16,     /* of the input, in a piece */
};

typedef struct {
    float *staged, *sums, *filter;
    int32_t *tap_offset;
} depthwise_scratch;

/* Of one channel; bands of the output that keep what is staged small. */
static flat_plan plan_depthwise(const sb_conv *conv) {
    const flat_plan whole = plan_flat(conv, 1, conv->out_height);
    const int row_bytes = whole.planes * whole.pitch * (int)sizeof(float), y_span = whole.staged_rows - whole.band_rows;
    const int rows = DEPTHWISE_BYTES / row_bytes - y_span;
    return plan_flat(conv, 1, rows < 4 ? 4 : rows);
}

static int depthwise_vectors(const sb_conv *conv, const flat_plan *plan, int rows) {
    return ((rows - 1) * plan->pitch + conv->out_width + LANES - 1) / LANES;
}

/* Values are unpacked once where each filter has its own; bits, and filters of which many may be made of few stored values,
 * whenever it is their turn: prepared memory never grows beyond what is stored. */
static bool unpacks_once(const sb_weight *weight) { return weight->values && !weight->index; }

static double depthwise_cost(const sb_conv *conv) {
    const int taps = conv->weight.kernel_h * conv->weight.kernel_w;
    if (!is_depthwise(conv))
        return -1;
    const flat_plan plan = plan_depthwise(conv);
    const double bands = (double)((conv->out_height + plan.band_rows - 1) / plan.band_rows);
    const bool strided = conv->stride_w > 2 && conv->stride_w != 4;
    const double row = strided ? plan.pitch * 1.5 : (double)(plan.pitch / LANES + 1) * 3;
    const double stage = planes_read(conv) * plan.staged_rows * (row + 3);
    const double vectors = depthwise_vectors(conv, &plan, plan.band_rows);
    const double slide = vectors * (taps + 2.0) + (unpacks_once(&conv->weight) ? 0 : taps * 10) + 20;
    const double write = (double)plan.band_rows * ((conv->out_width + LANES - 1) / LANES) * 6 + 20;
    return bands * (conv->groups * stage + conv->weight.out * (slide + write)) / CYCLES_PER_NANOSECOND;
}

static size_t depthwise_prepared_size(const sb_conv *conv) {
    const sb_weight *weight = &conv->weight;
    return unpacks_once(weight) ? (size_t)weight->out * weight->kernel_h * weight->kernel_w * sizeof(float) : 0;
}

static void depthwise_prepare(const sb_conv *conv, void *prepared) {
    const size_t taps = (size_t)conv->weight.kernel_h * conv->weight.kernel_w;
    if (unpacks_once(&conv->weight))
        for (size_t t = 0; t < (size_t)conv->weight.out; t++)
            unpack_filter(&conv->weight, t, (float *)prepared + t * taps);
}

static size_t carve_depthwise(const sb_conv *conv, const flat_plan *plan, uint8_t *memory, depthwise_scratch *scratch) {
    const size_t taps = (size_t)conv->weight.kernel_h * conv->weight.kernel_w;
    size_t used = 0;
    scratch->staged = carve(memory, &used, (size_t)plan->planes * plan->plane_floats * sizeof(float));
    scratch->sums = carve(memory, &used, (size_t)(depthwise_vectors(conv, plan, plan->band_rows) + 1) * sizeof(vfloat));
    scratch->filter = carve(memory, &used, taps * sizeof(float));
    scratch->tap_offset = carve(memory, &used, taps * sizeof *scratch->tap_offset);
    return used;
}

static size_t depthwise_scratch_size(const sb_conv *conv) {
    const flat_plan plan = plan_depthwise(conv);
    depthwise_scratch scratch;
    return carve_depthwise(conv, &plan, NULL, &scratch);
}

/* The pixels of one row that are inside the input, of one phase of the columns. */
typedef struct {
    int begin, count; /* of the staged row */
    int from;         /* the first one's column of the input */
} staged_columns;

static staged_columns find_columns(const sb_conv *conv, const flat_plan *plan, int phase) {
    const int stride = conv->stride_w, first = plan->x_low * stride + phase;
    const int begin = first < 0 ? (stride - 1 - first) / stride : 0;
    const int inside = first >= conv->width ? 0 : (conv->width - 1 - first) / stride + 1;
    const int end = inside < plan->pitch ? inside : plan->pitch;
    return (staged_columns){begin, end > begin ? end - begin : 0, first + begin * stride};
}

/* Every second number of a row to one place, those between to another; there are `evens` of the former and as many of the latter
 * or one less. */
ALWAYS_INLINE void split_row(float *even, float *odd, const float *from, int evens, int odds) {
    int x = 0;
    for (; x + LANES <= odds; x += LANES) {
        const vfloat low = vload(from + 2 * x), high = vload(from + 2 * x + LANES);
        vstore(even + x, even_lanes(low, high));
        vstore(odd + x, odd_lanes(low, high));
    }
    if (x < evens) {
        const int left = evens + odds - 2 * x, first = left < LANES ? left : LANES;
        const vfloat low = vload_part(from + 2 * x, 0, first), high = vload_part(from + 2 * x + first, 0, left - first);
        vstore_part(even + x, even_lanes(low, high), 0, evens - x);
        vstore_part(odd + x, odd_lanes(low, high), 0, odds - x);
    }
}

/* The rows that a band reads of a channel, into planes whose margins are zeros. */
static NEVER_INLINE void stage_channel(const sb_conv *conv, const flat_plan *plan, const float *channel, int y0, float *staged) {
    const int stride = conv->stride_w;
    const staged_columns first = find_columns(conv, plan, 0), second = find_columns(conv, plan, stride > 1);
    const bool splits = stride == 2 && first.begin == second.begin && first.from + 1 == second.from &&
                        (first.count == second.count || first.count == second.count + 1);
    for (int phase = 0; phase < stride; phase += splits ? 2 : 1) {
        const staged_columns columns = find_columns(conv, plan, phase);
        if (!columns.count || (!splits && !reads_column_phase(conv, phase)))
            continue;
        for (int y_phase = 0; y_phase < conv->stride_h; y_phase++) {
            if (!reads_row_phase(conv, y_phase))
                continue;
            float *to = staged + (size_t)(y_phase * stride + phase) * plan->plane_floats + columns.begin;
            int y = (y0 + plan->y_low) * conv->stride_h + y_phase;
            for (int row = 0; row < plan->staged_rows; row++, y += conv->stride_h, to += plan->pitch) {
                if (y < 0 || y >= conv->height) {
                    memset(to, 0, (size_t)columns.count * sizeof(float));
                    if (splits)
                        memset(to + plan->plane_floats, 0, (size_t)second.count * sizeof(float));
                    continue;
                }
                const float *from = channel + (ptrdiff_t)y * conv->width + columns.from;
                if (splits)
                    split_row(to, to + plan->plane_floats, from, columns.count, second.count);
                else if (stride == 1)
                    copy_row(to, from, columns.count);
                else
                    copy_strided(to, from, columns.count, stride);
            }
        }
    }
}

/* `registers` is a constant of the caller. */
ALWAYS_INLINE void slide_registers(const float *pixel, const int32_t *tap_offset, int taps, const float *filter, float *sums,
                                   const int registers) {
    vfloat sum[DEPTHWISE_REGISTERS];
    UNROLL
    for (int r = 0; r < registers; r++)
        sum[r] = (vfloat){0};
    for (int tap = 0; tap < taps; tap++) {
        const float *x = pixel + tap_offset[tap];
        const vfloat weight = vsplat(filter[tap]);
        UNROLL
        for (int r = 0; r < registers; r++)
            sum[r] += weight * vload(x + r * LANES);
    }
    UNROLL
    for (int r = 0; r < registers; r++)
        *(vfloat *)(sums + r * LANES) = sum[r];
}

static NEVER_INLINE void slide_over_channel(const float *staged, const int32_t *tap_offset, int taps, const float *filter,
                                            int vectors, float *sums) {
    const float *end = staged + (size_t)vectors * LANES;
    for (; staged + 8 * LANES <= end; staged += 8 * LANES, sums += 8 * LANES)
        slide_registers(staged, tap_offset, taps, filter, sums, 8);
    if (vectors & 4) {
        slide_registers(staged, tap_offset, taps, filter, sums, 4);
        staged += 4 * LANES;
        sums += 4 * LANES;
    }
    if (vectors & 2) {
        slide_registers(staged, tap_offset, taps, filter, sums, 2);
        staged += 2 * LANES;
        sums += 2 * LANES;
    }
    if (vectors & 1)
        slide_registers(staged, tap_offset, taps, filter, sums, 1);
}

/* What follows the sums of some rows of output channel t, from row y0 on. Where nothing is added, registers reach over the ends
 * of rows, up to the end of the channel: what comes there is written later. */
static NEVER_INLINE void write_channel_rows(const flat_finish *finish, size_t t, int y0, int rows, int width, int pitch,
                                            const float *sums) {
    const flat_finish local = *finish;
    const vfloat scale = vsplat(local.scale ? local.scale[t] : 1.0f), shift = vsplat(local.shift ? local.shift[t] : 0.0f);
    const size_t channel_end = (t + 1) * local.plane;
    const bool whole = !local.added && !local.levels;
    size_t at = t * local.plane + (size_t)y0 * width;
    for (int row = 0; row < rows; row++, sums += pitch, at += (size_t)width)
        for (int x = 0; x < width; x += LANES) {
            const int count = width - x < LANES ? width - x : LANES;
            vfloat v = vload(sums + x) * scale + shift;
            if (whole && at + x + LANES <= channel_end) {
                vstore(local.out + at + x, vlimit(v, local.range));
                continue;
            }
            if (local.added)
                v += vload_part(local.added + at + x, 0, count);
            v = vlimit(v, local.range);
            if (local.out)
                vstore_part(local.out + at + x, v, 0, count);
            if (local.levels) {
                int8_t levels[LANES];
                vstore_levels(levels, v, local.to);
                memcpy(local.levels + at + x, levels, (size_t)count);
            }
        }
}

static int32_t depthwise_pieces(const sb_conv *conv) { return (conv->groups + DEPTHWISE_CHANNELS - 1) / DEPTHWISE_CHANNELS; }

static void depthwise_run_pieces(const sb_conv *conv, int32_t first, int32_t last, const float *in, float *out, void *memory) {
    const flat_plan plan = plan_depthwise(conv);
    const int taps = conv->weight.kernel_h * conv->weight.kernel_w, per_group = conv->weight.out / conv->groups;
    const flat_finish finish = finish_of(conv, out);
    const int end = last * DEPTHWISE_CHANNELS < conv->groups ? last * DEPTHWISE_CHANNELS : conv->groups;
    depthwise_scratch scratch;
    carve_depthwise(conv, &plan, memory, &scratch);
    find_tap_offsets(conv, &plan, scratch.tap_offset);
    memset(scratch.staged, 0, (size_t)plan.planes * plan.plane_floats * sizeof(float));
    for (int group = first * DEPTHWISE_CHANNELS; group < end; group++)
        for (int y = 0; y < conv->out_height; y += plan.band_rows) {
            const int rows = conv->out_height - y < plan.band_rows ? conv->out_height - y : plan.band_rows;
            stage_channel(conv, &plan, in + (size_t)group * conv->height * conv->width, y, scratch.staged);
            for (int t = group * per_group; t < (group + 1) * per_group; t++) {
                const float *filter = scratch.filter;
                if (unpacks_once(&conv->weight))
                    filter = (const float *)conv->prepared + (size_t)t * taps;
                else
                    unpack_filter(&conv->weight, (size_t)t, scratch.filter);
                slide_over_channel(scratch.staged, scratch.tap_offset, taps, filter, depthwise_vectors(conv, &plan, rows),
                                   scratch.sums);
                write_channel_rows(&finish, (size_t)t, y, rows, conv->out_width, plan.pitch, scratch.sums);
            }
        }
}

static void depthwise_run(const sb_conv *conv, const float *in, float *out, void *memory) {
    depthwise_run_pieces(conv, 0, depthwise_pieces(conv), in, out, memory);
    apply_rest(conv, out);
}

static const sb_conv_kernel depthwise_kernel = {
    .name = "depthwise", .cost = depthwise_cost, .prepared_size = depthwise_prepared_size, .prepare = depthwise_prepare,
    .scratch_size = depthwise_scratch_size, .run = depthwise_run, .adds_in_place = true, .writes_levels = true,
    .pieces = depthwise_pieces, .run_pieces = depthwise_run_pieces,
};
