/* network.c - the TCP socket of tls.listen: whoever comes with a certificate of the authority.
 *
 * Connections are accepted here and go to the relay (proto/tls/tls.h), which does the handshake and
 * verifies; what it hands back goes to the RPC server by the same way as a connection of the unix
 * socket, behind the same guard. Handshakes are paid for by the address that they come from, with
 * the same account as calls are by their user (proto/wire/rpc_budget.h): a flood of them is closed
 * unshaken. rights.c says what each role may. Ranks need memory that they share with ckptd, so they
 * use the unix socket of the ckptd on their node. */
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
/* Of an address that has used up what it may cost, so many are closed; then all wait a little. */
#define REFUSED_AT_ONCE 16u
#define REFUSED_PAUSE_MS 20
#define REFUSED_LOG_MS 1000

struct network {
    struct service *service;
    struct tls_relay *relay;
    int fd;
    struct watch watch;
    struct timer pause; /* over: accept again */
    uint32_t num_refused;
    int64_t refused_logged_ms;
};

/* On the relay's thread. */
static void verified(void *user, int socket, const struct principal *principal)
{
    struct service *service = user;
    int error = rpc_server_charge(service->rpc, principal, RPC_CHARGE_CONNECTION);
    if (error != 0)
        close(socket);
    else
        error = rpc_server_adopt(service->rpc, socket, principal);
    if (error != 0)
        log_warn("tls", "refused %s: %s", principal->name, report_line());
}

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

/* A handshake costs more than what a stranger sends for it. Who says nothing pays for its
 * connection alone: else silent connections from the address of a client shut that client out. On
 * the relay's thread. */
static int may_shake_hands(void *user, const char *from)
{
    const struct service *service = user;
    const struct principal stranger = principal_of_address(from);
    return rpc_server_charge(service->rpc, &stranger, RPC_CHARGE_HANDSHAKE);
}

/* False: nothing is left for the address now. */
static bool may_connect(struct network *network, const char *from)
{
    const struct principal stranger = principal_of_address(from);
    if (rpc_server_charge(network->service->rpc, &stranger, RPC_CHARGE_CONNECTION) == 0)
        return true;
    if (loop_now_ms() - network->refused_logged_ms >= REFUSED_LOG_MS) {
        log_warn("tls", "refused a connection from %s: %s (%u before)", from, report_line(),
                 network->num_refused);
        network->refused_logged_ms = loop_now_ms();
    }
    if (++network->num_refused % REFUSED_AT_ONCE == 0)
        pause_listener(network, REFUSED_PAUSE_MS);
    return false;
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
    if (may_connect(network, from))
        tls_relay_adopt(network->relay, fd, from);
    else
        close(fd);
}

int network_check_certificate(const char *directory)
{
    struct principal self;
    int error = tls_directory_identify(&self, directory);
    if (error == ERR_NOT_FOUND || (error == 0 && self.role == ROLE_NODE))
        return 0;
    return error != 0 ? error
                      : report_error(ERR_DENIED,
                                     "issue one for holdfast://node/NAME: "
                                     "deploy/certificates",
                                     "the certificate in %s is that of %s, and a ckptd is a node",
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
                                .pause = {.run = pause_ended},
                                .refused_logged_ms = -REFUSED_LOG_MS};
    const struct tls_relay_options options = {.directory = config->tls_directory,
                                              .num_connections = (uint32_t)config->limit_sessions +
                                                                 RPC_CONNECTIONS_BESIDE,
                                              .user = service,
                                              .may_begin = may_shake_hands,
                                              .verified = verified};
    ERR_TRY(network_check_certificate(config->tls_directory));
    ERR_TRY(tls_relay_open(&network->relay, &options));
    service->relay = network->relay;
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
    service->relay = NULL;
    tls_relay_close(network->relay);
    free(network);
    service->network = NULL;
}
