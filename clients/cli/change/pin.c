/* pin.c - pin and unpin: through a running ckptd, or on a directory, which needs no lock. */
#include "clients/cli/engine/cli.h"

#include "proto/format/shard.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <string.h>

#define PIN_CALL_MS 120000u  /* a far tier may answer late */
#define DURABILITY_BYTES 32u /* of a reply */

/* An interrupted removal may have removed the manifest before the pin was made. It no longer checks
 * pins, so the checkpoint must not be reported as pinned. */
static int pin_stored(struct storage *store, const struct selection *selection, const char *prefix,
                      const char *note)
{
    struct report_text text;
    ERR_TRY(store_put_note(store, STORE_PIN, prefix, note));
    int error = store_need_checkpoint(store, selection);
    if (error != ERR_NOT_FOUND)
        return error;
    report_keep(&text);
    if (store_remove_note(store, STORE_PIN, prefix) != 0)
        log_warn("pin", "the pin on %s is kept: %s", prefix, report_line());
    return report_restore(&text, error);
}

static int pin_store(const struct cli *cli, const struct selection *selection, bool is_unpin)
{
    struct storage *store = NULL;
    char prefix[STORAGE_KEY_MAX];
    ERR_TRY(shard_dir_key(prefix, sizeof prefix, selection->run, (uint64_t)selection->step,
                          selection->attempt));
    ERR_TRY(store_open_writable(&store, cli));
    int error = store_need_run(store, selection->run);
    if (error == 0 && !is_unpin)
        error = store_need_checkpoint(store, selection);
    if (error == 0)
        error = is_unpin ? store_remove_note(store, STORE_PIN, prefix)
                         : pin_stored(store, selection, prefix, cli->note);
    storage_close(store);
    return error;
}

/* The reply has the durability: a pin in the far tier waits for that tier. */
static int pin_server(const struct cli *cli, const struct selection *selection, bool is_unpin,
                      char durability[DURABILITY_BYTES])
{
    Holdfast__V1__PinRequest request = HOLDFAST__V1__PIN_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.run = (char *)(uintptr_t)selection->run;
    request.step = (uint64_t)selection->step;
    request.attempt = selection->attempt;
    request.unpin = is_unpin;
    request.note = (char *)(uintptr_t)cli->note;
    ERR_TRY(cli_call(&answer, cli, &request.base, PIN_CALL_MS));
    snprintf(durability, DURABILITY_BYTES, "%s",
             ((const Holdfast__V1__PinReply *)answer)->durability);
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}

static int pin_or_unpin(const struct cli *cli, bool is_unpin)
{
    struct selection selection;
    char durability[DURABILITY_BYTES] = "local";
    ERR_TRY(selection_parse(&selection, cli->args[0]));
    if (selection.attempt == 0) /* otherwise a damaged one; unpin also accepts a missing one */
        ERR_TRY(checkpoint_find(&selection, cli));
    if (cli->store[0] != '\0')
        snprintf(durability, sizeof durability, "%s", store_durability(cli->store));
    int error = cli->store[0] == '\0' ? pin_server(cli, &selection, is_unpin, durability)
                                      : pin_store(cli, &selection, is_unpin);
    bool was_pinned = error == ERR_EXISTS; /* the requested state exists already */
    if (error != 0 && !was_pinned)
        return error;
    if (cli->is_json)
        printf("{\"run\": \"%s\", \"step\": %lld, \"attempt\": %llu, \"pinned\": %s, "
               "\"durability\": \"%s\"}\n",
               selection.run, (long long)selection.step, (unsigned long long)selection.attempt,
               is_unpin ? "false" : "true", durability);
    else
        printf("%s: %s, %s%s\n",
               text_checkpoint(selection.run, (uint64_t)selection.step, selection.attempt).text,
               is_unpin     ? "no longer pinned"
               : was_pinned ? "pinned before"
                            : "pinned",
               durability,
               is_unpin     ? ""
               : was_pinned ? "; its note is the one from then"
                            : "; nothing removes it");
    return 0;
}

int cli_pin(const struct cli *cli)
{
    return pin_or_unpin(cli, false);
}

int cli_unpin(const struct cli *cli)
{
    return pin_or_unpin(cli, true);
}
