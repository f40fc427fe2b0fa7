/* Which kernel runs each operation, and where each value lives.
 *
 * Values share one arena. A buffer lives from the operation that writes it to the last one that reads it; buffers are
 * placed from the largest to the smallest, each at the lowest place that is free for as long as it lives. A reshape is
 * its input under another name. Element-wise operations overwrite an input that nobody needs any more. What alone reads a
 * convolution is done by the convolution: the addition of a value that is there before it, perhaps in its place, and an
 * activation. Scratch memory is a buffer that lives for one operation. */
#include "guard.h"

#include <stdlib.h>
#include <string.h>

typedef struct buffer {
    uint64_t size, offset;
    int32_t first, last; /* operations, both included; the input is written by operation -1 */
} buffer;

enum { NO_BUFFER = -1 };

typedef struct planner {
    const sb_program *program;
    const sb_kernels *kernels;
    sb_heap *heap;
    sb_heap work; /* freed when the plan is made */
    sb_plan *plan;
    sb_error *error;
    int32_t *readers;   /* per value: how many operations read it */
    int32_t *last_read; /* per value: the last of them, op_count for the result */
    int32_t *buffer_of; /* per value */
    int32_t *scratch_of; /* per operation */
    buffer *buffers;
    int32_t buffer_count;
    bool layers_with_levels;
} planner;

static uint64_t rounded(uint64_t bytes) { return (bytes + SB_ALIGNMENT - 1) / SB_ALIGNMENT * SB_ALIGNMENT; }

static sb_status out_of_memory(const planner *p, int32_t op) {
    return sb_fail(p->error, sb_alloc_failure(p->work.refused ? &p->work : p->heap), op,
                   "no memory, or over the limit of %llu bytes",
                   (unsigned long long)p->heap->limit);
}

/* --------------------------------------------------------------------------------------------- kernels */

/* `wanted` names a kernel to use wherever it can do the convolution, whatever it costs; with a "-" in front one that is not
 * to be used. */
static void consider(const sb_conv_kernel *const *list, sb_conv *conv, const char *wanted, double *cheapest) {
    for (; list && *list; list++) {
        if (((*list)->run_levels != NULL) != (conv->levels.step > 0)) continue;
        if (wanted && *wanted == '-' && strcmp(wanted + 1, (*list)->name) == 0) continue;
        double cost = (*list)->cost(conv);
        if (cost >= 0 && wanted && strcmp(wanted, (*list)->name) == 0) cost = 0;
        if (cost >= 0 && (!conv->kernel || cost < *cheapest)) {
            conv->kernel = *list;
            *cheapest = cost;
        }
    }
}

/* The portable row takes every geometry that the format allows; the others count in ints and look at SB_FAST_* sizes. */
static bool has_ordinary_geometry(const sb_conv *conv) {
    const int64_t rows = (int64_t)(conv->weight.kernel_h - 1) * conv->dilation_h + 1;
    const int64_t columns = (int64_t)(conv->weight.kernel_w - 1) * conv->dilation_w + conv->out_width;
    return conv->weight.kernel_h <= SB_FAST_KERNEL && conv->weight.kernel_w <= SB_FAST_KERNEL &&
           conv->stride_h <= SB_FAST_STRIDE && conv->stride_w <= SB_FAST_STRIDE &&
           conv->dilation_h <= SB_FAST_DILATION && conv->dilation_w <= SB_FAST_DILATION &&
           conv->pad_top <= SB_FAST_PADDING && conv->pad_left <= SB_FAST_PADDING &&
           rows * columns * conv->stride_h * conv->stride_w <= SB_FAST_SPAN;
}

static sb_status choose_kernel(planner *p, int32_t number, sb_conv *conv) {
    double cheapest = 0;
    const char *wanted = getenv("SUBBIT_KERNEL");
    if (has_ordinary_geometry(conv)) consider(p->kernels->convs, conv, wanted, &cheapest);
    consider(sb_kernels_portable.convs, conv, wanted && *wanted != '-' ? wanted : NULL, &cheapest);
    const size_t size = conv->kernel->prepared_size ? conv->kernel->prepared_size(conv) : 0;
    if (size) {
        void *prepared = sb_alloc(p->heap, 1, size);
        if (!prepared) return out_of_memory(p, number);
        conv->kernel->prepare(conv, prepared);
        conv->prepared = prepared;
    }
    return SB_OK;
}

