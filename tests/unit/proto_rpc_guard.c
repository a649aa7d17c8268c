/* proto_rpc_guard.c - the work and memory that a client can cause in the RPC layer.
 *
 * Goal: the heads of frames are read in pieces of any size; each bound of rpc_frames.h stops the
 * first frame beyond it and none before; a user's connections share a budget; answers that a client
 * does not read have a limit. A started request ends in time; TLS passes unchanged. Method: frames
 * made by hand, given to rpc_frames whole and byte by byte; a server, or the guard alone, between
 * socket pairs. tests/integration/check_flood.py tests the bounds on a real ckptd. */
#include "proto/base/report.h"
#include "proto/tls/stream.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "proto/wire/rpc_budget.h"
#include "proto/wire/rpc_frames.h"
#include "proto/wire/rpc_guard.h"
#include "tests/unit/http2_bed.h"
#include "tests/unit/shell.h"
#include "tests/unit/suite.h"

#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define HELLO "/holdfast.v1.Checkpoint/Hello"
#define ANSWER_BYTES (3u << 20)
#define ANSWERS_FIT 10 /* in 32 MiB; rpc.c, ANSWER_BYTES_MAX */
#define CALLS 20

/* ---- frames ---- */

struct text {
    uint8_t bytes[1 << 16];
    size_t count;
};

static void put(struct text *text, uint8_t type, uint8_t flags, uint32_t stream, size_t bytes)
{
    assert_true(text->count + 9 + bytes <= sizeof text->bytes);
    http2_frame_head(text->bytes + text->count, type, flags, stream, bytes);
    memset(text->bytes + text->count + 9, 0xa5, bytes);
    text->count += 9 + bytes;
}

static void begin(struct text *text, struct rpc_frames *frames)
{
    *frames = (struct rpc_frames){.budget = 10000, .allowance = 40000};
    text->count = strlen(HTTP2_PREFACE);
    memcpy(text->bytes, HTTP2_PREFACE, text->count);
}

/* How many bytes pass, shown in pieces of so many; *out_why as rpc_frames_from_client. */
static size_t show(struct rpc_frames *frames, const struct text *text, size_t piece,
                   const char **out_why)
{
    size_t at = 0;
    for (*out_why = NULL; at < text->count && !*out_why;) {
        size_t bytes = text->count - at < piece ? text->count - at : piece;
        size_t passed = rpc_frames_from_client(frames, text->bytes + at, bytes, out_why);
        at += passed;
        if (passed < bytes)
            break;
    }
    return at;
}

static const size_t pieces[] = {1, 7, sizeof((struct text *)0)->bytes};
#define FOR_PIECES for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++)

TEST(test_frames__streams_are_open_until_somebody_ends_them)
{
    static struct text text, answer;
    struct rpc_frames frames;
    const char *why;
    FOR_PIECES
    {
        begin(&text, &frames);
        for (uint32_t stream = 1; stream <= 7; stream += 2)
            put(&text, HTTP2_HEADERS, HTTP2_END_HEADERS, stream, 40);
        put(&text, HTTP2_DATA, HTTP2_END_STREAM, 1, 10);
        put(&text, HTTP2_RESET, 0, 3, 4);
        assert_int_equal(show(&frames, &text, pieces[p], &why), text.count);
        assert_null(why);
        assert_int_equal(frames.num_open, 3);
        answer.count = 0;
        put(&answer, HTTP2_HEADERS, HTTP2_END_HEADERS, 1, 20);
        put(&answer, HTTP2_HEADERS, HTTP2_END_HEADERS | HTTP2_END_STREAM, 5, 20);
        put(&answer, HTTP2_RESET, 0, 3, 4); /* it is over already */
        rpc_frames_from_server(&frames, answer.bytes, answer.count);
        assert_int_equal(frames.num_open, 2);
    }
}

/* Bytes that come again begin with the last byte of the refused head. */
static void expect_stop(struct rpc_frames *frames, const struct text *text, size_t before)
{
    FOR_PIECES
    {
        struct rpc_frames copy = *frames;
        const char *why;
        size_t passed = show(&copy, text, pieces[p], &why);
        assert_null(why);
        assert_int_equal(passed, before + 8);
        assert_int_equal(rpc_frames_from_client(&copy, text->bytes + passed, 1, &why), 0);
        copy.num_unanswered = 0;
        copy.allowance = UINT32_MAX;
        assert_int_equal(
            rpc_frames_from_client(&copy, text->bytes + passed, text->count - passed, &why),
            text->count - passed);
        assert_null(why);
    }
}

