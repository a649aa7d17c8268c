/* hf_json.c - a tokenizer from Hugging Face's tokenizer.json.
 *
 * The file describes a pipeline of parts, of which there are many kinds. Read are those that
 * Llama's tokenizers are made of; each part is one entry of a table with the function that reads
 * it, and a kind that is in no table, or a setting with a value that is not ours, is refused by its
 * name, for tokens that are nearly right are worse than none. What has no part in making tokens of
 * plain text (post-processor, decoder) is not read, but for the space that a decoder strips. */
#include "trainer/tokenizer/model.h"

#include "proto/base/json.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTAINERS_MAX (4u << 20) /* of the text: a merge may be an array */
#define COMMAS_MAX (32u << 20)

struct reader {
    const char *name; /* of the file, for messages */
    struct tokenizer *out;
    bool is_byte_level;
};

static int refuse(const struct reader *reader, const char *what, const char *value)
{
    return report_error(ERR_INVALID,
                        "supported are the tokenizers of Llama: byte-level and byte-fallback BPE",
                        "%s: %s \"%s\" is not supported", reader->name, what, value);
}

static int bad(const struct reader *reader, const char *what)
{
    return report_error(ERR_CORRUPT, NULL, "%s: %s", reader->name, what);
}

static int no_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory for the tokenizer");
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* Refuses members of a part that are set to anything but what the list says. What is missing or
 * null is taken. */
struct expected {
    const char *key;
    const char *value; /* as text; "true", "false"; "": also 0 */
};

static const char *plain_text(const json_t *value)
{
    if (json_is_string(value))
        return json_string_value(value);
    if (json_is_number(value) && json_number_value(value) == 0)
        return "";
    return json_is_true(value) ? "true" : json_is_false(value) ? "false" : "?";
}

static int expect(const struct reader *reader, const json_t *part, const char *type,
                  const struct expected *list)
{
    for (; list->key != NULL; list++) {
        const json_t *value = json_object_get(part, list->key);
        char what[96];
        if (value == NULL || json_is_null(value) || strcmp(plain_text(value), list->value) == 0)
            continue;
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        snprintf(what, sizeof what, "%s.%s =", type, list->key);
        int result = refuse(reader, what, text != NULL ? text : "?");
        free(text);
        return result;
    }
    return 0;
}

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
    const char *type = text_of(part, "type");
    for (; parts->type != NULL; parts++)
        if (strcmp(parts->type, type) == 0)
            return parts->read(reader, part);
    return refuse(reader, role, type);
}

static int read_list(struct reader *reader, const json_t *list, const char *role,
                     const struct part *parts)
{
    size_t i;
    json_t *part;
    if (!json_is_array(list))
        return refuse(reader, role, "Sequence without a list");
    json_array_foreach(list, i, part) ERR_TRY(read_part(reader, part, role, parts));
    return 0;
}

/* ---- normalizer: nothing, or what marks spaces as SentencePiece does ---- */

static int read_prepend(struct reader *reader, const json_t *part)
{
    const char *prefix = text_of(part, "prepend");
    if (strcmp(prefix, META_SPACE) != 0 || reader->out->prefix != PREFIX_NONE)
        return refuse(reader, "normalizer Prepend", prefix);
    reader->out->prefix = PREFIX_ALWAYS;
    reader->out->prefix_always = true;
    strcpy(reader->out->prefix_text, META_SPACE);
    reader->out->marks_early = true;
    return 0;
}

static int read_replace(struct reader *reader, const json_t *part)
{
    const char *pattern = text_of(json_object_get(part, "pattern"), "String");
    if (strcmp(pattern, " ") != 0 || strcmp(text_of(part, "content"), META_SPACE) != 0)
        return refuse(reader, "normalizer Replace of", pattern);
    reader->out->marks_spaces = true;
    reader->out->marks_early = true;
    return 0;
}

static int read_normalizers(struct reader *reader, const json_t *part);

static const struct part normalizers[] = {{"Sequence", read_normalizers},
                                          {"Prepend", read_prepend},
                                          {"Replace", read_replace},
                                          {NULL, NULL}};

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
            return refuse(reader, "behind a Split: ByteLevel.add_prefix_space", "true");
        reader->out->prefix = PREFIX_ALWAYS;
        strcpy(reader->out->prefix_text, " ");
    }
    if (use_regex != NULL && !json_is_true(use_regex))
        return 0;
    if (is_split)
        return refuse(reader, "behind a Split: ByteLevel.use_regex", "true");
    reader->out->pieces = PIECES_EXPRESSION;
    reader->out->expression = SPLIT_GPT2;
    return 0;
}

