/* ranks.c - the ranks of a job as threads of one process: they save and load a state through ckptd.
 *
 *     ranks SERVER[,SERVER...] RUN RANKS MIB LAYOUT
 *
 * Ranks go to several servers in turn. MIB is the size of the whole state. LAYOUT says how each
 * tensor is cut among the ranks:
 *
 *     rows, columns   F32 tensors of 64 MiB, cut on their first or their last dimension
 *     mesh            F32 tensors from 1 KiB to 256 MiB as a 3-D mesh cuts them: RANKS is pp x dp x
 *                     tp with two parts for each of pp and tp where RANKS allows
 *
 * Commands on stdin, each answered with one JSON line. `seconds` are from the first rank's begin to
 * the last rank's end, `cpu` the process's CPU seconds meanwhile:
 *
 *     save     a checkpoint: {"begun": every rank has an image, "copied": the state may change
 *              again, "committed": it is durable, "cpu", "bytes"}
 *     load     the newest one, by any world size and layout: {"seconds", "cpu", "bytes_memory",
 *              "bytes_local"}
 *     wipe     makes the state of every rank something that was never saved: {}
 *     check    is the state, to the bit, that of the step that was saved or loaded last?
 *              {"equal", "wrong_elements"}
 *     memcpy   the same bytes by memcpy, each rank's by its thread: {"seconds", "cpu", "bytes"}
 *     hash     the same bytes by XXH3, likewise: {"seconds", "cpu", "bytes"}
 *     forget   closes all sessions; the next save opens a new attempt: {}
 *
 * Elements are numbers that no checksum mistakes for zeros; the first one of each tensor follows
 * from the step, so that no two checkpoints are equal. A load without a save before it does not
 * describe: it is a reader, as a restarted job before its first save. */
#include "clients/ckpt.h"
#include "proto/base/checksum.h"
#include "tests/bench/bench.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>

#define RANKS_MAX 64u
#define SERVERS_MAX 8u
#define TENSORS_MAX 512u
#define BLOCK (1u << 20)

enum { ROWS, COLUMNS, MESH };

struct rank {
    pthread_t thread;
    uint32_t rank;
    struct ckpt *ckpt;
    struct ckpt_tensor tensors[TENSORS_MAX]; /* this rank's slices */
    uint32_t num_tensors;
    uint64_t bytes;
    char *data, *other; /* all slices back to back; as many bytes for memcpy and check */
    uint64_t bytes_memory, bytes_local;
    uint64_t step, wrong;        /* that was loaded; elements that are not of job.step */
    uint64_t hash;               /* of its data; keeps the compiler from dropping the work */
    double begun, copied, ended; /* of the last command */
};

static struct {
    const char *servers[SERVERS_MAX], *run;
    uint32_t num_servers, num_ranks, layout;
    uint64_t bytes; /* of the whole state */
    struct rank *ranks;
    char names[TENSORS_MAX][24];
    bool described, has_other;
    uint64_t step, attempt;
} job;

/* ---- the state ---- */

/* Part `index` of `parts` of `extent`, as FSDP2 cuts: equal parts, the last ones shorter. */
static void cut(uint64_t *offset, uint64_t *extent, uint32_t parts, uint32_t index)
{
    uint64_t chunk = (*extent + parts - 1) / parts, whole = *extent;
    *offset = chunk * index < whole ? chunk * index : whole;
    *extent = whole - *offset < chunk ? whole - *offset : chunk;
}

static void add_tensor(struct rank *rank, uint32_t index, uint64_t rows, uint64_t columns,
                       uint32_t row_parts, uint32_t row_part, uint32_t column_parts,
                       uint32_t column_part)
{
    struct ckpt_tensor *tensor = &rank->tensors[rank->num_tensors++];
    *tensor = (struct ckpt_tensor){.name = job.names[index],
                                   .dtype = "F32",
                                   .dims = 2,
                                   .shape = {rows, columns},
                                   .extent = {rows, columns}};
    snprintf(job.names[index], sizeof job.names[index], "tensor.%u", index);
    cut(&tensor->offset[0], &tensor->extent[0], row_parts, row_part);
    cut(&tensor->offset[1], &tensor->extent[1], column_parts, column_part);
    if (tensor->extent[0] == 0 || tensor->extent[1] == 0)
        tensor->extent[0] = tensor->extent[1] = 0;
    rank->bytes += tensor->extent[0] * tensor->extent[1] * sizeof(float);
}

