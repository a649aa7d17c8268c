/* main.c - ckpt-cli: parses the command line by the tables of commands.c and runs the command.
 *
 * With --store a command works on a directory. A command that only reads takes no lock but a lease,
 * and changes nothing; prune, gc and commands that make a checkpoint take the store's lock. With
 * --server it calls a running ckptd, for the result or for the path of its directory. The table
 * defines which; help and completion (--complete) are made from it. An error is one line on stderr
 * with a hint, with --json an object; exit codes are those of enum cli_exit. With --json stdout is
 * one JSON document; status --watch and follow print one per poll. */
#include "clients/cli/commands.h"

#include "proto/base/address.h"
#include "proto/wire/rpc.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool takes(const struct command *command, int setting)
{
    return ((command->settings | ALWAYS) & BIT(setting)) != 0;
}

/* Is it an action of the command, or the command with an option? */
static bool is_form(const struct command *form, const struct command *command)
{
    size_t length = strlen(command->name);
    return strncmp(form->name, command->name, length) == 0 && form->name[length] == ' ';
}

/* In any of its forms. */
static bool may_take(const struct command *command, int setting)
{
    bool takes_it = takes(command, setting);
    for (size_t i = 0; i < num_commands; i++)
        takes_it |= is_form(&commands[i], command) && takes(&commands[i], setting);
    return takes_it;
}

static const char CHECKPOINT_NOTE[] =
    "CHECKPOINT is RUN[@STEP[-aATTEMPT]], or RUN@TAG; the newest without a step.\n";
static const char EXIT_CODES[] =
    "Exit codes: 0 fine; 1 damage or difference found, or a model whose files contradict each\n"
    "other; 2 wrong command line, or a model of another kind; 65 unknown format version; 66 no\n"
    "such store, run, checkpoint, file or pin; 69 server unavailable, or it cannot save\n"
    "(health); 70 out of memory or a bug; 74 reading or writing failed or was refused\n"
    "(permissions, a full disk, a store in use, an output that exists, a prune of more than\n"
    "half).\n";

/* Prints one screen of help. */
static void print_help(FILE *out)
{
    fprintf(out, "usage: ckpt-cli COMMAND [ARGUMENTS] [--store DIR | --server ADDRESS]\n\n");
    for (size_t i = 0; i < num_commands; i++) {
        char command[64];
        snprintf(command, sizeof command, "%-7s %s", commands[i].name, commands[i].arguments);
        if (strchr(commands[i].name, ' ') == NULL)
            fprintf(out, "  %-33s %s\n", command, commands[i].summary);
    }
    fprintf(out,
            "\n%sDIR may be s3://BUCKET/PREFIX. ADDRESS is unix:/PATH, or HOST:PORT over TLS.\n"
            "Without both: the server unix:/tmp/holdfast-UID/ckptd.sock.\n"
            "`ckpt-cli COMMAND --help` lists its options, `ckpt-cli help environment` the\n"
            "settings of S3, TLS and Python.\n\n"
            "Exit codes: 0 fine; 1 damage or a difference; 2 wrong command line; 65 unknown\n"
            "format version; 66 not found; 69 no server, or it cannot save; 70 out of memory\n"
            "or a bug; 74 reading or writing failed or was refused.\n",
            CHECKPOINT_NOTE);
}

static void print_environment(void)
{
    printf(
        "HOLDFAST_TLS (default /etc/holdfast/tls) holds certificate.pem, key.pem and\n"
        "authority.pem, for a ckptd on another machine: --server HOST:PORT. HOLDFAST_PYTHON is\n"
        "the Python of --format dcp and safetensors-folder (default python3).\n\n"
        "A DIR of --store, --output, cp and import may be s3://BUCKET/PREFIX, on any S3 server.\n"
        "Keys are those of AWS_ACCESS_KEY_ID, a web identity, ~/.aws/credentials or an "
        "instance's role.\nSettings from the environment:\n\n");
    storage_bucket_print_help(stdout);
}