static int read_split(struct reader *reader, const json_t *part)
{
    static const struct expected expected[] = {
        {"behavior", "Isolated"}, {"invert", "false"}, {NULL, NULL}};
    const char *wanted = text_of(json_object_get(part, "pattern"), "Regex");
    ERR_TRY(expect(reader, part, "Split", expected));
    if (reader->out->pieces == PIECES_EXPRESSION)
        return refuse(reader, "a second pre_tokenizer Split by", wanted);
    for (enum split_expression i = 0; i < SPLIT_NUM_EXPRESSIONS; i++) {
        if (strcmp(split_expression_text(i), wanted) != 0)
            continue;
        reader->out->pieces = PIECES_EXPRESSION;
        reader->out->expression = i;
        return 0;
    }
    return refuse(reader, "pre_tokenizer Split by the expression", wanted);
}

static int read_metaspace(struct reader *reader, const json_t *part)
{
    static const struct expected expected[] = {{"replacement", META_SPACE}, {NULL, NULL}};
    static const char *const schemes[] = {
        [PREFIX_NONE] = "never", [PREFIX_ALWAYS] = "always", [PREFIX_FIRST] = "first"};
    const json_t *split = json_object_get(part, "split");
    const char *scheme = text_of(part, "prepend_scheme");
    struct tokenizer *out = reader->out;
    ERR_TRY(expect(reader, part, "Metaspace", expected));
    if (out->marks_early || out->marks_spaces)
        return refuse(reader, "behind a normalizer or another one: pre_tokenizer", "Metaspace");
    enum prefix prefix = PREFIX_NONE;
    while (prefix <= PREFIX_FIRST && strcmp(schemes[prefix], scheme) != 0)
        prefix++;
    if (prefix > PREFIX_FIRST && scheme[0] != '\0')
        return refuse(reader, "Metaspace.prepend_scheme =", scheme);
    if (prefix > PREFIX_FIRST) /* older files */
        prefix =
            json_is_false(json_object_get(part, "add_prefix_space")) ? PREFIX_NONE : PREFIX_ALWAYS;
    out->prefix = prefix;
    strcpy(out->prefix_text, META_SPACE);
    out->marks_spaces = true;
    if (split == NULL || json_is_true(split))
        out->pieces = PIECES_EACH_SPACE;
    return 0;
}

static int read_pre_tokenizers(struct reader *reader, const json_t *part);

static const struct part pre_tokenizers[] = {{"Sequence", read_pre_tokenizers},
                                             {"ByteLevel", read_byte_level},
                                             {"Split", read_split},
                                             {"Metaspace", read_metaspace},
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
    reader->out->strips_space = strcmp(text_of(part, "content"), " ") == 0 &&
                                json_integer_value(json_object_get(part, "start")) > 0;
    return 0;
}

static int read_metaspace_decoder(struct reader *reader, const json_t *part)
{
    reader->out->strips_space = strcmp(text_of(part, "prepend_scheme"), "never") != 0;
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

/* ---- vocabulary ---- */

/* GPT-2's alphabet, backwards: the byte that the character at `text` stands for, or -1. */
static int alphabet_byte(const char *text, size_t length)
{
    const uint8_t *bytes = (const uint8_t *)text;
    uint32_t code = length == 1   ? bytes[0]
                    : length == 2 ? (bytes[0] & 0x1fu) << 6 | (bytes[1] & 0x3fu)
                                  : UINT32_MAX;
    if ((code >= '!' && code <= '~') || (code >= 0xa1 && code <= 0xff && code != 0xad))
        return (int)code;
    if (code < 256 || code >= 256 + 68)
        return -1;
    code -= 256; /* bytes 0..32, 127..160, 173 in turn */
    return code <= 32 ? (int)code : code <= 66 ? (int)(127 + code - 33) : 173;
}

/* The bytes that a key of the vocabulary stands for; 0: it is not of the alphabet. */
static size_t token_bytes(const struct reader *reader, char out[TOKEN_BYTES_MAX], const char *key,
                          size_t length)
{
    size_t used = 0;
    if (!reader->is_byte_level) {
        memcpy(out, key, length);
        return length;
    }
    for (size_t at = 0; at < length;) {
        size_t one = text_utf8_length(key + at, length - at);
        int byte = alphabet_byte(key + at, one);
        if (one == 0 || byte < 0)
            return 0;
        out[used++] = (char)byte;
        at += one;
    }
    return used;
}

static int order_keys(const struct reader *reader, const json_t *vocab, const char **by_id,
                      size_t count)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)vocab, key, value)
    {
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || (size_t)id >= count || by_id[id] != NULL)
            return bad(reader, "the numbers of model.vocab are not those from 0 on, each once");
        if (key[0] == '\0' || strlen(key) > TOKEN_BYTES_MAX)
            return bad(reader, "a token of model.vocab is empty or over 4096 bytes long");
        by_id[id] = key;
    }
    return 0;
}

