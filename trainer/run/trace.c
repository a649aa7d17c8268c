/* trace.c - draws real steps (see trace.h). */
#include "trainer/run/trace.h"
#include "kernels/device.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/comm/flight.h"
#include "trainer/config/config.h"
#include "trainer/plan/program.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A row of the drawing is a lane of a rank. */
struct trace_event {
    char name[40], row[24];
    uint32_t rank, stage, leaf, block; /* of an operation; block UINT32_MAX: none */
    uint64_t begin_ns, end_ns, bytes;  /* bytes: of a call */
};

#define CALLS_MAX 65536u /* of a rank in a step; the flight recorder may keep fewer */

/* The time of an operation's work on a device that keeps time. */
struct device_time {
    struct mark begin, end; /* without a lane: not made in this step */
};

struct trace {
    struct trace_options options;
    FILE *file; /* rank 0: options.path */
    int64_t seen;
    struct comm *world;
    uint32_t num, capacity;
    struct trace_event *events; /* [2 capacity + CALLS_MAX]: operations; work of them; calls */
    struct device_time *times;  /* [capacity]; NULL: the device keeps none */
    struct mark origin;         /* of these times, on the lane that computes: begin_ns */
    uint64_t begin_ns;
    bool is_drawn;
};

int trace_new(struct trace **out, const struct trace_options *options, struct parallel *parallel)
{
    const char *path = options->path;
    if (path[0] == '\0' && options->folder[0] == '\0')
        return 0;
    struct trace *trace = calloc(1, sizeof(*trace));
    bool has_times = false;
    if (trace != NULL) {
        trace->world = parallel_mesh_of(parallel)->world;
        trace->options = *options;
        trace->capacity = parallel_program(parallel)->num_ops;
        trace->events = calloc(2 * (size_t)trace->capacity + CALLS_MAX, sizeof(*trace->events));
        has_times = device_keeps_time(parallel_lane(parallel)->device);
        trace->times = has_times ? calloc(trace->capacity, sizeof(*trace->times)) : NULL;
    }
    if (trace == NULL || trace->events == NULL || (has_times && trace->times == NULL)) {
        trace_free(trace);
        return report_error(ERR_MEMORY, NULL, "no memory for the timeline of a step");
    }
    bool is_writer = trace->world->rank == 0 && path[0] != '\0';
    if (is_writer && (trace->file = fopen(path, "w")) == NULL) {
        trace_free(trace);
        return report_error(ERR_INVALID, "make its folder, or name another file",
                            "could not create debug.timeline_file %s: %s", path, strerror(errno));
    }
    *out = trace;
    return 0;
}

void trace_free(struct trace *trace)
{
    if (trace == NULL)
        return;
    if (trace->file != NULL) {
        fclose(trace->file);
        if (!trace->is_drawn)
            log_warn("train", "%s is empty: this start ended before its step %" PRId64,
                     trace->options.path, trace->options.at_step);
    }
    free(trace->events);
    free(trace->times);
    free(trace);
}

/* ---- drawings ---- */

static uint64_t first_of(const struct trace_event *events, size_t num)
{
    uint64_t first = UINT64_MAX;
    for (size_t i = 0; i < num; i++)
        first = events[i].begin_ns < first ? events[i].begin_ns : first;
    return first;
}

/* The number of the event's row among the rows of its rank, in the order of their first events.
 * `is_new`: it is the first event of its row. */
#define ROWS_MAX 24u
struct rows {
    uint32_t rank, num;
    const char *of[ROWS_MAX];
};
static uint32_t row_of(struct rows *rows, const struct trace_event *event, bool *is_new)
{
    if (event->rank != rows->rank)
        *rows = (struct rows){.rank = event->rank};
    uint32_t row = 0;
    while (row < rows->num && strcmp(rows->of[row], event->row) != 0)
        row++;
    *is_new = row == rows->num && row < ROWS_MAX;
    if (*is_new)
        rows->of[rows->num++] = event->row;
    return row;
}

