/* calls.c - what ranks call together in each operation of a program: kind and group.
 *
 * The list is what runs: gather.c, codes.c, reduce.c and step.c take their groups from it. The
 * model's own calls within a block (groups of tensor and context parallel) are not listed. */
#include "trainer/plan/program.h"

uint32_t program_degree(const struct program_options *o, enum axis axis)
{
    uint32_t parts = o->parts > 0 ? o->parts : 1;
    uint32_t degree = axis == AXIS_PP      ? o->num_ranks
                      : axis == AXIS_PARTS ? parts
                      : axis == AXIS_SHARD ? o->degree[axis] / parts
                                           : o->degree[axis];
    return degree > 0 ? degree : 1;
}

bool program_has_group(const struct program_options *o, enum group group)
{
    for (uint32_t axis = 0; axis < NUM_CUTS; axis++)
        if ((mesh_group_axes(group) >> axis & 1) && program_degree(o, axis) > 1)
            return true;
    return false;
}

/* Adds a call if its group has more than one rank. Calls of the world are added even for one
 * rank. */
static void add_call(const struct program_options *o, struct op *op, enum call_kind kind,
                     enum group group)
{
    struct call *call = op->calls;
    if (group != GROUP_WORLD && !program_has_group(o, group))
        return;
    call += call->kind != CALL_NONE;
    *call = (struct call){.kind = (uint8_t)kind, .group = (uint8_t)group};
}

static void add_collect(const struct program_options *o, struct op *op)
{
    if (!o->adds_fast) {
        add_call(o, op, CALL_GATHER, GROUP_COPIES);
        return;
    }
    add_call(o, op, CALL_SCATTER, GROUP_SUMS);
    add_call(o, op, CALL_SUM, GROUP_COPIES);
}

static void add_exchange(const struct program_options *o, struct op *op)
{
    if (!o->adds_fast)
        add_call(o, op, CALL_DEAL, o->round_leaves > 0 ? GROUP_REPLICA : GROUP_OWNERS);
}

/* Each end of a pipeline has a sum of a tied matrix. */
static void add_reduce(const struct program_options *o, struct op *op)
{
    if (o->is_tied && (o->rank == 0 || o->rank + 1 == o->num_ranks))
        add_call(o, op, CALL_SWAP, GROUP_PP);
}

static void add_calls(const struct program_options *o, struct op *op)
{
    switch (op->kind) {
    case OP_ASK_STOP:
    case OP_NORM:
        add_call(o, op, CALL_SUM, GROUP_WORLD);
        break;
    case OP_ENCODE:
    case OP_GATHER:
        add_call(o, op, CALL_GATHER, GROUP_SHARD);
        break;
    case OP_RING:
        add_call(o, op, CALL_AROUND, GROUP_RING);
        break;
    case OP_EXCHANGE:
        add_exchange(o, op);
        break;
    case OP_JOIN:
        add_call(o, op, CALL_DEAL, GROUP_REPLICAS);
        break;
    case OP_COLLECT:
        add_collect(o, op);
        break;
    case OP_REDUCE:
        add_reduce(o, op);
        break;
    case OP_LOSSES:
        add_call(o, op, CALL_GATHER, GROUP_DATA);
        add_call(o, op, CALL_BROADCAST, GROUP_PP);
        break;
    case OP_SPREAD:
        add_call(o, op, CALL_GATHER, GROUP_COPIES);
        break;
    default:
        break;
    }
}

void program_add_calls(struct program *p, const struct program_options *o)
{
    for (uint32_t i = 0; i < p->num_ops; i++)
        add_calls(o, &p->ops[i]);
}
