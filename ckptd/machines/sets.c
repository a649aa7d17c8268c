/* sets.c - the sets of nodes, of each of which most must hold the number of an attempt.
 *
 * The settings name the nodes of the cluster. Operators change them node by node, and a node may
 * return with old ones. So each attempt's file names the nodes on which it depended, and the next
 * attempt asks most of these, besides most of the nodes in the settings of the node that opens it:
 *
 *   0007 {n1,n2,n3} ──► 0008 {n1,n4,n5}, needs most of n1,n4,n5 and most of n1,n2,n3 ──► 0009
 *   needs most of n1,n4,n5; while 0008 is not known to be held, most of n1,n2,n3 as well
 *
 * Invariants (cited in the code, checked by tests/unit/ckptd_sets.c):
 *   sets.S1  A number is answered when most of each of its sets hold it: those of the settings,
 *       those of the last attempt, and those which that one needed, unless it is known to be held.
 *   sets.S2  A node accepts a number only if it is higher than all it has, and if its sets include
 *       those of the newest attempt there. So of two that were opened independently at most one is
 *       answered, and a later one depends on the nodes of every one that was answered before.
 *   sets.S3  sets.S2 does not bind copies of the file of an attempt that was answered: a node
 *       accepts them at any time. The same is true of a number that an operator forced, or that the
 *       remote tier accepted.
 *
 * A node without any knowledge of a run cannot know which nodes to ask: if the settings change by
 * one node at a time, most of the new ones have one in common with most of the old ones. */
#include "ckptd/machines/sets.h"
#include "proto/base/json.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_BYTES_MAX ((MEMBERS_PEERS_MAX + 1) * MEMBER_NAME_MAX)

void sets_free(struct sets *sets)
{
    for (uint32_t i = 0; i < sets->count; i++)
        free(sets->names[i]);
    *sets = (struct sets){0};
}

/* ---- the sets ---- */

static bool has_names(const struct sets *sets, const char *names)
{
    for (uint32_t i = 0; i < sets->count; i++)
        if (strcmp(sets->names[i], names) == 0)
            return true;
    return false;
}

static int report_too_many(void)
{
    return report_error(
        ERR_BUSY, "ckpt-cli server attempt RUN shows them",
        "the nodes of a run were changed %u times without a start that most of them recorded",
        QUORUM_SETS_MAX);
}

