/* curve.c - reduces the points of a curve without losing an extreme value (see report.h).
 *
 * The curve is cut into equal parts by count. A part keeps its least and its largest value, so that
 * a spike of one step keeps its height, and its first gap. */
#include "clients/cli/report/report.h"

#include <math.h>

/* The indices in [from, to) to keep, in order. */
static uint32_t choose(uint32_t out[3], const struct point *points, uint32_t from, uint32_t to)
{
    int64_t least = -1, most = -1, gap = -1;
    uint32_t count = 0;
    for (uint32_t i = from; i < to; i++) {
        if (!isfinite(points[i].value)) {
            gap = gap < 0 ? i : gap;
            continue;
        }
        if (least < 0 || points[i].value < points[least].value)
            least = i;
        if (most < 0 || points[i].value > points[most].value)
            most = i;
    }
    for (uint32_t i = from; i < to; i++) {
        if (i == least || i == most || i == gap)
            out[count++] = i;
    }
    return count;
}

uint32_t curve_thin(struct point *points, uint32_t count)
{
    uint32_t parts = CURVE_POINTS / 2, kept = 0;
    if (count <= CURVE_POINTS)
        return count;
    for (uint32_t part = 0; part < parts; part++) {
        uint32_t chosen[3];
        uint32_t from = (uint32_t)((uint64_t)count * part / parts);
        uint32_t to = (uint32_t)((uint64_t)count * (part + 1) / parts);
        uint32_t num = choose(chosen, points, from, to);
        for (uint32_t i = 0; i < num; i++)
            points[kept++] = points[chosen[i]];
    }
    return kept;
}

json_t *curve_json(struct point *points, uint32_t count)
{
    json_t *steps = json_array(), *values = json_array();
    count = curve_thin(points, count);
    for (uint32_t i = 0; i < count; i++) {
        double value = points[i].value;
        json_array_append_new(steps, json_integer(points[i].step));
        json_array_append_new(values, isfinite(value) ? json_real(value) : json_null());
    }
    return json_pack("{so so}", "steps", steps, "values", values);
}
