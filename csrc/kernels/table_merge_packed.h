/* The merge of the table kernel where a register holds four rows: whole registers of the output at a time, each gathered
 * from two registers of every map.
 *
 *     16 lanes, rows of 4 pixels, 2 input blocks     of block 0          of block 1          out
 *     | block 0, row 0 | block 1, row 0 | 0, 2 | 1, 2 |    1st and 3rd of     2nd and 4th of      | row 0 | 1 | 2 | 3 |
 *     | block 0, row 1 | block 1, row 1 | 0, 3 | 1, 3 |    both               both
 */

enum { PACKED_ROWS = 4, PACKED_BLOCKS = 2 };

/* A register of the output from the map of one input block: lane l is lane select[l] of two registers of the map. */
typedef struct {
    int32_t from[2]; /* floats behind the map of the filter */
    int32_t select[LANES];
} packed_source;

typedef struct {
    int vectors; /* of the output in a unit */
    packed_source source[PACKED_BLOCKS][TABLE_MAX_VECTORS];
} packed_merge;

/* Where the rows of a register of the output come from: at most two of a segment, and both segments in the same registers. */
static packed_source find_packed_source(const sb_conv *conv, const table_plan *table, int block, int first_row) {
    const int32_t block_floats = table->max_list * table->rows * LANES;
    packed_source source;
    for (int i = 0; i < PACKED_ROWS; i++) {
        const int row = (first_row + i) % table->rows, number = (first_row + i) / table->rows * conv->weight.blocks + block;
        const int which = table->rows - 1 - row; /* 0 for the last one, so that a single one is the first */
        source.from[which] = number / table->segments * block_floats + row * LANES;
        for (int x = 0; x < table->slot; x++)
            source.select[i * table->slot + x] = which * LANES + number % table->segments * table->slot + x;
    }
    if (table->rows == 1)
        source.from[1] = source.from[0];
    return source;
}

static void plan_packed_merge(const sb_conv *conv, const table_plan *table, packed_merge *packed) {
    packed->vectors = table->unit_regions * table->rows / PACKED_ROWS;
    for (int block = 0; block < conv->weight.blocks; block++)
        for (int vector = 0; vector < packed->vectors; vector++)
            packed->source[block][vector] = find_packed_source(conv, table, block, vector * PACKED_ROWS);
}

/* `count` registers of every channel of a group, from register `first` of the unit on; the unit begins at `pixel`. */
ALWAYS_INLINE void merge_packed_vectors(const merge_job *job, const packed_merge *packed, const float *maps, size_t pixel,
                                        int first, const int count) {
    const sb_conv *conv = job->conv;
    const sb_weight *weight = &conv->weight;
    const size_t plane_size = (size_t)conv->out_height * conv->out_width, k = (size_t)weight->blocks;
    const limits range = limits_of(conv->then);
    for (size_t t = job->begin; t < job->end; t++) {
        const uint32_t *offset = job->map_offset + t * k;
        vfloat sum[2];
        UNROLL
        for (int v = 0; v < count; v++)
            sum[v] = (vfloat){0};
        for (size_t i = 0; i < k; i++) {
            const packed_source *source = &packed->source[i][first];
            const vfloat factor = vsplat(weight->ratio ? weight->ratio[t * k + i] : 1.0f);
            const float *map = maps + offset[i];
            UNROLL
            for (int v = 0; v < count; v++)
                sum[v] += factor * permute_pair(vload(map + source[v].from[0]), vload(map + source[v].from[1]),
                                                source[v].select);
        }
        const vfloat scale = vsplat(weight->scale ? weight->scale[t] : 1.0f);
        const vfloat shift = vsplat(weight->shift ? weight->shift[t] : 0.0f);
        const size_t at = t * plane_size + pixel + (size_t)first * LANES;
        UNROLL
        for (int v = 0; v < count; v++) {
            vfloat result = sum[v] * scale + shift;
            if (conv->added)
                result += vload(conv->added + at + v * LANES);
            vstore(job->out + at + v * LANES, vlimit(result, range));
        }
    }
}

static NEVER_INLINE void merge_packed(const merge_job *job, const table_plan *table, const float *maps, size_t pixel) {
    packed_merge packed;
    plan_packed_merge(job->conv, table, &packed);
    int first = 0;
    for (; first + 2 <= packed.vectors; first += 2)
        merge_packed_vectors(job, &packed, maps, pixel, first, 2);
    if (first < packed.vectors)
        merge_packed_vectors(job, &packed, maps, pixel, first, 1);
}
