/* tcp.c - a rank's communicators over TCP (see tcp.h): each is a connection to the hub.
 *
 * A call is a frame that goes to the hub and one that comes back when every rank of the group has
 * called; parts are read to their places. A split makes a new connection, so threads of a rank may
 * wait in different groups.
 *
 * When a connection ends, the hub sends the reason if it can: a rank has ended. The world is lost
 * then, and waits on other connections end, too. A rank that fails (comm_fail, abort) ends its
 * connection of the world, and the hub tells the other ranks. */
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/comm/tcp/private.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RETRY_NS 100000000
#define HUB_SECONDS 10 /* longer than the hub takes to name missing ranks */

struct tcp {
    struct comm base;
    int fd;
    struct tcp *world;          /* itself for the world */
    struct hub *hub;            /* of the world of rank 0 */
    struct tcp_options options; /* of the world; `port` is the hub's */
    char port[8];
};

static const struct comm_ops tcp_ops;

/* ---- Errors ---- */

static bool tcp_is_failed(struct comm *comm)
{
    struct pollfd state = {.fd = ((struct tcp *)comm)->world->fd, .events = POLLRDHUP};
    return poll(&state, 1, 0) > 0;
}

/* Marks the world as lost for every thread and rank. Returns whether it was lost before. */
static bool mark_lost(struct tcp *t)
{
    bool was_lost = __atomic_exchange_n(&t->world->base.is_lost, true, __ATOMIC_ACQ_REL);
    shutdown(t->world->fd, SHUT_RDWR);
    return was_lost;
}

/* A call has failed. */
static int failed(struct tcp *t, const struct comm_call *call, int rc)
{
    if (rc != ERR_TIMEOUT && rc != ERR_UNAVAILABLE)
        return rc;
    if (mark_lost(t)) {
        report_clear(); /* another thread has the reason */
        return ERR_UNAVAILABLE;
    }
    return rc == ERR_TIMEOUT
               ? comm_late(&t->base, call)
               : report_error(ERR_UNAVAILABLE, "start the run again",
                              "rank %u lost its connection to rank 0 in %s at %s",
                              t->world->base.rank, comm_kind_name(call->kind), call->site);
}

/* The hub has answered with an error. */
static int refused(struct tcp *t, const struct comm_call *call, const struct tcp_answer *head,
                   const struct timespec *until)
{
    struct comm_sign sign;
    char text[TCP_TEXT_MAX + 1] = "";
    bool is_other = head->error == ERR_MISMATCH;
    if (head->bytes > (is_other ? sizeof(sign) : TCP_TEXT_MAX) ||
        tcp_receive(t->fd, is_other ? (void *)&sign : text, head->bytes, until) != 0)
        return failed(t, call, ERR_UNAVAILABLE);
    if (mark_lost(t)) {
        report_clear();
        return ERR_UNAVAILABLE;
    }
    if (!is_other)
        return report_error(ERR_UNAVAILABLE, "see its log for the reason, and start the run again",
                            "rank %u: %s", t->world->base.rank, text);
    sign.site[COMM_SITE_MAX - 1] = '\0';
    return comm_mismatch(&t->base, call, head->about,
                         sign.kind < NUM_COMM_KINDS ? (enum comm_kind)sign.kind : COMM_BARRIER,
                         sign.site);
}

/* ---- Calls ---- */

/* Sends a frame, and receives the head of its answer. */
static int send_call(struct tcp *t, const struct comm_call *call, const void *data, uint64_t bytes,
                     struct tcp_answer *out, const struct timespec *until)
{
    struct tcp_ask head = {
        .sign = comm_sign(&t->base, call), .color = call->color, .key = call->key, .bytes = bytes};
    if (bytes > TCP_FRAME_MAX)
        return report_error(ERR_INVALID, NULL, "%s of %llu bytes is too large over TCP",
                            comm_kind_name(call->kind), (unsigned long long)bytes);
    int rc = tcp_send(t->fd, &head, sizeof(head), until);
    if (rc == 0)
        rc = tcp_send(t->fd, data, bytes, until);
    if (rc != ERR_TIMEOUT) /* the hub may have sent the reason before it closed */
        rc = tcp_receive(t->fd, out, sizeof(*out), until);
    if (rc != 0)
        return failed(t, call, rc);
    return out->error != 0 ? refused(t, call, out, until) : 0;
}

