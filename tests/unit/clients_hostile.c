/* clients_hostile.c - libckpt against a ckptd that gives false answers.
 *
 * Goal: whatever a ckptd answers, the client stays inside its own tensors and the memory it was
 * lent, and reports the false answer with a code. With honest answers the same fake serves a save
 * and a load. Method: a fake ckptd in this process (rpc.h's server and an arena socket). Its honest
 * answers are in one struct; each test changes one of them. Segments are one page, and the tensor
 * straddles two. */
#include "clients/ckpt.h"
#include "proto/base/report.h"
#include "proto/wire/arena.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "tests/unit/suite.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { ROWS = 8, COLUMNS = 4, PAGE = 4096, PLACE = 4000, TOKEN = 77 };
#define METHOD(name) "/holdfast.v1.Checkpoint/" name

struct answers {
    uint32_t protocol, num_segments, num_fds_off; /* descriptors held back */
    int32_t arena_error;
    Holdfast__V1__ImageItem place;
    uint64_t image_bytes, segment_bytes;
    uint32_t segment_numbers[4];
    Holdfast__V1__LoadItem items[2];
    size_t num_items;
    uint64_t shard_bytes, part_start, part_bytes;
    uint32_t replicated[2];
    size_t num_replicated;
};

struct fake {
    char path[100], target[108], arena[108];
    struct rpc_server *server;
    int listeners[2];
    atomic_int connection; /* the one of the arena, or -1 */
    pthread_t thread;
    atomic_bool stop;
    atomic_int num_aborts; /* AbortSave calls */
    atomic_bool is_named;  /* the connection has said whose it is */
    atomic_int num_shards; /* LoadShard calls */
    atomic_int num_early;  /* of them before that */
    struct arena_control *control;
    int control_fd, event_fd, segment_fds[2];
    unsigned char *segments[2];

    /* A test edits `say`; each try hands a copy to the threads. */
    struct answers say, live;
    pthread_mutex_t mutex;
};

static struct answers answers_of(struct fake *fake)
{
    pthread_mutex_lock(&fake->mutex);
    struct answers live = fake->live;
    pthread_mutex_unlock(&fake->mutex);
    return live;
}

/* ---- the fake's control plane ---- */

static void on_hello(void *user, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct answers live = answers_of(user);
    struct fake *fake = user;
    Holdfast__V1__HelloReply reply = HOLDFAST__V1__HELLO_REPLY__INIT;
    (void)message;
    reply.protocol = live.protocol;
    reply.version = "fake";
    reply.boot_id = 5;
    reply.arena_socket = fake->arena;
    rpc_call_reply(call, &reply.base);
}

static void on_describe(void *user, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct answers live = answers_of(user);
    Holdfast__V1__DescribeReply reply = HOLDFAST__V1__DESCRIBE_REPLY__INIT;
    Holdfast__V1__ImageItem *items[] = {&live.place};
    (void)message;
    reply.session = TOKEN;
    reply.image_bytes = live.image_bytes;
    reply.segment_bytes = live.segment_bytes;
    reply.boot_id = 5;
    reply.n_items = 1;
    reply.items = items;
    reply.replicated = live.replicated;
    reply.n_replicated = live.num_replicated;
    rpc_call_reply(call, &reply.base);
}

static void on_begin(void *user, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct answers live = answers_of(user);
    Holdfast__V1__BeginSaveReply reply = HOLDFAST__V1__BEGIN_SAVE_REPLY__INIT;
    (void)message;
    reply.save = 9;
    reply.image = 1;
    reply.n_segments = reply.n_generations = live.num_segments;
    reply.segments = live.segment_numbers;
    reply.generations = live.segment_numbers; /* any: they stay unchanged */
    rpc_call_reply(call, &reply.base);
}

static void on_abort(void *user, struct rpc_call *call, const ProtobufCMessage *message)
{
    Holdfast__V1__AbortSaveReply reply = HOLDFAST__V1__ABORT_SAVE_REPLY__INIT;
    struct fake *fake = user;
    (void)message;
    atomic_fetch_add(&fake->num_aborts, 1);
    rpc_call_reply(call, &reply.base);
}

