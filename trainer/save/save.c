/* save.c - saves of all ranks (see snapshot.h); final.c has the last one.
 *
 * Save. The replicas compare their state (replicas.h). Every rank begins; if one fails, the others
 * abort, and the step is skipped. Then each rank's copy thread (copier.h) copies its slices into
 * shared memory, in the order of the image: if ckptd's memory is a window over the shard, no other
 * order works. The modes differ in their waits. With "async_with_pinned_mem" training continues at
 * once, the update waits per slice, and snapshot_copied gets the copy's result. "async" waits for
 * the copy, and snapshot_poll asks for the end. "disabled" waits until the save is durable.
 *
 * The trainer reports a save that fails here, or is refused because replicas differ, to ckptd.
 * `ckpt-cli health` shows it until the run commits.
 *
 * Busy. While older saves fill ckptd's memory it has no image for one more. checkpoint.when_busy
 * "skip" leaves this save out; with "wait" each rank's begin waits in ckptd, at most
 * checkpoint.busy_wait_seconds. With "replace" no rank's begin waits. If one finds no image, all
 * abort the save. Rank 0 asks ckptd to discard the newest save that waits for another, if any
 * (ckpt_save_make_way). Then all begin again and wait at most REPLACE_MS for the discarded save's
 * work in progress. If training dies before the later save is copied, the discarded step is
 * lost. */
#include "proto/base/checksum.h"
#include "proto/base/clock.h"
#include "proto/base/json.h"
#include "proto/base/report.h"
#include "trainer/config/switches.h"
#include "trainer/data/manifest.h"
#include "trainer/record/lineage.h"
#include "trainer/save/private.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HURRY_MS 1u            /* of a call that returns soon and tells ckptd that training waits */
#define PAUSE_SECONDS_MIN 0.01 /* between two such calls, doubling */
#define PAUSE_SECONDS_MAX 0.05
#define POLL_SECONDS 1.0     /* between two questions about a pending save */
#define HEED_SECONDS_MIN 1.0 /* between two tries of a save that was asked for, doubling */
#define HEED_SECONDS_MAX 60.0
#define REPLACE_MS 5000u         /* for the image of the discarded save */
#define WAIT_SECONDS_SAID 0.1    /* a longer begin is logged */
#define DURABLE_SECONDS_SAID 1.0 /* a longer wait for the end of a save is logged */

