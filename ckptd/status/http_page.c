/* http_page.c - the status as one HTML page: a section per part, with a table.
 *
 * `sections` has them all; a part that is missing (no far tier, no other nodes) has no section. All
 * text from the status is escaped, including errors and names. No scripts and no links: the page
 * loads nothing else, and reloads itself every RELOAD_S seconds. */
#include "ckptd/status/http_page.h"
#include "proto/base/json.h"

#include <math.h>
#include <string.h>

#define RELOAD_S 10
#define COLUMNS_MAX 12

/* All but TEXT are aligned right. RATE: bytes, of the link that moves those of a node. */
enum unit { TEXT, PLAIN, BYTES, RATE, SECONDS, MILLISECONDS };

/* The browser's own colours, light or dark. A table that is too wide scrolls in its div. */
static const char style[] =
    ":root{color-scheme:light dark}"
    "body{font-family:sans-serif;margin:1em auto;padding:0 1em;max-width:84em}"
    "h2{font-size:1.1em;margin:1.2em 0 .4em}"
    "p,li{overflow-wrap:anywhere}"
    "div{overflow-x:auto}table{border-collapse:collapse}"
    "th,td{border:1px solid #8888;padding:.25em .6em;text-align:left;vertical-align:top}"
    "th{background:#8882;font-weight:600}"
    "th,.n{white-space:nowrap}.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".alarms{border-left:.4em solid #d33;background:#d332;margin:0;padding:.5em .5em .5em 2em}";

/* One row for an object, one for each member of a list. */
static const struct section {
    const char *title, *path;
    struct {
        const char *title, *path; /* in the row */
        enum unit unit;
    } columns[COLUMNS_MAX];
} sections[] = {
    {"Runs",
     "runs",
     {{"run", "run", TEXT},
      {"newest step", "newest_step", PLAIN},
      {"its age", "newest_age_seconds", SECONDS},
      {"failed saves in a row", "failures_in_row", PLAIN},
      {"damaged", "damaged", PLAIN},
      {"checkpoints", "checkpoints", PLAIN},
      {"by tier", "copies", TEXT},
      {"bytes", "bytes", BYTES},
      {"age in the far tier", "far_age_seconds", SECONDS},
      {"ranks here", "ranks", PLAIN}}},
    {"Saves in progress",
     "saves",
     {{"run", "run", TEXT},
      {"step", "step", PLAIN},
      {"attempt", "attempt", PLAIN},
      {"bytes", "bytes", BYTES},
      {"ranks", "ranks", PLAIN},
      {"ranks durable", "ranks_durable", PLAIN}}},
    {"Disk",
     "disk",
     {{"total", "bytes_total", BYTES},
      {"used", "bytes_used", BYTES},
      {"promised to saves", "bytes_promised", BYTES},
      {"left for saves", "bytes_left", BYTES},
      {"rate is known", "growth_known", TEXT},
      {"grows an hour by", "growth_bytes_per_hour", BYTES},
      {"hours to full", "hours_to_full", PLAIN}}},
    {"Requests to tiers",
     "tier_io",
     {{"tier", "tier", TEXT},
      {"request", "op", TEXT},
      {"count", "operations", PLAIN},
      {"bytes", "bytes", BYTES},
      {"median", "p50_seconds", MILLISECONDS},
      {"99%", "p99_seconds", MILLISECONDS}}},
    {"Far tier",
     "tier",
     {{"store", "store", TEXT},
      {"checkpoints", "checkpoints", PLAIN},
      {"waiting", "waiting", PLAIN},
      {"waiting bytes", "waiting_bytes", BYTES},
      {"bytes per second", "bytes_per_second", BYTES},
      {"errors", "errors", PLAIN},
      {"last error", "last_error", TEXT}}},
    {"Other nodes",
     "nodes.peers",
     {{"node", "name", TEXT},
      {"version", "told.version", TEXT},
      {"lost", "lost", TEXT},
      {"silent", "silent_seconds", SECONDS},
      {"clock ahead", "clock_ahead_seconds", SECONDS},
      {"left for saves", "told.disk.bytes_left", BYTES},
      {"checkpoints", "checkpoints", PLAIN},
      {"waiting", "waiting", PLAIN},
      {"waiting bytes", "waiting_bytes", BYTES},
      {"in per second", "bytes_per_second_in", RATE},
      {"out per second", "bytes_per_second_out", RATE},
      {"errors", "errors", PLAIN}}},
    {"Memory",
     "pool",
     {{"pool", "bytes", BYTES},
      {"taken so far", "bytes_ready", BYTES},
      {"segments", "segments", PLAIN},
      {"segments used", "segments_used", PLAIN}}},
};

static void write_text(FILE *out, const char *text)
{
    for (; text && *text; text++) {
        const char *entity = *text == '<'   ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : *text == '&' ? "&amp;"
                             : *text == '"' ? "&quot;"
                                            : NULL;
        if (entity)
            fputs(entity, out);
        else
            fputc(*text, out);
    }
}

static void write_bytes(FILE *out, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t at = 0;
    while (bytes >= 1024 && at + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1024;
        at++;
    }
    fprintf(out, "%.*f %s", at == 0 ? 0 : 1, bytes, units[at]);
}

static void write_seconds(FILE *out, double seconds)
{
    double size = fabs(seconds);
    if (size < 120)
        fprintf(out, "%.0f s", size < 0.5 ? 0.0 : seconds);
    else if (size < 7200)
        fprintf(out, "%.0f min", seconds / 60);
    else
        fprintf(out, "%.1f h", seconds / 3600);
}

static const char *class_of(enum unit unit)
{
    return unit == TEXT ? "" : " class=\"n\"";
}

/* "local 3, far 2" */
static void write_counts(FILE *out, const json_t *counts)
{
    const char *name, *separator = "";
    json_t *count;
    json_object_foreach((json_t *)counts, name, count)
    {
        fputs(separator, out);
        write_text(out, name);
        fprintf(out, " %lld", (long long)json_integer_value(count));
        separator = ", ";
    }
}

/* Without a bulk plane calls move the bytes. */
static const json_t *value_at(const json_t *row, const char *path, enum unit unit)
{
    const json_t *bulk = json_at(row, "links.bulk");
    if (unit != RATE)
        return json_at(row, path);
    bool has_moved = json_integer_value(json_at(bulk, "bytes_in")) > 0 ||
                     json_integer_value(json_at(bulk, "bytes_out")) > 0;
    return json_at(has_moved ? bulk : json_at(row, "links.control"), path);
}

static void write_cell(FILE *out, const json_t *value, enum unit unit)
{
    fprintf(out, "<td%s>", class_of(unit));
    if (json_is_number(value) && (unit == BYTES || unit == RATE))
        write_bytes(out, json_number_value(value));
    else if (json_is_number(value) && unit == SECONDS)
        write_seconds(out, json_number_value(value));
    else if (json_is_number(value) && unit == MILLISECONDS)
        fprintf(out, "%.2f ms", 1e3 * json_number_value(value));
    else if (json_is_integer(value))
        fprintf(out, "%lld", (long long)json_integer_value(value));
    else if (json_is_number(value))
        fprintf(out, "%.1f", json_number_value(value));
    else if (json_is_boolean(value))
        fputs(json_is_true(value) ? "yes" : "no", out);
    else if (json_is_object(value))
        write_counts(out, value);
    else if (!value || json_is_null(value))
        fputs("&ndash;", out);
    else
        write_text(out, json_string_value(value));
    fputs("</td>", out);
}

static void write_row(FILE *out, const struct section *section, const json_t *row)
{
    fputs("<tr>", out);
    for (int i = 0; i < COLUMNS_MAX && section->columns[i].title; i++)
        write_cell(out, value_at(row, section->columns[i].path, section->columns[i].unit),
                   section->columns[i].unit);
    fputs("</tr>\n", out);
}

static void write_section(FILE *out, const struct section *section, const json_t *status)
{
    const json_t *part = json_at(status, section->path), *row;
    size_t index;
    if (json_is_array(part) ? json_array_size(part) == 0 : !json_is_object(part))
        return;
    fprintf(out, "<h2>%s</h2>\n<div><table>\n<tr>", section->title);
    for (int i = 0; i < COLUMNS_MAX && section->columns[i].title; i++)
        fprintf(out, "<th%s>%s</th>", class_of(section->columns[i].unit),
                section->columns[i].title);
    fputs("</tr>\n", out);
    if (json_is_object(part))
        write_row(out, section, part);
    json_array_foreach(part, index, row) write_row(out, section, row);
    fputs("</table></div>\n", out);
}

/* `node`: NULL for its own. */
static void write_alarms_of(FILE *out, const char *node, const json_t *alarms)
{
    size_t index;
    const json_t *alarm;
    json_array_foreach(alarms, index, alarm)
    {
        fputs("<li>", out);
        write_text(out, node);
        fputs(node ? ": " : "", out);
        write_text(out, json_string_value(alarm));
        fputs("</li>\n", out);
    }
}

/* Its own, and the last received ones of the other nodes. */
static void write_alarms(FILE *out, const json_t *status)
{
    const json_t *nodes = json_at(status, "nodes.peers"), *node;
    size_t index, count = json_array_size(json_at(status, "alarms"));
    json_array_foreach(nodes, index, node)
    {
        count += json_array_size(json_at(node, "told.alarms"));
    }
    if (count == 0) {
        fputs("<p>No alarm.</p>\n", out);
        return;
    }
    fputs("<h2>Alarms</h2>\n<ul class=\"alarms\">\n", out);
    write_alarms_of(out, NULL, json_at(status, "alarms"));
    json_array_foreach(nodes, index, node)
    {
        const char *name = json_string_value(json_at(node, "name"));
        write_alarms_of(out, name, json_at(node, "told.alarms"));
    }
    fputs("</ul>\n", out);
}

void http_page_write(FILE *out, const json_t *status)
{
    const char *node = json_string_value(json_at(status, "nodes.name")); /* needs no escape */
    const char *before = node ? " of node " : "";
    node = node ? node : "";
    fprintf(out,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width\">\n"
            "<meta http-equiv=\"refresh\" content=\"%d\">\n<title>ckptd%s%s</title>\n"
            "<style>%s</style>\n</head>\n<body>\n<h1>ckptd%s%s</h1>\n<p>Store ",
            RELOAD_S, before, node, style, before, node);
    write_text(out, json_string_value(json_at(status, "store")));
    fputs(", version ", out);
    write_text(out, json_string_value(json_at(status, "version")));
    fputs(json_is_true(json_at(status, "draining")) ? ", shutting down</p>\n" : "</p>\n", out);
    write_alarms(out, status);
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++)
        write_section(out, &sections[i], status);
    fputs("<p><a href=\"/metrics\">metrics</a>, <a href=\"/status\">status</a></p>\n"
          "</body>\n</html>\n",
          out);
}
