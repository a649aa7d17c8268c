/* remote_manifest.c - writes a checkpoint's manifest for another tier and publishes it there: from
 * then on the checkpoint exists there.
 *
 *   far       the local one, followed by the hashes of the shards sent (proto/format/manifest.h)
 *   a peer    the local one, byte for byte: it is the peer's local manifest
 *   local     a peer's, byte for byte; from the far tier without those hashes
 *
 * If a copy is mended, its manifest stays, unless the manifest itself is damaged. */
#include "ckptd/tiers/remote_manifest.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/format/origin.h"
#include "storage/store/store.h"

#include <stdlib.h>
#include <string.h>

int remote_manifest_publish_origin(struct storage *storage, const struct manifest_summary *summary)
{
    char key[STORAGE_KEY_MAX + 1], text[ORIGIN_BYTES_MAX];
    if (!summary->origin[0])
        return 0;
    ERR_TRY(origin_key(key, sizeof key, summary));
    origin_write(text, summary->origin, summary->nonce);
    enum publication outcome = tier_publish(storage, key, text, strlen(text), summary->nonce);
    return outcome == PUBLICATION_DURABLE ? 0 : ERR_IO;
}

/* The pin must exist before the manifest: else retention there finds the checkpoint unpinned. */
int remote_manifest_publish_pin(struct service *service, const char *prefix)
{
    char note[PIN_NOTE_MAX];
    int error = store_find_note(service->storage, STORE_PIN, prefix, note, sizeof note);
    if (error != 0)
        return error == ERR_NOT_FOUND ? 0 : error;
    error = store_put_note(service->tiers[TIER_FAR].storage, STORE_PIN, prefix, note);
    return error == ERR_EXISTS ? 0 : error;
}

/* The caller frees *out. */
static int make_text(char **out, size_t *out_bytes, const struct remote_manifest *marker,
                     const char *key)
{
    struct manifest other = *marker->manifest;
    void *text = NULL;
    if (marker->to != TIER_FAR && marker->from != TIER_FAR) {
        ERR_TRY(storage_fetch_all(marker->service->tiers[marker->from].storage, key,
                                  MANIFEST_BYTES_MAX, &text, out_bytes));
        *out = text;
        return 0;
    }
    if (other.summary.origin[0])
        memcpy(other.summary.run, other.summary.origin, sizeof other.summary.run);
    other.summary.version = MANIFEST_VERSION_OF_TIER;
    other.part_bytes = (uint64_t)marker->service->config->tier_part_bytes;
    if (marker->to != TIER_FAR) {
        other.summary.version = MANIFEST_VERSION;
        other.part_bytes = 0;
        other.part_sums = NULL;
    }
    return manifest_write(out, out_bytes, &other);
}

/* Every shard is correct by now, and the mark shows whose work this is. */
static int remove_damaged(const struct remote_manifest *marker, struct storage *storage,
                          const char *key)
{
    struct manifest *manifest = NULL;
    int error = store_read_manifest(&manifest, storage, &marker->manifest->summary);
    manifest_free(manifest);
    if (error == ERR_CORRUPT)
        error = storage_remove(storage, key);
    return error == ERR_NOT_FOUND ? 0 : error;
}

enum publication remote_manifest_publish(const struct remote_manifest *marker, uint64_t *out_hash)
{
    struct storage *storage = marker->service->tiers[marker->to].storage;
    const struct manifest_summary *summary = &marker->manifest->summary;
    char key[STORAGE_KEY_MAX + 1], *text = NULL;
    size_t bytes = 0;
    enum publication outcome = PUBLICATION_ABSENT;
    int error = manifest_key(key, sizeof key, summary);
    if (error == 0)
        error = make_text(&text, &bytes, marker, key);
    if (error == 0 && marker->is_mending)
        error = remove_damaged(marker, storage, key);
    if (error == 0) {
        *out_hash = checksum_bytes(text, bytes);
        outcome = tier_publish(storage, key, text, bytes, summary->nonce);
    }
    free(text);
    return outcome;
}