/* Does its default differ from an option that is not given? */
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
        if (may_take(command, i))
            print_setting(&command_settings[i]);
    }
    printf("\n%s", command->notes);
    for (size_t i = 0; i < num_commands; i++) {
        if (is_form(&commands[i], command))
            printf("\n%s%s%s: %s\n%s", commands[i].name,
                   commands[i].arguments[0] != '\0' ? " " : "", commands[i].arguments,
                   commands[i].summary, commands[i].notes);
    }
    printf("\n%s%s", strstr(command->arguments, "CHECKPOINT") != NULL ? CHECKPOINT_NOTE : "",
           EXIT_CODES);
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
    case ERR_STALE:
    case ERR_UNSETTLED:
        return CLI_IO;
    default:
        return CLI_INTERNAL;
    }
}

/* One line on stderr, because stdout may have a part of a document already. */
static void print_error_json(int error)
{
    fprintf(stderr, "{\"error\": \"%s\", \"exit_code\": %d, \"message\": ", err_name(error),
            exit_code(error));
    text_json(stderr, report_message());
    fprintf(stderr, ", \"detail\": ");
    text_json(stderr, report_detail());
    fprintf(stderr, ", \"hint\": ");
    text_json(stderr, report_hint());
    fprintf(stderr, "}\n");
}

static int finish(int error, bool is_json)
{
    if ((fflush(stdout) != 0 || ferror(stdout)) && error >= 0)
        error = report_errno(ERR_IO, "could not write the output", "stdout");
    if (error < 0 && is_json)
        print_error_json(error);
    else if (error < 0)
        fprintf(stderr, "ckpt-cli: %s\n", report_line());
    return exit_code(error);
}

/* The command named by the first words, and the number of those words. */
static const struct command *find_command(int *out_words, char **words, int num_words)
{
    char action[64];
    const struct command *command = num_words > 0 ? command_find(words[0]) : NULL, *form = NULL;
    *out_words = 1;
    if (command != NULL && command->run == NULL && num_words > 1) {
        snprintf(action, sizeof action, "%s %s", words[0], words[1]);
        form = command_find(action);
    }
    *out_words += form != NULL;
    return form != NULL ? form : command;
}

/* The form of the command with these options. */
static const struct command *find_form(const struct command *command, const struct cli *cli)
{
    char name[64];
    if (cli->is_watched)
        snprintf(name, sizeof name, "%s --watch", command->name);
    else
        snprintf(name, sizeof name, "%s --format %s", command->name, cli->format);
    const struct command *form = command_find(name);
    return form != NULL ? form : command;
}

/* An empty shell variable must not select the default store. */
static int refuse_empty(const struct cli *cli, const bool *is_set)
{
    for (int i = 0; i < NUM_SETTINGS; i++) {
        const char *field = (const char *)cli + command_settings[i].offset;
        if (is_set[i] && command_settings[i].type == OPTION_TYPE_STRING && field[0] == '\0' &&
            i != NOTE)
            return report_error(ERR_INVALID, "give it a value, or leave it out", "--%s is empty",
                                command_settings[i].key);
    }
    return 0;
}

static int set_default_server(struct cli *cli)
{
    return cli->store[0] == '\0' && cli->server[0] == '\0'
               ? rpc_default_address(cli->server, sizeof cli->server)
               : 0;
}

/* Weights alone are exported in a format for other programs, unless they are only a part. */
static void choose_format(struct cli *cli)
{
    bool is_hf = cli->is_weights_only && cli->only[0] == '\0';
    if (strcmp(cli->format, "auto") == 0)
        strcpy(cli->format, is_hf ? "hf" : "safetensors");
}

/* A time of 0 is the default, "not given", so it cannot be given. */
static int refuse_zero(const struct cli *cli, const bool *is_set)
{
    static const enum setting times[] = {STEP_TIME, SAVE_TIME};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        const struct option *option = &command_settings[times[i]];
        if (is_set[times[i]] && *(const double *)((const char *)cli + option->offset) <= 0)
            return report_error(ERR_INVALID, "leave it out to take the measured time",
                                "--%s must be above 0 seconds", option->key);
    }
    return 0;
}

