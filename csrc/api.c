/* The functions of subbit.h around parser, plan and executor. */
#include "program.h"

#include <stdlib.h>
#include <string.h>

static sb_status apply_options(sb_program *program, const sb_options *options, sb_error *error) {
    if (!options || options->input_rank == 0) return SB_OK;
    if (options->input_rank != program->input.rank)
        return sb_fail(error, SB_ERROR_ARGUMENT, -1, "an input of rank %d for a network of rank %d",
                       (int)options->input_rank, (int)program->input.rank);
    int64_t count = 1;
    for (int32_t i = 0; i < program->input.rank; i++) {
        const int32_t size = options->input_shape[i];
        if (size < 1 || size > SB_MAX_DIM)
            return sb_fail(error, SB_ERROR_ARGUMENT, -1, "an input dimension of %d, possible are 1..%d", (int)size,
                           SB_MAX_DIM);
        program->input.dims[i] = size;
        count *= size;
        if (count > SB_MAX_ELEMENTS)
            return sb_fail(error, SB_ERROR_LIMIT, -1, "an input of more than %d elements", SB_MAX_ELEMENTS);
    }
    return SB_OK;
}

static uint64_t context_bytes(const sb_model *model) {
    return sizeof(sb_context) + SB_ALIGNMENT - 1 + model->plan.arena;
}

static sb_status open_model(sb_model *model, const void *bytes, size_t size, const sb_options *options,
                            sb_error *error) {
    sb_status status = sb_select_kernels(options ? options->isa : NULL, &model->kernels, error);
    if (!status) status = sb_parse(bytes, size, &model->heap, &model->program, error);
    if (!status) status = apply_options(&model->program, options, error);
    if (!status) status = sb_plan_program(&model->program, &model->kernels, &model->heap, &model->plan, error);
    if (!status && options && options->max_memory && sb_memory(model) > options->max_memory)
        status = sb_fail(error, SB_ERROR_LIMIT, -1, "%llu bytes of memory are needed, %llu allowed",
                         (unsigned long long)sb_memory(model), (unsigned long long)options->max_memory);
    if (!status) model->work = sb_count_work(&model->program, model->plan.values);
    if (!status && options && options->max_work && model->work > options->max_work)
        status = sb_fail(error, SB_ERROR_LIMIT, -1, "%llu multiply-adds are needed for one input, %llu allowed",
                         (unsigned long long)model->work, (unsigned long long)options->max_work);
    return status;
}

sb_status sb_open(const void *bytes, size_t size, const sb_options *options, sb_model **model, sb_error *error) {
    if (error) *error = (sb_error){.op = -1};
    if (!model || !bytes) return sb_fail(error, SB_ERROR_ARGUMENT, -1, "sb_open needs bytes and a place for the model");
    *model = NULL;
    sb_model *opened = calloc(1, sizeof *opened);
    if (!opened) return sb_fail(error, SB_ERROR_MEMORY, -1, "no memory");
    opened->heap.limit = SB_OPEN_FIXED + SB_OPEN_PER_BYTE * (uint64_t)size;
    if (options && options->max_memory && options->max_memory < opened->heap.limit)
        opened->heap.limit = options->max_memory;
    const sb_status status = open_model(opened, bytes, size, options, error);
    if (status)
        sb_close(opened);
    else
        *model = opened;
    return status;
}

void sb_close(sb_model *model) {
    if (!model) return;
    sb_free_all(&model->heap);
    free(model);
}

/* --------------------------------------------------------------------------------------------- questions */

int32_t sb_value_shape(const sb_model *model, size_t value, int32_t shape[SB_MAX_RANK]) {
    if (value > (size_t)model->program.op_count) return -1;
    const sb_shape *of = &model->plan.values[value].shape;
    memcpy(shape, of->dims, sizeof of->dims);
    return of->rank;
}

int32_t sb_input_shape(const sb_model *model, int32_t shape[SB_MAX_RANK]) { return sb_value_shape(model, 0, shape); }

int32_t sb_output_shape(const sb_model *model, int32_t shape[SB_MAX_RANK]) {
    return sb_value_shape(model, (size_t)model->program.output, shape);
}

size_t sb_op_count(const sb_model *model) { return (size_t)model->program.op_count; }

