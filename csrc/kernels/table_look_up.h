/* Look-ups in a table whose sums are of one type, with a kernel for every block of registers. Included once a type, with
 *     vsum             the vector of sums that one register holds
 *     SUM_LANES        how many
 *     SUM_CHANNELS     of a tuple at most: TABLE_QUAD, or TABLE_MAX_CHANNELS, as a number
 *     SUM_ENTRIES(n,c) of the table per tuple of c channels and vector, for blocks of n registers
 *     SUM_REGISTERS    sums that are added up at once: enough of them that additions need not wait for each other
 *     LOOK_UP(suffix)  the names of what is defined here: LOOK_UP(_all) is the array of kernels. There before are
 *                      LOOK_UP(_factor), +1 or -1 as the lowest code of a word has it (bits count from ENTRY_SHIFT on),
 *                      with so many entries, which are half a table;
 *                      LOOK_UP(_plus), a sum and an entry, with half a table times the factor;
 *                      LOOK_UP(_shift), sums moved by the lanes of a step; LOOK_UP(_add), sums added to their
 *                      place in the maps */

/* Sums of `filters` filters, each over `registers` vectors of pixels: rows of `vectors` registers side by side.
 * All of these and `channels` are constants of the caller, so that every sum stays in a register. */
ALWAYS_INLINE void LOOK_UP(_filters)(const look_up_job *job, int position, const int filters, const int registers,
                                   const int vectors, const int channels) {
    const table_plan *table = job->table;
    const int tuples = job->tuples, tap_bytes = table_tap_bytes(tuples, channels);
    const int entries_count = SUM_ENTRIES(registers, channels), vector_bytes = entries_count * ENTRY_BYTES;
    const bool half = entries_count < 1 << channels;
    const size_t tuple_bytes = (size_t)table->table_vectors * vector_bytes;
    /* Codes are read a tap ahead: read when they are needed they would wait behind the look-ups before them. Many filters at
     * once hide that, and have no registers to spare. */
    const bool ahead = filters <= 2;
    const uint8_t *codes[TABLE_MAX_VECTORS];
    uint32_t next[TABLE_MAX_VECTORS];
    vsum sum[2 * TABLE_MAX_VECTORS], parked[2 * TABLE_MAX_VECTORS];
    const int32_t *tap_vector = table->tap_vector;
    UNROLL
    for (int f = 0; f < filters; f++) {
        codes[f] = job->codes + (size_t)job->list[position + f] * table->taps * tap_bytes;
        if (ahead)
            next[f] = read_codes(&codes[f], tap_bytes);
    }
    UNROLL
    for (int i = 0; i < filters * registers; i++) {
        parked[i] = sum[i] = (vsum){0};
        KEEP(sum[i]);
    }

    for (int s = 0; s < table->steps_count; s++) {
        const table_step *step = &table->steps[s];
        for (int tap = 0; tap < step->taps; tap++) {
            const uint8_t *entries = (const uint8_t *)job->sums + *tap_vector++ * vector_bytes;
            uint64_t word[TABLE_MAX_VECTORS];
            UNROLL
            for (int f = 0; f < filters; f++) {
                const uint32_t read = read_codes(&codes[f], tap_bytes);
                word[f] = (uint64_t)(ahead ? next[f] : read) << ENTRY_SHIFT;
                next[f] = read;
                if (ahead)
                    HIDE(next[f]); /* read here, not where it is used */
            }
            for (int tuple = 0; tuple < tuples; tuple++, entries += tuple_bytes)
                UNROLL
                for (int f = 0; f < filters; f++) {
                    const uint8_t *entry = entries + (word[f] & (entries_count - 1) << ENTRY_SHIFT);
                    const vsum factor = half ? LOOK_UP(_factor)(word[f], entries_count) : (vsum){0};
                    HIDE(entry); /* one address per code: base + index in every load would double the work of issue */
                    word[f] >>= channels;
                    UNROLL
                    for (int r = 0; r < registers; r++)
                        sum[f * registers + r] =
                            LOOK_UP(_plus)(sum[f * registers + r], factor, *(const vsum *)(entry + r * vector_bytes), half);
                }
        }
        for (int repeat = 0; repeat < step->repeats; repeat++) {
            vsum shifted[2 * TABLE_MAX_VECTORS];
            const bool up = step->lanes > 0;
            UNROLL
            for (int i = 0; i < filters * registers; i++) {
                const int column = i % vectors;
                const vsum before = column ? sum[column ? i - 1 : 0] : (vsum){0};
                const vsum behind = column + 1 < vectors ? sum[column + 1 < vectors ? i + 1 : 0] : (vsum){0};
                shifted[i] = LOOK_UP(_shift)(sum[i], up ? before : behind, step, vectors, job);
            }
            UNROLL
            for (int i = 0; i < filters * registers; i++) {
                sum[i] = shifted[i];
                KEEP(sum[i]);
            }
        }
        if (step->park)
            UNROLL
            for (int i = 0; i < filters * registers; i++) {
                parked[i] = sum[i];
                sum[i] = (vsum){0};
                KEEP(parked[i]);
                KEEP(sum[i]);
            }
        if (step->unpark)
            UNROLL
            for (int i = 0; i < filters * registers; i++)
                sum[i] += parked[i];
    }

    LOOK_UP(_add)(job, (size_t)position * registers * SUM_LANES, sum, filters * registers);
}

