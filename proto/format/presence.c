/* presence.c - the manifest as it was committed, and the shards that it names. */
#include "proto/format/presence.h"

#include "proto/base/report.h"
#include "proto/format/origin.h"
#include "proto/format/places.h"
#include "proto/format/retain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES 512u

struct look {
    struct storage *storage;
    presence_fetch *fetch;
};

/* The whole manifest, read and proven. ERR_NOT_FOUND */
static int fetch_manifest(struct manifest **out, const struct look *look, const char *key)
{
    uint64_t bytes = 0, bytes_now = 0;
    int error = look->fetch(look->storage, key, NULL, 0, &bytes);
    if (error != 0)
        return error;
    if (bytes > MANIFEST_BYTES_MAX)
        return report_error(ERR_CORRUPT, NULL, "%s has %llu bytes", key, (unsigned long long)bytes);
    char *text = malloc(bytes + 1);
    if (!text)
        return report_error(ERR_MEMORY, NULL, "no memory to look at %s", key);
    error = look->fetch(look->storage, key, text, bytes, &bytes_now);
    if (error == 0 && bytes_now != bytes)
        error = report_error(ERR_CORRUPT, NULL, "%s changes while it is read", key);
    if (error == 0)
        error = manifest_read(out, text, bytes);
    free(text);
    return error;
}

static int check_shard(const struct look *look, const struct manifest *manifest, uint32_t shard,
                       struct shard_expected *expected)
{
    const struct manifest_shard *entry = &manifest->shards[shard];
    struct shard_identity identity;
    char key[KEY_BYTES];
    uint64_t bytes = 0;
    manifest_identity(&identity, &manifest->summary, shard);
    ERR_TRY(shard_key(key, sizeof key, &identity));
    void *header = malloc(entry->data_start);
    if (!header)
        return report_error(ERR_MEMORY, NULL, "no memory to look at %s", key);
    int error = look->fetch(look->storage, key, header, entry->data_start, &bytes);
    if (error == ERR_NOT_FOUND)
        error = report_error(ERR_CORRUPT, NULL, "%s is missing", key);
    else if (error == 0 && bytes != entry->bytes)
        error = report_error(ERR_CORRUPT, NULL, "%s has %llu bytes instead of %llu", key,
                             (unsigned long long)bytes, (unsigned long long)entry->bytes);
    else if (error == 0)
        error = manifest_check_header(expected, manifest, shard, header);
    if (error == ERR_CORRUPT || error == ERR_VERSION)
        error = report_error(error, NULL, "%s: %s", key, report_message());
    free(header);
    return error;
}

/* It belongs into the directory of `place`: ERR_CORRUPT. */
static int settle(const struct look *look, struct manifest *manifest,
                  const struct manifest_summary *place)
{
    int error = origin_settle(&manifest->summary,
                              &(struct origin_place){place->run, place->step, place->attempt,
                                                     look->fetch, look->storage});
    return error == ERR_MISMATCH ? report_error(ERR_CORRUPT, NULL, "%s", report_message()) : error;
}

static int check_shards(const struct look *look, const struct manifest *manifest,
                        const struct manifest_summary *place)
{
    struct places places = {0};
    struct shard_expected expected = {0};
    int error = places_fetch(&places, look->storage, look->fetch, place);
    for (uint32_t i = 0; error == 0 && i < manifest->summary.shards; i++)
        if (places_is_here(&places, i))
            error = check_shard(look, manifest, i, &expected);
    shard_expected_free(&expected);
    places_free(&places);
    return error;
}

int presence_check(struct storage *storage, presence_fetch *fetch,
                   const struct manifest_summary *summary, uint64_t text_hash)
{
    const struct look look = {storage, fetch};
    struct manifest *manifest = NULL;
    char key[KEY_BYTES];
    ERR_TRY(manifest_key(key, sizeof key, summary));
    ERR_TRY(fetch_manifest(&manifest, &look, key));
    int error = settle(&look, manifest, summary);
    if (error == 0 && (!manifest_summary_equal(&manifest->summary, summary) ||
                       (text_hash != 0 && manifest->text_hash != text_hash)))
        error = report_error(ERR_CORRUPT, NULL, "%s was exchanged since it was committed", key);
    if (error == 0)
        error = check_shards(&look, manifest, summary);
    manifest_free(manifest);
    return error;
}

int presence_check_shards(struct storage *storage, presence_fetch *fetch, const char *prefix,
                          const void *text, size_t bytes)
{
    const struct look look = {storage, fetch};
    struct manifest_summary place = {0};
    struct manifest *manifest = NULL;
    const char *slash = strrchr(prefix, '/');
    if (!slash || (size_t)(slash - prefix) >= sizeof place.run ||
        !retain_parse(slash + 1, &place.step, &place.attempt))
        return report_error(ERR_INVALID, NULL, "%s is no directory of a checkpoint", prefix);
    memcpy(place.run, prefix, (size_t)(slash - prefix));
    ERR_TRY(manifest_read(&manifest, text, bytes));
    int error = settle(&look, manifest, &place);
    if (error == 0)
        error = check_shards(&look, manifest, &place);
    manifest_free(manifest);
    return error;
}
