/* trainer_tokenizer_train.c - how a tokenizer is trained.
 *
 * Goal: training gives the same result as a plain, slow trainer, for any order of the texts. It
 * reports its progress, and a text that is too small. Method: the simplest trainer that follows the
 * definition, written here, on seeded random text. */
#include "tests/unit/suite.h"
#include "tests/unit/tokenizer_bed.h"

struct slow_words {
    int32_t tokens[TEXT_BYTES]; /* one text, pieces ended by -1 */
    size_t count;
};

static int add_slow_word(void *user, const char *piece, size_t bytes)
{
    struct slow_words *words = user;
    for (size_t i = 0; i < bytes; i++)
        words->tokens[words->count++] = (unsigned char)piece[i];
    words->tokens[words->count++] = -1;
    return 0;
}

/* Counts all pairs anew for each merge: most frequent, then smallest left, then smallest right. */
static uint32_t best_pair(const struct slow_words *words, int32_t *left, int32_t *right)
{
    static uint32_t counts[VOCAB][VOCAB];
    uint32_t best = 0;
    memset(counts, 0, sizeof(counts));
    for (size_t i = 0; i + 1 < words->count; i++) {
        if (words->tokens[i] >= 0 && words->tokens[i + 1] >= 0)
            counts[words->tokens[i]][words->tokens[i + 1]]++;
    }
    for (int32_t a = 0; a < VOCAB; a++) {
        for (int32_t b = 0; b < VOCAB; b++) {
            if (counts[a][b] <= best)
                continue;
            best = counts[a][b];
            *left = a;
            *right = b;
        }
    }
    return best;
}

static void join_everywhere(struct slow_words *words, int32_t left, int32_t right, int32_t token)
{
    size_t count = 0;
    for (size_t i = 0; i < words->count; i++) {
        bool joins =
            words->tokens[i] == left && i + 1 < words->count && words->tokens[i + 1] == right;
        words->tokens[count++] = joins ? token : words->tokens[i];
        i += joins;
    }
    words->count = count;
}

static void train_slowly(struct table *out, const char *text, size_t bytes, uint32_t num_tokens)
{
    struct slow_words *words = calloc(1, sizeof(*words));
    struct split *split;
    assert_int_equal(split_open(&split, SPLIT_LLAMA3), 0);
    assert_int_equal(split_run(split, text, bytes, add_slow_word, words), 0);
    split_close(split);
    for (out->count = 0; out->count < 256; out->count++) {
        out->bytes[out->count][0] = (unsigned char)out->count;
        out->length[out->count] = 1;
    }
    while (out->count < num_tokens) {
        int32_t left = 0, right = 0;
        unsigned char both[128];
        assert_true(best_pair(words, &left, &right) >= 2);
        memcpy(both, out->bytes[left], out->length[left]);
        memcpy(both + out->length[left], out->bytes[right], out->length[right]);
        size_t length = out->length[left] + out->length[right];
        int32_t token = table_find(out, both, length);
        if (token < 0) {
            token = (int32_t)out->count++;
            memcpy(out->bytes[token], both, length);
            out->length[token] = length;
        }
        join_everywhere(words, left, right, token);
    }
    free(words);
}

TEST(test_tokenizer__train_learns_what_a_plain_trainer_learns)
{
    const struct bed *bed = *state;
    struct bed other = *bed;
    struct table want, got;
    const char *paths[] = {other.text[0]};
    snprintf(other.model, sizeof(other.model), "%s", bed->other);
    write_file(other.text[0], bed->words[0], 9000); /* with the ends of pieces it must fit words */
    assert_int_equal(tokenizer_train(other.model, VOCAB, paths, 1, NULL), 0);
    write_file(other.text[0], bed->words[0], TEXT_BYTES);
    train_slowly(&want, bed->words[0], 9000, VOCAB - 2);
    read_table(&got, &other);
    assert_int_equal(got.count, want.count);
    for (uint32_t rank = 0; rank < want.count; rank++) {
        assert_int_equal(got.length[rank], want.length[rank]);
        assert_memory_equal(got.bytes[rank], want.bytes[rank], want.length[rank]);
    }
}

static void read_whole(char *out, size_t size, const char *path)
{
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    size_t got = fread(out, 1, size - 1, file);
    assert_true(got < size - 1);
    out[got] = '\0';
    fclose(file);
}

TEST(test_tokenizer__training_does_not_depend_on_the_order_of_texts)
{
    const struct bed *bed = *state;
    static char first[1 << 16], second[1 << 16];
    const char *paths[] = {bed->text[1], bed->text[0]};
    assert_int_equal(tokenizer_train(bed->other, VOCAB, paths, 2, NULL), 0);
    read_whole(first, sizeof(first), bed->model);
    read_whole(second, sizeof(second), bed->other);
    assert_string_equal(first, second);
}

TEST(test_tokenizer__train_says_when_the_text_is_too_small)
{
    const struct bed *bed = *state;
    const char *paths[] = {bed->text[0]}, *missing[] = {"/nowhere/at/all"};
    assert_int_equal(tokenizer_train(bed->other, 100000, paths, 1, NULL), ERR_INVALID);
    assert_non_null(strstr(report_line(), "of the 100000 asked for"));
    assert_int_equal(tokenizer_train(bed->other, 257, paths, 1, NULL), ERR_INVALID);
    assert_int_equal(tokenizer_train(bed->other, VOCAB, missing, 1, NULL), ERR_NOT_FOUND);
    assert_non_null(strstr(report_line(), "/nowhere/at/all"));
}

static void count_report(void *user, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    assert_true(done <= total);
    ++*(uint32_t *)user;
}

TEST(test_tokenizer__train_reports_progress)
{
    const struct bed *bed = *state;
    uint32_t reports = 0;
    const char *paths[] = {bed->text[0]};
    struct tokenizer_progress progress = {count_report, &reports};
    assert_int_equal(tokenizer_train(bed->other, VOCAB, paths, 1, &progress), 0);
    assert_in_range(reports, 2, 1000);
}

SUITE(setup, teardown)
