/* page.c - the report of a run as one page of HTML (see report.h).
 *
 * The page has no script and fetches nothing. All text that comes from files goes through
 * page_text(). It is light or dark as the reader's system is; what is too wide scrolls by itself.
 */
#include "clients/cli/report/report.h"

#include <stdlib.h>
#include <string.h>

static const char STYLE[] =
    ":root{color-scheme:light dark;--page:#fff;--panel:#f4f6f8;--ink:#1b1f24;--dim:#5c6670;"
    "--line:#d8dee4;--c0:#0b69c7;--c1:#c26a00;--start:#7a4fc9;--bad:#c62828}\n"
    "@media(prefers-color-scheme:dark){:root{--page:#12161b;--panel:#1b2128;--ink:#e4e8ec;"
    "--dim:#97a2ad;--line:#343c45;--c0:#58a6ff;--c1:#f0a040;--start:#b79cf5;--bad:#ff7b72}}\n"
    "body{margin:0 auto;max-width:1080px;padding:20px 16px 48px;background:var(--page);"
    "color:var(--ink);font:15px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:26px;margin:0 0 12px;overflow-wrap:anywhere}h2{font-size:19px;margin:36px 0 8px}"
    "h3{font-size:15px;margin:18px 0 6px;overflow-wrap:anywhere}\n"
    "p,li{overflow-wrap:anywhere}.dim{color:var(--dim)}.bad{color:var(--bad)}\n"
    "dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px;margin:0}"
    "dl div{background:var(--panel);border-radius:8px;padding:8px 12px}"
    "dt{color:var(--dim);font-size:13px}dd{margin:0;font-size:17px;overflow-wrap:anywhere}\n"
    ".notes{background:var(--panel);border-left:4px solid var(--c1);border-radius:4px;"
    "margin:16px 0 0;padding:8px 12px 8px 30px}\n"
    ".wide{overflow-x:auto;margin:0 0 14px}\n"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;white-space:nowrap}"
    "th{color:var(--dim);font-weight:600;text-align:left;font-size:13px}"
    "th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}"
    ".n{text-align:right}td.long{white-space:normal;min-width:180px;max-width:420px;"
    "overflow-wrap:anywhere}\n"
    "svg{display:block;width:100%;min-width:800px;font:12px system-ui,sans-serif;"
    "fill:var(--ink)}\n"
    "svg path{fill:none;stroke-width:1}.grid{stroke:var(--line)}.axis,.tick{stroke:var(--dim)}"
    ".level,.name{text-anchor:end}.step,.start text{text-anchor:middle}"
    ".level,.step{fill:var(--dim)}.title{font-weight:600;font-size:14px}\n"
    "svg .curve{stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}"
    "svg .curve.c0{stroke:var(--c0)}svg .curve.c1{stroke:var(--c1)}"
    ".name.c0{fill:var(--c0)}.name.c1{fill:var(--c1)}\n"
    ".start path{stroke:var(--start);stroke-dasharray:4 3}.start text{fill:var(--start)}"
    ".spike{fill:none;stroke:var(--bad);stroke-width:2}\n";

static const struct chart CHARTS[] = {
    {.title = "Loss",
     .curves = {"loss", "validation_loss"},
     .names = {"training", "validation"},
     .has_spikes = true},
    {.title = "Gradient norm", .curves = {"grad_norm"}},
    {.title = "Learning rate", .curves = {"lr"}, .is_linear = true}};

void page_text(FILE *out, const char *text)
{
    while (*text != '\0') {
        size_t length = report_printable(text);
        const char *name = *text == '&'    ? "&amp;"
                           : *text == '<'  ? "&lt;"
                           : *text == '>'  ? "&gt;"
                           : *text == '"'  ? "&quot;"
                           : *text == '\'' ? "&#39;"
                           : length == 0   ? "?"
                                           : NULL;
        if (name != NULL)
            fputs(name, out);
        else
            fwrite(text, 1, length, out);
        text += length > 0 ? length : 1;
    }
}

