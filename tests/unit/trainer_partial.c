/* trainer_partial - the tensors that a model takes from a checkpoint that fits only in part.
 *
 * Goal: tensors of alike name and shape are taken, of embedding and output the rows that both have.
 * The rest is initialized, or refused by name. The table lists all of it, with one line for alike
 * layers. Method: metadata of checkpoints as ckpt_metadata() gives them, made of a model's table.
 * integration/partial.py tests the bits of the weights on every mesh. */
#include "tests/unit/suite.h"
#include "trainer/record/partial.h"

#include "proto/base/options.h"
#include "proto/base/report.h"
#include "trainer/config/table.h"

#include <stdlib.h>
#include <string.h>

#define TENSORS_MAX 100

/* The model that a run has, and the checkpoint of another one. */
struct bed {
    struct config config;
    struct model_table *ours, *theirs;
    struct ckpt_tensor_info infos[TENSORS_MAX];
    struct ckpt_metadata metadata;
    struct partial partial;
};

static const struct model_shape small = {.dim = 8,
                                         .layers = 4,
                                         .heads = 2,
                                         .kv_heads = 2,
                                         .head_dim = 4,
                                         .hidden = 16,
                                         .vocab = 10,
                                         .rope_theta = 1e4,
                                         .norm_eps = 1e-5};

static void open_bed(struct bed *bed, struct model_shape ours, struct model_shape theirs)
{
    *bed = (struct bed){0};
    struct options options = {.table = config_table(), .config = &bed->config, .quiet = true};
    assert_int_equal(options_defaults(&options), 0);
    assert_int_equal(model_table_new(&bed->ours, &ours), 0);
    assert_int_equal(model_table_new(&bed->theirs, &theirs), 0);
    bed->metadata.info.step = 7;
    strcpy(bed->metadata.info.run, "source");
    bed->metadata.tensors = bed->infos;
    for (; bed->metadata.num_tensors < bed->theirs->num_tensors; bed->metadata.num_tensors++) {
        const struct model_tensor *tensor = &bed->theirs->tensors[bed->metadata.num_tensors];
        bed->infos[bed->metadata.num_tensors] =
            (struct ckpt_tensor_info){.name = tensor->name,
                                      .dtype = "F32",
                                      .dims = tensor->dims,
                                      .shape = {tensor->rows, tensor->width}};
    }
    bed->partial = (struct partial){.model = bed->ours,
                                    .has_means = true,
                                    .rows = calloc(TENSORS_MAX, sizeof(*bed->partial.rows))};
    assert_non_null(bed->partial.rows);
}

static void close_bed(struct bed *bed)
{
    partial_close(&bed->partial);
    model_table_free(bed->ours);
    model_table_free(bed->theirs);
}

static int choose(struct bed *bed)
{
    return partial_choose(&bed->partial, &bed->config, bed->ours, &bed->metadata);
}

static void check_table(struct bed *bed, const char *wanted)
{
    char text[4096] = "";
    FILE *out = fmemopen(text, sizeof(text), "w");
    assert_int_equal(choose(bed), 0);
    assert_non_null(out);
    partial_print(out, &bed->partial, &bed->metadata);
    fclose(out);
    assert_string_equal(text, wanted);
}

TEST(test_partial__the_table_names_what_is_taken_and_fresh)
{
    struct bed bed;
    struct model_shape wider = small;
    wider.vocab = 16;
    wider.layers = 6;
    open_bed(&bed, wider, small);
    check_table(&bed, "tok_embeddings.weight: rows 0-9 taken, rows 10-15 mean of those\n"
                      "layers.0-3.*: taken\n"
                      "layers.4-5.*: fresh\n"
                      "norm.weight: taken\n"
                      "output.weight: rows 0-9 taken, rows 10-15 mean of those\n");
    bed.partial.has_means = false;
    memset(bed.partial.rows, 0, TENSORS_MAX * sizeof(*bed.partial.rows));
    strcpy(bed.config.partial_fresh, "output,layers.1.feed_forward.w,norm.");
    check_table(&bed, "tok_embeddings.weight: rows 0-9 taken, rows 10-15 fresh\n"
                      "layers.0.attention.wq.weight, attention.wk.weight, attention.wv.weight, "
                      "attention.wo.weight, feed_forward.w1.weight, feed_forward.w2.weight, "
                      "feed_forward.w3.weight: taken\n"
                      "layers.0.attention_norm.weight, ffn_norm.weight: fresh\n"
                      "layers.1.attention.wq.weight, attention.wk.weight, attention.wv.weight, "
                      "attention.wo.weight: taken\n"
                      "layers.1.feed_forward.w1.weight, feed_forward.w2.weight, "
                      "feed_forward.w3.weight, attention_norm.weight, ffn_norm.weight: fresh\n"
                      "layers.2-3.attention.wq.weight, attention.wk.weight, attention.wv.weight, "
                      "attention.wo.weight, feed_forward.w1.weight, feed_forward.w2.weight, "
                      "feed_forward.w3.weight: taken\n"
                      "layers.2-3.attention_norm.weight, ffn_norm.weight: fresh\n"
                      "layers.4-5.*: fresh\n"
                      "norm.weight: fresh\n"
                      "output.weight: fresh\n");
    close_bed(&bed);
}

