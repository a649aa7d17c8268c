/* ask.c - see ask.h. */
#include "proto/bulk/ask.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <string.h>

/* The caller frees the reply. Runs on any thread. */
static int call_open_bulk(Holdfast__V1__OpenBulkReply **out, const struct bulk_asker *asker)
{
    Holdfast__V1__OpenBulkRequest request = HOLDFAST__V1__OPEN_BULK_REQUEST__INIT;
    request.session = asker->session;
    request.opened = asker->session == 0;
    ERR_TRY(rpc_client_call(asker->rpc, "/holdfast.v1.Checkpoint/OpenBulk", &request.base,
                            &holdfast__v1__open_bulk_reply__descriptor, (ProtobufCMessage **)out,
                            BULK_STALL_MS));
    if ((*out)->ticket.len == BULK_TICKET_BYTES)
        return 0;
    protobuf_c_message_free_unpacked(&(*out)->base, NULL);
    return report_error(ERR_CORRUPT, "both ends may be of different versions",
                        "ckptd gave an impossible ticket");
}

static int renew(void *user, uint8_t ticket[BULK_TICKET_BYTES])
{
    Holdfast__V1__OpenBulkReply *reply = NULL;
    ERR_TRY(call_open_bulk(&reply, user));
    memcpy(ticket, reply->ticket.data, BULK_TICKET_BYTES);
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return 0;
}

int bulk_open_asker(struct bulk **out, const struct bulk_asker *asker)
{
    Holdfast__V1__OpenBulkReply *reply = NULL;
    char address[BULK_ADDRESS_MAX];
    ERR_TRY(call_open_bulk(&reply, asker));
    const struct bulk_options options = {.address = address,
                                         .directory = reply->plain ? NULL : asker->directory,
                                         .ticket = reply->ticket.data,
                                         .num_connections = asker->num_connections,
                                         .renew = renew,
                                         .user = (void *)(uintptr_t)asker};
    int error = bulk_address(address, sizeof address, asker->server, reply->address, reply->plain);
    if (error == 0)
        error = bulk_open(out, &options);
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return error;
}
