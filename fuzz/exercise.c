#include "exercise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONTEXT = 64 << 20 };

static void demand(bool held, const char *promise) {
    if (held) return;
    fprintf(stderr, "broken promise: %s\n", promise);
    abort();
}

static void ask_everything(const sb_model *model) {
    int32_t shape[SB_MAX_RANK];
    sb_preprocessing preprocessing;
    size_t length = 0;
    demand(sb_input_shape(model, shape) >= 1, "an input has dimensions");
    demand(sb_output_shape(model, shape) >= 0, "an output has a shape");
    demand(sb_value_shape(model, sb_op_count(model) + 1, shape) == -1, "no value behind the last");
    for (size_t op = 0; op < sb_op_count(model); op++) {
        const int32_t rank = sb_value_shape(model, op + 1, shape);
        for (int32_t i = 0; i < rank; i++) demand(shape[i] >= 1 && shape[i] <= SB_MAX_DIM, "dimensions within limits");
        length += strlen(sb_op_kind(model, op)) + strlen(sb_op_name(model, op)) + strlen(sb_op_kernel(model, op));
    }
    for (size_t i = 0; i < sb_label_count(model); i++) length += strlen(sb_label(model, i));
    demand(!sb_label(model, sb_label_count(model)) && !sb_op_kind(model, sb_op_count(model)), "NULL out of range");
    sb_get_preprocessing(model, &preprocessing);
    for (int32_t i = 0; i < preprocessing.channels; i++)
        demand(preprocessing.std[i] != 0 && preprocessing.mean[i] == preprocessing.mean[i], "usable preprocessing");
    demand(length + strlen(sb_isa(model)) + strlen(sb_features()) > 0, "names are texts");
    demand(sb_memory(model) > sb_arena_size(model), "the memory of a model includes its arena");
}

/* Reads all of a value, so that a place outside the arena does not go unseen. */
static void observe(void *user, size_t op, const float *value, int32_t rank, const int32_t *shape) {
    float *sum = user;
    size_t count = 1;
    for (int32_t i = 0; i < rank; i++) count *= (size_t)shape[i];
    for (size_t i = 0; i < count; i++) *sum += value[i];
    demand(rank <= SB_MAX_RANK && op < SB_MAX_OPS, "values within limits");
}

static void run(const sb_model *model) {
    const sb_value *values = model->plan.values;
    const size_t in_count = sb_elements(&values[0].shape);
    const size_t out_count = sb_elements(&values[model->program.output].shape);
    float *in = malloc(sizeof(float) * 2 * in_count), *out = malloc(sizeof(float) * 2 * out_count), sum = 0;
    sb_context *context;
    sb_error error;
    demand(in && out && !sb_context_create(model, &context, &error), "memory for a small context");
    for (size_t i = 0; i < in_count; i++) in[in_count + i] = in[i] = (float)(i % 64) / 16 - 2;
    demand(sb_run(context, in, 2, out) == SB_OK, "a network that opened runs");
    demand(memcmp(out, out + out_count, sizeof(float) * out_count) == 0, "equal inputs give equal outputs");
    demand(sb_run_observed(context, in, out, observe, &sum) == SB_OK, "an observed run");
    sb_context_destroy(context);
    free(in);
    free(out);
}

sb_status sb_exercise(const uint8_t *bytes, size_t size, const exercise *how) {
    const sb_options options = {.isa = how->isa, .max_memory = how->max_memory};
    sb_model *model = (sb_model *)&options; /* anything but NULL */
    sb_error error;
    const sb_status status = sb_open(bytes, size, &options, &model, &error);
    if (status) {
        demand(model == NULL && error.status == status, "a failed open says why and leaves no model");
        demand(memchr(error.message, 0, sizeof error.message) && error.message[0], "a message for every failure");
        demand(strcmp(sb_status_name(status), "unknown") != 0, "a name for every failure");
        demand(error.op >= -1 && error.op < SB_MAX_OPS, "the operation of a failure");
        return status;
    }
    demand(!how->max_memory || sb_memory(model) <= how->max_memory, "max_memory holds");
    ask_everything(model);
    if (sb_memory(model) <= MAX_CONTEXT && sb_work(model) <= how->max_work) run(model);
    sb_close(model);
    return SB_OK;
}
