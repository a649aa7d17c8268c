/* ckptd_metrics.c - the file of numbers for Prometheus.
 *
 * Goal: it holds the numbers of Status, in the text format, always whole, and goes with ckptd.
 * Method: the service of ckptd_bed.h with a short interval; the file is read while it is written
 * again and again, each line held against the format. */
#include "proto/base/histogram.h"
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/suite.h"

#include <ctype.h>

static struct peer peers[RANKS];
static char path[200];

static int open_with_file(void **state)
{
    struct bed *bed = bed_new();
    *state = bed;
    snprintf(path, sizeof path, "%s/metrics.prom", bed->root);
    snprintf(bed->config.metrics_file, sizeof bed->config.metrics_file, "%s", path);
    bed->config.metrics_every_ms = 1;
    return bed_start(bed);
}

/* name, perhaps labels, a number; or a comment. */
static void check_line(const char *line)
{
    size_t name = strspn(line, "abcdefghijklmnopqrstuvwxyz0123456789_");
    char *end;
    if (line[0] == '#')
        return;
    assert_int_equal(strncmp(line, "holdfast_", 9), 0);
    const char *value = line[name] == '{' ? strstr(line, "} ") + 1 : line + name;
    assert_int_equal(*value, ' ');
    strtod(value + 1, &end);
    assert_true(end > value + 1 && *end == '\n');
}

/* The value of a metric; -1 when it has no line. Checks all lines; the last one is always there. */
static double read_metric(const char *name)
{
    char line[400];
    double found = -1;
    bool ended = false;
    FILE *file = NULL;
    for (int i = 0; i < 1000 && !file; i++, sleep_ms(file ? 0 : 5))
        file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        check_line(line);
        if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ' ')
            found = strtod(line + strlen(name), NULL);
        ended = strncmp(line, "holdfast_build_info{version=", 28) == 0;
    }
    fclose(file);
    assert_true(ended);
    return found;
}

static bool await_metric(const char *name, double want)
{
    for (int i = 0; i < 1000 && read_metric(name) != want; i++)
        sleep_ms(5);
    return read_metric(name) == want;
}

BED_TEST_BETWEEN(test_metrics__the_numbers_of_status_are_in_the_file, open_with_file, bed_tear_down)
{
    assert_true(read_metric("holdfast_commits_total") == 0);
    assert_true(read_metric("holdfast_last_commit_bytes") == -1); /* there is none */
    bed_open_world(bed, peers, RANKS);
    assert_true(save_step(peers, RANKS, 7));
    assert_true(await_metric("holdfast_commits_total", 1));
    static const struct {
        const char *name;
        double value; /* -1: more than 0 */
    } numbers[] = {
        {"holdfast_commits_total", 1},
        {"holdfast_last_commit_step", 7},
        {"holdfast_save_seconds_count", 1},
        {"holdfast_save_seconds_bucket{le=\"+Inf\"}", 1},
        {"holdfast_commit_seconds_count", 1},
        {"holdfast_run_save_seconds_count{run=\"" RUN "\"}", 1},
        {"holdfast_tier_io_seconds_count{tier=\"local\",op=\"write\"}", -1},
        {"holdfast_tier_io_bytes_total{tier=\"local\",op=\"write\"}", -1},
        {"holdfast_load_seconds_bucket{le=\"+Inf\"}", 0},
        {"holdfast_disk_bytes_left", -1},
        {"holdfast_io_write_operations_total", -1},
        {"holdfast_io_write_p99_seconds", -1},
        {"holdfast_process_bytes_resident", -1},
        {"holdfast_disk_bytes_promised", 0},
        {"holdfast_scrub_damaged_total", 0},
        {"holdfast_offline", 0},
        {"holdfast_draining", 0},
        {"holdfast_saves", 0},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double value = read_metric(numbers[i].name);
        if (numbers[i].value < 0 ? value <= 0 : value != numbers[i].value)
            fail_msg("%s is %f", numbers[i].name, value);
    }
    double seconds = read_metric("holdfast_save_seconds_sum");
    assert_true(seconds == read_metric("holdfast_last_commit_seconds"));
    for (uint32_t i = 0; i < HISTOGRAM_BOUNDS; i++) { /* each with all that took no longer */
        char bucket[80];
        double bound = (double)(1u << i) / 1000;
        snprintf(bucket, sizeof bucket, "holdfast_save_seconds_bucket{le=\"%.3f\"}", bound);
        assert_true(read_metric(bucket) == (seconds <= bound));
    }
    assert_true(read_metric("holdfast_run_load_seconds_count{run=\"" RUN "\"}") == -1);
    assert_int_equal(load_all(bed, 7, NULL), 0);
    assert_true(await_metric("holdfast_load_seconds_count", 1));
    assert_true(read_metric("holdfast_run_load_seconds_count{run=\"" RUN "\"}") == 1);
    for (int i = 0; i < 200; i++) /* while it is replaced all the time */
        assert_true(read_metric("holdfast_pool_segments") == 24);
    peers_close(peers, RANKS);
}

BED_TEST_BETWEEN(test_metrics__a_store_that_went_offline_is_told, open_with_file, bed_tear_down)
{
    bed_stop(bed);
    snprintf(bed->config.store, sizeof bed->config.store,
             "fault:late=1,only=publish,fail_at=4:memory:"); /* the first manifest */
    assert_int_equal(bed_start(bed), 0);
    assert_true(read_metric("holdfast_offline") == 0);
    bed_open_world(bed, peers, 1);
    assert_false(save_step(peers, 1, 1));
    peers_close(peers, 1);
    assert_true(await_metric("holdfast_offline", 1));
    assert_true(read_metric("holdfast_failed_saves_total") == 1);
}

BED_TEST_BETWEEN(test_metrics__the_file_goes_with_ckptd_and_a_bad_place_stops_nobody,
                 open_with_file, bed_tear_down)
{
    read_metric("");
    bed_stop(bed);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(bed->config.metrics_file, sizeof bed->config.metrics_file, "/nonexistent/metrics");
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, RANKS);
    assert_true(save_step(peers, RANKS, 1));
    peers_close(peers, RANKS);
}

int main(void)
{
    log_setup("ckptd_metrics", NULL);
    return suite_run(NULL, NULL);
}