/* Whole tensors of 64 MiB, each cut among all ranks. */
static void lay_even(struct rank *rank, bool by_columns)
{
    uint32_t parts = job.num_ranks, count = (uint32_t)(job.bytes / (64u * BLOCK));
    BENCH_TRY(count == 0 || count > TENSORS_MAX || job.bytes % (64u * BLOCK) != 0,
              "MIB must be a multiple of 64, at most 32768");
    for (uint32_t i = 0; i < count; i++)
        add_tensor(rank, i, 4096, 4096, by_columns ? 1 : parts, by_columns ? 0 : rank->rank,
                   by_columns ? parts : 1, by_columns ? rank->rank : 0);
}

/* Layers of large and small tensors: half of the layers to each stage of pp, rows cut by dp,
 * columns by tp; small ones (norms) whole on every tp rank, which makes replicas. */
static void lay_mesh(struct rank *rank)
{
    static const struct {
        uint64_t rows, columns;
    } layer[] = {{8192, 8192}, {4096, 8192}, {2048, 8192}, {1024, 4096}, {1024, 1024},
                 {256, 1024},  {128, 512},   {16, 1024},   {1, 2048},    {1, 256}};
    uint32_t pp = job.num_ranks % 4 == 0 ? 2 : 1, tp = job.num_ranks % 2 == 0 ? 2 : 1;
    uint32_t dp = job.num_ranks / pp / tp, kinds = sizeof layer / sizeof layer[0];
    uint32_t stage = rank->rank / (dp * tp), shard = rank->rank / tp % dp, column = rank->rank % tp;
    uint64_t whole = 0;
    uint32_t index = 0;
    for (uint32_t l = 0; whole < job.bytes && index + kinds <= TENSORS_MAX; l++)
        for (uint32_t k = 0; k < kinds && whole < job.bytes; k++, index++) {
            bool is_small = layer[k].rows == 1;
            whole += layer[k].rows * layer[k].columns * sizeof(float);
            if (l % pp == stage)
                add_tensor(rank, index, layer[k].rows, layer[k].columns, dp, shard,
                           is_small ? 1 : tp, is_small ? 0 : column);
        }
}

static void *new_memory(size_t bytes)
{
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    BENCH_TRY(memory == NULL, "out of memory");
    return memory;
}

/* The first element of a tensor follows from the step, */
static float first_of(uint64_t step)
{
    return (float)(step % 4096 + 1);
}

/* every other one from the tensor and its position in it, so replicas hold the same. */
static float element_of(uint64_t index, uint64_t at, uint64_t step)
{
    uint32_t bits = (uint32_t)(((index << 40) + at + 1) * 0x9e3779b97f4a7c15ull >> 40);
    return at == 0 ? first_of(step) : (float)bits * 0x1p-24f;
}

/* Writes the state of a step; or, with `wrong`, counts the elements that differ from it. */
static void walk_tensor(const struct ckpt_tensor *tensor, uint64_t step, uint64_t *wrong)
{
    float *out = tensor->data;
    uint64_t index = (uint64_t)(tensor->name - job.names[0]) / sizeof job.names[0];
    for (uint64_t r = 0; r < tensor->extent[0]; r++) {
        uint64_t at = (tensor->offset[0] + r) * tensor->shape[1] + tensor->offset[1];
        for (uint64_t c = 0; c < tensor->extent[1]; c++, out++) {
            float right = element_of(index, at + c, step);
            if (wrong)
                *wrong += memcmp(out, &right, sizeof right) != 0;
            else
                *out = right;
        }
    }
}

static void lay(struct rank *rank)
{
    if (job.layout == MESH)
        lay_mesh(rank);
    else
        lay_even(rank, job.layout == COLUMNS);
}

static void *fill(void *argument)
{
    struct rank *rank = argument;
    char *at = rank->data = new_memory(rank->bytes + 1);
    for (uint32_t i = 0; i < rank->num_tensors; i++) {
        struct ckpt_tensor *tensor = &rank->tensors[i];
        tensor->data = at;
        walk_tensor(tensor, 0, NULL);
        at += tensor->extent[0] * tensor->extent[1] * sizeof(float);
    }
    return NULL;
}

/* Another state. */
static void change(struct rank *rank)
{
    for (uint32_t i = 0; i < rank->num_tensors; i++) {
        const struct ckpt_tensor *tensor = &rank->tensors[i];
        if (tensor->extent[0] > 0 && tensor->offset[0] == 0 && tensor->offset[1] == 0)
            ((float *)tensor->data)[0] = first_of(job.step);
    }
}

/* ---- a rank ---- */

