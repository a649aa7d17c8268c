/* majority.c - publishes an attempt's number at most of the nodes before ckptd answers the trainer.
 *
 *   start of a run ──► refreshes all peers at once, until most of the nodes, including this one,
 *   have answered ──► the number after the highest that any of them holds ──► published at one
 *   peer, exclusively, then at all others at once, until most of the nodes hold it ──► published
 *   here ──► answered
 *
 * sets.c defines of which nodes most are needed: of those in the settings, and of the last
 * attempt's.
 *
 * Two majorities have a node in common (quorum.Q1). So a node that returns with old state asks,
 * before it starts a run, a node that knows the starts since then. It neither uses a number twice,
 * nor begins from an older checkpoint than the newest start knew. It is a write quorum for one
 * number, not a consensus: a number that too few nodes took is not used again.
 *
 * Without a majority the far tier decides, which accepts each number once. Without a far tier an
 * operator decides (run/force.c). */
#include "ckptd/tiers/majority.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/quorum.h"
#include "ckptd/machines/sets.h"
#include "ckptd/refresh/refresh.h"
#include "proto/base/report.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A refresh of all peers. It lives until each has answered or timed out; the waiter may end
 * earlier. */
struct asking {
    struct service *service;
    char run[RUN_NAME_MAX + 1];
    struct majority_waiter *waiter; /* NULL: it was answered */
    struct node_set refreshed;
    uint32_t num_waiting;
    struct refresh_waiter waiters[]; /* by peer */
};

int majority_next(struct sets *out_sets, struct quorum *out, const struct service *service,
                  const struct run *run)
{
    static const struct sets none;
    const struct config *config = service->config;
    ERR_TRY(sets_next(out_sets, run ? &run->sets : &none, &config->members, config->nodes_name));
    *out = sets_quorum(out_sets, &config->members, config->nodes_name);
    return 0;
}

bool majority_is_needed(const struct service *service, const struct run *run)
{
    struct sets sets;
    struct quorum quorum;
    if (strcmp(service->config->nodes_attempts, "majority") != 0)
        return false;
    if (service->config->members.count > 0)
        return true;
    if (!run || run->sets.count == 0)
        return false;
    bool is_alone = majority_next(&sets, &quorum, service, run) == 0 && !quorum_lacks(&quorum);
    sets_free(&sets);
    return !is_alone;
}

static int report_too_few(const struct quorum *quorum)
{
    const struct quorum_set *set = quorum_lacks(quorum);
    return report_error(ERR_UNAVAILABLE,
                        "start the other nodes; or, when they are lost for good: ckpt-cli server "
                        "attempt RUN --force",
                        "%u of %u nodes %sanswered, and a start needs more than half of them",
                        quorum_count(quorum, set), set->nodes,
                        set == quorum->sets ? "" : "that an earlier attempt counted on ");
}

static void answer_waiter(struct asking *asking, const struct fault *fault)
{
    struct majority_waiter *waiter = asking->waiter;
    asking->waiter = NULL;
    if (!waiter)
        return;
    waiter->fault = *fault;
    waiter->num_answered = node_set_count(&asking->refreshed);
    waiter->go_on(waiter);
}

/* A refresh may name further nodes whose answers the run needs. */
static void check_majority(struct asking *asking)
{
    struct run *run = NULL;
    struct sets sets;
    struct quorum quorum;
    struct fault fault = {0};
    if (!asking->waiter)
        return;
    (void)run_find(&run, asking->service, asking->run, false);
    int error = majority_next(&sets, &quorum, asking->service, run);
    sets_free(&sets);
    if (error == 0) {
        quorum.holders = asking->refreshed;
        if (quorum_lacks(&quorum))
            error = report_too_few(&quorum);
    }
    if (error == 0 || asking->num_waiting == 0) {
        if (error != 0)
            fault_take(&fault, error);
        answer_waiter(asking, &fault);
    }
}

