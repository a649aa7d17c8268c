/* want.c - which chunks of a shard open loads need.
 *
 * A plan says which box of which saved slice is copied. From its first element to its last that is
 * a span of the shard's file, and a load needs the chunks that its spans touch. Its ranges of
 * chunks are noted when it opens, sorted and merged: at most as many as the plan has items, and one
 * per shard where all of it is wanted. READ passes take what the ranges of open loads name, so a
 * load of a few tensors of many reads these few.
 *
 * Two rules go beyond the ranges. Where they name every chunk with tensor data, the rest (header,
 * checksum table) is read too: such an image is whole, and serves whatever comes later. And a call
 * for a byte that no range names gets all from there to the end: so asks a client that goes through
 * whole shards. */
#include "ckptd/restore/want.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "ckptd/restore/loads.h"
#include "ckptd/restore/pass.h"
#include "proto/base/array.h"
#include "proto/base/report.h"
#include "proto/format/layout.h"

#include <stdlib.h>

struct chunk_range {
    uint32_t first, end;
};

uint32_t want_chunk(const struct service *service, uint64_t byte)
{
    return (uint32_t)(byte / (uint64_t)service->config->block_bytes);
}

/* ---- noted ---- */

static int compare_ranges(const void *a, const void *b)
{
    const struct chunk_range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Lengthens the last range of the shard, or begins another. */
static void add_range(struct load *load, struct load_shard *shard, struct chunk_range range)
{
    struct chunk_range *ranges = load->ranges + shard->first_range;
    struct chunk_range *last = shard->num_ranges > 0 ? &ranges[shard->num_ranges - 1] : NULL;
    if (!last || range.first < last->first || range.first > last->end)
        ranges[shard->num_ranges++] = range;
    else if (range.end > last->end)
        last->end = range.end;
}

/* The items of a shard come by the places of their tensors; those of one tensor may come in any
 * order. Returns where the ranges of the next shard begin. */
static uint32_t sort_ranges(struct load *load, struct load_shard *shard)
{
    struct chunk_range *ranges = load->ranges + shard->first_range;
    uint32_t count = shard->num_ranges;
    qsort(ranges, count, sizeof *ranges, compare_ranges);
    shard->num_ranges = 0;
    for (uint32_t i = 0; i < count; i++)
        add_range(load, shard, ranges[i]);
    return shard->first_range + shard->num_ranges;
}

static struct chunk_range range_of(const struct load *load, const struct load_item *item,
                                   const struct tensor_meta *tensor)
{
    uint64_t first, end;
    uint64_t start = load->checkpoint->manifest->shards[item->shard].data_start + item->data_byte;
    box_span(&first, &end, &item->saved, &item->part, tensor->dims, dtype_bytes(tensor->dtype));
    return (struct chunk_range){want_chunk(load->service, start + first),
                                want_chunk(load->service, start + end - 1) + 1};
}

int want_note(struct load *load, const struct load_item *items, uint32_t num_items,
              const struct slice *slices)
{
    uint32_t next = 0; /* range */
    load->ranges = malloc(((size_t)num_items + 1) * sizeof *load->ranges);
    if (!load->ranges)
        return report_error(ERR_MEMORY, NULL, "no memory for a load");
    for (uint32_t i = 0; i < num_items; i++) {
        struct load_shard *shard = &load->shards[items[i].shard];
        if (i == 0 || items[i].shard != items[i - 1].shard)
            shard->first_range = next;
        add_range(load, shard, range_of(load, &items[i], &slices[items[i].slice].tensor));
        if (i + 1 == num_items || items[i].shard != items[i + 1].shard)
            next = sort_ranges(load, shard);
    }
    struct chunk_range *less = realloc(load->ranges, ((size_t)next + 1) * sizeof *less);
    if (less)
        load->ranges = less;
    return 0;
}

/* ---- asked for ---- */

/* Does every chunk with tensor data come, or is there? Then the others are to come, too. */
static void ask_rest_when_all_data(struct image *image)
{
    uint32_t end = want_chunk(image->service, image->geometry.table_start - 1) + 1;
    if (image->is_window || image->num_asked >= image->num_missing)
        return;
    for (uint32_t i = want_chunk(image->service, image->geometry.data_start); i < end; i++)
        if (!image_has_chunk(image, i) && !image_chunk(image, i)->is_asked)
            return;
    pass_ask(image, 0, image->num_chunks);
}

void want_ask(const struct load *load, struct image *image)
{
    const struct load_shard *shard = &load->shards[image->shard];
    for (uint32_t i = 0; i < shard->num_ranges && image->num_asked < image->num_missing; i++) {
        const struct chunk_range *range = &load->ranges[shard->first_range + i];
        pass_ask(image, range->first, range->end);
    }
    ask_rest_when_all_data(image);
}

void want_ask_from(struct image *image, uint64_t byte)
{
    uint32_t first = want_chunk(image->service, byte);
    if (!image_has_chunk(image, first) && !image_chunk(image, first)->is_asked)
        pass_ask(image, first, image->num_chunks);
    ask_rest_when_all_data(image);
}

void want_ask_all(struct image *image)
{
    const struct service *service = image->service;
    for (int64_t i = 0; i < service->config->limit_loads; i++) {
        const struct load *load = &service->loads->rows[i];
        if (load->number != 0 && load->checkpoint == image->checkpoint &&
            load->shards[image->shard].wanted)
            want_ask(load, image);
    }
    for (const struct shard_wait *wait = image->waiting; wait; wait = wait->next)
        want_ask_from(image, wait->from_byte);
}

bool want_lacks(const struct load *load, const struct image *image)
{
    const struct load_shard *shard = &load->shards[image->shard];
    for (uint32_t i = 0; i < shard->num_ranges && image->num_missing > 0; i++) {
        const struct chunk_range *range = &load->ranges[shard->first_range + i];
        for (uint32_t chunk = range->first; chunk < range->end; chunk++)
            if (!image_has_chunk(image, chunk))
                return true;
    }
    return false;
}
