/* durability.c - the levels of durability and their names, in one table. */
#include "proto/format/durability.h"

#include <string.h>

static const char *const names[] = {[DURABLE_NOT] = "",
                                    [DURABLE_ACCEPTED] = "accepted",
                                    [DURABLE_LOCAL] = "local",
                                    [DURABLE_REPLICATED] = "replicated",
                                    [DURABLE_BUCKET] = "bucket"};

const char *durability_text(enum durability durability)
{
    return names[durability];
}

bool durability_parse(enum durability *out, const char *text)
{
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], text) != 0)
            continue;
        *out = (enum durability)i;
        return true;
    }
    return false;
}