TEST(test_frames__pings_wait_for_their_answers)
{
    static struct text text, answer;
    struct rpc_frames frames;
    const char *why;
    begin(&text, &frames);
    for (int i = 0; i < RPC_UNANSWERED_MAX; i++)
        put(&text, 6, 0, 0, 8);
    size_t before = text.count;
    put(&text, 6, 0, 0, 8);
    expect_stop(&frames, &text, before);
    put(&answer, 6, HTTP2_ACK, 0, 8);
    size_t passed = rpc_frames_from_client(&frames, text.bytes, text.count, &why);
    rpc_frames_from_server(&frames, answer.bytes, answer.count);
    assert_int_equal(
        rpc_frames_from_client(&frames, text.bytes + passed, text.count - passed, &why),
        text.count - passed);
}

TEST(test_frames__data_waits_while_unfinished_requests_hold_the_allowance)
{
    static struct text text;
    struct rpc_frames frames;
    begin(&text, &frames);
    put(&text, HTTP2_HEADERS, HTTP2_END_HEADERS, 1, 40);
    put(&text, HTTP2_DATA, HTTP2_END_STREAM, 1, 16384); /* whole: holds nothing */
    put(&text, HTTP2_HEADERS, HTTP2_END_HEADERS, 3, 40);
    put(&text, HTTP2_DATA, 0, 3, 16384);
    put(&text, HTTP2_DATA, 0, 3, 40000 - 16384);
    size_t before = text.count;
    put(&text, HTTP2_DATA, 0, 3, 1);
    expect_stop(&frames, &text, before);
}

/* The first call uses up the budget; the data of the second waits, as everything does. */
TEST(test_frames__nothing_passes_when_the_users_budget_is_spent)
{
    static struct text text;
    struct rpc_frames frames;
    begin(&text, &frames);
    put(&text, HTTP2_HEADERS, HTTP2_END_HEADERS, 1, 40);
    put(&text, HTTP2_DATA, 0, 1, 4 * RPC_DATA_COST_BYTES);
    put(&text, HTTP2_DATA, HTTP2_END_STREAM, 1, 10);
    frames.budget = RPC_COST_CALL + RPC_COST_FRAME + 4 + RPC_COST_FRAME;
    size_t before = text.count;
    put(&text, HTTP2_PING, 0, 0, 8);
    const char *why;
    FOR_PIECES
    {
        struct rpc_frames copy = frames;
        assert_int_equal(show(&copy, &text, pieces[p], &why),
                         before + 8); /* but for a head's end */
        assert_true(copy.budget == 0 && !why);
        copy.budget = 1;
        assert_int_equal(rpc_frames_from_client(&copy, text.bytes + before + 8, 9, &why), 9);
        assert_true(copy.budget == 0);
        static struct text answer;
        answer.count = 0;
        put(&answer, HTTP2_DATA, 0, 1, 2 * RPC_DATA_COST_BYTES);
        rpc_frames_from_server(&copy, answer.bytes, answer.count);
        assert_true(copy.budget == -2);
    }
}

/* Of the text came so many bytes less than all, at once; how late is that ten seconds after? */
static void expect_late(const struct text *text, size_t missing, int64_t want_ms)
{
    FOR_PIECES
    {
        struct rpc_frames frames = {.budget = 10000, .allowance = 40000};
        struct text part = *text;
        const char *why;
        part.count -= missing;
        frames.client.now_ms = 1000;
        assert_int_equal(show(&frames, &part, pieces[p], &why), part.count);
        assert_int_equal(rpc_frames_overdue_ms(&frames), 0);
        frames.client.now_ms += 10000;
        assert_int_equal(rpc_frames_overdue_ms(&frames), want_ms);
    }
}

