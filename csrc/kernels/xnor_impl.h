/* Signs of the input against ±1 filters on popcount, pixels in the lanes (flat_impl.h with words of 32 signs for floats).
 *
 * A product of two signs is −1 where their bits differ, so a sum over n products is n − 2 · popcount(x ^ filter). Zero
 * padding must count for nothing: a plane of masks, staged like the input, is all ones where there is a pixel. Sums are
 * integers, and exact.
 *
 * Prepared filters: [batch of FLAT_FILTERS filters][tap][word of 32 channels][filter].
 */

enum {
    SIGN_BITS = 32,
    MAX_BYTE_STEPS = 31, /* counts of up to 8 that are sure to fit a byte */
};

typedef struct {
    flat_scratch flat;
    vword *packed;   /* signs of the whole input, [word of channels][pixel] */
    vword *ones;     /* a plane of ones, from which the masks are staged */
    float *masks;    /* staged */
    vfloat *counts;  /* per register of the band: products under the filter */
    vfloat *maps;    /* [input block][filter][register of the tile] */
} xnor_scratch;

static int sign_words(const sb_conv *conv) { return (conv->weight.depth + SIGN_BITS - 1) / SIGN_BITS; }

static flat_plan plan_xnor(const sb_conv *conv) {
    return plan_flat(conv, conv->weight.blocks * sign_words(conv), conv->out_height);
}

static size_t xnor_batch_words(const sb_conv *conv) {
    return (size_t)conv->weight.kernel_h * conv->weight.kernel_w * sign_words(conv) * FLAT_FILTERS;
}

static double estimate_xnor(const sb_conv *conv, double cycles) {
    if (!conv->weight.binary_input || !conv->weight.bits)
        return -1;
    const flat_plan plan = plan_xnor(conv);
    const double bands = (double)((conv->out_height + plan.band_rows - 1) / plan.band_rows);
    const double tiles = (double)((plan.max_vectors + FLAT_REGISTERS - 1) / FLAT_REGISTERS) * bands * conv->groups;
    const double look = (double)xnor_batch_words(conv) * FLAT_REGISTERS * cycles + 30;
    const double merge = (double)conv->weight.out / conv->groups * (conv->weight.blocks + 2.0) * FLAT_REGISTERS * 2;
    const double pack = (double)conv->channels * (conv->height * conv->width / (double)LANES + 2) * 2;
    return (tiles * (look * filter_batches(conv) * conv->weight.blocks + merge) + pack) / CYCLES_PER_NANOSECOND;
}

static size_t xnor_prepared_size(const sb_conv *conv) {
    const int banks = conv->weight.index ? 1 : conv->groups;
    return (size_t)banks * filter_batches(conv) * xnor_batch_words(conv) * sizeof(uint32_t);
}

static void xnor_prepare(const sb_conv *conv, void *prepared) {
    const sb_weight *weight = &conv->weight;
    const size_t per_group = (size_t)filters_per_group(conv), taps = (size_t)weight->kernel_h * weight->kernel_w;
    const size_t words = (size_t)sign_words(conv), depth = (size_t)weight->depth;
    uint32_t *out = prepared;
    for (size_t filter = 0; filter < (size_t)weight->filters; filter++) {
        const size_t batch = filter / per_group * filter_batches(conv) + filter % per_group / FLAT_FILTERS;
        for (size_t tap = 0; tap < taps; tap++)
            for (size_t c = 0; c < depth; c++) {
                const size_t bit = (filter * taps + tap) * depth + c;
                const size_t word = (batch * taps + tap) * words + c / SIGN_BITS;
                out[word * FLAT_FILTERS + filter % per_group % FLAT_FILTERS] |=
                    (uint32_t)(weight->bits[bit / 8] >> bit % 8 & 1) << c % SIGN_BITS;
            }
    }
}

static size_t carve_xnor_scratch(const sb_conv *conv, const flat_plan *plan, uint8_t *memory, xnor_scratch *scratch) {
    const size_t plane = (size_t)conv->height * conv->width, words = (size_t)conv->groups * plan->channels;
    const size_t maps = (size_t)conv->weight.blocks * filter_batches(conv) * FLAT_FILTERS;
    size_t used = 0;
    scratch->packed = carve(memory, &used, (words * plane + LANES) * sizeof(uint32_t));
    scratch->ones = carve(memory, &used, (plane + LANES) * sizeof(uint32_t));
    scratch->masks = carve(memory, &used, (size_t)plan->planes * plan->plane_floats * sizeof(float));
    scratch->counts = carve(memory, &used, (size_t)(plan->max_vectors + FLAT_REGISTERS) * sizeof(vfloat));
    scratch->maps = carve(memory, &used, maps * FLAT_REGISTERS * sizeof(vfloat));
    return carve_flat_scratch(conv, plan, memory, used, &scratch->flat);
}

