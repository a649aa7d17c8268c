/* model.h - struct tokenizer and the functions that this folder's files share (private to the
 * folder).
 *
 * Encoding is the same for all kinds of files: added tokens are cut out of the text, the rest is
 * normalized and split into pieces, a piece becomes symbols, and neighbouring symbols are joined by
 * the table of pairs, lowest rank first; or the tokens of a text are those with the greatest sum of
 * scores. A reader of a file (ranks.c, hf_json.c, sentencepiece.c) fills the struct. */
#ifndef HOLDFAST_TOKENIZER_MODEL_H
#define HOLDFAST_TOKENIZER_MODEL_H

#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/model/vocab.h"
#include "trainer/tokenizer/text.h"

#include <stdbool.h>
#include <stdint.h>

#define TOKEN_BYTES_MAX 4096u     /* bounds the time for the cuts of a hostile token */
#define ADDED_TOKENS_MAX 65536u   /* more are refused */
#define META_SPACE "\xe2\x96\x81" /* U+2581, SentencePiece's space */
#define META_SPACE_BYTES 3u

/* ---- pairs ---- */

struct pair {
    uint32_t left, right; /* left PAIR_FREE: the slot is free */
    uint32_t rank, joined;
};
#define PAIR_FREE UINT32_MAX

struct pairs {
    struct pair *slots;
    uint32_t num_slots, count; /* a power of two; at most 3/4 full */
};
/* Adds a pair, or sets the rank of one that exists. ERR_MEMORY. */
int pairs_add(struct pairs *pairs, struct pair pair);
const struct pair *pairs_find(const struct pairs *pairs, uint32_t left, uint32_t right);
/* Adds every cut of a token into two tokens, with the rank of the token. `joins`: by number,
 * whether a token is joined; NULL: all are. ERR_MEMORY. */
int pairs_add_cuts(struct pairs *pairs, const struct vocab *vocab, uint32_t token, uint32_t rank,
                   const bool *joins);

/* A trie is made of pairs of a node and a byte: `joined` is the child node, `rank` the token that
 * ends there, or VOCAB_NONE. Node 0 is the root. ERR_MEMORY. */
int pairs_add_path(struct pairs *trie, const struct vocab *vocab, uint32_t token);

/* ---- the tokenizer ---- */

struct added_token {
    char *content;    /* terminated; as in unchanged text */
    char *normalized; /* as in normalized text; NULL: searched for before normalization */
    uint32_t bytes, normalized_bytes;
    int32_t id;
    bool is_special, strips_left, strips_right;
};

/* For the readers of files. */
static inline int tokenizer_no_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory for the tokenizer");
}

enum pieces {
    PIECES_EXPRESSION, /* matches of `expression` */
    PIECES_WHOLE,      /* all of a text is one piece */
    PIECES_WORDS,      /* U+2581 after another character begins a piece: no merge crosses it */
    PIECES_EACH_SPACE  /* every U+2581 begins a piece */
};

/* A normalizer of a tokenizer.json, for steps.c; its strings are terminated and allocated. */
enum text_step_kind {
    STEP_CHARSMAP,
    STEP_STRIP,      /* removes white space at the end */
    STEP_FEW_SPACES, /* replaces two and more spaces by `to` */
    STEP_REPLACE,    /* replaces `from` by `to` */
    STEP_PREPEND     /* puts `to` before a text that is not empty */
};
struct text_step {
    enum text_step_kind kind;
    char *from, *to;
    struct normalizer *rules;
};
#define STEPS_MAX 16u /* more are refused */

enum prefix { PREFIX_NONE, PREFIX_ALWAYS, PREFIX_FIRST };

struct tokenizer {
    struct vocab vocab;
    struct pairs pairs;
    uint32_t byte_symbols[256]; /* ids */
    bool by_character;          /* symbols are characters; bytes for characters that are no token */
    /* A piece that is a token becomes that token, regardless of pairs. */
    bool takes_whole;

    enum prefix prefix; /* put before a text that does not begin with it */
    bool prefix_always; /* ... also before one that does */
    char prefix_text[8];
    bool marks_spaces; /* ' ' becomes U+2581 */
    bool marks_early;  /* before added tokens are searched for in normalized text */

    /* Applied before added tokens are searched for in normalized text. */
    struct text_step steps[STEPS_MAX];
    uint32_t num_steps;
    bool splits_white; /* parts between white space are marked separately, white space is dropped */

    enum pieces pieces;
    enum split_expression expression;

    struct normalizer *normalizer; /* NULL: only marks and the prefix change a text */
    struct scores *scores;         /* NULL: tokens are made by joining pairs */

    struct added_token *added; /* sorted by id */
    uint32_t num_added;
    bool strips_space; /* decoding removes one space at the beginning, the prefix */

    int32_t bos, eos;
    /* One of several consecutive unknown tokens is kept; -1: unknown text becomes bytes. */
    int32_t unknown;
    uint32_t num_ids; /* of the vocabulary and all added tokens */
    char hash[CHECKSUM_SHA256_HEX];
};