static int add_keys(struct reader *reader, const char *const *by_id, size_t count)
{
    char bytes[TOKEN_BYTES_MAX];
    for (size_t id = 0; id < count; id++) {
        size_t length = token_bytes(reader, bytes, by_id[id], strlen(by_id[id]));
        if (length == 0)
            return refuse(reader, "a token that is not of the byte-level alphabet:", by_id[id]);
        int result = vocab_add(&reader->out->vocab, bytes, length);
        if (result == ERR_EXISTS)
            return bad(reader, "two tokens of model.vocab have the same bytes");
        ERR_TRY(result);
    }
    return 0;
}

static int read_vocab(struct reader *reader, const json_t *vocab)
{
    size_t count = json_object_size(vocab);
    if (count == 0)
        return bad(reader, "there is no model.vocab");
    const char **by_id = calloc(count, sizeof *by_id);
    if (by_id == NULL)
        return no_memory();
    int result = order_keys(reader, vocab, by_id, count);
    if (result == 0)
        result = add_keys(reader, by_id, count);
    free(by_id);
    return result;
}

static int find_byte_symbols(struct reader *reader)
{
    struct tokenizer *out = reader->out;
    if (!reader->is_byte_level)
        return tokenizer_find_byte_names(out, reader->name);
    for (uint32_t byte = 0; byte < 256; byte++) {
        unsigned char single = (unsigned char)byte;
        out->byte_symbols[byte] = vocab_find(&out->vocab, &single, 1);
        if (out->byte_symbols[byte] == VOCAB_NONE)
            return report_error(ERR_INVALID, NULL, "%s: model.vocab has no token for the byte %u",
                                reader->name, byte);
    }
    return 0;
}

/* ---- merges ---- */

/* A merge is "left right", or ["left", "right"]. */
static int merge_sides(const struct reader *reader, const json_t *merge, const char *sides[2],
                       size_t lengths[2])
{
    const char *text = json_string_value(merge);
    const char *space = text != NULL ? strchr(text, ' ') : NULL;
    if (space != NULL && strchr(space + 1, ' ') == NULL) {
        sides[0] = text;
        lengths[0] = (size_t)(space - text);
        sides[1] = space + 1;
        lengths[1] = strlen(space + 1);
    } else if (json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++) {
            sides[i] = json_string_value(json_array_get(merge, i));
            lengths[i] = sides[i] != NULL ? strlen(sides[i]) : 0;
        }
    } else {
        return bad(reader, "a merge is not two tokens");
    }
    if (lengths[0] == 0 || lengths[1] == 0 || lengths[0] + lengths[1] > TOKEN_BYTES_MAX)
        return bad(reader, "a merge is not two tokens");
    return 0;
}

static int read_merge(struct reader *reader, const json_t *merge, uint32_t rank, bool *crosses)
{
    const char *sides[2];
    size_t lengths[2], used[2];
    char bytes[2 * TOKEN_BYTES_MAX];
    const struct vocab *vocab = &reader->out->vocab;
    ERR_TRY(merge_sides(reader, merge, sides, lengths));
    used[0] = token_bytes(reader, bytes, sides[0], lengths[0]);
    used[1] = token_bytes(reader, bytes + used[0], sides[1], lengths[1]);
    struct pair pair = {.left = vocab_find(vocab, bytes, used[0]),
                        .right = vocab_find(vocab, bytes + used[0], used[1]),
                        .rank = rank,
                        .joined = vocab_find(vocab, bytes, used[0] + used[1])};
    if (pair.left == VOCAB_NONE || pair.right == VOCAB_NONE || pair.joined == VOCAB_NONE)
        return report_error(ERR_CORRUPT, NULL,
                            "%s: merge %u (\"%.40s\" \"%.40s\") is of tokens "
                            "that model.vocab does not have",
                            reader->name, rank, sides[0], sides[1]);
    *crosses |= tokenizer_crosses_space(bytes, used[0] + used[1]);
    return pairs_add(&reader->out->pairs, pair);
}

static int read_merges(struct reader *reader, const json_t *merges)
{
    size_t i;
    json_t *merge;
    bool crosses = false;
    if (!json_is_array(merges) || json_array_size(merges) > VOCAB_TOKENS_MAX)
        return bad(reader, "there is no list model.merges, or it is too long");
    json_array_foreach(merges, i, merge) ERR_TRY(read_merge(reader, merge, (uint32_t)i, &crosses));
    struct tokenizer *out = reader->out;
    if (out->pieces == PIECES_WHOLE && out->marks_spaces && !crosses && !out->takes_whole)
        out->pieces = PIECES_WORDS;
    return 0;
}

