/* timeline.c - the walk of a program with given figures (see timeline.h). */
#include "trainer/plan/timeline.h"
#include "proto/base/report.h"

#include <math.h>
#include <stdlib.h>

struct walk {
    const struct program *program;
    timeline_seconds *seconds;
    const void *user;
    /* [num_ops], seconds from the start of the step; < 0: has not ended yet. */
    double *posted, *end;
    uint32_t *queue[NUM_LANES]; /* [num_ops] each */
    uint32_t first[NUM_LANES], num[NUM_LANES];
    double lane_free[NUM_LANES], link_free;
    struct timeline *out;
};

/* Gives the link to the lane whose first operation is ready first. Returns false if there is
 * none. */
static bool advance_link(struct walk *w)
{
    uint32_t best = NUM_LANES;
    double best_ready = 0;
    for (uint32_t lane = 0; lane < NUM_LANES; lane++) {
        if (w->first[lane] == w->num[lane])
            continue;
        uint32_t first = w->queue[lane][w->first[lane]];
        double ready = fmax(w->posted[first], w->lane_free[lane]);
        if (best == NUM_LANES || ready < best_ready) {
            best = lane;
            best_ready = ready;
        }
    }
    if (best == NUM_LANES)
        return false;
    uint32_t index = w->queue[best][w->first[best]++];
    double lasts = w->seconds(w->user, &w->program->ops[index]);
    double end = fmax(best_ready, w->link_free) + lasts;
    w->end[index] = w->lane_free[best] = w->link_free = end;
    w->out->link += lasts;
    w->out->total = fmax(w->out->total, end);
    return true;
}

static int walk_op(struct walk *w, uint32_t index, double *now)
{
    const struct op *op = &w->program->ops[index];
    for (uint32_t lane = 0; lane < NUM_LANES; lane++) {
        uint32_t after = op->after[lane];
        if (after == 0)
            continue;
        while (after <= index && w->end[after - 1] < 0 && advance_link(w))
            ;
        if (after > index || w->end[after - 1] < 0)
            return report_error(ERR_INVALID, NULL, "operation %u waits for one behind it", index);
        *now = fmax(*now, w->end[after - 1]);
    }
    if (op->lane != LANE_COMPUTE && op->lane != LANE_SEND) {
        w->posted[index] = *now;
        w->queue[op->lane][w->num[op->lane]++] = index;
        return 0;
    }
    double lasts = w->seconds(w->user, op);
    w->out->compute += lasts;
    w->end[index] = *now += lasts;
    return 0;
}

int timeline_walk(const struct program *program, timeline_seconds *seconds, const void *user,
                  struct timeline *out)
{
    struct walk w = {.program = program, .seconds = seconds, .user = user, .out = out};
    double now = 0;
    *out = (struct timeline){0};
    w.posted = calloc(program->num_ops + 1u, sizeof(*w.posted));
    w.end = calloc(program->num_ops + 1u, sizeof(*w.end));
    bool is_short = w.posted == NULL || w.end == NULL;
    for (uint32_t lane = 0; lane < NUM_LANES; lane++) {
        w.queue[lane] = calloc(program->num_ops + 1u, sizeof(**w.queue));
        is_short = is_short || w.queue[lane] == NULL;
    }
    int rc = is_short ? report_error(ERR_MEMORY, NULL, "no memory to walk the program") : 0;
    for (uint32_t i = 0; i < program->num_ops && rc == 0; i++)
        w.end[i] = -1;
    for (uint32_t i = 0; i < program->num_ops && rc == 0; i++)
        rc = walk_op(&w, i, &now);
    while (rc == 0 && advance_link(&w))
        ;
    out->total = fmax(out->total, now);
    free(w.posted);
    free(w.end);
    for (uint32_t lane = 0; lane < NUM_LANES; lane++)
        free(w.queue[lane]);
    return rc;
}
