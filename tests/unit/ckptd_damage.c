/* ckptd_damage.c - how ckptd treats a checkpoint whose bytes changed on disk.
 *
 * Goal: a load is refused with ERR_CORRUPT, and the checkpoint is called damaged with the place,
 * wherever a byte of its manifest, header, checksum table or data changed, or a file was truncated.
 * Likewise when a block comes from elsewhere in the file, from another rank's, or from an older
 * checkpoint. Its neighbours load. Method: the service and the raw client of ckptd_bed.h; STEPS
 * checkpoints are damaged at a time, each at another place. After a restart, with a small pool and
 * no images in memory, all are loaded. The places are the bytes of manifest, header and table and
 * one byte in every 4 KiB of data, in make test every STRIDE-th; which ones, which bit, and which
 * byte there, differs from run to run: SEED= repeats it, SAMPLE=1 takes every place (sample.h).
 * clients_damage.c goes through the bytes with the offline tool, on the same formats. */
#include "proto/base/sanitized.h"
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/in_memory.h"
#include "tests/unit/sample.h"
#include "tests/unit/suite.h"

#include <sys/stat.h>

#define STEPS 36u
#define STRIDE (IS_SANITIZED ? 13u : 7u) /* a prime meets every place sooner or later */
#define SHARD "shard-00001-of-00001.safetensors"
#define SHARD_1 "shard-00001-of-00002.safetensors"
#define SHARD_2 "shard-00002-of-00002.safetensors"
#define MANIFEST "manifest.json"
#define PAGE 4096u
#define POOL_BYTES (8 * MIB) /* every start fills it */

static struct peer peers[2];

/* How one checkpoint is damaged. */
struct damage {
    enum { FLIP, TRUNCATE, COPY } kind;
    const char *file; /* of the checkpoint's directory */
    off_t at;
    off_t from;            /* COPY: a block of step `from_step` */
    bool is_whole;         /* or all of the file */
    uint64_t from_step;    /* 0: the same step */
    const char *from_file; /* NULL: the same */
};

static void file_path(char out[300], const struct bed *bed, uint64_t step, const char *name)
{
    snprintf(out, 300, "%s/store/" RUN "/step-%08llu-a0001/%s", bed->root, (unsigned long long)step,
             name);
}

static int open_file(const struct bed *bed, uint64_t step, const char *name)
{
    char path[300];
    file_path(path, bed, step, name);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static off_t size_of(const struct bed *bed, uint64_t step, const char *name)
{
    struct stat status;
    int fd = open_file(bed, step, name);
    assert_int_equal(fstat(fd, &status), 0);
    close(fd);
    return status.st_size;
}

/* The changed bytes of a file, to restore them. */
struct undo {
    uint8_t *bytes;
    size_t count;
};

static void keep(struct undo *undo, int fd, off_t at, size_t count)
{
    undo->bytes = malloc(count + 1);
    undo->count = (size_t)pread(fd, undo->bytes, count, at);
    assert_true(undo->count > 0);
}

static void do_damage(struct undo *undo, const struct bed *bed, uint64_t step,
                      const struct damage *damage)
{
    int fd = open_file(bed, step, damage->file);
    uint8_t *block = malloc(MIB), byte;
    uint64_t from_step = damage->from_step != 0 ? damage->from_step : step;
    const char *from_file = damage->from_file != NULL ? damage->from_file : damage->file;
    switch (damage->kind) {
    case FLIP:
        keep(undo, fd, damage->at, 1);
        byte = undo->bytes[0] ^ (uint8_t)(1u << next_random(8));
        assert_int_equal(pwrite(fd, &byte, 1, damage->at), 1);
        break;
    case TRUNCATE:
        keep(undo, fd, damage->at, (size_t)(size_of(bed, step, damage->file) - damage->at));
        assert_int_equal(ftruncate(fd, damage->at), 0);
        break;
    case COPY: {
        int from = open_file(bed, from_step, from_file);
        size_t bytes = damage->is_whole ? (size_t)size_of(bed, step, damage->file) : MIB;
        assert_true(!damage->is_whole || size_of(bed, from_step, from_file) == (off_t)bytes);
        keep(undo, fd, damage->at, bytes);
        block = realloc(block, bytes);
        assert_int_equal(pread(from, block, bytes, damage->from), bytes);
        assert_int_equal(pwrite(fd, block, bytes, damage->at), bytes);
        close(from);
        break;
    }
    }
    free(block);
    close(fd);
}

static void undo_damage(struct undo *undo, const struct bed *bed, uint64_t step,
                        const struct damage *damage)
{
    int fd = open_file(bed, step, damage->file);
    assert_int_equal(pwrite(fd, undo->bytes, undo->count, damage->at), undo->count);
    free(undo->bytes);
    close(fd);
}

/* Expected in the list: the file; for data the block; and the header, which is read first. */
static void name_damage(char out[100], const struct bed *bed, uint64_t step,
                        const struct damage *damage)
{
    const char *file = damage->file;
    bool is_table = damage->at >= size_of(bed, step, file) - PAGE;
    if (strcmp(file, MANIFEST) == 0)
        snprintf(out, 100, "manifest");
    else if (damage->kind == TRUNCATE)
        snprintf(out, 100, "its shards have %lld bytes instead of ", (long long)damage->at);
    else if (damage->at < (off_t)PAGE)
        snprintf(out, 100, "the header of %.*s ", (int)strcspn(file, "."), file);
    else if (is_table)
        snprintf(out, 100, "the checksum table of %.*s ", (int)strcspn(file, "."), file);
    else
        snprintf(out, 100, "block %lld of %.*s ", (long long)(damage->at / MIB),
                 (int)strcspn(file, "."), file);
}

/* The first `count` steps are listed as damaged, each as its damage is, and no other. */
static void expect_named(struct bed *bed, const struct damage *damages, uint32_t count)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    assert_int_equal(reply->n_checkpoints, STEPS); /* kept unchanged */
    for (size_t i = 0; i < reply->n_checkpoints; i++) {
        const Holdfast__V1__CheckpointSummary *listed = reply->checkpoints[i];
        bool is_damaged = listed->step <= count;
        char name[100] = "";
        assert_int_equal(strcmp(listed->durability, "damaged") == 0, is_damaged);
        if (is_damaged)
            name_damage(name, bed, listed->step, &damages[listed->step - 1]);
        if (strstr(listed->damage, name) == NULL || (listed->damage[0] != '\0') != is_damaged)
            fail_msg("\"%s\" is called \"%s\"", name, listed->damage);
    }
    FREE_REPLY(reply);
}

