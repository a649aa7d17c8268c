/* settings.c - compares the settings of two checkpoints: code, mesh, configuration, identity of the
 * numerics, environment and data, from their manifests. If only one manifest has a section, each of
 * its members differs; a section that neither has is no difference. */
#include "clients/cli/engine/cli.h"
#include "proto/base/json.h"

#include <stdlib.h>
#include <string.h>

#define COLUMN_MAX 48 /* a longer text makes its line longer */

/* NULL if it is not JSON: then no member is found. */
static int read_section(json_t *root, const char *name, const char *text)
{
    json_error_t reason;
    json_t *section = NULL;
    if (text != NULL && json_read(&section, text, strlen(text), &reason) == ERR_MEMORY)
        return ERR_MEMORY;
    if (section != NULL)
        json_object_set_new(root, name, section);
    return 0;
}

/* Moves the environment, a part of the identity, to the top level. */
static void lift_environment(json_t *root)
{
    json_t *identity = json_object_get(root, "identity");
    json_t *environment = json_object_get(identity, "environment");
    if (environment == NULL)
        return;
    json_object_set(root, "environment", environment);
    json_object_del(identity, "environment");
}

static int read_settings(json_t **out, const struct manifest *manifest)
{
    const struct {
        const char *name, *text;
    } sections[] = {{"mesh", manifest->mesh_json},
                    {"config", manifest->config_json},
                    {"identity", manifest->identity_json},
                    {"data", manifest->data_json}};
    int error = 0;
    *out = json_object();
    json_object_set_new(*out, "code", json_string(manifest->code_version));
    for (size_t i = 0; i < sizeof sections / sizeof *sections && error == 0; i++)
        error = read_section(*out, sections[i].name, sections[i].text);
    lift_environment(*out);
    return error;
}

static int add_difference(void *user, const char *place, const json_t *a, const json_t *b)
{
    json_t *entry = json_object();
    json_object_set_new(entry, "what", json_string(place));
    if (a != NULL)
        json_object_set(entry, "first", (json_t *)(uintptr_t)a);
    if (b != NULL)
        json_object_set(entry, "second", (json_t *)(uintptr_t)b);
    json_array_append_new(user, entry);
    return 0;
}

int settings_compare(json_t **out, const struct manifest *a, const struct manifest *b)
{
    json_t *sides[2] = {NULL, NULL};
    *out = NULL;
    json_begin();
    int error = read_settings(&sides[0], a);
    if (error == 0)
        error = read_settings(&sides[1], b);
    if (error == 0) {
        *out = json_array();
        (void)json_compare(sides[0], sides[1], add_difference, *out);
    }
    json_decref(sides[0]);
    json_decref(sides[1]);
    if (error == 0 && (!json_end() || *out == NULL))
        error = report_error(ERR_MEMORY, NULL, "no memory for the settings");
    return error;
}

char *settings_value(const json_t *value)
{
    const char *text = value == NULL ? "-" : json_string_value(value);
    size_t flags = JSON_ENCODE_ANY | JSON_COMPACT | json_shortest(value);
    return text != NULL ? strdup(text) : json_dumps(value, flags);
}

/* The same, printable. */
static char *value_text(const json_t *value)
{
    char *out = settings_value(value);
    for (char *at = out; at != NULL && *at != '\0'; at++)
        *at = *at < ' ' || *at > '~' ? '?' : *at;
    return out;
}

static int width_of(int before, const char *text)
{
    int length = (int)strlen(text);
    return length > before && length <= COLUMN_MAX ? length : before;
}

struct line {
    char *of[3]; /* what, first, second */
};

static void print_lines(const struct line *lines, size_t count)
{
    int what = 4, first = 5;
    for (size_t i = 0; i < count; i++) {
        what = width_of(what, lines[i].of[0]);
        first = width_of(first, lines[i].of[1]);
    }
    printf("\n%-*s  %-*s  %s\n", what, "WHAT", first, "FIRST", "SECOND");
    for (size_t i = 0; i < count; i++)
        printf("%-*s  %-*s  %s\n", what, lines[i].of[0], first, lines[i].of[1], lines[i].of[2]);
}

int settings_print(const json_t *found)
{
    static const char *const keys[3] = {"what", "first", "second"};
    size_t count = json_array_size(found);
    if (count == 0)
        return 0;
    struct line *lines = calloc(count, sizeof *lines);
    bool is_whole = lines != NULL;
    for (size_t i = 0; is_whole && i < 3 * count; i++) {
        lines[i / 3].of[i % 3] =
            value_text(json_object_get(json_array_get(found, i / 3), keys[i % 3]));
        is_whole = lines[i / 3].of[i % 3] != NULL;
    }
    if (is_whole)
        print_lines(lines, count);
    for (size_t i = 0; lines != NULL && i < 3 * count; i++)
        free(lines[i / 3].of[i % 3]);
    free(lines);
    return is_whole ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the settings");
}
