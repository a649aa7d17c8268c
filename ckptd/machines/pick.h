/* pick.h - chooses the checkpoint of a run that goes to the remote tier next. Pure; see pick.c. */
#ifndef HOLDFAST_CKPTD_MACHINES_PICK_H
#define HOLDFAST_CKPTD_MACHINES_PICK_H

#include <stdbool.h>
#include <stdint.h>

enum pick_what { PICK_ALL, PICK_EVERY, PICK_LAST };

struct pick_rule {
    enum pick_what what;
    uint64_t every; /* of PICK_EVERY */
};

/* A checkpoint of the run, newest first. */
struct pick_item {
    uint64_t step;
    bool is_local;    /* the source tier has a whole copy */
    bool is_far;      /* the target tier has it */
    bool is_wanted;   /* a client waits for it there, or the copy there is damaged */
    bool is_given_up; /* its transfer ended, and an operator must act */
    bool is_kept;     /* the rules of the remote tier keep it */
    bool goes;        /* set by pick_mark(): it must be there */
};

/* Sets `goes`: by the rule, or because a client waits; never if the rules of that tier remove it
 * again. */
void pick_mark(const struct pick_rule *rule, struct pick_item *items, uint32_t count);
/* For marked items. The index of the next to drain, or -1: none. *out_left: how many are left,
 * including it. */
int64_t pick_next(const struct pick_item *items, uint32_t count, uint32_t *out_left);

#endif
