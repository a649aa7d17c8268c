/* metrics_text.c - the numbers of Status in Prometheus' text format, for metrics.c and
 * status/http_server.c.
 *
 * `rows` has all of them, with type and help. A name is the place in the status: disk.bytes_left is
 * holdfast_disk_bytes_left, and since_start.commits is holdfast_commits_total, for a counter (since
 * ckptd's start, never less) ends in _total and needs no since_start. Only counters end so: `name`
 * renames a gauge. A boolean is 0 or 1, a list counts its members, a text is 1 if it is not empty,
 * and an unknown value (null) has no line. A histogram (core/histogram.h) has a line for each
 * bound. Names never change: pace_quiet_wait_ms keeps its unit, for which promtool has a remark.
 *
 * Numbers of a run have its name as a label, holdfast_run_damaged{run="a"}; so have those of its
 * copies, holdfast_replication_lag_seconds{run="a"}, and those of another node,
 * holdfast_node_lost{node="n2"}, with its own report,
 * holdfast_node_told_disk_bytes_left{node="n2"}. Those of requests have their tier, which may be
 * another node, and their kind: holdfast_tier_io_seconds{tier="far",op="put"}. */
#include "ckptd/status/metrics_text.h"
#include "proto/base/json.h"

#include <stdio.h>
#include <string.h>

#define NAME_BYTES_MAX 128u

enum kind { GAUGE, COUNTER, HISTOGRAM };
enum of { SERVICE, RUN, REPLICATION, NODE, DRAIN, TIER_IO };

/* Lists with a line per member: path, the field with its name, which becomes the label, and perhaps
 * one more field of the same name as its label. */
static const struct {
    const char *prefix, *list, *label, *name, *more;
} lists[] = {[RUN] = {"run_", "runs", "run", "run", NULL},
             [REPLICATION] = {"replication_", "nodes.runs", "run", "run", NULL},
             [NODE] = {"node_", "nodes.peers", "node", "name", NULL},
             [DRAIN] = {"drain_", "drains", "tier", "tier", NULL},
             [TIER_IO] = {"tier_io_", "tier_io", "tier", "tier", "op"}};

/* clang-format off */

/* The numbers of the copies to another tier, and of the current copy. */
#define WAY(of, at)                                                                              \
    {of, GAUGE, at "waiting", "Checkpoints waiting to be copied there.", NULL},                  \
    {of, GAUGE, at "waiting_bytes", "Bytes of them.", NULL},                                     \
    {of, COUNTER, at "drained", "Checkpoints copied there.", NULL},                              \
    {of, COUNTER, at "mended", "Damaged checkpoints repaired there.", NULL},                     \
    {of, COUNTER, at "bytes_sent", "Bytes copied there.", NULL},                                 \
    {of, COUNTER, at "bytes_from_memory",                                                        \
     "Bytes of these read from memory, not from the disk.", NULL},                               \
    {of, COUNTER, at "bytes_before_commit",                                                      \
     "Bytes of these copied before their commit.", NULL},                                        \
    {of, COUNTER, at "errors", "Requests that failed there.", NULL},                             \
    {of, GAUGE, at "given_up", "Checkpoints not copied there until a restart.", NULL},           \
    {of, GAUGE, at "bytes_per_second", "Rate of the newest checkpoint copied there.", NULL},
#define WAY_NOW(of, at)                                                                          \
    {of, GAUGE, at "step", "Step that is being copied there.", NULL},                            \
    {of, GAUGE, at "attempt", "Attempt of that step.", NULL},                                    \
    {of, GAUGE, at "resting", "1: the copy is paused after an error.", NULL},                    \
    {of, GAUGE, at "bytes_sent", "Bytes of it copied so far.", NULL},                            \
    {of, GAUGE, at "bytes", "Total bytes of it.", NULL},                                         \
    {of, GAUGE, at "bytes_per_second", "Rate of the copy.", NULL},                               \
    {of, GAUGE, at "seconds_left", "Seconds until the copy ends at that rate.", NULL},
/* Of a connection. */
#define LINK(of, at)                                                                             \
    {of, COUNTER, at "bytes_in", "Bytes received over it.", NULL},                               \
    {of, COUNTER, at "bytes_out", "Bytes sent over it.", NULL},                                  \
    {of, GAUGE, at "bytes_per_second_in", "Rate while bytes were received.", NULL},              \
    {of, GAUGE, at "bytes_per_second_out", "Rate while bytes were sent.", NULL},
