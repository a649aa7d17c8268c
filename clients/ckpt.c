/* ckpt.c - libckpt's handle: open, attempt, describe, close. ckpt.h is the contract.
 *
 * save.c saves, load/load.c loads, session.c manages the session with ckptd. */
#include "clients/offline.h"
#include "clients/remote.h"
#include "clients/session.h"

#include "proto/base/clock.h"
#include "proto/base/json.h"
#include "proto/base/process.h"
#include "proto/base/report.h"
#include "proto/format/durability.h"
#include "proto/format/shard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(CKPT_INVALID == (int)ERR_INVALID && CKPT_NOT_FOUND == (int)ERR_NOT_FOUND &&
                   CKPT_STALE == (int)ERR_STALE && CKPT_BUSY == (int)ERR_BUSY &&
                   CKPT_CORRUPT == (int)ERR_CORRUPT && CKPT_UNAVAILABLE == (int)ERR_UNAVAILABLE &&
                   CKPT_TIMEOUT == (int)ERR_TIMEOUT && CKPT_ABORTED == (int)ERR_ABORTED &&
                   CKPT_MISMATCH == (int)ERR_MISMATCH,
               "the codes of ckpt.h are those of report.h");
_Static_assert(CKPT_LEVEL_ACCEPTED == (int)DURABLE_ACCEPTED &&
                   CKPT_LEVEL_LOCAL == (int)DURABLE_LOCAL &&
                   CKPT_LEVEL_REPLICATED == (int)DURABLE_REPLICATED &&
                   CKPT_LEVEL_BUCKET == (int)DURABLE_BUCKET,
               "the levels of ckpt.h are those of durability.h");
_Static_assert(CKPT_PHASE_BUSY == (int)ARENA_PHASE_BUSY &&
                   CKPT_PHASE_QUIET == (int)ARENA_PHASE_QUIET,
               "the phases of ckpt.h are those of arena.h");
_Static_assert(CKPT_DIMS_MAX <= LAYOUT_DIMS_MAX && CKPT_ARRAY_DIMS_MAX == LAYOUT_DIMS_MAX,
               "the limits of ckpt.h are those of layout.h");

#define CONNECT_MS_DEFAULT 10000u
#define DESCRIBE_MS_DEFAULT 60000u
#define CLOSE_MS 60000u /* for the last save of a rank on another node to arrive */

/* The pause after a failed ckpt_renew: at most 0.5 % of training. */
#define LOST_PAUSE_TRIES 200u /* times the duration of the try */
#define LOST_PAUSE_NS_MIN 500000000ull
#define LOST_PAUSE_NS_MAX 60000000000ull

static _Thread_local const volatile int *stop_of_thread;

void ckpt_heed_stop(const volatile int *stop)
{
    stop_of_thread = stop;
}

static int check_options(const struct ckpt_options *options)
{
    const char *run = options->run != NULL ? options->run : "";
    if (options->server == NULL || strlen(options->server) >= sizeof((struct ckpt *)0)->server)
        return report_error(ERR_INVALID, "give unix:/path/to/ckptd.sock",
                            "no server was given, or its name is too long");
    if (!shard_run_is_valid(run) || run[0] == '.' || strlen(run) > SESSION_RUN_MAX)
        return report_error(ERR_INVALID,
                            "letters, digits, '_', '-', '.' but not first, at most 100",
                            "the run name '%.100s' is not allowed", run);
    if (options->rank >= options->world_size)
        return report_error(ERR_INVALID, "ranks are counted from 0",
                            "rank %u does not exist in a world of %u", options->rank,
                            options->world_size);
    return 0;
}