/* The last save is tried many times: a warning is logged only if its text is new. */
static void warn_of_save(struct snapshot *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void warn_of_save(struct snapshot *s, const char *format, ...)
{
    char text[sizeof s->warned];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (strcmp(text, s->warned) == 0)
        return;
    log_warn("checkpoint", "%s", text);
    memcpy(s->warned, text, sizeof text);
}

/* True if ckptd refused the save, or is unavailable. */
static bool is_of_ckptd(int rc)
{
    static const int codes[] = {ERR_EXISTS, ERR_STALE,       ERR_BUSY,   ERR_SPACE,
                                ERR_DENIED, ERR_UNAVAILABLE, ERR_TIMEOUT};
    bool is = false;
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        is = is || codes[i] == rc;
    return is;
}

/* Reports a save that failed here to ckptd, on the rank that has the error's text, which is kept.
 * `ckpt-cli health` shows it. */
static void report_to_ckptd(struct snapshot *s, int rc, int64_t step)
{
    struct report_text text;
    if (is_of_ckptd(rc))
        return;
    report_keep(&text);
    (void)ckpt_save_failed(s->ckpt, (uint64_t)step, report_message());
    (void)report_restore(&text, rc);
}

/* The lowest rank that failed logs the reason of a failed save as a warning. */
static void log_not_saved(struct snapshot *s, int agreed, int64_t step, uint32_t first)
{
    if (agreed != 0 && first == s->mesh->world->rank) {
        warn_of_save(s, "step %" PRId64 " was not saved (rank %u): %s", step, first, report_line());
        report_to_ckptd(s, agreed, step);
    }
    if (first != s->mesh->world->rank)
        report_clear(); /* if this ends training, one rank reports why */
}

/* All ranks agree on the result of a part of a save. */
static int agree_on_save(struct snapshot *s, int rc, int64_t step)
{
    uint32_t first;
    int agreed = parallel_agree_quietly(s->mesh->world, rc, &first);
    log_not_saved(s, agreed, step, first);
    return agreed;
}

static bool is_unknown(int rc)
{
    return rc == ERR_UNAVAILABLE || rc == ERR_TIMEOUT;
}

/* Records for the launcher (deploy/launch) that this start has saved. */
static void note_saved(const struct snapshot *s, int64_t step)
{
    const char *path = getenv(SAVED_FILE_VARIABLE);
    FILE *file = path != NULL && path[0] != '\0' ? fopen(path, "w") : NULL;
    if (file == NULL)
        return;
    fprintf(file, "%s %" PRId64 "\n", s->config->run, step);
    fclose(file);
}

/* A save that `ckpt-cli save` asked for has failed, and is tried again after a pause: each try
 * costs training, and ckptd may be away for long. */
static void postpone_asked(struct snapshot *s, uint32_t heeded_before)
{
    s->saves_heeded = heeded_before;
    s->heed_pause = fmin(fmax(2 * s->heed_pause, HEED_SECONDS_MIN), HEED_SECONDS_MAX);
    s->heed_at = clock_seconds() + s->heed_pause;
}

/* Rank 0: the oldest pending save has ended, or its wait is over; logs the result once. Without an
 * answer of ckptd the save may still exist: ckptd may have committed it before it went away. */
static void settle_oldest(struct snapshot *s, int rc)
{
    const struct pending *oldest = &s->pending[0];
    s->settled_rc = rc;
    if (rc == 0) {
        note_saved(s, oldest->step);
        s->heed_pause = 0;
        s->newest_durable = oldest->step;
        s->durable_seconds = s->polled_at - oldest->since;
        s->times.longest_save_seconds = fmax(s->times.longest_save_seconds, s->durable_seconds);
        if (snapshot_level(s) != CKPT_LEVEL_LOCAL && s->spreading.step < 0)
            s->spreading = *oldest;
        log_info("checkpoint", "step %" PRId64 " is durable (%s), at most %.2f s after its copy",
                 oldest->step, ckpt_save_durability(s->ckpt), s->polled_at - oldest->since);
        if (ckpt_save_warning(s->ckpt)[0] != 0)
            log_error("checkpoint", "step %" PRId64 ": %s", oldest->step,
                      ckpt_save_warning(s->ckpt));
    } else {
        warn_of_save(s, "step %" PRId64 " %s: %s", oldest->step,
                     is_unknown(rc) ? "is not known to be durable" : "did not become durable",
                     report_line());
        s->has_failed = true;
        if (s->num_pending > 1) /* a newer save does as well */
            s->pending[1].heeded_before = oldest->heeded_before;
        else
            postpone_asked(s, oldest->heeded_before);
    }
    s->num_pending--;
    memmove(s->pending, s->pending + 1, s->num_pending * sizeof(*s->pending));
}

/* Rank 0 asks ckptd for the oldest pending save and waits at most `wait_ms`. ERR_TIMEOUT: it is
 * still being written, or a call without a wait found no ckptd; a later call gets the result. Any
 * other result settles the save. */
static int poll_oldest(struct snapshot *s, uint32_t wait_ms)
{
    CHECK(s->num_pending > 0);
    int rc = ckpt_save_wait(s->ckpt, (uint64_t)s->pending[0].step, wait_ms);
    s->polled_at = clock_seconds();
    if (rc == ERR_UNAVAILABLE && wait_ms == 0)
        rc = ERR_TIMEOUT;
    if (rc != ERR_TIMEOUT)
        settle_oldest(s, rc);
    return rc;
}

/* Rank 0: measures one save at a time until it has checkpoint.durability. A save that ckptd no
 * longer knows, because retention removed it, is not counted. */
static void poll_spreading(struct snapshot *s)
{
    if (s->spreading.step < 0)
        return;
    int rc = ckpt_save_wait_for(s->ckpt, (uint64_t)s->spreading.step, snapshot_level(s), 0);
    s->polled_at = clock_seconds();
    if (rc == 0)
        s->times.longest_save_seconds =
            fmax(s->times.longest_save_seconds, s->polled_at - s->spreading.since);
    else
        report_clear();
    if (!is_unknown(rc) && rc != ERR_BUSY)
        s->spreading.step = -1;
}

void snapshot_poll_pending(struct snapshot *s)
{
    while (s->num_pending > 0 && poll_oldest(s, 0) != ERR_TIMEOUT)
        continue;
    poll_spreading(s);
}

/* Rank 0 waits until the oldest pending save has ended or its time is over. A call that waits
 * learns of the end at once. But if ckptd hangs it returns late, and rank 0 does not see requests
 * to stop meanwhile. So only the first call waits, and none during the last save. Later calls wait
 * HURRY_MS: this tells ckptd that training waits, so it does not throttle the save
 * (pace.write_rate). */
static void await_oldest(struct snapshot *s)
{
    double start = clock_seconds(), left = snapshot_seconds_left(s, start),
           pause = PAUSE_SECONDS_MIN;
    double said = INFINITY; /* the deadline that was logged */
    int rc = poll_oldest(s, s->deadline == 0 ? ASK_MS : HURRY_MS);
    for (; rc == ERR_TIMEOUT && left > 0; rc = poll_oldest(s, HURRY_MS)) {
        left = snapshot_seconds_left(s, start);
        if (said != s->deadline && clock_seconds() - start >= DURABLE_SECONDS_SAID) {
            log_info("checkpoint", "waiting for step %" PRId64 " to become durable, at most %.0f s",
                     s->pending[0].step, left);
            said = s->deadline;
        }
        clock_sleep(fmin(pause, left));
        pause = fmin(2 * pause, PAUSE_SECONDS_MAX);
    }
    if (rc == ERR_TIMEOUT)
        settle_oldest(s, rc);
}

void snapshot_add_pending(struct snapshot *s, int64_t step, double since)
{
    s->pending_step = step;
    if (!snapshot_is_rank_0(s))
        return;
    if (s->num_pending == PENDING_MAX) /* ckptd does not accept so many: the oldest has ended */
        await_oldest(s);
    s->pending[s->num_pending++] = (struct pending){step, since, s->heeded_before};
    s->polled_at = clock_seconds();
}

void snapshot_phase(struct snapshot *s, bool is_busy)
{
    if (s->ckpt != NULL)
        ckpt_phase(s->ckpt, is_busy ? CKPT_PHASE_BUSY : CKPT_PHASE_QUIET);
}

void snapshot_poll(struct snapshot *s)
{
    if (s->ckpt == NULL || s->copying_step >= 0 || (s->num_pending == 0 && s->spreading.step < 0))
        return;
    if (clock_seconds() - s->polled_at >= POLL_SECONDS)
        snapshot_poll_pending(s);
}

/* Rank 0 waits until all pending saves have ended; returns the result of the newest. */
static int settle_all(struct snapshot *s)
{
    while (s->num_pending > 0)
        await_oldest(s);
    return s->settled_rc;
}

int snapshot_wait_pending(struct snapshot *s)
{
    uint32_t first;
    if (s->pending_step < 0)
        return 0;
    int rc = snapshot_is_rank_0(s) ? settle_all(s) : 0;
    rc = parallel_agree_quietly(s->mesh->world, rc, &first);
    if (rc == 0)
        s->durable_step = s->pending_step;
    s->pending_step = -1;
    return rc;
}

/* The algorithms that a library chose on rank 0, a line each; NULL: none, or no memory. */
static json_t *choices_json(struct kernels *kernels)
{
    char *text = kernels_choices(kernels), *rest = NULL;
    json_t *lines = text != NULL && text[0] != '\0' ? json_array() : NULL;
    for (char *line = lines != NULL ? strtok_r(text, "\n", &rest) : NULL; line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        (void)json_array_append_new(lines, json_string(line));
    free(text);
    return lines;
}

void snapshot_measure_step(struct snapshot *s, int64_t step)
{
    struct pace now = {clock_seconds(), s->times.save_seconds, step, s->pace.step_seconds};
    if (s->pace.at > 0 && step > s->pace.step)
        now.step_seconds =
            (now.at - s->pace.at - (now.waited - s->pace.waited)) / (double)(step - s->pace.step);
    s->pace = now;
}

/* The average wait of training for a save; 0: not known yet. */
static double mean_wait(const struct snapshot *s)
{
    return s->times.num_saves > 0 ? s->times.save_seconds / s->times.num_saves : 0;
}

bool snapshot_is_due(struct snapshot *s, int64_t step)
{
    if (!snapshot_is_taken(s) || s->config->interval_type != INTERVAL_AUTO)
        return false;
    if (!s->interval.is_begun || step <= s->interval.since) { /* a start, or repeated steps */
        interval_begin(&s->interval, step - 1);
        snapshot_measure_step(s, step);
    }
    double wait = mean_wait(s);
    bool is_waited_for = s->config->async_mode == ASYNC_DURABLE; /* the wait includes it */
    struct daly measured = {.step = s->pace.step_seconds,
                            .wait = wait,
                            .durable = wait + (is_waited_for ? 0 : s->durable_seconds),
                            .failures = s->config->mtbf_seconds};
    interval_decide(&s->interval, &measured);
    return interval_is_over(&s->interval, step);
}

/* The last three fields are for `ckpt-cli advise`; they exist from the second save of a start
 * on. */
static json_t *metrics_json(const struct snapshot *s, const struct progress *p)
{
    json_t *metrics = json_object();
    if (isfinite(p->loss) && isfinite(p->grad_norm)) { /* JSON has no others */
        json_object_set_new(metrics, "loss", json_real(p->loss));
        json_object_set_new(metrics, "grad_norm", json_real(p->grad_norm));
    }
    char digest[CHECKSUM_DIGITS + 1];
    snprintf(digest, sizeof(digest), "%016" PRIx64, p->tokens_digest);
    if (p->tokens_digest != 0)
        json_object_set_new(metrics, "tokens_digest", json_string(digest));
    if (s->pace.step_seconds > 0)
        json_object_set_new(metrics, "step_seconds", json_real(s->pace.step_seconds));
    if (s->times.num_saves > 0)
        json_object_set_new(metrics, "save_wait_seconds", json_real(mean_wait(s)));
    if (s->interval.steps > 0)
        json_object_set_new(metrics, "save_interval_steps", json_integer(s->interval.steps));
    return metrics;
}

/* The small part of the state, as the manifest keeps it; NULL: no memory. */
static char *state_json(const struct snapshot *s, const struct progress *p)
{
    json_t *data = data_state_json(s->of.data, p->next_sample, p->tokens, s->config->seed);
    json_t *state = json_pack(
        "{so so* so s{sI} s{sI} s{sI} so}", "data", data, "algorithms", choices_json(s->kernels),
        "orders", json_loads(s->orders_json, 0, NULL), "rng", "seed", (json_int_t)s->config->seed,
        "schedule", "step", (json_int_t)p->schedule_update, "optimizer", "step",
        (json_int_t)(s->has_no_moments ? 0 : p->optimizer_update), "metrics", metrics_json(s, p));
    if (p->jumps.num > 0) {
        json_object_set_new(state, "left_out", jumps_json(&p->jumps));
        lineage_note(json_object_get(state, "orders"), LINEAGE_LEFT_OUT);
    }
    if (p->broken.num > 0)
        json_object_set_new(state, "broken", broken_json(&p->broken));
    if (s->config->outlying != OUTLYING_OFF)
        json_object_set_new(state, "outlying", outliers_json(&p->outliers));
    if (s->config->outlying > OUTLYING_WARN)
        lineage_note(json_object_get(state, "orders"), LINEAGE_OUTLYING);
    if (s->history != NULL && s->history->num > 0) /* last, because it is long */
        json_object_set_new(state, "history", history_json(s->history));
    char *text = state != NULL ? json_dumps(state, JSON_COMPACT | json_shortest(state)) : NULL;
    json_decref(state);
    return text;
}

static int begin_on_rank(struct snapshot *s, struct ckpt_save **out, const struct progress *p,
                         uint32_t busy_ms)
{
    if (!snapshot_is_rank_0(s))
        return ckpt_save_begin_within(s->ckpt, out, (uint64_t)p->step, NULL, busy_ms);
    snapshot_poll_pending(s);
    if (s->has_failed && s->config->checkpoint_required && s->deadline == 0)
        return report_error(
            ERR_ABORTED,
            "see the messages before; set checkpoint.required to false to continue training",
            "an earlier save failed");
    char *state = state_json(s, p);
    int rc = state == NULL
                 ? ERR_MEMORY
                 : ckpt_save_begin_within(s->ckpt, out, (uint64_t)p->step, state, busy_ms);
    free(state);
    return rc;
}

/* Begins on all ranks, or on none. *first: the lowest rank that failed; it has the error's text. */
static int begin_on_all(struct snapshot *s, const struct progress *p, uint32_t busy_ms,
                        uint32_t *first)
{
    int rc = device_copy_begin(s->device_copy);
    if (rc == 0)
        rc = begin_on_rank(s, &s->save, p, busy_ms);
    int agreed = parallel_agree_quietly(s->mesh->world, rc, first);
    if (agreed != 0 && rc == 0)
        ckpt_save_abort(s->save);
    return agreed;
}

/* Rank 0: forgets the save of step `gone`, which was discarded. Returns the newest pending step, or
 * -1. */
static int64_t forget_pending(struct snapshot *s, int64_t gone, int64_t step)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->num_pending; i++)
        if (s->pending[i].step != gone)
            s->pending[kept++] = s->pending[i];
    s->num_pending = kept;
    log_info("checkpoint",
             "the save of step %" PRId64 " is discarded for that of step %" PRId64
             ", before it was durable",
             gone, step);
    return kept > 0 ? s->pending[kept - 1].step : -1;
}

