/* Under AddressSanitizer an operation may touch its inputs, its output and its scratch; the rest of the arena, and a gap
 * behind every buffer, is off limits while it runs, so that a kernel that leaves its buffers is caught inside the
 * arena too. Otherwise nothing. */
#ifndef SUBBIT_GUARD_H
#define SUBBIT_GUARD_H

#include "program.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SB_GUARDED 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define SB_GUARDED 1
#endif

#ifdef SB_GUARDED
#define SB_GAP SB_ALIGNMENT
#include <sanitizer/asan_interface.h>

static inline void sb_open_value(const sb_model *model, uint8_t *arena, int32_t value) {
    const sb_value *of = &model->plan.values[value];
    const size_t bytes = sizeof(float) * sb_elements(&of->shape);
    if (!of->constant)
        ASAN_UNPOISON_MEMORY_REGION(arena + of->offset, (bytes + SB_ALIGNMENT - 1) / SB_ALIGNMENT * SB_ALIGNMENT);
}

static inline void sb_open_slot(const sb_model *model, uint8_t *arena, int32_t number) {
    if (number == SB_NO_SLOT) return;
    const sb_slot *slot = &model->plan.slots[number];
    const size_t bytes = sb_elements(&model->plan.values[slot->value].shape);
    ASAN_UNPOISON_MEMORY_REGION(arena + slot->offset, (bytes + SB_ALIGNMENT - 1) / SB_ALIGNMENT * SB_ALIGNMENT);
}

static inline void sb_guard(const sb_model *model, uint8_t *arena, int32_t number) {
    const sb_op *op = &model->program.ops[number];
    ASAN_POISON_MEMORY_REGION(arena, model->plan.arena);
    for (int32_t i = 0; i < op->input_count; i++) sb_open_value(model, arena, op->inputs[i]);
    sb_open_value(model, arena, number + 1);
    sb_open_value(model, arena, model->plan.steps[number].result);
    sb_open_slot(model, arena, model->plan.steps[number].reads);
    sb_open_slot(model, arena, model->plan.steps[number].writes);
    if (model->plan.steps[number].partner != SB_NO_OP) {
        sb_open_value(model, arena, model->plan.steps[number].partner + 1);
        sb_open_slot(model, arena, model->plan.steps[model->plan.steps[number].partner].writes);
    }
    if (model->plan.steps[number].added != SB_NO_VALUE) sb_open_value(model, arena, model->plan.steps[number].added);
    ASAN_UNPOISON_MEMORY_REGION(arena + model->plan.steps[number].scratch, model->plan.steps[number].scratch_size);
}

static inline void sb_unguard(const sb_model *model, uint8_t *arena) {
    ASAN_UNPOISON_MEMORY_REGION(arena, model->plan.arena);
}
#else
#define SB_GAP 0
static inline void sb_guard(const sb_model *model, uint8_t *arena, int32_t number) {
    (void)model, (void)arena, (void)number;
}
static inline void sb_unguard(const sb_model *model, uint8_t *arena) { (void)model, (void)arena; }
#endif

#endif
