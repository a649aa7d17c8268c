/* sets.h - the sets of nodes, of each of which most must hold the number of an attempt; see sets.c.
 * core/sets_file.h reads and writes them. Any thread. */
#ifndef HOLDFAST_CKPTD_MACHINES_SETS_H
#define HOLDFAST_CKPTD_MACHINES_SETS_H

#include "ckptd/machines/members.h"
#include "ckptd/machines/quorum.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t;

/* "<run>/attempts/0003.held": most of the nodes hold attempt 3, as this node was informed. */
#define SETS_HELD ".held"

/* The sets of the newest known attempt, or of the next one. */
struct sets {
    uint64_t attempt; /* its number; 0: none is known, or it has no number yet */
    char nonce[33];   /* of its file; "": merged from several with one number */
    bool is_held;     /* most of each hold it: from now on only names[0] counts */
    bool is_full;     /* there were more of them than QUORUM_SETS_MAX */
    uint32_t count;
    /* "n1,n2,n3", sorted; the first is the attempt's own set; owned. */
    char *names[QUORUM_SETS_MAX];
};

void sets_free(struct sets *sets); /* it is empty afterwards */
/* The sets of the next attempt, of a node with these settings, after `last`. ERR_MEMORY; ERR_BUSY:
 * the nodes were changed too often without a start that most of them hold. */
int sets_next(struct sets *out, const struct sets *last, const struct members *members,
              const char *own);
/* The quorum that they require, as this node sees it: a node that it cannot name is no site. */
struct quorum sets_quorum(const struct sets *sets, const struct members *members, const char *own);
/* Merges the sets of `from` into `into`; `from` is empty afterwards. */
void sets_merge(struct sets *into, struct sets *from);

/* As a member of the attempt's file; NULL if there are none. */
struct json_t *sets_describe(const struct sets *sets);
/* From an attempt's file. Without the member they are unknown: count 0. ERR_CORRUPT, ERR_MEMORY. */
int sets_parse(struct sets *out, const struct json_t *attempt);
/* The same from its text. *is_attempt: it is an attempt's file, not a note of its number. */
int sets_parse_text(struct sets *out, bool *is_attempt, const char *text, size_t bytes);
/* True if a node must compare the number with its newest attempt, `last`: ERR_STALE. A number that
 * exists is refused at its publication. */
bool sets_is_bound(const struct sets *next);
int sets_check_next(const struct sets *next, const struct sets *last);
/* The file of an attempt that was answered, which its text says; the caller frees it. */
int sets_held_text(char **out, const char *text, size_t bytes);

#endif
