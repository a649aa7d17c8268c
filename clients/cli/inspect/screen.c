/* screen.c - status on one screen: the most important facts of a ckptd or a directory.
 *
 * It omits lines without facts (a directory has no pool), and runs and saves beyond LIST_MAX, which
 * it counts. `status --all` and `--json` print everything. */
#include "clients/cli/engine/cli.h"

#include "proto/base/json.h"

#include <string.h>

#define LIST_MAX 8u
#define TIER_IO_MAX 12u  /* kinds of requests: a bucket has nine */
#define TEXT_BYTES 1200u /* of a text of ckptd: the longest of alarms.c */

static const char *text_of(char out[TEXT_BYTES], const json_t *object, const char *name)
{
    return text_safe(out, TEXT_BYTES, member_text(object, name));
}

static void print_state(const json_t *root)
{
    char text[TEXT_BYTES];
    const json_t *health = json_object_get(root, "health");
    printf("%-12s %s\n", "store", text_of(text, root, "store"));
    printf("%-12s %s\n", "version", text_of(text, root, "version"));
    if (health != NULL)
        printf("%-12s %s%s%s\n", "saving",
               json_is_true(json_object_get(health, "saving")) ? "yes" : "NO",
               text_of(text, health, "reason")[0] != '\0' ? ": " : "", text);
    if (text_of(text, root, "offline")[0] != '\0')
        printf("%-12s yes: %s\n", "offline", text);
    if (json_is_true(json_object_get(root, "draining")))
        printf("%-12s yes, it is shutting down\n", "draining");
    if (json_object_get(root, "in_use") != NULL)
        printf("%-12s %s\n", "in use",
               json_is_true(json_object_get(root, "in_use")) ? "yes, by a ckptd or a tool" : "no");
}

/* An older ckptd does not report whether it knows the rate. */
static void print_hours(const json_t *disk)
{
    const json_t *hours = json_object_get(disk, "hours_to_full");
    const json_t *is_known = json_object_get(disk, "growth_known");
    if (json_is_number(hours))
        printf("%-12s in %.*f h, unless retention.keep_last removes older checkpoints\n", "full",
               json_number_value(hours) < 10 ? 1 : 0, json_number_value(hours));
    else if (is_known != NULL)
        printf("%-12s %s\n", "full",
               json_is_true(is_known) ? "never at the present rate: removals free what saves take"
                                      : "unknown: the rate needs two saves and a minute");
}

static void print_room(const json_t *root)
{
    const json_t *disk = json_object_get(root, "disk"), *pool = json_object_get(root, "pool");
    const json_t *sessions = json_object_get(root, "sessions");
    char have[32], all[32];
    bool is_promised = json_object_get(disk, "bytes_left") != NULL;
    if (member_number(disk, "bytes_total") > 0) /* a bucket has no limit */
        printf("%-12s %s %s of %s\n", "disk",
               text_bytes(have, sizeof have,
                          member_number(disk, is_promised ? "bytes_left" : "bytes_free")),
               is_promised ? "left for saves" : "free",
               text_bytes(all, sizeof all, member_number(disk, "bytes_total")));
    print_hours(disk);
    if (pool != NULL)
        printf("%-12s %llu of %s lent or holding images\n", "memory",
               (unsigned long long)member_number(pool, "segments_used"),
               text_count(member_number(pool, "segments"), "segment").text);
    if (sessions != NULL)
        printf("%-12s %s, %s\n", "connected",
               text_count(member_number(sessions, "ranks"), "rank").text,
               text_count(member_number(sessions, "loads"), "load").text);
}

/* Prints requests, each measured from its submission by ckptd. */
static void print_requests(const char *name, const json_t *of)
{
    char bytes[32];
    if (member_number(of, "operations") > 0)
        printf("%-12s %s%s%s; p50 %.2f ms, p99 %.2f ms\n", name,
               text_count(member_number(of, "operations"), "request").text,
               json_object_get(of, "bytes") != NULL ? ", " : "",
               json_object_get(of, "bytes") != NULL
                   ? text_bytes(bytes, sizeof bytes, member_number(of, "bytes"))
                   : "",
               1e3 * json_number_value(json_object_get(of, "p50_seconds")),
               1e3 * json_number_value(json_object_get(of, "p99_seconds")));
}

/* Requests to the disk get only their names; those to other tiers, which may be nodes, also the
 * tier's. */
