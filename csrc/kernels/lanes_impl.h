/* ±1 filters over few pixels, filters in the lanes: maps of 1 to a few pixels a side, and fully connected layers.
 *
 * The signed sums of a quad of channels at one pixel fill a register (or, with 8 lanes, half of them do: the other half are
 * their negatives). The nibbles of LANES filters are then lane numbers, and one permutation looks up all of them:
 *
 *   sums of a quad at a pixel    s0 s1 s2 … s15
 *   nibbles of 16 filters         5  0  9 …  2       of one tap
 *   permuted                     s5 s0 s9 … s2       added to the 16 filters' maps at an output pixel
 *
 * Taps that meet padding are never visited. Nibbles are stored as 32-bit words, eight quads of one tap per word:
 * [register of filters][tap][word][lane].
 */
#if LANES >= 8

enum {
    WORD_QUADS = 8,
    LANES_MAX_PIXELS = 64,
    LANES_SUMS_BYTES = 32 * 1024, /* of the sums of one chunk, which should stay in the first-level cache */
};

/* An input pixel that a tap moves to an output pixel. */
typedef struct {
    int32_t in, out;
} lanes_pair;

typedef struct {
    int quads, words, registers; /* words per tap; registers of filters */
    int32_t *pair_begin;         /* (taps + 1) */
    lanes_pair *pairs;
    uint32_t *nibbles;
} lanes_plan;

typedef struct {
    float *sums; /* [input block][pixel][quad of the chunk][lane] */
    float *maps; /* [input block][pixel][filter], and three more pixels that are read but not used */
    float *flipped; /* [input block][filter][pixel] */
    const float **map; /* [input block], of flipped maps on levels */
} lanes_scratch;

static int count_words(const sb_conv *conv) {
    return (conv->weight.depth + 4 * WORD_QUADS - 1) / (4 * WORD_QUADS);
}

/* Visits the pairs of every tap; only counts them where there is no room given. */
static int find_pairs(const sb_conv *conv, int32_t *pair_begin, lanes_pair *pairs) {
    int count = 0, tap = 0;
    for (int ky = 0; ky < conv->weight.kernel_h; ky++)
        for (int kx = 0; kx < conv->weight.kernel_w; kx++, tap++) {
            if (pairs)
                pair_begin[tap] = count;
            for (int y = 0; y < conv->out_height; y++) {
                const int in_y = y * conv->stride_h + ky * conv->dilation_h - conv->pad_top;
                for (int x = 0; in_y >= 0 && in_y < conv->height && x < conv->out_width; x++) {
                    const int in_x = x * conv->stride_w + kx * conv->dilation_w - conv->pad_left;
                    if (in_x < 0 || in_x >= conv->width)
                        continue;
                    if (pairs)
                        pairs[count] = (lanes_pair){in_y * conv->width + in_x, y * conv->out_width + x};
                    count++;
                }
            }
        }
    if (pairs)
        pair_begin[tap] = count;
    return count;
}

static bool can_put_filters_in_lanes(const sb_conv *conv) {
    const int in_pixels = conv->height * conv->width, out_pixels = conv->out_height * conv->out_width;
    return conv->weight.bits && !conv->weight.binary_input && conv->groups == 1 && conv->height <= LANES_MAX_PIXELS &&
           in_pixels <= LANES_MAX_PIXELS && conv->out_height <= LANES_MAX_PIXELS && out_pixels <= LANES_MAX_PIXELS;
}

static double lanes_cost(const sb_conv *conv) {
    const sb_weight *weight = &conv->weight;
    const int in_pixels = conv->height * conv->width, out_pixels = conv->out_height * conv->out_width;
    if (!can_put_filters_in_lanes(conv))
        return -1;
    const double quads = (weight->depth + 3) / 4, registers = (weight->filters + LANES - 1) / LANES;
    const double look_up = (double)find_pairs(conv, NULL, NULL) * (quads * 1.25 + 4);
    const double build = in_pixels * quads * 8.0;
    const double merge = (double)weight->out * (out_pixels * 0.5 + 4);
    return weight->blocks * (registers * look_up + build + merge) / CYCLES_PER_NANOSECOND;
}

static size_t place_lanes(const sb_conv *conv, uint8_t *memory, lanes_plan *plan) {
    const size_t taps = (size_t)conv->weight.kernel_h * conv->weight.kernel_w;
    size_t used = 0;
    plan->quads = (conv->weight.depth + 3) / 4;
    plan->words = count_words(conv);
    plan->registers = (conv->weight.filters + LANES - 1) / LANES;
    carve(memory, &used, sizeof *plan);
    plan->pair_begin = carve(memory, &used, (taps + 1) * sizeof *plan->pair_begin);
    plan->pairs = carve(memory, &used, (size_t)find_pairs(conv, NULL, NULL) * sizeof *plan->pairs);
    plan->nibbles = carve(memory, &used, taps * plan->words * plan->registers * LANES * sizeof *plan->nibbles);
    return used;
}

