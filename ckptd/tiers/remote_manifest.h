/* remote_manifest.h - the manifest as another tier is to have it, and its publication there; see
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
    const struct manifest *manifest; /* for the far tier with the hashes of what was sent */
    enum tier_index from, to;
    bool is_mending; /* a damaged one there makes way */
};

/* *out_hash: of its text there. Of all but DURABLE this thread's last error says why. */
enum publication remote_manifest_publish(const struct remote_manifest *marker, uint64_t *out_hash);
/* The pin of this node's store, into the far tier. */
int remote_manifest_publish_pin(struct service *service, const char *prefix);
/* Of a run that was renamed the name that manifest and shards know, beside them. */
int remote_manifest_publish_origin(struct storage *storage, const struct manifest_summary *summary);

#endif
