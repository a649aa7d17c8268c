/* writer.c - writes a new checkpoint (see writer.h): shards block by block with O_DIRECT, then the
 * manifest. writer_plan.c has its plan. */
#include "clients/cli/assemble/writer.h"
#include "proto/format/mark.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One shard. */
struct target {
    struct output_file file;
    struct writer *writer;
    uint32_t shard;
    struct shard_geometry geometry;
    uint64_t identity;
    struct shard_tensor *tensors; /* like `file.tensors` */
    unsigned char *head;
    struct storage_object *object;
    /* The last block and the table: from tail_start to the end of the file. */
    uint64_t tail_start;
    unsigned char *tail;
    uint64_t *hashes; /* per block */
    atomic_uint_fast64_t num_unhashed, num_unwritten;
    struct storage_request tail_request, sync_request;
    uint64_t table_hash;
    bool is_ended; /* durable, or failed */
    struct target *next;
};

void writer_init(struct writer *writer)
{
    memset(writer, 0, sizeof *writer);
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->changed, NULL);
}

/* ---- the store ---- */

static int visit_leftover(void *user, const struct storage_entry *entry)
{
    const struct writer *writer = user;
    (void)entry;
    return report_error(ERR_EXISTS,
                        writer->served == NULL ? "add --force to replace it"
                                               : "`ckpt-cli gc` removes it",
                        "%s holds an unfinished %s", writer->where, writer->directory);
}

/* The directory of the new checkpoint must be empty. With `is_forced`, members without a manifest
 * are removed. This process has the store's lock and the only lease, so no other process is writing
 * it. */
static int clear_directory(struct writer *writer, bool is_forced)
{
    char key[STORAGE_KEY_MAX + 32];
    uint64_t bytes;
    snprintf(key, sizeof key, "%s/%s", writer->directory, MANIFEST_NAME);
    int error = storage_fetch(writer->store, key, NULL, 0, &bytes);
    if (error == 0)
        return report_error(ERR_EXISTS, "name another store", "%s has a checkpoint %s already",
                            writer->where, writer->directory);
    if (error != ERR_NOT_FOUND)
        return error;
    if (is_forced) /* members that no mark proves to be unfinished stay */
        return store_clear(writer->store, writer->directory);
    error = storage_list(writer->store, writer->directory, visit_leftover, writer);
    /* Empty, except for a publication's rest: it does not exist, is removed, or stays. */
    if (error == 0)
        storage_remove(writer->store, writer->directory);
    return error;
}

static int check_space(struct writer *writer)
{
    struct storage_space space;
    char need[32], have[32];
    int error = storage_space(writer->store, &space);
    if (error != 0 || space.bytes_total == 0 || writer->manifest.summary.bytes <= space.bytes_free)
        return error;
    return report_error(ERR_SPACE, "free some space, or take another disk",
                        "%s has room for %s, and %s are needed", writer->where,
                        text_bytes(have, sizeof have, space.bytes_free),
                        text_bytes(need, sizeof need, writer->manifest.summary.bytes));
}

struct holders {
    const char *name;
    uint32_t count;
};

static int visit_holder(void *user, const struct storage_entry *entry)
{
    struct holders *holders = user;
    holders->count += strcmp(entry->name, holders->name) == 0;
    return 0;
}

/* Another process may be writing the directory: with a serving ckptd tools have leases, as this
 * one. */
static int check_no_others(struct writer *writer)
{
    struct holders holders = {.name = strrchr(writer->directory, '/') + 1};
    int error =
        store_for_leases(writer->store, writer->manifest.summary.run, visit_holder, &holders);
    return error == 0 && holders.count > (writer->lease != NULL)
               ? report_error(ERR_BUSY, "wait for it, or name another store or run",
                              "another process is writing %s", writer->directory)
               : error;
}

static int take_lease(struct writer *writer)
{
    char text[64];
    int error = server_prepare_write(writer->served, writer->manifest.summary.bytes);
    snprintf(text, sizeof text, "ckpt-cli writes it, process %ld\n", (long)getpid());
    return error == 0 ? store_lease(writer->store, &writer->lease, writer->directory, text) : error;
}

