/* trainer_tokenizer.c - splitting, encoding, decoding and the file of the tokenizer.
 *
 * Goal: pieces are those of Llama 3's expression; encoding joins the lowest rank first; any bytes
 * survive a round trip. A file with any error is refused with its line. Method: pieces against a
 * hand-made table; the encoder against the simplest program that follows the definition, written
 * here, on seeded random text. Equality with the tiktoken package on real text is
 * tests/integration/hf_tokenizer.py. */
#include "proto/model/vocab.h"
#include "tests/unit/suite.h"
#include "tests/unit/tokenizer_bed.h"

/* ---- pieces ---- */

struct joined {
    char text[512]; /* the pieces with | between them */
    size_t length;
};

static int join_piece(void *user, const char *piece, size_t bytes)
{
    struct joined *joined = user;
    if (joined->length > 0)
        joined->text[joined->length++] = '|';
    memcpy(joined->text + joined->length, piece, bytes);
    joined->length += bytes;
    return 0;
}

static void check_pieces(const char *text, const char *want)
{
    struct split *split;
    struct joined joined = {0};
    assert_int_equal(split_open(&split, SPLIT_LLAMA3), 0);
    assert_int_equal(split_run(split, text, strlen(text), join_piece, &joined), 0);
    assert_string_equal(joined.text, want);
    split_close(split);
}

TEST(test_split__cuts_as_the_expression_of_llama3_does)
{
    check_pieces("", "");
    check_pieces("Hello world", "Hello| world");
    check_pieces("I'll say it's DON'T", "I|'ll| say| it|'s| DON|'T");
    check_pieces("12345 and 678", "123|45| and| |678");
    check_pieces("a  b   c", "a| | b|  | c");
    check_pieces("end.\n\n  next", "end|.\n\n| | next");
    check_pieces("tab\tword \n", "tab|\tword| \n");
    check_pieces("trailing  ", "trailing|  ");
    check_pieces("x=(y);\r\nz", "x|=(|y|);\r\n|z");
    check_pieces("#!/bin/sh", "#!/|bin|/sh");
}

TEST(test_split__knows_letters_numbers_and_spaces_of_unicode)
{
    check_pieces("na\u00efve \u00fcber\u00df", "na\u00efve| \u00fcber\u00df");
    check_pieces("\u65e5\u672c\u8a9e123", "\u65e5\u672c\u8a9e|123");
    check_pieces("\u0661\u0662\u0663\u0664", "\u0661\u0662\u0663|\u0664");
    check_pieces("a\u00a0\u3000b", "a|\u00a0|\u3000b");
    check_pieces("a\u180eb", "a|\u180eb"); /* a format character, no space: joins the letter */
    check_pieces("a \u180e b", "a| \u180e| b");
    check_pieces("it'\u017f", "it|'\u017f"); /* the long s is an s in any case */
    check_pieces("\U0001F600\U0001F600!", "\U0001F600\U0001F600!");
}

TEST(test_split__hands_out_bytes_that_are_no_utf8_one_by_one)
{
    check_pieces("ab\xff\xfe"
                 "cd",
                 "ab|\xff|\xfe|cd");
    check_pieces("\xc0\xaf", "\xc0|\xaf");                   /* overlong */
    check_pieces("\xed\xa0\x80!", "\xed|\xa0|\x80|!");       /* surrogate */
    check_pieces("\xf4\x90\x80\x80", "\xf4|\x90|\x80|\x80"); /* beyond U+10FFFF */
    check_pieces("ok\xe2\x82", "ok|\xe2|\x82");              /* cut off */
    check_pieces("  \xff", "  |\xff");
}

/* ---- encoding ---- */

struct reference {
    const struct table *table;
    int32_t tokens[4 * TEXT_BYTES];
    size_t count;
};

/* The definition, word for word: join the lowest rank, the leftmost of equals, until nothing joins.
 */