TEST(test_partial__the_table_names_what_is_left)
{
    struct bed bed;
    struct model_shape cut = small;
    cut.vocab = 9;
    cut.layers = 1;
    cut.is_tied = true;
    open_bed(&bed, cut, small);
    bed.infos[bed.metadata.num_tensors++] = (struct ckpt_tensor_info){
        .name = "optimizer.exp_avg.norm.weight", .dtype = "F32", .dims = 1, .shape = {8}};
    check_table(&bed, "tok_embeddings.weight: rows 0-8 taken, rows 9-9 left\n"
                      "layers.0.*: taken\n"
                      "norm.weight: taken\n"
                      "output.weight: left\n"
                      "layers.1-3.*: left\n");
    close_bed(&bed);
}

static void refused(struct bed *bed, int error, const char *what)
{
    assert_int_equal(choose(bed), error);
    if (strstr(report_message(), what) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", report_message(), what);
}

TEST(test_partial__a_tensor_of_another_form_is_refused_by_name)
{
    struct bed bed;
    open_bed(&bed, small, small);
    struct ckpt_tensor_info *of = &bed.infos[1], *output = &bed.infos[bed.ours->num_tensors - 1];
    of->shape[0]++;
    refused(&bed, ERR_MISMATCH, "layers.0.attention.wq.weight");
    of->shape[0]--;
    of->dtype = "BF16";
    refused(&bed, ERR_MISMATCH, "BF16");
    of->dtype = "F32";
    output->shape[1]++;
    refused(&bed, ERR_MISMATCH, "output.weight");
    strcpy(bed.config.partial_fresh, "output");
    assert_int_equal(choose(&bed), 0);
    strcpy(bed.config.partial_fresh, "output,head");
    refused(&bed, ERR_INVALID, "no tensor's name contains \"head\"");
    strcpy(bed.config.partial_fresh, "weight");
    memset(bed.partial.rows, 0, TENSORS_MAX * sizeof(*bed.partial.rows));
    refused(&bed, ERR_MISMATCH, "no tensor of run source, step 7");
    close_bed(&bed);
}

TEST(test_partial__a_slice_is_cut_where_the_source_ends)
{
    const struct {
        uint64_t first, rows;
        bool is_taken;
        uint64_t wanted;
    } cases[] = {{0, 4, true, 4}, {8, 4, true, 2}, {9, 1, true, 1}, {10, 4, false, 0}};
    struct bed bed;
    struct model_shape wider = small;
    wider.vocab = 16;
    open_bed(&bed, wider, small);
    assert_int_equal(choose(&bed), 0);
    assert_false(partial_is_whole(&bed.partial, 0));
    assert_true(partial_is_whole(&bed.partial, 1));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ckpt_tensor slice = {
            .shape = {16, 8}, .offset = {cases[i].first}, .extent = {cases[i].rows, 8}};
        assert_true(partial_clip(&bed.partial, &slice, 0) == cases[i].is_taken);
        if (cases[i].is_taken)
            assert_true(slice.shape[0] == 10 && slice.extent[0] == cases[i].wanted);
    }
    close_bed(&bed);
}

TEST(test_partial__the_key_is_named_where_it_would_help)
{
    struct bed bed;
    struct model_shape wider = small;
    open_bed(&bed, small, small);
    assert_int_equal(partial_check_shape(&bed.config, &wider, &small, "source", "do this"), 0);
    wider.vocab = 16;
    wider.is_tied = true;
    assert_int_equal(partial_check_shape(&bed.config, &wider, &small, "source", "do this"),
                     ERR_MISMATCH);
    assert_non_null(strstr(report_message(), "vocab = 10, this configuration 16"));
    assert_non_null(strstr(report_hint(), "do this, or load what fits: set checkpoint.partial"));
    bed.config.partial = true;
    assert_int_equal(partial_check_shape(&bed.config, &wider, &small, "source", "do this"), 0);
    wider.norm_eps = 1e-6;
    assert_int_equal(partial_check_shape(&bed.config, &wider, &small, "source", "do this"),
                     ERR_MISMATCH);
    assert_non_null(strstr(report_message(), "norm_eps = "));
    assert_string_equal(report_hint(), "do this");
    close_bed(&bed);
}

SUITE(NULL, NULL)
