/* ckptd_trouble.c - the daemon under shortages, delays, and hostile use of its resources.
 *
 * Goal: a lack of memory, descriptors or time fails a call, but never loses a checkpoint and never
 * ends the daemon. Method: a service in this process (ckptd_bed.h). The test replaces fsync: it can
 * be delayed, so that other events happen meanwhile, and it records the directories that it made
 * durable.
 */
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/mark_bed.h"
#include "tests/unit/suite.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define SYNCED_MAX 64u

static struct peer peers[RANKS];

/* ---- fsync ---- */

static atomic_int sync_delay_ms;
static pthread_mutex_t sync_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint32_t num_synced; /* these two are guarded by sync_mutex */
static char synced[SYNCED_MAX][160];

int fsync(int fd)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    pthread_mutex_lock(&sync_mutex);
    if (num_synced < SYNCED_MAX) {
        char *path = synced[num_synced++];
        ssize_t bytes = readlink(link, path, sizeof synced[0] - 1);
        path[bytes > 0 ? bytes : 0] = 0;
    }
    pthread_mutex_unlock(&sync_mutex);
    sleep_ms(atomic_load(&sync_delay_ms));
    return (int)syscall(SYS_fsync, fd);
}

static bool was_synced(const struct bed *bed, const char *name)
{
    char path[240];
    bool found = false;
    snprintf(path, sizeof path, "%s/store%s", bed->root, name);
    pthread_mutex_lock(&sync_mutex);
    for (uint32_t i = 0; i < num_synced && !found; i++)
        found = strcmp(synced[i], path) == 0;
    pthread_mutex_unlock(&sync_mutex);
    return found;
}

static void await_synced(const struct bed *bed, const char *name)
{
    for (int i = 0; i < 1000 && !was_synced(bed, name); i++)
        sleep_ms(10);
    assert_true(was_synced(bed, name));
}

static void forget_syncs(void)
{
    pthread_mutex_lock(&sync_mutex);
    num_synced = 0;
    pthread_mutex_unlock(&sync_mutex);
}

/* ---- the bed ---- */

static int tear_down(void **state)
{
    atomic_store(&sync_delay_ms, 0);
    peers_close(peers, RANKS);
    return bed_tear_down(state);
}

static int call_hello(struct bed *bed)
{
    Holdfast__V1__HelloRequest request = HOLDFAST__V1__HELLO_REQUEST__INIT;
    return try_call(bed, "Hello", &request.base);
}

/* Every descriptor that the process may still open. */
static struct {
    int fds[4096];
    uint32_t count;
    struct rlimit before;
} taken;

static void take_descriptors(void)
{
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &taken.before), 0);
    const struct rlimit small = {1024, taken.before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
    for (taken.count = 0; (taken.fds[taken.count] = dup(STDERR_FILENO)) >= 0; taken.count++)
        continue;
    assert_true(taken.count > 1);
}

static void give_descriptors(void)
{
    while (taken.count > 0)
        close(taken.fds[--taken.count]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &taken.before), 0);
}

/* ---- tests ---- */