/* Trace Event Format, complete events ("X"), microseconds; a process is a rank. */
static void write_chrome(FILE *out, const struct trace_event *events, size_t num)
{
    uint64_t first = first_of(events, num);
    struct rows rows = {.rank = UINT32_MAX};
    fprintf(out, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
    for (size_t i = 0; i < num; i++) {
        const struct trace_event *e = &events[i];
        bool is_new_rank = e->rank != rows.rank, is_new;
        uint32_t row = row_of(&rows, e, &is_new);
        if (is_new_rank)
            fprintf(out,
                    "%s\n{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %u, \"args\": "
                    "{\"name\": \"rank %u\"}}",
                    i > 0 ? "," : "", e->rank, e->rank);
        if (is_new)
            fprintf(out,
                    ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %u, \"tid\": %u, "
                    "\"args\": {\"name\": \"%s\"}}",
                    e->rank, row, e->row);
        fprintf(out,
                ",\n{\"ph\": \"X\", \"name\": \"%s\", \"pid\": %u, \"tid\": %u, \"ts\": %.3f, "
                "\"dur\": %.3f, \"args\": {\"stage\": %u, \"leaf\": %u, \"block\": %d, \"bytes\": "
                "%" PRIu64 "}}",
                e->name, e->rank, row, (double)(e->begin_ns - first) * 1e-3,
                (double)(e->end_ns - e->begin_ns) * 1e-3, e->stage, e->leaf, (int)e->block,
                e->bytes);
    }
    fprintf(out, "\n]}\n");
}

#define SVG_WIDTH 1800.0
#define SVG_LEFT 150.0
#define SVG_ROW 18.0

/* A name has the same colour on all ranks. */
static uint32_t hue_of(const char *name)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * 16777619u;
    return hash % 360;
}

static void write_svg(FILE *out, const struct trace_event *events, size_t num)
{
    uint64_t first = first_of(events, num), last = first;
    struct rows rows = {.rank = UINT32_MAX};
    uint32_t num_rows = 0, before = 0;
    bool is_new;
    for (size_t i = 0; i < num; i++) {
        last = events[i].end_ns > last ? events[i].end_ns : last;
        (void)row_of(&rows, &events[i], &is_new);
        num_rows += is_new;
    }
    double scale = (SVG_WIDTH - SVG_LEFT) / ((double)(last - first) + 1);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "font-family=\"sans-serif\" font-size=\"11\">\n",
            SVG_WIDTH, SVG_ROW * (num_rows + 1));
    rows = (struct rows){.rank = UINT32_MAX};
    for (size_t i = 0; i < num; i++) {
        const struct trace_event *e = &events[i];
        uint32_t rows_of_last = rows.num;
        if (e->rank != rows.rank)
            before += rows_of_last;
        double top = SVG_ROW * (before + row_of(&rows, e, &is_new));
        if (is_new)
            fprintf(out, "<text x=\"2\" y=\"%.0f\">rank %u %s</text>\n", top + 13, e->rank, e->row);
        fprintf(out,
                "<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\" fill=\"hsl(%u,60%%,"
                "65%%)\"><title>%s, stage %u, leaf %u, block %d: %.3f ms</title></rect>\n",
                SVG_LEFT + scale * (double)(e->begin_ns - first), top,
                scale * (double)(e->end_ns - e->begin_ns), SVG_ROW - 3, hue_of(e->name), e->name,
                e->stage, e->leaf, (int)e->block, (double)(e->end_ns - e->begin_ns) * 1e-6);
    }
    fprintf(out, "<text x=\"%.0f\" y=\"%.0f\">%.3f ms</text>\n</svg>\n", SVG_LEFT,
            SVG_ROW * num_rows + 13, (double)(last - first) * 1e-6);
}

/* ---- a step ---- */

/* Each operation has its own event, so lanes need no lock. */
static void note_op(void *user, const struct op *op, uint32_t index, struct lane *lane, bool is_end)
{
    struct trace *trace = user;
    struct trace_event *event = &trace->events[index];
    bool is_timed = trace->times != NULL && lane != NULL;
    CHECK(index < trace->capacity);
    if (is_end) {
        if (is_timed)
            lane_mark(lane, &trace->times[index].end);
        event->end_ns = clock_ns();
        return;
    }
    *event = (struct trace_event){
        .rank = trace->world->rank, .stage = op->stage, .leaf = op->leaf, .block = op->block};
    snprintf(event->name, sizeof(event->name), "%s", op_name(op->kind));
    snprintf(event->row, sizeof(event->row), "%s", lane_name(op->lane));
    event->begin_ns = clock_ns();
    if (is_timed)
        lane_mark(lane, &trace->times[index].begin);
}