/* Call if no rank has a save open, since one found no image. 0: ckptd has, or soon gets, an image
 * for `step`. */
static int make_way(struct snapshot *s, int64_t step)
{
    int64_t answer[2] = {0, -1}; /* a code, and the newest step that is still pending */
    uint64_t gone;
    struct report_text text;
    report_keep(&text);
    if (snapshot_is_rank_0(s)) {
        answer[0] = ckpt_save_make_way(s->ckpt, &gone);
        if (answer[0] == 0)
            answer[1] = forget_pending(s, (int64_t)gone, step);
    }
    ERR_TRY(comm_broadcast(s->mesh->world, answer, sizeof(answer), 0));
    if (answer[0] == 0)
        s->pending_step = answer[1];
    return report_restore(&text, (int)answer[0]);
}

int snapshot_begin_save(struct snapshot *s, const struct progress *p, double start)
{
    CHECK(s->copying_step < 0);
    uint32_t first = 0;
    uint32_t busy_ms =
        s->config->when_busy == BUSY_WAIT ? (uint32_t)s->config->busy_wait_seconds * 1000u : 0;
    int agreed = begin_on_all(s, p, busy_ms, &first);
    if (agreed == ERR_BUSY && s->config->when_busy == BUSY_REPLACE && make_way(s, p->step) == 0)
        agreed = begin_on_all(s, p, REPLACE_MS, &first);
    double seconds = clock_seconds() - start;
    log_not_saved(s, agreed, p->step, first);
    if (agreed != 0) {
        postpone_asked(s, s->saves_heeded);
        return agreed;
    }
    if (s->config->when_busy == BUSY_WAIT && snapshot_is_rank_0(s) && seconds > WAIT_SECONDS_SAID)
        log_info("checkpoint", "step %" PRId64 " waited %.2f s for older saves to be written",
                 p->step, seconds);
    s->copying_step = p->step;
    s->begin_seconds = seconds;
    s->heeded_before = s->saves_heeded;
    s->saves_heeded = ckpt_saves_asked(s->ckpt);
    s->heed_pause = snapshot_is_rank_0(s) ? s->heed_pause : 0; /* only rank 0 learns of the end */
    memset(s->ops, 0, s->state->num_slices * sizeof(*s->ops));
    copier_start(s->copier);
    return 0;
}

