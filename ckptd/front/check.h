/* check.h - ckptd --check; see check.c. */
#ifndef HOLDFAST_CKPTD_FRONT_CHECK_H
#define HOLDFAST_CKPTD_FRONT_CHECK_H

#include <stdbool.h>

struct config;

/* Prints its findings. False: ckptd cannot start, or an operator must act. Call before any thread
 * is started. */
bool check_all(const struct config *config);

#endif
