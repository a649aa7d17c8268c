/* hf_json.c - a tokenizer from Hugging Face's tokenizer.json.
 *
 * The file describes a pipeline of parts of many kinds. The reader supports the kinds of Llama's
 * tokenizers; each is an entry of a table with the function that reads it. It refuses, by name, a
 * kind that is in no table and a setting with an unsupported value: tokens that are nearly right
 * are worse than none. It ignores parts that do not affect the tokens of plain text
 * (post-processor, decoder), except for the space that a decoder strips. */
#include "trainer/tokenizer/hf.h"

#include "proto/base/json.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTAINERS_MAX (4u << 20) /* of the text: a merge may be an array */
#define COMMAS_MAX (32u << 20)

/* ---- parts of the pipeline ---- */

struct part {
    const char *type;
    int (*read)(struct reader *reader, const json_t *part);
};

static int read_part(struct reader *reader, const json_t *part, const char *role,
                     const struct part *parts)
{
    if (part == NULL || json_is_null(part))
        return 0;
    const char *type = hf_text_of(part, "type");
    for (; parts->type != NULL; parts++)
        if (strcmp(parts->type, type) == 0)
            return parts->read(reader, part);
    return hf_refuse_part(reader, role, type);
}

static int read_list(struct reader *reader, const json_t *list, const char *role,
                     const struct part *parts)
{
    size_t i;
    json_t *part;
    if (!json_is_array(list))
        return hf_refuse_part(reader, role, "Sequence without a list");
    json_array_foreach(list, i, part) ERR_TRY(read_part(reader, part, role, parts));
    return 0;
}

/* ---- normalizer: none, one that marks spaces as SentencePiece does, or steps ---- */

static int add_step(struct reader *reader, struct text_step step, const char *from, const char *to)
{
    struct tokenizer *out = reader->out;
    if (out->marks_early || out->num_steps == STEPS_MAX)
        return hf_refuse_part(reader, "after Prepend and Replace, or 16 others: another normalizer",
                              to);
    struct text_step *added = &out->steps[out->num_steps++];
    *added = step;
    added->from = strdup(from);
    added->to = strdup(to);
    return added->from == NULL || added->to == NULL ? tokenizer_no_memory() : 0;
}

static int read_charsmap(struct reader *reader, const json_t *part)
{
    const json_t *map = json_object_get(part, "precompiled_charsmap");
    size_t length = json_string_length(map);
    if (length == 0)
        return 0;
    ERR_TRY(add_step(reader, (struct text_step){.kind = STEP_CHARSMAP}, "", "Precompiled"));
    unsigned char *rules = malloc(length);
    if (rules == NULL)
        return tokenizer_no_memory();
    size_t bytes = vocab_base64_decode(rules, json_string_value(map), length);
    int result = bytes == 0 ? hf_bad(reader, "normalizer Precompiled is not base64")
                            : normalizer_open(&reader->out->steps[reader->out->num_steps - 1].rules,
                                              reader->name, rules, bytes, false);
    free(rules);
    return result;
}

static int read_strip_normalizer(struct reader *reader, const json_t *part)
{
    static const struct expected expected[] = {
        {"strip_left", "false"}, {"strip_right", "true"}, {NULL, NULL}};
    ERR_TRY(hf_expect(reader, part, "normalizer Strip", expected));
    return add_step(reader, (struct text_step){.kind = STEP_STRIP}, "", "Strip");
}

static int read_prepend(struct reader *reader, const json_t *part)
{
    const char *prefix = hf_text_of(part, "prepend");
    if (strcmp(prefix, META_SPACE) != 0 || reader->out->num_steps > 0)
        return add_step(reader, (struct text_step){.kind = STEP_PREPEND}, "", prefix);
    if (reader->out->prefix != PREFIX_NONE)
        return hf_refuse_part(reader, "a second normalizer Prepend", prefix);
    reader->out->prefix = PREFIX_ALWAYS;
    reader->out->prefix_always = true;
    strcpy(reader->out->prefix_text, META_SPACE);
    reader->out->marks_early = true;
    return 0;
}

static int read_replace(struct reader *reader, const json_t *part)
{
    const json_t *pattern = json_object_get(part, "pattern");
    const char *text = hf_text_of(pattern, "String"), *regex = hf_text_of(pattern, "Regex");
    const char *content = hf_text_of(part, "content");
    bool marks = strcmp(text, " ") == 0 && strcmp(content, META_SPACE) == 0;
    if (strcmp(regex, " {2,}") == 0)
        return add_step(reader, (struct text_step){.kind = STEP_FEW_SPACES}, "", content);
    if (text[0] == '\0')
        return hf_refuse_part(reader, "normalizer Replace of", regex);
    reader->out->marks_spaces |= marks;
    if (!marks || reader->out->num_steps > 0)
        return add_step(reader, (struct text_step){.kind = STEP_REPLACE}, text, content);
    reader->out->marks_early = true;
    return 0;
}

