/* Layers on levels with filters in the lanes. Levels and their sums are whole numbers that fp32 holds exactly, so the
 * look-ups are those of lanes_impl.h; the merge keeps to the order and the roundings of docs/format.md. */
#if LANES >= 8

/* What is merged: of few pixels, registers of output channels, whose sums are gathered one by one; otherwise fours of pixels,
 * whose maps are flipped before. */
typedef struct {
    int32_t *index; /* [input block][output channel]: filters, the last register filled up with filter 0 */
    float *ratio;   /* the same of ratios; NULL: all ones */
    float *scale, *shift;
    size_t channels; /* of the output, in whole registers */
    uint32_t *map_offset; /* (out, blocks): of the flipped map of a filter */
} lane_merge_plan;

static bool merges_fours(const sb_conv *conv) { return conv->out_height * conv->out_width >= 4; }

/* Floats of a flipped map. */
static size_t flipped_floats(const sb_conv *conv) { return ((size_t)conv->out_height * conv->out_width + 3) / 4 * 4; }

static bool sums_fit_floats(const sb_conv *conv) {
    const int64_t numbers = (int64_t)conv->weight.depth * conv->weight.kernel_h * conv->weight.kernel_w;
    return numbers * 127 <= 1 << 24;
}

static double level_lanes_cost(const sb_conv *conv) { return sums_fit_floats(conv) ? lanes_cost(conv) : -1; }

/* Its place behind `used` bytes of prepared weights. */
static size_t place_lane_merge(const sb_conv *conv, uint8_t *memory, size_t used, lane_merge_plan *plan) {
    const size_t k = (size_t)conv->weight.blocks;
    *plan = (lane_merge_plan){.channels = (size_t)(conv->weight.out + LANES - 1) / LANES * LANES};
    if (merges_fours(conv)) {
        plan->map_offset = carve(memory, &used, k * conv->weight.out * sizeof *plan->map_offset);
        return used;
    }
    plan->index = carve(memory, &used, k * plan->channels * sizeof *plan->index);
    plan->ratio = conv->weight.ratio ? carve(memory, &used, k * plan->channels * sizeof *plan->ratio) : NULL;
    plan->scale = carve(memory, &used, plan->channels * sizeof *plan->scale);
    plan->shift = carve(memory, &used, plan->channels * sizeof *plan->shift);
    return used;
}

static size_t level_lanes_prepared_size(const sb_conv *conv) {
    lane_merge_plan plan;
    return place_lane_merge(conv, NULL, lanes_prepared_size(conv), &plan);
}

static void prepare_lane_merge(const sb_conv *conv, const lane_merge_plan *plan) {
    const sb_weight *weight = &conv->weight;
    for (int t = 0; t < weight->out; t++) {
        for (int i = 0; i < weight->blocks; i++) {
            const size_t from = (size_t)t * weight->blocks + i, to = (size_t)i * plan->channels + t;
            const int filter = weight->index ? weight->index[from] : t;
            if (merges_fours(conv)) {
                plan->map_offset[from] = (uint32_t)(filter * flipped_floats(conv));
                continue;
            }
            plan->index[to] = filter;
            if (weight->ratio)
                plan->ratio[to] = weight->ratio[from];
        }
        if (merges_fours(conv))
            continue;
        plan->scale[t] = weight->scale[t];
        plan->shift[t] = weight->shift ? weight->shift[t] : 0;
    }
}

static void level_lanes_prepare(const sb_conv *conv, void *prepared) {
    lane_merge_plan plan;
    lanes_prepare(conv, prepared);
    place_lane_merge(conv, prepared, lanes_prepared_size(conv), &plan);
    prepare_lane_merge(conv, &plan);
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

/* Registers of output channels of few pixels. Those of a single one lie side by side. */
static NEVER_INLINE void merge_level_channels(const sb_conv *conv, const lane_merge_plan *plan, size_t filters,
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
            if (conv->level_out && pixels == 1)
                memcpy(conv->level_out + first, levels, (size_t)channels);
            else if (conv->level_out)
                for (int lane = 0; lane < channels; lane++)
                    conv->level_out[first + (size_t)lane * pixels] = levels[lane];
        }
    }
}

/* Fours of pixels of all output channels. */
static NEVER_INLINE void merge_level_fours(const sb_conv *conv, const lane_merge_plan *plan, size_t filters,
                                           const lanes_scratch *scratch, float *out) {
    enum { MOST = sizeof ((level_merge_job *)0)->pieces / sizeof(level_piece) };
    const int pixels = conv->out_height * conv->out_width;
    level_merge_job job = {
        .conv = conv, .map = scratch->map, .map_offset = plan->map_offset, .out = out, .end = (size_t)conv->weight.out,
        .part_width = 4, .straight = true,
    };
    for (int i = 0; i < conv->weight.blocks; i++)
        scratch->map[i] = scratch->flipped + i * filters * flipped_floats(conv);
    for (int pixel = 0; pixel < pixels; pixel += 4) {
        const int left = pixels - pixel;
        if (left < 4) {
            merge_level_pieces4(&job);
            job.pieces_count = 0;
            job.straight = false;
        }
        job.pieces[job.pieces_count++] =
            (level_piece){.map = pixel, .parts = 1, .offset = {(size_t)pixel}, .end = {left < 4 ? left : 4}};
        if (left <= 4 || job.pieces_count == MOST) {
            merge_level_pieces4(&job);
            job.pieces_count = 0;
        }
    }
}

/* The output from maps [input block][pixel][filter] of floats. */
static void merge_level_lanes(const sb_conv *conv, const lane_merge_plan *plan, size_t filters, const lanes_scratch *scratch,
                              float *out) {
    if (!merges_fours(conv)) {
        merge_level_channels(conv, plan, filters, scratch->maps, out);
        return;
    }
    flip_maps(conv, scratch->maps, filters, scratch->flipped);
    merge_level_fours(conv, plan, filters, scratch, out);
}

static void level_lanes_run(const sb_conv *conv, const int8_t *in, float *out, void *memory) {
    const size_t count = (size_t)conv->channels * conv->height * conv->width;
    const lanes_plan *plan = conv->prepared;
    lane_merge_plan merge;
    level_lanes_scratch scratch;
    place_lane_merge(conv, (uint8_t *)conv->prepared, lanes_prepared_size(conv), &merge);
    carve_level_lanes(conv, memory, &scratch);
    for (size_t i = 0; i < count; i++)
        scratch.in[i] = in[i];
    sum_lanes(conv, plan, scratch.in, &scratch.lanes);
    uint64_t since = BEGIN_STAGE(conv);
    merge_level_lanes(conv, &merge, (size_t)plan->registers * LANES, &scratch.lanes, out);
    END_STAGE(conv, merge, &since);
    if (out)
        apply_rest(conv, out);
}

static const sb_conv_kernel level_lanes_kernel = {
    .name = "lanes", .cost = level_lanes_cost, .prepared_size = level_lanes_prepared_size,
    .prepare = level_lanes_prepare, .scratch_size = level_lanes_scratch_size, .run_levels = level_lanes_run,
};

#endif