#define IO(at, Names, names)                                                                     \
    {SERVICE, COUNTER, at "operations", Names " of the local store.", NULL},                     \
    {SERVICE, COUNTER, at "bytes", "Bytes of its " names ".", NULL},                             \
    {SERVICE, GAUGE, at "p50_seconds", "Time of its recent " names ", median.", NULL},           \
    {SERVICE, GAUGE, at "p99_seconds", "Time of its recent " names ", 99th percentile.", NULL},

static const struct row {
    enum of of;
    enum kind kind;
    const char *path, *help, *name;
} rows[] = {
    {SERVICE, GAUGE, "time_seconds", "Clock of ckptd's host, in seconds since 1970.", NULL},
    {SERVICE, GAUGE, "start_time_seconds", "When ckptd started, in seconds since 1970.", NULL},
    {SERVICE, GAUGE, "draining", "ckptd is shutting down.", NULL},
    {SERVICE, GAUGE, "offline", "The store is offline: saves are refused.", NULL},
    {SERVICE, GAUGE, "health.saving", "The next saves are expected to succeed.", NULL},
    {SERVICE, GAUGE, "alarms", "Alarms, as in ckpt-cli status.", NULL},
    {SERVICE, GAUGE, "runs", "Runs in the store.", NULL},
    {SERVICE, GAUGE, "saves", "Saves in progress.", NULL},
    {SERVICE, GAUGE, "pool.segment_bytes", "Bytes of a segment of the pool.", NULL},
    {SERVICE, GAUGE, "pool.segments", "Segments of the pool.", NULL},
    {SERVICE, GAUGE, "pool.segments_ready", "Segments whose memory has been taken.", NULL},
    {SERVICE, GAUGE, "pool.segments_used", "Segments that are lent or hold an image.", NULL},
    {SERVICE, GAUGE, "pool.bytes", "Bytes of the pool (memory.pool_bytes).", NULL},
    {SERVICE, GAUGE, "pool.bytes_ready", "Bytes of the pool whose memory has been taken.", NULL},
    {SERVICE, GAUGE, "sessions.ranks", "Ranks that are connected.", NULL},
    {SERVICE, GAUGE, "sessions.all", "Ranks and readers that are connected.", NULL},
    {SERVICE, GAUGE, "sessions.loads", "Loads that are open.", NULL},
    {SERVICE, GAUGE, "catalog.runs", "Runs that ckptd knows.", NULL},
    {SERVICE, GAUGE, "catalog.checkpoints", "Checkpoints that ckptd knows.", NULL},
    {SERVICE, GAUGE, "catalog.unreadable", "Runs that could not be read.", NULL},
    {SERVICE, GAUGE, "disk.bytes_total", "Bytes of the store's file system.", "disk_bytes"},
    {SERVICE, GAUGE, "disk.bytes_used", "Bytes of it that are in use.", NULL},
    {SERVICE, GAUGE, "disk.bytes_free", "Bytes of it that are free.", NULL},
    {SERVICE, GAUGE, "disk.usable_fraction",
     "Fraction of it that checkpoints may fill.", NULL},
    {SERVICE, GAUGE, "disk.bytes_usable", "Bytes up to which checkpoints may fill it.", NULL},
    {SERVICE, GAUGE, "disk.bytes_promised",
     "Bytes that saves in progress have not written yet.", NULL},
    {SERVICE, GAUGE, "disk.bytes_left", "Bytes that the next saves may use.", NULL},
    {SERVICE, GAUGE, "disk.inodes_total", "Inodes of the store's file system.", "disk_inodes"},
    {SERVICE, GAUGE, "disk.inodes_free", "Inodes of it that are free.", NULL},
    {SERVICE, GAUGE, "disk.inodes_promised",
     "Inodes that saves in progress have not used yet.", NULL},
    {SERVICE, GAUGE, "disk.bytes_trash",
     "Bytes in the trash; a save that needs them frees them.", NULL},
    {SERVICE, GAUGE, "disk.checkpoints_trash", "Checkpoints in the trash.", NULL},
    {SERVICE, GAUGE, "disk.growth_known", "The following rate is known.", NULL},
    {SERVICE, GAUGE, "disk.growth_bytes_per_hour",
     "Rate at which the last saves filled the disk.", NULL},
    {SERVICE, GAUGE, "disk.hours_to_full", "Hours until the disk is full at that rate.", NULL},
    {SERVICE, GAUGE, "io.in_work", "Requests to the disk in progress.", NULL},
    IO("io.read.", "Reads", "reads")
    IO("io.write.", "Writes", "writes")
    IO("io.sync.", "Syncs", "syncs")
    {SERVICE, GAUGE, "process.bytes_resident",
     "Resident memory of ckptd, the pool included.", NULL},
    {SERVICE, GAUGE, "process.bytes_private", "Private memory, without the pool.", NULL},
    {SERVICE, GAUGE, "process.bytes_private_max", "limits.private_bytes as it is set.", NULL},
    {SERVICE, GAUGE, "process.bytes_private_exit", "limits.exit_private_bytes as it is set.", NULL},
    {SERVICE, GAUGE, "process.leak_bytes_per_hour",
     "Rate at which the private memory keeps growing; 0: it does not.", NULL},
    {SERVICE, GAUGE, "process.bytes_shared", "Memory that it shares with ranks: the pool.", NULL},
    {SERVICE, GAUGE, "process.bytes_files", "Memory of its program and libraries.", NULL},
    {SERVICE, GAUGE, "process.jobs_waiting", "Jobs that no worker has begun yet.", NULL},
    {SERVICE, GAUGE, "process.jobs_under_way", "Jobs in progress.", NULL},
    {SERVICE, GAUGE, "process.bytes_pinned", "Memory of ckptd that the kernel has pinned.", NULL},
    {SERVICE, GAUGE, "process.bytes_locked", "Memory of ckptd that is locked.", NULL},
    {SERVICE, GAUGE, "tier.checkpoints", "Checkpoints in the far tier.", NULL},
    WAY(SERVICE, "tier.")
    {SERVICE, GAUGE, "tier.clock_ahead_seconds",
     "The clock of its server less that of this machine; of a bucket.", NULL},
    WAY_NOW(SERVICE, "tier.now.")
    {SERVICE, GAUGE, "mending.checkpoints",
     "Checkpoints repaired on the local disk from another tier.", NULL},
    WAY(SERVICE, "mending.")
    WAY_NOW(SERVICE, "mending.now.")
    {SERVICE, GAUGE, "nodes.replicas",
     "Failure domains that must have the newest checkpoint.", NULL},
    {SERVICE, GAUGE, "nodes.peers", "Other nodes.", NULL},
    {SERVICE, GAUGE, "nodes.memory.bytes", "Bytes for copies of other nodes in memory.", NULL},
    {SERVICE, GAUGE, "nodes.memory.bytes_left", "Bytes of them that are free.", NULL},
    {SERVICE, GAUGE, "nodes.memory.copies", "Copies of other nodes in memory.", NULL},
    {SERVICE, GAUGE, "behind.checkpoints", "Checkpoints that are on too few nodes.", NULL},
    {SERVICE, GAUGE, "behind.bytes", "Bytes of them.", NULL},
    {SERVICE, GAUGE, "behind.lag_seconds", "Age of the oldest of them.", NULL},
    {SERVICE, GAUGE, "bulk.connections", "Connections of the bulk plane.", NULL},
    {SERVICE, COUNTER, "bulk.refused", "Connections that it refused.", NULL},
    LINK(SERVICE, "bulk.")
    {SERVICE, GAUGE, "tls.certificate_seconds_left",
     "Seconds until the certificates in tls.directory expire.", NULL},
    {SERVICE, GAUGE, "scrub.pass_bytes", "Bytes of the scrub's current pass.", NULL},
    {SERVICE, GAUGE, "scrub.pass_bytes_read", "Bytes of that pass read so far.", NULL},
    {SERVICE, GAUGE, "scrub.rate", "Bytes per second that the scrub may read.", NULL},
    {SERVICE, GAUGE, "scrub.step", "Step that the scrub reads.", NULL},
    {SERVICE, GAUGE, "scrub.attempt", "Attempt of that step.", NULL},
    {SERVICE, COUNTER, "scrub.bytes_read", "Bytes that the scrub read.", NULL},
    {SERVICE, COUNTER, "scrub.checkpoints_read", "Checkpoints that the scrub read.", NULL},
    {SERVICE, COUNTER, "scrub.passes", "Passes over a run that the scrub ended.", NULL},
    {SERVICE, COUNTER, "scrub.damaged", "Damaged checkpoints that the scrub found.", NULL},
    {SERVICE, GAUGE, "scrub.all_read_at", "When all was read, in seconds since 1970.", NULL},
    {SERVICE, GAUGE, "far_scrub.step", "Step that the far tier's scrub reads.", NULL},
    {SERVICE, COUNTER, "far_scrub.bytes_read", "Bytes that it read.", NULL},
    {SERVICE, COUNTER, "far_scrub.checkpoints_read", "Checkpoints that it read.", NULL},
    {SERVICE, COUNTER, "far_scrub.damaged", "Damaged checkpoints that it found.", NULL},
    {SERVICE, GAUGE, "images.resident", "Images of committed checkpoints in memory.", NULL},
    {SERVICE, GAUGE, "images.proven", "Images of these that ckptd read and verified.", NULL},
    {SERVICE, GAUGE, "last_commit.step", "Step of the last commit.", NULL},
    {SERVICE, GAUGE, "last_commit.attempt", "Attempt of the last commit.", NULL},
    {SERVICE, GAUGE, "last_commit.bytes", "Bytes of the last commit.", NULL},
    {SERVICE, GAUGE, "last_commit.seconds",
     "Time of the last save, from its begin to its commit.", NULL},
    {SERVICE, GAUGE, "last_commit.staging_seconds", "Part of it in which ranks copied.", NULL},
    {SERVICE, GAUGE, "last_commit.sync_seconds",
     "Part of it for writing and syncing shards.", NULL},
    {SERVICE, GAUGE, "last_commit.names_seconds", "Part of it for syncing names.", NULL},
    {SERVICE, GAUGE, "last_commit.manifest_seconds", "Part of it for the manifest.", NULL},
    {SERVICE, GAUGE, "last_unchanged.step",
     "Step of the last save that equals the one before it.", NULL},
    {SERVICE, GAUGE, "last_unchanged.attempt", "Attempt of that save.", NULL},
    {SERVICE, GAUGE, "last_unchanged.equals_step", "Step that it equals.", NULL},
    {SERVICE, GAUGE, "last_unchanged.equals_attempt", "Attempt that it equals.", NULL},
    {SERVICE, GAUGE, "pace.cpu_nice", "pace.cpu_nice of the configuration.", NULL},
    {SERVICE, GAUGE, "pace.write_rate", "pace.write_rate of the configuration.", NULL},
    {SERVICE, GAUGE, "pace.quiet", "pace.quiet of the configuration.", NULL},
    {SERVICE, GAUGE, "pace.quiet_wait_ms", "pace.quiet_wait_ms of the configuration.", NULL},
    {SERVICE, GAUGE, "pace.quiet_wait_seconds", "The same in seconds.", NULL},
    {SERVICE, GAUGE, "pace.ranks_busy", "Ranks in a busy phase.", NULL},
    {SERVICE, GAUGE, "pace.chunks_held", "Chunks that are held back.", NULL},
    {SERVICE, COUNTER, "pace.held_by_rate_seconds",
     "Time in which a chunk was held back by the rate.", NULL},
    {SERVICE, COUNTER, "pace.held_by_phases_seconds",
     "Time in which a chunk was held back by busy phases.", NULL},
    {SERVICE, COUNTER, "pace.chunks_in_busy_phases",
     "Chunks that were written in a busy phase.", NULL},
    {SERVICE, COUNTER, "since_start.commits", "Saves that were committed.", NULL},
    {SERVICE, COUNTER, "since_start.failed_saves", "Saves that failed.", NULL},
    {SERVICE, COUNTER, "since_start.refused_saves", "Saves that were refused.", NULL},
    {SERVICE, COUNTER, "since_start.unchanged_saves",
     "Saves whose every tensor equals the checkpoint before.", NULL},
    {SERVICE, COUNTER, "since_start.replicas_differ",
     "Saves in which ranks held different bytes of the same part of a tensor.", NULL},
    {SERVICE, COUNTER, "since_start.pruned", "Checkpoints that rules removed.", NULL},
    {SERVICE, COUNTER, "since_start.bytes_committed", "Bytes of committed checkpoints.", NULL},
    {SERVICE, COUNTER, "since_start.bytes_read", "Bytes that loads read.", NULL},
    {SERVICE, HISTOGRAM, "save_seconds", "Time of saves, from begin to commit.", NULL},
    {SERVICE, HISTOGRAM, "commit_seconds",
     "Part of it from the last durable shard to the commit.", NULL},
    {SERVICE, HISTOGRAM, "load_seconds", "Time of loads, from open to close.", NULL},
    {DRAIN, HISTOGRAM, "seconds",
     "Time to copy a checkpoint into another tier: far, local, or a node.", NULL},
    {TIER_IO, HISTOGRAM, "seconds",
     "Time of requests to a tier: read, write and sync, of a bucket also each attempt of get, "
     "put, head, list, post and delete.", NULL},
    {TIER_IO, COUNTER, "bytes", "Bytes of its reads and writes.", NULL},
    {RUN, HISTOGRAM, "save_seconds", "Time of its saves, from begin to commit.", NULL},
    {RUN, HISTOGRAM, "load_seconds", "Time of its loads, from open to close.", NULL},
    {RUN, GAUGE, "checkpoints", "Checkpoints of the run.", NULL},
    {RUN, GAUGE, "copies.local", "Checkpoints of it that are on this node's disk.", NULL},
    {RUN, GAUGE, "copies.far", "Checkpoints of it that are in the far tier.", NULL},
    {RUN, GAUGE, "damaged", "Damaged checkpoints of the run.", NULL},
    {RUN, GAUGE, "bytes", "Bytes of its checkpoints.", NULL},
    {RUN, GAUGE, "newest_step", "Step of its newest whole checkpoint.", NULL},
    {RUN, GAUGE, "newest_attempt", "Attempt of that.", NULL},
    {RUN, GAUGE, "newest_bytes", "Bytes of that.", NULL},
    {RUN, GAUGE, "newest_bytes_here", "Bytes of it that this node's ranks saved.", NULL},
    {RUN, GAUGE, "newest_age_seconds", "Age of that.", NULL},
    {RUN, GAUGE, "far_age_seconds", "Age of the newest that the far tier has.", NULL},
    {RUN, GAUGE, "commit_interval_seconds", "Time between its commits.", NULL},
    {RUN, GAUGE, "commit_wait_seconds",
     "Time since its newest commit, or since its ranks came; of a run that has ranks.", NULL},
    {RUN, GAUGE, "failures_in_row", "Saves that failed since the last commit.", NULL},
    {RUN, GAUGE, "ranks", "Ranks that are connected here.", NULL},
    {RUN, GAUGE, "silent_seconds", "Longest time in seconds that one of them did nothing.", NULL},
    {REPLICATION, GAUGE, "newest_step", "Step of the run's newest checkpoint.", NULL},
    {REPLICATION, GAUGE, "replicated_step", "Step of the newest that is on enough nodes.", NULL},
    {REPLICATION, GAUGE, "checkpoints_behind",
     "Checkpoints of the run that are on too few nodes.", NULL},
    {REPLICATION, GAUGE, "bytes_behind", "Bytes of them.", NULL},
    {REPLICATION, GAUGE, "lag_seconds", "Age of the oldest of them.", NULL},
    {REPLICATION, GAUGE, "attempt_held",
     "The run's attempt is held until most nodes know it.", NULL},
    {NODE, GAUGE, "lost", "The node counts as lost.", NULL},
    {NODE, GAUGE, "silent_seconds", "Seconds since it answered.", NULL},
    {NODE, GAUGE, "clock_ahead_seconds", "The clock of the node less that of this one.", NULL},
    {NODE, GAUGE, "checkpoints", "Checkpoints that the node has from this one.", NULL},
    WAY(NODE, "")
    WAY_NOW(NODE, "now.")
    {NODE, GAUGE, "links.control.rtt_seconds", "Round trip of the connection for calls.", NULL},
    LINK(NODE, "links.control.")
    {NODE, GAUGE, "links.bulk.rtt_seconds", "Round trip of the connection for bytes.", NULL},
    LINK(NODE, "links.bulk.")
    {NODE, GAUGE, "told.seconds_ago",
     "Seconds since the node reported the following values.", NULL},
    {NODE, GAUGE, "told.draining", "It is shutting down.", NULL},
    {NODE, GAUGE, "told.disk.bytes_total", "Bytes of its file system.", "node_told_disk_bytes"},
    {NODE, GAUGE, "told.disk.bytes_free", "Bytes of it that are free.", NULL},
    {NODE, GAUGE, "told.disk.bytes_left", "Bytes that its next saves may use.", NULL},
    {NODE, GAUGE, "told.pool.bytes", "Bytes of its pool.", NULL},
    {NODE, GAUGE, "told.pool.segments", "Segments of its pool.", NULL},
    {NODE, GAUGE, "told.pool.segments_used", "Segments that are lent or hold an image.", NULL},
    {NODE, GAUGE, "told.saves", "Its saves in progress.", NULL},
    {NODE, GAUGE, "told.alarms", "Its alarms.", NULL},
    {NODE, GAUGE, "told.behind.bytes", "Bytes of its checkpoints that are on too few nodes.", NULL},
    {NODE, GAUGE, "told.behind.lag_seconds", "Age of the oldest of them.", NULL},
};
/* clang-format on */

