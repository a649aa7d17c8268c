/* announce.c - handles a rank's announcements of its part of a save (stage.c), and limits how far
 * it may write.
 *
 * Announcements come from shared memory and are not trusted: the caller passes private copies, and
 * every range is checked here. A range outside the tensors' bytes, or one that overlaps an
 * announced one, is a breach that fails the save. Announced bytes are kept as a sorted list of
 * disjoint intervals; ranks announce mostly in order, so it stays short. Its limit is the number of
 * the rank's items plus SCATTER_MAX; a rank that scatters more is in breach as well.
 *
 * An image that is a window holds a part of the file at a time. When its first chunks are in the
 * file it moves on, and ckptd tells the rank, which waits for room, through the control page. An
 * announcement beyond the window is a breach; ckptd uses its own numbers, never those of the
 * page. */
#include "ckptd/memory/announce.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/session.h"
#include "ckptd/memory/stage.h"
#include "ckptd/memory/throttle_queue.h"
#include "proto/base/report.h"
#include "proto/format/replica.h"
#include "proto/wire/arena.h"

#include <stdlib.h>
#include <string.h>

#define SCATTER_MAX 64u /* intervals allowed beyond the rank's items */

int announce_open(struct stage *stage, uint32_t num_items)
{
    stage->max_announced = num_items + SCATTER_MAX;
    stage->announced = calloc(stage->max_announced, sizeof *stage->announced);
    return stage->announced ? 0 : report_error(ERR_MEMORY, NULL, "no memory for announcements");
}

/* ---- the window ---- */

/* Image bytes below this may be written and announced. */
static uint64_t window_end(const struct stage *stage)
{
    const struct image *image = stage->image;
    uint64_t chunk_bytes = (uint64_t)image->service->config->block_bytes;
    return image->is_window ? (stage->released + (uint64_t)image->num_rooms) * chunk_bytes
                            : image->geometry.file_bytes;
}

/* `end` 0: the save was given up, and the rank must not wait. */
static void tell_window(struct stage *stage, uint64_t end)
{
    struct session *session = stage->session;
    if (stage->image->is_window && session && session->control)
        arena_window_set(session->control, end > 0 ? stage->options.save_id : 0, end);
}

/* Resets the chunk `index` for its place in memory. */
static void open_chunk(struct image *image, uint32_t index)
{
    struct chunk *chunk = image_chunk(image, index);
    uint64_t start, end;
    image_chunk_range(image, index, &start, &end);
    start = start > image->geometry.data_start ? start : image->geometry.data_start;
    end = end < image->geometry.table_start ? end : image->geometry.table_start;
    chunk->index = index;
    chunk->is_written = false;
    chunk->unannounced = end > start ? end - start : 0;
}

void announce_start(struct stage *stage)
{
    struct image *image = stage->image;
    stage->unannounced = image->geometry.table_start - image->geometry.data_start;
    for (uint32_t i = 0; i < image->num_chunks && i < image->num_rooms; i++)
        open_chunk(image, i);
    tell_window(stage, window_end(stage));
}

void announce_move_window(struct stage *stage)
{
    struct image *image = stage->image;
    uint32_t before = stage->released;
    while (stage->released + stage->num_tail < image->num_chunks &&
           image_chunk(image, stage->released)->is_written) {
        uint32_t next = stage->released++ + image->num_rooms;
        if (next < image->num_chunks)
            open_chunk(image, next);
    }
    if (stage->released != before)
        tell_window(stage, window_end(stage));
}

void announce_give_up(struct stage *stage)
{
    tell_window(stage, 0);
}

/* ---- ranges ---- */

