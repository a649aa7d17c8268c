/* rpc_reflection.c - gRPC server reflection: a client that knows nothing asks which services there
 * are and for their descriptions, and can then call them.
 *
 * Services are those of the server's table, and what the layer serves beside it. Descriptions are
 * the packed FileDescriptorProtos that protoc-c wrote of our .proto files at build time; they are
 * handed out as they are. To find one, only names are read from them: a symbol is looked for from
 * the package downwards, with the few field numbers of descriptor.proto that kind_inside() lists.
 *
 * One file per answer, without its imports: a client asks for those by name. What is not there is
 * answered with an error inside of the stream, which goes on.
 *
 * Limits: SERVICES_MAX services in a table, names of NAME_BYTES_MAX (both checked, they are ours).
 */
#include "proto/rpc_reflection.h"

#include "proto/grpc/reflection.pb-c.h"
#include "proto/report.h"
#include "proto/rpc_wire.h"

#include <grpc/status.h>

#include <stdio.h>
#include <string.h>

#define SERVICES_MAX 16u
#define NAME_BYTES_MAX 128u

static const char *const beside_table[] = {"grpc.health.v1.Health",
                                           "grpc.reflection.v1.ServerReflection",
                                           "grpc.reflection.v1alpha.ServerReflection"};

bool rpc_reflection_serves(grpc_slice method)
{
    return grpc_slice_str_cmp(method,
                              "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo") == 0 ||
           grpc_slice_str_cmp(
               method, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo") == 0;
}

/* ---------------------------------------------------------------------------------------------
 * Descriptors */

struct span {
    const uint8_t *data;
    size_t bytes;
};

static uint64_t take_varint(struct span *rest)
{
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 64; shift += 7) {
        CHECK(rest->bytes > 0);
        uint8_t byte = *rest->data;
        rest->data++;
        rest->bytes--;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            break;
    }
    return value;
}

/* Takes the next field off a packed message. `value` is empty when it is a number. Returns the
 * field's number, 0 at the end. The bytes are of our own build: wrong ones are a bug. */
static uint32_t take_field(struct span *value, struct span *rest)
{
    enum { WIRE_VARINT = 0, WIRE_BYTES = 2 };
    if (rest->bytes == 0)
        return 0;
    uint64_t tag = take_varint(rest);
    uint64_t number = take_varint(rest);
    *value = (struct span){rest->data, 0};
    if ((tag & 7) == WIRE_BYTES) {
        CHECK(number <= rest->bytes);
        value->bytes = number;
        rest->data += number;
        rest->bytes -= number;
    } else {
        CHECK((tag & 7) == WIRE_VARINT);
    }
    return (uint32_t)(tag >> 3);
}

/* The first field `number` of a packed message; empty without one. */
static struct span get_field(struct span message, uint32_t number)
{
    struct span value = {NULL, 0};
    uint32_t found;
    while ((found = take_field(&value, &message)) != 0)
        if (found == number)
            return value;
    return (struct span){NULL, 0};
}

static bool span_equal(struct span a, struct span b)
{
    return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.data, b.data, a.bytes) == 0);
}

/* Takes "name." off `path`. */
static bool enter(struct span *path, struct span name)
{
    if (path->bytes <= name.bytes || path->data[name.bytes] != '.' ||
        !span_equal((struct span){path->data, name.bytes}, name))
        return false;
    path->data += name.bytes + 1;
    path->bytes -= name.bytes + 1;
    return true;
}

/* What descriptor.proto calls File-, Descriptor-, Enum- and ServiceDescriptorProto, and those that
 * hold no further names. */
enum kind { KIND_NONE, KIND_FILE, KIND_MESSAGE, KIND_ENUM, KIND_SERVICE, KIND_LEAF };
enum { FIELD_NAME = 1, FIELD_PACKAGE = 2, FIELD_VALUE = 2 /* of an enum */ };

/* Of which kind is the named thing in field `field` of a descriptor of `kind`? */
static enum kind kind_inside(enum kind kind, uint32_t field)
{
    static const struct {
        enum kind outer;
        uint32_t field;
        enum kind inner;
    } table[] = {
        {KIND_FILE, 4, KIND_MESSAGE},    {KIND_FILE, 5, KIND_ENUM},
        {KIND_FILE, 6, KIND_SERVICE},    {KIND_MESSAGE, 2, KIND_LEAF}, /* field */
        {KIND_MESSAGE, 3, KIND_MESSAGE}, {KIND_MESSAGE, 4, KIND_ENUM},
        {KIND_MESSAGE, 8, KIND_LEAF}, /* oneof */
        {KIND_SERVICE, 2, KIND_LEAF}, /* method */
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].outer == kind && table[i].field == field)
            return table[i].inner;
    return KIND_NONE;
}

/* Values of an enum are named as its neighbours, not as its parts. */
static bool enum_holds(struct span enumeration, struct span path)
{
    struct span value;
    uint32_t field;
    while ((field = take_field(&value, &enumeration)) != 0)
        if (field == FIELD_VALUE && span_equal(get_field(value, FIELD_NAME), path))
            return true;
    return false;
}

/* Does the descriptor hold `path`, a name relative to it? Goes one level down per name in `path`,
 * only along matching names, and no deeper than our files nest messages. */
