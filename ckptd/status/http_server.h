/* http_server.h - ckptd's page for browsers, Prometheus and probes; see http_server.c. */
#ifndef HOLDFAST_CKPTD_STATUS_HTTP_SERVER_H
#define HOLDFAST_CKPTD_STATUS_HTTP_SERVER_H

struct service;

/* Nothing when http.listen is not set. The last part: from then on ckptd is alive. */
int http_server_open(struct service *service);
void http_server_end(struct service *service);   /* no more requests; before loop_close */
void http_server_close(struct service *service); /* behind it */

#endif
