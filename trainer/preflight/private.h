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

/* ---- products (products.c) ---- */

/* ERR_INVALID: the settings name no model. */
int products_check(const struct config *config);
/* Sets product_rate and model. ERR_CORRUPT: a product is wrong. */
int products_measure(struct finding *out, struct rank *rank, const struct rank_bench *bench);

/* ---- buffers (preflight.c) ---- */

#define TRIAL_BYTES ((size_t)4 << 20) /* the largest payload */
/* The host's two buffers, [TRIAL_BYTES] each, and the device's, of twice that size. */
struct trial_room {
    struct lane *lane;
    void *from, *to, *device;
};
/* Fills with words that differ by place and seed. */
void trial_fill(void *at, size_t bytes, uint32_t seed);
bool trial_is_filled(const void *at, size_t bytes, uint32_t seed);

/* ---- links and collectives (pairs.c, collectives.c) ---- */

/* *out_wrong: set to a rank whose bytes came with other bits. Collective in the group. */
int pairs_measure(struct pair_rates *out, struct comm *group, const struct trial_room *room,
                  uint32_t *out_wrong);
/* *out_wrong: set if received numbers differ from the sent ones. Collective in the group. */
int collectives_measure(struct call_rates *out, struct comm *group, const struct trial_room *room,
                        bool *out_wrong);

/* ---- the disk (disk.c) ---- */

/* Two programs write; each has limit_ms. */
void disk_measure(struct disk_facts *out, const char *folder, int64_t limit_ms);

/* ---- results (judge.c, judge_pairs.c, print.c) ---- */

/* Of a PAYLOAD_*. */
size_t preflight_bytes(uint32_t payload);
/* In round 0 to preflight_rounds() - 1 each rank receives from the one `offset` before it. With up
 * to PREFLIGHT_ROUNDS + 1 ranks all pairs are tried, with more some that are spread over all. */
uint32_t preflight_rounds(uint32_t ranks);
uint32_t preflight_offset(uint32_t ranks, uint32_t round);
uint32_t preflight_peer(uint32_t rank, uint32_t ranks, uint32_t offset);
struct pair_link {
    uint32_t from, to;
    double rate; /* bytes/s; 0: none was tried */
};
/* The slowest and the fastest link; with several hosts, of those between hosts. */
void preflight_extremes(const struct finding *all, uint32_t num, uint32_t payload,
                        struct pair_link *out_slowest, struct pair_link *out_fastest);
/* Sets link_rate, send_rate and slowest_* of all, and marks slow links. ERR_MEMORY. */
int preflight_judge_pairs(struct finding *all, uint32_t num);
__attribute__((format(printf, 2, 3))) void preflight_add_text(char text[PREFLIGHT_TEXT_BYTES],
                                                              const char *format, ...);
/* Marks rank i as slow, or if is_broken and its host is not crowded as broken. */
void preflight_mark_slow(struct finding *all, uint32_t num, uint32_t i, bool is_broken);

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
