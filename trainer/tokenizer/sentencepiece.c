/* sentencepiece.c - a tokenizer from SentencePiece's file, the tokenizer.model of Llama 2.
 *
 * The file is a protocol buffer; proto/model/sentencepiece.proto has the fields that are read.
 *
 * A model of type BPE has no list of pairs: two neighbours are joined if together they are a NORMAL
 * piece: the highest score first, the leftmost of equals, for any pieces. So the pairs are every
 * cut of every such piece in two, and pieces with the same score have the same rank. USER_DEFINED
 * pieces are found in the marked text and join nothing. In a model of type UNIGRAM NORMAL pieces
 * have their scores; USER_DEFINED pieces get one above all others (unigram.c). CONTROL and UNKNOWN
 * pieces are not text. Without byte_fallback a run of text that is no piece becomes one piece of
 * type UNKNOWN. Other values are refused with the name of the field.
 *
 * Differences from the library: bytes that are not UTF-8 become tokens of those bytes, where the
 * library puts U+FFFD; the piece UNKNOWN decodes to nothing; the scores of a text over 64 KiB are
 * summed in parts. */
#include "trainer/tokenizer/model.h"

#include "proto/base/report.h"
#include "proto/model/sentencepiece.pb-c.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNPACKED_BYTES_MAX (1u << 30)

enum type { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE, NUM_TYPES };

struct piece {
    float score;
    uint32_t id;
    enum type type;
};

struct reader {
    const char *name; /* the file's name, for messages */
    struct tokenizer *out;
    struct piece *pieces; /* by number */
    bool *joins;          /* by number: NORMAL */
};

static int refuse_field(const struct reader *reader, const char *field, const char *value)
{
    return report_error(ERR_INVALID,
                        "supported are models of type BPE and UNIGRAM whose spaces stand before "
                        "words",
                        "%s: %s = %s is not supported", reader->name, field, value);
}

static int bad(const struct reader *reader, const char *what)
{
    return report_error(ERR_CORRUPT, "fetch the file again", "%s: %s", reader->name, what);
}

/* ---- pieces ---- */

static bool is_utf8(const char *text, size_t bytes)
{
    size_t at = 0, length = 1;
    for (; at < bytes && length > 0; at += length)
        length = text_utf8_length(text + at, bytes - at);
    return length > 0;
}

static int add_pieces(struct reader *reader, const Sentencepiece__Model *model)
{
    reader->pieces = calloc(model->n_pieces + 1, sizeof *reader->pieces);
    if (reader->pieces == NULL)
        return tokenizer_no_memory();
    for (uint32_t id = 0; id < model->n_pieces; id++) {
        const Sentencepiece__Piece *from = model->pieces[id];
        const ProtobufCBinaryData *text = &from->piece;
        if (from->type < NORMAL || from->type >= NUM_TYPES)
            return bad(reader, "a piece has an unknown type");
        if (text->len == 0 || text->len > TOKEN_BYTES_MAX ||
            !is_utf8((const char *)text->data, text->len) || !isfinite(from->score))
            return bad(reader,
                       "a piece is empty, over 4096 bytes long or not UTF-8, or has no score");
        int result = vocab_add(&reader->out->vocab, text->data, text->len);
        if (result == ERR_EXISTS)
            return bad(reader, "two pieces have the same text");
        ERR_TRY(result);
        reader->pieces[id] = (struct piece){from->score, id, (enum type)from->type};
    }
    return 0;
}

/* ---- settings ---- */

enum model_type { UNIGRAM = 1, BPE };

