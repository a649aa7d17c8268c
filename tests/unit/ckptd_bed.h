/* ckptd_bed.h - a ckptd inside the test, and a raw client that speaks ckpt.proto and arena.h.
 *
 * The service runs on a thread of the test's process with small limits; a client is a session and
 * its arena connection, without libckpt, so that it can also do what libckpt never would. One
 * model: rank r of n holds the rows [r * ROWS / n, (r + 1) * ROWS / n) of one F32 matrix.
 * Everything lives below $TMPDIR and goes with the bed. */
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
    bool may_be_bare; /* it is used while its pool is being filled */
    pthread_t thread;
    struct rpc_client *rpc;
    const char *run; /* whose attempt is opened; RUN unless a test says so */
    uint64_t attempt;
    struct event turn; /* of bed_hold() */
    sem_t is_held, may_go_on;
};

/* Between hold and go_on the service thread stands still: what a test changes meanwhile is seen by
 * it and by all that it has done afterwards. */
static inline void bed_stand_still(struct event *event)
{
    struct bed *bed = CONTAINER_OF(event, struct bed, turn);
    sem_post(&bed->is_held);
    while (sem_wait(&bed->may_go_on) != 0)
        ;
}
static inline void bed_hold(struct bed *bed)
{
    bed->turn.run = bed_stand_still;
    assert_int_equal(sem_init(&bed->is_held, 0, 0), 0);
    assert_int_equal(sem_init(&bed->may_go_on, 0, 0), 0);
    loop_post(bed->service->loop, &bed->turn);
    while (sem_wait(&bed->is_held) != 0)
        ;
}
static inline void bed_go_on(struct bed *bed)
{
    sem_post(&bed->may_go_on);
}

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
    bool is_last;                                 /* as ckpt_save_last has it */
    const char *state_json;                       /* of its saves; NULL: none */
    /* of the save in work */
    uint64_t save;
    uint32_t slot, num_segments;
    uint32_t segments[POOL_SEGMENTS_MAX];
    uint8_t *mapped[POOL_SEGMENTS_MAX]; /* by segment */
};

static inline void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* ---- the service ---- */

static inline void *bed_thread(void *argument)
{
    service_run(argument);
    return NULL;
}

/* Drains the service until its thread has ended; what it knew may be looked at. */
static inline void bed_end_thread(struct bed *bed)
{
    rpc_client_close(bed->rpc);
    bed->rpc = NULL;
    service_drain(bed->service);
    pthread_join(bed->thread, NULL);
}

static inline void bed_close_service(struct bed *bed)
{
    service_close(bed->service);
    bed->service = NULL;
}

static inline void bed_stop(struct bed *bed)
{
    if (!bed->service)
        return;
    bed_end_thread(bed);
    bed_close_service(bed);
}

/* So that no test depends on how far the pool was filled when it began. */
static inline void bed_await_pool(const struct bed *bed)
{
    const struct pool *pool = bed->service->pool;
    for (int ms = 0; pool_ready_count(pool) < pool_size(pool); ms++) {
        assert_true(ms < 20000);
        sleep_ms(1);
    }
}

/* 0, or why the service does not open. */
static inline int bed_start(struct bed *bed)
{
    int error = service_open(&bed->service, &bed->config);
    if (error != 0)
        return error;
    assert_int_equal(pthread_create(&bed->thread, NULL, bed_thread, bed->service), 0);
    if (!bed->may_be_bare)
        bed_await_pool(bed);
    error = rpc_client_open(&bed->rpc, bed->config.listen);
    if (error != 0)
        bed_stop(bed);
    return error;
}

static inline struct bed *bed_new(void)
{
    struct bed *bed = calloc(1, sizeof *bed);
    bed->run = RUN;
    const char *parent = getenv("TMPDIR");
    snprintf(bed->root, sizeof bed->root, "%s/ckptd-XXXXXX", parent ? parent : "/var/tmp");
    assert_non_null(mkdtemp(bed->root));
    char *argv[] = {"ckptd",     "--listen",
                    bed->listen, "--store",
                    bed->store,  "--memory.pool_bytes",
                    "24MiB",     "--memory.segment_bytes",
                    "1MiB",      "--limits.drain_ms",
                    "3000",      "--limits.last_save_ms",
                    "0",         NULL};
    bool help;
    memcpy(bed->argv, argv, sizeof argv);
    snprintf(bed->listen, sizeof bed->listen, "unix:%s/s", bed->root);
    snprintf(bed->store, sizeof bed->store, "%s/store", bed->root);
    assert_int_equal(config_load(&bed->config, 13, bed->argv, &help), 0);
    bed->config.limit_takeover_ms = 0; /* a start ends the one before at once */
    return bed;
}

