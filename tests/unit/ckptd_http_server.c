/* ckptd_http_server.c - the HTTP listener's answers while the service thread is stopped or shuts
 * down.
 *
 * Goal: /healthz turns 503 within seconds when the service thread does not answer, and comes back;
 * /readyz is 503 during the shutdown, while saves of connected ranks are still accepted. A slow
 * request ends at its time limit. Method: a real service on the bed, whose thread is held; a
 * request is a socket. tests/integration/web.py tests the rest. */
#include "ckptd/core/service.h"
#include "proto/base/clock.h"
#include "tests/unit/ckptd_bed.h"
#include "tests/unit/suite.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>

static struct peer peers[RANKS];
static uint16_t port;

/* One that is free now; the listener takes it again. */
static uint16_t find_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    close(fd);
    return ntohs(address.sin_port);
}

static int set_up(void **state)
{
    struct bed *bed = bed_new();
    *state = bed;
    port = find_port();
    snprintf(bed->config.http_listen, sizeof bed->config.http_listen, "127.0.0.1:%u", port);
    return bed_start(bed);
}

static int connect_here(void)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static char said[4096];

/* The status code; 0: no answer in time. `said` is the answer. Asserts nothing that could fail
 * while the service thread is held: the bed would wait for it. */
static int get(const char *path)
{
    const struct timeval patience = {.tv_sec = 10};
    size_t used = 0;
    int code = 0, fd = connect_here();
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    dprintf(fd, "GET %s HTTP/1.1\r\nHost: here\r\n\r\n", path);
    for (ssize_t got = 1; got > 0; used += got > 0 ? (size_t)got : 0)
        got = recv(fd, said + used, sizeof said - 1 - used, 0);
    close(fd);
    said[used] = '\0';
    return sscanf(said, "HTTP/1.1 %d ", &code) == 1 ? code : 0;
}

BED_TEST_BETWEEN(test_web__a_service_thread_that_stands_still_is_not_healthy, set_up, bed_tear_down)
{
    assert_int_equal(get("/healthz"), 200);
    bed_hold(bed);
    sleep_ms(300); /* the answer before is old by now */
    int64_t before = clock_ms();
    int code = get("/healthz");
    int64_t took_ms = clock_ms() - before;
    bed_go_on(bed);
    assert_int_equal(code, 503);
    assert_non_null(strstr(said, "does not answer"));
    assert_true(took_ms > 1000 && took_ms < 10000);
    assert_int_equal(get("/healthz"), 200);
}

/* A request that is never whole, of which a byte comes every 100 ms; so long it was read. */
static int64_t trickle(void)
{
    int fd = connect_here();
    char byte;
    int64_t began_ms = clock_ms();
    dprintf(fd, "GET /healthz HTTP/1.1\r\nX: ");
    while (recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN &&
           clock_ms() - began_ms < 9000) {
        sleep_ms(100);
        send(fd, "x", 1, MSG_NOSIGNAL);
    }
    close(fd);
    return clock_ms() - began_ms;
}

BED_TEST_BETWEEN(test_web__a_request_that_comes_byte_by_byte_has_its_time, set_up, bed_tear_down)
{
    bed_stop(bed);
    bed->config.http_request_ms = 1000;
    assert_int_equal(bed_start(bed), 0);
    int64_t took_ms = trickle();
    assert_true(took_ms >= 1000 && took_ms < 5000);
    assert_int_equal(get("/healthz"), 200);
}

BED_TEST_BETWEEN(test_web__a_ckptd_that_ends_is_healthy_and_not_ready, set_up, bed_tear_down)
{
    bed_open_world(bed, peers, RANKS); /* they may save a last time: the end waits for them */
    assert_int_equal(get("/readyz"), 200);
    bed->config.limit_drain_ms = bed->config.limit_last_save_ms = 20000;
    service_drain(bed->service);
    sleep_ms(300);
    assert_int_equal(get("/readyz"), 503);
    assert_non_null(strstr(said, "shutting down"));
    assert_int_equal(get("/healthz"), 200);
    peers_close(peers, RANKS);
}

int main(void)
{
    log_setup("ckptd_http_server", NULL);
    return suite_run(NULL, NULL);
}