int snapshot_end_copy(struct snapshot *s)
{
    if (s->copying_step < 0)
        return 0;
    struct copier_times times;
    int64_t step = s->copying_step;
    int rc = copier_wait(s->copier, &times);
    s->copying_step = -1;
    double agree_start = clock_seconds();
    rc = agree_on_save(s, rc, step);
    if (rc != 0) {
        postpone_asked(s, s->heeded_before);
        return rc;
    }
    double agreed_at = clock_seconds();
    double waited = s->begin_seconds + times.waited_seconds + agreed_at - agree_start;
    s->times.save_seconds += waited;
    s->times.num_saves++;
    snapshot_add_pending(s, step, times.ended_at);
    if (snapshot_is_rank_0(s))
        log_info("checkpoint",
                 "step %" PRId64 " is accepted (in ckptd's memory): %.1f MiB per rank copied in "
                 "%.1f ms, training waited %.1f ms",
                 step, (double)s->bytes / 1048576.0, times.copy_seconds * 1e3, waited * 1e3);
    return 0;
}

int64_t snapshot_durable_step(const struct snapshot *s)
{
    return s->newest_durable > s->durable_step ? s->newest_durable : s->durable_step;
}

unsigned snapshot_asked(const struct snapshot *s)
{
    if (!snapshot_is_taken(s))
        return 0;
    uint32_t asked = ckpt_asked(s->ckpt);
    if (asked & CKPT_ASKED_STOP)
        return asked & CKPT_ASKED_NO_SAVE ? SWITCH_STOP_UNSAVED : SWITCH_STOP;
    bool saves = ckpt_saves_asked(s->ckpt) > s->saves_heeded && clock_seconds() >= s->heed_at;
    bool is_lost = s->copying_step < 0 && ckpt_is_lost(s->ckpt); /* a copy has its own answer */
    return (saves ? SWITCH_SAVE : 0) | (is_lost ? SWITCH_RENEW : 0);
}

