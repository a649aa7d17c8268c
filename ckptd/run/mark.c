/* mark.c - what proves that a directory without a manifest is unfinished work of ckptd (I11 of
 * commit.c; the text is in proto/format/mark.h).
 *
 * The mark is published before the first shard is created, so it is durable before the first byte;
 * it is removed behind the manifest, or behind the last shard of a save that was given up. Whatever
 * is cut short in between, a start finds shards with a mark, or with a manifest. */
#include "ckptd/run/mark.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/store_watch.h"
#include "ckptd/run/attempt.h"
#include "ckptd/run/coordinator.h"
#include "ckptd/run/save.h"
#include "proto/base/report.h"
#include "proto/format/mark.h"
#include "proto/format/places.h"
#include "storage/storage.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void key_of(char out[STORAGE_KEY_MAX + 32], const struct save *save)
{
    snprintf(out, STORAGE_KEY_MAX + 32, "%s/" MARK_NAME, save->dir);
}

/* A save of this step was given up, and a shard of it could not be removed: that one needs its mark
 * at every moment, and for the next save the mark proves the same. */
static bool is_marked_before(const struct save *save, const char *key)
{
    char text[MARK_BYTES_MAX] = "";
    uint64_t bytes;
    return storage_fetch(save->service->storage, key, text, sizeof text - 1, &bytes) == 0 &&
           mark_is_of(save->dir, text);
}

static int publish_mark(const struct save *save)
{
    char key[STORAGE_KEY_MAX + 32], text[MARK_BYTES_MAX];
    struct shard_identity identity;
    struct storage *storage = save->service->storage;
    save_identity(&identity, save, 0);
    if (save->is_part)
        mark_write_part(text, &identity, save->run->coordinator->attempt->coordinator);
    else
        mark_write(text, &identity, save->service->boot_id);
    key_of(key, save);
    int error = storage_publish(storage, key, text, strlen(text));
    if (error != ERR_EXISTS)
        return error;
    if (is_marked_before(save, key))
        return storage_sync_names(storage, save->dir);
    error = storage_remove(storage, key);
    return error == 0 ? storage_publish(storage, key, text, strlen(text)) : error;
}

int mark_make(struct save *save)
{
    int error = 0;
    pthread_mutex_lock(&save->mark_lock);
    if (!save->is_marked) {
        error = save->service->store_watch ? store_watch_check(save->service->store_watch) : 0;
        if (error == 0)
            error = publish_mark(save);
        save->is_marked = error == 0;
    }
    pthread_mutex_unlock(&save->mark_lock);
    return error;
}

void mark_end(const struct save *save)
{
    char key[STORAGE_KEY_MAX + 32];
    key_of(key, save);
    int error = storage_remove(save->service->storage, key);
    if (error != 0 && error != ERR_NOT_FOUND) /* a Gc was faster */
        log_warn("commit", "%s stays until the next start: %s", key, report_line());
}

static int visit_shard(void *user, const struct storage_entry *entry)
{
    bool *any = user;
    *any = *any || (!entry->is_dir && shard_is_file_name(entry->name));
    return 0;
}

void mark_give_up(const struct save *save)
{
    struct storage *storage = save->service->storage;
    char key[STORAGE_KEY_MAX + 32];
    bool any = false;
    key_of(key, save);
    if (storage_list(storage, save->dir, visit_shard, &any) != 0 || any)
        return; /* the next start removes what the mark is on */
    /* Shards that a power loss brings back need it, too. */
    if (save->is_marked && storage_sync_names(storage, save->dir) == 0)
        storage_remove(storage, key);
    snprintf(key, sizeof key, "%s/" PLACES_NAME, save->dir);
    storage_remove(storage, key);
    storage_remove(storage, save->dir);
}
