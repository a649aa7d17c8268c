/* program_bed.h - the programs of all ranks of a pipeline, and ways to break one of them. Shared by
 * trainer_program.c and trainer_axes.c. */
#ifndef HOLDFAST_TESTS_PROGRAM_BED_H
#define HOLDFAST_TESTS_PROGRAM_BED_H

#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/model/model.h"
#include "trainer/plan/program.h"

#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 16u
#define LAYERS_MAX 126u

struct bed {
    struct program_options o;
    struct program *ranks[RANKS_MAX];
    uint32_t first_block[2 * RANKS_MAX + 1];
    uint8_t keep[LAYERS_MAX], ends_bucket[8];
};

static const enum pipe_schedule schedules[] = {
    PIPE_GPIPE, PIPE_LOOPED, PIPE_1F1B, PIPE_INTERLEAVED, PIPE_ZBH1, PIPE_INTERLEAVED_ZERO};
#define NUM_SCHEDULES (sizeof(schedules) / sizeof(schedules[0]))

/* The programs of all ranks, in place of those that are there. */
static inline void bed_build(struct bed *bed)
{
    for (uint32_t r = 0; r < bed->o.num_ranks; r++) {
        program_free(bed->ranks[r]);
        bed->o.rank = r;
        assert_int_equal(program_build(&bed->ranks[r], &bed->o), 0);
    }
}

/* Blocks of o in equal stages, whose layers all keep `keep`; two stages for each rank where the
 * schedule has two. */
static inline void bed_shape(struct bed *bed, struct program_options o, enum model_keep keep)
{
    bool has_chunks = o.schedule == PIPE_INTERLEAVED || o.schedule == PIPE_INTERLEAVED_ZERO ||
                      o.schedule == PIPE_LOOPED;
    *bed = (struct bed){.o = o};
    bed->o.chunks = has_chunks && o.num_ranks > 1 ? 2 : 1;
    bed->o.keep = bed->keep;
    bed->o.first_block = bed->first_block;
    memset(bed->keep, keep, sizeof(bed->keep));
    uint32_t stages = o.num_ranks * bed->o.chunks;
    for (uint32_t s = 0; s <= stages; s++)
        bed->first_block[s] = o.num_blocks * s / stages;
}

static inline void bed_close(struct bed *bed)
{
    for (uint32_t r = 0; r < bed->o.num_ranks; r++)
        program_free(bed->ranks[r]);
}

static inline int check(const struct bed *bed)
{
    return program_check((const struct program *const *)bed->ranks, &bed->o);
}

static inline void want_refused_with(const struct bed *bed, const char *reason)
{
    assert_int_equal(check(bed), ERR_INVALID);
    if (strstr(report_message(), reason) == NULL)
        fail_msg("\"%s\" is not in: %s", reason, report_message());
}

/* The first of its kind from `at` on. */
static inline uint32_t find(const struct program *p, enum op_kind kind, uint32_t at)
{
    while (at < p->num_ops && p->ops[at].kind != kind)
        at++;
    assert_true(at < p->num_ops);
    return at;
}

/* Shifts the indices in waits, so that each still waits for the same operation. */
static inline void move_waits(struct program *p, uint32_t at, int by)
{
    for (uint32_t i = 0; i < p->num_ops; i++)
        for (uint32_t lane = 0; lane < NUM_LANES; lane++)
            if (p->ops[i].after[lane] > at + 1)
                p->ops[i].after[lane] += (uint32_t)by;
}

static inline void remove_op(struct program *p, uint32_t at)
{
    move_waits(p, at, -1);
    memmove(&p->ops[at], &p->ops[at + 1], (p->num_ops - at - 1) * sizeof(*p->ops));
    p->num_ops--;
}

static inline void double_op(struct program *p, uint32_t at)
{
    move_waits(p, at, 1);
    p->ops = realloc(p->ops, (p->num_ops + 1) * sizeof(*p->ops));
    memmove(&p->ops[at + 1], &p->ops[at], (p->num_ops - at) * sizeof(*p->ops));
    p->num_ops++;
}

#endif
