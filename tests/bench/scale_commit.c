/* scale_commit.c - the coordinator's cost of a commit when a 405B model has 16,384 ranks.
 *
 *     scale_commit STORE PP DP TP
 *
 * ckptd's own code runs: the state machine (machines/commit.c), the code that performs it
 * (save/save.c, save/publish.c), the manifest (proto/format/manifest.c), the catalog, a loop with
 * workers and a store on disk. The work of the ranks' own nodes is left out: sessions, rings,
 * hashing and writing of shards. So the images here have the digests, the tables and the geometry
 * of real ones, but no bytes.
 *
 * The command "commit" on stdin begins, ends and makes durable the shards of every rank, in that
 * order, and is answered when the checkpoint is committed: CPU seconds of the whole process (and of
 * the service thread alone), seconds by the clock, bytes of the manifest. Making the images of the
 * next save is not counted; freeing those of the one before, which ckptd does then, is. "plan"
 * answers the time spent before: planning, and the places of every rank. "shards" makes the files
 * of the newest checkpoint: header and checksum table as every reader wants them, and a hole in the
 * place of the data, which reads as zeros and has no right checksum. So everything that can be
 * verified without the data is there. */
#include "ckptd/core/history.h"
#include "ckptd/core/hooks.h"
#include "proto/base/clock.h"
#include "tests/bench/bench.h"
#include "tests/bench/scale_model.h"
#include "tests/unit/ckptd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#define RUN "scale"
#define MANIFEST_WAIT_US 200

static void keep_all(struct run *kept)
{
    (void)kept;
}

static const struct hooks hooks = {.apply_retention = keep_all};
static struct config config;
static struct service service;
static struct model_mesh mesh;
static struct run *run;
static struct group group;
static uint64_t *table_hashes; /* by rank */
static double plan_seconds, place_seconds;

/* ---- the world before the first save ---- */

static void open_service(char *store)
{
    char *arguments[] = {"scale_commit",           "--store", store, "--memory.pool_bytes", "1MiB",
                         "--memory.segment_bytes", "1MiB",    NULL};
    bool help = false;
    BENCH_TRY(config_load(&config, 7, arguments, &help), report_line());
    service.config = &config;
    service.catalog = bench_allocate(1, sizeof *service.catalog);
    service.catalog->events = &coordinator_events;
    BENCH_TRY(run_open(&service, &hooks), report_line());
    BENCH_TRY(loop_open(&service.loop, (uint32_t)config.threads_workers, 0), report_line());
    BENCH_TRY(storage_open(&service.storage, &storage_local, store, NULL), report_line());
    BENCH_TRY(history_open(&service), report_line());
    BENCH_TRY(pool_open(&service.pool, 1 << 20, 1 << 20, false, service.storage), report_line());
    for (bool more = true; more;)
        BENCH_TRY(pool_renew(service.pool, &more), report_line());
    BENCH_TRY(run_find(&run, &service, RUN, true), report_line());
}

static void open_attempt(void)
{
    struct commit_actions actions = {0};
    BENCH_TRY(commit_open(&run->coordinator->machine, &actions, model_ranks(mesh)), report_line());
    commit_taken(&run->coordinator->machine, &actions, 1, 0);
    run->coordinator->attempt = bench_allocate(1, sizeof *run->coordinator->attempt);
    run->coordinator->attempt->number = 1;
    run->coordinator->attempt->world_size = model_ranks(mesh);
}

/* ckptd's work when the ranks describe themselves (session.c). */
static void plan_group(void)
{
    uint32_t ranks = model_ranks(mesh);
    struct slice *room = bench_allocate(MODEL_TENSORS, sizeof *room);
    const struct slice **slices = bench_allocate(ranks, sizeof *slices);
    uint32_t *counts = bench_allocate(ranks, sizeof *counts);
    group = (struct group){.run = run, .attempt = 1, .world_size = ranks, .planned = true};
    group.ranks = bench_allocate(ranks, sizeof *group.ranks);
    for (uint32_t i = 0; i < ranks; i++) {
        struct group_rank *rank = &group.ranks[i];
        counts[i] = rank->count = model_slices(room, mesh, i);
        slices[i] = rank->slices = bench_allocate(rank->count, sizeof *room);
        memcpy(rank->slices, room, rank->count * sizeof *room);
    }
    double start = bench_clock(CLOCK_PROCESS_CPUTIME_ID);
    BENCH_TRY(layout_plan_save(&group.table, slices, counts, ranks, LAYOUT_EQUAL_REPLICAS),
              report_line());
    double planned = bench_clock(CLOCK_PROCESS_CPUTIME_ID);
    for (uint32_t i = 0; i < ranks; i++) {
        struct group_rank *rank = &group.ranks[i];
        uint64_t bytes;
        BENCH_TRY(layout_shard_tensors(&rank->tensors, &rank->num_tensors, &bytes, group.table, i),
                  report_line());
        BENCH_TRY(shard_geometry(&rank->geometry, group.table, i, RUN, ranks), report_line());
        BENCH_TRY(layout_save_items(&rank->items, &rank->num_items, group.table, i, rank->slices,
                                    rank->count),
                  report_line());
    }
    plan_seconds = planned - start;
    place_seconds = bench_clock(CLOCK_PROCESS_CPUTIME_ID) - planned;
    for (uint32_t i = 0; i < ranks; i++) {
        free(group.ranks[i].slices);
        group.ranks[i].slices = NULL;
        free(group.ranks[i].items);
        group.ranks[i].items = NULL;
    }
    free(room);
    free(slices);
    free(counts);
    run->coordinator->group = &group;
}