static void on_open_load(void *user, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct answers live = answers_of(user);
    Holdfast__V1__OpenLoadReply reply = HOLDFAST__V1__OPEN_LOAD_REPLY__INIT;
    Holdfast__V1__LoadItem *items[] = {&live.items[0], &live.items[1]};
    (void)message;
    reply.load = 3;
    reply.session = TOKEN;
    reply.segment_bytes = live.segment_bytes;
    reply.n_items = live.num_items;
    reply.items = items;
    rpc_call_reply(call, &reply.base);
}

static void on_load_shard(void *user, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct answers live = answers_of(user);
    struct fake *fake = user;
    Holdfast__V1__LoadShardReply reply = HOLDFAST__V1__LOAD_SHARD_REPLY__INIT;
    (void)message;
    atomic_fetch_add(&fake->num_shards, 1);
    atomic_fetch_add(&fake->num_early, !atomic_load(&fake->is_named));
    reply.n_segments = live.num_segments;
    reply.segments = live.segment_numbers;
    reply.bytes = live.shard_bytes;
    reply.part_start = live.part_start;
    reply.part_bytes = live.part_bytes;
    reply.tier = "memory";
    rpc_call_reply(call, &reply.base);
}

/* An answer without fields. */
#define EMPTY(name, reply_type, init)                                                    \
    static void name(void *user, struct rpc_call *call, const ProtobufCMessage *message) \
    {                                                                                    \
        reply_type reply = init;                                                         \
        (void)user;                                                                      \
        (void)message;                                                                   \
        rpc_call_reply(call, &reply.base);                                               \
    }
EMPTY(on_release, Holdfast__V1__ReleaseShardReply, HOLDFAST__V1__RELEASE_SHARD_REPLY__INIT)
EMPTY(on_close, Holdfast__V1__CloseLoadReply, HOLDFAST__V1__CLOSE_LOAD_REPLY__INIT)

#define ROW(name, type, handler)                                   \
    {                                                              \
        METHOD(name), &holdfast__v1__##type##_request__descriptor, \
            &holdfast__v1__##type##_reply__descriptor, handler     \
    }
static const struct rpc_method methods[] = {
    ROW("Hello", hello, on_hello),
    ROW("Describe", describe, on_describe),
    ROW("BeginSave", begin_save, on_begin),
    ROW("AbortSave", abort_save, on_abort),
    ROW("OpenLoad", open_load, on_open_load),
    ROW("LoadShard", load_shard, on_load_shard),
    ROW("ReleaseShard", release_shard, on_release),
    ROW("CloseLoad", close_load, on_close),
    {NULL, NULL, NULL, NULL},
};

/* ---- its arena ---- */

static void answer_arena(struct fake *fake)
{
    struct answers live = answers_of(fake);
    struct arena_request request;
    struct arena_reply reply = {
        .magic = ARENA_MAGIC, .version = ARENA_VERSION, .segment_bytes = PAGE};
    int fds[ARENA_FDS_MAX];
    ssize_t got = recv(fake->connection, &request, sizeof request, MSG_WAITALL);
    if (got != sizeof request) {
        close(fake->connection);
        fake->connection = -1;
        atomic_store(&fake->is_named, false);
        return;
    }
    atomic_store(&fake->is_named, request.session == TOKEN);
    reply.error = live.arena_error;
    if (reply.error == 0 && request.kind == ARENA_REQUEST_CONTROL) {
        fds[reply.num_fds++] = fake->control_fd;
        fds[reply.num_fds++] = fake->event_fd;
    }
    for (uint32_t i = 0; reply.error == 0 && request.kind == ARENA_REQUEST_SEGMENTS &&
                         i < request.num_segments && i < ARENA_FDS_MAX;
         i++)
        fds[reply.num_fds++] = fake->segment_fds[request.segments[i] % 2];
    reply.num_fds -= reply.num_fds > live.num_fds_off ? live.num_fds_off : reply.num_fds;
    arena_send_reply(fake->connection, &reply, fds);
}

