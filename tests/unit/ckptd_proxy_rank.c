/* ckptd_proxy_rank.c - stand-ins of ranks on other nodes, beside the service thread.
 *
 * Goal: the service thread never waits for a stand-in that waits for it. Method: this thread is the
 * service thread of a session that only loads: between a stand-in's request and its answer it
 * sweeps, as the timer may at any time. */
#include "ckptd/bulk/proxy_rank.h"
#include "proto/base/report.h"
#include "proto/wire/arena_link.h"
#include "tests/unit/shell.h"
#include "tests/unit/suite.h"

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { SESSION = 7 };

struct bed {
    char folder[128], path[160];
    int listener;
    struct proxy_ranks *standins;
    struct proxy_rank *proxy;
    int error; /* of proxy_rank_enter() */
};

static void open_bed(struct bed *bed)
{
    const char *parent = getenv("TMPDIR");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(bed->folder, sizeof bed->folder, "%s/si-XXXXXX", parent ? parent : "/var/tmp");
    assert_non_null(mkdtemp(bed->folder));
    snprintf(bed->path, sizeof bed->path, "%s/s", bed->folder);
    assert_true(strlen(bed->path) < sizeof address.sun_path);
    memcpy(address.sun_path, bed->path, strlen(bed->path));
    bed->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(bed->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(bed->listener, 8), 0);
    assert_int_equal(proxy_ranks_open(&bed->standins, bed->path), 0);
}

static void close_bed(struct bed *bed)
{
    proxy_ranks_close(bed->standins);
    close(bed->listener);
    shell("rm -r '%s'", bed->folder);
}

static void *enter(void *argument)
{
    struct bed *bed = argument;
    bed->error = proxy_rank_enter(&bed->proxy, bed->standins, SESSION);
    return NULL;
}

static void answer_after_a_sweep(struct bed *bed, int fd, uint32_t kind, int error)
{
    struct arena_request request;
    struct arena_reply reply = {.magic = ARENA_MAGIC, .version = ARENA_VERSION, .error = error};
    assert_int_equal(recv(fd, &request, sizeof request, MSG_WAITALL), sizeof request);
    assert_int_equal(request.kind, kind);
    proxy_ranks_sweep(bed->standins, 0);
    arena_send_reply(fd, &reply, NULL);
}

TEST(test_standin__one_that_is_being_made_stops_no_sweep)
{
    struct bed bed = {.error = ERR_INTERNAL};
    pthread_t thread;
    open_bed(&bed);
    assert_int_equal(pthread_create(&thread, NULL, enter, &bed), 0);
    int fd = accept(bed.listener, NULL, NULL);
    answer_after_a_sweep(&bed, fd, ARENA_REQUEST_BIND, 0);
    answer_after_a_sweep(&bed, fd, ARENA_REQUEST_CONTROL, ERR_INVALID); /* it only loads */
    pthread_join(thread, NULL);
    assert_int_equal(bed.error, 0);
    close(fd);
    close_bed(&bed);
}

SUITE(NULL, NULL)
