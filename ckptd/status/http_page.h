/* http_page.h - the status as a page for browsers; see http_page.c. */
#ifndef HOLDFAST_CKPTD_STATUS_HTTP_PAGE_H
#define HOLDFAST_CKPTD_STATUS_HTTP_PAGE_H

#include <stdio.h>

struct json_t;

/* `status`: the reply of Status. Any thread. */
void http_page_write(FILE *out, const struct json_t *status);

#endif
