/* Convolutions with real-valued filters on fused multiply-adds, pixels in the lanes.
 *
 * The input of a group is staged for a band of output rows: padding becomes zeros, and a stride splits it into
 * planes (row mod stride, column mod stride), so that every tap is one offset from an output pixel. All planes share
 * their pitch:
 *
 *   plane     0 a b c d 0     output pixel (y, x) at y·pitch + x
 *             0 e f g h 0     tap (oy, ox) of it at + oy·pitch + ox, whatever the pixel
 *
 * Wide rows are cut into registers one by one. Narrow ones would leave lanes empty: there, registers run on over
 * the row ends, and the few pixels in between are computed for nothing.
 *
 * Three kernels share this: "fma" multiplies every register with several filters, from weights unpacked once; "direct"
 * unpacks one filter at a time, and serves convolutions of few channels per filter, with any weight; "depthwise" stages
 * one channel at a time.
 */

/* Part of a register that goes to one row of the output. */
typedef struct {
    int32_t lane, count;
    int32_t pixel; /* of the output plane */
} flat_part;

typedef struct {
    int32_t pixel; /* of the staged planes */
    int32_t first_part, parts;
    bool whole;    /* one part has all lanes */
} flat_vector;

typedef struct {
    int y_low, x_low;               /* smallest offsets of a tap */
    int pitch, planes, band_rows;   /* band_rows: output rows per band */
    int staged_rows, plane_floats;
    int channels;                   /* of a group */
    bool in_place;                  /* the input itself serves as the staged planes */
    bool by_row;                    /* registers do not run on over row ends */
    int row_step;                   /* pixels of the output from one row of the plan to the next */
    int max_vectors, max_parts;
} flat_plan;

typedef struct {
    float *staged;       /* [channel][plane][row][pitch] */
    int32_t *tap_offset; /* from a pixel to what each tap reads */
    flat_vector *vectors;
    flat_part *parts;
    int vectors_count;
} flat_scratch;

enum {
    FLAT_REGISTERS = LANES == 16 ? 4 : 2,  /* of pixels */
    FLAT_FILTERS = LANES == 4 ? 4 : 6,     /* that share their loads */
    FLAT_BAND_BYTES = 256 * 1024,          /* of staged input */
};

