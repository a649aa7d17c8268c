/* handles.c - see handles.h. */
#include "ckptd/peers/handles.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct handles {
    pthread_mutex_t mutex;
    struct handle *first;
    uint32_t count;
};

int handles_open(struct handles **out)
{
    struct handles *handles = calloc(1, sizeof *handles);
    if (!handles)
        return report_error(ERR_MEMORY, NULL, "no memory for handles");
    pthread_mutex_init(&handles->mutex, NULL);
    *out = handles;
    return 0;
}

void handles_close(struct handles *handles, struct storage *storage)
{
    if (!handles)
        return;
    handles_end(handles->first, storage, true);
    pthread_mutex_destroy(&handles->mutex);
    free(handles);
}

/* With the mutex. Returns the pointer that links the handle; NULL: `who` has no handle with that
 * token. */
static struct handle **find_handle(struct handles *handles, const char *who, uint64_t token)
{
    for (struct handle **at = &handles->first; *at; at = &(*at)->next)
        if ((*at)->token == token && strcmp((*at)->who, who) == 0) /* serve.P3 */
            return at;
    return NULL;
}

static struct handle *take_out(struct handles *handles, struct handle **at)
{
    struct handle *handle = *at;
    *at = handle->next;
    handle->next = NULL;
    handles->count--;
    return handle;
}

/* With the mutex. */
static bool has_room_for(const struct handles *handles, const struct handle *another)
{
    uint32_t readers = 0, own = 0;
    for (const struct handle *at = handles->first; at && !another->is_node; at = at->next) {
        readers += !at->is_node;
        own += strcmp(at->who, another->who) == 0;
    }
    return handles->count < HANDLES_MAX && readers < HANDLES_READERS && own < HANDLES_EACH;
}

int handles_new(struct handles *handles, struct handle **out, const struct principal *who,
                uint64_t client)
{
    struct handle *handle = calloc(1, sizeof *handle);
    if (!handle)
        return report_error(ERR_MEMORY, NULL, "no memory for a handle");
    service_random(&handle->token, sizeof handle->token);
    snprintf(handle->who, sizeof handle->who, "%s", who->name);
    handle->client = client;
    handle->is_node = who->role == ROLE_NODE;
    handle->busy = 1;
    handle->used_ms = clock_ms();
    pthread_mutex_lock(&handles->mutex);
    bool has_room = has_room_for(handles, handle);
    if (has_room) {
        handle->next = handles->first;
        handles->first = handle;
        handles->count++;
        *out = handle;
    }
    pthread_mutex_unlock(&handles->mutex);
    if (has_room)
        return 0;
    free(handle);
    return report_error(ERR_BUSY, "try again", "other nodes have too many objects open here: %u",
                        who->role == ROLE_NODE ? HANDLES_MAX : HANDLES_EACH);
}

static int report_unknown(void)
{
    return report_error(ERR_UNAVAILABLE, "open it again", "the handle is unknown");
}

int handles_use(struct handles *handles, struct handle **out, const char *who, uint64_t token)
{
    pthread_mutex_lock(&handles->mutex);
    struct handle **at = find_handle(handles, who, token);
    if (at) {
        *out = *at;
        (*at)->busy++;
    }
    pthread_mutex_unlock(&handles->mutex);
    return at ? 0 : report_unknown();
}

void handles_used(struct handles *handles, struct handle *handle)
{
    pthread_mutex_lock(&handles->mutex);
    int64_t now = clock_ms();
    handle->busy--;
    for (struct handle *at = handles->first; at; at = at->next)
        if (at->client == handle->client && strcmp(at->who, handle->who) == 0)
            at->used_ms = now;
    pthread_mutex_unlock(&handles->mutex);
}

int handles_take(struct handles *handles, struct handle **out, const char *who, uint64_t token)
{
    pthread_mutex_lock(&handles->mutex);
    struct handle **at = find_handle(handles, who, token);
    bool is_busy = at && (*at)->busy > 0;
    if (at && !is_busy)
        *out = take_out(handles, at);
    pthread_mutex_unlock(&handles->mutex);
    if (is_busy)
        return report_error(ERR_BUSY, "try again", "the handle is in use");
    return at ? 0 : report_unknown();
}

struct handle *handles_take_silent(struct handles *handles, int64_t silent_ms)
{
    struct handle *silent = NULL;
    int64_t now = clock_ms();
    pthread_mutex_lock(&handles->mutex);
    for (struct handle **at = &handles->first; *at;) {
        if ((*at)->busy > 0 || now - (*at)->used_ms < silent_ms) {
            at = &(*at)->next;
            continue;
        }
        struct handle *handle = take_out(handles, at);
        handle->next = silent;
        silent = handle;
    }
    pthread_mutex_unlock(&handles->mutex);
    return silent;
}

void handles_drop(struct handles *handles, struct handle *handle)
{
    pthread_mutex_lock(&handles->mutex);
    struct handle **at = &handles->first;
    while (*at != handle)
        at = &(*at)->next;
    take_out(handles, at);
    pthread_mutex_unlock(&handles->mutex);
    free(handle);
}

void handles_end(struct handle *first, struct storage *storage, bool stays)
{
    while (first) {
        struct handle *handle = first;
        struct storage *at = handle_storage(handle, storage);
        first = handle->next;
        if (handle->object)
            storage_object_close(at, handle->object);
        if (stays)
            storage_leave(at, handle->hold);
        else
            storage_release(at, handle->hold);
        free(handle);
    }
}

int handle_check_range(const struct handle *handle, uint64_t offset, uint64_t bytes)
{
    if (handle->object && bytes > 0 && bytes <= HANDLE_BLOCK_MAX && bytes % STORAGE_ALIGN == 0 &&
        offset % STORAGE_ALIGN == 0 && offset <= handle->bytes && bytes <= handle->bytes - offset)
        return 0;
    return report_error(ERR_INVALID, NULL,
                        "%llu bytes at %llu are not aligned blocks of the object",
                        (unsigned long long)bytes, (unsigned long long)offset);
}

int handle_check_writer(const struct handle *handle)
{
    return handle->object && handle->is_writer
               ? 0
               : report_error(ERR_INVALID, NULL, "the object is not open for writing");
}
