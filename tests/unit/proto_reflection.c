/* proto_reflection.c - a server describes its services to tools that do not have them.
 *
 * Goal: every service is listed once, the file of any symbol is found, what is not there is said
 * inside of the stream, and what is no request is refused. Method: a real server and a client in
 * one process (rpc_bed.h), by hand; tests/integration/reflection.py has the stock client. */
#include "proto/ckpt.pb-c.h"
#include "proto/grpc/reflection.pb-c.h"
#include "proto/report.h"
#include "tests/unit/rpc_bed.h"

#include <string.h>

#define REQUEST(kind) GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##kind
#define RESPONSE(kind) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##kind

static void handle_hello(void *user, struct rpc_call *call, const ProtobufCMessage *message)
{
    (void)user;
    (void)message;
    rpc_call_fail(call, report_error(ERR_INVALID, NULL, "nobody asks for it here"));
}

static const struct rpc_method methods[] = {{"/holdfast.v1.Checkpoint/Hello",
                                             &holdfast__v1__hello_request__descriptor,
                                             &holdfast__v1__hello_reply__descriptor, handle_hello},
                                            {NULL, NULL, NULL, NULL}};

static int set_up(void **state)
{
    static struct rpc_bed bed;
    rpc_bed_open(&bed, methods, NULL);
    *state = &bed;
    return 0;
}

static int tear_down(void **state)
{
    rpc_bed_close(*state);
    return 0;
}

/* A stream of one request is a unary call to the other side; tests/integration/reflection.py has
 * longer ones. The answer is the caller's. */
static Grpc__Reflection__V1__ServerReflectionResponse *
reflect(struct rpc_bed *bed, const char *version,
        Grpc__Reflection__V1__ServerReflectionRequest *request)
{
    char method[128];
    ProtobufCMessage *message = NULL;
    snprintf(method, sizeof method, "/grpc.reflection.%s.ServerReflection/ServerReflectionInfo",
             version);
    request->host = (char *)(uintptr_t) "somewhere";
    assert_int_equal(rpc_client_call(bed->client, method, &request->base,
                                     &grpc__reflection__v1__server_reflection_response__descriptor,
                                     &message, CALL_MS),
                     0);
    Grpc__Reflection__V1__ServerReflectionResponse *response =
        (Grpc__Reflection__V1__ServerReflectionResponse *)message;
    assert_string_equal(response->valid_host, "somewhere");
    assert_int_equal(response->original_request->message_request_case,
                     request->message_request_case);
    return response;
}

static void test_reflection__lists_every_service_once(void **state)
{
    static const char *const versions[] = {"v1", "v1alpha"};
    static const char *const services[] = {"holdfast.v1.Checkpoint", "grpc.health.v1.Health",
                                           "grpc.reflection.v1.ServerReflection",
                                           "grpc.reflection.v1alpha.ServerReflection"};
    for (size_t v = 0; v < sizeof versions / sizeof versions[0]; v++) {
        Grpc__Reflection__V1__ServerReflectionRequest request =
            GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
        request.message_request_case = REQUEST(LIST_SERVICES);
        request.list_services = (char *)(uintptr_t) "";
        Grpc__Reflection__V1__ServerReflectionResponse *response =
            reflect(*state, versions[v], &request);
        assert_int_equal(response->message_response_case, RESPONSE(LIST_SERVICES_RESPONSE));
        assert_int_equal(response->list_services_response->n_service, 4);
        for (size_t i = 0; i < 4; i++)
            assert_string_equal(response->list_services_response->service[i]->name, services[i]);
        protobuf_c_message_free_unpacked(&response->base, NULL);
    }
}

/* Asks for a symbol or a file. 0 when a file came, and it is the one named `file`. */
static int ask_file(struct rpc_bed *bed, bool symbol, const char *text, const char *file)
{
    Grpc__Reflection__V1__ServerReflectionRequest request =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
    request.message_request_case =
        symbol ? REQUEST(FILE_CONTAINING_SYMBOL) : REQUEST(FILE_BY_FILENAME);
    request.file_by_filename = (char *)(uintptr_t)text; /* a union: both are strings */
    Grpc__Reflection__V1__ServerReflectionResponse *response = reflect(bed, "v1", &request);
    int status = -1;
    if (response->message_response_case == RESPONSE(ERROR_RESPONSE)) {
        status = response->error_response->error_code;
    } else if (response->message_response_case == RESPONSE(FILE_DESCRIPTOR_RESPONSE)) {
        assert_int_equal(response->file_descriptor_response->n_file_descriptor_proto, 1);
        ProtobufCBinaryData *data = response->file_descriptor_response->file_descriptor_proto;
        assert_true(data->len > 2 + strlen(file)); /* FileDescriptorProto {string name = 1} */
        assert_int_equal(data->data[0], 0x0a);
        assert_int_equal(data->data[1], strlen(file));
        assert_memory_equal(data->data + 2, file, strlen(file));
        status = 0;
    }
    protobuf_c_message_free_unpacked(&response->base, NULL);
    return status;
}

