/* train.c - learns a vocabulary: byte-pair encoding.
 *
 * The texts are cut into pieces (text.h) and the distinct pieces counted. Each distinct piece is a
 * word: a list of tokens, at first its bytes. Then, until the vocabulary is full, the pair of
 * neighbouring tokens that is most frequent, of equals the one with the smaller (left, right),
 * becomes a token and is joined in every word that has it.
 *
 * Three indices make it fast: each pair's count, the words that may contain it, and a heap of
 * pairs. An entry of the heap is checked against the count when it surfaces. Counts in the heap are
 * never too small: a pair whose count rises is pushed again. So a merge changes only its own words.
 *
 * Deterministic: counts and the order of pairs do not depend on hash order or on the order of
 * texts. A pair whose bytes are a token already (from other parts) is joined to that token, without
 * a new rank. Limits: a piece longer than WORD_BYTES_MAX (such as a line of dashes) is skipped; a
 * pair that occurs once makes no token. */
#include "trainer/tokenizer/tokenizer.h"

#include "proto/base/array.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/model/vocab.h"
#include "trainer/tokenizer/text.h"

#include <stdlib.h>
#include <string.h>

#define WORD_BYTES_MAX 1024
#define PAIR_COUNT_MIN 2
#define PROGRESS_BYTES (1u << 20) /* of text between two reports */
#define PROGRESS_MERGES 64

struct word {
    const char *piece; /* into the mapped text, until the tokens are laid out */
    uint64_t hash;
    int64_t count;
    size_t first; /* index of its tokens */
    uint32_t length;
};

struct pair {
    uint64_t key; /* left << 32 | right */
    int64_t count;
    uint32_t *words; /* may contain words that lost the pair, and a word twice */
    uint32_t num_words, room_words;
    uint32_t merge; /* the last merge that listed it as risen */
};

struct candidate {
    int64_t count;
    uint64_t key;
    uint32_t pair;
};

/* An open hash table from a key to an index; the owner compares keys. */
struct index {
    uint32_t *slots; /* index + 1, or 0 */
    uint32_t num_slots;
};

struct learner {
    const struct tokenizer_progress *progress;
    uint64_t bytes_done, bytes_total, bytes_reported;
    struct word *words;
    uint32_t num_words, room_words;
    struct index word_index;
    uint32_t *tokens; /* of all words */
    struct pair *pairs;
    uint32_t num_pairs, room_pairs;
    struct index pair_index;
    struct candidate *heap;
    uint32_t heap_count, heap_room;
    uint32_t *risen; /* pairs whose count grew in this merge */
    uint32_t num_risen, room_risen;
    uint32_t merge; /* number of the current merge, from 1 */
    uint32_t num_special;
    struct vocab vocab;
};

static int no_memory(void)
{
    return report_error(ERR_MEMORY, "train on less text", "no memory to train the tokenizer");
}

static void report_progress(const struct learner *learner, const char *what, uint64_t done,
                            uint64_t total)
{
    if (learner->progress != NULL)
        learner->progress->report(learner->progress->user, what, done, total);
}

/* ---- an index ---- */

static uint32_t hash_key(uint64_t key)
{
    return (uint32_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32);
}

static uint32_t hash_of_word(const struct learner *learner, uint32_t i)
{
    return (uint32_t)learner->words[i].hash;
}

static uint32_t hash_of_pair(const struct learner *learner, uint32_t i)
{
    return hash_key(learner->pairs[i].key);
}

/* Makes room for one more entry after `num`: at least half of the slots stay free. */
static int index_reserve(const struct learner *learner, struct index *index, uint32_t num,
                         uint32_t (*hash_of)(const struct learner *learner, uint32_t i))
{
    uint32_t num_slots = index->num_slots == 0 ? 1u << 16 : index->num_slots * 2;
    if ((uint64_t)num * 2 < index->num_slots)
        return 0;
    uint32_t *slots = calloc(num_slots, sizeof(*slots));
    if (slots == NULL)
        return no_memory();
    for (uint32_t i = 0; i < num; i++) {
        uint32_t slot = hash_of(learner, i) & (num_slots - 1);
        while (slots[slot] != 0)
            slot = (slot + 1) & (num_slots - 1);
        slots[slot] = i + 1;
    }
    free(index->slots);
    *index = (struct index){slots, num_slots};
    return 0;
}

/* ---- words ---- */

