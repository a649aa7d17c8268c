/* replicas.c - digests of slices that other ranks hold, too: computed during the copy, sent before
 * END.
 *
 * ckptd names these slices in DescribeReply.replicated. It names none when all ranks compare by
 * themselves, and none to a rank without replicas. A rank puts the digests into the ring; a rank on
 * another node sends them in a call. The ring is cheaper, because a call's answer takes
 * milliseconds when ckptd waits for a processor (save.c). proto/format/replica.h defines which
 * bytes are hashed, and the cost. libckpt does not see the bytes of a slice on a device. The caller
 * may pass them (ckpt_save_sample); otherwise the rank sends no digest, and ckptd does not compare
 * the slice. */
#include "clients/session.h"

#include "proto/base/report.h"
#include "proto/format/replica.h"

#include <stdlib.h>
#include <string.h>

void replicas_free(struct ckpt *ckpt)
{
    free(ckpt->replica_of);
    free(ckpt->replica_digests);
    ckpt->replica_of = NULL;
    ckpt->replica_digests = NULL;
    ckpt->num_replicas = 0;
}

int replicas_read(struct ckpt *ckpt, const Holdfast__V1__DescribeReply *reply)
{
    replicas_free(ckpt);
    if (reply->n_replicated == 0)
        return 0;
    ckpt->replica_of = calloc((size_t)ckpt->tensors.count + 1, sizeof *ckpt->replica_of);
    ckpt->replica_digests = calloc(reply->n_replicated, sizeof *ckpt->replica_digests);
    if (ckpt->replica_of == NULL || ckpt->replica_digests == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the digests of %zu slices",
                            reply->n_replicated);
    for (size_t i = 0; i < reply->n_replicated; i++) {
        uint32_t slice = reply->replicated[i];
        if (slice >= ckpt->tensors.count || ckpt->replica_of[slice] != 0)
            return report_error(ERR_CORRUPT, "client and ckptd may be of different versions",
                                "ckptd asks for a digest of slice %u, of %u", slice,
                                ckpt->tensors.count);
        ckpt->replica_of[slice] = (uint32_t)i + 1;
    }
    ckpt->num_replicas = (uint32_t)reply->n_replicated;
    return 0;
}

void replicas_begin(struct ckpt_save *save)
{
    struct ckpt *ckpt = save->ckpt;
    if (ckpt->num_replicas > 0)
        memset(ckpt->replica_digests, 0, ckpt->num_replicas * sizeof *ckpt->replica_digests);
}

void replicas_hash(struct ckpt_save *save, uint32_t index, const void *data)
{
    struct ckpt *ckpt = save->ckpt;
    const struct slice *slice = &ckpt->tensors.slices[index];
    if (ckpt->num_replicas == 0 || ckpt->replica_of[index] == 0 || data == NULL)
        return;
    replica_digest(&ckpt->replica_digests[ckpt->replica_of[index] - 1], data, slice_bytes(slice),
                   replica_seed(slice->tensor.name, save->step));
}