static void print_io(const json_t *root)
{
    static const char *const names[] = {"read", "write", "sync"};
    const json_t *tiers = json_object_get(root, "tier_io"), *of;
    char tier[TEXT_BYTES], op[TEXT_BYTES], name[2 * TEXT_BYTES];
    size_t index, left_out = 0, printed = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        print_requests(names[i], json_object_get(json_object_get(root, "io"), names[i]));
    json_array_foreach((json_t *)tiers, index, of)
    {
        if (strcmp(member_text(of, "tier"), "local") == 0)
            continue;
        snprintf(name, sizeof name, "%s %s", text_of(tier, of, "tier"), text_of(op, of, "op"));
        if (printed++ < TIER_IO_MAX)
            print_requests(name, of);
        else
            left_out++;
    }
    if (left_out > 0)
        printf("  and %s of other tiers (--all)\n", text_count(left_out, "kind").text);
}

static void print_catalog(const json_t *root)
{
    const json_t *catalog = json_object_get(root, "catalog");
    const json_t *unreadable = json_object_get(catalog, "unreadable"), *item;
    uint64_t damaged = member_number(catalog, "damaged");
    char run[TEXT_BYTES], why[TEXT_BYTES];
    size_t index;
    json_array_foreach(json_object_get(root, "runs"), index, item) damaged +=
        member_number(item, "damaged");
    printf("%-12s %s in %s%s", "checkpoints",
           text_count(member_number(catalog, "checkpoints"), "checkpoint").text,
           text_count(member_number(catalog, "runs"), "run").text, damaged > 0 ? ", " : "");
    if (damaged > 0)
        printf("%llu DAMAGED (see list)", (unsigned long long)damaged);
    printf("\n");
    json_array_foreach((json_t *)unreadable, index, item) printf(
        "%-12s %s: %s\n", "unreadable", text_of(run, item, "run"), text_of(why, item, "reason"));
}

static void print_run(const json_t *run)
{
    char name[TEXT_BYTES], why[TEXT_BYTES];
    const json_t *newest = json_object_get(run, "newest_step");
    printf("  %-24s", text_of(name, run, "run"));
    if (json_is_null(newest))
        printf(member_number(run, "checkpoints") > 0 ? " every checkpoint is damaged"
                                                     : " no checkpoint yet");
    else if (newest != NULL)
        printf(" newest step %llu, %llu s ago",
               (unsigned long long)member_number(run, "newest_step"),
               (unsigned long long)member_number(run, "newest_age_seconds"));
    if (member_number(run, "ranks") > 0)
        printf(", %s", text_count(member_number(run, "ranks"), "rank").text);
    if (member_number(run, "failures_at_client") > 0)
        printf(", %s in a row failed at the client: %s",
               text_count(member_number(run, "failures_at_client"), "save").text,
               text_of(why, run, "last_failure_at_client"));
    if (member_number(run, "failures_in_row") > member_number(run, "failures_at_client"))
        printf(", %s in a row: %s",
               text_count(member_number(run, "failures_in_row"), "failed save").text,
               text_of(why, run, "last_failure"));
    printf("\n");
}

static void print_work(const json_t *root)
{
    const json_t *runs = json_object_get(root, "runs"), *saves = json_object_get(root, "saves");
    const json_t *last = json_object_get(root, "last_commit"), *item;
    size_t index;
    json_array_foreach((json_t *)runs, index, item)
    {
        if (index < LIST_MAX)
            print_run(item);
    }
    if (json_array_size(runs) > LIST_MAX)
        printf("  and %zu more\n", json_array_size(runs) - LIST_MAX);
    if (json_is_object(last))
        printf("%-12s %s\n", "last commit", member_checkpoint(last).text);
    printf("%-12s %s in progress or interrupted\n", "saves",
           text_count(json_array_size(saves), "save").text);
    json_array_foreach((json_t *)saves, index, item)
    {
        if (index < LIST_MAX)
            printf("  %s\n", member_checkpoint(item).text);
    }
}

/* "90%" of the total; "-": unknown. */
static const char *part_of(char out[32], const json_t *object, const char *have, const char *all)
{
    double whole = json_number_value(json_object_get(object, all));
    snprintf(out, 32, "-");
    if (whole > 0)
        snprintf(out, 32, "%.0f%%", 100 * json_number_value(json_object_get(object, have)) / whole);
    return out;
}

