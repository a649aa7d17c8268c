/* sentencepiece.c - a tokenizer from SentencePiece's file, the tokenizer.model of Llama 2.
 *
 * The file is a protocol buffer: message ModelProto of google/sentencepiece,
 * src/sentencepiece_model.proto. Of its fields are read those that have a part in the tokens:
 *
 *     ModelProto      1 pieces, in the order of their numbers; 2 trainer_spec, 3 normalizer_spec,
 *                     5 denormalizer_spec
 *     SentencePiece   1 piece, 2 score (float), 3 type
 *     TrainerSpec     3 model_type, 24 treat_whitespace_as_suffix, 35 byte_fallback, 46 bos_piece,
 *                     47 eos_piece
 *     NormalizerSpec  1 name, 2 precompiled_charsmap, 3 add_dummy_prefix,
 *                     4 remove_extra_whitespaces, 5 escape_whitespaces
 *
 * A model of type BPE has no list of pairs: any neighbours are joined that together are a NORMAL
 * piece, the one with the highest score first, the leftmost of equals, whichever pieces those are.
 * So the pairs are every cut of every such piece in two, and pieces of one score have one rank.
 * USER_DEFINED pieces are found in the marked text and join nothing. In a model of type UNIGRAM
 * NORMAL pieces have their scores, USER_DEFINED pieces one that no others reach (unigram.c).
 * CONTROL and UNKNOWN pieces are no text. Without byte_fallback text that is no piece is the piece
 * of type UNKNOWN, one for a run of it. A value that asks for anything else is refused by the name
 * of its field.
 *
 * What differs from the library: bytes that are not UTF-8 are tokens of those bytes, where the
 * library has U+FFFD in their place; the piece UNKNOWN decodes to nothing; the scores of a text
 * over 64 KiB are summed in parts. */
#include "trainer/tokenizer/model.h"

#include "proto/base/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENDS_BYTES 64u /* of the name of a piece that begins or ends a document */

enum type { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE, NUM_TYPES };

struct piece {
    float score;
    uint32_t id, rank;
    enum type type;
};

struct reader {
    const char *name; /* of the file, for messages */
    struct tokenizer *out;
    struct piece *pieces; /* by number */
    uint32_t room;
    bool *joins; /* by number: NORMAL */
};

static int refuse(const struct reader *reader, const char *field, const char *value)
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

static int no_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory for the tokenizer");
}

/* ---- protocol buffers ---- */

enum wire { WIRE_VARINT, WIRE_DOUBLE, WIRE_BYTES, WIRE_FLOAT = 5 };

struct span {
    const uint8_t *at, *end;
};

struct field {
    uint64_t number;
    enum wire wire;
    uint64_t value;    /* of WIRE_BYTES their number */
    struct span bytes; /* of WIRE_BYTES, and the 4 of WIRE_FLOAT */
};

static bool take_varint(struct span *rest, uint64_t *out)
{
    *out = 0;
    for (uint32_t shift = 0; shift < 64 && rest->at < rest->end; shift += 7) {
        uint8_t byte = *rest->at++;
        *out |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return true;
    }
    return false;
}

/* Takes the next field of a message. False: these bytes are none. */
static bool take_field(struct span *rest, struct field *out)
{
    uint64_t tag, bytes = 0;
    if (!take_varint(rest, &tag))
        return false;
    *out = (struct field){.number = tag >> 3, .wire = (enum wire)(tag & 7)};
    switch (out->wire) {
    case WIRE_VARINT:
        return take_varint(rest, &out->value);
    case WIRE_BYTES:
        if (!take_varint(rest, &bytes))
            return false;
        break;
    case WIRE_DOUBLE:
    case WIRE_FLOAT:
        bytes = out->wire == WIRE_DOUBLE ? 8 : 4;
        break;
    default:
        return false;
    }
    if (bytes > (uint64_t)(rest->end - rest->at))
        return false;
    out->value = bytes;
    out->bytes = (struct span){rest->at, rest->at + bytes};
    rest->at += bytes;
    return true;
}

