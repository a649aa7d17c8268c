/* offline_load.c - a load from a store without ckptd: the plan, and verified parts of its shards.
 *
 * The plan comes from the manifest, by the same algebra as in ckptd. A shard is opened when it is
 * first read: its size, header and table hash must match the manifest. Then each block that is read
 * must match its entry of the table. One shard is open at a time. Several parallel requests read a
 * part; on a bucket each is a ranged GET. */
#include "clients/offline.h"

#include "proto/base/report.h"
#include "proto/format/origin.h"
#include "storage/storage.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ITEMS_MAX (16u << 20)   /* of a plan */
#define READ_BYTES (4ull << 20) /* of one request */
#define READS_MAX (OFFLINE_PART_BYTES / READ_BYTES)

struct offline_load {
    struct storage *store; /* owned by the handle */
    struct manifest *manifest;
    struct store_shard file; /* the open shard; object NULL: none is open */
    struct shard_expected expected;
};

/* ---- the plan ---- */

static int fail_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory for a load");
}

int offline_load_open(struct offline_load **out, struct load_item **out_items,
                      uint32_t *out_num_items, const struct ckpt *ckpt,
                      const struct store_choice *choice, const struct session_tensors *wanted)
{
    struct offline_load *load = *out = calloc(1, sizeof *load);
    const struct load_wish wish = {wanted->slices, wanted->count, ITEMS_MAX};
    if (load == NULL)
        return fail_memory();
    load->store = ckpt->store;
    ERR_TRY(offline_manifest(&load->manifest, NULL, ckpt, choice));
    ERR_TRY(layout_plan_load(out_items, out_num_items, load->manifest->table, &wish));
    for (uint32_t i = 0; i < *out_num_items; i++)
        (*out_items)[i].data_byte += load->manifest->shards[(*out_items)[i].shard].data_start;
    return 0;
}

const struct manifest *offline_load_manifest(const struct offline_load *load)
{
    return load->manifest;
}

/* ---- shards ---- */

void offline_load_free(struct offline_load *load)
{
    if (load == NULL)
        return;
    store_shard_close(&load->file);
    shard_expected_free(&load->expected);
    manifest_free(load->manifest);
    free(load);
}

static int fail_shard(const struct offline_load *load, const char *what)
{
    return report_error(ERR_CORRUPT, "try an older checkpoint; see `ckpt-cli verify`",
                        "%s of shard %u of %s@%llu-a%llu", what, load->file.shard,
                        load->manifest->summary.run,
                        (unsigned long long)load->manifest->summary.step,
                        (unsigned long long)load->manifest->summary.attempt);
}

/* Reads multiples of STORAGE_ALIGN into memory with that alignment. */
static int read_bytes(const struct offline_load *load, void *out, uint64_t at, uint64_t bytes)
{
    struct storage_transfer transfers[READS_MAX];
    for (uint64_t done = 0; done < bytes;) {
        uint32_t count = 0;
        int error = 0;
        for (; done < bytes && count < READS_MAX; count++) {
            uint64_t now = bytes - done < READ_BYTES ? bytes - done : READ_BYTES;
            storage_begin(&transfers[count], load->store, STORAGE_READ, load->file.object,
                          at + done, (char *)out + done, (uint32_t)now);
            done += now;
        }
        for (uint32_t i = 0; i < count; i++) {
            int ended = storage_end(&transfers[i]);
            error = error != 0 ? error : ended;
        }
        ERR_TRY(error);
    }
    return 0;
}

/* Verifies the header and the checksum table against the manifest. */
static int verify_shard(struct offline_load *load)
{
    struct storage_transfer table;
    int error = store_shard_open(&load->file, "");
    if (error == ERR_NOT_FOUND)
        return fail_shard(load, "the file is missing");
    if (error == ERR_CORRUPT)
        return fail_shard(load, "the file has another length than the manifest says");
    ERR_TRY(error);
    error = store_shard_check_header(&load->file, &load->expected);
    if (error == ERR_CORRUPT)
        return fail_shard(load, "the manifest does not match the header");
    ERR_TRY(error);
    ERR_TRY(store_shard_begin_table(&load->file, &table));
    error = store_shard_end_table(&load->file, &table);
    return error == ERR_CORRUPT ? fail_shard(load, "the manifest does not match the checksums")
                                : error;
}

static int open_shard(struct offline_load *load, uint32_t shard)
{
    if (load->file.object != NULL && load->file.shard == shard)
        return 0;
    store_shard_close(&load->file);
    load->file.shard = shard;
    if (shard >= load->manifest->summary.shards)
        return fail_shard(load, "there is no such shard: the plan");
    ERR_TRY(store_shard_init(&load->file, load->store, load->manifest, shard));
    int error = verify_shard(load);
    if (error != 0)
        store_shard_close(&load->file);
    return error;
}

int offline_load_part(struct offline_part *out, struct offline_load *load, uint32_t shard,
                      uint64_t at, uint64_t end)
{
    *out = (struct offline_part){0};
    ERR_TRY(open_shard(load, shard));
    const struct shard_geometry *geometry = &load->file.geometry;
    if (at >= geometry->table_start || end <= at)
        return fail_shard(load, "the plan exceeds the data");
    out->length = geometry->file_bytes;
    out->start = at / CHECKSUM_BLOCK_BYTES * CHECKSUM_BLOCK_BYTES;
    uint64_t stop = out->start + OFFLINE_PART_BYTES;
    end = (end + CHECKSUM_BLOCK_BYTES - 1) / CHECKSUM_BLOCK_BYTES * CHECKSUM_BLOCK_BYTES;
    stop = end < stop ? end : stop;
    stop = geometry->table_start < stop ? geometry->table_start : stop;
    out->bytes = stop - out->start;
    out->mapped = (out->bytes + STORAGE_ALIGN - 1) / STORAGE_ALIGN * STORAGE_ALIGN;
    void *memory =
        mmap(NULL, out->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return fail_memory();
    out->data = memory;
    int error = read_bytes(load, memory, out->start, out->mapped);
    if (error == 0 && store_shard_check_blocks(&load->file, out->data, out->start, out->bytes) != 0)
        error = fail_shard(load, "the checksum does not match a block");
    if (error != 0)
        munmap(memory, out->mapped);
    return error;
}
