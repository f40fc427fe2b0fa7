/* Which values are kept as levels, and who writes them.
 *
 * A layer with levels reads its input from a slot. Where the value comes from another such layer, or from one in fp32 whose
 * kernel can round, whatever limits and maxima lie between, the slot is written by that layer: rounding commutes with
 * limits (it is done after them) and with maxima. Otherwise the first layer that reads the slot rounds the value itself. */
#include "program.h"

/* Reshapes are their input under another name. */
static int32_t without_reshapes(const sb_program *program, int32_t value) {
    while (value > 0 && program->ops[value - 1].code == SB_OP_RESHAPE) value = program->ops[value - 1].inputs[0];
    return value;
}

/* The operation whose kernel computes a value, the fused ones behind it included; -1 for the input of the network. */
static int32_t writer_of(const sb_plan *plan, int32_t value) {
    return value ? plan->steps[value - 1].writer : -1;
}

/* Rows of a fully connected layer lie the other way round in memory: those are rounded by the layer itself. */
static bool reads_slot(const sb_program *program, const sb_plan *plan, int32_t op) {
    return sb_has_levels(&program->ops[op]) &&
           (program->ops[op].code == SB_OP_CONV || plan->steps[op].conv->width == 1);
}

/* Can the operation write levels by itself? It writes one kind of them at most. */
static bool writes_levels(const sb_program *program, const sb_plan *plan, int32_t op, sb_levels levels) {
    const sb_step *step = &plan->steps[op];
    if (step->writes != SB_NO_SLOT && !sb_same_levels(plan->slots[step->writes].levels, levels)) return false;
    const bool rounds = program->ops[op].code == SB_OP_CONV && step->conv->kernel->writes_levels;
    return (rounds || reads_slot(program, plan, op)) && sb_is_limit(step->conv->then);
}

static bool is_maximum(const sb_op *op) { return op->code == SB_OP_POOL && !op->pool.average; }

/* Does the value come from a layer that can write these levels, through nothing but maxima and reshapes? */
static bool comes_as_levels(const sb_program *program, const sb_plan *plan, int32_t value, sb_levels levels) {
    for (;;) {
        const int32_t op = writer_of(plan, without_reshapes(program, value));
        if (op < 0) return false;
        if (!is_maximum(&program->ops[op])) return writes_levels(program, plan, op, levels);
        const int32_t other = plan->steps[op].writes;
        if (other != SB_NO_SLOT && !sb_same_levels(plan->slots[other].levels, levels)) return false;
        value = program->ops[op].inputs[0];
    }
}

static int32_t new_slot(sb_plan *plan, int32_t value, int32_t writer, sb_levels levels) {
    plan->slots[plan->slot_count] = (sb_slot){.value = value, .first = writer, .last = writer, .levels = levels};
    return plan->slot_count++;
}

/* The slot from which `reader` gets the levels of a value, with the slots of the maxima on the way. */
static int32_t find_slot(const sb_program *program, sb_plan *plan, int32_t *slot_of, int32_t reader, int32_t value,
                         sb_levels levels) {
    const bool direct = comes_as_levels(program, plan, value, levels);
    int32_t found = SB_NO_SLOT, *next = &found;
    while (*next == SB_NO_SLOT) {
        const int32_t base = without_reshapes(program, value), known = slot_of[base];
        if (known != SB_NO_SLOT && sb_same_levels(plan->slots[known].levels, levels)) {
            *next = known;
        } else {
            const int32_t writer = direct ? writer_of(plan, base) : reader;
            *next = new_slot(plan, base, writer, levels);
            if (known == SB_NO_SLOT) slot_of[base] = *next;
            if (direct) plan->steps[writer].writes = *next;
            if (!direct) plan->steps[reader].rounds = true;
        }
        sb_slot *slot = &plan->slots[*next];
        if (slot->last < reader) slot->last = reader;
        if (!direct || !is_maximum(&program->ops[slot->first])) break;
        reader = slot->first;
        value = program->ops[reader].inputs[0];
        next = &plan->steps[reader].reads;
    }
    return found;
}

/* Marks the inputs that an operation reads as fp32 numbers; those behind it have been marked already. */
static void mark_floats(const sb_program *program, sb_plan *plan, int32_t number, bool *floats) {
    const sb_op *op = &program->ops[number];
    sb_step *step = &plan->steps[number];
    step->floats |= floats[number + 1];
    if (step->fused) {
        plan->steps[step->writer].floats |= floats[number + 1];
        for (int32_t i = 0; i < op->input_count; i++)
            if (writer_of(plan, op->inputs[i]) != step->writer) floats[op->inputs[i]] = true; /* what is added */
        return;
    }
    const bool passes_on = op->code == SB_OP_RESHAPE || (is_maximum(op) && step->reads != SB_NO_SLOT);
    for (int32_t i = 0; i < op->input_count; i++) {
        const bool needed = passes_on ? floats[number + 1] : step->reads == SB_NO_SLOT || step->rounds;
        floats[op->inputs[i]] |= needed;
    }
}

void sb_plan_levels(const sb_program *program, sb_plan *plan, int32_t *slot_of, bool *floats) {
    for (int32_t value = 0; value <= program->op_count; value++) slot_of[value] = SB_NO_SLOT;
    for (int32_t i = 0; i < program->op_count; i++) plan->steps[i].reads = plan->steps[i].writes = SB_NO_SLOT;
    for (int32_t i = 0; i < program->op_count; i++) {
        const sb_op *op = &program->ops[i];
        if (reads_slot(program, plan, i))
            plan->steps[i].reads = find_slot(program, plan, slot_of, i, op->inputs[0], op->conv.levels);
    }
    floats[program->output] = true;
    for (int32_t i = program->op_count - 1; i >= 0; i--) mark_floats(program, plan, i, floats);
}
