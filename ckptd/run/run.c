/* run.c - the coordinators of runs as a whole: the table of performers for commit.c's decisions,
 * and the effect of a rank's end on its run. */
#include "ckptd/run/run.h"
#include "ckptd/attempt/attempt.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/attempt/quota.h"
#include "ckptd/attempt/remote_lease.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/commit.h"
#include "ckptd/memory/session.h"
#include "ckptd/run/open.h"
#include "ckptd/save/begin.h"
#include "ckptd/save/outcomes.h"
#include "ckptd/save/publish.h"
#include "ckptd/save/save.h"
#include "ckptd/tiers/replicate.h"
#include "proto/base/report.h"

#include <stdlib.h>

/* ---- made with the run, freed with it ---- */

static int made(struct run *run)
{
    run->coordinator = calloc(1, sizeof *run->coordinator);
    if (!run->coordinator)
        return report_error(ERR_MEMORY, NULL, "no memory for a run");
    run->coordinator->run = run;
    commit_init(&run->coordinator->machine, 0);
    return 0;
}

/* No rank of it has described itself since the start. */
static void read_owner(struct run *run)
{
    struct attempt *attempt = NULL;
    struct storage *storage = run->service->storage;
    if (attempt_read_from(&attempt, storage, run->name, run->newest_attempt) == 0)
        quota_read_owner(run, attempt->owner);
    attempt_free(attempt);
}

static void was_read(struct run *run)
{
    commit_init(&run->coordinator->machine, run->newest_attempt);
    if (run->service->config->limit_identity_disk_bytes > 0)
        read_owner(run);
}

/* No attempt is open, and no call or job of the run is in progress. */
static bool is_idle(const struct run *run)
{
    const struct coordinator *coordinator = run->coordinator;
    return !coordinator->saves && !coordinator->attempt && !coordinator->opening.call &&
           !coordinator->take.busy && !coordinator->describing && !remote_lease_is_busy(run);
}

/* Another ckptd has opened attempts meanwhile. An attempt that is open here continues: its saves
 * have its own number. */
static void saw(struct run *run)
{
    if (is_idle(run))
        commit_init(&run->coordinator->machine, run->newest_attempt);
}

static void freed(struct run *run)
{
    attempt_free(run->coordinator->attempt);
    attempt_free(run->coordinator->take.attempt);
    free(run->coordinator->far_lease);
    free(run->coordinator);
    run->coordinator = NULL;
}

const struct catalog_events coordinator_events = {.made = made,
                                                  .read = was_read,
                                                  .freed = freed,
                                                  .saw = saw,
                                                  .is_idle = is_idle,
                                                  .changed = replicate_check_queues};

/* ---- performers of decisions ---- */

static const struct coordinator_ops ops = {.perform = {
                                               [COMMIT_SYNC_NAMES] = publish_sync_names,
                                               [COMMIT_PUBLISH] = publish_manifest,
                                               [COMMIT_PLACE] = save_place,
                                               [COMMIT_DONE] = save_committed,
                                               [COMMIT_DISCARD] = save_discard,
                                               [COMMIT_KEEP] = save_keep,
                                               [COMMIT_TAKE] = open_take,
                                               [COMMIT_OPENED] = open_done,
                                               [COMMIT_NOT_OPENED] = open_failed,
                                           }};

int run_open(struct service *service, const struct hooks *hooks)
{
    service->coordinator_ops = &ops;
    service->hooks = hooks;
    save_begin_open(service);
    return outcomes_open(service);
}

void run_rank_left(struct session *session)
{
    struct commit_actions actions = {0};
    for (struct save *save = session->run->coordinator->saves; save; save = save->next)
        if (save->attempt == session->attempt)
            save_give_up_part(save, session->rank, "the rank is gone");
    commit_rank_died(&session->run->coordinator->machine, &actions, session->attempt,
                     session->rank);
    run_perform(session->run, &actions);
}

void run_rank_let_go(struct session *session)
{
    commit_let_go(&session->run->coordinator->machine, session->attempt, session->rank);
}

void run_close(struct service *service)
{
    outcomes_close(service);
}