static int read_normalizers(struct reader *reader, const json_t *part);

static const struct part normalizers[] = {
    {"Sequence", read_normalizers}, {"Prepend", read_prepend},        {"Replace", read_replace},
    {"Precompiled", read_charsmap}, {"Strip", read_strip_normalizer}, {NULL, NULL}};

static int read_normalizers(struct reader *reader, const json_t *part)
{
    return read_list(reader, json_object_get(part, "normalizers"), "normalizer", normalizers);
}

/* ---- pre-tokenizer ---- */

static int read_byte_level(struct reader *reader, const json_t *part)
{
    const json_t *use_regex = json_object_get(part, "use_regex");
    bool is_split = reader->out->pieces == PIECES_EXPRESSION;
    reader->is_byte_level = true;
    if (json_is_true(json_object_get(part, "add_prefix_space"))) {
        if (is_split)
            return hf_refuse_part(reader, "after a Split: ByteLevel.add_prefix_space", "true");
        reader->out->prefix = PREFIX_ALWAYS;
        strcpy(reader->out->prefix_text, " ");
    }
    if (use_regex != NULL && !json_is_true(use_regex))
        return 0;
    if (is_split)
        return hf_refuse_part(reader, "after a Split: ByteLevel.use_regex", "true");
    reader->out->pieces = PIECES_EXPRESSION;
    reader->out->expression = SPLIT_GPT2;
    return 0;
}

static int read_split(struct reader *reader, const json_t *part)
{
    static const struct expected expected[] = {
        {"behavior", "Isolated"}, {"invert", "false"}, {NULL, NULL}};
    const char *wanted = hf_text_of(json_object_get(part, "pattern"), "Regex");
    ERR_TRY(hf_expect(reader, part, "Split", expected));
    if (reader->out->pieces == PIECES_EXPRESSION)
        return hf_refuse_part(reader, "a second pre_tokenizer Split by", wanted);
    for (enum split_expression i = 0; i < SPLIT_NUM_EXPRESSIONS; i++) {
        if (strcmp(split_expression_text(i), wanted) != 0)
            continue;
        reader->out->pieces = PIECES_EXPRESSION;
        reader->out->expression = i;
        return 0;
    }
    return hf_refuse_part(reader, "pre_tokenizer Split by the expression", wanted);
}

static int read_metaspace(struct reader *reader, const json_t *part)
{
    static const struct expected expected[] = {{"replacement", META_SPACE}, {NULL, NULL}};
    static const char *const schemes[] = {
        [PREFIX_NONE] = "never", [PREFIX_ALWAYS] = "always", [PREFIX_FIRST] = "first"};
    const json_t *split = json_object_get(part, "split");
    const char *scheme = hf_text_of(part, "prepend_scheme");
    struct tokenizer *out = reader->out;
    ERR_TRY(hf_expect(reader, part, "Metaspace", expected));
    if (out->marks_early || out->marks_spaces)
        return hf_refuse_part(reader, "after a normalizer or another one: pre_tokenizer",
                              "Metaspace");
    enum prefix prefix = PREFIX_NONE;
    while (prefix <= PREFIX_FIRST && strcmp(schemes[prefix], scheme) != 0)
        prefix++;
    if (prefix > PREFIX_FIRST && scheme[0] != '\0')
        return hf_refuse_part(reader, "Metaspace.prepend_scheme =", scheme);
    if (prefix > PREFIX_FIRST) /* as older files do */
        prefix =
            json_is_false(json_object_get(part, "add_prefix_space")) ? PREFIX_NONE : PREFIX_ALWAYS;
    out->prefix = prefix;
    strcpy(out->prefix_text, META_SPACE);
    out->marks_spaces = true;
    if (split == NULL || json_is_true(split))
        out->pieces = PIECES_EACH_SPACE;
    return 0;
}

static int read_whitespace_split(struct reader *reader, const json_t *part)
{
    (void)part;
    if (reader->out->marks_spaces || reader->out->pieces == PIECES_EXPRESSION)
        return hf_refuse_part(reader, "after another one: pre_tokenizer", "WhitespaceSplit");
    reader->out->splits_white = true;
    return 0;
}

static int read_pre_tokenizers(struct reader *reader, const json_t *part);

