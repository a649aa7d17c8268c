/* report.h - the report of a run, from its checkpoints and its metrics file to a page.
 *
 *   collect.c  checkpoints, starts, changes and lineage, from manifests, as one JSON object
 *   metrics.c  the lines of metrics.jsonl_file: starts, steps, spikes; which of them lasted
 *   curve.c    a curve of at most CURVE_POINTS points that loses no extreme value
 *   draw.c     a chart as SVG
 *   page.c     the page as HTML, from that object alone
 *
 * --json prints that object. The help of the command lists its members. */
#ifndef HOLDFAST_CLIENTS_CLI_REPORT_H
#define HOLDFAST_CLIENTS_CLI_REPORT_H

#include "clients/cli/engine/cli.h"
#include "proto/base/json.h"

/* ---- curve.c ---- */

#define CURVE_POINTS 1000u

/* A value that is not finite is a gap. */
struct point {
    int64_t step;
    double value;
};
/* Keeps at most CURVE_POINTS values, in order: of each part of the curve the least and the largest,
 * and one gap if it has any. Returns the new number of points. */
uint32_t curve_thin(struct point *points, uint32_t count);
/* {"steps": [..], "values": [..]} of the curve, which it thins; a gap is null. NULL: no memory. */
json_t *curve_json(struct point *points, uint32_t count);

/* ---- metrics.c ---- */

enum metric {
    METRIC_LOSS,
    METRIC_VALIDATION,
    METRIC_NORM,
    METRIC_LR,
    METRIC_RATE, /* computed from time and tokens of two lines */
    METRIC_TOKENS,
    NUM_METRICS
};
extern const char *const METRIC_NAMES[NUM_METRICS]; /* in the file, and in the report */

/* Of a step, or of its validation. */
struct metrics_line {
    int64_t step;
    double time, value[NUM_METRICS];
    uint32_t start; /* index of its start */
    uint32_t has;   /* a bit per value of the line; NaN: it was not finite */
    uint32_t place; /* line number order in the file */
};
struct metrics_start {
    uint64_t attempt, from_attempt; /* the latter 0: nothing was loaded */
    bool is_told;                   /* from a line; else derived from its first step */
    int64_t step;                   /* it continued from this step */
    int64_t reached;                /* its last step in the file */
    int64_t lost;                   /* earlier steps that it gave up */
    double time;
    int64_t parent;           /* index of the start from which it continued; -1: not in the file */
    int64_t lasts_from, last; /* its steps after the first, up to the second, are the run's */
};
struct metrics {
    struct metrics_line *lines; /* of the lasting branch, by step */
    struct metrics_start *starts;
    json_t *spikes; /* of that branch: the array for the report */
    uint32_t num_lines, room_lines, num_starts, room_starts;
    bool has_start;               /* a line names the run */
    uint64_t num_bad, num_others; /* lines that are not JSON, or of other runs */
    bool is_torn;                 /* the last line is incomplete; not counted in num_bad */
};
/* Reads all lines of the file, which errors call `path`; `runs` has a member for each name that the
 * run has or had. Counts unreadable lines. Free it also after an error: ERR_IO, ERR_MEMORY. */
int metrics_read(struct metrics *out, FILE *file, const char *path, const json_t *runs);
void metrics_free(struct metrics *metrics);
/* The curve of a value; the caller frees it. A step has its latest value. ERR_MEMORY. */
int metrics_curve(struct point **out, uint32_t *out_count, const struct metrics *metrics,
                  enum metric metric);

/* ---- collect.c ---- */

/* *out: the object. `has_damage`: a checkpoint is damaged. ERR_NOT_FOUND: no such run, or file. */
int report_collect(json_t **out, bool *out_has_damage, const struct cli *cli);

/* ---- draw.c ---- */

struct chart {
    const char *title;
    const char *curves[2], *names[2]; /* members of "curves", and their titles; or NULL */
    bool has_spikes, is_linear;
};
/* Draws nothing if the run has none of the curves. */
void draw_chart(FILE *out, const struct chart *chart, const json_t *root);

/* ---- page.c ---- */

/* Writes text of files without tags, attributes and control characters. */
void page_text(FILE *out, const char *text);
/* ERR_MEMORY. */
int page_write(FILE *out, const json_t *root);

#endif
