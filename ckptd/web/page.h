/* page.h - the status as a page for browsers; see page.c. */
#ifndef HOLDFAST_CKPTD_PAGE_H
#define HOLDFAST_CKPTD_PAGE_H

#include <stdio.h>

struct json_t;

/* `status`: what Status answers. Any thread. */
void http_page_write(FILE *out, const struct json_t *status);

#endif