/* Checks rules that the option table cannot express. */
static int check_usage(const struct command *command, struct cli *cli, const bool *is_set,
                       int num_args)
{
    char hint[64];
    snprintf(hint, sizeof hint, "see `ckpt-cli %s --help`", command->name);
    for (int i = 0; i < NUM_SETTINGS; i++) {
        if (is_set[i] && !takes(command, i))
            return report_error(ERR_INVALID, hint, "%s does not take --%s", command->name,
                                command_settings[i].key);
    }
    ERR_TRY(refuse_empty(cli, is_set));
    ERR_TRY(refuse_zero(cli, is_set));
    if (takes(command, SHARD_SIZE))
        choose_format(cli);
    if (is_set[SHARD_SIZE] && strcmp(cli->format, "hf") != 0)
        return report_error(ERR_INVALID, "add --format hf",
                            "--shard-size does not apply to a single safetensors file");
    if ((is_set[METRIC] || is_set[BEST]) && !is_set[KEEP_BEST])
        return report_error(ERR_INVALID, "add --keep-best N", "--%s applies only to --keep-best",
                            command_settings[is_set[METRIC] ? METRIC : BEST].key);
    bool is_short = num_args < command->args_min;
    if (is_short || num_args > command->args_max)
        return report_error(
            ERR_INVALID, hint, "%s takes %s%s, not %d", command->name,
            command->args_min == command->args_max ? ""
            : is_short                             ? "at least "
                                                   : "at most ",
            text_count((uint64_t)(is_short ? command->args_min : command->args_max), "argument")
                .text,
            num_args);
    if (is_set[STORE] && is_set[SERVER])
        return report_error(ERR_INVALID, "choose one", "--store and --server were both given");
    struct address address;
    if (is_set[SERVER])
        ERR_TRY(address_parse(&address, cli->server));
    return takes(command, SERVER) ? set_default_server(cli) : 0;
}

static int fail_unknown(char **words, int num_words)
{
    const char *word = words[0];
    bool is_option = word[0] == '-';
    ERR_TRY(command_check_moved(words, num_words));
    return report_error(
        ERR_INVALID,
        is_option ? "the command comes first; see `ckpt-cli --help`" : "see `ckpt-cli --help`",
        is_option ? "'%s' is an option, not a command" : "unknown command '%s'", word);
}

static int fail_unknown_action(const struct command *command, const char *word)
{
    char hint[128];
    snprintf(hint, sizeof hint, "%s; see `ckpt-cli %s --help`", command->summary, command->name);
    return word != NULL && word[0] != '-'
               ? report_error(ERR_INVALID, hint, "%s has no action '%s'", command->name, word)
               : report_error(ERR_INVALID, hint, "%s takes an action", command->name);
}

/* Runs `help`, and `help COMMAND`. */
static int run_help(int num_names, char **names)
{
    int num_words;
    const struct command *command = find_command(&num_words, names, num_names);
    if (num_names > num_words)
        return report_error(ERR_INVALID, "see `ckpt-cli --help`",
                            "help takes at most 1 argument, not %d", num_names);
    if (num_names == 1 && strcmp(names[0], "environment") == 0)
        print_environment();
    else if (num_names > 0 && command == NULL)
        return fail_unknown(names, num_names);
    else if (command != NULL)
        print_command_help(command);
    else
        print_help(stdout);
    return 0;
}

/* ---- completion ---- */

static const char *const short_keys[] = {"h", "help", "o", "output", NULL};
static const char files[] = ":files"; /* instead of words: the shell completes files */

/* Prints a word, a tab and its description, if it begins with the typed text. */
static void offer_word(const char *typed, const char *dashes, const char *word, const char *what)
{
    char text[64];
    snprintf(text, sizeof text, "%s%s", dashes, word);
    if (strncmp(text, typed, strlen(typed)) == 0)
        printf("%s\t%s\n", text, what);
}

static void offer_value(const char *typed, int setting)
{
    char choices[64] = "", *rest = choices, *choice;
    if (command_settings[setting].choices != NULL)
        snprintf(choices, sizeof choices, "%s", command_settings[setting].choices);
    while ((choice = strsep(&rest, ",")) != NULL && choice[0] != '\0')
        offer_word(typed, "", choice, command_settings[setting].key);
    if (NAMES_FILE & BIT(setting))
        printf("%s\n", files);
}

/* Is that argument a folder, by the table of commands? */
static bool is_folder(const struct command *command, int argument)
{
    const char *word = command->arguments;
    for (; argument > 0 && word != NULL; argument--) {
        word = strchr(word, ' ');
        word = word != NULL ? word + 1 : NULL;
    }
    return word != NULL && strncmp(word, "FOLDER", strlen("FOLDER")) == 0;
}