static int begin_times(struct trace *trace, struct lane *compute)
{
    for (uint32_t i = 0; i < trace->capacity && trace->times != NULL; i++) {
        trace->times[i].begin.lane = trace->times[i].end.lane = NULL;
        trace->times[i].begin.is_timed = trace->times[i].end.is_timed = true;
    }
    if (trace->times != NULL) {
        trace->origin.is_timed = true;
        ERR_TRY(lane_settle(compute));
        lane_mark(compute, &trace->origin);
        ERR_TRY(lane_settle_mark(compute, &trace->origin));
    }
    trace->begin_ns = clock_ns();
    return 0;
}

/* When the device worked on an operation, as an event of a row of its own. */
static int find_time(struct trace_event *out, const struct trace *trace, uint32_t index)
{
    const struct device_time *time = &trace->times[index];
    double begin = 0, end = 0;
    ERR_TRY(lane_settle_mark(time->end.lane, &time->end));
    ERR_TRY(lane_elapsed(&begin, &trace->origin, &time->begin));
    ERR_TRY(lane_elapsed(&end, &trace->origin, &time->end));
    *out = trace->events[index];
    out->begin_ns = trace->begin_ns + (uint64_t)(begin * 1e9);
    out->end_ns = trace->begin_ns + (uint64_t)(end * 1e9);
    size_t length = strlen(out->row);
    snprintf(out->row + length, sizeof(out->row) - length, ", device");
    return 0;
}

/* Adds them behind the operations, one of each. */
static void note_times(struct trace *trace)
{
    for (uint32_t i = 0; i < trace->capacity && trace->times != NULL; i++) {
        const struct device_time *time = &trace->times[i];
        if (time->begin.lane == NULL || time->end.lane == NULL)
            continue;
        if (find_time(&trace->events[trace->num], trace, i) == 0)
            trace->num++;
        else
            log_warn("train", "the drawing lacks times of the device: %s", report_line());
    }
}

/* Drops the events of copies that a failed save did not make. */
static void drop_unmade(struct trace *trace)
{
    uint32_t num = trace->num;
    trace->num = 0;
    for (uint32_t i = 0; i < num; i++)
        if (trace->events[i].end_ns != 0)
            trace->events[trace->num++] = trace->events[i];
}

/* Adds the calls of the step. */
static void note_calls(struct trace *trace)
{
    struct flight *flight = trace->world->flight;
    struct flight_record record;
    uint32_t left = CALLS_MAX;
    for (uint64_t id = flight_last(flight); left > 0 && flight_find(flight, id, &record);
         id--, left--) {
        if (record.started_ns < trace->begin_ns)
            break;
        struct trace_event *event = &trace->events[trace->num++];
        *event = (struct trace_event){.rank = trace->world->rank,
                                      .block = PROGRAM_BLOCK_NONE,
                                      .begin_ns = record.started_ns,
                                      .end_ns = record.ended_ns,
                                      .bytes = record.bytes};
        snprintf(event->name, sizeof(event->name), "%s (%s)", comm_kind_name(record.kind),
                 record.group);
        snprintf(event->row, sizeof(event->row), "%s calls",
                 record.kind == COMM_SEND ? "send" : record.lane);
    }
}

