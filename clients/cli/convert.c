/* convert.c - a checkpoint with other element types: of the same run, step and attempt, cut into
 * shards as the source is, in another store.
 *
 * Every shard of the source becomes one of the target: the same slices, floating-point elements
 * rounded to nearest even, integers as they are. It is a checkpoint like any other: headers,
 * checksum tables and a manifest with digests of its own, a nonce of its own, and in its lineage
 * the nonce of what it was converted from. Shards are put together and checksummed block by block
 * (assembly.c) and written with O_DIRECT.
 *
 * Life of a target shard: created with its size (open_shard) -> blocks complete, hashed, written
 * (take_complete) -> all hashed: the tail, which is the last block and the table (write_tail) ->
 * all written: sync (note_written) -> synced, closed. When all are: names synced, manifest
 * published. Until then there is no checkpoint; a conversion that was killed leaves shards without
 * a manifest, which --force replaces. A committed checkpoint is never replaced. */
#include "clients/cli/scan.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

/* One shard of the target. */
struct target {
    struct output_file file;
    struct convert *convert;
    uint32_t shard;
    struct shard_geometry geometry;
    uint64_t identity;
    struct shard_tensor *tensors; /* of the new table; as `file.tensors` */
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

struct convert {
    const struct cli *cli;
    struct checkpoint checkpoint; /* the source */
    struct storage *store;        /* of the target */
    struct manifest manifest;     /* of the target */
    char directory[STORAGE_KEY_MAX];
    uint32_t *old_of;        /* index of the source's table, per tensor of the new one */
    struct digest **digests; /* per worker, per tensor of the new table */
    uint32_t num_opened;
    struct target *targets; /* that are open; the caller's thread's own */
    struct progress progress;
    pthread_mutex_t lock; /* guards what follows, and is_ended of the targets */
    pthread_cond_t changed;
    uint32_t num_requests; /* for tails and syncs, under way */
    struct failure failure;
};

/* ---- the plan ---- */

static int copy_layout(struct layout *out, const struct layout *from)
{
    uint64_t cells = layout_cells(from);
    *out = (struct layout){.dims = from->dims};
    out->owners = malloc((cells + 1) * sizeof *out->owners);
    bool is_whole = out->owners != NULL;
    if (is_whole)
        memcpy(out->owners, from->owners, cells * sizeof *out->owners);
    for (uint32_t d = 0; d < from->dims && is_whole; d++) {
        out->num_cuts[d] = from->num_cuts[d];
        out->cuts[d] = malloc(from->num_cuts[d] * sizeof *out->cuts[d]);
        is_whole = out->cuts[d] != NULL;
        if (is_whole)
            memcpy(out->cuts[d], from->cuts[d], from->num_cuts[d] * sizeof *out->cuts[d]);
    }
    return is_whole ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the layouts");
}

/* Tensors, and the layouts that are still used. */
static int plan_table(struct convert *convert, bool keep, enum dtype dtype)
{
    const struct layout_table *old = convert->checkpoint.manifest->table;
    struct layout_table *table = convert->manifest.table = calloc(1, sizeof *table);
    uint32_t *layout_of = malloc((old->num_layouts + 1) * sizeof *layout_of);
    convert->old_of = calloc((size_t)old->num_tensors + 1, sizeof *convert->old_of);
    if (table != NULL) {
        table->tensors = calloc((size_t)old->num_tensors + 1, sizeof *table->tensors);
        table->layout_of = calloc((size_t)old->num_tensors + 1, sizeof *table->layout_of);
        table->layouts = calloc((size_t)old->num_layouts + 1, sizeof *table->layouts);
    }
    if (table == NULL || layout_of == NULL || convert->old_of == NULL || table->tensors == NULL ||
        table->layout_of == NULL || table->layouts == NULL) {
        free(layout_of);
        return report_error(ERR_MEMORY, NULL, "no memory for %u tensors", old->num_tensors);
    }
    for (uint32_t i = 0; i < old->num_layouts; i++)
        layout_of[i] = UINT32_MAX;
    int error = 0;
    for (uint32_t i = 0; i < old->num_tensors && error == 0; i++) {
        if (!tensor_is_wanted(&old->tensors[i], convert->cli))
            continue;
        uint32_t *layout = &layout_of[old->layout_of[i]], at = table->num_tensors++;
        if (*layout == UINT32_MAX) {
            *layout = table->num_layouts++;
            error = copy_layout(&table->layouts[*layout], &old->layouts[old->layout_of[i]]);
        }
        table->tensors[at] = old->tensors[i];
        table->layout_of[at] = *layout;
        convert->old_of[at] = i;
        if (!keep && convert_is_float(old->tensors[i].dtype))
            table->tensors[at].dtype = dtype;
    }
    free(layout_of);
    return error != 0 ? error : layout_table_index(table);
}

static int plan_shards(struct convert *convert)
{
    struct manifest *manifest = &convert->manifest;
    uint32_t shards = manifest->summary.shards;
    int error = 0;
    manifest->shards = calloc(shards, sizeof *manifest->shards);
    manifest->digests = calloc(manifest->table->num_tensors + 1u, sizeof *manifest->digests);
    if (manifest->shards == NULL || manifest->digests == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %u shards", shards);
    manifest->summary.bytes = 0;
    for (uint32_t i = 0; i < shards && error == 0; i++) {
        struct shard_geometry geometry;
        error = shard_geometry(&geometry, manifest->table, i, manifest->summary.run, shards);
        if (error != 0)
            break;
        manifest->shards[i].bytes = geometry.file_bytes;
        manifest->shards[i].data_start = geometry.data_start;
        manifest->summary.bytes += geometry.file_bytes;
    }
    return error;
}

/* All of the manifest that does not depend on the data. */
static int plan_manifest(struct convert *convert)
{
    const struct manifest *old = convert->checkpoint.manifest;
    struct manifest *manifest = &convert->manifest;
    unsigned char random[16];
    time_t now = time(NULL);
    struct tm utc;
    bool keep;
    enum dtype dtype = DTYPE_F32;
    int error = convert_parse(&keep, &dtype, convert->cli->dtype);
    if (error == 0 && keep && !convert->cli->is_weights_only)
        error = report_error(ERR_INVALID, "add --dtype bf16, fp16 or f32, or --weights-only",
                             "there is nothing to convert");
    if (error != 0)
        return error;
    *manifest = *old;
    manifest->table = NULL;
    manifest->digests = NULL;
    manifest->shards = NULL;
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return report_errno(ERR_IO, "could not get a random number", NULL);
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(manifest->summary.nonce + 2 * i, 3, "%02x", random[i]);
    gmtime_r(&now, &utc);
    strftime(manifest->summary.time, sizeof manifest->summary.time, "%Y-%m-%dT%H:%M:%SZ", &utc);
    snprintf(manifest->code_version, sizeof manifest->code_version, "%s", report_version);
    memcpy(manifest->converted_from, old->summary.nonce, sizeof manifest->converted_from);
    error = plan_table(convert, keep, dtype);
    if (error == 0)
        error = plan_shards(convert);
    return error != 0
               ? error
               : shard_dir_key(convert->directory, sizeof convert->directory, manifest->summary.run,
                               manifest->summary.step, manifest->summary.attempt);
}

/* ---- the target's store ---- */

struct leftovers {
    struct convert *convert;
    uint32_t count;
    char key[STORAGE_KEY_MAX + 256]; /* of one of them */
};

static int visit_leftover(void *user, const struct storage_entry *entry)
{
    struct leftovers *leftovers = user;
    leftovers->count++;
    snprintf(leftovers->key, sizeof leftovers->key, "%s/%s", leftovers->convert->directory,
             entry->name);
    return 0;
}

/* The directory of the new checkpoint must hold nothing; with --force what is there without a
 * manifest is removed. The store's lock is ours, so nobody is writing it. */
static int clear_directory(struct convert *convert)
{
    char key[STORAGE_KEY_MAX + 32];
    uint64_t bytes;
    snprintf(key, sizeof key, "%s/%s", convert->directory, MANIFEST_NAME);
    int error = storage_fetch(convert->store, key, NULL, 0, &bytes);
    if (error == 0)
        return report_error(ERR_EXISTS, "name another store, or remove that checkpoint",
                            "%s has a checkpoint %s already", convert->cli->output,
                            convert->directory);
    while (error == ERR_NOT_FOUND) {
        struct leftovers leftovers = {.convert = convert};
        int listed = storage_list(convert->store, convert->directory, visit_leftover, &leftovers);
        if (listed != 0 || leftovers.count == 0)
            return listed;
        if (!convert->cli->is_forced)
            return report_error(ERR_EXISTS, "add --force to replace it",
                                "%s holds an unfinished %s", convert->cli->output,
                                convert->directory);
        int removed = storage_remove(convert->store, leftovers.key);
        error = removed != 0 ? removed : error;
    }
    return error;
}

static int check_space(struct convert *convert)
{
    struct storage_space space;
    char need[32], have[32];
    int error = storage_space(convert->store, &space);
    if (error != 0 || convert->manifest.summary.bytes <= space.bytes_free)
        return error;
    return report_error(ERR_SPACE, "free some space, or convert to another disk",
                        "%s has room for %s, and %s are needed", convert->cli->output,
                        text_bytes(have, sizeof have, space.bytes_free),
                        text_bytes(need, sizeof need, convert->manifest.summary.bytes));
}

static int open_target_store(struct convert *convert)
{
    static const struct storage_options options = {.is_quiet = true};
    const struct cli *cli = convert->cli;
    struct stat source, target;
    if (cli->output[0] == '\0')
        return report_error(ERR_INVALID, "add --output DIR", "no store to convert to was named");
    if (stat(cli->store, &source) == 0 && stat(cli->output, &target) == 0 &&
        source.st_dev == target.st_dev && source.st_ino == target.st_ino)
        return report_error(ERR_INVALID, "name another directory", "%s is the store of the source",
                            cli->output);
    int error = storage_open(&convert->store, &storage_local, cli->output, &options);
    if (error == 0)
        error = storage_lock(convert->store);
    if (error == 0)
        error = clear_directory(convert);
    return error != 0 ? error : check_space(convert);
}

/* ---- one shard ---- */

static void close_target(struct target *target)
{
    storage_object_close(target->convert->store, target->object);
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
    const struct convert *convert = target->convert;
    const struct manifest *manifest = &convert->manifest;
    struct output_file *file = &target->file;
    struct shard_identity identity;
    uint64_t bytes;
    int error = layout_shard_tensors(&target->tensors, &file->num_tensors, &bytes, manifest->table,
                                     target->shard);
    if (error == 0)
        error = shard_geometry_derive(&target->geometry, manifest->shards[target->shard].data_start,
                                      bytes);
    if (error == 0)
        error = allocate_target(target);
    if (error != 0)
        return error;
    checkpoint_identity(&identity, manifest, target->shard);
    target->identity =
        checksum_shard_identity(identity.nonce, target->shard, manifest->summary.shards);
    file->tensors = calloc(file->num_tensors + 1u, sizeof *file->tensors);
    if (file->tensors == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %u tensors", file->num_tensors);
    for (uint32_t i = 0; i < file->num_tensors; i++) {
        const struct shard_tensor *tensor = &target->tensors[i];
        file->tensors[i] =
            (struct output_tensor){.tensor = {convert->old_of[tensor->tensor]},
                                   .dtype = manifest->table->tensors[tensor->tensor].dtype,
                                   .start = target->geometry.data_start + tensor->data_byte,
                                   .bytes = tensor->bytes};
    }
    file->bytes = target->geometry.table_start;
    file->head = target->head;
    file->head_bytes = target->geometry.data_start;
    file->shard = target->shard;
    file->user = target;
    return shard_header_write(target->head, &target->geometry, manifest->table, &identity);
}

/* Closes shards that are durable; keeps the hash of their table. */
static void close_ended(struct convert *convert)
{
    for (struct target **at = &convert->targets; *at != NULL;) {
        struct target *target = *at;
        pthread_mutex_lock(&convert->lock);
        bool is_ended = target->is_ended;
        pthread_mutex_unlock(&convert->lock);
        if (!is_ended) {
            at = &target->next;
            continue;
        }
        *at = target->next;
        convert->manifest.shards[target->shard].table_hash = target->table_hash;
        close_target(target);
    }
}

static int open_target(void *user, struct output_file **out)
{
    struct convert *convert = user;
    struct shard_identity identity;
    char key[STORAGE_KEY_MAX];
    *out = NULL;
    close_ended(convert);
    if (convert->num_opened == convert->manifest.summary.shards)
        return 0;
    struct target *target = calloc(1, sizeof *target);
    if (target == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a shard");
    target->convert = convert;
    target->shard = convert->num_opened;
    target->next = convert->targets;
    convert->targets = target;
    int error = plan_target(target);
    checkpoint_identity(&identity, &convert->manifest, target->shard);
    if (error == 0)
        error = shard_key(key, sizeof key, &identity);
    if (error == 0)
        error = storage_object_create(convert->store, &target->object, key,
                                      target->geometry.file_bytes);
    if (error != 0)
        return error;
    convert->num_opened++;
    *out = &target->file;
    return 0;
}

/* ---- writing a shard ---- */

static void submit(struct target *target, struct storage_request *request)
{
    struct convert *convert = target->convert;
    pthread_mutex_lock(&convert->lock);
    convert->num_requests++;
    pthread_mutex_unlock(&convert->lock);
    storage_submit(convert->store, request);
}

/* A request of the target's own has ended. When it is the last one, or another error has stopped
 * the work, the target may be gone on return. */
static void end_request(const struct storage_request *request, bool is_last)
{
    struct target *target = request->user;
    struct convert *convert = target->convert;
    int error = 0;
    if (request->error != 0)
        error = report_error(request->error, NULL, "could not write shard %u of %s: %s",
                             target->shard + 1, convert->directory,
                             request->error_number != 0 ? strerror(request->error_number)
                                                        : err_text(request->error));
    pthread_mutex_lock(&convert->lock);
    failure_keep(&convert->failure, error);
    target->is_ended = target->is_ended || is_last;
    convert->num_requests--;
    pthread_cond_signal(&convert->changed);
    pthread_mutex_unlock(&convert->lock);
}

static void synced(struct storage_request *request)
{
    end_request(request, true);
}

/* One of the writes of a shard is done; after the last one it is synced. */
static void note_written(struct target *target)
{
    if (atomic_fetch_sub(&target->num_unwritten, 1) > 1)
        return;
    target->sync_request = (struct storage_request){
        .op = STORAGE_SYNC, .object = target->object, .buffer = -1, .done = synced, .user = target};
    submit(target, &target->sync_request);
}

static void tail_written(struct storage_request *request)
{
    note_written(request->user);
    end_request(request, false);
}

static void block_written(struct output_block *block)
{
    note_written(block->file->user);
    assembly_release(block);
}

/* Every block has its checksum: the table goes behind the last block's bytes. */
static void write_tail(struct target *target)
{
    const struct shard_geometry *geometry = &target->geometry;
    unsigned char *table = target->tail + (geometry->table_start - target->tail_start);
    memcpy(table, target->hashes, geometry->num_blocks * sizeof *target->hashes);
    target->table_hash = checksum_bytes(table, geometry->file_bytes - geometry->table_start);
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

static void add_digests(struct convert *convert, uint32_t worker, const struct output_block *block)
{
    const struct target *target = block->file->user;
    uint64_t block_end = block->start + block->bytes;
    for (uint32_t i = output_tensor_behind(block->file, block->start); i < block->file->num_tensors;
         i++) {
        const struct output_tensor *tensor = &block->file->tensors[i];
        uint64_t from = tensor->start > block->start ? tensor->start : block->start;
        uint64_t end = tensor->start + tensor->bytes;
        uint32_t size = dtype_bytes(tensor->dtype), index = target->tensors[i].tensor;
        end = end < block_end ? end : block_end;
        if (from >= end)
            break;
        slice_digest(&convert->digests[worker][index], &target->tensors[i].box,
                     &convert->manifest.table->tensors[index], (from - tensor->start) / size,
                     (end - from) / size, block->data[0] + (from - block->start));
    }
}

static int take_complete(void *user, uint32_t worker, struct output_block *block)
{
    struct convert *convert = user;
    struct target *target = block->file->user;
    add_digests(convert, worker, block);
    target->hashes[block->index] =
        checksum_block(block->data[0], block->bytes, target->identity, block->index);
    if (block->start == target->tail_start) {
        memcpy(target->tail, block->data[0], block->bytes);
        assembly_release(block);
    } else {
        assembly_write(block, convert->store, target->object, block_written);
    }
    if (atomic_fetch_sub(&target->num_unhashed, 1) == 1)
        write_tail(target);
    return 0;
}

/* ---- from begin to end ---- */

/* Until every shard is durable; after an error, until nothing is under way any more. */
static int wait_for_shards(struct convert *convert, int error)
{
    struct target *target = convert->targets;
    pthread_mutex_lock(&convert->lock);
    while (convert->num_requests > 0 ||
           (error == 0 && convert->failure.error == 0 && target != NULL)) {
        if (target != NULL && target->is_ended)
            target = target->next;
        else
            pthread_cond_wait(&convert->changed, &convert->lock);
    }
    pthread_mutex_unlock(&convert->lock);
    if (error == 0)
        error = failure_report(&convert->failure);
    if (error == 0)
        close_ended(convert);
    return error;
}

static int publish(struct convert *convert)
{
    struct manifest *manifest = &convert->manifest;
    char key[STORAGE_KEY_MAX + 32], *text = NULL;
    size_t bytes = 0;
    for (uint32_t worker = 0; worker < scan_workers() + 1; worker++) {
        for (uint32_t i = 0; i < manifest->table->num_tensors; i++)
            digest_merge(&manifest->digests[i], &convert->digests[worker][i]);
    }
    snprintf(key, sizeof key, "%s/%s", convert->directory, MANIFEST_NAME);
    int error = manifest_write(&text, &bytes, manifest);
    if (error == 0)
        error = storage_sync_names(convert->store, convert->directory);
    if (error == 0)
        error = storage_publish(convert->store, key, text, bytes);
    free(text);
    return error;
}

static uint64_t bytes_to_read(const struct convert *convert)
{
    const struct layout_table *table = convert->manifest.table;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < table->num_tensors; i++) {
        const struct tensor_meta *meta =
            &convert->checkpoint.manifest->table->tensors[convert->old_of[i]];
        sum += tensor_elements(meta) * dtype_bytes(meta->dtype);
    }
    return sum;
}

static int write_shards(struct convert *convert)
{
    const struct assembly_hooks hooks = {.user = convert,
                                         .open = open_target,
                                         .complete = take_complete,
                                         .progress = &convert->progress};
    uint32_t num_workers = scan_workers() + 1;
    int error = checkpoint_load(&convert->checkpoint, false);
    if (error == 0)
        error = checkpoint_need_whole(&convert->checkpoint);
    convert->digests = calloc(num_workers, sizeof *convert->digests);
    for (uint32_t i = 0; i < num_workers && convert->digests != NULL; i++)
        convert->digests[i] =
            calloc(convert->manifest.table->num_tensors + 1u, sizeof **convert->digests);
    for (uint32_t i = 0; i < num_workers && error == 0; i++) {
        if (convert->digests == NULL || convert->digests[i] == NULL)
            error = report_error(ERR_MEMORY, NULL, "no memory for the digests");
    }
    if (error != 0)
        return error;
    progress_begin(&convert->progress, "convert", bytes_to_read(convert));
    error = assembly_run(&convert->checkpoint, 1, &hooks);
    error = wait_for_shards(convert, error);
    progress_end(&convert->progress);
    return error;
}

/* After an error: removes what was created, as far as that goes; keeps the error's text. */
static void remove_shards(struct convert *convert, int error)
{
    struct failure failure = {0};
    struct shard_identity identity;
    char key[STORAGE_KEY_MAX];
    failure_keep(&failure, error);
    for (uint32_t i = 0; i < convert->num_opened; i++) {
        checkpoint_identity(&identity, &convert->manifest, i);
        if (shard_key(key, sizeof key, &identity) == 0)
            storage_remove(convert->store, key);
    }
    if (convert->num_opened > 0 && storage_remove(convert->store, convert->directory) == 0)
        storage_remove(convert->store, convert->manifest.summary.run);
    failure_report(&failure);
}

static void print_result(const struct convert *convert)
{
    const struct manifest *manifest = &convert->manifest;
    char size[32];
    if (convert->cli->is_json) {
        printf("{\"checkpoint\": ");
        text_json(stdout, convert->checkpoint.name);
        printf(", \"output\": ");
        text_json(stdout, convert->cli->output);
        printf(", \"nonce\": \"%s\", \"shards\": %u, \"tensors\": %u, \"bytes\": %llu}\n",
               manifest->summary.nonce, manifest->summary.shards, manifest->table->num_tensors,
               (unsigned long long)manifest->summary.bytes);
    } else {
        printf("%s: %u tensors in %u shards, %s, committed in %s\n", convert->checkpoint.name,
               manifest->table->num_tensors, manifest->summary.shards,
               text_bytes(size, sizeof size, manifest->summary.bytes), convert->cli->output);
    }
}

static void deinit(struct convert *convert)
{
    while (convert->targets != NULL) {
        struct target *target = convert->targets;
        convert->targets = target->next;
        close_target(target);
    }
    for (uint32_t i = 0; i < scan_workers() + 1 && convert->digests != NULL; i++)
        free(convert->digests[i]);
    free(convert->digests);
    layout_table_free(convert->manifest.table);
    free(convert->old_of);
    free(convert->manifest.shards);
    free(convert->manifest.digests);
    checkpoint_close(&convert->checkpoint);
    storage_close(convert->store);
    pthread_mutex_destroy(&convert->lock);
    pthread_cond_destroy(&convert->changed);
}

int cli_convert(const struct cli *cli)
{
    struct convert convert = {.cli = cli};
    struct storage *store = NULL;
    pthread_mutex_init(&convert.lock, NULL);
    pthread_cond_init(&convert.changed, NULL);
    int error = store_open(&store, cli);
    if (error == 0)
        error = checkpoint_open(&convert.checkpoint, store, cli->args[0]);
    if (error == 0)
        error = plan_manifest(&convert);
    if (error == 0)
        error = open_target_store(&convert);
    if (error == 0) {
        error = write_shards(&convert);
        if (error == 0)
            error = publish(&convert);
        if (error != 0)
            remove_shards(&convert, error);
    }
    if (error == 0)
        print_result(&convert);
    deinit(&convert);
    storage_close(store);
    return error;
}
