/* numbered.c - numbered objects, by lists and publications alone (see numbered.h). */
#include "storage/numbered.h"

#include <inttypes.h>
#include <string.h>

/* Tries to fetch a numbered object that is constantly replaced: the limit of lists without one, as
 * when there is none, and of objects that were removed before their fetch. */
#define NUMBERED_NONE_MAX 4u
#define NUMBERED_GONE_MAX 1000u
#define NUMBER_DIGITS 20 /* digits of their names */

static void numbered_key(char out[STORAGE_KEY_MAX + 1], const char *folder, uint64_t number)
{
    CHECK(snprintf(out, STORAGE_KEY_MAX + 1, "%s/%0*" PRIu64, folder, NUMBER_DIGITS, number) <=
          STORAGE_KEY_MAX);
}

/* Ignores other names, so a found object can be fetched, or was replaced. */
static int visit_number(void *user, const struct storage_entry *entry)
{
    uint64_t *newest = user, number = 0;
    const char *digit = entry->name;
    for (; *digit >= '0' && *digit <= '9' && number <= UINT64_MAX / 10 - 1; digit++)
        number = number * 10 + (uint64_t)(*digit - '0');
    if (!entry->is_dir && *digit == '\0' && digit - entry->name == NUMBER_DIGITS &&
        number > *newest)
        *newest = number;
    return 0;
}

int storage_fetch_numbered(struct storage *storage, const char *folder, uint64_t *out_number,
                           char *text, size_t size)
{
    char key[STORAGE_KEY_MAX + 1];
    uint64_t bytes = 0;
    int error = 0;
    CHECK(size > 0);
    /* A later publication may remove the object before its fetch, or during a list. */
    for (uint32_t none = 0, gone = 0; none < NUMBERED_NONE_MAX && gone < NUMBERED_GONE_MAX;) {
        *out_number = 0;
        text[0] = '\0';
        error = storage_list(storage, folder, visit_number, out_number);
        if (error == 0 && *out_number > 0) {
            numbered_key(key, folder, *out_number);
            error = storage_fetch(storage, key, text, size - 1, &bytes);
            text[error != 0 ? 0 : bytes < size ? bytes : size - 1] = '\0';
            if (error == 0)
                return 0;
        }
        if (error != 0 && error != ERR_NOT_FOUND)
            return error;
        if (*out_number > 0)
            gone++;
        else
            none++;
    }
    return error;
}

struct numbered {
    struct storage *storage;
    const char *folder;
    uint64_t number; /* the newest */
};

static int remove_older(void *user, const struct storage_entry *entry)
{
    const struct numbered *numbered = user;
    char key[STORAGE_KEY_MAX + 1];
    uint64_t number = 0;
    visit_number(&number, entry);
    numbered_key(key, numbered->folder, number);
    if (number > 0 && number < numbered->number - 1)
        storage_remove(numbered->storage, key);
    return 0;
}

int storage_publish_numbered(struct storage *storage, const char *folder, uint64_t number,
                             const char *text)
{
    char key[STORAGE_KEY_MAX + 1];
    numbered_key(key, folder, number + 1);
    int error = storage_publish(storage, key, text, strlen(text));
    if (error == 0) /* ignore objects that stay: the next publication removes them */
        storage_list(storage, folder, remove_older,
                     &(struct numbered){storage, folder, number + 1});
    return error;
}
