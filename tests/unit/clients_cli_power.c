/* clients_cli_power.c - the power is lost at each step of ckpt-cli's commits on a directory, and
 * the disk keeps any part of the unsynced changes.
 *
 * Goal: a file system may leave any part of an export, an import, a convert, a reshard, a prune, a
 * pin, an unpin, a gc or a release. Every earlier checkpoint is listed and whole (those that a
 * prune removes: or gone), and no torn one is listed. The command then succeeds again, as does gc,
 * also when the power was lost in that run too. Once a command has answered, all states have its
 * result. Method: each command runs once below a folder whose calls power_bed.h records. Each state
 * of power_walk.h is made as a folder, and the tools check it: list, verify of all listed
 * checkpoints, the command, gc, list and verify. For some states the command and gc are recorded,
 * too, and cut: after a random change, and in a few after each change, with all unsynced changes
 * and with none. io_uring makes its calls in the kernel and is refused.
 *
 * SAMPLE=1 takes STATES of them, drawn so that every call has its turn, make test one in
 * STATES_APART of these (sample.h); TORTURE=1 takes all, cuts the commands after each, and in
 * another turn those after that cut, too. SEED= repeats a run, TOOL= takes one command alone. */
#include "tests/unit/clients_cli_bed.h"
#include "tests/unit/in_memory.h"
#include "tests/unit/no_ring.h"
#include "tests/unit/power_walk.h"
#include "tests/unit/sample.h"
#include "tests/unit/suite.h"

#define STATES 40u   /* of a command, in make test; and those in which all is lost */
#define CUT_AGAIN 5u /* of so many times that a command runs again; TORTURE=1: all, and twice */
#define STATES_APART 5u
#define LISTED_MAX 16u
#define NUM_STORES 3u

/* ---- the commands ---- */

/* A command, and the files in the folder before it: below `store`, `out` and `work` of the
 * world. */
struct scene {
    struct tool tool;
    void (*place)(const struct world *world, const char *from);
};

static void set_import_beside(struct cli *cli, const struct world *world)
{
    set_import(cli, world);
    set_store(cli, world);
}

/* Two checkpoints to read. */
static void place_source(const struct world *world, const char *from)
{
    const char *to = world->fixture.root;
    shell("mkdir -p '%s/run' && cp -r '%s/llama' '%s' && cp -r '%s/run/step-00000002-a0001'"
          " '%s/run'",
          to, from, to, from, to);
}

/* And a store to write that has a checkpoint already. */
static void place_two_stores(const struct world *world, const char *from)
{
    place_source(world, from);
    shell("mkdir '%s' && cp -r '%s/llama' '%s'", world->out, from, world->out);
}

static void place_old_file(const struct world *world, const char *from)
{
    place_source(world, from);
    shell("echo old >'%s'", world->out);
}

/* The files that a command changes: as prepare() of clients_cli_bed.h. */
static void place_work(const struct world *world, const char *from)
{
    shell("mkdir '%s' && cp -r '%s/run' '%s' && cd '%s/run' && mkdir -p step-00000009-a0001 pins"
          " leases quarantine && cp step-00000001-a0001/shard* step-00000009-a0001 &&"
          " : >pins/step-00000008-a0001 && : >pins/step-00000004-a0001 && : "
          ">leases/step-00000001-a0001.0123456789abcdef",
          world->work, from, world->work, world->work);
    put_mark(world->work, "run", 9, 1);
}

static void place_damaged(const struct world *world, const char *from)
{
    place_work(world, from);
    shell("echo damaged >'%s/run/quarantine/step-00000002-a0001'", world->work);
}

