/* ckptd_bed.h - a ckptd inside the test, and a raw client that speaks ckpt.proto and arena.h.
 *
 * The service runs on a thread of the test's process with small limits. A client is a session and
 * its arena connection, without libckpt, so that it can also break the protocol. One model: rank r
 * of n holds the rows [r * ROWS / n, (r + 1) * ROWS / n) of one F32 matrix. All files lie below
 * $TMPDIR and are removed with the bed. */
#ifndef HOLDFAST_TESTS_CKPTD_BED_H
#define HOLDFAST_TESTS_CKPTD_BED_H

#include "tests/unit/ckptd.h"
#include "tests/unit/shell.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define RUN "bed"
#ifndef ROWS /* a test may have a smaller matrix */
#define ROWS 1024u
#define COLUMNS 1024u /* 4 MiB in all */
#endif
extern uint64_t bed_rows, bed_columns; /* these of the test */
#define MIB (1u << 20)
#define RANKS 2u
#define PEERS_MAX 8u
#define CALL_MS 20000u
#define POOL_SEGMENTS_MAX 256u

struct bed {
    char root[80];
    char listen[160], store[160];
    char *argv[14]; /* a reload reads them again */
    struct config config;
    struct service *service;
    bool may_be_bare; /* the service runs while its pool is still being filled */
    pthread_t thread;
    struct rpc_client *rpc;
    const char *run; /* the run whose attempt is opened; RUN by default */
    uint64_t attempt;
    struct event turn; /* of bed_hold() */
    sem_t is_held, may_go_on;
    int log_fd, stderr_fd; /* of bed_divert_log() */
};

/* Between hold and go_on the service thread is stopped. It sees every change that the test makes
 * meanwhile. */
void bed_hold(struct bed *bed);
void bed_go_on(struct bed *bed);

/* One rank, or a reader. */
struct peer {
    struct bed *bed;
    uint64_t token;
    int socket;
    struct arena_control *control;
    int event_fd;
    uint32_t rank;
    uint64_t image_bytes, data_byte, bytes;
    uint32_t image_segments; /* of every image; fewer than image_bytes need: a window */
    uint32_t num_ahead, ahead[POOL_SEGMENTS_MAX]; /* segments lent with the description */
    bool is_last;                                 /* like ckpt_save_last */
    const char *state_json;                       /* of its saves; NULL: none */
    /* of the save in work */
    uint64_t save;
    uint32_t slot, num_segments;
    uint32_t segments[POOL_SEGMENTS_MAX];
    uint8_t *mapped[POOL_SEGMENTS_MAX]; /* by segment */
};

void sleep_ms(long ms);

/* ---- the service ---- */

void *bed_thread(void *service);

/* Drains the service until its thread has ended; its state may be read afterwards. */
void bed_end_thread(struct bed *bed);
void bed_close_service(struct bed *bed);
void bed_stop(struct bed *bed);

/* Redirects the log into a file; bed_read_log() returns the contents and ends that. */
void bed_divert_log(struct bed *bed);
void bed_read_log(struct bed *bed, char *out, size_t bytes);

/* Opens the service: 0, or the error. */
int bed_start(struct bed *bed);

/* Ends the service and starts another. */
void bed_restart(struct bed *bed);

/* With a matrix of this shape. */
struct bed *bed_new_with(uint64_t rows, uint64_t columns);
static inline struct bed *bed_new(void)
{
    return bed_new_with(ROWS, COLUMNS);
}

void bed_free(struct bed *bed);

/* Forgets the damage that was found, after a test repaired it: the next start must find damage
 * again. */
void bed_forget_damage(const struct bed *bed);

/* Not started yet. */
static inline int bed_set_up_stopped(void **state)
{
    *state = bed_new();
    return 0;
}

static inline int bed_set_up(void **state)
{
    bed_set_up_stopped(state);
    return bed_start(*state);
}

int bed_tear_down(void **state);

/* Tests of `bed` (suite.h). */
#define BED_TEST_BETWEEN(name, setup, teardown) TEST_WITH(struct bed *bed, name, setup, teardown)
#define BED_TEST(name) BED_TEST_BETWEEN(name, bed_set_up, bed_tear_down)

