/* page.c - writes the report of a run as one HTML page (see report.h).
 *
 * The page has no script and fetches nothing. All text from files passes through page_text(),
 * mostly by templates, in which {name} stands for that member of an object. The page is light or
 * dark like the reader's system; wide parts scroll. */
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
    {.title = "Learning rate", .curves = {"lr"}, .is_linear = true},
    {.title = "Tokens per second", .curves = {"tokens_per_second"}, .is_linear = true}};

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

/* Writes a template; {name} is replaced by the text of that member. */
static void write_template(FILE *out, const char *template, const json_t *of)
{
    char name[32];
    for (const char *at; (at = strchr(template, '{')) != NULL; template = strchr(at, '}') + 1) {
        fwrite(template, 1, (size_t)(at - template), out);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 1, "}"), at + 1);
        page_text(out, member_text(of, name));
    }
    fputs(template, out);
}

/* The same, but prints nothing if that member has no text. */
static void write_template_with(FILE *out, const char *name, const char *template, const json_t *of)
{
    if (member_text(of, name)[0] != '\0')
        write_template(out, template, of);
}

/* "2026-11-30 01:02:03" from RFC 3339. */
static const char *time_text(char out[32], const char *time)
{
    snprintf(out, 32, "%.19s", time);
    if (strlen(out) == 19 && out[10] == 'T')
        out[10] = ' ';
    return out;
}

/* ---- tables ---- */

enum cell {
    CELL_TEXT,
    CELL_LONG,
    CELL_NUMBER,
    CELL_TIME,
    CELL_SIZE,
    CELL_STATE,
    CELL_MESH,
    CELL_SETTING
};

struct column {
    const char *title, *member;
    enum cell cell;
    int digits; /* for a number that is not an integer */
};
struct table {
    const char *none; /* text for an empty table */
    struct column columns[11];
};

static const struct table CHECKPOINTS = {"There are no checkpoints.",
                                         {{"Step", "step", CELL_NUMBER, 0},
                                          {"Attempt", "attempt", CELL_NUMBER, 0},
                                          {"Time (UTC)", "time", CELL_TIME, 0},
                                          {"Size", "bytes", CELL_SIZE, 0},
                                          {"State", "damage", CELL_STATE, 0},
                                          {"Tiers", "tiers", CELL_TEXT, 0},
                                          {"Tags", "tags", CELL_TEXT, 0},
                                          {"Loss", "loss", CELL_NUMBER, 4},
                                          {"Save wait, s", "save_wait_seconds", CELL_NUMBER, 3},
                                          {"Durable after, s", "durable_seconds", CELL_NUMBER, 2}}};
static const struct table STARTS = {"No start is known.",
                                    {{"Attempt", "attempt", CELL_NUMBER, 0},
                                     {"Went on from step", "step", CELL_NUMBER, 0},
                                     {"Of attempt", "from_attempt", CELL_NUMBER, 0},
                                     {"Time (UTC)", "time", CELL_TIME, 0},
                                     {"Mesh", "mesh", CELL_MESH, 0},
                                     {"Ranks", "ranks", CELL_NUMBER, 0},
                                     {"Hosts", "hosts", CELL_NUMBER, 0},
                                     {"Steps lost before it", "lost_steps", CELL_NUMBER, 0}}};
static const struct table BROKEN = {NULL,
                                    {{"Step", "step", CELL_NUMBER, 0},
                                     {"Its numbers", "kind", CELL_TEXT, 0},
                                     {"Policy", "policy", CELL_TEXT, 0},
                                     {"From sample", "first_sample", CELL_NUMBER, 0},
                                     {"To sample", "last_sample", CELL_NUMBER, 0},
                                     {"Loss", "loss", CELL_NUMBER, 4},
                                     {"Gradient norm", "grad_norm", CELL_NUMBER, 4},
                                     {"Reason", "reason", CELL_LONG, 0}}};
