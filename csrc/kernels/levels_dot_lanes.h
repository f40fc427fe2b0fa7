/* Layers on levels by VPDPBUSD with filters in the lanes: few pixels, and fully connected layers (see lanes_impl.h).
 *
 * The bytes of a lane are four channels of a filter: 1 where its sign is +1, 0 where it is -1, straight from 64 packed bits.
 * Beside them four levels of one pixel are broadcast. With P the sum of the levels under +1 and T that of all levels, the
 * sum of the filter is 2P - T; T is the same for all filters. */
#if LANES == 16

enum { DOT_PAIRS = 4, DOT_REGISTERS = 4 }; /* pairs of pixels, and registers of filters, that share their loads */

typedef struct {
    int quads, registers; /* registers of filters, a multiple of `group` */
    int group;            /* of registers that share their loads */
    int32_t *pair_begin;  /* (taps + 1) */
    lanes_pair *pairs;
    uint64_t *signs;      /* [group of registers][tap][quad][register] */
    size_t bytes;         /* of all this; the plan of the merge comes behind it */
} dot_lanes_plan;

typedef struct {
    lanes_scratch lanes; /* its maps hold whole numbers until they are complete */
    uint32_t *words;     /* [input block][quad][pixel] */
    int32_t *levels;     /* [pixel]: the sum of its levels */
    int32_t *totals;     /* [input block][output pixel]: the sum of all levels that its taps read */
} dot_lanes_scratch;

static size_t place_dot_lanes(const sb_conv *conv, uint8_t *memory, dot_lanes_plan *plan) {
    const size_t taps = (size_t)conv->weight.kernel_h * conv->weight.kernel_w;
    const int registers = (conv->weight.filters + LANES - 1) / LANES;
    size_t used = 0;
    plan->quads = (conv->weight.depth + 3) / 4;
    plan->group = registers > 2 ? DOT_REGISTERS : registers;
    plan->registers = (registers + plan->group - 1) / plan->group * plan->group;
    carve(memory, &used, sizeof *plan);
    plan->pair_begin = carve(memory, &used, (taps + 1) * sizeof *plan->pair_begin);
    plan->pairs = carve(memory, &used, (size_t)find_pairs(conv, NULL, NULL) * sizeof *plan->pairs);
    plan->signs = carve(memory, &used, taps * plan->quads * plan->registers * sizeof *plan->signs);
    plan->bytes = used;
    return used;
}

static double dot_lanes_cost(const sb_conv *conv) {
    if (!__builtin_cpu_supports("avx512vnni") || !can_put_filters_in_lanes(conv) || !sums_fit_floats(conv))
        return -1;
    dot_lanes_plan plan;
    place_dot_lanes(conv, NULL, &plan);
    const double k = conv->weight.blocks, pairs = find_pairs(conv, NULL, NULL) * k;
    const double out_pixels = conv->out_height * conv->out_width;
    const double taps = conv->weight.kernel_h * conv->weight.kernel_w, calls = taps + pairs / DOT_PAIRS;
    const double multiply = plan.registers * (plan.quads * (pairs * 0.5 + calls * 0.25) + pairs + calls * 2);
    const double stage = k * plan.quads * (conv->height * conv->width / LANES + 1) * 8.0;
    const double merge = conv->weight.out * (out_pixels * (k + 2) * 0.15 + 5) + k * out_pixels * plan.registers * 12;
    return (multiply + stage + merge + 300) / CYCLES_PER_NANOSECOND;
}

static size_t dot_lanes_prepared_size(const sb_conv *conv) {
    dot_lanes_plan plan;
    lane_merge_plan merge;
    return place_lane_merge(conv, NULL, place_dot_lanes(conv, NULL, &plan), &merge);
}

static void dot_lanes_prepare(const sb_conv *conv, void *prepared) {
    const sb_weight *weight = &conv->weight;
    const size_t taps = (size_t)weight->kernel_h * weight->kernel_w, depth = (size_t)weight->depth;
    dot_lanes_plan *plan = prepared;
    lane_merge_plan merge;
    place_lane_merge(conv, prepared, place_dot_lanes(conv, prepared, plan), &merge);
    prepare_lane_merge(conv, &merge);
    find_pairs(conv, plan->pair_begin, plan->pairs);
    for (size_t filter = 0; filter < (size_t)weight->filters; filter++) {
        const size_t group = filter / LANES / plan->group, in_group = filter / LANES % plan->group;
        for (size_t tap = 0; tap < taps; tap++)
            for (size_t quad = 0; quad < (size_t)plan->quads; quad++) {
                const int channels = quad_channels(conv, (int)quad);
                const uint64_t nibble = table_source_code(weight->bits, (filter * taps + tap) * depth + quad * 4, channels);
                plan->signs[((group * taps + tap) * plan->quads + quad) * plan->group + in_group] |= nibble << filter % LANES * 4;
            }
    }
}

