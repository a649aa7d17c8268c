/* cache.c - corpora that training names: finds their tokens, or makes them once (see corpus.h).
 *
 * The tokens of a folder lie in FOLDER/.holdfast/KEY.tokens or, where that cannot be written, in
 * the user's cache folder ($XDG_CACHE_HOME/holdfast, else ~/.cache/holdfast). KEY is a hash of all
 * inputs: the tokenizer, the fields, and path, size and time of every file. So changed files give
 * new tokens, and the old ones stay until the operator removes them.
 *
 * The process that makes tokens holds a lock (flock) on KEY.lock beside them; others wait for it
 * and then find the tokens. A tokens file gets its name only when it is complete, so the lock only
 * avoids duplicate work. The next process that makes the tokens removes files of a killed one. */
#include "trainer/corpus/bucket.h"
#include "trainer/corpus/corpus.h"
#include "trainer/corpus/places.h"
#include "trainer/corpus/source.h"

#include "proto/base/checksum.h"
#include "proto/base/report.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CACHE_IN_FOLDER ".holdfast"

/* ---- which files ---- */

/* Names of data sets whose files no program has. */
static const char *const usual_names[] = {"c4", "c4_test", "c4_validation"};

static bool is_usual(const char *name)
{
    for (size_t i = 0; i < sizeof usual_names / sizeof usual_names[0]; i++)
        if (strcmp(usual_names[i], name) == 0)
            return true;
    return false;
}

static int no_files(const struct corpus_request *request, const char *folder)
{
    char hint[CORPUS_PATH_BYTES + 256];
    snprintf(hint, sizeof hint,
             "put its files (.jsonl, .json.gz, .json.zst, .txt) into %s, or name their folder in "
             "%s.dataset_path",
             folder, request->section);
    return report_error(ERR_NOT_FOUND, hint,
                        "%s.dataset = \"%s\": its files are not on this machine", request->section,
                        request->dataset);
}

/* Finds the requested file or folder. */
static int locate(char out[CORPUS_PATH_BYTES], const struct corpus_request *request)
{
    struct stat status;
    const char *named = request->path[0] != '\0' ? request->path : request->dataset;
    if (strlen(named) >= CORPUS_PATH_BYTES - 80)
        return report_error(ERR_INVALID, NULL, "the path is too long: %.200s", named);
    if (bucket_is_named(named))
        return bucket_fetch_corpus(out, named, request);
    strcpy(out, named);
    if (request->path[0] != '\0' || stat(named, &status) == 0)
        return 0;
    if (!is_usual(named))
        return report_error(
            ERR_NOT_FOUND, "name a tokens file, a folder of text or JSON lines, or c4, c4_test",
            "%s.dataset = \"%s\": there is no such file or folder", request->section, named);
    ERR_TRY(places_user_cache(out));
    size_t length = strlen(out);
    snprintf(out + length, CORPUS_PATH_BYTES - length, "/%s", named);
    return stat(out, &status) == 0 ? 0 : no_files(request, out);
}

/* ---- the key ---- */

static void add_text(struct checksum_stream *stream, const char *text)
{
    const char *given = text != NULL ? text : "";
    checksum_stream_add(stream, given, strlen(given) + 1);
}

static int make_key(uint64_t *out, const struct corpus_request *request, const char *tokenizer,
                    const char *folder)
{
    struct sources sources = {0};
    struct checksum_stream *stream = checksum_stream_begin();
    int result = stream != NULL ? sources_add(&sources, folder)
                                : report_error(ERR_MEMORY, NULL, "no memory to list %s", folder);
    if (result == 0) {
        add_text(stream, "corpus 1"); /* changes when the same files give other tokens */
        add_text(stream, tokenizer);
        add_text(stream, request->fields.text);
        add_text(stream, request->fields.prompt);
        add_text(stream, request->fields.answer);
    }
    for (uint32_t i = 0; result == 0 && i < sources.count; i++) {
        const struct source *source = &sources.list[i];
        const uint64_t facts[3] = {source->bytes, (uint64_t)source->changed.tv_sec,
                                   (uint64_t)source->changed.tv_nsec};
        add_text(stream, source->path + strlen(folder));
        checksum_stream_add(stream, facts, sizeof facts);
    }
    *out = result == 0 ? checksum_stream_value(stream) : 0;
    checksum_stream_end(stream);
    sources_free(&sources);
    return result;
}

/* ---- the cache ---- */

/* Removes files of earlier processes: PATH.NUMBER.tmp. The lock is held, so no process writes
 * one. */