/* The checksum table of a shard, every checksum zero; the caller frees it. */
static uint8_t *make_table(uint64_t *out_bytes, uint64_t *out_hash, uint32_t rank)
{
    const struct shard_geometry *geometry = &group.ranks[rank].geometry;
    uint64_t *sums = bench_allocate(geometry->num_blocks, sizeof *sums);
    *out_bytes = geometry->file_bytes - geometry->table_start;
    uint8_t *table = bench_allocate(1, *out_bytes);
    *out_hash = shard_table_write(table, geometry, sums);
    free(sums);
    return table;
}

static void hash_tables(void)
{
    table_hashes = bench_allocate(group.world_size, sizeof *table_hashes);
    for (uint32_t i = 0; i < group.world_size; i++) {
        uint64_t bytes;
        free(make_table(&bytes, &table_hashes[i], i));
    }
}

/* ---- one save ---- */

static void make_identity(struct shard_identity *out, uint64_t step, uint32_t rank)
{
    *out = (struct shard_identity){
        .step = step, .attempt = 1, .shard = rank, .shards = group.world_size};
    snprintf(out->run, sizeof out->run, RUN);
    snprintf(out->nonce, sizeof out->nonce, "%032" PRIx64, step);
}

/* The image of a rank whose shard is hashed and written; `step` makes its digests differ. */
static struct image *make_image(uint32_t rank, uint64_t step)
{
    const struct group_rank *from = &group.ranks[rank];
    struct shard_geometry small;
    struct image *image = NULL;
    BENCH_TRY(shard_geometry_derive(&small, SHARD_ALIGN, 0), report_line());
    BENCH_TRY(image_new(&image, &service, &small, UINT32_MAX), report_line());
    image->geometry = from->geometry;
    image->state = IMAGE_STAGING;
    image->tensors = from->tensors;
    image->num_tensors = from->num_tensors;
    image->metas = group.table->tensors;
    image->digests = bench_allocate(from->num_tensors + 1, sizeof *image->digests);
    for (uint32_t t = 0; t < from->num_tensors; t++)
        image->digests[t] = (struct digest){{step * rank + t, step ^ t}};
    return image;
}

/* As save.c does at the first BeginSave of a step. */
static struct save *make_save(uint64_t step)
{
    struct save *save = bench_allocate(1, sizeof *save);
    save->service = &service;
    save->run = run;
    save->group = &group;
    save->step = step;
    save->attempt = 1;
    BENCH_TRY(catalog_new(&save->checkpoint, run, step, 1), report_line());
    save->world_size = group.world_size;
    save->stages = bench_allocate(save->world_size, sizeof *save->stages);
    save->remote = bench_allocate(save->world_size, sizeof *save->remote);
    save->begun_ms = save->ended_ms = clock_ms();
    save->state_json = strdup("{\"data\":{\"sample\":1048576},\"metrics\":{\"loss\":2.5}}");
    snprintf(save->nonce, sizeof save->nonce, "%032" PRIx64, step);
    BENCH_TRY(shard_dir_key(save->dir, sizeof save->dir, RUN, step, 1), report_line());
    for (uint32_t i = 0; i < save->world_size; i++)
        save->bytes += group.ranks[i].geometry.file_bytes;
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", config.store, RUN);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s", config.store, save->dir);
    BENCH_TRY(mkdir(path, 0777) != 0 && errno != EEXIST, path);
    save->next = run->coordinator->saves;
    run->coordinator->saves = save;
    return save;
}

/* The header of a shard; the caller frees it. */
static uint8_t *make_header(uint64_t *out_hash, const struct shard_identity *identity)
{
    const struct shard_geometry *geometry = &group.ranks[identity->shard].geometry;
    uint8_t *header = bench_allocate(1, geometry->data_start);
    BENCH_TRY(shard_header_write(header, geometry, group.table, identity), report_line());
    BENCH_TRY(!shard_header_hash(out_hash, header, geometry->data_start), "a header has no hash");
    return header;
}

/* As a stage does when its file is created. */
static void put_header(struct save *save, uint32_t rank)
{
    struct shard_identity identity;
    make_identity(&identity, save->step, rank);
    free(make_header(&save->stages[rank].header_hash, &identity));
}