static sb_status plan_conv(planner *p, int32_t number, sb_step *step) {
    const sb_op *op = &p->program->ops[number];
    const sb_shape *in = &p->plan->values[op->inputs[0]].shape;
    const sb_shape *out = &p->plan->values[number + 1].shape;
    sb_conv *conv = step->conv = sb_alloc(p->heap, 1, sizeof *conv);
    if (!conv) return out_of_memory(p, number);
    *conv = (sb_conv){.stride_h = 1, .stride_w = 1, .dilation_h = 1, .dilation_w = 1, .groups = 1, .height = 1,
                      .out_height = 1, .weight = op->conv.weight, .then.kind = SB_NONE, .levels = op->conv.levels};
    if (op->code == SB_OP_LINEAR) {
        conv->channels = in->dims[in->rank - 1];
        conv->width = conv->out_width = (int32_t)(sb_elements(in) / (size_t)conv->channels);
    } else {
        conv->channels = in->dims[0];
        conv->height = sb_height(in);
        conv->width = sb_width(in);
        conv->out_height = sb_height(out);
        conv->out_width = sb_width(out);
        conv->stride_h = op->conv.stride[0];
        conv->stride_w = op->conv.stride[1];
        conv->pad_top = op->conv.padding[0];
        conv->pad_left = op->conv.padding[2];
        conv->dilation_h = op->conv.dilation[0];
        conv->dilation_w = op->conv.dilation[1];
        conv->groups = op->conv.groups;
    }
    return choose_kernel(p, number, conv);
}

static void plan_pool(const planner *p, int32_t number, sb_pool *pool) {
    const sb_op *op = &p->program->ops[number];
    const sb_shape *in = &p->plan->values[op->inputs[0]].shape;
    const sb_shape *out = &p->plan->values[number + 1].shape;
    *pool = (sb_pool){
        .average = op->pool.average, .count_include_pad = op->pool.count_include_pad, .divisor = op->pool.divisor,
        .channels = sb_planes(in), .height = sb_height(in), .width = sb_width(in),
        .out_height = sb_height(out), .out_width = sb_width(out),
        .kernel_h = op->pool.kernel[0], .kernel_w = op->pool.kernel[1],
        .stride_h = op->pool.stride[0], .stride_w = op->pool.stride[1],
        .pad_top = op->pool.padding[0], .pad_left = op->pool.padding[1],
        .pad_bottom = op->pool.padding[0], .pad_right = op->pool.padding[1],
        .in_plane = (size_t)sb_height(in) * (size_t)sb_width(in),
        .out_plane = (size_t)sb_height(out) * (size_t)sb_width(out),
        .dilation_h = op->pool.dilation[0], .dilation_w = op->pool.dilation[1]};
}

/* Bytes that an operation needs while it runs. A fully connected layer over several rows is a 1 x 1 convolution
 * between two transpositions, which stand behind the kernel's own scratch. */
static uint64_t scratch_size(const planner *p, int32_t number) {
    const sb_conv *conv = p->plan->steps[number].conv;
    if (!conv) return 0;
    uint64_t size = conv->kernel->scratch_size ? rounded(conv->kernel->scratch_size(conv)) : 0;
    if (p->program->ops[number].code == SB_OP_LINEAR && conv->width > 1) {
        size += rounded(sizeof(float) * (uint64_t)conv->channels * (uint64_t)conv->width);
        size += rounded(sizeof(float) * (uint64_t)conv->weight.out * (uint64_t)conv->width);
        if (conv->levels.step > 0) size += rounded((uint64_t)conv->channels * (uint64_t)conv->width);
    }
    return size;
}

/* A step that takes less is not worth the meetings of several threads. */
enum { SHARED_NANOSECONDS = 20000 };
enum { POOL_PIECE = 1 << 16 }; /* elements of the input of a piece, at least */

