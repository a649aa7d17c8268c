/* steps.c - lists of steps and of ranks, as "10,20-22" (see config.h). */
#include "proto/base/report.h"
#include "trainer/config/config.h"

#include <stdlib.h>

/* Reads one part of the list at *at, which moves to the next part. Returns false if the part is
 * malformed. */
static bool next_part(const char **at, int64_t least, int64_t *first, int64_t *last)
{
    char *end;
    *first = *last = strtoll(*at, &end, 10);
    if (end == *at || *first < least)
        return false;
    if (*end == '-') {
        const char *from = end + 1;
        *last = strtoll(from, &end, 10);
        if (end == from || *last < *first)
            return false;
    }
    if (*end != ',' && *end != '\0')
        return false;
    *at = *end == ',' ? end + 1 : end;
    return *end == '\0' || **at != '\0';
}

static bool is_list(const char *list, int64_t least)
{
    int64_t first, last;
    for (const char *at = list; *at != '\0';)
        if (!next_part(&at, least, &first, &last))
            return false;
    return true;
}

static bool has(const char *list, int64_t least, int64_t number)
{
    int64_t first, last;
    for (const char *at = list; *at != '\0' && next_part(&at, least, &first, &last);)
        if (first <= number && number <= last)
            return true;
    return list[0] == '\0';
}

int config_check_steps(const char *key, const char *list)
{
    if (is_list(list, 1))
        return 0;
    return report_error(ERR_INVALID, "give steps from 1 and ranges, as 10,20-22",
                        "%s = \"%s\" is not a list of steps", key, list);
}

bool config_has_step(const char *list, int64_t step)
{
    return has(list, 1, step);
}

int config_check_ranks(const char *key, const char *list)
{
    if (is_list(list, 0))
        return 0;
    return report_error(ERR_INVALID, "give ranks from 0 and ranges, as 0,3-5",
                        "%s = \"%s\" is not a list of ranks", key, list);
}

bool config_has_rank(const char *list, int64_t rank)
{
    return has(list, 0, rank);
}

int64_t config_last_rank(const char *list)
{
    int64_t first, last, most = -1;
    for (const char *at = list; *at != '\0' && next_part(&at, 0, &first, &last);)
        most = last > most ? last : most;
    return most;
}

bool config_validates_at(const struct config *config, int64_t step)
{
    return config->validation_enable && (step == 1 || step % config->validation_freq == 0);
}
