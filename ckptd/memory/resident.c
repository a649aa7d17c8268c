/* resident.c - see resident.h. */
#include "ckptd/memory/resident.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/copies.h"
#include "ckptd/memory/image.h"

static bool is_in_memory(const struct checkpoint *checkpoint)
{
    if (checkpoint->num_images < checkpoint->summary.shards)
        return false;
    for (uint32_t i = 0; i < checkpoint->summary.shards; i++)
        if (checkpoint->images[i]->state != IMAGE_RESIDENT ||
            checkpoint->images[i]->reading.num_missing)
            return false;
    return checkpoint->summary.shards > 0;
}

bool resident_take_out(struct checkpoint *checkpoint)
{
    if (catalog_in_use(checkpoint))
        return false;
    for (uint32_t i = 0; i < checkpoint->summary.shards && checkpoint->num_images > 0; i++) {
        struct image *image = catalog_image(checkpoint, i);
        if (!image)
            continue;
        CHECK(image->readers == 0 && image->busy == 0); /* loads and passes hold leases */
        image_leave_checkpoint(image);
    }
    catalog_take_out(checkpoint);
    return true;
}

void resident_summary(Holdfast__V1__CheckpointSummary *out, struct checkpoint *checkpoint)
{
    holdfast__v1__checkpoint_summary__init(out);
    out->run = checkpoint->run->name;
    out->step = checkpoint->summary.step;
    out->attempt = checkpoint->summary.attempt;
    out->nonce = checkpoint->summary.nonce;
    out->bytes = checkpoint->summary.bytes;
    out->time = checkpoint->summary.time;
    out->world_size = checkpoint->summary.world_size;
    out->durability =
        (char *)(uintptr_t)(checkpoint->damaged ? checkpoint->flaw : copies_level(checkpoint));
    out->tiers = copies_names(checkpoint);
    out->origin = checkpoint->summary.origin;
    out->in_memory = is_in_memory(checkpoint);
    const struct pin *pin = catalog_pin(checkpoint);
    out->pinned = pin != NULL;
    out->pin_note = pin && pin->note ? pin->note : "";
    out->damage = checkpoint->damage;
    out->read_back = catalog_is_read_back(checkpoint);
}
