/* slots.c - the images of a rank: chooses the image of its next save, and lends images ahead. */
#include "ckptd/memory/slots.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/memory/session.h"
#include "proto/base/report.h"

#include <string.h>

/* A rank has one window: two share the same memory in halves, and each waits longer. */
static uint32_t num_slots(const struct session *session)
{
    uint32_t need = image_segments_needed(session->service, session->geometry.file_bytes);
    return session->image_segments < need ? 1 : SLOTS_PER_RANK;
}

/* May the next save go into this slot? 0: no; higher is better. */
static int slot_rank(const struct session *session, uint32_t slot)
{
    const struct image *image = session->slots[slot];
    if (!image)
        return 2;
    if (image->readers > 0 || image->busy > 0)
        return 0;
    if (image->state == IMAGE_SPARE)
        return 3;
    return image->state == IMAGE_RESIDENT ? 1 : 0; /* the newest in memory: the last choice */
}

static struct pool_owner owner_of(const struct session *session)
{
    return (struct pool_owner){session->run->tag, session->attempt, session->memory_node};
}

static int fill_slot(struct session *session, uint32_t slot)
{
    struct image *image = NULL;
    ERR_TRY(image_new(&image, session->service, &session->geometry, session->image_segments));
    image->slot = &session->slots[slot];
    image->run = session->run;
    int error = image_take_segments(image, owner_of(session));
    if (error != 0) {
        image_free(image);
        return error;
    }
    session->slots[slot] = image;
    return 0;
}

/* Takes no memory from others, and none that must be cleaned first: the save cleans it, and clean
 * memory stays for loads. */
uint32_t slots_lend_ahead(uint32_t *out, struct session *session)
{
    struct service *service = session->service;
    uint32_t need = session->image_segments, count = 0;
    struct pool_owner owner = owner_of(session);
    for (uint32_t slot = 0; slot < num_slots(session); slot++) {
        if (service->num_last_waiting > 0 || pool_ready_for(service->pool, owner) < need ||
            fill_slot(session, slot) != 0)
            return count;
        const struct image *image = session->slots[slot];
        CHECK(!pool_is_dirty(service->pool, image->segments, image->num_segments));
        memcpy(out + count, image->segments, need * sizeof *out);
        count += need;
    }
    return count;
}

int slots_choose(uint32_t *out_slot, struct session *session)
{
    int error = ERR_BUSY;
    report_error(ERR_BUSY, "skip this save, or wait for the one before",
                 "%s of rank %u %s being written",
                 num_slots(session) == 1 ? "the window" : "both images", session->rank,
                 num_slots(session) == 1 ? "is" : "are");
    for (int rank = 3; rank >= 1; rank--) {
        for (uint32_t slot = 0; slot < num_slots(session); slot++) {
            if (slot_rank(session, slot) != rank)
                continue;
            *out_slot = slot;
            if (rank == 1)
                image_leave_checkpoint(session->slots[slot]);
            if (rank != 2)
                return 0;
            error = fill_slot(session, slot);
            if (error != ERR_BUSY)
                return error;
        }
    }
    return error;
}

bool slots_lack_memory(const struct session *session)
{
    for (uint32_t slot = 0; slot < num_slots(session); slot++)
        if (!session->slots[slot])
            return true;
    return false;
}
