/* absent.c - the back-end "absent": stands for a store that was not reached yet. storage.c refuses
 * every operation on it with ERR_UNAVAILABLE, so its users need no second check for an absent
 * store. Whoever opens the store later replaces this one by it. It is a single object, without
 * objects and holds. */
#include "storage/engine/engine.h"

static int absent_open(struct storage **out, const char *where,
                       const struct storage_options *options)
{
    static struct storage_base absent = {.ops = &storage_absent, .text = "not reached yet"};
    (void)where, (void)options;
    *out = (struct storage *)&absent;
    return 0;
}

static void absent_close(struct storage *storage)
{
    (void)storage;
}

const struct storage_ops storage_absent = {.name = "absent",
                                           .version = 1,
                                           .flags = STORAGE_ABSENT,
                                           .open = absent_open,
                                           .close = absent_close};
