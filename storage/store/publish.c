/* publish.c - creates a checkpoint; every writer uses this order:
 *
 *   mark ──► shards, places, origin ──► names durable ──► manifest ──► mark removed
 *
 * The mark is durable before the first byte of a shard, and is removed after the manifest is
 * durable. An interruption leaves shards with a mark, which a start of ckptd, gc or the same writer
 * removes, or a whole checkpoint. With a mark beside a manifest the names may not be durable yet: a
 * start makes them durable and removes it. */
#include "storage/numbered.h"
#include "storage/store/private.h"

#include <stdlib.h>
#include <string.h>

int store_put(struct storage *storage, const char *key, const void *text, size_t bytes)
{
    int error = storage_remove(storage, key);
    return error == 0 || error == ERR_NOT_FOUND ? storage_publish(storage, key, text, bytes)
                                                : error;
}

/* A given-up save of this step may have left a shard, which must never be without a mark. The mark
 * is valid for the next save, too. */
static bool is_marked_before(struct storage *storage, const char *prefix, const char *key)
{
    char text[MARK_BYTES_MAX] = "";
    uint64_t bytes;
    return storage_fetch(storage, key, text, sizeof text - 1, &bytes) == 0 &&
           mark_is_of(prefix, text);
}

int store_mark(struct storage *storage, const struct store_mark *mark)
{
    const struct shard_identity *identity = &mark->identity;
    char prefix[STORAGE_KEY_MAX + 1], key[STORAGE_KEY_MAX + 1], text[MARK_BYTES_MAX];
    ERR_TRY(shard_dir_key(prefix, sizeof prefix, identity->run, identity->step, identity->attempt));
    ERR_TRY(note_key_in(key, prefix, MARK_NAME));
    if (mark->coordinator)
        mark_write_part(text, identity, mark->coordinator);
    else
        mark_write(text, identity, mark->boot_id);
    int error = storage_publish(storage, key, text, strlen(text));
    if (error != ERR_EXISTS || !mark->may_replace)
        return error;
    return is_marked_before(storage, prefix, key) ? storage_sync_names(storage, prefix)
                                                  : store_put(storage, key, text, strlen(text));
}

void store_unmark(struct storage *storage, const char *prefix)
{
    char key[STORAGE_KEY_MAX + 1];
    int error = note_key_in(key, prefix, MARK_NAME);
    if (error == 0)
        error = storage_remove(storage, key);
    if (error != 0 && error != ERR_NOT_FOUND)
        log_warn("storage", "%s/" MARK_NAME "could not be removed before the next start: %s",
                 prefix, report_line());
}

int store_put_places(struct storage *storage, const struct manifest_summary *summary,
                     const struct places *places)
{
    char key[STORAGE_KEY_MAX + 1], *text = NULL;
    if (places->num_shards == 0)
        return 0;
    ERR_TRY(places_key(key, sizeof key, summary));
    ERR_TRY(places_write(&text, places, summary->nonce));
    int error = store_put(storage, key, text, strlen(text));
    free(text);
    return error;
}

int store_put_origin(struct storage *storage, const struct manifest_summary *summary,
                     const char *run)
{
    struct manifest_summary settled = *summary, placed = *summary;
    char key[STORAGE_KEY_MAX + 1], text[ORIGIN_BYTES_MAX];
    if (strcmp(summary->run, run) != 0 &&
        store_settle(&settled, storage, run, summary->step, summary->attempt) == 0)
        return 0;
    origin_rename(&placed, run);
    origin_write(text, summary->run, summary->nonce);
    ERR_TRY(origin_key(key, sizeof key, &placed));
    return store_put(storage, key, text, strlen(text));
}

int store_put_verified(struct verified *out, struct storage *storage,
                       const struct manifest_summary *summary, const struct verified *result)
{
    char key[STORAGE_KEY_MAX + 1], text[VERIFIED_BYTES_MAX];
    int error = store_read_verified(out, storage, summary);
    if (error != 0 && error != ERR_NOT_FOUND)
        return error;
    verified_write(text, summary, result, out);
    ERR_TRY(verified_key(key, sizeof key, summary));
    ERR_TRY(store_put(storage, key, text, strlen(text)));
    return store_read_verified(out, storage, summary);
}

int store_put_cursor(struct storage *storage, const char *run, const struct scrub_cursor *cursor)
{
    char folder[STORAGE_KEY_MAX + 1], text[SCRUB_CURSOR_BYTES_MAX];
    ERR_TRY(note_key_in(folder, run, SCRUB_FOLDER));
    scrub_cursor_write(text, cursor);
    return storage_publish_numbered(storage, folder, cursor->number, text);
}

int store_note_unread(struct storage *storage, const struct manifest_summary *summary)
{
    struct scrub_cursor cursor;
    ERR_TRY(store_read_cursor(&cursor, storage, summary->run));
    if (cursor.number == 0)
        return 0;
    scrub_cursor_brought(&cursor, summary->step, summary->attempt);
    return store_put_cursor(storage, summary->run, &cursor);
}

int store_commit(struct storage *storage, const char *prefix, const void *text, size_t bytes)
{
    char key[STORAGE_KEY_MAX + 1];
    ERR_TRY(note_key_in(key, prefix, MANIFEST_NAME));
    ERR_TRY(storage_publish(storage, key, text, bytes));
    store_unmark(storage, prefix);
    return 0;
}
