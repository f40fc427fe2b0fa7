/* Dense convolutions, and stacks of real-valued filters, over few pixels: filters in the lanes, where registers of pixels
 * would stay half empty.
 *
 * A *panel* is several registers of filters. A number of the input, in all lanes, meets the weights of a panel, which several
 * pixels share:
 *
 *   sums[output pixel][filter]  +=  weights[tap][channel][filter] * in[channel][output pixel moved by the tap]
 *
 * Taps that meet padding are never visited. Sums of a panel stay in the first-level cache from tap to tap, and so do the weights
 * of some channels while the pixels of a tap take turns.
 *
 * Prepared weights are fp32, [bank][panel][tap][channel][filter], zeros behind the last filter. */

enum {
    PANEL_REGISTERS = LANES == 16 ? 4 : 2,
    PANEL_TILE = 6,     /* pixels that share the loads of weights */
    PANEL_PIXELS = 256,      /* of the output, at most */
    FULL_PANEL_PIXELS = 128, /* with more than these, two registers are enough for the first-level cache */
    PANEL_CHANNELS = 64,
};

typedef struct {
    float *sums;    /* [pixel][filter] of a panel, and three more pixels that are read but not used */
    float *maps;    /* of a single pixel, [input block][filter] */
    float *flipped; /* [input block][filter][pixel] */
} panel_scratch;

/* A tile of pixels under one tap, for some channels of the input. */
typedef struct {
    const float *weights, *in[PANEL_TILE];
    float *sums[PANEL_TILE];
    int channels;
    size_t plane; /* numbers of the input from one channel to the next */
} panel_job;

static int panel_filter_registers(const sb_conv *conv) { return (filters_per_group(conv) + LANES - 1) / LANES; }

static int most_panel_registers(const sb_conv *conv) {
    return conv->out_height * conv->out_width > FULL_PANEL_PIXELS ? 2 : PANEL_REGISTERS;
}

/* Registers of the next panel, where so many are left. */
static int next_panel(const sb_conv *conv, int left) {
    const int most = most_panel_registers(conv);
    return left >= most ? most : left >= 2 ? 2 : 1;
}

static size_t panel_filter_floats(const sb_conv *conv) {
    return (size_t)conv->weight.depth * conv->weight.kernel_h * conv->weight.kernel_w;
}

/* How many positions of a line of outputs have the tap at `offset` inside the input, and the first of them. */
static int positions_inside(int size, int stride, int offset, int outputs, int *first) {
    const int begin = offset < 0 ? (stride - 1 - offset) / stride : 0;
    const int end = offset >= size ? 0 : (size - 1 - offset) / stride + 1;
    *first = begin;
    return end < outputs ? end - begin : outputs - begin;
}

typedef struct {
    int rows, columns; /* of output pixels, none if one of them is not positive */
    int y, x;          /* the first one */
    int in_y, in_x;    /* what it reads */
} panel_tap;

static panel_tap find_panel_tap(const sb_conv *conv, int tap) {
    panel_tap found;
    const int offset_y = tap_y(conv, tap), offset_x = tap_x(conv, tap);
    found.rows = positions_inside(conv->height, conv->stride_h, offset_y, conv->out_height, &found.y);
    found.columns = positions_inside(conv->width, conv->stride_w, offset_x, conv->out_width, &found.x);
    found.in_y = found.y * conv->stride_h + offset_y;
    found.in_x = found.x * conv->stride_w + offset_x;
    return found;
}

