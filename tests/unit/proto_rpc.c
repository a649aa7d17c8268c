/* proto_rpc.c - unary calls, end to end.
 *
 * Goal: an answer, an error and its text, a late answer, a timeout and a lost server all reach the
 * caller as rpc.h says, and closing a server under load loses no memory and no caller.
 * Method: a real server and real clients in one process (rpc_bed.h). */
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc_text.h"
#include "proto/wire/rpc_wire.h"
#include "tests/unit/rpc_bed.h"
#include "tests/unit/suite.h"
#include "tests/unit/wrap.h"

#include <openssl/crypto.h>

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#define DESCRIBE "/holdfast.v1.Checkpoint/Describe"
#define HELLO "/holdfast.v1.Checkpoint/Hello"
#define LIST "/holdfast.v1.Checkpoint/List"
#define SHOW "/holdfast.v1.Checkpoint/Show"
#define STATUS "/holdfast.v1.Checkpoint/Status"
#define KEPT_MAX 64

static atomic_bool no_memory; /* for calls of calloc() in this tree */

static bool fails(const char *name)
{
    (void)name;
    return atomic_load(&no_memory);
}

WRAP(void *, calloc, (size_t count, size_t bytes), (count, bytes), NULL)

struct bed {
    struct rpc_bed at;
    pthread_mutex_t mutex;
    struct rpc_call *kept[KEPT_MAX]; /* calls of SHOW, DESCRIBE that are not answered yet */
    int num_kept;
    atomic_int num_refused; /* of DESCRIBE */
};

static void sleep_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void handle_hello(void *user, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Holdfast__V1__HelloRequest *request = (const Holdfast__V1__HelloRequest *)message;
    Holdfast__V1__HelloReply reply = HOLDFAST__V1__HELLO_REPLY__INIT;
    (void)user;
    reply.protocol = request->protocol;
    reply.version = "one";
    reply.boot_id = UINT64_MAX;
    rpc_call_reply(call, &reply.base);
}

static void handle_list(void *user, struct rpc_call *call, const ProtobufCMessage *message)
{
    (void)user;
    (void)message;
    report_set(ERR_CORRUPT, "block 3 | of 7 was damaged", "100% of shard-1", "restore it");
    rpc_call_fail(call, ERR_CORRUPT);
}

/* Keeps the call: the test answers it, or it stays unanswered. */
static void handle_show(void *user, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct bed *bed = user;
    (void)message;
    pthread_mutex_lock(&bed->mutex);
    bed->kept[bed->num_kept++] = call;
    pthread_mutex_unlock(&bed->mutex);
}

static void handle_status(void *user, struct rpc_call *call, const ProtobufCMessage *message)
{
    Holdfast__V1__StatusReply reply = HOLDFAST__V1__STATUS_REPLY__INIT;
    (void)user;
    (void)message;
    char *text = malloc(RPC_MESSAGE_BYTES_MAX + 1);
    memset(text, 'x', RPC_MESSAGE_BYTES_MAX);
    text[RPC_MESSAGE_BYTES_MAX] = 0;
    reply.json = text;
    rpc_call_reply(call, &reply.base);
    free(text);
}

static const struct rpc_method methods[] = {
    {HELLO, &holdfast__v1__hello_request__descriptor, &holdfast__v1__hello_reply__descriptor,
     handle_hello},
    {LIST, &holdfast__v1__list_request__descriptor, &holdfast__v1__list_reply__descriptor,
     handle_list},
    {SHOW, &holdfast__v1__show_request__descriptor, &holdfast__v1__show_reply__descriptor,
     handle_show},
    {DESCRIBE, &holdfast__v1__describe_request__descriptor,
     &holdfast__v1__describe_reply__descriptor, handle_show},
    {STATUS, &holdfast__v1__status_request__descriptor, &holdfast__v1__status_reply__descriptor,
     handle_status},
    {NULL, NULL, NULL, NULL}};

