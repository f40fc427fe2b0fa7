/* Convolutions of few channels per filter, with any kind of weight: one filter at a time is
 * unpacked, its blocks already scaled, and slid over the staged input (flat_impl.h). */

typedef struct {
    flat_scratch flat;
    float *filter; /* [channel][tap] */
} direct_scratch;

static double direct_cost(const sb_conv *conv) {
    if (conv->weight.binary_input || is_depthwise(conv))
        return -1;
    const flat_plan plan = plan_flat(conv, conv->weight.blocks * conv->weight.depth, conv->out_height);
    const double bands = (double)((conv->out_height + plan.band_rows - 1) / plan.band_rows);
    const double filter = (double)plan.channels * conv->weight.kernel_h * conv->weight.kernel_w;
    const double multiply = plan.max_vectors * (filter * 1.1 + 6);
    const double stage = plan.in_place ? 0 : stage_cost(conv, &plan);
    const double write = plan.by_row || plan.in_place ? 10 : plan.band_rows * 18.0; /* registers in parts, one to a row */
    return bands * (conv->weight.out * (filter * 7 + multiply + write) + stage) / CYCLES_PER_NANOSECOND;
}

static size_t carve_direct_scratch(const sb_conv *conv, const flat_plan *plan, uint8_t *memory,
                                   direct_scratch *scratch) {
    size_t used = 0;
    scratch->filter = carve(memory, &used, (size_t)plan->channels * conv->weight.kernel_h * conv->weight.kernel_w *
                                               sizeof(float));
    return carve_flat_scratch(conv, plan, memory, used, &scratch->flat);
}

static size_t direct_scratch_size(const sb_conv *conv) {
    const flat_plan plan = plan_flat(conv, conv->weight.blocks * conv->weight.depth, conv->out_height);
    direct_scratch scratch;
    return carve_direct_scratch(conv, &plan, NULL, &scratch);
}

/* Filter t as a dense one, (channel, tap). */
static void unpack_filter(const sb_weight *weight, size_t t, float *filter) {
    const size_t taps = (size_t)weight->kernel_h * weight->kernel_w, depth = (size_t)weight->depth, size = depth * taps;
    for (size_t block = 0; block < (size_t)weight->blocks; block++, filter += size) {
        const size_t entry = t * weight->blocks + block;
        const size_t first = (weight->index ? weight->index[entry] : t) * size;
        const float ratio = weight->ratio ? weight->ratio[entry] : 1.0f;
        for (size_t c = 0; c < depth; c++)
            for (size_t tap = 0; tap < taps; tap++) {
                const size_t bit = first + tap * depth + c; /* bits have the channel innermost, values the tap */
                const float stored = weight->values
                                         ? sb_load_value(weight->values, weight->half, (int64_t)(first + c * taps + tap))
                                         : weight->bits[bit / 8] >> bit % 8 & 1 ? 1.0f : -1.0f;
                filter[c * taps + tap] = ratio * stored;
            }
    }
}

static NEVER_INLINE void slide_filter(const sb_conv *conv, const flat_plan *plan, const direct_scratch *scratch,
                                      const float *staged, size_t t, const flat_finish *finish) {
    const int taps = conv->weight.kernel_h * conv->weight.kernel_w;
    for (int first = 0; first < scratch->flat.vectors_count; first += FLAT_REGISTERS) {
        const flat_vector *vectors = scratch->flat.vectors + first;
        const int left = scratch->flat.vectors_count - first;
        vfloat sum[FLAT_REGISTERS];
        flat_tile(plan, staged, scratch->flat.tap_offset, taps, plan->channels, vectors, scratch->filter, 1,
                  FLAT_REGISTERS, sum);
        write_vectors(finish, &scratch->flat, t, vectors, left < FLAT_REGISTERS ? left : FLAT_REGISTERS, sum);
    }
}

static void direct_run(const sb_conv *conv, const float *in, float *out, void *memory) {
    const flat_plan plan = plan_flat(conv, conv->weight.blocks * conv->weight.depth, conv->out_height);
    const size_t per_group = (size_t)(conv->weight.out / conv->groups);
    const flat_finish finish = finish_of(conv, out);
    direct_scratch scratch;
    carve_direct_scratch(conv, &plan, memory, &scratch);
    find_tap_offsets(conv, &plan, scratch.flat.tap_offset);
    for (int y = 0; y < conv->out_height; y += plan.band_rows) {
        const int rows = conv->out_height - y < plan.band_rows ? conv->out_height - y : plan.band_rows;
        list_vectors(conv, &plan, y, rows, &scratch.flat);
        for (int group = 0; group < conv->groups; group++) {
            const float *group_in = in + (size_t)group * plan.channels * conv->height * conv->width;
            if (!plan.in_place)
                stage_band(conv, &plan, group_in, y, scratch.flat.staged);
            for (size_t t = group * per_group; t < (group + 1) * per_group; t++) {
                unpack_filter(&conv->weight, t, scratch.filter);
                slide_filter(conv, &plan, &scratch, plan.in_place ? group_in : scratch.flat.staged, t, &finish);
            }
        }
    }
    apply_rest(conv, out);
}

static const sb_conv_kernel direct_kernel = {
    .name = "direct", .cost = direct_cost, .scratch_size = direct_scratch_size, .run = direct_run, .adds_in_place = true, .writes_levels = true,
};
