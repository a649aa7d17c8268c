/* tickets.h - rights on the bulk plane that the control plane grants: 16 random bytes, valid for
 * one identity and for TICKETS_VALID_MS, in which a connection must present them, any number of
 * times.
 *
 * Bounds: TICKETS_MAX at once, TICKETS_EACH of them of one identity; expired ones make room.
 * Threads: any. */
#ifndef HOLDFAST_CKPTD_BULK_TICKETS_H
#define HOLDFAST_CKPTD_BULK_TICKETS_H

#include "proto/base/principal.h"
#include "proto/bulk/bulk.h"
#include "proto/format/manifest.h"

#include <stdint.h>

#define TICKETS_MAX 1024u
#define TICKETS_EACH 256u
#define TICKETS_VALID_MS 60000

/* The purpose of a ticket. */
enum ticket_kind { TICKET_STORED, TICKET_SESSION, TICKET_OPENED, NUM_TICKET_KINDS };
struct ticket_right {
    enum ticket_kind kind;
    struct manifest_summary summary; /* of a stored checkpoint */
    struct storage *storage;         /* the store that has it */
    uint64_t session;
    char node[PRINCIPAL_NAME_MAX]; /* the node whose handles it is for */
};

struct storage;
struct tickets;
int tickets_open(struct tickets **out); /* ERR_MEMORY */
void tickets_close(struct tickets *tickets);
/* ERR_BUSY. */
int tickets_issue(struct tickets *tickets, uint8_t out[BULK_TICKET_BYTES],
                  const struct principal *holder, const struct ticket_right *right, int64_t now_ms);
/* `peer` NULL: the peer is unknown, and the ticket alone counts. ERR_DENIED: unknown, expired, or
 * another identity's; the answer does not say which. */
int tickets_check(struct tickets *tickets, struct ticket_right *out, const uint8_t *ticket,
                  const struct principal *peer, int64_t now_ms);

#endif
