/* Where the time goes, and what the machine could do: for benchmarks. sb_run does without all of this. */
#include "clock.h"
#include "program.h"

#include <string.h>

enum { LIMIT_FLOATS = 4096, LIMIT_REPEATS = 40, LIMIT_NANOSECONDS = 200000 };

sb_status sb_run_timed(sb_context *context, const float *in, size_t images, float *out, sb_op_time *times) {
    if (!context || !times || (images && (!in || !out))) return SB_ERROR_ARGUMENT;
    for (size_t i = 0; i < images; i++) sb_run_image(context, i, in, out, times);
    return SB_OK;
}

/* The best of many short repeats: other programs can only make a loop slower. */
static double peak_rate(uint64_t (*loop)(size_t rounds, float *memory), float *memory) {
    size_t rounds = 1;
    double best = 0;
    for (int repeat = 0; repeat < LIMIT_REPEATS;) {
        memset(memory, 0, sizeof(float) * LIMIT_FLOATS);
        const uint64_t start = sb_nanoseconds();
        const double work = (double)loop(rounds, memory);
        const double taken = (double)(sb_nanoseconds() - start);
        if (taken < LIMIT_NANOSECONDS) {
            rounds *= 2;
            continue;
        }
        const double rate = work / taken * 1e9;
        if (rate > best) best = rate;
        repeat++;
    }
    return best;
}

sb_status sb_measure_limits(const sb_model *model, sb_limits *limits) {
    if (!model || !limits) return SB_ERROR_ARGUMENT;
    _Alignas(SB_ALIGNMENT) float memory[LIMIT_FLOATS];
    const sb_kernels *kernels = &model->kernels;
    limits->multiply_adds = kernels->multiply_add_loop ? peak_rate(kernels->multiply_add_loop, memory) : 0;
    limits->look_ups = kernels->look_up_loop ? peak_rate(kernels->look_up_loop, memory) : 0;
    limits->popcounts = kernels->popcount_loop ? peak_rate(kernels->popcount_loop, memory) : 0;
    return SB_OK;
}
