/* table.h - the option table over struct config; shared by config.c and its tests. */
#ifndef HOLDFAST_CONFIG_TABLE_H
#define HOLDFAST_CONFIG_TABLE_H

#include "proto/options.h"
#include "trainer/config/config.h"

extern const struct option config_table[]; /* ends with OPTION_END */

#endif