TEST(test_frames__what_has_begun_gets_late_until_it_is_whole_and_bytes_give_time)
{
    static struct text text;
    struct rpc_frames frames;
    begin(&text, &frames);
    put(&text, HTTP2_SETTINGS, 0, 0, 6);
    expect_late(&text, 10, 10000); /* a part of a head, */
    expect_late(&text, 1, 10000);  /* of the following frames, */
    expect_late(&text, 0, 0);
    put(&text, HTTP2_HEADERS, HTTP2_END_STREAM, 1, 40);
    expect_late(&text, 0, 10000); /* of a header block, */
    put(&text, 9, HTTP2_END_HEADERS, 1, 4);
    expect_late(&text, 0, 0);
    put(&text, HTTP2_HEADERS, HTTP2_END_HEADERS, 3, 40);
    expect_late(&text, 0, 10000); /* of a request */
    put(&text, HTTP2_DATA, 0, 3, 16384);
    expect_late(&text, 0, 10000 - 16384 * 1000 / RPC_BYTES_PER_SECOND);
    put(&text, HTTP2_DATA, HTTP2_END_STREAM, 3, 20000);
    expect_late(&text, 20000 - 6554, 10000 - 100); /* the stream says that it is whole */
    expect_late(&text, 0, 0);
}

/* ---- budgets ---- */

TEST(test_budget__all_connections_of_a_user_have_one_account)
{
    struct rpc_budget budget = {.rate = {1000, 3000}};
    struct rpc_account *first, *again, *other;
    const struct principal user = principal_of_user(ROLE_USER, 1000, 1),
                           same = principal_of_user(ROLE_USER, 1000, 2),
                           stranger = principal_of_user(ROLE_USER, 1001, 1),
                           operator= principal_of_user(ROLE_OPERATOR, 1000, 3);
    assert_int_equal(rpc_budget_find(&first, &budget, &user, 0), 0);
    assert_int_equal(rpc_budget_find(&again, &budget, &same, 0), 0);
    assert_int_equal(rpc_budget_find(&other, &budget, &stranger, 0), 0);
    assert_true(first == again && first != other);
    assert_int_equal(rpc_budget_find(&again, &budget, &operator, 0), 0);
    assert_null(again);
    assert_false(rpc_account_is_empty(again));
    first->left = 0;
    assert_true(rpc_account_is_empty(first) && !rpc_account_is_empty(other));
    rpc_budget_sweep(&budget, 0); /* the stranger's is full, and its connection is closed */
    assert_true(budget.accounts == first && first->next == NULL);
    for (int64_t now = 1; now <= 1000; now++) /* in steps that are no whole millisecond's worth */
        rpc_account_refill(first, now);
    assert_true(first->left == 1000);
    first->num_links = 1;
    rpc_budget_sweep(&budget, 1000000);
    assert_true(budget.accounts == first && first->left == 3000);
    first->num_links = 0;
    rpc_budget_sweep(&budget, 1000000);
    assert_null(budget.accounts);
    rpc_budget_deinit(&budget);
}

static void expect_closed(const struct text *text, const char *want)
{
    FOR_PIECES
    {
        struct rpc_frames frames = {.budget = 10000, .allowance = 40000};
        const char *why;
        show(&frames, text, pieces[p], &why);
        assert_non_null(why);
        assert_string_equal(why, want);
    }
}

TEST(test_frames__what_no_client_needs_closes_the_connection)
{
    static struct text text;
    struct rpc_frames frames;
    memcpy(text.bytes, "GET / HTTP/1.1\r\n", text.count = 16);
    expect_closed(&text, "it does not speak HTTP/2");
    begin(&text, &frames);
    put(&text, HTTP2_SETTINGS, 0, 0, RPC_SETTINGS_BYTES_MAX + 6);
    expect_closed(&text, "it sent too many settings at once");
    begin(&text, &frames);
    put(&text, HTTP2_HEADERS, 0, 1, RPC_HEADER_BLOCK_BYTES_MAX / 2);
    put(&text, 9, 0, 1, RPC_HEADER_BLOCK_BYTES_MAX / 2);
    put(&text, 9, HTTP2_END_HEADERS, 1, 1);
    expect_closed(&text, "its headers were too long");
    begin(&text, &frames);
    for (uint32_t i = 0; i <= RPC_STREAMS_OPEN_MAX; i++)
        put(&text, HTTP2_HEADERS, HTTP2_END_HEADERS, 2 * i + 1, 1);
    expect_closed(&text, "it opened too many streams");
}

/* ---- answers ---- */

