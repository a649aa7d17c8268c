/* shard.c - the bytes of a stored checkpoint; nothing leaves here that did not verify.
 *
 * A shard file is opened against the manifest: its size, the geometry that follows from the layout,
 * and its checksum table, whose hash the manifest holds. After that each block that is read is
 * hashed and compared. Two ways to read:
 *
 *   shard_scan         one shard from front to back, SCAN_BLOCKS at a time, the next read under way
 *                      while this one is worked on; for verify and export
 *   checkpoint_gather  a piece of one global tensor, from whatever shards hold it; for diff
 *
 * Elements never straddle two blocks: tensors lie by descending element size from a multiple of
 * 4096, so each is aligned to its element size, and so are blocks.
 *
 * Memory: two buffers of SCAN_BLOCKS MiB, or one; the checksum tables of at most
 * CHECKPOINT_FILES_MAX shards (8 bytes per MiB). */
#include "clients/cli/cli.h"

#include "proto/shard.h"

#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#define SCAN_BLOCKS 4u
#define SCAN_BYTES (SCAN_BLOCKS * CHECKSUM_BLOCK_BYTES)
/* What a gather reads at most: its own bytes, and the rest of the first and the last block. */
#define READ_BYTES_MAX (GATHER_BYTES_MAX + 2 * CHECKSUM_BLOCK_BYTES)
#define TABLE_BYTES_MAX (1ull << 28) /* of one shard's checksums: a shard of 32 TiB */

static uint64_t align_up(uint64_t value)
{
    return (value + SHARD_ALIGN - 1) / SHARD_ALIGN * SHARD_ALIGN;
}

/* ---- a shard file against the manifest ---- */

/* Where things lie, from the manifest; ERR_CORRUPT when its numbers contradict each other. */
static int manifest_geometry(struct shard_geometry *out, const struct manifest *manifest,
                             uint32_t shard)
{
    const struct manifest_shard *entry = &manifest->shards[shard];
    struct shard_tensor *tensors = NULL;
    uint32_t count = 0;
    uint64_t bytes = 0;
    int error = layout_shard_tensors(&tensors, &count, &bytes, manifest->table, shard);
    free(tensors);
    if (error != 0)
        return error;
    error = shard_geometry_derive(out, entry->data_start, bytes);
    if (error == 0 &&
        (out->file_bytes != entry->bytes || out->file_bytes - out->table_start > TABLE_BYTES_MAX))
        error = report_error(ERR_CORRUPT, NULL,
                             "the manifest's size of shard %u does not fit its tensors", shard);
    return error;
}

/* Reads [start, start + bytes) of a file through an aligned detour, in parts. */
static int read_bytes(void *out, struct storage *store, struct storage_object *object,
                      uint64_t start, uint64_t bytes)
{
    unsigned char *room = aligned_alloc(SHARD_ALIGN, CHECKSUM_BLOCK_BYTES);
    int error = room != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a block");
    for (uint64_t done = 0; done < bytes && error == 0;) {
        uint64_t from = (start + done) / SHARD_ALIGN * SHARD_ALIGN, inside = start + done - from;
        uint64_t length = align_up(inside + bytes - done);
        if (length > CHECKSUM_BLOCK_BYTES)
            length = CHECKSUM_BLOCK_BYTES;
        error = storage_transfer(store, STORAGE_READ, object, from, room, (uint32_t)length);
        uint64_t got = length - inside < bytes - done ? length - inside : bytes - done;
        if (error == 0)
            memcpy((unsigned char *)out + done, room + inside, got);
        done += got;
    }
    free(room);
    return error;
}

