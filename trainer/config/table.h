/* table.h - the option table over struct config: every key of the trainer's configuration.
 *
 * The keys are torchtitan's last TOML form (v0.2.2) with the names that older releases used, and
 * ours where torchtitan has none. Four kinds: a key with a field; an older name, which stands for
 * another key; a key that has nothing to decide here, which is accepted and named with the reason;
 * and FIXED, a key whose silent loss would change the training: the values that mean what the
 * trainer does are accepted, all others are refused. Defaults are torchtitan's unless the line says
 * otherwise. */
#ifndef HOLDFAST_CONFIG_TABLE_H
#define HOLDFAST_CONFIG_TABLE_H

#include "proto/base/options.h"
#include "trainer/config/config.h"

#define CONFIG_KEYS_MAX 640 /* OPTION_END included */

/* Its parts. These and the whole end with OPTION_END. */
extern const struct option table_of_model[], table_of_ranks[], table_of_debug[];
/* The same at each call. Any thread. */
const struct option *config_table(void);

#endif
