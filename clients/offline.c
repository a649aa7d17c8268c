/* offline.c - reads the catalog of a store, a directory or a bucket, without ckptd.
 *
 * storage/store/store.h lists the store. This file writes nothing and takes no lock and no lease.
 * When ckptd removes a checkpoint during a load, the load ends with ERR_CORRUPT. */
#include "clients/offline.h"

#include "proto/base/report.h"
#include "proto/format/durability.h"
#include "proto/format/flaw.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <string.h>

#define DIRECTORY "dir:"
#define BUCKET "s3://"

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* The address of the store for storage_open_where(). */
static const char *place_of(const struct ckpt *ckpt)
{
    return ckpt->server + (begins(ckpt->server, DIRECTORY) ? strlen(DIRECTORY) : 0);
}

bool offline_is_named(const char *server)
{
    return begins(server, DIRECTORY) || begins(server, BUCKET);
}

int offline_open(struct ckpt *ckpt)
{
    static const struct storage_options options = {.read_only = true, .is_quiet = true};
    return storage_open_where(&ckpt->store, place_of(ckpt), &options);
}

void offline_close(struct ckpt *ckpt)
{
    if (ckpt->store != NULL)
        storage_close(ckpt->store);
    ckpt->store = NULL;
}

const char *offline_durability(const struct ckpt *ckpt)
{
    return durability_text(begins(place_of(ckpt), BUCKET) ? DURABLE_BUCKET : DURABLE_LOCAL);
}

/* ---- what there is ---- */

static int report_no_run(const struct ckpt *ckpt, const char *run)
{
    return report_error(ERR_NOT_FOUND, "see `ckpt-cli list --store`",
                        "the store %s has no run '%s'", place_of(ckpt), run);
}

/* ERR_NOT_FOUND: the store has no such run. */
static int check_run(const struct ckpt *ckpt, const char *run)
{
    struct store_names names;
    ERR_TRY(store_list_names(&names, ckpt->store, run));
    bool is_any = names.is_any;
    store_names_free(&names);
    return is_any ? 0 : report_no_run(ckpt, run);
}

int offline_list(struct store_list *out, const struct ckpt *ckpt, const char *run)
{
    int error = store_list_read(out, ckpt->store, run);
    if (error == 0)
        error = store_list_find_pins(out, ckpt->store);
    if (error == 0 && out->count == 0 && run[0] != '\0')
        error = check_run(ckpt, run);
    for (uint32_t i = 0; error == 0 && i < out->count; i++)
        if (out->entries[i].unread != 0)
            error = report_error(out->entries[i].unread, "fix the read error that its reason names",
                                 "%s@%llu: %s", out->entries[i].summary.run,
                                 (unsigned long long)out->entries[i].summary.step,
                                 out->entries[i].damage);
    if (error != 0)
        store_list_free(out);
    return error;
}

/* ---- one of them ---- */

/* A checkpoint that this user may not read must not make an older one the newest. */
static int skip_entry(void *user, const struct store_entry *entry)
{
    bool *any_damaged = user;
    *any_damaged = true;
    return entry->unread != 0
               ? report_error(entry->unread, "fix the read error that its reason names", "%s",
                              entry->damage)
               : 0;
}

static int choose(struct store_entry *out, const struct ckpt *ckpt,
                  const struct store_choice *choice)
{
    bool any_damaged = false;
    int error = store_find(out, ckpt->store, choice, skip_entry, &any_damaged);
    if (error != ERR_NOT_FOUND)
        return error;
    ERR_TRY(check_run(ckpt, choice->run));
    return any_damaged ? report_error(ERR_CORRUPT, "name a step to show it anyway",
                                      "every checkpoint of run '%s' is damaged", ckpt->run)
                       : report_error(ERR_NOT_FOUND, "see `ckpt-cli list --store`",
                                      "run '%s' of the store %s has no such checkpoint", ckpt->run,
                                      place_of(ckpt));
}

int offline_manifest(struct manifest **out, char out_damage[STORE_DAMAGE_BYTES],
                     const struct ckpt *ckpt, const struct store_choice *choice)
{
    struct store_entry entry;
    *out = NULL;
    ERR_TRY(choose(&entry, ckpt, choice));
    int error = 0;
    if (out_damage != NULL)
        snprintf(out_damage, STORE_DAMAGE_BYTES, "%s", entry.damage != NULL ? entry.damage : "");
    else if (entry.flaw != NULL && strcmp(entry.flaw, FLAW_NEWER) == 0)
        error = report_error(ERR_VERSION, "load with that version, or name an older step",
                             "step %llu, attempt %llu of run %s was saved by a later Holdfast: %s",
                             (unsigned long long)entry.summary.step,
                             (unsigned long long)entry.summary.attempt, ckpt->run, entry.damage);
    else if (entry.damage != NULL)
        error = report_error(ERR_CORRUPT, "see `ckpt-cli show`", "%s@%llu-a%llu is damaged: %s",
                             ckpt->run, (unsigned long long)entry.summary.step,
                             (unsigned long long)entry.summary.attempt, entry.damage);
    if (error == 0)
        error = store_read_manifest(out, ckpt->store, &entry.summary);
    store_entry_free(&entry);
    return error;
}
