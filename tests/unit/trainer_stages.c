/* trainer_stages.c - the blocks of a pipeline's stages.
 *
 * Goal: by layers the ends count as configured; by cost no other cut has a cheaper most expensive
 * stage; by names the stages are the named ones, or the name is refused. Method: all cuts of small
 * models are tried. */
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/plan/stages.h"

#include <string.h>

#define SEQ 64
#define STAGES_MAX 6

static struct model_table *new_model(uint32_t layers, uint32_t vocab)
{
    struct model_shape shape;
    struct model_table *table;
    assert_int_equal(model_shape_of_flavor(&shape, "tiny", vocab), 0);
    shape.layers = layers;
    assert_int_equal(model_table_new(&table, &shape), 0);
    return table;
}

static void want_cut(const struct stages_options *options, const uint32_t *want)
{
    uint32_t first[STAGES_MAX + 1];
    if (stages_cut(first, options) != 0)
        fail_msg("%s", report_line());
    for (uint32_t s = 0; s <= options->num_stages; s++)
        assert_int_equal(first[s], want[s]);
}
#define WANT_CUT(options, ...) want_cut(options, (const uint32_t[]){__VA_ARGS__})

static void want_refused(const struct stages_options *options, const char *reason)
{
    uint32_t first[STAGES_MAX + 1];
    assert_int_equal(stages_cut(first, options), ERR_INVALID);
    if (strstr(report_message(), reason) == NULL)
        fail_msg("\"%s\" is not in: %s", reason, report_message());
}

TEST(test_stages__by_layers_the_ends_count_for_layers)
{
    struct model_table *table = new_model(8, 300);
    struct stages_options o = {.table = table, .num_stages = 4, .names = "", .split_points = ""};
    WANT_CUT(&o, 0, 3, 5, 7, 10);
    o.first_less = 1;
    o.last_less = 1;
    WANT_CUT(&o, 0, 3, 6, 8, 10);
    o.last_less = 4;
    want_refused(&o, "the last with 4: stage 3 would have -1");
    o.num_stages = 1;
    WANT_CUT(&o, 0, 10);
    model_table_free(table);
}

static double dearest(const struct model_table *table, const uint32_t *first, uint32_t stages)
{
    double most = 0;
    for (uint32_t s = 0; s < stages; s++) {
        double cost = 0;
        for (uint32_t b = first[s]; b < first[s + 1]; b++)
            cost += stages_cost(table, b, SEQ);
        most = cost > most ? cost : most;
    }
    return most;
}

/* The least of all cuts whose stages from `stage` on are still to be made. */
static double least_of_all(const struct model_table *table, uint32_t *first, uint32_t stage,
                           uint32_t stages)
{
    double least = 1e300;
    if (stage == stages) {
        first[stages] = table->num_blocks;
        return dearest(table, first, stages);
    }
    for (uint32_t b = first[stage - 1] + 1; b + (stages - stage) <= table->num_blocks; b++) {
        first[stage] = b;
        double cost = least_of_all(table, first, stage + 1, stages);
        least = cost < least ? cost : least;
    }
    return least;
}

static void want_least(const struct model_table *table, uint32_t stages)
{
    uint32_t first[STAGES_MAX + 1], tried[STAGES_MAX + 1] = {0};
    struct stages_options o = {.table = table,
                               .num_stages = stages,
                               .by_cost = true,
                               .seq = SEQ,
                               .names = "",
                               .split_points = ""};
    assert_int_equal(stages_cut(first, &o), 0);
    assert_int_equal(first[0], 0);
    assert_int_equal(first[stages], table->num_blocks);
    for (uint32_t s = 0; s < stages; s++)
        assert_true(first[s] < first[s + 1]);
    assert_true(dearest(table, first, stages) == least_of_all(table, tried, 1, stages));
}

TEST(test_stages__by_cost_no_other_cut_has_a_cheaper_dearest_stage)
{
    for (uint32_t layers = 1; layers <= 7; layers++)
        for (uint32_t vocab = 100; vocab < 40000; vocab *= 5) {
            struct model_table *table = new_model(layers, vocab);
            for (uint32_t stages = 1; stages <= STAGES_MAX && stages <= layers + 2; stages++)
                want_least(table, stages);
            model_table_free(table);
        }
}

TEST(test_stages__by_names_stages_are_the_named_ones_or_refused)
{
    struct model_table *table = new_model(3, 300);
    struct stages_options o = {.table = table, .num_stages = 2, .split_points = ""};
    o.names = "tok_embeddings,layers.0;layers.1,layers.2,norm,output";
    assert_int_equal(stages_named(o.names, ""), 2);
    WANT_CUT(&o, 0, 2, 5);
    o.names = "tok_embeddings; layers.0, layers.1, layers.2, norm, output";
    WANT_CUT(&o, 0, 1, 5);
    o.names = "tok_embeddings,layers.0,layers.1,layers.2;norm,output";
    WANT_CUT(&o, 0, 4, 5);
    o.names = "tok_embeddings,layers.0;layers.2,layers.1,norm,output";
    want_refused(&o, "\"layers.2\" where layers.1 is expected");
    o.names = "tok_embeddings,layers.0,layers.1,layers.2,norm;output";
    want_refused(&o, "where output on the stage of norm is expected");
    o.names = "tok_embeddings,layers.0;layers.1,layers.2,norm";
    want_refused(&o, "where output is expected");
    o.names = "tok_embeddings,layers.0;layers.1,layers.2,norm,output,layers.3";
    want_refused(&o, "\"layers.3\" where the end is expected");
    model_table_free(table);
}

TEST(test_stages__split_points_begin_stages)
{
    struct model_table *table = new_model(4, 300);
    struct stages_options o = {.table = table, .num_stages = 3, .names = ""};
    o.split_points = "layers.1,norm";
    assert_int_equal(stages_named("", o.split_points), 3);
    WANT_CUT(&o, 0, 2, 5, 6);
    o.split_points = "layers.2,layers.1";
    want_refused(&o, "\"layers.1\" cannot begin a stage");
    o.split_points = "layers.2,layers.9";
    want_refused(&o, "\"layers.9\" cannot begin a stage");
    assert_int_equal(stages_named("", ""), 0);
    model_table_free(table);
}

SUITE(NULL, NULL)
