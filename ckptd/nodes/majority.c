/* majority.c - an attempt's number is held by most of the nodes before a trainer hears of it.
 *
 *   start of a run ──► looks at all peers at once; go on when most of the nodes, this one included,
 *   have been looked at ──► the number behind the highest that any of them holds ──► published at
 *   peers, exclusively, until most of the nodes hold it ──► published here ──► answered
 *
 * Of which nodes most are needed sets.c says: of those in the settings, and of the last attempt's.
 *
 * Two majorities have a node in common (R5 of placement.c). So a node that comes back with old
 * state meets, before it starts a run, one that knows what was started without it: it neither gives
 * a number away twice, nor begins behind an older checkpoint than the newest start could know. It
 * is a write quorum for one number, and no consensus: a number that too few took is spent.
 *
 * Where there is no majority the far tier decides, which takes each number once. Without a far tier
 * an operator does (run/force.c). */
#include "ckptd/nodes/majority.h"
#include "ckptd/catalog.h"
#include "ckptd/checkpoint.h"
#include "ckptd/config.h"
#include "ckptd/drain/far.h"
#include "ckptd/nodes/placement.h"
#include "ckptd/nodes/sets.h"
#include "ckptd/service.h"
#include "proto/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A look at all peers. It lives until each has answered or run out of time; who waits does not. */
struct asking {
    struct service *service;
    char run[RUN_NAME_MAX + 1];
    struct majority_waiter *waiter; /* NULL: it was told */
    struct look_waiter looks[MEMBERS_PEERS_MAX];
    struct node_set looked;
    uint32_t num_waiting;
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
    return report_error(
        ERR_UNAVAILABLE,
        "start the other nodes; or, when they are lost for good: ckpt-cli attempt RUN --force",
        "%u of %u nodes %sanswered, and a start needs more than half of them",
        quorum_count(quorum, set), set->nodes,
        set == quorum->sets ? "" : "that an attempt before counted on ");
}

static void tell(struct asking *asking, const struct fault *fault)
{
    struct majority_waiter *waiter = asking->waiter;
    asking->waiter = NULL;
    if (!waiter)
        return;
    waiter->fault = *fault;
    waiter->num_looked = node_set_count(&asking->looked);
    waiter->go_on(waiter);
}

/* What was looked at may name further nodes that the run counts on. */
static void decide(struct asking *asking)
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
        quorum.holders = asking->looked;
        if (quorum_lacks(&quorum))
            error = report_too_few(&quorum);
    }
    if (error == 0 || asking->num_waiting == 0) {
        if (error != 0)
            fault_take(&fault, error);
        tell(asking, &fault);
    }
}

static void looked(struct look_waiter *look)
{
    struct look_waiter *all = look - (look->tier - TIER_PEER);
    struct asking *asking = CONTAINER_OF(all, struct asking, looks);
    if (look->fault.code == 0)
        node_set_add(&asking->looked, (uint32_t)(look->tier - TIER_PEER) + 1);
    asking->num_waiting--;
    decide(asking);
    if (asking->num_waiting == 0)
        free(asking);
}

void majority_look(struct service *service, const char *run, struct majority_waiter *waiter,
                   int64_t ms)
{
    struct asking *asking = calloc(1, sizeof *asking);
    uint32_t count = service->config->members.count;
    if (!asking) {
        fault_take(&waiter->fault, report_error(ERR_MEMORY, NULL, "no memory to ask the nodes"));
        waiter->go_on(waiter);
        return;
    }
    asking->service = service;
    snprintf(asking->run, sizeof asking->run, "%s", run);
    asking->waiter = waiter;
    node_set_add(&asking->looked, 0);
    asking->num_waiting = count;
    for (uint32_t i = 0; i < count; i++) { /* the last one may free it */
        asking->looks[i].go_on = looked;
        far_look(service, (enum tier_index)(TIER_PEER + i), &asking->looks[i], ms);
    }
    if (count == 0) {
        decide(asking);
        free(asking);
    }
}

int majority_publish(const struct service *service, struct quorum *quorum, const char *key,
                     const char *text, const char *nonce)
{
    enum quorum_state state = quorum_lacks(quorum) ? QUORUM_ASKS : QUORUM_HELD;
    struct report_text why;
    bool is_refused = false;
    for (uint32_t i = 0; state == QUORUM_ASKS && i < service->config->members.count; i++) {
        enum publication outcome =
            tier_publish(service->tiers[TIER_PEER + i].storage, key, text, strlen(text), nonce);
        if (outcome == PUBLICATION_LOST)
            report_keep(&why);
        is_refused |= outcome == PUBLICATION_LOST; /* S2: it knows what this node does not */
        state = quorum_heard(quorum, outcome);
    }
    if (state == QUORUM_HELD)
        return 0;
    if (state == QUORUM_TAKEN)
        return ERR_EXISTS;
    if (!is_refused)
        return report_too_few(quorum);
    report_restore(&why, ERR_UNAVAILABLE);
    return ERR_UNAVAILABLE;
}

void majority_tell(const struct service *service, const char *key, const char *nonce)
{
    char held[STORAGE_KEY_MAX + 16];
    snprintf(held, sizeof held, "%s" SETS_HELD, key);
    for (uint32_t i = 0; i < service->config->members.count; i++) {
        int error =
            storage_publish(service->tiers[TIER_PEER + i].storage, held, nonce, strlen(nonce));
        if (error != 0 && error != ERR_EXISTS)
            log_debug("nodes", "%s is not said to node %s: %s", held,
                      service->config->members.peers[i].name, report_line());
    }
}