static int32_t conv_pieces(const sb_conv *conv) {
    if (!conv->kernel->pieces || !sb_is_limit(conv->then) || conv->kernel->cost(conv) < SHARED_NANOSECONDS) return 1;
    return conv->kernel->pieces(conv);
}

static int32_t pool_pieces(const sb_pool *pool) {
    const int64_t pieces = (int64_t)pool->channels * pool->height * pool->width / POOL_PIECE;
    return pieces < pool->channels ? (int32_t)pieces : pool->channels;
}

/* Several threads may do the operations that take long, once it is known what these do besides. */
static void share_step(planner *p, int32_t number) {
    sb_step *step = &p->plan->steps[number];
    int32_t pieces = 1;
    if (p->program->ops[number].code == SB_OP_CONV) pieces = conv_pieces(step->conv);
    if (p->program->ops[number].code == SB_OP_POOL) pieces = pool_pieces(&step->pool);
    step->pieces = pieces > 1 ? pieces : 0;
    p->plan->shared_steps |= pieces > 1;
}

static sb_status choose_kernels(planner *p) {
    for (int32_t i = 0; i < p->program->op_count; i++) {
        sb_step *step = &p->plan->steps[i];
        const uint8_t code = p->program->ops[i].code;
        step->added = SB_NO_VALUE;
        step->partner = SB_NO_OP;
        if (code == SB_OP_POOL) plan_pool(p, i, &step->pool);
        if (code != SB_OP_CONV && code != SB_OP_LINEAR) continue;
        p->layers_with_levels |= p->program->ops[i].conv.levels.step > 0;
        const sb_status status = plan_conv(p, i, step);
        if (status) return status;
    }
    return SB_OK;
}

/* -------------------------------------------------------------------------------------------- lifetimes */

static void count_readers(planner *p) {
    for (int32_t value = 0; value <= p->program->op_count; value++) p->last_read[value] = value - 1;
    for (int32_t i = 0; i < p->program->op_count; i++) {
        for (int32_t j = 0; j < p->program->ops[i].input_count; j++) {
            p->readers[p->program->ops[i].inputs[j]]++;
            p->last_read[p->program->ops[i].inputs[j]] = i;
        }
    }
    p->readers[p->program->output]++;
    p->last_read[p->program->output] = p->program->op_count;
}

static int32_t new_buffer(planner *p, uint64_t size, int32_t first) {
    p->buffers[p->buffer_count] = (buffer){.size = rounded(size) + SB_GAP, .first = first, .last = first};
    return p->buffer_count++;
}

/* May operation `number` write over its input `which`? */
static bool can_overwrite(const planner *p, int32_t number, int32_t which) {
    const sb_op *op = &p->program->ops[number];
    const int32_t value = op->inputs[which];
    const int32_t own = p->buffer_of[value];
    if (own == NO_BUFFER || p->buffers[own].last > number) return false;
    if (sb_elements(&p->plan->values[value].shape) != sb_elements(&p->plan->values[number + 1].shape)) return false;
    if (op->code != SB_OP_ARITHMETIC) return true;
    /* the other operand may be the same memory only if it is walked through in the same way */
    const int32_t other = op->inputs[1 - which];
    return p->buffer_of[other] != own || other == value;
}

static bool is_elementwise(uint8_t code) {
    return code == SB_OP_ACTIVATION || code == SB_OP_AFFINE || code == SB_OP_PRELU || code == SB_OP_SOFTMAX ||
           code == SB_OP_LAYER_NORM || code == SB_OP_ARITHMETIC;
}

static bool same_shape(const sb_shape *a, const sb_shape *b) {
    return a->rank == b->rank && memcmp(a->dims, b->dims, sizeof *a->dims * (size_t)a->rank) == 0;
}

/* The convolution that writes a value, where one operation alone reads it; NULL where there is none. */
static sb_step *convolution_behind(const planner *p, int32_t value) {
    if (value == 0 || p->readers[value] != 1) return NULL;
    sb_step *step = &p->plan->steps[p->plan->steps[value - 1].writer];
    return step->conv ? step : NULL;
}

/* May the convolution `step`, which does addition `number`, write the sum over input `which` of it? Nobody else may read that
 * from the convolution on. */
