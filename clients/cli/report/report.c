/* report.c - the command: collects the facts about a run, and writes them as a page, or as JSON. */
#include "clients/cli/report/report.h"

#include "proto/base/memfile.h"

#include <stdlib.h>

/* To --output, or to RUN.html in the current directory. */
static int write_page(const json_t *root, const struct cli *cli)
{
    char *text = NULL, size[32], output[sizeof cli->output + sizeof ".html"];
    const char *run = member_text(json_object_get(root, "head"), "run");
    bool is_named = cli->output[0] != '\0';
    size_t bytes = 0;
    FILE *file = memfile_open(&text, &bytes);
    int error = file != NULL ? page_write(file, root) : ERR_MEMORY;
    if (file == NULL || !memfile_close(file))
        error = report_error(ERR_MEMORY, NULL, "no memory for a report");
    snprintf(output, sizeof output, "%s%s", is_named ? cli->output : run, is_named ? "" : ".html");
    if (error == 0)
        error = output_write(output, cli->is_forced, text, bytes);
    if (error == 0 && !cli->is_json)
        printf("%s: %s, %s, written to %s, %s\n", run,
               text_count(json_array_size(json_object_get(root, "checkpoints")), "checkpoint").text,
               text_bytes(size, sizeof size, bytes), output, CLI_STORED);
    free(text);
    return error;
}

int cli_report(const struct cli *cli)
{
    json_t *root = NULL;
    bool has_damage = false;
    int error = report_collect(&root, &has_damage, cli);
    if (error == 0 && (cli->output[0] != '\0' || !cli->is_json))
        error = write_page(root, cli);
    if (error == 0 && cli->is_json)
        error = text_document(root);
    json_decref(root);
    return error != 0 ? error : has_damage ? CLI_DIFFERS : 0;
}