/* Damages the first `count` steps, one way each, and loads all. */
static void expect_refused(struct bed *bed, const struct damage *damages, uint32_t count)
{
    struct undo undos[STEPS] = {{0}};
    assert_true(count <= STEPS);
    bed_stop(bed);
    for (uint32_t i = 0; i < count; i++)
        do_damage(&undos[i], bed, i + 1, &damages[i]);
    assert_int_equal(bed_start(bed), 0);
    for (uint32_t i = 0; i < STEPS; i++) {
        int error = load_all(bed, (int64_t)i + 1, NULL);
        if (error != (i < count ? ERR_CORRUPT : 0))
            fail_msg("kind %d of %s at %lld: load said %d, %s", damages[i].kind, damages[i].file,
                     (long long)damages[i].at, error, report_line());
    }
    expect_named(bed, damages, count);
    bed_stop(bed);
    for (uint32_t i = 0; i < count; i++)
        undo_damage(&undos[i], bed, i + 1, &damages[i]);
    bed_forget_damage(bed);
}

/* Gathers damages until there is one for each checkpoint. */
struct batch {
    struct bed *bed;
    struct damage damages[STEPS];
    uint32_t count, total;
};

static void flush(struct batch *batch)
{
    if (batch->count > 0)
        expect_refused(batch->bed, batch->damages, batch->count);
    batch->total += batch->count;
    batch->count = 0;
}

static void add(struct batch *batch, struct damage damage)
{
    batch->damages[batch->count++] = damage;
    if (batch->count == STEPS)
        flush(batch);
}

/* ---- the checks ---- */

static uint32_t stride;

static off_t draw_start(void)
{
    return (off_t)next_random(stride);
}

static int open_saved_by(void **state, uint32_t ranks)
{
    struct bed *bed = bed_new();
    *state = bed;
    bed->config.pool_bytes = POOL_BYTES;
    stride = (uint32_t)sample_one_in(STRIDE);
    seed_random();
    assert_int_equal(bed_start(bed), 0);
    bed_save_steps(bed, peers, ranks, 1, STEPS);
    return 0;
}

static int open_with_steps(void **state)
{
    return open_saved_by(state, 1);
}

static int open_with_two_shards(void **state)
{
    return open_saved_by(state, 2);
}

