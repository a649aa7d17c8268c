/* tokenizer.c - fuzz target: a tokenizer file, and with it the first bytes of the file as text. */
#include "tests/fuzz/fuzz.h"

#include "proto/model/vocab.h"
#include "trainer/tokenizer/tokenizer.h"

#define TEXT_BYTES 200u

static void try_text(const struct tokenizer *tokenizer, const uint8_t *text, size_t bytes)
{
    int32_t *tokens = NULL;
    size_t count = 0, decoded_bytes = 0;
    char *decoded = NULL;
    if (tokenizer_encode(tokenizer, (const char *)text, bytes, &tokens, &count) == 0 &&
        tokenizer_decode(tokenizer, tokens, count, &decoded, &decoded_bytes) == 0 &&
        (decoded_bytes != bytes || memcmp(decoded, text, bytes) != 0))
        abort(); /* decoding gives the encoded text back */
    free(decoded);
    free(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    struct tokenizer *tokenizer = NULL;
    int fd = fuzz_file(path, sizeof path, data, bytes);
    bool is_ranks = vocab_file_of((const char *)data, bytes) == VOCAB_FILE_RANKS;
    if (is_ranks && tokenizer_open(&tokenizer, path) == 0) {
        fuzz_taken = true;
        try_text(tokenizer, data, bytes < TEXT_BYTES ? bytes : TEXT_BYTES);
        tokenizer_close(tokenizer);
    }
    close(fd);
    return 0;
}
