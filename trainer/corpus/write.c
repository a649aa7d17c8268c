/* write.c - makes a tokens file from files, on all cores (see corpus.h).
 *
 * The calling thread reads and unpacks the files, cuts them into jobs and puts those on a ring;
 * workers encode them, each with its own encoder. The calling thread takes the jobs off the ring in
 * order and writes the tokens. So the file does not depend on the number of threads, nor does the
 * reported error: it is the first in the order of the files. The ring holds JOBS_PER_THREAD jobs
 * per worker, so memory does not grow with the corpus. */
#include "trainer/base/cores.h"
#include "trainer/corpus/corpus.h"
#include "trainer/corpus/job.h"
#include "trainer/corpus/source.h"

#include "proto/base/report.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOBS_PER_THREAD 3u

/* ---- the ring ---- */

enum { SLOT_FREE, SLOT_READY, SLOT_BUSY, SLOT_DONE };

struct slot {
    int state; /* under the lock */
    struct job job;
};

struct pipeline {
    const struct corpus_options *options;
    struct slot *slots;
    uint32_t num_slots, num_threads, num_started;
    uint64_t next_to_fill, next_to_encode, next_to_write; /* numbers of jobs; slot: modulo */
    bool has_ended;                                       /* no more jobs: workers end */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t *threads;
    struct encoder **encoders;
    uint32_t num_workers_begun;
};

static struct slot *slot_of(struct pipeline *pipeline, uint64_t number)
{
    return &pipeline->slots[number % pipeline->num_slots];
}

static void *work(void *user)
{
    struct pipeline *pipeline = user;
    pthread_mutex_lock(&pipeline->lock);
    struct encoder *encoder = pipeline->encoders[pipeline->num_workers_begun++];
    for (;;) {
        struct slot *slot = slot_of(pipeline, pipeline->next_to_encode);
        if (slot->state == SLOT_READY) {
            slot->state = SLOT_BUSY;
            pipeline->next_to_encode++;
            pthread_mutex_unlock(&pipeline->lock);
            job_encode(&slot->job, encoder, pipeline->options);
            pthread_mutex_lock(&pipeline->lock);
            slot->state = SLOT_DONE;
            pthread_cond_broadcast(&pipeline->changed);
        } else if (pipeline->has_ended) {
            break;
        } else {
            pthread_cond_wait(&pipeline->changed, &pipeline->lock);
        }
    }
    pthread_mutex_unlock(&pipeline->lock);
    return NULL;
}

static void end_pipeline(struct pipeline *pipeline)
{
    pthread_mutex_lock(&pipeline->lock);
    pipeline->has_ended = true;
    pthread_cond_broadcast(&pipeline->changed);
    pthread_mutex_unlock(&pipeline->lock);
    for (uint32_t i = 0; i < pipeline->num_started; i++)
        pthread_join(pipeline->threads[i], NULL);
    for (uint32_t i = 0; pipeline->encoders != NULL && i < pipeline->num_threads; i++)
        encoder_close(pipeline->encoders[i]);
    for (uint32_t i = 0; pipeline->slots != NULL && i < pipeline->num_slots; i++)
        job_free(&pipeline->slots[i].job);
    free(pipeline->slots);
    free(pipeline->threads);
    free(pipeline->encoders);
    pthread_mutex_destroy(&pipeline->lock);
    pthread_cond_destroy(&pipeline->changed);
}

static int start_workers(struct pipeline *pipeline)
{
    for (uint32_t i = 0; i < pipeline->num_threads; i++)
        ERR_TRY(encoder_open(&pipeline->encoders[i], pipeline->options->tokenizer));
    for (; pipeline->num_started < pipeline->num_threads; pipeline->num_started++)
        if (pthread_create(&pipeline->threads[pipeline->num_started], NULL, work, pipeline) != 0)
            return report_error(ERR_MEMORY, "ask for fewer --threads",
                                "could not start a thread to encode");
    return 0;
}

