/* table.c - the parts of the option table as one (see table.h). */
#include "trainer/config/table.h"
#include "proto/base/report.h"

#include <pthread.h>

static struct option joined[CONFIG_KEYS_MAX];

static void join(void)
{
    const struct option *const parts[] = {table_of_model, table_of_ranks, table_of_debug};
    size_t num = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        for (const struct option *option = parts[i]; option->key != NULL; option++) {
            CHECK(num + 1 < CONFIG_KEYS_MAX);
            joined[num++] = *option;
        }
    joined[num] = (struct option)OPTION_END;
}

const struct option *config_table(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, join);
    return joined;
}
