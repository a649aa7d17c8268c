/* job.h - one part of a corpus: text in, tokens out. Private to trainer/corpus.
 *
 * The reader fills a job with about JOB_BYTES of text: whole objects of JSON, or a part of a
 * document that may be cut there. A worker encodes it into runs of tokens. The writer takes the
 * runs. */
#ifndef HOLDFAST_TRAINER_CORPUS_JOB_H
#define HOLDFAST_TRAINER_CORPUS_JOB_H

#include "trainer/corpus/corpus.h"
#include "trainer/corpus/values.h"

#include "proto/base/report.h"

#define JOB_BYTES (512u << 10)
#define JOB_BYTES_MAX (1u << 30) /* limit for a line, or for a text that cannot be cut */

/* Tokens of a job of one document, masked or trained. */
struct token_run {
    size_t count;
    bool begins; /* the run begins a document */
    bool is_trained;
};

struct job_bad_line {
    uint64_t number;
    char why[200];
};

struct job {
    char *text; /* the encoder repairs it */
    size_t bytes, room;
    enum values_form form;
    bool begins, ends;   /* this part begins, ends the file; of text: the document */
    const char *file;    /* for messages */
    uint64_t first_line; /* number of the first, from 1 */

    int32_t *tokens;
    size_t num_tokens, room_tokens;
    struct token_run *runs;
    uint32_t num_runs, room_runs;
    uint64_t num_lines, bad_lines, mended_lines;
    struct job_bad_line first_bad[CORPUS_BAD_LINES_NAMED];
    char hint[200];        /* for the first bad line */
    uint64_t first_mended; /* its number */
    int result;
    struct report_text failure;
};

/* Encodes a job; the job keeps an error. */
void job_encode(struct job *job, struct encoder *encoder, const struct corpus_options *options);
void job_free(struct job *job);
uint64_t job_count_lines(const char *text, size_t bytes);

#endif