/* ---- parts of tables ---- */

struct column {
    const char *title;
    bool is_number;
};

static void begin_table(FILE *out, const struct column *columns, size_t count)
{
    fputs("<div class=\"wide\"><table>\n<tr>", out);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "<th%s>%s</th>", columns[i].is_number ? " class=\"n\"" : "", columns[i].title);
    fputs("</tr>\n", out);
}

static void end_table(FILE *out)
{
    fputs("</table></div>\n", out);
}

static void put_text(FILE *out, const char *text)
{
    fputs("<td>", out);
    page_text(out, text[0] != '\0' ? text : "-");
    fputs("</td>", out);
}

/* "-" where there is none; `format` is that of a double. */
static void put_number(FILE *out, const json_t *of, const char *name, const char *format)
{
    char text[64] = "-";
    const json_t *value = json_object_get(of, name);
    if (json_is_integer(value))
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    else if (json_is_number(value))
        snprintf(text, sizeof text, format, json_number_value(value)); /* NOLINT: ours */
    fprintf(out, "<td class=\"n\">%s</td>", text);
}

/* "2026-11-30 01:02:03" of RFC 3339. */
static const char *time_text(char out[32], const char *time)
{
    snprintf(out, 32, "%.19s", time);
    if (strlen(out) == 19 && out[10] == 'T')
        out[10] = ' ';
    return out;
}

static void put_time(FILE *out, const json_t *of)
{
    char text[32];
    put_text(out, time_text(text, member_text(of, "time")));
}

/* ---- the head ---- */

static void put_fact(FILE *out, const char *name, const char *text)
{
    if (text[0] == '\0')
        return;
    fprintf(out, "<div><dt>%s</dt><dd>", name);
    page_text(out, text);
    fputs("</dd></div>\n", out);
}

/* With a blank between thousands. */
static const char *grouped(char out[32], const json_t *of, const char *name)
{
    char digits[24];
    const json_t *value = json_object_get(of, name);
    size_t used = 0;
    int length = snprintf(digits, sizeof digits, "%lld", (long long)json_integer_value(value));
    for (int i = 0; i < length && json_is_integer(value); i++) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-')
            out[used++] = ' ';
        out[used++] = digits[i];
    }
    out[used] = '\0';
    return out;
}

static void put_head(FILE *out, const json_t *root)
{
    const json_t *head = json_object_get(root, "head"), *notes = json_object_get(root, "notes");
    char text[32];
    fputs("<h1>Run ", out);
    page_text(out, member_text(head, "run"));
    fputs("</h1>\n<dl>\n", out);
    put_fact(out, "Newest checkpoint", member_text(head, "newest"));
    put_fact(out, "Steps", grouped(text, head, "steps"));
    put_fact(out, "Tokens", grouped(text, head, "tokens"));
    put_fact(out, "Attempts", grouped(text, head, "attempts"));
    put_fact(out, "Begin (UTC)", time_text(text, member_text(head, "begin")));
    put_fact(out, "Last step (UTC)", time_text(text, member_text(head, "time")));
    fputs("</dl>\n", out);
    if (json_array_size(notes) > 0)
        fputs("<ul class=\"notes\">\n", out);
    for (size_t i = 0; i < json_array_size(notes); i++) {
        const char *note = json_string_value(json_array_get(notes, i));
        fputs("<li>", out);
        page_text(out, note != NULL ? note : "");
        fputs("</li>\n", out);
    }
    if (json_array_size(notes) > 0)
        fputs("</ul>\n", out);
}

static void put_charts(FILE *out, const json_t *root)
{
    fputs("<h2>Curves</h2>\n", out);
    if (json_object_size(json_object_get(root, "curves")) == 0)
        fputs("<p class=\"dim\">Nothing is known of the steps.</p>\n", out);
    for (size_t i = 0; i < sizeof CHARTS / sizeof *CHARTS; i++)
        draw_chart(out, &CHARTS[i], root);
}

