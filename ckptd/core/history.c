/* history.c - the journal of a run: commits, pins, removals, takeovers, with user and time.
 *
 * An event is first a line in memory. HISTORY_MS later a worker appends the lines to the run's
 * journal (proto/format/history.h), so a burst of events is one write, and no save waits for it. A
 * shutdown writes the remaining lines; a kill loses at most those of the last second. The journal
 * only informs. If it cannot be written (a full disk), lines wait in memory, up to PENDING_MAX of a
 * run; later ones are lost, and ckptd logs that. The log has every event in any case. */
#include "ckptd/core/history.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "proto/base/report.h"
#include "proto/format/history.h"
#include "proto/format/manifest.h"
#include "storage/numbered.h"
#include "storage/store/store.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HISTORY_MS 1000
#define PENDING_MAX (16u << 10)

/* For all runs: one journal is written at a time. */
struct journals {
    struct service *service;
    struct timer timer;
    bool is_busy, must_write;
    const struct run *writing; /* whose journal a worker writes, or NULL */
};

struct journal {
    struct service *service;
    struct run *run;
    struct rpc_call *call; /* the call History, which only reads; NULL: writes `lines` */
    char *lines;
    char *text; /* of the journal */
    char now[HISTORY_NOW_MAX];
    struct fault fault;
    struct job job;
};

static void free_journal(struct journal *journal)
{
    free(journal->lines);
    free(journal->text);
    free(journal);
}

/* ---- writing, on a worker ---- */

static int read_text(struct journal *journal, uint64_t *out_number)
{
    journal->text = calloc(1, HISTORY_BYTES_MAX + PENDING_MAX + HISTORY_NOW_MAX);
    if (!journal->text)
        return report_error(ERR_MEMORY, NULL, "no memory for a journal");
    return store_read_history(journal->text, HISTORY_BYTES_MAX + 1, out_number,
                              journal->service->storage, journal->run->name);
}

static void work_write(struct job *job)
{
    struct journal *journal = CONTAINER_OF(job, struct journal, job);
    char folder[STORAGE_KEY_MAX];
    uint64_t number;
    int error = read_text(journal, &number);
    if (error == 0) {
        char *text = journal->text;
        strcat(text, journal->lines);
        while (strlen(text) > HISTORY_BYTES_MAX && strchr(text, '\n'))
            text = strchr(text, '\n') + 1;
        snprintf(folder, sizeof folder, "%s/" HISTORY_FOLDER, journal->run->name);
        error = storage_publish_numbered(journal->service->storage, folder, number, text);
    }
    if (error != 0)
        fault_take(&journal->fault, error);
}

static void write_next(struct service *service);

/* The first `bytes`, which are on disk, or more where history_drop came meanwhile. */
static void drop_lines(struct history *history, size_t bytes)
{
    bytes = bytes < history->dropped ? history->dropped : bytes;
    memmove(history->lines, history->lines + bytes, history->bytes - bytes + 1);
    history->bytes -= bytes;
    history->dropped = 0;
}

static void written(struct event *event)
{
    struct journal *journal = CONTAINER_OF(event, struct journal, job.done);
    struct service *service = journal->service;
    struct history *history = &journal->run->history;
    bool is_written = journal->fault.code == 0;
    service->journals->is_busy = false;
    service->journals->writing = NULL;
    drop_lines(history, is_written ? strlen(journal->lines) : 0);
    if (is_written) {
        service->journals->must_write = true; /* of another run as well */
    } else {
        log_debug("history", "run %s: the journal was not written: %s", journal->run->name,
                  journal->fault.message);
    }
    free_journal(journal);
    if (service->journals->must_write)
        write_next(service);
}

static void write_next(struct service *service)
{
    struct run *run = service->catalog->runs;
    while (run && (run->history.bytes == 0 || run->unreadable.code != 0))
        run = run->next; /* the journal of an unreadable run, or one in removal, is not written */
    if (!run || service->journals->is_busy)
        return;
    struct journal *journal = calloc(1, sizeof *journal);
    char *lines = journal ? strdup(run->history.lines) : NULL;
    if (!lines) {
        free(journal);
        return;
    }
    service->journals->writing = run;
    *journal = (struct journal){.service = service,
                                .run = run,
                                .lines = lines,
                                .job = {.work = work_write, .done.run = written}};
    service->journals->is_busy = true;
    service->journals->must_write = false;
    loop_work(service->loop, &journal->job);
}

bool history_is_written(const struct run *run)
{
    return run->service->journals->writing == run;
}

static void time_to_write(struct timer *timer)
{
    write_next(CONTAINER_OF(timer, struct journals, timer)->service);
}

int history_open(struct service *service)
{
    struct journals *journals = calloc(1, sizeof *journals);
    if (!journals)
        return report_error(ERR_MEMORY, NULL, "no memory for the service");
    *journals = (struct journals){.service = service, .timer.run = time_to_write};
    service->journals = journals;
    return 0;
}

