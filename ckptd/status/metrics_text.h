/* metrics_text.h - the numbers of Status for Prometheus; see metrics_text.c. */
#ifndef HOLDFAST_CKPTD_STATUS_METRICS_TEXT_H
#define HOLDFAST_CKPTD_STATUS_METRICS_TEXT_H

#include <stdio.h>

struct json_t;

/* `status`: the reply of Status. Any thread. */
void metrics_text_write(FILE *out, const struct json_t *status);

#endif
