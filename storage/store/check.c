/* check.c - does a committed checkpoint really exist? Called before another one is removed because
 * of it: a store that keeps two checkpoints must not keep only two names.
 *
 * It reads the whole manifest, and the size and header (shard.c) of every shard that must be here
 * (proto/format/places.h), but no tensor. */
#include "storage/store/private.h"

#include <stdlib.h>
#include <string.h>

static int check_shards(struct storage *storage, const struct manifest *manifest,
                        const struct manifest_summary *place)
{
    struct places places = {0};
    struct shard_expected expected = {0};
    int error = store_read_places(&places, storage, place);
    for (uint32_t i = 0; error == 0 && i < manifest->summary.shards; i++)
        if (places_is_here(&places, i))
            error = shard_check_header(storage, manifest, i, &expected);
    shard_expected_free(&expected);
    places_free(&places);
    return error;
}

/* A manifest of another directory is damage here. */
static int parse(struct manifest **out, struct storage *storage,
                 const struct manifest_summary *place, const void *text, size_t bytes)
{
    int error = store_parse_manifest(out, storage, place, text, bytes);
    return error == ERR_MISMATCH ? report_error(ERR_CORRUPT, NULL, "%s", report_message()) : error;
}

int store_check(struct storage *storage, const struct manifest_summary *summary, uint64_t text_hash)
{
    struct manifest *manifest = NULL;
    void *text = NULL;
    size_t bytes = 0;
    int error = store_fetch_manifest(&text, &bytes, storage, summary);
    if (error == 0)
        error = parse(&manifest, storage, summary, text, bytes);
    free(text);
    if (error == 0 && (!manifest_summary_equal(&manifest->summary, summary) ||
                       (text_hash != 0 && manifest->text_hash != text_hash)))
        error = report_error(ERR_CORRUPT, NULL, "its manifest was replaced after it was listed");
    if (error == 0)
        error = check_shards(storage, manifest, summary);
    manifest_free(manifest);
    return error;
}

int store_check_shards(struct storage *storage, const char *prefix, const void *text, size_t bytes)
{
    struct manifest_summary place = {0};
    struct manifest *manifest = NULL;
    const char *slash = strrchr(prefix, '/');
    if (!slash || (size_t)(slash - prefix) >= sizeof place.run ||
        !retain_parse(slash + 1, &place.step, &place.attempt))
        return report_error(ERR_INVALID, NULL, "%s is not a directory of a checkpoint", prefix);
    memcpy(place.run, prefix, (size_t)(slash - prefix));
    int error = parse(&manifest, storage, &place, text, bytes);
    if (error == 0)
        error = check_shards(storage, manifest, &place);
    manifest_free(manifest);
    return error;
}