/* `name` is for messages. tokenizer_close() frees their memory, also after an error. */
int tokenizer_read_ranks(struct tokenizer *out, const char *name, const char *text, size_t bytes);
int tokenizer_read_json(struct tokenizer *out, const char *name, const char *text, size_t bytes);
int tokenizer_read_sentencepiece(struct tokenizer *out, const char *name, const char *text,
                                 size_t bytes);

/* For a tokenizer.json without `eos`: reads the files in the same folder. ERR_IO, ERR_MEMORY. */
int tokenizer_find_end(struct tokenizer *tokenizer, const char *path);

/* Writes the text with its spaces marked, and the prefix before it, to `out`, which has room for
 * three times the bytes and the prefix. Returns the bytes written. */
size_t tokenizer_mark(const struct tokenizer *tokenizer, bool has_prefix, const char *text,
                      size_t bytes, char *out);

/* ---- fallback.c: shared by vocabularies with byte fallback ---- */

/* The symbols of bytes are the tokens "<0x00>" to "<0xFF>". ERR_INVALID: one is missing. */
int tokenizer_find_byte_names(struct tokenizer *out, const char *name);
int tokenizer_byte_of_name(const char *bytes, size_t length); /* -1: not such a name */
/* True if a U+2581 follows another character in it. If no joined token has one, no merge crosses
 * words. */
bool tokenizer_crosses_space(const void *bytes, size_t length);

/* ---- normalize.c: SentencePiece's normalizer ---- */

struct buffer {
    char *text;
    size_t room;
};
int buffer_reserve(struct buffer *buffer, size_t bytes); /* ERR_MEMORY */

struct normalizer;
/* `rules`: a precompiled_charsmap; 0 bytes: none. ERR_CORRUPT, ERR_MEMORY. */
int normalizer_open(struct normalizer **out, const char *name, const void *rules, size_t bytes,
                    bool removes_spaces);
void normalizer_close(struct normalizer *normalizer);
/* Exempts the text of this token from all rules. ERR_MEMORY. */
int normalizer_keep(struct normalizer *normalizer, const struct vocab *vocab, uint32_t token);
/* True if text on one side of a space may affect the result on the other side. */
bool normalizer_crosses_space(const struct normalizer *normalizer);
/* The replacement of the shortest key that a text begins with; NULL: there is none. */
const char *normalizer_shortest(const struct normalizer *normalizer, const char *text,
                                size_t bytes);
/* Writes the normalized text, its spaces marked, with its prefix, to `out`, which grows.
 * `continues`: spaces at the beginning are not leading spaces. ERR_MEMORY. */
int tokenizer_normalize(const struct tokenizer *tokenizer, bool has_prefix, bool continues,
                        const char *text, size_t bytes, struct buffer *out, size_t *out_bytes);

/* ---- steps.c: normalizers of a tokenizer.json ---- */

/* Applies all steps to *text; the result is in one of the buffers. `graphemes`: a splitter by
 * SPLIT_GRAPHEMES. ERR_MEMORY. */
int steps_run(const struct tokenizer *tokenizer, struct split *graphemes, struct buffer buffers[2],
              const char **text, size_t *bytes);
/* True if text on one side of a space may affect the result on the other side. */
bool steps_cross_spaces(const struct tokenizer *tokenizer);
void steps_close(struct tokenizer *tokenizer);

/* ---- unigram.c: the tokens with the greatest sum of scores ---- */

#define SCORED_BYTES 65536u /* longer texts are cut into parts of at least this size */

struct scores;
enum scores_type { SCORES_FLOAT, SCORES_DOUBLE }; /* type of the sums */
int scores_open(struct scores **out, uint32_t num_tokens, enum scores_type type); /* ERR_MEMORY */
void scores_close(struct scores *scores);
/* `is_found`: text may become this token. ERR_MEMORY. */
int scores_add(struct scores *scores, const struct vocab *vocab, uint32_t token, double score,
               bool is_found);
/* Adds a token that is used wherever its text occurs. ERR_MEMORY. */
int scores_add_certain(struct scores *scores, const struct vocab *vocab, uint32_t token);

struct lattice;
struct lattice *lattice_new(void);
void lattice_free(struct lattice *lattice);
/* The lattice owns the tokens until its next use. ERR_INVALID: the text is too long; ERR_MEMORY. */
int lattice_run(struct lattice *lattice, const struct tokenizer *tokenizer, const char *text,
                size_t bytes, const uint32_t **out, size_t *out_count);

/* ---- merge.c: joining the symbols of one piece ---- */

struct merger;
struct merger *merger_new(void);
void merger_free(struct merger *merger);
/* Makes room for a piece of `symbols` symbols; the caller writes them to merger_symbols().
 * ERR_INVALID: the piece is too long; ERR_MEMORY. */
int merger_reserve(struct merger *merger, size_t symbols);
uint32_t *merger_symbols(struct merger *merger);
/* Joins the first `count` symbols in place until no pair is left; returns their new number. */
size_t merger_run(struct merger *merger, const struct pairs *pairs, size_t count);

#endif
