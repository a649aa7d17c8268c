/* samples.c - the data of a rank (see samples.h). */
#include "trainer/run/samples.h"
#include "proto/base/report.h"
#include "trainer/comm/comm.h"
#include "trainer/corpus/corpus.h"
#include "trainer/tokenizer/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PREPARING_LOG_SECONDS 10

/* A given tokenizer must be the one that made the tokens. */
static int check_tokenizer(const struct config *config, const struct data_info *info)
{
    struct tokenizer *tokenizer = NULL;
    if (config->tokenizer_path[0] == 0)
        return 0;
    ERR_TRY(tokenizer_open(&tokenizer, config->tokenizer_path));
    bool is_same = strcmp(tokenizer_hash(tokenizer), info->tokenizer_hash) == 0;
    tokenizer_close(tokenizer);
    if (!is_same)
        return report_error(ERR_MISMATCH,
                            "name the tokenizer's file itself, or make the tokens again with "
                            "`tokenizer tokens`",
                            "the tokens of %s were made by another tokenizer than %s",
                            trainer_config_data(config), config->tokenizer_path);
    return 0;
}

/* Logs the progress from time to time, for a folder that is tokenized at the start. */
static void log_progress(void *user, const char *what, uint64_t done, uint64_t total)
{
    time_t *logged = user, now = time(NULL);
    if (*logged == 0)
        *logged = now;
    if (now - *logged < PREPARING_LOG_SECONDS || total == 0)
        return;
    *logged = now;
    log_info("data", "%s: %.1f of %.1f MiB (%.0f %%)", what, (double)done / 1048576.0,
             (double)total / 1048576.0, 100.0 * (double)done / (double)total);
}

/* Finds or makes the tokens file of a request. */
static int prepare(const struct rank *r, char out[CORPUS_PATH_BYTES], struct corpus_request request)
{
    const struct config *config = r->config;
    time_t logged = 0;
    if (!corpus_is_prepared(&request))
        ERR_TRY(rank_check_fits(r));
    struct tokenizer_progress progress = {log_progress, &logged};
    request.tokenizer = config->tokenizer_path;
    request.fields =
        (struct corpus_fields){config->dataset_field, config->prompt_field, config->answer_field};
    request.bad_line_share = config->bad_line_share;
    request.progress = &progress;
    request.want_stop = r->want_stop;
    return corpus_prepare(out, &request);
}

static struct corpus_request corpus_of(const struct config *config)
{
    return (struct corpus_request){
        .section = "training", .dataset = config->dataset, .path = config->dataset_path};
}

bool samples_are_prepared(const struct config *config)
{
    struct corpus_request corpus = corpus_of(config);
    return config->mixture[0] != 0 || corpus_is_prepared(&corpus);
}

/* Finds a source of a mixture: a tokens file, or a name as in training.dataset. */
static int locate_source(void *user, char out[DATA_PATH_BYTES], const char *name)
{
    struct corpus_request request = {.section = "training", .dataset = name, .path = ""};
    if (!corpus_is_prepared(&request))
        return prepare(user, out, request);
    snprintf(out, DATA_PATH_BYTES, "%s", name); /* errors are reported when it is opened */
    return 0;
}

static int open_tokens(struct rank *r)
{
    const struct config *config = r->config;
    char path[CORPUS_PATH_BYTES];
    uint32_t seq_len = (uint32_t)config->seq_len;
    uint64_t seed = (uint64_t)config->seed;
    struct data_locator locator = {locate_source, r};
    if (config->mixture[0] != 0)
        return data_open_mixture(&r->data, config->mixture, &locator, seq_len, seed);
    ERR_TRY(prepare(r, path, corpus_of(config)));
    return data_open(&r->data, path, seq_len, seed);
}

int samples_open(struct rank *r)
{
    ERR_TRY(open_tokens(r));
    if (rank_is_first_on_node(r) && !r->config->estimate)
        ERR_TRY(data_prove(r->data));
    return check_tokenizer(r->config, data_info(r->data));
}

int samples_open_validation(struct rank *r)
{
    const struct config *config = r->config;
    if (!config->validation_enable)
        return 0;
    char path[CORPUS_PATH_BYTES];
    ERR_TRY(prepare(r, path,
                    (struct corpus_request){.section = "validation",
                                            .dataset = config->validation_dataset,
                                            .path = config->validation_path}));
    ERR_TRY(data_open_in_order(&r->validation, path, (uint32_t)config->validation_seq_len));
    const struct data_info *ours = data_info(r->data), *theirs = data_info(r->validation);
    if (strcmp(ours->tokenizer_hash, theirs->tokenizer_hash) != 0)
        return report_error(ERR_MISMATCH, "make the tokens of both with one tokenizer",
                            "the tokens of %s were made by another tokenizer than those of "
                            "training",
                            trainer_config_validation_data(config));
    return rank_is_first_on_node(r) ? data_prove(r->validation) : 0;
}

/* A node may have another file with the same name, or fetched a bucket at another time. */
static int check_same_tokens(const struct rank *r, const struct data *data, const char *name)
{
    const uint32_t size = r->world->size;
    int64_t *hashes = calloc(size, sizeof(*hashes));
    if (hashes == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %u hashes", size);
    hashes[r->world->rank] = (int64_t)strtoull(data_info(data)->hash, NULL, 16);
    int rc = comm_all_reduce_i64(r->world, hashes, size);
    for (uint32_t i = 1; i < size && rc == 0; i++)
        if (hashes[i] != hashes[0])
            rc = report_error(ERR_MISMATCH, "give all nodes the same files",
                              "%s: rank %u has other tokens than rank 0 (%016" PRIx64
                              ", %016" PRIx64 ")",
                              name, i, (uint64_t)hashes[i], (uint64_t)hashes[0]);
    free(hashes);
    return rc;
}

int samples_check_same(const struct rank *r)
{
    ERR_TRY(check_same_tokens(r, r->data, trainer_config_data(r->config)));
    if (r->validation == NULL)
        return 0;
    return check_same_tokens(r, r->validation, trainer_config_validation_data(r->config));
}