static int encode_slowly(void *user, const char *piece, size_t bytes)
{
    struct reference *reference = user;
    const unsigned char *text = (const unsigned char *)piece;
    size_t cuts[1024], num_cuts = 0;
    if (table_find(reference->table, text, bytes) >= 0) {
        reference->tokens[reference->count++] = table_find(reference->table, text, bytes);
        return 0;
    }
    for (size_t i = 0; i <= bytes; i++)
        cuts[num_cuts++] = i;
    for (;;) {
        int32_t best = -1;
        size_t best_at = 0;
        for (size_t i = 0; i + 2 < num_cuts; i++) {
            int32_t rank = table_find(reference->table, text + cuts[i], cuts[i + 2] - cuts[i]);
            if (rank >= 0 && (best < 0 || rank < best)) {
                best = rank;
                best_at = i;
            }
        }
        if (best < 0)
            break;
        memmove(cuts + best_at + 1, cuts + best_at + 2, (num_cuts - best_at - 2) * sizeof(*cuts));
        num_cuts--;
    }
    for (size_t i = 0; i + 1 < num_cuts; i++)
        reference->tokens[reference->count++] =
            table_find(reference->table, text + cuts[i], cuts[i + 1] - cuts[i]);
    return 0;
}

static void check_encoding(const struct bed *bed, const char *text, size_t bytes)
{
    struct split *split;
    struct table table;
    struct reference *reference = calloc(1, sizeof(*reference));
    int32_t *tokens;
    size_t count;
    read_table(&table, bed);
    reference->table = &table;
    assert_int_equal(split_open(&split, SPLIT_LLAMA3), 0);
    assert_int_equal(split_run(split, text, bytes, encode_slowly, reference), 0);
    struct tokenizer *tokenizer = opened(bed->model);
    assert_int_equal(tokenizer_encode(tokenizer, text, bytes, &tokens, &count), 0);
    assert_int_equal(count, reference->count);
    assert_memory_equal(tokens, reference->tokens, count * sizeof(*tokens));
    free(tokens);
    free(reference);
    split_close(split);
    tokenizer_close(tokenizer);
}

#define TOKENIZER_TEST(name) TEST_WITH(struct bed *bed, name, NULL, NULL)

TOKENIZER_TEST(test_tokenizer__encode_joins_the_lowest_rank_first)
{
    char text[3000];
    check_encoding(bed, bed->words[0], 3000);
    fill_words(text, sizeof(text), 99); /* another text than it was trained on */
    check_encoding(bed, text, sizeof(text));
    uint64_t seed = 5;
    for (size_t i = 0; i < sizeof(text); i++) /* one long piece after the other */
        text[i] = i % 900 == 899 ? ' ' : "abe"[next_random(&seed) % 3];
    check_encoding(bed, text, sizeof(text));
}

TOKENIZER_TEST(test_tokenizer__decode_gives_back_any_bytes)
{
    uint64_t seed = 3;
    struct tokenizer *tokenizer = opened(bed->model);
    for (size_t bytes = 0; bytes < 300; bytes++) {
        char text[300], *back;
        int32_t *tokens;
        size_t count, num_bytes;
        for (size_t i = 0; i < bytes; i++)
            text[i] = bytes % 2 ? (char)next_random(&seed) : "ab \n"[next_random(&seed) % 4];
        assert_int_equal(tokenizer_encode(tokenizer, text, bytes, &tokens, &count), 0);
        assert_int_equal(tokenizer_decode(tokenizer, tokens, count, &back, &num_bytes), 0);
        assert_int_equal(num_bytes, bytes);
        assert_memory_equal(back, text, bytes);
        free(tokens);
        free(back);
    }
    tokenizer_close(tokenizer);
}

TOKENIZER_TEST(test_tokenizer__special_tokens_are_the_last_two_and_have_no_text)
{
    char *text;
    size_t bytes;
    struct tokenizer *tokenizer = opened(bed->model);
    assert_int_equal(tokenizer_vocab(tokenizer), VOCAB);
    assert_int_equal(tokenizer_bos(tokenizer), VOCAB - 2);
    assert_int_equal(tokenizer_eos(tokenizer), VOCAB - 1);
    int32_t tokens[] = {VOCAB - 2, 'h', 'i', VOCAB - 1};
    assert_int_equal(tokenizer_decode(tokenizer, tokens, 4, &text, &bytes), 0);
    assert_string_equal(text, "hi");
    free(text);
    tokens[1] = VOCAB;
    assert_int_equal(tokenizer_decode(tokenizer, tokens, 4, &text, &bytes), ERR_INVALID);
    tokens[1] = -1;
    assert_int_equal(tokenizer_decode(tokenizer, tokens, 4, &text, &bytes), ERR_INVALID);
    tokenizer_close(tokenizer);
}