/* Prints a node's report: `said` is a whole status, or the short form that another node
 * received. */
static void print_said(const json_t *node, const json_t *said)
{
    const json_t *disk = json_object_get(said, "disk"), *behind = json_object_get(said, "behind");
    char name[TEXT_BYTES], domain[TEXT_BYTES], left[32] = "-", used[32], pool[32], saves[32] = "-",
                                               lag[32] = "-";
    if (disk != NULL)
        text_bytes(left, sizeof left, member_number(disk, "bytes_left"));
    if (said != NULL)
        snprintf(saves, sizeof saves, "%zu", json_array_size(json_object_get(said, "saves")));
    if (json_is_object(behind))
        snprintf(lag, sizeof lag, "%llu s",
                 (unsigned long long)member_number(behind, "lag_seconds"));
    printf("  %-10s %-10s %11s %5s %5s %5s %6s", text_of(name, node, "name"),
           text_of(domain, node, "domain"), left, part_of(used, disk, "bytes_used", "bytes_total"),
           part_of(pool, json_object_get(said, "pool"), "segments_used", "segments"), saves, lag);
}

static const char *milliseconds(char out[32], const json_t *plane)
{
    const json_t *rtt = json_object_get(plane, "rtt_seconds");
    snprintf(out, 32, "-");
    if (json_is_number(rtt))
        snprintf(out, 32, "%.2f ms", json_number_value(rtt) * 1e3);
    return out;
}

/* Prints the bytes that wait for the node, and the rates of the plane that moves them. */
static void print_link(const json_t *node)
{
    const json_t *links = json_object_get(node, "links");
    const json_t *calls = json_object_get(links, "control"), *bulk = json_object_get(links, "bulk");
    const json_t *moves =
        member_number(bulk, "bytes_in") + member_number(bulk, "bytes_out") > 0 ? bulk : calls;
    char waiting[32], away[2][32];
    printf(" %11s %8.3f %8.3f %8s %8s",
           text_bytes(waiting, sizeof waiting, member_number(node, "waiting_bytes")),
           json_number_value(json_object_get(moves, "bytes_per_second_out")) / 1e9,
           json_number_value(json_object_get(moves, "bytes_per_second_in")) / 1e9,
           milliseconds(away[0], calls), milliseconds(away[1], bulk));
}

/* Prints why the report may be old, or why no bytes go there. */
static void print_silence(const json_t *node)
{
    char why[TEXT_BYTES];
    bool is_lost = json_is_true(json_object_get(node, "lost"));
    bool is_silent = member_number(node, "silent_seconds") > 0;
    if (is_lost || is_silent)
        printf("  %s for %llu s", is_lost ? "LOST, silent" : "silent",
               (unsigned long long)member_number(node, "silent_seconds"));
    else if (!json_is_object(json_object_get(node, "told")))
        printf("  has not reported yet");
    if (text_of(why, node, "offline")[0] != '\0')
        printf("%s%s", is_lost || is_silent ? ": " : "  ", why);
    printf("\n");
}

static void print_node(const json_t *node)
{
    const json_t *told = json_object_get(node, "told");
    print_said(node, json_is_object(told) ? told : NULL);
    print_link(node);
    print_silence(node);
}

static void print_lag(const json_t *run)
{
    char name[TEXT_BYTES], bytes[32];
    if (member_number(run, "checkpoints_behind") > 0)
        printf("  %-24s %s not replicated, %s: %llu s of training\n", text_of(name, run, "run"),
               text_count(member_number(run, "checkpoints_behind"), "checkpoint").text,
               text_bytes(bytes, sizeof bytes, member_number(run, "bytes_behind")),
               (unsigned long long)member_number(run, "lag_seconds"));
}

/* Prints where its last attempt depends on other nodes than those of the settings. */
static void print_sets(const json_t *run, const json_t *members)
{
    char name[TEXT_BYTES], names[2200];
    const json_t *sets = json_object_get(run, "attempt_nodes"), *item;
    size_t index;
    bool is_held = json_is_true(json_object_get(run, "attempt_held"));
    json_array_foreach(sets, index,
                       item) if (!json_equal(item, members) && (index == 0 || !is_held))
        printf("  %-24s a start also needs a majority of %s\n", text_of(name, run, "run"),
               text_safe(names, sizeof names, json_string_value(item)));
}

