/* mark.c - the mark that proves a directory without a manifest to be unfinished work of ckptd
 * (commit.I11; the text is in proto/format/mark.h).
 *
 * The mark is published before the first shard is created, so it is durable before the first byte;
 * it is removed after the manifest, or after the last shard of a save that was given up. After an
 * interruption at any point a start finds shards with a mark, or with a manifest. */
#include "ckptd/save/mark.h"
#include "ckptd/attempt/attempt.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/store_watch.h"
#include "ckptd/save/save.h"
#include "proto/base/report.h"
#include "proto/format/mark.h"
#include "proto/format/places.h"
#include "storage/store/store.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void key_of(char out[STORAGE_KEY_MAX + 32], const struct save *save)
{
    snprintf(out, STORAGE_KEY_MAX + 32, "%s/" MARK_NAME, save->dir);
}

static int publish_mark(const struct save *save)
{
    struct store_mark mark = {.boot_id = save->service->boot_id, .may_replace = true};
    save_identity(&mark.identity, save, 0);
    if (save->is_part)
        mark.coordinator = save->run->coordinator->attempt->coordinator;
    return store_mark(save->service->storage, &mark);
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
        return; /* the next start removes marked files */
    /* Shards that a power loss restores need it as well. */
    if (save->is_marked && storage_sync_names(storage, save->dir) == 0)
        storage_remove(storage, key);
    snprintf(key, sizeof key, "%s/" PLACES_NAME, save->dir);
    storage_remove(storage, key);
    storage_remove(storage, save->dir);
}
