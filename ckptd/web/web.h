/* web.h - ckptd's page for browsers, Prometheus and probes; see web.c. */
#ifndef HOLDFAST_CKPTD_WEB_H
#define HOLDFAST_CKPTD_WEB_H

struct service;

struct web;
/* Nothing when http.listen is not set. The last part: from then on ckptd is alive. */
int web_open(struct service *service);
void web_end(struct service *service);   /* no more requests; before loop_close */
void web_close(struct service *service); /* behind it */

#endif
