/* job.c - documents of one job to runs of tokens (see job.h).
 *
 * Lines are read by jansson, one at a time. If it refuses a line, only the requested members are
 * read, so that no other member can spoil a document. A line with a prompt and an answer gives a
 * masked run (begin_of_text and the prompt), and a trained one (the answer and end_of_text). */
#include "trainer/corpus/job.h"
#include "trainer/corpus/values.h"

#include "proto/base/array.h"
#include "proto/base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void job_free(struct job *job)
{
    free(job->text);
    free(job->tokens);
    free(job->runs);
    *job = (struct job){0};
}

#define NAME_BYTES 256 /* of a member */

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

static int encode_text(struct encoding *encoding)
{
    struct job *job = encoding->job;
    size_t mark = job->begins ? values_mark(job->text, job->bytes) : 0;
    if (job->begins && job->ends && job->bytes == mark)
        return 0;
    if (job->begins)
        ERR_TRY(add_begin(encoding, true));
    ERR_TRY(add_text(encoding, job->text + mark, job->bytes - mark,
                     job->begins ? 0 : ENCODE_CONTINUES, true));
    return job->ends ? add_end(encoding) : 0;
}

/* ---- lines ---- */

/* The requested members: the text or the answer, and the prompt or NULL. */
static const char *text_name(const struct corpus_fields *fields)
{
    if (fields->prompt != NULL && fields->prompt[0] != '\0')
        return fields->answer;
    return fields->text != NULL && fields->text[0] != '\0' ? fields->text : "text";
}

static const char *prompt_name(const struct corpus_fields *fields)
{
    return fields->prompt != NULL && fields->prompt[0] != '\0' ? fields->prompt : NULL;
}

