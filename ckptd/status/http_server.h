/* http_server.h - ckptd's page for browsers, Prometheus and probes; see http_server.c. */
#ifndef HOLDFAST_CKPTD_STATUS_HTTP_SERVER_H
#define HOLDFAST_CKPTD_STATUS_HTTP_SERVER_H

struct service;

/* Does nothing if http.listen is not set. The last part to be opened: from then on ckptd reports
 * that it is alive. */
int http_server_open(struct service *service);
void http_server_end(struct service *service);   /* stops requests; call before loop_close() */
void http_server_close(struct service *service); /* call after http_server_end() */

#endif