/* ---- checkpoints ---- */

static void put_state(FILE *out, const json_t *row)
{
    const char *damage = member_text(row, "damage");
    if (damage[0] == '\0') {
        fputs("<td>", out);
        page_text(out, member_text(row, "durability"));
        fprintf(out, "%s%s</td>",
                json_is_true(json_object_get(row, "read_back")) ? ", read back" : "",
                json_is_true(json_object_get(row, "pinned")) ? ", pinned" : "");
        return;
    }
    fputs("<td class=\"long bad\">", out);
    page_text(out, member_text(row, "flaw"));
    fputs(": ", out);
    page_text(out, damage);
    fputs("</td>", out);
}

static void put_checkpoint(FILE *out, const json_t *row)
{
    char size[32];
    const json_t *bytes = json_object_get(row, "bytes");
    fputs("<tr>", out);
    put_number(out, row, "step", "");
    put_number(out, row, "attempt", "");
    put_time(out, row);
    fprintf(out, "<td class=\"n\">%s</td>",
            bytes != NULL ? text_bytes(size, sizeof size, member_number(row, "bytes")) : "-");
    put_state(out, row);
    put_text(out, member_text(row, "tiers"));
    put_text(out, member_text(row, "tags"));
    put_number(out, row, "loss", "%.4f");
    put_number(out, row, "save_wait_seconds", "%.3f");
    put_number(out, row, "durable_seconds", "%.2f");
    fputs("</tr>\n", out);
}

static void put_checkpoints(FILE *out, const json_t *root)
{
    static const struct column columns[] = {
        {"Step", true},         {"Attempt", true},         {"Time (UTC)", false}, {"Size", true},
        {"State", false},       {"Tiers", false},          {"Tags", false},       {"Loss", true},
        {"Save wait, s", true}, {"Durable after, s", true}};
    const json_t *rows = json_object_get(root, "checkpoints");
    fputs("<h2>Checkpoints</h2>\n", out);
    if (json_array_size(rows) == 0) {
        fputs("<p class=\"dim\">There is none.</p>\n", out);
        return;
    }
    begin_table(out, columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < json_array_size(rows); i++)
        put_checkpoint(out, json_array_get(rows, i));
    end_table(out);
}

/* ---- starts, and what changed ---- */

/* "dp_shard 4, tp 2": the axes that are longer than 1. */
static void put_mesh(FILE *out, const json_t *start)
{
    const char *axis;
    json_t *degree, *mesh = json_object_get(start, "mesh");
    int count = 0;
    fputs("<td>", out);
    json_object_foreach(mesh, axis, degree)
    {
        if (json_integer_value(degree) < 2)
            continue;
        fputs(count++ > 0 ? ", " : "", out);
        page_text(out, axis);
        fprintf(out, " %lld", (long long)json_integer_value(degree));
    }
    fputs(count > 0 ? "</td>" : mesh != NULL ? "one rank</td>" : "-</td>", out);
}

static void put_starts(FILE *out, const json_t *root)
{
    static const struct column columns[] = {{"Attempt", true},    {"Went on from step", true},
                                            {"Of attempt", true}, {"Time (UTC)", false},
                                            {"Mesh", false},      {"Ranks", true},
                                            {"Hosts", true},      {"Steps lost before it", true}};
    const json_t *starts = json_object_get(root, "starts");
    fputs("<h2>Starts</h2>\n", out);
    if (json_array_size(starts) == 0) {
        fputs("<p class=\"dim\">None is known.</p>\n", out);
        return;
    }
    begin_table(out, columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < json_array_size(starts); i++) {
        const json_t *start = json_array_get(starts, i);
        fputs("<tr>", out);
        put_number(out, start, "attempt", "");
        put_number(out, start, "step", "");
        put_number(out, start, "from_attempt", "");
        put_time(out, start);
        put_mesh(out, start);
        put_number(out, start, "ranks", "");
        put_number(out, start, "hosts", "");
        put_number(out, start, "lost_steps", "");
        fputs("</tr>\n", out);
    }
    end_table(out);
}