TOKENIZER_TEST(test_tokenizer__a_very_long_piece_costs_no_square)
{
    size_t bytes = 2000000, count;
    char *text = malloc(bytes);
    int32_t *tokens;
    for (size_t i = 0; i < bytes; i++)
        text[i] = "ab"[i % 2];
    struct tokenizer *tokenizer = opened(bed->model);
    /* A quadratic encoder would need hours: the runner's time limit is the assertion. */
    assert_int_equal(tokenizer_encode(tokenizer, text, bytes, &tokens, &count), 0);
    assert_in_range(count, 1, bytes / 2);
    free(tokens);
    free(text);
    tokenizer_close(tokenizer);
}

/* ---- file ---- */

/* The 256 single bytes in tiktoken's format, followed by `extra`. */
static int open_file_with(const struct bed *bed, const char *extra)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static char text[1 << 14];
    struct tokenizer *tokenizer;
    size_t length = 0;
    for (int byte = 0; byte < 256; byte++)
        length += (size_t)sprintf(text + length, "%c%c== %d\n", digits[byte >> 2],
                                  digits[byte << 4 & 63], byte);
    length += (size_t)sprintf(text + length, "%s", extra);
    write_file(bed->other, text, length);
    int result = tokenizer_open(&tokenizer, bed->other);
    if (result == 0)
        tokenizer_close(tokenizer);
    return result;
}

TOKENIZER_TEST(test_tokenizer__open_refuses_lines_that_do_not_fit)
{
    assert_int_equal(open_file_with(bed, ""), 0);
    assert_int_equal(open_file_with(bed, "YWI= 257\n\nYWJj 256"), 0); /* any order, blank lines */
    const char *const bad[] = {
        "YWI=\n",
        "YWI= \n",
        "YWI= x\n",
        "YWI=256\n",
        "YWI 256\n",
        "Y_I= 256\n",
        " 256\n",
        "YWI= -1\n",
        "YWI= 257\n",
        "YWI= 255\n",
        "YWI= 4294967552\n",
        "YQ== 256\n",
        "==== 256\n",
        "YWI= 256 \n",
        "YWI= 256\r\n",
        "YWI= 99999999999999999999\n",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(open_file_with(bed, bad[i]), ERR_CORRUPT);
    assert_int_equal(open_file_with(bed, "YWI= 256\nnonsense\n"), ERR_CORRUPT);
    assert_non_null(strstr(report_line(), "line 258"));
}

TOKENIZER_TEST(test_tokenizer__open_needs_every_single_byte)
{
    struct tokenizer *tokenizer;
    write_file(bed->other, "YQ== 0\nYg== 1\n", 14);
    assert_int_equal(tokenizer_open(&tokenizer, bed->other), ERR_CORRUPT);
    assert_non_null(strstr(report_line(), "0x00"));
    write_file(bed->other, "", 0);
    assert_int_equal(tokenizer_open(&tokenizer, bed->other), ERR_CORRUPT);
    unlink(bed->other);
    assert_int_equal(tokenizer_open(&tokenizer, bed->other), ERR_NOT_FOUND);
    assert_int_not_equal(tokenizer_open(&tokenizer, bed->folder), 0);
}

/* ---- cutting, threads, special tokens ---- */

static void encode_parts(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                         size_t step, int32_t *out, size_t *out_count)
{
    struct encoder *encoder;
    const int32_t *tokens;
    size_t count;
    *out_count = 0;
    assert_int_equal(encoder_open(&encoder, tokenizer), 0);
    for (size_t at = 0, end; at < bytes; at = end) {
        end = tokenizer_cut(tokenizer, text, bytes, at + step, 0);
        assert_true(end > at && end <= bytes);
        assert_int_equal(encoder_run(encoder, text + at, end - at, at > 0 ? ENCODE_CONTINUES : 0,
                                     &tokens, &count),
                         0);
        memcpy(out + *out_count, tokens, count * sizeof *tokens);
        *out_count += count;
    }
    encoder_close(encoder);
}

static void check_parts(const char *file, const char *text, size_t bytes)
{
    int32_t *whole, *parts = calloc(bytes + 16, sizeof *parts);
    size_t num_whole, num_parts;
    struct tokenizer *tokenizer = opened(file);
    assert_int_equal(tokenizer_encode(tokenizer, text, bytes, &whole, &num_whole), 0);
    for (size_t step = 1; step < 400; step += 37) {
        encode_parts(tokenizer, text, bytes, step, parts, &num_parts);
        assert_int_equal(num_parts, num_whole);
        assert_memory_equal(parts, whole, num_whole * sizeof *whole);
    }
    free(whole);
    free(parts);
    tokenizer_close(tokenizer);
}

/* Byte-fallback BPE with three merges, as small as a tokenizer.json can be. */
static void write_json(const char *path)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(
        "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 0, \"content\": \"<s>\", \"special\": "
        "true}], \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": "
        "\"Prepend\", "
        "\"prepend\": \"\u2581\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "
        "\"content\": \"\u2581\"}]}, \"model\": {\"type\": \"BPE\", \"byte_fallback\": true, "
        "\"vocab\": {\"<s>\": 0",
        file);
    for (int byte = 0; byte < 256; byte++)
        fprintf(file, ", \"<0x%02X>\": %d", byte, byte + 1);
    fputs(", \"\u2581\": 257, \"a\": 258, \"b\": 259, \"ab\": 260, \"\u2581a\": 261, "
          "\"\u2581\u2581\": 262}, \"merges\": [\"\u2581 \u2581\", \"\u2581 a\", [\"a\", \"b\"]]}}",
          file);
    assert_int_equal(fclose(file), 0);
}