static void test_reflection__finds_the_file_of_any_symbol(void **state)
{
    static const struct {
        const char *symbol, *file;
    } found[] = {
        {"holdfast.v1.Checkpoint", "proto/ckpt.proto"},
        {"holdfast.v1.Checkpoint.Status", "proto/ckpt.proto"},
        {"holdfast.v1.HelloReply", "proto/ckpt.proto"},
        {"holdfast.v1.HelloReply.boot_id", "proto/ckpt.proto"},
        {"grpc.health.v1.Health", "proto/grpc/health.proto"},
        {"grpc.health.v1.HealthCheckResponse.ServingStatus", "proto/grpc/health.proto"},
        {"grpc.health.v1.HealthCheckResponse.NOT_SERVING", "proto/grpc/health.proto"},
        {"grpc.reflection.v1.ServerReflectionRequest.message_request",
         "proto/grpc/reflection.proto"},
        {"grpc.reflection.v1alpha.ServerReflection", "proto/grpc/reflection_v1alpha.proto"},
    };
    for (size_t i = 0; i < sizeof found / sizeof found[0]; i++) {
        assert_int_equal(ask_file(*state, true, found[i].symbol, found[i].file), 0);
        assert_int_equal(ask_file(*state, false, found[i].file, found[i].file), 0);
    }
}

static void test_reflection__says_not_found_inside_of_its_stream(void **state)
{
    enum { NOT_FOUND = 5 };
    static const char *const symbols[] = {
        "",
        ".",
        "holdfast.v1",
        "holdfast.v1.",
        "holdfast.v1.Hello",
        "holdfast.v1.HelloReply.",
        "holdfast.v1.HelloReply.boot",
        "holdfast.v1.HelloReply.boot_id.x",
        "holdfast.v1.Checkpoint.status",
        "grpc.health.v1.HealthCheckResponse.ServingStatus.SERVING",
        "grpc.health.v1.HealthCheckRequest.NOT_SERVING",
        "Checkpoint"};
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++)
        assert_int_equal(ask_file(*state, true, symbols[i], ""), NOT_FOUND);
    assert_int_equal(ask_file(*state, false, "", ""), NOT_FOUND);
    assert_int_equal(ask_file(*state, false, "ckpt.proto", ""), NOT_FOUND);

    Grpc__Reflection__V1__ServerReflectionRequest request =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
    request.message_request_case = REQUEST(ALL_EXTENSION_NUMBERS_OF_TYPE);
    request.all_extension_numbers_of_type = (char *)(uintptr_t) "holdfast.v1.HelloReply";
    Grpc__Reflection__V1__ServerReflectionResponse *response = reflect(*state, "v1", &request);
    assert_int_equal(response->message_response_case, RESPONSE(ERROR_RESPONSE));
    assert_int_equal(response->error_response->error_code, NOT_FOUND);
    protobuf_c_message_free_unpacked(&response->base, NULL);
}

static void test_reflection__refuses_what_is_no_request(void **state)
{
    struct rpc_bed *bed = *state;
    Holdfast__V1__HelloRequest request = HOLDFAST__V1__HELLO_REQUEST__INIT;
    request.protocol = 1; /* its field 1 is a number where reflection has a string */
    ProtobufCMessage *message = NULL;
    assert_int_equal(
        rpc_client_call(
            bed->client, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", &request.base,
            &grpc__reflection__v1__server_reflection_response__descriptor, &message, CALL_MS),
        ERR_INVALID);
    assert_int_equal(ask_file(bed, true, "holdfast.v1.Checkpoint", "proto/ckpt.proto"), 0);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_reflection__lists_every_service_once),
        CASE(test_reflection__finds_the_file_of_any_symbol),
        CASE(test_reflection__says_not_found_inside_of_its_stream),
        CASE(test_reflection__refuses_what_is_no_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
