/* loader.c - samples as a rank gets them from its reader thread, beside bare reads of their tokens.
 *
 *     loader FILE MIB SEQ_LEN BATCH
 *
 * FILE is written first: MIB of tokens of two bytes, so it lies in the page cache. Ours is all that
 * a step waits for where nothing is computed: order, read, checksums, inputs and targets, the copy
 * to the caller. The reference reads the same tokens in the same order with pread, and nothing
 * else.
 *
 * Commands on stdin, each answered with one JSON line: {"tokens_per_s"}
 *
 *     ours LEAVES
 *     reference LEAVES        of BATCH samples each, further samples every time */
#include "proto/base/report.h"
#include "tests/bench/bench.h"
#include "trainer/data/ahead.h"
#include "trainer/data/tokens_file.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define VOCAB 32000u
#define LEAVES 8u /* of a step */
#define DOCUMENT 1000u

struct loader {
    uint32_t seq, batch;
    struct ahead *ahead; /* which has the data `ours` */
    struct data *ours, *reference;
    int file;
    size_t block_bytes;
    int64_t steps[2]; /* that each side has read */
    int32_t *memory;  /* [2][batch, seq] */
};

static uint32_t leaves_of_step(const void *user, int64_t step)
{
    (void)user;
    (void)step;
    return LEAVES;
}

static void write_tokens(const char *path, uint64_t num)
{
    struct tokens_writer *writer;
    char hash[65];
    int32_t document[DOCUMENT];
    memset(hash, 'a', 64);
    hash[64] = '\0';
    struct tokens_writer_options options = {path, hash, VOCAB, -1, -1, false};
    BENCH_TRY(tokens_writer_open(&writer, &options), report_line());
    for (uint64_t at = 0; at < num; at += DOCUMENT) {
        for (uint32_t i = 0; i < DOCUMENT; i++)
            document[i] = (int32_t)((at + i) * 2654435761u >> 16) & 0x3fff;
        tokens_writer_begin(writer);
        tokens_writer_add(writer, document, DOCUMENT, true);
    }
    BENCH_TRY(tokens_writer_commit(writer, NULL), report_line());
}

static void open_loader(struct loader *l, const char *path)
{
    struct tokens_file *file;
    BENCH_TRY(tokens_file_open(&file, path), report_line());
    BENCH_TRY(tokens_file_header(file)->token_bytes != 2, "tokens have two bytes");
    l->block_bytes = tokens_block_bytes(tokens_file_header(file));
    tokens_file_close(file);
    BENCH_TRY(data_open(&l->ours, path, l->seq, 1), report_line());
    BENCH_TRY(data_open(&l->reference, path, l->seq, 1), report_line());
    l->file = open(path, O_RDONLY | O_CLOEXEC);
    BENCH_TRY(l->file < 0, path);
    l->memory = bench_allocate(2 * (size_t)l->batch * l->seq + 1, sizeof(*l->memory));
    struct ahead_options options = {
        .data = l->ours,
        .batch = l->batch,
        .leaves = {.num = LEAVES, .groups = 1, .replicas = 1, .shards = 1},
        .leaves_of_step = leaves_of_step};
    BENCH_TRY(ahead_open(&l->ahead, &options), report_line());
}

static uint64_t first_of(const struct loader *l, int64_t step)
{
    return (uint64_t)step * LEAVES * l->batch;
}

static void read_ours(struct loader *l, int64_t step)
{
    struct data_batch out = {l->memory, l->memory + (size_t)l->batch * l->seq, NULL};
    ahead_step(l->ahead, step, first_of(l, step));
    for (uint32_t leaf = 0; leaf < LEAVES; leaf++)
        BENCH_TRY(ahead_take(l->ahead, &out), report_line());
}

/* Tokens [first, first + count) of the file, block by block. */
static void read_tokens(const struct loader *l, uint64_t first, uint64_t count)
{
    for (uint64_t done = 0, n; done < count; done += n) {
        uint64_t block = (first + done) / TOKENS_BLOCK, at = (first + done) % TOKENS_BLOCK;
        n = TOKENS_BLOCK - at < count - done ? TOKENS_BLOCK - at : count - done;
        off_t offset = (off_t)(TOKENS_HEADER_BYTES + block * l->block_bytes + at * 2);
        BENCH_TRY(pread(l->file, l->memory, n * 2, offset) != (ssize_t)(n * 2), "pread");
    }
}

static void read_reference(struct loader *l, int64_t step)
{
    uint64_t num = data_info(l->reference)->num_samples;
    for (uint32_t i = 0; i < LEAVES * l->batch; i++) {
        uint64_t sample = data_permute(l->reference, (first_of(l, step) + i) % num);
        read_tokens(l, sample * l->seq, l->seq + 1u);
    }
}

static void answer_commands(struct loader *l)
{
    char side[16];
    unsigned leaves;
    while (scanf("%15s %u", side, &leaves) == 2) {
        bool is_ours = strcmp(side, "ours") == 0;
        double began = bench_seconds();
        for (uint32_t leaf = 0; leaf < leaves; leaf += LEAVES)
            (is_ours ? read_ours : read_reference)(l, l->steps[is_ours]++);
        double seconds = bench_seconds() - began;
        unsigned made = (leaves + LEAVES - 1) / LEAVES * LEAVES;
        printf("{\"tokens_per_s\": %.0f}\n", (double)made * l->batch * l->seq / seconds);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: loader FILE MIB SEQ_LEN BATCH\n");
        return 2;
    }
    struct loader l = {.seq = (uint32_t)strtoul(argv[3], NULL, 10),
                       .batch = (uint32_t)strtoul(argv[4], NULL, 10)};
    write_tokens(argv[1], (strtoull(argv[2], NULL, 10) << 20) / 2);
    open_loader(&l, argv[1]);
    answer_commands(&l);
    ahead_close(l.ahead);
    data_close(l.ours);
    data_close(l.reference);
    close(l.file);
    free(l.memory);
    return 0;
}
