/* main.c - ckpt-cli: look at checkpoints, prove them, compare them, export and convert them. One
 * table of commands.
 *
 * With --store a command works on a directory: what only looks takes no lock but a lease, and
 * changes nothing; prune, gc and what makes a checkpoint take the store's lock. With --server it
 * asks a running ckptd, for its answer or for where its directory is. Which of these a command does
 * is in the table, from which help is printed and shells are told what a word can become
 * (--complete). Errors are one line on stderr with a hint; exit codes are those of enum cli_exit.
 * With --json stdout is one JSON document, of watch one per look. */
#include "clients/cli/cli.h"

#include "proto/options.h"
#include "proto/rpc.h"

#include <string.h>
#include <unistd.h>

/* Places in `settings`, for is_set[] and the masks below. */
enum setting {
    STORE,
    SERVER,
    OUTPUT,
    DTYPE,
    WEIGHTS_ONLY,
    FORCE,
    QUICK,
    RELEASE,
    KEEP_LAST,
    KEEP_EVERY,
    KEEP_WITHIN,
    KEEP_BEST,
    METRIC,
    BEST,
    MOST,
    DRY_RUN,
    NOTE,
    SHARDS,
    MESH,
    EXCEPT,
    ONLY,
    FORMAT,
    SHARD_SIZE,
    TOKENIZER,
    RUN,
    INTERVAL,
    COUNT,
    JSON,
    HELP,
    NUM_SETTINGS
};
#define BIT(setting) (1u << (setting))
#define ON_FILES (1u << 31) /* works on the directory itself: a server tells where it is */
#define OF_A_RUN (1u << 30) /* its argument is a run, and no step of it */
_Static_assert(NUM_SETTINGS <= 30, "a mask has a bit per setting");
#define ALWAYS (BIT(JSON) | BIT(HELP))
#define WHERE (BIT(STORE) | BIT(SERVER))
#define NAMES_FILE (BIT(STORE) | BIT(OUTPUT) | BIT(TOKENIZER)) /* so that a shell can help */

static const struct option settings[] = {
    [STORE] = OPTION_STRING(struct cli, store, "store", "", "directory of the store"),
    [SERVER] = OPTION_STRING(struct cli, server, "server", "", "ckptd's socket, unix:/PATH"),
    [OUTPUT] = OPTION_STRING(struct cli, output, "output", "",
                             "the file or folder to write; of convert and reshard: another "
                             "store, its directory or unix:/PATH of the ckptd that serves it"),
    [DTYPE] = OPTION_CHOICE(struct cli, dtype, "dtype", "keep", "keep,fp32,bf16,fp16",
                            "floating-point type of the output, rounded to nearest even"),
    [WEIGHTS_ONLY] = OPTION_BOOL(struct cli, is_weights_only, "weights-only", "false",
                                 "leave the optimizer's tensors out"),
    [FORCE] = OPTION_BOOL(struct cli, is_forced, "force", "false",
                          "replace what was left unfinished; of export also a file that exists"),
    [QUICK] = OPTION_BOOL(struct cli, is_quick, "quick", "false",
                          "manifest, sizes, hashes of headers and checksum tables only"),
    [RELEASE] = OPTION_BOOL(struct cli, is_released, "release", "false",
                            "take it out of quarantine when all of it matches"),
    [KEEP_LAST] =
        OPTION_INT(struct cli, keep_last, "keep-last", 0, 0, 1 << 24, "keep the newest so many"),
    [KEEP_EVERY] = OPTION_INT(struct cli, keep_every, "keep-every", 0, 0, 1ll << 40,
                              "keep the steps that are multiples of it"),
    [KEEP_WITHIN] =
        OPTION_STRING(struct cli, keep_within, "keep-within", "",
                      "keep what is younger, counted back from the newest: 30m, 12h, 7d, 2w"),
    [KEEP_BEST] = OPTION_INT(struct cli, keep_best, "keep-best", 0, 0, 1 << 24,
                             "keep so many with the best metric"),
    [METRIC] = OPTION_STRING(struct cli, metric, "metric", "loss",
                             "which of the saved metrics --keep-best goes by"),
    [BEST] = OPTION_CHOICE(struct cli, best, "best", "lowest", "lowest,highest",
                           "which value of the metric is best"),
    [MOST] = OPTION_BOOL(struct cli, may_remove_most, "most", "false",
                         "let more than half of the run go"),
    [DRY_RUN] = OPTION_BOOL(struct cli, is_dry_run, "dry-run", "false",
                            "print the plan and remove nothing"),
    [NOTE] = OPTION_STRING(struct cli, note, "note", "", "who and why; kept with the pin"),
    [SHARDS] =
        OPTION_INT(struct cli, shards, "shards", 0, 0, 65536, "how many files to cut it into"),
    [MESH] = OPTION_STRING(struct cli, mesh, "mesh", "",
                           "what its ranks are: dp_shard=4, or dp_replicate=2,dp_shard=4"),
    [EXCEPT] = OPTION_STRING(struct cli, exceptions, "except", "",
                             "other types by name: '*norm*=fp32,output.weight=keep'"),
    [ONLY] = OPTION_STRING(struct cli, only, "only", "",
                           "these tensors alone, by name: 'layers.0.*,norm.weight'"),
    [FORMAT] = OPTION_CHOICE(struct cli, format, "format", "auto", "auto,safetensors,hf",
                             "one file, or a folder of the weights as Hugging Face has them; auto: "
                             "the folder with --weights-only and without --only"),
    [SHARD_SIZE] = OPTION_BYTES(struct cli, shard_size, "shard-size", "5GiB", 1 << 12, 1ll << 60,
                                "most bytes of a file of --format hf"),
    [TOKENIZER] = OPTION_STRING(struct cli, tokenizer, "tokenizer", "",
                                "the run's tokenizer file, to go with a folder of --format hf"),
    [RUN] = OPTION_STRING(struct cli, run, "run", "", "name of the new run"),
    [INTERVAL] =
        OPTION_DOUBLE(struct cli, interval, "interval", 2, 0.01, 86400, "seconds between looks"),
    [COUNT] = OPTION_INT(struct cli, count, "count", 0, 0, 1ll << 40, "looks, then end; 0: no end"),
    [JSON] = OPTION_BOOL(struct cli, is_json, "json", "false", "one JSON document on stdout"),
    [HELP] = OPTION_BOOL(struct cli, is_help, "help", "false", "this text"),
    [NUM_SETTINGS] = OPTION_END,
};

