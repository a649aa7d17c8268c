/* settings.c - reads the settings of fault. */
#include "tests/fault/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_setting(struct fault_settings *out, const char *key, const char *value)
{
    const struct {
        const char *key;
        double *rate;
        uint64_t *number;
    } table[] = {
        {"seed", NULL, &out->seed},         {"error", &out->error_rate, NULL},
        {"lost", &out->lost_rate, NULL},    {"late", &out->late_rate, NULL},
        {"delay_us", NULL, &out->delay_us}, {"least_us", NULL, &out->least_us},
        {"fail_at", NULL, &out->fail_at},   {"fail_from", NULL, &out->fail_from},
        {"errno", NULL, &out->fail_errno},
    };
    if (strcmp(key, "only") == 0)
        return snprintf(out->only, sizeof(out->only), "%s", value) < (int)sizeof(out->only);
    if (strcmp(key, "key") == 0)
        return snprintf(out->key, sizeof(out->key), "%s", value) < (int)sizeof(out->key);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (strcmp(table[i].key, key) != 0)
            continue;
        char *end;
        if (table[i].rate == NULL) {
            *table[i].number = strtoull(value, &end, 10);
            return value[0] >= '0' && value[0] <= '9' && *end == '\0';
        }
        *table[i].rate = strtod(value, &end);
        return end != value && *end == '\0' && *table[i].rate >= 0 && *table[i].rate <= 1;
    }
    return false;
}

int fault_settings_read(struct fault_settings *out, const struct storage_ops **out_ops,
                        const char **out_where, const char *where)
{
    static const char hint[] = "write seed=1,error=0.01:local:/some/directory";
    char text[256];
    size_t length = strcspn(where, ":");
    if (where[length] == '\0' || length >= sizeof(text))
        return report_error(ERR_INVALID, hint, "\"%s\" names no back-end to wrap", where);
    snprintf(text, sizeof(text), "%.*s", (int)length, where);
    char *rest = text, *item;
    while ((item = strsep(&rest, ",")) != NULL) {
        char *value = strchr(item, '=');
        if (item[0] == '\0')
            continue;
        if (value != NULL)
            *value++ = '\0';
        if (value == NULL || !read_setting(out, item, value))
            return report_error(ERR_INVALID, hint, "\"%s%s%s\" is not a setting of fault", item,
                                value ? "=" : "", value ? value : "");
    }
    const char *name = where + length + 1;
    length = strcspn(name, ":");
    snprintf(text, sizeof(text), "%.*s", (int)length, name);
    *out_ops = storage_find(text);
    if (*out_ops == NULL)
        return report_error(ERR_INVALID, hint, "there is no back-end \"%s\"", text);
    *out_where = name[length] == ':' ? name + length + 1 : "";
    return 0;
}
