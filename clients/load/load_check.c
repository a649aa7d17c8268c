/* load_check.c - copies from memory that ranks may write to.
 *
 * ckptd lends the rank's own segments of a saved image. The rank may change the bytes during a
 * copy, so verifying them in place proves nothing. load_check() copies a block into private memory
 * (the room) and hashes the copy in the same pass. Boxes are cut from the copy when it matches the
 * shard's checksum table. The table is copied first, and verified by its hash, which ckptd has from
 * the manifest. After a mismatch the load continues from the shard's file.
 *
 * Memory: the room. It is one block when boxes are copied at once. Each copy by a device or over
 * the network waits for an answer, so there the room is ROOM_BYTES. */
#include "clients/load/load.h"

#include "proto/base/report.h"
#include "proto/format/shard.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ROOM_BYTES (16ull << 20)

/* ---- the room ---- */

static int make_room(struct load *load)
{
    bool waits = load->remote != NULL || load->ckpt->hooks.copy != NULL;
    if (load->room != NULL)
        return 0;
    load->room_bytes = waits ? ROOM_BYTES : CHECKSUM_BLOCK_BYTES;
    void *room =
        mmap(NULL, load->room_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return report_errno(ERR_MEMORY, "no memory for a load", "mmap");
    load->room = room;
    session_report_mapped(load->ckpt, room, load->room_bytes, true);
    return 0;
}

void load_check_free(struct load *load)
{
    if (load->room == NULL)
        return;
    session_report_unmapped(load->ckpt, load->room, load->room_bytes);
    munmap(load->room, load->room_bytes);
    load->room = NULL;
}

/* ---- copies ---- */

struct block_copy {
    unsigned char *to;
    const unsigned char *from;
};

static void copy_piece(void *user, size_t at, size_t bytes)
{
    const struct block_copy *copy = user;
    memcpy(copy->to + at, copy->from + at, bytes);
}

/* Copies bytes [at, at + bytes) of the shard, of one block, to `to`, which is private; returns
 * their checksum. */
static uint64_t copy_block(const struct shard_view *view, uint64_t at, uint64_t bytes,
                           unsigned char *to)
{
    struct block_copy copy = {to, view->data + (at - view->start)};
    uint64_t block = at / CHECKSUM_BLOCK_BYTES;
    return view->segments != NULL
               ? checksum_block(to, bytes, view->identity, block) /* it was received there */
               : checksum_block_beside(to, bytes, view->identity, block, copy_piece, &copy);
}

static int report_change(struct load *load, const struct shard_view *view, const char *what)
{
    load->from_file = true;
    return report_error(ERR_CORRUPT, "load again",
                        "%s of a shard of %llu bytes was changed in ckptd's memory", what,
                        (unsigned long long)view->length);
}

/* ---- the table ---- */

static int read_table(struct load *load, struct shard_view *view)
{
    uint64_t blocks = (view->table_start + CHECKSUM_BLOCK_BYTES - 1) / CHECKSUM_BLOCK_BYTES;
    uint64_t bytes = view->length - view->table_start;
    if (view->table_start > view->length || view->start + view->bytes != view->length ||
        view->start > view->table_start || view->start % CHECKSUM_BLOCK_BYTES != 0 ||
        bytes > SHARD_TABLE_BYTES_MAX || bytes / sizeof *view->table < blocks)
        return report_error(ERR_CORRUPT, "client and ckptd may be of different versions",
                            "ckptd lent a shard with an invalid checksum table");
    view->table = malloc(bytes);
    if (view->table == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a checksum table");
    uint64_t at = view->table_start - view->start;
    if (view->segments != NULL)
        ERR_TRY(load_copy_fetch(load, view, at, bytes, view->table));
    else
        memcpy(view->table, view->data + at, bytes);
    return checksum_bytes(view->table, bytes) == view->table_hash
               ? 0
               : report_change(load, view, "the checksum table");
}

int load_check(struct shard_view *out, struct load *load, struct shard_view *view, uint64_t at,
               uint64_t until)
{
    uint64_t start = at / CHECKSUM_BLOCK_BYTES * CHECKSUM_BLOCK_BYTES, bytes = 0;
    ERR_TRY(make_room(load));
    if (view->table == NULL)
        ERR_TRY(read_table(load, view));
    if (at < view->start || at >= view->table_start)
        return report_error(ERR_CORRUPT, NULL, "byte %llu of a shard is not tensor data",
                            (unsigned long long)at);
    until = until < view->table_start ? until : view->table_start;
    while (start + bytes < until && bytes < load->room_bytes)
        bytes += CHECKSUM_BLOCK_BYTES;
    bytes = bytes < view->table_start - start ? bytes : view->table_start - start;
    if (view->segments != NULL)
        ERR_TRY(load_copy_fetch(load, view, start - view->start, bytes, load->room));
    for (uint64_t done = 0; done < bytes; done += CHECKSUM_BLOCK_BYTES) {
        uint64_t now = bytes - done < CHECKSUM_BLOCK_BYTES ? bytes - done : CHECKSUM_BLOCK_BYTES;
        uint64_t sum = copy_block(view, start + done, now, load->room + done);
        if (sum != shard_table_entry(view->table, (start + done) / CHECKSUM_BLOCK_BYTES))
            return report_change(load, view, "a block");
    }
    *out = (struct shard_view){
        .data = load->room, .start = start, .bytes = bytes, .from = at, .length = view->length};
    return 0;
}