static bool can_add_in_place(const planner *p, int32_t number, int32_t which, const sb_step *step) {
    if (!step->conv->kernel->adds_in_place || !can_overwrite(p, number, which)) return false;
    const int32_t own = p->buffer_of[p->program->ops[number].inputs[which]];
    for (int32_t i = step->writer; i < number; i++)
        for (int32_t j = 0; j < p->program->ops[i].input_count; j++)
            if (p->buffer_of[p->program->ops[i].inputs[j]] == own) return false;
    return true;
}

/* A sum is done by the later of its operands if that is a convolution: the other one is there when it runs. */
static bool fuse_addition(planner *p, int32_t number) {
    const sb_op *op = &p->program->ops[number];
    if (op->arithmetic != SB_ADD) return false;
    const int32_t later = op->inputs[0] > op->inputs[1] ? op->inputs[0] : op->inputs[1];
    const int32_t other = op->inputs[0] + op->inputs[1] - later;
    sb_step *step = convolution_behind(p, later);
    const sb_value *values = p->plan->values;
    if (!step || p->program->ops[step->writer].code != SB_OP_CONV || other > step->writer || step->added != SB_NO_VALUE || step->conv->then.kind != SB_NONE ||
        !same_shape(&values[other].shape, &values[later].shape))
        return false;
    step->added = other;
    p->plan->steps[number].writer = step->writer;
    return true;
}

static bool fuse_activation(planner *p, int32_t number) {
    const sb_op *op = &p->program->ops[number];
    const sb_step *step = convolution_behind(p, op->inputs[0]);
    if (!step || step->conv->then.kind != SB_NONE) return false;
    step->conv->then = op->function;
    p->plan->steps[number].writer = step->writer;
    return true;
}

/* Leaves an operation to the convolution before it, where that can do it; the buffer of its result then: that of the
 * convolution, or that of what is added. */
static int32_t fuse(planner *p, int32_t number) {
    const sb_op *op = &p->program->ops[number];
    sb_step *step = &p->plan->steps[number];
    int32_t over = 0; /* the input that is written over */
    if (op->code == SB_OP_ARITHMETIC) {
        step->fused = fuse_addition(p, number);
        const int32_t first = op->inputs[0] > op->inputs[1] ? 0 : 1; /* what the convolution gives */
        over = step->fused && can_add_in_place(p, number, 1 - first, &p->plan->steps[step->writer]) ? 1 - first : first;
    }
    if (op->code == SB_OP_ACTIVATION) step->fused = fuse_activation(p, number);
    if (!step->fused) return NO_BUFFER;
    p->plan->steps[step->writer].result = number + 1;
    return p->buffer_of[op->inputs[over]];
}

/* ------------------------------------------------------------------------------------- bands of a maximum */

/* A convolution whose output leaves the second-level cache before the maximum behind it reads it: the two take turns
 * instead, and only a few rows of that output are kept, at the beginning of its buffer. The buffer has its full size
 * nevertheless: where single values are looked at, or several threads run one image, each does its work at once. */
enum { LARGE_OUTPUT = 1 << 19 }; /* bytes */

/* Whether the kernels of maximum `number` and the convolution that it reads can take turns, rows of the output permitting. */
static bool can_take_turns(const planner *p, int32_t number) {
    const sb_op *op = &p->program->ops[number];
    if (op->code != SB_OP_POOL || op->pool.average) return false;
    const sb_step *step = convolution_behind(p, op->inputs[0]);
    if (!step || step->result != op->inputs[0] || step->added != SB_NO_VALUE || !step->conv->kernel->band_rows ||
        p->program->ops[step->writer].code != SB_OP_CONV || !sb_is_limit(step->conv->then))
        return false;
    for (int32_t i = step->writer + 1; i < number; i++)
        if (!p->plan->steps[i].fused || p->plan->steps[i].writer != step->writer) return false;
    const sb_pool *pool = &p->plan->steps[number].pool;
    if (pool->kernel_h > SB_FAST_KERNEL || pool->dilation_h > SB_FAST_DILATION || pool->stride_h > SB_FAST_STRIDE) return false;
    const uint64_t bytes = sizeof(float) * sb_elements(&p->plan->values[op->inputs[0]].shape);
    return bytes >= LARGE_OUTPUT && 2 * sb_band_room(step->conv, pool) <= pool->height;
}

