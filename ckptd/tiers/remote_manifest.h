/* remote_manifest.h - writes the manifest for another tier and publishes it there; see
 * remote_manifest.c. Blocks; any thread. */
#ifndef HOLDFAST_CKPTD_TIERS_REMOTE_MANIFEST_H
#define HOLDFAST_CKPTD_TIERS_REMOTE_MANIFEST_H

#include "ckptd/core/tier.h"
#include "proto/format/manifest.h"

#include <stdbool.h>
#include <stdint.h>

struct service;

struct remote_manifest {
    struct service *service;
    /* For the far tier with the hashes of the shards that were sent. */
    const struct manifest *manifest;
    enum tier_index from, to;
    bool is_mending; /* replaces a damaged manifest there */
};

/* *out_hash: hash of the text there. This thread's last error explains outcomes other than
 * DURABLE. */
enum publication remote_manifest_publish(const struct remote_manifest *marker, uint64_t *out_hash);
/* Publishes the pin of this node's store in the far tier. */
int remote_manifest_publish_pin(struct service *service, const char *prefix);
/* For a run that was renamed: publishes the name in manifest and shards beside them. */
int remote_manifest_publish_origin(struct storage *storage, const struct manifest_summary *summary);

#endif
