/* save_load.c - a single rank that saves and loads a state of a given size through ckptd.
 *
 *     save_load SERVER RUN MIB
 *
 * Commands on stdin, each answered with one JSON line (seconds):
 *
 *     save     one checkpoint: {"begun": an image is there, "copied": the state may change again,
 *              "committed": it is durable}
 *     load     the newest one: {"seconds", "bytes_memory", "bytes_local"}
 *     memcpy   the same bytes by memcpy from one resident buffer: {"seconds"}
 *     forget   closes the session and opens a new attempt (after ckptd was started again): {}
 *
 * The state is F32 tensors of 64 MiB, filled with numbers that no checksum mistakes for zeros;
 * every save changes each tensor, so no two checkpoints are equal. */
#include "clients/ckpt.h"
#include "tests/bench/bench.h"

#include <string.h>

#define TENSOR_MIB 64u
#define TENSORS_MAX 256u
#define ROW_FLOATS 1024u

struct state {
    const char *server, *run;
    struct ckpt *ckpt;
    struct ckpt_tensor tensors[TENSORS_MAX];
    char names[TENSORS_MAX][16];
    uint32_t num_tensors;
    size_t tensor_bytes;
    char *other; /* as large as all tensors; the source of memcpy */
    uint64_t step;
};

static void *new_memory(size_t bytes)
{
    void *memory = aligned_alloc(4096, bytes);
    BENCH_TRY(memory == NULL, "out of memory");
    return memory;
}

static void fill(struct state *state, uint32_t mib)
{
    uint64_t bytes = (uint64_t)mib << 20, rows = (uint64_t)TENSOR_MIB << 20;
    BENCH_TRY(mib == 0 || mib % TENSOR_MIB != 0 || mib / TENSOR_MIB > TENSORS_MAX,
              "MIB must be a multiple of 64, at most 16384");
    state->num_tensors = mib / TENSOR_MIB;
    state->tensor_bytes = rows;
    rows /= ROW_FLOATS * sizeof(float);
    state->other = new_memory(bytes);
    uint32_t value = 1;
    for (uint32_t i = 0; i < state->num_tensors; i++) {
        float *data = new_memory(state->tensor_bytes);
        for (uint64_t k = 0; k < rows * ROW_FLOATS; k++) {
            value = value * 1664525u + 1013904223u;
            data[k] = (float)(value >> 8) * 0x1p-24f;
        }
        snprintf(state->names[i], sizeof state->names[i], "tensor.%u", i);
        state->tensors[i] = (struct ckpt_tensor){.name = state->names[i],
                                                 .dtype = "F32",
                                                 .dims = 2,
                                                 .shape = {rows, ROW_FLOATS},
                                                 .extent = {rows, ROW_FLOATS},
                                                 .data = data};
        memcpy(state->other + (uint64_t)i * state->tensor_bytes, data, state->tensor_bytes);
    }
}

static void open_session(struct state *state)
{
    uint64_t attempt;
    struct ckpt_info newest;
    struct ckpt_options options = {
        .server = state->server, .run = state->run, .rank = 0, .world_size = 1};
    BENCH_TRY(ckpt_open(&state->ckpt, &options), ckpt_error());
    BENCH_TRY(ckpt_attempt_open(state->ckpt, &attempt, &newest, &(struct ckpt_attempt_options){0}),
              ckpt_error());
    BENCH_TRY(ckpt_describe(state->ckpt, attempt, state->tensors, state->num_tensors),
              ckpt_error());
    state->step = newest.step;
}

static void save(struct state *state)
{
    struct ckpt_save *save;
    state->step++;
    for (uint32_t i = 0; i < state->num_tensors; i++)
        ((float *)state->tensors[i].data)[state->step % 1024] += 1.0f;
    double began = bench_seconds();
    BENCH_TRY(ckpt_save_begin(state->ckpt, &save, state->step, "{}"), ckpt_error());
    double begun = bench_seconds() - began;
    for (uint32_t i = 0; i < state->num_tensors; i++)
        BENCH_TRY(ckpt_save_copy(save, i), ckpt_error());
    BENCH_TRY(ckpt_save_end(save), ckpt_error());
    double copied = bench_seconds() - began;
    BENCH_TRY(ckpt_save_wait(state->ckpt, state->step, 120000), ckpt_error());
    printf("{\"begun\": %.6f, \"copied\": %.6f, \"committed\": %.6f}\n", begun, copied,
           bench_seconds() - began);
}

static void load(struct state *state)
{
    struct ckpt_loaded *loaded;
    double began = bench_seconds();
    BENCH_TRY(ckpt_load(state->ckpt, &(struct ckpt_load_options){.step = CKPT_NEWEST}, &loaded),
              ckpt_error());
    printf("{\"seconds\": %.6f, \"bytes_memory\": %llu, \"bytes_local\": %llu}\n",
           bench_seconds() - began, (unsigned long long)loaded->bytes_memory,
           (unsigned long long)loaded->bytes_local);
    ckpt_loaded_free(loaded);
}

static void copy(struct state *state)
{
    double began = bench_seconds();
    for (uint32_t i = 0; i < state->num_tensors; i++)
        memcpy(state->tensors[i].data, state->other + (uint64_t)i * state->tensor_bytes,
               state->tensor_bytes);
    printf("{\"seconds\": %.6f}\n", bench_seconds() - began);
}

int main(int argc, char **argv)
{
    static struct state state;
    char command[32];
    BENCH_TRY(argc != 4, "usage: save_load SERVER RUN MIB");
    state.server = argv[1];
    state.run = argv[2];
    fill(&state, (uint32_t)strtoul(argv[3], NULL, 10));
    open_session(&state);
    while (fgets(command, sizeof command, stdin) != NULL) {
        command[strcspn(command, "\n")] = '\0';
        if (strcmp(command, "save") == 0) {
            save(&state);
        } else if (strcmp(command, "load") == 0) {
            load(&state);
        } else if (strcmp(command, "memcpy") == 0) {
            copy(&state);
        } else if (strcmp(command, "forget") == 0) {
            ckpt_close(state.ckpt);
            open_session(&state);
            printf("{}\n");
        } else {
            BENCH_TRY(-1, "unknown command on stdin");
        }
        fflush(stdout);
    }
    ckpt_close(state.ckpt);
    for (uint32_t i = 0; i < state.num_tensors; i++)
        free(state.tensors[i].data);
    free(state.other);
    return 0;
}