const char *sb_op_kind(const sb_model *model, size_t op) {
    static const char *const KINDS[SB_OP_END] = {
        "", "Conv", "Linear", "Affine", "Activation", "PReLU", "Pool", "AdaptivePool", "Mean", "Arithmetic",
        "Constant", "Concat", "Slice", "Reshape", "Permute", "LayerNorm", "Pad", "Upsample", "Softmax"};
    return op < sb_op_count(model) ? KINDS[model->program.ops[op].code] : NULL;
}

const char *sb_op_name(const sb_model *model, size_t op) {
    return op < sb_op_count(model) ? model->program.ops[op].name : NULL;
}

const char *sb_op_kernel(const sb_model *model, size_t op) {
    if (op >= sb_op_count(model)) return NULL;
    const sb_conv *conv = model->plan.steps[op].conv;
    return conv ? conv->kernel->name : "";
}

size_t sb_label_count(const sb_model *model) { return model->program.label_count; }

const char *sb_label(const sb_model *model, size_t number) {
    return number < model->program.label_count ? model->program.labels[number] : NULL;
}

void sb_get_preprocessing(const sb_model *model, sb_preprocessing *preprocessing) {
    *preprocessing = model->program.preprocessing;
}

size_t sb_arena_size(const sb_model *model) { return model->plan.arena; }

size_t sb_memory(const sb_model *model) {
    return (size_t)(sizeof *model + model->heap.bytes + context_bytes(model));
}

uint64_t sb_work(const sb_model *model) { return model->work; }

const char *sb_isa(const sb_model *model) { return model->kernels.name; }

const char *sb_version(void) { return "1.1"; }

const char *sb_status_name(sb_status status) {
    static const char *const NAMES[] = {"ok", "magic", "byte order", "version", "length", "checksum", "program",
                                        "value", "text", "limit", "shape", "memory", "isa", "argument"};
    return (unsigned)status < sizeof NAMES / sizeof *NAMES ? NAMES[status] : "unknown";
}

/* --------------------------------------------------------------------------------------------------- runs */

sb_status sb_context_create(const sb_model *model, sb_context **context, sb_error *error) {
    if (error) *error = (sb_error){.op = -1};
    if (!model || !context) return sb_fail(error, SB_ERROR_ARGUMENT, -1, "sb_context_create needs a model and a place");
    *context = calloc(1, (size_t)context_bytes(model));
    if (!*context)
        return sb_fail(error, SB_ERROR_MEMORY, -1, "no memory for a context of %llu bytes",
                       (unsigned long long)context_bytes(model));
    const uintptr_t start = (uintptr_t)(*context + 1);
    (*context)->model = model;
    (*context)->arena = (uint8_t *)((start + SB_ALIGNMENT - 1) / SB_ALIGNMENT * SB_ALIGNMENT);
    return SB_OK;
}

void sb_context_destroy(sb_context *context) { free(context); }

void sb_take_input(const sb_context *context, size_t number, const float *in) {
    const sb_value *input = context->model->plan.values;
    const size_t count = sb_elements(&input->shape);
    memcpy(context->arena + input->offset, in + number * count, sizeof(float) * count);
}

void sb_give_output(const sb_context *context, size_t number, float *out) {
    const sb_value *result = &context->model->plan.values[context->model->program.output];
    const void *value = result->constant ? (const void *)result->constant : context->arena + result->offset;
    const size_t count = sb_elements(&result->shape);
    memcpy(out + number * count, value, sizeof(float) * count);
}

void sb_run_image(const sb_context *context, size_t number, const float *in, float *out, sb_op_time *times) {
    sb_take_input(context, number, in);
    sb_execute(context, NULL, NULL, times);
    sb_give_output(context, number, out);
}

sb_status sb_run(sb_context *context, const float *in, size_t images, float *out) {
    if (!context || (images && (!in || !out))) return SB_ERROR_ARGUMENT;
    for (size_t i = 0; i < images; i++) sb_run_image(context, i, in, out, NULL);
    return SB_OK;
}

sb_status sb_run_observed(sb_context *context, const float *in, float *out, sb_observer observer, void *user) {
    if (!context || !in || !observer) return SB_ERROR_ARGUMENT;
    sb_take_input(context, 0, in);
    sb_execute(context, observer, user, NULL);
    if (out) sb_give_output(context, 0, out);
    return SB_OK;
}
