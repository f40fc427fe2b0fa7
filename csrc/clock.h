/* The clock of sb_run_timed and sb_measure_limits; nothing else looks at it. */
#ifndef SUBBIT_CLOCK_H
#define SUBBIT_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t sb_nanoseconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
