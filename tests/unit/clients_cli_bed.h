/* clients_cli_bed.h - runs every command of ckpt-cli on a directory in this process, for tests that
 * make parts of it fail, and judges what it left.
 *
 * Each command (clients_cli_tools.h) first runs once without failures in its world
 * (clients_cli_world.h): its output and files are the reference for every run with the same answer
 * (judge). No error may leave a file that counts as whole. The store that is read must stay
 * unchanged, inodes included. */
#ifndef HOLDFAST_TESTS_CLIENTS_CLI_BED_H
#define HOLDFAST_TESTS_CLIENTS_CLI_BED_H

#include "tests/unit/clients_cli_tools.h"

/* ---- one run ---- */

/* Resets `out` and `work` for a command. */
static void prepare(const struct tool *tool, struct world *world)
{
    char part[320];
    if (tool->effect == WRITES_SERVED) {
        world->renew(world);
        return;
    }
    for (int i = 0; i < 2; i++) { /* those that could not be removed */
        snprintf(part, sizeof part, "%s/%s/leases", world->fixture.root, i == 0 ? "run" : "llama");
        remove_tree(part);
    }
    snprintf(part, sizeof part, "%s.part", world->out);
    remove_tree(world->out);
    remove_tree(part);
    if (tool->effect != CHANGES)
        return;
    remove_tree(world->work);
    shell("mkdir '%s' && cp -rl '%s/run' '%s' && cd '%s/run' && mkdir -p step-00000009-a0001 pins"
          " leases && ln step-00000001-a0001/shard* step-00000009-a0001 && : >pins/"
          "step-00000008-a0001 && : >pins/step-00000004-a0001 &&"
          " : >leases/step-00000001-a0001.0123456789abcdef%s",
          world->work, world->fixture.root, world->work, world->work,
          tool->run == cli_verify /* a quarantined checkpoint: prune spares it */
              ? " && mkdir quarantine && echo damaged >quarantine/step-00000002-a0001"
              : "");
    put_mark(world->work, "run", 9, 1);
}

static const struct tool *tool_on_found; /* a command that works on the store of a ckptd */

static int run_on_found(const struct cli *cli)
{
    static struct cli found; /* too large for a stack */
    found = *cli;
    int error = server_find_store(&found);
    return error == 0 ? tool_on_found->run(&found) : error;
}

static int run_tool(const struct tool *tool, struct world *world, bool is_json, bool is_forced,
                    const struct between *between)
{
    static struct cli cli; /* too large for a stack */
    set_defaults(&cli);
    tool->set(&cli, world);
    cli.is_json = is_json;
    cli.is_forced = is_forced;
    if (world->through != ON_DIRECTORY) {
        strcpy(cli.server, tool->run == cli_import ? world->target : world->source);
        cli.store[0] = '\0';
    }
    tool_on_found = tool;
    return run_quietly(world, world->through == FINDS ? run_on_found : tool->run, &cli, between);
}

/* ---- files after a run ---- */

static bool is_document(const char *text)
{
    json_t *root = json_loads(text, 0, NULL);
    bool is_whole = root != NULL;
    json_decref(root);
    return is_whole;
}

static bool exists(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0;
}

/* A checkpoint of a store, to the last byte. */
static bool is_whole(struct world *world, const char *store, const char *name)
{
    static struct cli cli;
    char said[SAID_BYTES_MAX];
    strcpy(said, world->said);
    set_defaults(&cli);
    strcpy(cli.store, store);
    cli.args[0] = name;
    cli.num_args = 1;
    int error = run_quietly(world, cli_verify, &cli, NULL);
    strcpy(world->said, said);
    return error == 0;
}

static uint64_t survey_left(const struct tool *tool, const struct world *world)
{
    return tool->effect == WRITES_FILES ? survey_of(world->out, BY_CONTENT)
           : tool->effect == CHANGES    ? survey_of(world->work, BY_SIZE)
                                        : 0;
}

/* True when the output has its name. It gets the name when it is complete; making the name durable
 * may fail, and so may removing it again. */
static bool is_there(const struct tool *tool, const struct world *world)
{
    return tool->effect == WRITES_FILES ? exists(world->out)
           : makes_checkpoint(tool)     ? count_files(world->out, MANIFEST_NAME) > 0
                                        : false;
}

/* The run without failures: the reference for the others. */
static inline void run_undisturbed(const struct tool *tool, struct world *world)
{
    for (int is_json = 0; is_json < 2; is_json++) {
        prepare(tool, world);
        int error = run_tool(tool, world, is_json, false, NULL);
        if (error != tool->want)
            fail_msg("%s: answer %d (%s)", tool->name, error, report_line());
        assert_int_equal(is_document(world->said), is_json);
        strcpy(world->said_then[is_json], world->said);
    }
    world->left = survey_left(tool, world);
    assert_true((tool->effect != WRITES_FILES && tool->effect != CHANGES) || world->left != 0);
}

static void expect(const struct world *world, bool is_so, const char *what)
{
    if (!is_so)
        fail_msg("%s: %s; it said: %.2000s", world->what, what, world->said);
}

