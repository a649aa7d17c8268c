/* attempt.c - attempts: the fencing numbers of a run, and what the ranks said about themselves.
 *
 *   OpenAttempt ──► rings drained ──► commit.c settles older saves ──► COMMIT_TAKE: worker writes
 *   "<run>/attempts/0003", exclusively and durably ──► COMMIT_OPENED: older sessions end, answer
 *
 * The file holds what every manifest of the attempt repeats (config, identity, mesh, data), so a
 * restarted daemon goes on with the newest attempt when its ranks describe themselves again. What
 * the attempt loaded is known only later; it is kept in "0003.loaded" when the attempt saves first.
 *
 * A second OpenAttempt while one is settling takes its place: the first call is answered
 * ERR_ABORTED. Limits: JSON_BYTES_MAX per field. */
#include "ckptd/run/attempt.h"
#include "ckptd/catalog.h"
#include "ckptd/keep/admit.h"
#include "ckptd/loop.h"
#include "ckptd/node/gate.h"
#include "ckptd/node/session.h"
#include "ckptd/run/commit.h"
#include "ckptd/run/describe.h"
#include "ckptd/run/run.h"
#include "ckptd/run/save.h"
#include "ckptd/service.h"
#include "proto/ckpt.pb-c.h"
#include "proto/json.h"
#include "proto/memfile.h"
#include "proto/report.h"
#include "proto/rpc.h"
#include "proto/toml.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTEMPT_FORMAT "holdfast-attempt"
#define ATTEMPT_VERSION 1
#define ATTEMPT_BYTES_MAX (8u << 20)
#define REPLY_CHECKPOINTS_MAX 64u

static void key_of(char *out, size_t size, const struct run *run, uint64_t number, bool loaded)
{
    snprintf(out, size, "%s/attempts/%04llu%s", run->name, (unsigned long long)number,
             loaded ? ".loaded" : "");
}

/* ---- struct attempt ---- */

void attempt_free(struct attempt *attempt)
{
    if (!attempt)
        return;
    free(attempt->config_json);
    free(attempt->identity_json);
    free(attempt->mesh_json);
    free(attempt->data_json);
    free(attempt);
}

int attempt_read_object(json_t **out, const char *text, const char *field)
{
    if (strlen(text) > JSON_BYTES_MAX)
        return report_error(ERR_INVALID, NULL, "%s is larger than %u bytes", field, JSON_BYTES_MAX);
    return json_read_object(out, *text ? text : "{}", field);
}

/* ---- the file ---- */

#define NUM_SECTIONS 4
static const char *const section_names[NUM_SECTIONS] = {"config", "identity", "mesh", "data"};

/* The members but the sections; the text without its closing brace. To be freed. */
static int write_head(char **out, const struct run *run, uint64_t number,
                      const Holdfast__V1__OpenAttemptRequest *request)
{
    json_begin();
    json_t *root = json_object();
    json_object_set_new(root, "format", json_string(ATTEMPT_FORMAT));
    json_object_set_new(root, "version", json_integer(ATTEMPT_VERSION));
    json_object_set_new(root, "run", json_string(run->name));
    json_object_set_new(root, "attempt", json_integer((json_int_t)number));
    json_object_set_new(root, "world_size", json_integer(request->world_size));
    bool is_text =
        json_object_set_new(root, "code_version", json_string(request->code_version)) == 0;
    *out = is_text ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!json_end()) {
        free(*out);
        *out = NULL;
        return report_error(ERR_MEMORY, NULL, "no memory to write an attempt");
    }
    if (!*out)
        return report_error(ERR_INVALID, "all texts must be UTF-8",
                            "the attempt could not be written as JSON");
    (*out)[strlen(*out) - 1] = '\0';
    return 0;
}

/* The text of "<run>/attempts/<number>", its sections as the request has them. To be freed. */
static int write_attempt(char **out, const struct run *run, uint64_t number,
                         const Holdfast__V1__OpenAttemptRequest *request)
{
    const char *sections[NUM_SECTIONS] = {request->config_json, request->identity_json,
                                          request->mesh_json, request->data_json};
    char *head;
    size_t bytes;
    int error = write_head(&head, run, number, request);
    if (error != 0)
        return error;
    FILE *file = memfile_open(out, &bytes);
    if (file) {
        fputs(head, file);
        for (int i = 0; i < NUM_SECTIONS; i++)
            fprintf(file, ",\n\"%s\":%s", section_names[i], *sections[i] ? sections[i] : "{}");
        fputs("}\n", file);
    }
    free(head);
    if (file && memfile_close(file))
        return 0;
    free(*out);
    *out = NULL;
    return report_error(ERR_MEMORY, NULL, "no memory to write an attempt");
}

