/* job.c - documents of one job to runs of tokens (see job.h).
 *
 * Lines are read by jansson, one at a time. A line with a prompt and an answer gives a run that is
 * not trained on, begin_of_text and the prompt, and one that is, the answer and end_of_text. */
#include "trainer/corpus/job.h"

#include "proto/array.h"
#include "proto/json.h"

#include <stdlib.h>
#include <string.h>

void job_free(struct job *job)
{
    free(job->text);
    free(job->tokens);
    free(job->runs);
    *job = (struct job){0};
}

/* ---- runs ---- */

static int add_run(struct job *job, const int32_t *tokens, size_t count, struct token_run run)
{
    if (count == 0)
        return 0;
    if (job->num_tokens + count > job->room_tokens) {
        size_t room = 2 * (job->num_tokens + count);
        int32_t *grown = realloc(job->tokens, room * sizeof *grown);
        if (grown == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for the tokens of %s", job->file);
        job->tokens = grown;
        job->room_tokens = room;
    }
    ERR_TRY(array_reserve(&job->runs, &job->room_runs, job->num_runs, sizeof run));
    memcpy(job->tokens + job->num_tokens, tokens, count * sizeof *tokens);
    job->num_tokens += count;
    run.count = count;
    job->runs[job->num_runs++] = run;
    return 0;
}

static int add_token(struct job *job, int32_t token, struct token_run run)
{
    return token >= 0 ? add_run(job, &token, 1, run) : 0;
}

/* ---- a document ---- */

struct encoding {
    struct job *job;
    struct encoder *encoder;
    const struct corpus_options *options;
    bool begins; /* the next tokens begin a document */
};

static int add_text(struct encoding *encoding, const char *text, size_t bytes, uint32_t flags,
                    bool is_trained)
{
    const int32_t *tokens;
    size_t count;
    struct token_run run = {.begins = encoding->begins, .is_trained = is_trained};
    flags |= encoding->options->finds_special ? ENCODE_SPECIAL : 0;
    ERR_TRY(encoder_run(encoding->encoder, text, bytes, flags, &tokens, &count));
    encoding->begins = encoding->begins && count == 0;
    return add_run(encoding->job, tokens, count, run);
}

static int add_begin(struct encoding *encoding, bool is_trained)
{
    int32_t bos = tokenizer_bos(encoding->options->tokenizer);
    struct token_run run = {.begins = true, .is_trained = is_trained};
    encoding->begins = bos < 0;
    return add_token(encoding->job, bos, run);
}

static int add_end(struct encoding *encoding)
{
    return add_token(encoding->job, tokenizer_eos(encoding->options->tokenizer),
                     (struct token_run){.begins = encoding->begins, .is_trained = true});
}

/* Bytes of the byte-order mark of UTF-8 that a text begins with: no part of it. */
static size_t mark_bytes(const char *text, size_t bytes)
{
    return bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

static int encode_text(struct encoding *encoding)
{
    struct job *job = encoding->job;
    size_t mark = job->begins ? mark_bytes(job->text, job->bytes) : 0;
    if (job->begins && job->ends && job->bytes == mark)
        return 0;
    if (job->begins)
        ERR_TRY(add_begin(encoding, true));
    ERR_TRY(add_text(encoding, job->text + mark, job->bytes - mark,
                     job->begins ? 0 : ENCODE_CONTINUES, true));
    return job->ends ? add_end(encoding) : 0;
}

/* ---- lines ---- */

static int member(const json_t **out, const json_t *line, const char *name)
{
    *out = json_object_get(line, name);
    if (json_is_string(*out))
        return 0;
    return report_error(ERR_INVALID, "name the member that holds the text, or skip such lines",
                        *out == NULL ? "there is no member \"%s\"" : "\"%s\" is no string", name);
}

static int encode_object(struct encoding *encoding, const json_t *line)
{
    const struct corpus_fields *fields = &encoding->options->fields;
    bool is_pair = fields->prompt != NULL && fields->prompt[0] != '\0';
    const char *name = fields->text != NULL && fields->text[0] != '\0' ? fields->text : "text";
    const json_t *text, *prompt = NULL;
    if (is_pair)
        ERR_TRY(member(&prompt, line, fields->prompt));
    ERR_TRY(member(&text, line, is_pair ? fields->answer : name));
    if (json_string_length(text) == 0)
        return 0;
    ERR_TRY(add_begin(encoding, !is_pair));
    if (is_pair)
        ERR_TRY(
            add_text(encoding, json_string_value(prompt), json_string_length(prompt), 0, false));
    ERR_TRY(add_text(encoding, json_string_value(text), json_string_length(text),
                     is_pair ? ENCODE_CONTINUES : 0, true));
    return add_end(encoding);
}

static int encode_line(struct encoding *encoding, const char *line, size_t bytes)
{
    json_error_t reason;
    json_begin();
    json_t *root = json_loadb(line, bytes, JSON_ALLOW_NUL, &reason);
    int result = 0;
    if (!json_end())
        result = report_error(ERR_MEMORY, NULL, "no memory to read a line");
    else if (!json_is_object(root))
        result = report_error(ERR_INVALID, "a line is one JSON object", "%s",
                              root == NULL ? reason.text : "it is no object");
    if (result == 0)
        result = encode_object(encoding, root);
    json_decref(root);
    return result;
}

static bool is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

static int bad_line(const struct job *job, uint64_t number, int error)
{
    struct report_text why;
    report_keep(&why);
    return report_error(error, why.hint[0] != '\0' ? why.hint : NULL, "%s, line %llu: %s",
                        job->file, (unsigned long long)number, why.message);
}

static int encode_lines(struct encoding *encoding)
{
    struct job *job = encoding->job;
    uint64_t number = job->first_line;
    for (size_t at = 0; at < job->bytes; number++) {
        const char *line = job->text + at, *end = memchr(line, '\n', job->bytes - at);
        size_t bytes = end != NULL ? (size_t)(end - line) : job->bytes - at;
        at += bytes + 1;
        size_t mark = mark_bytes(line, bytes); /* each of files that were joined has one */
        line += mark;
        bytes -= mark;
        int result = is_blank(line, bytes) ? 0 : encode_line(encoding, line, bytes);
        bool is_skipped = result == ERR_INVALID && encoding->options->skips_bad_lines;
        job->skipped_lines += is_skipped;
        if (result != 0 && !is_skipped)
            return bad_line(job, number, result);
    }
    return 0;
}

/* Of the marks that a file may begin with, UTF-16's and UTF-32's say that it is no UTF-8. */
static int check_begin(const struct job *job)
{
    bool is_wide = job->bytes >= 2 &&
                   (memcmp(job->text, "\xff\xfe", 2) == 0 || memcmp(job->text, "\xfe\xff", 2) == 0);
    return job->begins && is_wide
               ? report_error(ERR_INVALID, "convert it: iconv -f UTF-16 -t UTF-8",
                              "%s begins with the byte-order mark of UTF-16", job->file)
               : 0;
}

void job_encode(struct job *job, struct encoder *encoder, const struct corpus_options *options)
{
    struct encoding encoding = {.job = job, .encoder = encoder, .options = options};
    job->num_tokens = 0;
    job->num_runs = 0;
    job->skipped_lines = 0;
    job->result = check_begin(job);
    if (job->result == 0)
        job->result = job->has_lines ? encode_lines(&encoding) : encode_text(&encoding);
    if (job->result != 0)
        report_keep(&job->failure);
}