static int begin_pipeline(struct pipeline *out, const struct corpus_options *options)
{
    uint32_t threads = options->threads != 0 ? options->threads : cores_visible();
    *out = (struct pipeline){.options = options, .num_threads = threads};
    out->num_slots = JOBS_PER_THREAD * threads;
    pthread_mutex_init(&out->lock, NULL);
    pthread_cond_init(&out->changed, NULL);
    out->slots = calloc(out->num_slots, sizeof *out->slots);
    out->threads = calloc(threads, sizeof *out->threads);
    out->encoders = calloc(threads, sizeof *out->encoders);
    int result =
        out->slots == NULL || out->threads == NULL || out->encoders == NULL
            ? report_error(ERR_MEMORY, NULL, "no memory to encode with %u threads", threads)
            : start_workers(out);
    if (result != 0)
        end_pipeline(out);
    return result;
}

/* ---- writing ---- */

static void write_job(struct tokens_writer *writer, const struct job *job)
{
    const int32_t *tokens = job->tokens;
    for (uint32_t i = 0; i < job->num_runs; i++) {
        const struct token_run *run = &job->runs[i];
        if (run->begins)
            tokens_writer_begin(writer);
        tokens_writer_add(writer, tokens, run->count, run->is_trained);
        tokens += run->count;
    }
}

struct work {
    struct pipeline pipeline;
    struct sources sources;
    struct tokens_writer *writer;
    struct corpus_result *out;
    uint64_t files_bytes; /* of the files that were read completely */
    char hint[200];       /* of the first bad line */
};

/* ---- lines that are left out ---- */

static void name_bad_lines(struct work *work, const struct job *job)
{
    struct corpus_lines *lines = &work->out->lines;
    if (lines->bad == 0)
        snprintf(work->hint, sizeof work->hint, "%s", job->hint);
    for (uint64_t i = 0; i < job->bad_lines && lines->bad + i < CORPUS_BAD_LINES_NAMED; i++)
        snprintf(lines->first_bad[lines->bad + i], CORPUS_PLACE_BYTES,
                 "%.280s, line %" PRIu64 ": %s", job->file, job->first_bad[i].number,
                 job->first_bad[i].why);
    if (lines->mended == 0)
        snprintf(lines->first_mended, CORPUS_PLACE_BYTES, "%.480s, line %" PRIu64, job->file,
                 job->first_mended);
}

static int too_many_bad(const struct work *work)
{
    const struct corpus_lines *lines = &work->out->lines;
    char hint[256];
    snprintf(hint, sizeof hint, "%s, or raise bad_line_share: 1 skips all such lines", work->hint);
    return report_error(ERR_INVALID, hint, "%s; %" PRIu64 " of %" PRIu64 " lines are bad",
                        lines->first_bad[0], lines->bad, lines->count);
}

/* Checks the limit with the jobs so far; only the files' bytes decide where jobs are cut. */
static int count_lines_of(struct work *work, const struct job *job)
{
    struct corpus_lines *lines = &work->out->lines;
    double share = work->pipeline.options->bad_line_share;
    name_bad_lines(work, job);
    lines->count += job->num_lines;
    lines->bad += job->bad_lines;
    lines->mended += job->mended_lines;
    bool is_free = share > 0 && lines->bad <= CORPUS_BAD_LINES_FREE;
    return is_free || (double)lines->bad <= share * (double)lines->count ? 0 : too_many_bad(work);
}

void corpus_log_lines(const struct corpus_lines *lines)
{
    for (uint64_t i = 0; i < lines->bad && i < CORPUS_BAD_LINES_NAMED; i++)
        log_warn("data", "line left out: %s", lines->first_bad[i]);
    if (lines->bad > 0)
        log_warn("data", "lines left out: %" PRIu64 " of %" PRIu64, lines->bad, lines->count);
    if (lines->mended > 0)
        log_warn("data",
                 "texts with half of a surrogate pair, which became U+FFFD: %" PRIu64
                 " (the first: %s)",
                 lines->mended, lines->first_mended);
}

/* ---- the oldest job ---- */

/* Waits for the oldest job and writes it. */
static int write_oldest(struct work *work)
{
    struct pipeline *pipeline = &work->pipeline;
    struct slot *slot = slot_of(pipeline, pipeline->next_to_write);
    pthread_mutex_lock(&pipeline->lock);
    while (slot->state != SLOT_DONE)
        pthread_cond_wait(&pipeline->changed, &pipeline->lock);
    pthread_mutex_unlock(&pipeline->lock);
    if (slot->job.result != 0)
        return report_restore(&slot->job.failure, slot->job.result);
    write_job(work->writer, &slot->job);
    ERR_TRY(count_lines_of(work, &slot->job));
    pthread_mutex_lock(&pipeline->lock);
    slot->state = SLOT_FREE;
    pthread_mutex_unlock(&pipeline->lock);
    pipeline->next_to_write++;
    return 0;
}

