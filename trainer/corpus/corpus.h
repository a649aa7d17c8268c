/* corpus.h - tokens files from text: files and folders of text or of JSON lines, plain or packed.
 *
 * A file's name gives its form. .jsonl and .ndjson have an object per line, which is a document.
 * .json has the same, an array of objects, or consecutive objects, depending on its first line. Any
 * other file is one document. A further .gz or .zst means that the file is packed. Case does not
 * matter. From a folder the files with a known name are read (.txt, .text, .md, .jsonl, .ndjson,
 * .json), in the order of their paths, including subfolders. Names that begin with a dot are
 * skipped, and so are other names, which are counted.
 *
 * A document is begin_of_text, its tokens, end_of_text (if the tokenizer has them). In a line with
 * a prompt and an answer the prompt's tokens are masked: they are not trained on. Empty documents
 * are left out. The file has the same bytes with any number of threads.
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

/* Members of an object. "a,b": both texts, with a line break between. */
struct corpus_fields {
    const char *text;            /* "": "text" */
    const char *prompt, *answer; /* both, instead of text; "": none */
};

struct corpus_options {
    const struct tokenizer *tokenizer;
    const char *const *paths; /* files, folders, "-" for standard input */
    uint32_t num_paths;
    uint32_t threads; /* 0: one for each CPU of the process */
    struct corpus_fields fields;
    bool finds_special; /* special tokens in the text are tokens */
    /* Lines that are not objects with the fields are left out and counted. The limit is this share
     * of the lines so far, and CORPUS_BAD_LINES_FREE in any case; 0: none may be, 1: all. */
    double bad_line_share;
    const struct tokenizer_progress *progress; /* may be NULL */
    const volatile sig_atomic_t *want_stop;    /* not 0: ERR_ABORTED within a second; may be NULL */
};

#define CORPUS_BAD_LINES_FREE 10u

/* Files of a folder with other names than those of texts: their number, and the first of them. */
#define CORPUS_LEFT_OUT_NAMED 3u
struct corpus_left_out {
    uint64_t count;
    char names[CORPUS_LEFT_OUT_NAMED][128];
};

/* For JSON: the number of lines, of lines left out, and of texts with halves of surrogate pairs. */
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

/* Writes a complete tokens file or none. ERR_INVALID and ERR_CORRUPT name file and line. */
int corpus_write(const char *path, const struct corpus_options *options, struct corpus_result *out);
/* Warns of skipped files, if any. */
void corpus_log_left_out(const struct corpus_left_out *left_out);
/* Warns of skipped lines, and of texts that were repaired. */
void corpus_log_lines(const struct corpus_lines *lines);

/* ---- cache.c: corpora that training names ---- */

struct corpus_request {
    const char *section;   /* of the configuration, for messages: "training", "validation" */
    const char *dataset;   /* its key dataset: a tokens file, a folder, or a usual name; or "" */
    const char *path;      /* its dataset_path, takes precedence; or "" */
    const char *tokenizer; /* file, for a folder; or "" */
    struct corpus_fields fields;
    double bad_line_share; /* as above */
    const struct tokenizer_progress *progress;
    const volatile sig_atomic_t *want_stop; /* as above, also during a wait for another process */
};
/* Writes the path of a tokens file to `out`. A folder is tokenized on the first call, under a lock:
 * other processes wait. ERR_NOT_FOUND: the text says where to put the files of a usual name. */
int corpus_prepare(char out[CORPUS_PATH_BYTES], const struct corpus_request *request);
/* True if the request names a tokens file, which corpus_prepare() returns without work. */
bool corpus_is_prepared(const struct corpus_request *request);

#endif