static void *open_rank(void *argument)
{
    struct rank *rank = argument;
    struct ckpt_options options = {.server = job.servers[rank->rank % job.num_servers],
                                   .run = job.run,
                                   .rank = rank->rank,
                                   .world_size = job.num_ranks};
    BENCH_TRY(ckpt_open(&rank->ckpt, &options), ckpt_error());
    return NULL;
}

static void *describe_rank(void *argument)
{
    struct rank *rank = argument;
    BENCH_TRY(ckpt_describe(rank->ckpt, job.attempt, rank->tensors, rank->num_tensors),
              ckpt_error());
    return NULL;
}

static void *save_rank(void *argument)
{
    struct rank *rank = argument;
    struct ckpt_save *save;
    BENCH_TRY(ckpt_save_begin(rank->ckpt, &save, job.step, "{}"), ckpt_error());
    rank->begun = bench_seconds();
    for (uint32_t i = 0; i < rank->num_tensors; i++)
        BENCH_TRY(ckpt_save_copy(save, i), ckpt_error());
    BENCH_TRY(ckpt_save_end(save), ckpt_error());
    rank->copied = bench_seconds();
    if (rank->rank == 0)
        BENCH_TRY(ckpt_save_wait(rank->ckpt, job.step, 300000), ckpt_error());
    rank->ended = bench_seconds();
    return NULL;
}

static void *load_rank(void *argument)
{
    struct rank *rank = argument;
    struct ckpt_loaded *loaded;
    struct ckpt_load_options options = {
        .step = CKPT_NEWEST, .tensors = rank->tensors, .num_tensors = rank->num_tensors};
    BENCH_TRY(ckpt_load(rank->ckpt, &options, &loaded), ckpt_error());
    rank->ended = bench_seconds();
    rank->step = loaded->info.step;
    rank->bytes_memory = loaded->bytes_memory;
    rank->bytes_local = loaded->bytes_local;
    ckpt_loaded_free(loaded);
    return NULL;
}

static void *keep_rank(void *argument)
{
    struct rank *rank = argument;
    memcpy(rank->other, rank->data, rank->bytes);
    return NULL;
}

static void *copy_rank(void *argument)
{
    struct rank *rank = argument;
    memcpy(rank->data, rank->other, rank->bytes);
    rank->ended = bench_seconds();
    return NULL;
}

static void *hash_rank(void *argument)
{
    struct rank *rank = argument;
    for (uint64_t at = 0; at < rank->bytes; at += BLOCK)
        rank->hash ^= checksum_block(
            rank->data + at, rank->bytes - at < BLOCK ? rank->bytes - at : BLOCK, 1, at / BLOCK);
    rank->ended = bench_seconds();
    return NULL;
}

static void *wipe_rank(void *argument)
{
    struct rank *rank = argument;
    memset(rank->data, 0xff, rank->bytes);
    return NULL;
}

static void *check_rank(void *argument)
{
    struct rank *rank = argument;
    rank->wrong = 0;
    for (uint32_t i = 0; i < rank->num_tensors; i++)
        walk_tensor(&rank->tensors[i], job.step, &rank->wrong);
    return NULL;
}

/* Runs `body` on every rank's thread; returns when all have ended. */
static void on_all(void *(*body)(void *))
{
    for (uint32_t i = 0; i < job.num_ranks; i++)
        BENCH_TRY(pthread_create(&job.ranks[i].thread, NULL, body, &job.ranks[i]),
                  "pthread_create");
    for (uint32_t i = 0; i < job.num_ranks; i++)
        pthread_join(job.ranks[i].thread, NULL);
}

/* ---- commands ---- */

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

#define LATEST(field, since) (latest(offsetof(struct rank, field)) - (since))
static double latest(size_t field)
{
    double last = 0;
    for (uint32_t i = 0; i < job.num_ranks; i++) {
        double at;
        memcpy(&at, (const char *)&job.ranks[i] + field, sizeof at);
        last = at > last ? at : last;
    }
    return last;
}

static uint64_t bytes_of_ranks(void)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < job.num_ranks; i++)
        bytes += job.ranks[i].bytes;
    return bytes;
}

static void save(void)
{
    if (!job.described) {
        struct ckpt_info newest;
        BENCH_TRY(ckpt_attempt_open(job.ranks[0].ckpt, &job.attempt, &newest,
                                    &(struct ckpt_attempt_options){0}),
                  ckpt_error());
        on_all(describe_rank);
        job.step = newest.step;
        job.described = true;
    }
    job.step++;
    for (uint32_t i = 0; i < job.num_ranks; i++)
        change(&job.ranks[i]);
    double began = bench_seconds(), cpu = cpu_seconds();
    on_all(save_rank);
    printf("{\"begun\": %.6f, \"copied\": %.6f, \"committed\": %.6f, \"cpu\": %.6f, "
           "\"bytes\": %llu}\n",
           LATEST(begun, began), LATEST(copied, began), LATEST(ended, began), cpu_seconds() - cpu,
           (unsigned long long)bytes_of_ranks());
}

