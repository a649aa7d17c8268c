/* clients_report.c - the curves and text of a run's report.
 *
 * Goal: a long curve keeps every extreme value; steps that were made twice are drawn from the
 * branch that lasts. Lines that are truncated, broken or of another run change nothing. No text of
 * a file becomes a tag. Method: curves and files of a few lines, identified by their numbers. */
#include "clients/cli/report/report.h"
#include "proto/base/memfile.h"
#include "tests/unit/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- thinning ---- */

#define MANY 100003u

static double extreme(const struct point *points, uint32_t count, double sign)
{
    double most = -INFINITY;
    for (uint32_t i = 0; i < count; i++)
        most = isfinite(points[i].value) ? fmax(most, sign * points[i].value) : most;
    return sign * most;
}

TEST(test_curve__a_spike_of_one_step_is_never_thinned_away)
{
    struct point *points = malloc(MANY * sizeof *points);
    assert_non_null(points);
    for (uint32_t spike = 0; spike < MANY; spike += 9973) {
        uint32_t gaps = 0, values = 0;
        for (uint32_t i = 0; i < MANY; i++)
            points[i] = (struct point){i + 1, i % 7};
        points[spike].value = 100;
        points[MANY - 1 - spike].value = -100;
        points[MANY / 2].value = (double)NAN;
        uint32_t count = curve_thin(points, MANY);
        for (uint32_t i = 0; i < count; i++) {
            gaps += !isfinite(points[i].value);
            values += isfinite(points[i].value);
            assert_true(i == 0 || points[i].step > points[i - 1].step);
        }
        assert_true(values <= CURVE_POINTS && values > CURVE_POINTS / 2);
        assert_int_equal(gaps, 1);
        assert_true(extreme(points, count, 1) == 100 && extreme(points, count, -1) == -100);
    }
    free(points);
}

TEST(test_curve__a_short_one_stays_as_it_is_and_a_gap_is_null)
{
    struct point points[CURVE_POINTS];
    for (uint32_t i = 0; i < CURVE_POINTS; i++)
        points[i] = (struct point){i, i == 3 ? (double)NAN : i};
    assert_int_equal(curve_thin(points, CURVE_POINTS), CURVE_POINTS);
    json_t *curve = curve_json(points, 5);
    const json_t *values = json_object_get(curve, "values");
    assert_int_equal(json_array_size(values), 5);
    assert_true(json_is_null(json_array_get(values, 3)));
    assert_true(json_number_value(json_array_get(values, 4)) == 4);
    json_decref(curve);
}

/* ---- branches ---- */

static void read_text(struct metrics *out, const char *text)
{
    json_t *runs = json_pack("{sb sb}", "mine", 1, "before", 1);
    FILE *file = fmemopen((void *)(uintptr_t)text, strlen(text), "r");
    assert_non_null(file);
    assert_int_equal(metrics_read(out, file, "text", runs), 0);
    fclose(file);
    json_decref(runs);
}

/* "1:101 2:202": steps, and their values. */
static void want_curve(const struct metrics *metrics, enum metric metric, const char *want)
{
    char got[512] = "";
    size_t used = 0;
    struct point *points;
    uint32_t count;
    assert_int_equal(metrics_curve(&points, &count, metrics, metric), 0);
    for (uint32_t i = 0; i < count; i++)
        used += (size_t)snprintf(got + used, sizeof got - used, "%s%lld:%g", i > 0 ? " " : "",
                                 (long long)points[i].step, points[i].value);
    free(points);
    assert_string_equal(got, want);
}

#define START(attempt, step, from)                                                    \
    "{\"attempt\": " #attempt ", \"start_step\": " #step ", \"from_attempt\": " #from \
    ", \"time\": 1, \"run\": \"mine\"}\n"
#define FRESH(attempt) \
    "{\"attempt\": " #attempt ", \"start_step\": 0, \"time\": 1, \"run\": \"mine\"}\n"
#define STEP(attempt, step, loss) \
    "{\"attempt\": " #attempt ", \"step\": " #step ", \"time\": 2, \"loss\": " #loss "}\n"

