/* options_private.h - shared by options.c, which reads options, and options_print.c. */
#ifndef HOLDFAST_PROTO_BASE_OPTIONS_PRIVATE_H
#define HOLDFAST_PROTO_BASE_OPTIONS_PRIVATE_H

#include "proto/base/options.h"

#define OPTION_KEY_MAX 128 /* a longer key is unknown */

static inline bool is_stored(const struct option *option)
{
    return option->type != OPTION_TYPE_ALIAS && option->type != OPTION_TYPE_IGNORED &&
           option->type != OPTION_TYPE_FIXED && option->type != OPTION_TYPE_GONE;
}

/* Formats a number with the fewest digits that read back equal. */
void options_format_number(char out[40], double value);
/* "1 to 10"; "1 or more" if the maximum is only the limit of the type. */
void options_format_range(char out[96], const struct option *option);

#endif
