/* snapshot.c - the training state in ckptd (see snapshot.h).
 *
 * Start. Every rank connects; rank 0 takes the attempt (ckptd settles older saves first) and
 * broadcasts it; every rank describes its slices.
 *
 * Load. Rank 0 asks which checkpoint is the newest whole one, all ranks load exactly that one, and
 * agree. When any of them fails, all go back to the next older one, and the log says what was
 * skipped and why. So ranks never go on from different checkpoints. Moments that have seen no
 * update are zeros, whether the checkpoint holds them or not: they are not read. So training starts
 * from an imported model, which has none.
 *
 * Save. The replicas compare what they hold (replicas.h). Every rank begins; if one could not,
 * those that could abort, and the step is skipped. Then each rank's copy thread (copier.h) copies
 * its slices into shared memory, in the order of the image: where ckptd's memory is a window over
 * the shard, no other order works. The modes differ in what is waited for: "async_with_pinned_mem"
 * lets training go on at once, the update waits per slice, and snapshot_copied learns how the copy
 * went; "async" waits for the copy, and snapshot_poll looks for the end; "disabled" waits until it
 * is durable.
 *
 * Busy. While older saves fill ckptd's memory it has no image for one more. checkpoint.when_busy
 * "skip" leaves this save out; with "wait" each rank's begin waits in ckptd, at most
 * checkpoint.busy_wait_seconds.
 *
 * The end. What is pending and the last save share checkpoint.final_seconds, by rank 0's clock.
 * They begin with the last save, or earlier, when rank 0 is asked to stop while it waits for
 * another. A call of libckpt that has begun is not broken off (ckpt.h has its bounds). The last
 * save is tried until it is durable or that time is over: what passes by itself (no free image, no
 * ckptd) may fail any number of times, anything else FINAL_TRIES times.
 *
 * While a copy is in progress (copying_step >= 0) the handle of libckpt belongs to the copy thread.
 */
#include "trainer/snapshot.h"
#include "clients/ckpt.h"
#include "proto/json.h"
#include "proto/report.h"
#include "trainer/copier.h"
#include "trainer/identity.h"
#include "trainer/replicas.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DURABLE_SECONDS 600.0  /* for one save; then it counts as failed */
#define ASK_MS 1000u           /* of a question that waits for the end of a save */
#define HURRY_MS 1u            /* of one that comes back at once, and tells that somebody waits */
#define PAUSE_SECONDS_MIN 0.01 /* between two of those, doubling */
#define PAUSE_SECONDS_MAX 0.05
#define POLL_SECONDS 1.0            /* between two questions for a pending save */
#define FINAL_TRIES 10              /* of the last save that ckptd took, or refused for good */
#define FINAL_PAUSE_SECONDS_MIN 1.0 /* between two, doubling */
#define FINAL_PAUSE_SECONDS_MAX 4.0
#define STATE_PARTS 3u /* param, exp_avg, exp_avg_sq */
#define NAME_BYTES 96u
#define PENDING_MAX 4u           /* saves whose end is looked for */
#define WAIT_SECONDS_SAID 0.1    /* a begin that took longer is worth a line */
#define DURABLE_SECONDS_SAID 1.0 /* and a wait for the end of a save */

/* A save that was copied and is not known to be durable. */
struct pending {
    int64_t step;
    double since; /* the end of its copy */
};

