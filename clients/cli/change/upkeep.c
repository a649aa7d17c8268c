/* upkeep.c - commands for a running ckptd: reload, attempt, rescan, scrub, stop. */
#include "clients/cli/engine/cli.h"

#include "proto/base/json.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdlib.h>
#include <string.h>

/* ---- reload ---- */

int cli_reload(const struct cli *cli)
{
    Holdfast__V1__ReloadRequest request = HOLDFAST__V1__RELOAD_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    char safe[1100];
    ERR_TRY(cli_call(&answer, cli, &request.base, CLI_CALL_MS));
    const char *keys = ((const Holdfast__V1__ReloadReply *)answer)->needs_restart;
    if (cli->is_json) {
        printf("{\"needs_restart\": ");
        text_json(stdout, keys);
        printf("}\n");
    } else {
        printf("retention and quotas were reloaded from the configuration\n");
        if (keys[0] != '\0')
            printf("changed, but needs a restart: %s\n", text_safe(safe, sizeof safe, keys));
    }
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}

/* ---- attempt ---- */

static int call_attempt(ProtobufCMessage **out, const struct cli *cli, bool is_dry)
{
    Holdfast__V1__ForceAttemptRequest request = HOLDFAST__V1__FORCE_ATTEMPT_REQUEST__INIT;
    request.run = (char *)(uintptr_t)cli->args[0];
    request.dry_run = is_dry;
    return cli_call(out, cli, &request.base, CLI_CALL_MS);
}

/* Prints the sets of nodes; of each a majority is needed. */
static void print_sets(const Holdfast__V1__ForceAttemptReply *reply, bool is_json)
{
    char safe[2200];
    printf(is_json ? ", \"sets\": [" : "");
    for (size_t i = 0; i < reply->n_sets; i++) {
        printf(is_json && i > 0 ? ", " : "");
        if (is_json)
            text_json(stdout, reply->sets[i]);
        else
            printf("  a majority is needed of %s\n", text_safe(safe, sizeof safe, reply->sets[i]));
    }
    printf(is_json ? "]}\n" : "");
}

static void print_attempt(const struct cli *cli, const Holdfast__V1__ForceAttemptReply *reply,
                          bool is_forced)
{
    if (cli->is_json)
        printf("{\"run\": \"%s\", \"newest_attempt\": %llu, \"nodes\": %u, \"answered\": %u, "
               "\"majority\": %s, \"forced\": %s",
               cli->args[0], (unsigned long long)reply->newest_attempt, reply->nodes,
               reply->answered, reply->is_majority ? "true" : "false",
               is_forced ? "true" : "false");
    else if (is_forced)
        printf("%s: the next start at this ckptd needs no other node\n", cli->args[0]);
    else
        printf("%s: newest attempt known here %llu; %u of %u nodes answer: a start %s\n",
               cli->args[0], (unsigned long long)reply->newest_attempt, reply->answered,
               reply->nodes, reply->is_majority ? "can proceed" : "waits for a majority");
    if (cli->is_json || !is_forced)
        print_sets(reply, cli->is_json);
}

int cli_attempt(const struct cli *cli)
{
    ProtobufCMessage *answer = NULL;
    int error = call_attempt(&answer, cli, !cli->is_forced || !cli->is_yes);
    if (error == 0 && cli->is_forced && !cli->is_yes) {
        fprintf(stderr, "The run loses saves that only the other nodes have, and both sides of a "
                        "network\npartition may train it at once.\n");
        error = text_confirm(cli, "start without them",
                             "the next start waits for a majority of the nodes");
        protobuf_c_message_free_unpacked(answer, NULL);
        if (error == 0)
            error = call_attempt(&answer, cli, false);
    }
    if (error != 0)
        return error;
    print_attempt(cli, (const Holdfast__V1__ForceAttemptReply *)answer, cli->is_forced);
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}

/* ---- rescan ---- */

static void print_rescan_json(const Holdfast__V1__RescanReply *reply)
{
    printf("{\"added\": %llu, \"vanished\": %llu, \"skipped\": [", (unsigned long long)reply->added,
           (unsigned long long)reply->vanished);
    for (size_t i = 0; i < reply->n_skipped; i++) {
        printf(i > 0 ? ", " : "");
        text_json(stdout, reply->skipped[i]);
    }
    printf("]}\n");
}

