/* options_private.h - what options.c, which reads, and options_print.c share. */
#ifndef HOLDFAST_PROTO_BASE_OPTIONS_PRIVATE_H
#define HOLDFAST_PROTO_BASE_OPTIONS_PRIVATE_H

#include "proto/base/options.h"

#define OPTION_KEY_MAX 128 /* a longer key is unknown */

static inline bool is_stored(const struct option *option)
{
    return option->type != OPTION_TYPE_ALIAS && option->type != OPTION_TYPE_IGNORED &&
           option->type != OPTION_TYPE_FIXED && option->type != OPTION_TYPE_GONE;
}

/* As it is read: the shortest text that is the same number. */
void options_format_number(char out[40], double value);
/* "1 to 10"; "1 or more" where the maximum is but what the type can hold. */
void options_format_range(char out[96], const struct option *option);

#endif