static void flip_range(struct batch *batch, const char *file, off_t begin, off_t end)
{
    for (off_t at = begin + draw_start(); at < end; at += stride)
        add(batch, (struct damage){.kind = FLIP, .file = file, .at = at});
    flush(batch);
}

TEST_BETWEEN(test_damage__a_flipped_byte_is_never_loaded, open_with_steps, bed_tear_down)
{
    struct batch batch = {.bed = *state};
    off_t shard = size_of(batch.bed, 1, SHARD), table = shard - PAGE;
    flip_range(&batch, MANIFEST, 0, size_of(batch.bed, 1, MANIFEST));
    flip_range(&batch, SHARD, 0, PAGE); /* the header */
    flip_range(&batch, SHARD, table, shard);
    for (off_t page = PAGE * (1 + draw_start()); page < table; page += (off_t)stride * PAGE)
        add(&batch, (struct damage){.kind = FLIP, .file = SHARD, .at = page + next_random(PAGE)});
    flush(&batch);
    print_message("# %u places\n", batch.total);
}

TEST_BETWEEN(test_damage__a_truncated_file_is_never_loaded, open_with_steps, bed_tear_down)
{
    struct batch batch = {.bed = *state};
    off_t shard = size_of(batch.bed, 1, SHARD), manifest = size_of(batch.bed, 1, MANIFEST);
    for (off_t at = draw_start(); at < manifest; at += stride)
        add(&batch, (struct damage){.kind = TRUNCATE, .file = MANIFEST, .at = at});
    for (off_t at = PAGE * draw_start(); at < shard; at += (off_t)stride * PAGE)
        add(&batch, (struct damage){.kind = TRUNCATE, .file = SHARD, .at = at});
    for (off_t at = shard - PAGE + draw_start(); at < shard; at += stride)
        add(&batch, (struct damage){.kind = TRUNCATE, .file = SHARD, .at = at});
    flush(&batch);
    print_message("# %u lengths\n", batch.total);
}

TEST_BETWEEN(test_damage__blocks_of_another_place_or_time_are_never_loaded, open_with_steps,
             bed_tear_down)
{
    struct batch batch = {.bed = *state};
    for (off_t a = 0; a < 4; a++)
        for (off_t b = 0; b < 4; b++)
            if (a != b)
                add(&batch,
                    (struct damage){.kind = COPY, .file = SHARD, .at = a * MIB, .from = b * MIB});
    for (off_t a = 0; a < 4; a++) /* every block was right in a step that was committed */
        for (uint64_t step = STEPS - 2; step <= STEPS; step++)
            add(&batch, (struct damage){.kind = COPY,
                                        .file = SHARD,
                                        .at = a * MIB,
                                        .from = a * MIB,
                                        .from_step = step == batch.count + 1 ? 1 : step});
    flush(&batch);
    /* A file that was whole, of an older checkpoint: every block fits its own table. */
    for (uint64_t step = 1; step < STEPS; step++)
        add(&batch,
            (struct damage){.kind = COPY, .is_whole = true, .file = SHARD, .from_step = STEPS});
    flush(&batch);
    print_message("# %u exchanges\n", batch.total);
}

/* Blocks and files of the other rank, of this step and of another. */
TEST_BETWEEN(test_damage__nor_are_those_of_another_shard, open_with_two_shards, bed_tear_down)
{
    static const char *const files[] = {SHARD_1, SHARD_2};
    struct batch batch = {.bed = *state};
    for (int file = 0; file < 2; file++) {
        off_t blocks = size_of(batch.bed, 1, files[file]) / MIB;
        assert_true(blocks >= 2);
        struct damage damage = {.kind = COPY, .file = files[file], .from_file = files[1 - file]};
        for (off_t a = 0; a < blocks; a++) {
            for (off_t b = 0; b < blocks; b++) {
                damage.at = a * MIB;
                damage.from = b * MIB;
                damage.from_step = 0;
                add(&batch, damage);
                damage.from_step = batch.count + 1 == STEPS ? 1 : STEPS;
                add(&batch, damage);
            }
        }
        damage = (struct damage){
            .kind = COPY, .is_whole = true, .file = files[file], .from_file = files[1 - file]};
        add(&batch, damage);
        damage.from_step = STEPS;
        add(&batch, damage);
        damage.from_file = files[file];
        add(&batch, damage);
    }
    flush(&batch);
    print_message("# %u exchanges\n", batch.total);
}

int main(void)
{
    tell_in_memory();
    log_setup("ckptd_damage", NULL);
    return suite_run(NULL, NULL);
}
