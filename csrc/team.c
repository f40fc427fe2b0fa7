/* Threads over the images of a batch, or, where there are fewer images than threads, over the pieces of every image.
 * Every image, or piece of a layer, is computed by one thread, with the same instructions whoever it is: results do not
 * depend on the number of threads. Images are handed out one by one, so that a thread that the machine holds up does not
 * hold up the others. */
#include "program.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { MAX_THREADS = 1024 };

struct sb_team {
    int32_t threads, started; /* the caller is one of `threads`; `started` workers exist besides */
    sb_context **contexts;    /* one per thread */
    pthread_t *workers;
    pthread_mutex_t lock; /* guards the following */
    pthread_cond_t begin, end;
    uint64_t batch; /* number of the batch at hand: workers wait for it to grow */
    bool open;      /* it has work left; who wakes up later leaves it alone */
    int32_t busy;   /* workers that have begun it and not finished */
    bool stop;
    /* the batch at hand: set before it begins, and not changed until it has ended */
    const float *in;
    float *out;
    size_t images;
    bool shared;        /* all threads work on the same image */
    sb_crew crew;
    atomic_size_t next; /* image that nobody has taken yet */
};

typedef struct worker {
    sb_team *team;
    int32_t number;
} worker;

static void run_images(sb_team *team, const sb_context *context) {
    for (;;) {
        const size_t image = atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed);
        if (image >= team->images) return;
        sb_run_image(context, image, team->in, team->out, NULL);
    }
}

static void lead_images(sb_team *team) {
    for (size_t image = 0; image < team->images; image++) {
        sb_take_input(team->contexts[0], image, team->in);
        sb_lead(team->contexts[0], &team->crew);
        sb_give_output(team->contexts[0], image, team->out);
    }
    atomic_store_explicit(&team->crew.over, true, memory_order_release);
}

static void *work(void *argument) {
    const worker own = *(worker *)argument;
    free(argument);
    sb_team *team = own.team;
    uint64_t seen = 0;
    pthread_mutex_lock(&team->lock);
    for (;;) {
        while ((team->batch == seen || !team->open) && !team->stop) pthread_cond_wait(&team->begin, &team->lock);
        if (team->stop) break;
        seen = team->batch;
        team->busy++;
        pthread_mutex_unlock(&team->lock);
        if (team->shared)
            sb_help(team->contexts[0], team->contexts[own.number], &team->crew);
        else
            run_images(team, team->contexts[own.number]);
        pthread_mutex_lock(&team->lock);
        if (--team->busy == 0) pthread_cond_signal(&team->end);
    }
    pthread_mutex_unlock(&team->lock);
    return NULL;
}

static bool start_worker(sb_team *team) {
    worker *argument = malloc(sizeof *argument);
    if (!argument) return false;
    *argument = (worker){team, team->started + 1};
    if (pthread_create(&team->workers[team->started], NULL, work, argument)) {
        free(argument);
        return false;
    }
    team->started++;
    return true;
}

static sb_status fill_team(const sb_model *model, sb_team *team, sb_error *error) {
    team->contexts = calloc((size_t)team->threads, sizeof *team->contexts);
    team->workers = calloc((size_t)team->threads, sizeof *team->workers);
    if (!team->contexts || !team->workers) return sb_fail(error, SB_ERROR_MEMORY, -1, "no memory for a team");
    for (int32_t i = 0; i < team->threads; i++) {
        const sb_status status = sb_context_create(model, &team->contexts[i], error);
        if (status) return status;
    }
    while (team->started < team->threads - 1)
        if (!start_worker(team))
            return sb_fail(error, SB_ERROR_MEMORY, -1, "thread %d of %d could not be started", (int)team->started + 2,
                           (int)team->threads);
    return SB_OK;
}

sb_status sb_team_create(const sb_model *model, int32_t threads, sb_team **team, sb_error *error) {
    if (error) *error = (sb_error){.op = -1};
    if (!model || !team || threads < 1 || threads > MAX_THREADS)
        return sb_fail(error, SB_ERROR_ARGUMENT, -1, "sb_team_create needs a model, a place and 1..%d threads",
                       MAX_THREADS);
    *team = NULL;
    sb_team *made = calloc(1, sizeof *made);
    if (!made) return sb_fail(error, SB_ERROR_MEMORY, -1, "no memory for a team");
    made->threads = threads;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->begin, NULL);
    pthread_cond_init(&made->end, NULL);
    const sb_status status = fill_team(model, made, error);
    if (status)
        sb_team_destroy(made);
    else
        *team = made;
    return status;
}

sb_status sb_team_run(sb_team *team, const float *in, size_t images, float *out) {
    if (!team || (images && (!in || !out))) return SB_ERROR_ARGUMENT;
    team->in = in;
    team->out = out;
    team->images = images;
    atomic_store_explicit(&team->next, 0, memory_order_relaxed); /* the lock below makes it visible */
    team->shared = images && images < (size_t)team->threads && team->contexts[0]->model->plan.shared_steps;
    atomic_store_explicit(&team->crew.over, false, memory_order_relaxed);
    if (team->started && (images > 1 || team->shared)) {
        pthread_mutex_lock(&team->lock);
        team->batch++;
        team->open = true;
        pthread_cond_broadcast(&team->begin);
        pthread_mutex_unlock(&team->lock);
    }
    if (team->shared)
        lead_images(team);
    else
        run_images(team, team->contexts[0]);
    pthread_mutex_lock(&team->lock);
    team->open = false;
    while (team->busy) pthread_cond_wait(&team->end, &team->lock);
    pthread_mutex_unlock(&team->lock);
    return SB_OK;
}

void sb_team_destroy(sb_team *team) {
    if (!team) return;
    pthread_mutex_lock(&team->lock);
    team->stop = true;
    pthread_cond_broadcast(&team->begin);
    pthread_mutex_unlock(&team->lock);
    for (int32_t i = 0; i < team->started; i++) pthread_join(team->workers[i], NULL);
    for (int32_t i = 0; i < team->threads && team->contexts; i++) sb_context_destroy(team->contexts[i]);
    pthread_cond_destroy(&team->begin);
    pthread_cond_destroy(&team->end);
    pthread_mutex_destroy(&team->lock);
    free(team->contexts);
    free(team->workers);
    free(team);
}