struct snapshot {
    const struct config *config;
    const struct mesh *mesh;
    const struct state *state;
    struct ckpt *ckpt; /* NULL: checkpoint.enable is off */
    uint64_t attempt;
    int64_t newest_step;         /* committed when the attempt was taken; -1: none */
    struct ckpt_tensor *tensors; /* STATE_PARTS per slice: first all parameters */
    uint32_t num_tensors;
    char (*names)[NAME_BYTES];
    uint64_t bytes;            /* of this rank's slices */
    uint32_t *order;           /* tensors as they are copied */
    uint32_t *copied_at;       /* per slice: so many of them must be copied before it may change */
    struct replicas *replicas; /* NULL: there is nothing to compare */
    struct copier *copier;
    struct ckpt_save *save; /* the copy thread's, while copying_step >= 0 */
    int64_t copying_step;   /* begun, not known to be copied; -1: none */
    double begin_seconds;   /* of its begin */
    bool waits_when_busy;   /* checkpoint.when_busy */
    struct identity of;     /* what is saved */
    char *identity_json, *data_json;
    int64_t pending_step; /* the newest saved one, when not known to be durable; -1: none */
    int64_t durable_step; /* newest known to be durable; -1: none */
    /* Rank 0 alone: saves whose end is not known yet, the oldest first. */
    struct pending pending[PENDING_MAX];
    uint32_t num_pending;
    double polled_at;
    int settled_rc;  /* how the newest whose end is known ended */
    bool has_failed; /* some save failed after its copy */
    bool must_stop;  /* a save failed, and checkpoint.required is set */
    const volatile sig_atomic_t *want_stop;
    double deadline; /* of the end; 0: it has not begun */
    struct snapshot_times times;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool is_rank_0(const struct snapshot *s)
{
    return s->mesh->world->rank == 0;
}

/* The small part of the state, as the manifest keeps it; NULL: no memory. */
static char *state_json(const struct snapshot *s, const struct progress *p)
{
    json_t *state = json_pack(
        "{s{sI sI} s{sI} s{sI} s{sI} s{sf sf}}", "data", "next_sample", (json_int_t)p->next_sample,
        "seed", (json_int_t)s->config->seed, "rng", "seed", (json_int_t)s->config->seed, "schedule",
        "step", (json_int_t)p->schedule_update, "optimizer", "step",
        (json_int_t)p->optimizer_update, "metrics", "loss", p->loss, "grad_norm", p->grad_norm);
    char *text = state != NULL ? json_dumps(state, JSON_COMPACT) : NULL;
    json_decref(state);
    return text;
}

/* ---- opening ---- */

static int describe_tensors(struct snapshot *s)
{
    static const char *const prefix[STATE_PARTS] = {"", "optimizer.exp_avg.",
                                                    "optimizer.exp_avg_sq."};
    float *const data[STATE_PARTS] = {s->state->param, s->state->exp_avg, s->state->exp_avg_sq};
    uint32_t num = s->state->num_slices;
    s->num_tensors = STATE_PARTS * num;
    s->tensors = calloc(s->num_tensors, sizeof(*s->tensors));
    s->names = calloc(s->num_tensors, sizeof(*s->names));
    if (s->tensors == NULL || s->names == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to describe %u tensors", s->num_tensors);
    for (uint32_t i = 0; i < s->num_tensors; i++) {
        const struct state_slice *slice = &s->state->slices[i % num];
        const struct model_tensor *tensor = slice->tensor;
        snprintf(s->names[i], NAME_BYTES, "%s%s", prefix[i / num], tensor->name);
        s->tensors[i] = (struct ckpt_tensor){.name = s->names[i],
                                             .dtype = "F32",
                                             .dims = tensor->dims,
                                             .shape = {tensor->rows, tensor->width},
                                             .offset = {slice->first_row, 0},
                                             .extent = {slice->rows, tensor->width},
                                             .data = data[i / num] + slice->at};
        s->bytes += slice->count * sizeof(float);
    }
    return 0;
}

/* ---- the copy thread ---- */

static int copy_piece(void *user, uint32_t piece)
{
    struct snapshot *s = user;
    long pause_us = (long)s->config->slow_copy_us;
    if (pause_us > 0)
        nanosleep(&(struct timespec){pause_us / 1000000, pause_us % 1000000 * 1000}, NULL);
    return ckpt_save_copy(s->save, s->order[piece]);
}

static int end_image(void *user, int rc)
{
    struct snapshot *s = user;
    if (rc == 0)
        return ckpt_save_end(s->save);
    ckpt_save_abort(s->save);
    return rc;
}

/* When ckptd has answered the description. */
static int open_copier(struct snapshot *s)
{
    uint32_t num_slices = s->state->num_slices;
    s->order = calloc(s->num_tensors + 1, sizeof(*s->order));
    s->copied_at = calloc(num_slices + 1, sizeof(*s->copied_at));
    if (s->order == NULL || s->copied_at == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the order of %u tensors",
                            s->num_tensors);
    for (uint32_t i = 0; i < s->num_tensors; i++) {
        s->order[i] = ckpt_save_order(s->ckpt, i);
        s->copied_at[s->order[i] % num_slices] = i + 1; /* the last of its STATE_PARTS wins */
    }
    struct copier_options options = {.num_pieces = s->num_tensors,
                                     .num_slices = num_slices,
                                     .copied_at = s->copied_at,
                                     .copy = copy_piece,
                                     .end = end_image,
                                     .user = s};
    return copier_open(&s->copier, &options);
}

struct copier *snapshot_copier(const struct snapshot *s)
{
    return s->copier;
}

/* ---- the session ---- */

static int connect_ckptd(struct snapshot *s)
{
    if (s->config->run[0] == 0)
        return report_error(ERR_INVALID, "set job.run", "the run has no name");
    struct ckpt_options options = {
        .server = s->config->ckptd_address,
        .run = s->config->run,
        .rank = s->mesh->world->rank,
        .world_size = s->mesh->world->size,
        .busy_ms = s->waits_when_busy ? (uint32_t)s->config->busy_wait_seconds * 1000u : 0};
    return ckpt_open(&s->ckpt, &options);
}

static int take_attempt(struct snapshot *s, int64_t answer[2])
{
    struct ckpt_info newest = {0};
    char mesh[96];
    char *config_json = trainer_config_to_json(s->config);
    snprintf(mesh, sizeof(mesh), "{\"pp\":1,\"dp_replicate\":%u,\"dp_shard\":%u,\"cp\":1,\"tp\":1}",
             s->mesh->replicas, s->mesh->shards);
    struct ckpt_attempt_options options = {.config_json = config_json,
                                           .identity_json = s->identity_json,
                                           .mesh_json = mesh,
                                           .data_json = s->data_json,
                                           .code_version = report_version};
    uint64_t attempt = 0;
    int rc = ckpt_attempt_open(s->ckpt, &attempt, &newest, &options);
    answer[0] = (int64_t)attempt;
    answer[1] = newest.attempt == 0 ? -1 : (int64_t)newest.step;
    free(config_json);
    return rc;
}

static int open_session(struct snapshot *s)
{
    struct comm *world = s->mesh->world;
    int64_t answer[2] = {0, -1}; /* attempt, newest step */
    double start = now();
    ERR_TRY(parallel_agree(s->mesh->world, connect_ckptd(s)));
    ERR_TRY(parallel_agree(s->mesh->world, is_rank_0(s) ? take_attempt(s, answer) : 0));
    ERR_TRY(world->ops->broadcast(world, answer, sizeof(answer), 0));
    s->attempt = (uint64_t)answer[0];
    s->newest_step = answer[1];
    ERR_TRY(parallel_agree(s->mesh->world,
                           ckpt_describe(s->ckpt, s->attempt, s->tensors, s->num_tensors)));
    s->times.attempt_seconds = now() - start;
    if (is_rank_0(s))
        log_info("checkpoint", "run %s: attempt %" PRIu64 " at %s", s->config->run, s->attempt,
                 s->config->ckptd_address);
    return 0;
}

int snapshot_open(struct snapshot **out, const struct snapshot_options *options)
{
    struct snapshot *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the snapshots");
    s->config = options->config;
    s->mesh = options->mesh;
    s->state = options->state;
    s->waits_when_busy = strcmp(options->config->when_busy, "wait") == 0;
    s->of = (struct identity){.config = options->config,
                              .data = options->data,
                              .model = options->model,
                              .kernels = options->kernels};
    s->newest_step = s->pending_step = s->durable_step = s->copying_step = -1;
    int rc = 0;
    if (s->config->checkpoint_enable) {
        rc = identity_write(&s->identity_json, &s->data_json, &s->of);
        if (rc == 0)
            rc = describe_tensors(s);
        if (rc == 0 && s->config->compare_replicas)
            rc = replicas_open(&s->replicas, s->mesh, s->state);
        rc = parallel_agree(s->mesh->world, rc);
        if (rc == 0)
            rc = open_session(s);
        if (rc == 0)
            rc = parallel_agree(s->mesh->world, open_copier(s));
    }
    if (rc != 0) {
        snapshot_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void snapshot_close(struct snapshot *s)
{
    if (s == NULL)
        return;
    copier_close(s->copier); /* the last user of the handle */
    if (s->ckpt != NULL)
        ckpt_close(s->ckpt);
    replicas_close(s->replicas);
    free(s->order);
    free(s->copied_at);
    free(s->tensors);
    free(s->names);
    free(s->identity_json);
    free(s->data_json);
    free(s);
}

const struct snapshot_times *snapshot_times(const struct snapshot *s)
{
    return &s->times;
}

/* ---- loading ---- */

/* "optimizer,dataloader" */
static bool is_excluded(const struct config *config, const char *part)
{
    size_t length = strlen(part);
    for (const char *at = config->exclude_from_loading; *at != 0;) {
        at += strspn(at, ", ");
        size_t word = strcspn(at, ", ");
        if (word == length && strncmp(at, part, length) == 0)
            return true;
        at += word;
    }
    return false;
}

static int64_t number_in(const json_t *state, const char *section, const char *key, int64_t missing)
{
    const json_t *value = json_object_get(json_object_get(state, section), key);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : missing;
}

static int read_progress(struct snapshot *s, struct progress *p, const struct ckpt_loaded *loaded)
{
    json_t *state = NULL;
    json_error_t reason;
    if (json_read(&state, loaded->state_json, strlen(loaded->state_json), &reason) == ERR_MEMORY)
        return ERR_MEMORY;
    int64_t next_sample = number_in(state, "data", "next_sample", -1);
    if (next_sample < 0) {
        json_decref(state);
        return report_error(ERR_MISMATCH, "load a checkpoint that the trainer made",
                            "the checkpoint of step %" PRIu64 " has no data position",
                            loaded->info.step);
    }
    p->step = (int64_t)loaded->info.step;
    p->next_sample = is_excluded(s->config, "dataloader") ? 0 : (uint64_t)next_sample;
    p->schedule_update =
        is_excluded(s->config, "lr_scheduler") ? 0 : number_in(state, "schedule", "step", p->step);
    p->optimizer_update =
        is_excluded(s->config, "optimizer") ? 0 : number_in(state, "optimizer", "step", p->step);
    const json_t *metrics = json_object_get(state, "metrics");
    p->loss = json_number_value(json_object_get(metrics, "loss"));
    p->grad_norm = json_number_value(json_object_get(metrics, "grad_norm"));
    json_decref(state);
    return 0;
}

/* What rank 0 chooses, for all. */
struct candidate {
    int64_t step, attempt; /* step -1: there is none */
    bool has_moments;
};

static bool state_has_moments(const char *state_json)
{
    json_t *state = json_loads(state_json, 0, NULL);
    bool is_fresh = number_in(state, "optimizer", "step", -1) == 0;
    json_decref(state);
    return !is_fresh;
}

/* Which checkpoint is next: newest whole one below `below` (0: any), or the configured step. Rank 0
 * asks for no tensor at all, which answers with the manifest's texts. */
static int ask_for_candidate(struct snapshot *s, int64_t below, struct candidate *candidate)
{
    struct ckpt_tensor none = {0};
    struct ckpt_load_options options = {
        .step = s->config->load_step, .below_step = below, .tensors = &none};
    struct ckpt_loaded *loaded = NULL;
    int rc = ckpt_load(s->ckpt, &options, &loaded);
    if (rc == ERR_NOT_FOUND && s->config->load_step < 0) {
        candidate->step = -1;
        return 0;
    }
    if (rc != 0)
        return rc;
    *candidate = (struct candidate){.step = (int64_t)loaded->info.step,
                                    .attempt = (int64_t)loaded->info.attempt,
                                    .has_moments = state_has_moments(loaded->state_json)};
    if (loaded->skipped[0] != 0)
        log_warn("checkpoint", "skipped on the way to step %" PRIu64 ": %s", loaded->info.step,
                 loaded->skipped);
    rc = identity_check(&s->of, s->identity_json, loaded);
    ckpt_loaded_free(loaded);
    return rc;
}

static int load_candidate(struct snapshot *s, struct progress *p, const struct candidate *candidate)
{
    struct ckpt_load_options options = {.step = candidate->step,
                                        .attempt = (uint64_t)candidate->attempt};
    struct ckpt_loaded *loaded = NULL;
    if (!candidate->has_moments) { /* an older candidate may have left some */
        memset(s->state->exp_avg, 0, s->state->count * sizeof(float));
        memset(s->state->exp_avg_sq, 0, s->state->count * sizeof(float));
    }
    if (!candidate->has_moments || is_excluded(s->config, "optimizer")) {
        options.tensors = s->tensors;
        options.num_tensors = s->state->num_slices;
    }
    ERR_TRY(ckpt_load(s->ckpt, &options, &loaded));
    s->times.loaded_bytes = loaded->bytes_memory + loaded->bytes_local;
    if (is_rank_0(s))
        log_info("checkpoint",
                 "loaded step %" PRId64 " of attempt %" PRId64 " (%s), %.1f MiB from memory, %.1f "
                 "MiB from disk on rank 0",
                 candidate->step, candidate->attempt, loaded->info.durability,
                 (double)loaded->bytes_memory / 1048576.0, (double)loaded->bytes_local / 1048576.0);
    int rc = read_progress(s, p, loaded);
    ckpt_loaded_free(loaded);
    return rc;
}

/* May an older checkpoint help? */
static bool is_damage(int rc)
{
    return rc == ERR_CORRUPT || rc == ERR_IO;
}

/* All ranks load the candidate, or none has. *out_retry: it is damaged, an older one may do. */
static int try_candidate(struct snapshot *s, struct progress *p, const struct candidate *candidate,
                         bool *out_retry)
{
    uint32_t first;
    int rc = parallel_agree_quietly(s->mesh->world, load_candidate(s, p, candidate), &first);
    *out_retry = is_damage(rc) && s->config->load_step < 0 && candidate->step > 0;
    bool is_mine = first == s->mesh->world->rank;
    if (*out_retry && is_mine)
        log_warn("checkpoint",
                 "step %" PRId64 " cannot be loaded (rank %u): %s; trying an older one",
                 candidate->step, first, report_line());
    if (rc != 0 && !is_mine)
        report_clear();
    return rc;
}

/* A run with checkpoints of which none can be loaded must not begin anew by itself. */
static int none_left(const struct snapshot *s)
{
    if (s->newest_step < 0)
        return 0;
    int rc = report_error(ERR_CORRUPT,
                          "look with ckpt-cli verify; to begin anew give job.run another name",
                          "run %s has checkpoints up to step %" PRId64 ", but none can be loaded",
                          s->config->run, s->newest_step);
    return parallel_agree(s->mesh->world, rc);
}

int snapshot_load(struct snapshot *s, struct progress *p, bool *out_loaded)
{
    *out_loaded = false;
    if (s->ckpt == NULL)
        return 0;
    struct comm *world = s->mesh->world;
    double start = now();
    struct candidate candidate = {0}; /* its step is the limit for the next one */
    bool retry = false;
    int rc;
    do {
        int64_t below = candidate.step;
        candidate.step = -1;
        rc = is_rank_0(s) ? ask_for_candidate(s, below, &candidate) : 0;
        ERR_TRY(parallel_agree(world, rc));
        ERR_TRY(world->ops->broadcast(world, &candidate, sizeof(candidate), 0));
        if (candidate.step < 0)
            return none_left(s);
        rc = try_candidate(s, p, &candidate, &retry);
    } while (retry);
    ERR_TRY(rc);
    s->times.load_seconds = now() - start;
    s->durable_step = p->step;
    *out_loaded = true;
    return 0;
}

/* ---- saving ---- */

/* What all ranks know of a step of a save: the lowest rank that failed says why, as a warning. */
static void say_not_saved(struct snapshot *s, int agreed, int64_t step, uint32_t first)
{
    if (agreed != 0 && first == s->mesh->world->rank)
        log_warn("checkpoint", "step %" PRId64 " was not saved (rank %u): %s", step, first,
                 report_line());
    if (first != s->mesh->world->rank)
        report_clear(); /* should training end for it, one rank says why */
}

/* All ranks learn how a step of a save went. */
static int agree_on_save(struct snapshot *s, int rc, int64_t step)
{
    uint32_t first;
    int agreed = parallel_agree_quietly(s->mesh->world, rc, &first);
    say_not_saved(s, agreed, step, first);
    return agreed;
}

/* Rank 0: the oldest pending save has ended; its end is said once. */
static void settle_oldest(struct snapshot *s, int rc)
{
    const struct pending *oldest = &s->pending[0];
    s->settled_rc = rc;
    if (rc == 0) {
        log_info("checkpoint", "step %" PRId64 " is durable (%s), at most %.2f s after its copy",
                 oldest->step, ckpt_save_durability(s->ckpt), s->polled_at - oldest->since);
        if (ckpt_save_warning(s->ckpt)[0] != 0)
            log_error("checkpoint", "step %" PRId64 ": %s", oldest->step,
                      ckpt_save_warning(s->ckpt));
    } else {
        log_warn("checkpoint", "step %" PRId64 " did not become durable: %s", oldest->step,
                 report_line());
        s->has_failed = true;
    }
    s->num_pending--;
    memmove(s->pending, s->pending + 1, s->num_pending * sizeof(*s->pending));
}

/* Rank 0 asks how the oldest pending save is doing, and waits at most `wait_ms`. ERR_TIMEOUT: it is
 * still being written; whatever else comes settles it. */
static int ask_oldest(struct snapshot *s, uint32_t wait_ms)
{
    CHECK(s->num_pending > 0);
    int rc = ckpt_save_wait(s->ckpt, (uint64_t)s->pending[0].step, wait_ms);
    s->polled_at = now();
    if (rc != ERR_TIMEOUT)
        settle_oldest(s, rc);
    return rc;
}

static void ask_pending(struct snapshot *s)
{
    while (s->num_pending > 0 && ask_oldest(s, 0) != ERR_TIMEOUT)
        continue;
}

void snapshot_watch_stop(struct snapshot *s, const volatile sig_atomic_t *want_stop)
{
    s->want_stop = want_stop;
}

static void begin_end(struct snapshot *s)
{
    if (s->deadline == 0)
        s->deadline = now() + (double)s->config->final_seconds;
}

/* Of the wait for a pending save that began at `start`. */
static double seconds_left(struct snapshot *s, double start)
{
    if (s->want_stop != NULL && *s->want_stop != 0)
        begin_end(s);
    return fmax(0, (s->deadline != 0 ? s->deadline : start + DURABLE_SECONDS) - now());
}

static void sleep_for(double seconds)
{
    long whole = (long)seconds;
    nanosleep(&(struct timespec){whole, (long)((seconds - (double)whole) * 1e9)}, NULL);
}

/* Rank 0, until the oldest pending save has ended or its time is over. A question that waits learns
 * of the end at once, but where ckptd itself hangs it comes back late, and without a look at who
 * asks to stop. So only the first one waits, and none in the end; but for a moment, without which
 * ckptd would keep to its manners (pace.write_rate) for a save that all of training waits for. */
static void await_oldest(struct snapshot *s)
{
    double start = now(), left = seconds_left(s, start), pause = PAUSE_SECONDS_MIN;
    double said = INFINITY; /* the deadline that was said */
    int rc = ask_oldest(s, s->deadline == 0 ? ASK_MS : HURRY_MS);
    for (; rc == ERR_TIMEOUT && left > 0; rc = ask_oldest(s, HURRY_MS)) {
        left = seconds_left(s, start);
        if (said != s->deadline && now() - start >= DURABLE_SECONDS_SAID) {
            log_info("checkpoint", "waiting for step %" PRId64 " to become durable, at most %.0f s",
                     s->pending[0].step, left);
            said = s->deadline;
        }
        sleep_for(fmin(pause, left));
        pause = fmin(2 * pause, PAUSE_SECONDS_MAX);
    }
    if (rc == ERR_TIMEOUT)
        settle_oldest(s, rc);
}

static void add_pending(struct snapshot *s, int64_t step, double since)
{
    s->pending_step = step;
    if (!is_rank_0(s))
        return;
    if (s->num_pending == PENDING_MAX) /* ckptd does not take so many: the oldest has ended */
        await_oldest(s);
    s->pending[s->num_pending++] = (struct pending){step, since};
    s->polled_at = now();
}

void snapshot_phase(struct snapshot *s, bool is_busy)
{
    if (s->ckpt != NULL)
        ckpt_phase(s->ckpt, is_busy ? CKPT_PHASE_BUSY : CKPT_PHASE_QUIET);
}

void snapshot_poll(struct snapshot *s)
{
    if (s->ckpt == NULL || s->num_pending == 0 || s->copying_step >= 0)
        return;
    if (now() - s->polled_at >= POLL_SECONDS)
        ask_pending(s);
}

/* Rank 0, until all pending saves have ended; the result is that of the newest. */
static int settle_all(struct snapshot *s)
{
    while (s->num_pending > 0)
        await_oldest(s);
    return s->settled_rc;
}

/* Until the pending saves have ended; all ranks get rank 0's answer for the newest. */
static int wait_pending(struct snapshot *s)
{
    uint32_t first;
    if (s->pending_step < 0)
        return 0;
    int rc = is_rank_0(s) ? settle_all(s) : 0;
    rc = parallel_agree_quietly(s->mesh->world, rc, &first);
    if (rc == 0)
        s->durable_step = s->pending_step;
    s->pending_step = -1;
    return rc;
}

static int begin(struct snapshot *s, struct ckpt_save **out, const struct progress *p)
{
    if (!is_rank_0(s))
        return ckpt_save_begin(s->ckpt, out, (uint64_t)p->step, NULL);
    ask_pending(s);
    if (s->has_failed && s->config->checkpoint_required && s->deadline == 0)
        return report_error(ERR_ABORTED,
                            "see the messages before; set checkpoint.required to "
                            "false to train on",
                            "an earlier save failed");
    char *state = state_json(s, p);
    int rc = state == NULL ? ERR_MEMORY : ckpt_save_begin(s->ckpt, out, (uint64_t)p->step, state);
    free(state);
    return rc;
}

/* A state that no rank holds must not be saved, and nobody should train on from it: unlike a save
 * that fails this ends training. */
static int compare_replicas(const struct snapshot *s)
{
    return replicas_compare(s->replicas);
}

/* All ranks begin, and their copy threads start; or none does. Training waits since `start`. */
static int save(struct snapshot *s, const struct progress *p, double start)
{
    CHECK(s->copying_step < 0);
    uint32_t first = 0;
    int rc = begin(s, &s->save, p);
    int agreed = parallel_agree_quietly(s->mesh->world, rc, &first);
    double seconds = now() - start;
    say_not_saved(s, agreed, p->step, first);
    if (agreed != 0) {
        if (rc == 0)
            ckpt_save_abort(s->save);
        return agreed;
    }
    if (s->waits_when_busy && is_rank_0(s) && seconds > WAIT_SECONDS_SAID)
        log_info("checkpoint", "step %" PRId64 " waited %.2f s for older saves to be written",
                 p->step, seconds);
    s->copying_step = p->step;
    s->begin_seconds = seconds;
    copier_start(s->copier);
    return 0;
}

/* Until the copy in progress is made; all ranks learn how it went. */
static int end_copy(struct snapshot *s)
{
    if (s->copying_step < 0)
        return 0;
    struct copier_times times;
    int64_t step = s->copying_step;
    int rc = copier_wait(s->copier, &times);
    s->copying_step = -1;
    double agree_start = now();
    ERR_TRY(agree_on_save(s, rc, step));
    double agreed_at = now();
    add_pending(s, step, times.ended_at);
    if (is_rank_0(s))
        log_info("checkpoint",
                 "step %" PRId64 " is accepted (in ckptd's memory): %.1f MiB per rank copied in "
                 "%.1f ms, training waited %.1f ms",
                 step, (double)s->bytes / 1048576.0, times.copy_seconds * 1e3,
                 (s->begin_seconds + times.waited_seconds + agreed_at - agree_start) * 1e3);
    return 0;
}

/* What a failed save means for training. */
static int judge(struct snapshot *s, int rc)
{
    if (rc == 0 || rc == ERR_STALE || !s->config->checkpoint_required)
        return rc == ERR_STALE ? rc : 0;
    s->must_stop = true;
    return rc;
}

bool snapshot_must_stop(const struct snapshot *s)
{
    return s->must_stop;
}

int snapshot_save(struct snapshot *s, const struct progress *p)
{
    if (s->ckpt == NULL || s->config->load_only)
        return 0;
    double start = now();
    ERR_TRY(compare_replicas(s));
    int rc = save(s, p, start);
    if (rc == 0 && strcmp(s->config->async_mode, "async_with_pinned_mem") != 0)
        rc = end_copy(s);
    if (rc == 0 && strcmp(s->config->async_mode, "disabled") == 0)
        rc = wait_pending(s);
    return judge(s, rc);
}

int snapshot_copied(struct snapshot *s)
{
    return judge(s, end_copy(s));
}

/* All ranks: ERR_TIMEOUT when the time for the end is over. */
static int check_deadline(const struct snapshot *s)
{
    uint32_t first;
    bool is_over = is_rank_0(s) && now() >= s->deadline;
    return parallel_agree_quietly(s->mesh->world, is_over ? ERR_TIMEOUT : 0, &first);
}

/* One try of the last save, until it is durable or has failed. A step that is committed already, or
 * being written, is only waited for: an answer of ckptd may have been lost. */
static int try_final(struct snapshot *s, const struct progress *p)
{
    int rc = save(s, p, now());
    if (rc == 0)
        rc = end_copy(s);
    else if (rc == ERR_EXISTS)
        add_pending(s, p->step, now());
    return rc == 0 || rc == ERR_EXISTS ? wait_pending(s) : rc;
}

/* Does it pass by itself, without a word about the save? */
static bool may_pass(int rc)
{
    return rc == ERR_BUSY || rc == ERR_UNAVAILABLE || rc == ERR_TIMEOUT;
}

int snapshot_save_final(struct snapshot *s, const struct progress *p)
{
    if (s->ckpt == NULL || s->config->load_only)
        return 0;
    begin_end(s);
    int rc = end_copy(s);
    if (rc == ERR_STALE)
        return rc;
    rc = wait_pending(s);
    if (s->durable_step != p->step)
        ERR_TRY(compare_replicas(s));
    double pause = FINAL_PAUSE_SECONDS_MIN;
    for (int tries = 0; tries < FINAL_TRIES && s->durable_step != p->step;
         tries += may_pass(rc) ? 0 : 1) {
        int over = check_deadline(s);
        if (over != 0) {
            rc = over;
            break;
        }
        rc = try_final(s, p);
        if (rc == ERR_STALE)
            return rc;
        if (rc == 0)
            continue;
        sleep_for(pause);
        pause = fmin(2 * pause, FINAL_PAUSE_SECONDS_MAX);
    }
    if (s->durable_step == p->step)
        return 0;
    bool is_late = now() >= s->deadline;
    rc = report_error(err_retry(rc) ? rc : ERR_ABORTED, "start the run again when ckptd can save",
                      "the last checkpoint, of step %" PRId64 ", could not be saved%s", p->step,
                      is_late ? " within checkpoint.final_seconds" : "");
    if (!is_rank_0(s))
        report_clear(); /* once is enough */
    return rc;
}