TOKENIZER_TEST(test_tokenizer__the_parts_of_a_cut_text_have_the_tokens_of_the_whole)
{
    check_parts(bed->model, bed->words[0], 6000);
    write_json(bed->other);
    check_parts(bed->other, bed->words[0], 6000);
}

TOKENIZER_TEST(test_tokenizer_json__a_prefix_is_put_before_and_unknown_characters_are_bytes)
{
    int32_t *tokens;
    char *text;
    size_t count, bytes;
    const int32_t want[] = {261,      259,      262,     258,     1 + 0xc3,
                            1 + 0xa9, 1 + 0xff, 1 + '<', 1 + 's', 1 + '>'};
    write_json(bed->other);
    struct tokenizer *tokenizer = opened(bed->other);
    assert_int_equal(tokenizer_bos(tokenizer), 0);
    assert_int_equal(tokenizer_eos(tokenizer), -1);
    assert_int_equal(tokenizer_vocab(tokenizer), 263);
    assert_int_equal(tokenizer_encode(tokenizer, "ab  a\xc3\xa9\xff<s>", 11, &tokens, &count), 0);
    assert_int_equal(count, sizeof want / sizeof want[0]);
    assert_memory_equal(tokens, want, sizeof want);
    assert_int_equal(tokenizer_decode(tokenizer, tokens, count, &text, &bytes), 0);
    assert_string_equal(text, " ab  a\xc3\xa9\xff<s>"); /* no decoder, so nothing is stripped */
    free(text);
    free(tokens);
    tokenizer_close(tokenizer);
}

/* ---- SentencePiece ---- */

/* Trained by the package sentencepiece 0.2.3 on this repository's README, of type UNIGRAM: one with
 * rules of normalization and no byte tokens, one with byte tokens and no normalization. The tokens
 * below are the package's. */
#define RULES "tests/fuzz/corpus/tokenizer_json/genuine-unigram-rules"
#define BYTES "tests/fuzz/corpus/tokenizer_json/genuine-unigram-bytes"
#define RULES_CHARSMAP 1875 /* where in the file it begins ... */
#define RULES_CHARSMAP_BYTES 1044

static void check_tokens(const char *file, const char *text, const int32_t *want)
{
    int32_t *tokens;
    size_t count;
    struct tokenizer *tokenizer = opened(file);
    assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), &tokens, &count), 0);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(tokens[i], want[i]);
    assert_int_equal(want[count], -1);
    free(tokens);
    tokenizer_close(tokenizer);
}
#define CHECK_TOKENS(file, text, ...) check_tokens(file, text, (const int32_t[]){__VA_ARGS__, -1})