/* Hands the fields of a message to `take` in turn. */
static int read_message(struct reader *reader, struct span message,
                        int (*take)(struct reader *reader, const struct field *field, void *user),
                        void *user)
{
    while (message.at < message.end) {
        struct field field;
        if (!take_field(&message, &field))
            return bad(reader, "not a SentencePiece model, or damaged");
        ERR_TRY(take(reader, &field, user));
    }
    return 0;
}

/* ---- pieces ---- */

struct read_piece {
    struct span text;
    struct piece piece;
};

static int take_of_piece(struct reader *reader, const struct field *field, void *user)
{
    struct read_piece *read = user;
    if (field->number == 1 && field->wire == WIRE_BYTES)
        read->text = field->bytes;
    else if (field->number == 2 && field->wire == WIRE_FLOAT)
        memcpy(&read->piece.score, field->bytes.at, sizeof read->piece.score);
    else if (field->number == 3 && field->wire == WIRE_VARINT && field->value >= NORMAL &&
             field->value < NUM_TYPES)
        read->piece.type = (enum type)field->value;
    else if (field->number <= 3)
        return bad(reader, "a piece has a text, a score or a type that is none");
    return 0;
}

static int reserve_piece(struct reader *reader)
{
    uint32_t count = reader->out->vocab.num_tokens;
    if (count < reader->room)
        return 0;
    uint32_t room = 2 * count + 1024;
    struct piece *grown = realloc(reader->pieces, room * sizeof *grown);
    if (grown == NULL)
        return no_memory();
    reader->pieces = grown;
    reader->room = room;
    return 0;
}

static bool is_utf8(const char *text, size_t bytes)
{
    size_t at = 0, length = 1;
    for (; at < bytes && length > 0; at += length)
        length = text_utf8_length(text + at, bytes - at);
    return length > 0;
}

static int add_piece(struct reader *reader, const struct field *field)
{
    struct vocab *vocab = &reader->out->vocab;
    struct read_piece read = {.piece = {.id = vocab->num_tokens, .type = NORMAL}};
    ERR_TRY(read_message(reader, field->bytes, take_of_piece, &read));
    size_t bytes = (size_t)(read.text.end - read.text.at);
    if (bytes == 0 || bytes > TOKEN_BYTES_MAX || !is_utf8((const char *)read.text.at, bytes) ||
        !isfinite(read.piece.score))
        return bad(reader, "a piece is empty, over 4096 bytes long or no text, or has no score");
    int result = vocab_add(vocab, read.text.at, bytes);
    if (result == ERR_EXISTS)
        return bad(reader, "two pieces have the same text");
    ERR_TRY(result);
    reader->pieces[read.piece.id] = read.piece;
    return 0;
}

/* ---- what is set ---- */

enum specification { PIECES = 1, TRAINER, NORMALIZER, DENORMALIZER = 5 };
enum model_type { UNIGRAM = 1, BPE };
#define MASK(value) (UINT64_C(1) << (value))
#define ANY UINT64_MAX

/* Fields with another value than the ones that are supported: the file is refused. */
enum setting { TYPE, SUFFIX, FALLBACK, CHARSMAP, PREFIX, FEW_SPACES, ESCAPES, BACK, NUM_SETTINGS };
static const struct {
    enum specification of;
    uint32_t number;
    const char *field;
    uint64_t when_absent, supported; /* a mask of values */
    const char *const *names;        /* of values; NULL: they are printed as numbers */
} settings[NUM_SETTINGS] = {
    [TYPE] = {TRAINER, 3, "trainer_spec.model_type", UNIGRAM, MASK(UNIGRAM) | MASK(BPE),
              (const char *const[]){"0", "UNIGRAM", "BPE", "WORD", "CHAR", NULL}},
    [SUFFIX] = {TRAINER, 24, "trainer_spec.treat_whitespace_as_suffix", 0, MASK(0), NULL},
    [FALLBACK] = {TRAINER, 35, "trainer_spec.byte_fallback", 0, ANY, NULL},
    [CHARSMAP] = {NORMALIZER, 2, "normalizer_spec.precompiled_charsmap", 0, ANY, NULL},
    [PREFIX] = {NORMALIZER, 3, "normalizer_spec.add_dummy_prefix", 1, ANY, NULL},
    [FEW_SPACES] = {NORMALIZER, 4, "normalizer_spec.remove_extra_whitespaces", 1, ANY, NULL},
    [ESCAPES] = {NORMALIZER, 5, "normalizer_spec.escape_whitespaces", 1, ANY, NULL},
    [BACK] = {DENORMALIZER, 2, "the length of denormalizer_spec.precompiled_charsmap", 0, MASK(0),
              NULL},
};