static void *serve(void *argument)
{
    struct fake *fake = argument;
    const struct principal operator= principal_of_user(ROLE_OPERATOR, geteuid(), getpid());
    while (!fake->stop) {
        struct pollfd polls[] = {{fake->listeners[0], POLLIN, 0},
                                 {fake->listeners[1], POLLIN, 0},
                                 {fake->connection, POLLIN, 0}};
        if (poll(polls, 3, 20) <= 0)
            continue;
        if (polls[0].revents != 0) {
            int fd = accept(fake->listeners[0], NULL, NULL);
            if (fd >= 0)
                rpc_server_adopt(fake->server, fd, &operator);
        }
        if (polls[2].revents != 0)
            answer_arena(fake);
        else if (polls[1].revents != 0 && fake->connection < 0)
            fake->connection = accept(fake->listeners[1], NULL, NULL);
    }
    return NULL;
}

static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    unlink(path);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 16), 0);
    return fd;
}

static void *map_memfd(int *out_fd, size_t bytes)
{
    assert_int_equal(arena_create(out_fd, "fake", bytes), 0);
    void *mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *out_fd, 0);
    assert_true(mapping != MAP_FAILED);
    return mapping;
}

static void be_honest(struct fake *fake)
{
    static uint64_t zero[2] = {0, 0}, shape[2] = {ROWS, COLUMNS};
    Holdfast__V1__LoadItem item = HOLDFAST__V1__LOAD_ITEM__INIT;
    item.shard_byte = PLACE;
    item.n_saved_offset = item.n_saved_extent = item.n_offset = item.n_extent = 2;
    item.saved_offset = item.offset = zero;
    item.saved_extent = item.extent = shape;
    fake->say = (struct answers){.protocol = RPC_PROTOCOL,
                                 .num_segments = 2,
                                 .place = HOLDFAST__V1__IMAGE_ITEM__INIT,
                                 .image_bytes = 2 * PAGE,
                                 .segment_bytes = PAGE,
                                 .segment_numbers = {0, 1},
                                 .items = {item, item},
                                 .num_items = 1,
                                 .shard_bytes = 2 * PAGE,
                                 .part_bytes = 2 * PAGE};
    fake->say.place.image_byte = PLACE;
    fake->say.place.bytes = ROWS * COLUMNS * 4;
}

static int fake_open(void **state)
{
    struct fake *fake = calloc(1, sizeof *fake);
    struct rpc_server_options options = {.methods = methods,
                                         .user = fake,
                                         .num_threads = 2,
                                         .num_connections = 64,
                                         .silent_ms = 60000,
                                         .request_bytes = RPC_REQUEST_BYTES};
    const char *parent = getenv("TMPDIR");
    snprintf(fake->path, sizeof fake->path, "%s/fake", parent != NULL ? parent : "/var/tmp");
    snprintf(fake->target, sizeof fake->target, "unix:%s", fake->path);
    snprintf(fake->arena, sizeof fake->arena, "%s.arena", fake->path);
    fake->connection = -1;
    pthread_mutex_init(&fake->mutex, NULL);
    fake->control = map_memfd(&fake->control_fd, sizeof *fake->control);
    fake->control->magic = ARENA_MAGIC;
    fake->control->version = ARENA_VERSION;
    fake->control->entries = ARENA_RING_ENTRIES;
    fake->control->session = TOKEN;
    fake->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (int i = 0; i < 2; i++)
        fake->segments[i] = map_memfd(&fake->segment_fds[i], PAGE);
    be_honest(fake);
    fake->listeners[0] = listen_at(fake->path);
    fake->listeners[1] = listen_at(fake->arena);
    assert_int_equal(rpc_server_open(&fake->server, &options), 0);
    assert_int_equal(pthread_create(&fake->thread, NULL, serve, fake), 0);
    *state = fake;
    return 0;
}

static int fake_close(void **state)
{
    struct fake *fake = *state;
    fake->stop = true;
    pthread_join(fake->thread, NULL);
    rpc_server_close(fake->server, 0);
    close(fake->listeners[0]);
    close(fake->listeners[1]);
    close(fake->connection);
    close(fake->control_fd);
    close(fake->event_fd);
    munmap(fake->control, sizeof *fake->control);
    for (int i = 0; i < 2; i++) {
        close(fake->segment_fds[i]);
        munmap(fake->segments[i], PAGE);
    }
    unlink(fake->path);
    unlink(fake->arena);
    pthread_mutex_destroy(&fake->mutex);
    free(fake);
    return 0;
}

