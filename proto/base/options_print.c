/* options_print.c - a table of options as JSON and as help (contract in options.h). */
#include "proto/base/options_private.h"

#include "proto/base/memfile.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void print_text(FILE *out, const char *text)
{
    json_t *string = json_string(text);
    char *dump = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    fputs(dump ? dump : "null", out); /* null: the text is not UTF-8 */
    free(dump);
    json_decref(string);
}

static void print_value(FILE *out, const struct options *options, const struct option *option)
{
    const void *field = (const char *)options->config + option->offset;
    char number[40];
    int64_t whole = 0;
    double real = 0;
    switch (option->type) {
    case OPTION_TYPE_BOOL:
        fputs(*(const bool *)field ? "true" : "false", out);
        break;
    case OPTION_TYPE_INT:
    case OPTION_TYPE_BYTES:
        memcpy(&whole, field, sizeof(whole));
        if (whole == 0 && option->choices != NULL)
            print_text(out, option->choices);
        else
            fprintf(out, "%" PRId64, whole);
        break;
    case OPTION_TYPE_DOUBLE:
        memcpy(&real, field, sizeof(real));
        options_format_number(number, real);
        fputs(number, out);
        break;
    default:
        print_text(out, field);
    }
}

/* Members of the object whose keys begin with `prefix`: leaves and, by recursion, sections. A
 * member is printed at its first key; the table need not keep sections together. */
static void print_members(FILE *out, const struct options *options, const char *prefix)
{
    size_t length = strlen(prefix);
    bool first = true;
    for (const struct option *option = options->table; option->key; option++) {
        if (!is_stored(option) || strncmp(option->key, prefix, length) != 0)
            continue;
        int part = (int)strcspn(option->key + length, ".");
        bool is_section = option->key[length + (size_t)part] == '.';
        char member[OPTION_KEY_MAX + 2];
        snprintf(member, sizeof(member), "%.*s.", (int)length + part, option->key);
        bool seen = false;
        for (const struct option *before = options->table; is_section && before < option; before++)
            seen = seen || (is_stored(before) && strncmp(before->key, member, strlen(member)) == 0);
        if (seen)
            continue;
        fprintf(out, "%s\"%.*s\":", first ? "" : ",", part, option->key + length);
        first = false;
        if (is_section) {
            fputc('{', out);
            print_members(out, options, member);
            fputc('}', out);
        } else {
            print_value(out, options, option);
        }
    }
}

char *options_to_json(const struct options *options)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = memfile_open(&text, &length);
    if (!out)
        return NULL;
    fputc('{', out);
    print_members(out, options, "");
    fputc('}', out);
    if (memfile_close(out))
        return text;
    free(text);
    return NULL;
}

static const char *type_name(const struct option *option)
{
    static const char *const names[OPTION_TYPE_GONE + 1] = {[OPTION_TYPE_INT] = "N",
                                                            [OPTION_TYPE_BYTES] = "BYTES",
                                                            [OPTION_TYPE_DOUBLE] = "X",
                                                            [OPTION_TYPE_STRING] = "TEXT"};
    const char *name = option->type == OPTION_TYPE_CHOICE ? option->choices : names[option->type];
    return name != NULL ? name : "";
}

/* Prints the remarks after the help text: default and range. */
static void print_remarks(FILE *out, const struct option *option)
{
    char range[96];
    if (option->text_default && option->text_default[0])
        fprintf(out, " (default %s", option->text_default);
    else
        fprintf(out, " (default: none");
    if (option->type == OPTION_TYPE_INT || option->type == OPTION_TYPE_DOUBLE) {
        options_format_range(range, option);
        fprintf(out, ", %s%s%s", range, option->choices != NULL ? ", or " : "",
                option->choices != NULL ? option->choices : "");
    }
    fprintf(out, ")\n");
}

/* Prints the keys that store no value. */
static void print_others(const struct options *options, FILE *out)
{
    bool any = false;
    for (const struct option *option = options->table; option->key; option++) {
        if (is_stored(option) || option->type == OPTION_TYPE_GONE)
            continue;
        if (!any)
            fprintf(out, "\nAccepted for other programs' files:\n");
        any = true;
        if (option->type == OPTION_TYPE_ALIAS)
            fprintf(out, "  %s: another name of %s\n", option->key, option->choices);
        else if (option->type == OPTION_TYPE_IGNORED)
            fprintf(out, "  %s: ignored: %s\n", option->key, option->help);
        else
            fprintf(out, "  %s: ignored if %s, else refused: %s\n", option->key,
                    option->choices[0] ? option->choices : "empty", option->help);
    }
}

void options_print_help(const struct options *options, FILE *out)
{
    const int widest_max = 44; /* a longer key gets a separate line */
    int widest = 0;
    for (const struct option *option = options->table; option->key; option++) {
        int width = (int)(strlen(option->key) + strlen(type_name(option))) + 1;
        if (is_stored(option) && width > widest && width <= widest_max)
            widest = width;
    }
    for (const struct option *option = options->table; option->key; option++) {
        if (!is_stored(option))
            continue;
        int width = fprintf(out, "  --%s %s", option->key, type_name(option)) - 4;
        if (width > widest)
            fprintf(out, "\n%*s", widest + 4, "");
        else
            fprintf(out, "%*s", widest - width, "");
        fprintf(out, "  %s", option->help ? option->help : "");
        print_remarks(out, option);
    }
    print_others(options, out);
}