struct read_model {
    enum specification of; /* which is being read */
    uint64_t values[NUM_SETTINGS];
    bool has[NORMALIZER + 1];
    struct span charsmap;
    char begin[ENDS_BYTES], end[ENDS_BYTES]; /* names of pieces */
};

static void take_name(char out[ENDS_BYTES], const struct field *field)
{
    size_t bytes = field->value < ENDS_BYTES ? (size_t)field->value : 0;
    memcpy(out, field->bytes.at, bytes);
    out[bytes] = '\0';
}

static int take_of_specification(struct reader *reader, const struct field *field, void *user)
{
    struct read_model *model = user;
    (void)reader;
    for (size_t i = 0; i < NUM_SETTINGS; i++)
        if (settings[i].of == model->of && settings[i].number == field->number)
            model->values[i] = field->value;
    if (model->of == NORMALIZER && field->number == 2 && field->wire == WIRE_BYTES)
        model->charsmap = field->bytes;
    if (model->of == TRAINER && field->number == 46 && field->wire == WIRE_BYTES)
        take_name(model->begin, field);
    if (model->of == TRAINER && field->number == 47 && field->wire == WIRE_BYTES)
        take_name(model->end, field);
    return 0;
}

static int take_of_model(struct reader *reader, const struct field *field, void *user)
{
    struct read_model *model = user;
    model->of = (enum specification)field->number;
    if (field->wire != WIRE_BYTES)
        return 0;
    switch (model->of) {
    case PIECES:
        ERR_TRY(reserve_piece(reader));
        return add_piece(reader, field);
    case TRAINER:
    case NORMALIZER:
        model->has[model->of] = true;
        __attribute__((fallthrough));
    case DENORMALIZER:
        return read_message(reader, field->bytes, take_of_specification, model);
    }
    return 0;
}

static int check_settings(const struct reader *reader, const struct read_model *model)
{
    if (!model->has[TRAINER] || !model->has[NORMALIZER])
        return bad(reader, "it has no trainer_spec or no normalizer_spec: it was cut");
    for (size_t i = 0; i < NUM_SETTINGS; i++) {
        const char *const *names = settings[i].names;
        char value[24];
        if (settings[i].supported == ANY ||
            (model->values[i] < 64 && (settings[i].supported & MASK(model->values[i])) != 0))
            continue;
        snprintf(value, sizeof value, "%llu", (unsigned long long)model->values[i]);
        for (uint64_t at = 0; names != NULL && names[at] != NULL; at++)
            if (at == model->values[i])
                return refuse(reader, settings[i].field, names[at]);
        return refuse(reader, settings[i].field, value);
    }
    return 0;
}

/* ---- the tokenizer of them ---- */

static int compare_scores(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    return a->score != b->score ? (a->score < b->score) - (a->score > b->score)
                                : (a->id > b->id) - (a->id < b->id);
}

/* Each character of a piece must be one, too: what is no piece becomes bytes, which join nothing.
 */
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
                                "%s: piece %u, \"%.*s\", has the character \"%.*s\", which is no "
                                "piece: that is not supported",
                                reader->name, id, (int)bytes, text, (int)length, text + at);
    }
    return 0;
}

