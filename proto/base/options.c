/* options.c - the option parser (contract in options.h).
 *
 * All sources end in options_set(). It finds the row of the table, follows aliases, parses the text
 * by the row's type and stores it. '-' and '_' compare as equal in keys. is_set records which keys
 * were given, so callers can tell a default from a choice. JSON and help are in options_print.c. */
#include "proto/base/options_private.h"

#include "proto/base/report.h"
#include "proto/base/toml.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NO_LIMIT 1e18                 /* help and messages omit a maximum of at least this */
#define OPTION_FILE_BYTES_MAX 1048576 /* a longer TOML file is refused */

/* ---- the table ---- */

static bool is_same_key(const char *a, const char *b)
{
    for (; *a && *b; a++, b++) {
        char x = *a == '-' ? '_' : *a, y = *b == '-' ? '_' : *b;
        if (x != y)
            return false;
    }
    return *a == *b;
}

static const struct option *find_option(const struct option *table, const char *key)
{
    for (; table->key; table++) {
        if (is_same_key(table->key, key))
            return table;
    }
    return NULL;
}

/* Levenshtein distance of two keys. */
static uint32_t edit_distance(const char *a, const char *b)
{
    uint32_t row[OPTION_KEY_MAX + 1];
    size_t a_length = strlen(a), b_length = strlen(b);
    if (a_length > OPTION_KEY_MAX || b_length > OPTION_KEY_MAX)
        return UINT32_MAX;
    for (uint32_t j = 0; j <= b_length; j++)
        row[j] = j;
    for (uint32_t i = 1; i <= a_length; i++) {
        uint32_t diagonal = row[0];
        row[0] = i;
        for (uint32_t j = 1; j <= b_length; j++) {
            uint32_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[b_length];
}

static const char *last_part(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

/* The nearest known key; one with the same last part in another section counts as near. */
static const char *find_nearest(const struct options *options, const char *key)
{
    const char *nearest = NULL;
    uint32_t limit = (uint32_t)(strlen(key) / 3 + 2);
    uint32_t best = limit + 1;
    for (const struct option *table = options->table; table->key; table++) {
        if (table->type == OPTION_TYPE_GONE ||
            (options->is_offered && !options->is_offered[table - options->table]))
            continue;
        uint32_t distance = edit_distance(key, table->key);
        if (is_same_key(last_part(key), last_part(table->key)) && distance > 3)
            distance = 3;
        if (distance < best) {
            best = distance;
            nearest = table->key;
        }
    }
    return nearest;
}

/* ---- values ---- */

static int fail_value(const struct option *option, const char *value, const char *where,
                      const char *wanted)
{
    return report_error(ERR_INVALID, wanted, "%s: %s = '%.200s' is not valid", where, option->key,
                        value);
}

static bool parse_bool(bool *out, const char *value)
{
    *out = strcmp(value, "true") == 0;
    return *out || strcmp(value, "false") == 0;
}

static bool parse_int(int64_t *out, const char **end, const char *value)
{
    char *rest = NULL;
    errno = 0;
    long long number = strtoll(value, &rest, 10);
    if (rest == value || errno != 0 || value[0] == ' ' || value[0] == '+')
        return false;
    *out = number;
    *end = rest;
    return true;
}

bool options_parse_bytes(int64_t *out, const char *value)
{
    static const char *const suffixes[] = {"", "KiB", "MiB", "GiB", "TiB"};
    const char *rest = NULL;
    if (!parse_int(out, &rest, value))
        return false;
    if (*rest == ' ')
        rest++;
    for (uint32_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        if (strcmp(rest, suffixes[i]) == 0)
            return !__builtin_mul_overflow(*out, (int64_t)1 << (10 * i), out);
    }
    return false;
}

bool options_parse_span(uint64_t *out, const char *text)
{
    static const struct {
        char unit;
        uint64_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}, {'w', 604800}};
    const char *unit = NULL;
    int64_t number = 0;
    if (text[0] < '0' || text[0] > '9' || !parse_int(&number, &unit, text) || number > 1ll << 40)
        return false;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (unit[0] == units[i].unit && unit[1] == '\0') {
            *out = (uint64_t)number * units[i].seconds;
            return true;
        }
    return false;
}

static bool parse_double(double *out, const char *value)
{
    char *rest = NULL;
    errno = 0;
    *out = strtod(value, &rest);
    return rest != value && *rest == '\0' && isfinite(*out) && value[0] != ' ';
}

static bool is_choice(const char *choices, const char *value)
{
    size_t length = strlen(value);
    while (*choices) {
        size_t word = strcspn(choices, ",");
        if (word == length && memcmp(choices, value, word) == 0)
            return true;
        choices += word + (choices[word] == ',');
    }
    return false;
}

/* Formats a number for help and messages: whole numbers without exponent, others with the fewest
 * digits that read back equal. */
void options_format_number(char out[40], double value)
{
    if (value == floor(value) && fabs(value) < 1e15) {
        snprintf(out, 40, "%.0f", value);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, 40, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            return;
    }
}

void options_format_range(char out[96], const struct option *option)
{
    char low[40], high[40];
    options_format_number(low, option->min);
    options_format_number(high, option->max);
    if (option->max < NO_LIMIT)
        snprintf(out, 96, "%s to %s", low, high);
    else
        snprintf(out, 96, "%s or more", low);
}

static int store_number(const struct option *option, void *field, const char *value,
                        const char *where)
{
    char range[96], wanted[192];
    const char *rest = "";
    int64_t whole = 0;
    double real = 0;
    bool ok = false;
    const char *kind = "a number";
    options_format_range(range, option);
    if (option->type == OPTION_TYPE_DOUBLE) {
        ok = parse_double(&real, value);
    } else if (option->type == OPTION_TYPE_INT) {
        kind = "a whole number";
        if (option->choices != NULL && strcmp(value, option->choices) == 0) {
            memset(field, 0, option->size);
            return 0;
        }
        ok = parse_int(&whole, &rest, value) && *rest == '\0';
        real = (double)whole;
    } else {
        kind = "a number of bytes (KiB, MiB, GiB, TiB)";
        ok = options_parse_bytes(&whole, value);
        real = (double)whole;
    }
    if (!ok || real < option->min || real > option->max) {
        const char *word = option->type == OPTION_TYPE_INT ? option->choices : NULL;
        snprintf(wanted, sizeof(wanted), "%s, %s,%s%s is wanted", kind, range,
                 word != NULL ? " or " : "", word != NULL ? word : "");
        return fail_value(option, value, where, wanted);
    }
    if (option->type == OPTION_TYPE_DOUBLE)
        memcpy(field, &real, sizeof(real));
    else
        memcpy(field, &whole, sizeof(whole));
    return 0;
}

static int store_text(const struct option *option, void *field, const char *value,
                      const char *where)
{
    char wanted[512];
    if (option->type == OPTION_TYPE_CHOICE && !is_choice(option->choices, value)) {
        bool is_refused = option->refused != NULL && is_choice(option->refused, value);
        snprintf(wanted, sizeof(wanted), "%s%sone of %s is wanted", is_refused ? option->why : "",
                 is_refused ? "; " : "", option->choices);
        return fail_value(option, value, where, wanted);
    }
    if (strlen(value) >= option->size) {
        snprintf(wanted, sizeof(wanted), "at most %zu characters are possible", option->size - 1);
        return fail_value(option, value, where, wanted);
    }
    memset(field, 0, option->size);
    memcpy(field, value, strlen(value));
    return 0;
}

static int store_value(const struct options *options, const struct option *option,
                       const char *value, const char *where)
{
    void *field = (char *)options->config + option->offset;
    switch (option->type) {
    case OPTION_TYPE_BOOL: {
        bool flag = false;
        if (!parse_bool(&flag, value))
            return fail_value(option, value, where, "true or false is wanted");
        memcpy(field, &flag, sizeof(flag));
        return 0;
    }
    case OPTION_TYPE_INT:
    case OPTION_TYPE_BYTES:
    case OPTION_TYPE_DOUBLE:
        return store_number(option, field, value, where);
    default:
        return store_text(option, field, value, where);
    }
}

/* ---- sources ---- */

int options_defaults(const struct options *options)
{
    for (const struct option *option = options->table; option->key; option++) {
        size_t index = (size_t)(option - options->table);
        if (options->is_set)
            options->is_set[index] = false;
        if (!is_stored(option))
            continue;
        int error = store_value(options, option, option->text_default, "default");
        if (error)
            return error;
    }
    return 0;
}

/* `dashes`: the dashes before the key on the command line; "" elsewhere. */
static int fail_unknown(const struct options *options, const char *dashes, const char *key,
                        const char *where)
{
    char hint[OPTION_KEY_MAX + 32];
    const char *nearest = find_nearest(options, key);
    const char *word = dashes[0] != '\0' ? "option" : "key";
    if (nearest)
        snprintf(hint, sizeof(hint), "did you mean '%s%.*s'?", dashes[0] != '\0' ? "--" : "",
                 OPTION_KEY_MAX, nearest);
    else
        snprintf(hint, sizeof(hint), "--help lists the %ss", word);
    return report_error(ERR_INVALID, hint, "%s: %s '%s%.200s' is unknown", where, word, dashes,
                        key);
}

/* Refuses a value of an OPTION_TYPE_FIXED key that is not among its choices; otherwise logs that
 * the key is ignored. */
static int check_fixed(const struct options *options, const struct option *option,
                       const char *value, const char *where)
{
    if (value[0] != '\0' && !is_choice(option->choices, value))
        return report_error(ERR_INVALID, "leave the key out",
                            "%s: %s = '%.200s' is not available: %s", where, option->key, value,
                            option->help);
    if (!options->quiet)
        log_info("options", "%s: %s is ignored: %s", where, option->key, option->help);
    return 0;
}

int options_set(const struct options *options, const char *key, const char *value,
                const char *where)
{
    const struct option *option = find_option(options->table, key);
    if (!option) {
        int result =
            options->set_other ? options->set_other(options->config, key, value, where) : 1;
        return result == 1 ? fail_unknown(options, "", key, where) : result;
    }
    if (option->type == OPTION_TYPE_IGNORED) {
        if (!options->quiet)
            log_info("options", "%s: %s is ignored: %s", where, option->key, option->help);
        return 0;
    }
    if (option->type == OPTION_TYPE_FIXED)
        return check_fixed(options, option, value, where);
    if (option->type == OPTION_TYPE_GONE) {
        if (!options->num_gone)
            return report_error(ERR_INVALID, option->help, "%s: %s is no key any more", where,
                                option->key);
        log_error("options", "%s: %s is no key any more: %s", where, option->key, option->help);
        ++*options->num_gone;
        return 0;
    }
    if (option->type == OPTION_TYPE_ALIAS) {
        const struct option *target = find_option(options->table, option->choices);
        CHECK(target && is_stored(target));
        if (options->is_final && options->is_final[target - options->table])
            return 0;
        if (!options->quiet)
            log_info("options", "%s: %s is taken as %s", where, option->key, target->key);
        option = target;
    }
    if (options->is_final && options->is_final[option - options->table])
        return 0;
    int error = store_value(options, option, value, where);
    if (!error && options->is_set)
        options->is_set[option - options->table] = true;
    return error;
}

int options_check_gone(const struct options *options)
{
    if (*options->num_gone == 0)
        return 0;
    return report_error(ERR_INVALID, "take them out, as the lines before say",
                        "%" PRIu32 " of the keys that were given are none any more",
                        *options->num_gone);
}

struct toml_source {
    const struct options *options;
    const char *path;
};

static int visit_leaf(void *user, const struct toml_leaf *leaf)
{
    const struct toml_source *source = user;
    char where[512];
    snprintf(where, sizeof(where), "%.480s:%" PRIu32, source->path, leaf->line);
    return options_set(source->options, leaf->key, leaf->value, where);
}

static int read_file(char **out, size_t *out_bytes, const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file && errno == ENOENT)
        return report_error(ERR_NOT_FOUND, "name an existing TOML file",
                            "there is no configuration file \"%s\"", path);
    if (!file)
        return report_errno(ERR_IO, "could not open the configuration file", path);
    int error = 0;
    char *text = malloc(OPTION_FILE_BYTES_MAX + 1);
    size_t bytes = text ? fread(text, 1, OPTION_FILE_BYTES_MAX + 1, file) : 0;
    if (!text)
        error = report_error(ERR_MEMORY, NULL, "no memory to read the configuration file");
    else if (ferror(file))
        error = report_errno(ERR_IO, "could not read the configuration file", path);
    else if (bytes > OPTION_FILE_BYTES_MAX)
        error = report_error(ERR_INVALID, NULL, "%s: is longer than %d bytes", path,
                             OPTION_FILE_BYTES_MAX);
    fclose(file);
    if (error) {
        free(text);
        return error;
    }
    *out = text;
    *out_bytes = bytes;
    return 0;
}

int options_read_toml(const struct options *options, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    int error = read_file(&text, &bytes, path);
    if (error)
        return error;
    struct toml_source source = {.options = options, .path = path};
    struct toml_fault fault = {0};
    enum toml_result result = toml_visit(&fault, &error, text, bytes, visit_leaf, &source);
    free(text);
    if (result == TOML_MEMORY)
        return report_error(ERR_MEMORY, NULL, "no memory to read the configuration file");
    if (result == TOML_BAD)
        return report_error(ERR_INVALID, "the file must be TOML", "%s:%" PRIu32 ": %s", path,
                            fault.line, fault.reason);
    return error;
}

/* The row of a key, after its alias is resolved. */
static const struct option *find_meant(const struct option *table, const char *key)
{
    const struct option *option = find_option(table, key);
    if (option && option->type == OPTION_TYPE_ALIAS)
        option = find_option(table, option->choices);
    return option;
}

/* Keys that store nothing may be booleans: the table does not tell. */
static bool may_be_bool(const struct option *option)
{
    return option && (option->type == OPTION_TYPE_BOOL || option->type == OPTION_TYPE_IGNORED ||
                      option->type == OPTION_TYPE_FIXED || option->type == OPTION_TYPE_GONE);
}

/* "section.no_key" of a boolean "section.key"; NULL: the key is none. */
static const struct option *find_negated(const struct option *table, const char *key)
{
    char positive[OPTION_KEY_MAX + 1];
    const char *part = last_part(key);
    size_t section = (size_t)(part - key);
    if (strlen(key) > OPTION_KEY_MAX ||
        (strncmp(part, "no_", 3) != 0 && strncmp(part, "no-", 3) != 0))
        return NULL;
    snprintf(positive, sizeof(positive), "%.*s%s", (int)section, key, part + 3);
    const struct option *option = find_meant(table, positive);
    return may_be_bool(option) ? option : NULL;
}

static const char command_line[] = "command line";

/* Sets one "--key": `next` is the argument after it or NULL; *used tells whether it was
 * consumed. */
static int set_argument(const struct options *options, const char *key, const char *inline_value,
                        const char *next, bool *used)
{
    bool flag = false;
    *used = false;
    if (!find_option(options->table, key)) {
        const struct option *negated = inline_value ? NULL : find_negated(options->table, key);
        return negated ? options_set(options, negated->key, "false", command_line)
                       : fail_unknown(options, "--", key, command_line);
    }
    if (inline_value)
        return options_set(options, key, inline_value, command_line);
    const struct option *option = find_meant(options->table, key);
    bool has_next = next && strncmp(next, "--", 2) != 0;
    if (may_be_bool(option)) {
        *used = has_next && (option->type != OPTION_TYPE_BOOL || parse_bool(&flag, next));
        return options_set(options, key, *used ? next : "true", command_line);
    }
    if (!has_next)
        return report_error(ERR_INVALID, NULL, "%s: --%s has no value", command_line, key);
    *used = true;
    return options_set(options, key, next, command_line);
}

static const char *expand_short(const char *key, const char *const *short_keys)
{
    for (; short_keys && short_keys[0]; short_keys += 2) {
        if (strcmp(short_keys[0], key) == 0)
            return short_keys[1];
    }
    return key;
}

/* The key after the dashes; NULL: a positional argument. A short key of one letter may have one
 * dash. */
static const char *find_key(const char *argument, const char *const *short_keys)
{
    if (strncmp(argument, "--", 2) == 0)
        return argument + 2;
    if (argument[0] != '-' || argument[1] == '\0' || argument[2] != '\0')
        return NULL;
    const char *letter = argument + 1;
    return expand_short(letter, short_keys) != letter ? letter : NULL;
}

int options_read_args(const struct options *options, int *argc, char **argv,
                      const char *const *short_keys)
{
    int kept = 1;
    bool ended = false; /* "--" was read */
    for (int i = 1; i < *argc; i++) {
        const char *text = ended ? NULL : find_key(argv[i], short_keys);
        if (text == NULL && !ended && argv[i][0] == '-' && argv[i][1] != '\0')
            return fail_unknown(options, "-", argv[i] + 1, command_line);
        if (text == NULL) {
            argv[kept++] = argv[i];
            continue;
        }
        if (text[0] == '\0') {
            ended = true;
            continue;
        }
        char key[OPTION_KEY_MAX + 1];
        const char *equals = strchr(text, '=');
        snprintf(key, sizeof(key), "%.*s", equals ? (int)(equals - text) : OPTION_KEY_MAX, text);
        bool used = false;
        int error = set_argument(options, expand_short(key, short_keys), equals ? equals + 1 : NULL,
                                 i + 1 < *argc ? argv[i + 1] : NULL, &used);
        if (error)
            return error;
        i += used;
    }
    if (kept < *argc)
        argv[kept] = NULL;
    *argc = kept;
    return 0;
}
