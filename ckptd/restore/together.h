/* together.h - chooses the checkpoint that the ranks of an attempt load together; see
 * together.c. */
#ifndef HOLDFAST_CKPTD_RESTORE_TOGETHER_H
#define HOLDFAST_CKPTD_RESTORE_TOGETHER_H

#include <stdbool.h>
#include <stdint.h>

struct checkpoint;
struct run;
struct session;

#define TOGETHER_WAIT_MS 10000 /* for a rank that has not opened the load */

/* ---- the decisions: pure ---- */

struct together_choice {
    uint64_t step, attempt; /* attempt 0: none */
};
/* How the choice is now. */
enum together_fate { TOGETHER_WHOLE, TOGETHER_DAMAGED, TOGETHER_GONE };
enum together_rank {
    TOGETHER_OUT = 0, /* it has not opened the choice */
    TOGETHER_LOADS,
    TOGETHER_HAS, /* all of it, and waits for the others */
    TOGETHER_DONE /* it goes on, has failed, or its session has ended */
};

struct together {
    struct together *next; /* of the service */
    const struct run *run;
    uint64_t attempt;
    uint32_t world_size;
    struct together_choice choice;
    bool is_decided;  /* a rank goes on from the choice */
    int64_t first_ms; /* when the first rank had it; -1: none yet */
    enum together_rank ranks[];
};

/* NULL: no memory. The caller frees it with free(). */
struct together *together_new(const struct run *run, uint64_t attempt, uint32_t world_size);

/* A rank opens a load. JOIN: it gets the choice. CHOOSE: it gets the newest, which
 * together_choose() then makes the choice. REFUSED: the choice is damaged, and others go on from
 * it. `is_newest`: nothing newer is whole. */
enum together_open { TOGETHER_JOIN, TOGETHER_CHOOSE, TOGETHER_REFUSED };
enum together_open together_open(struct together *together, uint32_t rank, enum together_fate fate,
                                 bool is_newest);
void together_choose(struct together *together, uint32_t rank, struct together_choice choice);

/* A rank has copied all of `loaded`. AGREED: it may go on. WAIT: it must ask again. AGAIN: it must
 * open the newest again. */
enum together_word { TOGETHER_AGREED, TOGETHER_WAIT, TOGETHER_AGAIN };
enum together_word together_has(struct together *together, uint32_t rank,
                                struct together_choice loaded, enum together_fate fate,
                                int64_t now_ms);
/* A rank's load of `choice` ended: the rank goes on from it (together_has() was AGREED), opens the
 * newest again if it is damaged, or has failed. */
void together_fail(struct together *together, uint32_t rank, struct together_choice choice,
                   enum together_fate fate);
bool together_is_over(const struct together *together); /* every rank is done */

/* ---- the groups of a service ---- */

/* A rank that loads a checkpoint together with the others of its attempt; run NULL: it does not. */
struct together_member {
    struct run *run;
    uint64_t attempt;
    uint32_t rank;
    struct together_choice loads;
};

/* The session opens a load of the newest, which is *found. With all ranks of its attempt at this
 * ckptd, it is one together: *found becomes their choice. ERR_CORRUPT: that was found damaged, and
 * others go on from it. */
int together_enter(struct together_member *out, struct checkpoint **found,
                   const struct session *session);
/* The rank has copied all of it. 0: it may go on. ERR_BUSY: others still load. ERR_CORRUPT: it must
 * open the newest again. */
int together_loaded(const struct together_member *member);
/* Its load ends; when together_loaded() was 0 this changes nothing more. */
void together_end(const struct together_member *member);
/* The session of a rank ends, when its loads have. */
void together_leave(const struct session *session);

#endif