static int set_up(void **state)
{
    struct bed *bed = calloc(1, sizeof *bed);
    pthread_mutex_init(&bed->mutex, NULL);
    rpc_bed_open(&bed->at, methods, bed);
    *state = bed;
    return 0;
}

static int tear_down(void **state)
{
    struct bed *bed = *state;
    rpc_bed_close(&bed->at);
    pthread_mutex_destroy(&bed->mutex);
    free(bed);
    return 0;
}

static int call_hello(struct rpc_client *client, uint32_t timeout_ms)
{
    Holdfast__V1__HelloRequest request = HOLDFAST__V1__HELLO_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    request.protocol = 7;
    int error = rpc_client_call(client, HELLO, &request.base,
                                &holdfast__v1__hello_reply__descriptor, &message, timeout_ms);
    if (error != 0)
        return error;
    Holdfast__V1__HelloReply *reply = (Holdfast__V1__HelloReply *)message;
    assert_int_equal(reply->protocol, 7);
    assert_string_equal(reply->version, "one");
    assert_true(reply->boot_id == UINT64_MAX);
    protobuf_c_message_free_unpacked(message, NULL);
    return 0;
}

static int call_show(struct rpc_client *client, uint32_t timeout_ms, char *out, size_t size)
{
    Holdfast__V1__ShowRequest request = HOLDFAST__V1__SHOW_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    int error = rpc_client_call(client, SHOW, &request.base, &holdfast__v1__show_reply__descriptor,
                                &message, timeout_ms);
    if (error != 0)
        return error;
    snprintf(out, size, "%s", ((Holdfast__V1__ShowReply *)message)->manifest_json);
    protobuf_c_message_free_unpacked(message, NULL);
    return 0;
}

static struct rpc_call *wait_kept(struct bed *bed, int index)
{
    for (int i = 0; i < 500; i++) {
        pthread_mutex_lock(&bed->mutex);
        struct rpc_call *call = bed->num_kept > index ? bed->kept[index] : NULL;
        pthread_mutex_unlock(&bed->mutex);
        if (call)
            return call;
        sleep_ms(10);
    }
    fail_msg("the call did not arrive");
    return NULL;
}

#define RPC_TEST(name) TEST_WITH(struct bed *bed, name, set_up, tear_down)

RPC_TEST(test_rpc__an_error_crosses_with_all_parts_of_its_text)
{
    Holdfast__V1__ListRequest request = HOLDFAST__V1__LIST_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    report_clear();
    assert_int_equal(rpc_client_call(bed->at.client, LIST, &request.base,
                                     &holdfast__v1__list_reply__descriptor, &message, CALL_MS),
                     ERR_CORRUPT);
    assert_null(message);
    assert_string_equal(report_message(), "block 3 | of 7 was damaged");
    assert_string_equal(report_detail(), "100% of shard-1");
    assert_string_equal(report_hint(), "restore it");
}

/* Except FAILED_PRECONDITION, which several codes map to, each more specific than it. */
TEST(test_rpc__the_status_of_a_stock_peer_is_the_code_that_has_that_status)
{
    static const int errors[] = {
#define X(name, value, grpc, retry, text) name,
        ERR_MAP(X)
#undef X
    };
    enum { UNKNOWN = 2, FAILED_PRECONDITION = 9 }; /* a stranger means less by them than we do */
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        int status = err_grpc_status(errors[i]), read = rpc_text_read("gone", status, HELLO);
        if (status == FAILED_PRECONDITION || status == UNKNOWN)
            assert_int_equal(read, ERR_INTERNAL);
        else
            assert_int_equal(err_grpc_status(read), status);
        assert_non_null(strstr(report_detail(), "gone"));
    }
}

static void *answer_later(void *argument)
{
    struct bed *bed = argument;
    struct rpc_call *call = wait_kept(bed, 0);
    sleep_ms(50);
    Holdfast__V1__ShowReply reply = HOLDFAST__V1__SHOW_REPLY__INIT;
    reply.manifest_json = "late";
    rpc_call_reply(call, &reply.base);
    return NULL;
}

