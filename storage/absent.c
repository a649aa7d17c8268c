/* absent.c - the back-end "absent": a store that was not reached yet. Every operation is refused
 * with ERR_UNAVAILABLE, so who has it needs no second way to say that its store is away; who opens
 * the store puts it in this one's place. It has no objects and no holds, and there is one of it. */
#include "storage/engine/engine.h"

static int refuse(void)
{
    return report_error(ERR_UNAVAILABLE, NULL, "the store was not reached yet");
}

static int absent_open(struct storage **out, const char *where,
                       const struct storage_options *options)
{
    static struct storage_base absent = {.ops = &storage_absent};
    (void)where, (void)options;
    *out = (struct storage *)&absent;
    return 0;
}

static void absent_close(struct storage *storage)
{
    (void)storage;
}

static int absent_object_create(struct storage *storage, struct storage_object **out,
                                const char *key, uint64_t bytes)
{
    (void)storage, (void)out, (void)key, (void)bytes;
    return refuse();
}

static int absent_object_open(struct storage *storage, struct storage_object **out, const char *key,
                              uint64_t *out_bytes)
{
    (void)storage, (void)out, (void)key, (void)out_bytes;
    return refuse();
}

static int absent_sync_names(struct storage *storage, const char *prefix)
{
    (void)storage, (void)prefix;
    return refuse();
}

static int absent_publish(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    (void)storage, (void)key, (void)data, (void)bytes;
    return refuse();
}

static int absent_fetch(struct storage *storage, const char *key, void *data, size_t size,
                        uint64_t *out_bytes)
{
    (void)storage, (void)key, (void)data, (void)size, (void)out_bytes;
    return refuse();
}

static int absent_list(struct storage *storage, const char *prefix,
                       int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    (void)storage, (void)prefix, (void)visit, (void)user;
    return refuse();
}

static int absent_remove(struct storage *storage, const char *key)
{
    (void)storage, (void)key;
    return refuse();
}

static int absent_lock(struct storage *storage)
{
    (void)storage;
    return refuse();
}

static int absent_space(struct storage *storage, struct storage_space *out)
{
    (void)storage, (void)out;
    return refuse();
}

static int absent_hold(struct storage *storage, struct storage_hold **out, const char *key,
                       const void *data, size_t bytes)
{
    (void)storage, (void)out, (void)key, (void)data, (void)bytes;
    return refuse();
}

/* What is held was had from the store that took this one's place. */
static void absent_release(struct storage *storage, struct storage_hold *hold, bool stays)
{
    (void)storage, (void)stays;
    CHECK(hold == NULL);
}

static int absent_find_holder(struct storage *storage, const char *key)
{
    (void)storage, (void)key;
    return refuse();
}

static int absent_sweep(struct storage *storage, const char *prefix, struct storage_sweep *sweep)
{
    (void)storage, (void)prefix, (void)sweep;
    return refuse();
}

static const char *absent_describe(struct storage *storage)
{
    (void)storage;
    return "not reached yet";
}

const struct storage_ops storage_absent = {
    .name = "absent",
    .version = 1,
    .open = absent_open,
    .close = absent_close,
    .object_create = absent_object_create,
    .object_open = absent_object_open,
    .sync_names = absent_sync_names,
    .publish = absent_publish,
    .fetch = absent_fetch,
    .list = absent_list,
    .remove = absent_remove,
    .lock = absent_lock,
    .space = absent_space,
    .hold = absent_hold,
    .release = absent_release,
    .find_holder = absent_find_holder,
    .sweep = absent_sweep,
    .describe = absent_describe,
};
