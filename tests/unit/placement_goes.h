/* placement_goes.h - True when a node is among the chosen ones. */
#ifndef HOLDFAST_TESTS_PLACEMENT_GOES_H
#define HOLDFAST_TESTS_PLACEMENT_GOES_H

#include "ckptd/machines/placement.h"

static inline bool placement_goes(const struct site *sites, uint32_t count, uint32_t replicas,
                                  uint32_t index)
{
    uint32_t chosen[PLACEMENT_COPIES_MAX];
    uint32_t num = placement_choose(chosen, sites, count, replicas);
    for (uint32_t i = 0; i < num; i++)
        if (chosen[i] == index)
            return true;
    return false;
}

#endif