static const struct scene scenes[] = {
    {{"export", cli_export, set_export, WRITES_FILES, 0, NULL}, place_source},
    {{"export --force", cli_export, set_export, WRITES_FILES, 0, NULL}, place_old_file},
    {{"export --format hf", cli_export, set_export_hf, WRITES_FILES, 0, NULL}, place_source},
    {{"convert", cli_convert, set_export, WRITES_STORE, 0, "run@2-a1"}, place_source},
    {{"convert --shards", cli_convert, set_reshard, WRITES_STORE, 0, "run@2-a1"}, place_two_stores},
    {{"import", cli_import, set_import, WRITES_STORE, 0, "new@0-a1"}, place_source},
    {{"import beside", cli_import, set_import_beside, WRITES_STORE, 0, "new@0-a1"}, place_source},
    {{"prune", cli_prune, set_prune, CHANGES, 0, NULL}, place_work},
    {{"gc", cli_gc, set_work, CHANGES, 0, NULL}, place_work},
    {{"pin", cli_pin, set_pin, CHANGES, 0, NULL}, place_work},
    {{"unpin", cli_unpin, set_unpin, CHANGES, 0, NULL}, place_work},
    {{"verify --release", cli_verify, set_release, CHANGES, 0, NULL}, place_damaged},
};
#define NUM_SCENES (sizeof scenes / sizeof *scenes)

static bool replaces(const struct scene *scene)
{
    return scene->place == place_old_file;
}

/* ---- contents ---- */

/* The checkpoints of a store that are listed, and its notes. */
struct listed {
    uint32_t count;
    char names[LISTED_MAX][304];
};
struct found {
    struct listed checkpoints[NUM_STORES], notes;
    unsigned shards; /* in the changed store, rubbish included */
    uint64_t output; /* the content of an export's files; 0: none */
};

static bool has(const struct listed *listed, const char *name)
{
    for (uint32_t i = 0; i < listed->count; i++)
        if (strcmp(listed->names[i], name) == 0)
            return true;
    return false;
}

static void add(struct listed *listed, const char *name)
{
    assert_true(listed->count < LISTED_MAX);
    snprintf(listed->names[listed->count++], sizeof *listed->names, "%s", name);
}

/* As expect(), of a checkpoint or a note. */
static void expect_of(struct world *world, bool is_so, const char *what, const char *name)
{
    char text[200];
    snprintf(text, sizeof text, "%s: %s", what, name);
    expect(world, is_so, text);
}

static const char *store_path(const struct world *world, unsigned number)
{
    return number == 0 ? world->fixture.root : number == 1 ? world->out : world->work;
}

static void find_listed(struct listed *out, struct world *world, const char *path)
{
    static struct cli cli; /* too large for a stack */
    struct storage *store = NULL;
    struct store_list catalog = {0};
    char name[200];
    struct stat status;
    out->count = 0;
    set_defaults(&cli);
    snprintf(cli.store, sizeof cli.store, "%s", path);
    if (stat(path, &status) != 0 || !S_ISDIR(status.st_mode))
        return;
    int error = store_open(&store, &cli);
    if (error == 0)
        error = store_list_read(&catalog, store, "");
    expect(world, error == 0 || error == ERR_NOT_FOUND, report_line());
    for (uint32_t i = 0; i < catalog.count; i++) {
        const struct manifest_summary *summary = &catalog.entries[i].summary;
        snprintf(name, sizeof name, "%s@%llu-a%llu", summary->run,
                 (unsigned long long)summary->step, (unsigned long long)summary->attempt);
        add(out, name);
    }
    store_list_free(&catalog);
    if (store != NULL)
        storage_close(store);
}

/* Pins with their text, and the quarantined checkpoints. */
static void find_notes(struct listed *out, const struct world *world)
{
    static const char *const folders[] = {"pins", "quarantine"};
    char path[400], text[64], note[300];
    out->count = 0;
    for (unsigned i = 0; i < 2; i++)
        for (unsigned step = 1; step <= 4; step++) {
            snprintf(path, sizeof path, "%s/run/%s/step-%08u-a0001", world->work, folders[i], step);
            FILE *file = fopen(path, "rb");
            if (file == NULL)
                continue;
            text[fread(text, 1, 40, file)] = '\0';
            fclose(file);
            snprintf(note, sizeof note, "%s %u: %s", folders[i], step, text);
            add(out, note);
        }
}