static const struct part pre_tokenizers[] = {{"Sequence", read_pre_tokenizers},
                                             {"ByteLevel", read_byte_level},
                                             {"Split", read_split},
                                             {"Metaspace", read_metaspace},
                                             {"WhitespaceSplit", read_whitespace_split},
                                             {NULL, NULL}};

static int read_pre_tokenizers(struct reader *reader, const json_t *part)
{
    return read_list(reader, json_object_get(part, "pretokenizers"), "pre_tokenizer",
                     pre_tokenizers);
}

/* ---- decoder: only whether it strips the prefix ---- */

static int read_nothing(struct reader *reader, const json_t *part)
{
    (void)reader;
    (void)part;
    return 0;
}

static int read_strip(struct reader *reader, const json_t *part)
{
    reader->out->strips_space = strcmp(hf_text_of(part, "content"), " ") == 0 &&
                                json_integer_value(json_object_get(part, "start")) > 0;
    return 0;
}

static int read_metaspace_decoder(struct reader *reader, const json_t *part)
{
    reader->out->strips_space = strcmp(hf_text_of(part, "prepend_scheme"), "never") != 0;
    return 0;
}

static int read_decoders(struct reader *reader, const json_t *part);

static const struct part decoders[] = {{"Sequence", read_decoders},
                                       {"ByteLevel", read_nothing},
                                       {"Replace", read_nothing},
                                       {"ByteFallback", read_nothing},
                                       {"Fuse", read_nothing},
                                       {"Strip", read_strip},
                                       {"Metaspace", read_metaspace_decoder},
                                       {NULL, NULL}};

static int read_decoders(struct reader *reader, const json_t *part)
{
    return read_list(reader, json_object_get(part, "decoders"), "decoder", decoders);
}

/* ---- added tokens ---- */

static int compare_added(const void *left, const void *right)
{
    const struct added_token *a = left, *b = right;
    return (a->id > b->id) - (a->id < b->id);
}

static int run_steps_on(const struct tokenizer *tokenizer, struct added_token *added)
{
    struct buffer buffers[2] = {{NULL, 0}, {NULL, 0}};
    struct split *graphemes;
    const char *text = added->content;
    size_t bytes = added->bytes;
    ERR_TRY(split_open(&graphemes, SPLIT_GRAPHEMES));
    int result = steps_run(tokenizer, graphemes, buffers, &text, &bytes);
    if (result == 0 && (bytes == 0 || bytes > TOKEN_BYTES_MAX))
        result = report_error(ERR_INVALID, "give it \"normalized\": false",
                              "the normalizer makes the added token \"%s\" empty, or too long",
                              added->content);
    added->normalized = result == 0 ? malloc(bytes) : NULL;
    if (result == 0 && added->normalized == NULL)
        result = tokenizer_no_memory();
    if (result == 0)
        memcpy(added->normalized, text, bytes);
    added->normalized_bytes = (uint32_t)bytes;
    free(buffers[0].text);
    free(buffers[1].text);
    split_close(graphemes);
    return result;
}

/* A token that occurs in normalized text is normalized, too. */
static int normalize_added(const struct tokenizer *tokenizer, struct added_token *added)
{
    if (tokenizer->num_steps > 0)
        return run_steps_on(tokenizer, added);
    added->normalized = malloc((size_t)added->bytes * META_SPACE_BYTES + 16);
    if (added->normalized == NULL)
        return tokenizer_no_memory();
    if (tokenizer->marks_early) {
        added->normalized_bytes =
            (uint32_t)tokenizer_mark(tokenizer, tokenizer->prefix != PREFIX_NONE, added->content,
                                     added->bytes, added->normalized);
    } else {
        memcpy(added->normalized, added->content, added->bytes);
        added->normalized_bytes = added->bytes;
    }
    return 0;
}

static int read_added_token(struct reader *reader, const json_t *token)
{
    static const struct expected expected[] = {{"single_word", "false"}, {NULL, NULL}};
    struct tokenizer *out = reader->out;
    const char *content = hf_text_of(token, "content");
    json_int_t id = json_integer_value(json_object_get(token, "id"));
    size_t bytes = strlen(content);
    ERR_TRY(hf_expect(reader, token, content, expected));
    if (bytes == 0 || bytes > TOKEN_BYTES_MAX || !json_is_integer(json_object_get(token, "id")) ||
        id < 0 || id >= VOCAB_TOKENS_MAX)
        return hf_bad(reader, "an added token has no content or no number");
    struct added_token *added = &out->added[out->num_added];
    *added = (struct added_token){.content = strdup(content),
                                  .bytes = (uint32_t)bytes,
                                  .id = (int32_t)id,
                                  .is_special = json_is_true(json_object_get(token, "special")),
                                  .strips_left = json_is_true(json_object_get(token, "lstrip")),
                                  .strips_right = json_is_true(json_object_get(token, "rstrip"))};
    if (added->content == NULL)
        return tokenizer_no_memory();
    out->num_added++;
    if ((uint32_t)id >= out->num_ids)
        out->num_ids = (uint32_t)id + 1;
    return json_is_true(json_object_get(token, "normalized")) ? normalize_added(out, added) : 0;
}

