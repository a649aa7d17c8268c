/* private.h - what the files of a preflight share: the host's part, and what is said. */
#ifndef HOLDFAST_TRAINER_PREFLIGHT_PRIVATE_H
#define HOLDFAST_TRAINER_PREFLIGHT_PRIVATE_H

#include "trainer/preflight/preflight.h"

struct comm;

/* ---- the host's part (node.c) ---- */

/* Two buffers, larger together than the caches. Zero before node_look(). */
struct node_trial {
    void *from, *to;
    size_t bytes; /* of each */
};
/* What one rank can say alone. ERR_MEMORY. */
int node_look(struct node_trial *trial, struct node_facts *out, const struct rank *rank);
/* Rates of memory, and the clock; `all`: what the ranks found, with their hosts. Collective. */
int node_measure(const struct node_trial *trial, struct node_facts *out, struct comm *world,
                 const struct finding *all);
void node_free(struct node_trial *trial);

/* ---- together (collectives.c) ---- */

#define TRIAL_BYTES ((size_t)4 << 20) /* the most that is sent */
/* The host's two buffers, [TRIAL_BYTES] each, and the device's, of twice as much. */
struct trial_room {
    struct lane *lane;
    void *from, *to, *device;
};
/* *out_wrong: set where other numbers came than were sent. Collective in the group. */
int collectives_measure(struct call_rates *out, struct comm *group, const struct trial_room *room,
                        bool *out_wrong);

/* ---- the disk (disk.c) ---- */

void disk_measure(struct disk_facts *out, const char *folder);

/* ---- what is said (judge.c, print.c) ---- */

/* The first rank of the host of rank i. */
uint32_t preflight_speaker(const struct finding *all, uint32_t i);
/* What the ranks of a host are together. */
struct node_sum {
    uint32_t ranks, cores, threads;
    double memory_rate; /* of all of them */
};
struct node_sum preflight_sum(const struct finding *all, uint32_t num, uint32_t speaker);
uint32_t preflight_hosts(const struct finding *all, uint32_t num);
uint32_t preflight_count(const struct finding *all, uint32_t num, enum fitness fitness);
int preflight_print(const struct finding *all, uint32_t num);
int preflight_print_json(const struct finding *all, uint32_t num); /* ERR_MEMORY */

#endif
