/* json.c - jansson, with out-of-memory distinguished from a bad text.
 *
 * jansson's lexer keeps the current token in a buffer that grows with the longest one so far.
 * Without memory for that it drops a character. When it then puts a character back, as it does
 * after every number, an assertion aborts the process (2.14). So json_read() parses a text as the
 * second element of an array whose first element is a string of TOKEN_BYTES. The buffer grows on
 * that string, and the lexer puts nothing back after strings. */
#include "proto/base/json.h"
#include "proto/base/report.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN_BYTES 1024 /* a number with more digits is refused */

static _Thread_local bool lacked_memory;

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    lacked_memory = lacked_memory || memory == NULL;
    return memory;
}

/* jansson allocated from malloc() until now, so free() fits both. */
static void watch_memory(void)
{
    json_set_alloc_funcs(allocate, free);
}

void json_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_memory);
    lacked_memory = false;
}

bool json_end(void)
{
    return !lacked_memory;
}

/* The parts of the text to parse, one after the other. */
struct parts {
    struct {
        const char *text;
        size_t bytes;
    } list[3];
    size_t at; /* NUM_PARTS: all parts are consumed */
};
#define NUM_PARTS (sizeof(((struct parts *)NULL)->list) / sizeof(((struct parts *)NULL)->list[0]))

static size_t read_part(void *out, size_t room, void *user)
{
    struct parts *parts = user;
    while (parts->at < NUM_PARTS && parts->list[parts->at].bytes == 0)
        parts->at++;
    if (parts->at == NUM_PARTS)
        return 0;
    size_t bytes = parts->list[parts->at].bytes < room ? parts->list[parts->at].bytes : room;
    memcpy(out, parts->list[parts->at].text, bytes);
    parts->list[parts->at].text += bytes;
    parts->list[parts->at].bytes -= bytes;
    return bytes;
}

/* NULL: the text is neither an object nor an array, or memory was short. */
static json_t *parse(const char *text, size_t bytes, json_error_t *out_reason)
{
    char head[TOKEN_BYTES + 4] = "[\"";
    memset(head + 2, ' ', TOKEN_BYTES);
    memcpy(head + 2 + TOKEN_BYTES, "\",", 2);
    struct parts parts = {.list = {{head, sizeof(head)}, {text, bytes}, {"]", 1}}};
    json_t *root = json_load_callback(read_part, &parts, JSON_REJECT_DUPLICATES, out_reason);
    json_t *found = json_incref(json_array_get(root, 1));
    bool is_one = json_array_size(root) == 2 && (json_is_object(found) || json_is_array(found));
    if (root != NULL && !is_one)
        snprintf(out_reason->text, sizeof(out_reason->text), "it is not one object or array");
    json_decref(root);
    if (is_one)
        return found;
    json_decref(found);
    return NULL;
}

int json_read(json_t **out, const char *text, size_t bytes, json_error_t *out_reason)
{
    bool before = lacked_memory; /* an outer json_begin() may have set it */
    json_begin();
    *out = parse(text, bytes, out_reason);
    bool is_complete = json_end();
    lacked_memory = before || !is_complete;
    if (is_complete)
        return *out != NULL ? 0 : ERR_CORRUPT;
    json_decref(*out);
    *out = NULL;
    return report_error(ERR_MEMORY, NULL, "no memory to read a text of %zu bytes", bytes);
}

int json_read_object(json_t **out, const char *text, const char *name)
{
    json_error_t reason;
    size_t bytes = strlen(text);
    char message[64];
    *out = NULL;
    if (json_count(text, bytes).depth > JSON_DEPTH_MAX)
        return report_error(ERR_INVALID, NULL, "%s has more than %u levels", name, JSON_DEPTH_MAX);
    int error = json_read(out, text, bytes, &reason);
    if (error == ERR_MEMORY || json_is_object(*out))
        return error;
    json_decref(*out);
    *out = NULL;
    snprintf(message, sizeof(message), "%s is not a JSON object", name);
    return report_set(ERR_INVALID, message, error != 0 ? reason.text : NULL, NULL);
}

/* ---- how much there is ---- */

size_t json_skip_string(const char *text, size_t at, size_t end)
{
    for (at++; at < end && text[at] != '"'; at++)
        at += text[at] == '\\';
    return at < end ? at + 1 : end;
}

struct json_count json_count(const char *text, size_t bytes)
{
    struct json_count count = {0};
    size_t depth = 0;
    for (size_t at = 0; at < bytes;) {
        if (text[at] == '"') {
            at = json_skip_string(text, at, bytes);
            continue;
        }
        if (text[at] == '{' || text[at] == '[') {
            count.containers++;
            depth++;
        }
        if (depth > count.depth)
            count.depth = depth;
        depth -= depth > 0 && (text[at] == '}' || text[at] == ']');
        count.commas += text[at] == ',';
        at++;
    }
    return count;
}

/* ---- members, as they are written ---- */