/* Every manifest repeats them as they were sent. */
static int keep_sections(struct attempt *attempt, const char *text, size_t bytes, const char *key)
{
    char **const sections[NUM_SECTIONS] = {&attempt->config_json, &attempt->identity_json,
                                           &attempt->mesh_json, &attempt->data_json};
    const char *bad;
    int error = json_copy_objects(sections, section_names, NUM_SECTIONS, text, bytes, &bad);
    if (error == ERR_MEMORY)
        return report_error(error, NULL, "no memory for an attempt");
    if (error == ERR_CORRUPT)
        return report_error(error, "open a new attempt", "%s lacks the member '%s'", key, bad);
    return 0;
}

static int read_attempt(struct attempt **out, const char *text, size_t bytes, const char *key)
{
    json_t *root;
    json_error_t reason;
    struct attempt *attempt = calloc(1, sizeof *attempt);
    int error = json_read(&root, text, bytes, &reason);
    const char *format = json_string_value(json_object_get(root, "format"));
    const char *code = json_string_value(json_object_get(root, "code_version"));
    json_int_t world = json_integer_value(json_object_get(root, "world_size"));
    if (!attempt || error == ERR_MEMORY) {
        json_decref(root);
        free(attempt);
        return report_error(ERR_MEMORY, NULL, "no memory for an attempt");
    }
    attempt->number = (uint64_t)json_integer_value(json_object_get(root, "attempt"));
    attempt->world_size = (uint32_t)world;
    snprintf(attempt->code_version, sizeof attempt->code_version, "%s", code ? code : "");
    /* What is no JSON has no format either. */
    if (!format || strcmp(format, ATTEMPT_FORMAT) != 0)
        error = report_error(ERR_CORRUPT, "open a new attempt", "%s is not an attempt", key);
    else if (json_integer_value(json_object_get(root, "version")) != ATTEMPT_VERSION)
        error = report_error(ERR_VERSION, "use a newer ckptd", "%s is of another version", key);
    else if (world < 1 || world > (json_int_t)COMMIT_RANKS_MAX)
        error = report_error(ERR_CORRUPT, "open a new attempt", "%s lacks the member 'world_size'",
                             key);
    else
        error = keep_sections(attempt, text, bytes, key);
    json_decref(root);
    if (error != 0)
        attempt_free(attempt);
    else
        *out = attempt;
    return error;
}

/* ---- the parent ---- */

static void work_keep_parent(struct job *job)
{
    struct attempt_work *work = CONTAINER_OF(job, struct attempt_work, job);
    struct run *run = CONTAINER_OF(work, struct run, parent);
    char key[STORAGE_KEY_MAX];
    key_of(key, sizeof key, run, work->number, true);
    int error = storage_publish(run->service->storage, key, work->text, strlen(work->text));
    if (error != 0 && error != ERR_EXISTS)
        fault_take(&work->fault, error);
}

static void parent_kept(struct event *event)
{
    struct attempt_work *work = CONTAINER_OF(event, struct attempt_work, job.done);
    struct run *run = CONTAINER_OF(work, struct run, parent);
    work->busy = false;
    free(work->text);
    if (work->fault.code != 0)
        log_warn("session", "run %s: what attempt %llu resumed from could not be written: %s",
                 run->name, (unsigned long long)work->number, work->fault.message);
}

void attempt_set_parent(struct run *run, uint64_t step, uint64_t attempt)
{
    if (!run->attempt || run->attempt->parent_is_final)
        return;
    run->attempt->parent_step = step;
    run->attempt->parent_attempt = attempt;
}

void attempt_keep_parent(struct run *run)
{
    struct attempt *attempt = run->attempt;
    struct attempt_work *work = &run->parent;
    attempt->parent_is_final = true; /* from here on workers read it, for manifests */
    if (attempt->parent_kept || attempt->parent_attempt == 0 || work->busy)
        return;
    char text[128];
    snprintf(text, sizeof text, "{\"step\": %llu, \"attempt\": %llu}\n",
             (unsigned long long)attempt->parent_step, (unsigned long long)attempt->parent_attempt);
    *work = (struct attempt_work){.job = {.work = work_keep_parent, .done.run = parent_kept},
                                  .busy = true,
                                  .number = attempt->number,
                                  .text = strdup(text)};
    if (!work->text) {
        work->busy = false;
        return;
    }
    attempt->parent_kept = true;
    loop_work(run->service->loop, &work->job);
}