/* Index of the first interval that ends at or after `at`. */
static uint32_t find_interval(const struct stage *stage, uint64_t at)
{
    uint32_t low = 0, high = stage->num_announced;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (stage->announced[middle].end < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Adds [start, end) to the announced bytes. */
static int add_interval(struct stage *stage, uint64_t start, uint64_t end)
{
    struct interval *list = stage->announced;
    uint32_t at = find_interval(stage, start);
    if (at < stage->num_announced && list[at].end == start) { /* it extends list[at] */
        bool joins = at + 1 < stage->num_announced && list[at + 1].start == end;
        if (at + 1 < stage->num_announced && list[at + 1].start < end)
            return report_error(ERR_INVALID, NULL, "bytes %llu to %llu were announced twice",
                                (unsigned long long)list[at + 1].start, (unsigned long long)end);
        list[at].end = joins ? list[at + 1].end : end;
        if (joins) {
            memmove(&list[at + 1], &list[at + 2], (stage->num_announced - at - 2) * sizeof *list);
            stage->num_announced--;
        }
        return 0;
    }
    if (at < stage->num_announced && list[at].start < end)
        return report_error(ERR_INVALID, NULL, "bytes %llu to %llu were announced twice",
                            (unsigned long long)list[at].start, (unsigned long long)end);
    if (at < stage->num_announced && list[at].start == end) { /* it precedes list[at] */
        list[at].start = start;
        return 0;
    }
    if (stage->num_announced == stage->max_announced)
        return report_error(ERR_INVALID, "announce in the order of the image",
                            "more than %u separate ranges were announced", stage->max_announced);
    memmove(&list[at + 1], &list[at], (stage->num_announced - at) * sizeof *list);
    list[at] = (struct interval){start, end};
    stage->num_announced++;
    return 0;
}

/* Subtracts the bytes from those that the chunks of [start, end) wait for. */
static void count_range(struct stage *stage, uint64_t start, uint64_t end)
{
    struct image *image = stage->image;
    uint64_t chunk_bytes = (uint64_t)stage->service->config->block_bytes;
    stage->unannounced -= end - start;
    while (start < end) {
        uint32_t index = (uint32_t)(start / chunk_bytes);
        uint64_t border = (index + 1) * chunk_bytes;
        uint64_t now = (border < end ? border : end) - start;
        struct chunk *chunk = image_chunk(image, index);
        CHECK(chunk->index == index && chunk->unannounced >= now); /* the intervals are disjoint */
        chunk->unannounced -= now;
        if (chunk->unannounced == 0 && stage->created)
            throttle_queue_start_chunk(image, index);
        start += now;
    }
}

static int announce_range(struct stage *stage, uint64_t offset, uint64_t bytes)
{
    const struct shard_geometry *geometry = &stage->image->geometry;
    if (stage->ended)
        return report_error(ERR_INVALID, NULL, "a range was announced after the end");
    if (bytes == 0 || offset < geometry->data_start || offset >= geometry->table_start ||
        bytes > geometry->table_start - offset)
        return report_error(ERR_INVALID, NULL,
                            "the announced range of %llu bytes at %llu is not tensor data",
                            (unsigned long long)bytes, (unsigned long long)offset);
    if (offset + bytes > window_end(stage))
        return report_error(ERR_INVALID, "copy in the order of the image",
                            "the announced range of %llu bytes at %llu is beyond the window, which "
                            "ends at %llu",
                            (unsigned long long)bytes, (unsigned long long)offset,
                            (unsigned long long)window_end(stage));
    int error = add_interval(stage, offset, offset + bytes);
    if (error == 0)
        count_range(stage, offset, offset + bytes);
    return error;
}

static uint32_t replica_words(const struct stage *stage)
{
    return REPLICA_WORDS * stage->options.num_replicas;
}

int announce_replicas(struct stage *stage, const uint64_t *words, size_t count)
{
    uint32_t all = replica_words(stage);
    if (stage->ended || count > all - stage->num_replica_words)
        return report_error(ERR_INVALID, "client and ckptd may be of different versions",
                            "%zu words of digests of %u replicas were announced %s", count,
                            stage->options.num_replicas,
                            stage->ended ? "after the end" : "and are too many");
    if (!stage->replicas)
        stage->replicas = malloc(all * sizeof *words + 1);
    if (!stage->replicas)
        return report_error(ERR_MEMORY, NULL, "no memory for the digests of %u replicas",
                            stage->options.num_replicas);
    if (count > 0)
        memcpy((uint64_t *)stage->replicas + stage->num_replica_words, words,
               count * sizeof *words);
    stage->num_replica_words += (uint32_t)count;
    return 0;
}

static int announce_end(struct stage *stage)
{
    if (stage->ended)
        return report_error(ERR_INVALID, NULL, "the end was announced twice");
    if (stage->unannounced > 0)
        return report_error(ERR_INVALID, NULL, "%llu bytes had not been announced at the end",
                            (unsigned long long)stage->unannounced);
    if (stage->replicas && stage->num_replica_words < replica_words(stage))
        return report_error(ERR_INVALID, NULL,
                            "digests of replicas had not been announced at the end");
    stage->ended = true;
    return 0;
}

/* Takes one of the two sums of the tensor that begins at image byte `offset`. */
static int take_digest(struct stage *stage, uint64_t offset, uint32_t which, uint64_t sum)
{
    const struct image *image = stage->image;
    uint64_t data_start = image->geometry.data_start;
    uint64_t data_byte = offset > data_start ? offset - data_start : 0;
    if (stage->ended)
        return report_error(ERR_INVALID, NULL, "a digest was announced after the end");
    uint32_t at = layout_tensor_at(image->tensors, image->num_tensors, data_byte);
    if (offset < data_start || at == image->num_tensors ||
        image->tensors[at].data_byte != data_byte)
        return report_error(ERR_INVALID, NULL,
                            "a digest was announced at byte %llu, where no tensor begins",
                            (unsigned long long)offset);
    if (!stage->told)
        stage->told = calloc(image->num_tensors, sizeof *stage->told);
    if (!stage->told)
        return report_error(ERR_MEMORY, NULL, "no memory for the digests of %u tensors",
                            image->num_tensors);
    stage->told[at].digest.sum[which] = sum;
    stage->told[at].sums |= 1u << which;
    return 0;
}

int announce_take(struct stage *stage, const struct arena_entry *entry)
{
    switch (entry->kind) {
    case ARENA_ENTRY_RANGE:
        return announce_range(stage, entry->offset, entry->bytes);
    case ARENA_ENTRY_END:
        return announce_end(stage);
    case ARENA_ENTRY_DIGEST_0:
    case ARENA_ENTRY_DIGEST_1:
        return take_digest(stage, entry->offset, entry->kind - ARENA_ENTRY_DIGEST_0, entry->bytes);
    case ARENA_ENTRY_REPLICA:
        return announce_replicas(stage, (const uint64_t[]){entry->offset, entry->bytes}, 2);
    default:
        return report_error(ERR_INVALID, NULL, "received an announcement of the unknown kind %u",
                            entry->kind);
    }
}
