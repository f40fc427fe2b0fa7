/* Runs a plan: one image, one operation after the other, all memory inside the context's arena. */
#include "clock.h"
#include "guard.h"
#include "kernels/portable.h"

#include <sched.h>
#include <string.h>

enum { WHOLE = -1 };

typedef struct run {
    const sb_model *model;
    uint8_t *arena, *scratch; /* the same memory, unless several threads run one image */
    bool fused; /* convolutions do the addition and the activation behind them */
    bool turns; /* and take turns with a maximum */
    sb_op_time *times; /* NULL: nobody asked */
    int32_t piece; /* of a step that several threads do together; WHOLE: all of it */
} run;

static float *value_at(const run *r, int32_t value) {
    return (float *)(r->arena + r->model->plan.values[value].offset);
}

static const float *input_at(const run *r, int32_t value) {
    const float *constant = r->model->plan.values[value].constant;
    return constant ? constant : value_at(r, value);
}

/* (rows, columns) to (columns, rows) */
static void transpose(const float *in, int32_t rows, int32_t columns, float *out) {
    for (int32_t c = 0; c < columns; c++)
        for (int32_t r = 0; r < rows; r++) *out++ = in[(size_t)r * (size_t)columns + (size_t)c];
}

static size_t rounded_floats(size_t count) {
    const size_t step = SB_ALIGNMENT / sizeof(float);
    return (count + step - 1) / step * step;
}

static int8_t *slot_at(const run *r, int32_t slot) { return (int8_t *)(r->arena + r->model->plan.slots[slot].offset); }

/* Where a convolution writes levels, and perhaps nothing else: the layers behind it may want no fp32. */
static float *find_outputs(const run *r, sb_conv *conv, const sb_step *step, float *out) {
    if (step->writes == SB_NO_SLOT || !r->fused) return out;
    conv->out_levels = r->model->plan.slots[step->writes].levels;
    conv->level_out = slot_at(r, step->writes);
    return step->floats ? out : NULL;
}

static void round_input(const run *r, const sb_step *step, const float *in) {
    const sb_conv *conv = step->conv;
    const size_t count = (size_t)conv->channels * (size_t)conv->height * (size_t)conv->width;
    r->model->kernels.round(conv->levels, in, slot_at(r, step->reads), count);
}

/* A layer on levels. On its own it rounds its input; otherwise the layer before it may have done so, or who offers its
 * pieces. */
static void run_levels(const run *r, const sb_conv *conv, const sb_step *step, const float *in, float *out) {
    const int8_t *levels = slot_at(r, step->reads);
    uint8_t *scratch = r->scratch + step->scratch;
    if (r->piece != WHOLE) {
        conv->kernel->run_level_pieces(conv, r->piece, r->piece + 1, levels, out, scratch);
        return;
    }
    if (step->rounds || !r->fused) round_input(r, step, in);
    conv->kernel->run_levels(conv, levels, out, scratch);
}

static void run_conv(const run *r, const sb_op *op, const sb_step *step, const float *in, float *out) {
    sb_conv conv = *step->conv;
    if (r->times) conv.times = &r->times[op - r->model->program.ops];
    uint8_t *scratch = r->scratch + step->scratch;
    if (!r->fused)
        conv.then.kind = SB_NONE;
    else if (step->added != SB_NO_VALUE)
        conv.added = input_at(r, step->added);
    if (op->code == SB_OP_CONV || conv.width == 1) {
        out = find_outputs(r, &conv, step, out);
        if (step->reads != SB_NO_SLOT)
            run_levels(r, &conv, step, in, out);
        else if (r->piece != WHOLE)
            conv.kernel->run_pieces(&conv, r->piece, r->piece + 1, in, out, scratch);
        else
            conv.kernel->run(&conv, in, out, scratch);
        return;
    }
    /* a fully connected layer over rows: channels first, then back; the plan put the room behind the scratch */
    const size_t own = conv.kernel->scratch_size ? conv.kernel->scratch_size(&conv) : 0;
    float *columns = (float *)scratch + rounded_floats((own + sizeof(float) - 1) / sizeof(float));
    float *results = columns + rounded_floats((size_t)conv.channels * (size_t)conv.width);
    transpose(in, conv.width, conv.channels, columns);
    if (conv.levels.step > 0) {
        int8_t *levels = (int8_t *)(results + rounded_floats((size_t)conv.weight.out * (size_t)conv.width));
        r->model->kernels.round(conv.levels, columns, levels, (size_t)conv.channels * (size_t)conv.width);
        conv.kernel->run_levels(&conv, levels, results, scratch);
    } else {
        conv.kernel->run(&conv, columns, results, scratch);
    }
    transpose(results, conv.weight.out, conv.width, out);
}