static size_t carve_dot_lanes(const sb_conv *conv, const dot_lanes_plan *plan, uint8_t *memory, dot_lanes_scratch *scratch) {
    const size_t blocks = (size_t)conv->weight.blocks, pixels = (size_t)conv->height * conv->width;
    const size_t out_pixels = (size_t)conv->out_height * conv->out_width;
    size_t used = 0;
    carve_lane_maps(conv, (size_t)plan->registers * LANES, memory, &used, &scratch->lanes);
    scratch->words = carve(memory, &used, (blocks * plan->quads * pixels + LANES) * sizeof *scratch->words);
    scratch->levels = carve(memory, &used, (pixels + LANES) * sizeof *scratch->levels);
    scratch->totals = carve(memory, &used, blocks * out_pixels * sizeof *scratch->totals);
    return used;
}

static size_t dot_lanes_scratch_size(const sb_conv *conv) {
    dot_lanes_plan plan;
    dot_lanes_scratch scratch;
    place_dot_lanes(conv, NULL, &plan);
    return carve_dot_lanes(conv, &plan, NULL, &scratch);
}

/* The words of a block, and the totals of its output pixels. */
static void stage_dot_lanes(const sb_conv *conv, const dot_lanes_plan *plan, const dot_lanes_scratch *scratch,
                            const int8_t *in, int block) {
    const size_t pixels = (size_t)conv->height * conv->width, out_pixels = (size_t)conv->out_height * conv->out_width;
    uint32_t *words = scratch->words + (size_t)block * plan->quads * pixels;
    interleave_job job = {.in = in, .plane = pixels, .rows = 1, .count = (int)pixels, .to = words};
    for (int quad = 0; quad < plan->quads; quad++, job.in += 4 * pixels, job.to += pixels)
        interleave_quad(&job, quad_channels(conv, quad));
    for (size_t pixel = 0; pixel < pixels; pixel += LANES) {
        vword sum = {0};
        for (int quad = 0; quad < plan->quads; quad++)
            sum = add_products(sum, (vword){0} + 0x01010101, *(const vword_u *)(words + quad * pixels + pixel));
        *(vword_u *)(scratch->levels + pixel) = sum;
    }
    int32_t *totals = scratch->totals + block * out_pixels;
    memset(totals, 0, out_pixels * sizeof *totals);
    const lanes_pair *end = plan->pairs + plan->pair_begin[conv->weight.kernel_h * conv->weight.kernel_w];
    for (const lanes_pair *pair = plan->pairs; pair < end; pair++)
        totals[pair->out] += scratch->levels[pair->in];
}

/* Adds `pairs` pixels to as many maps of `registers` registers of filters; both are constants of the caller. */
ALWAYS_INLINE void dot_lanes_tile(const uint64_t *signs, int quads, const uint32_t *const *words, size_t step,
                                  vword *const *maps, const int registers, const int pairs) {
    const __m512i ones = _mm512_set1_epi8(1);
    vword sum[DOT_REGISTERS * DOT_PAIRS];
    UNROLL
    for (int i = 0; i < registers * pairs; i++)
        sum[i] = maps[i / registers][i % registers];
    for (size_t at = 0; at < quads * step; at += step, signs += registers) {
        vword filters[DOT_REGISTERS];
        UNROLL
        for (int r = 0; r < registers; r++)
            filters[r] = (vword)_mm512_maskz_mov_epi8(signs[r], ones);
        UNROLL
        for (int p = 0; p < pairs; p++) {
            const vword levels = (vword){0} + (int32_t)words[p][at];
            UNROLL
            for (int r = 0; r < registers; r++)
                sum[p * registers + r] = add_products(sum[p * registers + r], filters[r], levels);
        }
    }
    UNROLL
    for (int i = 0; i < registers * pairs; i++)
        maps[i / registers][i % registers] = sum[i];
}

#define DEFINE_DOT_LANES(registers, pairs)                                                                             \
    static NEVER_INLINE void dot_lanes_##registers##_##pairs(const uint64_t *signs, int quads,                         \
                                                             const uint32_t *const *words, size_t step,                \
                                                             vword *const *maps) {                                     \
        dot_lanes_tile(signs, quads, words, step, maps, registers, pairs);                                             \
    }
DEFINE_DOT_LANES(1, 1)
DEFINE_DOT_LANES(1, 2)
DEFINE_DOT_LANES(1, 3)
DEFINE_DOT_LANES(1, 4)
DEFINE_DOT_LANES(2, 1)
DEFINE_DOT_LANES(2, 2)
DEFINE_DOT_LANES(2, 3)
DEFINE_DOT_LANES(2, 4)
DEFINE_DOT_LANES(4, 1)
DEFINE_DOT_LANES(4, 2)
DEFINE_DOT_LANES(4, 3)
DEFINE_DOT_LANES(4, 4)
#undef DEFINE_DOT_LANES

