/* shard.c - the shard files of an open checkpoint, against its manifest.
 *
 * checkpoint_load proves what the rest rests on, many shards at a time: every file's size, its
 * checksum table by the hash that the manifest holds, and its header: that it is the one which the
 * layout lets expect, or, quick, that it ends with the hash that the manifest holds; what does not
 * is judged as a whole. After that a block that is read can be proved by its entry of
 * the table (shard_block_is_good). Damage is kept per shard as text; nothing stops at it.
 *
 * A file is open while somebody has taken it, and for as long after as there is room: at most
 * SHARDS_OPEN_MAX. Only one thread takes, any thread drops.
 *
 * Memory: 8 bytes per MiB of the checkpoint for the tables, if kept; the tensors of the open
 * shards; while they are loaded two headers, two blocks and the tensors of two shards for each
 * thread. */
#include "clients/cli/engine/cli.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define SHARDS_OPEN_MAX 64u
#define LOADERS_MAX 16u     /* threads that load shards, each with two reads at a time */
#define LOADER_NICE 10      /* beside whoever started this */
#define HEADER_END_PAGES 2u /* in which the text of a header ends: shard_header_hash() */

static uint64_t align_up(uint64_t value)
{
    return (value + SHARD_ALIGN - 1) / SHARD_ALIGN * SHARD_ALIGN;
}

/* ---- one file ---- */

/* A read of [start, start + bytes) of a file, in parts of whole pages, of which the first is under
 * way: a shard needs two, and the device has the one while the other is prepared. */
struct reading {
    struct storage *store;
    struct storage_object *object;
    uint64_t start, bytes;
    unsigned char *room; /* NULL: it could not begin */
    uint64_t room_bytes;
    struct storage_transfer first;
};

/* The part that begins with byte `done`: where, in *from, and how many bytes of the file. */
static uint32_t part_of(uint64_t *from, const struct reading *reading, uint64_t done)
{
    uint64_t start = reading->start + done;
    *from = start / SHARD_ALIGN * SHARD_ALIGN;
    uint64_t length = align_up(start - *from + reading->bytes - done);
    return (uint32_t)(length < reading->room_bytes ? length : reading->room_bytes);
}

static void begin_read(struct reading *reading, struct storage *store,
                       struct storage_object *object, uint64_t start, uint64_t bytes)
{
    uint64_t room_bytes = align_up(start % SHARD_ALIGN + bytes), from;
    *reading = (struct reading){.store = store, .object = object, .start = start, .bytes = bytes};
    reading->room_bytes = room_bytes < CHECKSUM_BLOCK_BYTES ? room_bytes : CHECKSUM_BLOCK_BYTES;
    reading->room = aligned_alloc(SHARD_ALIGN, reading->room_bytes);
    if (reading->room == NULL)
        return;
    uint32_t length = part_of(&from, reading, 0);
    storage_begin(&reading->first, store, STORAGE_READ, object, from, reading->room, length);
}