RPC_TEST(test_rpc__a_call_can_be_answered_later_from_another_thread)
{
    pthread_t thread;
    char text[32] = "";
    assert_int_equal(pthread_create(&thread, NULL, answer_later, bed), 0);
    assert_int_equal(call_show(bed->at.client, CALL_MS, text, sizeof text), 0);
    assert_string_equal(text, "late");
    pthread_join(thread, NULL);
}

RPC_TEST(test_rpc__the_deadline_ends_an_unanswered_call)
{
    char text[32];
    assert_int_equal(call_hello(bed->at.client, CALL_MS), 0); /* it is connected */
    assert_int_equal(call_show(bed->at.client, 500, text, sizeof text), ERR_TIMEOUT);
    /* The owner's answer after the caller has left is harmless. */
    report_set(ERR_ABORTED, "too late", "", "");
    rpc_call_fail(wait_kept(bed, 0), ERR_ABORTED);
    assert_int_equal(call_hello(bed->at.client, CALL_MS), 0);
}

RPC_TEST(test_rpc__a_server_that_had_no_memory_for_calls_takes_them_when_it_has)
{
    int error = call_hello(bed->at.client, CALL_MS), answered = 0;
    atomic_store(&no_memory, true);
    for (; error == 0 && answered < KEPT_MAX; answered++) /* those that were requested before */
        error = call_hello(bed->at.client, 500);
    atomic_store(&no_memory, false);
    assert_int_equal(error, ERR_TIMEOUT);
    for (int i = 0; i < KEPT_MAX; i++)
        assert_int_equal(call_hello(bed->at.client, CALL_MS), 0);
}

RPC_TEST(test_rpc__an_unknown_method_is_a_version_error)
{
    Holdfast__V1__HelloRequest request = HOLDFAST__V1__HELLO_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_client_call(bed->at.client, "/holdfast.v1.Checkpoint/Fly", &request.base,
                                     &holdfast__v1__hello_reply__descriptor, &message, CALL_MS),
                     ERR_VERSION);
    assert_non_null(strstr(report_line(), "method"));
}

RPC_TEST(test_rpc__an_oversized_request_is_refused_before_it_is_sent)
{
    Holdfast__V1__ListRequest request = HOLDFAST__V1__LIST_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    char *run = malloc(RPC_MESSAGE_BYTES_MAX + 1);
    memset(run, 'r', RPC_MESSAGE_BYTES_MAX);
    run[RPC_MESSAGE_BYTES_MAX] = 0;
    request.run = run;
    assert_int_equal(rpc_client_call(bed->at.client, LIST, &request.base,
                                     &holdfast__v1__list_reply__descriptor, &message, CALL_MS),
                     ERR_INVALID);
    free(run);
}

RPC_TEST(test_rpc__an_oversized_reply_becomes_an_error)
{
    Holdfast__V1__StatusRequest request = HOLDFAST__V1__STATUS_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_client_call(bed->at.client, STATUS, &request.base,
                                     &holdfast__v1__status_reply__descriptor, &message, CALL_MS),
                     ERR_INVALID);
    assert_non_null(strstr(report_message(), "larger than"));
}

TEST(test_rpc__an_absent_server_is_unavailable)
{
    struct rpc_client *client;
    assert_int_equal(rpc_client_open(&client, "unix:/tmp/holdfast-nobody-is-here"), 0);
    assert_int_equal(call_hello(client, 2000), ERR_UNAVAILABLE);
    rpc_client_close(client);
}