/* Blocks of few registers take several filters at once, up to as many as have their addresses in registers. The last ones are
 * taken four or two at a time: the additions of a single one would wait for each other. */
#define LOOK_UP_FILTERS(registers) \
    (SUM_REGISTERS < 2 * (registers) ? 1 : SUM_REGISTERS > 6 * (registers) ? 6 : SUM_REGISTERS / (registers))
#define DEFINE_LOOK_UP(channels, registers, vectors) \
    static void LOOK_UP(_##channels##_##registers##_##vectors)(const look_up_job *job) \
    { \
        const int filters = LOOK_UP_FILTERS(registers); \
        int position = 0, left = job->listed; \
        for (; left >= filters && (left >= filters + 4 || left == filters || filters <= 4); position += filters, left -= filters) \
            LOOK_UP(_filters)(job, position, filters, registers, vectors, channels); \
        for (; filters > 4 && left >= 4; position += 4, left -= 4) \
            LOOK_UP(_filters)(job, position, filters > 4 ? 4 : 1, registers, vectors, channels); \
        for (; filters > 2 && left >= 2; position += 2, left -= 2) \
            LOOK_UP(_filters)(job, position, filters > 2 ? 2 : 1, registers, vectors, channels); \
        for (; left > 0; position++, left--) \
            LOOK_UP(_filters)(job, position, 1, registers, vectors, channels); \
    }
#define DEFINE_LOOK_UPS(channels) \
    DEFINE_LOOK_UP(channels, 1, 1) \
    DEFINE_LOOK_UP(channels, 2, 1) \
    DEFINE_LOOK_UP(channels, 3, 1) \
    DEFINE_LOOK_UP(channels, 4, 1) \
    DEFINE_LOOK_UP(channels, 5, 1) \
    DEFINE_LOOK_UP(channels, 6, 1) \
    DEFINE_LOOK_UP(channels, 7, 1) \
    DEFINE_LOOK_UP(channels, 8, 1) \
    DEFINE_LOOK_UP(channels, 2, 2) \
    DEFINE_LOOK_UP(channels, 4, 2) \
    DEFINE_LOOK_UP(channels, 6, 2) \
    DEFINE_LOOK_UP(channels, 8, 2) \
    DEFINE_LOOK_UP(channels, 4, 4) \
    DEFINE_LOOK_UP(channels, 8, 4) \
    DEFINE_LOOK_UP(channels, 8, 8)
DEFINE_LOOK_UPS(4)
#if SUM_CHANNELS > 4
DEFINE_LOOK_UPS(5)
DEFINE_LOOK_UPS(6)
#endif

#define NAME_LOOK_UPS(c) \
    [c] = { \
        [1] = {NULL, LOOK_UP(_##c##_1_1), LOOK_UP(_##c##_2_1), LOOK_UP(_##c##_3_1), LOOK_UP(_##c##_4_1), \
               LOOK_UP(_##c##_5_1), LOOK_UP(_##c##_6_1), LOOK_UP(_##c##_7_1), LOOK_UP(_##c##_8_1)}, \
        [2] = {[2] = LOOK_UP(_##c##_2_2), [4] = LOOK_UP(_##c##_4_2), [6] = LOOK_UP(_##c##_6_2), \
               [8] = LOOK_UP(_##c##_8_2)}, \
        [4] = {[4] = LOOK_UP(_##c##_4_4), [8] = LOOK_UP(_##c##_8_4)}, \
        [8] = {[8] = LOOK_UP(_##c##_8_8)}, \
    }
/* [channels][vectors][registers] */
static void (*const LOOK_UP(_all)[][TABLE_MAX_VECTORS + 1][TABLE_MAX_VECTORS + 1])(const look_up_job *) = {
    NAME_LOOK_UPS(4),
#if SUM_CHANNELS > 4
    NAME_LOOK_UPS(5),
    NAME_LOOK_UPS(6),
#endif
};

#undef NAME_LOOK_UPS
#undef DEFINE_LOOK_UPS
#undef DEFINE_LOOK_UP
#undef LOOK_UP_FILTERS
#undef LOOK_UP
#undef SUM_REGISTERS
#undef SUM_ENTRIES
#undef SUM_CHANNELS
#undef SUM_LANES
#undef vsum