#define HOSTILE_TEST(name) TEST_WITH(struct fake *fake, name, fake_open, fake_close)

/* ---- the client ---- */

static struct ckpt_tensor whole(float *data)
{
    return (struct ckpt_tensor){.name = "t",
                                .dtype = "F32",
                                .dims = 2,
                                .shape = {ROWS, COLUMNS},
                                .extent = {ROWS, COLUMNS},
                                .data = data};
}

static int try_open(struct fake *fake, struct ckpt **out)
{
    pthread_mutex_lock(&fake->mutex);
    fake->live = fake->say;
    pthread_mutex_unlock(&fake->mutex);
    *out = NULL;
    return ckpt_open(
        out, &(struct ckpt_options){
                 .server = fake->target, .run = "run", .world_size = 1, .connect_ms = 2000});
}

static int try_describe(struct fake *fake, struct ckpt **out, float *data)
{
    struct ckpt_tensor tensor = whole(data);
    int error = try_open(fake, out);
    return error != 0 ? error : ckpt_describe(*out, 1, &tensor, 1);
}

static int try_save(struct fake *fake)
{
    float data[ROWS * COLUMNS] = {1, 2, 3};
    struct ckpt *ckpt = NULL;
    struct ckpt_save *save = NULL;
    int error = try_describe(fake, &ckpt, data);
    if (error == 0)
        error = ckpt_save_begin(ckpt, &save, 1, NULL);
    if (error == 0) {
        ckpt_save_copy(save, 0);
        error = ckpt_save_end(save);
    }
    ckpt_close(ckpt);
    return error;
}

static int try_load(struct fake *fake)
{
    /* A guard on both sides of the memory that may be written. */
    float data[3 * ROWS * COLUMNS];
    struct ckpt *ckpt = NULL;
    struct ckpt_loaded *loaded = NULL;
    for (int i = 0; i < 3 * ROWS * COLUMNS; i++)
        data[i] = -1;
    int error = try_describe(fake, &ckpt, data + ROWS * COLUMNS);
    if (error == 0)
        error = ckpt_load(ckpt, &(struct ckpt_load_options){.step = CKPT_NEWEST}, &loaded);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        assert_true(data[i] == -1 && data[2 * ROWS * COLUMNS + i] == -1);
        if (error == 0)
            assert_true(data[ROWS * COLUMNS + i] == (float)i);
    }
    ckpt_loaded_free(loaded);
    ckpt_close(ckpt);
    return error;
}

/* One lie among honest answers: the client calls it damage. */
#define REFUSED(attempt, lie)                          \
    do {                                               \
        be_honest(fake);                               \
        lie;                                           \
        assert_int_equal(attempt(fake), CKPT_CORRUPT); \
    } while (0)

HOSTILE_TEST(test_hostile__an_honest_fake_serves_a_save_and_a_load)
{
    struct arena_entry entry;
    bool any;
    assert_int_equal(try_save(fake), 0);
    assert_int_equal(arena_pop(fake->control, &entry, &any), 0);
    assert_true(any && entry.kind == ARENA_ENTRY_RANGE && entry.save == 9 && entry.image == 1);
    assert_true(entry.offset == PLACE && entry.bytes == PAGE - PLACE);
    assert_int_equal(arena_pop(fake->control, &entry, &any), 0); /* its rest, in the next segment */
    assert_true(any && entry.kind == ARENA_ENTRY_RANGE);
    assert_true(entry.offset == PAGE && entry.bytes == ROWS * COLUMNS * 4 - (PAGE - PLACE));
    assert_int_equal(arena_pop(fake->control, &entry, &any), 0);
    assert_true(any && entry.kind == ARENA_ENTRY_END);
    float first[3];
    memcpy(first, fake->segments[0] + PLACE, sizeof first);
    assert_true(first[0] == 1 && first[1] == 2 && first[2] == 3);
    for (int i = 0; i < ROWS * COLUMNS; i++) { /* no page cuts an element */
        float value = (float)i;
        memcpy(fake->segments[(PLACE + 4 * i) / PAGE] + (PLACE + 4 * i) % PAGE, &value, 4);
    }
    assert_int_equal(try_load(fake), 0);
}

