/* rpc_text.h - errors of report.h as the text of a gRPC status, for both ends.
 *
 * The details of a gRPC status are "ERR_NAME|message|detail|hint"; '|' and '%' inside a part are
 * written %7C and %25. A text without that form (from a stock server or the transport) is mapped
 * from the number of the status. */
#ifndef HOLDFAST_PROTO_WIRE_RPC_TEXT_H
#define HOLDFAST_PROTO_WIRE_RPC_TEXT_H

#define RPC_TEXT_MAX 2048u /* longer texts are cut */

/* The text of `error` with this thread's last error. */
void rpc_text_write(char out[RPC_TEXT_MAX], int error);
/* Sets this thread's last error from a status that is not OK; returns its code. */
int rpc_text_read(const char *details, int grpc_status, const char *method);

#endif