/* Sends Hello until ckptd answers, for at most ckpt->connect_ms: ckptd may still be starting. */
static int connect_first(struct ckpt *ckpt)
{
    uint64_t end = clock_ns() + (uint64_t)ckpt->connect_ms * 1000000u;
    for (;;) {
        uint64_t now = clock_ns();
        uint64_t left_ms = now < end ? (end - now) / 1000000u : 0;
        int error = session_hello(ckpt, left_ms < 1000 ? (uint32_t)left_ms + 1 : 1000);
        if (error == 0)
            return 0;
        if (error != ERR_UNAVAILABLE && error != ERR_TIMEOUT)
            return error;
        if (left_ms <= 2 * ARENA_PAUSE_MS)
            return report_error(ERR_UNAVAILABLE, "start ckptd, or name its socket",
                                "ckptd at %s did not answer within %u ms", ckpt->server,
                                ckpt->connect_ms);
        arena_link_pause();
    }
}

static int open_server(struct ckpt *ckpt)
{
    ERR_TRY(rpc_client_open(&ckpt->rpc, ckpt->server));
    rpc_client_heed_stop(ckpt->rpc, ckpt->stop);
    return connect_first(ckpt);
}

int ckpt_open(struct ckpt **out, const struct ckpt_options *options)
{
    ERR_TRY(check_options(options));
    struct ckpt *ckpt = calloc(1, sizeof *ckpt);
    if (ckpt == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a checkpoint client");
    pthread_mutex_init(&ckpt->alive_lock, NULL);
    strcpy(ckpt->server, options->server);
    strcpy(ckpt->run, options->run);
    ckpt->rank = options->rank;
    ckpt->world_size = options->world_size;
    ckpt->connect_ms = options->connect_ms != 0 ? options->connect_ms : CONNECT_MS_DEFAULT;
    ckpt->describe_ms = options->describe_ms != 0 ? options->describe_ms : DESCRIBE_MS_DEFAULT;
    ckpt->busy_ms = options->busy_ms;
    ckpt->full_hours = -1;
    ckpt->stop = stop_of_thread;
    ckpt->link.socket = -1;
    ckpt->event = -1;
    ckpt->save.ckpt = ckpt;
    session_handle_add(ckpt);
    int error = offline_is_named(ckpt->server) ? offline_open(ckpt) : open_server(ckpt);
    if (error != 0) {
        ckpt_close(ckpt);
        return error;
    }
    *out = ckpt;
    return 0;
}

void ckpt_close(struct ckpt *ckpt)
{
    if (!session_handle_is_open(ckpt))
        return;
    session_handle_remove(ckpt);
    if (!ckpt->save.is_open && session_alive(ckpt))
        remote_wait(ckpt, CLOSE_MS); /* from shared memory ckptd writes the rest itself */
    session_forget(ckpt);
    if (ckpt->rpc != NULL)
        rpc_client_close(ckpt->rpc);
    offline_close(ckpt);
    session_tensors_free(&ckpt->tensors);
    free(ckpt->save.segments);
    session_items_free(ckpt);
    free(ckpt);
}

const char *ckpt_error(void)
{
    return report_line();
}

const char *ckpt_error_hint(void)
{
    return report_hint();
}

static void copy_text(char *out, size_t size, const char *text)
{
    snprintf(out, size, "%s", text != NULL ? text : "");
}

void session_info_fill(struct ckpt_info *out, const Holdfast__V1__CheckpointSummary *summary)
{
    memset(out, 0, sizeof *out);
    if (summary == NULL)
        return;
    copy_text(out->run, sizeof out->run, summary->run);
    copy_text(out->nonce, sizeof out->nonce, summary->nonce);
    copy_text(out->time, sizeof out->time, summary->time);
    copy_text(out->durability, sizeof out->durability, summary->durability);
    out->step = summary->step;
    out->attempt = summary->attempt;
    out->bytes = summary->bytes;
    out->world_size = summary->world_size;
    out->in_memory = summary->in_memory;
}

void session_info_read(struct ckpt_info *out, const struct manifest_summary *summary,
                       const char *durability)
{
    *out = (struct ckpt_info){.step = summary->step,
                              .attempt = summary->attempt,
                              .bytes = summary->bytes,
                              .world_size = summary->world_size};
    copy_text(out->run, sizeof out->run, summary->run);
    copy_text(out->nonce, sizeof out->nonce, summary->nonce);
    copy_text(out->time, sizeof out->time, summary->time);
    copy_text(out->durability, sizeof out->durability, durability);
}

static char *json_or_empty(const char *json)
{
    return (char *)(json != NULL ? json : "{}");
}

/* A token that all starts of one launcher share; "": none is known. */
static void launch_token(char *out, size_t size)
{
    const char *token = getenv("HOLDFAST_LAUNCH_TOKEN"), *job = getenv("SLURM_JOB_ID");
    if (token != NULL && token[0] != '\0')
        snprintf(out, size, "%s", token);
    else
        snprintf(out, size, "%s%s", job != NULL && job[0] != '\0' ? "slurm-" : "",
                 job != NULL ? job : "");
    report_make_printable(out);
}

static int open_attempt(struct ckpt *ckpt, uint64_t *out_attempt, struct ckpt_info *out_newest,
                        const struct ckpt_attempt_options *options, uint32_t flags, bool knows)
{
    ERR_TRY(session_handle_check(ckpt));
    char host[64] = "", launch[128];
    static const struct ckpt_attempt_options none = {0};
    Holdfast__V1__OpenAttemptRequest request = HOLDFAST__V1__OPEN_ATTEMPT_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    options = options != NULL ? options : &none;
    request.run = ckpt->run;
    request.world_size = ckpt->world_size;
    request.config_json = json_or_empty(options->config_json);
    request.identity_json = json_or_empty(options->identity_json);
    request.mesh_json = json_or_empty(options->mesh_json);
    request.data_json = json_or_empty(options->data_json);
    request.code_version = (char *)(options->code_version != NULL ? options->code_version : "");
    process_host(host, sizeof host);
    report_make_printable(host);
    launch_token(launch, sizeof launch);
    request.host = host;
    request.launch = launch;
    request.take_over = (flags & CKPT_TAKE_OVER) != 0;
    request.knows_holder = knows;
    ERR_TRY(session_call(ckpt, &answer, &request.base, SESSION_SETTLE_MS));
    Holdfast__V1__OpenAttemptReply *reply = (Holdfast__V1__OpenAttemptReply *)answer;
    *out_attempt = reply->attempt;
    ckpt->full_hours = reply->full_hours < 0 ? INFINITY : reply->full_hours;
    if (!reply->knows_full)
        ckpt->full_hours = -1;
    if (out_newest != NULL)
        session_info_fill(out_newest, reply->n_checkpoints > 0 ? reply->checkpoints[0] : NULL);
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}

int ckpt_attempt_open(struct ckpt *ckpt, uint64_t *out_attempt, struct ckpt_info *out_newest,
                      const struct ckpt_attempt_options *options)
{
    return open_attempt(ckpt, out_attempt, out_newest, options, 0, false);
}

int ckpt_attempt_take(struct ckpt *ckpt, uint64_t *out_attempt, struct ckpt_info *out_newest,
                      const struct ckpt_attempt_options *options, uint32_t flags)
{
    return open_attempt(ckpt, out_attempt, out_newest, options, flags, true);
}

void ckpt_compares_replicas(struct ckpt *ckpt)
{
    if (session_handle_is_open(ckpt))
        ckpt->compares_replicas = true;
}

static int describe(struct ckpt *ckpt, uint64_t attempt, struct session_tensors *tensors)
{
    if (attempt == 0) {
        session_tensors_free(tensors);
        return report_error(ERR_INVALID, "get a number from ckpt_attempt_open",
                            "attempts are counted from 1");
    }
    session_drop(ckpt);
    session_tensors_free(&ckpt->tensors);
    ckpt->tensors = *tensors;
    ckpt->attempt = attempt;
    /* ckptd may have restarted since the last call. */
    int error = session_hello(ckpt, SESSION_CALL_MS);
    return error != 0 ? error : session_describe(ckpt, ckpt->describe_ms, true);
}

int ckpt_describe(struct ckpt *ckpt, uint64_t attempt, const struct ckpt_tensor *tensors,
                  uint32_t num_tensors)
{
    ERR_TRY(session_handle_check(ckpt));
    struct session_tensors described;
    int error = session_tensors_copy(&described, tensors, num_tensors);
    return error != 0 ? error : describe(ckpt, attempt, &described);
}

int ckpt_describe_arrays(struct ckpt *ckpt, uint64_t attempt, const struct ckpt_array *arrays,
                         uint32_t num_arrays)
{
    ERR_TRY(session_handle_check(ckpt));
    struct session_tensors described;
    int error = session_arrays_copy(&described, arrays, num_arrays, false);
    return error != 0 ? error : describe(ckpt, attempt, &described);
}

bool ckpt_is_lost(const struct ckpt *ckpt)
{
    return session_handle_is_open(ckpt) && ckpt->attempt != 0 && clock_ns() >= ckpt->lost_ns &&
           !session_alive(ckpt);
}

int ckpt_renew(struct ckpt *ckpt)
{
    ERR_TRY(session_handle_check(ckpt));
    if (ckpt->attempt == 0 || ckpt->save.is_open)
        return report_error(ERR_INVALID, "call ckpt_describe first, and end an open save",
                            "a session was renewed %s",
                            ckpt->attempt == 0 ? "before ckpt_describe" : "while a save is open");
    if (session_alive(ckpt))
        return 0;
    uint64_t begin = clock_ns(), retry_ns = ckpt->retry_ns;
    uint32_t backoff_ms = ckpt->backoff_ms;
    ckpt->retry_ns = 0;
    int error = session_renew(ckpt);
    if (error == 0)
        return 0;
    ckpt->retry_ns = retry_ns; /* the next save tries all the same */
    ckpt->backoff_ms = backoff_ms;
    uint64_t end = clock_ns(), pause = LOST_PAUSE_TRIES * (end - begin);
    pause = pause < LOST_PAUSE_NS_MIN ? LOST_PAUSE_NS_MIN : pause;
    ckpt->lost_ns = end + (pause > LOST_PAUSE_NS_MAX ? LOST_PAUSE_NS_MAX : pause);
    return error;
}

int ckpt_find_still(struct ckpt *ckpt, uint32_t *out_rank, double *out_seconds, uint32_t timeout_ms)
{
    ERR_TRY(session_handle_check(ckpt));
    Holdfast__V1__HistoryRequest request = HOLDFAST__V1__HISTORY_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    json_t *event = NULL;
    json_error_t reason;
    request.run = ckpt->run;
    ERR_TRY(session_ask(ckpt, &answer, &request.base, timeout_ms));
    const char *last = ((const Holdfast__V1__HistoryReply *)answer)->lines;
    for (const char *next = last; (next = strchr(next, '\n')) != NULL && *++next != '\0';)
        last = next;
    bool is_found = json_read(&event, last, strlen(last), &reason) == 0 &&
                    json_is_number(json_object_get(event, "seconds"));
    if (is_found) {
        *out_rank = (uint32_t)json_integer_value(json_object_get(event, "rank"));
        *out_seconds = json_number_value(json_object_get(event, "seconds"));
    }
    json_decref(event);
    protobuf_c_message_free_unpacked(answer, NULL);
    return is_found ? 0 : report_error(ERR_NOT_FOUND, NULL, "no process stands still");
}

int ckpt_move(struct ckpt *ckpt, uint32_t index, void *data)
{
    ERR_TRY(session_handle_check(ckpt));
    if (ckpt->attempt == 0 || ckpt->save.is_open)
        return report_error(ERR_INVALID, "describe, move, begin, copy, end: in this order",
                            "a tensor was moved %s",
                            ckpt->attempt == 0 ? "before ckpt_describe" : "while a save is open");
    if (index >= ckpt->tensors.count)
        return report_error(ERR_INVALID, "tensors are counted from 0 in the order described",
                            "tensor %u does not exist among %u", index, ckpt->tensors.count);
    ckpt->tensors.data[index] = data;
    return 0;
}
