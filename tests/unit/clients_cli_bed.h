/* clients_cli_bed.h - runs every command of ckpt-cli on a directory in this process, for tests that
 * make parts of it fail.
 *
 * A world is a store with a run of four checkpoints in two shards, and a Llama of some KiB with the
 * Hugging Face folder that it was imported from. Commands write into `out`, and into `work`, a copy
 * of the run for commands that change a store. Each command first runs once without failures: its
 * output and files are the reference for every run with the same answer (judge). No error may leave
 * a file that counts as whole. The store that is read must stay unchanged, inodes included. */
#ifndef HOLDFAST_TESTS_CLIENTS_CLI_BED_H
#define HOLDFAST_TESTS_CLIENTS_CLI_BED_H

#define LARGE_WIDTH 40000u /* three blocks of output in all: only the steps matter here */
#include "tests/unit/clients_store_bed.h"
#include "tests/unit/descriptors.h"
#include "tests/unit/mark_bed.h"
#include "tests/unit/suite.h"

#include <ftw.h>
#include <jansson.h>

#define SAID_BYTES_MAX 65536

struct world {
    struct fixture fixture; /* fixture.root is the store */
    char root[256], model[300], out[300], work[300];
    int said_fd, noise_fd; /* stdout and stderr of a command */
    char said[SAID_BYTES_MAX];
    char what[160]; /* the current run and its failure, for messages */
    uint64_t store; /* the hash of its files' identities */
    /* Of the current command without a failure: its files, and its output without and with
     * --json. */
    uint64_t left;
    char said_then[2][SAID_BYTES_MAX];
    /* The ckptd that commands ask: none, a ckptd, or a ckptd for its store, as main() does first.
     * Then the addresses of the ckptds of the store and `out`, and the function that empties `out`
     * and has it served again. */
    enum { ON_DIRECTORY, ASKS, FINDS } through;
    const char *source, *target;
    void (*renew)(struct world *world);
};

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

/* ---- the world ---- */

static const char model_config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":8,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":16,"
    "\"vocab_size\":512,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"rope_scaling\":"
    "{\"rope_type\":\"llama3\",\"factor\":8.0},\"tie_word_embeddings\":false}";

/* A tensor of a header; *at moves past its data. */
static void put_tensor(FILE *out, const char *name, unsigned rows, unsigned width, unsigned *at)
{
    char shape[32];
    unsigned bytes = rows * (width != 0 ? width : 1) * 4;
    snprintf(shape, sizeof shape, width != 0 ? "[%u,%u]" : "[%u]", rows, width);
    fprintf(out, "%s\"%s.weight\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%u,%u]}",
            *at > 0 ? "," : "{", name, shape, *at, *at + bytes);
    *at += bytes;
}

static void write_model(const char *folder)
{
    static const struct {
        const char *name;
        unsigned rows, width;
    } layer[] = {
        {"input_layernorm", 8, 0},  {"self_attn.q_proj", 8, 8}, {"self_attn.k_proj", 4, 8},
        {"self_attn.v_proj", 4, 8}, {"self_attn.o_proj", 8, 8}, {"post_attention_layernorm", 8, 0},
        {"mlp.gate_proj", 16, 8},   {"mlp.down_proj", 8, 16},   {"mlp.up_proj", 16, 8}};
    char path[400], name[96], *header;
    size_t bytes;
    unsigned at = 0;
    assert_int_equal(mkdir(folder, 0755), 0);
    FILE *text = open_memstream(&header, &bytes);
    put_tensor(text, "model.embed_tokens", 512, 8, &at);
    for (unsigned number = 0; number < 2; number++) {
        for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
            snprintf(name, sizeof name, "model.layers.%u.%s", number, layer[i].name);
            put_tensor(text, name, layer[i].rows, layer[i].width, &at);
        }
    }
    put_tensor(text, "model.norm", 8, 0, &at);
    put_tensor(text, "lm_head", 512, 8, &at);
    fputc('}', text);
    fclose(text);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    uint64_t length = bytes;
    fwrite(&length, sizeof length, 1, file);
    fwrite(header, 1, bytes, file);
    for (unsigned i = 0; i < at / 4; i++)
        fwrite(&(float){(float)i / 64}, sizeof(float), 1, file);
    assert_int_equal(fclose(file), 0);
    free(header);
    snprintf(path, sizeof path, "%s/config.json", folder);
    file = fopen(path, "wb");
    fputs(model_config, file);
    assert_int_equal(fclose(file), 0);
}

/* A token for each byte, none longer. */
static void write_tokenizer(const char *path)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (unsigned byte = 0; byte < 256; byte++)
        fprintf(file, "%c%c== %u\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
    assert_int_equal(fclose(file), 0);
}

static void write_metrics(const char *path)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (unsigned attempt = 1; attempt <= 2; attempt++) {
        fprintf(file, "{\"attempt\":%u,\"start_step\":%u,\"from_attempt\":%u,\"run\":\"run\"}\n",
                attempt, attempt - 1, attempt - 1);
        for (unsigned step = attempt; step <= 20; step++)
            fprintf(file, "{\"attempt\":%u,\"step\":%u,\"loss\":%u,\"lr\":0.5}\n", attempt, step,
                    20 - step);
    }
    assert_int_equal(fclose(file), 0);
}

static void set_defaults(struct cli *cli)
{
    *cli = (struct cli){.dtype = "keep",
                        .format = "auto",
                        .best = "lowest",
                        .metric = "loss",
                        .shard_size = 1ll << 30};
}

enum survey_by { BY_SIZE, BY_CONTENT, BY_IDENTITY };