static void find_all(struct found *out, struct world *world, const struct scene *scene)
{
    bool is_file = scene->tool.effect == WRITES_FILES;
    for (unsigned i = 0; i < NUM_STORES; i++) {
        out->checkpoints[i].count = 0;
        if (i != 1 || !is_file)
            find_listed(&out->checkpoints[i], world, store_path(world, i));
    }
    find_notes(&out->notes, world);
    out->shards = count_files(world->work, ".safetensors");
    out->output = is_file && exists(world->out) ? survey_of(world->out, BY_CONTENT) : 0;
}

/* ---- one command's states ---- */

struct trial {
    struct world *world;
    const struct scene *scene;
    char root[256];             /* the folder with the folders that are recorded and made */
    char from[300];             /* the store that all is copied from */
    struct found before, after; /* the command, when no power goes */
    uint64_t left;              /* the sizes of its changed files at that time */
    bool is_torture;
    struct sample sample; /* of the states */
    unsigned
        walk_at; /* of STATES states: those after which the next run is cut after each change */
    unsigned num_walked; /* such states */
    char cut[300];       /* where a state is made */
    bool is_done;        /* the command had answered by then */
};

/* Its folders are those below `folder`. */
static void move_world(const struct trial *trial, const char *folder)
{
    struct world *world = trial->world;
    char path[256];
    snprintf(path, sizeof path, "%.200s/%s", trial->root, folder);
    snprintf(world->fixture.root, sizeof world->fixture.root, "%.200s/store", path);
    snprintf(world->out, sizeof world->out, "%s/out", path);
    snprintf(world->work, sizeof world->work, "%s/work", path);
}

/* Had the command answered before the change of that number was made? It does once, at its end. */
static unsigned has_answered(unsigned num_changes)
{
    return num_changes == power->num_changes;
}

/* Every listed checkpoint is whole. None is listed that is of neither side of the command; those
 * of both sides are listed. `is_done`: so are those that the command makes, and none that it
 * removes. */
static void judge_listed(struct world *world, const struct listed *is, const struct listed *before,
                         const struct listed *after, bool is_done)
{
    for (uint32_t i = 0; i < is->count; i++)
        expect_of(world, has(after, is->names[i]) || (!is_done && has(before, is->names[i])),
                  "nobody made it", is->names[i]);
    for (uint32_t i = 0; i < before->count; i++)
        expect_of(world, !has(after, before->names[i]) || has(is, before->names[i]),
                  "it was there before", before->names[i]);
    for (uint32_t i = 0; i < after->count && is_done; i++)
        expect_of(world, has(is, after->names[i]), "the answer said it is there", after->names[i]);
}

static void judge_found(const struct trial *trial, bool is_done)
{
    static struct found is;
    struct world *world = trial->world;
    const struct found *before = &trial->before, *after = &trial->after;
    bool is_gc = trial->scene->tool.run == cli_gc; /* a removed one may be back, as rubbish */
    find_all(&is, world, trial->scene);
    for (unsigned i = 0; i < NUM_STORES; i++) {
        judge_listed(world, &is.checkpoints[i], &before->checkpoints[i], &after->checkpoints[i],
                     is_done);
        for (uint32_t k = 0; k < is.checkpoints[i].count; k++)
            expect_of(world, is_whole(world, store_path(world, i), is.checkpoints[i].names[k]),
                      "it is listed and not whole", is.checkpoints[i].names[k]);
    }
    judge_listed(world, &is.notes, &before->notes, &after->notes, is_done);
    expect(world, !is_done || is_gc || is.shards <= after->shards,
           "the answer said that files are gone");
    expect(world, is.output == after->output || (!is_done && is.output == before->output),
           "the output is neither what it was nor what it was to be");
}