/* A reader has described nothing: its first shard may take ckptd longer than a connection may be
 * without a name. */
HOSTILE_TEST(test_hostile__a_reader_says_who_it_is_before_it_asks_for_a_shard)
{
    float data[ROWS * COLUMNS];
    struct ckpt_tensor tensor = whole(data);
    struct ckpt *ckpt;
    struct ckpt_loaded *loaded;
    assert_int_equal(try_open(fake, &ckpt), 0);
    const struct ckpt_load_options options = {
        .step = CKPT_NEWEST, .tensors = &tensor, .num_tensors = 1};
    assert_int_equal(ckpt_load(ckpt, &options, &loaded), 0);
    assert_int_equal(atomic_load(&fake->num_shards), 1);
    assert_int_equal(atomic_load(&fake->num_early), 0);
    ckpt_loaded_free(loaded);
    ckpt_close(ckpt);
}

HOSTILE_TEST(test_hostile__places_outside_image_or_tensor_are_refused)
{
    const uint64_t bytes = ROWS * COLUMNS * 4;
    const struct {
        uint32_t slice;
        uint64_t slice_byte, image_byte, bytes;
    } lies[] = {{1, 0, 0, 4},
                {UINT32_MAX, 0, 0, 4},
                {0, 1, 0, bytes},
                {0, bytes + 1, 0, 0},
                {0, UINT64_MAX, 0, 2},
                {0, 0, 2 * PAGE - 1, 2},
                {0, 0, UINT64_MAX - 1, 4},
                {0, 0, 0, UINT64_MAX}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        fake->say.place.slice = lies[i].slice;
        fake->say.place.slice_byte = lies[i].slice_byte;
        fake->say.place.image_byte = lies[i].image_byte;
        fake->say.place.bytes = lies[i].bytes;
        assert_int_equal(try_save(fake), CKPT_CORRUPT);
    }
}

HOSTILE_TEST(test_hostile__replicas_of_no_slice_are_refused)
{
    REFUSED(try_save, (fake->say.num_replicated = 1, fake->say.replicated[0] = 1));
    REFUSED(try_save, (fake->say.num_replicated = 2, fake->say.replicated[0] = 0)); /* twice */
}

HOSTILE_TEST(test_hostile__impossible_segments_are_refused)
{
    struct answers *say = &fake->say;
    REFUSED(try_save, say->num_segments = 1);            /* too few for the image */
    assert_int_equal(atomic_load(&fake->num_aborts), 1); /* no rank waits for this one */
    REFUSED(try_save, say->segment_numbers[1] = UINT32_MAX);
    REFUSED(try_save, say->segment_bytes = 0);
    REFUSED(try_save, say->segment_bytes = UINT64_MAX);
    REFUSED(try_save, (say->image_bytes = UINT64_MAX, say->num_segments = 0));
    REFUSED(try_save, say->segment_bytes = 2 * PAGE); /* beyond the memfd: a touch would fault */
    REFUSED(try_load, say->segment_bytes = 2 * PAGE);
    REFUSED(try_save, say->num_fds_off = 1);
    be_honest(fake);
    say->arena_error = ERR_DENIED;
    assert_int_equal(try_save(fake), ERR_DENIED);
}

