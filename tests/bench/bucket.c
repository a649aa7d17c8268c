/* bucket.c - objects into a bucket and out of one, from memory and into memory.
 *
 *     bucket PLACE MIB
 *
 * The store is opened once, as ckptd does. Commands on stdin, each answered with one JSON line:
 *
 *     put KEY   MIB of memory become an object, from its creation until it is there: {"seconds",
 *               "cpu"}
 *     get KEY   that object into memory, by ranges of 1 MiB, of which READS are asked for at once,
 *               and compared with what was put once the clock stands: {"seconds", "cpu"}
 *
 * `cpu` are the CPU seconds of this process meanwhile, with signatures and SHA-256 of the parts.
 * Each MiB has other bytes. */
#include "storage/storage.h"
#include "tests/bench/bench.h"

#include <string.h>

#define BLOCK (UINT64_C(1) << 20)
#define READS 64u

static struct {
    struct storage *storage;
    unsigned char *data, *other;
    uint64_t bytes;
} bed;

static void fill(unsigned char *data, uint64_t bytes)
{
    uint64_t value = 1;
    for (uint64_t i = 0; i < bytes / 8; i++) {
        value = value * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(data + 8 * i, &value, 8);
    }
}

static void put(const char *key)
{
    struct storage_object *object;
    BENCH_TRY(storage_object_create(bed.storage, &object, key, bed.bytes), report_line());
    for (uint64_t at = 0; at < bed.bytes; at += UINT32_C(1) << 30) {
        uint64_t left = bed.bytes - at, now = left < UINT32_C(1) << 30 ? left : UINT32_C(1) << 30;
        BENCH_TRY(
            storage_transfer(bed.storage, STORAGE_WRITE, object, at, bed.data + at, (uint32_t)now),
            report_line());
    }
    BENCH_TRY(storage_transfer(bed.storage, STORAGE_SYNC, object, 0, NULL, 0), report_line());
    storage_object_close(bed.storage, object);
}

/* Each completed transfer starts again with the next range. */
static void get(const char *key)
{
    static struct storage_transfer transfers[READS];
    struct storage_object *object;
    uint64_t bytes = 0, begun = 0;
    BENCH_TRY(storage_object_open(bed.storage, &object, key, &bytes), report_line());
    BENCH_TRY(bytes != bed.bytes, "the object has another size");
    for (uint64_t at = 0; at < bytes; at += BLOCK) {
        for (; begun < bytes && begun < at + READS * BLOCK; begun += BLOCK)
            storage_begin(&transfers[begun / BLOCK % READS], bed.storage, STORAGE_READ, object,
                          begun, bed.other + begun, (uint32_t)BLOCK);
        BENCH_TRY(storage_end(&transfers[at / BLOCK % READS]), report_line());
    }
    storage_object_close(bed.storage, object);
}

static void timed(void (*body)(const char *key), const char *key)
{
    double began = bench_seconds(), cpu = bench_clock(CLOCK_PROCESS_CPUTIME_ID);
    body(key);
    printf("{\"seconds\": %.6f, \"cpu\": %.6f}\n", bench_seconds() - began,
           bench_clock(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    char line[512];
    BENCH_TRY(argc != 3, "usage: bucket PLACE MIB");
    bed.bytes = strtoull(argv[2], NULL, 10) * BLOCK;
    bed.data = aligned_alloc(STORAGE_ALIGN, bed.bytes);
    bed.other = aligned_alloc(STORAGE_ALIGN, bed.bytes);
    BENCH_TRY(bed.bytes == 0 || bed.data == NULL || bed.other == NULL, "out of memory");
    fill(bed.data, bed.bytes);
    BENCH_TRY(
        storage_open_where(&bed.storage, argv[1], &(struct storage_options){.is_quiet = true}),
        report_line());
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        bool is_get = strncmp(line, "get ", 4) == 0;
        BENCH_TRY(!is_get && strncmp(line, "put ", 4) != 0, "unknown command on stdin");
        if (is_get)
            memset(bed.other, 0, bed.bytes);
        else
            storage_remove(bed.storage, line + 4); /* of the put before */
        timed(is_get ? get : put, line + 4);
        BENCH_TRY(is_get && memcmp(bed.data, bed.other, bed.bytes) != 0, "what came is not it");
    }
    storage_close(bed.storage);
    free(bed.data);
    free(bed.other);
    return 0;
}
