/* complete_copy.c - completes the part of a checkpoint that ranks of several nodes saved to a whole
 * copy. The other nodes' shards are copied beside its own (tiers/), so the checkpoint survives one
 * more lost node.
 *
 *   places.json: some shards are in this directory ──► the others are written, each durable ──►
 *   all are verified against the manifest ──► places.json is removed: a whole copy
 *
 * Invariants (cited in the code):
 *   complete.W1  places.json is removed last. Until then the shards of other nodes do not belong to
 *       the copy, whole or not; after a crash ckptd verifies them, or they are sent again.
 *   complete.W2  Only this ckptd removes the shards of a committed copy. */
#include "ckptd/tiers/complete_copy.h"
#include "ckptd/core/catalog.h"
#include "proto/base/report.h"
#include "proto/format/places.h"
#include "proto/format/shard.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_shards(struct storage *storage, const struct manifest_summary *summary)
{
    void *text = NULL;
    size_t bytes = 0;
    int error = store_fetch_manifest(&text, &bytes, storage, summary);
    if (error == 0)
        error = store_prove_shards(storage, summary, text, bytes);
    free(text);
    return error;
}

int complete_copy(struct storage *storage, const struct manifest_summary *summary)
{
    char key[STORAGE_KEY_MAX], dir[STORAGE_KEY_MAX];
    ERR_TRY(check_shards(storage, summary));
    ERR_TRY(shard_dir_key(dir, sizeof dir, summary->run, summary->step, summary->attempt));
    ERR_TRY(places_key(key, sizeof key, summary));
    ERR_TRY(storage_sync_names(storage, dir));
    int error = storage_remove(storage, key); /* complete.W1 */
    if (error == ERR_NOT_FOUND)
        return 0; /* it was whole already */
    return error == 0 ? storage_sync_names(storage, dir) : error;
}

static int read_places(struct places *out, struct storage *storage,
                       const struct manifest_summary *place)
{
    struct manifest_summary summary;
    ERR_TRY(store_read_summary(&summary, storage, place->run, place->step, place->attempt));
    return store_read_places(out, storage, &summary);
}

static bool shard_of_name(uint32_t *out, const char *name, const struct places *places)
{
    unsigned number = 0;
    bool is_known =
        sscanf(name, "shard-%u-of-", &number) == 1 && number > 0 && number <= places->num_shards;
    *out = number - 1;
    return is_known;
}

int complete_copy_find_shard(char out[PLACES_NODE_BYTES], struct storage *storage,
                             const struct manifest_summary *place, const char *name)
{
    struct places places = {0};
    uint32_t shard;
    ERR_TRY(read_places(&places, storage, place));
    bool is_away = shard_of_name(&shard, name, &places) && !places_is_here(&places, shard);
    if (is_away)
        snprintf(out, PLACES_NODE_BYTES, "%s", places.nodes[places.shards[shard]]);
    places_free(&places);
    return is_away
               ? 0
               : report_error(ERR_NOT_FOUND, NULL, "no node is listed as the holder of %s", name);
}

bool complete_copy_has_shard(struct storage *storage, const struct manifest_summary *place,
                             const char *name)
{
    struct places places = {0};
    uint32_t shard;
    int error = read_places(&places, storage, place);
    if (error == ERR_NOT_FOUND)
        return false; /* it is not committed */
    bool has =
        error != 0 || !shard_of_name(&shard, name, &places) || places_is_here(&places, shard);
    places_free(&places);
    return has;
}