/* Gathers the events of all ranks, rank after rank. The caller frees *out. */
static int gather_events(struct trace *trace, struct trace_event **out, size_t *out_num)
{
    struct comm *world = trace->world;
    size_t *lists = calloc(4 * (size_t)world->size, sizeof(*lists)), total = 0;
    size_t *bytes = lists, *at = lists + world->size, *eight = lists + 2 * (size_t)world->size;
    size_t *places = lists + 3 * (size_t)world->size, mine = trace->num * sizeof(**out);
    int rc = lists != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a timeline");
    ERR_TRY(parallel_agree(world, rc));
    for (uint32_t r = 0; r < world->size; r++) {
        eight[r] = sizeof(mine);
        places[r] = r * sizeof(mine);
    }
    rc = comm_all_gather_v(world, &mine, sizeof(mine), bytes, eight, places);
    for (uint32_t r = 0; r < world->size && rc == 0; r++) {
        at[r] = total;
        total += bytes[r];
    }
    *out = rc == 0 ? malloc(total + 1) : NULL;
    if (rc == 0 && *out == NULL)
        rc = report_error(ERR_MEMORY, NULL, "no memory for a timeline of %zu bytes", total);
    rc = parallel_agree(world, rc);
    if (rc == 0)
        rc = comm_all_gather_v(world, trace->events, mine, *out, bytes, at);
    *out_num = total / sizeof(**out);
    free(lists);
    return rc;
}

static void write_file(struct trace *trace, const struct trace_event *events, size_t num)
{
    const char *path = trace->options.path;
    size_t length = strlen(path);
    bool is_svg = length > 4 && strcmp(path + length - 4, ".svg") == 0;
    (is_svg ? write_svg : write_chrome)(trace->file, events, num);
    if (fclose(trace->file) != 0)
        log_warn("train", "could not write %s: %s", path, strerror(errno));
    else
        log_info("train", "wrote the timeline of a step to %s: %zu events", path, num);
    trace->file = NULL;
}

/* Creates the missing folders of a path. */
static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0777); /* errors are reported when the file is opened */
        *slash = '/';
    }
}

/* Writes this rank's file. After a failure no more files are written. */
static void write_own(struct trace *trace, int64_t step)
{
    char path[640];
    uint32_t rank = trace->world->rank;
    snprintf(path, sizeof(path), "%s/iteration_%" PRId64 "/rank%u_trace.json",
             trace->options.folder, step, rank);
    make_folders(path);
    FILE *file = fopen(path, "w");
    if (file != NULL)
        write_chrome(file, trace->events, trace->num);
    if (file == NULL || fclose(file) != 0) {
        log_warn("train", "could not write %s: %s; no further step is profiled", path,
                 strerror(errno));
        trace->options.folder[0] = '\0';
    } else if (rank == 0) {
        log_info("train", "wrote the trace of step %" PRId64 " to %s, and so did other ranks", step,
                 path);
    }
}

static bool is_profiled(const struct trace_options *o, int64_t step)
{
    if (o->folder[0] == '\0')
        return false;
    return o->steps[0] != '\0' ? config_has_step(o->steps, step) : step % o->freq == 0;
}

/* Writes the events of all ranks to their file. Collective. */
static int draw_all(struct trace *trace)
{
    struct trace_event *all = NULL;
    size_t num = 0;
    int rc = gather_events(trace, &all, &num);
    if (rc == ERR_MEMORY)
        log_warn("train", "the timeline is left out: %s", report_line());
    if (rc == 0 && trace->world->rank == 0)
        write_file(trace, all, num);
    trace->is_drawn = true;
    free(all);
    return rc == ERR_MEMORY ? 0 : rc;
}

int trace_step(struct trace *trace, struct parallel *parallel, const struct step_input *input,
               struct step_result *out)
{
    bool is_drawn =
        trace != NULL && ++trace->seen == trace->options.at_step && trace->options.path[0] != '\0';
    bool is_own = trace != NULL && is_profiled(&trace->options, input->step);
    if (!is_drawn && !is_own)
        return parallel_step(parallel, input, out);
    memset(trace->events, 0, trace->capacity * sizeof(*trace->events));
    int rc = begin_times(trace, parallel_lane(parallel));
    if (rc != 0)
        return comm_fail(trace->world, rc);
    parallel_observe(parallel, &(struct op_observer){note_op, trace});
    rc = parallel_step(parallel, input, out);
    parallel_observe(parallel, &(struct op_observer){0});
    if (rc != 0 || out->is_dropped)
        return rc;
    trace->num = parallel_program(parallel)->num_ops;
    note_times(trace);
    drop_unmade(trace);
    note_calls(trace);
    if (is_own)
        write_own(trace, input->step);
    return is_drawn ? draw_all(trace) : 0;
}
