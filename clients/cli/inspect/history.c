/* history.c - the journal of a run, from its ckptd or from a directory. */
#include "clients/cli/engine/cli.h"

#include "proto/base/json.h"
#include "proto/format/history.h"
#include "proto/wire/ckpt.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* Skips lines of a later version, or incomplete ones. NULL: no memory. */
static json_t *parse_history(const char *text)
{
    json_t *list = json_array();
    while (*text != '\0') {
        size_t bytes = strcspn(text, "\n");
        json_t *event = json_loadb(text, bytes, 0, NULL);
        if (json_is_object(event))
            json_array_append_new(list, event);
        else
            json_decref(event);
        text += bytes + (text[bytes] == '\n');
    }
    return list;
}

static int read_history(char **out, const struct cli *cli, const char *run)
{
    struct storage *store = NULL;
    uint64_t number;
    *out = calloc(1, 2 * HISTORY_BYTES_MAX);
    int error = *out != NULL ? store_begin(&store, cli, run, false)
                             : report_error(ERR_MEMORY, NULL, "no memory for a history");
    if (error == 0)
        error = store_read_history(*out, 2 * HISTORY_BYTES_MAX, &number, store, run);
    storage_close(store);
    return error;
}

static int call_history(char **out, const struct cli *cli, const char *run)
{
    Holdfast__V1__HistoryRequest request = HOLDFAST__V1__HISTORY_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.run = (char *)(uintptr_t)run;
    ERR_TRY(cli_call(&answer, cli, &request.base, CLI_CALL_MS));
    *out = strdup(((const Holdfast__V1__HistoryReply *)answer)->lines);
    protobuf_c_message_free_unpacked(answer, NULL);
    return *out != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a history");
}

int journal_read(json_t **out, const struct cli *cli, const char *run)
{
    char *text = NULL;
    *out = NULL;
    int error =
        cli->store[0] != '\0' ? read_history(&text, cli, run) : call_history(&text, cli, run);
    json_begin();
    if (error == 0)
        *out = parse_history(text);
    bool is_whole = json_end();
    free(text);
    if (error == 0 && (!is_whole || *out == NULL)) {
        json_decref(*out);
        *out = NULL;
        error = report_error(ERR_MEMORY, NULL, "no memory for a history");
    }
    return error;
}

static void print_event(const json_t *line)
{
    char time[40], event[24], by[160], detail[200], name[64] = "-";
    const json_t *attempt = json_object_get(line, "attempt");
    if (json_is_integer(attempt))
        snprintf(name, sizeof name, "%lld-a%lld",
                 (long long)json_integer_value(json_object_get(line, "step")),
                 (long long)json_integer_value(attempt));
    printf("%-24s  %-8s  %-16s  %s%s%s\n", text_safe(time, sizeof time, member_text(line, "time")),
           text_safe(event, sizeof event, member_text(line, "event")), name,
           text_safe(by, sizeof by, member_text(line, "by")),
           member_text(line, "detail")[0] != '\0' ? ": " : "",
           text_safe(detail, sizeof detail, member_text(line, "detail")));
}

int cli_history(const struct cli *cli)
{
    struct selection selection;
    json_t *list = NULL, *line;
    size_t index;
    int error = selection_parse_run(&selection, cli->args[0]);
    if (error == 0)
        error = journal_read(&list, cli, selection.run);
    if (error == 0 && cli->is_json)
        error = text_document(list);
    else if (error == 0 && json_array_size(list) == 0)
        printf("no events\n");
    else if (error == 0)
        printf("%-24s  %-8s  %-16s  %s\n", "TIME", "EVENT", "STEP", "BY");
    json_array_foreach(list, index, line)
    {
        if (error == 0 && !cli->is_json)
            print_event(line);
    }
    json_decref(list);
    return error;
}