/* The first operation during which the result of `number` is written. */
static int32_t first_write(const planner *p, int32_t number) {
    const int32_t partner = number >= 0 ? p->plan->steps[number].partner : SB_NO_OP;
    return partner != SB_NO_OP && partner < number ? partner : number;
}

/* Once it is known what is kept as levels: each must have its rows in one form alone. */
static void part_those_with_two_forms(planner *p) {
    for (int32_t i = 0; i < p->program->op_count; i++) {
        sb_step *conv = &p->plan->steps[i];
        if (conv->partner == SB_NO_OP || conv->partner < i) continue;
        sb_step *pool = &p->plan->steps[conv->partner];
        if (conv->writes == pool->reads && !(conv->writes != SB_NO_SLOT && conv->floats)) continue;
        conv->partner = pool->partner = SB_NO_OP;
    }
}

static void assign_buffer(planner *p, int32_t number) {
    const sb_op *op = &p->program->ops[number];
    sb_step *step = &p->plan->steps[number];
    sb_value *value = &p->plan->values[number + 1];
    int32_t own = NO_BUFFER;
    step->writer = number;
    step->result = number + 1;
    if (op->code == SB_OP_CONSTANT) {
        value->constant = op->constant.value;
        step->alias = true;
    } else if (op->code == SB_OP_RESHAPE) {
        value->constant = p->plan->values[op->inputs[0]].constant;
        own = p->buffer_of[op->inputs[0]];
        step->alias = true;
    } else {
        if (can_take_turns(p, number)) {
            step->partner = p->plan->steps[op->inputs[0] - 1].writer;
            p->plan->steps[step->partner].partner = number;
        }
        own = fuse(p, number);
        for (int32_t i = 0; own == NO_BUFFER && is_elementwise(op->code) && i < op->input_count; i++)
            if (can_overwrite(p, number, i)) own = p->buffer_of[op->inputs[i]];
        if (own == NO_BUFFER) own = new_buffer(p, sizeof(float) * sb_elements(&value->shape), first_write(p, number));
    }
    p->buffer_of[number + 1] = own;
    if (own != NO_BUFFER && p->buffers[own].last < p->last_read[number + 1])
        p->buffers[own].last = p->last_read[number + 1];
    const uint64_t scratch = scratch_size(p, number);
    p->scratch_of[number] = scratch ? new_buffer(p, scratch, number) : NO_BUFFER;
}

/* Levels are a byte each. */
static sb_status assign_slots(planner *p) {
    const uint64_t ops = (uint64_t)p->program->op_count;
    int32_t *slot_of = sb_alloc(&p->work, ops + 1, sizeof *slot_of);
    bool *floats = sb_alloc(&p->work, ops + 1, sizeof *floats);
    p->plan->slots = sb_alloc(p->heap, p->layers_with_levels ? 2 * ops : 0, sizeof *p->plan->slots);
    if (!slot_of || !floats || !p->plan->slots) return out_of_memory(p, -1);
    sb_plan_levels(p->program, p->plan, slot_of, floats);
    part_those_with_two_forms(p);
    for (int32_t i = 0; i < p->plan->slot_count; i++) {
        const sb_slot *slot = &p->plan->slots[i];
        const int32_t own = new_buffer(p, sb_elements(&p->plan->values[slot->value].shape), first_write(p, slot->first));
        p->buffers[own].last = slot->last;
    }
    return SB_OK;
}

/* --------------------------------------------------------------------------------------------- placement */

static int larger_first(const void *left, const void *right) {
    const buffer *a = *(buffer *const *)left, *b = *(buffer *const *)right;
    if (a->size != b->size) return a->size < b->size ? 1 : -1;
    return a->first < b->first ? -1 : a->first > b->first ? 1 : a < b ? -1 : 1;
}

