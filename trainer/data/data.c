/* data.c - sources, their place, and reading samples (see data.h).
 *
 * Blocks of tokens are kept in a small cache, since a sample may lie in two and, with short
 * sequences, many samples lie in one. */
#include "trainer/data/data.h"

#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "trainer/data/order.h"
#include "trainer/data/proof.h"
#include "trainer/data/tokens_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CACHED_BLOCKS 8u
#define WEIGHT_MAX 1000.0

struct cached_block {
    uint32_t source;
    uint64_t index, used_at; /* used_at 0: empty */
    struct tokens_block block;
};

struct data {
    struct data_info info;
    struct data_place place;
    struct tokens_file *files[DATA_SOURCES_MAX];
    struct order orders[DATA_SOURCES_MAX];
    uint64_t weights[DATA_SOURCES_MAX]; /* of the open sources, as order.h uses them */
    bool is_in_order;
    uint64_t clock; /* of the cache */
    struct cached_block *cache;
    struct proof *proof; /* NULL: not begun */
};

/* ---- opening ---- */

/* The name of "corpora/prose.tokens" and of the folder "corpora/prose/" is "prose". */
static void name_source(struct data_source *source, const char *path)
{
    size_t end = strlen(path), begin;
    while (end > 1 && path[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/'; begin--)
        continue;
    const char *name = path + begin;
    size_t length = end - begin;
    if (length > 7 && strcmp(name + length - 7, ".tokens") == 0)
        length -= 7;
    snprintf(source->name, sizeof source->name, "%.*s", (int)(length < 60 ? length : 60), name);
    for (char *at = source->name; *at != 0; at++)
        if (*at == ' ' || *at == '=')
            *at = '_'; /* it separates fields in the loss file */
}

/* Checks that all sources have the same properties. */
static int check_alike(const struct data *data, const struct tokens_header *header,
                       const char *path, const char *hash)
{
    if (memcmp(data->info.tokenizer_hash, header->tokenizer_hash, 64) != 0 ||
        data->info.vocab != header->vocab)
        return report_error(ERR_MISMATCH, "make the tokens of all sources with one tokenizer",
                            "the tokens of %s were made by another tokenizer than those of the "
                            "first source",
                            path);
    for (uint32_t i = 0; i < data->info.num_sources; i++)
        if (strcmp(data->place.sources[i].hash, hash) == 0)
            return report_error(ERR_INVALID, "name it once, with the sum of the weights",
                                "training.mixture: %s holds the same tokens as %s", path,
                                data->place.sources[i].name);
    return 0;
}

/* `name`: the name in the configuration of the tokens file at `path`. */
static int add_source(struct data *data, const char *name, const char *path, uint64_t weight,
                      uint64_t seed)
{
    uint32_t at = data->info.num_sources;
    struct data_source *source = &data->place.sources[at];
    if (at == DATA_SOURCES_MAX)
        return report_error(ERR_INVALID, "join some of them with `tokenizer tokens`",
                            "training.mixture has more than %u sources", DATA_SOURCES_MAX);
    ERR_TRY(tokens_file_open(&data->files[at], path));
    const struct tokens_header *header = tokens_file_header(data->files[at]);
    *source = (struct data_source){.num_tokens = header->num_tokens, .weight = weight};
    source->num_samples = (header->num_tokens - 1) / data->info.seq_len;
    name_source(source, name);
    snprintf(source->hash, sizeof source->hash, "%016llx", (unsigned long long)header->hash);
    if (at == 0) {
        data->info.vocab = header->vocab;
        memcpy(data->info.tokenizer_hash, header->tokenizer_hash, 64);
        data->info.bos = header->bos;
        data->info.eos = header->eos;
        memcpy(data->info.hash, source->hash, sizeof source->hash);
    }
    ERR_TRY(check_alike(data, header, path, source->hash));
    if (source->num_samples == 0)
        return report_error(ERR_INVALID, "use more text or a smaller training.seq_len",
                            "%s: %llu tokens are too few for one sample of training.seq_len %u + 1",
                            path, (unsigned long long)header->num_tokens, data->info.seq_len);
    if (!order_init(&data->orders[at], seed, source->num_samples))
        return report_error(ERR_INVALID, NULL, "%s: too many samples", path);
    data->weights[at] = weight;
    data->info.has_mask = data->info.has_mask || (header->flags & TOKENS_HAS_MASK) != 0;
    data->info.num_tokens += source->num_tokens;
    data->info.num_samples += source->num_samples;
    data->info.num_sources = data->place.num_sources = at + 1;
    return 0;
}

/* "NAME:WEIGHT": removes the weight. Without one it is 1. */
static int take_weight(char *source, uint64_t *out)
{
    char *colon = strrchr(source, ':'), *end;
    *out = DATA_WEIGHT_UNIT;
    if (colon == NULL)
        return 0;
    double weight = strtod(colon + 1, &end);
    if (end == colon + 1 || *end != 0 || !(weight >= 1.0 / DATA_WEIGHT_UNIT) || weight > WEIGHT_MAX)
        return report_error(ERR_INVALID, "write NAME:WEIGHT,NAME:WEIGHT with weights above 0",
                            "training.mixture: \"%s\" has no weight of 0.000001 to %g", source,
                            WEIGHT_MAX);
    *colon = 0;
    *out = (uint64_t)llround(weight * DATA_WEIGHT_UNIT);
    return 0;
}

static int add_mixture(struct data *data, const char *mixture, const struct data_locator *locator,
                       uint64_t seed)
{
    char text[DATA_PATH_BYTES], path[DATA_PATH_BYTES], *rest = NULL;
    uint64_t weight;
    if (strlen(mixture) >= sizeof text)
        return report_error(ERR_INVALID, "use shorter paths", "training.mixture is too long");
    strcpy(text, mixture);
    for (char *at = strtok_r(text, ",", &rest); at != NULL; at = strtok_r(NULL, ",", &rest)) {
        char *name = at + strspn(at, " ");
        ERR_TRY(take_weight(name, &weight));
        strcpy(path, name);
        if (locator != NULL)
            ERR_TRY(locator->locate(locator->user, path, name));
        ERR_TRY(add_source(data, name, path, weight, seed));
    }
    if (data->info.num_sources == 0)
        return report_error(ERR_INVALID, "write NAME:WEIGHT,NAME:WEIGHT",
                            "training.mixture names no source");
    return 0;
}

/* Computes the hash of a mixture's tokens for manifests. */
static void hash_sources(struct data *data)
{
    char hashes[DATA_SOURCES_MAX * 16];
    uint32_t num = data->info.num_sources;
    if (num == 1)
        return;
    for (uint32_t i = 0; i < num; i++)
        memcpy(hashes + (size_t)i * 16, data->place.sources[i].hash, 16);
    snprintf(data->info.hash, sizeof data->info.hash, "%016llx",
             (unsigned long long)checksum_bytes(hashes, (size_t)num * 16));
}

static int new_data(struct data **out, uint32_t seq_len)
{
    CHECK(seq_len > 0);
    struct data *data = calloc(1, sizeof *data);
    *out = data;
    if (data != NULL)
        data->cache = calloc(CACHED_BLOCKS, sizeof *data->cache);
    if (data == NULL || data->cache == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to open the tokens file");
    data->info.seq_len = data->place.seq_len = seq_len;
    return 0;
}

/* Returns data with its sources; `rc`: the result of adding them. */
static int hand_out(struct data **out, struct data *data, int rc)
{
    if (rc != 0) {
        data_close(data);
        return rc;
    }
    hash_sources(data);
    *out = data;
    return 0;
}

int data_open(struct data **out, const char *path, uint32_t seq_len, uint64_t seed)
{
    struct data *data;
    int rc = new_data(&data, seq_len);
    if (rc == 0)
        rc = add_source(data, path, path, DATA_WEIGHT_UNIT, seed);
    return hand_out(out, data, rc);
}

int data_open_mixture(struct data **out, const char *mixture, const struct data_locator *locator,
                      uint32_t seq_len, uint64_t seed)
{
    struct data *data;
    int rc = new_data(&data, seq_len);
    if (rc == 0)
        rc = add_mixture(data, mixture, locator, seed);
    return hand_out(out, data, rc);
}

int data_open_in_order(struct data **out, const char *path, uint32_t seq_len)
{
    ERR_TRY(data_open(out, path, seq_len, 0));
    (*out)->is_in_order = true;
    return 0;
}

void data_close(struct data *data)
{
    if (data == NULL)
        return;
    proof_close(data->proof);
    for (uint32_t i = 0; i < DATA_SOURCES_MAX; i++)
        tokens_file_close(data->files[i]);
    free(data->cache);
    free(data);
}

const struct data_info *data_info(const struct data *data)
{
    return &data->info;
}

int data_prove(struct data *data)
{
    const struct tokens_file *unproved[DATA_SOURCES_MAX];
    uint32_t num = 0;
    for (uint32_t i = 0; i < data->info.num_sources; i++)
        if (tokens_file_header(data->files[i])->version == 1)
            unproved[num++] = data->files[i];
    return num == 0 ? 0 : proof_open(&data->proof, unproved, num);
}

/* ---- the place ---- */

const struct data_place *data_place(const struct data *data)
{
    return &data->place;
}

/* Counts the draws of every source of a place before global sample `next`. */
static void count_draws(uint64_t *out, const struct data_place *place, uint64_t next)
{
    uint64_t weights[DATA_SOURCES_MAX];
    for (uint32_t i = 0; i < place->num_sources; i++)
        weights[i] = place->sources[i].weight;
    order_draws(out, weights, place->num_sources, next - place->start);
    for (uint32_t i = 0; i < place->num_sources; i++)
        out[i] += place->sources[i].base;
}

uint64_t data_drawn(const struct data *data, uint32_t source, uint64_t next)
{
    uint64_t draws[DATA_SOURCES_MAX];
    count_draws(draws, &data->place, next);
    return draws[source];
}

void data_warn_of_repeats(const struct data *data, uint64_t before, uint64_t after)
{
    uint64_t from[DATA_SOURCES_MAX], to[DATA_SOURCES_MAX];
    count_draws(from, &data->place, before);
    count_draws(to, &data->place, after);
    for (uint32_t i = 0; i < data->info.num_sources; i++) {
        const struct data_source *source = &data->place.sources[i];
        if (from[i] <= source->num_samples && to[i] > source->num_samples)
            log_warn(
                "data",
                "all %llu samples of %s have been trained on: its second epoch begins, samples "
                "repeat in another order",
                (unsigned long long)source->num_samples, source->name);
    }
}

void data_warn_of_small(const struct data *data, uint64_t samples)
{
    const struct data_place *place = &data->place;
    uint64_t weights[DATA_SOURCES_MAX], draws[DATA_SOURCES_MAX];
    for (uint32_t i = 0; i < data->info.num_sources; i++)
        weights[i] = place->sources[i].weight;
    order_draws(draws, weights, data->info.num_sources, samples);
    for (uint32_t i = 0; i < data->info.num_sources; i++)
        if (draws[i] > place->sources[i].num_samples)
            log_warn("data",
                     "%s has %llu samples, but a step takes %llu of it: samples repeat within a "
                     "step",
                     place->sources[i].name, (unsigned long long)place->sources[i].num_samples,
                     (unsigned long long)draws[i]);
}

static bool is_same_mixture(const struct data *data, const struct data_place *from)
{
    bool is_same = from->seq_len == data->info.seq_len;
    for (uint32_t i = 0; i < from->num_sources && is_same; i++) {
        const struct data_source *theirs = &from->sources[i], *ours = &data->place.sources[i];
        is_same = i < data->info.num_sources
                      ? strcmp(theirs->hash, ours->hash) == 0 && theirs->weight == ours->weight
                      : theirs->weight == 0;
    }
    return is_same && from->num_sources >= data->info.num_sources;
}

static int keep_left_out(struct data_place *place, const struct data_source *source, uint64_t draws)
{
    if (draws == 0)
        return 0;
    if (place->num_sources == DATA_SOURCES_MAX)
        return report_error(ERR_INVALID, "use fewer sources, or give job.run another name",
                            "the run has had more than %u sources", DATA_SOURCES_MAX);
    struct data_source *kept = &place->sources[place->num_sources++];
    *kept = *source;
    kept->weight = 0;
    kept->base = draws;
    return 0;
}

int data_resume(struct data *data, const struct data_place *from, uint64_t next)
{
    struct data_place *place = &data->place;
    uint32_t num = data->info.num_sources;
    uint64_t draws[DATA_SOURCES_MAX];
    bool is_same = is_same_mixture(data, from);
    place->num_sources = num;
    place->start = is_same ? from->start : next;
    count_draws(draws, from, next);
    for (uint32_t i = 0; i < num; i++)
        place->sources[i].base = 0;
    for (uint32_t i = 0; i < from->num_sources; i++) {
        const struct data_source *theirs = &from->sources[i];
        uint64_t base =
            is_same ? theirs->base
                    : (uint64_t)((unsigned __int128)draws[i] * from->seq_len / place->seq_len);
        uint32_t at = 0;
        while (at < num && strcmp(place->sources[at].hash, theirs->hash) != 0)
            at++;
        if (at < num)
            place->sources[at].base = base;
        else
            ERR_TRY(keep_left_out(place, theirs, base));
    }
    return 0;
}

uint32_t data_locate(const struct data *data, uint64_t index, uint64_t *out_sample)
{
    uint64_t draw;
    *out_sample = index;
    if (data->is_in_order)
        return 0;
    uint32_t at =
        order_source(data->weights, data->info.num_sources, index - data->place.start, &draw);
    *out_sample = order_permute(&data->orders[at], data->place.sources[at].base + draw);
    return at;
}

uint64_t data_permute(const struct data *data, uint64_t index)
{
    uint64_t sample;
    data_locate(data, index, &sample);
    return sample;
}

/* ---- reading ---- */

/* Block `index` of a source, from the cache or from the file. */
static int find_block(struct data *data, uint32_t source, uint64_t index,
                      const struct tokens_block **out)
{
    struct cached_block *oldest = data->cache;
    for (uint32_t i = 0; i < CACHED_BLOCKS; i++) {
        struct cached_block *at = &data->cache[i];
        if (at->used_at != 0 && at->source == source && at->index == index) {
            at->used_at = ++data->clock;
            *out = &at->block;
            return 0;
        }
        if (at->used_at < oldest->used_at)
            oldest = at;
    }
    oldest->used_at = 0; /* a failed read leaves no valid block */
    ERR_TRY(tokens_file_read(data->files[source], index, &oldest->block));
    oldest->source = source;
    oldest->index = index;
    oldest->used_at = ++data->clock;
    *out = &oldest->block;
    return 0;
}

/* The output for the samples of a batch, from position `at` on. */
struct target {
    const struct data_batch *batch;
    size_t at;
    int32_t start; /* position of the document's first input */
};

/* Token `j` of a sample is input j and target j - 1. */
static void put_token(struct target *to, uint32_t j, uint32_t seq_len,
                      const struct tokens_block *block, uint32_t i)
{
    const struct data_batch *batch = to->batch;
    if (j > 0)
        batch->targets[to->at + j - 1] = tokens_bit(block->masked, i) ? -1 : block->tokens[i];
    if (j == seq_len)
        return;
    batch->inputs[to->at + j] = block->tokens[i];
    if (tokens_bit(block->begins, i))
        to->start = (int32_t)j;
    if (batch->starts != NULL)
        batch->starts[to->at + j] = to->start;
}

static int read_sample(struct data *data, uint32_t source, uint64_t sample, struct target *to)
{
    uint32_t seq_len = data->info.seq_len;
    uint64_t first = sample * seq_len;
    for (uint32_t j = 0; j <= seq_len;) {
        const struct tokens_block *block;
        ERR_TRY(find_block(data, source, (first + j) / TOKENS_BLOCK, &block));
        uint32_t i = (uint32_t)(first + j - block->first);
        for (; i < block->count && j <= seq_len; i++, j++)
            put_token(to, j, seq_len, block, i);
    }
    return 0;
}

/* A sample after the end of data that is read in order: it counts for nothing. */
static void put_nothing(const struct target *to, uint32_t seq_len)
{
    for (uint32_t j = 0; j < seq_len; j++) {
        to->batch->inputs[to->at + j] = 0;
        to->batch->targets[to->at + j] = -1;
        if (to->batch->starts != NULL)
            to->batch->starts[to->at + j] = 0;
    }
}

int data_read(struct data *data, uint64_t first, uint32_t count, const struct data_batch *out)
{
    ERR_TRY(proof_result(data->proof));
    for (uint32_t i = 0; i < count; i++) {
        uint64_t sample;
        uint32_t source = data_locate(data, first + i, &sample);
        struct target to = {.batch = out, .at = (size_t)i * data->info.seq_len};
        if (sample < data->place.sources[source].num_samples)
            ERR_TRY(read_sample(data, source, sample, &to));
        else
            put_nothing(&to, data->info.seq_len);
    }
    return 0;
}
