/* The merge of layers on levels for pieces of WIDTH pixels, in the order and with the roundings of docs/format.md: no
 * product may fuse with a sum.
 *
 * Included by levels_table.h once per WIDTH. */
#define FLOATS PASTE(float, WIDTH)
#define LOAD PASTE(load, WIDTH)
#define SPLAT PASTE(splat, WIDTH)
#define AT_LEAST PASTE(at_least, WIDTH)
#define AT_MOST PASTE(at_most, WIDTH)

/* Levels of a part of a piece: the whole goes beside it first. */
ALWAYS_INLINE void PASTE(store_level_part, WIDTH)(int8_t *p, FLOATS v, level_range to, int begin, int end) {
    int8_t levels[WIDTH];
    PASTE(store_levels, WIDTH)(levels, v, to);
    for (int lane = begin; lane < end; lane++)
        p[lane] = levels[lane];
}

/* `count` pieces of every channel of a group, from piece `first` on. */
ALWAYS_INLINE void PASTE(merge_levels, WIDTH)(const level_merge_job *job, int first, const int count, const bool whole,
                                              const bool ratios) {
    const sb_conv *conv = job->conv;
    const sb_weight *weight = &conv->weight;
    const size_t plane_size = (size_t)conv->out_height * conv->out_width, k = (size_t)weight->blocks;
    const limits range = limits_of(conv->then);
    const level_range to = range_of(conv->out_levels);
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
            const level_piece *at = &job->pieces[first + p];
            FLOATS v = sum[p] * scale;
            KEEP(v);
            v = AT_MOST(AT_LEAST(v + shift, SPLAT(range.low)), SPLAT(range.high));
            KEEP(v);
            const size_t place = t * plane_size + at->offset;
            if (job->out && whole)
                PASTE(store, WIDTH)(job->out + place, v);
            else if (job->out)
                PASTE(store_part, WIDTH)(job->out + place, v, at->begin, at->end);
            if (conv->level_out && whole)
                PASTE(store_levels, WIDTH)(conv->level_out + place, v, to);
            else if (conv->level_out)
                PASTE(store_level_part, WIDTH)(conv->level_out + place, v, to, at->begin, at->end);
        }
    }
}

static NEVER_INLINE void PASTE(merge_level_region, WIDTH)(const level_merge_job *job) {
    const bool ratios = job->conv->weight.ratio != NULL;
    for (int first = 0; first < job->pieces_count;) {
        const int left = job->pieces_count - first, count = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        if (count == 4 && job->whole && ratios)
            PASTE(merge_levels, WIDTH)(job, first, 4, true, true);
        else if (count == 4 && job->whole)
            PASTE(merge_levels, WIDTH)(job, first, 4, true, false);
        else if (count == 4)
            PASTE(merge_levels, WIDTH)(job, first, 4, false, ratios);
        else if (count == 2)
            PASTE(merge_levels, WIDTH)(job, first, 2, job->whole, ratios);
        else
            PASTE(merge_levels, WIDTH)(job, first, 1, job->whole, ratios);
        first += count;
    }
}

#undef FLOATS
#undef LOAD
#undef SPLAT
#undef AT_LEAST
#undef AT_MOST
#undef WIDTH