/* Offers the next argument, from the store or server that the earlier words select. */
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
    if (is_folder(command, num_words - 1)) {
        printf("%s\n", files);
        return;
    }
    set_default_server(cli);
    cli->is_json = false;
    cli_list(cli); /* an unreadable store offers nothing */
}

/* Offers the commands, or the actions of a command that has some. */
static void offer_commands(const char *typed, const struct command *command)
{
    for (size_t i = 0; i < num_commands; i++) {
        const char *name = commands[i].name;
        if (command == NULL && strchr(name, ' ') == NULL)
            offer_word(typed, "", name, commands[i].summary);
        else if (command != NULL && is_form(&commands[i], command))
            offer_word(typed, "", name + strlen(command->name) + 1, commands[i].summary);
    }
}

/* Completes the last word; the first words are the command's. */
static void complete_word(const struct options *options, struct cli *cli, char **words,
                          int num_words)
{
    const char *typed = num_words > 0 ? words[num_words - 1] : "";
    bool is_help = num_words == 2 && strcmp(words[0], "help") == 0;
    int num_names;
    const struct command *command =
        num_words > 1 ? find_command(&num_names, words, num_words - 1) : NULL;
    if (num_words <= 1 || is_help)
        offer_commands(typed, NULL);
    if (command == NULL)
        return;
    int valued = num_words > 2 ? command_find_valued(words[num_words - 2]) : -1;
    if (valued >= 0) {
        offer_value(typed, valued);
    } else if (typed[0] == '-') {
        for (int i = 0; i < NUM_SETTINGS; i++) {
            if (may_take(command, i))
                offer_word(typed, "--", command_settings[i].key, command_settings[i].help);
        }
    } else if (command->run == NULL) {
        offer_commands(typed, command);
    } else {
        offer_argument(command, options, cli, words + num_names - 1, num_words - num_names + 1);
    }
}

static int run(const struct command *command, struct cli *cli, char **args, int num_args)
{
    cli->num_args = num_args;
    for (int i = 0; i < num_args; i++) {
        cli->args[i] = args[i];
        cli->is_path[i] = is_folder(command, i);
    }
    cli->is_run_meant = cli->is_all || (command->settings & ALL_OF_RUN) != 0;
    ERR_TRY(tags_resolve(cli));
    if ((command->settings & ON_FILES) != 0 && cli->store[0] == '\0')
        ERR_TRY(server_find_store(cli));
    if ((command->settings & READS) != 0 && cli->store[0] == '\0')
        ERR_TRY(server_find_source(cli));
    return command->run(cli);
}

int main(int argc, char **argv)
{
    static struct cli cli;
    bool is_set[NUM_SETTINGS + 1] = {false}, is_offered[NUM_SETTINGS + 1] = {false};
    const struct options options = {
        .table = command_settings, .config = &cli, .is_set = is_set, .is_offered = is_offered};
    setenv("GRPC_VERBOSITY", "NONE",
           0); /* server.c explains it; with --json stderr is one object */
    if (argc > 1 && strcmp(argv[1], "--complete") == 0) {
        complete_word(&options, &cli, argv + 2, argc - 2);
        return CLI_FINE;
    }
    if (report_print_version("ckpt-cli", argc, argv))
        return finish(0, false);
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0)
        return finish(run_help(argc - 2, argv + 2), false);
    int num_names;
    const struct command *command = find_command(&num_names, argv + 1, argc - 1);
    if (command == NULL)
        return finish(fail_unknown(argv + 1, argc - 1), false);
    for (int i = 0; i < NUM_SETTINGS; i++)
        is_offered[i] = may_take(command, i);
    char **words = argv + num_names; /* the first is the last of the command's name */
    int num_args = argc - num_names;
    int error = options_defaults(&options);
    if (error == 0)
        error = options_read_args(&options, &num_args, words, short_keys);
    if (error == 0 && cli.is_help) {
        print_command_help(command);
        return finish(0, false);
    }
    num_args--;
    if (error == 0 && command->run == NULL)
        error = fail_unknown_action(command, num_args > 0 ? words[1] : NULL);
    if (error == 0) {
        command = find_form(command, &cli);
        error = check_usage(command, &cli, is_set, num_args);
    }
    return finish(error == 0 ? run(command, &cli, words + 1, num_args) : error, cli.is_json);
}