static void make_name(char out[NAME_BYTES_MAX], const struct row *row)
{
    static const char total[] = "since_start.";
    const char *path = row->path;
    if (strncmp(path, total, strlen(total)) == 0)
        path += strlen(total);
    if (row->name)
        snprintf(out, NAME_BYTES_MAX, "holdfast_%s", row->name);
    else
        snprintf(out, NAME_BYTES_MAX, "holdfast_%s%s%s",
                 row->of == SERVICE ? "" : lists[row->of].prefix, path,
                 row->kind == COUNTER ? "_total" : "");
    for (char *dot = out; (dot = strchr(dot, '.')) != NULL;)
        *dot = '_';
}

/* Is it known, and a number? */
static bool has_value(const struct row *row, const json_t *value)
{
    if (row->kind == HISTOGRAM)
        return json_is_object(value);
    return json_is_number(value) || json_is_boolean(value) || json_is_array(value) ||
           json_is_string(value);
}

static void write_value(FILE *out, const json_t *value)
{
    if (json_is_real(value))
        fprintf(out, " %.17g\n", json_real_value(value));
    else
        fprintf(out, " %lld\n",
                json_is_integer(value)  ? (long long)json_integer_value(value)
                : json_is_array(value)  ? (long long)json_array_size(value)
                : json_is_string(value) ? (long long)(json_string_length(value) > 0)
                                        : (long long)json_is_true(value));
}

