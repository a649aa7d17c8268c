/* sets.h - the sets of nodes of which most must hold the number of an attempt; see sets.c.
 * core/sets_file.h reads and writes them. Any thread. */
#ifndef HOLDFAST_CKPTD_MACHINES_SETS_H
#define HOLDFAST_CKPTD_MACHINES_SETS_H

#include "ckptd/machines/members.h"
#include "ckptd/machines/quorum.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t;

/* "<run>/attempts/0003.held": most of the nodes hold attempt 3, as this node was told. */
#define SETS_HELD ".held"

/* The sets of the newest attempt that is known, or of the next one. */
struct sets {
    uint64_t attempt; /* whose; 0: none is known, or it is not numbered yet */
    char nonce[33];   /* of its file; "": of several, of one number */
    bool is_held;     /* most of each hold it: names[0] alone counts from now on */
    bool is_full;     /* there were more of them than QUORUM_SETS_MAX */
    uint32_t count;
    char *names[QUORUM_SETS_MAX]; /* "n1,n2,n3", sorted; the first are the attempt's own; owned */
};

void sets_free(struct sets *sets); /* it is empty then */
/* The next attempt's, of a node with these settings, after `last`. ERR_MEMORY; ERR_BUSY: the nodes
 * were changed too often without a start that most of them held. */
int sets_next(struct sets *out, const struct sets *last, const struct members *members,
              const char *own);
/* The quorum that they ask for, as this node sees it: a node that it cannot name is no site. */
struct quorum sets_quorum(const struct sets *sets, const struct members *members, const char *own);
/* Takes what `from` knows beyond `into`; `from` is empty then. */
void sets_merge(struct sets *into, struct sets *from);

/* As a member of the attempt's file; NULL where there are none. */
struct json_t *sets_describe(const struct sets *sets);
/* Of an attempt's file. Without the member nothing is known: count 0. ERR_CORRUPT, ERR_MEMORY. */
int sets_parse(struct sets *out, const struct json_t *attempt);
/* Likewise of its text. *is_attempt: it is an attempt's file, and no note of its number. */
int sets_parse_text(struct sets *out, bool *is_attempt, const char *text, size_t bytes);
/* May a node take that number whatever it knows? Else its newest attempt, `last`, decides:
 * ERR_STALE. A number that is there is refused where it is published. */
bool sets_is_bound(const struct sets *next);
int sets_check_next(const struct sets *next, const struct sets *last);
/* The file of an attempt that was answered, to be freed: its text says so. */
int sets_held_text(char **out, const char *text, size_t bytes);

#endif
