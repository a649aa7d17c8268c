/* commands.h - the tables of commands and options. Private to main.c and commands.c. */
#ifndef HOLDFAST_CLIENTS_COMMANDS_H
#define HOLDFAST_CLIENTS_COMMANDS_H

#include "clients/cli/engine/cli.h"
#include "proto/base/options.h"

/* Indices in `command_settings`, for is_set[] and the masks below. */
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
    YES,
    NOTE,
    SHARDS,
    MESH,
    EXCEPT,
    ONLY,
    SLICE,
    OBJECT,
    FORMAT,
    SHARD_SIZE,
    TOKENIZER,
    MODEL,
    RUN,
    WATCH,
    INTERVAL,
    COUNT,
    ALL,
    SAMPLE,
    SEED,
    FROM,
    NOW,
    AND_PIN,
    SILENT,
    AGE,
    QUEUED,
    ON_ALARM,
    MTBF,
    NODES,
    RESTART_TIME,
    STEP_TIME,
    SAVE_TIME,
    WITHOUT_SAVE,
    GRACE,
    SETTINGS,
    EXPECT,
    BYTES,
    BLOCK,
    DEPTH,
    TIME,
    WRITE,
    METRICS,
    JSON,
    HELP,
    NUM_SETTINGS
};
#define BIT(setting) (UINT64_C(1) << (setting))
#define ON_FILES (UINT64_C(1) << 63)   /* works on the directory; a server tells its path */
#define READS (UINT64_C(1) << 61)      /* likewise, and changes nothing in it: also over TLS */
#define OF_A_RUN (UINT64_C(1) << 62)   /* its argument is a run, and no step of it */
#define ALL_OF_RUN (UINT64_C(1) << 60) /* a run alone means each of its checkpoints */
_Static_assert(NUM_SETTINGS <= 60, "a mask has a bit per setting");
#define ALWAYS (BIT(JSON) | BIT(HELP))
#define WHERE (BIT(STORE) | BIT(SERVER))
/* Options whose value is a file, for completion. */
#define NAMES_FILE \
    (BIT(STORE) | BIT(OUTPUT) | BIT(TOKENIZER) | BIT(MODEL) | BIT(WRITE) | BIT(METRICS))

extern const struct option command_settings[];

/* One command: its name, arguments and function. A name of several words is a form of the command
 * in the first word: an action ("server scrub"), or the command with an option ("export --format
 * dcp"). */
struct command {
    const char *name, *arguments, *summary;
    int args_min, args_max;
    uint64_t settings;                 /* its options beside ALWAYS */
    int (*run)(const struct cli *cli); /* NULL: an action must be given */
    const char *notes;                 /* for --help; "" for none */
};
extern const struct command commands[];
extern const size_t num_commands;
const struct command *command_find(const char *name);
/* The option `word`, if it needs a value after it; -1: none. */
int command_find_valued(const char *word);
/* ERR_INVALID, with the present command line, if words[0] is a command of earlier versions. */
int command_check_moved(char **words, int num_words);

#endif
