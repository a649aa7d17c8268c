/* loss_history.c - see loss_history.h. */
#include "proto/model/loss_history.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DIGITS 16u
#define HALVINGS_MAX 53u /* more than any number of steps needs */

int64_t history_step(const struct history *h, uint32_t point)
{
    return (h->first + point) * ((int64_t)1 << h->halvings);
}

static void halve(struct history *h)
{
    uint32_t kept = 0;
    for (uint32_t i = (uint32_t)(h->first % 2); i < h->num; i += 2)
        h->loss[kept++] = h->loss[i];
    h->first = (h->first + 1) / 2;
    h->num = kept;
    h->halvings++;
}

bool history_find(const struct history *h, int64_t step, double *out)
{
    int64_t every = (int64_t)1 << h->halvings, point = step / every - h->first;
    if (step % every != 0 || point < 0 || point >= h->num)
        return false;
    *out = h->loss[point];
    return true;
}

void history_cut(struct history *h, int64_t step)
{
    while (h->num > 0 && history_step(h, h->num - 1) > step)
        h->num--;
    if (h->num == 0)
        h->halvings = 0;
}

void history_add(struct history *h, int64_t step, double loss)
{
    history_cut(h, step - 1);
    if (h->num == HISTORY_POINTS && h->halvings < HALVINGS_MAX)
        halve(h);
    int64_t every = (int64_t)1 << h->halvings;
    bool is_missing = h->num > 0 && step > history_step(h, h->num);
    if (is_missing) {
        *h = (struct history){.num = 0};
        every = 1;
    }
    if (step % every != 0 || h->num == HISTORY_POINTS)
        return;
    if (h->num == 0)
        h->first = step / every;
    h->loss[h->num++] = loss;
}

json_t *history_json(const struct history *h)
{
    char losses[DIGITS * HISTORY_POINTS + 1] = "";
    for (uint32_t i = 0; i < h->num; i++) {
        uint64_t bits;
        memcpy(&bits, &h->loss[i], sizeof(bits));
        snprintf(losses + (size_t)DIGITS * i, DIGITS + 1, "%016" PRIx64, bits);
    }
    return json_pack("{sI sI ss}", "first", (json_int_t)h->first, "halvings",
                     (json_int_t)h->halvings, "losses", losses);
}

void history_read(struct history *h, const json_t *json)
{
    const char *losses = json_string_value(json_object_get(json, "losses"));
    json_int_t first = json_integer_value(json_object_get(json, "first"));
    json_int_t halvings = json_integer_value(json_object_get(json, "halvings"));
    *h = (struct history){.num = 0};
    size_t length = losses != NULL ? strlen(losses) : 0;
    if (length % DIGITS != 0 || length > (size_t)DIGITS * HISTORY_POINTS ||
        strspn(losses != NULL ? losses : "", "0123456789abcdef") != length || halvings < 0 ||
        halvings > HALVINGS_MAX || first < 0 || first > INT64_MAX >> (halvings + 10))
        return;
    h->first = first;
    h->halvings = (uint32_t)halvings;
    for (; h->num < length / DIGITS; h->num++) {
        uint64_t bits = 0;
        sscanf(losses + (size_t)DIGITS * h->num, "%16" SCNx64, &bits);
        memcpy(&h->loss[h->num], &bits, sizeof(bits));
    }
}
