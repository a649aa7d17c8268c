/* steps.c - applies the normalizers of a tokenizer.json that do more than mark spaces, one after
 * the other.
 *
 * Precompiled has the rules of SentencePiece (normalize.c), but applies them as Hugging Face's
 * library does: a grapheme of less than six bytes becomes the replacement of the shortest key that
 * it begins with. In longer ones each character does. The graphemes are PCRE2's \X. */
#include "trainer/tokenizer/model.h"

#include "proto/base/report.h"

#include <stdlib.h>
#include <string.h>

#define GRAPHEME_BYTES 6u /* a shorter grapheme is looked up as a whole */

struct output {
    struct buffer *buffer;
    size_t used;
    const struct normalizer *rules;
};

static int put_bytes(struct output *output, const char *text, size_t bytes)
{
    ERR_TRY(buffer_reserve(output->buffer, output->used + bytes + 1));
    memcpy(output->buffer->text + output->used, text, bytes);
    output->used += bytes;
    return 0;
}

static size_t character_at(const char *text, size_t bytes)
{
    size_t length = text_utf8_length(text, bytes);
    return length > 0 ? length : 1;
}

static int put_grapheme(void *user, const char *text, size_t bytes)
{
    struct output *output = user;
    const char *rule =
        bytes < GRAPHEME_BYTES ? normalizer_shortest(output->rules, text, bytes) : NULL;
    if (rule != NULL)
        return put_bytes(output, rule, strlen(rule));
    for (size_t at = 0, length; at < bytes; at += length) {
        length = character_at(text + at, bytes - at);
        rule = normalizer_shortest(output->rules, text + at, length);
        ERR_TRY(rule != NULL ? put_bytes(output, rule, strlen(rule))
                             : put_bytes(output, text + at, length));
    }
    return 0;
}

static int put_replaced(struct output *output, const struct text_step *step, const char *text,
                        size_t bytes)
{
    size_t length = strlen(step->from), done = 0;
    for (size_t at = 0; at + length <= bytes;) {
        if (memcmp(text + at, step->from, length) != 0) {
            at++;
            continue;
        }
        ERR_TRY(put_bytes(output, text + done, at - done));
        ERR_TRY(put_bytes(output, step->to, strlen(step->to)));
        done = at += length;
    }
    return put_bytes(output, text + done, bytes - done);
}

/* Replaces two and more spaces by `to`. */
static int put_few_spaces(struct output *output, const struct text_step *step, const char *text,
                          size_t bytes)
{
    for (size_t at = 0, end; at < bytes; at = end) {
        bool is_space = text[at] == ' ';
        for (end = at; end < bytes && (text[end] == ' ') == is_space;)
            end++;
        ERR_TRY(is_space && end - at > 1 ? put_bytes(output, step->to, strlen(step->to))
                                         : put_bytes(output, text + at, end - at));
    }
    return 0;
}

/* Removes white space at the end. */
static int put_stripped(struct output *output, const char *text, size_t bytes)
{
    size_t end = 0;
    for (size_t at = 0, length; at < bytes; at += length) {
        length = character_at(text + at, bytes - at);
        end = text_is_space(text + at, length) ? end : at + length;
    }
    return put_bytes(output, text, end);
}

static int run_step(struct output *output, const struct text_step *step, struct split *graphemes,
                    const char *text, size_t bytes)
{
    switch (step->kind) {
    case STEP_CHARSMAP:
        output->rules = step->rules;
        return split_run(graphemes, text, bytes, put_grapheme, output);
    case STEP_STRIP:
        return put_stripped(output, text, bytes);
    case STEP_FEW_SPACES:
        return put_few_spaces(output, step, text, bytes);
    case STEP_REPLACE:
        return put_replaced(output, step, text, bytes);
    case STEP_PREPEND:
        break;
    }
    if (bytes > 0)
        ERR_TRY(put_bytes(output, step->to, strlen(step->to)));
    return put_bytes(output, text, bytes);
}

int steps_run(const struct tokenizer *tokenizer, struct split *graphemes, struct buffer buffers[2],
              const char **text, size_t *bytes)
{
    for (uint32_t i = 0; i < tokenizer->num_steps; i++) {
        struct output output = {.buffer = &buffers[i % 2]};
        ERR_TRY(put_bytes(&output, "", 0));
        ERR_TRY(run_step(&output, &tokenizer->steps[i], graphemes, *text, *bytes));
        *text = output.buffer->text;
        *bytes = output.used;
    }
    return 0;
}

bool steps_cross_spaces(const struct tokenizer *tokenizer)
{
    bool crosses = false;
    for (uint32_t i = 0; i < tokenizer->num_steps; i++) {
        const struct text_step *step = &tokenizer->steps[i];
        crosses = crosses || step->kind == STEP_REPLACE || step->kind == STEP_PREPEND ||
                  (step->kind == STEP_CHARSMAP && normalizer_crosses_space(step->rules));
    }
    return crosses;
}

void steps_close(struct tokenizer *tokenizer)
{
    for (uint32_t i = 0; i < tokenizer->num_steps; i++) {
        free(tokenizer->steps[i].from);
        free(tokenizer->steps[i].to);
        normalizer_close(tokenizer->steps[i].rules);
    }
}
