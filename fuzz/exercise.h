/* Everything that a caller can do with the bytes of a file, in one call: for the fuzzer and for tests/hostile. */
#ifndef SUBBIT_EXERCISE_H
#define SUBBIT_EXERCISE_H

#include "program.h"

typedef struct exercise {
    const char *isa;     /* row of the kernel table, NULL: the best */
    uint64_t max_memory; /* sb_options.max_memory; 0: none, but a context of more than 64 MiB is not created */
    uint64_t max_work;   /* of sb_work: networks that take longer are opened but not run */
} exercise;

/* Opens `size` bytes; where that succeeds asks every question of the API and runs the network, as a whole and
 * observed. Aborts where the core breaks a promise of subbit.h. */
sb_status sb_exercise(const uint8_t *bytes, size_t size, const exercise *how);

#endif
