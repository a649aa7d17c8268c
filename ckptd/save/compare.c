/* compare.c - compares replicas at the commit, and handles differences.
 *
 *   each rank, before its END ──► digests, kept with its stage (in the ring; TellReplicas)
 *   all shards durable ──► compared on the worker that writes the manifest (replicas.c)
 *     equal   ──► no action
 *     differ  ──► the checkpoint is of one rank's copy, whole, as always; the manifest names it and
 *                 the ranks that differ, and so do a warning, an alarm and the answer to clients
 *                 (save.c)
 *     differ, and saves.replicas = "refuse" ──► no manifest: the save fails, and says the same
 *
 * The coordinating node compares: other nodes send it the digests of their ranks, with the facts of
 * each shard (peers/join_part.c), and get the result with its verdict. Nothing is compared if all
 * ranks compare by themselves. A rank with an older libckpt reports no digests, and is not
 * compared. */
#include "ckptd/save/compare.h"
#include "ckptd/attempt/describe.h"
#include "ckptd/attempt/replicas.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/announce.h"
#include "ckptd/memory/session.h"
#include "ckptd/memory/stage.h"
#include "ckptd/save/save.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- digests of ranks ---- */

void compare_call(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__TellReplicasRequest *request)
{
    Holdfast__V1__TellReplicasReply reply = HOLDFAST__V1__TELL_REPLICAS_REPLY__INIT;
    struct session *session;
    int error = session_find_rank(&session, service, request->session);
    if (error == 0)
        session_drain(session); /* its end may still be in the ring */
    struct save *save = error == 0 ? save_find(session->run, request->save) : NULL;
    struct stage *stage = save ? &save->stages[session->rank] : NULL;
    /* A rank may report digests of a save that was given up before it heard so. */
    if (stage && stage->session == session && !stage->stopping)
        error = announce_replicas(stage, request->digests, request->n_digests);
    if (error == 0)
        rpc_call_reply(call, &reply.base);
    else
        rpc_call_fail(call, error);
}

/* ---- at the commit ---- */

/* Keeps only the differences. */
static int compare_all(struct save *save, const struct replica_rank *ranks)
{
    char text[REPLICAS_TEXT_BYTES];
    const struct layout_table *table = save->group->table;
    save->replicas = calloc(1, sizeof *save->replicas);
    if (!save->replicas)
        return report_error(ERR_MEMORY, NULL, "no memory to compare replicas");
    ERR_TRY(replicas_differ(save->replicas, table, ranks, save->world_size, save->step));
    if (save->replicas->num_differ == 0) {
        free(save->replicas);
        save->replicas = NULL;
        return 0;
    }
    if (strcmp(save->service->config->saves_replicas, "refuse") != 0)
        return 0;
    return report_error(ERR_ABORTED, "set saves.replicas = \"warn\" to commit it anyway",
                        "replicas differ: %s", replicas_text(text, save->replicas, table));
}

int compare_replicas(struct save *save)
{
    bool any = false;
    struct replica_rank *ranks = calloc(save->world_size, sizeof *ranks);
    if (!ranks)
        return report_error(ERR_MEMORY, NULL, "no memory to compare replicas");
    for (uint32_t i = 0; i < save->world_size; i++) {
        const struct group_rank *rank = &save->group->ranks[i];
        ranks[i] = (struct replica_rank){.slices = rank->slices,
                                         .replicas = rank->replicas,
                                         .num_replicas = rank->num_replicas,
                                         .digests = rank->node == 0 ? save->stages[i].replicas
                                                                    : save->remote[i].replicas};
        any |= ranks[i].digests != NULL;
    }
    int error = any ? compare_all(save, ranks) : 0;
    free(ranks);
    return error;
}
