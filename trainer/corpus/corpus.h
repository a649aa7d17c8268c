/* corpus.h - tokens files from text: files and folders of text or of JSON lines, plain or packed.
 *
 * What a file is, its name says: .jsonl and .ndjson have an object per line, which is a document;
 * .json has that, an array of objects, or objects one behind the other, as its first line says;
 * every other file is one document as a whole. Behind that, .gz and .zst are unpacked.
 * Capitals do not matter. Of a folder the files with a known name are taken (.txt, .text, .md,
 * .jsonl, .ndjson, .json), in the order of their paths, folders inside too; what begins with a dot
 * is left out, and so is any other name, which is counted.
 *
 * A document is begin_of_text, its tokens, end_of_text (what the tokenizer has of both). Of a line
 * with a prompt and an answer the prompt's tokens are marked as not trained on. Empty documents are
 * left out. The file has the same bytes with any number of threads.
 *
 * A folder that training names is prepared once: corpus_prepare() writes its tokens to a cache and
 * finds them there the next time. */
#ifndef HOLDFAST_TRAINER_CORPUS_H
#define HOLDFAST_TRAINER_CORPUS_H

#include "trainer/data/tokens_file.h"
#include "trainer/tokenizer/tokenizer.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CORPUS_PATH_BYTES 4096u
#define CORPUS_THREADS_MAX 1024u
#define CORPUS_FILES_MAX (1u << 20)

/* Members of an object. "a,b": those of a and b, with a line break between. */
struct corpus_fields {
    const char *text;            /* "": "text" */
    const char *prompt, *answer; /* both, in place of text; "": none */
};

struct corpus_options {
    const struct tokenizer *tokenizer;
    const char *const *paths; /* files, folders, "-" for standard input */
    uint32_t num_paths;
    uint32_t threads; /* 0: one for each CPU that the process may use */
    struct corpus_fields fields;
    bool finds_special; /* special tokens in the text are tokens */
    /* Lines that are no objects with the fields are left out and counted: so many of the lines
     * before, and CORPUS_BAD_LINES_FREE of any number; 0: none are, 1: all. */
    double bad_line_share;
    const struct tokenizer_progress *progress; /* may be NULL */
    const volatile sig_atomic_t *want_stop;    /* not 0: ERR_ABORTED within a second; may be NULL */
};

#define CORPUS_BAD_LINES_FREE 10u

/* Files of a folder whose names are no text's: how many, and the first of them. */
#define CORPUS_LEFT_OUT_NAMED 3u
struct corpus_left_out {
    uint64_t count;
    char names[CORPUS_LEFT_OUT_NAMED][128];
};

/* Of JSON: how many lines there are, which are left out, and of how many the text had halves of
 * surrogate pairs. */
#define CORPUS_BAD_LINES_NAMED 8u
#define CORPUS_PLACE_BYTES 512u
struct corpus_lines {
    uint64_t count, bad, mended;
    char first_bad[CORPUS_BAD_LINES_NAMED][CORPUS_PLACE_BYTES];
    char first_mended[CORPUS_PLACE_BYTES];
};

struct corpus_result {
    struct tokens_header header; /* of the tokens file */
    uint64_t num_files, text_bytes;
    struct corpus_lines lines;
    struct corpus_left_out left_out;
};

/* Writes a tokens file, whole or not at all. ERR_INVALID and ERR_CORRUPT name file and line. */
int corpus_write(const char *path, const struct corpus_options *options, struct corpus_result *out);
/* Warns of files that are left out, if there are any. */
void corpus_log_left_out(const struct corpus_left_out *left_out);
/* Likewise of lines that are left out, and of texts that were mended. */
void corpus_log_lines(const struct corpus_lines *lines);

/* ---- cache.c: corpora that training names ---- */

struct corpus_request {
    const char *section;   /* of the configuration, for messages: "training", "validation" */
    const char *dataset;   /* its key dataset: a tokens file, a folder, or a usual name; or "" */
    const char *path;      /* its dataset_path: goes first; or "" */
    const char *tokenizer; /* file, for a folder; or "" */
    struct corpus_fields fields;
    double bad_line_share; /* as above */
    const struct tokenizer_progress *progress;
    const volatile sig_atomic_t *want_stop; /* as above, also while another makes the tokens */
};
/* Writes the path of a tokens file to `out`. A folder is tokenized on the first call, under a lock:
 * others wait for it. ERR_NOT_FOUND says where to put the files of a usual name. */
int corpus_prepare(char out[CORPUS_PATH_BYTES], const struct corpus_request *request);
/* Does the request name a file, which corpus_prepare() hands out without work? */
bool corpus_is_prepared(const struct corpus_request *request);

#endif