RPC_TEST(test_rpc__a_client_finds_a_server_that_came_back)
{
    assert_int_equal(call_hello(bed->at.client, CALL_MS), 0);
    rpc_bed_stop(&bed->at, 100);
    assert_int_equal(call_hello(bed->at.client, CALL_MS), ERR_UNAVAILABLE);
    rpc_bed_start(&bed->at);
    int error = ERR_UNAVAILABLE;
    for (int i = 0; i < 100 && error == ERR_UNAVAILABLE; i++) {
        error = call_hello(bed->at.client, CALL_MS);
        sleep_ms(50);
    }
    assert_int_equal(error, 0);
}

struct caller {
    pthread_t thread;
    struct bed *bed;
    uint32_t numbers; /* in a request of DESCRIBE */
    int error;
};

static void *call_and_wait(void *argument)
{
    struct caller *caller = argument;
    char text[32];
    caller->error = call_show(caller->bed->at.client, CALL_MS, text, sizeof text);
    return NULL;
}

RPC_TEST(test_rpc__closing_the_server_answers_calls_in_flight)
{
    enum { CALLERS = 8 };
    struct caller callers[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){.bed = bed, .error = 1};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_and_wait, &callers[i]), 0);
    }
    wait_kept(bed, CALLERS - 1);
    rpc_bed_stop(&bed->at, 50);
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        assert_int_equal(callers[i].error, ERR_UNAVAILABLE);
    }
    /* The owners are not notified; their answers free the rest. */
    for (int i = 0; i < CALLERS; i++)
        rpc_call_fail(bed->kept[i], ERR_ABORTED);
}

static void *describe_at_length(void *argument)
{
    struct caller *caller = argument;
    Holdfast__V1__DescribeRequest request = HOLDFAST__V1__DESCRIBE_REQUEST__INIT;
    Holdfast__V1__Slice slice = HOLDFAST__V1__SLICE__INIT, *slices[] = {&slice};
    ProtobufCMessage *message = NULL;
    slice.n_shape = caller->numbers;
    slice.shape = calloc(caller->numbers, sizeof *slice.shape);
    request.n_slices = 1;
    request.slices = slices;
    caller->error =
        rpc_client_call(caller->bed->at.client, DESCRIBE, &request.base,
                        &holdfast__v1__describe_reply__descriptor, &message, 6 * CALL_MS);
    free(slice.shape);
    caller->bed->num_refused += caller->error == ERR_BUSY;
    return NULL;
}

static int count_kept(struct bed *bed)
{
    pthread_mutex_lock(&bed->mutex);
    int count = bed->num_kept;
    pthread_mutex_unlock(&bed->mutex);
    return count;
}

/* A request of so many small numbers, which take a byte each on the wire, and eight in memory. Is
 * it kept? Else it was refused. */
static bool is_kept(struct bed *bed, struct caller *caller, uint32_t numbers)
{
    int kept = count_kept(bed), refused = bed->num_refused;
    *caller = (struct caller){.bed = bed, .numbers = numbers};
    assert_int_equal(pthread_create(&caller->thread, NULL, describe_at_length, caller), 0);
    while (count_kept(bed) == kept && bed->num_refused == refused)
        sleep_ms(1);
    return count_kept(bed) > kept;
}

RPC_TEST(test_rpc__unanswered_requests_take_so_much_memory_and_no_more)
{
    enum { MOST = 4000000, SMALL = RPC_SHARE_BYTES_SURE / sizeof(uint64_t) / 2, SMALL_ONES = 16 };
    struct caller callers[KEPT_MAX];
    for (int round = 0; round < 2; round++) { /* answered calls free their memory */
        uint64_t bytes = 0;
        int count = 0;
        for (uint32_t numbers = MOST; numbers > 2 * SMALL; numbers /= 2)
            while (is_kept(bed, &callers[count++], numbers))
                bytes += numbers * sizeof(uint64_t);
        assert_in_range(bytes, RPC_REQUEST_BYTES - (1u << 20), RPC_REQUEST_BYTES);
        for (int i = 0; i < SMALL_ONES; i++)
            assert_true(is_kept(bed, &callers[count++], SMALL));
        for (int i = 0; i < bed->num_kept; i++)
            rpc_call_fail(bed->kept[i], ERR_ABORTED);
        for (int i = 0; i < count; i++)
            pthread_join(callers[i].thread, NULL);
        bed->num_kept = 0;
    }
}

