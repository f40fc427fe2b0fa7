/* The merge of the table kernel for pieces of WIDTH pixels: a register, or one segment of a shared register.
 *
 *     out[t] = clamp(shift[t] + scale[t] · Σ_i ratio[t, i] · map[i][map_slot[t, i]])
 *
 * Included by table_impl.h once per WIDTH. */
#define FLOATS PASTE(float, WIDTH)
#define LOAD PASTE(load, WIDTH)
#define SPLAT PASTE(splat, WIDTH)
#define AT_LEAST PASTE(at_least, WIDTH)
#define AT_MOST PASTE(at_most, WIDTH)

/* `pieces` neighbouring ones of channel t; successive pieces of a map are LANES apart. */
ALWAYS_INLINE void PASTE(merge_pieces, WIDTH)(const sb_conv *conv, const table_plan *table, const float *const *map,
                                              size_t t, int first, const int pieces, FLOATS *sum) {
    const int k = conv->weight.blocks, registers = table->rows * table->vectors;
    const float *ratio = conv->weight.ratio ? conv->weight.ratio + t * k : NULL;
    const uint16_t *slot = table->map_slot + t * k;
    for (int p = 0; p < pieces; p++)
        sum[p] = (FLOATS){0};
    for (int i = 0; i < k; i++) {
        const float *from = map[i] + ((size_t)slot[i] * registers + first) * LANES;
        const FLOATS factor = SPLAT(ratio ? ratio[i] : 1.0f);
        for (int p = 0; p < pieces; p++)
            sum[p] += factor * LOAD(from + (size_t)p * LANES);
    }
}

static NEVER_INLINE void PASTE(merge_region, WIDTH)(const sb_conv *conv, const table_plan *table,
                                                    const table_segment *segment, int group, const float *const *map,
                                                    float *out) {
    const sb_weight *weight = &conv->weight;
    const size_t plane_size = (size_t)conv->out_height * conv->out_width;
    const int per_group = weight->out / conv->groups, pieces = segment->rows * table->vectors;
    const limits range = limits_of(conv->then);
    const FLOATS low = SPLAT(range.low), high = SPLAT(range.high);
    table_piece piece[TABLE_MAX_VECTORS];
    find_pieces(conv, table, segment, WIDTH, piece);
    for (size_t t = (size_t)group * per_group; t < (size_t)(group + 1) * per_group; t++) {
        const FLOATS scale = SPLAT(weight->scale ? weight->scale[t] : 1.0f);
        const FLOATS shift = SPLAT(weight->shift ? weight->shift[t] : 0.0f);
        float *plane = out + t * plane_size;
        for (int first = 0; first < pieces; first += 4) {
            FLOATS sum[4];
            const int count = pieces - first < 4 ? pieces - first : 4;
            if (count == 4)
                PASTE(merge_pieces, WIDTH)(conv, table, map, t, first, 4, sum);
            else
                for (int p = 0; p < count; p++)
                    PASTE(merge_pieces, WIDTH)(conv, table, map, t, first + p, 1, sum + p);
            for (int p = 0; p < count; p++) {
                const table_piece *at = &piece[first + p];
                const FLOATS v = AT_MOST(AT_LEAST(sum[p] * scale + shift, low), high);
                if (at->end - at->begin == WIDTH)
                    PASTE(store, WIDTH)(plane + at->offset, v);
                else
                    PASTE(store_part, WIDTH)(plane + at->offset, v, at->begin, at->end);
            }
        }
    }
}

#undef FLOATS
#undef LOAD
#undef SPLAT
#undef AT_LEAST
#undef AT_MOST
#undef WIDTH
