/* settings.h - private to fault: its settings, "<settings>:<back-end>:<where>". The settings are
 * described in storage.h. */
#ifndef HOLDFAST_TESTS_FAULT_SETTINGS_H
#define HOLDFAST_TESTS_FAULT_SETTINGS_H

#include "storage/storage.h"

struct fault_settings {
    uint64_t seed;
    double error_rate, lost_rate, late_rate;
    uint64_t delay_us, least_us, fail_at, fail_from, fail_errno;
    char only[16], key[64];
};

/* Fills in the settings that `where` names; the caller sets the defaults. *out_where points into
 * `where`. ERR_INVALID. */
int fault_settings_read(struct fault_settings *out, const struct storage_ops **out_ops,
                        const char **out_where, const char *where);

#endif
