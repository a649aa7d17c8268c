/* json.c - jansson, with a lack of memory told from a bad text. */
#include "proto/json.h"
#include "proto/report.h"

#include <pthread.h>
#include <stdlib.h>

static _Thread_local bool lacked_memory;

static void *take(size_t bytes)
{
    void *memory = malloc(bytes);
    lacked_memory = lacked_memory || memory == NULL;
    return memory;
}

/* What jansson took before came from malloc too: free fits both. */
static void watch_memory(void)
{
    json_set_alloc_funcs(take, free);
}

void json_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_memory);
    lacked_memory = false;
}

bool json_end(void)
{
    return !lacked_memory;
}

int json_read(json_t **out, const char *text, size_t bytes, json_error_t *out_reason)
{
    bool before = lacked_memory; /* of an outer json_begin */
    json_begin();
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, out_reason);
    bool is_complete = json_end();
    lacked_memory = before || !is_complete;
    if (is_complete)
        return *out != NULL ? 0 : ERR_CORRUPT;
    json_decref(*out);
    *out = NULL;
    return report_error(ERR_MEMORY, NULL, "no memory to read a text of %zu bytes", bytes);
}
