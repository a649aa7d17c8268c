/* trainer_lineage.c - the arithmetic with which a run resumes, and the beginning of a replay.
 *
 * Goal: a run keeps its order of samples and sums, and training.numerics, for ever, also a run from
 * before there was a choice. A replay begins as the run began, if that is known. Method: the texts
 * of manifests as older, this and newer trainers write them, and as an import does. */
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/record/identity.h"
#include "trainer/record/lineage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OLDEST "{\"canonical\":{\"micro_batches\":8}}"
#define TRAINED "{\"canonical\":{\"micro_batches\":8,\"groups\":1,\"tp_blocks\":1,\"cp_blocks\":1}}"
#define SIZES "\"local_batch_size\":1,\"seq_len\":32"

static struct ckpt_loaded loaded_of(const char *identity, const char *config, const char *state)
{
    return (struct ckpt_loaded){.info = {.step = 4},
                                .identity_json = (char *)(uintptr_t)identity,
                                .config_json = (char *)(uintptr_t)config,
                                .state_json = (char *)(uintptr_t)state,
                                .data_json = (char *)(uintptr_t) "{}"};
}

static struct config *config_of(int64_t numerics)
{
    static struct config config;
    config = (struct config){.micro_batches = 8,
                             .groups = 1,
                             .tp_blocks = 1,
                             .cp_blocks = 1,
                             .loss_chunks = 1,
                             .local_batch_size = 1,
                             .seq_len = 32,
                             .numerics = numerics};
    return &config;
}

static int go_on_as(const struct config *config, const struct ckpt_loaded *from, const char *listed)
{
    char *orders = NULL;
    struct lineage_data data = {-1, 0, "hash", 0};
    int rc = lineage_continue(&orders, config, from, &data);
    assert_int_equal(rc == 0, orders != NULL);
    if (orders != NULL)
        assert_non_null(strstr(orders, listed));
    free(orders);
    return rc;
}

static int go_on(const struct ckpt_loaded *from, int64_t numerics, const char *listed)
{
    return go_on_as(config_of(numerics), from, listed);
}

/* The first checkpoints kept no list of orders, later ones one of fewer settings. */
TEST(test_lineage__a_run_of_before_there_was_a_setting_has_its_value_of_then)
{
    static const char *const keys[] = {"canonical.groups", "canonical.tp_blocks",
                                       "canonical.cp_blocks", "canonical.loss_chunks",
                                       "training.batch_ramp"};
    const struct ckpt_loaded older[] = {
        loaded_of(OLDEST, "{\"training\":{" SIZES "}}", "{}"),
        loaded_of(OLDEST, "{}",
                  "{\"orders\":[{\"step\":0,\"canonical.micro_batches\":8,"
                  "\"training.local_batch_size\":1,\"training.seq_len\":32}]}")};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(lineage_numerics(&older[i]), 1);
        assert_int_equal(go_on(&older[i], 1, "\"training.numerics\":1"), 0);
        for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++) {
            struct config *config = config_of(1);
            int64_t *parts[] = {&config->groups, &config->tp_blocks, &config->cp_blocks,
                                &config->loss_chunks};
            if (k < sizeof(parts) / sizeof(parts[0]))
                *parts[k] = 2;
            else
                strcpy(config->batch_ramp, "0:2,2:3");
            assert_int_equal(go_on_as(config, &older[i], ""), ERR_MISMATCH);
            assert_non_null(strstr(report_message(), keys[k]));
        }
    }
    struct ckpt_loaded cut = loaded_of(
        OLDEST, "{}",
        "{\"orders\":[{\"step\":0,\"canonical.micro_batches\":8,\"canonical.cp_blocks\":2,"
        "\"training.local_batch_size\":1,\"training.seq_len\":32}]}");
    struct config *config = config_of(1);
    config->cp_blocks = 2;
    strcpy(config->text.cp_load_balancer, "headtail");
    assert_int_equal(go_on_as(config, &cut, "headtail"), 0);
    strcpy(config->text.cp_load_balancer, "none");
    assert_int_equal(go_on_as(config, &cut, ""), ERR_MISMATCH);
    assert_non_null(strstr(report_message(), "load_balancer = \"headtail\""));
}

TEST(test_lineage__other_numerics_than_the_runs_are_refused)
{
    char *orders = NULL;
    assert_int_equal(lineage_begin(&orders, config_of(2)), 0);
    char text[1024];
    snprintf(text, sizeof(text), "{\"orders\":%s}", orders);
    free(orders);
    struct ckpt_loaded from = loaded_of(TRAINED, "{}", text);
    assert_int_equal(lineage_numerics(&from), 2);
    assert_int_equal(go_on(&from, 2, "\"training.numerics\":2"), 0);
    assert_int_equal(go_on(&from, 1, ""), ERR_MISMATCH);
    assert_string_equal(report_message(),
                        "the run has training.numerics = 2, this configuration has 1");
}

TEST(test_lineage__numerics_of_a_newer_trainer_are_refused)
{
    struct ckpt_loaded from = loaded_of(TRAINED, "{\"training\":{" SIZES ",\"numerics\":4}}", "{}");
    assert_int_equal(lineage_numerics(&from), 4);
    assert_int_equal(go_on(&from, 4, ""), ERR_MISMATCH);
    assert_non_null(strstr(report_message(), "training.numerics = 4, this trainer knows 1 to 3"));
}