static void concat(const run *r, const sb_op *op, const sb_shape *to, float *out) {
    size_t outer = 1;
    for (int32_t d = 0; d < op->dim; d++) outer *= (size_t)to->dims[d];
    for (size_t o = 0; o < outer; o++) {
        for (int32_t i = 0; i < op->input_count; i++) {
            const size_t count = sb_elements(&r->model->plan.values[op->inputs[i]].shape) / outer;
            memcpy(out, input_at(r, op->inputs[i]) + o * count, sizeof(float) * count);
            out += count;
        }
    }
}

/* A piece consists of whole planes. */
static int32_t first_plane(const sb_step *step, int32_t piece) {
    return (int32_t)((int64_t)step->pool.channels * piece / step->pieces);
}

static void run_pool(const run *r, const sb_step *step, const float *in, float *out) {
    const bool as_levels = r->fused && step->reads != SB_NO_SLOT;
    const int32_t first = r->piece == WHOLE ? 0 : first_plane(step, r->piece);
    sb_pool pool = step->pool;
    if (r->piece != WHOLE) pool.channels = first_plane(step, r->piece + 1) - first;
    const size_t from = (size_t)first * (size_t)pool.height * (size_t)pool.width;
    const size_t to = (size_t)first * (size_t)pool.out_height * (size_t)pool.out_width;
    if (as_levels) {
        const int8_t lowest = (int8_t)sb_lowest_level(r->model->plan.slots[step->reads].levels);
        r->model->kernels.pool_levels(&pool, lowest, slot_at(r, step->reads) + from, slot_at(r, step->writes) + to);
    }
    if (!as_levels || step->floats) r->model->kernels.pool(&pool, in + from, out + to);
}

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* The rows from `first` on, `count` of them, to the beginning of every channel. */
static void keep_rows(const sb_conv *conv, int32_t first, int32_t count, float *out) {
    const size_t size = out ? sizeof(float) : sizeof(int8_t), row = (size_t)conv->out_width * size;
    uint8_t *plane = out ? (uint8_t *)out : (uint8_t *)conv->level_out;
    for (int32_t t = 0; t < conv->weight.out; t++, plane += (size_t)conv->room_rows * row)
        memmove(plane, plane + (size_t)(first - conv->first_row) * row, (size_t)count * row);
}

/* The rows done .. last - 1 of a maximum, from the rows conv->first_row .. made - 1 of its input. */
static void run_some_rows(const run *r, const sb_conv *conv, const sb_step *step, int32_t number, int32_t made, int32_t done,
                          int32_t last, const float *rows) {
    sb_pool pool = step->pool;
    const size_t to = (size_t)done * (size_t)pool.out_width;
    pool.pad_top += conv->first_row - done * pool.stride_h;
    pool.height = made - conv->first_row;
    pool.out_height = last - done;
    pool.in_plane = (size_t)conv->room_rows * (size_t)conv->out_width;
    if (rows) {
        r->model->kernels.pool(&pool, rows, value_at(r, number + 1) + to);
        return;
    }
    const int8_t lowest = (int8_t)sb_lowest_level(r->model->plan.slots[step->reads].levels);
    r->model->kernels.pool_levels(&pool, lowest, conv->level_out, slot_at(r, step->writes) + to);
}

