/* unigram.c - the tokens of a text by the scores of a unigram model.
 *
 * A score is the logarithm of a token's probability. Of all cuts of a text into tokens the one with
 * the greatest sum is chosen (Viterbi). For every place in the text, from the left, the best token
 * that ends there is recorded with its sum; then the cut is followed back from the end. A character
 * that is no token is unknown, with a score of 10 below the lowest. The tokens are in a trie, so a
 * text of n bytes costs O(n) times the length of the longest token.
 *
 * Rounding and order decide between nearly equal sums, so both are as in the library: from the
 * left, and the first of equals stays. In SentencePiece 0.2.3 sums are floats. They lose digits
 * over a long text, so sums restart every SCORED_BYTES (tokenizer_cut). In Hugging Face's library
 * they are doubles, one sum per piece. */
#include "trainer/tokenizer/model.h"

#include "proto/base/report.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#define UNKNOWN_PENALTY 10.0
#define CERTAIN_SCORE 0.1 /* of a byte except the first: the longest token wins */
#define NO_PLACE UINT32_MAX

struct scores {
    struct pairs trie;
    double *of; /* by token */
    double lowest;
    bool is_float;
};

struct place {
    double sum;     /* of the best cut up to this place */
    uint32_t begin; /* start of its last token; NO_PLACE: no cut yet */
    uint32_t token; /* VOCAB_NONE: unknown */
};

struct lattice {
    struct place *places; /* by the bytes before them */
    uint32_t *tokens;
    size_t room;
};

static int no_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory for the scores of tokens");
}

/* ---- scores ---- */

int scores_open(struct scores **out, uint32_t num_tokens, enum scores_type type)
{
    struct scores *scores = calloc(1, sizeof *scores);
    if (scores == NULL)
        return no_memory();
    *out = scores;
    scores->lowest = DBL_MAX;
    scores->is_float = type == SCORES_FLOAT;
    scores->of = calloc((size_t)num_tokens + 1, sizeof *scores->of);
    return scores->of == NULL ? no_memory() : 0;
}

void scores_close(struct scores *scores)
{
    if (scores == NULL)
        return;
    free(scores->trie.slots);
    free(scores->of);
    free(scores);
}

int scores_add(struct scores *scores, const struct vocab *vocab, uint32_t token, double score,
               bool is_found)
{
    scores->lowest = fmin(scores->lowest, score);
    scores->of[token] = score;
    return is_found ? pairs_add_path(&scores->trie, vocab, token) : 0;
}

int scores_add_certain(struct scores *scores, const struct vocab *vocab, uint32_t token)
{
    size_t length = vocab->start[token + 1] - vocab->start[token];
    scores->of[token] = (float)(CERTAIN_SCORE * (double)length - CERTAIN_SCORE);
    return pairs_add_path(&scores->trie, vocab, token);
}

/* ---- the best cut ---- */

struct lattice *lattice_new(void)
{
    return calloc(1, sizeof(struct lattice));
}

void lattice_free(struct lattice *lattice)
{
    if (lattice == NULL)
        return;
    free(lattice->places);
    free(lattice->tokens);
    free(lattice);
}

static int reserve(struct lattice *lattice, size_t bytes)
{
    if (bytes < lattice->room)
        return 0;
    if (bytes >= UINT32_MAX / 2)
        return report_error(ERR_INVALID, "put line breaks or spaces into the text",
                            "a piece of %zu bytes is too long to encode", bytes);
    size_t room = bytes + bytes / 2 + 64;
    free(lattice->places);
    free(lattice->tokens);
    lattice->room = 0;
    lattice->places = malloc(room * sizeof *lattice->places);
    lattice->tokens = malloc(room * sizeof *lattice->tokens);
    if (lattice->places == NULL || lattice->tokens == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to encode a piece of %zu bytes", bytes);
    lattice->room = room;
    return 0;
}

/* Floats added in double and rounded to float have the bits of an addition of floats. */
static double add_scores(const struct scores *scores, double a, double b)
{
    return scores->is_float ? (float)(a + b) : a + b;
}

static void take_if_better(struct place *end, double sum, uint32_t begin, uint32_t token)
{
    if (end->begin == NO_PLACE || sum > end->sum)
        *end = (struct place){sum, begin, token};
}

/* Records every token that begins at `begin`, at the place where it ends. */
static void extend(struct place *places, const struct scores *scores, const char *text,
                   size_t bytes, uint32_t begin, size_t character)
{
    const double sum = places[begin].sum;
    bool is_known = false;
    uint32_t node = 0;
    for (size_t at = begin; at < bytes; at++) {
        const struct pair *step = pairs_find(&scores->trie, node, (uint8_t)text[at]);
        if (step == NULL)
            break;
        node = step->joined;
        if (step->rank == VOCAB_NONE)
            continue;
        take_if_better(&places[at + 1], add_scores(scores, scores->of[step->rank], sum), begin,
                       step->rank);
        is_known |= at + 1 == begin + character;
    }
    const double unknown = add_scores(scores, scores->lowest, -UNKNOWN_PENALTY);
    if (!is_known)
        take_if_better(&places[begin + character], add_scores(scores, unknown, sum), begin,
                       VOCAB_NONE);
}

/* Writes the tokens of the best cut, from the last one back, before `end`; returns the first. */
static uint32_t *follow_back(const struct place *places, const uint32_t byte_symbols[256],
                             const char *text, size_t bytes, uint32_t *end)
{
    for (size_t at = bytes; at > 0; at = places[at].begin) {
        if (places[at].token != VOCAB_NONE)
            *--end = places[at].token;
        else
            for (size_t byte = at; byte > places[at].begin; byte--)
                *--end = byte_symbols[(uint8_t)text[byte - 1]];
    }
    return end;
}

int lattice_run(struct lattice *lattice, const struct tokenizer *tokenizer, const char *text,
                size_t bytes, const uint32_t **out, size_t *out_count)
{
    ERR_TRY(reserve(lattice, bytes));
    struct place *places = lattice->places;
    for (size_t at = 0; at <= bytes; at++)
        places[at] = (struct place){.begin = NO_PLACE};
    for (size_t at = 0, character; at < bytes; at += character) {
        character = text_utf8_length(text + at, bytes - at);
        character = character > 0 ? character : 1;
        extend(places, tokenizer->scores, text, bytes, (uint32_t)at, character);
    }
    uint32_t *end = lattice->tokens + bytes;
    *out = follow_back(places, tokenizer->byte_symbols, text, bytes, end);
    *out_count = (size_t)(end - *out);
    return 0;
}