void history_close(struct service *service)
{
    free(service->journals);
    service->journals = NULL;
}

void history_hurry(struct service *service)
{
    loop_timer_cancel(service->loop, &service->journals->timer);
    write_next(service);
}

/* ---- events ---- */

/* Actor and detail of an event, as printable text. */
struct said {
    char by[RPC_WHO_MAX], detail[RPC_WHO_MAX + 96];
};

static void describe_event(struct said *out, const struct history_event *event)
{
    char who[RPC_WHO_MAX] = "";
    struct principal principal;
    if (event->call)
        rpc_call_principal(event->call, &principal, who);
    snprintf(out->by, sizeof out->by, "%s", event->call ? who : event->by);
    snprintf(out->detail, sizeof out->detail, "%s", event->detail ? event->detail : "");
    report_make_printable(out->by); /* the text may have been cut */
    report_make_printable(out->detail);
}

void history_log(const char *run, const struct history_event *event)
{
    struct said said;
    char which[64] = "";
    describe_event(&said, event);
    if (event->attempt != 0)
        snprintf(which, sizeof which, ", step %llu, attempt %llu", (unsigned long long)event->step,
                 (unsigned long long)event->attempt);
    log_info("audit", "%s by %s: run %s%s%s%s", event->name, said.by, run, which,
             said.detail[0] ? ": " : "", said.detail);
}

static char *make_line(const struct history_event *event)
{
    char time[32];
    struct said said;
    manifest_now(time);
    describe_event(&said, event);
    json_t *line = json_pack("{ss ss}", "time", time, "event", event->name);
    if (event->attempt != 0)
        json_object_update_new(line, json_pack("{sI sI}", "step", (json_int_t)event->step,
                                               "attempt", (json_int_t)event->attempt));
    json_object_update_new(line, json_pack("{ss ss}", "by", said.by, "detail", said.detail));
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    return text;
}

void history_note(struct run *run, const struct history_event *event)
{
    struct service *service = run->service;
    struct history *history = &run->history;
    history_log(run->name, event);
    if (service->is_closing) /* no thread waits for the write any more */
        return;
    char *line = make_line(event);
    size_t bytes = line ? strlen(line) + 1 : 0;
    if (!history->lines)
        history->lines = calloc(1, PENDING_MAX + 1);
    if (!line || !history->lines || history->bytes + bytes > PENDING_MAX) {
        log_warn("history", "run %s: an event is missing in its journal: %s", run->name,
                 event->name);
        free(line);
        return;
    }
    history->bytes += (size_t)snprintf(history->lines + history->bytes,
                                       PENDING_MAX + 1 - history->bytes, "%s\n", line);
    free(line);
    service->journals->must_write = true;
    if (service->draining) {
        history_hurry(service);
    } else if (!service->journals->timer.armed) {
        loop_timer(service->loop, &service->journals->timer, HISTORY_MS);
    }
}

void history_drop(struct run *run)
{
    struct history *history = &run->history;
    history->dropped = history->bytes;
    if (history->lines && !history_is_written(run))
        drop_lines(history, 0);
}

/* ---- History ---- */

static void work_read(struct job *job)
{
    struct journal *journal = CONTAINER_OF(job, struct journal, job);
    uint64_t number;
    int error = read_text(journal, &number);
    if (error != 0)
        fault_take(&journal->fault, error);
}

static void journal_read(struct event *event)
{
    struct journal *journal = CONTAINER_OF(event, struct journal, job.done);
    Holdfast__V1__HistoryReply reply = HOLDFAST__V1__HISTORY_REPLY__INIT;
    const struct history *history = &journal->run->history;
    /* During a write the lines may be both in the file and in memory: lists them once. */
    if (journal->text && history->bytes > 0 && !strstr(journal->text, history->lines))
        strcat(journal->text, history->lines);
    if (journal->text)
        strcat(journal->text, journal->now);
    reply.lines = journal->text;
    if (journal->fault.code == 0)
        rpc_call_reply(journal->call, &reply.base);
    else
        rpc_call_fail(journal->call, fault_raise(&journal->fault));
    free_journal(journal);
}

void history_call(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__HistoryRequest *request, const char *now)
{
    struct run *run = NULL;
    struct journal *journal = NULL;
    int error = run_find(&run, service, request->run, false);
    if (error == 0) {
        journal = calloc(1, sizeof *journal);
        error = journal ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a journal");
    }
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    *journal = (struct journal){.service = service,
                                .run = run,
                                .call = call,
                                .job = {.work = work_read, .done.run = journal_read}};
    snprintf(journal->now, sizeof journal->now, "%s", now);
    loop_work(service->loop, &journal->job);
}