HOSTILE_TEST(test_hostile__parts_of_a_shard_that_cut_an_element_are_refused)
{
    const uint64_t parts[][2] = {{PLACE + 1, PAGE},
                                 {PLACE + 3, PAGE},
                                 {PLACE + 5, PAGE},
                                 {2 * PAGE + 1, PAGE},
                                 {PAGE, UINT64_MAX}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        REFUSED(try_load, (fake->say.part_start = parts[i][0], fake->say.part_bytes = parts[i][1]));
}

HOSTILE_TEST(test_hostile__other_versions_are_named_as_such)
{
    fake->say.protocol = RPC_PROTOCOL + 1;
    assert_int_equal(try_save(fake), ERR_VERSION);
    be_honest(fake);
    fake->control->version = ARENA_VERSION + 1;
    assert_int_equal(try_save(fake), ERR_VERSION);
}

HOSTILE_TEST(test_hostile__boxes_outside_the_wanted_the_saved_or_the_shard_are_refused)
{
    Holdfast__V1__LoadItem *item = &fake->say.items[0];
    uint64_t outside[2] = {ROWS, 0}, huge[2] = {UINT64_MAX, UINT64_MAX}, none[2] = {0, COLUMNS};
    uint64_t *const lies[] = {outside, huge, none};
    for (int i = 0; i < 3; i++) {
        uint64_t **fields[] = {&item->saved_offset, &item->saved_extent, &item->offset,
                               &item->extent};
        for (int field = i == 2 ? 1 : 0; field < 4; field += i == 2 ? 2 : 1)
            REFUSED(try_load, *fields[field] = lies[i]);
    }
    REFUSED(try_load, item->n_extent = 1);
    REFUSED(try_load, item->slice = 1);
    REFUSED(try_load, item->shard_byte = 2 * PAGE - 4);
    assert_non_null(strstr(ckpt_error(), "invalid offset"));
    REFUSED(try_load, item->shard_byte = UINT64_MAX);
    /* More than was lent. */
    REFUSED(try_load, fake->say.shard_bytes = fake->say.part_bytes = 1ull << 40);
    REFUSED(try_load, (fake->say.shard_bytes = 0, fake->say.part_bytes = 1ull << 40));
}

HOSTILE_TEST(test_hostile__a_load_that_leaves_elements_out_or_repeats_them_is_refused)
{
    uint64_t rows[2] = {ROWS - 1, COLUMNS};
    REFUSED(try_load, fake->say.num_items = 0);
    assert_non_null(strstr(ckpt_error(), "of 32 wanted elements"));
    REFUSED(try_load, fake->say.num_items = 2); /* the same twice */
    REFUSED(try_load, fake->say.items[0].extent = rows);
}

HOSTILE_TEST(test_hostile__a_ckptd_that_hangs_up_on_a_full_ring_does_not_hold_the_rank)
{
    float data[ROWS * COLUMNS] = {0};
    struct ckpt *ckpt;
    struct ckpt_save *save;
    int error = 0;
    assert_int_equal(try_describe(fake, &ckpt, data), 0);
    assert_int_equal(ckpt_save_begin(ckpt, &save, 1, NULL), 0);
    shutdown(fake->connection, SHUT_RDWR);
    for (uint32_t i = 0; i <= ARENA_RING_ENTRIES && error == 0; i++)
        error =
            ckpt_save_announce(save, &(struct ckpt_place){0}); /* ckptd does not empty the ring */
    assert_int_equal(error, CKPT_UNAVAILABLE);
    assert_int_equal(ckpt_save_copy(save, 0), CKPT_UNAVAILABLE);
    assert_int_equal(ckpt_save_end(save), CKPT_UNAVAILABLE);
    ckpt_close(ckpt);
}

HOSTILE_TEST(test_hostile__a_users_nonsense_is_named)
{
    float data[ROWS * COLUMNS];
    struct ckpt *ckpt;
    assert_int_equal(try_describe(fake, &ckpt, data), 0);
    struct ckpt_tensor good = whole(data), bad = good;
#define INVALID(change) \
    (bad = good, (change), assert_int_equal(ckpt_describe(ckpt, 1, &bad, 1), CKPT_INVALID))
    INVALID(bad.dims = CKPT_DIMS_MAX + 1);
    INVALID(bad.dtype = "F31");
    assert_non_null(strstr(ckpt_error(), "F31"));
    INVALID(bad.offset[0] = 1);
    INVALID(bad.data = NULL);
    INVALID(bad.name = "");
    INVALID(bad.shape[0] = bad.extent[0] = UINT64_MAX / 2);
    assert_int_equal(ckpt_describe(ckpt, 0, &good, 1), CKPT_INVALID);
    assert_int_equal(ckpt_describe(ckpt, 1, &good, 1), 0);
    ckpt_close(ckpt);
}

SUITE(NULL, NULL)