static bool holds(struct span descriptor, enum kind kind, struct span path)
{
    struct span value;
    uint32_t field;
    while ((field = take_field(&value, &descriptor)) != 0) {
        enum kind inner = kind_inside(kind, field);
        if (inner == KIND_NONE)
            continue;
        struct span name = get_field(value, FIELD_NAME), below = path;
        if (span_equal(name, path) || (inner == KIND_ENUM && enum_holds(value, path)) ||
            (enter(&below, name) && holds(value, inner, below)))
            return true;
    }
    return false;
}

/* The file of that name, or that holds that symbol; empty when there is none. */
static struct span find_file(const char *text, bool symbol)
{
    struct span all = {rpc_descriptors, rpc_descriptors_bytes}, file;
    struct span wanted = {(const uint8_t *)text, strlen(text)};
    while (take_field(&file, &all) != 0) { /* FileDescriptorSet has one field */
        struct span below = wanted;
        if (!symbol && span_equal(get_field(file, FIELD_NAME), wanted))
            return file;
        if (symbol && enter(&below, get_field(file, FIELD_PACKAGE)) &&
            holds(file, KIND_FILE, below))
            return file;
    }
    return (struct span){NULL, 0};
}

/* ---------------------------------------------------------------------------------------------
 * Answers */

struct services {
    char names[SERVICES_MAX][NAME_BYTES_MAX];
    size_t count;
};

static void add_service(struct services *services, const char *name, size_t bytes)
{
    CHECK(bytes < NAME_BYTES_MAX);
    for (size_t i = 0; i < services->count; i++)
        if (strlen(services->names[i]) == bytes && memcmp(services->names[i], name, bytes) == 0)
            return;
    CHECK(services->count < SERVICES_MAX);
    snprintf(services->names[services->count++], NAME_BYTES_MAX, "%.*s", (int)bytes, name);
}

static grpc_byte_buffer *answer_services(Grpc__Reflection__V1__ServerReflectionResponse *response,
                                         const struct rpc_method *methods)
{
    struct services services = {.count = 0};
    for (const struct rpc_method *method = methods; method->name; method++)
        add_service(&services, method->name + 1,
                    (size_t)(strrchr(method->name, '/') - method->name - 1));
    for (size_t i = 0; i < sizeof beside_table / sizeof beside_table[0]; i++)
        add_service(&services, beside_table[i], strlen(beside_table[i]));

    Grpc__Reflection__V1__ServiceResponse items[SERVICES_MAX];
    Grpc__Reflection__V1__ServiceResponse *pointers[SERVICES_MAX];
    for (size_t i = 0; i < services.count; i++) {
        grpc__reflection__v1__service_response__init(&items[i]);
        items[i].name = services.names[i];
        pointers[i] = &items[i];
    }
    Grpc__Reflection__V1__ListServiceResponse list =
        GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    list.n_service = services.count;
    list.service = pointers;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    response->list_services_response = &list;
    return rpc_pack(&response->base);
}

static grpc_byte_buffer *answer_error(Grpc__Reflection__V1__ServerReflectionResponse *response,
                                      grpc_status_code status, const char *text)
{
    Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    error.error_code = (int32_t)status;
    error.error_message = (char *)(uintptr_t)text;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    response->error_response = &error;
    return rpc_pack(&response->base);
}

static grpc_byte_buffer *answer_file(Grpc__Reflection__V1__ServerReflectionResponse *response,
                                     struct span file)
{
    ProtobufCBinaryData data = {file.bytes, (uint8_t *)(uintptr_t)file.data};
    Grpc__Reflection__V1__FileDescriptorResponse files =
        GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    files.n_file_descriptor_proto = 1;
    files.file_descriptor_proto = &data;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    response->file_descriptor_response = &files;
    return rpc_pack(&response->base);
}

grpc_byte_buffer *rpc_reflection_answer(grpc_byte_buffer *buffer, const struct rpc_method *methods)
{
    ProtobufCMessage *message;
    if (rpc_unpack(&message, NULL, buffer,
                   &grpc__reflection__v1__server_reflection_request__descriptor) != 0)
        return NULL;
    Grpc__Reflection__V1__ServerReflectionRequest *request =
        (Grpc__Reflection__V1__ServerReflectionRequest *)message;
    Grpc__Reflection__V1__ServerReflectionResponse response =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    response.valid_host = request->host;
    response.original_request = request;
    grpc_byte_buffer *answer = NULL;
    struct span file = {NULL, 0};
    switch (request->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        answer = answer_services(&response, methods);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        file = find_file(request->file_by_filename, false);
        answer = file.data ? answer_file(&response, file)
                           : answer_error(&response, GRPC_STATUS_NOT_FOUND, "no such file");
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        file = find_file(request->file_containing_symbol, true);
        answer = file.data ? answer_file(&response, file)
                           : answer_error(&response, GRPC_STATUS_NOT_FOUND, "no such symbol");
        break;
    default:
        answer = answer_error(&response, GRPC_STATUS_NOT_FOUND,
                              "only services, files and symbols are known here");
    }
    protobuf_c_message_free_unpacked(message, NULL);
    return answer;
}
