/* trainer_jsonl.c - a run's steps as lines of JSON.
 *
 * Goal: each line is JSON that says which attempt made it, and a step its range of samples. Method:
 * two starts of a run write steps that no rank has made; the lines are parsed. */
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/observe/jsonl.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct config config = {.micro_batches = 6,
                               .local_batch_size = 2,
                               .steps = 20,
                               .decay_total_steps = 20,
                               .decay_ratio = -1,
                               .decay_type = DECAY_LINEAR,
                               .run = "mine",
                               .text.outlying = "skip"};

#define LINES 5 /* of a start */

static void write_start(uint64_t attempt, int64_t from, double grad_norm)
{
    static const struct history past = {.first = 3, .halvings = 1, .num = 1, .loss = {4.5}};
    struct jsonl *j;
    struct step_result result = {.max_loss = 3, .sources[1] = {.sum = 10, .counted = 4}};
    struct data_place place = {.num_sources = 2, .sources[1] = {.name = "prose"}};
    struct progress p = {.step = from + 1,
                         .schedule_update = from + 1,
                         .next_sample = (uint64_t)(from + 1) * 12,
                         .tokens = 99,
                         .tokens_digest = 0xab,
                         .loss = 2.5,
                         .grad_norm = grad_norm};
    assert_int_equal(jsonl_open(&j, &config), 0);
    jsonl_start(j, &(struct snapshot_times){.attempt = attempt, .from_attempt = attempt - 1}, from,
                &past);
    struct step_calls calls = {
        .num = 2,
        .of = {{"dp_shard", COMM_ALL_GATHER, 24, 4096, 2048}, {"world", COMM_SUM_I64, 3, 24, 24}}};
    jsonl_step(j, &p, &result, &place, &calls);
    jsonl_validation(j, &p, 4);
    jsonl_spike(j, from + 1, &(struct spike){.kind = SPIKE_NONE});
    jsonl_spike(j, from + 1, &(struct spike){.kind = SPIKE_SLOW, .began = 3, .steps = 4});
    jsonl_outlier(j, from + 1,
                  &(struct outlier){.is_norm = true, .value = 9, .median = 2, .window = 64});
    jsonl_close(j);
}

static json_int_t integer(const json_t *line, const char *key)
{
    assert_true(json_is_integer(json_object_get(line, key)));
    return json_integer_value(json_object_get(line, key));
}

TEST(test_jsonl__each_line_has_its_attempt_and_a_step_its_samples)
{
    char line[1000];
    const char *base = getenv("TMPDIR");
    snprintf(config.jsonl_file, sizeof(config.jsonl_file), "%s/steps-%d.jsonl",
             base != NULL ? base : "/tmp", (int)getpid());
    write_start(1, 7, 1);
    write_start(2, 5, (double)NAN);
    FILE *file = fopen(config.jsonl_file, "re");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file)); /* of the first start: the file was empty */
    json_t *restored = json_loads(line, 0, NULL);
    assert_int_equal(integer(restored, "attempt"), 0);
    assert_int_equal(integer(restored, "step"), 6);
    assert_true(json_real_value(json_object_get(restored, "loss")) == 4.5);
    assert_true(json_is_true(json_object_get(restored, "restored")));
    json_decref(restored);
    for (int i = 0; i < 2 * LINES; i++) {
        int64_t from = i < LINES ? 7 : 5;
        assert_non_null(fgets(line, sizeof(line), file));
        json_t *object = json_loads(line, 0, NULL);
        assert_int_equal(integer(object, "attempt"), i < LINES ? 1 : 2);
        bool is_start = i % LINES == 0;
        assert_int_equal(integer(object, is_start ? "start_step" : "step"), from + !is_start);
        if (is_start)
            assert_int_equal(json_integer_value(json_object_get(object, "from_attempt")),
                             i / LINES);
        if (i % LINES == 1) {
            assert_int_equal(integer(object, "first_sample"), from * 12);
            assert_int_equal(integer(object, "last_sample"), from * 12 + 11);
            assert_string_equal(json_string_value(json_object_get(object, "tokens_digest")),
                                "00000000000000ab");
            const json_t *losses = json_object_get(object, "losses");
            assert_true(json_real_value(json_object_get(losses, "prose")) == 2.5);
            assert_int_equal(json_object_size(losses), 1);
            const json_t *calls = json_object_get(object, "calls");
            assert_int_equal(json_object_size(calls), 2);
            calls = json_object_get(calls, "dp_shard all_gather");
            assert_int_equal(integer(calls, "calls"), 24);
            assert_int_equal(integer(calls, "bytes"), 4096);
            assert_int_equal(integer(calls, "sent"), 2048);
            assert_int_equal(json_is_null(json_object_get(object, "grad_norm")), i > LINES);
        }
        if (i % LINES == 3) {
            assert_string_equal(json_string_value(json_object_get(object, "loss_spike")), "slow");
            assert_int_equal(integer(object, "began"), 3);
            assert_int_equal(integer(object, "steps"), 4);
        }
        if (i % LINES == 4) {
            assert_string_equal(json_string_value(json_object_get(object, "outlying")),
                                "grad_norm");
            assert_string_equal(json_string_value(json_object_get(object, "policy")), "skip");
            assert_true(json_real_value(json_object_get(object, "value")) == 9);
            assert_int_equal(integer(object, "window"), 64);
        }
        json_decref(object);
    }
    assert_null(fgets(line, sizeof(line), file));
    fclose(file);
    unlink(config.jsonl_file);
}