static const struct table SETTINGS = {NULL,
                                      {{"What", "what", CELL_TEXT, 0},
                                       {"Before", "first", CELL_SETTING, 0},
                                       {"Now", "second", CELL_SETTING, 0}}};

static void put_state(FILE *out, const json_t *row)
{
    if (member_text(row, "damage")[0] != '\0') {
        write_template(out, "<td class=\"long bad\">{flaw}: {damage}</td>", row);
        return;
    }
    write_template(out, "<td>{durability}", row);
    fputs(json_is_true(json_object_get(row, "read_back")) ? ", read back" : "", out);
    fputs(json_is_true(json_object_get(row, "pinned")) ? ", pinned</td>" : "</td>", out);
}

/* "dp_shard 4, tp 2": the axes longer than 1. */
static void write_mesh(FILE *out, json_t *mesh)
{
    const char *axis;
    json_t *degree;
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

static int put_setting(FILE *out, const json_t *value)
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

/* "-" for no value. */
static void write_value(FILE *out, const struct column *column, const json_t *value)
{
    char room[64] = "-";
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    bool is_text = column->cell == CELL_TEXT || column->cell == CELL_TIME;
    bool is_long = column->cell == CELL_LONG;
    if (column->cell == CELL_TIME)
        text = time_text(room, text);
    else if (column->cell == CELL_SIZE && value != NULL)
        text = text_bytes(room, sizeof room, (uint64_t)json_integer_value(value));
    else if (column->cell == CELL_NUMBER && json_is_integer(value))
        snprintf(room, sizeof room, "%lld", (long long)json_integer_value(value));
    else if (column->cell == CELL_NUMBER && json_is_number(value))
        snprintf(room, sizeof room, "%.*f", column->digits, json_number_value(value));
    if (column->cell == CELL_NUMBER)
        text = room;
    fputs(is_text ? "<td>" : is_long ? "<td class=\"long\">" : "<td class=\"n\">", out);
    page_text(out, text[0] != '\0' ? text : "-");
    fputs("</td>", out);
}

static int put_cell(FILE *out, const struct column *column, const json_t *row)
{
    json_t *value = json_object_get(row, column->member);
    if (column->cell == CELL_SETTING)
        return put_setting(out, value);
    if (column->cell == CELL_STATE)
        put_state(out, row);
    else if (column->cell == CELL_MESH)
        write_mesh(out, value);
    else
        write_value(out, column, value);
    return 0;
}

static int put_table(FILE *out, const struct table *table, const json_t *rows)
{
    if (json_array_size(rows) == 0 && table->none != NULL) {
        fprintf(out, "<p class=\"dim\">%s</p>\n", table->none);
        return 0;
    }
    fputs("<div class=\"wide\"><table>\n<tr>", out);
    for (const struct column *column = table->columns; column->title != NULL; column++)
        fprintf(out, "<th%s>%s</th>",
                column->cell == CELL_NUMBER || column->cell == CELL_SIZE ? " class=\"n\"" : "",
                column->title);
    fputs("</tr>\n", out);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        fputs("<tr>", out);
        for (const struct column *column = table->columns; column->title != NULL; column++)
            ERR_TRY(put_cell(out, column, json_array_get(rows, i)));
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n", out);
    return 0;
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

static void put_head(FILE *out, const json_t *head, const json_t *notes)
{
    char text[32];
    write_template(out, "<h1>Run {run}</h1>\n<dl>\n", head);
    put_fact(out, "Newest checkpoint", member_text(head, "newest"));
    put_fact(out, "Steps", grouped(text, head, "steps"));
    put_fact(out, "Tokens", grouped(text, head, "tokens"));
    put_fact(out, "Attempts", grouped(text, head, "attempts"));
    put_fact(out, "Begin (UTC)", time_text(text, member_text(head, "begin")));
    put_fact(out, "Last step (UTC)", time_text(text, member_text(head, "time")));
    fputs(json_array_size(notes) > 0 ? "</dl>\n<ul class=\"notes\">\n" : "</dl>\n", out);
    for (size_t i = 0; i < json_array_size(notes); i++) {
        fputs("<li>", out);
        page_text(out, json_string_value(json_array_get(notes, i)));
        fputs("</li>\n", out);
    }
    fputs(json_array_size(notes) > 0 ? "</ul>\n" : "", out);
}

/* ---- changes and lineage ---- */

static int put_changes(FILE *out, const json_t *changes)
{
    fputs("<h2>What changed between attempts</h2>\n", out);
    if (json_array_size(changes) == 0)
        fputs("<p class=\"dim\">No setting that the checkpoints record.</p>\n", out);
    for (size_t i = 0; i < json_array_size(changes); i++) {
        const json_t *change = json_array_get(changes, i);
        write_template(out, "<h3>{second} compared with {first}</h3>\n", change);
        ERR_TRY(put_table(out, &SETTINGS, json_object_get(change, "settings")));
    }
    return 0;
}

static void put_lineage(FILE *out, const json_t *head, const json_t *lineage)
{
    const json_t *ancestors = json_object_get(lineage, "ancestors");
    fputs("<h2>Lineage</h2>\n<ul>\n", out);
    write_template(out,
                   lineage != NULL ? "<li>newest: {newest}</li>\n"
                                   : "<li class=\"dim\">The lineage is not known.</li>\n",
                   head);
    write_template_with(out, "origin", "<li>saved in run {origin}</li>\n", lineage);
    write_template_with(out, "converted_from",
                        "<li>made by convert of nonce {converted_from}</li>\n", lineage);
    for (size_t i = 0; i < json_array_size(ancestors); i++) {
        const json_t *ancestor = json_array_get(ancestors, i);
        fprintf(out, "<li>resumed from step %llu of attempt %llu, ",
                (unsigned long long)member_number(ancestor, "step"),
                (unsigned long long)member_number(ancestor, "attempt"));
        write_template(out, "{state}</li>\n", ancestor);
        write_template_with(out, "converted_from",
                            "<li>which was made by convert of nonce {converted_from}</li>\n",
                            ancestor);
    }
    if (json_is_false(json_object_get(lineage, "ancestors_complete")))
        fputs("<li class=\"dim\">Earlier ancestors are no longer known.</li>\n", out);
    write_template_with(out, "initial_load_path",
                        "<li>began with the weights of {initial_load_path}</li>\n", lineage);
    fputs("</ul>\n", out);
}

int page_write(FILE *out, const json_t *root)
{
    const json_t *head = json_object_get(root, "head");
    write_template(out,
                   "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                   "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                   "<title>Run {run}</title>\n<style>\n",
                   head);
    fprintf(out, "%s</style>\n</head>\n<body>\n", STYLE);
    put_head(out, head, json_object_get(root, "notes"));
    fputs("<h2>Curves</h2>\n", out);
    if (json_object_size(json_object_get(root, "curves")) == 0)
        fputs("<p class=\"dim\">No data of the steps is available.</p>\n", out);
    for (size_t i = 0; i < sizeof CHARTS / sizeof *CHARTS; i++)
        draw_chart(out, &CHARTS[i], root);
    fputs("<h2>Checkpoints</h2>\n", out);
    ERR_TRY(put_table(out, &CHECKPOINTS, json_object_get(root, "checkpoints")));
    fputs("<h2>Starts</h2>\n", out);
    ERR_TRY(put_table(out, &STARTS, json_object_get(root, "starts")));
    if (json_array_size(json_object_get(root, "broken")) > 0) {
        fputs("<h2>Steps that were skipped or rolled back</h2>\n", out);
        ERR_TRY(put_table(out, &BROKEN, json_object_get(root, "broken")));
    }
    ERR_TRY(put_changes(out, json_object_get(root, "changes")));
    put_lineage(out, head, json_object_get(root, "lineage"));
    fputs("</body>\n</html>\n", out);
    return 0;
}
