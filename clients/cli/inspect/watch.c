/* watch.c - polls a running ckptd, or a directory: uncommitted saves, the newest checkpoint, rates.
 *
 * Each poll is one Status call, or one scan of the files; rates are differences between two polls.
 * Prints a line per poll, or a JSON object per line with --json. When ckptd goes away, watch
 * reports that and waits for it: it may be restarted under load. */
#include "clients/cli/engine/cli.h"
#include "proto/base/clock.h"
#include "proto/base/json.h"

#include <stdlib.h>
#include <string.h>

/* The figures that one poll compares with the next. */
struct poll {
    double seconds; /* the time */
    uint64_t committed, read, commits;
    bool is_there;
};

static struct poll read_poll(const json_t *status)
{
    const json_t *totals = json_object_get(status, "since_start");
    return (struct poll){.seconds = clock_seconds(),
                         .committed = member_number(totals, "bytes_committed"),
                         .read = member_number(totals, "bytes_read"),
                         .commits = member_number(totals, "commits"),
                         .is_there = true};
}

/* Bytes per second; a counter that went back belongs to another ckptd. */
static uint64_t rate(uint64_t before, uint64_t after, double seconds)
{
    return after >= before && seconds > 0 ? (uint64_t)((double)(after - before) / seconds) : 0;
}

/* Only a ckptd knows what was read. */
static int describe_poll(json_t **out, const struct cli *cli, const json_t *status,
                         uint64_t write_rate, uint64_t read_rate)
{
    char when[32];
    manifest_now(when);
    json_begin();
    *out = json_pack("{ss sI sO sO sO}", "time", when, "committed_bytes_per_second",
                     (json_int_t)write_rate, "saves", json_object_get(status, "saves"),
                     "last_commit", json_object_get(status, "last_commit"), "since_start",
                     json_object_get(status, "since_start"));
    if (cli->store[0] == '\0')
        json_object_set_new(*out, "read_bytes_per_second", json_integer((json_int_t)read_rate));
    if (!json_end())
        return report_error(ERR_MEMORY, NULL, "no memory for a look");
    return *out != NULL
               ? 0
               : report_error(ERR_VERSION, "use the ckpt-cli of its version",
                              "the ckptd at %s does not report what --watch prints", cli->server);
}

static int print_json(const struct cli *cli, const json_t *status, uint64_t write_rate,
                      uint64_t read_rate)
{
    json_t *line;
    int error = describe_poll(&line, cli, status, write_rate, read_rate);
    if (error == 0) {
        json_begin();
        error = text_json_value(stdout, line, JSON_COMPACT);
        if (!json_end())
            error = report_error(ERR_MEMORY, NULL, "no memory to print a look");
    }
    if (error == 0)
        printf("\n");
    json_decref(line);
    return error;
}

/* Prints a save as a ckptd, or a directory, shows it. */
static void print_save(const json_t *save)
{
    char size[32];
    bool is_served = json_object_get(save, "ranks") != NULL;
    text_bytes(size, sizeof size, member_number(save, "bytes"));
    printf("  %s %s  %s", is_served ? "saving" : "unfinished", member_checkpoint(save).text, size);
    if (is_served)
        printf("  %llu of %s began, %llu copied, %llu durable%s\n",
               (unsigned long long)member_number(save, "ranks_begun"),
               text_count(member_number(save, "ranks"), "rank").text,
               (unsigned long long)member_number(save, "ranks_ended"),
               (unsigned long long)member_number(save, "ranks_durable"),
               json_is_true(json_object_get(save, "failing")) ? "  FAILING" : "");
    else
        printf(" in %s\n", text_count(member_number(save, "files"), "file").text);
}

/* Prints the duration, which ckptd knows, or the time of its manifest. */
static void print_newest(const struct cli *cli, const json_t *newest)
{
    const char *time = json_string_value(json_object_get(newest, "time"));
    char safe[128];
    if (json_object_get(newest, "run") == NULL) {
        printf("newest: none%s", cli->store[0] == '\0' ? " since its start" : "");
        return;
    }
    printf("newest: %s", member_checkpoint(newest).text);
    if (time != NULL)
        printf(" of %s", text_safe(safe, sizeof safe, time));
    else
        printf(" in %.2f s", json_number_value(json_object_get(newest, "seconds")));
}

static int print_text(const struct cli *cli, const json_t *status, uint64_t write_rate,
                      uint64_t read_rate)
{
    const json_t *saves = json_object_get(status, "saves");
    char when[32], size[32];
    size_t index;
    json_t *save;
    manifest_now(when);
    printf("%s  ", when);
    print_newest(cli, json_object_get(status, "last_commit"));
    printf("  %s %s  committed %s/s", text_count(json_array_size(saves), "save").text,
           cli->store[0] == '\0' ? "in progress" : "unfinished",
           text_bytes(size, sizeof size, write_rate));
    if (cli->store[0] == '\0')
        printf("  read %s/s", text_bytes(size, sizeof size, read_rate));
    printf("\n");
    json_array_foreach(saves, index, save) print_save(save);
    return 0;
}

/* Polls once. After the first answer ERR_UNAVAILABLE is only reported. */
static int poll_once(struct poll *last, struct store_polls *polls, const struct cli *cli)
{
    json_t *status = NULL;
    int error = cli->store[0] != '\0' ? status_of_store(&status, cli, polls)
                                      : cli_call_status(&status, cli);
    if (error == 0) {
        struct poll poll = read_poll(status);
        double seconds = last->seconds > 0 ? poll.seconds - last->seconds : 0;
        uint64_t write_rate = rate(last->committed, poll.committed, seconds);
        uint64_t read_rate = rate(last->read, poll.read, seconds);
        error = (cli->is_json ? print_json : print_text)(cli, status, write_rate, read_rate);
        *last = poll;
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
    struct poll last = {0};
    struct store_polls polls = {0};
    int error = poll_once(&last, &polls, cli);
    for (int64_t count = 1; error == 0 && !ferror(stdout) && count != cli->count; count++) {
        clock_sleep(cli->interval);
        error = poll_once(&last, &polls, cli);
    }
    store_list_free(&polls.before);
    return error;
}
