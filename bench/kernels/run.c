/* Runs a packed network on one input of raw floats: for machines without Python, and under emulation.
 *
 *   run net.sbit row input.f32 output.f32
 */
#include <stdio.h>
#include <stdlib.h>

#include "../../csrc/subbit.h"

static void *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) return NULL;
    *size = (size_t)ftell(file);
    rewind(file);
    void *bytes = malloc(*size + 1);
    if (!bytes || fread(bytes, 1, *size, file) != *size) return NULL;
    fclose(file);
    return bytes;
}

static size_t elements(int32_t (*shape_of)(const sb_model *, int32_t *), const sb_model *model) {
    int32_t shape[SB_MAX_RANK];
    const int32_t rank = shape_of(model, shape);
    size_t count = 1;
    for (int32_t i = 0; i < rank; i++) count *= (size_t)shape[i];
    return count;
}

int main(int count, char **arguments) {
    if (count != 5) return fprintf(stderr, "run net.sbit row input.f32 output.f32\n"), 2;
    size_t size = 0, input_size = 0;
    void *bytes = read_file(arguments[1], &size), *input = read_file(arguments[3], &input_size);
    const sb_options options = {.isa = arguments[2]};
    sb_model *model;
    sb_context *context;
    sb_error error;
    if (!bytes || !input) return fprintf(stderr, "cannot read %s or %s\n", arguments[1], arguments[3]), 1;
    if (sb_open(bytes, size, &options, &model, &error) || sb_context_create(model, &context, &error))
        return fprintf(stderr, "%s\n", error.message), 1;
    if (input_size != elements(sb_input_shape, model) * sizeof(float)) return fprintf(stderr, "wrong input size\n"), 1;
    const size_t outputs = elements(sb_output_shape, model);
    float *output = malloc(outputs * sizeof *output);
    FILE *file = fopen(arguments[4], "wb");
    if (!output || !file || sb_run(context, input, 1, output) || fwrite(output, sizeof *output, outputs, file) != outputs)
        return fprintf(stderr, "cannot run or write %s\n", arguments[4]), 1;
    fclose(file);
    free(output);
    free(input);
    sb_context_destroy(context);
    sb_close(model);
    free(bytes);
    return 0;
}
