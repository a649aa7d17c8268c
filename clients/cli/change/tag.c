/* tag.c - tag and untag: names for checkpoints, RUN@NAME; tags.c reads them. */
#include "clients/cli/engine/cli.h"

#include <string.h>

static int open_to_write(struct storage **out, const struct cli *cli)
{
    if (cli->server[0] != '\0')
        ERR_TRY(server_prepare_write(cli, TAG_TEXT_MAX));
    return store_open_writable(out, cli);
}

static int put_tag(struct storage *store, const struct selection *selection, const char *name)
{
    char key[STORAGE_KEY_MAX + 1], text[TAG_TEXT_MAX];
    tags_key(key, selection->run, name);
    snprintf(text, sizeof text, "step-%08llu-a%04llu\n", (unsigned long long)selection->step,
             (unsigned long long)selection->attempt);
    return store_put(store, key, text, strlen(text)); /* replaces the tag */
}

static int pin_too(const struct cli *cli, const struct selection *selection)
{
    struct cli pin = *cli;
    strcpy(pin.resolved[0],
           text_checkpoint(selection->run, (uint64_t)selection->step, selection->attempt).text);
    pin.args[0] = pin.resolved[0];
    pin.num_args = 1;
    if (pin.note[0] == '\0')
        snprintf(pin.note, sizeof pin.note, "tag %.63s", cli->args[1]);
    if (pin.server[0] != '\0')
        pin.store[0] = '\0'; /* call ckptd, so that it knows the pin */
    return cli_pin(&pin);
}

int cli_tag(const struct cli *cli)
{
    struct storage *store = NULL;
    struct selection selection;
    int error = tags_check_name(cli->args[1]);
    if (error == 0)
        error = open_to_write(&store, cli);
    if (error == 0)
        error = selection_parse(&selection, cli->args[0]);
    if (error == 0)
        error = checkpoint_find(&selection, cli);
    if (error == 0)
        error = put_tag(store, &selection, cli->args[1]);
    storage_close(store);
    if (error == 0 && cli->is_pin)
        error = pin_too(cli, &selection);
    if (error != 0 || (cli->is_pin && cli->is_json)) /* the output of pin is the one document */
        return error;
    if (cli->is_json)
        printf("{\"run\": \"%s\", \"step\": %lld, \"attempt\": %llu, \"tag\": \"%s\"}\n",
               selection.run, (long long)selection.step, (unsigned long long)selection.attempt,
               cli->args[1]);
    else
        printf("%s: tagged %s, %s\n",
               text_checkpoint(selection.run, (uint64_t)selection.step, selection.attempt).text,
               cli->args[1], store_durability(cli->store));
    return 0;
}

int cli_untag(const struct cli *cli)
{
    struct storage *store = NULL;
    struct selection selection;
    char key[STORAGE_KEY_MAX + 1], folder[STORAGE_KEY_MAX];
    int error = selection_parse_run(&selection, cli->args[0]);
    if (error == 0)
        error = tags_check_name(cli->args[1]);
    if (error == 0)
        error = open_to_write(&store, cli);
    tags_key(key, selection.run, cli->args[1]);
    if (error == 0)
        error = storage_remove(store, key);
    if (error == ERR_NOT_FOUND)
        error = report_error(error, "see `ckpt-cli list`", "run '%s' has no tag '%s'",
                             selection.run, cli->args[1]);
    snprintf(folder, sizeof folder, "%s/tags", selection.run);
    if (error == 0)
        error = storage_sync_names(store, folder);
    storage_close(store);
    if (error == 0)
        printf(cli->is_json ? "{\"run\": \"%s\", \"untagged\": \"%s\"}\n"
                            : "%s: no tag %s any more\n",
               selection.run, cli->args[1]);
    return error;
}