/* Refuses a file that asks for unsupported settings. */
static int check_settings(const struct reader *reader, const Sentencepiece__Model *model)
{
    static const char *const types[] = {"0", "UNIGRAM", "BPE", "WORD", "CHAR"};
    const Sentencepiece__Trainer *trainer = model->trainer_spec;
    const Sentencepiece__Normalizer *back = model->denormalizer_spec;
    char value[24];
    if (trainer == NULL || model->normalizer_spec == NULL)
        return bad(reader, "it has no trainer_spec or no normalizer_spec: the file is cut off");
    int32_t type = trainer->model_type;
    snprintf(value, sizeof value, "%d", type);
    if (type != UNIGRAM && type != BPE)
        return refuse_field(
            reader, "trainer_spec.model_type",
            type >= 0 && type < (int32_t)(sizeof types / sizeof types[0]) ? types[type] : value);
    if (trainer->treat_whitespace_as_suffix)
        return refuse_field(reader, "trainer_spec.treat_whitespace_as_suffix", "1");
    if (back == NULL || back->precompiled_charsmap.len == 0)
        return 0;
    snprintf(value, sizeof value, "%zu", back->precompiled_charsmap.len);
    return refuse_field(reader, "the length of denormalizer_spec.precompiled_charsmap", value);
}

/* ---- the tokenizer of the pieces ---- */

static int compare_scores(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    return a->score != b->score ? (a->score < b->score) - (a->score > b->score)
                                : (a->id > b->id) - (a->id < b->id);
}

/* Each character of a piece must be a piece, too: other characters become bytes, which are not
 * joined. */
static int check_characters(const struct reader *reader, uint32_t id)
{
    const struct vocab *vocab = &reader->out->vocab;
    const char *text = (const char *)vocab->bytes + vocab->start[id];
    size_t bytes = vocab->start[id + 1] - vocab->start[id];
    for (size_t at = 0, length; at < bytes; at += length) {
        length = text_utf8_length(text + at, bytes - at);
        uint32_t found = vocab_find(vocab, text + at, length);
        if (found == VOCAB_NONE ||
            (reader->pieces[found].type != NORMAL && reader->pieces[found].type != USER_DEFINED))
            return report_error(ERR_INVALID, NULL,
                                "%s: piece %u, \"%.*s\", has the character \"%.*s\", which is not "
                                "a piece: that is not supported",
                                reader->name, id, (int)bytes, text, (int)length, text + at);
    }
    return 0;
}

static bool crosses_space(const struct tokenizer *out, uint32_t id)
{
    return tokenizer_crosses_space(out->vocab.bytes + out->vocab.start[id],
                                   out->vocab.start[id + 1] - out->vocab.start[id]);
}

/* Ranks by score, the highest first: consecutive numbers, one for all pieces with the same
 * score. */
static int add_pairs(struct reader *reader)
{
    struct tokenizer *out = reader->out;
    const uint32_t count = out->vocab.num_tokens;
    struct piece *sorted = malloc(count * sizeof *sorted);
    if (sorted == NULL)
        return tokenizer_no_memory();
    memcpy(sorted, reader->pieces, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_scores);
    int result = 0;
    for (uint32_t i = 0, rank = 0; i < count && result == 0; i++) {
        rank += i > 0 && sorted[i].score != sorted[i - 1].score;
        if (sorted[i].type != NORMAL)
            continue;
        uint32_t id = sorted[i].id;
        result = check_characters(reader, id);
        if (result == 0)
            result = pairs_add_cuts(&out->pairs, &out->vocab, id, rank, reader->joins);
    }
    free(sorted);
    return result;
}

static int add_scores(struct reader *reader)
{
    struct tokenizer *out = reader->out;
    const uint32_t count = out->vocab.num_tokens;
    ERR_TRY(scores_open(&out->scores, count, SCORES_FLOAT));
    for (uint32_t id = 0; id < count; id++)
        if (reader->pieces[id].type == NORMAL)
            ERR_TRY(scores_add(out->scores, &out->vocab, id, reader->pieces[id].score, true));
    for (uint32_t id = 0; id < count; id++)
        if (reader->pieces[id].type == USER_DEFINED)
            ERR_TRY(scores_add_certain(out->scores, &out->vocab, id));
    return 0;
}

