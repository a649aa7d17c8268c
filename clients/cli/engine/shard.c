/* shard.c - the shard files of an open checkpoint, against its manifest.
 *
 * checkpoint_load verifies many shards at a time: every file's size, its checksum table by the
 * manifest's hash, and its header. The header must be the one that the layout determines; quick
 * checks only that it ends with the manifest's hash, and otherwise the whole header. After that
 * each block can be verified by its entry of the table (store_shard_check_blocks). Damage is stored
 * per shard as text, and the load continues.
 *
 * A file is open while it is taken, and afterwards while there is room: at most SHARDS_OPEN_MAX.
 * Only one thread takes, any thread drops.
 *
 * Memory: 8 bytes per MiB of the checkpoint for the tables, if kept; the tensors of the open
 * shards; while they are loaded two headers, a table and the tensors of two shards for each
 * thread. */
#include "clients/cli/engine/cli.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define SHARDS_OPEN_MAX 64u
#define LOADERS_MAX 16u     /* threads that load shards, each with two reads at a time */
#define LOADER_NICE 10      /* for the loaders beside the calling thread */
#define HEADER_END_PAGES 2u /* the end of a header's text is in these: shard_header_hash() */

/* ---- one file ---- */

static int open_object(struct shard_file *file)
{
    int error = store_shard_open(&file->stored, "");
    if (error == ERR_NOT_FOUND)
        error = report_error(ERR_CORRUPT, NULL, "the file is missing");
    else if (error == ERR_CORRUPT && file->stored.object != NULL)
        error = report_error(ERR_CORRUPT, NULL, "the file has %llu bytes instead of %llu",
                             (unsigned long long)file->stored.bytes,
                             (unsigned long long)file->stored.geometry.file_bytes);
    return error;
}

/* Its table stays. */
static void close_file(struct shard_file *file)
{
    if (file->stored.object != NULL)
        storage_object_close(file->stored.storage, file->stored.object);
    free(file->tensors);
    file->stored.object = NULL;
    file->tensors = NULL;
}

/* ---- loading ---- */

/* Does a header of more than these pages end with the committed hash? If its last page has not the
 * end of its text, the one before has. */
static int check_header_end(bool *out_proved, const struct shard_file *file,
                            const struct checkpoint *checkpoint)
{
    _Alignas(STORAGE_ALIGN) unsigned char pages[HEADER_END_PAGES * SHARD_ALIGN];
    uint64_t end = file->stored.geometry.data_start;
    *out_proved = false;
    for (uint64_t bytes = SHARD_ALIGN; !*out_proved && bytes <= sizeof pages;
         bytes += SHARD_ALIGN) {
        ERR_TRY(storage_transfer(file->stored.storage, STORAGE_READ, file->stored.object,
                                 end - bytes, pages, (uint32_t)bytes));
        *out_proved = manifest_header_fits(checkpoint->manifest, file->stored.shard, pages, bytes);
    }
    return 0;
}

/* Reads a short header completely also in a quick load, and one without a known hash. */
static int check_header(const struct shard_file *file, const struct checkpoint *checkpoint,
                        enum load load, struct shard_expected *expected)
{
    bool is_proved = false;
    if (load == LOAD_QUICK && manifest_has_header_hashes(checkpoint->manifest) &&
        file->stored.geometry.data_start > HEADER_END_PAGES * SHARD_ALIGN)
        ERR_TRY(check_header_end(&is_proved, file, checkpoint));
    return is_proved ? 0 : store_shard_check_header(&file->stored, expected);
}

/* Converts damage to text instead of an error. A header's ERR_VERSION counts as damage, too, as
 * does a failed read: it concerns one shard. */
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

/* Verifies header and table of an open file, reading both at once. */
static int verify_shard(struct shard_file *file, const struct checkpoint *checkpoint,
                        enum load load, struct shard_expected *expected)
{
    const struct shard_geometry *geometry = &file->stored.geometry;
    struct storage_transfer reading;
    struct failure failure = {0};
    ERR_TRY(store_shard_begin_table(&file->stored, &reading));
    failure_keep(&failure,
                 keep_header_damage(file, check_header(file, checkpoint, load, expected)));
    int error = store_shard_end_table(&file->stored, &reading);
    if (error == ERR_CORRUPT)
        error = report_error(
            ERR_CORRUPT, NULL, "the checksum table (bytes %llu to %llu) is damaged",
            (unsigned long long)geometry->table_start, (unsigned long long)geometry->file_bytes);
    failure_keep(&failure, keep_file_damage(file, error));
    if (load == LOAD_QUICK)
        store_shard_close(&file->stored);
    return failure_report(&failure);
}

static int load_shard(struct shard_file *file, const struct checkpoint *checkpoint, enum load load,
                      struct shard_expected *expected)
{
    int error = open_object(file);
    error =
        error == 0 ? verify_shard(file, checkpoint, load, expected) : keep_file_damage(file, error);
    close_file(file);
    return error;
}

struct loading {
    struct checkpoint *checkpoint;
    enum load load;
    pthread_mutex_t lock; /* guards the following */
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
            error = checkpoint_fail(checkpoint, file->stored.shard, error);
        pthread_mutex_lock(&loading->lock);
        failure_keep(&loading->failure, error);
    }
    pthread_mutex_unlock(&loading->lock);
    shard_expected_free(&expected);
    return NULL;
}

/* The submitting thread has priority: if the loaders occupy all processors, the device waits for
 * the next read until a loader's time slice ends. */
static void *run_nice_loader(void *argument)
{
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + LOADER_NICE); /* of this thread */
    return run_loader(argument);
}

/* Fills each shard from the manifest. */
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
        struct store_shard *file = &checkpoint->shards[i].stored;
        *file = (struct store_shard){
            .storage = checkpoint->store,
            .manifest = manifest,
            .shard = i,
            .identity = checksum_shard_identity(manifest->summary.nonce, i, shards)};
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
           pthread_create(&threads[started], NULL, run_nice_loader, &loading) == 0)
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
        close_file(file);
        store_shard_close(&file->stored);
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

/* A free place, or that of the least recently used file that is not taken. */
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
    CHECK(oldest != NULL); /* fewer blocks are under way than files may be open */
    close_file(*oldest);
    return oldest;
}

int shard_take(struct shard_file **out, struct checkpoint *checkpoint, uint32_t shard)
{
    struct shard_file *file = &checkpoint->shards[shard];
    uint64_t bytes = 0;
    int error = 0;
    if (file->stored.object == NULL) {
        struct shard_file **place = find_place(checkpoint);
        *place = NULL;
        error = open_object(file);
        if (error == 0)
            error = layout_shard_tensors(&file->tensors, &file->num_tensors, &bytes,
                                         checkpoint->manifest->table, shard);
        if (error == 0)
            *place = file;
        else
            close_file(file);
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
    uint64_t before = file->stored.geometry.data_start;
    return layout_tensor_at(file->tensors, file->num_tensors, byte > before ? byte - before : 0);
}

uint64_t tensor_elements(const struct tensor_meta *tensor)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < tensor->dims; d++)
        elements *= tensor->shape[d];
    return elements;
}