static int read_added(struct reader *reader, const json_t *tokens)
{
    struct tokenizer *out = reader->out;
    size_t i, count = json_array_size(tokens);
    json_t *token;
    out->num_ids = out->vocab.num_tokens;
    if (count == 0)
        return 0;
    if (count > ADDED_TOKENS_MAX)
        return hf_bad(reader, "there are more than 65536 added_tokens");
    out->added = calloc(count, sizeof *out->added);
    if (out->added == NULL)
        return tokenizer_no_memory();
    json_array_foreach(tokens, i, token) ERR_TRY(read_added_token(reader, token));
    qsort(out->added, count, sizeof *out->added, compare_added);
    for (i = 1; i < count; i++)
        if (out->added[i - 1].id == out->added[i].id)
            return hf_bad(reader, "two added_tokens have the same number");
    return 0;
}

/* tokenizer.json does not mark the tokens that begin and end a document, so they are found by
 * name. */
static void find_ends(struct tokenizer *out)
{
    static const char *const begins[] = {"<|begin_of_text|>", "<s>", "<bos>", NULL};
    static const char *const ends[] = {"<|end_of_text|>", "</s>", "<|endoftext|>", "<eos>", NULL};
    for (uint32_t i = 0; i < out->num_added; i++) {
        const struct added_token *added = &out->added[i];
        for (const char *const *name = begins; added->is_special && *name != NULL; name++)
            if (out->bos < 0 && strcmp(added->content, *name) == 0)
                out->bos = added->id;
        for (const char *const *name = ends; added->is_special && *name != NULL; name++)
            if (out->eos < 0 && strcmp(added->content, *name) == 0)
                out->eos = added->id;
    }
}

/* ---- the file ---- */

static int read_root(struct reader *reader, const json_t *root)
{
    static const struct expected expected[] = {
        {"version", "1.0"}, {"truncation", ""}, {"padding", ""}, {NULL, NULL}};
    reader->out->pieces = PIECES_WHOLE;
    ERR_TRY(hf_expect(reader, root, "the file's", expected));
    ERR_TRY(read_part(reader, json_object_get(root, "normalizer"), "normalizer", normalizers));
    ERR_TRY(
        read_part(reader, json_object_get(root, "pre_tokenizer"), "pre_tokenizer", pre_tokenizers));
    if (reader->out->splits_white &&
        (reader->is_byte_level || reader->out->pieces == PIECES_EXPRESSION))
        return hf_refuse_part(reader, "after WhitespaceSplit: pre_tokenizer", "ByteLevel or Split");
    ERR_TRY(read_part(reader, json_object_get(root, "decoder"), "decoder", decoders));
    ERR_TRY(hf_read_model(reader, json_object_get(root, "model")));
    ERR_TRY(read_added(reader, json_object_get(root, "added_tokens")));
    ERR_TRY(hf_add_scores(reader));
    find_ends(reader->out);
    return 0;
}

int tokenizer_read_json(struct tokenizer *out, const char *name, const char *text, size_t bytes)
{
    struct reader reader = {.name = name, .out = out};
    json_error_t reason;
    json_t *root = NULL;
    if (bytes > VOCAB_FILE_BYTES_MAX)
        return hf_bad(&reader, "not a tokenizer: over 256 MiB");
    struct json_count count = json_count(text, bytes);
    if (count.containers > CONTAINERS_MAX || count.commas > COMMAS_MAX ||
        count.depth > JSON_DEPTH_MAX)
        return hf_bad(&reader, "not a tokenizer: too many parts");
    int result = json_read(&root, text, bytes, &reason);
    if (result == ERR_CORRUPT)
        return report_error(ERR_CORRUPT, "give the tokenizer of a Llama, or `tokenizer train` one",
                            "%s, line %d: %s", name, reason.line, reason.text);
    if (result == 0)
        result = read_root(&reader, root);
    json_decref(root);
    free(reader.scores);
    return result;
}