/* `label`: name="value", or "" without one. */
static void write_line(FILE *out, const char *name, const char *label, const json_t *value)
{
    fprintf(out, "%s%s%s%s", name, label[0] ? "{" : "", label, label[0] ? "}" : "");
    write_value(out, value);
}

static void write_histogram(FILE *out, const char *name, const char *label, const json_t *value)
{
    char series[NAME_BYTES_MAX + sizeof "_count"];
    const char *bound;
    json_t *count;
    json_object_foreach(json_object_get(value, "buckets"), bound, count)
    {
        fprintf(out, "%s_bucket{%s%sle=\"%s\"}", name, label, label[0] ? "," : "", bound);
        write_value(out, count);
    }
    snprintf(series, sizeof series, "%s_sum", name);
    write_line(out, series, label, json_object_get(value, "sum"));
    snprintf(series, sizeof series, "%s_count", name);
    write_line(out, series, label, json_object_get(value, "count"));
}

static void write_series(FILE *out, const char *name, const char *label, const struct row *row,
                         const json_t *value)
{
    if (row->kind == HISTOGRAM)
        write_histogram(out, name, label, value);
    else
        write_line(out, name, label, value);
}

static void write_head(FILE *out, const char *name, const struct row *row)
{
    static const char *const types[] = {"gauge", "counter", "histogram"};
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, row->help, name, types[row->kind]);
}