static inline void bed_free(struct bed *bed)
{
    bed_stop(bed);
    shell("rm -rf '%s'", bed->root);
    free(bed);
}

/* Forgets what was found damaged, now that it was put right: the next start must find it again. */
static inline void bed_forget_damage(const struct bed *bed)
{
    shell("rm -rf '%s/store/" RUN "/quarantine'", bed->root);
}

static inline int bed_set_up(void **state)
{
    struct bed *bed = bed_new();
    *state = bed;
    return bed_start(bed);
}

static inline int bed_tear_down(void **state)
{
    bed_free(*state);
    return 0;
}

/* ---- calls ---- */

static inline int call(struct bed *bed, const char *method, const ProtobufCMessage *request,
                       const ProtobufCMessageDescriptor *type, void *out)
{
    char name[96];
    snprintf(name, sizeof name, "/holdfast.v1.Checkpoint/%s", method);
    *(ProtobufCMessage **)out = NULL;
    return rpc_client_call(bed->rpc, name, request, type, (ProtobufCMessage **)out, CALL_MS);
}

#define FREE_REPLY(reply) protobuf_c_message_free_unpacked(&(reply)->base, NULL)

/* What Status says; json_decref() it. */
static inline json_t *bed_status(struct bed *bed)
{
    Holdfast__V1__StatusRequest request = HOLDFAST__V1__STATUS_REQUEST__INIT;
    Holdfast__V1__StatusReply *reply;
    assert_int_equal(
        call(bed, "Status", &request.base, &holdfast__v1__status_reply__descriptor, &reply), 0);
    json_t *status = json_loads(reply->json, 0, NULL);
    FREE_REPLY(reply);
    assert_non_null(status);
    return status;
}

/* One number of it: <part>.<name>. */
static inline double status_number(struct bed *bed, const char *part, const char *name)
{
    json_t *status = bed_status(bed);
    const json_t *value = json_object_get(json_object_get(status, part), name);
    assert_true(json_is_number(value));
    double number = json_number_value(value);
    json_decref(status);
    return number;
}

#define BED_PATIENCE_MS 20000 /* for what should take a fraction of a second */

/* Waits until the number is `want`. */
static inline bool wait_number(struct bed *bed, const char *part, const char *name, double want)
{
    for (int ms = 0; ms < BED_PATIENCE_MS; ms += 10) {
        if (status_number(bed, part, name) == want)
            return true;
        sleep_ms(10);
    }
    return false;
}

/* The first page of the run's list; FREE_REPLY() it. */
static inline Holdfast__V1__ListReply *bed_list(struct bed *bed)
{
    Holdfast__V1__ListRequest request = HOLDFAST__V1__LIST_REQUEST__INIT;
    Holdfast__V1__ListReply *reply;
    request.run = RUN;
    assert_int_equal(
        call(bed, "List", &request.base, &holdfast__v1__list_reply__descriptor, &reply), 0);
    return reply;
}

/* Pins a step of the open attempt, or takes its pin away. */
static inline int bed_pin(struct bed *bed, uint64_t step, bool unpin)
{
    Holdfast__V1__PinRequest request = HOLDFAST__V1__PIN_REQUEST__INIT;
    Holdfast__V1__PinReply *reply;
    request.run = RUN;
    request.step = step;
    request.attempt = bed->attempt;
    request.unpin = unpin;
    request.note = "the test";
    int error = call(bed, "Pin", &request.base, &holdfast__v1__pin_reply__descriptor, &reply);
    if (error == 0)
        FREE_REPLY(reply);
    return error;
}

