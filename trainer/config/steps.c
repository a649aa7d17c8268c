/* steps.c - lists of steps, as "10,20-22" (see config.h). */
#include "proto/base/report.h"
#include "trainer/config/config.h"

#include <stdlib.h>

/* One part of the list at *at, which becomes what follows; false: it is none. */
static bool next_part(const char **at, int64_t *first, int64_t *last)
{
    char *end;
    *first = *last = strtoll(*at, &end, 10);
    if (end == *at || *first < 1)
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

int config_check_steps(const char *key, const char *list)
{
    int64_t first, last;
    for (const char *at = list; *at != '\0';)
        if (!next_part(&at, &first, &last))
            return report_error(ERR_INVALID, "give steps from 1 and ranges, as 10,20-22",
                                "%s = \"%s\" is no list of steps", key, list);
    return 0;
}

bool config_has_step(const char *list, int64_t step)
{
    int64_t first, last;
    for (const char *at = list; *at != '\0' && next_part(&at, &first, &last);)
        if (first <= step && step <= last)
            return true;
    return list[0] == '\0';
}

bool config_validates_at(const struct config *config, int64_t step)
{
    return config->validation_enable && (step == 1 || step % config->validation_freq == 0);
}