static void begin_rank(struct save *save, uint32_t rank)
{
    struct commit_actions actions = {0};
    struct stage *stage = &save->stages[rank];
    BENCH_TRY(commit_begin(&run->coordinator->machine, &actions, &save->id, 1, rank, save->step),
              report_line());
    run_perform(run, &actions);
    stage->options.save = save;
    stage->rank = rank;
    stage->ended = true;
    stage->durable = true;
    stage->table_hash = table_hashes[rank];
    stage->image->stage = stage;
    save->num_begun++;
}

static uint64_t manifest_bytes(uint64_t step)
{
    char dir[STORAGE_KEY_MAX], path[2 * STORAGE_KEY_MAX + 64];
    struct stat status;
    BENCH_TRY(shard_dir_key(dir, sizeof dir, RUN, step, 1), report_line());
    snprintf(path, sizeof path, "%s/%s/%s", config.store, dir, MANIFEST_NAME);
    BENCH_TRY(stat(path, &status), path);
    return (uint64_t)status.st_size;
}

static void run_commit(uint64_t step)
{
    struct save *save = make_save(step);
    uint32_t ranks = save->world_size;
    for (uint32_t i = 0; i < ranks; i++) {
        save->stages[i].image = make_image(i, step);
        put_header(save, i);
    }
    double clock = bench_seconds();
    double all = bench_clock(CLOCK_PROCESS_CPUTIME_ID), own = bench_clock(CLOCK_THREAD_CPUTIME_ID);
    for (uint32_t i = 0; i < ranks; i++)
        begin_rank(save, i);
    for (uint32_t i = 0; i < ranks; i++)
        save_stage_events.ended(&save->stages[i]);
    for (uint32_t i = 0; i < ranks; i++)
        save_stage_events.durable(&save->stages[i]); /* the last one sets the publication going */
    while (run->coordinator->saves) {
        loop_run_pending(service.loop);
        usleep(MANIFEST_WAIT_US);
    }
    all = bench_clock(CLOCK_PROCESS_CPUTIME_ID) - all;
    own = bench_clock(CLOCK_THREAD_CPUTIME_ID) - own;
    clock = bench_seconds() - clock;
    BENCH_TRY(service.outcomes->commits != step, "it was not committed");
    printf("{\"ranks\": %u, \"cpu_seconds\": %.6f, \"service_cpu_seconds\": %.6f, \"seconds\": "
           "%.6f, \"bytes\": %" PRIu64 "}\n",
           ranks, all, own, clock, manifest_bytes(step));
}

/* ---- the files of a save ---- */

static uint64_t make_shard(uint64_t step, uint32_t rank)
{
    const struct group_rank *from = &group.ranks[rank];
    const struct shard_geometry *geometry = &from->geometry;
    struct shard_identity identity;
    char key[STORAGE_KEY_MAX], path[2 * STORAGE_KEY_MAX + 64];
    make_identity(&identity, step, rank);
    BENCH_TRY(shard_key(key, sizeof key, &identity), report_line());
    snprintf(path, sizeof path, "%s/%s", config.store, key);
    uint64_t table_bytes, header_hash, table_hash; /* both are in the manifest already */
    uint8_t *header = make_header(&header_hash, &identity);
    uint8_t *table = make_table(&table_bytes, &table_hash, rank);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    BENCH_TRY(fd < 0, path);
    BENCH_TRY(pwrite(fd, header, geometry->data_start, 0) != (ssize_t)geometry->data_start, path);
    BENCH_TRY(pwrite(fd, table, table_bytes, (off_t)geometry->table_start) != (ssize_t)table_bytes,
              path);
    close(fd);
    free(header);
    free(table);
    return geometry->data_start + table_bytes;
}

static void make_shards(uint64_t step)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < group.world_size; i++)
        bytes += make_shard(step, i);
    sync();
    printf("{\"ranks\": %u, \"bytes\": %" PRIu64 "}\n", group.world_size, bytes);
}

int main(int argc, char **argv)
{
    char line[64];
    uint64_t step = 0;
    BENCH_TRY(argc != 5, "use: scale_commit STORE PP DP TP");
    mesh = (struct model_mesh){(uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]),
                               (uint32_t)atoi(argv[4])};
    open_service(argv[1]);
    open_attempt();
    plan_group();
    hash_tables();
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "commit\n") == 0)
            run_commit(++step);
        else if (strcmp(line, "shards\n") == 0 && step != 0)
            make_shards(step);
        else if (strcmp(line, "plan\n") == 0)
            printf("{\"ranks\": %u, \"plan_seconds\": %.6f, \"place_seconds\": %.6f}\n",
                   group.world_size, plan_seconds, place_seconds);
        else
            BENCH_TRY(1, "an unknown command");
        fflush(stdout);
    }
    return 0;
}