/* Lists the files below a path, with names and the requested attributes. */
static struct {
    uint64_t sum;
    size_t cut; /* of the path */
    enum survey_by by;
    const char *suffix; /* counts these files alone; NULL: all */
    unsigned count;
} survey;

static int survey_file(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)walk;
    size_t length = strlen(path), tail = survey.suffix != NULL ? strlen(survey.suffix) : 0;
    /* Ignored: findings of verify, locks, leases, temporary files, the reserve for a full disk, and
     * the journal, which ckptd writes a little later. */
    if (type != FTW_F || strstr(path, "/verified.json") != NULL ||
        strstr(path, "/.holdfast.") != NULL || strstr(path, "/leases/") != NULL ||
        strstr(path, "/history/") != NULL || strstr(path, "/tombstones/reserve") != NULL ||
        length < tail ||
        strcmp(path + length - tail, survey.suffix != NULL ? survey.suffix : "") != 0)
        return 0;
    survey.count++;
    uint64_t name = checksum_bytes(path + survey.cut, length - survey.cut);
    uint64_t facts[4] = {name, (uint64_t)status->st_size, 0, 0};
    if (survey.by == BY_IDENTITY) {
        facts[2] = status->st_ino;
        facts[3] = (uint64_t)status->st_mtim.tv_nsec;
    } else if (survey.by == BY_CONTENT) {
        char *text = malloc((size_t)status->st_size + 1);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        assert_int_equal(fread(text, 1, (size_t)status->st_size, file), status->st_size);
        facts[2] = checksum_bytes(text, (size_t)status->st_size);
        fclose(file);
        free(text);
    }
    survey.sum += checksum_bytes(facts, sizeof facts);
    return 0;
}

/* 0 when nothing is there. */
static uint64_t survey_of(const char *path, enum survey_by by)
{
    survey.sum = survey.count = 0;
    survey.cut = strlen(path);
    survey.by = by;
    survey.suffix = NULL;
    nftw(path, survey_file, 16, FTW_PHYS);
    return survey.sum;
}

static unsigned count_files(const char *path, const char *suffix)
{
    survey.count = 0;
    survey.cut = strlen(path);
    survey.by = BY_SIZE;
    survey.suffix = suffix;
    nftw(path, survey_file, 16, FTW_PHYS);
    return survey.count;
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status, (void)type, (void)walk;
    return remove(path);
}

static void remove_tree(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int open_capture(const char *root, const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", root, name);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

/* ---- the commands ---- */

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

static void read_said(struct world *world)
{
    ssize_t got = pread(world->said_fd, world->said, sizeof world->said - 1, 0);
    assert_true(got >= 0 && got < (ssize_t)sizeof world->said - 1);
    world->said[got] = '\0';
}

/* Starts and ends the wrappers of system calls around a command. */
struct between {
    void (*begin)(void *user);
    void (*end)(void *user);
    void *user;
};

static int run_quietly(struct world *world, int (*run)(const struct cli *cli),
                       const struct cli *cli, const struct between *between)
{
    int kept_out = dup(STDOUT_FILENO), kept_err = dup(STDERR_FILENO);
    fflush(NULL);
    assert_int_equal(ftruncate(world->said_fd, 0), 0);
    assert_int_equal(ftruncate(world->noise_fd, 0), 0);
    dup2(world->said_fd, STDOUT_FILENO);
    dup2(world->noise_fd, STDERR_FILENO);
    report_clear();
    if (between != NULL)
        between->begin(between->user);
    int error = run(cli);
    if (between != NULL)
        between->end(between->user);
    fflush(NULL);
    dup2(kept_out, STDOUT_FILENO);
    dup2(kept_err, STDERR_FILENO);
    close(kept_out);
    close(kept_err);
    read_said(world);
    return error;
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

/* ---- the world, from begin to end ---- */

static int world_open(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    struct fixture *fixture = &world->fixture;
    static struct cli cli; /* too large for a stack */
    char path[400];
    *state = world;
    fixture_open(fixture, 2, 17);
    snprintf(world->root, sizeof world->root, "%s", fixture->root);
    snprintf(path, sizeof path, "%s/store", world->root);
    assert_int_equal(mkdir(path, 0755), 0);
    strcpy(fixture->root, path);
    snprintf(world->model, sizeof world->model, "%s/model", world->root);
    snprintf(world->out, sizeof world->out, "%s/out", world->root);
    snprintf(world->work, sizeof world->work, "%s/work", world->root);
    for (uint64_t step = 1; step <= 4; step++) {
        for (uint32_t i = 0; i < TENSORS; i++) /* the values differ from step to step */
            fixture->data[i][0] ^= (unsigned char)step;
        write_checkpoint(fixture, "run", step, 1);
    }
    write_model(world->model);
    snprintf(path, sizeof path, "%s/tokenizer.model", world->root);
    write_tokenizer(path);
    snprintf(path, sizeof path, "%s/steps.jsonl", world->root);
    write_metrics(path);
    set_defaults(&cli);
    strcpy(cli.store, fixture->root);
    strcpy(cli.run, "llama");
    cli.args[0] = world->model;
    cli.num_args = 1;
    world->said_fd = open_capture(world->root, "said");
    world->noise_fd = open_capture(world->root, "noise");
    assert_int_equal(run_quietly(world, cli_import, &cli, NULL), 0);
    world->store = survey_of(fixture->root, BY_IDENTITY);
    return 0;
}

static int world_close(void **state)
{
    struct world *world = *state;
    close(world->said_fd);
    close(world->noise_fd);
    strcpy(world->fixture.root, world->root);
    fixture_close(&world->fixture);
    free(world);
    return 0;
}

#endif