static size_t xnor_scratch_size(const sb_conv *conv) {
    const flat_plan plan = plan_xnor(conv);
    xnor_scratch scratch;
    return carve_xnor_scratch(conv, &plan, NULL, &scratch);
}

/* Signs of `count` channels of `pixels` pixels as words; the words of neighbouring planes may be overwritten behind. */
static NEVER_INLINE void pack_signs(const float *in, size_t pixels, int count, uint32_t *words) {
    for (size_t p = 0; p < pixels; p += LANES) {
        const int lanes = pixels - p < LANES ? (int)(pixels - p) : LANES;
        vword word = {0};
        for (int c = 0; c < count; c++) {
            const float *from = in + c * pixels + p;
            const vfloat x = lanes == LANES ? vload(from) : vload_part(from, 0, lanes);
            word |= (vword)(x >= vsplat(0)) & (int32_t)(1u << c);
        }
        vstore((float *)(words + p), (vfloat)word);
    }
}

static void pack_input(const sb_conv *conv, const flat_plan *plan, const float *in, const xnor_scratch *scratch) {
    const size_t pixels = (size_t)conv->height * conv->width;
    const int words = sign_words(conv), depth = conv->weight.depth;
    uint32_t *packed = (uint32_t *)scratch->packed;
    for (int word = 0; word < conv->groups * plan->channels; word++) { /* in order: each may spill into the next */
        const int first = word % words * SIGN_BITS, channel = word / words * depth + first;
        const int count = depth - first < SIGN_BITS ? depth - first : SIGN_BITS;
        pack_signs(in + channel * pixels, pixels, count, packed + word * pixels);
    }
    memset(scratch->ones, 0xff, pixels * sizeof(uint32_t));
}

/* How many products each output pixel sums: the taps that meet a pixel, times the depth. */
static void count_products(const sb_conv *conv, const xnor_scratch *scratch) {
    const int taps = conv->weight.kernel_h * conv->weight.kernel_w;
    for (int v = 0; v < scratch->flat.vectors_count + FLAT_REGISTERS; v++) {
        vbits hits = {0}; /* lanes that are no output may hold any bits, which wrap as unsigned numbers */
        for (int tap = 0; tap < taps; tap++)
            hits -= (vbits)vload(scratch->masks + scratch->flat.vectors[v].pixel + scratch->flat.tap_offset[tap]);
        scratch->counts[v] = __builtin_convertvector((vword)(hits * (uint32_t)conv->weight.depth), vfloat);
    }
}

/* The products of one batch of filters and one block of the input that differ in sign. `hardware`: lanes are counted by
 * an instruction; otherwise bytes are, and added up in time. */
ALWAYS_INLINE void count_batch(const sb_conv *conv, const flat_plan *plan, const xnor_scratch *scratch,
                               const float *staged, const flat_vector *vectors, const uint32_t *filters,
                               const bool hardware, vword *sum) {
    enum { SUMS = FLAT_FILTERS * FLAT_REGISTERS };
    const int taps = conv->weight.kernel_h * conv->weight.kernel_w, words = sign_words(conv);
    const size_t plane = (size_t)plan->planes * plan->plane_floats;
    vword bytes[SUMS];
    int steps = 0;
    UNROLL
    for (int i = 0; i < SUMS; i++)
        bytes[i] = sum[i] = (vword){0};
    for (int tap = 0; tap < taps; tap++)
        for (int word = 0; word < words; word++, filters += FLAT_FILTERS) {
            vword x[FLAT_REGISTERS], mask[FLAT_REGISTERS];
            UNROLL
            for (int r = 0; r < FLAT_REGISTERS; r++) {
                const ptrdiff_t at = vectors[r].pixel + scratch->flat.tap_offset[tap];
                mask[r] = (vword)vload(scratch->masks + at);
                x[r] = (vword)vload(staged + word * plane + at);
            }
            UNROLL
            for (int f = 0; f < FLAT_FILTERS; f++) {
                const vword filter = (vword){0} + (int32_t)filters[f];
                UNROLL
                for (int r = 0; r < FLAT_REGISTERS; r++) {
                    const vword differ = (x[r] ^ filter) & mask[r];
                    bytes[f * FLAT_REGISTERS + r] += hardware ? count_bits(differ) : count_byte_bits(differ);
                }
            }
            if (!hardware && ++steps == MAX_BYTE_STEPS) {
                steps = 0;
                UNROLL
                for (int i = 0; i < SUMS; i++) {
                    sum[i] += add_bytes(bytes[i]);
                    bytes[i] = (vword){0};
                }
            }
        }
    UNROLL
    for (int i = 0; i < SUMS; i++)
        sum[i] += hardware ? bytes[i] : add_bytes(bytes[i]);
}

