/* private.h - shared by the files of this folder: sockets with deadlines, the frames, the hub. */
#ifndef HOLDFAST_TRAINER_COMM_TCP_PRIVATE_H
#define HOLDFAST_TRAINER_COMM_TCP_PRIVATE_H

#include "trainer/comm/private.h"
#include "trainer/comm/tcp/tcp.h"

#include <time.h>

#define TCP_MAGIC 0x31706374666c6f68u
#define TCP_FRAME_MAX ((uint64_t)1 << 30)
#define TCP_TEXT_MAX 512u
#define TCP_KIND_BYE NUM_COMM_KINDS /* the communicator was freed in order */

/* ---- Frames ---- */

/* First frame on a connection: its communicator; 0 is the world's. An answer follows. */
struct tcp_hello {
    uint64_t magic;
    uint32_t group, rank, size, world_rank;
};
/* A call; `bytes` follow. */
struct tcp_ask {
    struct comm_sign sign;
    uint32_t color, key;
    uint64_t bytes;
};
/* `bytes` follow: the group's result of the call. With an error they are a text; with ERR_MISMATCH
 * the sign of rank `about`. */
struct tcp_answer {
    int32_t error;
    uint32_t about;
    uint64_t bytes;
};
/* The answer of a split. */
struct tcp_place {
    uint32_t group, rank, size;
};

/* ---- Sockets (sockets.c) ---- */

/* Zeros: never. */
struct timespec tcp_deadline(int64_t seconds);
bool tcp_is_over(const struct timespec *deadline);
/* Listens at `port` ("0": any) of the machine; of its loopback if `host` is that. ERR_BUSY,
 * ERR_IO. */
int tcp_listen(int *out, const char *host, const char *port);
int tcp_port_of(int listener, char out[8]);
/* Tries once. ERR_INVALID: not a port; ERR_UNAVAILABLE. */
int tcp_connect(int *out, const char *host, const char *port);
void tcp_set(int fd); /* also for accepted connections */
/* ERR_TIMEOUT; ERR_UNAVAILABLE: the connection has ended. Without a text. */
int tcp_send(int fd, const void *data, size_t bytes, const struct timespec *deadline);
int tcp_receive(int fd, void *data, size_t bytes, const struct timespec *deadline);

/* ---- The store of torchrun (store.c) ---- */

int store_set(const struct tcp_options *options, const char *value,
              const struct timespec *deadline);
/* Waits until the key is set. */
int store_get(const struct tcp_options *options, char *out, size_t size,
              const struct timespec *deadline);

/* ---- The hub (hub.c) ---- */

struct hub;
/* Listens and starts its thread; `out_port` is the port. */
int hub_open(struct hub **out, char out_port[8], const struct tcp_options *options);
/* Waits until every rank has left, unless `is_lost`. NULL is allowed. */
void hub_close(struct hub *hub, bool is_lost);

#endif
