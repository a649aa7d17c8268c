/* recorded.c - reads the records of repeated steps in a run's checkpoints (see snapshot.h).
 *
 * The newest checkpoint has the losses of the run's steps (history.h); the step's own checkpoint
 * has its gradient norm and its state. Two attempts may have made that step with different bits. So
 * the step's checkpoint counts only if it and the newest one have the same loss of the step. Of a
 * long run not every loss is kept, and a step that is not finite has none. Then it counts if the
 * newest or the loaded checkpoint is of the same attempt. */
#include "proto/base/checksum.h"
#include "trainer/save/private.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* *out: "state" of a checkpoint's manifest; `step`: CKPT_NEWEST or a step. */
static int read_state(json_t **out, int64_t *out_attempt, const struct snapshot *s, int64_t step)
{
    struct ckpt_tensor none = {0};
    struct ckpt_load_options options = {.step = step, .tensors = &none};
    struct ckpt_loaded *loaded = NULL;
    *out = NULL;
    ERR_TRY(ckpt_load(s->ckpt, &options, &loaded));
    json_error_t reason;
    int rc = json_read(out, loaded->state_json, strlen(loaded->state_json), &reason);
    *out_attempt = (int64_t)loaded->info.attempt;
    ckpt_loaded_free(loaded);
    return rc;
}

/* `attempt`: of the step's own checkpoint, whose numbers are `metrics`; `newest`: of the newest. */
static void take_step(struct recorded *out, const struct snapshot *s, const json_t *metrics,
                      int64_t attempt, int64_t newest)
{
    const json_t *loss = json_object_get(metrics, "loss");
    const json_t *norm = json_object_get(metrics, "grad_norm");
    double kept;
    bool counts = attempt == newest || attempt == (int64_t)s->times.from_attempt;
    if (json_is_real(loss) && history_find(&out->losses, s->config->replay_step, &kept))
        counts = kept == json_number_value(loss);
    if (!counts)
        return;
    out->attempt = attempt;
    out->has_norm = json_is_real(norm);
    out->grad_norm = json_number_value(norm);
    const char *digest = json_string_value(json_object_get(metrics, "tokens_digest"));
    if (digest == NULL || strlen(digest) != CHECKSUM_DIGITS ||
        !checksum_parse(&out->tokens_digest, digest))
        out->tokens_digest = 0;
}

int snapshot_find_steps(const struct snapshot *s, int64_t below, int64_t *out_first,
                        int64_t *out_last)
{
    struct ckpt_list *list = NULL;
    *out_first = *out_last = -1;
    ERR_TRY(ckpt_list(s->ckpt, false, &list));
    for (uint32_t i = 0; i < list->num_entries; i++) { /* by attempt, then by step */
        int64_t step = (int64_t)list->entries[i].info.step;
        if (list->entries[i].damage[0] != '\0' || step >= below)
            continue;
        *out_first = *out_first < 0 || step < *out_first ? step : *out_first;
        *out_last = step > *out_last ? step : *out_last;
    }
    ckpt_list_free(list);
    return 0;
}

int snapshot_recorded(struct snapshot *s, int64_t loaded, struct recorded *out)
{
    json_t *state;
    int64_t newest, attempt, first;
    *out = (struct recorded){.has_norm = false};
    ERR_TRY(snapshot_find_steps(s, loaded, &first, &out->older_step));
    int rc = read_state(&state, &newest, s, CKPT_NEWEST);
    if (rc == ERR_NOT_FOUND) /* the run has ended before its first checkpoint */
        return 0;
    ERR_TRY(rc);
    history_read(&out->losses, json_object_get(state, "history"));
    broken_read(&out->broken, json_object_get(state, "broken"));
    rc = jumps_read(&out->jumps, json_object_get(state, "left_out"));
    json_decref(state);
    if (rc != 0)
        return rc;
    rc = read_state(&state, &attempt, s, s->config->replay_step);
    if (rc == 0)
        take_step(out, s, json_object_get(state, "metrics"), attempt, newest);
    json_decref(state);
    return rc == ERR_NOT_FOUND ? 0 : rc;
}