TEST(test_metrics__of_steps_made_twice_those_of_the_branch_that_lasts_count)
{
    struct metrics metrics;
    read_text(&metrics,
              FRESH(1) STEP(1, 1, 11) STEP(1, 2, 12) STEP(1, 3, 13) STEP(1, 4, 14) STEP(1, 5, 15)
                  START(2, 3, 1) STEP(2, 4, 24) STEP(2, 5, 25) STEP(2, 6, 26) START(3, 4, 1)
                      STEP(3, 5, 35) START(4, 5, 3) STEP(4, 6, 46) STEP(4, 7, 47));
    want_curve(&metrics, METRIC_LOSS, "1:11 2:12 3:13 4:14 5:35 6:46 7:47");
    assert_int_equal(metrics.num_starts, 4);
    assert_int_equal(metrics.starts[0].lost, 0);
    assert_int_equal(metrics.starts[1].lost, 2); /* 4 and 5 of attempt 1 */
    assert_int_equal(metrics.starts[2].lost, 3); /* 4 to 6 of attempt 2: it left attempt 1 at 3 */
    assert_int_equal(metrics.starts[3].lost, 0);
    metrics_free(&metrics);
}

TEST(test_metrics__a_start_from_nothing_gives_up_all_before_it)
{
    struct metrics metrics;
    read_text(&metrics, FRESH(0) STEP(0, 1, 11) STEP(0, 2, 12) FRESH(0) STEP(0, 1, 21));
    want_curve(&metrics, METRIC_LOSS, "1:21");
    assert_int_equal(metrics.starts[1].lost, 2);
    metrics_free(&metrics);
}

TEST(test_metrics__what_a_checkpoint_had_of_the_steps_before_is_part_of_the_curve)
{
    struct metrics metrics;
    read_text(
        &metrics,
        "{\"attempt\": 3, \"step\": 2, \"loss\": 32, \"restored\": true}\n" STEP(3, 4,
                                                                                 34) START(5, 4, 3)
            STEP(5, 5, 55) "{\"attempt\": 5, \"step\": 5, \"validation_loss\": 9}\n"
                           "{\"attempt\": 5, \"step\": 6, \"loss\": null, \"tokens\": 60}\n"
                           "{\"attempt\": 5, \"step\": 6, \"loss_spike\": \"begins\", \"began\": "
                           "5, \"steps\": 1, \"most\": 8}\n"
                           "{\"attempt\": 5, \"step\": 7, \"loss_spike\": \"fast\", \"began\": 5,"
                           " \"steps\": 2, \"most\": 9}\n");
    want_curve(&metrics, METRIC_LOSS, "2:32 4:34 5:55 6:nan");
    want_curve(&metrics, METRIC_VALIDATION, "5:9");
    want_curve(&metrics, METRIC_TOKENS, "6:60");
    assert_int_equal(metrics.starts[1].lost, 0);
    assert_int_equal(json_array_size(metrics.spikes), 1);
    const json_t *spike = json_array_get(metrics.spikes, 0);
    assert_string_equal(member_text(spike, "kind"), "fast");
    assert_true(member_number(spike, "step") == 5);
    assert_true(json_number_value(json_object_get(spike, "most")) == 9);
    assert_null(json_object_get(spike, "start"));
    metrics_free(&metrics);
}

TEST(test_metrics__lines_that_are_cut_broken_or_of_another_run_are_counted_and_left_out)
{
    struct metrics metrics;
    read_text(
        &metrics,
        STEP(1, 1, 99) "{\"attempt\": 1, \"start_step\": 0, \"run\": \"other\"}\n" STEP(1, 1, 98)
            FRESH(1) STEP(
                1, 1, 11) "[]\n{\"step\n\n"
                          "{\"attempt\": 9, \"start_step\": 0, \"run\": \"other\"}\n" STEP(1, 2, 97)
                              START(2, 1, 1) STEP(2, 2, 22) "{\"attempt\": 2, \"st");
    want_curve(&metrics, METRIC_LOSS, "1:11 2:22");
    assert_true(metrics.has_start && metrics.is_torn);
    assert_int_equal(metrics.num_bad, 2);
    assert_int_equal(metrics.num_others, 5);
    metrics_free(&metrics);
    read_text(&metrics, STEP(1, 1, 11) STEP(1, 2, 12)); /* handed on without its starts */
    want_curve(&metrics, METRIC_LOSS, "1:11 2:12");
    assert_true(!metrics.has_start && !metrics.is_torn);
    metrics_free(&metrics);
}

TEST(test_metrics__a_start_whose_line_is_broken_goes_on_from_the_one_above_it)
{
    struct metrics metrics;
    read_text(&metrics, FRESH(1) STEP(1, 1, 11) STEP(1, 2, 12) "{\"attempt\": 2, \"start\n" STEP(
                            2, 2, 22) STEP(2, 3, 23));
    want_curve(&metrics, METRIC_LOSS, "1:11 2:22 3:23");
    assert_int_equal(metrics.starts[1].lost, 1);
    metrics_free(&metrics);
}