static int add(struct sets *sets, const char *names)
{
    if (names[0] == '\0' || has_names(sets, names))
        return 0;
    if (sets->count == QUORUM_SETS_MAX)
        return report_too_many();
    sets->names[sets->count] = strdup(names);
    if (!sets->names[sets->count])
        return report_error(ERR_MEMORY, NULL, "no memory for the nodes of an attempt");
    sets->count++;
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The set of the settings; "" if this node has no name. */
static void write_own(char out[NAMES_BYTES_MAX], const struct members *members, const char *own)
{
    const char *names[MEMBERS_PEERS_MAX + 1] = {own};
    size_t used = 0;
    out[0] = '\0';
    if (own[0] == '\0')
        return;
    for (uint32_t i = 0; i < members->count; i++)
        names[i + 1] = members->peers[i].name;
    qsort(names, members->count + 1, sizeof names[0], compare_names);
    for (uint32_t i = 0; i <= members->count && used < NAMES_BYTES_MAX; i++)
        used += (size_t)snprintf(out + used, NAMES_BYTES_MAX - used, "%s%s", i > 0 ? "," : "",
                                 names[i]);
}

int sets_next(struct sets *out, const struct sets *last, const struct members *members,
              const char *own)
{
    char names[NAMES_BYTES_MAX];
    *out = (struct sets){0};
    write_own(names, members, own);
    int error = add(out, names);
    for (uint32_t i = 0; i < last->count && error == 0; i++) /* sets.S1 */
        if (i == 0 || !last->is_held)
            error = add(out, last->names[i]);
    if (error == 0 && last->is_full && !last->is_held)
        error = report_too_many();
    if (error != 0)
        sets_free(out);
    return error;
}

/* The number of a node in a node_set; NODE_SET_MAX: unknown here. */
static uint32_t site_of(const char *name, size_t length, const struct members *members,
                        const char *own)
{
    if (strlen(own) == length && strncmp(own, name, length) == 0)
        return 0;
    uint32_t peer = members_find(members, name, length);
    return peer < members->count ? peer + 1 : NODE_SET_MAX;
}

struct quorum sets_quorum(const struct sets *sets, const struct members *members, const char *own)
{
    struct quorum quorum = quorum_begin(members->count + 1);
    for (uint32_t i = 0; i < sets->count; i++) {
        struct quorum_set *set = &quorum.sets[quorum.num_sets++];
        for (const char *at = sets->names[i]; *at != '\0'; at += *at == ',') {
            size_t length = strcspn(at, ",");
            uint32_t site = site_of(at, length, members, own);
            set->nodes++;
            if (site < NODE_SET_MAX)
                node_set_add(&set->sites, site);
            at += length;
        }
    }
    return quorum;
}

/* Two files of one number: both may have been answered, so both count. */
static void unite(struct sets *into, const struct sets *from)
{
    for (uint32_t i = 0; i < from->count; i++)
        if (add(into, from->names[i]) != 0)
            into->is_full = true;
    into->nonce[0] = '\0';
}

void sets_merge(struct sets *into, struct sets *from)
{
    bool is_same = into->attempt == from->attempt && strcmp(into->nonce, from->nonce) == 0;
    bool is_newer = from->attempt > into->attempt ||
                    (from->attempt == into->attempt && from->is_held && !into->is_held);
    if (from->count > 0 && is_newer) {
        sets_free(into);
        *into = *from;
        *from = (struct sets){0};
    } else if (from->count > 0 && from->attempt == into->attempt && !is_same &&
               into->is_held == from->is_held) {
        unite(into, from);
    }
    sets_free(from);
}

/* ---- the file of an attempt ---- */

json_t *sets_describe(const struct sets *sets)
{
    json_t *list = sets->count > 0 ? json_array() : NULL;
    for (uint32_t i = 0; i < sets->count; i++)
        json_array_append_new(list, json_string(sets->names[i]));
    return list;
}

int sets_parse(struct sets *out, const json_t *attempt)
{
    const json_t *list = json_object_get(attempt, "nodes"), *item;
    const char *nonce = json_string_value(json_object_get(attempt, "nonce"));
    int error = 0;
    size_t index;
    *out = (struct sets){0};
    json_array_foreach(list, index, item)
    {
        const char *names = json_string_value(item);
        if (error == 0 && (!names || !nonce || strlen(names) >= NAMES_BYTES_MAX))
            error = report_error(ERR_CORRUPT, "open a new attempt",
                                 "an attempt's member 'nodes' names no nodes");
        if (error == 0)
            error = add(out, names);
    }
    if (error != 0) {
        sets_free(out);
        return error;
    }
    out->attempt = (uint64_t)json_integer_value(json_object_get(attempt, "attempt"));
    out->is_held = json_is_true(json_object_get(attempt, "held"));
    snprintf(out->nonce, sizeof out->nonce, "%s", nonce ? nonce : "");
    return 0;
}

int sets_parse_text(struct sets *out, bool *is_attempt, const char *text, size_t bytes)
{
    json_t *root;
    json_error_t reason;
    *out = (struct sets){0};
    *is_attempt = false;
    int error = json_read(&root, text, bytes, &reason);
    if (error != 0)
        return report_error(error, "open a new attempt", "the file of an attempt is damaged");
    const char *format = json_string_value(json_object_get(root, "format"));
    *is_attempt = format && strcmp(format, "holdfast-attempt") == 0;
    error = sets_parse(out, root);
    json_decref(root);
    return error;
}

/* ---- a number is taken ---- */

bool sets_is_bound(const struct sets *next)
{
    return next->count > 0 && !next->is_held; /* sets.S3 */
}

/* sets.S2. */
int sets_check_next(const struct sets *next, const struct sets *last)
{
    if (last->count > 0 && next->attempt < last->attempt)
        return report_error(ERR_STALE, "start again", "this node knows the newer attempt %llu",
                            (unsigned long long)last->attempt);
    if (last->count > 0 && next->attempt > last->attempt && !has_names(next, last->names[0]))
        return report_error(ERR_STALE, "start again",
                            "this node knows attempt %llu, whose majority is of other nodes",
                            (unsigned long long)last->attempt);
    return 0;
}

#define HELD_HEAD "{\"held\":true,"

int sets_held_text(char **out, const char *text, size_t bytes)
{
    size_t skip = bytes >= strlen(HELD_HEAD) && strncmp(text, HELD_HEAD, strlen(HELD_HEAD)) == 0
                      ? strlen(HELD_HEAD)
                      : 1;
    size_t size = strlen(HELD_HEAD) + bytes + 1;
    *out = bytes > skip ? malloc(size) : NULL;
    if (!*out)
        return report_error(ERR_MEMORY, NULL, "no memory for the file of an attempt");
    snprintf(*out, size, HELD_HEAD "%.*s", (int)(bytes - skip), text + skip);
    return 0;
}