/* The server's answers to each call, and the number of calls answered or refused. */
struct hello {
    char *version;
    atomic_int told;
};

static void handle_hello(void *user, struct rpc_call *call, const ProtobufCMessage *message)
{
    Holdfast__V1__HelloReply reply = HOLDFAST__V1__HELLO_REPLY__INIT;
    struct hello *hello = user;
    (void)message;
    reply.version = hello->version;
    rpc_call_reply(call, &reply.base);
    atomic_fetch_add(&hello->told, 1);
}

static void ask(int fd, uint32_t stream)
{
    static const uint8_t message[5];
    uint8_t headers[HTTP2_FRAME_MAX];
    size_t bytes = http2_put_call(headers, HELLO);
    assert_true(http2_send_frame(fd, HTTP2_HEADERS, HTTP2_END_HEADERS, stream, headers, bytes));
    assert_true(
        http2_send_frame(fd, HTTP2_DATA, HTTP2_END_STREAM, stream, message, sizeof message));
}

/* The number of calls answered, and not refused, for a client that lets the server send all its
 * data and reads nothing before all calls are over. */
static int count_answered(int fd, struct hello *hello)
{
    static const uint8_t endless[4] = {0x7f}, window[6] = {0, 4, 0x7f};
    static uint8_t data[HTTP2_FRAME_MAX];
    uint8_t head[9];
    size_t bytes, got[CALLS] = {0};
    int ended = 0, answered = 0;
    assert_true(http2_send(fd, HTTP2_PREFACE, strlen(HTTP2_PREFACE)));
    assert_true(http2_send_frame(fd, HTTP2_SETTINGS, 0, 0, window, sizeof window));
    assert_true(http2_send_frame(fd, HTTP2_WINDOWS, 0, 0, endless, sizeof endless));
    for (uint32_t i = 0; i < CALLS; i++)
        ask(fd, 2 * i + 1);
    for (int waits = 0; atomic_load(&hello->told) < CALLS; waits++) {
        assert_true(waits < 20000);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    atomic_store(&hello->told, 0);
    while (ended < CALLS && http2_receive_frame(fd, head, data, &bytes)) {
        uint32_t call = http2_number(head + 5) / 2;
        bool ends = head[3] == HTTP2_HEADERS && (head[4] & HTTP2_END_STREAM) != 0;
        assert_true(call < CALLS);
        got[call] += head[3] == HTTP2_DATA ? bytes : 0;
        ended += ends;
        answered += ends && got[call] > ANSWER_BYTES;
    }
    assert_int_equal(ended, CALLS);
    return answered;
}

TEST(test_guard__answers_that_nobody_reads_take_so_much_memory_and_no_more)
{
    const struct rpc_method methods[] = {{HELLO, &holdfast__v1__hello_request__descriptor,
                                          &holdfast__v1__hello_reply__descriptor, handle_hello},
                                         {NULL, NULL, NULL, NULL}};
    struct hello hello = {.version = malloc(ANSWER_BYTES + 1)};
    struct rpc_server_options options = {.methods = methods,
                                         .user = &hello,
                                         .num_threads = 2,
                                         .num_connections = 8,
                                         .silent_ms = 60000,
                                         .request_bytes = RPC_REQUEST_BYTES};
    const struct timeval limit = {.tv_sec = 20};
    const struct principal operator= principal_of_user(ROLE_OPERATOR, geteuid(), getpid());
    struct rpc_server *server;
    memset(hello.version, 'x', ANSWER_BYTES);
    hello.version[ANSWER_BYTES] = 0;
    assert_int_equal(rpc_server_open(&server, &options), 0);
    for (int round = 0; round < 2; round++) { /* data that was read frees its memory */
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        assert_int_equal(rpc_server_adopt(server, pair[1], &operator), 0);
        assert_in_range(count_answered(pair[0], &hello), ANSWERS_FIT - 1, ANSWERS_FIT);
        close(pair[0]);
    }
    rpc_server_close(server, 1000);
    free(hello.version);
}

/* ---- requests that do not end ---- */

/* The guard's clock runs ahead by so much (--wrap). */
static atomic_llong clock_ahead_ms;
int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    int rc = __real_clock_gettime(clock, out);
    out->tv_sec += clock_ahead_ms / 1000;
    out->tv_nsec += clock_ahead_ms % 1000 * 1000000;
    out->tv_sec += out->tv_nsec / 1000000000;
    out->tv_nsec %= 1000000000;
    return rc;
}