TEST(test_lineage__a_setting_of_a_newer_trainer_is_refused_by_name)
{
    struct ckpt_loaded from =
        loaded_of(TRAINED, "{}",
                  "{\"orders\":[{\"step\":0,\"canonical.micro_batches\":8,"
                  "\"training.local_batch_size\":1,\"training.seq_len\":32,\"data.hash\":\"x\","
                  "\"training.rounding\":\"odd\"}]}");
    assert_int_equal(go_on(&from, 1, ""), ERR_MISMATCH);
    assert_string_equal(
        report_message(),
        "the run has training.rounding = \"odd\", which this trainer does not know");
    struct config *config = config_of(1);
    struct lineage_data data = {-1, 0, "hash", 0};
    char *orders = NULL;
    config->new_order = true;
    assert_int_equal(lineage_continue(&orders, config, &from, &data), 0);
    assert_non_null(strstr(orders, "{\"step\":4")); /* a new one begins, without it */
    assert_null(strstr(strstr(orders, "{\"step\":4"), "rounding"));
    free(orders);
}

TEST(test_lineage__what_no_trainer_made_has_no_numerics_and_may_begin_with_any)
{
    struct ckpt_loaded from = loaded_of("{}", "{}", "{}");
    assert_int_equal(lineage_numerics(&from), 0);
    assert_int_equal(go_on(&from, 3, "\"training.numerics\":3"), 0);
}

TEST(test_lineage__that_samples_or_updates_are_left_out_is_no_setting_of_a_newer_trainer)
{
    char *begun = NULL;
    assert_int_equal(lineage_begin(&begun, config_of(2)), 0);
    json_t *orders = json_loads(begun, 0, NULL);
    lineage_note(orders, LINEAGE_LEFT_OUT);
    lineage_note(orders, LINEAGE_OUTLYING);
    json_t *saved = json_pack("{so}", "orders", orders);
    char *text = json_dumps(saved, JSON_COMPACT);
    struct ckpt_loaded from = loaded_of(TRAINED, "{}", text);
    assert_int_equal(go_on(&from, 2, "\"training.left_out\":true,\"training.outlying\":true"), 0);
    free(begun);
    free(text);
    json_decref(saved);
}

static int begin_as(const char *orders, int64_t replay_step)
{
    char text[1024], *out = NULL;
    struct lineage_data data = {-1, 0, "hash", replay_step};
    snprintf(text, sizeof(text), "{\"orders\":[%s]}", orders);
    struct ckpt_loaded from = loaded_of(TRAINED, "{\"training\":{" SIZES "}}", text);
    int rc = lineage_continue(&out, config_of(1), &from, &data);
    free(out);
    return rc;
}

/* Later orders do not count. */
TEST(test_lineage__a_replay_begins_with_the_first_order_of_the_run)
{
    assert_int_equal(begin_as("{\"step\":0}", 7), 0);
    assert_int_equal(begin_as("{\"step\":0},{\"step\":7,\"training.seq_len\":64}", 7), 0);
    assert_int_equal(begin_as("{\"step\":0},{\"step\":6,\"training.seq_len\":64}", 7),
                     ERR_NOT_FOUND);
    assert_non_null(strstr(report_message(), "another order of samples and sums before step 7"));
    assert_int_equal(begin_as("{\"step\":6}", 7), ERR_NOT_FOUND); /* the list was cut */
    assert_int_equal(begin_as("{\"step\":0,\"training.seq_len\":64},{\"step\":7}", 7),
                     ERR_MISMATCH);
    assert_non_null(strstr(report_message(), "training.seq_len = 64, this configuration has 32"));
}

static int begin_with(const char *path, bool model_only, const char *recorded)
{
    struct config *config = config_of(1);
    config->seed = 5;
    config->initial_load_model_only = model_only;
    strcpy(config->initial_load_path, path);
    struct ckpt_loaded oldest = loaded_of(TRAINED, recorded, "{}");
    return identity_check_beginning(config, &oldest);
}

TEST(test_identity__a_replay_begins_with_the_weights_with_which_the_run_began)
{
    static const struct {
        const char *path;
        bool model_only;
        const char *recorded;
        int want;
    } cases[] = {
        {"", true, "{}", 0},
        {"", true, "{\"debug\":{\"seed\":5}}", 0},
        {"", true, "{\"debug\":{\"seed\":6}}", ERR_MISMATCH},
        {"", true, "{\"checkpoint\":{\"initial_load_path\":\"base\"}}", ERR_MISMATCH},
        {"", true, "{\"checkpoint\":{\"initial_load_model_only\":false}}", 0}, /* not used */
        {"base", true, "{\"checkpoint\":{\"initial_load_path\":\"\"}}", ERR_MISMATCH},
        {"base", true, "{\"checkpoint\":{\"initial_load_path\":\"base\"}}", 0},
        {"base@7", true, "{\"checkpoint\":{\"initial_load_path\":\"base\"}}", 0},
        {"base2", true, "{\"checkpoint\":{\"initial_load_path\":\"base\"}}", ERR_MISMATCH},
        {"base", true, "{\"checkpoint\":{\"initial_load_path\":\"base@7\"}}", ERR_MISMATCH},
        {"base", true, "{\"checkpoint\":{\"initial_load_model_only\":false}}", ERR_MISMATCH},
        {"base", false, "{\"checkpoint\":{\"partial\":true}}", ERR_MISMATCH},
        {"base", false, "{\"checkpoint\":{\"partial_fresh\":\"output\"}}", ERR_MISMATCH},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(begin_with(cases[i].path, cases[i].model_only, cases[i].recorded),
                         cases[i].want);
}

SUITE(NULL, NULL)
