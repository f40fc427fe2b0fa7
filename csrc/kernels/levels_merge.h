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

#if WIDTH == 16
/* Do all fours of pieces follow each other in the output? */
ALWAYS_INLINE bool lie_in_fours(const size_t *offset, const int count) {
    bool fours = count % 4 == 0;
    UNROLL
    for (int p = 1; p < count; p++)
        fours = fours && (p % 4 == 0 || offset[p] == offset[p - 1] + WIDTH);
    return fours;
}
#endif

/* `count` pieces of every channel of a group, from piece `first` on. `straight`: each is one run of the output; `plain`: levels
 * are all that is written, and nothing is added. Whatever the loop reads is a local copy: for all that the compiler
 * knows, a byte that is stored may be part of anything in memory. */
ALWAYS_INLINE void PASTE(merge_levels, WIDTH)(const level_merge_job *job, int first, const int count,
                                              const bool straight, const bool plain) {
    const sb_conv *conv = job->conv;
    const sb_weight *weight = &conv->weight;
    const size_t plane_size = (size_t)conv->out_height * conv->out_width, k = (size_t)weight->blocks;
    const limits range = limits_of(conv->then);
    level_range to = range_of(conv->out_levels);
    const bool folds = !job->out && range.high == INFINITY; /* rounding is monotonic: the lower limit may come behind it */
    if (folds && range.low * to.factor > to.lowest)
        to.lowest = range.low * to.factor;
    const level_piece *pieces = job->pieces + first;
    ptrdiff_t at[8];
    size_t offset[8];
    UNROLL
    for (int p = 0; p < count; p++) {
        at[p] = pieces[p].map;
        offset[p] = pieces[p].offset[0];
    }
    const float *const *map = job->map, *scales = weight->scale, *shifts = weight->shift, *ratio = weight->ratio;
    const uint32_t *map_offset = job->map_offset + job->begin * k;
    const size_t end = job->end;
    const float *const all_added = plain ? NULL : conv->added;
    float *const out = plain ? NULL : job->out;
    int8_t *const level_out = conv->level_out;
#if WIDTH == 16
    const bool fours = straight && lie_in_fours(offset, count);
#endif
    for (size_t t = job->begin; t < end; t++, map_offset += k) {
        const float *from = map[0] + map_offset[0];
        FLOATS sum[8];
        UNROLL
        for (int p = 0; p < count; p++)
            sum[p] = LOAD(from + at[p]);
        for (size_t i = 1; i < k; i++) {
            from = map[i] + map_offset[i];
            const FLOATS factor = SPLAT(ratio ? ratio[t * k + i] : 1.0f); /* the product with 1 is exact */
            UNROLL
            for (int p = 0; p < count; p++) {
                FLOATS term = factor * LOAD(from + at[p]);
                KEEP(term);
                sum[p] += term;
            }
        }
        const FLOATS scale = SPLAT(scales[t]), shift = SPLAT(shifts ? shifts[t] : 0.0f);
        UNROLL
        for (int p = 0; p < count; p++) {
            FLOATS v = sum[p] * scale;
            KEEP(v);
            v += shift;
            if (all_added) {
                const float *added = all_added + t * plane_size;
                v += straight ? LOAD(added + offset[p]) : PASTE(gather_piece, WIDTH)(job, &pieces[p], added);
            }
            if (!folds)
                v = PASTE(at_most, WIDTH)(PASTE(at_least, WIDTH)(v, SPLAT(range.low)), SPLAT(range.high));
            KEEP(v);
            if (out && straight)
                STORE(out + t * plane_size + offset[p], v);
            else if (out)
                PASTE(scatter_piece, WIDTH)(job, &pieces[p], v, out + t * plane_size);
            sum[p] = v;
        }
        if (!plain && !level_out)
            continue;
        int8_t *levels = level_out + t * plane_size;
#if WIDTH == 16
        if (fours) {
            UNROLL
            for (int p = 0; p + 4 <= count; p += 4)
                store_levels64(levels + offset[p], sum + p, to);
            continue;
        }
#endif
        UNROLL
        for (int p = 0; p < count; p++)
            if (straight)
                STORE_LEVELS(levels + offset[p], sum[p], to);
            else
                PASTE(scatter_levels, WIDTH)(job, &pieces[p], sum[p], to, levels);
    }
}

/* All pieces, as many at a time as there are registers for; levels alone, which are short, gain nothing from eight. */
ALWAYS_INLINE void PASTE(merge_level_runs, WIDTH)(const level_merge_job *job, const bool straight, const bool plain) {
    int first = 0;
#if WIDTH >= 16
    for (; straight && first + 8 <= job->pieces_count; first += 8)
        PASTE(merge_levels, WIDTH)(job, first, 8, straight, plain);
#endif
    for (; first + 4 <= job->pieces_count; first += 4)
        PASTE(merge_levels, WIDTH)(job, first, 4, straight, plain);
    for (; first + 2 <= job->pieces_count; first += 2)
        PASTE(merge_levels, WIDTH)(job, first, 2, straight, plain);
    if (first < job->pieces_count)
        PASTE(merge_levels, WIDTH)(job, first, 1, straight, plain);
}

static NEVER_INLINE void PASTE(merge_level_pieces, WIDTH)(const level_merge_job *job) {
    const bool plain = job->conv->level_out && !job->out && !job->conv->added;
    if (job->straight && plain)
        PASTE(merge_level_runs, WIDTH)(job, true, true);
    else if (job->straight)
        PASTE(merge_level_runs, WIDTH)(job, true, false);
    else if (plain)
        PASTE(merge_level_runs, WIDTH)(job, false, true);
    else
        PASTE(merge_level_runs, WIDTH)(job, false, false);
}

#undef FLOATS
#undef LOAD
#undef STORE
#undef SPLAT
#undef STORE_LEVELS
#undef WIDTH
