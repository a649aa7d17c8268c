/* private.h - shared by the files of a preflight: the host's part, and the output. */
#ifndef HOLDFAST_TRAINER_PREFLIGHT_PRIVATE_H
#define HOLDFAST_TRAINER_PREFLIGHT_PRIVATE_H

#include "trainer/preflight/preflight.h"

struct comm;

/* ---- the host's part (node.c) ---- */

/* Two buffers, together larger than the caches. Zero before node_examine(). */
struct node_trial {
    void *from, *to;
    size_t bytes; /* of each */
};
/* Facts that one rank finds alone. ERR_MEMORY. */
int node_examine(struct node_trial *trial, struct node_facts *out, const struct rank *rank);
/* Measures rates of memory, and the clock; `all`: the findings of the ranks, with their hosts.
 * Collective. */
int node_measure(const struct node_trial *trial, struct node_facts *out, struct comm *world,
                 const struct finding *all);
void node_free(struct node_trial *trial);

/* ---- collectives (collectives.c) ---- */

#define TRIAL_BYTES ((size_t)4 << 20) /* the largest payload */
/* The host's two buffers, [TRIAL_BYTES] each, and the device's, of twice that size. */
struct trial_room {
    struct lane *lane;
    void *from, *to, *device;
};
/* *out_wrong: set if received numbers differ from the sent ones. Collective in the group. */
int collectives_measure(struct call_rates *out, struct comm *group, const struct trial_room *room,
                        bool *out_wrong);

/* ---- the disk (disk.c) ---- */

void disk_measure(struct disk_facts *out, const char *folder);

/* ---- results (judge.c, print.c) ---- */

/* The first rank of the host of rank i. */
uint32_t preflight_speaker(const struct finding *all, uint32_t i);
/* Sums over the ranks of a host. */
struct node_sum {
    uint32_t ranks, cores, threads;
    double memory_rate; /* of all its ranks */
};
struct node_sum preflight_sum(const struct finding *all, uint32_t num, uint32_t speaker);
uint32_t preflight_hosts(const struct finding *all, uint32_t num);
uint32_t preflight_count(const struct finding *all, uint32_t num, enum fitness fitness);
int preflight_print(const struct finding *all, uint32_t num);
int preflight_print_json(const struct finding *all, uint32_t num); /* ERR_MEMORY */

#endif
