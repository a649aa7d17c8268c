/* ends.c - finds the token that ends a document, if no token of a tokenizer.json has a usual name
 * for it.
 *
 * Other files of a model repository name it: config.json and generation_config.json by number
 * (eos_token_id, the first of several), else tokenizer_config.json by text (eos_token, a string or
 * an object with `content`). A missing file, or one that is not JSON, is ignored. A file that
 * cannot be read is an error, since without it documents might get another end. */
#include "trainer/tokenizer/model.h"
#include "trainer/tokenizer/text.h"

#include "proto/base/json.h"
#include "proto/base/report.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define FILE_BYTES_MAX (4u << 20)

/* *out is NULL if there is no such file. ERR_IO, ERR_MEMORY. */
static int read_beside(json_t **out, const char *path, const char *name)
{
    char beside[PATH_MAX];
    struct text text;
    json_error_t reason;
    const char *slash = strrchr(path, '/');
    int folder = slash != NULL ? (int)(slash - path) + 1 : 0;
    *out = NULL;
    if (snprintf(beside, sizeof beside, "%.*s%s", folder, path, name) >= (int)sizeof beside)
        return 0; /* the path is too long for a file */
    int result = text_open(&text, beside);
    if (result == ERR_NOT_FOUND) {
        report_clear();
        return 0;
    }
    ERR_TRY(result);
    result = text.bytes <= FILE_BYTES_MAX ? json_read(out, text.data, text.bytes, &reason) : 0;
    text_close(&text);
    return result == ERR_MEMORY ? result : 0;
}

static int32_t end_by_number(const struct tokenizer *tokenizer, const json_t *config)
{
    const json_t *named = json_object_get(config, "eos_token_id");
    const json_t *first = json_is_array(named) ? json_array_get(named, 0) : named;
    json_int_t number = json_is_integer(first) ? json_integer_value(first) : -1;
    return number >= 0 && number < tokenizer->num_ids ? (int32_t)number : -1;
}

static int32_t end_by_text(const struct tokenizer *tokenizer, const json_t *config)
{
    const json_t *named = json_object_get(config, "eos_token");
    const char *content =
        json_string_value(json_is_object(named) ? json_object_get(named, "content") : named);
    for (uint32_t i = 0; content != NULL && i < tokenizer->num_added; i++)
        if (strcmp(tokenizer->added[i].content, content) == 0)
            return tokenizer->added[i].id;
    return -1;
}

int tokenizer_find_end(struct tokenizer *tokenizer, const char *path)
{
    static const struct {
        const char *name;
        int32_t (*find)(const struct tokenizer *tokenizer, const json_t *config);
    } files[] = {{"config.json", end_by_number},
                 {"generation_config.json", end_by_number},
                 {"tokenizer_config.json", end_by_text}};
    for (size_t i = 0; tokenizer->eos < 0 && i < sizeof files / sizeof files[0]; i++) {
        json_t *config;
        ERR_TRY(read_beside(&config, path, files[i].name));
        tokenizer->eos = files[i].find(tokenizer, config);
        json_decref(config);
    }
    return 0;
}
