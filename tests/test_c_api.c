/* Opens and runs a file through subbit.h alone: prints the output of one input, then the failures of wrong calls.
 *
 *     test_c_api net.sbit < floats > floats
 */
#include "subbit.h"

#include <stdio.h>
#include <stdlib.h>

static size_t elements(int32_t rank, const int32_t *shape) {
    size_t count = 1;
    for (int32_t i = 0; i < rank; i++) count *= (size_t)shape[i];
    return count;
}

static void *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    void *bytes = malloc(*size);
    if (bytes && fread(bytes, 1, *size, file) != *size) *size = 0;
    fclose(file);
    return bytes;
}

static void count_values(void *user, size_t op, const float *value, int32_t rank, const int32_t *shape) {
    (void)op;
    (void)shape;
    if (value && rank >= 0) ++*(size_t *)user;
}

static int fail(const char *what) { return fprintf(stderr, "%s\n", what), 1; }

static int check_failures(const void *bytes, size_t size) {
    sb_model *model = (sb_model *)&model;
    sb_error error;
    if (sb_open(bytes, size - 1, NULL, &model, &error) != SB_ERROR_LENGTH || model) return fail("truncated file");
    if (error.status != SB_ERROR_LENGTH || error.op != -1 || !error.message[0]) return fail("error structure");
    if (sb_open("PK", 2, NULL, &model, NULL) != SB_ERROR_MAGIC) return fail("foreign file without an error structure");
    if (sb_open(NULL, 0, NULL, &model, &error) != SB_ERROR_ARGUMENT) return fail("no bytes");
    const sb_options tight = {.max_memory = 4096}, quick = {.max_work = 100}, rank = {.input_rank = 1, .input_shape = {3}}, isa = {.isa = "none"};
    const sb_status status = sb_open(bytes, size, &tight, &model, &error);
    if (status != SB_ERROR_MEMORY && status != SB_ERROR_LIMIT) return fail("limit of memory");
    if (sb_open(bytes, size, &quick, &model, &error) != SB_ERROR_LIMIT || model) return fail("limit of work");
    if (sb_open(bytes, size, &rank, &model, &error) != SB_ERROR_ARGUMENT) return fail("rank of the input");
    if (sb_open(bytes, size, &isa, &model, &error) != SB_ERROR_ISA) return fail("instruction set");
    sb_close(NULL);
    sb_context_destroy(NULL);
    return 0;
}

int main(int count, char **arguments) {
    size_t size = 0;
    void *bytes = count == 2 ? read_file(arguments[1], &size) : NULL;
    if (!bytes) return fail("usage: test_c_api net.sbit");
    if (check_failures(bytes, size)) return 1;

    sb_model *model;
    sb_context *context;
    sb_error error;
    if (sb_open(bytes, size, NULL, &model, &error) || sb_context_create(model, &context, &error))
        return fail(error.message);
    int32_t shape[SB_MAX_RANK];
    const size_t inputs = elements(sb_input_shape(model, shape), shape);
    const size_t outputs = elements(sb_output_shape(model, shape), shape);
    float *in = malloc(inputs * sizeof *in), *out = malloc(outputs * sizeof *out);
    if (!in || !out || fread(in, sizeof *in, inputs, stdin) != inputs) return fail("input");
    size_t seen = 0;
    if (sb_run_observed(context, in, NULL, count_values, &seen) || seen != sb_op_count(model)) return fail("observer");
    if (sb_run(context, in, 1, out) || sb_run(context, NULL, 0, NULL)) return fail("run");
    if (sb_run(context, NULL, 1, out) != SB_ERROR_ARGUMENT) return fail("run without an input");
    if (sb_op_kind(model, seen) || sb_label(model, sb_label_count(model))) return fail("out of range");
    if (sb_memory(model) < sb_arena_size(model)) return fail("memory");
    if (sb_work(model) <= 100) return fail("work");
    fwrite(out, sizeof *out, outputs, stdout);
    fprintf(stderr, "%s %s %s\n", sb_version(), sb_isa(model), sb_label(model, 0));
    sb_context_destroy(context);
    sb_close(model);
    free(bytes);
    free(in);
    free(out);
    return 0;
}
