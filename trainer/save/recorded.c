/* recorded.c - reads the records of repeated steps in a run's checkpoints (see snapshot.h).
 *
 * The newest checkpoint has the losses of the run's steps (history.h); the step's own checkpoint
 * has its gradient norm. Two attempts may have made that step with different bits. So the norm
 * counts only if its checkpoint and the newest one have the same loss of the step. */
#include "proto/base/checksum.h"
#include "trainer/save/private.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* *out: "state" of a checkpoint's manifest; `step`: CKPT_NEWEST or a step. */
static int read_state(json_t **out, const struct snapshot *s, int64_t step)
{
    struct ckpt_tensor none = {0};
    struct ckpt_load_options options = {.step = step, .tensors = &none};
    struct ckpt_loaded *loaded = NULL;
    *out = NULL;
    ERR_TRY(ckpt_load(s->ckpt, &options, &loaded));
    json_error_t reason;
    int rc = json_read(out, loaded->state_json, strlen(loaded->state_json), &reason);
    ckpt_loaded_free(loaded);
    return rc;
}

int snapshot_recorded(struct snapshot *s, int64_t step, struct recorded *out)
{
    json_t *state;
    double loss;
    *out = (struct recorded){.has_norm = false};
    ERR_TRY(read_state(&state, s, CKPT_NEWEST));
    history_read(&out->losses, json_object_get(state, "history"));
    int rc = jumps_read(&out->jumps, json_object_get(state, "left_out"));
    json_decref(state);
    if (rc != 0)
        return rc;
    rc = read_state(&state, s, step);
    const json_t *metrics = json_object_get(json_object_get(state, "metrics"), "grad_norm");
    const json_t *theirs = json_object_get(json_object_get(state, "metrics"), "loss");
    out->grad_norm = json_number_value(metrics);
    out->has_norm = json_is_real(metrics) && history_find(&out->losses, step, &loss) &&
                    loss == json_number_value(theirs);
    const char *digest =
        json_string_value(json_object_get(json_object_get(state, "metrics"), "tokens_digest"));
    if (digest == NULL || strlen(digest) != CHECKSUM_DIGITS ||
        !checksum_parse(&out->tokens_digest, digest))
        out->tokens_digest = 0;
    json_decref(state);
    return rc == ERR_NOT_FOUND ? 0 : rc;
}

int snapshot_fail_replay(const struct snapshot *s)
{
    struct ckpt_list *list = NULL;
    int64_t first = INT64_MAX;
    ERR_TRY(ckpt_list(s->ckpt, false, &list));
    for (uint32_t i = 0; i < list->num_entries; i++)
        if (list->entries[i].damage[0] == '\0' && (int64_t)list->entries[i].info.step < first)
            first = (int64_t)list->entries[i].info.step;
    ckpt_list_free(list);
    char hint[96] = "let the run save a checkpoint first";
    if (first < s->config->steps)
        snprintf(hint, sizeof(hint), "give a step from %" PRId64 " to %" PRId64, first + 1,
                 s->config->steps);
    return report_error(ERR_NOT_FOUND, hint,
                        "run %s has no undamaged checkpoint of a step before %" PRId64,
                        s->config->run, s->config->replay_step);
}
