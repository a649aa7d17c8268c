/* report.h - the story of a run, from what its checkpoints and its metrics file say to a page.
 *
 *   collect.c  checkpoints, starts, changes and lineage, out of manifests, as one JSON object
 *   metrics.c  the lines of metrics.jsonl_file: starts, steps, spikes; which of them lasted
 *   curve.c    a curve of at most CURVE_POINTS points that loses no extreme value
 *   draw.c     a chart as SVG
 *   page.c     the page as HTML, of that object alone
 *
 * The object is what --json prints. Its members are named in the help of the command. */
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
/* Leaves at most CURVE_POINTS values, in their order: of each of so many parts of the curve the
 * least and the largest, and one gap where it has some. Returns how many points there are now. */
uint32_t curve_thin(struct point *points, uint32_t count);
/* {"steps": [..], "values": [..]} of the curve, which it thins; a gap is null. NULL: no memory. */
json_t *curve_json(struct point *points, uint32_t count);

/* ---- metrics.c ---- */

enum metric { METRIC_LOSS, METRIC_VALIDATION, METRIC_NORM, METRIC_LR, METRIC_TOKENS, NUM_METRICS };
extern const char *const METRIC_NAMES[NUM_METRICS]; /* in the file, and in the report */

/* Of a step, or of its validation. */
struct metrics_line {
    int64_t step;
    double time, value[NUM_METRICS];
    uint32_t start; /* index of it */
    uint32_t has;   /* a bit per value that the line has; NaN: it was not finite */
    uint32_t place; /* in the file */
};
struct metrics_start {
    uint64_t attempt, from_attempt; /* the latter 0: nothing was loaded */
    bool is_told;                   /* a line says so; else it is guessed of its first step */
    int64_t step;                   /* it went on from this one */
    int64_t reached;                /* its last step in the file */
    int64_t lost;                   /* steps before it that it gave up */
    double time;
    int64_t parent;           /* index of the start that it went on from; -1: not in the file */
    int64_t lasts_from, last; /* its steps behind the one, up to the other, are the run's */
};
struct metrics {
    struct metrics_line *lines; /* of the branch that lasts, by step */
    struct metrics_start *starts;
    json_t *spikes; /* of that branch: an array of what the report has of each */
    uint32_t num_lines, room_lines, num_starts, room_starts;
    bool has_start;               /* one line says that it is of the run */
    uint64_t num_bad, num_others; /* lines that are no JSON, or of other runs */
    bool is_torn;                 /* the last line is cut; not counted in num_bad */
};
/* Reads all lines of the file, which errors call `path`; `runs` has a member of each name that the
 * run has or had.
 * What cannot be read in them is counted. Free it also after an error: ERR_IO, ERR_MEMORY. */
int metrics_read(struct metrics *out, FILE *file, const char *path, const json_t *runs);
void metrics_free(struct metrics *metrics);
/* The curve of a value, to be freed; a step has its latest value. ERR_MEMORY. */
int metrics_curve(struct point **out, uint32_t *out_count, const struct metrics *metrics,
                  enum metric metric);

/* ---- collect.c ---- */

/* *out: the object. `has_damage`: a checkpoint is damaged. ERR_NOT_FOUND: no such run, or file. */
int report_collect(json_t **out, bool *out_has_damage, const struct cli *cli);

/* ---- draw.c ---- */

struct chart {
    const char *title;
    const char *curves[2], *names[2]; /* members of "curves", and what they are called; or NULL */
    bool has_spikes, is_linear;
};
/* Nothing where the run has none of the curves. */
void draw_chart(FILE *out, const struct chart *chart, const json_t *root);

/* ---- page.c ---- */

/* Text of files: no tag, no attribute and no control character comes out of it. */
void page_text(FILE *out, const char *text);
/* ERR_MEMORY. */
int page_write(FILE *out, const json_t *root);

#endif
