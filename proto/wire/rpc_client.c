/* rpc_client.c - the client's side of unary calls over the gRPC C core.
 *
 * Every call makes its own completion queue, which is cheap and lets any thread block on its answer
 * alone. A call over a failed connection first waits CONNECT_WAIT_MS for it to connect. Limits: of
 * messages, see rpc_wire.h. */
#include "proto/wire/rpc.h"

#include "proto/base/address.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/tls/tls.h"
#include "proto/wire/rpc_text.h"
#include "proto/wire/rpc_wire.h"

#include <grpc/grpc_security.h>
#include <grpc/status.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PEM_BYTES_MAX 65536
#define HANDSHAKE_MS 2000 /* to connect, over any number of calls */
#define RECONNECT_MS_MIN 50
#define RECONNECT_MS_MAX 1000
/* Over TCP, while a call is under way: the silence after which the client sends a ping, and the
 * time for the answer. Their sum is below the time of any call that is not repeated at once. After
 * it calls end with ERR_UNAVAILABLE, and the next call connects again. */
#define ALIVE_MS 4000
#define ALIVE_ANSWER_MS 5000
#define NUM_ALIVE_ARGS 3u
#define CONNECT_WAIT_MS 100u /* wait of a call for a connection that failed before */

/* The contents of a TLS directory, shared by all clients of this process that read the same texts:
 * a node has a client for each of its peers. */
struct keys {
    struct keys *next;
    char digest[CHECKSUM_SHA256_HEX]; /* of the texts */
    grpc_channel_credentials *credentials;
    uint32_t num_clients;
};
static struct keys *all_keys;
static pthread_mutex_t keys_mutex = PTHREAD_MUTEX_INITIALIZER;

struct rpc_client {
    grpc_channel *channel;            /* gRPC's own locking */
    struct keys *keys;                /* NULL: not TLS */
    const volatile int *_Atomic stop; /* others may be in a call when it is set */
};

int rpc_default_address(char *out, size_t size)
{
    char directory[64];
    struct stat info;
    uid_t uid = geteuid();
    snprintf(directory, sizeof directory, "/tmp/holdfast-%u", (unsigned)uid);
    snprintf(out, size, "unix:%s/ckptd.sock", directory);
    if (lstat(directory, &info) != 0 ||
        (S_ISDIR(info.st_mode) && (info.st_uid == uid || info.st_uid == 0)))
        return 0;
    return report_error(ERR_DENIED, "remove it, or name the address of the server",
                        "%s, where user %u's ckptd listens, was made by user %u", directory,
                        (unsigned)uid, (unsigned)info.st_uid);
}

/* Reads the text of a file of a TLS directory; the caller frees it. */
static int read_pem(char **out, const char *directory, const char *name)
{
    char path[TLS_PATH_MAX];
    tls_path(path, directory, name);
    FILE *file = fopen(path, "re");
    size_t bytes = 0;
    if (!file)
        return report_errno(errno == ENOENT ? ERR_NOT_FOUND : ERR_DENIED,
                            "could not read what a client of another machine needs", path);
    char *text = calloc(1, PEM_BYTES_MAX + 1);
    if (text)
        bytes = fread(text, 1, PEM_BYTES_MAX + 1, file);
    fclose(file);
    if (text && bytes > 0 && bytes <= PEM_BYTES_MAX) {
        *out = text;
        return 0;
    }
    free(text);
    return report_error(text ? ERR_INVALID : ERR_MEMORY, "make it anew: holdfast-certificates",
                        "%s could not be read, or is no certificate", path);
}

static int make_keys(struct keys **out, const char *digest, const char *authority,
                     grpc_ssl_pem_key_cert_pair *pair)
{
    struct keys *keys = calloc(1, sizeof *keys);
    if (!keys)
        return report_error(ERR_MEMORY, NULL, "no memory for the keys of an RPC client");
    keys->credentials = grpc_ssl_credentials_create(authority, pair, NULL, NULL);
    if (!keys->credentials) {
        free(keys);
        return report_error(ERR_INVALID, "make them anew: holdfast-certificates",
                            "the files of the directory with the certificate do not fit each "
                            "other");
    }
    snprintf(keys->digest, sizeof keys->digest, "%s", digest);
    keys->next = all_keys;
    *out = all_keys = keys;
    return 0;
}

static int share_keys(struct keys **out, const char *authority, grpc_ssl_pem_key_cert_pair *pair)
{
    char digests[3][CHECKSUM_SHA256_HEX], digest[CHECKSUM_SHA256_HEX];
    ERR_TRY(checksum_sha256_hex(digests[0], authority, strlen(authority)));
    ERR_TRY(checksum_sha256_hex(digests[1], pair->cert_chain, strlen(pair->cert_chain)));
    ERR_TRY(checksum_sha256_hex(digests[2], pair->private_key, strlen(pair->private_key)));
    ERR_TRY(checksum_sha256_hex(digest, digests, sizeof digests));
    pthread_mutex_lock(&keys_mutex);
    struct keys *keys = all_keys;
    while (keys && strcmp(keys->digest, digest) != 0)
        keys = keys->next;
    int error = keys ? 0 : make_keys(&keys, digest, authority, pair);
    if (error == 0)
        keys->num_clients++;
    pthread_mutex_unlock(&keys_mutex);
    *out = keys;
    return error;
}