/* ---- reading ---- */

/* Takes the next job to fill; writes older jobs until its place on the ring is free. */
static int take_job(struct work *work, struct job **out)
{
    struct pipeline *pipeline = &work->pipeline;
    if (pipeline->next_to_fill - pipeline->next_to_write == pipeline->num_slots)
        ERR_TRY(write_oldest(work));
    *out = &slot_of(pipeline, pipeline->next_to_fill)->job;
    return 0;
}

static void put_job(struct work *work)
{
    struct pipeline *pipeline = &work->pipeline;
    pthread_mutex_lock(&pipeline->lock);
    slot_of(pipeline, pipeline->next_to_fill++)->state = SLOT_READY;
    pthread_cond_broadcast(&pipeline->changed);
    pthread_mutex_unlock(&pipeline->lock);
}

static int reserve_text(struct job *job, size_t bytes)
{
    if (bytes <= job->room)
        return 0;
    if (bytes > JOB_BYTES_MAX)
        return report_error(ERR_INVALID, "put line breaks into it",
                            "%s: a line, or a text without one, is over %u MiB long", job->file,
                            JOB_BYTES_MAX >> 20);
    char *grown = realloc(job->text, bytes);
    if (grown == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to read %s", job->file);
    job->text = grown;
    job->room = bytes;
    return 0;
}

/* The bytes of the job's text that it encodes; the rest belongs to the next job. */
static size_t find_cut(const struct job *job, const struct corpus_options *options)
{
    if (job->form == FORM_TEXT)
        return tokenizer_cut(options->tokenizer, job->text, job->bytes, JOB_BYTES / 2,
                             options->finds_special ? ENCODE_SPECIAL : 0);
    if (job->form != FORM_LINES) {
        size_t at = job->begins ? values_first(job->form, job->text, job->bytes) : 0;
        return values_cut(job->text, at, job->bytes);
    }
    const char *newline = memrchr(job->text, '\n', job->bytes);
    return newline != NULL ? (size_t)(newline - job->text) + 1 : job->bytes;
}

/* Depends only on the file's first JOB_BYTES, however they are read. */
static void settle_form(struct job *job)
{
    if (job->form == FORM_JSON)
        job->form = values_form_of(job->text, job->bytes);
}

/* Reads until the job is full and can be cut, or the file ends. *out_cut: the bytes that belong to
 * it. */
static int fill_job(struct job *job, struct stream *stream, const struct corpus_options *options,
                    size_t *out_cut)
{
    size_t wanted = job->bytes + JOB_BYTES, got = 1;
    while (got > 0) {
        ERR_TRY(reserve_text(job, wanted));
        ERR_TRY(stream_read(stream, job->text + job->bytes, wanted - job->bytes, &got));
        job->bytes += got;
        if (job->bytes < wanted)
            continue;
        settle_form(job);
        *out_cut = find_cut(job, options);
        if (*out_cut < job->bytes)
            return 0;
        wanted = 2 * job->bytes;
    }
    settle_form(job);
    job->ends = true;
    *out_cut = job->bytes;
    return 0;
}

static void report(const struct work *work, const struct stream *stream)
{
    const struct tokenizer_progress *progress = work->pipeline.options->progress;
    if (progress != NULL)
        progress->report(progress->user, "encoding", work->files_bytes + stream_place(stream),
                         work->sources.bytes);
}

static int check_stop(const struct work *work)
{
    const volatile sig_atomic_t *want_stop = work->pipeline.options->want_stop;
    return want_stop == NULL || *want_stop == 0
               ? 0
               : report_error(ERR_ABORTED, "start again: it begins anew", "tokenizing was stopped");
}

/* Moves the rest of the text to the job after `job`. */
static int split_job(struct work *work, struct job *job, size_t cut, struct job **out_next)
{
    struct pipeline *pipeline = &work->pipeline;
    if (pipeline->next_to_fill + 1 - pipeline->next_to_write == pipeline->num_slots)
        ERR_TRY(write_oldest(work));
    struct job *next = *out_next = &slot_of(pipeline, pipeline->next_to_fill + 1)->job;
    next->file = job->file;
    next->bytes = 0;
    ERR_TRY(reserve_text(next, job->bytes - cut + JOB_BYTES));
    memcpy(next->text, job->text + cut, job->bytes - cut);
    next->bytes = job->bytes - cut;
    next->form = job->form;
    next->first_line = job->first_line;
    if (job->form != FORM_TEXT)
        next->first_line += job_count_lines(job->text, cut);
    next->begins = next->ends = false;
    job->bytes = cut;
    return 0;
}

static int read_stream(struct work *work, const struct source *source, struct stream *stream)
{
    struct job *job, *next = NULL;
    size_t cut = 0;
    ERR_TRY(take_job(work, &job));
    job->file = source->path;
    job->form = source->form;
    job->first_line = 1;
    job->bytes = 0;
    job->begins = true;
    job->ends = false;
    for (;; job = next) {
        ERR_TRY(fill_job(job, stream, work->pipeline.options, &cut));
        bool is_last = job->ends;
        if (!is_last)
            ERR_TRY(split_job(work, job, cut, &next));
        work->out->text_bytes += job->bytes;
        put_job(work);
        report(work, stream);
        ERR_TRY(check_stop(work));
        if (is_last)
            return 0;
    }
}

static int read_source(struct work *work, const struct source *source)
{
    struct stream *stream;
    ERR_TRY(stream_open(&stream, source->path));
    int result = read_stream(work, source, stream);
    work->files_bytes += source->bytes;
    stream_close(stream);
    return result;
}

static int run(struct work *work)
{
    for (uint32_t i = 0; i < work->sources.count; i++)
        ERR_TRY(read_source(work, &work->sources.list[i]));
    while (work->pipeline.next_to_write < work->pipeline.next_to_fill)
        ERR_TRY(write_oldest(work));
    const struct corpus_lines *lines = &work->out->lines;
    bool is_all = lines->bad > 0 && lines->bad == lines->count;
    return is_all && work->pipeline.options->bad_line_share < 1 ? too_many_bad(work) : 0;
}

/* ---- all of it ---- */

static int check_fields(const struct corpus_fields *fields)
{
    bool has_prompt = fields->prompt != NULL && fields->prompt[0] != '\0';
    bool has_answer = fields->answer != NULL && fields->answer[0] != '\0';
    return has_prompt == has_answer
               ? 0
               : report_error(ERR_INVALID, "give both, or one text field",
                              "a prompt field needs an answer field, and the other way round");
}

static int open_writer(struct tokens_writer **out, const char *path,
                       const struct corpus_options *options)
{
    const struct tokenizer *tokenizer = options->tokenizer;
    struct tokens_writer_options writer = {.path = path,
                                           .tokenizer_hash = tokenizer_hash(tokenizer),
                                           .vocab = tokenizer_vocab(tokenizer),
                                           .bos = tokenizer_bos(tokenizer),
                                           .eos = tokenizer_eos(tokenizer),
                                           .has_mask = options->fields.prompt != NULL &&
                                                       options->fields.prompt[0] != '\0'};
    return tokens_writer_open(out, &writer);
}

int corpus_write(const char *path, const struct corpus_options *options, struct corpus_result *out)
{
    struct work work = {.out = out};
    int result = check_fields(&options->fields);
    *out = (struct corpus_result){0};
    for (uint32_t i = 0; result == 0 && i < options->num_paths; i++)
        result = sources_add(&work.sources, options->paths[i]);
    if (result == 0)
        result = open_writer(&work.writer, path, options);
    if (result == 0) {
        result = begin_pipeline(&work.pipeline, options);
        if (result == 0) {
            result = run(&work);
            end_pipeline(&work.pipeline);
        }
        out->num_files = work.sources.count;
        out->left_out = work.sources.left_out;
        if (result == 0)
            result = tokens_writer_commit(work.writer, &out->header);
        else
            tokens_writer_abort(work.writer);
    }
    sources_free(&work.sources);
    return result;
}
