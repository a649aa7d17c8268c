/* options.h - the one option parser: a table of dotted keys that fills a struct.
 *
 * A program describes its settings once, as an array of struct option over a config struct. Values
 * come from, in rising precedence: the table's defaults, a TOML file, `--section.key value` on the
 * command line (`--section.key` and `--section.no_key` for booleans and for keys that store
 * nothing, `--key=value` too). An unknown key is ERR_INVALID with the nearest known key as its
 * hint; so is a value outside its range. The message names file, line, key and value.
 *
 *     static const struct option table[] = {
 *         OPTION_INT(struct config, steps, "training.steps", 10000, 1, 1 << 30, "optimizer steps"),
 *         OPTION_ALIAS("training.batch_size", "training.local_batch_size"),
 *         OPTION_IGNORED("training.gc_freq", "no garbage collector here"),
 *         OPTION_END,
 *     };
 *
 * toml.cpp reads TOML with toml++. A list of strings is stored as one comma separated string, a
 * list of such lists with semicolons between them. Ownership: strings are stored in fixed char
 * arrays inside the config struct; nothing to free. */
#ifndef HOLDFAST_PROTO_BASE_OPTIONS_H
#define HOLDFAST_PROTO_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_type {
    OPTION_TYPE_BOOL, /* bool */
    OPTION_TYPE_INT, /* int64_t; `choices` (optional): a word that stands for 0, if 0 is below `min`
                      */
    OPTION_TYPE_BYTES,   /* int64_t; accepts the suffixes KiB, MiB, GiB, TiB */
    OPTION_TYPE_DOUBLE,  /* double */
    OPTION_TYPE_STRING,  /* char[size] */
    OPTION_TYPE_CHOICE,  /* char[size]; must be one of the `choices`, comma separated */
    OPTION_TYPE_ALIAS,   /* accepted with a note, stored under `choices` */
    OPTION_TYPE_IGNORED, /* accepted and named as ignored; `help` says why */
    OPTION_TYPE_FIXED,   /* accepted if its value is one of `choices`, else refused; `help` says why
                          */
    OPTION_TYPE_GONE     /* a removed key: refused; `help` says why, or the replacement */
};

struct option {
    const char *key; /* "training.steps" */
    enum option_type type;
    size_t offset; /* into the config struct */
    size_t size;   /* of the field */
    const char *text_default;
    double min, max;     /* numbers only */
    const char *choices; /* CHOICE, FIXED: "a,b,c"; ALIAS: the key it stands for; INT */
    const char *help;    /* one line: meaning and unit */
    /* (optional) CHOICE: values that similar programs have and this one has not, and why. */
    const char *refused, *why;
};

#define OPTION_FIELD_(type, field) offsetof(type, field), sizeof(((type *)0)->field)
/* clang-format would break these initializers as blocks. */
/* clang-format off */
#define OPTION_BOOL(t, f, key, def, help) \
    { key, OPTION_TYPE_BOOL, OPTION_FIELD_(t, f), def, 0, 0, NULL, help, NULL, NULL }
#define OPTION_INT(t, f, key, def, min, max, help) \
    { key, OPTION_TYPE_INT, OPTION_FIELD_(t, f), #def, min, max, NULL, help, NULL, NULL }
#define OPTION_INT_OR(t, f, key, def, word, min, max, help) \
    { key, OPTION_TYPE_INT, OPTION_FIELD_(t, f), #def, min, max, word, help, NULL, NULL }
#define OPTION_BYTES(t, f, key, def, min, max, help) \
    { key, OPTION_TYPE_BYTES, OPTION_FIELD_(t, f), def, min, max, NULL, help, NULL, NULL }
#define OPTION_DOUBLE(t, f, key, def, min, max, help) \
    { key, OPTION_TYPE_DOUBLE, OPTION_FIELD_(t, f), #def, min, max, NULL, help, NULL, NULL }
#define OPTION_STRING(t, f, key, def, help) \
    { key, OPTION_TYPE_STRING, OPTION_FIELD_(t, f), def, 0, 0, NULL, help, NULL, NULL }
#define OPTION_CHOICE(t, f, key, def, choices, help) \
    { key, OPTION_TYPE_CHOICE, OPTION_FIELD_(t, f), def, 0, 0, choices, help, NULL, NULL }
#define OPTION_CHOICE_BUT(t, f, key, def, choices, refused, why, help) \
    { key, OPTION_TYPE_CHOICE, OPTION_FIELD_(t, f), def, 0, 0, choices, help, refused, why }
#define OPTION_ALIAS(key, target) \
    { key, OPTION_TYPE_ALIAS, 0, 0, NULL, 0, 0, target, NULL, NULL, NULL }
#define OPTION_IGNORED(key, why) \
    { key, OPTION_TYPE_IGNORED, 0, 0, NULL, 0, 0, NULL, why, NULL, NULL }
#define OPTION_FIXED(key, values, why) \
    { key, OPTION_TYPE_FIXED, 0, 0, NULL, 0, 0, values, why, NULL, NULL }
#define OPTION_GONE(key, why) \
    { key, OPTION_TYPE_GONE, 0, 0, NULL, 0, 0, NULL, why, NULL, NULL }
#define OPTION_END { NULL, OPTION_TYPE_BOOL, 0, 0, NULL, 0, 0, NULL, NULL, NULL, NULL }
/* clang-format on */

/* A table with its struct. `is_set[i]`, when not NULL, tells whether key i was given explicitly. */
struct options {
    const struct option *table;
    void *config;
    bool *is_set;
    bool quiet; /* no notes on aliases and ignored keys; of many equal processes one logs them */
    /* (optional) Per option: a source with higher precedence has set it, so this source's value is
     * not read. */
    const bool *is_final;
    /* (optional) Per option: only these are suggested as the nearest to an unknown key. */
    const bool *is_offered;
    /* (optional) Called with a key of a TOML file that the table does not have; `config` is the
     * struct. Returns 1 if it does not know the key either. */
    int (*set_other)(void *config, const char *key, const char *value, const char *where);
    /* (optional) Counts the removed keys. Each is logged with its replacement and reading
     * continues, so that all of a file are reported at once (options_check_gone). Default: the
     * first is an error. */
    uint32_t *num_gone;
};

int options_defaults(const struct options *options);
/* Call after the last source: ERR_INVALID if it had removed keys. */
int options_check_gone(const struct options *options);
int options_read_toml(const struct options *options, const char *path);
/* Consumes every `--key` argument; the others (positional) are moved to the front of argv and
 * counted in *argc. `short_keys` maps e.g. "config" to "job.config_file"; pairs, ended by NULL; may
 * be NULL. Keys of one letter may have one dash. Any other argument that begins with a dash is
 * refused, except "-" itself; after "--" all are positional. */
int options_read_args(const struct options *options, int *argc, char **argv,
                      const char *const *short_keys);
int options_set(const struct options *options, const char *key, const char *value,
                const char *where /* "file:line" or "command line" */);
/* Parses bytes like OPTION_BYTES: "4096", "64KiB", "4 GiB". */
bool options_parse_bytes(int64_t *out, const char *value);
/* Parses "7d", "12h", "30m", "45s", "1w" to seconds. */
bool options_parse_span(uint64_t *out, const char *text);
/* The effective settings, without keys that store nothing: a JSON object with one member per
 * section (the caller frees it), or aligned help text. The help then lists the other keys: the
 * replacement of each, or why it decides nothing. */
char *options_to_json(const struct options *options);
void options_print_help(const struct options *options, FILE *out);

#endif