static size_t skip_space(const char *text, size_t at, size_t end)
{
    while (at < end &&
           (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r'))
        at++;
    return at;
}

/* The index after the value that begins at `at`. */
static size_t skip_value(const char *text, size_t at, size_t end)
{
    size_t depth = 0;
    while (at < end) {
        char c = text[at];
        if (depth == 0 && (c == ',' || c == '}' || c == ']'))
            return at;
        if (c == '"') {
            at = json_skip_string(text, at, end);
            continue;
        }
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        at++;
        if (depth == 0 && (c == '}' || c == ']'))
            return at;
    }
    return at;
}

bool json_next_member(struct json_member *out, const char *text, size_t *at, size_t bytes)
{
    size_t key = skip_space(text, *at, bytes);
    if (key >= bytes || text[key] != '"')
        return false;
    size_t key_end = json_skip_string(text, key, bytes);
    size_t colon = skip_space(text, key_end, bytes);
    if (colon >= bytes || text[colon] != ':')
        return false;
    size_t value = skip_space(text, colon + 1, bytes);
    size_t value_end = skip_value(text, value, bytes);
    *out = (struct json_member){text + key + 1, text + value, key_end - key - 2, value_end - value};
    *at = skip_space(text, value_end, bytes) + 1;
    return true;
}

static int digits_of(double number)
{
    char text[40];
    for (int digits = 15; digits < 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, number);
        if (strtod(text, NULL) == number)
            return digits;
    }
    return 17;
}

/* The most digits that a number in `value` needs. */
static int most_digits(const json_t *value)
{
    const char *key;
    json_t *part;
    size_t i;
    int most = json_is_real(value) ? digits_of(json_real_value(value)) : 15;
    json_object_foreach((json_t *)(uintptr_t)value, key, part)
    {
        int digits = most_digits(part);
        most = digits > most ? digits : most;
    }
    json_array_foreach(value, i, part)
    {
        int digits = most_digits(part);
        most = digits > most ? digits : most;
    }
    return most;
}

size_t json_shortest(const json_t *value)
{
    return JSON_REAL_PRECISION((size_t)most_digits(value));
}

size_t json_first_member(const char *text, size_t bytes)
{
    return skip_space(text, 0, bytes) + 1; /* after the opening brace */
}

bool json_member_is(const struct json_member *member, const char *name)
{
    return strlen(name) == member->key_bytes && memcmp(name, member->key, member->key_bytes) == 0;
}

static int copy_object(char **out, const struct json_member *member)
{
    if (member->value_bytes == 0 || member->value[0] != '{' || *out)
        return ERR_CORRUPT;
    *out = strndup(member->value, member->value_bytes);
    return *out ? 0 : ERR_MEMORY;
}

int json_copy_objects(char **const outs[], const char *const names[], int count, const char *text,
                      size_t bytes, const char **out_bad)
{
    struct json_member member;
    size_t at = json_first_member(text, bytes);
    int error = 0;
    while (!error && json_next_member(&member, text, &at, bytes)) {
        for (int i = 0; !error && i < count; i++) {
            if (json_member_is(&member, names[i]))
                error = copy_object(outs[i], &member);
            if (error)
                *out_bad = names[i];
        }
    }
    for (int i = 0; !error && i < count; i++) {
        if (*outs[i])
            continue;
        *out_bad = names[i];
        error = ERR_CORRUPT;
    }
    return error;
}

const json_t *json_at(const json_t *item, const char *path)
{
    const char *dot;
    while ((dot = strchr(path, '.')) != NULL) {
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
        item = json_object_get(item, key);
        path = dot + 1;
    }
    return json_object_get(item, path);
}

/* ---- what differs ---- */

struct comparison {
    json_difference_fn *on_difference;
    void *user;
    char place[JSON_PLACE_MAX];
};

static bool can_go_into(const json_t *a, const json_t *b)
{
    return (a == NULL || json_is_object(a)) && (b == NULL || json_is_object(b));
}

static int compare_at(struct comparison *c, size_t length, const json_t *a, const json_t *b,
                      uint32_t depth);

static int compare_member(struct comparison *c, size_t length, const char *key, const json_t *a,
                          const json_t *b, uint32_t depth)
{
    size_t room = sizeof c->place - length;
    int more = snprintf(c->place + length, room, "%s%s", length > 0 ? "." : "", key);
    size_t taken = (size_t)more < room ? (size_t)more : room - 1;
    int rc = compare_at(c, length + taken, a, b, depth + 1);
    c->place[length] = '\0';
    return rc;
}

static int compare_at(struct comparison *c, size_t length, const json_t *a, const json_t *b,
                      uint32_t depth)
{
    json_t *left = (json_t *)(uintptr_t)a, *right = (json_t *)(uintptr_t)b, *value;
    const char *key;
    int rc = 0;
    if (json_equal(a, b))
        return 0;
    if (!can_go_into(a, b) || depth == JSON_DEPTH_MAX)
        return c->on_difference(c->user, c->place, a, b);
    json_object_foreach(left, key, value)
    {
        rc = compare_member(c, length, key, value, json_object_get(b, key), depth);
        if (rc != 0)
            return rc;
    }
    json_object_foreach(right, key, value)
    {
        if (json_object_get(a, key) == NULL)
            rc = compare_member(c, length, key, NULL, value, depth);
        if (rc != 0)
            return rc;
    }
    return 0;
}

int json_compare(const json_t *a, const json_t *b, json_difference_fn *on_difference, void *user)
{
    struct comparison comparison = {.on_difference = on_difference, .user = user};
    return compare_at(&comparison, 0, a, b, 0);
}
