/* stragglers.c - finds a rank that delays the others (see stragglers.h). */
#include "trainer/observe/stragglers.h"
#include "proto/base/process.h"
#include "proto/base/report.h"
#include "trainer/base/median.h"
#include "trainer/comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the latest rank ---- */

static double percent_of(const struct straggler_note *note)
{
    return note->seconds > 0 ? 100 * note->called / note->seconds : 0;
}

/* For one stage: the rank that waited least, and the median of the others; `values` has room for
 * them. Returns false if there are no others, or no memory. */
static bool find_least(struct straggler *out, const struct straggler_note *notes, uint32_t num,
                       uint32_t stage, double *values)
{
    uint32_t others = 0;
    bool is_any = false;
    for (uint32_t i = 0; i < num; i++)
        if (notes[i].stage == stage && (!is_any || percent_of(&notes[i]) < out->percent)) {
            *out = (struct straggler){.rank = i, .percent = percent_of(&notes[i])};
            is_any = true;
        }
    for (uint32_t i = 0; i < num; i++)
        if (notes[i].stage == stage && i != out->rank)
            values[others++] = percent_of(&notes[i]);
    if (others > 0)
        out->others = median_of(values, others);
    return others > 0;
}

/* The number of ranks of the same host and stage that are as late. */
static uint32_t count_late(const struct straggler *late, const struct straggler_note *notes,
                           uint32_t num, double percent)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < num; i++)
        count += notes[i].stage == notes[late->rank].stage &&
                 strcmp(notes[i].host, notes[late->rank].host) == 0 &&
                 late->others - percent_of(&notes[i]) >= percent;
    return count;
}

struct straggler stragglers_find(const struct straggler_note *notes, uint32_t num, double percent)
{
    struct straggler found = {0}, least = {0};
    double most = percent, *values = calloc(num, sizeof(*values));
    uint32_t stages = 0;
    for (uint32_t i = 0; i < num; i++)
        stages = notes[i].stage >= stages ? notes[i].stage + 1 : stages;
    for (uint32_t stage = 0; stage < stages && values != NULL; stage++)
        if (find_least(&least, notes, num, stage, values) && least.others - least.percent >= most) {
            most = least.others - least.percent;
            found = least;
            found.num_late = count_late(&found, notes, num, percent);
            memcpy(found.host, notes[found.rank].host, sizeof(found.host));
        }
    free(values);
    return found;
}

bool stragglers_update(struct stragglers *s, const struct straggler *found)
{
    bool is_again = found->num_late > 0 && strcmp(found->host, s->late_host) == 0;
    bool is_new = is_again && !s->is_said;
    s->is_said = is_again;
    memcpy(s->late_host, found->host, sizeof(s->late_host));
    return is_new;
}

/* ---- all ranks ---- */

void stragglers_add(struct stragglers *s, double seconds, double called)
{
    s->own.seconds += seconds;
    s->own.called += called;
    s->steps++;
}

static int gather(const struct stragglers *s, struct comm *world, struct straggler_note *notes,
                  size_t *bytes)
{
    for (uint32_t i = 0; i < world->size; i++) {
        bytes[i] = sizeof(s->own);
        bytes[world->size + i] = i * sizeof(s->own);
    }
    return comm_all_gather_v(world, &s->own, sizeof(s->own), notes, bytes, bytes + world->size);
}

int stragglers_compare(struct stragglers *s, const struct mesh *mesh, int64_t step,
                       struct straggler *out)
{
    struct comm *world = mesh->world;
    *out = (struct straggler){0};
    if (world->size == 1 || s->config->straggler_percent == 0 || s->steps < STRAGGLER_STEPS_MIN ||
        step % s->config->log_freq != 0)
        return 0;
    s->own.stage = mesh->place[AXIS_PP];
    process_host(s->own.host, sizeof(s->own.host));
    struct straggler_note *notes = calloc(world->size, sizeof(*notes));
    size_t *bytes = calloc(2 * (size_t)world->size, sizeof(*bytes));
    int rc =
        notes != NULL && bytes != NULL
            ? gather(s, world, notes, bytes)
            : report_error(ERR_MEMORY, NULL, "no memory for the waits of %u ranks", world->size);
    /* On all ranks the same: quick steps are gathered until they are more than noise. */
    bool is_enough = rc == 0 && notes[0].seconds >= STRAGGLER_SECONDS_MIN;
    if (is_enough && world->rank == 0) {
        *out = stragglers_find(notes, world->size, s->config->straggler_percent);
        out->num_late = stragglers_update(s, out) ? out->num_late : 0;
    }
    free(notes);
    free(bytes);
    if (is_enough) {
        s->own = (struct straggler_note){0};
        s->steps = 0;
    }
    return rc;
}