TEST(test_tokenizer_sentencepiece__a_unigram_model_cuts_by_the_sum_of_scores)
{
    CHECK_TOKENS(RULES, "The trainer  saves a checkpoint ", 104, 6, 52, 6, 7, 12, 62, 7, 21, 6, 57);
    CHECK_TOKENS(BYTES, "The trainer  saves", 319, 311, 268, 259, 279, 305, 291, 290, 268, 305, 259,
                 259, 260, 291, 340, 298);
    CHECK_TOKENS(BYTES, "the\u2581\u2581ckptd", 279, 311, 268, 259, 259, 309, 341, 280, 279, 262);
    /* Of equal sums the one that the library's floats give. */
    CHECK_TOKENS(RULES, "of the the \u2500\u2500\u2500\u2500\u2500\u2500\u2500", 58, 20, 20, 6, 92,
                 141);
    CHECK_TOKENS(RULES, "\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500", 6, 141, 141, 92,
                 141);
}

TEST(test_tokenizer_sentencepiece__what_a_unigram_model_lacks_is_unknown_or_bytes)
{
    CHECK_TOKENS(RULES, "load, reload; \u540d\u524d", 6, 105, 11, 6, 38, 105, 74, 6, 0);
    CHECK_TOKENS(BYTES, "\u540d ", 232, 147, 144, 259);
    CHECK_TOKENS(BYTES, "e\xff", 268, 258);
}

TEST(test_tokenizer_sentencepiece__rules_and_spaces_are_applied_first)
{
    CHECK_TOKENS(RULES, "\u3000 of\u00a0\tthe \ufb01le\u2026 <tool>ckpts", 58, 20, 6, 59, 16, 17, 9,
                 14, 14, 14, 6, 4, 5, 7);
    CHECK_TOKENS(RULES, "cafe\u0301 \u00c6on\u200b z\u65e5\u672c\u8a9e end  \n", 6, 27, 12, 59, 0,
                 6, 47, 44, 13, 19, 6, 110, 0, 6, 9, 19, 8, 6, 0);
    check_tokens(RULES, " \u3000 ", (const int32_t[]){-1});
}

TEST(test_tokenizer_sentencepiece__the_parts_of_a_long_text_have_the_tokens_of_the_whole)
{
    struct tokenizer *tokenizer;
    const size_t bytes = 200000;
    char *text = malloc(bytes);
    uint64_t seed = 8;
    for (size_t i = 0; i < bytes; i++)
        text[i] = "aaeorst   ,l"[next_random(&seed) % 12];
    for (int i = 0; i < 2; i++) {
        const char *file = i == 0 ? RULES : BYTES;
        assert_int_equal(tokenizer_open(&tokenizer, file), 0);
        size_t first = tokenizer_cut(tokenizer, text, bytes, 1, 0);
        assert_in_range(first, 1, bytes - 1);
        assert_int_equal(tokenizer_cut(tokenizer, text, bytes, first + 1000, 0),
                         first + tokenizer_cut(tokenizer, text + first, bytes - first, 1, 0));
        tokenizer_close(tokenizer);
        check_parts(file, text, bytes);
    }
    free(text);
}

TEST(test_tokenizer_sentencepiece__a_text_that_goes_on_keeps_its_first_space)
{
    struct encoder *encoder;
    const int32_t *tokens;
    size_t count;
    struct tokenizer *tokenizer = opened(RULES);
    assert_int_equal(encoder_open(&encoder, tokenizer), 0);
    assert_int_equal(encoder_run(encoder, " the", 4, ENCODE_CONTINUES, &tokens, &count), 0);
    assert_int_equal(count, 1);
    assert_int_equal(tokens[0], 20); /* U+2581 and "the" */
    encoder_close(encoder);
    tokenizer_close(tokenizer);
}

static int open_changed(const struct bed *bed, const char *bytes, size_t num_bytes)
{
    struct tokenizer *tokenizer;
    write_file(bed->other, bytes, num_bytes);
    int result = tokenizer_open(&tokenizer, bed->other);
    if (result == 0)
        tokenizer_close(tokenizer);
    return result;
}

