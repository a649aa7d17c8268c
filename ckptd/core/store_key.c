/* store_key.c - keys of the files in a store that another node may name; see store_key.h. */
#include "ckptd/core/store_key.h"
#include "ckptd/core/catalog.h"
#include "ckptd/machines/sets.h"
#include "proto/base/report.h"
#include "proto/format/mark.h"
#include "proto/format/origin.h"
#include "proto/format/places.h"
#include "proto/format/retain.h"
#include "proto/format/shard.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool store_key_parse(struct manifest_summary *out, const char **out_name, const char *key)
{
    char run[RUN_NAME_MAX + 1], directory[64];
    int used = 0;
    if (sscanf(key, "%100[^/]/%63[^/]/%n", run, directory, &used) != 2 || used == 0 ||
        !retain_parse(directory, &out->step, &out->attempt))
        return false;
    snprintf(out->run, sizeof out->run, "%s", run);
    *out_name = key + used;
    return true;
}

bool store_key_parse_checkpoint(struct manifest_summary *out, const char *key)
{
    char run[RUN_NAME_MAX + 1], directory[64];
    if (sscanf(key, "%100[^/]/leases/%63[^.]", run, directory) != 2 &&
        sscanf(key, "%100[^/]/%63[^/]", run, directory) != 2)
        return false;
    snprintf(out->run, sizeof out->run, "%s", run);
    return retain_parse(directory, &out->step, &out->attempt);
}

static bool is_number(const char *text)
{
    size_t length = strlen(text);
    return length > 0 && length <= 20 && strspn(text, "0123456789") == length;
}

void store_key_of_attempt(char out[STORAGE_KEY_MAX], const char *run, uint64_t attempt)
{
    snprintf(out, STORAGE_KEY_MAX, "%s/attempts/%04llu", run, (unsigned long long)attempt);
}

bool store_key_parse_attempt(char run[RUN_NAME_MAX + 1], uint64_t *out, const char *key)
{
    int used = 0;
    if (sscanf(key, "%100[^/]/attempts/%n", run, &used) != 1 || used == 0 || !is_number(key + used))
        return false;
    *out = strtoull(key + used, NULL, 10);
    return run_name_valid(run);
}

bool store_key_is_held(const char *key)
{
    char run[RUN_NAME_MAX + 1], of[STORAGE_KEY_MAX];
    uint64_t number;
    size_t length = strlen(key), end = strlen(SETS_HELD);
    if (length <= end || length >= sizeof of || strcmp(key + length - end, SETS_HELD) != 0)
        return false;
    snprintf(of, sizeof of, "%.*s", (int)(length - end), key);
    return store_key_parse_attempt(run, &number, of);
}

static bool key_is(enum store_key_kind kind, const char *key)
{
    struct manifest_summary place = {0};
    const char *name = "", *slash = strchr(key, '/');
    char run[RUN_NAME_MAX + 1];
    uint64_t number;
    bool is_in_step = store_key_parse(&place, &name, key) && run_name_valid(place.run);
    switch (kind) {
    case STORE_KEY_ANY:
        return true; /* storage.c refuses keys outside the store */
    case STORE_KEY_SHARD:
        return is_in_step && shard_is_file_name(name);
    case STORE_KEY_SMALL:
        return (is_in_step && !shard_is_file_name(name) &&
                (strcmp(name, MANIFEST_NAME) == 0 || strcmp(name, MARK_NAME) == 0 ||
                 (origin_is_member(name) && strcmp(name, PLACES_NAME) != 0))) ||
               store_key_parse_attempt(run, &number, key) || store_key_is_held(key);
    case STORE_KEY_LEASE:
        return slash && strncmp(slash, "/leases/", 8) == 0 && !strchr(slash + 8, '/');
    default:
        return false;
    }
}

int store_key_check(enum store_key_kind kind, const char *key)
{
    if (kind == STORE_KEY_NONE || (strlen(key) <= STORAGE_KEY_MAX && key_is(kind, key)))
        return 0;
    return report_error(ERR_DENIED, NULL, "a node may not use the key \"%.200s\" in this operation",
                        key);
}