#define OUTPUT_NOTES                                                                             \
    "A STORE that is a directory is locked meanwhile. That of a running ckptd is named by\n"     \
    "its socket, unix:/PATH: as with import the files are written beside what it serves, and\n"  \
    "it takes them over at the end. It refuses a step that could be a trainer's own: of the\n"   \
    "newest attempt of a run that is being trained there. What was left there by one that was\n" \
    "killed gc removes, --force does not.\n"

static const struct command {
    const char *name, *arguments, *summary;
    int args_min, args_max;
    unsigned settings; /* that it takes beside ALWAYS */
    int (*run)(const struct cli *cli);
    const char *notes; /* for --help; "" for none */
} commands[] = {
    {"list", "[RUN]", "committed checkpoints by run, newest first", 0, 1, WHERE | OF_A_RUN,
     cli_list,
     "not read back: it was written and synced, but the scrub of its ckptd has not read it whole\n"
     "from the disk since then; verify reads it now. With --json: read_back.\n"},
    {"show", "CHECKPOINT", "the manifest: origin, state, tensors, shards", 1, 1, WHERE, cli_show,
     "Its origin is told back to the first attempt, as far as the store still has a checkpoint of\n"
     "each. Without a step newer ones that are damaged are passed over, and named on stderr. With\n"
     "--json: the manifest, its durability, read_back as of list, whether it is pinned, the pin's\n"
     "note; of one in quarantine its damage; of one that was resumed its ancestors, the latest\n"
     "first, and ancestors_complete; where some were passed over, skipped.\n"},
    {"verify", "CHECKPOINT", "re-read everything; name every damaged block", 1, 1,
     WHERE | ON_FILES | BIT(QUICK) | BIT(RELEASE), cli_verify,
     "--quick reads no data. It proves that every file is there in its size, belongs to this\n"
     "checkpoint, and has the checksum table that was committed. It does not prove that the data\n"
     "still match those checksums: a flipped bit on the disk is found without --quick only.\n"},
    {"diff", "CHECKPOINT CHECKPOINT", "compare the values of two, whatever their world sizes", 2, 2,
     WHERE | ON_FILES, cli_diff, ""},
    {"export", "CHECKPOINT --output PATH", "whole tensors in safetensors files", 1, 1,
     WHERE | ON_FILES | BIT(OUTPUT) | BIT(DTYPE) | BIT(EXCEPT) | BIT(ONLY) | BIT(WEIGHTS_ONLY) |
         BIT(FORMAT) | BIT(SHARD_SIZE) | BIT(TOKENIZER) | BIT(FORCE),
     cli_export,
     "--format safetensors leaves one file with every tensor under its own name. --format hf\n"
     "leaves a folder that other programs load: config.json, the weights under Hugging Face's\n"
     "names and in its order of rows, an index of several files, and with --tokenizer what\n"
     "loaders read of it: tokenizer.json, tokenizer_config.json. It is what --weights-only alone\n"
     "leaves. Patterns of --except are held against our names in both; --only is for one file, as\n"
     "such a folder has all weights.\n"},
    {"import", "FOLDER --run NAME", "a checkpoint of step 0 from a folder of Hugging Face", 1, 1,
     WHERE | ON_FILES | BIT(RUN) | BIT(SHARDS) | BIT(FORCE), cli_import,
     "FOLDER holds config.json of a Llama and its weights in fp32, bf16 or fp16, which become\n"
     "fp32 exactly. A trainer with job.run = NAME starts from it: position 0 of its data, moments\n"
     "zero. With --store the store is locked meanwhile. With --server its ckptd goes on: files of\n"
     "its own user (root gives them away) are written beside what it serves, and it takes\n"
     "them over at the end, or they are rubbish; gc removes those, --force does not.\n"},
    {"convert", "CHECKPOINT --output STORE", "the checkpoint with another dtype, in another store",
     1, 1,
     WHERE | ON_FILES | BIT(OUTPUT) | BIT(DTYPE) | BIT(EXCEPT) | BIT(ONLY) | BIT(WEIGHTS_ONLY) |
         BIT(FORCE),
     cli_convert,
     "The new checkpoint has the same run, step, attempt and cut, and a nonce and checksums of "
     "its\n"
     "own; every command reads it. Integers keep their type.\n" OUTPUT_NOTES},
    {"reshard", "CHECKPOINT --output STORE", "the same bits in another number of shards", 1, 1,
     WHERE | ON_FILES | BIT(OUTPUT) | BIT(SHARDS) | BIT(MESH) | BIT(FORCE), cli_reshard,
     "The new checkpoint has the same run, step and attempt, and the files that so many ranks of\n"
     "a trainer would have written. It is committed only when every tensor has the digest that\n"
     "the source's manifest holds.\n" OUTPUT_NOTES},
    {"prune", "RUN --keep-...", "remove what no rule keeps; rules are OR-ed", 1, 1,
     WHERE | OF_A_RUN | BIT(KEEP_LAST) | BIT(KEEP_EVERY) | BIT(KEEP_WITHIN) | BIT(KEEP_BEST) |
         BIT(METRIC) | BIT(BEST) | BIT(MOST) | BIT(DRY_RUN),
     cli_prune,
     "Always stays: the last two that are whole, the last two that the scrub has read back, and "
     "what is\npinned, in use, or damaged.\n"},
    {"pin", "CHECKPOINT", "keep it for good, whatever the rules say", 1, 1, WHERE | BIT(NOTE),
     cli_pin, ""},
    {"unpin", "CHECKPOINT", "take the pin away", 1, 1, WHERE, cli_unpin,
     "One that is not pinned is an error, with exit code 66. With step and attempt it takes away\n"
     "also the pin of a checkpoint that is gone.\n"},
    {"du", "[RUN | CHECKPOINT]", "bytes by run, checkpoint and kind of tensor", 0, 1,
     WHERE | ON_FILES, cli_du,
     "Beside them the bytes of rubbish (see gc), of files that are not ours, and of files that\n"
     "are shared: that have another name, so that removing them frees nothing.\n"},
    {"gc", "", "remove what belongs to no checkpoint", 0, 0, WHERE | BIT(DRY_RUN), cli_gc,
     "That is what a crash leaves: shards of a save that was never committed, removals that were\n"
     "cut short, notes on checkpoints that are gone, leases whose holder died, temporary files.\n"
     "With --store the store is locked meanwhile. A ckptd leaves out what it saves or removes and\n"
     "what a tool holds; when it starts it removes unfinished saves by itself. What is not ours\n"
     "stays, and so does what could not be looked into or removed: it is named, the rest goes,\n"
     "and the exit code is 74.\n"},
    {"watch", "", "saves in work, the newest checkpoint, rates, again and again", 0, 0,
     WHERE | BIT(INTERVAL) | BIT(COUNT), cli_watch,
     "--json prints an object per line. A ckptd that goes away is waited for. On a directory\n"
     "nobody tells how far a save is, nor what is read: there it is unfinished, or committed.\n"},
    {"status", "", "what a running ckptd is doing, or what a directory holds", 0, 0, WHERE,
     cli_status,
     "On a directory: the disk, how many checkpoints there are, the newest, saves that are not\n"
     "committed, and in_use: has somebody the writer's lock? Else those saves are rubbish (gc).\n"},
    {"health", "", "does ckptd serve, and can it save? (grpc.health.v1)", 0, 0, BIT(SERVER),
     cli_health, "0 when both are so, else 69 and the reason.\n"},
};
#define NUM_COMMANDS (sizeof commands / sizeof *commands)