static void read_parent(struct attempt *attempt, const struct run *run)
{
    char key[STORAGE_KEY_MAX], text[256];
    uint64_t bytes = 0;
    key_of(key, sizeof key, run, attempt->number, true);
    if (storage_fetch(run->service->storage, key, text, sizeof text, &bytes) != 0 ||
        bytes > sizeof text)
        return;
    json_t *root;
    json_error_t reason;
    json_read(&root, text, bytes, &reason);
    attempt->parent_step = (uint64_t)json_integer_value(json_object_get(root, "step"));
    attempt->parent_attempt = (uint64_t)json_integer_value(json_object_get(root, "attempt"));
    attempt->parent_is_final = attempt->parent_kept = true;
    json_decref(root);
}

/* ---- resume after a restart ---- */

static void work_resume(struct job *job)
{
    struct attempt_work *work = CONTAINER_OF(job, struct attempt_work, job);
    struct run *run = CONTAINER_OF(work, struct run, resume);
    char key[STORAGE_KEY_MAX];
    void *text = NULL;
    size_t bytes = 0;
    key_of(key, sizeof key, run, work->number, false);
    int error = storage_fetch_all(run->service->storage, key, ATTEMPT_BYTES_MAX, &text, &bytes);
    if (error == 0)
        error = read_attempt(&work->attempt, text, bytes, key);
    if (error == 0)
        read_parent(work->attempt, run);
    if (error != 0)
        fault_take(&work->fault, error);
    free(text);
}

static void resumed(struct event *event)
{
    struct attempt_work *work = CONTAINER_OF(event, struct attempt_work, job.done);
    struct run *run = CONTAINER_OF(work, struct run, resume);
    struct parked *parked = run->describing;
    run->describing = NULL;
    work->busy = false;
    if (work->attempt &&
        commit_resume(&run->machine, work->number, work->attempt->world_size) == 0 &&
        !run->attempt) {
        run->attempt = work->attempt;
        log_info("session", "run %s: going on with attempt %llu after a restart of ckptd",
                 run->name, (unsigned long long)work->number);
    } else {
        attempt_free(work->attempt);
    }
    work->attempt = NULL;
    while (parked) {
        struct parked *next = parked->next;
        if (work->fault.code != 0)
            rpc_call_fail(parked->call, fault_raise(&work->fault));
        else
            session_describe(run->service, parked->call,
                             (const Holdfast__V1__DescribeRequest *)parked->message);
        free(parked);
        parked = next;
    }
}

bool attempt_resume(struct run *run, struct rpc_call *call,
                    const Holdfast__V1__DescribeRequest *request)
{
    struct attempt_work *work = &run->resume;
    if (run->machine.state != RUN_CLOSED || request->attempt == 0 ||
        request->attempt != run->machine.attempt)
        return false;
    if (run->adopting != 0 && run->adopting >= run->newest_attempt) {
        rpc_call_fail(call, admit_report_busy(run));
        return true;
    }
    struct parked *parked = calloc(1, sizeof *parked);
    if (!parked) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory to describe"));
        return true;
    }
    *parked = (struct parked){run->describing, call, &request->base};
    run->describing = parked;
    if (!work->busy) {
        *work = (struct attempt_work){.job = {.work = work_resume, .done.run = resumed},
                                      .busy = true,
                                      .number = request->attempt};
        loop_work(run->service->loop, &work->job);
    }
    return true;
}

/* ---- open ---- */

static void work_take(struct job *job)
{
    struct attempt_work *work = CONTAINER_OF(job, struct attempt_work, job);
    struct run *run = CONTAINER_OF(work, struct run, take);
    char key[STORAGE_KEY_MAX];
    key_of(key, sizeof key, run, work->number, false);
    int error = storage_publish(run->service->storage, key, work->text, strlen(work->text));
    if (error == 0)
        error = read_attempt(&work->attempt, work->text, strlen(work->text), key);
    if (error != 0)
        fault_take(&work->fault, error);
    else if (storage_groups_prepare(run->service->storage, run->name) != 0)
        log_warn("session", "run %s: a prune may need room that a full disk lacks: %s", run->name,
                 report_line());
}

static void taken(struct event *event)
{
    struct attempt_work *work = CONTAINER_OF(event, struct attempt_work, job.done);
    struct run *run = CONTAINER_OF(work, struct run, take);
    struct commit_actions actions = {0};
    work->busy = false;
    free(work->text);
    work->text = NULL;
    commit_taken(&run->machine, &actions, work->number, work->fault.code);
    run_perform(run, &actions);
}

