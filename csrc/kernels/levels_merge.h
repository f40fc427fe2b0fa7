/* The merge of layers on levels, WIDTH pixels at a time, in the order and with the roundings of docs/format.md: no product
 * may fuse with a sum.
 *
 * Included by levels_table.h once per WIDTH. */
#define FLOATS PASTE(float, WIDTH)
#define LOAD PASTE(load, WIDTH)
#define STORE PASTE(store, WIDTH)
#define SPLAT PASTE(splat, WIDTH)
#define STORE_LEVELS PASTE(store_levels, WIDTH)

/* What is added to a piece that goes to several places. */
ALWAYS_INLINE FLOATS PASTE(gather_piece, WIDTH)(const level_merge_job *job, const level_piece *piece, const float *plane) {
#if WIDTH == 16
    if (in_halves(piece))
        return __builtin_shufflevector(load8(plane + piece->offset[0]), load8(plane + piece->offset[1]), 0, 1, 2, 3, 4, 5,
                                       6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
    float lanes[WIDTH] = {0};
    for (int part = 0; part < piece->parts; part++)
        copy_part(lanes + part * job->part_width, plane + piece->offset[part], piece->begin[part], piece->end[part],
                  WIDTH);
    return LOAD(lanes);
}

ALWAYS_INLINE void PASTE(scatter_piece, WIDTH)(const level_merge_job *job, const level_piece *piece, FLOATS v, float *plane) {
#if WIDTH == 16
    if (in_halves(piece)) {
        store8(plane + piece->offset[0], __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7));
        store8(plane + piece->offset[1], __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
        return;
    }
#endif
    float lanes[WIDTH];
    STORE(lanes, v);
    for (int part = 0; part < piece->parts; part++)
        copy_part(plane + piece->offset[part], lanes + part * job->part_width, piece->begin[part], piece->end[part],
                  WIDTH);
}

ALWAYS_INLINE void PASTE(scatter_levels, WIDTH)(const level_merge_job *job, const level_piece *piece, FLOATS v,
                                                level_range to, int8_t *plane) {
    int8_t lanes[WIDTH];
    STORE_LEVELS(lanes, v, to);
    const int8_t *from = lanes;
    for (int part = 0; part < piece->parts; part++, from += job->part_width) {
        int8_t *target = plane + piece->offset[part];
        const int begin = piece->begin[part], end = piece->end[part];
        if (WIDTH >= 8 && end - begin == 8)
            memcpy(target + begin, from + begin, 8);
        else if (end - begin == 4)
            memcpy(target + begin, from + begin, 4);
        else
            for (int lane = begin; lane < end; lane++)
                target[lane] = from[lane];
    }
}

/* `count` pieces of every channel of a group, from piece `first` on; `straight`: each is one run of the output. */
ALWAYS_INLINE void PASTE(merge_levels, WIDTH)(const level_merge_job *job, int first, const int count,
                                              const bool straight, const bool ratios) {
    const sb_conv *conv = job->conv;
    const sb_weight *weight = &conv->weight;
    const size_t plane_size = (size_t)conv->out_height * conv->out_width, k = (size_t)weight->blocks;
    const limits range = limits_of(conv->then);
    level_range to = range_of(conv->out_levels);
    const bool folds = !job->out && range.high == INFINITY; /* rounding is monotonic: the lower limit may come behind it */
    if (folds && range.low * to.factor > to.lowest)
        to.lowest = range.low * to.factor;
    for (size_t t = job->begin; t < job->end; t++) {
        const uint32_t *offset = job->map_offset + t * k;
        const float *ratio = weight->ratio ? weight->ratio + t * k : NULL;
        FLOATS sum[4];
        UNROLL
        for (int p = 0; p < count; p++)
            sum[p] = LOAD(job->map[0] + offset[0] + job->pieces[first + p].map);
        for (size_t i = 1; i < k; i++) {
            const float *from = job->map[i] + offset[i];
            UNROLL
            for (int p = 0; p < count; p++) {
                FLOATS term = LOAD(from + job->pieces[first + p].map);
                if (ratios) {
                    term *= SPLAT(ratio[i]);
                    KEEP(term);
                }
                sum[p] += term;
            }
        }
        const FLOATS scale = SPLAT(weight->scale[t]), shift = SPLAT(weight->shift ? weight->shift[t] : 0.0f);
        UNROLL
        for (int p = 0; p < count; p++) {
            const level_piece *piece = &job->pieces[first + p];
            FLOATS v = sum[p] * scale;
            KEEP(v);
            v += shift;
            if (conv->added) {
                const float *added = conv->added + t * plane_size;
                v += straight ? LOAD(added + piece->offset[0]) : PASTE(gather_piece, WIDTH)(job, piece, added);
            }
            if (!folds)
                v = PASTE(at_most, WIDTH)(PASTE(at_least, WIDTH)(v, SPLAT(range.low)), SPLAT(range.high));
            KEEP(v);
            if (job->out && straight)
                STORE(job->out + t * plane_size + piece->offset[0], v);
            else if (job->out)
                PASTE(scatter_piece, WIDTH)(job, piece, v, job->out + t * plane_size);
            if (conv->level_out && straight)
                STORE_LEVELS(conv->level_out + t * plane_size + piece->offset[0], v, to);
            else if (conv->level_out)
                PASTE(scatter_levels, WIDTH)(job, piece, v, to, conv->level_out + t * plane_size);
        }
    }
}

static NEVER_INLINE void PASTE(merge_level_pieces, WIDTH)(const level_merge_job *job) {
    const bool ratios = job->conv->weight.ratio != NULL;
    for (int first = 0; first < job->pieces_count;) {
        const int left = job->pieces_count - first, count = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        if (!job->straight && count == 4)
            PASTE(merge_levels, WIDTH)(job, first, 4, false, ratios);
        else if (!job->straight && count == 2)
            PASTE(merge_levels, WIDTH)(job, first, 2, false, ratios);
        else if (!job->straight)
            PASTE(merge_levels, WIDTH)(job, first, 1, false, ratios);
        else if (count == 4 && ratios)
            PASTE(merge_levels, WIDTH)(job, first, 4, true, true);
        else if (count == 4)
            PASTE(merge_levels, WIDTH)(job, first, 4, true, false);
        else if (count == 2)
            PASTE(merge_levels, WIDTH)(job, first, 2, true, ratios);
        else
            PASTE(merge_levels, WIDTH)(job, first, 1, true, ratios);
        first += count;
    }
}

#undef FLOATS
#undef LOAD
#undef STORE
#undef SPLAT
#undef STORE_LEVELS
#undef WIDTH