#define SILENT_MS 300u
#define PATIENCE_S 20

struct ends {
    int client, grpc_end; /* the test's */
    sem_t connected;
};

/* The other end is the guard's. */
static int connect_end(int *out_other)
{
    const struct timeval limit = {.tv_sec = PATIENCE_S};
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    *out_other = pair[1];
    return pair[0];
}

static int connect_library(void *user, int *out, const struct principal *peer)
{
    struct ends *ends = user;
    (void)peer;
    ends->grpc_end = connect_end(out);
    sem_post(&ends->connected);
    return 0;
}

static struct rpc_guard *open_guard(struct ends *last, uint32_t silent_ms, uint32_t per_second,
                                    uint32_t burst)
{
    sem_init(&last->connected, 0, 0);
    const struct rpc_guard_options options = {.num_places = 4,
                                              .silent_ms = silent_ms,
                                              .budget_per_second = per_second,
                                              .budget_burst = burst,
                                              .user = last,
                                              .connect = connect_library};
    struct rpc_guard *guard;
    assert_int_equal(rpc_guard_open(&guard, &options), 0);
    return guard;
}

static void connect_as_user(struct ends *last, struct rpc_guard *guard)
{
    const struct principal user = principal_of_user(ROLE_USER, 1000, getpid());
    int other;
    last->client = connect_end(&other);
    assert_int_equal(rpc_guard_adopt(guard, other, &user), 0);
}

static void close_ends(struct ends *ends)
{
    close(ends->client);
    close(ends->grpc_end);
}

/* A call without its last `missing` bytes, in two pieces of data. */
static size_t send_request(const struct ends *ends, size_t missing)
{
    static struct text text;
    struct rpc_frames frames;
    begin(&text, &frames);
    put(&text, HTTP2_HEADERS, HTTP2_END_HEADERS, 1, 40);
    put(&text, HTTP2_DATA, 0, 1, 5);
    put(&text, HTTP2_DATA, HTTP2_END_STREAM, 1, 5);
    assert_true(http2_send(ends->client, text.bytes, text.count - missing));
    return text.count - missing;
}

/* Waits until so many bytes have reached the library's end, or the guard has hung up. */
static size_t receive(int fd, size_t want)
{
    uint8_t data[256];
    size_t got = 0;
    for (ssize_t count; got < want; got += (size_t)count)
        if ((count = recv(fd, data, want - got < sizeof data ? want - got : sizeof data, 0)) <= 0)
            break;
    return got;
}

TEST(test_guard__a_request_that_does_not_end_is_cut_and_one_that_has_is_not)
{
    struct ends whole, half;
    struct rpc_guard *guard = open_guard(&half, SILENT_MS, 1000, 1000);
    char byte;
    connect_as_user(&half, guard);
    whole.client = half.client;
    whole.grpc_end = half.grpc_end;
    size_t bytes = send_request(&whole, 0);
    assert_int_equal(receive(whole.grpc_end, bytes), bytes);
    connect_as_user(&half, guard);
    bytes = send_request(&half, 1);
    assert_int_equal(receive(half.grpc_end, bytes + 1), bytes);
    assert_int_equal(recv(half.client, &byte, 1, 0), 0); /* it has hung up, and not this one, */
    assert_int_equal(recv(whole.client, &byte, 1, MSG_DONTWAIT), -1); /* which waits as long */
    close_ends(&half);
    close_ends(&whole);
    rpc_guard_close(guard);
}

/* A large request, over a link of 100 KB/s for so many frames; then nothing more comes. */
static void send_large(struct ends *ends, uint32_t num_frames)
{
    static struct text text;
    struct rpc_frames frames;
    begin(&text, &frames);
    put(&text, HTTP2_HEADERS, HTTP2_END_HEADERS, 1, 40);
    for (uint32_t i = 0; i < num_frames; i++, text.count = 0) {
        put(&text, HTTP2_DATA, 0, 1, HTTP2_FRAME_MAX);
        assert_true(http2_send(ends->client, text.bytes, text.count));
        assert_int_equal(receive(ends->grpc_end, text.count), text.count);
        atomic_fetch_add(&clock_ahead_ms, HTTP2_FRAME_MAX / 100);
    }
}