/* Steps 6 to 8 of a start that continues after 5; `digest` is that of the first. */
static void write_steps(uint64_t attempt, const char *run, uint64_t digest, uint64_t next_sample)
{
    static const struct history none;
    struct jsonl *j;
    struct data_place place = {.num_sources = 1};
    struct step_result result = {0};
    struct step_calls calls = {0};
    snprintf(config.run, sizeof(config.run), "%s", run);
    assert_int_equal(jsonl_open(&j, &config), 0);
    jsonl_start(j, &(struct snapshot_times){.attempt = attempt}, 5, &none);
    for (int64_t step = 6; step <= 8; step++) {
        struct progress p = {.step = step,
                             .schedule_update = step,
                             .next_sample = next_sample + (uint64_t)(step - 6) * 12,
                             .tokens_digest = digest++};
        jsonl_step(j, &p, &result, &place, &calls);
    }
    jsonl_close(j);
}

/* Of the last three lines: how many say that they differ from the attempt. */
static int count_differing(uint64_t attempt)
{
    char line[1000];
    int found[3] = {0};
    FILE *file = fopen(config.jsonl_file, "re");
    assert_non_null(file);
    for (int i = 0; fgets(line, sizeof(line), file) != NULL; i++) {
        json_t *object = json_loads(line, 0, NULL);
        const json_t *from = json_object_get(object, "tokens_differ_from");
        found[i % 3] = from != NULL && json_integer_value(from) == (json_int_t)attempt;
        assert_true(from == NULL || json_integer_value(from) == (json_int_t)attempt);
        json_decref(object);
    }
    fclose(file);
    unlink(config.jsonl_file);
    return found[0] + found[1] + found[2];
}

TEST(test_jsonl__a_step_made_again_of_other_tokens_is_told_if_it_has_the_same_samples)
{
    static const struct {
        const char *run;
        uint64_t digest, next_sample;
        int differ;
    } cases[] = {{"mine", 1000, 72, 0},  /* the same */
                 {"mine", 7, 72, 3},     /* other tokens */
                 {"mine", 7, 84, 0},     /* other samples */
                 {"another", 7, 72, 0}}; /* it wrote into the same file */
    const char *base = getenv("TMPDIR");
    snprintf(config.jsonl_file, sizeof(config.jsonl_file), "%s/again-%d.jsonl",
             base != NULL ? base : "/tmp", (int)getpid());
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_steps(1, "mine", 1000, 72);
        write_steps(2, cases[i].run, cases[i].digest, cases[i].next_sample);
        assert_int_equal(count_differing(1), cases[i].differ);
    }
}

SUITE(NULL, NULL)