typedef void dot_lanes_function(const uint64_t *, int, const uint32_t *const *, size_t, vword *const *);
static dot_lanes_function *const dot_lanes_all[DOT_REGISTERS + 1][DOT_PAIRS + 1] = {
    [1] = {NULL, dot_lanes_1_1, dot_lanes_1_2, dot_lanes_1_3, dot_lanes_1_4},
    [2] = {NULL, dot_lanes_2_1, dot_lanes_2_2, dot_lanes_2_3, dot_lanes_2_4},
    [4] = {NULL, dot_lanes_4_1, dot_lanes_4_2, dot_lanes_4_3, dot_lanes_4_4},
};

/* One tap of one group of registers: all pairs of pixels, in all blocks. */
static void multiply_dot_tap(const sb_conv *conv, const dot_lanes_plan *plan, const dot_lanes_scratch *scratch, int group,
                             int tap) {
    const size_t pixels = (size_t)conv->height * conv->width, out_pixels = (size_t)conv->out_height * conv->out_width;
    const int taps = conv->weight.kernel_h * conv->weight.kernel_w, first = plan->pair_begin[tap];
    const int of_tap = plan->pair_begin[tap + 1] - first, count = of_tap * conv->weight.blocks;
    const uint64_t *signs = plan->signs + ((size_t)group * taps + tap) * plan->quads * plan->group;
    for (int done = 0; done < count; done += DOT_PAIRS) {
        const uint32_t *words[DOT_PAIRS];
        vword *maps[DOT_PAIRS];
        const int pairs = count - done < DOT_PAIRS ? count - done : DOT_PAIRS;
        for (int i = 0; i < pairs; i++) {
            const lanes_pair pair = plan->pairs[first + (done + i) % of_tap];
            const size_t block = (size_t)(done + i) / of_tap;
            words[i] = scratch->words + block * plan->quads * pixels + pair.in;
            maps[i] = (vword *)scratch->lanes.maps + (block * out_pixels + pair.out) * plan->registers + group * plan->group;
        }
        dot_lanes_all[plan->group][pairs](signs, plan->quads, words, pixels, maps);
    }
}

/* Sums of the levels under +1 become those of the filters, as floats. */
static void complete_dot_maps(const sb_conv *conv, const dot_lanes_plan *plan, const dot_lanes_scratch *scratch) {
    const int maps = conv->weight.blocks * conv->out_height * conv->out_width;
    vword *at = (vword *)scratch->lanes.maps;
    for (int map = 0; map < maps; map++)
        for (int r = 0; r < plan->registers; r++, at++)
            *(vfloat *)at = __builtin_convertvector(*at + *at - scratch->totals[map], vfloat);
}

static void dot_lanes_run(const sb_conv *conv, const int8_t *in, float *out, void *memory) {
    const dot_lanes_plan *plan = conv->prepared;
    const int taps = conv->weight.kernel_h * conv->weight.kernel_w;
    const int maps = conv->weight.blocks * conv->out_height * conv->out_width;
    const size_t block_size = (size_t)conv->weight.depth * conv->height * conv->width;
    uint64_t since = BEGIN_STAGE(conv);
    dot_lanes_scratch scratch;
    lane_merge_plan merge;
    place_lane_merge(conv, (uint8_t *)conv->prepared, plan->bytes, &merge);
    carve_dot_lanes(conv, plan, memory, &scratch);
    for (int block = 0; block < conv->weight.blocks; block++)
        stage_dot_lanes(conv, plan, &scratch, in + block * block_size, block);
    END_STAGE(conv, build, &since);
    memset(scratch.lanes.maps, 0, (size_t)maps * plan->registers * sizeof(vword));
    for (int group = 0; group < plan->registers / plan->group; group++)
        for (int tap = 0; tap < taps; tap++)
            multiply_dot_tap(conv, plan, &scratch, group, tap);
    complete_dot_maps(conv, plan, &scratch);
    END_STAGE(conv, look_up, &since);
    merge_level_lanes(conv, &merge, (size_t)plan->registers * LANES, &scratch.lanes, out);
    END_STAGE(conv, merge, &since);
    if (out)
        apply_rest(conv, out);
}

static const sb_conv_kernel dot_lanes_kernel = {
    .name = "dot lanes", .cost = dot_lanes_cost, .prepared_size = dot_lanes_prepared_size, .prepare = dot_lanes_prepare,
    .scratch_size = dot_lanes_scratch_size, .run_levels = dot_lanes_run,
};

#endif
