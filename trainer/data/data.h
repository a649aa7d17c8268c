/* data.h - tokens file and the order in which samples are read.
 *
 * Tokens file: 4096-byte header (magic "HFTOKENS", version, bytes per token 2 or 4, vocabulary,
 * number of tokens, XXH3 of the tokens, SHA-256 of the tokenizer file; little-endian), then the
 * tokens. Sample i of an epoch is tokens [i*seq, i*seq + seq] (seq + 1 tokens; inputs and targets
 * overlap by one). The order is a keyed permutation of the sample index (a Feistel network with
 * cycle walking), keyed by (seed, epoch): so the whole data state is one integer, the global index
 * of the next sample, whatever the number of ranks. */
#ifndef HOLDFAST_DATA_H
#define HOLDFAST_DATA_H

#include <stddef.h>
#include <stdint.h>

struct data;
struct data_info {
    uint64_t num_tokens, num_samples;
    uint32_t vocab, seq_len;
    char hash[17];           /* XXH3-64 of the tokens, hex */
    char tokenizer_hash[65]; /* SHA-256 of the tokenizer file, hex */
};
int data_open(struct data **out, const char *path, uint32_t seq_len, uint64_t seed);
void data_close(struct data *data);
const struct data_info *data_info(const struct data *data);
/* Fills inputs[count*seq] and targets[count*seq] with global samples [first, first + count). */
int data_read(struct data *data, uint64_t first, uint32_t count, int32_t *inputs, int32_t *targets);
/* Position in the file of global sample `index`: the permutation alone, for tests. */
uint64_t data_permute(const struct data *data, uint64_t index);

/* Writes a tokens file from text files: each is one document, begin_of_text ... end_of_text. */
struct tokenizer;
struct tokenizer_progress; /* tokenizer.h; may be NULL */
int data_write_tokens(const char *path, const struct tokenizer *tokenizer,
                      const char *const *text_paths, uint32_t num_texts,
                      const struct tokenizer_progress *progress, uint64_t *out_tokens);

#endif
