/* hf.c - functions that the readers of a tokenizer.json share (hf.h). */
#include "trainer/tokenizer/hf.h"

#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int hf_refuse_part(const struct reader *reader, const char *what, const char *value)
{
    return report_error(ERR_INVALID, "supported are byte-level and byte-fallback BPE, and Unigram",
                        "%s: %s \"%s\" is not supported", reader->name, what, value);
}

int hf_bad(const struct reader *reader, const char *what)
{
    return report_error(ERR_CORRUPT, NULL, "%s: %s", reader->name, what);
}

const char *hf_text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static const char *plain_text(const json_t *value)
{
    if (json_is_string(value))
        return json_string_value(value);
    if (json_is_number(value) && json_number_value(value) == 0)
        return "";
    return json_is_true(value) ? "true" : json_is_false(value) ? "false" : "?";
}

int hf_expect(const struct reader *reader, const json_t *part, const char *type,
              const struct expected *list)
{
    for (; list->key != NULL; list++) {
        const json_t *value = json_object_get(part, list->key);
        char what[96];
        if (value == NULL || json_is_null(value) || strcmp(plain_text(value), list->value) == 0)
            continue;
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        snprintf(what, sizeof what, "%s.%s =", type, list->key);
        int result = hf_refuse_part(reader, what, text != NULL ? text : "?");
        free(text);
        return result;
    }
    return 0;
}