static inline int open_attempt(struct bed *bed, uint32_t world_size)
{
    Holdfast__V1__OpenAttemptRequest request = HOLDFAST__V1__OPEN_ATTEMPT_REQUEST__INIT;
    Holdfast__V1__OpenAttemptReply *reply;
    request.run = (char *)(uintptr_t)bed->run;
    request.world_size = world_size;
    request.config_json = "{\"training\":{\"steps\":3}}";
    int error = call(bed, "OpenAttempt", &request.base,
                     &holdfast__v1__open_attempt_reply__descriptor, &reply);
    if (error != 0)
        return error;
    bed->attempt = reply->attempt;
    FREE_REPLY(reply);
    return 0;
}

static inline int arena_connect(const struct bed *bed)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/s.arena", bed->root);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* The reply's error, or a failure of the connection. */
static inline int arena_ask(struct peer *peer, struct arena_request *request, int *fds)
{
    struct arena_reply reply;
    request->magic = ARENA_MAGIC;
    request->version = ARENA_VERSION;
    request->session = peer->token;
    if (send(peer->socket, request, sizeof *request, MSG_NOSIGNAL) != sizeof *request)
        return ERR_UNAVAILABLE;
    int error = arena_receive_reply(peer->socket, &reply, fds, ARENA_FDS_MAX);
    return error != 0 ? error : reply.error;
}