static size_t lanes_prepared_size(const sb_conv *conv) {
    lanes_plan plan;
    return place_lanes(conv, NULL, &plan);
}

static void lanes_prepare(const sb_conv *conv, void *prepared) {
    const sb_weight *weight = &conv->weight;
    const size_t taps = (size_t)weight->kernel_h * weight->kernel_w, depth = (size_t)weight->depth;
    lanes_plan *plan = prepared;
    place_lanes(conv, prepared, plan);
    find_pairs(conv, plan->pair_begin, plan->pairs);
    for (size_t filter = 0; filter < (size_t)weight->filters; filter++)
        for (size_t tap = 0; tap < taps; tap++) {
            uint32_t *words =
                plan->nibbles + ((filter / LANES * taps + tap) * plan->words) * LANES + filter % LANES;
            for (size_t quad = 0; quad < (size_t)plan->quads; quad++) {
                const int channels = depth - quad * 4 < 4 ? (int)(depth - quad * 4) : 4;
                const unsigned nibble =
                    table_source_code(weight->bits, (filter * taps + tap) * depth + quad * 4, channels);
                words[quad / WORD_QUADS * LANES] |= lane_nibble(nibble) << quad % WORD_QUADS * 4;
            }
        }
}

static int chunk_words(const sb_conv *conv) {
    const int pixels = conv->height * conv->width * conv->weight.blocks;
    const int words = LANES_SUMS_BYTES / (pixels * WORD_QUADS * (int)sizeof(vfloat));
    return words < 1 ? 1 : words < count_words(conv) ? words : count_words(conv);
}

/* Maps of so many filters, of both forms. */
static void carve_lane_maps(const sb_conv *conv, size_t filters, uint8_t *memory, size_t *used, lanes_scratch *scratch) {
    const size_t blocks = (size_t)conv->weight.blocks, maps = blocks * conv->out_height * conv->out_width;
    const size_t fours = ((size_t)conv->out_height * conv->out_width + 3) / 4;
    scratch->maps = carve(memory, used, (maps + 3) * filters * sizeof(float));
    scratch->flipped = carve(memory, used, blocks * filters * fours * 4 * sizeof(float));
    scratch->map = carve(memory, used, blocks * sizeof *scratch->map);
}

static size_t carve_lanes_scratch(const sb_conv *conv, uint8_t *memory, lanes_scratch *scratch) {
    const size_t pixels = (size_t)conv->weight.blocks * conv->height * conv->width;
    const size_t filters = (size_t)(conv->weight.filters + LANES - 1) / LANES * LANES;
    size_t used = 0;
    scratch->sums = carve(memory, &used, pixels * chunk_words(conv) * WORD_QUADS * sizeof(vfloat));
    carve_lane_maps(conv, filters, memory, &used, scratch);
    return used;
}

static size_t lanes_scratch_size(const sb_conv *conv) {
    lanes_scratch scratch;
    return carve_lanes_scratch(conv, NULL, &scratch);
}

/* Sums of the quads first … of every block and pixel. */
static NEVER_INLINE void build_lanes(const sb_conv *conv, const float *in, int first, int quads, float *sums) {
    const int pixels = conv->height * conv->width, depth = conv->weight.depth;
    for (int block = 0; block < conv->weight.blocks; block++, in += (size_t)depth * pixels)
        for (int pixel = 0; pixel < pixels; pixel++)
            for (int quad = first; quad < first + quads; quad++, sums += LANES) {
                vfloat sum = {0};
                UNROLL
                for (int c = 0; c < 4; c++)
                    if (quad * 4 + c < depth)
                        sum += vsplat(in[(size_t)(quad * 4 + c) * pixels + pixel]) * vload(lane_signs[c]);
                *(vfloat *)sums = sum;
            }
}

/* Adds `pairs` maps at once: `words` of one tap against the sums of as many input pixels. */
ALWAYS_INLINE void look_up_lanes(const uint32_t *words, int quads, const float *const *sums, float *const *maps,
                                 const int pairs) {
    enum { CHAINS = 4 }; /* independent sums, or additions would wait for each other */
    const int chains = CHAINS / pairs;
    vfloat sum[CHAINS];
    UNROLL
    for (int i = 0; i < CHAINS; i++)
        sum[i] = i < pairs ? *(const vfloat *)maps[i] : (vfloat){0};
    int quad = 0;
    for (; quad + WORD_QUADS <= quads; words += LANES) {
        lane_selector word = load_selector(words);
        UNROLL
        for (int i = 0; i < WORD_QUADS; i++, quad++) {
            UNROLL
            for (int p = 0; p < pairs; p++)
                sum[i % chains * pairs + p] += select_sums(sums[p] + (size_t)quad * LANES, word);
            word = next_selector(word);
        }
    }
    if (quad < quads) {
        lane_selector word = load_selector(words);
        for (; quad < quads; quad++) {
            UNROLL
            for (int p = 0; p < pairs; p++)
                sum[p] += select_sums(sums[p] + (size_t)quad * LANES, word);
            word = next_selector(word);
        }
    }
    UNROLL
    for (int p = 0; p < pairs; p++) {
        UNROLL
        for (int i = 1; i < chains; i++)
            sum[p] += sum[i * pairs + p];
        *(vfloat *)maps[p] = sum[p];
    }
}