static double fma_lanes_cost(const sb_conv *conv) {
    const sb_weight *weight = &conv->weight;
    const int taps = weight->kernel_h * weight->kernel_w;
    const int64_t pixels = (int64_t)conv->out_height * conv->out_width;
    if (!weight->values || weight->binary_input || pixels > PANEL_PIXELS || (pixels == 1 && taps == 1))
        return -1;
    double pairs = 0, tiles = 0;
    for (int tap = 0; tap < taps; tap++) {
        const panel_tap found = find_panel_tap(conv, tap);
        if (found.rows > 0 && found.columns > 0) {
            pairs += (double)found.rows * found.columns;
            tiles += (found.rows * found.columns + PANEL_TILE - 1) / PANEL_TILE;
        }
    }
    const double chunks = (weight->depth + PANEL_CHANNELS - 1) / PANEL_CHANNELS;
    double multiply = 0;
    for (int left = panel_filter_registers(conv), panel; left > 0; left -= panel) {
        panel = next_panel(conv, left);
        const double products = pairs * (panel * 0.52 + (panel < 4 ? 0.1 : 0)), waits = tiles * 4; /* every sum waits for the one before */
        multiply += weight->depth * (products > waits ? products : waits) + chunks * (tiles * 12 + pairs * panel) + taps * 20;
    }
    const double write = (double)weight->out / conv->groups * ((weight->blocks * 0.35 + 1) * (double)pixels + 8);
    return conv->groups * (weight->blocks * multiply + write) / CYCLES_PER_NANOSECOND;
}

static size_t fma_lanes_prepared_size(const sb_conv *conv) {
    const size_t banks = conv->weight.index ? 1 : (size_t)conv->groups;
    return banks * panel_filter_registers(conv) * LANES * panel_filter_floats(conv) * sizeof(float);
}

static void fma_lanes_prepare(const sb_conv *conv, void *prepared) {
    const sb_weight *weight = &conv->weight;
    const size_t taps = (size_t)weight->kernel_h * weight->kernel_w, depth = (size_t)weight->depth;
    const int per_group = filters_per_group(conv), registers = panel_filter_registers(conv);
    float *to = prepared;
    for (int bank = 0; bank < weight->filters / per_group; bank++)
        for (int first = 0, panel; first < registers; first += panel) {
            panel = next_panel(conv, registers - first);
            const int left = per_group - first * LANES, filters = left < panel * LANES ? left : panel * LANES;
            for (int f = 0; f < filters; f++) {
                const size_t filter = (size_t)bank * per_group + first * LANES + f;
                for (size_t tap = 0; tap < taps; tap++)
                    for (size_t c = 0; c < depth; c++)
                        to[(tap * depth + c) * panel * LANES + f] =
                            sb_load_value(weight->values, weight->half, (int64_t)((filter * depth + c) * taps + tap));
            }
            to += taps * depth * panel * LANES;
        }
}

static size_t carve_panels(const sb_conv *conv, uint8_t *memory, panel_scratch *scratch) {
    const size_t pixels = (size_t)conv->out_height * conv->out_width, registers = (size_t)panel_filter_registers(conv);
    const size_t most = (size_t)most_panel_registers(conv), filters = (conv->weight.index || registers < most ? registers : most) * LANES;
    const size_t maps = (size_t)conv->weight.blocks * filters; /* filters that are not shared come a panel at a time */
    size_t used = 0;
    scratch->sums = carve(memory, &used, (pixels + 3) * PANEL_REGISTERS * sizeof(vfloat));
    scratch->maps = carve(memory, &used, maps * sizeof(float));
    scratch->flipped = carve(memory, &used, maps * ((pixels + 3) / 4 * 4) * sizeof(float));
    return used;
}

static size_t fma_lanes_scratch_size(const sb_conv *conv) {
    panel_scratch scratch;
    return carve_panels(conv, NULL, &scratch);
}

/* `registers` and `pixels` are constants of the caller. */
ALWAYS_INLINE void add_panel(const panel_job *job, const int registers, const int pixels) {
    vfloat sum[PANEL_REGISTERS * PANEL_TILE];
    const float *in[PANEL_TILE], *weights = job->weights;
    const size_t plane = job->plane, end = plane * (size_t)job->channels;
    UNROLL
    for (int p = 0; p < pixels; p++) {
        in[p] = job->in[p];
        UNROLL
        for (int r = 0; r < registers; r++)
            sum[p * registers + r] = *(const vfloat *)(job->sums[p] + r * LANES);
    }
    for (size_t at = 0; at < end; at += plane, weights += registers * LANES) {
        vfloat weight[PANEL_REGISTERS];
        UNROLL
        for (int r = 0; r < registers; r++)
            weight[r] = *(const vfloat *)(weights + r * LANES);
        UNROLL
        for (int p = 0; p < pixels; p++) {
            const vfloat number = vsplat(in[p][at]);
            UNROLL
            for (int r = 0; r < registers; r++)
                sum[p * registers + r] += weight[r] * number;
        }
    }
    UNROLL
    for (int p = 0; p < pixels; p++)
        UNROLL
        for (int r = 0; r < registers; r++)
            *(vfloat *)(job->sums[p] + r * LANES) = sum[p * registers + r];
}