/* ---- charts ---- */

static char *chart_of(double first, double second)
{
    static const struct chart chart = {.title = "Loss", .curves = {"loss"}, .has_spikes = true};
    struct point points[] = {{1, first}, {2, (double)NAN}, {3, second}};
    char *text;
    size_t bytes;
    FILE *file = memfile_open(&text, &bytes);
    json_t *root = json_pack("{s{so} s[{sI ss sf}]}", "curves", "loss", curve_json(points, 3),
                             "spikes", "step", (json_int_t)2, "kind", "fast", "most", 1e300);
    draw_chart(file, &chart, root);
    assert_true(memfile_close(file));
    json_decref(root);
    return text;
}

TEST(test_chart__values_of_any_size_have_their_place)
{
    static const double values[] = {0, 5, -5, 1e17, 1e17 + 16, -1e99, 1e99, 1e-320, 3e-320, 1e200};
    static const size_t count = sizeof values / sizeof *values;
    for (size_t i = 0; i < count * count; i++) {
        char *text = chart_of(values[i / count], values[i % count]);
        bool is_far = values[i / count] > 1e100 && values[i % count] > 1e100;
        assert_int_equal(strlen(text) > 0, !is_far); /* which is no loss of any run */
        assert_true(strlen(text) < 8192 && strstr(text, "nan") == NULL);
        assert_null(strstr(text, "inf"));
        free(text);
    }
}

/* ---- the page ---- */

static char *page_of(const json_t *root)
{
    char *text;
    size_t bytes;
    FILE *file = memfile_open(&text, &bytes);
    assert_non_null(file);
    assert_int_equal(page_write(file, root), 0);
    assert_true(memfile_close(file));
    return text;
}

TEST(test_page__no_text_of_a_file_becomes_a_tag)
{
    static const char evil[] = "\"><script>'&\x1b\xff</style>";
    json_t *root = json_object();
    char *text;
    size_t bytes;
    FILE *file = memfile_open(&text, &bytes);
    page_text(file, evil);
    assert_true(memfile_close(file));
    assert_string_equal(text, "&quot;&gt;&lt;script&gt;&#39;&amp;??&lt;/style&gt;");
    free(text);
    /* Valid UTF-8, which is all that JSON can hold, wherever the page has a text. */
    static const char tag[] = "<script>";
    json_t *row = json_pack("{ss ss ss ss ss sI}", "time", tag, "durability", tag, "tiers", tag,
                            "tags", tag, "checkpoint", tag, "step", (json_int_t)7);
    json_t *damaged = json_pack("{ss ss}", "flaw", tag, "damage", tag);
    json_t *spike = json_pack("{sI ss sf}", "step", (json_int_t)1, "kind", tag, "most", 2.0);
    json_t *curve = json_pack("{s[ii] s[ff]}", "steps", 1, 2, "values", 2.0, 1.0);
    json_t *start = json_pack("{sI sI ss s{si}}", "attempt", (json_int_t)1, "step", (json_int_t)0,
                              "time", tag, "mesh", tag, 2);
    json_t *change = json_pack("{ss ss s[{ss ss s[s]}]}", "first", tag, "second", tag, "settings",
                               "what", tag, "first", tag, "second", tag);
    json_t *lineage =
        json_pack("{ss ss ss s[{ss ss}]}", "origin", tag, "converted_from", tag,
                  "initial_load_path", tag, "ancestors", "state", tag, "converted_from", tag);
    json_object_set_new(
        root, "head",
        json_pack("{ss ss ss ss}", "run", tag, "newest", tag, "begin", tag, "time", tag));
    json_object_set_new(root, "notes", json_pack("[s]", tag));
    json_object_set_new(root, "curves", json_pack("{so}", "loss", curve));
    json_object_set_new(root, "spikes", json_pack("[o]", spike));
    json_object_set_new(root, "checkpoints", json_pack("[oo]", row, damaged));
    json_object_set_new(root, "starts", json_pack("[o]", start));
    json_object_set_new(root, "changes", json_pack("[o]", change));
    json_object_set_new(root, "lineage", lineage);
    text = page_of(root);
    assert_null(strstr(text, "<script"));
    unsigned count = 0;
    for (const char *at = text; (at = strstr(at, "&lt;script&gt;")) != NULL; at++)
        count++;
    assert_int_equal(count, 26);
    free(text);
    json_decref(root);
}

SUITE(NULL, NULL)