/* A piece may contain zeros. */
static char *copy_text(const char *text, size_t bytes)
{
    char *copy = calloc(bytes + 1, 1);
    if (copy != NULL)
        memcpy(copy, text, bytes);
    return copy;
}

static int add_added(struct tokenizer *out, const struct piece *piece)
{
    struct added_token *added = &out->added[out->num_added++];
    const char *text = (const char *)out->vocab.bytes + out->vocab.start[piece->id];
    size_t bytes = out->vocab.start[piece->id + 1] - out->vocab.start[piece->id];
    *added = (struct added_token){.content = copy_text(text, bytes),
                                  .bytes = (uint32_t)bytes,
                                  .id = (int32_t)piece->id,
                                  .is_special = piece->type != USER_DEFINED};
    if (!added->is_special) {
        added->normalized = copy_text(text, bytes);
        added->normalized_bytes = added->bytes;
    }
    return added->content == NULL || (!added->is_special && added->normalized == NULL)
               ? tokenizer_no_memory()
               : 0;
}

/* With scores, USER_DEFINED pieces are found as other pieces are. */
static bool is_added(const struct reader *reader, uint32_t id)
{
    enum type type = reader->pieces[id].type;
    return type == CONTROL || type == UNKNOWN ||
           (type == USER_DEFINED && reader->out->scores == NULL);
}

static int add_all_added(struct reader *reader)
{
    struct tokenizer *out = reader->out;
    uint32_t count = 0;
    for (uint32_t id = 0; id < out->vocab.num_tokens; id++)
        count += is_added(reader, id);
    if (count > ADDED_TOKENS_MAX)
        return bad(reader, "more than 65536 pieces are CONTROL or USER_DEFINED");
    out->added = calloc((size_t)count + 1, sizeof *out->added);
    if (out->added == NULL)
        return tokenizer_no_memory();
    for (uint32_t id = 0; id < out->vocab.num_tokens; id++)
        if (is_added(reader, id))
            ERR_TRY(add_added(out, &reader->pieces[id]));
    return 0;
}

/* The number of a CONTROL piece, or -1. */
static int32_t find_control(const struct reader *reader, const char *name)
{
    uint32_t id = vocab_find(&reader->out->vocab, name, strlen(name));
    return id != VOCAB_NONE && reader->pieces[id].type == CONTROL ? (int32_t)id : -1;
}

/* Finds the replacement of text that is no piece: bytes, or the piece of type UNKNOWN. */
static int find_byte_symbols(struct reader *reader, bool has_fallback)
{
    struct tokenizer *out = reader->out;
    for (uint32_t id = 0; !has_fallback && id < out->vocab.num_tokens; id++)
        if (reader->pieces[id].type == UNKNOWN)
            out->unknown = (int32_t)id;
    if (!has_fallback && out->unknown < 0)
        return bad(reader, "no piece has the type UNKNOWN");
    if (has_fallback)
        ERR_TRY(tokenizer_find_byte_names(out, reader->name));
    for (uint32_t byte = 0; byte < 256; byte++)
        if (!has_fallback)
            out->byte_symbols[byte] = (uint32_t)out->unknown;
        else if (reader->pieces[out->byte_symbols[byte]].type != BYTE)
            return bad(reader, "the piece of a byte has another type than BYTE");
    return 0;
}

static int build_normalizer(struct reader *reader, const Sentencepiece__Normalizer *spec)
{
    struct tokenizer *out = reader->out;
    const ProtobufCBinaryData *rules = &spec->precompiled_charsmap;
    out->marks_spaces = spec->escape_whitespaces;
    out->marks_early = true;
    out->prefix = spec->add_dummy_prefix ? PREFIX_ALWAYS : PREFIX_NONE;
    out->prefix_always = true;
    strcpy(out->prefix_text, out->marks_spaces ? META_SPACE : " ");
    out->strips_space = out->prefix == PREFIX_ALWAYS;
    if (rules->len == 0 && !spec->remove_extra_whitespaces)
        return 0;
    ERR_TRY(normalizer_open(&out->normalizer, reader->name, rules->data, rules->len,
                            spec->remove_extra_whitespaces));
    for (uint32_t id = 0; id < out->vocab.num_tokens; id++)
        if (reader->pieces[id].type == USER_DEFINED)
            ERR_TRY(normalizer_keep(out->normalizer, &out->vocab, id));
    return 0;
}

