/* One counted heap per model. */
#include "program.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct block {
    struct block *next;
} block;

void *sb_alloc(sb_heap *heap, uint64_t count, uint64_t size) {
    if (count == 0 || size == 0) count = size = 1;
    if (count > (SIZE_MAX - 4 * SB_ALIGNMENT) / size) return NULL;
    /* header, slack for the alignment, and the size rounded up */
    const uint64_t rounded = (count * size + SB_ALIGNMENT - 1) / SB_ALIGNMENT * SB_ALIGNMENT;
    const uint64_t total = sizeof(block) + SB_ALIGNMENT - 1 + rounded;
    if (heap->limit && (total > heap->limit || heap->bytes > heap->limit - total)) {
        heap->refused = true;
        return NULL;
    }
    block *head = calloc(1, (size_t)total);
    if (!head) return NULL;
    head->next = heap->blocks;
    heap->blocks = head;
    heap->bytes += total;
    const uintptr_t start = (uintptr_t)(head + 1);
    return (void *)((start + SB_ALIGNMENT - 1) / SB_ALIGNMENT * SB_ALIGNMENT);
}

sb_status sb_alloc_failure(const sb_heap *heap) { return heap->refused ? SB_ERROR_LIMIT : SB_ERROR_MEMORY; }

void sb_free_all(sb_heap *heap) {
    for (block *head = heap->blocks; head;) {
        block *next = head->next;
        free(head);
        head = next;
    }
    heap->blocks = NULL;
    heap->bytes = 0;
}

sb_status sb_fail(sb_error *error, sb_status status, int32_t op, const char *format, ...) {
    if (error) {
        error->status = status;
        error->op = op;
        int start = 0;
        if (op >= 0) start = snprintf(error->message, sizeof error->message, "operation %d: ", (int)op);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->message + start, sizeof error->message - (size_t)start, format, arguments);
        va_end(arguments);
    }
    return status;
}