static void refreshed(struct refresh_waiter *refresh)
{
    struct refresh_waiter *all = refresh - (refresh->tier - TIER_PEER);
    struct asking *asking = CONTAINER_OF(all, struct asking, waiters);
    if (refresh->fault.code == 0)
        node_set_add(&asking->refreshed, (uint32_t)(refresh->tier - TIER_PEER) + 1);
    asking->num_waiting--;
    check_majority(asking);
    if (asking->num_waiting == 0)
        free(asking);
}

void majority_refresh_peers(struct service *service, const char *run,
                            struct majority_waiter *waiter, int64_t ms)
{
    uint32_t count = service->config->members.count;
    struct asking *asking = calloc(1, sizeof *asking + count * sizeof asking->waiters[0]);
    if (!asking) {
        fault_take(&waiter->fault, report_error(ERR_MEMORY, NULL, "no memory to ask the nodes"));
        waiter->go_on(waiter);
        return;
    }
    asking->service = service;
    snprintf(asking->run, sizeof asking->run, "%s", run);
    asking->waiter = waiter;
    node_set_add(&asking->refreshed, 0);
    asking->num_waiting = count;
    for (uint32_t i = 0; i < count; i++) { /* the last call may free `asking` */
        asking->waiters[i].go_on = refreshed;
        refresh_tier(service, (enum tier_index)(TIER_PEER + i), &asking->waiters[i], ms);
    }
    if (count == 0) {
        check_majority(asking);
        free(asking);
    }
}

/* ---- publishing a number ---- */

/* It lives until each peer has answered; the waiter may end earlier. */
struct publishing {
    struct publishing *next, **at; /* in the list of the service */
    struct service *service;
    struct majority_waiter *waiter; /* NULL: it was answered, or there is none */
    struct quorum quorum;
    char key[STORAGE_KEY_MAX + 16], nonce[33];
    char *text;
    atomic_bool is_over; /* peers that were not called yet are skipped */
    uint32_t num_waiting;
    struct fault refused; /* sets.S2: a peer knows a set that this node does not */
    struct publishing_peer {
        struct publishing *publishing;
        uint32_t peer;
        enum publication outcome;
        struct fault fault;
        struct job job;
    } peers[]; /* in the order of the settings */
};

static void free_publishing(struct publishing *publishing)
{
    *publishing->at = publishing->next;
    if (publishing->next)
        publishing->next->at = publishing->at;
    free(publishing->text);
    free(publishing);
}

static void work_publish(struct job *job)
{
    struct publishing_peer *peer = CONTAINER_OF(job, struct publishing_peer, job);
    struct publishing *publishing = peer->publishing;
    struct storage *storage = publishing->service->tiers[TIER_PEER + peer->peer].storage;
    peer->outcome = PUBLICATION_UNKNOWN;
    if (atomic_load(&publishing->is_over))
        return;
    peer->outcome = tier_publish(storage, publishing->key, publishing->text,
                                 strlen(publishing->text), publishing->nonce);
    if (peer->outcome == PUBLICATION_LOST)
        fault_take(&peer->fault, ERR_STALE);
}

/* Answers the waiter with the result. */
static void end_publishing(struct publishing *publishing, enum quorum_state state)
{
    struct majority_waiter *waiter = publishing->waiter;
    publishing->waiter = NULL;
    atomic_store(&publishing->is_over, true);
    waiter->fault = (struct fault){0};
    if (state == QUORUM_TAKEN)
        fault_take(&waiter->fault,
                   report_error(ERR_EXISTS, NULL, "another start has taken %s", publishing->key));
    else if (state == QUORUM_TOO_FEW && publishing->refused.code == 0)
        fault_take(&waiter->fault, report_too_few(&publishing->quorum));
    else if (state == QUORUM_TOO_FEW)
        waiter->fault = publishing->refused;
    if (waiter->fault.code != 0 && waiter->fault.code != ERR_EXISTS)
        waiter->fault.code = ERR_UNAVAILABLE;
    waiter->go_on(waiter);
}

