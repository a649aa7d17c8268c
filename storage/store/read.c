/* read.c - reads the small files of a checkpoint's directory: manifest, places, result of a verify,
 * mark. It verifies that each belongs to that directory; the origin file explains a manifest of
 * another run (proto/format/origin.h). */
#include "proto/format/history.h"
#include "storage/numbered.h"
#include "storage/store/private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int report_moved(const struct manifest_summary *summary, const char *run)
{
    return report_error(
        ERR_MISMATCH, "or move it back",
        "it was saved in run %s, and moved or copied here; `ckpt-cli adopt %s` makes it loadable",
        summary->run, run);
}

int store_settle(struct manifest_summary *summary, struct storage *storage, const char *run,
                 uint64_t step, uint64_t attempt)
{
    char key[STORAGE_KEY_MAX + 1], text[ORIGIN_BYTES_MAX];
    uint64_t bytes = 0;
    if (summary->step != step || summary->attempt != attempt)
        return report_error(ERR_MISMATCH, "rename the directory back",
                            "its manifest belongs to %s, step %" PRIu64 ", attempt %" PRIu64,
                            summary->run, summary->step, summary->attempt);
    if (strcmp(summary->run, run) == 0)
        return 0;
    struct manifest_summary settled = *summary;
    origin_rename(&settled, run);
    int error = origin_key(key, sizeof key, &settled);
    if (error == 0)
        error = storage_fetch(storage, key, text, sizeof text, &bytes);
    if (error == 0)
        error = origin_check(text, bytes < sizeof text ? bytes : sizeof text, summary);
    memcpy(summary->origin, settled.origin, sizeof summary->origin);
    if (error == ERR_NOT_FOUND)
        return report_moved(summary, run);
    if (error == 0)
        *summary = settled;
    return error;
}

int store_read_summary(struct manifest_summary *out, struct storage *storage, const char *run,
                       uint64_t step, uint64_t attempt)
{
    char directory[STORAGE_KEY_MAX + 1], key[STORAGE_KEY_MAX + 1], text[MANIFEST_SUMMARY_BYTES];
    uint64_t bytes = 0;
    memset(out, 0, sizeof *out);
    ERR_TRY(shard_dir_key(directory, sizeof directory, run, step, attempt));
    ERR_TRY(note_key_in(key, directory, MANIFEST_NAME));
    ERR_TRY(storage_fetch(storage, key, text, sizeof text, &bytes));
    ERR_TRY(manifest_read_summary(out, text, bytes < sizeof text ? bytes : sizeof text));
    return store_settle(out, storage, run, step, attempt);
}

int store_fetch_manifest(void **out, size_t *out_bytes, struct storage *storage,
                         const struct manifest_summary *summary)
{
    char key[STORAGE_KEY_MAX + 1];
    *out = NULL;
    ERR_TRY(manifest_key(key, sizeof key, summary));
    return storage_fetch_all(storage, key, MANIFEST_BYTES_MAX, out, out_bytes);
}

int store_parse_manifest(struct manifest **out, struct storage *storage,
                         const struct manifest_summary *summary, const void *text, size_t bytes)
{
    *out = NULL;
    int error = manifest_read(out, text, bytes);
    if (error == 0)
        error =
            store_settle(&(*out)->summary, storage, summary->run, summary->step, summary->attempt);
    if (error == 0 && summary->nonce[0] && !manifest_summary_equal(&(*out)->summary, summary))
        error = report_error(ERR_CORRUPT, NULL, "its manifest was replaced after it was listed");
    if (error != 0) {
        manifest_free(*out);
        *out = NULL;
    }
    return error;
}

int store_read_manifest(struct manifest **out, struct storage *storage,
                        const struct manifest_summary *summary)
{
    void *text = NULL;
    size_t bytes = 0;
    *out = NULL;
    int error = store_fetch_manifest(&text, &bytes, storage, summary);
    if (error == 0)
        error = store_parse_manifest(out, storage, summary, text, bytes);
    free(text);
    return error;
}

int store_read_places(struct places *out, struct storage *storage,
                      const struct manifest_summary *summary)
{
    char key[STORAGE_KEY_MAX + 1];
    void *text = NULL;
    size_t bytes = 0;
    memset(out, 0, sizeof *out);
    ERR_TRY(places_key(key, sizeof key, summary));
    int error = storage_fetch_all(storage, key, PLACES_BYTES_MAX, &text, &bytes);
    if (error == 0)
        error = places_read(out, text, bytes, summary);
    free(text);
    return error == ERR_NOT_FOUND ? 0 : error;
}

int store_read_verified(struct verified *out, struct storage *storage,
                        const struct manifest_summary *summary)
{
    char key[STORAGE_KEY_MAX + 1], text[VERIFIED_BYTES_MAX];
    uint64_t bytes = 0;
    struct report_text before;
    *out = (struct verified){0};
    ERR_TRY(verified_key(key, sizeof key, summary));
    report_keep(&before);
    int error = storage_fetch(storage, key, text, sizeof text, &bytes);
    if (error == 0)
        error = verified_read(out, text, bytes < sizeof text ? bytes : sizeof text, summary);
    return error == ERR_NOT_FOUND ? report_restore(&before, error) : error;
}

int store_read_cursor(struct scrub_cursor *out, struct storage *storage, const char *run)
{
    char folder[STORAGE_KEY_MAX + 1], text[SCRUB_CURSOR_BYTES_MAX] = "";
    uint64_t number = 0;
    *out = (struct scrub_cursor){0};
    ERR_TRY(note_key_in(folder, run, SCRUB_FOLDER));
    int error = storage_fetch_numbered(storage, folder, &number, text, sizeof text);
    if (!scrub_cursor_read(out, number, text) || error != 0)
        log_warn("storage", "%s cannot be read: nothing counts as read back", folder);
    return error == ERR_MEMORY ? error : 0;
}

int store_read_history(char *text, size_t size, uint64_t *out_number, struct storage *storage,
                       const char *run)
{
    char folder[STORAGE_KEY_MAX + 1];
    ERR_TRY(note_key_in(folder, run, HISTORY_FOLDER));
    return storage_fetch_numbered(storage, folder, out_number, text, size);
}

int store_read_part(struct shard_identity *out, char out_coordinator[MARK_NODE_BYTES],
                    struct storage *storage, const char *prefix)
{
    char key[STORAGE_KEY_MAX + 1], text[MARK_BYTES_MAX] = "";
    uint64_t bytes = 0;
    out_coordinator[0] = '\0';
    ERR_TRY(note_key_in(key, prefix, MARK_NAME));
    ERR_TRY(storage_fetch(storage, key, text, sizeof text - 1, &bytes));
    if (mark_read_part(out, out_coordinator, prefix, text))
        return 0;
    out_coordinator[0] = '\0';
    return report_error(ERR_NOT_FOUND, NULL, "%s is not of a part of a save", key);
}

int store_read_reason(char *out, size_t size, struct storage *storage, const char *prefix)
{
    int error = store_find_note(storage, STORE_QUARANTINE, prefix, out, size);
    if (error == 0 && out[0] == '\0')
        snprintf(out, size, "no reason was recorded");
    return error;
}