TEST(test_guard__a_slow_link_keeps_its_ticket_and_one_that_stands_still_does_not)
{
    struct ends slow;
    struct rpc_guard *guard = open_guard(&slow, 60000, 1 << 20, 1 << 20);
    char byte;
    connect_as_user(&slow, guard);
    send_large(&slow, 100); /* 16 s */
    assert_int_equal(recv(slow.client, &byte, 1, MSG_DONTWAIT), -1);
    atomic_fetch_add(&clock_ahead_ms, 100 * HTTP2_FRAME_MAX * 1000ll / RPC_BYTES_PER_SECOND);
    assert_int_equal(recv(slow.client, &byte, 1, 0), 0);
    close_ends(&slow);
    rpc_guard_close(guard);
}

/* The last frame waits for the user's budget, for longer than a request may take. */
TEST(test_guard__a_request_that_it_holds_back_is_not_late)
{
    struct ends held;
    struct rpc_guard *guard = open_guard(&held, SILENT_MS, 1, RPC_COST_CALL + RPC_COST_FRAME);
    connect_as_user(&held, guard);
    size_t bytes = send_request(&held, 0);
    assert_int_equal(receive(held.grpc_end, bytes), bytes);
    close_ends(&held);
    rpc_guard_close(guard);
}

/* ---- TLS ---- */

/* Data that TLS has decrypted and the guard has not read is in no socket. The handshake has used
 * more than the address's budget. */
TEST(test_guard__a_record_of_a_verified_client_passes_whole_and_its_address_has_paid)
{
    const char *parent = getenv("TMPDIR");
    char folder[128], server[160], client[160];
    static struct text text;
    struct rpc_frames frames;
    struct ends ends;
    struct rpc_guard *guard;
    struct tls_keys *keys;
    struct tls_stream *stream;
    const struct principal there = principal_of_address("10.0.0.1");
    int pair[2];
    snprintf(folder, sizeof folder, "%s/rg-XXXXXX", parent ? parent : "/var/tmp");
    assert_non_null(mkdtemp(folder));
    snprintf(server, sizeof server, "%s/node", folder);
    snprintf(client, sizeof client, "%s/anna", folder);
    shell("{ c=deploy/certificates a=%s/authority; $c authority $a; "
          "$c issue $a %s holdfast://node/n1 127.0.0.1; $c issue $a %s holdfast://reader; } >&2",
          folder, server, client);
    const struct rpc_guard_options options = {.num_places = 4,
                                              .silent_ms = 60000,
                                              .budget_per_second = 1,
                                              .budget_burst = RPC_COST_HANDSHAKE / 2,
                                              .tls_directory = server,
                                              .user = &ends,
                                              .connect = connect_library};
    signal(SIGPIPE, SIG_IGN);
    sem_init(&ends.connected, 0, 0);
    assert_int_equal(rpc_guard_open(&guard, &options), 0);
    assert_int_equal(tls_keys_open_client(&keys, client, "h2"), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    assert_int_equal(rpc_guard_adopt_stranger(guard, pair[1], "10.0.0.1"), 0);
    assert_int_equal(tls_stream_open(&stream, keys, pair[0], "127.0.0.1", PATIENCE_S * 1000, NULL),
                     0);
    sem_wait(&ends.connected);
    begin(&text, &frames);
    put(&text, HTTP2_HEADERS, HTTP2_END_HEADERS, 1, 40);
    put(&text, HTTP2_DATA, HTTP2_END_STREAM, 1, RPC_RELAY_BYTES + 6000); /* less than a record */
    assert_int_equal(tls_stream_write(stream, text.bytes, text.count, PATIENCE_S * 1000), 0);
    assert_int_equal(receive(ends.grpc_end, text.count), text.count);
    assert_int_equal(rpc_guard_charge(guard, &there, 1), ERR_BUSY);
    close(ends.grpc_end);
    tls_stream_close(stream);
    tls_keys_close(keys);
    rpc_guard_close(guard);
    shell("rm -rf '%s'", folder);
}

int main(void)
{
    log_setup("proto_rpc_guard", NULL);
    return suite_run(NULL, NULL);
}