BED_TEST_BETWEEN(test_trouble__an_abort_that_comes_while_names_are_synced_is_too_late, bed_set_up,
                 tear_down)
{
    bed_open_world(bed, peers, 1);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    await_synced(bed, "/" RUN "/step-00000001-a0001"); /* the mark */
    forget_syncs();
    atomic_store(&sync_delay_ms, 300);
    peer_finish(&peers[0], 1);
    await_synced(bed, "/" RUN "/step-00000001-a0001");
    peer_abort(&peers[0]);
    assert_int_equal(wait_save(bed, 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    assert_int_equal(load_all(bed, 1, NULL), 0);
}

struct slow_load {
    struct loading loading;
    pthread_t thread;
    int error;
};

static void *load_slowly(void *argument)
{
    struct slow_load *slow = argument;
    slow->error = load_shard(&slow->loading, 0, NULL);
    return NULL;
}

BED_TEST_BETWEEN(test_trouble__a_load_goes_on_when_a_save_lets_go_of_its_image, bed_set_up_stopped,
                 tear_down)
{
    struct slow_load slow = {0};
    bed->config.pool_bytes = 5 * MIB; /* one image */
    bed->config.limit_load_wait_ms = 6000;
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, 1);
    assert_true(save_step(peers, 1, 1));
    peers_close(peers, 1);
    bed_restart(bed);
    bed_open_world(bed, peers, 1);
    assert_int_equal(load_open(&slow.loading, bed, 1), 0);
    assert_int_equal(peer_begin(&peers[0], 2), 0);
    assert_int_equal(pthread_create(&slow.thread, NULL, load_slowly, &slow), 0);
    sleep_ms(200);
    peer_finish(&peers[0], 2);
    pthread_join(slow.thread, NULL);
    assert_int_equal(slow.error, 0);
    assert_true(shard_is_right(&slow.loading, 0, 1));
    load_close(&slow.loading);
}

BED_TEST_BETWEEN(test_trouble__short_descriptors_are_no_damage, bed_set_up, tear_down)
{
    struct loading loading;
    uint64_t step = 0;
    bed_open_world(bed, peers, 1);
    assert_true(save_step(peers, 1, 1));
    assert_int_equal(load_all(bed, -1, NULL), 0); /* all that a call opens for good is open */
    take_descriptors();
    int error = load_open(&loading, bed, -1);
    give_descriptors();
    assert_int_equal(error, ERR_BUSY);
    assert_int_equal(load_all(bed, -1, &step), 0);
    assert_int_equal(step, 1);
}

BED_TEST_BETWEEN(test_trouble__a_full_table_of_descriptors_does_not_spin_the_daemon, bed_set_up,
                 tear_down)
{
    struct timespec begin, end;
    clockid_t clock;
    assert_int_equal(call_hello(bed), 0);
    assert_int_equal(pthread_getcpuclockid(bed->thread, &clock), 0);
    take_descriptors();
    close(taken.fds[--taken.count]);
    int waiting = arena_connect(bed); /* takes the last one: ckptd cannot accept the connection */
    clock_gettime(clock, &begin);
    sleep_ms(500);
    clock_gettime(clock, &end);
    give_descriptors();
    close(waiting);
    int64_t used_ms = (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000;
    assert_true(used_ms < 50);
    bed_open_world(bed, peers, 1); /* ckptd accepts again */
}

/* An accepted connection needs more descriptors; others close some meanwhile. */
BED_TEST_BETWEEN(test_trouble__a_connection_that_lacks_descriptors_is_refused_alone, bed_set_up,
                 tear_down)
{
    char byte;
    int refused = 0;
    assert_int_equal(call_hello(bed), 0);
    for (int left = 2; left < 8; left++) {
        take_descriptors();
        for (int i = 0; i < left; i++)
            close(taken.fds[--taken.count]);
        int fd = bed_connect(bed, "s");
        refused += recv(fd, &byte, 1, 0) == 0; /* hung up */
        give_descriptors();
        close(fd);
        assert_int_equal(call_hello(bed), 0);
    }
    assert_true(refused >= 2);
}

BED_TEST_BETWEEN(test_trouble__a_load_is_refused_while_the_daemon_ends, bed_set_up, tear_down)
{
    struct loading loading;
    bed_open_world(bed, peers, 1);
    assert_true(save_step(peers, 1, 1));
    assert_int_equal(load_open(&loading, bed, -1), 0);
    assert_int_equal(peer_begin(&peers[0], 2), 0); /* the shutdown waits for it */
    service_drain(bed->service);
    sleep_ms(100);
    assert_int_equal(load_shard(&loading, 0, NULL), ERR_UNAVAILABLE);
    load_close(&loading);
    peer_finish(&peers[0], 2);
    assert_int_equal(wait_save(bed, 2, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
}

/* A killed ckptd may have placed the manifest before its name was durable: then the mark of the
 * save is there. A start syncs nothing in directories without a mark. */
BED_TEST_BETWEEN(test_trouble__a_start_syncs_what_has_a_mark_and_nothing_else, bed_set_up,
                 tear_down)
{
    bed_open_world(bed, peers, 1);
    assert_true(save_step(peers, 1, 1));
    peers_close(peers, 1);
    bed_stop(bed);
    forget_syncs();
    assert_int_equal(bed_start(bed), 0);
    assert_false(was_synced(bed, "/" RUN "/step-00000001-a0001"));
    assert_false(was_synced(bed, "/" RUN));
    bed_stop(bed);
    put_mark(bed->store, RUN, 1, 1);
    forget_syncs();
    assert_int_equal(bed_start(bed), 0);
    assert_true(was_synced(bed, "/" RUN "/step-00000001-a0001"));
    assert_true(was_synced(bed, "/" RUN));
    assert_true(was_synced(bed, ""));
}

/* The eventfd is one object with two holders: the rank's changes to it affect the daemon. */
BED_TEST_BETWEEN(test_trouble__a_rank_that_drains_its_own_eventfd_stops_nobody, bed_set_up,
                 tear_down)
{
    uint64_t one = 1, count;
    struct iovec place = {&count, sizeof count};
    bed_open_world(bed, peers, 1);
    assert_int_equal(fcntl(peers[0].event_fd, F_SETFL, 0), 0); /* now a read waits */
    int error = 0;
    for (int i = 0; i < 200 && error == 0; i++) {
        for (int k = 0; k < 500; k++) {
            (void)!write(peers[0].event_fd, &one, sizeof one);
            (void)!preadv2(peers[0].event_fd, &place, 1, -1, RWF_NOWAIT);
        }
        error = call_hello(bed);
    }
    (void)!write(peers[0].event_fd, &one, sizeof one); /* frees one that waits */
    assert_int_equal(error, 0);
    assert_true(save_step(peers, 1, 1));
}

/* Writes all over the image of the save that the peer began. */
static void scribble(struct peer *peer)
{
    for (uint64_t at = 0; at + 4096 <= peer->bytes; at += 4096)
        memset(peer_byte(peer, peer->data_byte + at), 0xee, 64);
}

BED_TEST_BETWEEN(test_trouble__an_image_is_lent_to_nobody_while_its_rank_may_copy,
                 bed_set_up_stopped, tear_down)
{
    struct loading loading;
    bed->config.pool_bytes = 6 * MIB; /* an image of each rank */
    bed->config.limit_load_wait_ms = 500;
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, RANKS);
    assert_true(save_step(peers, RANKS, 1));
    assert_int_equal(peer_begin(&peers[0], 2), 0);
    assert_int_equal(peer_begin(&peers[1], 2), 0);
    peer_abort(&peers[1]); /* rank 0 does not know yet */
    assert_int_equal(wait_save(bed, 2, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_FAILED);
    assert_int_equal(load_open(&loading, bed, 1), 0);
    assert_int_equal(load_shard(&loading, 0, NULL), 0); /* where the image of rank 1 was */
    int error = load_shard(&loading, 1, NULL);
    scribble(&peers[0]);
    assert_true(error != 0 || shard_is_right(&loading, 1, 1));
    assert_int_equal(error, ERR_BUSY);
    peer_announce(&peers[0], ARENA_ENTRY_END, 0, 0); /* as libckpt does at the end of its copies */
    assert_int_equal(load_shard(&loading, 1, NULL), 0);
    assert_true(shard_is_right(&loading, 1, 1));
    load_close(&loading);
}

BED_TEST_BETWEEN(test_trouble__a_rank_of_an_older_attempt_cannot_write_into_a_newer_one,
                 bed_set_up_stopped, tear_down)
{
    static struct peer newer[RANKS];
    bed->config.pool_bytes = 5 * MIB; /* one image */
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, 1);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    assert_int_equal(open_attempt(bed, 1), 0);
    assert_int_equal(peers_open(newer, bed, 1), 0);
    assert_int_equal(peer_begin(&newer[0], 1), ERR_BUSY);
    struct pollfd end = {.fd = peers[0].socket, .events = POLLIN | POLLRDHUP};
    assert_int_equal(poll(&end, 1, 0), 1); /* it can see that it is to stop */
    peers_close(peers, 1);
    int error = ERR_BUSY;
    for (int i = 0; i < 500 && error == ERR_BUSY; i++) {
        sleep_ms(10);
        error = peer_begin(&newer[0], 1);
    }
    assert_int_equal(error, 0);
    peer_finish(&newer[0], 1);
    assert_int_equal(wait_save(bed, 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    peers_close(newer, 1);
    assert_int_equal(load_all(bed, 1, NULL), 0);
}

SUITE(NULL, NULL)