static int floor_divide(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

static int tap_y(const sb_conv *conv, int tap) { return tap / conv->weight.kernel_w * conv->dilation_h - conv->pad_top; }
static int tap_x(const sb_conv *conv, int tap) { return tap % conv->weight.kernel_w * conv->dilation_w - conv->pad_left; }

/* `channels`: planes of a group that are staged, floats or other words of 32 bits. `rows`: of the output, at most in a band. */
static flat_plan plan_flat(const sb_conv *conv, int channels, int rows) {
    const int taps = conv->weight.kernel_h * conv->weight.kernel_w;
    flat_plan plan = {
        .y_low = floor_divide(tap_y(conv, 0), conv->stride_h),
        .x_low = floor_divide(tap_x(conv, 0), conv->stride_w),
        .channels = channels,
        .planes = conv->stride_h * conv->stride_w,
        .row_step = conv->out_width,
    };
    const int y_span = floor_divide(tap_y(conv, taps - 1), conv->stride_h) - plan.y_low;
    const int x_span = floor_divide(tap_x(conv, taps - 1), conv->stride_w) - plan.x_low;
    const int per_row = (conv->out_width + LANES - 1) / LANES;
    plan.pitch = conv->out_width + x_span;
    plan.in_place = taps == 1 && plan.planes == 1 && !conv->pad_top && !conv->pad_left &&
                    conv->out_height == conv->height && conv->out_width == conv->width &&
                    conv->height * conv->width >= LANES;
    plan.by_row = !plan.in_place && plan.pitch != conv->out_width && per_row * LANES <= plan.pitch * 5 / 4;
    plan.band_rows = conv->out_height;
    if (!plan.in_place) {
        const double row_bytes = (double)plan.channels * plan.planes * plan.pitch * sizeof(float);
        const double staged = FLAT_BAND_BYTES / row_bytes - y_span;
        if (rows < plan.band_rows)
            plan.band_rows = rows;
        if (staged < plan.band_rows)
            plan.band_rows = staged < 1 ? 1 : (int)staged;
    }
    plan.staged_rows = plan.band_rows + y_span;
    plan.plane_floats = plan.staged_rows * plan.pitch + FLAT_REGISTERS * LANES;
    if (plan.in_place)
        plan.plane_floats = conv->height * conv->width;
    plan.max_vectors = plan.by_row ? plan.band_rows * per_row : (plan.band_rows * plan.pitch + LANES - 1) / LANES;
    /* A register that runs on is split by each row end; the overlapping one of an input in place once more. */
    plan.max_parts = plan.max_vectors + (plan.by_row ? 0 : plan.band_rows) + (plan.in_place ? LANES : 0);
    return plan;
}

/* Of the planes of a channel, as far as dilation does not change it. */
static double planes_read(const sb_conv *conv) {
    const sb_weight *weight = &conv->weight;
    return (double)(conv->stride_h < weight->kernel_h ? conv->stride_h : weight->kernel_h) *
           (conv->stride_w < weight->kernel_w ? conv->stride_w : weight->kernel_w);
}

/* Cycles for a band of all groups; strides beyond 2 take pixel by pixel. */
static double stage_cost(const sb_conv *conv, const flat_plan *plan) {
    const double row = conv->stride_w > 2 && conv->stride_w != 4 ? plan->pitch * 1.5 : plan->pitch / 8.0;
    return (double)conv->channels * planes_read(conv) * plan->staged_rows * (row + 10);
}

static size_t carve_flat_scratch(const sb_conv *conv, const flat_plan *plan, uint8_t *memory, size_t used,
                                 flat_scratch *scratch) {
    const size_t staged = plan->in_place ? 0 : (size_t)plan->channels * plan->planes * plan->plane_floats;
    const size_t taps = (size_t)conv->weight.kernel_h * conv->weight.kernel_w;
    scratch->staged = carve(memory, &used, staged * sizeof(float));
    scratch->tap_offset = carve(memory, &used, taps * sizeof *scratch->tap_offset);
    /* Tiles take FLAT_REGISTERS vectors; the last one repeats a vector where it lacks some. */
    scratch->vectors = carve(memory, &used, (size_t)(plan->max_vectors + FLAT_REGISTERS) * sizeof *scratch->vectors);
    scratch->parts = carve(memory, &used, (size_t)plan->max_parts * sizeof *scratch->parts);
    return used;
}

static void find_tap_offsets(const sb_conv *conv, const flat_plan *plan, int32_t *tap_offset) {
    const int taps = conv->weight.kernel_h * conv->weight.kernel_w;
    for (int tap = 0; tap < taps; tap++) {
        const int y = floor_divide(tap_y(conv, tap), conv->stride_h), x = floor_divide(tap_x(conv, tap), conv->stride_w);
        const int y_phase = tap_y(conv, tap) - y * conv->stride_h, x_phase = tap_x(conv, tap) - x * conv->stride_w;
        tap_offset[tap] = (y_phase * conv->stride_w + x_phase) * plan->plane_floats + (y - plan->y_low) * plan->pitch +
                          x - plan->x_low;
    }
}

/* Rows are short: a call of memcpy would cost more than the copy. The last register of a longer row overlaps the one before. */
ALWAYS_INLINE void copy_row(float *to, const float *from, int count) {
    int x = 0;
    for (; x + LANES <= count; x += LANES)
        vstore(to + x, vload(from + x));
    if (x < count && count >= LANES)
        vstore(to + count - LANES, vload(from + count - LANES));
    else if (x < count)
        vstore_part(to, vload_part(from, 0, count), 0, count);
}

ALWAYS_INLINE void copy_strided(float *to, const float *from, int count, int stride) {
    int x = 0;
    for (; stride == 2 && x + LANES <= count; x += LANES) /* 2·LANES − 1 floats are certain to exist */
        vstore(to + x, even_lanes(vload(from + 2 * x), vload_part(from + 2 * x + LANES, 0, LANES - 1)));
    for (; stride == 4 && x + LANES <= count; x += LANES) /* and here 4·LANES − 3 */
        vstore(to + x, even_lanes(even_lanes(vload(from + 4 * x), vload(from + 4 * x + LANES)),
                                  even_lanes(vload(from + 4 * x + 2 * LANES),
                                             vload_part(from + 4 * x + 3 * LANES, 0, LANES - 3))));
    if (stride == 2 && x < count) {
        const int left = 2 * (count - x) - 1, low = left < LANES ? left : LANES;
        const vfloat high = vload_part(from + 2 * x + low, 0, left - low); /* zero lanes where all are in the low ones */
        vstore_part(to + x, even_lanes(vload_part(from + 2 * x, 0, low), high), 0, count - x);
        return;
    }
    for (; x < count; x++)
        to[x] = from[(ptrdiff_t)x * stride];
}

/* One row of a plane: input pixels first, first + stride, …, zeros where there are none. */
static void stage_row(const sb_conv *conv, const float *channel, int y, int first, int pitch, float *row) {
    if (y < 0 || y >= conv->height) {
        memset(row, 0, (size_t)pitch * sizeof(float));
        return;
    }
    const float *from = channel + (ptrdiff_t)y * conv->width;
    const int stride = conv->stride_w;
    int begin = first < 0 ? (-first + stride - 1) / stride : 0;
    int end = first >= conv->width ? 0 : (conv->width - 1 - first) / stride + 1;
    begin = begin < pitch ? begin : pitch;
    end = end < begin ? begin : end < pitch ? end : pitch;
    for (int x = 0; x < begin; x++)
        row[x] = 0;
    if (stride == 1)
        copy_row(row + begin, from + first + begin, end - begin);
    else
        copy_strided(row + begin, from + first + begin * stride, end - begin, stride);
    for (int x = end; x < pitch; x++)
        row[x] = 0;
}

/* Does any of `taps` along one dimension read this phase of it? */
static bool reads_phase(int taps, int dilation, int pad, int stride, int phase) {
    bool reads = false;
    for (int tap = 0; tap < taps; tap++) {
        const int place = tap * dilation - pad;
        reads = reads || place - floor_divide(place, stride) * stride == phase;
    }
    return reads;
}

static bool reads_row_phase(const sb_conv *conv, int phase) {
    return reads_phase(conv->weight.kernel_h, conv->dilation_h, conv->pad_top, conv->stride_h, phase);
}

static bool reads_column_phase(const sb_conv *conv, int phase) {
    return reads_phase(conv->weight.kernel_w, conv->dilation_w, conv->pad_left, conv->stride_w, phase);
}

static NEVER_INLINE void stage_band(const sb_conv *conv, const flat_plan *plan, const float *in, int y0,
                                    float *staged) {
    bool reads_rows[SB_FAST_STRIDE], reads_columns[SB_FAST_STRIDE];
    for (int phase = 0; phase < conv->stride_h; phase++)
        reads_rows[phase] = conv->stride_h == 1 || reads_row_phase(conv, phase);
    for (int phase = 0; phase < conv->stride_w; phase++)
        reads_columns[phase] = conv->stride_w == 1 || reads_column_phase(conv, phase);
    for (int c = 0; c < plan->channels; c++, in += (size_t)conv->height * conv->width)
        for (int y_phase = 0; y_phase < conv->stride_h; y_phase++)
            for (int x_phase = 0; x_phase < conv->stride_w; x_phase++, staged += plan->plane_floats) {
                if (!reads_rows[y_phase] || !reads_columns[x_phase])
                    continue;
                for (int row = 0; row < plan->staged_rows; row++)
                    stage_row(conv, in, (y0 + row + plan->y_low) * conv->stride_h + y_phase,
                              plan->x_low * conv->stride_w + x_phase, plan->pitch, staged + row * plan->pitch);
            }
}

/* Adds the register that starts at a pixel of row y, split where rows end, unless the next one follows in the output too. Lanes
 * before `lane` are not output. */
static void add_vector(const sb_conv *conv, const flat_plan *plan, int y0, int rows, int pixel, int lane,
                       flat_scratch *scratch, int *parts) {
    const bool runs_on = plan->pitch == conv->out_width && plan->row_step == plan->pitch;
    flat_vector *vector = &scratch->vectors[scratch->vectors_count++];
    *vector = (flat_vector){.pixel = pixel, .first_part = *parts};
    while (lane < LANES) {
        const int row = (pixel + lane) / plan->pitch, x = (pixel + lane) % plan->pitch;
        const int rest = (runs_on ? (rows - row) * plan->pitch : conv->out_width) - x;
        int count = LANES - lane;
        if (row >= rows)
            break;
        if (x < conv->out_width) {
            if (count > rest)
                count = rest;
            scratch->parts[(*parts)++] = (flat_part){lane, count, (y0 + row) * plan->row_step + x};
            vector->parts++;
        }
        lane += x < conv->out_width ? count : plan->pitch - x;
        if (plan->by_row)
            break;
    }
    vector->whole = vector->parts == 1 && scratch->parts[vector->first_part].count == LANES;
}

static void list_vectors(const sb_conv *conv, const flat_plan *plan, int y0, int rows, flat_scratch *scratch) {
    int parts = 0;
    scratch->vectors_count = 0;
    if (plan->by_row) {
        /* The last register of a row overlaps the one before, and writes the same numbers once more, unless something is added. */
        const int last = conv->added || conv->out_width < LANES ? conv->out_width : conv->out_width - LANES;
        for (int row = 0; row < rows; row++)
            for (int x = 0; x < conv->out_width; x += LANES)
                add_vector(conv, plan, y0, rows, row * plan->pitch + (x > last ? last : x), 0, scratch, &parts);
    } else {
        const int pixels = (rows - 1) * plan->pitch + conv->out_width;
        for (int pixel = 0; pixel < pixels; pixel += LANES) {
            /* Nothing is readable behind the end of an input used in place: the last register overlaps its neighbour, and
             * writes the same numbers once more, unless something is added, perhaps in place. */
            const int back = plan->in_place && pixel + LANES > pixels ? pixel + LANES - pixels : 0;
            add_vector(conv, plan, y0, rows, pixel - back, conv->added ? back : 0, scratch, &parts);
        }
    }
    for (int i = 0; i < FLAT_REGISTERS; i++) /* to fill up the last tile */
        scratch->vectors[scratch->vectors_count + i] = (flat_vector){.pixel = scratch->vectors[0].pixel};
}

/* Sums of `filters` filters at `registers` vectors; weights are [channel][tap][filter]. */
ALWAYS_INLINE void flat_tile(const flat_plan *plan, const float *staged, const int32_t *tap_offset, int taps,
                             int channels, const flat_vector *vectors, const float *weights, const int filters,
                             const int registers, vfloat *sum) {
    const size_t channel_floats = (size_t)plan->planes * plan->plane_floats;
    const float *pixel[8];
    UNROLL
    for (int r = 0; r < registers; r++)
        pixel[r] = staged + vectors[r].pixel;
    UNROLL
    for (int i = 0; i < filters * registers; i++)
        sum[i] = (vfloat){0};
    for (int c = 0; c < channels; c++) {
        for (int tap = 0; tap < taps; tap++, weights += filters) {
            const ptrdiff_t offset = (ptrdiff_t)(c * channel_floats) + tap_offset[tap];
            vfloat x[8];
            UNROLL
            for (int r = 0; r < registers; r++) {
                x[r] = vload(pixel[r] + offset);
                KEEP(x[r]);
            }
            UNROLL
            for (int f = 0; f < filters; f++) {
                const vfloat weight = vsplat(weights[f]);
                UNROLL
                for (int r = 0; r < registers; r++)
                    sum[f * registers + r] += weight * x[r];
            }
        }
    }
}

/* What follows the sums, and where they go. */
typedef struct {
    const float *scale, *shift, *added; /* NULL: none */
    limits range;
    size_t plane;       /* floats of an output channel, */
    size_t skipped;     /* and of its rows that there is no room for before the first one that is written */
    float *out;         /* NULL: levels alone */
    int8_t *levels;     /* NULL: floats alone */
    level_range to;
} flat_finish;

static flat_finish finish_of(const sb_conv *conv, float *out) {
    return (flat_finish){
        .scale = conv->weight.scale,
        .shift = conv->weight.shift,
        .added = conv->added,
        .range = limits_of(conv->then),
        .plane = (size_t)(conv->room_rows ? conv->room_rows : conv->out_height) * conv->out_width,
        .skipped = (size_t)conv->first_row * conv->out_width,
        .out = out,
        .levels = conv->level_out,
        .to = range_of(conv->out_levels),
    };
}

/* A register of which only parts are output, `first` being the first float of its channel. */
static NEVER_INLINE void write_parts(const flat_finish *finish, size_t first, const flat_part *part, int parts, vfloat v) {
    for (; parts; parts--, part++) {
        const int begin = part->lane, end = part->lane + part->count;
        const ptrdiff_t at = (ptrdiff_t)(first + part->pixel) - begin; /* of lane 0, perhaps before the output */
        vfloat sum = v;
        int8_t levels[LANES];
        if (finish->added)
            sum += vload_part(finish->added + at, begin, end);
        sum = vlimit(sum, finish->range);
        if (finish->out)
            vstore_part(finish->out + at, sum, begin, end);
        if (!finish->levels)
            continue;
        vstore_levels(levels, sum, finish->to);
        memcpy(finish->levels + at + begin, levels + begin, (size_t)part->count);
    }
}

/* Scale, shift, what is added, and limits of output channel t; and its registers to their rows, as floats, levels or both.
 * The loop works on a copy: a byte that is stored might be part of the original. */
ALWAYS_INLINE void write_vectors(const flat_finish *finish, const flat_scratch *scratch, size_t t,
                                 const flat_vector *vectors, int count, const vfloat *sum) {
    const flat_finish local = *finish;
    const size_t first = t * local.plane - local.skipped; /* may wrap around, and does so back with a pixel */
    const vfloat scale = vsplat(local.scale ? local.scale[t] : 1.0f), shift = vsplat(local.shift ? local.shift[t] : 0.0f);
    const flat_part *parts = scratch->parts;
    UNROLL
    for (int r = 0; r < FLAT_REGISTERS; r++) {
        if (r >= count)
            break;
        const flat_part *part = parts + vectors[r].first_part;
        vfloat v = sum[r] * scale + shift;
        if (!vectors[r].whole) {
            write_parts(finish, first, part, vectors[r].parts, v);
            continue;
        }
        const size_t at = first + part->pixel;
        if (local.added)
            v += vload(local.added + at);
        v = vlimit(v, local.range);
        if (local.out)
            vstore(local.out + at, v);
        if (local.levels)
            vstore_levels(local.levels + at, v, local.to);
    }
}

/* Are all lanes of `count` registers output? */
ALWAYS_INLINE bool are_whole(const flat_vector *vectors, int count) {
    bool whole = true;
    UNROLL
    for (int r = 0; r < FLAT_REGISTERS; r++)
        whole = whole && (r >= count || vectors[r].whole);
    return whole;
}

ALWAYS_INLINE bool is_whole_tile(const flat_vector *vectors, int count) {
    return count == FLAT_REGISTERS && are_whole(vectors, count);
}

/* write_vectors of `count` whole registers to which nothing is added, `channels` output channels from t on; `count` and `levels`,
 * levels alone instead of floats alone, are constants of the caller. A loop without calls and branches keeps its constants in
 * registers. */
ALWAYS_INLINE void write_tile(const flat_finish *finish, const flat_scratch *scratch, size_t t, int channels,
                              const flat_vector *vectors, const vfloat *sum, const int count, const bool levels) {
    const flat_finish local = *finish;
    size_t at[FLAT_REGISTERS];
    UNROLL
    for (int r = 0; r < count; r++)
        at[r] = t * local.plane + scratch->parts[vectors[r].first_part].pixel - local.skipped;
    for (int c = 0; c < channels; c++, sum += FLAT_REGISTERS) {
        const vfloat scale = vsplat(local.scale ? local.scale[t + c] : 1.0f);
        const vfloat shift = vsplat(local.shift ? local.shift[t + c] : 0.0f);
        UNROLL
        for (int r = 0; r < count; r++) {
            const vfloat v = vlimit(sum[r] * scale + shift, local.range);
            if (levels)
                vstore_levels(local.levels + at[r], v, local.to);
            else
                vstore(local.out + at[r], v);
            at[r] += local.plane;
        }
    }
}

ALWAYS_INLINE void write_tile_of(const flat_finish *finish, const flat_scratch *scratch, size_t t, int channels,
                                 const flat_vector *vectors, const vfloat *sum, int count, const bool levels) {
    if (count == FLAT_REGISTERS)
        write_tile(finish, scratch, t, channels, vectors, sum, FLAT_REGISTERS, levels);
    else if (count == 1)
        write_tile(finish, scratch, t, channels, vectors, sum, 1, levels);
#if LANES == 16
    else if (count == 2)
        write_tile(finish, scratch, t, channels, vectors, sum, 2, levels);
    else
        write_tile(finish, scratch, t, channels, vectors, sum, 3, levels);
#endif
}

static NEVER_INLINE void write_floats(const flat_finish *finish, const flat_scratch *scratch, size_t t, int channels,
                                      const flat_vector *vectors, const vfloat *sum, int count) {
    write_tile_of(finish, scratch, t, channels, vectors, sum, count, false);
}
static NEVER_INLINE void write_levels(const flat_finish *finish, const flat_scratch *scratch, size_t t, int channels,
                                      const flat_vector *vectors, const vfloat *sum, int count) {
    write_tile_of(finish, scratch, t, channels, vectors, sum, count, true);
}
