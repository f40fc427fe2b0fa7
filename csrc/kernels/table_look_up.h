/* Look-ups in a table whose sums are of one type, with a kernel for every block of registers. Included once a type, with
 *     vsum             the vector of sums that one register holds
 *     SUM_LANES        how many
 *     SUM_ENTRIES(n)   of the table per quad and vector, for blocks of n registers: TABLE_ENTRIES, or TABLE_HALF
 *     SUM_REGISTERS    sums that are added up at once: enough of them that additions need not wait for each other
 *     LOOK_UP(suffix)  the names of what is defined here: LOOK_UP(_all) is the array of kernels. There before are
 *                      LOOK_UP(_factor), +1 or -1 as the lowest nibble of a word has it (bits count from ENTRY_SHIFT on);
 *                      LOOK_UP(_plus), a sum and an entry, with half a table times the factor;
 *                      LOOK_UP(_shift), sums moved by the lanes of a step; LOOK_UP(_add), sums added to their
 *                      place in the maps */

/* Sums of `filters` filters, each over `registers` vectors of pixels: rows of `vectors` registers side by side.
 * All three are constants of the caller, so that every sum stays in a register. */
ALWAYS_INLINE void LOOK_UP(_filters)(const look_up_job *job, int position, const int filters, const int registers,
                                   const int vectors) {
    const table_plan *table = job->table;
    const int quads = job->quads, tap_bytes = table_tap_bytes(quads);
    const int entries_count = SUM_ENTRIES(registers), vector_bytes = entries_count * ENTRY_BYTES;
    const size_t quad_bytes = (size_t)table->table_vectors * vector_bytes;
    const uint8_t *nibbles[TABLE_MAX_VECTORS];
    vsum sum[2 * TABLE_MAX_VECTORS], parked[2 * TABLE_MAX_VECTORS];
    const int32_t *tap_vector = table->tap_vector;
    UNROLL
    for (int f = 0; f < filters; f++)
        nibbles[f] = job->nibbles + (size_t)job->list[position + f] * table->taps * tap_bytes;
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
                uint32_t packed;
                memcpy(&packed, nibbles[f], sizeof packed);
                word[f] = (uint64_t)packed << ENTRY_SHIFT;
                nibbles[f] += tap_bytes;
            }
            for (int quad = 0; quad < quads; quad++, entries += quad_bytes)
                UNROLL
                for (int f = 0; f < filters; f++) {
                    const uint8_t *entry = entries + (word[f] & (entries_count - 1) << ENTRY_SHIFT);
                    const vsum factor = LOOK_UP(_factor)(word[f]);
                    HIDE(entry); /* one address per nibble: base + index in every load would double the work of issue */
                    word[f] >>= 4;
                    UNROLL
                    for (int r = 0; r < registers; r++)
                        sum[f * registers + r] =
                            LOOK_UP(_plus)(sum[f * registers + r], factor, *(const vsum *)(entry + r * vector_bytes),
                                           entries_count == TABLE_HALF);
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

    const size_t first = (size_t)position * registers * SUM_LANES;
    UNROLL
    for (int i = 0; i < filters * registers; i++)
        LOOK_UP(_add)(job, first + i * SUM_LANES, sum[i]);
}

/* Blocks of few registers take several filters at once, up to as many as have their addresses in registers. */
#define LOOK_UP_FILTERS(registers) \
    (SUM_REGISTERS < 2 * (registers) ? 1 : SUM_REGISTERS > 6 * (registers) ? 6 : SUM_REGISTERS / (registers))
#define DEFINE_LOOK_UP(registers, vectors) \
    static void LOOK_UP(_##registers##_##vectors)(const look_up_job *job) \
    { \
        const int filters = LOOK_UP_FILTERS(registers); \
        int position = 0; \
        for (; position + filters <= job->listed; position += filters) \
            LOOK_UP(_filters)(job, position, filters, registers, vectors); \
        for (; position < job->listed; position++) \
            LOOK_UP(_filters)(job, position, 1, registers, vectors); \
    }
DEFINE_LOOK_UP(1, 1)
DEFINE_LOOK_UP(2, 1)
DEFINE_LOOK_UP(3, 1)
DEFINE_LOOK_UP(4, 1)
DEFINE_LOOK_UP(5, 1)
DEFINE_LOOK_UP(6, 1)
DEFINE_LOOK_UP(7, 1)
DEFINE_LOOK_UP(8, 1)
DEFINE_LOOK_UP(2, 2)
DEFINE_LOOK_UP(4, 2)
DEFINE_LOOK_UP(6, 2)
DEFINE_LOOK_UP(8, 2)
DEFINE_LOOK_UP(4, 4)
DEFINE_LOOK_UP(8, 4)
DEFINE_LOOK_UP(8, 8)

static void (*const LOOK_UP(_all)[][TABLE_MAX_VECTORS + 1])(const look_up_job *) = {
    [1] = {NULL, LOOK_UP(_1_1), LOOK_UP(_2_1), LOOK_UP(_3_1), LOOK_UP(_4_1), LOOK_UP(_5_1), LOOK_UP(_6_1), LOOK_UP(_7_1),
           LOOK_UP(_8_1)},
    [2] = {[2] = LOOK_UP(_2_2), [4] = LOOK_UP(_4_2), [6] = LOOK_UP(_6_2), [8] = LOOK_UP(_8_2)},
    [4] = {[4] = LOOK_UP(_4_4), [8] = LOOK_UP(_8_4)},
    [8] = {[8] = LOOK_UP(_8_8)},
};

#undef DEFINE_LOOK_UP
#undef LOOK_UP_FILTERS
#undef LOOK_UP
#undef SUM_REGISTERS
#undef SUM_ENTRIES
#undef SUM_LANES
#undef vsum
