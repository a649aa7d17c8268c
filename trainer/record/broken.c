/* broken.c - steps that were skipped or rolled back (see broken.h). */
#include "trainer/record/broken.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const kinds[] = {"nonfinite", "outlying"};
static const char *const policies[] = {"skip", "roll_back"};

const char *broken_kind(const struct broken_step *step)
{
    return kinds[step->is_outlying];
}

const char *broken_policy(const struct broken_step *step)
{
    return policies[step->is_rolled_back];
}

static void drop(struct broken_steps *steps, uint32_t at)
{
    steps->num--;
    memmove(&steps->of[at], &steps->of[at + 1], (steps->num - at) * sizeof(*steps->of));
}

void broken_add(struct broken_steps *steps, const struct broken_step *step)
{
    uint32_t oldest = 0;
    while (oldest < steps->num && steps->of[oldest].is_rolled_back)
        oldest++;
    if (steps->num == BROKEN_STEPS_MAX)
        drop(steps, oldest < steps->num ? oldest : 0);
    steps->of[steps->num++] = *step;
}

void broken_cut(struct broken_steps *steps, int64_t step)
{
    for (uint32_t i = steps->num; i-- > 0;)
        if (!steps->of[i].is_rolled_back && steps->of[i].step > step)
            drop(steps, i);
}

const struct broken_step *broken_find(const struct broken_steps *steps, int64_t step,
                                      uint64_t first_sample)
{
    for (uint32_t i = 0; i < steps->num; i++) {
        const struct broken_step *of = &steps->of[i];
        if (of->is_rolled_back && of->step == step && of->samples.first == first_sample)
            return of;
    }
    return NULL;
}

/* ---- in a manifest ---- */

static json_t *number_json(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *broken_json(const struct broken_steps *steps)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < steps->num; i++) {
        const struct broken_step *of = &steps->of[i];
        const struct jump *samples = &of->samples;
        json_array_append_new(list,
                              json_pack("{sI ss ss sI sI so so ss}", "step", (json_int_t)of->step,
                                        "kind", broken_kind(of), "policy", broken_policy(of),
                                        "first_sample", (json_int_t)samples->first, "last_sample",
                                        (json_int_t)(samples->first + samples->count) - 1, "loss",
                                        number_json(of->loss), "grad_norm",
                                        number_json(of->grad_norm), "reason", of->why));
    }
    return list;
}

static double read_number(const json_t *value)
{
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* False: the name is neither of the two. */
static bool read_name(bool *out, const char *const names[2], const char *name)
{
    *out = strcmp(name, names[1]) == 0;
    return *out || strcmp(name, names[0]) == 0;
}

static bool read_step(struct broken_step *out, const json_t *json)
{
    json_int_t step, first, last;
    const char *kind, *policy, *why;
    *out = (struct broken_step){.loss = read_number(json_object_get(json, "loss")),
                                .grad_norm = read_number(json_object_get(json, "grad_norm"))};
    if (json_unpack((json_t *)(uintptr_t)json, "{sI ss ss sI sI ss}", "step", &step, "kind", &kind,
                    "policy", &policy, "first_sample", &first, "last_sample", &last, "reason",
                    &why) != 0 ||
        step <= 0 || first < 0 || last < first || !read_name(&out->is_outlying, kinds, kind) ||
        !read_name(&out->is_rolled_back, policies, policy))
        return false;
    out->step = step;
    out->samples = (struct jump){(uint64_t)first, (uint64_t)(last - first) + 1};
    snprintf(out->why, sizeof(out->why), "%s", why);
    return true;
}

void broken_read(struct broken_steps *steps, const json_t *json)
{
    struct broken_step step;
    steps->num = 0;
    for (size_t i = 0; i < json_array_size(json); i++)
        if (read_step(&step, json_array_get(json, i)))
            broken_add(steps, &step);
}