static void leave_keys(struct keys *keys)
{
    pthread_mutex_lock(&keys_mutex);
    if (keys && --keys->num_clients == 0) {
        struct keys **at = &all_keys;
        while (*at != keys)
            at = &(*at)->next;
        *at = keys->next;
        grpc_channel_credentials_release(keys->credentials);
        free(keys);
    }
    pthread_mutex_unlock(&keys_mutex);
}

static int read_keys(struct keys **out, const char *directory)
{
    char *authority = NULL, *certificate = NULL, *key = NULL;
    int error = read_pem(&authority, directory, "authority.pem");
    if (error == 0)
        error = read_pem(&certificate, directory, "certificate.pem");
    if (error == 0)
        error = read_pem(&key, directory, "key.pem");
    if (error == 0)
        error = share_keys(
            out, authority,
            &(grpc_ssl_pem_key_cert_pair){.private_key = key, .cert_chain = certificate});
    if (key)
        explicit_bzero(key, strlen(key));
    free(key);
    free(certificate);
    free(authority);
    return error;
}

/* gRPC reports a wrong target only at the first call, as an internal error. */
static int find_keys(struct keys **out, const char *target, const char *directory)
{
    struct address address;
    ERR_TRY(address_parse(&address, target));
    return address.kind == ADDRESS_TLS ? read_keys(out, directory) : 0;
}

int rpc_client_open(struct rpc_client **out, const char *target)
{
    return rpc_client_open_as(out, target, tls_client_directory());
}

static grpc_channel *open_channel(const struct keys *keys, const char *target,
                                  const grpc_channel_args *args)
{
    if (keys)
        return grpc_channel_create(target, keys->credentials, args);
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(target, credentials, args);
    grpc_channel_credentials_release(credentials);
    return channel;
}

int rpc_client_open_as(struct rpc_client **out, const char *target, const char *tls_directory)
{
    struct keys *keys = NULL;
    rpc_start();
    ERR_TRY(find_keys(&keys, target, tls_directory));
    struct rpc_client *client = calloc(1, sizeof *client);
    if (!client) {
        leave_keys(keys);
        return report_error(ERR_MEMORY, NULL, "no memory for an RPC client");
    }
    grpc_arg args[] = {
        rpc_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RPC_MESSAGE_BYTES_MAX),
        rpc_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, RPC_MESSAGE_BYTES_MAX),
        rpc_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, RECONNECT_MS_MIN),
        rpc_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, HANDSHAKE_MS),
        rpc_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, RECONNECT_MS_MAX),
        /* Each client has its own connection, without the back-off of another client. */
        rpc_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        rpc_arg(GRPC_ARG_ENABLE_RETRIES, 0),
        rpc_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        /* The last ones are for TCP alone: the end of a unix socket is always noticed. */
        rpc_arg(GRPC_ARG_KEEPALIVE_TIME_MS, ALIVE_MS),
        rpc_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ALIVE_ANSWER_MS),
        rpc_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
    };
    size_t num_args = sizeof args / sizeof args[0] - (keys ? 0 : NUM_ALIVE_ARGS);
    grpc_channel_args channel_args = {num_args, args};
    client->keys = keys;
    client->channel = open_channel(keys, target, &channel_args);
    *out = client;
    return 0;
}

void rpc_client_close(struct rpc_client *client)
{
    if (!client)
        return;
    grpc_channel_destroy(client->channel);
    leave_keys(client->keys);
    free(client);
}

void rpc_client_heed_stop(struct rpc_client *client, const volatile int *stop)
{
    client->stop = stop;
}

static bool is_stopped(const struct rpc_client *client)
{
    const volatile int *stop = client->stop;
    return stop && *stop != 0;
}

