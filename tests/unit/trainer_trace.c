/* trainer_trace.c - the drawing of a real step.
 *
 * Goal: every operation of every rank's program is there once, on its lane, in the order of the
 * lane and of the waits between lanes and stages; so are the rank's calls. Method: two stages of
 * two shards make three steps, of which the second is drawn; the file is read again as JSON. The
 * same of a file of each rank. */
#include "proto/base/json.h"
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"
#include "trainer/comm/flight.h"
#include "trainer/plan/program.h"
#include "trainer/run/trace.h"

#include <unistd.h>

#define RANKS 4
#define CALLS_OF_GATHERING 4 /* the events, after the step */

struct drawn {
    struct config config;
    char path[128];
    uint32_t num_ops[RANKS];
    uint64_t num_calls[RANKS]; /* in the step that is drawn */
    int64_t at_step;
    struct trace_options options; /* path "": the rest is as the test says */
};

static int draw_steps(struct rank *r, void *user)
{
    struct drawn *d = user;
    struct trace *trace = NULL;
    uint32_t me = r->world->rank;
    int rc = trace_new(&trace, &d->options, r->p);
    for (int64_t step = 0; step < 3 && rc == 0; step++) {
        struct step_input input = {
            .ahead = r->ahead, .first_sample = first_sample(&d->config, step), .step = step + 1};
        struct step_result result;
        uint64_t before = flight_last(r->world->flight);
        rc = trace_step(trace, r->p, &input, &result);
        if (step + 1 == d->at_step)
            d->num_calls[me] = flight_last(r->world->flight) - before - CALLS_OF_GATHERING;
        d->num_ops[me] = parallel_program(r->p)->num_ops;
    }
    trace_free(trace);
    return rc;
}

static struct drawn *new_drawn(const char *name, int64_t at_step)
{
    struct drawn *d = calloc(1, sizeof(*d));
    d->config = configure("parallelism.pipeline_parallel_degree=2");
    d->at_step = at_step;
    snprintf(d->path, sizeof(d->path), "%s/%s", folder, name);
    d->options = (struct trace_options){.path = d->path, .at_step = at_step};
    return d;
}

static int draw_all(struct drawn *d)
{
    return on_ranks(RANKS,
                    &(struct rank_options){.config = &d->config, .run = draw_steps, .user = d});
}

static struct drawn *draw(const char *name, int64_t at_step)
{
    struct drawn *d = new_drawn(name, at_step);
    assert_int_equal(draw_all(d), 0);
    return d;
}

static json_int_t number_of(const json_t *event, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(event, "args"), key));
}

static bool is_call(const char *name)
{
    return strchr(name, '(') != NULL;
}

static double time_of(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

/* When the event of this name began; for a stage and leaf. */
static double begin_of(const json_t *events, const char *name, json_int_t stage, json_int_t leaf)
{
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event)
    {
        const char *its = json_string_value(json_object_get(event, "name"));
        bool is_it = strcmp(its, name) == 0 && number_of(event, "stage") == stage;
        if (is_it && number_of(event, "leaf") == leaf && json_object_get(event, "ts") != NULL)
            return time_of(event, "ts");
    }
    fail_msg("no %s of stage %d", name, (int)stage);
    return 0;
}

TEST(test_trace__a_step_is_drawn_operation_by_operation)
{
    struct drawn *d = draw("step.json", 2);
    uint32_t ops[RANKS] = {0}, calls[RANKS] = {0};
    double end_of[RANKS][16] = {0}; /* of the last operation of a row */
    size_t i;
    json_t *event;
    json_t *all = json_load_file(d->path, 0, NULL);
    json_t *events = json_object_get(all, "traceEvents");
    assert_true(json_array_size(events) > 0);
    json_array_foreach(events, i, event)
    {
        const char *name = json_string_value(json_object_get(event, "name"));
        json_int_t rank = json_integer_value(json_object_get(event, "pid"));
        json_int_t row = json_integer_value(json_object_get(event, "tid"));
        if (json_object_get(event, "ts") == NULL)
            continue; /* names of rows */
        assert_true(rank < RANKS && row < 16);
        assert_true(time_of(event, "dur") >= 0 && time_of(event, "dur") < 60e6);
        calls[rank] += is_call(name);
        ops[rank] += !is_call(name);
        if (is_call(name))
            continue;
        assert_true(time_of(event, "ts") >= end_of[rank][row] - 0.002); /* rounded */
        end_of[rank][row] = time_of(event, "ts") + time_of(event, "dur");
    }
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(ops[rank], d->num_ops[rank]);
        assert_int_equal(calls[rank], d->num_calls[rank]);
    }
    for (json_int_t leaf = 0; leaf < 5; leaf++) {
        assert_true(begin_of(events, "send", 0, leaf) < begin_of(events, "loss", 1, leaf));
        assert_true(begin_of(events, "backward", 1, leaf) < begin_of(events, "backward", 0, leaf));
    }
    json_decref(all);
    unlink(d->path);
    free(d);
}

TEST(test_trace__a_name_that_ends_in_svg_is_a_drawing)
{
    struct drawn *d = draw("step.svg", 1);
    char line[512];
    uint32_t rects = 0, ops = 0;
    FILE *file = fopen(d->path, "r");
    while (fgets(line, sizeof(line), file) != NULL)
        rects += strstr(line, "<rect ") != NULL;
    fclose(file);
    for (int rank = 0; rank < RANKS; rank++)
        ops += d->num_ops[rank];
    assert_true(rects > ops); /* and calls */
    unlink(d->path);
    free(d);
}

TEST(test_trace__a_file_that_cannot_be_made_is_refused_at_the_start)
{
    struct drawn *d = new_drawn("nowhere/step.json", 1);
    assert_int_equal(draw_all(d), ERR_INVALID);
    assert_non_null(strstr(report_line(), "nowhere/step.json"));
    free(d);
}

/* The ranks of a file's events, as bits; 0: there is no such file, which is removed. */
static unsigned ranks_in(const char *name)
{
    char path[192];
    unsigned ranks = 0;
    size_t i;
    json_t *event;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    json_t *all = json_load_file(path, 0, NULL);
    json_array_foreach(json_object_get(all, "traceEvents"), i, event) ranks |=
        1u << json_integer_value(json_object_get(event, "pid"));
    json_decref(all);
    unlink(path);
    return ranks;
}

static void remove_folder(const char *name)
{
    char path[192];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(rmdir(path), 0); /* nothing else is in it */
}

TEST(test_trace__each_rank_writes_its_own_of_chosen_steps)
{
    struct drawn *d = new_drawn("", 0);
    d->options = (struct trace_options){.path = "", .freq = 2, .steps = ""};
    snprintf(d->options.folder, sizeof(d->options.folder), "%s/traces/of", folder);
    for (int by_list = 0; by_list < 2; by_list++) {
        assert_int_equal(draw_all(d), 0);
        for (unsigned rank = 0; rank < RANKS; rank++) {
            char name[64];
            snprintf(name, sizeof(name), "traces/of/iteration_%d/rank%u_trace.json",
                     by_list ? 3 : 2, rank);
            assert_int_equal(ranks_in(name), 1u << rank);
        }
        remove_folder(by_list ? "traces/of/iteration_3" : "traces/of/iteration_2");
        d->options.steps = "3-4";
    }
    remove_folder("traces/of");
    remove_folder("traces");
    free(d);
}

SUITE(make_tokens, remove_tokens)