/* A convolution and the maximum behind it: a band of the one, then the rows of the other that it completes. */
static void run_in_turns(const run *r, int32_t number) {
    const sb_step *step = &r->model->plan.steps[number], *next = &r->model->plan.steps[step->partner];
    const sb_pool *pool = &next->pool;
    sb_conv conv = *step->conv;
    const float *in = input_at(r, r->model->program.ops[number].inputs[0]);
    float *out = find_outputs(r, &conv, step, value_at(r, step->result));
    const int32_t rows = conv.kernel->band_rows(&conv), pieces = conv.kernel->pieces(&conv);
    const int32_t extent = (pool->kernel_h - 1) * pool->dilation_h + 1;
    int32_t made = 0, done = 0;
    uint64_t spent = 0;
    conv.room_rows = sb_band_room(&conv, pool);
    for (int32_t piece = 0; piece < pieces; piece++) {
        const int32_t first = smaller(made, larger(0, done * pool->stride_h - pool->pad_top));
        keep_rows(&conv, first, made - first, out);
        conv.first_row = first;
        conv.kernel->run_pieces(&conv, piece, piece + 1, in, out, r->scratch + step->scratch);
        made = smaller(made + rows, conv.out_height);
        const int32_t whole = made + pool->pad_top - extent; /* where the last window begins that ends in what is there */
        const int32_t complete = made == conv.out_height ? pool->out_height : whole < 0 ? 0 : whole / pool->stride_h + 1;
        const int32_t last = smaller(complete, pool->out_height);
        const uint64_t start = r->times ? sb_nanoseconds() : 0;
        if (last > done) run_some_rows(r, &conv, next, step->partner, made, done, last, out);
        if (r->times) spent += sb_nanoseconds() - start;
        done = larger(done, last);
    }
    if (!r->times) return;
    r->times[step->partner].total += spent;
    r->times[number].total -= spent;
}

static void run_op(const run *r, int32_t number) {
    const sb_model *model = r->model;
    const sb_op *op = &model->program.ops[number];
    const sb_step *step = &model->plan.steps[number];
    if (step->alias || (step->fused && r->fused)) return;
    if (r->turns && step->partner != SB_NO_OP) {
        if (step->partner > number) run_in_turns(r, number);
        return;
    }
    const int32_t first = op->inputs[0]; /* only constants have no input, and they are aliases */
    const sb_shape *from = &model->plan.values[first].shape, *to = &model->plan.values[number + 1].shape;
    const float *in = input_at(r, first);
    float *out = value_at(r, r->fused ? step->result : number + 1);
    switch (op->code) {
        case SB_OP_CONV:
        case SB_OP_LINEAR: run_conv(r, op, step, in, out); break;
        case SB_OP_AFFINE: sb_affine_op(&model->kernels, op, to, in, out); break;
        case SB_OP_ACTIVATION: model->kernels.function(op->function, in, out, sb_elements(to)); break;
        case SB_OP_PRELU: sb_prelu(&model->kernels, op, to, in, out); break;
        case SB_OP_POOL: run_pool(r, step, in, out); break;
        case SB_OP_ADAPTIVE_POOL: sb_adaptive_pool(&model->kernels, op, from, to, in, out); break;
        case SB_OP_MEAN: sb_mean(&model->kernels, op, from, in, out); break;
        case SB_OP_ARITHMETIC: {
            const sb_shape *other = &model->plan.values[op->inputs[1]].shape;
            sb_broadcast(&model->kernels, (sb_arithmetic)op->arithmetic, from, in, other, input_at(r, op->inputs[1]),
                         to, out);
            break;
        }
        case SB_OP_CONCAT: concat(r, op, to, out); break;
        case SB_OP_SLICE: sb_slice(op, from, to, in, out); break;
        case SB_OP_PERMUTE: sb_permute(op, from, to, in, out); break;
        case SB_OP_LAYER_NORM: sb_layer_norm(&model->kernels, op, to, in, out); break;
        case SB_OP_PAD: sb_pad(op, from, to, in, out); break;
        case SB_OP_UPSAMPLE: sb_upsample(op, from, to, in, out); break;
        case SB_OP_SOFTMAX: sb_softmax(&model->kernels, op->dim, to, in, out); break;
        default: break;
    }
}