/* With --force where something is left, as the error says. */
static void run_again(const struct trial *trial)
{
    struct world *world = trial->world;
    const struct tool *tool = &trial->scene->tool;
    int error = run_tool(tool, world, true, replaces(trial->scene), NULL);
    if (error == ERR_EXISTS)
        error = run_tool(tool, world, true, true, NULL);
    bool is_there = tool->effect == WRITES_FILES || makes_checkpoint(tool);
    /* Checkpoints that cannot be made again must be there, and those that cannot come back must be
     * gone; judge_found checks it. */
    expect(world,
           error == tool->want || (is_there && error == ERR_EXISTS) ||
               (tool->run == cli_unpin && error == ERR_NOT_FOUND),
           report_line());
}

static void remove_rubbish(struct world *world, const struct scene *scene)
{
    static struct cli cli; /* too large for a stack */
    for (unsigned i = 0; i < NUM_STORES; i++) {
        const char *path = store_path(world, i);
        if (!exists(path) || (i == 1 && scene->tool.effect == WRITES_FILES))
            continue;
        set_defaults(&cli);
        strcpy(cli.store, path);
        expect(world, run_quietly(world, cli_gc, &cli, NULL) == 0, report_line());
    }
}

/* The run after a power loss, in the log of that number; `path` is the state that the loss left. */
static void record_again(const struct trial *trial, const char *path, unsigned log)
{
    power = &power_logs[log];
    power_record(path);
    run_again(trial);
    remove_rubbish(trial->world, trial->scene);
    power_stop();
    remove_tree(path);
}

/* The power is lost anywhere in the log: the resulting state is made at `path`. */
static void cut_again(const char *path)
{
    struct power_state state;
    static struct walk walk;
    begin_state(&walk, &state,
                power->num_placed +
                    (unsigned)next_random(power->num_changes - power->num_placed + 1));
    draw_pending(&walk, &state);
    power_make(&state, path);
}

/* At `path` nothing is lost, everything works again, and no remains of the first run are left;
 * removes `path`. */
static void judge_and_run(const struct trial *trial, const char *path, bool is_done)
{
    judge_found(trial, is_done);
    run_again(trial);
    remove_rubbish(trial->world, trial->scene);
    judge_found(trial, true);
    expect(trial->world, survey_of(path, BY_SIZE) == trial->left, "something else is left");
    remove_tree(path);
}

static void look_again(struct walk *walk, const struct power_state *state, bool is_first)
{
    const struct trial *trial = walk->user;
    (void)is_first;
    snprintf(trial->world->what, sizeof trial->world->what,
             "%s: again, cut after %u changes, %u not synced", trial->scene->tool.name,
             state->num_changes - power->num_placed, walk->num_pending);
    power_make(state, trial->cut);
    judge_and_run(trial, trial->cut, trial->is_done);
}

/* The log is cut after each of its changes. */
static void walk_again(const struct trial *trial)
{
    static struct walk walk;
    walk = (struct walk){.visit = look_again,
                         .count_told = promises_nothing,
                         .user = (void *)(uintptr_t)trial,
                         .is_short = true};
    walk_states(&walk, 0);
    print_message("# %s: again, %u changes, %u looked at\n", trial->scene->tool.name,
                  power->num_changes - power->num_placed, walk.count);
}

/* Makes the state and cuts the following runs so many times, each time the run after the last cut.
 * With `is_walked` the first of them is then cut after each of its changes. */
static void look_at(struct trial *trial, const struct power_state *state, unsigned num_cuts,
                    bool is_walked)
{
    uint64_t chances = random_state; /* those of the walk stay as they are */
    power_make(state, trial->cut);
    for (unsigned i = 1; i <= num_cuts; i++) {
        judge_found(trial, trial->is_done);
        record_again(trial, trial->cut, i);
        cut_again(trial->cut);
    }
    judge_and_run(trial, trial->cut, trial->is_done);
    if (num_cuts == 1 && is_walked)
        walk_again(trial);
    power = &power_logs[0];
    random_state = chances;
}

