/* ckpt_example.c - save and load sharded state, on one page.
 *
 *     build/ckptd --listen unix:/tmp/ckptd.sock --store /tmp/store &
 *     build/ckpt_example unix:/tmp/ckptd.sock
 *
 * Two ranks (threads here; processes or hosts in practice) each hold half of the rows of one
 * matrix. They load the newest checkpoint if there is one, run three steps, save after each, and
 * wait until the last is durable. Run it again: it continues where it stopped. */
#include <ckpt.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 2, ROWS = 1000, COLUMNS = 256, STEPS = 3 };

static const char *server;
static uint64_t attempt; /* opened by rank 0, for all */
static pthread_barrier_t barrier;

static void must(int error, const char *what)
{
    if (error != 0) {
        fprintf(stderr, "%s: %s\n", what, ckpt_error());
        exit(1);
    }
}

static void *rank_main(void *argument)
{
    uint32_t rank = (uint32_t)(uintptr_t)argument;
    uint64_t rows = ROWS / RANKS, step = 0;
    float *weights = calloc(rows * COLUMNS, sizeof *weights);
    struct ckpt_tensor tensor = {.name = "weights",
                                 .dtype = "F32",
                                 .dims = 2,
                                 .shape = {ROWS, COLUMNS},
                                 .offset = {rank * rows, 0},
                                 .extent = {rows, COLUMNS},
                                 .data = weights};
    struct ckpt *ckpt;
    struct ckpt_loaded *loaded;
    struct ckpt_save *save;
    must(ckpt_open(&ckpt,
                   &(struct ckpt_options){
                       .server = server, .run = "example", .rank = rank, .world_size = RANKS}),
         "open");
    if (rank == 0)
        must(ckpt_attempt_open(ckpt, &attempt, NULL, NULL), "attempt");
    pthread_barrier_wait(&barrier);
    must(ckpt_describe(ckpt, attempt, &tensor, 1), "describe");
    int error = ckpt_load(ckpt, &(struct ckpt_load_options){.step = CKPT_NEWEST}, &loaded);
    if (error == 0) {
        step = loaded->info.step;
        printf("rank %u: loaded step %llu, saved by %u ranks\n", rank, (unsigned long long)step,
               loaded->info.world_size);
        ckpt_loaded_free(loaded);
    } else if (error != CKPT_NOT_FOUND) {
        must(error, "load");
    }
    for (int i = 0; i < STEPS; i++) {
        step++;
        for (uint64_t j = 0; j < rows * COLUMNS; j++)
            weights[j] += 1.0f; /* training */
        must(ckpt_save_begin(ckpt, &save, step, rank == 0 ? "{\"note\":\"example\"}" : NULL),
             "begin");
        must(ckpt_save_copy(save, ckpt_save_order(ckpt, 0)),
             "copy"); /* from here on the weights may change again */
        must(ckpt_save_end(save), "end");
        must(ckpt_save_wait(ckpt, step, 60000), "wait");
    }
    printf("rank %u: step %llu is durable, weights[0] = %g\n", rank, (unsigned long long)step,
           (double)weights[0]);
    ckpt_close(ckpt);
    free(weights);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[RANKS];
    if (argc != 2) {
        fprintf(stderr, "usage: %s unix:/path/to/ckptd.sock\n", argv[0]);
        return 2;
    }
    server = argv[1];
    pthread_barrier_init(&barrier, NULL, RANKS);
    for (uintptr_t rank = 0; rank < RANKS; rank++)
        pthread_create(&threads[rank], NULL, rank_main, (void *)rank);
    for (int rank = 0; rank < RANKS; rank++)
        pthread_join(threads[rank], NULL);
    return 0;
}