/* One tap of one register of filters: all pairs of pixels, in all blocks. */
static NEVER_INLINE void look_up_tap(const sb_conv *conv, const lanes_plan *plan, const lanes_scratch *scratch, int tap,
                                     const uint32_t *words, int quads, int filter) {
    const int in_pixels = conv->height * conv->width, out_pixels = conv->out_height * conv->out_width;
    const size_t pixel_floats = (size_t)quads * LANES;
    const size_t filters = (size_t)plan->registers * LANES;
    const float *sums[4];
    float *maps[4];
    int waiting = 0;
    for (int block = 0; block < conv->weight.blocks; block++)
        for (int i = plan->pair_begin[tap]; i < plan->pair_begin[tap + 1]; i++) {
            const lanes_pair pair = plan->pairs[i];
            sums[waiting] = scratch->sums + ((size_t)block * in_pixels + pair.in) * pixel_floats;
            maps[waiting] = scratch->maps + ((size_t)block * out_pixels + pair.out) * filters + filter;
            if (++waiting == 4) {
                look_up_lanes(words, quads, sums, maps, 4);
                waiting = 0;
            }
        }
    if (waiting & 2)
        look_up_lanes(words, quads, sums, maps, 2);
    if (waiting & 1)
        look_up_lanes(words, quads, sums + (waiting & 2), maps + (waiting & 2), 1);
}

/* The maps of every input block, [pixel][filter], to [filter][pixel]. */
static void flip_maps(const sb_conv *conv, const float *maps, size_t filters, float *flipped) {
    const size_t pixels = (size_t)conv->out_height * conv->out_width, flipped_block = (pixels + 3) / 4 * 4 * filters;
    for (int block = 0; block < conv->weight.blocks; block++)
        flip_pixels(maps + block * pixels * filters, pixels, filters, flipped + block * flipped_block);
}

static NEVER_INLINE void merge_lane_maps(const sb_conv *conv, const lanes_scratch *scratch, size_t filters, float *out) {
    if (conv->out_height * conv->out_width == 1) {
        merge_single_pixel(conv, scratch->maps, filters, 0, (size_t)conv->weight.out, out);
        return;
    }
    flip_maps(conv, scratch->maps, filters, scratch->flipped);
    merge_flipped(conv, filters, scratch->flipped, 0, (size_t)conv->weight.out, out);
}

/* The maps of all filters over all blocks. */
static void sum_lanes(const sb_conv *conv, const lanes_plan *plan, const float *in, const lanes_scratch *scratch) {
    const int taps = conv->weight.kernel_h * conv->weight.kernel_w, step = chunk_words(conv);
    uint64_t since = BEGIN_STAGE(conv);
    memset(scratch->maps, 0, (size_t)conv->weight.blocks * conv->out_height * conv->out_width * plan->registers *
                                sizeof(vfloat));
    for (int word = 0; word < plan->words; word += step) {
        const int first = word * WORD_QUADS, rest = plan->quads - first;
        const int quads = rest < step * WORD_QUADS ? rest : step * WORD_QUADS;
        build_lanes(conv, in, first, quads, scratch->sums);
        END_STAGE(conv, build, &since);
        for (int r = 0; r < plan->registers; r++)
            for (int tap = 0; tap < taps; tap++)
                look_up_tap(conv, plan, scratch, tap,
                            plan->nibbles + (((size_t)r * taps + tap) * plan->words + word) * LANES, quads, r * LANES);
        END_STAGE(conv, look_up, &since);
    }
}

static void lanes_run(const sb_conv *conv, const float *in, float *out, void *memory) {
    const lanes_plan *plan = conv->prepared;
    lanes_scratch scratch;
    carve_lanes_scratch(conv, memory, &scratch);
    sum_lanes(conv, plan, in, &scratch);
    uint64_t since = BEGIN_STAGE(conv);
    merge_lane_maps(conv, &scratch, (size_t)plan->registers * LANES, out);
    END_STAGE(conv, merge, &since);
    apply_rest(conv, out);
}

static const sb_conv_kernel lanes_kernel = {
    .name = "lanes", .cost = lanes_cost, .prepared_size = lanes_prepared_size, .prepare = lanes_prepare,
    .scratch_size = lanes_scratch_size, .run = lanes_run,
};

#endif
