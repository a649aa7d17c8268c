/* tags.c - reads tags: names for checkpoints, RUN@NAME; tag.c has the commands.
 *
 * A tag is a durable file "<run>/tags/NAME" with the name of the checkpoint's directory, like a
 * pin. It is substituted for RUN@NAME before a command runs, so every command accepts it. A tag
 * protects nothing: prune removes a tagged checkpoint like any other, unless it is pinned. */
#include "clients/cli/engine/cli.h"

#include "proto/base/array.h"
#include "proto/format/retain.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

int tags_check_name(const char *name)
{
    size_t length = strlen(name);
    bool is_good =
        isalpha((unsigned char)name[0]) && length < TAG_NAME_MAX &&
        strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == length;
    return is_good ? 0
                   : report_error(ERR_INVALID,
                                  "a letter, then letters, digits, '.', '_' and '-', at most 63",
                                  "'%s' is not a valid tag", name);
}

void tags_key(char out[STORAGE_KEY_MAX + 1], const char *run, const char *name)
{
    snprintf(out, STORAGE_KEY_MAX + 1, "%.127s/tags/%.63s", run, name);
}

static int read_tag(struct tag *out, struct storage *store, const char *run, const char *name)
{
    char key[STORAGE_KEY_MAX + 1], text[TAG_TEXT_MAX] = "";
    uint64_t bytes = 0;
    ERR_TRY(tags_check_name(name));
    tags_key(key, run, name);
    int error = storage_fetch(store, key, text, sizeof text - 1, &bytes);
    if (error == ERR_NOT_FOUND)
        return report_error(error, "see `ckpt-cli list`", "run '%s' has no tag '%s'", run, name);
    if (error != 0)
        return error;
    text[strcspn(text, "\n")] = '\0';
    strcpy(out->name, name);
    return retain_parse(text, &out->step, &out->attempt)
               ? 0
               : report_error(ERR_CORRUPT, "tag the checkpoint again",
                              "the tag '%s' of run '%s' names no checkpoint", name, run);
}

/* ---- for every command ---- */

static int resolve(char *out, size_t size, const struct cli *cli, const char *text)
{
    struct cli here = *cli;
    struct storage *store = NULL;
    struct selection run;
    struct tag tag;
    char name[128];
    const char *at = strchr(text, '@');
    snprintf(name, sizeof name, "%.*s", (int)(at - text), text);
    ERR_TRY(selection_parse_run(&run, name));
    ERR_TRY(tags_check_name(at + 1));
    int error = here.store[0] == '\0' ? server_find_source(&here) : 0;
    if (error == 0)
        error = store_begin(&store, &here, run.run, false);
    if (error == 0)
        error = read_tag(&tag, store, run.run, at + 1);
    storage_close(store);
    if (error == 0)
        snprintf(out, size, "%s", text_checkpoint(run.run, tag.step, tag.attempt).text);
    return error;
}

int tags_resolve(struct cli *cli)
{
    for (int i = 0; i < cli->num_args && i < 2; i++) {
        const char *at = strchr(cli->args[i], '@');
        if (cli->is_path[i] || at == NULL || !isalpha((unsigned char)at[1]))
            continue;
        ERR_TRY(resolve(cli->resolved[i], sizeof cli->resolved[i], cli, cli->args[i]));
        cli->args[i] = cli->resolved[i];
    }
    return 0;
}

/* ---- for list and show ---- */

struct reading {
    struct tags *tags;
    struct storage *store;
    const char *run;
};

/* Unreadable tags are omitted. */
static int visit_tag(void *user, const struct storage_entry *entry)
{
    struct reading *reading = user;
    struct tags *tags = reading->tags;
    struct tag tag;
    if (entry->is_dir || read_tag(&tag, reading->store, reading->run, entry->name) != 0)
        return 0;
    ERR_TRY(array_reserve(&tags->list, &tags->room, tags->count, sizeof *tags->list));
    tags->list[tags->count++] = tag;
    return 0;
}

void tags_read(struct tags *out, struct storage *store, const char *run)
{
    char folder[STORAGE_KEY_MAX];
    struct report_text before; /* the caller's error text is kept */
    out->count = 0;
    report_keep(&before);
    snprintf(folder, sizeof folder, "%.127s/tags", run);
    if (store != NULL)
        storage_list(store, folder, visit_tag, &(struct reading){out, store, run});
    report_restore(&before, 0);
}

const char *tags_text(char *out, size_t size, const struct tags *tags, uint64_t step,
                      uint64_t attempt)
{
    size_t length = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < tags->count && length < size; i++) {
        if (tags->list[i].step == step && tags->list[i].attempt == attempt)
            length += (size_t)snprintf(out + length, size - length, "%s%s", length > 0 ? " " : "",
                                       tags->list[i].name);
    }
    return out;
}

void tags_free(struct tags *tags)
{
    free(tags->list);
    *tags = (struct tags){0};
}
