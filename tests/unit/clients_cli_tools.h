/* clients_cli_tools.h - the commands of ckpt-cli as clients_cli_bed.h runs them: their arguments,
 * what each may change, and its answer when nothing fails. */
#ifndef HOLDFAST_TESTS_CLIENTS_CLI_TOOLS_H
#define HOLDFAST_TESTS_CLIENTS_CLI_TOOLS_H

#include "tests/unit/clients_cli_world.h"

/* TELLS: its input differs each time. WRITES_SERVED: it writes to a store that a ckptd serves. */
enum effect { READS, TELLS, WRITES_FILES, WRITES_STORE, WRITES_SERVED, CHANGES };

struct tool {
    const char *name;
    int (*run)(const struct cli *cli);
    void (*set)(struct cli *cli, const struct world *world);
    enum effect effect;
    int want;         /* its answer when nothing fails */
    const char *made; /* the checkpoint that is in `out` then */
};

static void set_argument(struct cli *cli, const char *argument)
{
    cli->args[0] = argument;
    cli->num_args = 1;
}

static void set_store(struct cli *cli, const struct world *world)
{
    strcpy(cli->store, world->fixture.root);
}

static void set_run(struct cli *cli, const struct world *world)
{
    set_store(cli, world);
    set_argument(cli, "run@2");
}

static void set_two(struct cli *cli, const struct world *world)
{
    set_run(cli, world);
    cli->args[1] = "run@3";
    cli->num_args = 2;
}

static void set_llama(struct cli *cli, const struct world *world)
{
    set_store(cli, world);
    set_argument(cli, "llama");
}

static void set_quick(struct cli *cli, const struct world *world)
{
    set_run(cli, world);
    cli->is_quick = true;
}

static void set_export(struct cli *cli, const struct world *world)
{
    set_run(cli, world);
    strcpy(cli->output, world->out);
    strcpy(cli->dtype, "bf16");
}

static void set_export_hf(struct cli *cli, const struct world *world)
{
    set_llama(cli, world);
    strcpy(cli->output, world->out);
    strcpy(cli->format, "hf");
    snprintf(cli->tokenizer, sizeof cli->tokenizer, "%s/tokenizer.model", world->root);
    cli->shard_size = 4096;
}

static void set_report(struct cli *cli, const struct world *world)
{
    set_store(cli, world);
    set_argument(cli, "run");
    strcpy(cli->output, world->out);
    snprintf(cli->metrics, sizeof cli->metrics, "%s/steps.jsonl", world->root);
}

static void set_reshard(struct cli *cli, const struct world *world)
{
    set_run(cli, world);
    strcpy(cli->output, world->out);
    cli->shards = 3;
}

static void set_import(struct cli *cli, const struct world *world)
{
    strcpy(cli->store, world->out);
    strcpy(cli->run, "new");
    set_argument(cli, world->model);
    cli->shards = 2;
}

static void set_work(struct cli *cli, const struct world *world)
{
    strcpy(cli->store, world->work);
}

static void set_prune(struct cli *cli, const struct world *world)
{
    set_work(cli, world);
    set_argument(cli, "run");
    cli->keep_best = 1;
    cli->may_remove_most = true;
}

static void set_pin(struct cli *cli, const struct world *world)
{
    set_work(cli, world);
    set_argument(cli, "run@1");
    strcpy(cli->note, "a note");
}

static void set_unpin(struct cli *cli, const struct world *world)
{
    set_work(cli, world);
    set_argument(cli, "run@4");
}

static void set_release(struct cli *cli, const struct world *world)
{
    set_work(cli, world);
    set_argument(cli, "run@2");
    cli->is_released = true;
}

static void set_tag(struct cli *cli, const struct world *world)
{
    set_pin(cli, world);
    cli->args[1] = "good";
    cli->num_args = 2;
}

static void set_cp(struct cli *cli, const struct world *world)
{
    static char target[320];
    snprintf(target, sizeof target, "%s:copy", world->out);
    set_run(cli, world);
    cli->args[1] = target;
    cli->num_args = 2;
}

static void set_rm(struct cli *cli, const struct world *world)
{
    set_work(cli, world);
    set_argument(cli, "run@2-a1");
    cli->is_yes = true;
}

static void set_watch(struct cli *cli, const struct world *world)
{
    set_store(cli, world);
    cli->count = 1;
}

static const struct tool tools[] = {
    {"list", cli_list, set_store, READS, 0, NULL},
    {"show", cli_show, set_llama, READS, 0, NULL},
    {"report", cli_report, set_report, WRITES_FILES, 0, NULL},
    {"verify", cli_verify, set_run, READS, 0, NULL},
    {"verify --quick", cli_verify, set_quick, READS, 0, NULL},
    {"diff", cli_diff, set_two, READS, CLI_DIFFERS, NULL},
    {"export", cli_export, set_export, WRITES_FILES, 0, NULL},
    {"export --format hf", cli_export, set_export_hf, WRITES_FILES, 0, NULL},
    {"convert", cli_convert, set_export, WRITES_STORE, 0, "run@2"},
    {"convert --shards", cli_convert, set_reshard, WRITES_STORE, 0, "run@2"},
    {"import", cli_import, set_import, WRITES_STORE, 0, "new@0"},
    {"prune", cli_prune, set_prune, CHANGES, 0, NULL},
    {"gc", cli_gc, set_work, CHANGES, 0, NULL},
    {"pin", cli_pin, set_pin, CHANGES, 0, NULL},
    {"unpin", cli_unpin, set_unpin, CHANGES, 0, NULL},
    {"tag", cli_tag, set_tag, CHANGES, 0, NULL},
    {"cp", cli_cp, set_cp, WRITES_STORE, 0, "copy@2"},
    {"rm", cli_rm, set_rm, CHANGES, 0, NULL},
    {"verify --release", cli_verify, set_release, CHANGES, 0, NULL},
    {"du", cli_du, set_store, READS, 0, NULL},
    {"status", cli_status, set_store, TELLS, 0, NULL},
    {"status --watch", cli_watch, set_watch, TELLS, 0, NULL},
};
#define NUM_TOOLS (sizeof tools / sizeof *tools)

static bool makes_checkpoint(const struct tool *tool)
{
    return tool->effect == WRITES_STORE || tool->effect == WRITES_SERVED;
}

static bool is_chosen(const struct tool *tool)
{
    const char *only = getenv("TOOL");
    return only == NULL || strcmp(only, tool->name) == 0;
}

#endif