static void look(struct walk *walk, const struct power_state *state, bool is_first)
{
    struct trial *trial = walk->user;
    struct world *world = trial->world;
    if ((!is_first && walk->count % walk->stride != 0) || !sample_takes(&trial->sample))
        return;
    snprintf(trial->cut, sizeof trial->cut, "%s/cut", trial->root);
    move_world(trial, "cut");
    trial->is_done = has_answered(state->num_changes);
    bool is_walked = walk->visited % STATES == trial->walk_at;
    bool is_cut_again = walk->visited++ % CUT_AGAIN == 0;
    trial->num_walked += is_walked;
    unsigned least = is_cut_again && !trial->is_torture, most = trial->is_torture ? 2 : least;
    for (unsigned num_cuts = least; num_cuts <= most; num_cuts++) {
        snprintf(world->what, sizeof world->what,
                 "%s: state %u, after %u changes%s, %u not synced, cut %u more times",
                 trial->scene->tool.name, walk->count, state->num_changes - power->num_placed,
                 trial->is_done ? " and the answer" : "", walk->num_pending, num_cuts);
        look_at(trial, state, num_cuts, is_walked);
    }
}

/* Runs the command while its changes are recorded. */
static void record(struct trial *trial)
{
    struct world *world = trial->world;
    const struct tool *tool = &trial->scene->tool;
    char told[300];
    snprintf(told, sizeof told, "%s/told", trial->root);
    assert_int_equal(mkdir(told, 0755), 0);
    move_world(trial, "told");
    snprintf(world->what, sizeof world->what, "%s: without any loss of power", tool->name);
    trial->scene->place(world, trial->from);
    find_all(&trial->before, world, trial->scene);
    power_record(told);
    int error = run_tool(tool, world, true, replaces(trial->scene), NULL);
    power_stop();
    expect(world, error == tool->want, report_line());
    find_all(&trial->after, world, trial->scene);
    remove_rubbish(world, trial->scene);
    trial->left = survey_of(told, BY_SIZE);
    remove_tree(told);
}

static void try_scene(struct trial *trial)
{
    static struct walk walk;
    trial->is_torture = getenv("TORTURE") != NULL;
    trial->num_walked = 0;
    trial->sample = sample_begin(STATES_APART);
    walk = (struct walk){.visit = count_only, .count_told = has_answered, .user = trial};
    record(trial);
    uint64_t seed = random_state;
    walk_states(&walk, seed);
    walk.stride = trial->is_torture || walk.count < STATES ? 1 : walk.count / STATES;
    unsigned states = walk.count;
    assert_true(states > 10);
    trial->walk_at = (states < STATES ? states : STATES) / (unsigned)trial->sample.one_in / 2;
    walk.visit = look;
    walk_states(&walk, seed);
    assert_true(trial->num_walked > 0);
    print_message("# %s: %u changes, %u states, %u looked at\n", trial->scene->tool.name,
                  power->num_changes - power->num_placed, states, walk.visited);
}

TEST_BETWEEN(test_power__whatever_it_leaves_a_command_lost_nothing_and_runs_again, world_open,
             world_close)
{
    static struct trial trial;
    seed_random();
    trial.world = *state;
    strcpy(trial.root, trial.world->root);
    strcpy(trial.from, trial.world->fixture.root);
    for (size_t i = 0; i < NUM_SCENES; i++) {
        trial.scene = &scenes[i];
        if (is_chosen(&scenes[i].tool))
            try_scene(&trial);
    }
}

int main(void)
{
    log_setup("clients_cli_power", NULL);
    tell_in_memory();
    return suite_run(NULL, NULL);
}