ALWAYS_INLINE void count_tile(const sb_conv *conv, const flat_plan *plan, const xnor_scratch *scratch,
                              const float *staged, int first, const uint32_t *filters, const bool hardware) {
    const size_t block_words = (size_t)sign_words(conv) * plan->planes * plan->plane_floats;
    const int batches = filter_batches(conv);
    vfloat *map = scratch->maps;
    for (int block = 0; block < conv->weight.blocks; block++)
        for (int batch = 0; batch < batches; batch++) {
            vword differ[FLAT_FILTERS * FLAT_REGISTERS];
            count_batch(conv, plan, scratch, staged + block * block_words, scratch->flat.vectors + first,
                        filters + batch * xnor_batch_words(conv), hardware, differ);
            for (int i = 0; i < FLAT_FILTERS * FLAT_REGISTERS; i++)
                *map++ = scratch->counts[first + i % FLAT_REGISTERS] - __builtin_convertvector(2 * differ[i], vfloat);
        }
}

ALWAYS_INLINE void run_xnor(const sb_conv *conv, const float *in, float *out, void *memory, const bool hardware) {
    const flat_plan plan = plan_xnor(conv);
    const size_t group_words = (size_t)plan.channels * conv->height * conv->width;
    const uint32_t *filters = conv->prepared;
    const flat_finish finish = finish_of(conv, out);
    xnor_scratch scratch;
    carve_xnor_scratch(conv, &plan, memory, &scratch);
    find_tap_offsets(conv, &plan, scratch.flat.tap_offset);
    pack_input(conv, &plan, in, &scratch);
    flat_plan mask_plan = plan;
    mask_plan.channels = 1;
    for (int y = 0; y < conv->out_height; y += plan.band_rows) {
        const int rows = conv->out_height - y < plan.band_rows ? conv->out_height - y : plan.band_rows;
        list_vectors(conv, &plan, y, rows, &scratch.flat);
        stage_band(conv, &mask_plan, (const float *)scratch.ones, y, scratch.masks);
        count_products(conv, &scratch);
        for (int group = 0; group < conv->groups; group++) {
            const float *packed = (const float *)scratch.packed + group * group_words;
            const float *staged = plan.in_place ? packed : scratch.flat.staged;
            const size_t bank = conv->weight.index ? 0 : (size_t)group * filter_batches(conv) * xnor_batch_words(conv);
            if (!plan.in_place)
                stage_band(conv, &plan, packed, y, scratch.flat.staged);
            for (int first = 0; first < scratch.flat.vectors_count; first += FLAT_REGISTERS) {
                const int left = scratch.flat.vectors_count - first;
                count_tile(conv, &plan, &scratch, staged, first, filters + bank, hardware);
                merge_tile(conv, &scratch.flat, scratch.maps, group, scratch.flat.vectors + first,
                           left < FLAT_REGISTERS ? left : FLAT_REGISTERS, &finish);
            }
        }
    }
    apply_rest(conv, out);
}

static double xnor_cost(const sb_conv *conv) { return estimate_xnor(conv, LANES == 4 ? 6 : 4); }

static void xnor_run(const sb_conv *conv, const float *in, float *out, void *memory) {
    run_xnor(conv, in, out, memory, false);
}

static const sb_conv_kernel xnor_kernel = {
    .name = "xnor", .cost = xnor_cost, .prepared_size = xnor_prepared_size, .prepare = xnor_prepare,
    .scratch_size = xnor_scratch_size, .run = xnor_run,
};

#if LANES == 16
static double popcount_cost(const sb_conv *conv) {
    return __builtin_cpu_supports("avx512vpopcntdq") ? estimate_xnor(conv, 1.5) : -1;
}

__attribute__((target("avx512vpopcntdq"))) static void popcount_run(const sb_conv *conv, const float *in, float *out,
                                                                    void *memory) {
    run_xnor(conv, in, out, memory, true);
}

static const sb_conv_kernel popcount_kernel = {
    .name = "popcount", .cost = popcount_cost, .prepared_size = xnor_prepared_size, .prepare = xnor_prepare,
    .scratch_size = xnor_scratch_size, .run = popcount_run,
};
#endif
