/* ranks.c - a tokenizer from tiktoken's file of ranks.
 *
 * The file has no pairs: two neighbours are joined if their bytes together are a token, the token
 * with the lowest rank first. A piece that equals a token becomes that token. Parts of a piece are
 * always tokens, so the pairs are every cut of every token into two tokens, with the token's
 * rank. */
#include "trainer/tokenizer/model.h"

#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add_special_tokens(struct tokenizer *tokenizer)
{
    uint32_t count = vocab_num_special(&tokenizer->vocab);
    tokenizer->added = calloc(count, sizeof *tokenizer->added);
    if (tokenizer->added == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the special tokens");
    for (uint32_t i = 0; i < count; i++) {
        char name[VOCAB_SPECIAL_BYTES];
        vocab_special_name(name, &tokenizer->vocab, i);
        struct added_token *added = &tokenizer->added[tokenizer->num_added];
        *added = (struct added_token){.content = strdup(name),
                                      .bytes = (uint32_t)strlen(name),
                                      .id = (int32_t)(tokenizer->vocab.num_tokens + i),
                                      .is_special = true};
        if (added->content == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for the special tokens");
        tokenizer->num_added++;
    }
    return 0;
}

int tokenizer_read_ranks(struct tokenizer *out, const char *name, const char *text, size_t bytes)
{
    ERR_TRY(vocab_parse(&out->vocab, name, text, bytes));
    if (out->vocab.longest > TOKEN_BYTES_MAX)
        return report_error(ERR_INVALID, NULL, "%s has a token of %zu bytes, over %u", name,
                            out->vocab.longest, TOKEN_BYTES_MAX);
    for (uint32_t rank = 0; rank < out->vocab.num_tokens; rank++)
        ERR_TRY(pairs_add_cuts(&out->pairs, &out->vocab, rank, rank, NULL));
    for (uint32_t byte = 0; byte < 256; byte++) {
        unsigned char single = (unsigned char)byte;
        out->byte_symbols[byte] = vocab_find(&out->vocab, &single, 1);
    }
    ERR_TRY(add_special_tokens(out));
    out->takes_whole = true;
    out->pieces = PIECES_EXPRESSION;
    out->expression = SPLIT_LLAMA3;
    out->bos = (int32_t)out->vocab.num_tokens;
    out->eos = (int32_t)out->vocab.num_tokens + 1;
    out->num_ids = out->vocab.num_tokens + out->num_added;
    return 0;
}
