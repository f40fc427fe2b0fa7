/* What one core could reach with the instructions of this row: loops that do nothing but the arithmetic.
 *
 * They return how many multiply-adds of single numbers they stand for; profile.c takes the time. */

enum { LIMIT_CHAINS = 12, LIMIT_VECTORS = 20 * LIMIT_CHAINS }; /* chains enough to hide the latency; 15 KB at most */

/* Products and sums as a dense convolution has them. */
static NEVER_INLINE uint64_t multiply_add_loop(size_t rounds, float *memory) {
    const vfloat factor = vload(memory), term = vload(memory + LANES);
    vfloat sum[LIMIT_CHAINS];
    for (int i = 0; i < LIMIT_CHAINS; i++)
        sum[i] = vsplat((float)i);
    for (size_t round = 0; round < rounds; round++)
        UNROLL
        for (int i = 0; i < LIMIT_CHAINS; i++)
            sum[i] = sum[i] * factor + term;
    for (int i = 0; i < LIMIT_CHAINS; i++)
        vstore(memory + i * LANES, sum[i]);
    return (uint64_t)rounds * LIMIT_CHAINS * LANES;
}

/* Aligned loads from the first-level cache, each added to a sum: a look-up stands for a quad of channels. */
static NEVER_INLINE uint64_t look_up_loop(size_t rounds, float *memory) {
    vfloat sum[LIMIT_CHAINS] = {{0}};
    for (size_t round = 0; round < rounds; round++)
        for (const float *entry = memory; entry < memory + LIMIT_VECTORS * LANES; entry += LIMIT_CHAINS * LANES)
            UNROLL
            for (int i = 0; i < LIMIT_CHAINS; i++)
                sum[i] += *(const vfloat *)(entry + i * LANES);
    for (int i = 0; i < LIMIT_CHAINS; i++)
        vstore(memory + i * LANES, sum[i]);
    return (uint64_t)rounds * LIMIT_VECTORS * LANES * TABLE_QUAD;
}

/* Signs that differ, counted and added up: by an instruction for lanes (`hardware`), or byte by byte. */
ALWAYS_INLINE uint64_t count_signs(size_t rounds, float *memory, const bool hardware) {
    const vword filter = (vword)vload(memory);
    vword sum[LIMIT_CHAINS];
    for (int i = 0; i < LIMIT_CHAINS; i++)
        sum[i] = (vword){0};
    for (size_t round = 0; round < rounds; round++)
        UNROLL
        for (int i = 0; i < LIMIT_CHAINS; i++) {
            const vword differ = sum[i] ^ filter; /* no two rounds alike, so that none can be left out */
            sum[i] += hardware ? count_bits(differ) : count_byte_bits(differ);
        }
    for (int i = 0; i < LIMIT_CHAINS; i++)
        vstore(memory + i * LANES, (vfloat)sum[i]);
    return (uint64_t)rounds * LIMIT_CHAINS * LANES * SIGN_BITS;
}

static NEVER_INLINE uint64_t popcount_loop(size_t rounds, float *memory) {
#if LANES == 16
    if (__builtin_cpu_supports("avx512vpopcntdq"))
        return count_signs(rounds, memory, true);
#endif
    return count_signs(rounds, memory, false);
}
