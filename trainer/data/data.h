/* data.h - the samples of a run: sources (tokens files), the order in which samples come, reading.
 *
 * Sample i of a source is tokens [i*seq, i*seq + seq] (seq + 1 tokens; inputs and targets overlap
 * by one). order.h gives the source and sample of global index n. They depend only on the seed, the
 * sources' weights and the place, not on the number of ranks. The place is a few integers per
 * source; README.md defines the whole order.
 *
 * Opening reads only the headers. Blocks of format 2 are verified as they are read. Format 1 has no
 * checksums of blocks: data_prove() hashes those files in the background, and a difference fails
 * the next read.
 *
 * A struct data belongs to one thread at a time. */
#ifndef HOLDFAST_DATA_H
#define HOLDFAST_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DATA_SOURCES_MAX 32u
#define DATA_WEIGHT_UNIT 1000000u /* a weight of 1 as an integer; weights have six decimals */

struct data;
struct data_source {
    char name[64];        /* of the file, without folder and ".tokens" */
    char hash[17];        /* identity of its tokens, hex */
    uint64_t num_tokens;  /* 0 if not open, as is num_samples */
    uint64_t num_samples; /* of an epoch */
    /* In units of 1 / DATA_WEIGHT_UNIT; 0: was read before, is not read now. */
    uint64_t weight;
    uint64_t base; /* draws before the global index `start` of struct data_place */
};
/* The place where reading continues. Open sources come first. */
struct data_place {
    uint64_t start; /* the first global sample with these weights */
    uint32_t seq_len;
    uint32_t num_sources; /* that are read now, or were read before */
    struct data_source sources[DATA_SOURCES_MAX];
};
struct data_info {
    uint64_t num_tokens, num_samples; /* of all sources that are open */
    uint32_t vocab, seq_len, num_sources;
    bool has_mask;           /* some tokens are masked */
    char hash[17];           /* of one source: its identity; of several: XXH3-64 of their hashes */
    char tokenizer_hash[65]; /* SHA-256 of the tokenizer file, hex */
    int32_t bos, eos;        /* around every document; -1: the tokenizer has none */
};

#define DATA_PATH_BYTES 4096u
/* Writes the path of the tokens file of a name in a mixture. */
struct data_locator {
    int (*locate)(void *user, char out[DATA_PATH_BYTES], const char *name);
    void *user;
};
/* Opens one tokens file, or a mixture "NAME:WEIGHT,NAME:WEIGHT,...". If `locator` is NULL, its
 * names are tokens files. */
int data_open(struct data **out, const char *path, uint32_t seq_len, uint64_t seed);
int data_open_mixture(struct data **out, const char *mixture, const struct data_locator *locator,
                      uint32_t seq_len, uint64_t seed);
/* Opens one file in the order of the file; samples without targets follow its last sample. */
int data_open_in_order(struct data **out, const char *path, uint32_t seq_len);
void data_close(struct data *data);
const struct data_info *data_info(const struct data *data);

/* Continues from the place of an earlier run at global sample `next`. Hashes identify sources: a
 * new source begins at its first sample, one that is left out keeps its place. With other weights,
 * sources or sequence length a new interleaving begins at `next`; with another length, earlier
 * draws count by their tokens. */
int data_resume(struct data *data, const struct data_place *from, uint64_t next);
const struct data_place *data_place(const struct data *data);
/* The number of samples of source `i` before global sample `next`. */
uint64_t data_drawn(const struct data *data, uint32_t source, uint64_t next);
/* Warns of each source that is read a second time from between these global samples on. */
void data_warn_of_repeats(const struct data *data, uint64_t before, uint64_t after);
/* Warns of each source that has fewer samples than a step of `samples` takes of it. */
void data_warn_of_small(const struct data *data, uint64_t samples);
/* The source of global sample `index`, and that source's sample: only the order is used. */
uint32_t data_locate(const struct data *data, uint64_t index, uint64_t *out_sample);

/* Room for count * seq numbers each. */
struct data_batch {
    int32_t *inputs;
    int32_t *targets; /* -1: not counted */
    int32_t *starts;  /* per input the first position of its document; NULL: not used */
};
/* Fills a batch with global samples [first, first + count). */
int data_read(struct data *data, uint64_t first, uint32_t count, const struct data_batch *out);
/* Position in the file of global sample `index` of a single source: only the permutation is
 * used. */
uint64_t data_permute(const struct data *data, uint64_t index);

/* Begins to hash the files without checksums of blocks, in a thread of the lowest priority.
 * data_read() fails with ERR_CORRUPT once a file's hash is not that of its header. */
int data_prove(struct data *data);

#endif