static bool takes(const struct command *command, int setting)
{
    return ((command->settings | ALWAYS) & BIT(setting)) != 0;
}

static const char CHECKPOINT_NOTE[] =
    "CHECKPOINT is RUN[@STEP[-aATTEMPT]]; the newest without a step.\n";
static const char EXIT_CODES[] =
    "Exit codes: 0 fine; 1 damage or difference found, or a model whose files contradict each\n"
    "other; 2 wrong command line, or a model of another kind; 65 unknown format version; 66 no\n"
    "such store, run, checkpoint, file or pin; 69 server unavailable, or it cannot save\n"
    "(health); 70 out of memory or a bug; 74 reading or writing failed or was refused\n"
    "(permissions, a full disk, a store in use, an output that exists, a prune of more than\n"
    "half).\n";

static void print_help(FILE *out)
{
    fprintf(out, "usage: ckpt-cli COMMAND [ARGUMENTS] [--store DIR | --server unix:/PATH]\n\n");
    for (size_t i = 0; i < NUM_COMMANDS; i++)
        fprintf(out, "  %-7s %-26s %s\n", commands[i].name, commands[i].arguments,
                commands[i].summary);
    fprintf(out,
            "\n%sWithout --store and --server: the server unix:/tmp/holdfast-UID/ckptd.sock.\n"
            "`ckpt-cli COMMAND --help` lists its options.\n\n%s",
            CHECKPOINT_NOTE, EXIT_CODES);
}

