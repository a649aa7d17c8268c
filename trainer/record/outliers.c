/* outliers.c - finds steps whose numbers are out of line (see outliers.h). */
#include "trainer/record/outliers.h"

#include "proto/base/report.h"
#include "trainer/base/median.h"

#include <string.h>

_Static_assert(CONFIG_OUTLYING_WINDOW_MAX <= HISTORY_POINTS, "a window has room");

/* During warm-up a norm may rise by a tenth without being an outlier, however steady it was
 * before. */
#define LEAST_PART 0.05

/* The distance above the median in deviations; 0: in line. */
static double measure(const struct history *window, double value, double deviations,
                      struct outlier *out)
{
    double values[HISTORY_POINTS];
    memcpy(values, window->loss, window->num * sizeof(*values));
    struct spread spread = spread_of(values, window->num, LEAST_PART);
    *out = (struct outlier){.value = value,
                            .median = spread.median,
                            .deviation = spread.deviation,
                            .window = window->num};
    if (!(value > spread.median + deviations * spread.deviation))
        return 0;
    return (value - spread.median) / spread.deviation;
}

bool outliers_find(const struct outliers *o, const struct config *config, double loss, double norm,
                   struct outlier *out)
{
    struct outlier of_norm;
    double bound = config->outlying_deviations;
    if (config->outlying == OUTLYING_OFF || 2 * (int64_t)o->loss.num < config->outlying_window)
        return false;
    double by_loss = measure(&o->loss, loss, bound, out);
    double by_norm = measure(&o->norm, norm, bound, &of_norm);
    of_norm.is_norm = true;
    if (by_norm > by_loss)
        *out = of_norm;
    return by_loss > 0 || by_norm > 0;
}

static void keep_last(struct history *window, uint32_t most)
{
    uint32_t gone = window->num > most ? window->num - most : 0;
    window->num -= gone;
    memmove(window->loss, window->loss + gone, window->num * sizeof(*window->loss));
}

static void add_value(struct history *window, uint32_t most, double value)
{
    keep_last(window, most - 1);
    window->loss[window->num++] = value;
}

void outliers_add(struct outliers *o, const struct config *config, double loss, double norm)
{
    if (config->outlying == OUTLYING_OFF) {
        o->loss.num = o->norm.num = 0;
        return;
    }
    add_value(&o->loss, (uint32_t)config->outlying_window, loss);
    add_value(&o->norm, (uint32_t)config->outlying_window, norm);
}

void outliers_skip(struct outliers *o, int64_t step)
{
    if (o->num_skipped == OUTLIERS_LISTED)
        memmove(o->skipped, o->skipped + 1, --o->num_skipped * sizeof(*o->skipped));
    o->skipped[o->num_skipped++] = step;
}

/* ---- in a manifest ---- */

static json_t *values_json(const struct history *window)
{
    json_t *all = history_json(window), *values = json_incref(json_object_get(all, "losses"));
    json_decref(all);
    return values;
}

json_t *outliers_json(const struct outliers *o)
{
    json_t *skipped = json_array();
    for (uint32_t i = 0; i < o->num_skipped; i++)
        json_array_append_new(skipped, json_integer(o->skipped[i]));
    return json_pack("{so so so}", "losses", values_json(&o->loss), "norms", values_json(&o->norm),
                     "skipped", skipped);
}

/* Returns false if it is not a list of numbers. */
static bool read_values(struct history *window, const json_t *values)
{
    json_t *all = json_pack("{sO}", "losses", values);
    history_read(window, all);
    json_decref(all);
    return json_is_string(values) && (window->num > 0 || json_string_length(values) == 0);
}

static bool read_skipped(struct outliers *o, const json_t *skipped)
{
    size_t i;
    json_t *step;
    if (!json_is_array(skipped) || json_array_size(skipped) > OUTLIERS_LISTED)
        return false;
    json_array_foreach(skipped, i, step)
    {
        if (!json_is_integer(step) || json_integer_value(step) < 0)
            return false;
        o->skipped[o->num_skipped++] = json_integer_value(step);
    }
    return true;
}

int outliers_read(struct outliers *o, const json_t *json)
{
    *o = (struct outliers){.num_skipped = 0};
    if (json == NULL ||
        (read_values(&o->loss, json_object_get(json, "losses")) &&
         read_values(&o->norm, json_object_get(json, "norms")) && o->loss.num == o->norm.num &&
         read_skipped(o, json_object_get(json, "skipped"))))
        return 0;
    *o = (struct outliers){.num_skipped = 0};
    return report_error(ERR_CORRUPT, "load an older checkpoint (checkpoint.load_step)",
                        "the numbers that steps are judged by (state.outlying) cannot be read");
}
