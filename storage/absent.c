/* absent.c - the back-end "absent": a store that was not reached yet. storage.c refuses every
 * operation with ERR_UNAVAILABLE, so who has it needs no second way to say that its store is away;
 * who opens the store puts it in this one's place. It has no objects and no holds, and there is one
 * of it. */
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