void snapshot_renew(struct snapshot *s)
{
    bool was_lost = ckpt_is_lost(s->ckpt);
    int rc = ckpt_renew(s->ckpt);
    if (was_lost && rc == 0 && snapshot_is_rank_0(s))
        log_info("checkpoint", "ckptd is back: the ranks are connected again");
}

int snapshot_compare(struct snapshot *s, int64_t step)
{
    int rc = replicas_compare(s->replicas);
    if (rc != 0 && report_message()[0] != 0)
        report_to_ckptd(s, rc, step);
    return rc;
}

/* Returns the error with which a failed save ends training, or 0. */
static int error_to_stop_training(struct snapshot *s, int rc)
{
    if (rc == 0 || rc == ERR_STALE || !s->config->checkpoint_required)
        return rc == ERR_STALE ? rc : 0;
    s->must_stop = true;
    return rc;
}

bool snapshot_must_stop(const struct snapshot *s)
{
    return s != NULL && s->must_stop;
}

int snapshot_save(struct snapshot *s, const struct progress *p)
{
    if (!snapshot_is_taken(s))
        return 0;
    double start = clock_seconds();
    snapshot_measure_step(s, p->step);
    interval_begin(&s->interval, p->step);
    ERR_TRY(snapshot_compare(s, p->step));
    int rc = snapshot_begin_save(s, p, start);
    if (rc == 0 && s->config->async_mode != ASYNC_AT_ONCE)
        rc = snapshot_end_copy(s);
    if (rc == 0 && s->config->async_mode == ASYNC_DURABLE) {
        double copied_at = clock_seconds();
        rc = snapshot_wait_pending(s);
        s->times.save_seconds += clock_seconds() - copied_at;
    }
    return error_to_stop_training(s, rc);
}

int snapshot_copied(struct snapshot *s)
{
    return error_to_stop_training(s, snapshot_end_copy(s));
}

int snapshot_settle(struct snapshot *s)
{
    ERR_TRY(snapshot_copied(s));
    (void)snapshot_wait_pending(s); /* a failed save is logged, and an older one is loaded */
    return 0;
}