/* Is its default more than not to have been given? */
static bool has_default(const struct option *option)
{
    return option->type != OPTION_TYPE_BOOL && option->text_default[0] != '\0' &&
           strcmp(option->text_default, "0") != 0;
}

static void print_setting(const struct option *option)
{
    printf("  --%-13s %s", option->key, option->help);
    if (option->choices != NULL)
        printf(": %s", option->choices);
    if (has_default(option))
        printf(" (default %s)", option->text_default);
    printf("\n");
}

static void print_command_help(const struct command *command)
{
    printf("usage: ckpt-cli %s %s%s[OPTIONS]\n%s\n\n", command->name, command->arguments,
           command->arguments[0] != '\0' ? " " : "", command->summary);
    for (int i = 0; i < NUM_SETTINGS; i++) {
        if (takes(command, i))
            print_setting(&settings[i]);
    }
    printf("\n%s%s%s", command->notes,
           strstr(command->arguments, "CHECKPOINT") != NULL ? CHECKPOINT_NOTE : "", EXIT_CODES);
}

static int exit_code(int error)
{
    switch (error) {
    case 0:
        return CLI_FINE;
    case CLI_DIFFERS:
    case ERR_CORRUPT:
    case ERR_MISMATCH:
        return CLI_DIFFERS;
    case ERR_INVALID:
        return CLI_USAGE;
    case ERR_VERSION:
        return CLI_VERSION;
    case ERR_NOT_FOUND:
        return CLI_NOT_FOUND;
    case ERR_UNAVAILABLE:
    case ERR_TIMEOUT:
        return CLI_UNAVAILABLE;
    case ERR_IO:
    case ERR_SPACE:
    case ERR_DENIED:
    case ERR_BUSY:
    case ERR_EXISTS:
        return CLI_IO;
    default:
        return CLI_INTERNAL;
    }
}