/* The checksum table, proved by the manifest's hash of it. */
static int read_table(struct shard_file *file, struct storage *store, uint64_t want)
{
    uint64_t bytes = file->geometry.file_bytes - file->geometry.table_start;
    file->hashes = malloc(bytes);
    if (file->hashes == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a checksum table");
    int error = read_bytes(file->hashes, store, file->object, file->geometry.table_start, bytes);
    if (error == 0 && checksum_bytes(file->hashes, bytes) != want)
        error =
            report_error(ERR_CORRUPT, NULL, "the checksum table (bytes %llu to %llu) is damaged",
                         (unsigned long long)file->geometry.table_start,
                         (unsigned long long)file->geometry.file_bytes);
    return error;
}

int shard_file_open(struct shard_file *out, struct checkpoint *checkpoint, uint32_t shard)
{
    const struct manifest *manifest = checkpoint->manifest;
    struct shard_identity identity = {.step = manifest->summary.step,
                                      .attempt = manifest->summary.attempt,
                                      .shard = shard,
                                      .shards = manifest->summary.shards};
    char key[STORAGE_KEY_MAX];
    uint64_t bytes = 0;
    memcpy(identity.run, manifest->summary.run, sizeof identity.run);
    memcpy(identity.nonce, manifest->summary.nonce, sizeof identity.nonce);
    memset(out, 0, sizeof *out);
    out->shard = shard;
    out->identity = checksum_shard_identity(identity.nonce, shard, identity.shards);
    int error = manifest_geometry(&out->geometry, manifest, shard);
    if (error == 0)
        error = shard_key(key, sizeof key, &identity);
    if (error == 0)
        error = storage_object_open(checkpoint->store, &out->object, key, &bytes);
    if (error == ERR_NOT_FOUND)
        error = report_error(ERR_CORRUPT, NULL, "the file is missing");
    if (error == 0 && bytes != out->geometry.file_bytes)
        error =
            report_error(ERR_CORRUPT, NULL, "the file has %llu bytes instead of %llu",
                         (unsigned long long)bytes, (unsigned long long)out->geometry.file_bytes);
    if (error == 0)
        error = read_table(out, checkpoint->store, manifest->shards[shard].table_hash);
    if (error != 0)
        shard_file_close(out, checkpoint->store);
    return error;
}

void shard_file_close(struct shard_file *file, struct storage *store)
{
    if (file->object != NULL)
        storage_object_close(store, file->object);
    free(file->hashes);
    memset(file, 0, sizeof *file);
}

static bool block_is_good(const struct shard_file *file, uint64_t block, const void *data,
                          uint64_t bytes)
{
    return checksum_block(data, bytes, file->identity, block) == file->hashes[block];
}

/* ---- the scan ---- */

struct scan_buffer {
    struct storage_request request;
    sem_t done;
    unsigned char *data;
    uint64_t first_block; /* of what was asked for */
    bool is_used;
};

struct scan {
    const struct shard_scan *hooks;
    struct checkpoint *checkpoint;
    struct shard_file *file;
    struct shard_tensor *tensors;
    uint32_t num_tensors;
    struct scan_buffer buffers[2];
    uint64_t next_block; /* to ask for */
};

static void read_done(struct storage_request *request)
{
    sem_post(&((struct scan_buffer *)request->user)->done);
}

static bool wants(const struct scan *scan, uint32_t tensor)
{
    return scan->hooks->wants == NULL || scan->hooks->wants(scan->hooks->user, tensor);
}

/* Does the block hold anything of interest? */
static bool wants_block(const struct scan *scan, uint64_t block)
{
    uint64_t start, bytes, data_start = scan->file->geometry.data_start;
    if (scan->hooks->wants == NULL)
        return true;
    shard_block(&start, &bytes, &scan->file->geometry, block);
    for (uint32_t i = 0; i < scan->num_tensors; i++) {
        uint64_t begin = data_start + scan->tensors[i].data_byte;
        if (begin < start + bytes && begin + scan->tensors[i].bytes > start &&
            wants(scan, scan->tensors[i].tensor))
            return true;
    }
    return false;
}

/* Asks for the next blocks; leaves the buffer unused when there are none. */
static void submit_next(struct scan *scan, struct scan_buffer *buffer)
{
    const struct shard_geometry *geometry = &scan->file->geometry;
    while (scan->next_block < geometry->num_blocks && !wants_block(scan, scan->next_block))
        scan->next_block++;
    buffer->is_used = scan->next_block < geometry->num_blocks;
    if (!buffer->is_used)
        return;
    uint64_t start = scan->next_block * CHECKSUM_BLOCK_BYTES;
    uint64_t left = align_up(geometry->table_start) - start;
    buffer->first_block = scan->next_block;
    buffer->request =
        (struct storage_request){.op = STORAGE_READ,
                                 .object = scan->file->object,
                                 .offset = start,
                                 .data = buffer->data,
                                 .bytes = (uint32_t)(left < SCAN_BYTES ? left : SCAN_BYTES),
                                 .buffer = -1,
                                 .done = read_done,
                                 .user = buffer};
    scan->next_block += SCAN_BLOCKS;
    storage_submit(scan->checkpoint->store, &buffer->request);
}

/* Hands out the elements that lie in the file bytes [start, start + bytes). */
static int deliver(struct scan *scan, const unsigned char *data, uint64_t start, uint64_t bytes)
{
    uint64_t data_start = scan->file->geometry.data_start;
    const struct shard_scan *hooks = scan->hooks;
    int error = 0;
    for (uint32_t i = 0; i < scan->num_tensors && error == 0; i++) {
        const struct shard_tensor *tensor = &scan->tensors[i];
        uint64_t begin = data_start + tensor->data_byte, end = begin + tensor->bytes;
        uint64_t from = begin > start ? begin : start;
        uint64_t to = end < start + bytes ? end : start + bytes;
        if (from >= to || !wants(scan, tensor->tensor))
            continue;
        uint32_t size =
            dtype_bytes(scan->checkpoint->manifest->table->tensors[tensor->tensor].dtype);
        error = hooks->elements(hooks->user, tensor->tensor, &tensor->box, (from - begin) / size,
                                (to - from) / size, data + (from - start));
    }
    return error;
}

/* Verifies the blocks of one read and delivers those that are good. */
static int work_on(struct scan *scan, const struct scan_buffer *buffer)
{
    uint64_t asked = buffer->request.bytes;
    int error = 0;
    for (uint64_t i = 0; i < SCAN_BLOCKS && i * CHECKSUM_BLOCK_BYTES < asked && error == 0; i++) {
        const unsigned char *data = buffer->data + i * CHECKSUM_BLOCK_BYTES;
        uint64_t block = buffer->first_block + i, start, bytes;
        if (block >= scan->file->geometry.num_blocks)
            break;
        if (!wants_block(scan, block))
            continue; /* came along with its neighbours */
        shard_block(&start, &bytes, &scan->file->geometry, block);
        if (block_is_good(scan->file, block, data, bytes))
            error = deliver(scan, data, start, bytes);
        else
            error = scan->hooks->damaged(scan->hooks->user, block, start, bytes);
        if (scan->hooks->progress != NULL)
            progress_add(scan->hooks->progress, bytes);
    }
    return error;
}

static int run_scan(struct scan *scan)
{
    int error = 0;
    submit_next(scan, &scan->buffers[0]);
    for (uint32_t turn = 0; scan->buffers[turn % 2].is_used; turn++) {
        struct scan_buffer *now = &scan->buffers[turn % 2], *next = &scan->buffers[(turn + 1) % 2];
        if (error == 0)
            submit_next(scan, next);
        else
            next->is_used = false;
        while (sem_wait(&now->done) != 0)
            continue;
        if (error == 0 && now->request.error != 0)
            error = report_error(now->request.error, NULL, "could not read bytes %llu to %llu: %s",
                                 (unsigned long long)now->request.offset,
                                 (unsigned long long)(now->request.offset + now->request.bytes),
                                 strerror(now->request.error_number));
        if (error == 0)
            error = work_on(scan, now);
        now->is_used = false;
    }
    return error;
}

/* The header is inside the first blocks; read again by itself, it is small. */
static int scan_header(const struct scan *scan)
{
    const struct shard_geometry *geometry = &scan->file->geometry;
    if (scan->hooks->header == NULL)
        return 0;
    unsigned char *header = malloc(geometry->data_start);
    int error = header != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a header");
    if (error == 0)
        error = read_bytes(header, scan->checkpoint->store, scan->file->object, 0,
                           geometry->data_start);
    if (error == 0)
        error = scan->hooks->header(scan->hooks->user, header, geometry->data_start,
                                    geometry->file_bytes);
    free(header);
    return error;
}

int shard_scan(struct checkpoint *checkpoint, struct shard_file *file,
               const struct shard_scan *hooks)
{
    struct scan scan = {.hooks = hooks, .checkpoint = checkpoint, .file = file};
    uint64_t bytes;
    int error = layout_shard_tensors(&scan.tensors, &scan.num_tensors, &bytes,
                                     checkpoint->manifest->table, file->shard);
    for (int i = 0; i < 2; i++) {
        sem_init(&scan.buffers[i].done, 0, 0);
        scan.buffers[i].data = aligned_alloc(SHARD_ALIGN, SCAN_BYTES);
        if (scan.buffers[i].data == NULL && error == 0)
            error = report_error(ERR_MEMORY, NULL, "no memory to read with");
    }
    if (error == 0)
        error = scan_header(&scan);
    if (error == 0)
        error = run_scan(&scan);
    for (int i = 0; i < 2; i++) {
        sem_destroy(&scan.buffers[i].done);
        free(scan.buffers[i].data);
    }
    free(scan.tensors);
    return error;
}

/* ---- slices and the global order ---- */

void slice_runs(const struct box *box, const struct tensor_meta *tensor, uint64_t first,
                uint64_t count,
                void (*run)(void *user, uint64_t global, uint64_t count, uint64_t element),
                void *user)
{
    uint64_t strides[LAYOUT_DIMS_MAX + 1], run_elements = 1, stride = 1;
    bool is_whole = true; /* all dimensions after this one are full */
    for (uint32_t d = tensor->dims; d-- > 0;) {
        strides[d] = stride;
        stride *= tensor->shape[d];
        if (is_whole)
            run_elements *= box->extent[d];
        is_whole = is_whole && box->extent[d] == tensor->shape[d];
    }
    for (uint64_t done = 0; done < count;) {
        uint64_t inside = (first + done) % run_elements, rest = first + done, global = 0;
        for (uint32_t d = tensor->dims; d-- > 0;) {
            global += (box->offset[d] + rest % box->extent[d]) * strides[d];
            rest /= box->extent[d];
        }
        uint64_t now = run_elements - inside < count - done ? run_elements - inside : count - done;
        run(user, global, now, done);
        done += now;
    }
}

uint64_t chunk_at(struct box *out, const struct tensor_meta *tensor, uint64_t first,
                  uint64_t elements_max)
{
    uint64_t inner = 1, rest = first, count;
    uint32_t cut = tensor->dims; /* the dimension in which the chunk has several rows */
    while (cut > 0 && inner * tensor->shape[cut - 1] <= elements_max)
        inner *= tensor->shape[--cut];
    *out = (struct box){.extent = {1, 1, 1, 1}};
    for (uint32_t d = tensor->dims; d-- > cut;)
        out->extent[d] = tensor->shape[d];
    if (cut == 0)
        return inner;
    rest /= inner;
    for (uint32_t d = cut; d-- > 0;) {
        out->offset[d] = rest % tensor->shape[d];
        rest /= tensor->shape[d];
    }
    uint64_t rows = tensor->shape[cut - 1] - out->offset[cut - 1];
    count = elements_max / inner < rows ? elements_max / inner : rows;
    out->extent[cut - 1] = count;
    return count * inner;
}

/* ---- gather ---- */

/* The open shard, or the place of the one that was used longest ago. */
static int take_file(struct shard_file **out, struct checkpoint *checkpoint, uint32_t shard)
{
    struct shard_file *oldest = &checkpoint->files[0];
    int error = 0;
    checkpoint->clock++;
    for (uint32_t i = 0; i < CHECKPOINT_FILES_MAX; i++) {
        struct shard_file *file = &checkpoint->files[i];
        if (file->object != NULL && file->shard == shard) {
            file->used = checkpoint->clock;
            *out = file;
            return 0;
        }
        if (file->used < oldest->used)
            oldest = file;
    }
    shard_file_close(oldest, checkpoint->store);
    error = shard_file_open(oldest, checkpoint, shard);
    oldest->used = checkpoint->clock;
    *out = oldest;
    return error;
}

/* Verified bytes of a shard, in checkpoint->reads; *out points at the first. */
static int shard_read(const unsigned char **out, struct checkpoint *checkpoint, uint32_t shard,
                      uint64_t offset, uint64_t bytes)
{
    struct shard_file *file = NULL;
    uint64_t first = offset / CHECKSUM_BLOCK_BYTES,
             last = (offset + bytes - 1) / CHECKSUM_BLOCK_BYTES;
    uint64_t start = first * CHECKSUM_BLOCK_BYTES, end;
    int error = take_file(&file, checkpoint, shard);
    if (error != 0)
        return error;
    CHECK(bytes > 0 && bytes <= GATHER_BYTES_MAX && last < file->geometry.num_blocks);
    end = (last + 1) * CHECKSUM_BLOCK_BYTES;
    if (end > align_up(file->geometry.table_start))
        end = align_up(file->geometry.table_start);
    error = storage_transfer(checkpoint->store, STORAGE_READ, file->object, start,
                             checkpoint->reads, (uint32_t)(end - start));
    for (uint64_t block = first; block <= last && error == 0; block++) {
        uint64_t block_start, block_bytes;
        shard_block(&block_start, &block_bytes, &file->geometry, block);
        if (!block_is_good(file, block, checkpoint->reads + (block_start - start), block_bytes))
            error = report_error(ERR_CORRUPT, "run `ckpt-cli verify` on it",
                                 "%s: shard %u: block %llu (bytes %llu to %llu) is damaged",
                                 checkpoint->name, shard + 1, (unsigned long long)block,
                                 (unsigned long long)block_start,
                                 (unsigned long long)(block_start + block_bytes));
    }
    *out = checkpoint->reads + (offset - start);
    return error;
}

/* Index of a point of a box in the box's row-major order. */
static uint64_t index_in(const struct box *box, const uint64_t *point, uint32_t dims)
{
    uint64_t index = 0;
    for (uint32_t d = 0; d < dims; d++)
        index = index * box->extent[d] + (point[d] - box->offset[d]);
    return index;
}

/* One saved piece of a chunk. The part is consecutive in the saved slice, because the chunk is full
 * in every dimension after the one in which it is cut. */
static int gather_item(struct checkpoint *checkpoint, void *out, const struct tensor_meta *tensor,
                       const struct box *chunk, const struct load_item *item)
{
    uint32_t size = dtype_bytes(tensor->dtype);
    uint64_t first = index_in(&item->saved, item->part.offset, tensor->dims);
    uint64_t bytes = box_elements(&item->part, tensor->dims) * size;
    const unsigned char *data = NULL;
    int error = shard_read(&data, checkpoint, item->shard,
                           checkpoint->manifest->shards[item->shard].data_start + item->data_byte +
                               first * size,
                           bytes);
    if (error == 0)
        box_copy(out, chunk, data, &item->part, &item->part, tensor->dims, size);
    return error;
}

int checkpoint_gather(struct checkpoint *checkpoint, void *out, uint32_t tensor,
                      const struct box *chunk)
{
    struct slice wanted = {.tensor = checkpoint->manifest->table->tensors[tensor], .box = *chunk};
    struct load_item *items = NULL;
    uint32_t count = 0;
    if (checkpoint->reads == NULL)
        checkpoint->reads = aligned_alloc(SHARD_ALIGN, READ_BYTES_MAX);
    if (checkpoint->reads == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to read with");
    int error = layout_plan_load(&items, &count, checkpoint->manifest->table, &wanted, 1);
    for (uint32_t i = 0; i < count && error == 0; i++)
        error = gather_item(checkpoint, out, &wanted.tensor, chunk, &items[i]);
    free(items);
    return error;
}