static int put_value(FILE *out, const json_t *value)
{
    char *text = settings_value(value);
    if (text == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a report");
    fputs("<td class=\"long\">", out);
    page_text(out, text);
    fputs("</td>", out);
    free(text);
    return 0;
}

static int put_settings(FILE *out, const json_t *change)
{
    static const struct column columns[] = {{"What", false}, {"Before", false}, {"Now", false}};
    const json_t *settings = json_object_get(change, "settings");
    fputs("<h3>", out);
    page_text(out, member_text(change, "second"));
    fputs(" beside ", out);
    page_text(out, member_text(change, "first"));
    fputs("</h3>\n", out);
    begin_table(out, columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < json_array_size(settings); i++) {
        const json_t *entry = json_array_get(settings, i);
        fputs("<tr>", out);
        put_text(out, member_text(entry, "what"));
        ERR_TRY(put_value(out, json_object_get(entry, "first")));
        ERR_TRY(put_value(out, json_object_get(entry, "second")));
        fputs("</tr>\n", out);
    }
    end_table(out);
    return 0;
}

static int put_changes(FILE *out, const json_t *root)
{
    const json_t *changes = json_object_get(root, "changes");
    fputs("<h2>What changed between attempts</h2>\n", out);
    if (json_array_size(changes) == 0)
        fputs("<p class=\"dim\">No setting, as far as checkpoints tell.</p>\n", out);
    for (size_t i = 0; i < json_array_size(changes); i++)
        ERR_TRY(put_settings(out, json_array_get(changes, i)));
    return 0;
}

/* ---- lineage ---- */

static void put_origin(FILE *out, const json_t *lineage, const char *name, const char *text)
{
    const char *value = member_text(lineage, name);
    if (value[0] == '\0')
        return;
    fprintf(out, "<li>%s ", text);
    page_text(out, value);
    fputs("</li>\n", out);
}

static void put_lineage(FILE *out, const json_t *root)
{
    const json_t *head = json_object_get(root, "head"), *lineage = json_object_get(root, "lineage");
    const json_t *ancestors = json_object_get(lineage, "ancestors");
    fputs("<h2>Lineage</h2>\n<ul>\n", out);
    if (lineage == NULL)
        fputs("<li class=\"dim\">It is not known.</li>\n", out);
    else {
        fputs("<li>newest: ", out);
        page_text(out, member_text(head, "newest"));
        fputs("</li>\n", out);
    }
    put_origin(out, lineage, "origin", "saved in run");
    put_origin(out, lineage, "converted_from", "made by convert of nonce");
    for (size_t i = 0; i < json_array_size(ancestors); i++) {
        const json_t *ancestor = json_array_get(ancestors, i);
        fprintf(out, "<li>resumed from step %llu of attempt %llu, ",
                (unsigned long long)member_number(ancestor, "step"),
                (unsigned long long)member_number(ancestor, "attempt"));
        page_text(out, member_text(ancestor, "state"));
        fputs("</li>\n", out);
        put_origin(out, ancestor, "converted_from", "which was made by convert of nonce");
    }
    if (json_is_false(json_object_get(lineage, "ancestors_complete")))
        fputs("<li class=\"dim\">What came before is not known any more.</li>\n", out);
    put_origin(out, lineage, "initial_load_path", "began with the weights of");
    fputs("</ul>\n", out);
}

int page_write(FILE *out, const json_t *root)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Run ",
          out);
    page_text(out, member_text(json_object_get(root, "head"), "run"));
    fprintf(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n", STYLE);
    put_head(out, root);
    put_charts(out, root);
    put_checkpoints(out, root);
    put_starts(out, root);
    int error = put_changes(out, root);
    if (error == 0)
        put_lineage(out, root);
    fputs("</body>\n</html>\n", out);
    return error;
}