/* Prints the memory of copies that other nodes sent. */
static void print_memory(const json_t *memory)
{
    char used[32], all[32];
    uint64_t bytes = member_number(memory, "bytes"), left = member_number(memory, "bytes_left");
    printf("%-12s %s of other nodes, %s of %s\n", "in memory",
           text_count(member_number(memory, "copies"), "copy").text,
           text_bytes(used, sizeof used, bytes > left ? bytes - left : 0),
           text_bytes(all, sizeof all, bytes));
}

/* Prints how much has to be drained, and the progress and end of the present copy. */
static void print_drain(const json_t *tier)
{
    char all[32], speed[32];
    const json_t *now = json_object_get(tier, "now");
    uint64_t bytes = member_number(now, "bytes"), waiting = member_number(tier, "waiting_bytes");
    double rate = json_number_value(json_object_get(tier, "bytes_per_second"));
    printf("%-12s %s to go, %s, %s/s", "far tier",
           text_count(member_number(tier, "waiting"), "checkpoint").text,
           text_bytes(all, sizeof all, waiting), text_bytes(speed, sizeof speed, (uint64_t)rate));
    if (waiting > 0 && rate >= 1)
        printf(", %.0f s left", (double)waiting / rate);
    printf("\n");
    if (!json_is_object(now))
        return;
    printf("  %s  %.0f %% of %s", member_checkpoint(now).text,
           bytes > 0 ? 100.0 * (double)member_number(now, "bytes_sent") / (double)bytes : 0,
           text_bytes(all, sizeof all, bytes));
    if (json_is_number(json_object_get(now, "seconds_left")))
        printf(", %.0f s left", json_number_value(json_object_get(now, "seconds_left")));
    printf("\n");
}

/* For a ckptd with other nodes: prints them and its planes. */
static void print_nodes(const json_t *root)
{
    const json_t *nodes = json_object_get(root, "nodes"), *bulk = json_object_get(root, "bulk");
    const json_t *tier = json_object_get(root, "tier"), *item;
    size_t index;
    if (json_is_object(nodes)) {
        printf("  %-10s %-10s %11s %5s %5s %5s %6s %11s %8s %8s %8s %8s\n", "NODE", "DOMAIN",
               "DISK LEFT", "USED", "POOL", "SAVES", "LAG", "TO SEND", "GB/s OUT", "GB/s IN", "RTT",
               "BULK RTT");
        print_said(nodes, root);
        printf("\n");
    }
    json_array_foreach(json_object_get(nodes, "peers"), index, item) print_node(item);
    json_array_foreach(json_object_get(nodes, "runs"), index, item)
    {
        print_lag(item);
        print_sets(item, json_object_get(nodes, "members"));
    }
    if (json_is_object(json_object_get(nodes, "memory")))
        print_memory(json_object_get(nodes, "memory"));
    if (json_is_object(bulk))
        printf("%-12s %.3f GB/s in, %.3f GB/s out, during transfers; %s\n", "bulk plane",
               json_number_value(json_object_get(bulk, "bytes_per_second_in")) / 1e9,
               json_number_value(json_object_get(bulk, "bytes_per_second_out")) / 1e9,
               text_count(member_number(bulk, "connections"), "connection").text);
    if (json_is_object(tier))
        print_drain(tier);
}

static void print_alarms_of(const char *node, const json_t *status)
{
    char text[TEXT_BYTES];
    const char *said;
    const json_t *item;
    size_t index;
    json_array_foreach(json_object_get(status, "alarms"), index, item)
    {
        said = json_string_value(item);
        printf("%-12s %s%s%s\n", "ALARM", node, node[0] != '\0' ? ": " : "",
               text_safe(text, sizeof text, said != NULL ? said : "?"));
    }
}

/* Prints its own alarms, and the last received ones of the other nodes. */
static void print_alarms(const json_t *root)
{
    char name[TEXT_BYTES];
    const json_t *node;
    size_t index;
    print_alarms_of("", root);
    json_array_foreach(json_object_get(json_object_get(root, "nodes"), "peers"), index, node)
        print_alarms_of(text_of(name, node, "name"), json_object_get(node, "told"));
}

void status_print_screen(const json_t *root)
{
    print_state(root);
    print_alarms(root);
    print_room(root);
    print_io(root);
    print_nodes(root);
    print_catalog(root);
    print_work(root);
}
