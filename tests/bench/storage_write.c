/* storage_write.c - how fast storage/ writes a big object, beside fio on the same directory.
 *
 *     storage_write [--pairs N] [--mib N] [--block-kib N] [--depth N] [DIRECTORY]
 *
 * Each round writes one object with io_uring, with pwrite threads, then one file with fio
 * (io_uring, O_DIRECT, fixed buffers, same block and depth), all reserved beforehand, and counts
 * from the first write to the end of the sync. Prints GB/s per round and the medians. The files are
 * removed. Without fio its column is n/a. */
#include "storage/storage.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PAIRS_MAX 40
#define DEPTH_MAX 256u

struct settings {
    char directory[256];
    int pairs;
    uint64_t bytes;
    uint32_t block, depth;
};

/* One object being written: `depth` requests go round, each taking the next block when it is done.
 */
struct writer {
    struct storage *storage;
    struct storage_object *object;
    uint64_t next, end;
    uint32_t block, num_running;
    int error;
    sem_t finished;
    struct storage_request requests[DEPTH_MAX];
};

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void write_next(struct storage_request *request)
{
    struct writer *writer = request->user;
    if (request->error != 0)
        writer->error = request->error;
    if (writer->error == 0 && writer->next < writer->end) {
        request->offset = writer->next;
        writer->next += writer->block;
        storage_submit(writer->storage, request);
        return;
    }
    if (--writer->num_running == 0)
        sem_post(&writer->finished);
}

/* GB/s of one object, or NaN with the reason on stderr. */
static double measure(const struct settings *settings, bool force_pwrite)
{
    static const char key[] = "bench-object";
    struct writer *writer = calloc(1, sizeof(*writer));
    size_t ring_bytes = (size_t)settings->depth * settings->block;
    unsigned char *data = aligned_alloc(STORAGE_ALIGN, ring_bytes);
    struct storage_options options = {.queue_depth = settings->depth, .force_pwrite = force_pwrite};
    double rate = NAN;
    CHECK(writer != NULL && data != NULL && sem_init(&writer->finished, 0, 0) == 0);
    memset(data, 0x5a, ring_bytes);
    int error = storage_open(&writer->storage, &storage_local, settings->directory, &options);
    if (error == 0)
        error = storage_register_buffers(writer->storage, &(struct iovec){data, ring_bytes}, 1);
    if (error == 0)
        error = storage_object_create(writer->storage, &writer->object, key, settings->bytes);
    if (error != 0)
        goto out;
    writer->end = settings->bytes;
    writer->block = settings->block;
    writer->num_running = settings->depth;
    writer->next = ring_bytes;
    double start = now_seconds();
    for (uint32_t i = 0; i < settings->depth; i++) {
        writer->requests[i] = (struct storage_request){
            .op = STORAGE_WRITE,
            .object = writer->object,
            .offset = (uint64_t)i * settings->block,
            .data = data + (size_t)i * settings->block,
            .bytes = settings->block,
            .done = write_next,
            .user = writer,
        };
        storage_submit(writer->storage, &writer->requests[i]);
    }
    while (sem_wait(&writer->finished) != 0)
        CHECK(errno == EINTR);
    error = writer->error
                ? writer->error
                : storage_transfer(writer->storage, STORAGE_SYNC, writer->object, 0, NULL, 0);
    if (error == 0)
        rate = (double)settings->bytes / (now_seconds() - start) * 1e-9;
    storage_object_close(writer->storage, writer->object);
    storage_remove(writer->storage, key);
out:
    if (error != 0)
        fprintf(stderr, "storage_write: %s: %s\n", err_name(error), report_line());
    storage_close(writer->storage);
    sem_destroy(&writer->finished);
    free(data);
    free(writer);
    return rate;
}