static void remove_unfinished(const char *path)
{
    char folder[CORPUS_PATH_BYTES + 8], file[CORPUS_PATH_BYTES + 300];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    const char *name = path + (slash - folder) + 1;
    size_t length = strlen(name);
    *slash = '\0';
    DIR *entries = opendir(folder);
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        const char *end = strrchr(entry->d_name, '.');
        if (strncmp(entry->d_name, name, length) != 0 || end == NULL || strcmp(end, ".tmp") != 0)
            continue;
        snprintf(file, sizeof file, "%s/%s", folder, entry->d_name);
        unlink(file);
    }
    if (entries != NULL)
        closedir(entries);
}

static int make_tokens(const char *out, const char *folder, const struct tokenizer *tokenizer,
                       const struct corpus_request *request)
{
    struct corpus_result made;
    const char *paths[] = {folder};
    struct corpus_options options = {.tokenizer = tokenizer,
                                     .paths = paths,
                                     .num_paths = 1,
                                     .fields = request->fields,
                                     .bad_line_share = request->bad_line_share,
                                     .progress = request->progress,
                                     .want_stop = request->want_stop};
    remove_unfinished(out);
    log_info("data", "making the tokens of %s, once; they are kept as %s", folder, out);
    ERR_TRY(corpus_write(out, &options, &made));
    corpus_log_left_out(&made.left_out);
    corpus_log_lines(&made.lines);
    log_info("data", "%s: %" PRIu64 " tokens of %" PRIu64 " documents in %" PRIu64 " files", folder,
             made.header.num_tokens, made.header.num_documents, made.num_files);
    return 0;
}

static int find_or_make(const char *out, const char *folder, const struct tokenizer *tokenizer,
                        const struct corpus_request *request)
{
    char lock_path[CORPUS_PATH_BYTES + 8];
    int lock;
    if (access(out, R_OK) == 0)
        return 0;
    snprintf(lock_path, sizeof lock_path, "%s.lock", out);
    ERR_TRY(places_lock(&lock, lock_path, request->want_stop));
    int result = access(out, R_OK) == 0 ? 0 : make_tokens(out, folder, tokenizer, request);
    if (result == 0)
        unlink(lock_path); /* waiting processes have it open, and then find the tokens */
    close(lock);
    return result;
}

/* The first cache folder that has the tokens, else the first that is writable. */
static int choose_path(char out[CORPUS_PATH_BYTES], const char *folder, uint64_t key)
{
    char beside[CORPUS_PATH_BYTES], user[CORPUS_PATH_BYTES] = "", name[32];
    snprintf(name, sizeof name, "%016" PRIx64 ".tokens", key);
    if (snprintf(beside, sizeof beside - 40, "%s/" CACHE_IN_FOLDER, folder) >=
        (int)sizeof beside - 40)
        return report_error(ERR_INVALID, NULL, "the path is too long: %.200s", folder);
    snprintf(out, CORPUS_PATH_BYTES, "%.*s/%s", (int)sizeof beside - 40, beside, name);
    if (access(out, R_OK) == 0 || places_make_folder(beside))
        return 0;
    ERR_TRY(places_user_cache(user));
    snprintf(out, CORPUS_PATH_BYTES, "%.*s/%s", (int)sizeof user - 40, user, name);
    if (access(out, R_OK) == 0 || places_make_folder(user))
        return 0;
    return report_error(ERR_DENIED, "make one of them writable",
                        "neither %s nor %s can be written to", beside, user);
}

static int prepare_folder(char out[CORPUS_PATH_BYTES], const char *folder,
                          const struct corpus_request *request)
{
    struct tokenizer *tokenizer;
    uint64_t key;
    if (request->tokenizer[0] == '\0')
        return report_error(ERR_INVALID, "name the tokenizer in model.hf_assets_path",
                            "%s is a folder of text that is not tokenized yet", folder);
    ERR_TRY(tokenizer_open(&tokenizer, request->tokenizer));
    int result = make_key(&key, request, tokenizer_hash(tokenizer), folder);
    if (result == 0)
        result = choose_path(out, folder, key);
    if (result == 0)
        result = find_or_make(out, folder, tokenizer, request);
    tokenizer_close(tokenizer);
    return result;
}

int corpus_prepare(char out[CORPUS_PATH_BYTES], const struct corpus_request *request)
{
    struct stat status;
    char found[CORPUS_PATH_BYTES];
    ERR_TRY(locate(found, request));
    if (stat(found, &status) == 0 && S_ISDIR(status.st_mode))
        return prepare_folder(out, found, request);
    strcpy(out, found); /* errors are reported when it is opened */
    return 0;
}

bool corpus_is_prepared(const struct corpus_request *request)
{
    struct stat status;
    const char *named = request->path[0] != '\0' ? request->path : request->dataset;
    bool is_name = request->path[0] == '\0' && is_usual(named) && stat(named, &status) != 0;
    return named[0] != '\0' && !is_name && !bucket_is_named(named) &&
           (stat(named, &status) != 0 || !S_ISDIR(status.st_mode));
}