/* A listed checkpoint has all its files; the newest two stay in any case. */
static void judge_work(const struct tool *tool, const struct world *world)
{
    char path[500];
    for (unsigned step = 1; step <= 4; step++) {
        snprintf(path, sizeof path, "%s/run/step-%08u-a0001/manifest.json", world->work, step);
        bool is_listed = exists(path);
        bool may_go = (step <= 2 && tool->run == cli_prune) || (step == 2 && tool->run == cli_rm);
        expect(world, is_listed || may_go, "a manifest is gone");
        for (unsigned shard = 1; shard <= 2; shard++) {
            snprintf(path, sizeof path, "%s/run/step-%08u-a0001/shard-%05u-of-00002.safetensors",
                     world->work, step, shard);
            expect(world, !is_listed || exists(path), "a shard is gone");
        }
    }
}

/* True when a file of some KiB contains such a text. */
static bool has_text(const char *path, const char *text)
{
    char data[SAID_BYTES_MAX] = "";
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return false;
    (void)!fread(data, 1, sizeof data - 1, file);
    fclose(file);
    return strstr(data, text) != NULL;
}

static void judge_success(const struct tool *tool, struct world *world, bool is_json)
{
    expect(world, !is_json || is_document(world->said), "no whole JSON");
    if (tool->run == cli_prune && strstr(world->said, "unverifiable") != NULL)
        return; /* objects that could not be checked stay */
    if (tool->run == cli_gc && strcmp(world->said, world->said_then[is_json]) != 0)
        return; /* objects that gc could not check stay */
    if ((tool->run == cli_list || tool->run == cli_show) &&
        strstr(world->said, "could not") != NULL)
        return; /* unreadable objects are reported as such */
    if (tool->run == cli_report && has_text(world->out, "could not"))
        return;                                                        /* likewise, on its page */
    if (tool->effect != TELLS && !(is_json && makes_checkpoint(tool))) /* whose JSON has a nonce */
        expect(world, strcmp(world->said, world->said_then[is_json]) == 0, "another answer");
    expect(world,
           makes_checkpoint(tool) ? is_whole(world, world->out, tool->made)
                                  : survey_left(tool, world) == world->left,
           "it left something else");
}

/* A document that names its missing parts itself. */
static bool says_error(const char *said)
{
    static const char member[] = "\"error\": \"";
    const char *at = said;
    while ((at = strstr(at, member)) != NULL && at[strlen(member)] == '"')
        at += strlen(member);
    return at != NULL;
}

/* `may_leave`: the removal of rubbish failed too. */
static void judge_failure(const struct tool *tool, struct world *world, bool is_json,
                          bool may_leave)
{
    char part[320];
    snprintf(part, sizeof part, "%s.part", world->out);
    if (tool->run != cli_prune && tool->run != cli_gc) /* their answers name the failure */
        expect(world, !(is_json && is_document(world->said)) || says_error(world->said),
               "a whole JSON");
    expect(world, strcmp(world->said, world->said_then[is_json]) != 0, "the answer of a success");
    if (tool->effect == WRITES_FILES) {
        expect(world, !is_there(tool, world) || survey_left(tool, world) == world->left,
               "an output that is not whole");
        expect(world, may_leave || !exists(part), "an unfinished output is left");
    } else if (makes_checkpoint(tool)) {
        expect(world,
               !is_there(tool, world) || (may_leave && is_whole(world, world->out, tool->made)),
               "a checkpoint that is not whole");
        bool goes_on = tool->run == cli_cp && count_files(world->out, "/" MARK_NAME) > 0;
        expect(world, may_leave || goes_on || count_files(world->out, ".safetensors") == 0,
               "shards are left");
    }
}

/* run_tool answered `error` after prepare. */
static inline void judge(const struct tool *tool, struct world *world, int error, bool is_json,
                         bool may_leave)
{
    if (error == tool->want)
        judge_success(tool, world, is_json);
    else if (error < 0) /* not a difference that compare found */
        judge_failure(tool, world, is_json, may_leave);
    if (tool->effect == CHANGES)
        judge_work(tool, world);
    expect(world, survey_of(world->fixture.root, BY_IDENTITY) == world->store,
           "the store is another one");
}

/* What an interrupted rm left is no checkpoint any more; gc removes it. */
static void judge_rest(struct world *world)
{
    static const struct tool gc = {"gc", cli_gc, set_work, CHANGES, 0, NULL};
    char path[400];
    snprintf(path, sizeof path, "%s/run/step-00000002-a0001", world->work);
    expect(world, run_tool(&gc, world, true, false, NULL) == 0, "gc failed");
    expect(world, !exists(path), "gc left what rm had begun to remove");
}

/* Remains of a failed run disturb no later run. */
static inline void judge_again(const struct tool *tool, struct world *world)
{
    char part[320];
    snprintf(part, sizeof part, "%s.part", world->out);
    if (is_there(tool, world))
        return; /* and whole */
    unlink(
        part); /* for one file the hint is to remove it; --force clears the folder of the other */
    int error = run_tool(tool, world, true, true, NULL);
    /* A removal that is not durable counts as made when it is asked for again. */
    bool removes = tool->run == cli_unpin || tool->run == cli_rm;
    expect(world, error == tool->want || (removes && error == ERR_NOT_FOUND), report_line());
    if (error == ERR_NOT_FOUND && tool->run == cli_rm)
        judge_rest(world);
    else
        expect(world,
               makes_checkpoint(tool) ? is_whole(world, world->out, tool->made)
                                      : survey_left(tool, world) == world->left,
               "the next run left something else");
}

#endif
