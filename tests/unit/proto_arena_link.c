/* proto_arena_link.c - the client's side of the arena socket.
 *
 * Goal: a connection that ckptd closes unanswered, because its user's budget is used up, is tried
 * again within the caller's time. Without a listener the error comes at once. Method: a listener
 * that closes some connections before it answers one. */
#include "proto/base/report.h"
#include "proto/wire/arena_link.h"
#include "tests/unit/shell.h"
#include "tests/unit/suite.h"

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_MS = 10000, TOKEN = 7 };

struct listener {
    char folder[128], path[160];
    int fd, num_closed; /* before one is answered */
    pthread_t thread;
};

static void *serve(void *argument)
{
    const struct listener *listener = argument;
    struct arena_request request;
    struct arena_reply reply = {.magic = ARENA_MAGIC, .version = ARENA_VERSION};
    for (int i = 0;; i++) {
        int fd = accept(listener->fd, NULL, NULL);
        if (fd < 0)
            return NULL;
        if (i >= listener->num_closed && recv(fd, &request, sizeof request, MSG_WAITALL) > 0)
            arena_send_reply(fd, &reply, NULL);
        close(fd);
    }
}

static void start(struct listener *out, int num_closed)
{
    const char *parent = getenv("TMPDIR");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    out->num_closed = num_closed;
    snprintf(out->folder, sizeof out->folder, "%s/al-XXXXXX", parent ? parent : "/var/tmp");
    assert_non_null(mkdtemp(out->folder));
    snprintf(out->path, sizeof out->path, "%s/s", out->folder);
    assert_true(strlen(out->path) < sizeof address.sun_path);
    memcpy(address.sun_path, out->path, strlen(out->path));
    out->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(out->fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(out->fd, 8), 0);
    assert_int_equal(pthread_create(&out->thread, NULL, serve, out), 0);
}

static void stop(struct listener *listener)
{
    shutdown(listener->fd, SHUT_RDWR);
    pthread_join(listener->thread, NULL);
    close(listener->fd);
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

TEST(test_arena_link__one_that_is_closed_unanswered_is_tried_again)
{
    struct listener listener = {.fd = -1};
    struct arena_link link;
    start(&listener, 5);
    int error = arena_link_open(&link, listener.path, TOKEN, WAIT_MS);
    arena_link_close(&link);
    stop(&listener);
    shell("rm -r '%s'", listener.folder);
    assert_int_equal(error, 0);
}

TEST(test_arena_link__the_time_that_is_given_ends_the_tries)
{
    struct listener listener = {.fd = -1};
    struct arena_link link;
    start(&listener, 1 << 30);
    int64_t begun = now_ms();
    int error = arena_link_open(&link, listener.path, TOKEN, 300);
    int64_t took = now_ms() - begun;
    stop(&listener);
    shell("rm -r '%s'", listener.folder);
    assert_int_equal(error, ERR_UNAVAILABLE);
    assert_int_equal(link.socket, -1);
    assert_in_range(took, 300, WAIT_MS / 2);
}

TEST(test_arena_link__where_nobody_listens_is_told_at_once)
{
    struct listener listener = {.fd = -1};
    struct arena_link link;
    start(&listener, 0);
    stop(&listener);
    int64_t begun = now_ms();
    int error = arena_link_open(&link, listener.path, TOKEN, WAIT_MS);
    shell("rm -r '%s'", listener.folder);
    assert_int_equal(error, ERR_UNAVAILABLE);
    assert_true(now_ms() - begun < WAIT_MS / 2);
}

SUITE(NULL, NULL)