TOKENIZER_TEST(test_tokenizer_sentencepiece__a_damaged_model_is_refused)
{
    static char whole[8192], changed[8192];
    FILE *file = fopen(RULES, "re");
    assert_non_null(file);
    size_t bytes = fread(whole, 1, sizeof whole, file);
    fclose(file);
    assert_int_equal(open_changed(bed, whole, bytes), 0);
    for (size_t length = 300; length < RULES_CHARSMAP + RULES_CHARSMAP_BYTES; length++)
        assert_int_equal(open_changed(bed, whole, length), ERR_CORRUPT);
    static const struct {
        size_t at;
        char byte;
    } changes[] = {
        {RULES_CHARSMAP, 1},                              /* units of 4 bytes */
        {RULES_CHARSMAP + 1, 0},                          /* no units */
        {RULES_CHARSMAP + 2, 1},                          /* more than there are bytes */
        {RULES_CHARSMAP + 13, 0x7f},                      /* where the string for U+3000 begins */
        {RULES_CHARSMAP + RULES_CHARSMAP_BYTES - 1, 'x'}, /* the last string has no end */
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        memcpy(changed, whole, bytes);
        changed[changes[i].at] = changes[i].byte;
        assert_int_equal(open_changed(bed, changed, bytes), ERR_CORRUPT);
        assert_non_null(strstr(report_line(), "precompiled_charsmap"));
    }
}

static int32_t end_with(const struct bed *bed, const char *name, const char *text)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", bed->folder, name);
    write_file(path, text, strlen(text));
    struct tokenizer *tokenizer = opened(bed->other);
    int32_t end = tokenizer_eos(tokenizer);
    tokenizer_close(tokenizer);
    return end;
}

TOKENIZER_TEST(test_tokenizer_json__files_beside_it_name_the_end_that_it_does_not)
{
    const char *files[] = {"tokenizer_config.json", "generation_config.json", "config.json"};
    char path[160];
    write_json(bed->other);
    assert_int_equal(end_with(bed, files[0], "{\"eos_token\": null}"), -1);
    assert_int_equal(end_with(bed, files[0], "no JSON"), -1);
    assert_int_equal(end_with(bed, files[0], "{\"eos_token\": \"<none>\"}"), -1);
    assert_int_equal(end_with(bed, files[0], "{\"eos_token\": \"<s>\"}"), 0);
    assert_int_equal(end_with(bed, files[0], "{\"eos_token\": {\"content\": \"<s>\"}}"), 0);
    assert_int_equal(end_with(bed, files[1], "{\"eos_token_id\": [7, 8]}"), 7);
    assert_int_equal(end_with(bed, files[2], "{\"eos_token_id\": 1000}"), 7); /* no token */
    assert_int_equal(end_with(bed, files[2], "{\"eos_token_id\": 9}"), 9);
    struct tokenizer *tokenizer;
    snprintf(path, sizeof path, "%s/%s", bed->folder, files[2]);
    unlink(path);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(tokenizer_open(&tokenizer, bed->other), ERR_IO);
    assert_non_null(strstr(report_line(), path));
    assert_int_equal(rmdir(path), 0);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", bed->folder, files[i]);
        unlink(path);
    }
}

TOKENIZER_TEST(test_tokenizer__a_file_of_llama3s_ranks_has_its_256_special_tokens)
{
    struct encoder *encoder;
    struct vocab vocab;
    const int32_t *tokens;
    size_t count;
    const char text[] = "a<|eot_id|><|reserved_special_token_250|><|start_header_id|>";
    vocab_init(&vocab);
    for (uint32_t i = 0; i < VOCAB_LLAMA3_RANKS; i++) {
        unsigned char bytes[3] = {(unsigned char)i, (unsigned char)(i >> 8),
                                  (unsigned char)(i >> 16)};
        assert_int_equal(vocab_add(&vocab, bytes, i < 256 ? 1 : 3), 0);
    }
    assert_int_equal(vocab_write(&vocab, bed->other), 0);
    vocab_deinit(&vocab);
    struct tokenizer *tokenizer = opened(bed->other);
    assert_int_equal(tokenizer_vocab(tokenizer), 128256);
    assert_int_equal(encoder_open(&encoder, tokenizer), 0);
    assert_int_equal(encoder_run(encoder, text, sizeof text - 1, ENCODE_SPECIAL, &tokens, &count),
                     0);
    assert_int_equal(count, 4);
    assert_int_equal(tokens[0], 'a');
    assert_int_equal(tokens[1], 128009);
    assert_int_equal(tokens[2], 128255);
    assert_int_equal(tokens[3], 128006);
    assert_int_equal(encoder_run(encoder, text, sizeof text - 1, 0, &tokens, &count), 0);
    assert_int_equal(count, sizeof text - 1); /* text, and no merges here */
    encoder_close(encoder);
    tokenizer_close(tokenizer);
}

SUITE(setup, teardown)