static sb_status place_buffers(planner *p) {
    const int32_t count = p->buffer_count;
    buffer **order = sb_alloc(&p->work, (uint64_t)count, sizeof(buffer *));
    buffer **placed = sb_alloc(&p->work, (uint64_t)count, sizeof(buffer *)); /* by offset */
    if (!order || !placed) return out_of_memory(p, -1);
    for (int32_t i = 0; i < count; i++) order[i] = &p->buffers[i];
    qsort(order, (size_t)count, sizeof *order, larger_first);
    uint64_t arena = 0;
    for (int32_t i = 0; i < count; i++) {
        uint64_t offset = 0;
        for (int32_t j = 0; j < i; j++) {
            const buffer *other = placed[j];
            if (other->last < order[i]->first || other->first > order[i]->last) continue;
            if (other->offset >= offset + order[i]->size) break; /* the gap before it is wide enough */
            if (other->offset + other->size > offset) offset = other->offset + other->size;
        }
        order[i]->offset = offset;
        if (offset + order[i]->size > arena) arena = offset + order[i]->size;
        if (arena > SB_MAX_ARENA)
            return sb_fail(p->error, SB_ERROR_LIMIT, -1, "more than %llu bytes of working memory",
                           (unsigned long long)SB_MAX_ARENA);
        int32_t position = i;
        for (; position > 0 && placed[position - 1]->offset > offset; position--)
            placed[position] = placed[position - 1];
        placed[position] = order[i];
    }
    p->plan->arena = (size_t)arena;
    return SB_OK;
}

static sb_status make_plan(planner *p) {
    const uint64_t ops = (uint64_t)p->program->op_count;
    sb_plan *plan = p->plan;
    plan->values = sb_alloc(p->heap, ops + 1, sizeof *plan->values);
    plan->steps = sb_alloc(p->heap, ops, sizeof *plan->steps);
    p->readers = sb_alloc(&p->work, ops + 1, sizeof(int32_t));
    p->last_read = sb_alloc(&p->work, ops + 1, sizeof(int32_t));
    p->buffer_of = sb_alloc(&p->work, ops + 1, sizeof(int32_t));
    p->scratch_of = sb_alloc(&p->work, ops, sizeof(int32_t));
    p->buffers = sb_alloc(&p->work, 4 * ops + 1, sizeof(buffer)); /* of values, scratch and, two per operation, slots */
    if (!plan->values || !plan->steps || !p->readers || !p->last_read || !p->buffer_of || !p->scratch_of || !p->buffers)
        return out_of_memory(p, -1);
    sb_status status = sb_infer_shapes(p->program, plan->values, p->error);
    if (!status) status = choose_kernels(p);
    if (status) return status;
    count_readers(p);
    p->buffer_of[0] = new_buffer(p, sizeof(float) * sb_elements(&p->program->input), -1);
    p->buffers[0].last = p->last_read[0];
    for (int32_t i = 0; i < p->program->op_count; i++) assign_buffer(p, i);
    for (int32_t i = 0; i < p->program->op_count; i++) share_step(p, i);
    const int32_t first_slot = p->buffer_count;
    status = assign_slots(p);
    if (!status) status = place_buffers(p);
    if (status) return status;
    for (int32_t i = 0; i < plan->slot_count; i++) plan->slots[i].offset = (size_t)p->buffers[first_slot + i].offset;
    for (int32_t i = 0; i <= p->program->op_count; i++)
        if (p->buffer_of[i] != NO_BUFFER) plan->values[i].offset = (size_t)p->buffers[p->buffer_of[i]].offset;
    for (int32_t i = 0; i < p->program->op_count; i++) {
        if (p->scratch_of[i] == NO_BUFFER) continue;
        plan->steps[i].scratch = (size_t)p->buffers[p->scratch_of[i]].offset;
        plan->steps[i].scratch_size = (size_t)p->buffers[p->scratch_of[i]].size - SB_GAP;
    }
    return SB_OK;
}

sb_status sb_plan_program(const sb_program *program, const sb_kernels *kernels, sb_heap *heap, sb_plan *plan,
                          sb_error *error) {
    planner p = {.program = program, .kernels = kernels, .heap = heap, .plan = plan, .error = error};
    p.work.limit = heap->limit;
    const sb_status status = make_plan(&p);
    sb_free_all(&p.work);
    return status;
}
