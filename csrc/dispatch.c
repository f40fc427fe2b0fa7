/* Which instruction sets were compiled in, which of them this machine has, and which one a model uses. */
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#define HAS(feature) (__builtin_cpu_supports(feature) != 0)
#else
#define HAS(feature) false
#endif

/* A row beyond the portable one exists where kernels/simd.cmake compiled it and said so. */
#ifdef SB_WITH_AVX512
extern const sb_kernels sb_kernels_avx512;
static bool has_avx512(void) { return HAS("avx512f") && HAS("avx512vl") && HAS("avx512bw") && HAS("avx512dq"); }
#endif
#ifdef SB_WITH_AVX2
extern const sb_kernels sb_kernels_avx2;
static bool has_avx2(void) { return HAS("avx2") && HAS("fma"); }
#endif
#ifdef SB_WITH_SSE2
extern const sb_kernels sb_kernels_sse2;
static bool has_sse2(void) { return HAS("sse2"); }
#endif
#ifdef SB_WITH_NEON
extern const sb_kernels sb_kernels_neon;
#endif
static bool always(void) { return true; }

typedef struct row {
    const sb_kernels *kernels;
    bool (*available)(void);
} row;

/* best first */
static const row ROWS[] = {
#ifdef SB_WITH_AVX512
    {&sb_kernels_avx512, has_avx512},
#endif
#ifdef SB_WITH_AVX2
    {&sb_kernels_avx2, has_avx2},
#endif
#ifdef SB_WITH_SSE2
    {&sb_kernels_sse2, has_sse2},
#endif
#ifdef SB_WITH_NEON
    {&sb_kernels_neon, always},
#endif
    {&sb_kernels_portable, always},
};
enum { ROW_COUNT = sizeof ROWS / sizeof *ROWS };

static void list_rows(char *text, size_t size) {
    size_t length = 0;
    for (int i = 0; i < ROW_COUNT; i++)
        if (ROWS[i].available() && length < size)
            length += (size_t)snprintf(text + length, size - length, "%s%s", length ? ", " : "", ROWS[i].kernels->name);
}

sb_status sb_select_kernels(const char *isa, sb_kernels *kernels, sb_error *error) {
    if (!isa) isa = getenv("SUBBIT_ISA");
    if (isa && !*isa) isa = NULL;
    for (int i = 0; i < ROW_COUNT; i++) {
        const sb_kernels *candidate = ROWS[i].kernels;
        if (!ROWS[i].available() || (isa && strcmp(isa, candidate->name) != 0)) continue;
        *kernels = *candidate;
        if (!kernels->function) kernels->function = sb_kernels_portable.function;
        if (!kernels->arithmetic) kernels->arithmetic = sb_kernels_portable.arithmetic;
        if (!kernels->affine) kernels->affine = sb_kernels_portable.affine;
        if (!kernels->means) kernels->means = sb_kernels_portable.means;
        if (!kernels->pool) kernels->pool = sb_kernels_portable.pool;
        if (!kernels->round) kernels->round = sb_kernels_portable.round;
        if (!kernels->pool_levels) kernels->pool_levels = sb_kernels_portable.pool_levels;
        return SB_OK;
    }
    char rows[80];
    list_rows(rows, sizeof rows);
    return sb_fail(error, SB_ERROR_ISA, -1, "instruction set \"%.40s\" is unknown or missing on this machine: %s", isa,
                   rows);
}

const char *sb_features(void) {
    static _Thread_local char text[128];
    size_t length = 0;
    text[0] = 0;
#define ADD(feature) \
    if (HAS(feature)) \
    length += (size_t)snprintf(text + length, sizeof text - length, "%s%s", length ? " " : "", feature)
    ADD("sse2");
    ADD("avx2");
    ADD("fma");
    ADD("avx512f");
    ADD("avx512bw");
    ADD("avx512vl");
    ADD("avx512vpopcntdq");
    ADD("avx512vnni");
#undef ADD
#if defined(__aarch64__)
    snprintf(text, sizeof text, "neon");
#endif
    (void)length;
    return text;
}