static double measure_fio(const struct settings *settings)
{
    char command[1024], path[300];
    snprintf(path, sizeof(path), "%s/bench-fio", settings->directory);
    snprintf(command, sizeof(command),
             "fio --name=write --filename='%s' --rw=write --ioengine=io_uring --direct=1 "
             "--fixedbufs=1 --fallocate=native --end_fsync=1 --bs=%u --iodepth=%u --size=%llu "
             "--output-format=json 2>/dev/null",
             path, settings->block, settings->depth, (unsigned long long)settings->bytes);
    double rate = NAN;
    FILE *pipe = popen(command, "r");
    json_t *root = pipe ? json_loadf(pipe, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    json_t *bandwidth = json_object_get(json_object_get(job, "write"), "bw_bytes");
    if (json_is_number(bandwidth))
        rate = json_number_value(bandwidth) * 1e-9;
    json_decref(root);
    if (pipe != NULL)
        pclose(pipe);
    unlink(path);
    return rate;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int count)
{
    double sorted[PAIRS_MAX];
    memcpy(sorted, values, (size_t)count * sizeof(*values));
    qsort(sorted, (size_t)count, sizeof(*sorted), compare);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

static void print_rates(const char *label, double uring, double threads, double fio)
{
    printf("%-8s%12.2f%12.2f", label, uring, threads);
    if (isnan(fio))
        printf("%12s\n", "n/a");
    else
        printf("%12.2f%14.2f\n", fio, uring / fio);
    fflush(stdout);
}

static bool read_arguments(struct settings *out, int argc, char **argv)
{
    static const struct option names[] = {{"pairs", required_argument, NULL, 'p'},
                                          {"mib", required_argument, NULL, 'm'},
                                          {"block-kib", required_argument, NULL, 'b'},
                                          {"depth", required_argument, NULL, 'd'},
                                          {NULL, 0, NULL, 0}};
    *out = (struct settings){.pairs = 3, .bytes = 1u << 30, .block = 1u << 20, .depth = 32};
    int name;
    while ((name = getopt_long(argc, argv, "", names, NULL)) != -1) {
        long number = optarg ? atol(optarg) : 0;
        if (name == 'p')
            out->pairs = (int)number;
        else if (name == 'm')
            out->bytes = (uint64_t)number << 20;
        else if (name == 'b')
            out->block = (uint32_t)number << 10;
        else if (name == 'd')
            out->depth = (uint32_t)number;
        else
            return false;
    }
    const char *parent = getenv("TMPDIR");
    if (optind < argc)
        snprintf(out->directory, sizeof(out->directory), "%s/hf-storage-write-XXXXXX",
                 argv[optind]);
    else
        snprintf(out->directory, sizeof(out->directory), "%s/hf-storage-write-XXXXXX",
                 parent ? parent : "/var/tmp");
    return out->pairs > 0 && out->pairs <= PAIRS_MAX && out->depth > 0 && out->depth <= DEPTH_MAX &&
           out->block > 0 && out->block % STORAGE_ALIGN == 0 && out->bytes % out->block == 0 &&
           out->bytes >= (uint64_t)out->depth * out->block;
}

int main(int argc, char **argv)
{
    struct settings settings;
    double uring[PAIRS_MAX], threads[PAIRS_MAX], fio[PAIRS_MAX];
    if (!read_arguments(&settings, argc, argv)) {
        fprintf(stderr, "usage: storage_write [--pairs N] [--mib N] [--block-kib N] [--depth N] "
                        "[DIRECTORY]\nthe size is a multiple of the block and at least depth * "
                        "block\n");
        return EXIT_DO_NOT_RETRY;
    }
    if (mkdtemp(settings.directory) == NULL) {
        fprintf(stderr, "storage_write: could not make %s: %s\n", settings.directory,
                strerror(errno));
        return EXIT_DO_NOT_RETRY;
    }
    printf("write %llu MiB, blocks of %u KiB, depth %u, then sync; GB/s\n",
           (unsigned long long)(settings.bytes >> 20), settings.block >> 10, settings.depth);
    printf("%-8s%12s%12s%12s%14s\n", "round", "io_uring", "pwrite", "fio", "io_uring/fio");
    for (int i = 0; i < settings.pairs; i++) {
        char label[16];
        uring[i] = measure(&settings, false);
        fio[i] = measure_fio(&settings);
        threads[i] = measure(&settings, true);
        snprintf(label, sizeof(label), "%d", i + 1);
        print_rates(label, uring[i], threads[i], fio[i]);
    }
    print_rates("median", median(uring, settings.pairs), median(threads, settings.pairs),
                median(fio, settings.pairs));
    rmdir(settings.directory);
    return isnan(uring[0]) ? EXIT_RUN_AGAIN : EXIT_DONE;
}