/* Waits for it; `out` NULL: whatever it brings. */
static int end_read(void *out, struct reading *reading)
{
    if (reading->room == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a block");
    int error = storage_end(&reading->first);
    for (uint64_t done = 0; done < reading->bytes && error == 0 && out != NULL;) {
        uint64_t from, rest = reading->bytes - done;
        uint32_t length = part_of(&from, reading, done);
        uint64_t inside = reading->start + done - from;
        uint64_t got = length - inside < rest ? length - inside : rest;
        if (done > 0)
            error = storage_transfer(reading->store, STORAGE_READ, reading->object, from,
                                     reading->room, length);
        if (error == 0)
            memcpy((unsigned char *)out + done, reading->room + inside, got);
        done += got;
    }
    free(reading->room);
    return error;
}

static int read_bytes(void *out, struct storage *store, struct storage_object *object,
                      uint64_t start, uint64_t bytes)
{
    struct reading reading;
    begin_read(&reading, store, object, start, bytes);
    return end_read(out, &reading);
}

static int open_object(struct shard_file *file, const struct checkpoint *checkpoint)
{
    struct shard_identity identity;
    char key[STORAGE_KEY_MAX];
    uint64_t bytes = 0;
    manifest_identity(&identity, &checkpoint->manifest->summary, file->shard);
    int error = shard_key(key, sizeof key, &identity);
    if (error == 0)
        error = storage_object_open(checkpoint->store, &file->object, key, &bytes);
    if (error == ERR_NOT_FOUND)
        error = report_error(ERR_CORRUPT, NULL, "the file is missing");
    if (error == 0 && bytes != file->geometry.file_bytes)
        error =
            report_error(ERR_CORRUPT, NULL, "the file has %llu bytes instead of %llu",
                         (unsigned long long)bytes, (unsigned long long)file->geometry.file_bytes);
    return error;
}

static void close_file(struct shard_file *file, struct storage *store)
{
    storage_object_close(store, file->object);
    free(file->tensors);
    file->object = NULL;
    file->tensors = NULL;
}

bool shard_block_is_good(const struct shard_file *file, uint64_t block, const void *data)
{
    uint64_t start, bytes;
    shard_block(&start, &bytes, &file->geometry, block);
    return checksum_block(data, bytes, file->identity, block) == file->hashes[block];
}

/* ---- loading ---- */

/* The checksum table, proved by the manifest's hash of it. `reading`: of the table; it is ended. */
static int read_table(struct shard_file *file, struct reading *reading, uint64_t want, bool is_kept)
{
    uint64_t bytes = reading->bytes;
    uint64_t *hashes = malloc(bytes);
    int error = end_read(hashes, reading);
    if (hashes == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a checksum table");
    if (error == 0 && checksum_bytes(hashes, bytes) != want)
        error =
            report_error(ERR_CORRUPT, NULL, "the checksum table (bytes %llu to %llu) is damaged",
                         (unsigned long long)file->geometry.table_start,
                         (unsigned long long)file->geometry.file_bytes);
    if (error != 0 || !is_kept) {
        free(hashes);
        return error;
    }
    for (uint64_t i = 0; i < file->geometry.num_blocks; i++)
        hashes[i] = shard_table_entry(hashes, i);
    uint64_t *fitting = realloc(hashes, file->geometry.num_blocks * sizeof *hashes);
    file->hashes = fitting != NULL ? fitting : hashes; /* what is too large does as well */
    return 0;
}

/* Is the header the one that the layout lets expect, and the one that was committed? `expected`: of
 * the loader that calls. */
static int check_whole_header(const struct shard_file *file, const struct checkpoint *checkpoint,
                              struct shard_expected *expected)
{
    uint64_t bytes = file->geometry.data_start;
    unsigned char *header = malloc(bytes);
    if (header == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a header");
    int error = read_bytes(header, checkpoint->store, file->object, 0, bytes);
    if (error == 0)
        error = manifest_check_header(expected, checkpoint->manifest, file->shard, header);
    free(header);
    return error;
}

/* Does a header of more pages than these end with the hash that was committed? Where its last page
 * is not the one with the end of its text, the one before is. */
static int check_header_end(bool *out_proved, const struct shard_file *file,
                            const struct checkpoint *checkpoint)
{
    unsigned char pages[HEADER_END_PAGES * SHARD_ALIGN];
    uint64_t end = file->geometry.data_start;
    *out_proved = false;
    for (uint64_t bytes = SHARD_ALIGN; !*out_proved && bytes <= sizeof pages;
         bytes += SHARD_ALIGN) {
        ERR_TRY(read_bytes(pages, checkpoint->store, file->object, end - bytes, bytes));
        *out_proved = manifest_header_fits(checkpoint->manifest, file->shard, pages, bytes);
    }
    return 0;
}

/* A short header is read whole also by who is in a hurry, and one of whose end nothing is known. */
static int check_header(const struct shard_file *file, const struct checkpoint *checkpoint,
                        enum load load, struct shard_expected *expected)
{
    bool is_proved = false;
    if (load == LOAD_QUICK && manifest_has_header_hashes(checkpoint->manifest) &&
        file->geometry.data_start > HEADER_END_PAGES * SHARD_ALIGN)
        ERR_TRY(check_header_end(&is_proved, file, checkpoint));
    return is_proved ? 0 : check_whole_header(file, checkpoint, expected);
}

/* Damage becomes text, and no error; ERR_VERSION is a header's and counts as damage too, as does a
 * read that failed: it is the matter of one shard. */
static int keep_damage(char **out, int error)
{
    if (error != ERR_CORRUPT && error != ERR_VERSION && error != ERR_IO)
        return error;
    *out = strdup(report_message());
    return *out != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a message");
}

static int keep_file_damage(struct shard_file *file, int error)
{
    file->damage_error = error == ERR_IO ? ERR_IO : ERR_CORRUPT;
    return keep_damage(&file->damage, error);
}

static int keep_header_damage(struct shard_file *file, int error)
{
    file->header_error = error == ERR_IO ? ERR_IO : ERR_CORRUPT;
    return keep_damage(&file->header_damage, error);
}

/* Header and table of an open file. */
static int prove_shard(struct shard_file *file, const struct checkpoint *checkpoint, enum load load,
                       struct shard_expected *expected)
{
    const struct shard_geometry *geometry = &file->geometry;
    struct reading table;
    begin_read(&table, checkpoint->store, file->object, geometry->table_start,
               geometry->file_bytes - geometry->table_start);
    int error = keep_header_damage(file, check_header(file, checkpoint, load, expected));
    if (error != 0) {
        struct failure failure = {0};
        failure_keep(&failure, error);
        end_read(NULL, &table);
        return failure_report(&failure);
    }
    uint64_t want = checkpoint->manifest->shards[file->shard].table_hash;
    return keep_file_damage(file, read_table(file, &table, want, load != LOAD_QUICK));
}

static int load_shard(struct shard_file *file, const struct checkpoint *checkpoint, enum load load,
                      struct shard_expected *expected)
{
    int error = open_object(file, checkpoint);
    if (error == 0)
        error = prove_shard(file, checkpoint, load, expected);
    else
        error = keep_file_damage(file, error);
    close_file(file, checkpoint->store);
    return error;
}

struct loading {
    struct checkpoint *checkpoint;
    enum load load;
    pthread_mutex_t lock; /* guards what follows */
    uint32_t next;
    struct failure failure;
};

static void *run_loader(void *argument)
{
    struct loading *loading = argument;
    struct checkpoint *checkpoint = loading->checkpoint;
    struct shard_expected expected = {0};
    pthread_mutex_lock(&loading->lock);
    while (loading->next < checkpoint->manifest->summary.shards && loading->failure.error == 0) {
        struct shard_file *file = &checkpoint->shards[loading->next++];
        pthread_mutex_unlock(&loading->lock);
        int error = load_shard(file, checkpoint, loading->load, &expected);
        if (error != 0)
            error = checkpoint_fail(checkpoint, file->shard, error);
        pthread_mutex_lock(&loading->lock);
        failure_keep(&loading->failure, error);
    }
    pthread_mutex_unlock(&loading->lock);
    shard_expected_free(&expected);
    return NULL;
}

/* Who submits the reads goes first: where the loaders have all processors, the device would wait
 * for the next read until one of them has had its time slice. */
static void *run_behind(void *argument)
{
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + LOADER_NICE); /* of this thread */
    return run_loader(argument);
}

/* What the manifest tells of each. */
static int init_shards(struct checkpoint *checkpoint)
{
    const struct manifest *manifest = checkpoint->manifest;
    uint32_t shards = manifest->summary.shards;
    uint64_t *tensor_bytes = calloc(shards, sizeof *tensor_bytes);
    checkpoint->shards = calloc(shards, sizeof *checkpoint->shards);
    checkpoint->opened = calloc(SHARDS_OPEN_MAX, sizeof *checkpoint->opened);
    int error = 0;
    if (tensor_bytes == NULL || checkpoint->shards == NULL || checkpoint->opened == NULL)
        error =
            report_error(ERR_MEMORY, NULL, "no memory for %s", text_count(shards, "shard").text);
    if (error == 0)
        error = layout_shard_bytes(tensor_bytes, manifest->table, shards);
    for (uint32_t i = 0; i < shards && error == 0; i++) {
        struct shard_file *file = &checkpoint->shards[i];
        file->shard = i;
        file->identity = checksum_shard_identity(manifest->summary.nonce, i, shards);
        error =
            shard_geometry_derive(&file->geometry, manifest->shards[i].data_start, tensor_bytes[i]);
    }
    free(tensor_bytes);
    return error;
}

int checkpoint_load(struct checkpoint *checkpoint, enum load load)
{
    uint32_t shards = checkpoint->manifest->summary.shards, started = 0;
    struct loading loading = {.checkpoint = checkpoint, .load = load};
    pthread_t threads[LOADERS_MAX];
    ERR_TRY(init_shards(checkpoint));
    pthread_mutex_init(&loading.lock, NULL);
    while (started < LOADERS_MAX && started < shards &&
           pthread_create(&threads[started], NULL, run_behind, &loading) == 0)
        started++;
    if (started == 0)
        run_loader(&loading);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&loading.lock);
    return failure_report(&loading.failure);
}

void checkpoint_unload(struct checkpoint *checkpoint)
{
    for (uint32_t i = 0; checkpoint->shards != NULL && i < checkpoint->manifest->summary.shards;
         i++) {
        struct shard_file *file = &checkpoint->shards[i];
        close_file(file, checkpoint->store);
        free(file->hashes);
        free(file->damage);
        free(file->header_damage);
        free(file->read_for);
    }
    free(checkpoint->shards);
    free(checkpoint->opened);
}

int checkpoint_fail(const struct checkpoint *checkpoint, uint32_t shard, int error)
{
    char message[REPORT_TEXT_MAX];
    snprintf(message, sizeof message, "%s: shard %u: %s", checkpoint->name, shard + 1,
             report_message());
    return report_set(error, message, report_detail(), report_hint());
}

int checkpoint_need_whole(const struct checkpoint *checkpoint)
{
    for (uint32_t i = 0; i < checkpoint->manifest->summary.shards; i++) {
        const struct shard_file *file = &checkpoint->shards[i];
        if (file->damage != NULL || file->header_damage != NULL)
            return report_error(file->damage != NULL ? file->damage_error : file->header_error,
                                DAMAGE_HINT, "%s: shard %u: %s", checkpoint->name, i + 1,
                                file->damage != NULL ? file->damage : file->header_damage);
    }
    return 0;
}

bool checkpoint_has_damage(const struct checkpoint *checkpoint)
{
    bool has = false;
    for (uint32_t i = 0; checkpoint->shards != NULL && i < checkpoint->manifest->summary.shards;
         i++) {
        const struct shard_file *file = &checkpoint->shards[i];
        has |= (file->damage != NULL && file->damage_error == ERR_CORRUPT) ||
               (file->header_damage != NULL && file->header_error == ERR_CORRUPT) ||
               atomic_load(&file->has_bad_block);
    }
    return has;
}

/* ---- open files ---- */

/* A free place, or that of the file that nobody has taken for the longest time. */
static struct shard_file **find_place(struct checkpoint *checkpoint)
{
    struct shard_file **oldest = NULL;
    for (uint32_t i = 0; i < SHARDS_OPEN_MAX; i++) {
        struct shard_file **place = &checkpoint->opened[i];
        if (*place == NULL)
            return place;
        if (atomic_load(&(*place)->users) == 0 &&
            (oldest == NULL || (*place)->used < (*oldest)->used))
            oldest = place;
    }
    CHECK(oldest != NULL); /* fewer blocks are on their way than files may be open */
    close_file(*oldest, checkpoint->store);
    return oldest;
}

int shard_take(struct shard_file **out, struct checkpoint *checkpoint, uint32_t shard)
{
    struct shard_file *file = &checkpoint->shards[shard];
    uint64_t bytes = 0;
    int error = 0;
    if (file->object == NULL) {
        struct shard_file **place = find_place(checkpoint);
        *place = NULL;
        error = open_object(file, checkpoint);
        if (error == 0)
            error = layout_shard_tensors(&file->tensors, &file->num_tensors, &bytes,
                                         checkpoint->manifest->table, shard);
        if (error == 0)
            *place = file;
        else
            close_file(file, checkpoint->store);
    }
    if (error != 0)
        return checkpoint_fail(checkpoint, shard, error);
    file->used = ++checkpoint->clock;
    atomic_fetch_add(&file->users, 1);
    *out = file;
    return 0;
}

void shard_drop(struct shard_file *file)
{
    CHECK(atomic_fetch_sub(&file->users, 1) > 0);
}

uint32_t shard_tensor_at(const struct shard_file *file, uint64_t byte)
{
    uint64_t before = file->geometry.data_start;
    return layout_tensor_at(file->tensors, file->num_tensors, byte > before ? byte - before : 0);
}

uint64_t tensor_elements(const struct tensor_meta *tensor)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < tensor->dims; d++)
        elements *= tensor->shape[d];
    return elements;
}