#define PANEL_FUNCTION(registers, pixels)                                                                              \
    static NEVER_INLINE void PASTE(PASTE(add_panel_, registers), PASTE(x, pixels))(const panel_job *job) {             \
        add_panel(job, registers, pixels);                                                                             \
    }
#define PANEL_FUNCTIONS(registers)                                                                                     \
    PANEL_FUNCTION(registers, 1) PANEL_FUNCTION(registers, 2) PANEL_FUNCTION(registers, 3)                             \
    PANEL_FUNCTION(registers, 4) PANEL_FUNCTION(registers, 5) PANEL_FUNCTION(registers, 6)
#define PANEL_ROW(registers)                                                                                           \
    {NULL, add_panel_##registers##x1, add_panel_##registers##x2, add_panel_##registers##x3,                            \
     add_panel_##registers##x4, add_panel_##registers##x5, add_panel_##registers##x6}
PANEL_FUNCTIONS(1)
PANEL_FUNCTIONS(2)
#if LANES == 16
PANEL_FUNCTIONS(4)
#endif
static void (*const panel_functions[PANEL_REGISTERS + 1][PANEL_TILE + 1])(const panel_job *) = {
    [1] = PANEL_ROW(1), [2] = PANEL_ROW(2),
#if LANES == 16
    [4] = PANEL_ROW(4),
#endif
};
#undef PANEL_FUNCTION
#undef PANEL_FUNCTIONS
#undef PANEL_ROW

/* One tap of a panel at all pixels that have it inside the input. */
static void sum_panel_tap(const sb_conv *conv, const float *in, const float *weights, int tap, int registers, float *sums) {
    const size_t plane = (size_t)conv->height * conv->width;
    const int depth = conv->weight.depth;
    const panel_tap found = find_panel_tap(conv, tap);
    int32_t from[PANEL_PIXELS], to[PANEL_PIXELS], pixels = 0;
    for (int y = 0; y < found.rows; y++)
        for (int x = 0; x < found.columns; x++, pixels++) {
            from[pixels] = (found.in_y + y * conv->stride_h) * conv->width + found.in_x + x * conv->stride_w;
            to[pixels] = ((found.y + y) * conv->out_width + found.x + x) * registers * LANES;
        }
    for (int channel = 0; channel < depth; channel += PANEL_CHANNELS) {
        panel_job job = {
            .weights = weights + (size_t)channel * registers * LANES, .plane = plane,
            .channels = depth - channel < PANEL_CHANNELS ? depth - channel : PANEL_CHANNELS,
        };
        for (int first = 0, count; first < pixels; first += count) {
            const int left = pixels - first, tiles = (left + PANEL_TILE - 1) / PANEL_TILE;
            count = (left + tiles - 1) / tiles; /* four and four rather than six and two */
            for (int p = 0; p < count; p++) {
                job.in[p] = in + (size_t)channel * plane + from[first + p];
                job.sums[p] = sums + to[first + p];
            }
            panel_functions[registers][count](&job);
        }
    }
}

/* A panel of a bank over one block of the input, from register `first` of its filters on. */
static void sum_panel(const sb_conv *conv, const float *in, const float *weights, int first, int registers, float *sums) {
    const int taps = conv->weight.kernel_h * conv->weight.kernel_w;
    const size_t tap_floats = (size_t)conv->weight.depth * registers * LANES;
    memset(sums, 0, (size_t)conv->out_height * conv->out_width * registers * sizeof(vfloat));
    weights += first * LANES * panel_filter_floats(conv);
    for (int tap = 0; tap < taps; tap++, weights += tap_floats)
        sum_panel_tap(conv, in, weights, tap, registers, sums);
}

/* The maps of `registers` of filters from `first` on go to the output channels `begin` .. `end` - 1. */
static void run_panels(const sb_conv *conv, const float *in, const float *weights, int first, int registers, size_t begin,
                       size_t end, const panel_scratch *scratch, float *out) {
    const size_t pixels = (size_t)conv->out_height * conv->out_width, filters = (size_t)registers * LANES;
    const size_t block_floats = (size_t)conv->weight.depth * conv->height * conv->width, map_floats = (pixels + 3) / 4 * 4;
    uint64_t since = BEGIN_STAGE(conv);
    for (int block = 0; block < conv->weight.blocks; block++)
        for (int done = 0, panel; done < registers; done += panel) {
            const size_t at = block * filters + (size_t)done * LANES;
            float *sums = pixels == 1 ? scratch->maps + at : scratch->sums;
            panel = next_panel(conv, registers - done);
            sum_panel(conv, in + block * block_floats, weights, first + done, panel, sums);
            if (pixels > 1)
                flip_pixels(sums, pixels, (size_t)panel * LANES, scratch->flipped + at * map_floats);
        }
    END_STAGE(conv, look_up, &since);
    if (pixels == 1)
        merge_single_pixel(conv, scratch->maps, filters, begin, end, out);
    else
        merge_flipped(conv, filters, scratch->flipped, begin, end, out);
    END_STAGE(conv, merge, &since);
}

/* A piece is a panel of filters that are not shared, or all of a group. */
static int panels_of_group(const sb_conv *conv) {
    const int most = most_panel_registers(conv), registers = panel_filter_registers(conv), rest = registers % most;
    return conv->weight.index ? 1 : registers / most + rest / 2 + rest % 2;
}

static int32_t fma_lanes_pieces(const sb_conv *conv) { return conv->groups * panels_of_group(conv); }

static void fma_lanes_run_pieces(const sb_conv *conv, int32_t first, int32_t last, const float *in, float *out, void *memory) {
    const sb_weight *weight = &conv->weight;
    const int panels = panels_of_group(conv), registers = panel_filter_registers(conv);
    const size_t group_floats = (size_t)weight->blocks * weight->depth * conv->height * conv->width;
    const size_t group_weights = weight->index ? 0 : (size_t)registers * LANES * panel_filter_floats(conv);
    const size_t per_group = (size_t)(weight->out / conv->groups);
    panel_scratch scratch;
    carve_panels(conv, memory, &scratch);
    for (int32_t piece = first; piece < last; piece++) {
        const int group = piece / panels;
        const float *group_in = in + group * group_floats, *weights = (const float *)conv->prepared + group * group_weights;
        size_t begin = group * per_group, end = begin + per_group;
        int from = 0, count = registers;
        if (!weight->index) {
            for (int panel = 0; panel < piece % panels; panel++)
                from += next_panel(conv, registers - from);
            count = next_panel(conv, registers - from);
            begin += (size_t)from * LANES;
            end = begin + (size_t)count * LANES < end ? begin + (size_t)count * LANES : end;
        }
        run_panels(conv, group_in, weights, from, count, begin, end, &scratch, out);
    }
}

static void fma_lanes_run(const sb_conv *conv, const float *in, float *out, void *memory) {
    fma_lanes_run_pieces(conv, 0, fma_lanes_pieces(conv), in, out, memory);
    apply_rest(conv, out);
}

static const sb_conv_kernel fma_lanes_kernel = {
    .name = "fma lanes", .cost = fma_lanes_cost, .prepared_size = fma_lanes_prepared_size, .prepare = fma_lanes_prepare,
    .scratch_size = fma_lanes_scratch_size, .run = fma_lanes_run, .adds_in_place = true, .pieces = fma_lanes_pieces,
    .run_pieces = fma_lanes_run_pieces,
};