/* True if a text may be cut before a space: no token crosses it, and it is a piece. */
static bool has_words(const struct reader *reader)
{
    const struct tokenizer *out = reader->out;
    uint32_t space = vocab_find(&out->vocab, META_SPACE, META_SPACE_BYTES);
    for (uint32_t id = 0; id < out->vocab.num_tokens; id++)
        if ((reader->pieces[id].type == NORMAL ||
             (reader->pieces[id].type == USER_DEFINED && out->scores != NULL)) &&
            crosses_space(out, id))
            return false;
    return out->marks_spaces &&
           (out->normalizer == NULL || !normalizer_crosses_space(out->normalizer)) &&
           (out->unknown < 0 || (space != VOCAB_NONE && reader->pieces[space].type == NORMAL));
}

static int build(struct reader *reader, const Sentencepiece__Model *model)
{
    const Sentencepiece__Trainer *trainer = model->trainer_spec;
    struct tokenizer *out = reader->out;
    const uint32_t count = out->vocab.num_tokens;
    reader->joins = calloc((size_t)count + 1, sizeof *reader->joins);
    if (reader->joins == NULL)
        return tokenizer_no_memory();
    for (uint32_t id = 0; id < count; id++) {
        reader->joins[id] = reader->pieces[id].type == NORMAL;
        if (reader->pieces[id].type == UNUSED && trainer->model_type == BPE)
            return refuse_field(reader, "in a model of type BPE: pieces.type", "UNUSED");
    }
    ERR_TRY(find_byte_symbols(reader, trainer->byte_fallback));
    ERR_TRY(trainer->model_type == BPE ? add_pairs(reader) : add_scores(reader));
    ERR_TRY(add_all_added(reader));
    ERR_TRY(build_normalizer(reader, model->normalizer_spec));
    out->pieces = has_words(reader) ? PIECES_WORDS : PIECES_WHOLE;
    out->by_character = true;
    out->bos = find_control(reader, trainer->bos_piece);
    out->eos = find_control(reader, trainer->eos_piece);
    out->num_ids = count;
    return 0;
}

/* The decoder's memory limit, for any file. */
static void *take_memory(void *user, size_t bytes)
{
    size_t *left = user;
    if (bytes > *left)
        return NULL;
    *left -= bytes;
    return malloc(bytes);
}

static void give_memory(void *user, void *memory)
{
    (void)user;
    free(memory);
}

int tokenizer_read_sentencepiece(struct tokenizer *out, const char *name, const char *text,
                                 size_t bytes)
{
    struct reader reader = {.name = name, .out = out};
    size_t left = UNPACKED_BYTES_MAX;
    ProtobufCAllocator allocator = {take_memory, give_memory, &left};
    if (bytes > VOCAB_FILE_BYTES_MAX)
        return bad(&reader, "not a tokenizer: over 256 MiB");
    Sentencepiece__Model *model =
        sentencepiece__model__unpack(&allocator, bytes, (const uint8_t *)text);
    if (model == NULL)
        return bad(&reader, "not a SentencePiece model, or damaged");
    int result = add_pieces(&reader, model);
    if (result == 0)
        result = check_settings(&reader, model);
    if (result == 0)
        result = build(&reader, model);
    sentencepiece__model__free_unpacked(model, &allocator);
    free(reader.pieces);
    free(reader.joins);
    return result;
}
