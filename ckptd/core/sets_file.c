/* sets_file.c - see sets_file.h. The newest attempt file with sets counts, and its note that it is
 * held. A lock makes reading the newest and publishing the next atomic. */
#include "ckptd/core/sets_file.h"
#include "ckptd/core/store_key.h"
#include "proto/base/array.h"
#include "proto/base/report.h"
#include "storage/storage.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTEMPT_BYTES_MAX (8u << 20)
#define NONCE_DIGITS 32

/* ---- the newest ---- */

static int read_file(struct sets *out, bool *is_attempt, struct storage *storage, const char *key)
{
    void *text = NULL;
    size_t bytes = 0;
    *out = (struct sets){0};
    int error = storage_fetch_all(storage, key, ATTEMPT_BYTES_MAX, &text, &bytes);
    if (error == 0)
        error = sets_parse_text(out, is_attempt, text, bytes);
    free(text);
    return error;
}

struct numbers {
    uint64_t *list;
    uint32_t count, room;
};

static int visit_number(void *user, const struct storage_entry *entry)
{
    struct numbers *numbers = user;
    char *end;
    unsigned long long number = strtoull(entry->name, &end, 10);
    if (*end != '\0' || number == 0 || number == UINT64_MAX)
        return 0;
    ERR_TRY(array_reserve(&numbers->list, &numbers->room, numbers->count, sizeof(uint64_t)));
    numbers->list[numbers->count++] = number;
    return 0;
}

static int compare_numbers(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int read_held(struct sets *sets, struct storage *storage, const char *key)
{
    char held[STORAGE_KEY_MAX + 16];
    uint64_t bytes;
    snprintf(held, sizeof held, "%s" SETS_HELD, key);
    int error = sets->is_held ? 0 : storage_fetch(storage, held, NULL, 0, &bytes);
    sets->is_held |= error == 0;
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* `numbers`: highest first. A file of a release without sets hides those of older attempts. */
static int find_newest(struct sets *out, struct storage *storage, const char *run,
                       const struct numbers *numbers)
{
    bool is_attempt = false;
    char key[STORAGE_KEY_MAX];
    for (uint32_t i = 0; i < numbers->count && out->count == 0 && !is_attempt; i++) {
        store_key_of_attempt(key, run, numbers->list[i]);
        ERR_TRY(read_file(out, &is_attempt, storage, key));
    }
    return out->count > 0 ? read_held(out, storage, key) : 0;
}

int sets_file_find(struct sets *out, struct storage *storage, const char *run)
{
    char prefix[STORAGE_KEY_MAX];
    struct numbers numbers = {0};
    *out = (struct sets){0};
    snprintf(prefix, sizeof prefix, "%s/attempts", run);
    int error = storage_list(storage, prefix, visit_number, &numbers);
    if (error == 0 && numbers.count > 0)
        qsort(numbers.list, numbers.count, sizeof numbers.list[0], compare_numbers);
    if (error == 0)
        error = find_newest(out, storage, run, &numbers);
    free(numbers.list);
    if (error != 0)
        sets_free(out);
    return error;
}

/* ---- taking a number ---- */

/* One lock for all runs: starts are rare. */
static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;

static int check_next(const struct sets *next, struct storage *storage, const char *run)
{
    struct sets last;
    ERR_TRY(sets_file_find(&last, storage, run));
    int error = sets_check_next(next, &last);
    sets_free(&last);
    return error;
}

static int publish_number(struct sets *out, struct storage *storage, const char *key,
                          const char *text, size_t bytes, const char *kept)
{
    char run[STORAGE_KEY_MAX];
    bool is_attempt;
    snprintf(run, sizeof run, "%.*s", (int)strcspn(key, "/"), key);
    if (sets_parse_text(out, &is_attempt, text, bytes) != 0)
        sets_free(out); /* of another release: it depends on no node */
    pthread_mutex_lock(&taking);
    int error = sets_is_bound(out) ? check_next(out, storage, run) : 0;
    if (error == 0)
        error = storage_publish(storage, key, kept, kept == text ? bytes : strlen(kept));
    pthread_mutex_unlock(&taking);
    return error;
}

int sets_file_take(struct sets *out, struct storage *storage, const char *key, const char *text,
                   size_t bytes)
{
    return publish_number(out, storage, key, text, bytes, text);
}

int sets_file_take_last(struct sets *out, struct storage *storage, const char *key,
                        const char *text)
{
    char *held;
    *out = (struct sets){0};
    ERR_TRY(sets_held_text(&held, text, strlen(text)));
    int error = publish_number(out, storage, key, text, strlen(text), held);
    out->is_held |= error == 0;
    free(held);
    return error;
}

int sets_file_hold(struct storage *storage, const char *key, const char *nonce, size_t bytes)
{
    char of[STORAGE_KEY_MAX];
    struct sets sets;
    bool is_attempt;
    size_t length = strlen(key) - strlen(SETS_HELD);
    snprintf(of, sizeof of, "%.*s", (int)length, key);
    int error = read_file(&sets, &is_attempt, storage, of);
    if (error == 0 && (bytes != NONCE_DIGITS || strncmp(sets.nonce, nonce, bytes) != 0))
        error = ERR_NOT_FOUND;
    sets_free(&sets);
    if (error == ERR_NOT_FOUND)
        return report_error(ERR_STALE, NULL, "this node does not have that version of %s", of);
    return error == 0 ? storage_publish(storage, key, nonce, bytes) : error;
}
