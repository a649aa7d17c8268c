/* watch.c - what a running ckptd does, again and again: saves in work, the newest checkpoint,
 * rates.
 *
 * Each look is one Status call; rates are differences between two looks. A line per look, or a JSON
 * object per line with --json. A ckptd that goes away is said and waited for: it may be restarted
 * under load. */
#include "clients/cli/cli.h"
#include "proto/json.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What is compared from one look to the next. */
struct look {
    double seconds; /* when */
    uint64_t committed, read, commits;
    bool is_there;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t number_in(const json_t *object, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 ? (uint64_t)value : 0;
}

static struct look look_of(const json_t *status)
{
    const json_t *totals = json_object_get(status, "since_start");
    return (struct look){.seconds = now(),
                         .committed = number_in(totals, "bytes_committed"),
                         .read = number_in(totals, "bytes_read"),
                         .commits = number_in(totals, "commits"),
                         .is_there = true};
}

/* Bytes per second; a counter that went back is that of another ckptd. */
static uint64_t rate(uint64_t before, uint64_t after, double seconds)
{
    return after >= before && seconds > 0 ? (uint64_t)((double)(after - before) / seconds) : 0;
}

static int print_json(const json_t *status, uint64_t write_rate, uint64_t read_rate)
{
    char when[32];
    manifest_now(when);
    json_begin();
    json_t *line = json_pack("{ss sI sI sO sO sO}", "time", when, "committed_bytes_per_second",
                             (json_int_t)write_rate, "read_bytes_per_second", (json_int_t)read_rate,
                             "saves", json_object_get(status, "saves"), "last_commit",
                             json_object_get(status, "last_commit"), "since_start",
                             json_object_get(status, "since_start"));
    if (line != NULL)
        text_json_value(stdout, line, JSON_COMPACT);
    json_decref(line);
    if (!json_end())
        return report_error(ERR_MEMORY, NULL, "no memory to print a look");
    printf("\n");
    return 0;
}

static void print_save(const json_t *save)
{
    char run[128], size[32];
    const char *name = json_string_value(json_object_get(save, "run"));
    printf("  saving %s@%llu-a%llu  %s  %llu of %s began, %llu copied, %llu durable%s\n",
           text_safe(run, sizeof run, name != NULL ? name : "?"),
           (unsigned long long)number_in(save, "step"),
           (unsigned long long)number_in(save, "attempt"),
           text_bytes(size, sizeof size, number_in(save, "bytes")),
           (unsigned long long)number_in(save, "ranks_begun"),
           text_count(number_in(save, "ranks"), "rank").text,
           (unsigned long long)number_in(save, "ranks_ended"),
           (unsigned long long)number_in(save, "ranks_durable"),
           json_is_true(json_object_get(save, "failing")) ? "  FAILING" : "");
}

static int print_text(const json_t *status, uint64_t write_rate, uint64_t read_rate)
{
    const json_t *saves = json_object_get(status, "saves");
    const json_t *newest = json_object_get(status, "last_commit");
    const char *run = json_string_value(json_object_get(newest, "run"));
    char when[32], name[200] = "none since its start", safe[128], size[2][32];
    size_t index;
    json_t *save;
    manifest_now(when);
    if (run != NULL)
        snprintf(name, sizeof name, "%s@%llu-a%llu in %.2f s", text_safe(safe, sizeof safe, run),
                 (unsigned long long)number_in(newest, "step"),
                 (unsigned long long)number_in(newest, "attempt"),
                 json_number_value(json_object_get(newest, "seconds")));
    printf("%s  newest: %s  %s in work  committed %s/s  read %s/s\n", when, name,
           text_count(json_array_size(saves), "save").text, text_bytes(size[0], 32, write_rate),
           text_bytes(size[1], 32, read_rate));
    json_array_foreach(saves, index, save) print_save(save);
    return 0;
}

/* One look. ERR_UNAVAILABLE is an answer too once ckptd has been seen. */
static int look_again(struct look *last, const struct cli *cli)
{
    json_t *status = NULL;
    int error = cli_call_status(&status, cli);
    if (error == 0) {
        struct look look = look_of(status);
        double seconds = last->seconds > 0 ? look.seconds - last->seconds : 0;
        uint64_t write_rate = rate(last->committed, look.committed, seconds);
        uint64_t read_rate = rate(last->read, look.read, seconds);
        error = (cli->is_json ? print_json : print_text)(status, write_rate, read_rate);
        *last = look;
    } else if ((error == ERR_UNAVAILABLE || error == ERR_TIMEOUT) && last->seconds > 0) {
        if (last->is_there && cli->is_json)
            printf("{\"unavailable\": true}\n");
        else if (last->is_there)
            printf("%s\n", report_line());
        last->is_there = false;
        error = 0;
    }
    fflush(stdout);
    json_decref(status);
    return error;
}

int cli_watch(const struct cli *cli)
{
    struct look last = {0};
    const struct timespec pause = {
        .tv_sec = (time_t)cli->interval,
        .tv_nsec = (long)((cli->interval - (double)(time_t)cli->interval) * 1e9)};
    int error = look_again(&last, cli);
    for (int64_t count = 1; error == 0 && !ferror(stdout) && count != cli->count; count++) {
        nanosleep(&pause, NULL);
        error = look_again(&last, cli);
    }
    return error;
}