static void load(void)
{
    uint64_t memory = 0, local = 0;
    double began = bench_seconds(), cpu = cpu_seconds();
    on_all(load_rank);
    for (uint32_t i = 0; i < job.num_ranks; i++) {
        BENCH_TRY(job.ranks[i].step != job.ranks[0].step, "ranks loaded different steps");
        memory += job.ranks[i].bytes_memory;
        local += job.ranks[i].bytes_local;
    }
    job.step = job.ranks[0].step;
    printf("{\"seconds\": %.6f, \"cpu\": %.6f, \"bytes_memory\": %llu, \"bytes_local\": %llu}\n",
           LATEST(ended, began), cpu_seconds() - cpu, (unsigned long long)memory,
           (unsigned long long)local);
}

static void need_other(void)
{
    for (uint32_t i = 0; i < job.num_ranks && !job.has_other; i++)
        job.ranks[i].other = new_memory(job.ranks[i].bytes + 1);
    if (!job.has_other)
        on_all(keep_rank);
    job.has_other = true;
}

static void timed(void *(*body)(void *))
{
    need_other();
    double began = bench_seconds(), cpu = cpu_seconds();
    on_all(body);
    printf("{\"seconds\": %.6f, \"cpu\": %.6f, \"bytes\": %llu}\n", LATEST(ended, began),
           cpu_seconds() - cpu, (unsigned long long)bytes_of_ranks());
}

static void wipe(void)
{
    on_all(wipe_rank);
    printf("{}\n");
}

static void check(void)
{
    uint64_t wrong = 0;
    on_all(check_rank);
    for (uint32_t i = 0; i < job.num_ranks; i++)
        wrong += job.ranks[i].wrong;
    printf("{\"equal\": %s, \"wrong_elements\": %llu}\n", wrong == 0 ? "true" : "false",
           (unsigned long long)wrong);
}

static void forget(void)
{
    for (uint32_t i = 0; i < job.num_ranks; i++)
        ckpt_close(job.ranks[i].ckpt);
    on_all(open_rank);
    job.described = false;
    printf("{}\n");
}

static void copy(void)
{
    timed(copy_rank);
}

static void hash(void)
{
    timed(hash_rank);
}

static const struct {
    const char *name;
    void (*run)(void);
} commands[] = {{"save", save},   {"load", load}, {"wipe", wipe},    {"check", check},
                {"memcpy", copy}, {"hash", hash}, {"forget", forget}};

int main(int argc, char **argv)
{
    static const char *const layouts[] = {"rows", "columns", "mesh"};
    char line[32];
    BENCH_TRY(argc != 6, "usage: ranks SERVER[,SERVER...] RUN RANKS MIB LAYOUT");
    for (char *rest = argv[1], *server; (server = strsep(&rest, ",")) != NULL;) {
        BENCH_TRY(job.num_servers == SERVERS_MAX, "too many servers");
        job.servers[job.num_servers++] = server;
    }
    job.run = argv[2];
    job.num_ranks = (uint32_t)strtoul(argv[3], NULL, 10);
    job.bytes = strtoull(argv[4], NULL, 10) << 20;
    while (job.layout < 3 && strcmp(layouts[job.layout], argv[5]) != 0)
        job.layout++;
    BENCH_TRY(job.num_ranks == 0 || job.num_ranks > RANKS_MAX || job.layout == 3,
              "RANKS is 1 to 64, LAYOUT rows, columns or mesh");
    job.ranks = calloc(job.num_ranks, sizeof *job.ranks);
    BENCH_TRY(job.ranks == NULL, "out of memory");
    for (uint32_t i = 0; i < job.num_ranks; i++) {
        job.ranks[i].rank = i;
        lay(&job.ranks[i]);
    }
    on_all(fill);
    on_all(open_rank);
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        uint32_t i = 0;
        while (i < sizeof commands / sizeof commands[0] && strcmp(commands[i].name, line) != 0)
            i++;
        BENCH_TRY(i == sizeof commands / sizeof commands[0], "unknown command on stdin");
        commands[i].run();
        fflush(stdout);
    }
    for (uint32_t i = 0; i < job.num_ranks; i++) {
        ckpt_close(job.ranks[i].ckpt);
        free(job.ranks[i].data);
        free(job.ranks[i].other);
    }
    free(job.ranks);
    return 0;
}
