/* store.c - one key of the store that torchrun's agent keeps at MASTER_ADDR:MASTER_PORT.
 *
 * The agent listens there, so rank 0 cannot: rank 0 writes its port under a key, and other ranks
 * wait for it. The requests are those of PyTorch's TCPStore: a byte for the kind, then texts after
 * their length in 64 bits; a connection begins with a magic number. */
#include "proto/base/report.h"
#include "trainer/comm/tcp/private.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { VALIDATE = 0, SET = 1, GET = 3, WAIT = 6 };
#define STORE_MAGIC 0x3C85F7CEu
#define REQUEST_MAX 512u

struct request {
    char bytes[REQUEST_MAX];
    size_t num;
};

static void put_bytes(struct request *request, const void *data, size_t bytes)
{
    CHECK(request->num + bytes <= REQUEST_MAX);
    memcpy(request->bytes + request->num, data, bytes);
    request->num += bytes;
}

static void put_kind(struct request *request, int kind)
{
    put_bytes(request, &(uint8_t){(uint8_t)kind}, 1);
}

static void put_text(struct request *request, const char *text)
{
    put_bytes(request, &(uint64_t){strlen(text)}, sizeof(uint64_t));
    put_bytes(request, text, strlen(text));
}

static int failed(const struct tcp_options *options, int rc)
{
    if (rc == 0)
        return 0;
    return report_error(ERR_UNAVAILABLE, "check the launcher's log, and that rank 0 has started",
                        "the store of the launcher at %s:%s %s", options->host, options->port,
                        rc == ERR_TIMEOUT ? "got no port from rank 0 in time" : "does not answer");
}

static int begin(int *out, const struct tcp_options *options, struct request *request)
{
    *request = (struct request){.num = 0};
    put_kind(request, VALIDATE);
    put_bytes(request, &(uint32_t){STORE_MAGIC}, sizeof(uint32_t));
    return tcp_connect(out, options->host, options->port);
}

/* Waits until the key is set and gets its value. Rank 0 reads its own, which shows that it arrived.
 */
static int get_value(int fd, const char *key, char *out, size_t size,
                     const struct timespec *deadline)
{
    struct request request = {.num = 0};
    uint8_t stop = 1;
    uint64_t length = 0;
    put_kind(&request, WAIT);
    put_bytes(&request, &(uint64_t){1}, sizeof(uint64_t));
    put_text(&request, key);
    ERR_TRY(tcp_send(fd, request.bytes, request.num, deadline));
    ERR_TRY(tcp_receive(fd, &stop, sizeof(stop), deadline));
    request.num = 0;
    put_kind(&request, GET);
    put_text(&request, key);
    ERR_TRY(tcp_send(fd, request.bytes, request.num, deadline));
    ERR_TRY(tcp_receive(fd, &length, sizeof(length), deadline));
    if (stop != 0 || length >= size)
        return ERR_UNAVAILABLE;
    out[length] = '\0';
    return tcp_receive(fd, out, length, deadline);
}

int store_set(const struct tcp_options *options, const char *value, const struct timespec *deadline)
{
    struct request request;
    char back[8];
    int fd;
    ERR_TRY(begin(&fd, options, &request));
    put_kind(&request, SET);
    put_text(&request, options->store_key);
    put_text(&request, value);
    int rc = tcp_send(fd, request.bytes, request.num, deadline);
    if (rc == 0)
        rc = get_value(fd, options->store_key, back, sizeof(back), deadline);
    close(fd);
    return failed(options, rc);
}

int store_get(const struct tcp_options *options, char *out, size_t size,
              const struct timespec *deadline)
{
    struct request request;
    int fd;
    ERR_TRY(begin(&fd, options, &request));
    int rc = tcp_send(fd, request.bytes, request.num, deadline);
    if (rc == 0)
        rc = get_value(fd, options->store_key, out, size, deadline);
    close(fd);
    return failed(options, rc);
}