/* A member with messages and roles, as data of chat models have; or NULL. */
static const char *find_conversation(const json_t *line)
{
    static const char *const names[] = {"messages", "conversations", "conversation"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (json_is_array(json_object_get(line, names[i])))
            return names[i];
    return NULL;
}

static int member(const json_t **out, const json_t *line, const char *name)
{
    *out = json_object_get(line, name);
    const char *conversation = *out == NULL ? find_conversation(line) : NULL;
    if (json_is_string(*out))
        return 0;
    if (conversation != NULL)
        return report_error(ERR_INVALID,
                            "write each as one text by the model's chat template: python -m "
                            "holdfast from-chat FILE OUT.jsonl --model FOLDER",
                            "\"%s\" holds a conversation, and there is no member \"%s\"",
                            conversation, name);
    return report_error(ERR_INVALID, "name the member that holds the text",
                        *out == NULL ? "there is no member \"%s\"" : "\"%s\" is not a string",
                        name);
}

/* Writes the name at `at` of a list with commas; returns the place of the next one, or NULL. */
static const char *next_name(char out[NAME_BYTES], const char *at)
{
    const char *end = strchrnul(at, ',');
    snprintf(out, NAME_BYTES, "%.*s", (int)(end - at), at);
    return *end == ',' ? end + 1 : NULL;
}

static int append_line(char **text, size_t *bytes, const json_t *part)
{
    size_t more = json_string_length(part), between = *bytes > 0 && more > 0;
    char *grown = realloc(*text, *bytes + between + more + 1);
    if (grown == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to join the members of a line");
    *text = grown;
    memcpy(grown + *bytes, "\n", between);
    memcpy(grown + *bytes + between, json_string_value(part), more);
    *bytes += between + more;
    return 0;
}

/* Adds to a line without a member "a,b" the texts of a and b, with a line break between. */
static int join_members(json_t *line, const char *names)
{
    char name[NAME_BYTES], *text = NULL;
    size_t bytes = 0;
    int result = 0;
    if (strchr(names, ',') == NULL || json_object_get(line, names) != NULL)
        return 0;
    for (const char *at = names; at != NULL && result == 0;) {
        const json_t *part;
        at = next_name(name, at);
        result = member(&part, line, name);
        if (result == 0)
            result = append_line(&text, &bytes, part);
    }
    if (result == 0 && json_object_set_new(line, names, json_stringn(text, bytes)) != 0)
        result = report_error(ERR_MEMORY, NULL, "no memory to join the members of a line");
    free(text);
    return result;
}

static int encode_object(struct encoding *encoding, json_t *line)
{
    const struct corpus_fields *fields = &encoding->options->fields;
    bool is_pair = prompt_name(fields) != NULL;
    const json_t *text, *prompt = NULL;
    ERR_TRY(join_members(line, text_name(fields)));
    if (is_pair) {
        ERR_TRY(join_members(line, prompt_name(fields)));
        ERR_TRY(member(&prompt, line, prompt_name(fields)));
    }
    ERR_TRY(member(&text, line, text_name(fields)));
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

static bool is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

/* Adds the last member of that name to `to`, if the line has one. */
static bool read_member(json_t *to, const char *name, char *line, size_t bytes, bool *is_mended,
                        json_error_t *reason)
{
    struct json_member one, found = {0};
    size_t at = json_first_member(line, bytes);
    while (json_next_member(&one, line, &at, bytes))
        if (json_member_is(&one, name))
            found = one;
    if (found.value == NULL)
        return true;
    *is_mended |= values_mend(line + (found.value - line), found.value_bytes);
    json_t *value =
        json_loadb(found.value, found.value_bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, reason);
    return value != NULL && json_object_set_new(to, name, value) == 0;
}

/* The same for a list of names. */
static bool read_named(json_t *to, const char *names, char *line, size_t bytes, bool *is_mended,
                       json_error_t *reason)
{
    char name[NAME_BYTES];
    bool is_read = read_member(to, names, line, bytes, is_mended, reason);
    for (const char *at = names; is_read && at != NULL && strchr(names, ',') != NULL;) {
        at = next_name(name, at);
        is_read = read_member(to, name, line, bytes, is_mended, reason);
    }
    return is_read;
}

/* The requested members of an object that jansson refuses because it has NaN, an integer beyond 64
 * bits or half of a surrogate pair. NULL with the reason. */
static json_t *read_members(const struct corpus_fields *fields, char *line, size_t bytes,
                            bool *is_mended, json_error_t *reason)
{
    size_t end = line[0] == '{' ? values_end(line, 0, bytes) : VALUE_OPEN;
    if (end > bytes || !is_blank(line + end, bytes - end) || memchr(line, '\0', bytes) != NULL)
        return NULL;
    json_t *found = json_object();
    const char *prompt = prompt_name(fields);
    if ((prompt == NULL || read_named(found, prompt, line, bytes, is_mended, reason)) &&
        read_named(found, text_name(fields), line, bytes, is_mended, reason))
        return found;
    json_decref(found);
    return NULL;
}

static int encode_line(struct encoding *encoding, char *line, size_t bytes, bool *is_mended)
{
    json_error_t reason;
    json_begin();
    json_t *root = json_loadb(line, bytes, JSON_ALLOW_NUL, &reason);
    if (root == NULL)
        root = read_members(&encoding->options->fields, line, bytes, is_mended, &reason);
    int result = 0;
    if (!json_end())
        result = report_error(ERR_MEMORY, NULL, "no memory to read a line");
    else if (!json_is_object(root))
        result = report_error(ERR_INVALID, "a line is one object; other JSON is named .json", "%s",
                              root == NULL ? reason.text : "it is not an object");
    if (result == 0)
        result = encode_object(encoding, root);
    json_decref(root);
    return result;
}

static void note_bad(struct job *job, uint64_t number)
{
    if (job->bad_lines == 0)
        snprintf(job->hint, sizeof job->hint, "%s", report_hint());
    if (job->bad_lines < CORPUS_BAD_LINES_NAMED) {
        struct job_bad_line *bad = &job->first_bad[job->bad_lines];
        bad->number = number;
        snprintf(bad->why, sizeof bad->why, "%s", report_message());
    }
    job->bad_lines++;
}

/* Encodes one object, from its first byte. Whether it is bad depends only on its bytes. */
static int take_line(struct encoding *encoding, char *line, size_t bytes, uint64_t number)
{
    struct job *job = encoding->job;
    size_t num_tokens = job->num_tokens;
    uint32_t num_runs = job->num_runs;
    bool is_mended = false;
    job->num_lines++;
    int result = encode_line(encoding, line, bytes, &is_mended);
    if (result == ERR_INVALID) {
        job->num_tokens = num_tokens;
        job->num_runs = num_runs;
        note_bad(job, number);
        return 0;
    }
    if (is_mended && job->mended_lines++ == 0)
        job->first_mended = number;
    return result;
}

static int encode_lines(struct encoding *encoding)
{
    struct job *job = encoding->job;
    uint64_t number = job->first_line;
    for (size_t at = 0; at < job->bytes; number++) {
        char *line = job->text + at, *end = memchr(line, '\n', job->bytes - at);
        size_t bytes = end != NULL ? (size_t)(end - line) : job->bytes - at;
        at += bytes + 1;
        size_t skipped = values_mark(line, bytes); /* each of several joined files has one */
        while (skipped < bytes && is_blank(line + skipped, 1))
            skipped++;
        if (skipped < bytes)
            ERR_TRY(take_line(encoding, line + skipped, bytes - skipped, number));
    }
    return 0;
}

/* ---- values over several lines ---- */

uint64_t job_count_lines(const char *text, size_t bytes)
{
    uint64_t count = 0;
    for (const char *at = text; (at = memchr(at, '\n', bytes - (size_t)(at - text))) != NULL; at++)
        count++;
    return count;
}

/* The rest of a file after this place cannot be read. */
static int bad_place(const struct job *job, uint64_t line, const char *what)
{
    return report_error(ERR_CORRUPT, "repair the file, or write an object per line (.jsonl)",
                        "%s, line %" PRIu64 ": %s", job->file, line, what);
}

static int encode_values(struct encoding *encoding)
{
    struct job *job = encoding->job;
    char *text = job->text;
    bool is_array = job->form == FORM_ARRAY;
    size_t bytes = job->bytes, counted = 0;
    size_t at = job->begins ? values_first(job->form, text, bytes) : 0;
    uint64_t line = job->first_line;
    while ((at = values_next(text, at, bytes)) < bytes) {
        size_t end = values_end(text, at, bytes);
        line += job_count_lines(text + counted, at - counted);
        counted = at;
        if (is_array && text[at] == ']')
            return job->ends && values_next(text, end, bytes) == bytes
                       ? 0
                       : bad_place(job, line, "the file does not end after the array");
        if (end > bytes)
            return bad_place(job, line, "the value that begins here does not end");
        ERR_TRY(take_line(encoding, text + at, end - at, line));
        at = end;
    }
    return is_array && job->ends ? bad_place(job, line, "the array does not end") : 0;
}

/* ---- files ---- */

static bool begins_with(const struct job *job, const char *bytes)
{
    size_t count = strlen(bytes);
    return job->begins && job->bytes >= count && memcmp(job->text, bytes, count) == 0;
}

/* Refuses bytes that are not text: a model trained on their tokens learns noise. */
static int check_is_text(const struct job *job)
{
    bool has_zeros = memchr(job->text, '\0', job->bytes) != NULL;
    if (begins_with(job, "\xff\xfe") || begins_with(job, "\xfe\xff"))
        return report_error(ERR_INVALID, "convert it: iconv -f UTF-16 -t UTF-8",
                            "%s begins with the byte-order mark of UTF-16", job->file);
    if (has_zeros && begins_with(job, "PAR1"))
        return report_error(
            ERR_INVALID,
            "write its rows as JSON lines: python -m holdfast from-parquet FILE OUT.jsonl",
            "%s is a parquet file", job->file);
    if (has_zeros && job->form == FORM_TEXT)
        return report_error(ERR_INVALID, "unpack it, or convert it to UTF-8 or to JSON lines",
                            "%s has zero bytes: it is not text", job->file);
    return 0;
}

void job_encode(struct job *job, struct encoder *encoder, const struct corpus_options *options)
{
    struct encoding encoding = {.job = job, .encoder = encoder, .options = options};
    job->num_tokens = 0;
    job->num_runs = 0;
    job->num_lines = job->bad_lines = job->mended_lines = 0;
    job->result = check_is_text(job);
    if (job->result == 0)
        job->result = job->form == FORM_TEXT    ? encode_text(&encoding)
                      : job->form == FORM_LINES ? encode_lines(&encoding)
                                                : encode_values(&encoding);
    if (job->result != 0)
        report_keep(&job->failure);
}