static void drain_queue(grpc_completion_queue *queue)
{
    grpc_completion_queue_shutdown(queue);
    while (
        grpc_completion_queue_pluck(queue, NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
        GRPC_QUEUE_SHUTDOWN)
        continue;
    grpc_completion_queue_destroy(queue);
}

/* gRPC advances a connection only while a thread polls. A call on a failed channel fails at once
 * and so polls nothing. A restarted server then stays unseen until the next round of gRPC's backup
 * poller, 5 s. So such a call first starts to connect and watches the connection. */
static void client_connect(struct rpc_client *client, uint32_t timeout_ms)
{
    uint32_t wait_ms = timeout_ms < CONNECT_WAIT_MS ? timeout_ms : CONNECT_WAIT_MS;
    grpc_connectivity_state state = grpc_channel_check_connectivity_state(client->channel, 1);
    if (state != GRPC_CHANNEL_TRANSIENT_FAILURE)
        return;
    gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(wait_ms, GPR_TIMESPAN));
    grpc_completion_queue *queue = grpc_completion_queue_create_for_pluck(NULL);
    grpc_channel_reset_connect_backoff(client->channel);
    grpc_channel_watch_connectivity_state(client->channel, state, deadline, queue, client);
    grpc_completion_queue_pluck(queue, client, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    drain_queue(queue);
}

/* The received parts of one call. */
struct answer {
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *reply;
    grpc_status_code status;
    grpc_slice details;
};

/* Waits until the call is over; cancels it when the stop flag is set. */
static void await_answer(const struct rpc_client *client, grpc_completion_queue *queue,
                         grpc_call *call, struct answer *answer)
{
    while (client->stop) {
        gpr_timespec next_check = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                               gpr_time_from_millis(RPC_STOP_MS, GPR_TIMESPAN));
        if (grpc_completion_queue_pluck(queue, answer, next_check, NULL).type != GRPC_QUEUE_TIMEOUT)
            return;
        if (is_stopped(client)) {
            grpc_call_cancel(call, NULL);
            break;
        }
    }
    grpc_completion_queue_pluck(queue, answer, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
}

/* Runs the whole call as one batch and waits for it; the deadline ends the wait. */
static int client_run(struct answer *answer, struct rpc_client *client, const char *method,
                      grpc_byte_buffer *request, uint32_t timeout_ms)
{
    gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(timeout_ms, GPR_TIMESPAN));
    client_connect(client, timeout_ms);
    grpc_completion_queue *queue = grpc_completion_queue_create_for_pluck(NULL);
    grpc_slice name = grpc_slice_from_copied_string(method);
    grpc_call *call = grpc_channel_create_call(client->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                               queue, name, NULL, deadline, NULL);
    grpc_slice_unref(name);
    grpc_op ops[6];
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = request;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA; /* without it the call never ends */
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &answer->initial;
    ops[4].op = GRPC_OP_RECV_MESSAGE;
    ops[4].data.recv_message.recv_message = &answer->reply;
    ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[5].data.recv_status_on_client.trailing_metadata = &answer->trailing;
    ops[5].data.recv_status_on_client.status = &answer->status;
    ops[5].data.recv_status_on_client.status_details = &answer->details;
    grpc_call_error error = grpc_call_start_batch(call, ops, 6, answer, NULL);
    if (error == GRPC_CALL_OK)
        await_answer(client, queue, call, answer);
    grpc_call_unref(call);
    drain_queue(queue);
    if (error != GRPC_CALL_OK)
        return report_error(ERR_INTERNAL, NULL, "the call %s could not be started", method);
    return 0;
}

static int report_stopped(const char *method)
{
    return report_error(ERR_ABORTED, NULL, "asked to stop, the program waits no longer for %s",
                        method);
}

int rpc_client_call(struct rpc_client *client, const char *method, const ProtobufCMessage *request,
                    const ProtobufCMessageDescriptor *reply_type, ProtobufCMessage **out_reply,
                    uint32_t timeout_ms)
{
    if (is_stopped(client))
        return report_stopped(method);
    grpc_byte_buffer *payload = rpc_pack(request);
    if (!payload)
        return report_error(ERR_INVALID, "describe fewer tensors at once",
                            "the request of %s was larger than %u bytes", method,
                            RPC_MESSAGE_BYTES_MAX);
    struct answer answer = {.details = grpc_empty_slice()};
    grpc_metadata_array_init(&answer.initial);
    grpc_metadata_array_init(&answer.trailing);
    int error = client_run(&answer, client, method, payload, timeout_ms);
    grpc_byte_buffer_destroy(payload);
    if (error == 0 && answer.status == GRPC_STATUS_CANCELLED && is_stopped(client)) {
        error = report_stopped(method);
    } else if (error == 0 && answer.status != GRPC_STATUS_OK) {
        char *details = grpc_slice_to_c_string(answer.details);
        error = rpc_text_read(details, (int)answer.status, method);
        gpr_free(details);
    } else if (error == 0) {
        error = answer.reply ? rpc_unpack(out_reply, NULL, answer.reply, reply_type) : ERR_CORRUPT;
        if (error == ERR_MEMORY)
            error = report_error(error, NULL, "no memory for the reply of %s", method);
        else if (error != 0)
            error = report_error(ERR_VERSION, "are both ends of the same release?",
                                 "the reply of %s could not be unpacked", method);
    }
    if (answer.reply)
        grpc_byte_buffer_destroy(answer.reply);
    grpc_slice_unref(answer.details);
    grpc_metadata_array_destroy(&answer.initial);
    grpc_metadata_array_destroy(&answer.trailing);
    return error;
}