static inline int peer_connect(struct peer *peer)
{
    struct arena_request request = {.kind = ARENA_REQUEST_CONTROL};
    int fds[ARENA_FDS_MAX];
    peer->socket = arena_connect(peer->bed);
    int error = arena_ask(peer, &request, fds);
    if (error != 0)
        return error;
    peer->control =
        mmap(NULL, sizeof *peer->control, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    assert_true(peer->control != MAP_FAILED);
    close(fds[0]);
    peer->event_fd = fds[1];
    return 0;
}

/* `count` rows of the matrix, as a message has them. */
struct rows {
    uint64_t shape[2], offset[2], extent[2];
    Holdfast__V1__Slice slice, *slices[1];
};

static inline void rows_init(struct rows *out, uint64_t first, uint64_t count)
{
    *out =
        (struct rows){.shape = {ROWS, COLUMNS}, .offset = {first, 0}, .extent = {count, COLUMNS}};
    holdfast__v1__slice__init(&out->slice);
    out->slice.name = "weights";
    out->slice.dtype = "F32";
    out->slice.shape = out->shape;
    out->slice.offset = out->offset;
    out->slice.extent = out->extent;
    out->slice.n_shape = out->slice.n_offset = out->slice.n_extent = 2;
    out->slices[0] = &out->slice;
}

struct describing {
    struct peer *peer;
    uint32_t world_size;
    int error;
    pthread_t thread;
};

static inline void *describe_thread(void *argument)
{
    struct describing *describing = argument;
    struct peer *peer = describing->peer;
    uint64_t each = ROWS / describing->world_size;
    struct rows rows;
    Holdfast__V1__DescribeRequest request = HOLDFAST__V1__DESCRIBE_REQUEST__INIT;
    Holdfast__V1__DescribeReply *reply;
    rows_init(&rows, peer->rank * each, each);
    request.run = (char *)(uintptr_t)peer->bed->run;
    request.attempt = peer->bed->attempt;
    request.rank = peer->rank;
    request.world_size = describing->world_size;
    request.slices = rows.slices;
    request.n_slices = 1;
    describing->error = call(peer->bed, "Describe", &request.base,
                             &holdfast__v1__describe_reply__descriptor, &reply);
    if (describing->error != 0)
        return NULL;
    peer->token = reply->session;
    peer->image_bytes = reply->image_bytes;
    peer->data_byte = reply->items[0]->image_byte;
    peer->bytes = reply->items[0]->bytes;
    peer->image_segments = reply->image_segments;
    peer->num_ahead = (uint32_t)reply->n_segments;
    assert_true(peer->num_ahead <= POOL_SEGMENTS_MAX);
    for (uint32_t i = 0; i < peer->num_ahead; i++)
        peer->ahead[i] = reply->segments[i];
    FREE_REPLY(reply);
    describing->error = peer_connect(peer);
    return NULL;
}

/* All ranks of the open attempt describe themselves; the first error. */
static inline int peers_open(struct peer *peers, struct bed *bed, uint32_t world_size)
{
    struct describing describing[PEERS_MAX];
    int error = 0;
    assert_true(world_size <= PEERS_MAX);
    memset(peers, 0, world_size * sizeof *peers);
    for (uint32_t i = 0; i < world_size; i++) {
        peers[i] = (struct peer){.bed = bed, .rank = i, .socket = -1, .event_fd = -1};
        describing[i] = (struct describing){.peer = &peers[i], .world_size = world_size};
        pthread_create(&describing[i].thread, NULL, describe_thread, &describing[i]);
    }
    for (uint32_t i = 0; i < world_size; i++) {
        pthread_join(describing[i].thread, NULL);
        error = error != 0 ? error : describing[i].error;
    }
    return error;
}

static inline void peer_close(struct peer *peer)
{
    for (uint32_t i = 0; i < POOL_SEGMENTS_MAX; i++)
        if (peer->mapped[i])
            munmap(peer->mapped[i], (size_t)peer->bed->config.segment_bytes);
    if (peer->control)
        munmap(peer->control, sizeof *peer->control);
    if (peer->event_fd >= 0)
        close(peer->event_fd);
    if (peer->socket >= 0)
        close(peer->socket);
    memset(peer->mapped, 0, sizeof peer->mapped);
    peer->control = NULL;
    peer->event_fd = peer->socket = -1;
}

static inline void peers_close(struct peer *peers, uint32_t world_size)
{
    for (uint32_t i = 0; i < world_size; i++)
        peer_close(&peers[i]);
}

/* ---- saving ---- */

static inline int peer_map(struct peer *peer, const uint32_t *segments, uint32_t count,
                           bool writable)
{
    for (uint32_t i = 0; i < count; i++) {
        struct arena_request request = {.kind = ARENA_REQUEST_SEGMENTS,
                                        .num_segments = 1,
                                        .writable = writable,
                                        .segments = {segments[i]}};
        int fds[ARENA_FDS_MAX];
        if (writable && peer->mapped[segments[i]])
            continue;
        int error = arena_ask(peer, &request, fds);
        if (error != 0)
            return error;
        void *map = mmap(NULL, (size_t)peer->bed->config.segment_bytes,
                         PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fds[0], 0);
        close(fds[0]);
        assert_true(map != MAP_FAILED);
        if (peer->mapped[segments[i]])
            munmap(peer->mapped[segments[i]], (size_t)peer->bed->config.segment_bytes);
        peer->mapped[segments[i]] = map;
    }
    return 0;
}

static inline uint8_t *peer_byte(const struct peer *peer, uint64_t image_byte)
{
    uint64_t segment = (uint64_t)peer->bed->config.segment_bytes;
    uint32_t number = peer->segments[image_byte / segment % peer->num_segments];
    return peer->mapped[number] + image_byte % segment;
}

/* Waits for an image at most `busy_ms`. */
static inline int peer_begin_within(struct peer *peer, uint64_t step, uint32_t busy_ms)
{
    Holdfast__V1__BeginSaveRequest request = HOLDFAST__V1__BEGIN_SAVE_REQUEST__INIT;
    Holdfast__V1__BeginSaveReply *reply;
    request.session = peer->token;
    request.step = step;
    request.state_json = peer->state_json ? (char *)(uintptr_t)peer->state_json : "";
    request.busy_ms = busy_ms;
    request.is_last = peer->is_last;
    int error = call(peer->bed, "BeginSave", &request.base,
                     &holdfast__v1__begin_save_reply__descriptor, &reply);
    if (error != 0)
        return error;
    peer->save = reply->save;
    peer->slot = reply->image;
    peer->num_segments = (uint32_t)reply->n_segments;
    memcpy(peer->segments, reply->segments, reply->n_segments * sizeof *reply->segments);
    FREE_REPLY(reply);
    return peer_map(peer, peer->segments, peer->num_segments, true);
}

static inline int peer_begin(struct peer *peer, uint64_t step)
{
    return peer_begin_within(peer, step, 0);
}

/* Element of the matrix at `step`, as bits. */
static inline uint32_t element(uint64_t step, uint64_t index)
{
    return (uint32_t)(step * 2654435761u + index * 40503u);
}

/* Bytes [from, to) of the rank's part of the matrix. */
static inline void peer_fill_part(struct peer *peer, uint64_t step, uint64_t from, uint64_t to)
{
    uint64_t first = peer->rank * (peer->bytes / 4);
    for (uint64_t i = from / 4; i < to / 4; i++) {
        uint32_t value = element(step, first + i);
        memcpy(peer_byte(peer, peer->data_byte + 4 * i), &value, 4);
    }
}

static inline void peer_fill(struct peer *peer, uint64_t step)
{
    peer_fill_part(peer, step, 0, peer->bytes);
}

static inline void peer_announce(struct peer *peer, uint32_t kind, uint64_t offset, uint64_t bytes)
{
    struct arena_entry entry = {
        .kind = kind, .image = peer->slot, .save = peer->save, .offset = offset, .bytes = bytes};
    uint64_t one = 1;
    while (!arena_push(peer->control, &entry))
        sleep_ms(1);
    assert_int_equal(write(peer->event_fd, &one, sizeof one), sizeof one);
}

static inline void peer_finish(struct peer *peer, uint64_t step)
{
    peer_fill(peer, step);
    peer_announce(peer, ARENA_ENTRY_RANGE, peer->data_byte, peer->bytes);
    peer_announce(peer, ARENA_ENTRY_END, 0, 0);
}

/* Gives up the save in work. */
static inline void peer_abort(struct peer *peer)
{
    Holdfast__V1__AbortSaveRequest request = HOLDFAST__V1__ABORT_SAVE_REQUEST__INIT;
    Holdfast__V1__AbortSaveReply *reply;
    request.session = peer->token;
    request.save = peer->save;
    request.reason = "changed its mind";
    assert_int_equal(call(peer->bed, "AbortSave", &request.base,
                          &holdfast__v1__abort_save_reply__descriptor, &reply),
                     0);
    FREE_REPLY(reply);
}

/* How the save is doing, at most so long later; `reason` may be NULL. */
static inline Holdfast__V1__SaveState ask_save(struct bed *bed, uint64_t step, uint32_t timeout_ms,
                                               char reason[512])
{
    Holdfast__V1__WaitSaveRequest request = HOLDFAST__V1__WAIT_SAVE_REQUEST__INIT;
    Holdfast__V1__WaitSaveReply *reply;
    request.run = (char *)(uintptr_t)bed->run;
    request.step = step;
    request.attempt = bed->attempt;
    request.timeout_ms = timeout_ms;
    assert_int_equal(
        call(bed, "WaitSave", &request.base, &holdfast__v1__wait_save_reply__descriptor, &reply),
        0);
    Holdfast__V1__SaveState state = reply->state;
    if (reason)
        snprintf(reason, 512, "%s", reply->reason);
    FREE_REPLY(reply);
    return state;
}

/* Until it is over. */
static inline Holdfast__V1__SaveState wait_save(struct bed *bed, uint64_t step, char reason[512])
{
    return ask_save(bed, step, 10000, reason);
}

/* All ranks save `step`; true when it was committed. */
static inline bool save_step(struct peer *peers, uint32_t world_size, uint64_t step)
{
    for (uint32_t i = 0; i < world_size; i++)
        if (peer_begin(&peers[i], step) != 0)
            return false;
    for (uint32_t i = 0; i < world_size; i++)
        peer_finish(&peers[i], step);
    return wait_save(peers[0].bed, step, NULL) == HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED;
}

/* A new attempt, whose ranks have described what they save. */
static inline void bed_open_world(struct bed *bed, struct peer *peers, uint32_t world_size)
{
    assert_int_equal(open_attempt(bed, world_size), 0);
    assert_int_equal(peers_open(peers, bed, world_size), 0);
}

/* Another bit in byte `at` of the shard of a checkpoint of one rank, step 1. */
static inline void bed_flip_byte(const struct bed *bed, uint64_t at)
{
    char path[300];
    uint8_t byte;
    snprintf(path, sizeof path,
             "%s/store/" RUN "/step-00000001-a0001/shard-00001-of-00001.safetensors", bed->root);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

/* A new attempt saves the steps [first, last], and its ranks go. */
static inline void bed_save_steps(struct bed *bed, struct peer *peers, uint32_t world_size,
                                  uint64_t first, uint64_t last)
{
    bed_open_world(bed, peers, world_size);
    for (uint64_t step = first; step <= last; step++)
        assert_true(save_step(peers, world_size, step));
    peers_close(peers, world_size);
}

#endif
