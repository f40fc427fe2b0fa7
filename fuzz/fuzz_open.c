/* libFuzzer target: any bytes may be opened, and what opens may be run, with every row of the kernel table. */
#include "exercise.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const ROWS[] = {NULL, "portable", "avx2", "sse2"}; /* a missing one is a named error */
    exercise how = {.max_memory = 1 << 20, .max_work = 30000};
    unsigned sum = 0;
    for (size_t i = 0; i < size; i++) sum += data[i];
    how.isa = ROWS[sum % 4];
    sb_exercise(data, size, &how);
    return 0;
}
