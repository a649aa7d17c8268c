/* remote_scrub.h - reads what the far tier holds again; see remote_scrub.c. On the service thread.
 */
#ifndef HOLDFAST_CKPTD_KEEP_REMOTE_SCRUB_H
#define HOLDFAST_CKPTD_KEEP_REMOTE_SCRUB_H

struct service;
struct json_t;

int remote_scrub_open(struct service *service);   /* behind tier_open; nothing without a far tier */
void remote_scrub_close(struct service *service); /* behind tier_end, before tier_close */
/* For Status; null without a far tier. */
struct json_t *remote_scrub_describe(const struct service *service);

#endif
