/* holds.c - of fault: small objects that exist as long as their holders. A release, or a crash,
 * removes the file unless its name was durable; the list of names (names.h) records that.
 */
#include "tests/fault/fault.h"

#include <stdio.h>
#include <stdlib.h>

int fault_hold(struct storage *storage, struct storage_hold **out, const char *key,
               const void *data, size_t bytes)
{
    struct fault *fault = fault_of(storage);
    ERR_TRY(fault_begin(fault, "hold", key));
    struct fault_hold *hold = calloc(1, sizeof(*hold));
    if (hold == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate a hold");
    snprintf(hold->key, sizeof(hold->key), "%s", key);
    pthread_mutex_lock(&fault->names_mutex);
    int error = fault_names_prepare(&fault->names, key);
    if (error == 0)
        error = storage_hold(fault->inner, &hold->inner, key, data, bytes);
    if (error == 0 && hold->inner != NULL)
        error = fault_names_created(&fault->names, key);
    if (error == 0 && hold->inner != NULL) {
        hold->next = fault->holds;
        fault->holds = hold;
        *out = (struct storage_hold *)hold;
    } else { /* or the wrapped back-end is within one process, and has none */
        storage_release(fault->inner, hold->inner);
        free(hold);
    }
    pthread_mutex_unlock(&fault->names_mutex);
    return error;
}

void fault_release(struct storage *storage, struct storage_hold *base, bool stays)
{
    struct fault *fault = fault_of(storage);
    struct fault_hold *hold = (struct fault_hold *)base;
    pthread_mutex_lock(&fault->names_mutex);
    struct fault_hold **link = &fault->holds;
    while (*link != hold)
        link = &(*link)->next;
    *link = hold->next;
    if (hold->inner != NULL && stays) {
        storage_leave(fault->inner, hold->inner);
    } else if (hold->inner != NULL) {
        storage_release(fault->inner, hold->inner);
        fault_names_released(&fault->names, hold->key);
    }
    pthread_mutex_unlock(&fault->names_mutex);
    free(hold);
}

int fault_find_holder(struct storage *storage, const char *key)
{
    struct fault *fault = fault_of(storage);
    ERR_TRY(fault_begin(fault, "find_holder", key != NULL ? key : ""));
    pthread_mutex_lock(&fault->names_mutex);
    bool is_nobodys = key != NULL ? fault_names_hidden(&fault->names, key)
                                  : !storage_is_shared(fault->inner) && !storage_is_locked(storage);
    int error = is_nobodys ? report_error(ERR_NOT_FOUND, NULL, "nobody holds \"%s\"",
                                          key != NULL ? key : STORAGE_LOCK_NAME)
                           : storage_find_holder(fault->inner, key);
    pthread_mutex_unlock(&fault->names_mutex);
    return error;
}

int fault_sweep(struct storage *storage, const char *prefix, struct storage_sweep *sweep)
{
    struct fault *fault = fault_of(storage);
    ERR_TRY(fault_begin(fault, "sweep", prefix));
    pthread_mutex_lock(&fault->names_mutex);
    int error =
        fault_names_hidden(&fault->names, prefix) ? 0 : storage_sweep(fault->inner, prefix, sweep);
    pthread_mutex_unlock(&fault->names_mutex);
    return error;
}

int fault_crash_holds(struct fault *fault)
{
    int error = 0;
    for (struct fault_hold *hold = fault->holds; hold != NULL && error == 0; hold = hold->next) {
        storage_release(fault->inner, hold->inner);
        if (hold->inner != NULL)
            error = storage_publish(fault->inner, hold->key, NULL, 0);
        hold->inner = NULL;
    }
    return error;
}