static bool crosses_space(const struct tokenizer *out, uint32_t id)
{
    return tokenizer_crosses_space(out->vocab.bytes + out->vocab.start[id],
                                   out->vocab.start[id + 1] - out->vocab.start[id]);
}

/* Ranks by score, the highest first: dense, and one for all pieces of one score. */
static int add_pairs(struct reader *reader)
{
    struct tokenizer *out = reader->out;
    const uint32_t count = out->vocab.num_tokens;
    struct piece *sorted = malloc(count * sizeof *sorted);
    if (sorted == NULL)
        return no_memory();
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

/* A piece may hold zeros. */
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
    return added->content == NULL || (!added->is_special && added->normalized == NULL) ? no_memory()
                                                                                       : 0;
}

/* With scores USER_DEFINED pieces are found among the others. */
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
        return no_memory();
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

/* What text becomes that is no piece: bytes, or the piece of type UNKNOWN. */
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

static int build_normalizer(struct reader *reader, const struct read_model *model)
{
    struct tokenizer *out = reader->out;
    const struct span *rules = &model->charsmap;
    bool removes_spaces = model->values[FEW_SPACES] != 0;
    out->marks_spaces = model->values[ESCAPES] != 0;
    out->marks_early = true;
    out->prefix = model->values[PREFIX] != 0 ? PREFIX_ALWAYS : PREFIX_NONE;
    out->prefix_always = true;
    strcpy(out->prefix_text, out->marks_spaces ? META_SPACE : " ");
    out->strips_space = out->prefix == PREFIX_ALWAYS;
    if (rules->at == rules->end && !removes_spaces)
        return 0;
    ERR_TRY(normalizer_open(&out->normalizer, reader->name, rules->at,
                            (size_t)(rules->end - rules->at), removes_spaces));
    for (uint32_t id = 0; id < out->vocab.num_tokens; id++)
        if (reader->pieces[id].type == USER_DEFINED)
            ERR_TRY(normalizer_keep(out->normalizer, &out->vocab, id));
    return 0;
}

/* A text may be cut before a space if no token reaches across it, and if it is one by itself. */
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

static int build(struct reader *reader, const struct read_model *model)
{
    struct tokenizer *out = reader->out;
    const uint32_t count = out->vocab.num_tokens;
    reader->joins = calloc((size_t)count + 1, sizeof *reader->joins);
    if (reader->joins == NULL)
        return no_memory();
    for (uint32_t id = 0; id < count; id++) {
        reader->joins[id] = reader->pieces[id].type == NORMAL;
        if (reader->pieces[id].type == UNUSED && model->values[TYPE] == BPE)
            return refuse(reader, "in a model of type BPE: pieces.type", "UNUSED");
    }
    ERR_TRY(find_byte_symbols(reader, model->values[FALLBACK] != 0));
    ERR_TRY(model->values[TYPE] == BPE ? add_pairs(reader) : add_scores(reader));
    ERR_TRY(add_all_added(reader));
    ERR_TRY(build_normalizer(reader, model));
    out->pieces = has_words(reader) ? PIECES_WORDS : PIECES_WHOLE;
    out->by_character = true;
    out->bos = find_control(reader, model->begin);
    out->eos = find_control(reader, model->end);
    out->num_ids = count;
    return 0;
}

int tokenizer_read_sentencepiece(struct tokenizer *out, const char *name, const char *text,
                                 size_t bytes)
{
    struct reader reader = {.name = name, .out = out};
    struct read_model model = {.begin = "<s>", .end = "</s>"};
    const struct span all = {(const uint8_t *)text, (const uint8_t *)text + bytes};
    for (size_t i = 0; i < NUM_SETTINGS; i++)
        model.values[i] = settings[i].when_absent;
    int result = bytes > VOCAB_FILE_BYTES_MAX ? bad(&reader, "not a tokenizer: over 256 MiB")
                                              : read_message(&reader, all, take_of_model, &model);
    if (result == 0)
        result = check_settings(&reader, &model);
    if (result == 0)
        result = build(&reader, &model);
    free(reader.pieces);
    free(reader.joins);
    return result;
}