static void perform_take(struct run *run, uint64_t number)
{
    struct attempt_work *work = &run->take;
    CHECK(!work->busy && run->opening.call);
    attempt_free(work->attempt);
    *work = (struct attempt_work){
        .job = {.work = work_take, .done.run = taken}, .busy = true, .number = number};
    int error = write_attempt(&work->text, run, number,
                              (const Holdfast__V1__OpenAttemptRequest *)run->opening.message);
    if (error == 0) {
        loop_work(run->service->loop, &work->job);
        return;
    }
    struct commit_actions actions = {0};
    fault_take(&work->fault, error);
    work->busy = false;
    commit_taken(&run->machine, &actions, number, error);
    run_perform(run, &actions);
}

static void reply_opened(struct run *run, uint64_t number)
{
    Holdfast__V1__OpenAttemptReply reply = HOLDFAST__V1__OPEN_ATTEMPT_REPLY__INIT;
    Holdfast__V1__CheckpointSummary summaries[REPLY_CHECKPOINTS_MAX];
    Holdfast__V1__CheckpointSummary *pointers[REPLY_CHECKPOINTS_MAX];
    reply.attempt = number;
    reply.boot_id = run->service->boot_id;
    reply.checkpoints = pointers;
    for (struct checkpoint *c = run->checkpoints; c && reply.n_checkpoints < REPLY_CHECKPOINTS_MAX;
         c = c->next) {
        if (c->damaged)
            continue;
        pointers[reply.n_checkpoints] = &summaries[reply.n_checkpoints];
        catalog_summary(&summaries[reply.n_checkpoints++], c);
    }
    rpc_call_reply(run->opening.call, &reply.base);
}

static void perform_opened(struct run *run, uint64_t number)
{
    struct attempt *attempt = run->take.attempt;
    run->take.attempt = NULL;
    CHECK(attempt && attempt->number == number && !run->saves); /* I4, I5 */
    run->newest_attempt = number;
    session_end_older(run, number);
    if (run->group)
        group_free(run->group);
    attempt_free(run->attempt);
    run->attempt = attempt;
    struct checkpoint *newest = catalog_newest(run);
    log_info("session", "run %s: attempt %llu of %u ranks is open; newest checkpoint: step %lld",
             run->name, (unsigned long long)number, attempt->world_size,
             newest ? (long long)newest->summary.step : -1LL);
    reply_opened(run, number);
    run->opening.call = NULL;
}

void run_perform(struct run *run, const struct commit_actions *actions)
{
    for (uint32_t i = 0; i < actions->count; i++) {
        const struct commit_action *action = &actions->items[i];
        switch (action->kind) {
        case COMMIT_TAKE:
            perform_take(run, action->number);
            break;
        case COMMIT_OPENED:
            perform_opened(run, action->number);
            break;
        case COMMIT_NOT_OPENED:
            rpc_call_fail(run->opening.call, fault_raise(&run->take.fault));
            run->opening.call = NULL;
            break;
        default:
            save_perform(run, action);
        }
    }
}

/* Everything that can be wrong is found before the run's saves are touched. */
static int check_open(struct service *service, const Holdfast__V1__OpenAttemptRequest *request)
{
    const char *texts[] = {request->config_json, request->identity_json, request->mesh_json,
                           request->data_json};
    const char *names[] = {"config_json", "identity_json", "mesh_json", "data_json"};
    int error = service_check_open(service);
    if (error == 0 && (request->world_size == 0 || request->world_size > COMMIT_RANKS_MAX))
        error = report_error(ERR_INVALID, NULL, "a world of %u ranks is outside 1 to %u",
                             request->world_size, COMMIT_RANKS_MAX);
    if (error == 0 && strlen(request->code_version) >= sizeof((struct attempt *)0)->code_version)
        error = report_error(ERR_INVALID, NULL, "code_version is longer than 63 bytes");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0] && error == 0; i++) {
        json_t *object = NULL;
        error = attempt_read_object(&object, texts[i], names[i]);
        json_decref(object);
    }
    return error;
}

void attempt_open(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__OpenAttemptRequest *request)
{
    struct run *run = NULL;
    struct commit_actions actions = {0};
    int error = check_open(service, request);
    if (error == 0)
        error = run_find(&run, service, request->run, true);
    if (error == 0 && run->adopting > run->newest_attempt)
        error = admit_report_busy(run);
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    if (run->opening.call)
        rpc_call_fail(
            run->opening.call,
            report_error(ERR_ABORTED, NULL, "another start of the run came after this one"));
    run->opening.call = call;
    run->opening.message = &request->base;
    gate_hurry(service); /* the saves that are to be settled */
    /* What the older ranks have announced counts, even when it was not read yet. */
    session_drain_run(run);
    error = commit_open(&run->machine, &actions, request->world_size);
    CHECK(error == 0); /* check_open has asked */
    if (run->saves)
        log_info("session", "run %s: settling older saves before a new attempt", run->name);
    run_perform(run, &actions);
}
