/* jumps.c - samples that a run leaves out (see jumps.h). */
#include "trainer/data/jumps.h"

#include "proto/base/report.h"

#include <stdbool.h>

uint64_t jumps_pass(const struct jumps *jumps, uint64_t next)
{
    bool is_moved = true;
    while (is_moved) { /* another jump, made later, may begin after it */
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

static bool read_jump(struct jump *out, const json_t *json)
{
    json_int_t first = -1, count = 0;
    bool is_read = json_unpack((json_t *)(uintptr_t)json, "[II!]", &first, &count) == 0 &&
                   first >= 0 && count > 0 && count <= INT64_MAX - first;
    *out = (struct jump){(uint64_t)first, (uint64_t)count};
    return is_read;
}

int jumps_read(struct jumps *jumps, const json_t *json)
{
    bool is_list = json == NULL || (json_is_array(json) && json_array_size(json) <= JUMPS_MAX);
    *jumps = (struct jumps){.num = is_list ? (uint32_t)json_array_size(json) : 0};
    for (uint32_t i = 0; i < jumps->num && is_list; i++)
        is_list = read_jump(&jumps->of[i], json_array_get(json, i));
    if (is_list)
        return 0;
    jumps->num = 0;
    return report_error(ERR_CORRUPT, "load an older checkpoint (checkpoint.load_step)",
                        "the samples that the run left out (state.left_out) cannot be read");
}