static int call_health(struct bed *bed, const char *service)
{
    /* HealthCheckRequest has one string as its field 1, as ListRequest has; HealthCheckResponse an
     * enum as its field 1, as HelloReply has a number. */
    Holdfast__V1__ListRequest request = HOLDFAST__V1__LIST_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    request.run = (char *)(uintptr_t)service;
    int error = rpc_client_call(bed->at.client, "/grpc.health.v1.Health/Check", &request.base,
                                &holdfast__v1__hello_reply__descriptor, &message, CALL_MS);
    if (error != 0)
        return error;
    int serving = (int)((Holdfast__V1__HelloReply *)message)->protocol;
    protobuf_c_message_free_unpacked(message, NULL);
    return serving;
}

RPC_TEST(test_rpc__the_health_service_tells_serving_and_not)
{
    assert_int_equal(call_health(bed, ""), 1);
    assert_int_equal(call_health(bed, "holdfast.v1.Checkpoint"), 1);
    assert_int_equal(call_health(bed, "no.such.Service"), ERR_NOT_FOUND);
    rpc_server_set_able(bed->at.server, false); /* it answers, and cannot do its work */
    assert_int_equal(call_health(bed, ""), 1);
    assert_int_equal(call_health(bed, "holdfast.v1.Checkpoint"), 2);
    rpc_server_set_able(bed->at.server, true);
    assert_int_equal(call_health(bed, "holdfast.v1.Checkpoint"), 1);
    rpc_server_set_serving(bed->at.server, false);
    assert_int_equal(call_health(bed, ""), 2);
    assert_int_equal(call_health(bed, "holdfast.v1.Checkpoint"), 2);
}

/* Any user can create a name in /tmp; the machine does not have this user. */
static void ask_as_a_user(uid_t user, const char *want)
{
    char address[64];
    pid_t child = fork();
    if (child == 0) {
        int error = setuid(user) != 0 ? 1 : rpc_default_address(address, sizeof address);
        _exit(error == 0 ? strcmp(address, want) != 0 : error == ERR_DENIED ? 2 : 3);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, want[0] != '\0' ? 0 : 2 << 8);
}

TEST(test_rpc__a_default_place_that_another_user_made_is_refused)
{
    uid_t user = 900000000 + (uid_t)getpid();
    char directory[40], address[64];
    if (geteuid() != 0) {
        print_message("# skipped: only root can become another user\n");
        skip();
    }
    snprintf(directory, sizeof directory, "/tmp/holdfast-%u", (unsigned)user);
    snprintf(address, sizeof address, "unix:%s/ckptd.sock", directory);
    ask_as_a_user(user, address); /* it does not exist */
    assert_int_equal(mkdir(directory, 0700), 0);
    ask_as_a_user(user, address); /* root's */
    assert_int_equal(chown(directory, user, 0), 0);
    ask_as_a_user(user, address);
    assert_int_equal(chown(directory, 65534, 0), 0);
    ask_as_a_user(user, "");
    assert_int_equal(rmdir(directory), 0);
    assert_int_equal(symlink("/", directory), 0);
    ask_as_a_user(user, "");
    assert_int_equal(unlink(directory), 0);
}

static void cleaned_up(void)
{
    _exit(1);
}

static bool is_child;

/* LeakSanitizer calls it: a child has none of the threads that hold gRPC's memory. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return is_child;
}

TEST(test_rpc__a_program_that_ends_leaves_openssl_to_handshakes_under_way)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        is_child = true;
        OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CRYPTO_STRINGS, NULL); /* it is in use */
        OPENSSL_atexit(cleaned_up);
        exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

SUITE(NULL, NULL)