/* ---- calls ---- */

int call(struct bed *bed, const char *method, const ProtobufCMessage *request,
         const ProtobufCMessageDescriptor *type, void *out);

/* Makes a call and returns only its error. */
int try_call(struct bed *bed, const char *method, const ProtobufCMessage *request);

#define FREE_REPLY(reply) protobuf_c_message_free_unpacked(&(reply)->base, NULL)

/* The answer of Status; the caller does json_decref(). */
json_t *bed_status(struct bed *bed);

/* One number of Status: <part>.<name>. */
double status_number(struct bed *bed, const char *part, const char *name);

#define BED_PATIENCE_MS 20000 /* time limit of waits that should take a fraction of a second */

/* Waits until the number is `want`. */
bool wait_number(struct bed *bed, const char *part, const char *name, double want);

/* The first page of the run's list; FREE_REPLY() it. */
Holdfast__V1__ListReply *bed_list(struct bed *bed);

/* Pins a step of the open attempt, or unpins it. */
int bed_pin(struct bed *bed, uint64_t step, bool unpin);
int open_attempt(struct bed *bed, uint32_t world_size);

/* To one of its sockets: "s", or "s.arena". */
int bed_connect(const struct bed *bed, const char *door);
static inline int arena_connect(const struct bed *bed)
{
    return bed_connect(bed, "s.arena");
}

/* The reply's error, or a failure of the connection. */
int arena_ask(struct peer *peer, struct arena_request *request, int *fds);

/* `count` rows of the matrix, as a message has them. */
struct rows {
    uint64_t shape[2], offset[2], extent[2];
    Holdfast__V1__Slice slice, *slices[1];
};

void rows_init(struct rows *out, uint64_t first, uint64_t count);

/* All ranks of the open attempt describe themselves; the first error. */
int peers_open(struct peer *peers, struct bed *bed, uint32_t world_size);
void peer_close(struct peer *peer);
void peers_close(struct peer *peers, uint32_t world_size);

/* ---- saving ---- */

int peer_map(struct peer *peer, const uint32_t *segments, uint32_t count, bool writable);
uint8_t *peer_byte(const struct peer *peer, uint64_t image_byte);

/* Waits for an image at most `busy_ms`. */
int peer_begin_within(struct peer *peer, uint64_t step, uint32_t busy_ms);
int peer_begin(struct peer *peer, uint64_t step);

/* Element of the matrix at `step`, as bits. */
uint32_t element(uint64_t step, uint64_t index);

/* Bytes [from, to) of the rank's part of the matrix. */
void peer_fill_part(struct peer *peer, uint64_t step, uint64_t from, uint64_t to);
void peer_fill(struct peer *peer, uint64_t step);
void peer_announce(struct peer *peer, uint32_t kind, uint64_t offset, uint64_t bytes);
void peer_finish(struct peer *peer, uint64_t step);

/* Aborts the save in work. */
void peer_abort(struct peer *peer);

/* The state of the save after at most that time; `reason` may be NULL. */
Holdfast__V1__SaveState ask_save(struct bed *bed, uint64_t step, uint32_t timeout_ms,
                                 char reason[512]);

/* Waits until the save is over. */
Holdfast__V1__SaveState wait_save(struct bed *bed, uint64_t step, char reason[512]);

/* All ranks save `step`; true when it was committed. */
bool save_step(struct peer *peers, uint32_t world_size, uint64_t step);

/* A new attempt, whose ranks have described their tensors. */
void bed_open_world(struct bed *bed, struct peer *peers, uint32_t world_size);

/* Flips a bit of byte `at` in a file of a checkpoint. */
void bed_flip_byte(const struct bed *bed, uint64_t step, uint64_t attempt, const char *file,
                   uint64_t at);

/* Saves the steps [first, last] in a new attempt, then disconnects its ranks. */
void bed_save_steps(struct bed *bed, struct peer *peers, uint32_t world_size, uint64_t first,
                    uint64_t last);

#endif