static int count_piece(void *user, const char *piece, size_t bytes)
{
    struct learner *learner = user;
    learner->bytes_done += bytes;
    if (learner->bytes_done - learner->bytes_reported >= PROGRESS_BYTES) {
        learner->bytes_reported = learner->bytes_done;
        report_progress(learner, "counting", learner->bytes_done, learner->bytes_total);
    }
    if (bytes < 2 || bytes > WORD_BYTES_MAX)
        return 0;
    ERR_TRY(index_reserve(learner, &learner->word_index, learner->num_words, hash_of_word));
    uint64_t hash = checksum_bytes(piece, bytes);
    uint32_t mask = learner->word_index.num_slots - 1, slot = (uint32_t)hash & mask;
    uint32_t *slots = learner->word_index.slots;
    for (; slots[slot] != 0; slot = (slot + 1) & mask) {
        struct word *word = &learner->words[slots[slot] - 1];
        if (word->hash == hash && word->length == bytes && memcmp(word->piece, piece, bytes) == 0) {
            word->count++;
            return 0;
        }
    }
    ERR_TRY(array_reserve(&learner->words, &learner->room_words, learner->num_words,
                          sizeof(struct word)));
    learner->words[learner->num_words++] =
        (struct word){.piece = piece, .hash = hash, .count = 1, .length = (uint32_t)bytes};
    slots[slot] = learner->num_words;
    return 0;
}

static int lay_out_words(struct learner *learner)
{
    size_t total = 0;
    for (uint32_t i = 0; i < learner->num_words; i++)
        total += learner->words[i].length;
    learner->tokens = malloc((total + 1) * sizeof(*learner->tokens));
    if (learner->tokens == NULL)
        return no_memory();
    size_t at = 0;
    for (uint32_t i = 0; i < learner->num_words; i++) {
        struct word *word = &learner->words[i];
        word->first = at;
        for (uint32_t j = 0; j < word->length; j++)
            learner->tokens[at++] = (unsigned char)word->piece[j];
        word->piece = NULL;
    }
    return 0;
}

/* Maps the texts, counts their pieces and lays the words out. The texts may be freed afterwards. */
static int learn_words(struct learner *learner, const char *const *paths, uint32_t num_paths)
{
    struct split *split = NULL;
    struct text *texts = calloc((size_t)num_paths + 1, sizeof(*texts));
    if (texts == NULL)
        return no_memory();
    int result = split_open(&split, SPLIT_LLAMA3);
    for (uint32_t i = 0; result == 0 && i < num_paths; i++) {
        result = text_open(&texts[i], paths[i]);
        learner->bytes_total += texts[i].bytes;
        if (result == 0 && texts[i].bytes > 0 &&
            memchr(texts[i].data, '\0', texts[i].bytes) != NULL)
            result = report_error(ERR_INVALID, "unpack it, or convert it to UTF-8",
                                  "%s has zero bytes: it is not text", paths[i]);
    }
    for (uint32_t i = 0; result == 0 && i < num_paths; i++)
        result = split_run(split, texts[i].data, texts[i].bytes, count_piece, learner);
    if (result == 0)
        result = lay_out_words(learner);
    split_close(split);
    for (uint32_t i = 0; i < num_paths; i++)
        text_close(&texts[i]);
    free(texts);
    return result;
}

/* ---- pairs ---- */

/* The index of the pair, which is added if it is new. */
static int find_pair(struct learner *learner, uint32_t *out, uint64_t key)
{
    ERR_TRY(index_reserve(learner, &learner->pair_index, learner->num_pairs, hash_of_pair));
    uint32_t mask = learner->pair_index.num_slots - 1, slot = hash_key(key) & mask;
    uint32_t *slots = learner->pair_index.slots;
    for (; slots[slot] != 0; slot = (slot + 1) & mask) {
        if (learner->pairs[slots[slot] - 1].key == key) {
            *out = slots[slot] - 1;
            return 0;
        }
    }
    ERR_TRY(array_reserve(&learner->pairs, &learner->room_pairs, learner->num_pairs,
                          sizeof(struct pair)));
    *out = learner->num_pairs;
    learner->pairs[learner->num_pairs++] = (struct pair){.key = key};
    slots[slot] = learner->num_pairs;
    return 0;
}

static int pair_add_word(struct pair *pair, uint32_t word)
{
    if (pair->num_words > 0 && pair->words[pair->num_words - 1] == word)
        return 0;
    ERR_TRY(array_reserve(&pair->words, &pair->room_words, pair->num_words, sizeof(uint32_t)));
    pair->words[pair->num_words++] = word;
    return 0;
}

