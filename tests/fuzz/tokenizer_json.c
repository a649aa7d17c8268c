/* tokenizer_json.c - fuzz target: a tokenizer.json or a SentencePiece model, and with it the last
 * bytes of the file and some of its special tokens as text, whole and in parts. */
#include "tests/fuzz/fuzz.h"

#include "trainer/tokenizer/tokenizer.h"

#define TEXT_BYTES 300u

static size_t encode_from(struct encoder *encoder, const char *text, size_t bytes, uint32_t flags,
                          int32_t *out)
{
    const int32_t *tokens;
    size_t count;
    if (encoder_run(encoder, text, bytes, flags, &tokens, &count) != 0)
        abort(); /* an accepted tokenizer encodes any text */
    if (count > 0)
        memcpy(out, tokens, count * sizeof *tokens);
    return count;
}

static void try_text(const struct tokenizer *tokenizer, const char *text, size_t bytes)
{
    int32_t whole[4 * TEXT_BYTES], parts[4 * TEXT_BYTES];
    char *decoded = NULL;
    size_t decoded_bytes;
    struct encoder *encoder;
    if (encoder_open(&encoder, tokenizer) != 0)
        abort();
    encode_from(encoder, text, bytes, ENCODE_SPECIAL, whole);
    size_t count = encode_from(encoder, text, bytes, 0, whole);
    size_t at = tokenizer_cut(tokenizer, text, bytes, bytes / 2, 0);
    size_t first = encode_from(encoder, text, at, 0, parts);
    size_t both = first + encode_from(encoder, text + at, bytes - at, at > 0 ? ENCODE_CONTINUES : 0,
                                      parts + first);
    if (both != count || memcmp(whole, parts, count * sizeof *whole) != 0)
        abort(); /* a text may be cut there */
    if (tokenizer_decode(tokenizer, whole, count, &decoded, &decoded_bytes) != 0)
        abort(); /* encoded text can be decoded */
    free(decoded);
    encoder_close(encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64], text[TEXT_BYTES] = "ab a  b\na c<s>x </s>\xff\xe2\x96\x81 <|eot_id|> ";
    struct tokenizer *tokenizer = NULL;
    int fd = fuzz_file(path, sizeof path, data, bytes);
    if (tokenizer_open(&tokenizer, path) == 0) {
        fuzz_taken = true;
        size_t given = strlen(text), more = bytes < 200 ? bytes : 200;
        memcpy(text + given, data + bytes - more, more);
        try_text(tokenizer, text, given + more);
        tokenizer_close(tokenizer);
    }
    close(fd);
    return 0;
}
