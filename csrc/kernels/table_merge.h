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

/* `count` pieces of every channel of a group, from piece `first` on; successive pieces of a map are LANES apart. The loop has
 * local copies of pointers and pieces: for all that the compiler knows, a vector that is stored may be part of anything else. */
ALWAYS_INLINE void PASTE(merge_pieces, WIDTH)(const merge_job *job, int first, const int count, const bool whole) {
    const sb_conv *conv = job->conv;
    const sb_weight *weight = &conv->weight;
    const size_t plane_size = (size_t)conv->out_height * conv->out_width, k = (size_t)weight->blocks, end = job->end;
    const limits range = limits_of(conv->then);
    const bool bounded = range.high < INFINITY;
    const float *const *map = job->map;
    const float *ratio = weight->ratio, *scales = weight->scale, *shifts = weight->shift, *all_added = conv->added;
    const uint32_t *offset = job->map_offset + job->begin * k;
    float *const out = job->out;
    table_piece at[8];
    UNROLL
    for (int p = 0; p < count; p++)
        at[p] = job->pieces[first + p];
    for (size_t t = job->begin; t < end; t++, offset += k) {
        FLOATS sum[8];
        UNROLL
        for (int p = 0; p < count; p++)
            sum[p] = (FLOATS){0};
        for (size_t i = 0; i < k; i++) {
            const float *from = map[i] + offset[i] + (size_t)first * LANES;
            const FLOATS factor = SPLAT(ratio ? ratio[t * k + i] : 1.0f);
            UNROLL
            for (int p = 0; p < count; p++)
                sum[p] += factor * LOAD(from + (size_t)p * LANES);
        }
        const FLOATS scale = SPLAT(scales ? scales[t] : 1.0f), shift = SPLAT(shifts ? shifts[t] : 0.0f);
        UNROLL
        for (int p = 0; p < count; p++)
            sum[p] = sum[p] * scale + shift;
        const float *added = all_added ? all_added + t * plane_size : NULL;
        if (added)
            UNROLL
            for (int p = 0; p < count; p++)
                sum[p] += whole ? LOAD(added + at[p].offset) : LOAD_PART(added + at[p].offset, at[p].begin, at[p].end);
        UNROLL
        for (int p = 0; p < count; p++)
            sum[p] = AT_LEAST(sum[p], SPLAT(range.low));
        if (bounded)
            UNROLL
            for (int p = 0; p < count; p++)
                sum[p] = AT_MOST(sum[p], SPLAT(range.high));
        float *plane = out + t * plane_size;
        UNROLL /* not before all have been loaded: a load waits for a store of some lanes that it overlaps */
        for (int p = 0; p < count; p++)
            if (whole)
                PASTE(store, WIDTH)(plane + at[p].offset, sum[p]);
            else
                PASTE(store_part, WIDTH)(plane + at[p].offset, sum[p], at[p].begin, at[p].end);
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