/* Names of runs and nodes need no escape (run_name_valid). */
static void write_members(FILE *out, const char *name, const struct row *row, const json_t *list)
{
    const char *more = lists[row->of].more;
    size_t index;
    json_t *item;
    bool has_head = false;
    json_array_foreach(list, index, item)
    {
        const json_t *value = json_at(item, row->path);
        char label[NAME_BYTES_MAX];
        if (!has_value(row, value))
            continue;
        if (!has_head)
            write_head(out, name, row);
        has_head = true;
        int length = snprintf(label, sizeof label, "%s=\"%s\"", lists[row->of].label,
                              json_string_value(json_object_get(item, lists[row->of].name)));
        if (more)
            snprintf(label + length, sizeof label - (size_t)length, ",%s=\"%s\"", more,
                     json_string_value(json_object_get(item, more)));
        write_series(out, name, label, row, value);
    }
}

void metrics_text_write(FILE *out, const json_t *status)
{
    char name[NAME_BYTES_MAX];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *row = &rows[i];
        const json_t *value = json_at(status, row->of == SERVICE ? row->path : lists[row->of].list);
        make_name(name, row);
        if (row->of != SERVICE)
            write_members(out, name, row, value);
        else if (has_value(row, value)) {
            write_head(out, name, row);
            write_series(out, name, "", row, value);
        }
    }
    fprintf(out,
            "# HELP holdfast_build_info The version of ckptd.\n"
            "# TYPE holdfast_build_info gauge\nholdfast_build_info{version=\"%s\"} 1\n",
            json_string_value(json_object_get(status, "version")));
}
