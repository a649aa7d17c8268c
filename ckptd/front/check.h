/* check.h - ckptd --check; see check.c. */
#ifndef HOLDFAST_CKPTD_FRONT_CHECK_H
#define HOLDFAST_CKPTD_FRONT_CHECK_H

#include <stdbool.h>

struct config;

/* Prints what it finds. False: ckptd would not start, or a person must act. Before any thread. */
bool check_all(const struct config *config);

#endif
