/* timeline.c - the walk of a program with given figures (see timeline.h). */
#include "trainer/plan/timeline.h"
#include "proto/base/report.h"

#include <math.h>
#include <stdlib.h>

struct walk {
    const struct program *program;
    timeline_seconds *seconds;
    const void *user;
    const double *not_before; /* [num_ops] of a lane's operation; or NULL */
    struct timeline_span *spans;
    double *posted;             /* [num_ops] */
    bool *has_end;              /* [num_ops] */
    uint32_t *queue[NUM_LANES]; /* [num_ops] each */
    uint32_t first[NUM_LANES], num[NUM_LANES];
    double lane_free[NUM_LANES], link_free;
    struct timeline *out;
};

/* Gives the link to the lane whose first operation is ready first; false: there is none. */
static bool advance_link(struct walk *w)
{
    uint32_t best = NUM_LANES;
    double best_ready = 0;
    for (uint32_t lane = 0; lane < NUM_LANES; lane++) {
        if (w->first[lane] == w->num[lane])
            continue;
        uint32_t first = w->queue[lane][w->first[lane]];
        double ready = fmax(w->posted[first], w->lane_free[lane]);
        if (w->not_before != NULL)
            ready = fmax(ready, w->not_before[first]);
        if (best == NUM_LANES || ready < best_ready) {
            best = lane;
            best_ready = ready;
        }
    }
    if (best == NUM_LANES)
        return false;
    uint32_t index = w->queue[best][w->first[best]++];
    double begin = fmax(best_ready, w->link_free);
    double lasts = w->seconds(w->user, &w->program->ops[index]);
    w->spans[index] = (struct timeline_span){begin, begin + lasts};
    w->has_end[index] = true;
    w->lane_free[best] = w->link_free = begin + lasts;
    w->out->link += lasts;
    w->out->total = fmax(w->out->total, begin + lasts);
    return true;
}

static int walk_op(struct walk *w, uint32_t index, double *now)
{
    const struct op *op = &w->program->ops[index];
    for (uint32_t lane = 0; lane < NUM_LANES; lane++) {
        if (op->after[lane] == 0)
            continue;
        while (op->after[lane] <= index && !w->has_end[op->after[lane] - 1] && advance_link(w))
            ;
        if (op->after[lane] > index || !w->has_end[op->after[lane] - 1])
            return report_error(ERR_INVALID, NULL, "operation %u waits for one behind it", index);
        *now = fmax(*now, w->spans[op->after[lane] - 1].end);
    }
    if (op->lane != LANE_COMPUTE && op->lane != LANE_SEND) {
        w->posted[index] = *now;
        w->queue[op->lane][w->num[op->lane]++] = index;
        return 0;
    }
    double lasts = w->seconds(w->user, op);
    w->spans[index] = (struct timeline_span){*now, *now + lasts};
    w->has_end[index] = true;
    w->out->compute += lasts;
    *now += lasts;
    return 0;
}

int timeline_walk(const struct program *program, timeline_seconds *seconds, const void *user,
                  const double *not_before, struct timeline_span *spans, struct timeline *out)
{
    struct walk w = {.program = program,
                     .seconds = seconds,
                     .user = user,
                     .not_before = not_before,
                     .spans = spans,
                     .out = out};
    double now = 0;
    *out = (struct timeline){0};
    w.posted = calloc(program->num_ops + 1u, sizeof(*w.posted));
    w.has_end = calloc(program->num_ops + 1u, sizeof(*w.has_end));
    bool is_short = w.posted == NULL || w.has_end == NULL;
    for (uint32_t lane = 0; lane < NUM_LANES; lane++) {
        w.queue[lane] = calloc(program->num_ops + 1u, sizeof(**w.queue));
        is_short = is_short || w.queue[lane] == NULL;
    }
    int rc = is_short ? report_error(ERR_MEMORY, NULL, "no memory to walk the program") : 0;
    for (uint32_t i = 0; i < program->num_ops && rc == 0; i++)
        rc = walk_op(&w, i, &now);
    while (rc == 0 && advance_link(&w))
        ;
    out->total = fmax(out->total, now);
    free(w.posted);
    free(w.has_end);
    for (uint32_t lane = 0; lane < NUM_LANES; lane++)
        free(w.queue[lane]);
    return rc;
}