static int make_mark(struct writer *writer)
{
    struct store_mark mark = {.boot_id = 0};
    writer->is_marked = true; /* it may exist after an error, too */
    manifest_identity(&mark.identity, &writer->manifest.summary, 0);
    return store_mark(writer->store, &mark);
}

int writer_open(struct writer *writer, const char *where, bool is_forced)
{
    static const struct storage_options options = {.is_quiet = true};
    writer->where = where;
    int error = storage_open_where(&writer->store, where, &options);
    if (error == ERR_NOT_FOUND) /* this code means that the source was not found */
        error = ERR_IO;
    if (error == 0)
        error =
            writer->served != NULL ? take_lease(writer) : store_lock(writer->store, writer->option);
    if (error == 0)
        error = check_no_others(writer);
    if (error == 0)
        error = clear_directory(writer, is_forced && writer->served == NULL);
    return error != 0 ? error : check_space(writer);
}

/* ---- one shard ---- */

static void close_target(struct target *target)
{
    storage_object_close(target->writer->store, target->object);
    output_file_deinit(&target->file);
    free(target->file.tensors);
    free(target->tensors);
    free(target->head);
    free(target->tail);
    free(target->hashes);
    free(target);
}

static int allocate_target(struct target *target)
{
    const struct shard_geometry *geometry = &target->geometry;
    target->tail_start = (geometry->num_blocks - 1) * CHECKSUM_BLOCK_BYTES;
    uint64_t tail_bytes = geometry->file_bytes - target->tail_start;
    target->head = malloc(geometry->data_start);
    target->hashes = calloc(geometry->num_blocks, sizeof *target->hashes);
    target->tail = aligned_alloc(SHARD_ALIGN, tail_bytes);
    if (target->head == NULL || target->hashes == NULL || target->tail == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a shard");
    memset(target->tail, 0, tail_bytes);
    atomic_store(&target->num_unhashed, geometry->num_blocks);
    atomic_store(&target->num_unwritten, geometry->num_blocks); /* the last one is the tail */
    return 0;
}

static int plan_target(struct target *target)
{
    const struct writer *writer = target->writer;
    const struct manifest *manifest = &writer->manifest;
    struct output_file *file = &target->file;
    struct shard_identity identity;
    uint64_t bytes;
    ERR_TRY(layout_shard_tensors(&target->tensors, &file->num_tensors, &bytes, manifest->table,
                                 target->shard));
    ERR_TRY(shard_geometry_derive(&target->geometry, manifest->shards[target->shard].data_start,
                                  bytes));
    ERR_TRY(allocate_target(target));
    manifest_identity(&identity, &manifest->summary, target->shard);
    target->identity =
        checksum_shard_identity(identity.nonce, target->shard, manifest->summary.shards);
    file->tensors = calloc(file->num_tensors + 1u, sizeof *file->tensors);
    if (file->tensors == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %s",
                            text_count(file->num_tensors, "tensor").text);
    for (uint32_t i = 0; i < file->num_tensors; i++) {
        const struct shard_tensor *tensor = &target->tensors[i];
        uint32_t source =
            writer->source_of != NULL ? writer->source_of[tensor->tensor] : tensor->tensor;
        file->tensors[i] =
            (struct output_tensor){.tensor = {source},
                                   .dtype = manifest->table->tensors[tensor->tensor].dtype,
                                   .box = tensor->box,
                                   .start = target->geometry.data_start + tensor->data_byte,
                                   .bytes = tensor->bytes};
    }
    file->bytes = target->geometry.table_start;
    file->head = target->head;
    file->head_bytes = target->geometry.data_start;
    file->user = target;
    int error = shard_header_write(target->head, &target->geometry, manifest->table, &identity);
    if (error == 0)
        CHECK(shard_header_hash(&writer->manifest.shards[target->shard].header_hash, target->head,
                                target->geometry.data_start));
    return error;
}

/* Closes durable shards; keeps the hash of their table. */
static void close_ended(struct writer *writer)
{
    for (struct target **at = &writer->targets; *at != NULL;) {
        struct target *target = *at;
        pthread_mutex_lock(&writer->lock);
        bool is_ended = target->is_ended;
        pthread_mutex_unlock(&writer->lock);
        if (!is_ended || atomic_load(&target->file.num_reads) > 0) {
            at = &target->next;
            continue;
        }
        *at = target->next;
        writer->manifest.shards[target->shard].table_hash = target->table_hash;
        close_target(target);
    }
}

int writer_shard(void *user, struct output_file **out)
{
    struct writer *writer = user;
    struct shard_identity identity;
    char key[STORAGE_KEY_MAX];
    *out = NULL;
    close_ended(writer);
    if (writer->num_opened == writer->manifest.summary.shards)
        return 0;
    struct target *target = calloc(1, sizeof *target);
    if (target == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a shard");
    target->writer = writer;
    target->shard = writer->num_opened;
    target->next = writer->targets;
    writer->targets = target;
    int error = plan_target(target);
    manifest_identity(&identity, &writer->manifest.summary, target->shard);
    if (error == 0 && !writer->is_marked)
        error = make_mark(writer);
    if (error == 0)
        error = shard_key(key, sizeof key, &identity);
    if (error == 0)
        error =
            storage_object_create(writer->store, &target->object, key, target->geometry.file_bytes);
    if (error != 0)
        return error;
    writer->num_opened++;
    *out = &target->file;
    return 0;
}

/* ---- writing a shard ---- */

static void submit(struct target *target, struct storage_request *request)
{
    struct writer *writer = target->writer;
    pthread_mutex_lock(&writer->lock);
    writer->num_requests++;
    pthread_mutex_unlock(&writer->lock);
    storage_submit(writer->store, request);
}

/* A request of the target itself has ended. If it is the last one, or another error has stopped the
 * work, the target may be freed on return. */
static void end_request(const struct storage_request *request, bool is_last)
{
    struct target *target = request->user;
    struct writer *writer = target->writer;
    int error = 0;
    if (request->error != 0)
        error = report_error(request->error, NULL, "could not write shard %u of %s: %s",
                             target->shard + 1, writer->directory,
                             request->error_number != 0 ? strerror(request->error_number)
                                                        : err_text(request->error));
    pthread_mutex_lock(&writer->lock);
    failure_keep(&writer->failure, error);
    target->is_ended = target->is_ended || is_last;
    writer->num_requests--;
    pthread_cond_signal(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
}

static void synced(struct storage_request *request)
{
    end_request(request, true);
}

/* One of the writes of a shard is done; after the last one it is synced. */
static void count_written(struct target *target)
{
    if (atomic_fetch_sub(&target->num_unwritten, 1) > 1)
        return;
    target->sync_request = (struct storage_request){
        .op = STORAGE_SYNC, .object = target->object, .buffer = -1, .done = synced, .user = target};
    submit(target, &target->sync_request);
}

static void tail_written(struct storage_request *request)
{
    count_written(request->user);
    end_request(request, false);
}

static void block_written(struct output_block *block)
{
    count_written(block->file->user);
    assembly_release(block);
}

/* Every block has its checksum: writes the table after the last block's bytes. */
static void write_tail(struct target *target)
{
    const struct shard_geometry *geometry = &target->geometry;
    unsigned char *table = target->tail + (geometry->table_start - target->tail_start);
    target->table_hash = shard_table_write(table, geometry, target->hashes);
    target->tail_request =
        (struct storage_request){.op = STORAGE_WRITE,
                                 .object = target->object,
                                 .offset = target->tail_start,
                                 .data = target->tail,
                                 .bytes = (uint32_t)(geometry->file_bytes - target->tail_start),
                                 .buffer = -1,
                                 .done = tail_written,
                                 .user = target};
    submit(target, &target->tail_request);
}

struct hashed_block {
    const struct output_block *block;
    uint32_t worker;
};

static void add_digests(void *user, size_t at, size_t bytes)
{
    const struct hashed_block *hashed = user;
    const struct output_block *block = hashed->block;
    const struct target *target = block->file->user;
    struct writer *writer = target->writer;
    uint64_t piece = block->start + at, piece_end = piece + bytes;
    for (uint32_t i = output_tensor_after(block->file, piece); i < block->file->num_tensors; i++) {
        const struct output_tensor *tensor = &block->file->tensors[i];
        uint64_t from = tensor->start > piece ? tensor->start : piece;
        uint64_t end = tensor->start + tensor->bytes;
        uint32_t size = dtype_bytes(tensor->dtype), index = target->tensors[i].tensor;
        end = end < piece_end ? end : piece_end;
        if (from >= end)
            break;
        box_digest(&writer->digests[hashed->worker][index], &target->tensors[i].box,
                   &writer->manifest.table->tensors[index], (from - tensor->start) / size,
                   (end - from) / size, block->data[0] + (from - block->start));
    }
}

/* Computes the digests and the checksum of a complete block. False: it is the last one, which is
 * kept for the tail. */
static bool hash_block(struct target *target, uint32_t worker, const struct output_block *block)
{
    struct hashed_block hashed = {block, worker};
    target->hashes[block->index] = checksum_block_beside(
        block->data[0], block->bytes, target->identity, block->index, add_digests, &hashed);
    if (block->start != target->tail_start)
        return true;
    memcpy(target->tail, block->data[0], block->bytes);
    return false;
}

static void note_hashed(struct target *target)
{
    if (atomic_fetch_sub(&target->num_unhashed, 1) == 1)
        write_tail(target);
}

int writer_complete(void *user, uint32_t worker, struct output_block *block)
{
    struct writer *writer = user;
    struct target *target = block->file->user;
    if (hash_block(target, worker, block))
        assembly_write(block, writer->store, target->object, block_written);
    else
        assembly_release(block);
    note_hashed(target);
    return 0;
}

int writer_take(struct output_file *file, uint32_t worker, uint64_t index, void *data)
{
    struct target *target = file->user;
    struct output_block block = {.file = file, .index = index, .data = {data}};
    int error = 0;
    shard_block(&block.start, &block.bytes, &target->geometry, index);
    if (hash_block(target, worker, &block)) {
        error = storage_transfer(target->writer->store, STORAGE_WRITE, target->object, block.start,
                                 data, SCAN_BLOCK);
        count_written(target);
    }
    note_hashed(target);
    return error;
}

/* ---- begin and end ---- */

/* Waits until every shard is durable; after an error, until no request is under way. */
static int wait_for_shards(struct writer *writer, int error)
{
    struct target *target = writer->targets;
    pthread_mutex_lock(&writer->lock);
    while (writer->num_requests > 0 ||
           (error == 0 && writer->failure.error == 0 && target != NULL)) {
        if (target != NULL && target->is_ended)
            target = target->next;
        else
            pthread_cond_wait(&writer->changed, &writer->lock);
    }
    pthread_mutex_unlock(&writer->lock);
    if (error == 0)
        error = failure_report(&writer->failure);
    if (error == 0)
        close_ended(writer);
    return error;
}

static int check_proof(const struct writer *writer, const struct digest *proof)
{
    const struct layout_table *table = writer->manifest.table;
    for (uint32_t i = 0; i < table->num_tensors && proof != NULL; i++) {
        if (memcmp(&proof[i], &writer->manifest.digests[i], sizeof *proof) != 0)
            return report_error(ERR_CORRUPT, DAMAGE_HINT,
                                "the values of tensor %s do not match its digest",
                                table->tensors[i].name);
    }
    return 0;
}

/* Makes the manifest of the shards, whose names are durable by now. */
static int make_manifest(char **out, size_t *out_bytes, struct writer *writer,
                         const struct digest *proof)
{
    struct manifest *manifest = &writer->manifest;
    for (uint32_t worker = 0; worker < scan_workers() + 1; worker++) {
        for (uint32_t i = 0; i < manifest->table->num_tensors; i++)
            digest_merge(&manifest->digests[i], &writer->digests[worker][i]);
    }
    int error = check_proof(writer, proof);
    if (error == 0)
        error = manifest_write(out, out_bytes, manifest);
    return error != 0 ? error : storage_sync_names(writer->store, writer->directory);
}

/* After an error: removes the created files, as far as possible; keeps the error's text. */
static void remove_shards(struct writer *writer, int error)
{
    struct failure failure = {0};
    struct shard_identity identity;
    char key[STORAGE_KEY_MAX];
    failure_keep(&failure, error);
    for (uint32_t i = 0; i < writer->num_opened; i++) {
        manifest_identity(&identity, &writer->manifest.summary, i);
        if (shard_key(key, sizeof key, &identity) == 0)
            storage_remove(writer->store, key);
    }
    if (writer->is_marked && storage_sync_names(writer->store, writer->directory) == 0)
        store_unmark(writer->store, writer->directory);
    storage_release(writer->store, writer->lease);
    writer->lease = NULL;
    snprintf(key, sizeof key, "%s/leases", writer->manifest.summary.run);
    if (writer->is_marked && storage_remove(writer->store, writer->directory) == 0) {
        storage_remove(writer->store, key); /* if the run is new it is empty, or does not exist */
        storage_remove(writer->store, writer->manifest.summary.run);
    }
    failure_report(&failure);
}

/* Is it certain that ckptd has not committed it, and will not? */
static bool is_refusal(int error)
{
    return error == ERR_EXISTS || error == ERR_DENIED || error == ERR_INVALID ||
           error == ERR_CORRUPT || error == ERR_VERSION || error == ERR_NOT_FOUND ||
           error == ERR_SPACE;
}

/* A manifest whose sync failed may be back after a power loss, and a ckptd that does not answer may
 * have published it. So the shards stay. */
static int commit(struct writer *writer, const char *text, size_t bytes)
{
    char key[STORAGE_KEY_MAX + 32];
    uint64_t size;
    snprintf(key, sizeof key, "%s/%s", writer->directory, MANIFEST_NAME);
    if (writer->served == NULL) {
        int error = store_note_unread(writer->store, &writer->manifest.summary);
        return error == 0 ? store_commit(writer->store, writer->directory, text, bytes) : error;
    }
    struct failure failure = {0};
    failure_keep(&failure, server_adopt(writer->served, text, bytes, writer->begins_run, NULL));
    if (is_refusal(failure.error) &&
        storage_fetch(writer->store, key, NULL, 0, &size) == ERR_NOT_FOUND)
        remove_shards(writer, failure.error);
    return failure_report(&failure);
}

int writer_end(struct writer *writer, int error, const struct digest *proof)
{
    char *text = NULL;
    size_t bytes = 0;
    error = wait_for_shards(writer, error);
    if (error == 0)
        error = make_manifest(&text, &bytes, writer, proof);
    if (error != 0)
        remove_shards(writer, error);
    else
        error = commit(writer, text, bytes);
    free(text);
    return error;
}

void writer_deinit(struct writer *writer)
{
    while (writer->targets != NULL) {
        struct target *target = writer->targets;
        writer->targets = target->next;
        close_target(target);
    }
    for (uint32_t i = 0; i < scan_workers() + 1 && writer->digests != NULL; i++)
        free(writer->digests[i]);
    free(writer->digests);
    layout_table_free(writer->manifest.table);
    free(writer->manifest.shards);
    free(writer->manifest.digests);
    if (writer->store != NULL)
        storage_release(writer->store, writer->lease);
    storage_close(writer->store);
    pthread_mutex_destroy(&writer->lock);
    pthread_cond_destroy(&writer->changed);
}

void writer_print_result(const struct writer *writer, const struct cli *cli, const char *name,
                         const char *output)
{
    const struct manifest *manifest = &writer->manifest;
    const struct manifest_summary *summary = &manifest->summary;
    const char *durability = store_durability(writer->where);
    char size[32], safe[sizeof cli->store];
    text_safe(safe, sizeof safe, output != NULL ? output : writer->where);
    if (cli->is_json) {
        printf("{\"checkpoint\": \"%s\"", name);
        if (output != NULL) {
            printf(", \"output\": ");
            text_json(stdout, output);
        }
        printf(", \"nonce\": \"%s\", \"shards\": %u, \"tensors\": %u, \"bytes\": %llu, "
               "\"durability\": \"%s\"}\n",
               summary->nonce, summary->shards, manifest->table->num_tensors,
               (unsigned long long)summary->bytes, durability);
        return;
    }
    printf("%s: %s in %s, %s, committed in %s, %s\n", name,
           text_count(manifest->table->num_tensors, "tensor").text,
           text_count(summary->shards, "shard").text, text_bytes(size, sizeof size, summary->bytes),
           safe, durability);
}