int cli_rescan(const struct cli *cli)
{
    Holdfast__V1__RescanRequest request = HOLDFAST__V1__RESCAN_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    char safe[600];
    ERR_TRY(cli_call(&answer, cli, &request.base, CLI_CALL_MS));
    const Holdfast__V1__RescanReply *reply = (const Holdfast__V1__RescanReply *)answer;
    if (cli->is_json) {
        print_rescan_json(reply);
    } else {
        printf("%s found, %llu vanished\n", text_count(reply->added, "checkpoint").text,
               (unsigned long long)reply->vanished);
        for (size_t i = 0; i < reply->n_skipped; i++)
            printf("not listed: %s\n", text_safe(safe, sizeof safe, reply->skipped[i]));
    }
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}

/* ---- scrub ---- */

static int print_progress(const struct cli *cli)
{
    json_t *status = NULL;
    char run[128], read[32], all[32], rate[32];
    int error = cli_call_status(&status, cli);
    if (error != 0)
        return error;
    json_t *scrub = json_object_get(status, "scrub");
    const char *doing = member_text(scrub, "doing"), *name = member_text(scrub, "run");
    if (cli->is_json) {
        error = text_document(scrub);
    } else {
        printf("the scrub is %s", doing[0] != '\0' ? doing : "?");
        if (name[0] != '\0')
            printf(": run %s, %s of %s", text_safe(run, sizeof run, name),
                   text_bytes(read, sizeof read, member_number(scrub, "pass_bytes_read")),
                   text_bytes(all, sizeof all, member_number(scrub, "pass_bytes")));
        printf(", at most %s/s; since ckptd's start %s read, %llu damaged\n",
               text_bytes(rate, sizeof rate, member_number(scrub, "rate")),
               text_count(member_number(scrub, "checkpoints_read"), "checkpoint").text,
               (unsigned long long)member_number(scrub, "damaged"));
    }
    json_decref(status);
    return error;
}

int cli_scrub(const struct cli *cli)
{
    const char *action = cli->args[0], *run = cli->num_args > 1 ? cli->args[1] : "";
    int error = 0;
    if (strcmp(action, "start") == 0)
        error = server_scrub(NULL, cli, false, run, NULL);
    else if (strcmp(action, "pause") == 0 && run[0] == '\0')
        error = server_scrub(NULL, cli, true, run, NULL);
    else if (strcmp(action, "progress") != 0 || run[0] != '\0')
        error = report_error(ERR_INVALID, "use start [RUN], pause or progress",
                             "unknown action of scrub");
    return error == 0 ? print_progress(cli) : error;
}

/* ---- stop ---- */

static int print_stop(const struct cli *cli, const Holdfast__V1__StopReply *reply)
{
    char within[40] = "";
    if (cli->is_json)
        return text_pack("{ss sI sb sI}", "run", cli->args[0], "ranks", (json_int_t)reply->ranks,
                         "saves", (int)!cli->is_unsaved, "grace_seconds",
                         (json_int_t)reply->grace_seconds);
    if (reply->grace_seconds != 0)
        snprintf(within, sizeof within, ", within %u s", reply->grace_seconds);
    printf("%s of run '%s' %s to %s after the current step%s\n",
           text_count(reply->ranks, "rank").text, cli->args[0], reply->ranks == 1 ? "is" : "are",
           cli->is_unsaved ? "end without a save" : "save and end", within);
    if (reply->grace_seconds != (uint32_t)cli->grace_s)
        log_warn("cli", "this ckptd does not support --grace: the ranks have no time limit");
    return 0;
}

int cli_stop(const struct cli *cli)
{
    Holdfast__V1__StopRequest request = HOLDFAST__V1__STOP_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    struct selection selection;
    ERR_TRY(selection_parse_run(&selection, cli->args[0]));
    if (cli->is_unsaved)
        ERR_TRY(text_confirm(cli, "stop it, and lose what was trained since its last save",
                             "the run continues"));
    request.run = selection.run;
    request.without_save = cli->is_unsaved;
    request.grace_seconds = (uint32_t)cli->grace_s;
    ERR_TRY(cli_call(&answer, cli, &request.base, CLI_CALL_MS));
    int error = print_stop(cli, (const Holdfast__V1__StopReply *)answer);
    protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

int cli_save(const struct cli *cli)
{
    Holdfast__V1__AskSaveRequest request = HOLDFAST__V1__ASK_SAVE_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    struct selection selection;
    int error = 0;
    ERR_TRY(selection_parse_run(&selection, cli->args[0]));
    request.run = selection.run;
    ERR_TRY(cli_call(&answer, cli, &request.base, CLI_CALL_MS));
    uint32_t ranks = ((const Holdfast__V1__AskSaveReply *)answer)->ranks;
    if (cli->is_json)
        error = text_pack("{ss sI}", "run", cli->args[0], "ranks", (json_int_t)ranks);
    else
        printf("%s of run '%s' %s to save after the current step\n", text_count(ranks, "rank").text,
               cli->args[0], ranks == 1 ? "is" : "are");
    protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}