static int read_model(struct reader *reader, const json_t *model)
{
    static const struct expected expected[] = {{"type", "BPE"},
                                               {"dropout", ""},
                                               {"continuing_subword_prefix", ""},
                                               {"end_of_word_suffix", ""},
                                               {NULL, NULL}};
    struct tokenizer *out = reader->out;
    bool has_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    ERR_TRY(expect(reader, model, "model", expected));
    if (!reader->is_byte_level && !has_fallback)
        return refuse(reader, "without a ByteLevel pre_tokenizer: model.byte_fallback =", "false");
    if (reader->is_byte_level && out->marks_spaces)
        return refuse(reader, "with a ByteLevel pre_tokenizer: marking spaces by", META_SPACE);
    out->by_character = !reader->is_byte_level;
    out->takes_whole = json_is_true(json_object_get(model, "ignore_merges"));
    ERR_TRY(read_vocab(reader, json_object_get(model, "vocab")));
    ERR_TRY(find_byte_symbols(reader));
    return read_merges(reader, json_object_get(model, "merges"));
}

/* ---- added tokens ---- */

static int compare_added(const void *left, const void *right)
{
    const struct added_token *a = left, *b = right;
    return (a->id > b->id) - (a->id < b->id);
}

/* A token that is found in normalized text is found as the normalizer leaves it. */
static int normalize_added(const struct tokenizer *tokenizer, struct added_token *added)
{
    added->normalized = malloc((size_t)added->bytes * META_SPACE_BYTES + 16);
    if (added->normalized == NULL)
        return no_memory();
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
    const char *content = text_of(token, "content");
    json_int_t id = json_integer_value(json_object_get(token, "id"));
    size_t bytes = strlen(content);
    ERR_TRY(expect(reader, token, content, expected));
    if (bytes == 0 || bytes > TOKEN_BYTES_MAX || !json_is_integer(json_object_get(token, "id")) ||
        id < 0 || id >= VOCAB_TOKENS_MAX)
        return bad(reader, "an added token has no content or no number");
    struct added_token *added = &out->added[out->num_added];
    *added = (struct added_token){.content = strdup(content),
                                  .bytes = (uint32_t)bytes,
                                  .id = (int32_t)id,
                                  .is_special = json_is_true(json_object_get(token, "special")),
                                  .strips_left = json_is_true(json_object_get(token, "lstrip")),
                                  .strips_right = json_is_true(json_object_get(token, "rstrip"))};
    if (added->content == NULL)
        return no_memory();
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
        return bad(reader, "there are more than 65536 added_tokens");
    out->added = calloc(count, sizeof *out->added);
    if (out->added == NULL)
        return no_memory();
    json_array_foreach(tokens, i, token) ERR_TRY(read_added_token(reader, token));
    qsort(out->added, count, sizeof *out->added, compare_added);
    for (i = 1; i < count; i++)
        if (out->added[i - 1].id == out->added[i].id)
            return bad(reader, "two added_tokens have the same number");
    return 0;
}

/* tokenizer.json does not say what begins and ends a document, so that is told by name. */
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
    ERR_TRY(expect(reader, root, "the file's", expected));
    ERR_TRY(read_part(reader, json_object_get(root, "normalizer"), "normalizer", normalizers));
    ERR_TRY(
        read_part(reader, json_object_get(root, "pre_tokenizer"), "pre_tokenizer", pre_tokenizers));
    ERR_TRY(read_part(reader, json_object_get(root, "decoder"), "decoder", decoders));
    ERR_TRY(read_model(reader, json_object_get(root, "model")));
    ERR_TRY(read_added(reader, json_object_get(root, "added_tokens")));
    find_ends(reader->out);
    return 0;
}

int tokenizer_read_json(struct tokenizer *out, const char *name, const char *text, size_t bytes)
{
    struct reader reader = {.name = name, .out = out};
    json_error_t reason;
    json_t *root = NULL;
    if (bytes > VOCAB_FILE_BYTES_MAX)
        return bad(&reader, "not a tokenizer: over 256 MiB");
    struct json_count count = json_count(text, bytes);
    if (count.containers > CONTAINERS_MAX || count.commas > COMMAS_MAX ||
        count.depth > JSON_DEPTH_MAX)
        return bad(&reader, "not a tokenizer: too many parts");
    int result = json_read(&root, text, bytes, &reason);
    if (result == ERR_CORRUPT)
        return report_error(ERR_CORRUPT, "give the tokenizer of a Llama, or `tokenizer train` one",
                            "%s, line %d: %s", name, reason.line, reason.text);
    if (result == 0)
        result = read_root(&reader, root);
    json_decref(root);
    return result;
}
