/* How much one run computes: counted from the shapes, the same on every machine and with every kernel. */
#include "program.h"

static uint64_t smaller(int32_t a, int32_t b) { return (uint64_t)(a < b ? a : b); }

/* Multiply-adds of one element of the result. Every product here stays below 2^31: the sizes of a value and of a filter
 * have limits. */
static uint64_t steps(const sb_op *op, const sb_shape *in, const sb_shape *out) {
    switch (op->code) {
        case SB_OP_CONV:
        case SB_OP_LINEAR: {
            const sb_weight *weight = &op->conv.weight;
            return (uint64_t)weight->blocks * (uint64_t)weight->depth * (uint64_t)weight->kernel_h *
                   (uint64_t)weight->kernel_w;
        }
        case SB_OP_POOL: return smaller(op->pool.kernel[0], sb_height(in)) * smaller(op->pool.kernel[1], sb_width(in));
        case SB_OP_ADAPTIVE_POOL: /* windows of up to two elements more than an equal share */
            return (uint64_t)(sb_height(in) / sb_height(out) + 2) * (uint64_t)(sb_width(in) / sb_width(out) + 2);
        case SB_OP_UPSAMPLE: return 4;
        case SB_OP_RESHAPE:
        case SB_OP_CONSTANT: return 0;
        default: return 1;
    }
}

uint64_t sb_count_work(const sb_program *program, const sb_value *values) {
    uint64_t total = 0;
    for (int32_t i = 0; i < program->op_count; i++) {
        const sb_op *op = &program->ops[i];
        const sb_shape *in = op->input_count ? &values[op->inputs[0]].shape : NULL, *out = &values[i + 1].shape;
        uint64_t work = steps(op, in, out) * sb_elements(out);
        for (int32_t j = 0; work && j < op->input_count; j++) work += sb_elements(&values[op->inputs[j]].shape);
        total = work > UINT64_MAX - total ? UINT64_MAX : total + work;
    }
    return total;
}