static int run_one(struct tcp *t, const struct comm_call *call, const void *data, uint64_t bytes,
                   void *out, uint64_t out_bytes)
{
    struct timespec until = flight_deadline(t->base.flight);
    struct tcp_answer head;
    ERR_TRY(send_call(t, call, data, bytes, &head, &until));
    return failed(t, call,
                  head.bytes == out_bytes ? tcp_receive(t->fd, out, out_bytes, &until)
                                          : ERR_UNAVAILABLE);
}

/* The answer has the parts of all ranks, each for its place. */
static int run_parts(struct tcp *t, const struct comm_call *call, const void *data, uint64_t bytes)
{
    struct timespec until = flight_deadline(t->base.flight);
    struct tcp_answer head;
    uint64_t wanted = 0;
    for (uint32_t r = 0; r < t->base.size; r++)
        wanted += call->recv_bytes[r];
    ERR_TRY(send_call(t, call, data, bytes, &head, &until));
    int rc = head.bytes == wanted ? 0 : ERR_UNAVAILABLE;
    for (uint32_t r = 0; r < t->base.size && rc == 0; r++)
        rc = tcp_receive(t->fd, (char *)call->recv + call->recv_at[r], call->recv_bytes[r], &until);
    return failed(t, call, rc);
}

static int all_to_all(struct tcp *t, const struct comm_call *call)
{
    uint64_t lists = t->base.size * sizeof(uint64_t), bytes = lists;
    for (uint32_t r = 0; r < t->base.size; r++)
        bytes += call->send_bytes[r];
    char *data = malloc(bytes), *at = data + lists;
    if (data == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for an exchange");
    for (uint32_t r = 0; r < t->base.size; at += call->send_bytes[r++]) {
        memcpy(data + r * sizeof(uint64_t), &(uint64_t){call->send_bytes[r]}, sizeof(uint64_t));
        memcpy(at, (const char *)call->send + call->send_at[r], call->send_bytes[r]);
    }
    int rc = run_parts(t, call, data, bytes);
    free(data);
    return rc;
}

/* ---- Connections ---- */

/* Sends the rank's hello, and waits until the hub accepts it. */
static int say_hello(int fd, struct tcp_place as, uint32_t world_rank, const struct timespec *until)
{
    struct tcp_hello hello = {.magic = TCP_MAGIC,
                              .group = as.group,
                              .rank = as.rank,
                              .size = as.size,
                              .world_rank = world_rank};
    struct tcp_answer head;
    char text[TCP_TEXT_MAX + 1] = "";
    int rc = tcp_send(fd, &hello, sizeof(hello), until);
    if (rc == 0)
        rc = tcp_receive(fd, &head, sizeof(head), until);
    if (rc == 0 && head.bytes > TCP_TEXT_MAX)
        rc = ERR_UNAVAILABLE;
    if (rc == 0)
        rc = tcp_receive(fd, text, head.bytes, until);
    if (rc != 0)
        return report_error(ERR_UNAVAILABLE, "check the log of rank 0, and start the run again",
                            "rank %u got no answer from rank 0", as.rank);
    if (head.error == 0)
        return 0;
    return report_error(head.error == ERR_INVALID ? ERR_INVALID : ERR_UNAVAILABLE,
                        "give each process a RANK of its own and the same WORLD_SIZE", "%s", text);
}

static struct tcp *new_tcp(const struct tcp *world, int fd, struct tcp_place as,
                           struct flight *flight)
{
    struct tcp *t = calloc(1, sizeof(*t));
    if (t == NULL || flight == NULL) {
        free(t);
        return NULL;
    }
    t->base = comm_base(&tcp_ops, as.rank, as.size, flight);
    t->fd = fd;
    t->world = world != NULL ? world->world : t;
    return t;
}

static int split(struct tcp *t, const struct comm_call *call)
{
    struct timespec until = flight_deadline(t->base.flight);
    struct tcp_options *options = &t->world->options;
    struct tcp_place place;
    int fd = -1;
    ERR_TRY(run_one(t, call, NULL, 0, &place, sizeof(place)));
    int rc = tcp_connect(&fd, options->host, t->world->port);
    if (rc == 0)
        rc = say_hello(fd, place, t->world->base.rank, &until);
    struct tcp *child = rc == 0 ? new_tcp(t, fd, place, t->base.flight) : NULL;
    if (rc == 0 && child == NULL)
        rc = report_error(ERR_MEMORY, NULL, "no memory for a communicator");
    if (rc == 0)
        *call->out = &child->base;
    else if (fd >= 0)
        close(fd);
    return rc;
}

static int tcp_run(struct comm *comm, const struct comm_call *call)
{
    struct tcp *t = (struct tcp *)comm;
    bool is_root = call->peer == comm->rank;
    switch (call->kind) {
    case COMM_SPLIT:
        return split(t, call);
    case COMM_BARRIER:
        return run_one(t, call, NULL, 0, NULL, 0);
    case COMM_BROADCAST:
        return run_one(t, call, call->recv, is_root ? call->bytes : 0, call->recv,
                       is_root ? 0 : call->bytes);
    case COMM_ALL_GATHER:
        return run_parts(t, call, call->send, call->bytes);
    case COMM_ALL_TO_ALL:
        return all_to_all(t, call);
    case COMM_SUM_I64:
        return run_one(t, call, call->recv, call->bytes, call->recv, call->bytes);
    default:
        return report_error(ERR_INVALID,
                            "report this defect: over TCP data of GPUs must go through NCCL",
                            "there is no %s of host memory over TCP", comm_kind_name(call->kind));
    }
}

/* ---- Life ---- */

static void tcp_free(struct comm *comm)
{
    struct tcp *t = (struct tcp *)comm;
    bool is_world = t->world == t;
    struct tcp_ask bye = {.sign.kind = TCP_KIND_BYE};
    struct timespec until = tcp_deadline(HUB_SECONDS);
    if (!t->world->base.is_lost)
        (void)tcp_send(t->fd, &bye, sizeof(bye), &until);
    close(t->fd);
    if (is_world) {
        hub_close(t->hub, t->base.is_lost);
        flight_free(t->base.flight);
    }
    free(t);
}

static bool tcp_fail(struct comm *comm, int error)
{
    (void)error;
    bool is_told = tcp_is_failed(comm);
    return !mark_lost((struct tcp *)comm) && !is_told;
}

/* Each rank ends with its own exit code. */
static void tcp_abort(struct comm *comm, int exit_code)
{
    (void)exit_code;
    (void)mark_lost((struct tcp *)comm);
}

static const struct comm_ops tcp_ops = {
    .name = "tcp",
    .flags = COMM_THREADS,
    .run = tcp_run,
    .free = tcp_free,
    .abort = tcp_abort,
    .fail = tcp_fail,
    .is_failed = tcp_is_failed,
};

/* ---- The world ---- */

static int find_hub(int *out, struct tcp *t, const struct timespec *until)
{
    const struct tcp_options *options = &t->options;
    if (options->store_key[0] == '\0')
        snprintf(t->port, sizeof(t->port), "%s", options->port);
    else if (t->hub == NULL)
        ERR_TRY(store_get(options, t->port, sizeof(t->port), until));
    return tcp_connect(out, options->host, t->port);
}

/* Rank 0 may start later than this one. */
static int connect_world(struct tcp *t)
{
    struct timespec until = tcp_deadline(t->options.timeout_seconds);
    int rc;
    while ((rc = find_hub(&t->fd, t, &until)) == ERR_UNAVAILABLE && !tcp_is_over(&until))
        clock_sleep_ns(RETRY_NS);
    if (rc != 0)
        return rc;
    if (until.tv_sec != 0)
        until.tv_sec += HUB_SECONDS;
    return say_hello(t->fd, (struct tcp_place){.rank = t->options.rank, .size = t->options.size},
                     t->options.rank, &until);
}

int comm_tcp_open(struct comm **out, const struct tcp_options *options)
{
    struct timespec until = tcp_deadline(options->timeout_seconds);
    struct tcp_place as = {.rank = options->rank, .size = options->size};
    struct flight *flight = flight_new(options->rank);
    struct tcp *t = new_tcp(NULL, -1, as, flight);
    if (t == NULL) {
        flight_free(flight);
        return report_error(ERR_MEMORY, NULL, "no memory for a communicator");
    }
    t->options = *options;
    int rc = options->rank == 0 ? hub_open(&t->hub, t->port, options) : 0;
    if (rc == 0 && options->rank == 0 && options->store_key[0] != '\0')
        rc = store_set(options, t->port, &until);
    if (rc == 0)
        rc = connect_world(t);
    if (rc == 0) {
        *out = &t->base;
        return 0;
    }
    if (t->fd >= 0)
        close(t->fd);
    hub_close(t->hub, true);
    flight_free(flight);
    free(t);
    return rc;
}
