/* bench.c - bench io: measures a disk with ckptd's requests. disk_test.c does the work; this file
 * has the options and the output. --help explains the figures for a save (commands.c). */
#include "clients/cli/machine/disk_test.h"
#include "proto/base/json.h"

#include <stdio.h>

static double per_second(const struct disk_rate *rate)
{
    return rate->seconds > 0 ? (double)rate->count / rate->seconds : 0;
}

static json_t *rate_json(const struct disk_rate *rate)
{
    return json_pack("{sI sI sf sf sf sf sf sf sf}", "requests", (json_int_t)rate->count, "bytes",
                     (json_int_t)rate->bytes, "seconds", rate->seconds, "bytes_per_second",
                     disk_rate_bytes(rate), "requests_per_second", per_second(rate), "p50_seconds",
                     rate->p50, "p99_seconds", rate->p99, "p999_seconds", rate->p999, "max_seconds",
                     rate->max);
}

static int print_json(const struct disk_test *test)
{
    char folder[4096];
    return text_pack("{ss ss sI sI sI so so sf so}", "folder",
                     text_safe(folder, sizeof folder, test->folder), "storage", test->storage,
                     "block_bytes", (json_int_t)test->block, "depth", (json_int_t)test->depth,
                     "files", (json_int_t)test->files, "write", rate_json(&test->write), "sync",
                     rate_json(&test->sync), "durable_bytes_per_second", disk_test_durable(test),
                     "read", rate_json(&test->read));
}

static void print_times(const struct disk_rate *rate)
{
    printf("; p50 %.2f ms, p99 %.2f, p99.9 %.2f, max %.2f\n", 1e3 * rate->p50, 1e3 * rate->p99,
           1e3 * rate->p999, 1e3 * rate->max);
}

static void print_rate(const char *name, const struct disk_rate *rate)
{
    char bytes[32], speed[32];
    printf("%-10s %s in %.2f s: %s/s, %.0f requests/s", name,
           text_bytes(bytes, sizeof bytes, rate->bytes), rate->seconds,
           text_bytes(speed, sizeof speed, (uint64_t)disk_rate_bytes(rate)), per_second(rate));
    print_times(rate);
}

static void print_text(const struct disk_test *test)
{
    char text[300];
    printf("%-10s %s\n", "storage", text_safe(text, sizeof text, test->storage));
    print_rate("write", &test->write);
    printf("%-10s %s", "sync", text_count(test->sync.count, "file").text);
    print_times(&test->sync);
    printf("%-10s %s/s, with the syncs\n", "durable",
           text_bytes(text, sizeof text, (uint64_t)disk_test_durable(test)));
    print_rate("read", &test->read);
}

int cli_bench_io(const struct cli *cli)
{
    struct disk_test test = {.folder = cli->args[0],
                             .bytes = (uint64_t)cli->bytes,
                             .block = (uint32_t)cli->block,
                             .depth = (uint32_t)cli->depth,
                             .seconds_max = cli->time_s};
    ERR_TRY(disk_test_run(&test, cli));
    if (cli->is_json)
        return print_json(&test);
    print_text(&test);
    return 0;
}
