/* bulk.c - fuzz target: a client's bytes over the bulk plane after its handshake, and false answers
 * of a server. The first byte selects which. A client's bytes go over a socket to the real server,
 * which serves an object that a node has opened (ckptd/bulk/bulk_handles.c) by the handle HANDLE.
 */
#include "tests/fuzz/fuzz.h"

#include "ckptd/bulk/entered.h"
#include "proto/base/report.h"
#include "proto/bulk/bulk.h"
#include "proto/bulk/server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define HANDLE 7u
#define SIZE (4u << 20)
#define KEY "run/shard"

static const char who[] = "holdfast://node/n1";

static struct {
    struct storage *storage;
    struct handles *handles;
    struct bulk_server *server;
    struct sockaddr_in address;
} bed;

static int enter(void *user, struct bulk_entered **out, const uint8_t *ticket,
                 const struct principal *peer)
{
    (void)user;
    (void)ticket;
    (void)peer;
    *out = calloc(1, sizeof **out);
    CHECK(*out != NULL);
    (*out)->opened = (struct bulk_handle){.storage = bed.storage, .handles = bed.handles};
    memcpy((*out)->opened.who, who, sizeof who);
    return 0;
}

static void leave(struct bulk_entered *entered)
{
    bulk_handle_close(&entered->opened);
    free(entered);
}

static struct bulk_ops ops;

static void open_object(void)
{
    struct principal node;
    struct handle *handle;
    CHECK(storage_open(&bed.storage, &storage_memory, "", NULL) == 0);
    CHECK(handles_open(&bed.handles) == 0 && principal_parse(&node, who));
    CHECK(handles_new(bed.handles, &handle, &node, 1) == 0);
    CHECK(storage_object_create(bed.storage, &handle->object, KEY, SIZE) == 0);
    handle->token = HANDLE;
    handle->bytes = SIZE;
    handle->is_writer = true;
    handles_used(bed.handles, handle);
}

static void open_bed(void)
{
    socklen_t size = sizeof bed.address;
    if (bed.server)
        return;
    open_object();
    ops = opened_source;
    ops.enter = enter;
    ops.leave = leave;
    bed.address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&bed.address, size) == 0 && listen(fd, 64) == 0 &&
          getsockname(fd, (struct sockaddr *)&bed.address, &size) == 0);
    CHECK(bulk_server_open(&bed.server, &(struct bulk_server_options){.ops = &ops,
                                                                      .listener = fd,
                                                                      .num_connections = 64}) == 0);
}

/* Sends them all and takes the answers, until the server has hung up: it always does. The bytes of
 * an input are fewer than a socket holds, so neither end waits for the other. */
static void try_client(const uint8_t *data, size_t bytes)
{
    static uint8_t sink[1 << 16];
    open_bed();
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&bed.address, sizeof bed.address) == 0);
    (void)!send(fd, data, bytes, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    for (ssize_t got = 1; got > 0;) {
        got = recv(fd, sink, sizeof sink, 0);
        fuzz_taken = fuzz_taken || got > (ssize_t)(2 * sizeof(struct bulk_answer));
    }
    close(fd);
}

/* An accepted answer is followed by no more bytes than the client has asked for. */
static void try_answer(const uint8_t *data, size_t bytes)
{
    struct bulk_request request;
    struct bulk_answer answer;
    if (bytes < sizeof request + sizeof answer)
        return;
    memcpy(&request, data, sizeof request);
    memcpy(&answer, data + sizeof request, sizeof answer);
    if (bulk_check_request(&request) != 0 ||
        bulk_check_answer(&answer, &request, request.offset) != 0)
        return;
    fuzz_taken = true;
    CHECK(answer.error <= 0 && answer.bytes <= BULK_BLOCK_BYTES);
    CHECK(answer.error != 0 || request.verb != BULK_GET || answer.bytes <= request.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes > 0 && data[0] % 2 == 0)
        try_client(data + 1, bytes - 1);
    else if (bytes > 0)
        try_answer(data + 1, bytes - 1);
    return 0;
}
