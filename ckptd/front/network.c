/* network.c - the TCP socket of tls.listen, for clients with a certificate of the authority.
 *
 * Connections are accepted here and passed to the RPC server, as those of the unix socket; its
 * guard (proto/wire/rpc_guard.h) makes the handshake and verifies the certificate. Connections and
 * handshakes are charged to their source address, in the same way as calls to their user
 * (proto/wire/rpc_budget.h): a flood is closed before any handshake. rights.c says what each role
 * may do. Ranks need memory shared with ckptd, so they use the unix socket of the ckptd on their
 * node. */
#include "ckptd/front/network.h"
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/front/listen.h"
#include "proto/base/address.h"
#include "proto/base/array.h"
#include "proto/base/report.h"
#include "proto/tls/tls.h"
#include "proto/wire/rpc.h"

#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAUSE_MS 500 /* of the listener when the process is out of descriptors */
/* So many connections of an address without budget are closed at once; then all clients wait a
 * little. */
#define REFUSED_AT_ONCE 16u
#define REFUSED_PAUSE_MS 20

struct network {
    struct service *service;
    int fd;
    struct watch watch;
    struct timer pause; /* end of the pause */
    uint32_t num_refused;
    struct log_limit refused;
};

static void pause_ended(struct timer *timer)
{
    struct network *network = CONTAINER_OF(timer, struct network, pause);
    if (loop_watch(network->service->loop, &network->watch, network->fd) != 0)
        loop_timer(network->service->loop, &network->pause, PAUSE_MS);
}

static void pause_listener(struct network *network, uint32_t ms)
{
    loop_unwatch(network->service->loop, &network->watch);
    loop_timer(network->service->loop, &network->pause, ms);
}

static int take_in(struct network *network, int fd, const char *from)
{
    struct rpc_server *rpc = network->service->rpc;
    const struct principal stranger = principal_of_address(from);
    int error = rpc_server_charge(rpc, &stranger, RPC_COST_CONNECTION);
    if (error == 0)
        return rpc_server_adopt_stranger(rpc, fd, from);
    close(fd);
    if (++network->num_refused % REFUSED_AT_ONCE == 0)
        pause_listener(network, REFUSED_PAUSE_MS);
    return error;
}

static void accept_one(struct watch *watch)
{
    struct network *network = CONTAINER_OF(watch, struct network, watch);
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char from[NI_MAXHOST] = "an unknown address";
    int fd = accept4(watch->fd, (struct sockaddr *)&address, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
        log_warn("tls", "could not accept a connection: %s", strerror(errno));
        pause_listener(network, PAUSE_MS);
    }
    if (fd < 0)
        return;
    getnameinfo((struct sockaddr *)&address, size, from, sizeof from, NULL, 0, NI_NUMERICHOST);
    if (take_in(network, fd, from) != 0)
        log_warn_limited(&network->refused, "tls", "refused a connection from %s: %s", from,
                         report_line());
}

int network_check_certificate(const char *directory)
{
    struct principal self;
    int error = tls_directory_identify(&self, directory);
    if (error == ERR_NOT_FOUND || (error == 0 && self.role == ROLE_NODE))
        return 0;
    return error != 0
               ? error
               : report_error(ERR_DENIED,
                              "issue one for holdfast://node/NAME: "
                              "holdfast-certificates",
                              "the certificate in %s is for %s, and ckptd needs one for a node",
                              directory, self.name);
}

int network_open(struct service *service)
{
    const struct config *config = service->config;
    if (config->tls_listen[0] == '\0')
        return 0;
    struct network *network = calloc(1, sizeof *network);
    if (!network)
        return report_error(ERR_MEMORY, NULL, "no memory for the listener");
    service->network = network;
    *network = (struct network){.service = service,
                                .fd = -1,
                                .watch = {.run = accept_one, .fd = -1},
                                .pause = {.run = pause_ended}};
    ERR_TRY(network_check_certificate(config->tls_directory));
    ERR_TRY(address_listen(&network->fd, config->tls_listen, "tls.listen"));
    ERR_TRY(loop_watch(service->loop, &network->watch, network->fd));
    log_info("tls", "listening on %s, with the files of %s", config->tls_listen,
             config->tls_directory);
    return 0;
}

void network_close(struct service *service)
{
    struct network *network = service->network;
    if (!network)
        return;
    if (network->fd >= 0) {
        loop_unwatch(service->loop, &network->watch);
        loop_timer_cancel(service->loop, &network->pause);
        close(network->fd);
    }
    free(network);
    service->network = NULL;
}