void sb_execute(const sb_context *context, sb_observer observer, void *user, sb_op_time *times) {
    const sb_model *model = context->model;
    const run r = {model, context->arena, context->arena, observer == NULL, observer == NULL, times, WHOLE};
    for (int32_t i = 0; i < model->program.op_count; i++) {
        const uint64_t start = times ? sb_nanoseconds() : 0;
        sb_guard(model, r.arena, i);
        run_op(&r, i);
        sb_unguard(model, r.arena);
        if (times) times[i].total += sb_nanoseconds() - start;
        if (!observer) continue;
        const sb_shape *shape = &model->plan.values[i + 1].shape;
        observer(user, (size_t)i, input_at(&r, i + 1), shape->rank, shape->dims);
    }
}

/* ------------------------------------------------------------------------------- several threads, one image */

enum { PATIENCE = 4000 }; /* looks before a thread lets others run: some microseconds */

/* Takes a piece that is on offer, WHOLE if there is none. What the offer says stays as it is until the piece is done. */
static int32_t take_piece(sb_crew *crew) {
    uint64_t offer = atomic_load_explicit(&crew->offer, memory_order_acquire);
    while ((uint32_t)offer)
        if (atomic_compare_exchange_weak_explicit(&crew->offer, &offer, offer - 1, memory_order_acquire,
                                                  memory_order_acquire))
            return (int32_t)(uint32_t)offer - 1;
    return WHOLE;
}

static bool do_piece(const run *r, sb_crew *crew) {
    run own = *r;
    own.piece = take_piece(crew);
    if (own.piece == WHOLE) return false;
    run_op(&own, crew->op);
    atomic_fetch_add_explicit(&crew->done, 1, memory_order_release);
    return true;
}

void sb_lead(const sb_context *context, sb_crew *crew) {
    const sb_model *model = context->model;
    const run r = {model, context->arena, context->arena, true, false, NULL, WHOLE};
    for (int32_t i = 0; i < model->program.op_count; i++) {
        const sb_step *step = &model->plan.steps[i];
        const int32_t pieces = step->pieces;
        if (!pieces) {
            run_op(&r, i);
            continue;
        }
        if (step->rounds) round_input(&r, step, input_at(&r, model->program.ops[i].inputs[0]));
        const uint64_t number = (atomic_load_explicit(&crew->offer, memory_order_relaxed) >> 32) + 1;
        crew->op = i;
        atomic_store_explicit(&crew->done, 0, memory_order_relaxed);
        atomic_store_explicit(&crew->offer, number << 32 | (uint32_t)pieces, memory_order_release);
        while (do_piece(&r, crew)) continue;
        for (int looks = 0; atomic_load_explicit(&crew->done, memory_order_acquire) < pieces;)
            if (looks < PATIENCE)
                looks++;
            else
                sched_yield();
    }
}

void sb_help(const sb_context *leader, const sb_context *own, sb_crew *crew) {
    const run r = {leader->model, leader->arena, own->arena, true, false, NULL, WHOLE};
    for (int looks = 0; !atomic_load_explicit(&crew->over, memory_order_acquire);) {
        if (do_piece(&r, crew))
            looks = 0;
        else if (++looks > PATIENCE)
            sched_yield(); /* a nap would end too late for the next image */
    }
}
