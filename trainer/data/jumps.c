/* jumps.c - samples that a run leaves out (see jumps.h). */
#include "trainer/data/jumps.h"

#include <stdbool.h>

uint64_t jumps_pass(const struct jumps *jumps, uint64_t next)
{
    bool is_moved = true;
    while (is_moved) { /* behind one may begin another, that was made later */
        is_moved = false;
        for (uint32_t i = 0; i < jumps->num; i++) {
            const struct jump *jump = &jumps->of[i];
            bool is_inside = next >= jump->first && next - jump->first < jump->count;
            next = is_inside ? jump->first + jump->count : next;
            is_moved = is_moved || is_inside;
        }
    }
    return next;
}

json_t *jumps_json(const struct jumps *jumps)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < jumps->num; i++)
        json_array_append_new(list, json_pack("[II]", (json_int_t)jumps->of[i].first,
                                              (json_int_t)jumps->of[i].count));
    return list;
}

void jumps_read(struct jumps *jumps, const json_t *json)
{
    size_t num = json_array_size(json);
    *jumps = (struct jumps){.num = 0};
    for (size_t i = 0; i < num && i < JUMPS_MAX; i++) {
        const json_t *jump = json_array_get(json, i);
        json_int_t first = json_integer_value(json_array_get(jump, 0));
        json_int_t count = json_integer_value(json_array_get(jump, 1));
        if (first >= 0 && count > 0 && count <= INT64_MAX - first)
            jumps->of[jumps->num++] = (struct jump){(uint64_t)first, (uint64_t)count};
    }
}