static int finish(int error)
{
    if ((fflush(stdout) != 0 || ferror(stdout)) && error >= 0)
        error = report_errno(ERR_IO, "could not write the output", "stdout");
    if (error < 0)
        fprintf(stderr, "ckpt-cli: %s\n", report_line());
    return exit_code(error);
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < NUM_COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

/* An empty variable of a shell must not mean another store than the one that was meant. */
static int refuse_empty(const struct cli *cli, const bool *is_set)
{
    for (int i = 0; i < NUM_SETTINGS; i++) {
        const char *field = (const char *)cli + settings[i].offset;
        if (is_set[i] && settings[i].type == OPTION_TYPE_STRING && field[0] == '\0' && i != NOTE)
            return report_error(ERR_INVALID, "give it a value, or leave it out", "--%s is empty",
                                settings[i].key);
    }
    return 0;
}

static int set_default_server(struct cli *cli)
{
    return cli->store[0] == '\0' && cli->server[0] == '\0'
               ? rpc_default_address(cli->server, sizeof cli->server)
               : 0;
}

/* Weights alone go out as other programs load them, unless they are only some. */
static void choose_format(struct cli *cli)
{
    bool is_hf = cli->is_weights_only && cli->only[0] == '\0';
    if (strcmp(cli->format, "auto") == 0)
        strcpy(cli->format, is_hf ? "hf" : "safetensors");
}

/* The rules that the option table cannot say. */
static int check_usage(const struct command *command, struct cli *cli, const bool *is_set,
                       int num_args)
{
    char hint[64];
    snprintf(hint, sizeof hint, "see `ckpt-cli %s --help`", command->name);
    for (int i = 0; i < NUM_SETTINGS; i++) {
        if (is_set[i] && !takes(command, i))
            return report_error(ERR_INVALID, hint, "%s does not take --%s", command->name,
                                settings[i].key);
    }
    ERR_TRY(refuse_empty(cli, is_set));
    choose_format(cli);
    if (is_set[SHARD_SIZE] && strcmp(cli->format, "hf") != 0)
        return report_error(ERR_INVALID, "add --format hf", "one safetensors file is not cut");
    if ((is_set[METRIC] || is_set[BEST]) && !is_set[KEEP_BEST])
        return report_error(ERR_INVALID, "add --keep-best N",
                            "--%s is about which --keep-best keeps",
                            settings[is_set[METRIC] ? METRIC : BEST].key);
    if (num_args < command->args_min || num_args > command->args_max)
        return report_error(ERR_INVALID, hint, "%s takes %s%s, not %d", command->name,
                            command->args_min < command->args_max ? "at most " : "",
                            text_count((uint64_t)command->args_max, "argument").text, num_args);
    if (is_set[STORE] && is_set[SERVER])
        return report_error(ERR_INVALID, "choose one", "--store and --server were both given");
    if (is_set[SERVER] && strncmp(cli->server, "unix:/", strlen("unix:/")) != 0)
        return report_error(ERR_INVALID, "name its socket: unix:/PATH",
                            "--server '%s' is no socket", cli->server);
    return set_default_server(cli);
}

static int fail_unknown(const char *word)
{
    bool is_option = word[0] == '-';
    return report_error(
        ERR_INVALID,
        is_option ? "the command comes first; see `ckpt-cli --help`" : "see `ckpt-cli --help`",
        is_option ? "'%s' is an option, not a command" : "unknown command '%s'", word);
}

/* `help`, and `help COMMAND`. */
static int tell_help(int num_names, char **names)
{
    const char *name = names[0]; /* NULL behind the last */
    if (num_names > 1)
        return report_error(ERR_INVALID, "see `ckpt-cli --help`",
                            "help takes at most 1 argument, not %d", num_names);
    const struct command *command = name != NULL ? find_command(name) : NULL;
    if (name != NULL && command == NULL)
        return fail_unknown(name);
    if (command != NULL)
        print_command_help(command);
    else
        print_help(stdout);
    return 0;
}

/* ---- for shells ---- */

static const char *const short_keys[] = {"h", "help", "o", "output", NULL};
static const char files[] = ":files"; /* instead of words: the shell knows what files there are */

/* A word, and behind a tab what it is, if it begins as what was typed. */
static void offer(const char *typed, const char *dashes, const char *word, const char *what)
{
    char text[64];
    snprintf(text, sizeof text, "%s%s", dashes, word);
    if (strncmp(text, typed, strlen(typed)) == 0)
        printf("%s\t%s\n", text, what);
}

static void offer_value(const char *typed, int setting)
{
    char choices[64] = "", *rest = choices, *choice;
    if (settings[setting].choices != NULL)
        snprintf(choices, sizeof choices, "%s", settings[setting].choices);
    while ((choice = strsep(&rest, ",")) != NULL && choice[0] != '\0')
        offer(typed, "", choice, settings[setting].key);
    if (NAMES_FILE & BIT(setting))
        printf("%s\n", files);
}

/* The option that `word` is, when a value follows it; -1: none. */
static int find_valued(const char *word)
{
    for (int i = 0; i < NUM_SETTINGS; i++) {
        bool is_it = strncmp(word, "--", 2) == 0 ? strcmp(word + 2, settings[i].key) == 0
                                                 : i == OUTPUT && strcmp(word, "-o") == 0;
        if (is_it && settings[i].type != OPTION_TYPE_BOOL)
            return i;
    }
    return -1;
}

/* The next argument of the command: of the store or server that the words before name. */
static void offer_argument(const struct command *command, const struct options *options,
                           struct cli *cli, char **words, int num_words)
{
    cli->typed = words[num_words - 1];
    cli->is_run_typed = command->settings & OF_A_RUN;
    num_words--;
    if (options_defaults(options) != 0 ||
        options_read_args(options, &num_words, words, short_keys) != 0)
        return;
    if (num_words - 1 >= command->args_max) /* the first is the command's name */
        return;
    if (command->run == cli_import) {
        printf("%s\n", files);
        return;
    }
    set_default_server(cli);
    cli->is_json = false;
    cli_list(cli); /* what cannot be read cannot be offered */
}

/* What the last of the words can become; the first is the command's. */
static void complete(const struct options *options, struct cli *cli, char **words, int num_words)
{
    const char *typed = num_words > 0 ? words[num_words - 1] : "";
    bool is_help = num_words == 2 && strcmp(words[0], "help") == 0;
    for (size_t i = 0; i < NUM_COMMANDS && (num_words <= 1 || is_help); i++)
        offer(typed, "", commands[i].name, commands[i].summary);
    const struct command *command = num_words > 1 ? find_command(words[0]) : NULL;
    if (command == NULL)
        return;
    int valued = num_words > 2 ? find_valued(words[num_words - 2]) : -1;
    if (valued >= 0) {
        offer_value(typed, valued);
    } else if (typed[0] == '-') {
        for (int i = 0; i < NUM_SETTINGS; i++) {
            if (takes(command, i))
                offer(typed, "--", settings[i].key, settings[i].help);
        }
    } else {
        offer_argument(command, options, cli, words, num_words);
    }
}

int main(int argc, char **argv)
{
    static struct cli cli;
    bool is_set[NUM_SETTINGS + 1] = {false}, is_offered[NUM_SETTINGS + 1] = {false};
    const struct options options = {
        .table = settings, .config = &cli, .is_set = is_set, .is_offered = is_offered};
    if (argc > 1 && strcmp(argv[1], "--complete") == 0) {
        complete(&options, &cli, argv + 2, argc - 2);
        return CLI_FINE;
    }
    if (report_print_version("ckpt-cli", argc, argv))
        return finish(0);
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0)
        return finish(tell_help(argc - 2, argv + 2));
    const struct command *command = find_command(argv[1]);
    if (command == NULL)
        return finish(fail_unknown(argv[1]));
    for (int i = 0; i < NUM_SETTINGS; i++)
        is_offered[i] = takes(command, i);
    int num_args = argc - 1;
    int error = options_defaults(&options);
    if (error == 0)
        error = options_read_args(&options, &num_args, argv + 1, short_keys);
    if (error == 0 && cli.is_help) {
        print_command_help(command);
        return finish(0);
    }
    num_args--; /* the command's own name */
    if (error == 0)
        error = check_usage(command, &cli, is_set, num_args);
    for (int i = 0; i < num_args && i < 2; i++)
        cli.args[i] = argv[2 + i];
    cli.num_args = num_args;
    if (error == 0 && (command->settings & ON_FILES) != 0 && cli.store[0] == '\0')
        error = server_find_store(&cli);
    return finish(error == 0 ? command->run(&cli) : error);
}
