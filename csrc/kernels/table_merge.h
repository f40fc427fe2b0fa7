/* The merge of the table kernel for pieces of WIDTH pixels: a register, or one segment of a shared register.
 *
 *     out[t] = limit(added[t] + shift[t] + scale[t] · Σ_i ratio[t, i] · map of filter index[t, i] over block i)
 *
 * Included by table_impl.h once per WIDTH. */
#define FLOATS PASTE(float, WIDTH)
#define LOAD PASTE(load, WIDTH)
#define LOAD_PART PASTE(load_part, WIDTH)
#define SPLAT PASTE(splat, WIDTH)
#define AT_LEAST PASTE(at_least, WIDTH)
#define AT_MOST PASTE(at_most, WIDTH)

/* `count` pieces of every channel of a group, from piece `first` on; successive pieces of a map are LANES apart. */
ALWAYS_INLINE void PASTE(merge_pieces, WIDTH)(const merge_job *job, int first, const int count, const bool whole) {
    const sb_conv *conv = job->conv;
    const sb_weight *weight = &conv->weight;
    const size_t plane_size = (size_t)conv->out_height * conv->out_width, k = (size_t)weight->blocks;
    const limits range = limits_of(conv->then);
    for (size_t t = job->begin; t < job->end; t++) {
        const uint32_t *offset = job->map_offset + t * k;
        const float *ratio = weight->ratio ? weight->ratio + t * k : NULL;
        FLOATS sum[8];
        UNROLL
        for (int p = 0; p < count; p++)
            sum[p] = (FLOATS){0};
        for (size_t i = 0; i < k; i++) {
            const float *from = job->map[i] + offset[i] + (size_t)first * LANES;
            const FLOATS factor = SPLAT(ratio ? ratio[i] : 1.0f);
            UNROLL
            for (int p = 0; p < count; p++)
                sum[p] += factor * LOAD(from + (size_t)p * LANES);
        }
        const FLOATS scale = SPLAT(weight->scale ? weight->scale[t] : 1.0f);
        const FLOATS shift = SPLAT(weight->shift ? weight->shift[t] : 0.0f);
        float *plane = job->out + t * plane_size;
        const float *added = conv->added ? conv->added + t * plane_size : NULL;
        UNROLL
        for (int p = 0; p < count; p++) {
            const table_piece *at = &job->pieces[first + p];
            FLOATS v = sum[p] * scale + shift;
            if (added)
                v += whole ? LOAD(added + at->offset) : LOAD_PART(added + at->offset, at->begin, at->end);
            sum[p] = AT_MOST(AT_LEAST(v, SPLAT(range.low)), SPLAT(range.high));
        }
        UNROLL /* not before all have been loaded: a load waits for a store of some lanes that it overlaps */
        for (int p = 0; p < count; p++) {
            const table_piece *at = &job->pieces[first + p];
            if (whole)
                PASTE(store, WIDTH)(plane + at->offset, sum[p]);
            else
                PASTE(store_part, WIDTH)(plane + at->offset, sum[p], at->begin, at->end);
        }
    }
}

/* As many pieces at a time as there are registers for: the more, the longer are the runs of memory that are written. */
static NEVER_INLINE void PASTE(merge_region, WIDTH)(const merge_job *job) {
    int first = 0;
#define MERGE(count) \
    for (; first + (count) <= job->pieces_count; first += (count)) \
        if (job->whole) \
            PASTE(merge_pieces, WIDTH)(job, first, count, true); \
        else \
            PASTE(merge_pieces, WIDTH)(job, first, count, false);
#if WIDTH >= 8
    MERGE(8)
#endif
    MERGE(4)
    MERGE(2)
    MERGE(1)
#undef MERGE
}

#undef FLOATS
#undef LOAD
#undef LOAD_PART
#undef SPLAT
#undef AT_LEAST
#undef AT_MOST
#undef WIDTH