/* ---- heap: most frequent first, then the smaller key ---- */

static bool goes_before(const struct candidate *a, const struct candidate *b)
{
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static int heap_push(struct learner *learner, uint32_t pair)
{
    ERR_TRY(array_reserve(&learner->heap, &learner->heap_room, learner->heap_count,
                          sizeof(*learner->heap)));
    struct candidate *heap = learner->heap;
    struct candidate entry = {learner->pairs[pair].count, learner->pairs[pair].key, pair};
    size_t at = learner->heap_count++;
    while (at > 0 && goes_before(&entry, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = entry;
    return 0;
}

static struct candidate heap_pop(struct learner *learner)
{
    struct candidate *heap = learner->heap, top = heap[0];
    struct candidate last = heap[--learner->heap_count];
    size_t at = 0, count = learner->heap_count;
    for (size_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && goes_before(&heap[child + 1], &heap[child]))
            child++;
        if (!goes_before(&heap[child], &last))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

/* The pair to merge next: its index, or ERR_NOT_FOUND when none is frequent enough. */
static int next_pair(struct learner *learner, uint32_t *out)
{
    while (learner->heap_count > 0) {
        struct candidate top = heap_pop(learner);
        int64_t count = learner->pairs[top.pair].count;
        if (count == top.count && count >= PAIR_COUNT_MIN) {
            *out = top.pair;
            return 0;
        }
        if (count < top.count && count >= PAIR_COUNT_MIN)
            ERR_TRY(heap_push(learner, top.pair));
    }
    return ERR_NOT_FOUND;
}

/* ---- merging ---- */

static uint64_t pair_key(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

/* Adds `sign` times the word's count to the count of each of its pairs. Pairs with `token` are new
 * or have risen: the word is added to them, and they are listed as risen. */
static int count_pairs(struct learner *learner, uint32_t word_index, int sign, uint32_t token)
{
    const struct word *word = &learner->words[word_index];
    const uint32_t *tokens = learner->tokens + word->first;
    for (uint32_t i = 0; i + 1 < word->length; i++) {
        uint32_t found;
        ERR_TRY(find_pair(learner, &found, pair_key(tokens[i], tokens[i + 1])));
        struct pair *pair = &learner->pairs[found];
        pair->count += sign * word->count;
        if (sign < 0 || (token != VOCAB_NONE && tokens[i] != token && tokens[i + 1] != token))
            continue;
        ERR_TRY(pair_add_word(pair, word_index));
        if (pair->merge == learner->merge)
            continue;
        pair->merge = learner->merge;
        ERR_TRY(array_reserve(&learner->risen, &learner->room_risen, learner->num_risen,
                              sizeof(uint32_t)));
        learner->risen[learner->num_risen++] = found;
    }
    return 0;
}

static int push_risen(struct learner *learner)
{
    for (uint32_t i = 0; i < learner->num_risen; i++)
        ERR_TRY(heap_push(learner, learner->risen[i]));
    learner->num_risen = 0;
    return 0;
}

static bool word_has(const struct learner *learner, const struct word *word, uint64_t key)
{
    const uint32_t *tokens = learner->tokens + word->first;
    for (uint32_t i = 0; i + 1 < word->length; i++) {
        if (pair_key(tokens[i], tokens[i + 1]) == key)
            return true;
    }
    return false;
}

static void word_join(struct learner *learner, struct word *word, uint64_t key, uint32_t token)
{
    uint32_t *tokens = learner->tokens + word->first;
    uint32_t length = 0;
    for (uint32_t i = 0; i < word->length; i++) {
        bool joins = i + 1 < word->length && pair_key(tokens[i], tokens[i + 1]) == key;
        tokens[length++] = joins ? token : tokens[i];
        i += joins ? 1 : 0;
    }
    word->length = length;
}

/* The token that the pair's bytes make: an existing one, or a new one. */
static int pair_token(struct learner *learner, uint32_t *out, uint64_t key)
{
    unsigned char bytes[WORD_BYTES_MAX];
    const struct vocab *vocab = &learner->vocab;
    uint32_t parts[2] = {(uint32_t)(key >> 32), (uint32_t)key};
    size_t length = 0;
    for (int i = 0; i < 2; i++) {
        size_t start = vocab->start[parts[i]], bytes_part = vocab->start[parts[i] + 1] - start;
        CHECK(length + bytes_part <= WORD_BYTES_MAX); /* both are neighbours in a word */
        memcpy(bytes + length, vocab->bytes + start, bytes_part);
        length += bytes_part;
    }
    *out = vocab_find(vocab, bytes, length);
    if (*out != VOCAB_NONE)
        return 0;
    *out = vocab->num_tokens;
    return vocab_add(&learner->vocab, bytes, length);
}

static int merge_pair(struct learner *learner, uint32_t pair_index)
{
    uint32_t token;
    uint64_t key = learner->pairs[pair_index].key;
    ERR_TRY(pair_token(learner, &token, key));
    /* Moved out of the pair: the list of pairs may move when it grows. */
    uint32_t *words = learner->pairs[pair_index].words;
    uint32_t num_words = learner->pairs[pair_index].num_words;
    learner->pairs[pair_index].words = NULL;
    learner->pairs[pair_index].num_words = learner->pairs[pair_index].room_words = 0;
    learner->merge++;
    int result = 0;
    for (uint32_t i = 0; result == 0 && i < num_words; i++) {
        struct word *word = &learner->words[words[i]];
        if (!word_has(learner, word, key))
            continue;
        result = count_pairs(learner, words[i], -1, VOCAB_NONE);
        word_join(learner, word, key, token);
        if (result == 0)
            result = count_pairs(learner, words[i], 1, token);
    }
    free(words);
    return result != 0 ? result : push_risen(learner);
}

static int learn_merges(struct learner *learner, uint32_t num_tokens)
{
    learner->merge = 1;
    for (uint32_t i = 0; i < learner->num_words; i++)
        ERR_TRY(count_pairs(learner, i, 1, VOCAB_NONE));
    ERR_TRY(push_risen(learner));
    for (uint32_t merges = 0; learner->vocab.num_tokens < num_tokens; merges++) {
        uint32_t pair;
        int result = next_pair(learner, &pair);
        if (result == ERR_NOT_FOUND)
            return report_error(ERR_INVALID, "give more text or ask for fewer tokens",
                                "the texts give only %u tokens of the %u asked for",
                                learner->vocab.num_tokens + learner->num_special,
                                num_tokens + learner->num_special);
        ERR_TRY(result);
        ERR_TRY(merge_pair(learner, pair));
        if (merges % PROGRESS_MERGES == 0)
            report_progress(learner, "merging", learner->vocab.num_tokens, num_tokens);
    }
    report_progress(learner, "merging", num_tokens, num_tokens);
    return 0;
}

static void learner_deinit(struct learner *learner)
{
    for (uint32_t i = 0; i < learner->num_pairs; i++)
        free(learner->pairs[i].words);
    free(learner->words);
    free(learner->word_index.slots);
    free(learner->tokens);
    free(learner->pairs);
    free(learner->pair_index.slots);
    free(learner->heap);
    free(learner->risen);
    vocab_deinit(&learner->vocab);
}

int tokenizer_train(const char *path, uint32_t vocab, const char *const *text_paths,
                    uint32_t num_texts, const struct tokenizer_progress *progress)
{
    bool is_llama3 = vocab == VOCAB_LLAMA3_RANKS + VOCAB_LLAMA3_SPECIAL;
    struct learner learner = {.progress = progress,
                              .num_special = is_llama3 ? VOCAB_LLAMA3_SPECIAL : VOCAB_NUM_SPECIAL};
    uint32_t least = 256 + VOCAB_NUM_SPECIAL;
    if (vocab < least || vocab > VOCAB_TOKENS_MAX)
        return report_error(ERR_INVALID, NULL,
                            "a vocabulary of %u tokens is not possible: %u (the single bytes and "
                            "the special tokens) to %u are",
                            vocab, least, VOCAB_TOKENS_MAX);
    if (vocab == VOCAB_LLAMA3_RANKS + VOCAB_NUM_SPECIAL)
        return report_error(ERR_INVALID, "ask for 128001, 128003 or, with them, 128256",
                            "a file of 128,000 ranks is read with Llama 3's 256 special tokens, so "
                            "its vocabulary cannot be %u",
                            vocab);
    int result = 0;
    for (int byte = 0; result == 0 && byte < 256; byte++) {
        unsigned char single = (unsigned char)byte;
        result = vocab_add(&learner.vocab, &single, 1);
    }
    if (result == 0)
        result = learn_words(&learner, text_paths, num_texts);
    if (result == 0)
        result = learn_merges(&learner, vocab - learner.num_special);
    if (result == 0)
        result = vocab_write(&learner.vocab, path);
    learner_deinit(&learner);
    return result;
}
