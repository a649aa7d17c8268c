/* lineage.c - the checkpoint from which a checkpoint resumed, the one before that, and so on to the
 * first.
 *
 * A manifest names the checkpoint that its attempt had loaded, so the chain goes from manifest to
 * manifest, with descending attempts. If the loaded one is lost, any other checkpoint of its
 * attempt has the same parent. The chain ends at an attempt that resumed from none, or, cut, where
 * no checkpoint of an attempt is left. */
#include "clients/cli/engine/cli.h"

#include "proto/base/array.h"
#include "proto/base/json.h"

#include <stdlib.h>
#include <string.h>

static int add_ancestor(struct lineage *lineage, struct ancestor **out)
{
    ERR_TRY(array_reserve(&lineage->list, &lineage->room, lineage->count, sizeof *lineage->list));
    *out = &lineage->list[lineage->count++];
    memset(*out, 0, sizeof **out);
    return 0;
}

bool lineage_is_lost(int error)
{
    return error == ERR_NOT_FOUND || error == ERR_CORRUPT || error == ERR_MISMATCH ||
           error == ERR_VERSION || error == ERR_IO || error == ERR_DENIED || error == ERR_INVALID;
}

/* Fills in the ancestor; *out is its manifest, or another manifest of its attempt, or NULL. */
static int read_ancestor(struct manifest **out, struct ancestor *ancestor, const char *run,
                         int (*read)(void *user, struct manifest **out,
                                     const struct selection *selection),
                         void *user)
{
    struct selection selection = {.step = (int64_t)ancestor->step, .attempt = ancestor->attempt};
    snprintf(selection.run, sizeof selection.run, "%s", run);
    *out = NULL;
    int error = read(user, out, &selection);
    if (error == 0) {
        ancestor->summary = (*out)->summary;
        memcpy(ancestor->converted_from, (*out)->converted_from, sizeof ancestor->converted_from);
        return 0;
    }
    if (!lineage_is_lost(error))
        return error;
    ancestor->state = error == ERR_NOT_FOUND ? ANCESTOR_GONE : ANCESTOR_UNREADABLE;
    selection.step = -1;
    error = read(user, out, &selection);
    return lineage_is_lost(error) ? 0 : error;
}

int lineage_read(struct lineage *out, const struct manifest *manifest,
                 int (*read)(void *user, struct manifest **out, const struct selection *selection),
                 void *user)
{
    uint64_t step = manifest->parent_step, attempt = manifest->parent_attempt;
    uint64_t before = manifest->summary.attempt;
    int error = 0;
    memset(out, 0, sizeof *out);
    while (error == 0 && attempt != 0 && !out->is_cut) {
        struct ancestor *ancestor = NULL;
        struct manifest *parent = NULL;
        if (attempt >= before || step > INT64_MAX) { /* no attempt writes such a manifest */
            out->is_cut = true;
            break;
        }
        error = add_ancestor(out, &ancestor);
        if (error != 0)
            break;
        ancestor->step = step;
        ancestor->attempt = before = attempt;
        error = read_ancestor(&parent, ancestor, manifest->summary.run, read, user);
        out->is_cut = error == 0 && parent == NULL;
        if (parent != NULL) {
            step = parent->parent_step;
            attempt = parent->parent_attempt;
        }
        manifest_free(parent);
    }
    if (error != 0)
        lineage_free(out);
    return error;
}

void lineage_free(struct lineage *lineage)
{
    free(lineage->list);
    memset(lineage, 0, sizeof *lineage);
}

static const char *const STATE_NAMES[] = {
    [ANCESTOR_THERE] = "present", [ANCESTOR_GONE] = "gone", [ANCESTOR_UNREADABLE] = "unreadable"};

void lineage_print(const struct lineage *lineage)
{
    char time[sizeof lineage->list->summary.time], nonce[sizeof lineage->list->converted_from];
    for (uint32_t i = 0; i < lineage->count; i++) {
        const struct ancestor *ancestor = &lineage->list[i];
        printf("%-12s step %llu of attempt %llu, ", i == 0 ? "resumed from" : "",
               (unsigned long long)ancestor->step, (unsigned long long)ancestor->attempt);
        if (ancestor->state != ANCESTOR_THERE)
            printf("%s", STATE_NAMES[ancestor->state]);
        else
            printf("%s, %s", text_count(ancestor->summary.world_size, "rank").text,
                   text_safe(time, sizeof time, ancestor->summary.time));
        if (ancestor->converted_from[0] != '\0')
            printf(", made from nonce %s",
                   text_safe(nonce, sizeof nonce, ancestor->converted_from));
        printf("\n");
    }
    if (lineage->is_cut)
        printf("%-12s (earlier ancestors are no longer known)\n", "");
}

static json_t *ancestor_json(const struct ancestor *ancestor)
{
    json_t *out = json_pack("{sI sI ss}", "step", (json_int_t)ancestor->step, "attempt",
                            (json_int_t)ancestor->attempt, "state", STATE_NAMES[ancestor->state]);
    if (ancestor->state != ANCESTOR_THERE)
        return out;
    json_object_set_new(out, "nonce", json_string(ancestor->summary.nonce));
    json_object_set_new(out, "time", json_string(ancestor->summary.time));
    json_object_set_new(out, "world_size", json_integer(ancestor->summary.world_size));
    if (ancestor->converted_from[0] != '\0')
        json_object_set_new(out, "converted_from", json_string(ancestor->converted_from));
    return out;
}

int lineage_add_json(json_t *root, const struct lineage *lineage)
{
    json_begin();
    json_t *list = json_array();
    for (uint32_t i = 0; i < lineage->count; i++)
        json_array_append_new(list, ancestor_json(&lineage->list[i]));
    json_object_set_new(root, "ancestors", list);
    json_object_set_new(root, "ancestors_complete", json_boolean(!lineage->is_cut));
    return json_end() ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the lineage");
}
