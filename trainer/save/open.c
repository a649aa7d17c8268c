/* open.c - connects to ckptd, takes an attempt, describes tensors (see snapshot.h).
 *
 * Start. Every rank connects. A start that does not save stays a reader and does not end a start
 * that does. Otherwise rank 0 takes the attempt (ckptd settles older saves first) and broadcasts
 * it; every rank describes its slices.
 *
 * While a copy is in progress (copying_step >= 0) the handle of libckpt belongs to the copy
 * thread. */
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/base/stream_copy.h"
#include "trainer/config/hooks.h"
#include "trainer/record/lineage.h"
#include "trainer/save/private.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY_BYTES (16u << 20) /* of the copy measured at a start */

bool snapshot_is_rank_0(const struct snapshot *s)
{
    return s->mesh->world->rank == 0;
}

/* ---- opening ---- */

void snapshot_name(char out[SNAPSHOT_NAME_BYTES], const struct model_tensor *tensor,
                   enum state_part part)
{
    static const char *const prefix[STATE_PARTS] = {"", "optimizer.exp_avg.",
                                                    "optimizer.exp_avg_sq."};
    snprintf(out, SNAPSHOT_NAME_BYTES, "%s%s", prefix[part], tensor->name);
}

static int describe_tensors(struct snapshot *s)
{
    uint32_t num = s->state->num_slices;
    s->num_tensors = STATE_PARTS * num;
    s->tensors = calloc(s->num_tensors, sizeof(*s->tensors));
    s->names = calloc(s->num_tensors, sizeof(*s->names));
    if (s->tensors == NULL || s->names == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to describe %u tensors", s->num_tensors);
    for (uint32_t i = 0; i < s->num_tensors; i++) {
        const struct state_slice *slice = &s->state->slices[i % num];
        const struct model_tensor *tensor = slice->tensor;
        enum state_part part = i / num;
        const struct state_place *place = state_place(slice, part);
        const struct box *box = &place->box;
        enum kernel_dtype dtype = state_dtype(s->state, part);
        snapshot_name(s->names[i], tensor, part);
        s->tensors[i] = (struct ckpt_tensor){.name = s->names[i],
                                             .dtype = dtype == KERNEL_BF16 ? "BF16" : "F32",
                                             .dims = tensor->dims,
                                             .shape = {tensor->rows, tensor->width},
                                             .offset = {box->offset[0], box->offset[1]},
                                             .extent = {box->extent[0], box->extent[1]},
                                             .data = state_at(s->state, part, place->at)};
        s->bytes += place->count * kernel_dtype_bytes(dtype);
    }
    return 0;
}

/* ---- the copy thread ---- */

/* A file is copied with the last slice. */
static uint32_t slice_of(const struct snapshot *s, uint32_t tensor)
{
    uint32_t num = s->state->num_slices;
    return tensor < s->num_tensors ? tensor % num : num - (num > 0);
}

static uint32_t num_pieces(const struct snapshot *s)
{
    return s->num_tensors + s->files.count;
}

static int copy_one(struct snapshot *s, uint32_t piece)
{
    hooks_before_copy(s->config);
    uint32_t tensor = s->order[piece], slice = slice_of(s, tensor);
    if (s->device_copy == NULL)
        return ckpt_save_copy(s->save, tensor);
    ERR_TRY(tensor < s->num_tensors
                ? device_copy_tensor(s->device_copy, s->save, tensor, s->tensors[tensor].data)
                : ckpt_save_copy(s->save, tensor));
    if (piece + 1 == s->copied_at[slice])
        device_copy_mark(s->device_copy, slice);
    return 0;
}

/* The operation of the program that posted a piece; NULL: none. */
static const struct op *op_of(const struct snapshot *s, uint32_t piece)
{
    return s->ops[s->copied_for[piece]];
}

static int copy_piece(void *user, uint32_t piece)
{
    struct snapshot *s = user;
    const struct op *op = op_of(s, piece);
    if (op != NULL && (piece == 0 || op_of(s, piece - 1) != op))
        s->note_copy(s->user, op, false);
    ERR_TRY(copy_one(s, piece));
    bool is_last = piece + 1 == num_pieces(s) || s->state->slices[s->copied_for[piece + 1]].block !=
                                                     s->state->slices[s->copied_for[piece]].block;
    if (op != NULL && is_last)
        s->note_copy(s->user, op, true);
    return 0;
}

static void hold_lane(void *user, uint32_t slice, struct lane *lane)
{
    const struct snapshot *s = user;
    device_copy_hold_lane(s->device_copy, slice, lane);
}

static uint64_t piece_bytes(void *user, uint32_t piece)
{
    const struct snapshot *s = user;
    uint32_t tensor = s->order[piece], num = s->state->num_slices;
    if (tensor >= s->num_tensors)
        return s->tensors[tensor].extent[0];
    enum state_part part = tensor / num;
    return state_place(&s->state->slices[tensor % num], part)->count *
           kernel_dtype_bytes(state_dtype(s->state, part));
}

static int end_image(void *user, int rc)
{
    struct snapshot *s = user;
    if (s->device_copy != NULL)
        rc = device_copy_end(s->device_copy, s->save, rc);
    if (rc == 0)
        return ckpt_save_end(s->save);
    ckpt_save_abort(s->save);
    return rc;
}

/* Call when ckptd has answered the description. */
static int open_copier(struct snapshot *s)
{
    uint32_t num_slices = s->state->num_slices, num = num_pieces(s);
    s->order = calloc((size_t)num + 1, sizeof(*s->order));
    s->copied_at = calloc(num_slices + 1, sizeof(*s->copied_at));
    s->copied_for = calloc((size_t)num + 1, sizeof(*s->copied_for));
    s->ops = calloc(num_slices + 1, sizeof(*s->ops));
    if (s->order == NULL || s->copied_at == NULL || s->copied_for == NULL || s->ops == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the order of %u tensors", num);
    for (uint32_t i = 0; i < num; i++) {
        s->order[i] = ckpt_save_order(s->ckpt, i);
        s->copied_at[slice_of(s, s->order[i])] = i + 1; /* the last part counts */
    }
    for (uint32_t slice = 0, piece = 0; slice < num_slices; slice++)
        while (piece < s->copied_at[slice])
            s->copied_for[piece++] = slice;
    struct copier_options options = {.num_pieces = num,
                                     .num_slices = num_slices,
                                     .copied_at = s->copied_at,
                                     .copy = copy_piece,
                                     .end = end_image,
                                     .bytes_per_second = (uint64_t)s->config->copy_rate,
                                     .piece_bytes = piece_bytes,
                                     .hold = s->device_copy != NULL ? hold_lane : NULL,
                                     .user = s};
    return copier_open(&s->copier, &options);
}

bool snapshot_post_copy(struct snapshot *s, uint32_t block, const struct op *op)
{
    bool is_new = false;
    for (uint32_t i = 0; i < s->state->num_slices && s->copying_step >= 0; i++) {
        if (s->state->slices[i].block != block)
            continue;
        s->ops[i] = s->note_copy != NULL ? op : NULL; /* for copy_piece() */
        is_new = copier_post(s->copier, i) || is_new;
    }
    return is_new;
}

void snapshot_wait_copy(struct snapshot *s, uint32_t block, struct lane *lane)
{
    for (uint32_t i = 0; i < s->state->num_slices && s->copying_step >= 0; i++)
        if (s->state->slices[i].block == block)
            copier_wait_slice(s->copier, i, lane);
}

/* ---- the session ---- */

static int connect_ckptd(struct snapshot *s)
{
    if (s->config->run[0] == 0)
        return report_error(ERR_INVALID, "set job.run", "the run has no name");
    struct ckpt_options options = {.server = s->config->ckptd_address,
                                   .run = s->config->run,
                                   .rank = s->mesh->world->rank,
                                   .world_size = s->mesh->world->size,
                                   .busy_ms = s->config->when_busy == BUSY_WAIT
                                                  ? (uint32_t)s->config->busy_wait_seconds * 1000u
                                                  : 0};
    ERR_TRY(ckpt_open(&s->ckpt, &options));
    if (s->config->compare_replicas)
        ckpt_compares_replicas(s->ckpt);
    return device_copy_hook(s->device_copy, s->ckpt);
}

static int take_attempt(struct snapshot *s, int64_t answer[2])
{
    struct ckpt_info newest = {0};
    char mesh[96];
    char *config_json;
    ERR_TRY(identity_write_config(&config_json, &s->of, s->origin_json));
    const uint32_t *degree = s->mesh->degree;
    snprintf(mesh, sizeof(mesh),
             "{\"pp\":%u,\"dp_replicate\":%u,\"dp_shard\":%u,\"cp\":%u,\"tp\":%u}", degree[AXIS_PP],
             degree[AXIS_REPLICATE], degree[AXIS_SHARD], degree[AXIS_CP], degree[AXIS_TP]);
    struct ckpt_attempt_options options = {.config_json = config_json,
                                           .identity_json = s->identity_json,
                                           .mesh_json = mesh,
                                           .data_json = s->data_json,
                                           .code_version = report_version};
    uint64_t attempt = 0;
    int rc = ckpt_attempt_take(s->ckpt, &attempt, &newest, &options,
                               s->config->take_over ? CKPT_TAKE_OVER : 0);
    answer[0] = (int64_t)attempt;
    answer[1] = newest.attempt == 0 ? -1 : (int64_t)newest.step;
    free(config_json);
    return rc;
}

enum ckpt_level snapshot_level(const struct snapshot *s)
{
    static const enum ckpt_level levels[] = {[DURABLE_LOCAL] = CKPT_LEVEL_LOCAL,
                                             [DURABLE_REPLICATED] = CKPT_LEVEL_REPLICATED,
                                             [DURABLE_BUCKET] = CKPT_LEVEL_BUCKET};
    return levels[s->config->durability];
}

/* Fails if ckptd never reaches checkpoint.durability: now, instead of after days of training. */
static int check_level(const struct snapshot *s)
{
    enum ckpt_level level = snapshot_level(s);
    if (level == CKPT_LEVEL_LOCAL)
        return 0;
    int rc = ckpt_save_wait_for(s->ckpt, 0, level, 0);
    if (rc == ERR_INVALID)
        return rc;
    report_clear();
    return 0;
}

/* Bytes per second that this rank copies past the cache, as a save does, while other ranks copy,
 * too. 0: no memory. Both buffers are touched before the measurement. */
static double measure_copy(void)
{
    unsigned char *from = malloc(TRY_BYTES), *to = malloc(TRY_BYTES);
    double rate = 0;
    if (from != NULL && to != NULL) {
        memset(from, 1, TRY_BYTES);
        memset(to, 2, TRY_BYTES);
        double start = clock_seconds();
        stream_copy(to, from, TRY_BYTES);
        rate = TRY_BYTES / (clock_seconds() - start + 1e-9);
    }
    free(from);
    free(to);
    return rate;
}

/* Logs the expected duration of a save's copy. For a state on a device nothing is measured: the
 * first save shows it. */
static void log_expected(const struct snapshot *s)
{
    double rate = s->device_copy == NULL ? measure_copy() : 0;
    if (snapshot_is_rank_0(s) && rate > 0)
        log_info("checkpoint",
                 "a save copies %.1f MiB per rank: %.1f ms expected, at %.2f GB/s as measured here",
                 (double)s->bytes / 1048576.0, 1e3 * (double)s->bytes / rate, rate * 1e-9);
}

/* Logs how long ckptd's disk has room for saves; on rank 0. */
static void log_room(const struct snapshot *s)
{
    const struct config *config = s->config;
    int64_t room = ckpt_room_saves(s->ckpt), begin = s->newest_step > 0 ? s->newest_step : 0;
    bool is_timed = config->interval_type == INTERVAL_SECONDS;
    char full[64];
    double hours = ckpt_hours_to_full(s->ckpt);
    if (hours >= 0 && hours < INFINITY)
        log_info("checkpoint", "ckptd's disk is full in %.1f hours at the rate of its last saves",
                 hours);
    if (room < 0)
        return;
    if (config->interval_type == INTERVAL_AUTO) {
        log_warn(
            "checkpoint",
            "ckptd's disk has room for %" PRId64
            " saves, and no rule of ckptd removes older ones: set retention.keep_last of ckptd",
            room);
        return;
    }
    if (is_timed)
        snprintf(full, sizeof(full), "%.1f hours", (double)room * (double)config->interval / 3600);
    else
        snprintf(full, sizeof(full), "step %.0f",
                 (double)begin + (double)room * (double)config->interval);
    if (!is_timed && room > (config->steps - begin) / config->interval)
        log_info("checkpoint",
                 "ckptd's disk has room for %" PRId64 " saves, and no rule of ckptd removes older "
                 "ones: those of this run fit, one each %" PRId64 " steps (checkpoint.interval)",
                 room, config->interval);
    else
        log_warn("checkpoint",
                 "ckptd's disk has room for %" PRId64
                 " saves, and no rule of ckptd removes older ones: with one each %" PRId64
                 " %s (checkpoint.interval) it is full after %s; set retention.keep_last of ckptd",
                 room, config->interval, config->text.interval_type, full);
}

/* Describes the tensors, and the files of the folder that the run began with, which are known
 * now. */
static int describe(struct snapshot *s)
{
    struct ckpt_tensor *tensors = realloc(s->tensors, (num_pieces(s) + 1) * sizeof(*tensors));
    if (tensors == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to describe %u tensors", num_pieces(s));
    s->tensors = tensors;
    folder_files_describe(tensors + s->num_tensors, &s->files);
    return ckpt_describe(s->ckpt, s->attempt, tensors, num_pieces(s));
}

int snapshot_take(struct snapshot *s)
{
    if (s->ckpt == NULL)
        return 0;
    CHECK(s->attempt == 0);
    struct comm *world = s->mesh->world;
    int64_t answer[2] = {0, -1}; /* attempt, newest step */
    double start = clock_seconds();
    ERR_TRY(parallel_agree(s->mesh->world, snapshot_is_rank_0(s) ? take_attempt(s, answer) : 0));
    ERR_TRY(comm_broadcast(world, answer, sizeof(answer), 0));
    s->attempt = s->times.attempt = (uint64_t)answer[0];
    ERR_TRY(parallel_agree(world, snapshot_is_rank_0(s) ? check_level(s) : 0));
    s->newest_step = answer[1];
    ERR_TRY(parallel_agree(s->mesh->world, describe(s)));
    s->times.attempt_seconds += clock_seconds() - start;
    if (snapshot_is_rank_0(s))
        log_info("checkpoint", "run %s: attempt %" PRIu64 " at %s", s->config->run, s->attempt,
                 s->config->ckptd_address);
    if (snapshot_is_rank_0(s) && s->config->keep_latest_k > 0)
        log_info("checkpoint",
                 "checkpoint.keep_latest_k = %" PRId64
                 " is a request: ckptd follows it only if its retention.trainers is set",
                 s->config->keep_latest_k);
    snapshot_note(s, true);
    log_expected(s);
    if (snapshot_is_rank_0(s))
        log_room(s);
    return parallel_agree(world, open_copier(s));
}

int snapshot_open(struct snapshot **out, const struct snapshot_options *options)
{
    struct snapshot *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the snapshots");
    s->config = options->config;
    s->mesh = options->mesh;
    s->state = options->state;
    s->kernels = options->kernels;
    s->history = options->history;
    s->of = (struct identity){.config = options->config,
                              .data = options->data,
                              .model = options->model,
                              .kernels = kernels_describe(options->kernels),
                              .environment = options->environment};
    s->want_stop = options->want_stop;
    s->note_copy = options->note_copy;
    s->user = options->user;
    ckpt_heed_stop(options->want_stop);
    s->asked_at = options->asked_at;
    s->grace_end = INFINITY;
    s->newest_step = s->pending_step = s->durable_step = s->copying_step = -1;
    s->newest_durable = s->spreading.step = -1;
    int rc = 0;
    if (s->config->checkpoint_enable) {
        rc = identity_write(&s->identity_json, &s->data_json, &s->of);
        if (rc == 0)
            rc = describe_tensors(s);
        if (rc == 0)
            rc = device_copy_open(&s->device_copy, s->state,
                                  s->config->compare_copies ? s->kernels : NULL);
        if (rc == 0 && s->config->compare_replicas)
            rc = replicas_open(&s->replicas, s->mesh, s->state, options->kernels);
        rc = parallel_agree(s->mesh->world, rc);
        double start = clock_seconds();
        if (rc == 0)
            rc = parallel_agree(s->mesh->world, connect_ckptd(s));
        s->times.attempt_seconds = clock_seconds() - start;
    }
    if (rc != 0) {
        snapshot_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

/* ckptd takes one description per attempt, so this takes the run's next attempt. */
int snapshot_leave_moments_out(struct snapshot *s)
{
    struct comm *world = s->mesh->world;
    copier_close(s->copier);
    s->copier = NULL;
    free(s->order);
    free(s->copied_at);
    free(s->copied_for);
    free(s->ops);
    s->order = s->copied_at = s->copied_for = NULL;
    s->ops = NULL;
    s->num_tensors = s->state->num_slices;
    s->bytes = s->state->count * sizeof(float);
    s->has_no_moments = true;
    s->attempt = 0;
    snapshot_note(s, false);
    ckpt_close(s->ckpt);
    s->ckpt = NULL;
    ERR_TRY(parallel_agree(world, 0));
    ERR_TRY(parallel_agree(world, connect_ckptd(s)));
    return snapshot_take(s);
}

bool snapshot_is_taken(const struct snapshot *s)
{
    return s->attempt != 0;
}

void snapshot_close(struct snapshot *s)
{
    if (s == NULL)
        return;
    snapshot_note(s, false);
    copier_close(s->copier); /* the last user of the handle */
    if (s->ckpt != NULL)
        ckpt_close(s->ckpt);
    device_copy_close(s->device_copy); /* ckptd's memory is unmapped */
    replicas_close(s->replicas);
    free(s->order);
    free(s->copied_at);
    free(s->copied_for);
    free(s->ops);
    free(s->tensors);
    free(s->names);
    folder_files_free(&s->files);
    free(s->identity_json);
    free(s->data_json);
    free(s->orders_json);
    free(s->origin_json);
    free(s);
}

const struct snapshot_times *snapshot_times(const struct snapshot *s)
{
    return &s->times;
}
