/* Layers on levels with filters in the lanes. Levels and their sums are whole numbers that fp32 holds exactly, so the
 * look-ups are those of lanes_impl.h; the merge keeps to the order and the roundings of docs/format.md. */
#if LANES >= 8

typedef struct {
    int32_t *index; /* [input block][output channel]: filters, the last register filled up with filter 0 */
    float *ratio;   /* the same of ratios; NULL: all ones */
    float *scale, *shift;
    size_t channels; /* of the output, in whole registers */
} lane_merge_plan;

static bool sums_fit_floats(const sb_conv *conv) {
    const int64_t numbers = (int64_t)conv->weight.depth * conv->weight.kernel_h * conv->weight.kernel_w;
    return numbers * 127 <= 1 << 24;
}

static double level_lanes_cost(const sb_conv *conv) { return sums_fit_floats(conv) ? lanes_cost(conv) : -1; }

static size_t place_lane_merge(const sb_conv *conv, uint8_t *memory, lane_merge_plan *plan) {
    const size_t k = (size_t)conv->weight.blocks;
    size_t used = 0;
    plan->channels = (size_t)(conv->weight.out + LANES - 1) / LANES * LANES;
    carve(memory, &used, lanes_prepared_size(conv));
    plan->index = carve(memory, &used, k * plan->channels * sizeof *plan->index);
    plan->ratio = conv->weight.ratio ? carve(memory, &used, k * plan->channels * sizeof *plan->ratio) : NULL;
    plan->scale = carve(memory, &used, plan->channels * sizeof *plan->scale);
    plan->shift = carve(memory, &used, plan->channels * sizeof *plan->shift);
    return used;
}

static size_t level_lanes_prepared_size(const sb_conv *conv) {
    lane_merge_plan plan;
    return place_lane_merge(conv, NULL, &plan);
}

static void level_lanes_prepare(const sb_conv *conv, void *prepared) {
    const sb_weight *weight = &conv->weight;
    lane_merge_plan plan;
    lanes_prepare(conv, prepared);
    place_lane_merge(conv, prepared, &plan);
    for (int t = 0; t < weight->out; t++) {
        for (int i = 0; i < weight->blocks; i++) {
            const size_t from = (size_t)t * weight->blocks + i, to = (size_t)i * plan.channels + t;
            plan.index[to] = weight->index ? weight->index[from] : t;
            if (weight->ratio)
                plan.ratio[to] = weight->ratio[from];
        }
        plan.scale[t] = weight->scale[t];
        plan.shift[t] = weight->shift ? weight->shift[t] : 0;
    }
}

typedef struct {
    lanes_scratch lanes;
    float *in; /* levels as floats */
} level_lanes_scratch;

static size_t carve_level_lanes(const sb_conv *conv, uint8_t *memory, level_lanes_scratch *scratch) {
    size_t used = carve_lanes_scratch(conv, memory, &scratch->lanes);
    scratch->in = carve(memory, &used, (size_t)conv->channels * conv->height * conv->width * sizeof(float));
    return used;
}

static size_t level_lanes_scratch_size(const sb_conv *conv) {
    level_lanes_scratch scratch;
    return carve_level_lanes(conv, NULL, &scratch);
}

ALWAYS_INLINE vfloat gather(const float *from, const int32_t *index) {
#if LANES == 16
    return (vfloat)_mm512_i32gather_ps(_mm512_loadu_si512(index), from, 4);
#else
    return (vfloat)_mm256_i32gather_ps(from, _mm256_loadu_si256((const __m256i *)index), 4);
#endif
}

/* A register of output channels from t on at one pixel, limits not yet applied. */
ALWAYS_INLINE vfloat merge_channels(const sb_conv *conv, const lane_merge_plan *plan, const float *maps, size_t filters,
                                    size_t t, int pixel) {
    const int pixels = conv->out_height * conv->out_width;
    vfloat sum = gather(maps + pixel * filters, plan->index + t);
    for (int i = 1; i < conv->weight.blocks; i++) {
        vfloat term = gather(maps + ((size_t)i * pixels + pixel) * filters, plan->index + i * plan->channels + t);
        if (plan->ratio) {
            term *= vload(plan->ratio + i * plan->channels + t);
            KEEP(term);
        }
        sum += term;
    }
    sum *= vload(plan->scale + t);
    KEEP(sum);
    return sum + vload(plan->shift + t);
}

static NEVER_INLINE void merge_level_lanes(const sb_conv *conv, const lane_merge_plan *plan, size_t filters,
                                           const float *maps, float *out) {
    const int pixels = conv->out_height * conv->out_width;
    const limits range = limits_of(conv->then);
    const level_range to = range_of(conv->out_levels);
    for (size_t t = 0; t < (size_t)conv->weight.out; t += LANES) {
        const int channels = conv->weight.out - (int)t < LANES ? conv->weight.out - (int)t : LANES;
        for (int pixel = 0; pixel < pixels; pixel++) {
            const size_t first = t * pixels + pixel;
            vfloat v = merge_channels(conv, plan, maps, filters, t, pixel);
            float lanes[LANES];
            int8_t levels[LANES];
            if (conv->added) {
                for (int lane = 0; lane < LANES; lane++)
                    lanes[lane] = lane < channels ? conv->added[first + (size_t)lane * pixels] : 0;
                v += vload(lanes);
            }
            v = vlimit(v, range);
            vstore(lanes, v);
            for (int lane = 0; out && lane < channels; lane++)
                out[first + (size_t)lane * pixels] = lanes[lane];
            vstore_levels(levels, v, to);
            for (int lane = 0; conv->level_out && lane < channels; lane++)
                conv->level_out[first + (size_t)lane * pixels] = levels[lane];
        }
    }
}

static void level_lanes_run(const sb_conv *conv, const int8_t *in, float *out, void *memory) {
    const size_t count = (size_t)conv->channels * conv->height * conv->width;
    const lanes_plan *plan = conv->prepared;
    lane_merge_plan merge;
    level_lanes_scratch scratch;
    place_lane_merge(conv, (uint8_t *)conv->prepared, &merge);
    carve_level_lanes(conv, memory, &scratch);
    for (size_t i = 0; i < count; i++)
        scratch.in[i] = in[i];
    sum_lanes(conv, plan, scratch.in, &scratch.lanes);
    uint64_t since = BEGIN_STAGE(conv);
    merge_level_lanes(conv, &merge, (size_t)plan->registers * LANES, scratch.lanes.maps, out);
    END_STAGE(conv, merge, &since);
    if (out)
        apply_rest(conv, out);
}

static const sb_conv_kernel level_lanes_kernel = {
    .name = "lanes", .cost = level_lanes_cost, .prepared_size = level_lanes_prepared_size,
    .prepare = level_lanes_prepare, .scratch_size = level_lanes_scratch_size, .run_levels = level_lanes_run,
};

#endif
