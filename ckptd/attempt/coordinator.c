/* coordinator.c - has the decisions of a run's machine performed by upper floors, through the table
 * of run.c. */
#include "ckptd/attempt/coordinator.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/commit.h"
#include "proto/wire/arena.h"

#include <stdlib.h>

void run_perform(struct run *run, const struct commit_actions *actions)
{
    for (uint32_t i = 0; i < actions->count; i++)
        run->service->coordinator_ops->perform[actions->items[i].kind](run, &actions->items[i]);
}