static void ask_next_peers(struct publishing *publishing);

static void published(struct event *event)
{
    struct publishing_peer *peer = CONTAINER_OF(event, struct publishing_peer, job.done);
    struct publishing *publishing = peer->publishing;
    publishing->num_waiting--;
    if (publishing->service->is_closing)
        return; /* majority_close() frees it */
    if (publishing->waiter) {
        if (peer->outcome == PUBLICATION_LOST && publishing->refused.code == 0)
            publishing->refused = peer->fault;
        enum quorum_state state = quorum_heard(&publishing->quorum, peer->peer + 1, peer->outcome);
        if (state != QUORUM_ASKS)
            end_publishing(publishing, state);
        else
            ask_next_peers(publishing);
    }
    if (publishing->num_waiting == 0)
        free_publishing(publishing);
}

static void ask_peer(struct publishing *publishing, uint32_t index)
{
    struct publishing_peer *peer = &publishing->peers[index];
    *peer = (struct publishing_peer){.publishing = publishing,
                                     .peer = index,
                                     .job = {.work = work_publish, .done.run = published}};
    publishing->num_waiting++;
    tier_work(publishing->service, (enum tier_index)(TIER_PEER + index), &peer->job);
}

static void ask_next_peers(struct publishing *publishing)
{
    const struct members *members = &publishing->service->config->members;
    struct node_set answering = {0};
    for (uint32_t i = 0; i < members->count; i++) {
        const struct tier *tier = &publishing->service->tiers[TIER_PEER + i];
        if (!tier->is_unknown && !tier->offline[0])
            node_set_add(&answering, i + 1);
    }
    const struct node_set sites = quorum_ask(&publishing->quorum, members->by_name, &answering);
    for (uint32_t i = 0; i < members->count; i++)
        if (node_set_has(&sites, i + 1))
            ask_peer(publishing, i);
}

static struct publishing *new_publishing(struct service *service, const char *key, const char *text,
                                         const char *nonce)
{
    uint32_t count = service->config->members.count;
    struct publishing *publishing =
        calloc(1, sizeof *publishing + count * sizeof publishing->peers[0]);
    char *copy = publishing ? strdup(text) : NULL;
    if (!copy) {
        free(publishing);
        return NULL;
    }
    publishing->service = service;
    publishing->text = copy;
    snprintf(publishing->key, sizeof publishing->key, "%s", key);
    snprintf(publishing->nonce, sizeof publishing->nonce, "%s", nonce);
    publishing->at = &service->publishings;
    publishing->next = service->publishings;
    if (publishing->next)
        publishing->next->at = &publishing->next;
    service->publishings = publishing;
    return publishing;
}

void majority_publish(struct service *service, const struct quorum *quorum, const char *key,
                      const char *text, const char *nonce, struct majority_waiter *waiter)
{
    struct publishing *publishing = new_publishing(service, key, text, nonce);
    if (!publishing) {
        fault_take(&waiter->fault, report_error(ERR_MEMORY, NULL, "no memory to ask the nodes"));
        waiter->go_on(waiter);
        return;
    }
    publishing->quorum = *quorum;
    publishing->waiter = waiter;
    enum quorum_state state = quorum_check(quorum);
    if (state != QUORUM_ASKS) {
        end_publishing(publishing, state);
        free_publishing(publishing);
        return;
    }
    ask_next_peers(publishing);
}

void majority_publish_held(struct service *service, const char *key, const char *nonce)
{
    char held[STORAGE_KEY_MAX + 16];
    snprintf(held, sizeof held, "%s" SETS_HELD, key);
    uint32_t count = service->config->members.count;
    struct publishing *publishing = count > 0 ? new_publishing(service, held, nonce, nonce) : NULL;
    for (uint32_t i = 0; publishing && i < count; i++)
        ask_peer(publishing, i);
}

void majority_close(struct service *service)
{
    while (service->publishings)
        free_publishing(service->publishings);
}
