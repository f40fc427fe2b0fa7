/* Opens and runs every file of an archive (length as 4 bytes, then the bytes, and so on) and prints a line for each:
 * the name of the status, and the most memory that the core held at any moment, in bytes.
 *
 *     driver archive [instruction set, "" for the best [nanoseconds that a run may take, 0 to open only]]
 */
#include "exercise.h"

#include "half.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t held, peak;

/* Called by the sanitizer's allocator. */
size_t __sanitizer_get_allocated_size(const volatile void *memory);
void __sanitizer_malloc_hook(const volatile void *memory, size_t size);
void __sanitizer_free_hook(const volatile void *memory);

void __sanitizer_malloc_hook(const volatile void *memory, size_t size) {
    (void)memory;
    held += size;
    if (held > peak) peak = held;
}

void __sanitizer_free_hook(const volatile void *memory) { held -= __sanitizer_get_allocated_size(memory); }

int main(int count, char **arguments) {
    FILE *archive = count > 1 ? fopen(arguments[1], "rb") : NULL;
    uint8_t length[4];
    if (!archive) return fprintf(stderr, "usage: driver archive [instruction set]\n"), 2;
    while (fread(length, 1, 4, archive) == 4) {
        const size_t size = sb_load_u32(length);
        uint8_t *bytes = malloc(size); /* of this size exactly, so that a read behind the end is seen */
        if (!bytes || fread(bytes, 1, size, archive) != size) return fprintf(stderr, "a damaged archive\n"), 2;
        held = peak = 0;
        const exercise how = {.isa = count > 2 && *arguments[2] ? arguments[2] : NULL,
                              .max_work = count > 3 ? (uint64_t)atof(arguments[3]) : 10000000};
        const sb_status status = sb_exercise(bytes, size, &how);
        printf("%s\t%zu\n", sb_status_name(status), peak);
        fflush(stdout);
        free(bytes);
    }
    fclose(archive);
    return 0;
}
