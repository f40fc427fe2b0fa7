/* One model, many threads, each with a context of its own or with a team: built with ThreadSanitizer, and compared.
 *
 *     threads net.sbit ROUNDS
 */
#include "subbit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 3, IMAGES = 5, LARGEST_FILE = 1 << 20 };

typedef struct worker {
    const sb_model *model;
    int rounds;
    const float *in;  /* IMAGES times the same image */
    size_t outputs;   /* of one image */
    float *out;       /* IMAGES times */
    int failed;
} worker;

static size_t count_of(int32_t rank, const int32_t *shape) {
    size_t count = 1;
    for (int32_t i = 0; i < rank; i++) count *= (size_t)shape[i];
    return count;
}

static void observe(void *user, size_t op, const float *value, int32_t rank, const int32_t *shape) {
    (void)op;
    *(float *)user += value[count_of(rank, shape) - 1];
}

static int run_alone(worker *own) {
    sb_context *context;
    sb_error error;
    float sum = 0;
    if (sb_context_create(own->model, &context, &error)) return 1;
    int failed = sb_run_observed(context, own->in, NULL, observe, &sum) != SB_OK;
    failed |= sb_run(context, own->in, 1, own->out) != SB_OK;
    sb_context_destroy(context);
    return failed;
}

static int run_with_team(worker *own) {
    sb_team *team;
    sb_error error;
    if (sb_team_create(own->model, 3, &team, &error)) return 1;
    int failed = 0;
    for (size_t images = 0; images <= IMAGES; images++) failed |= sb_team_run(team, own->in, images, own->out) != SB_OK;
    sb_team_destroy(team);
    return failed;
}

static void *work(void *user) {
    worker *own = user;
    for (int round = 0; round < own->rounds; round++) {
        own->failed |= run_alone(own) || run_with_team(own) || !strlen(sb_features());
        for (size_t i = 1; i < IMAGES; i++)
            own->failed |= memcmp(own->out, own->out + i * own->outputs, sizeof(float) * own->outputs) != 0;
    }
    return NULL;
}

static int run_together(const sb_model *model, int rounds, const float *in, size_t outputs, float *out) {
    pthread_t threads[THREADS];
    worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){model, rounds, in, outputs, out + (size_t)i * IMAGES * outputs, 0};
        if (pthread_create(&threads[i], NULL, work, &workers[i])) return 1;
    }
    int failed = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        failed |= workers[i].failed || memcmp(workers[i].out, out, sizeof(float) * outputs);
    }
    return failed;
}

int main(int count, char **arguments) {
    static uint8_t bytes[LARGEST_FILE];
    FILE *file = count == 3 ? fopen(arguments[1], "rb") : NULL;
    if (!file) return fprintf(stderr, "usage: threads net.sbit ROUNDS\n"), 2;
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    sb_model *model;
    sb_error error;
    if (sb_open(bytes, size, NULL, &model, &error)) return fprintf(stderr, "%s\n", error.message), 1;
    int32_t shape[SB_MAX_RANK];
    const size_t inputs = count_of(sb_input_shape(model, shape), shape);
    const size_t outputs = count_of(sb_output_shape(model, shape), shape);
    float *in = malloc(sizeof(float) * IMAGES * inputs), *out = calloc(THREADS * IMAGES * outputs, sizeof(float));
    if (!in || !out) return 1;
    for (size_t i = 0; i < IMAGES * inputs; i++) in[i] = (float)(i % inputs % 17) / 8 - 1;
    const int failed = run_together(model, atoi(arguments[2]), in, outputs, out);
    if (failed) fprintf(stderr, "threads disagree, or one of them failed\n");
    sb_close(model);
    free(in);
    free(out);
    return failed;
}
