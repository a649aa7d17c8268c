/* table.h - the option table over struct config: every key of the trainer's configuration.
 *
 * The keys are torchtitan's last TOML form (v0.2.2) with the names of older releases, and
 * Holdfast's keys. Four kinds: a key with a field; an older name of another key; a key without
 * effect here, which is accepted and logged with the reason; and FIXED. A FIXED key changes the
 * training if it is ignored: values that match the trainer's behaviour are accepted, all others are
 * refused. Defaults are torchtitan's unless the line says otherwise. */
#ifndef HOLDFAST_CONFIG_TABLE_H
#define HOLDFAST_CONFIG_TABLE_H

#include "proto/base/options.h"
#include "trainer/config/config.h"

#define CONFIG_KEYS_MAX 640 /* OPTION_END included */

/* The parts of the table. Each part and the whole table end with OPTION_END. */
extern const struct option table_of_model[], table_of_ranks[], table_of_debug[];
/* Returns the same table at each call. Any thread. */
const struct option *config_table(void);

#endif
