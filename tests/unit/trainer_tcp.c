/* trainer_tcp.c - processes that meet over TCP (trainer/tcp).
 *
 * Goal: every byte of host memory arrives in groups of any cut, from several threads of a rank. A
 * rank that does not come, comes twice, has another size, calls another operation or is killed is
 * named to the others. No rank waits for ever. Method: ranks are processes of this machine that are
 * forked for each test; bytes are a function of sender, receiver and place. torchrun's store is
 * simulated by a server with a thread for each connection. */
#include "proto/base/report.h"
#include "tests/unit/comm_rounds.h"
#include "tests/unit/suite.h"
#include "trainer/comm/flight.h"
#include "trainer/comm/tcp/tcp.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS 4u
#define PATIENCE 20 /* seconds; no test waits for so long */

/* The messages of the processes, in memory that they share with the test. */
struct said {
    char text[512];
    int rc;
    uint32_t num_wrong, is_lost;
};
static struct said *said; /* [RANKS] */
static char port[8];

/* ---- A rank ---- */

static int all_calls(struct comm *comm)
{
    int64_t sums[3] = {comm->rank, -5, INT64_C(1) << 60};
    ERR_TRY(comm_barrier(comm));
    ERR_TRY(all_to_all_rounds(comm, NULL));
    ERR_TRY(gather_rounds(comm, NULL));
    ERR_TRY(comm_all_reduce_i64(comm, sums, 3));
    want(sums[0] == comm->size * (comm->size - 1) / 2);
    want(sums[1] == -5 * (int64_t)comm->size);
    want(sums[2] == (int64_t)comm->size << 60);
    return 0;
}

/* In the world, in pairs from the other end, and in a group of one or three. */
static int everywhere(struct comm *world)
{
    struct comm *pair = NULL, *odd = NULL;
    int rc = all_calls(world);
    if (rc == 0)
        rc = comm_split(world, &pair, world->rank % 2, RANKS - world->rank);
    if (rc == 0)
        rc = comm_split(world, &odd, world->rank == 2, 0);
    if (rc == 0) {
        want(pair->size == 2 && pair->rank == (world->rank < 2));
        want(odd->size == (world->rank == 2 ? 1 : 3));
        want(odd->rank == (world->rank == 3 ? 2 : world->rank % 2));
        rc = all_calls(pair);
    }
    if (rc == 0)
        rc = all_calls(odd);
    comm_free(pair);
    if (rc == 0)
        rc = all_calls(odd);
    comm_free(odd);
    return rc;
}

struct waiter {
    struct comm *group;
    int rc;
};

static void *wait_in_group(void *argument)
{
    struct waiter *waiter = argument;
    waiter->rc = gather_rounds(waiter->group, NULL);
    return NULL;
}

/* Two threads in separate groups; half the ranks begin with the other one. */
static int beside_each_other(struct comm *world)
{
    struct waiter waiters[2] = {{NULL, 0}, {NULL, 0}};
    pthread_t thread;
    int rc = comm_split(world, &waiters[0].group, 0, world->rank);
    if (rc == 0)
        rc = comm_split(world, &waiters[1].group, 0, world->rank);
    if (rc == 0) {
        struct timespec late = {.tv_nsec = 50000000};
        rc = pthread_create(&thread, NULL, wait_in_group, &waiters[world->rank % 2]);
        nanosleep(&late, NULL);
        wait_in_group(&waiters[(world->rank + 1) % 2]);
        pthread_join(thread, NULL);
        rc = waiters[0].rc != 0 ? waiters[0].rc : waiters[1].rc;
    }
    comm_free(waiters[1].group);
    comm_free(waiters[0].group);
    return rc;
}

static int one_is_killed(struct comm *world)
{
    struct comm *group = NULL;
    ERR_TRY(comm_split(world, &group, 0, world->rank));
    ERR_TRY(comm_barrier(group));
    if (world->rank == 2)
        raise(SIGKILL);
    int rc = comm_barrier(group);
    comm_free(group);
    return rc;
}

static int the_first_is_killed(struct comm *world)
{
    int rc = comm_barrier(world);
    if (world->rank == 0)
        raise(SIGKILL);
    return rc == 0 ? comm_barrier(world) : rc;
}

/* Rank 1 has an error and does not call; it reports it, or just ends. */
static int one_ends(struct comm *world)
{
    return world->rank == 1 ? report_error(ERR_IO, NULL, "this rank ends") : comm_barrier(world);
}

static int one_fails(struct comm *world)
{
    int rc = world->rank == 1 ? comm_fail(world, report_error(ERR_IO, NULL, "this rank ends"))
                              : comm_barrier(world);
    while (world->rank == 1 && !world->ops->is_failed(world))
        usleep(1000);
    return rc;
}

static int one_calls_something_else(struct comm *world)
{
    int64_t number = 1;
    return world->rank == 3 ? comm_all_reduce_i64(world, &number, 1) : comm_barrier(world);
}

static int one_does_not_call(struct comm *world)
{
    flight_set_limit(world->flight, 1, "comm.train_timeout_seconds");
    while (world->rank == 1 && !world->ops->is_failed(world))
        usleep(1000);
    return world->rank == 1 ? ERR_UNAVAILABLE : comm_barrier(world);
}

/* ---- Their processes ---- */

typedef int work_fn(struct comm *world);

static _Noreturn void be_rank(const struct tcp_options *options, work_fn *work, struct said *out)
{
    struct flight_options flight = {.num_records = 16, .timeout_seconds = PATIENCE, .folder = ""};
    struct comm *world = NULL;
    alarm(PATIENCE); /* no rank waits for ever */
    out->rc = comm_tcp_open(&world, options);
    if (out->rc == 0)
        out->rc = flight_set(world->flight, &flight);
    if (out->rc == 0)
        out->rc = work(world);
    out->num_wrong = (uint32_t)num_wrong;
    snprintf(out->text, sizeof(out->text), "%s", out->rc != 0 ? report_line() : "");
    out->is_lost = world != NULL && world->is_lost;
    if (out->is_lost)
        comm_abort(world, EXIT_RUN_AGAIN);
    comm_free(world);
    _exit(out->rc == 0 ? 0 : 1);
}

/* Starts a process for each of the options. */
static void start_as(pid_t pids[RANKS], const struct tcp_options *options, uint32_t num,
                     work_fn *work)
{
    memset(said, 0, RANKS * sizeof(*said));
    for (uint32_t i = 0; i < num; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0)
            be_rank(&options[i], work, &said[i]);
    }
}

/* Returns how many processes ended as one that did its work. */
static uint32_t wait_for(const pid_t pids[RANKS], uint32_t num)
{
    uint32_t num_well = 0;
    for (uint32_t i = 0; i < num; i++) {
        int status = 0;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
            fail_msg("process %u waited for ever", i);
        num_well += WIFEXITED(status) && WEXITSTATUS(status) == 0 && said[i].num_wrong == 0;
    }
    return num_well;
}

static uint32_t run_as(const struct tcp_options *options, uint32_t num, work_fn *work)
{
    pid_t pids[RANKS];
    start_as(pids, options, num, work);
    return wait_for(pids, num);
}

static void options_of(struct tcp_options options[RANKS], int64_t seconds)
{
    take_port(port);
    for (uint32_t r = 0; r < RANKS; r++)
        options[r] = (struct tcp_options){.rank = r,
                                          .size = RANKS,
                                          .host = "127.0.0.1",
                                          .port = port,
                                          .timeout_seconds = seconds};
}

static uint32_t run(work_fn *work)
{
    struct tcp_options options[RANKS];
    options_of(options, PATIENCE);
    return run_as(options, RANKS, work);
}

static void want_said(uint32_t process, int rc, const char *text)
{
    if (said[process].rc != rc || strstr(said[process].text, text) == NULL)
        fail_msg("process %u: %s: \"%s\", and no \"%s\"", process, err_name(said[process].rc),
                 said[process].text, text);
}

/* ---- Tests ---- */

TEST(test_tcp__every_byte_arrives_in_groups_of_any_cut)
{
    assert_int_equal(run(everywhere), RANKS);
}

TEST(test_tcp__threads_of_a_rank_wait_in_different_groups)
{
    assert_int_equal(run(beside_each_other), RANKS);
}

TEST(test_tcp__a_rank_that_is_killed_ends_the_others)
{
    assert_int_equal(run(one_is_killed), 0);
    for (uint32_t r = 0; r < RANKS; r++)
        if (r != 2)
            want_said(r, ERR_UNAVAILABLE, "rank 2 has ended");
    assert_int_equal(run(the_first_is_killed), 0);
    for (uint32_t r = 1; r < RANKS; r++)
        want_said(r, ERR_UNAVAILABLE, "lost its connection to rank 0");
}

TEST(test_tcp__a_rank_that_ends_ends_the_others)
{
    assert_int_equal(run(one_ends), 0);
    want_said(1, ERR_IO, "this rank ends");
    want_said(0, ERR_UNAVAILABLE, "rank 1 of a group has closed its connection");
    assert_int_equal(run(one_fails), 0);
    want_said(1, ERR_IO, "this rank ends");
    want_said(3, ERR_UNAVAILABLE, "rank 1 has ended");
}

TEST(test_tcp__ranks_that_call_something_else_are_named)
{
    assert_int_equal(run(one_calls_something_else), 0);
    want_said(3, ERR_MISMATCH, "rank 3 makes all_reduce of integers at tests/unit/trainer_tcp.c");
    want_said(3, ERR_MISMATCH, "rank 0 makes barrier at tests/unit/trainer_tcp.c");
    want_said(0, ERR_MISMATCH, "rank 3 makes all_reduce of integers");
}

TEST(test_tcp__a_rank_that_does_not_call_is_waited_for_as_long_as_was_said)
{
    assert_int_equal(run(one_does_not_call), 0);
    want_said(0, ERR_UNAVAILABLE, "");
    bool is_late = false;
    for (uint32_t r = 0; r < RANKS; r++)
        is_late |= strstr(said[r].text, "waited longer than comm.train_timeout_seconds") != NULL;
    assert_true(is_late);
}

TEST(test_tcp__ranks_that_do_not_come_are_named_to_those_that_did)
{
    struct tcp_options options[RANKS];
    options_of(options, 1);
    options[1] = options[3]; /* of 0 to 3 there are 0 and 3 */
    assert_int_equal(run_as(options, 2, everywhere), 0);
    for (uint32_t i = 0; i < 2; i++)
        want_said(i, ERR_UNAVAILABLE, "rank 1, 2 of 4 did not connect within comm.init_timeout");
    options_of(options, 1);
    assert_int_equal(run_as(options + 1, 1, everywhere), 0);
    want_said(0, ERR_UNAVAILABLE, "could not connect to 127.0.0.1:");
    want_said(0, ERR_UNAVAILABLE, port);
}

TEST(test_tcp__a_process_that_does_not_belong_is_refused)
{
    struct tcp_options options[RANKS];
    options_of(options, 1);
    options[3].rank = 2; /* twice; and rank 3 is missing */
    assert_int_equal(run_as(options, RANKS, everywhere), 0);
    bool first = said[2].rc == ERR_INVALID;
    want_said(first ? 2 : 3, ERR_INVALID, "another process is rank 2 of this run");
    want_said(first ? 3 : 2, ERR_UNAVAILABLE, "rank 3 of 4 did not connect");
    options_of(options, 1);
    options[3].size = 8;
    assert_int_equal(run_as(options, RANKS, everywhere), 0);
    want_said(3, ERR_INVALID, "this process is rank 3 of 8, but rank 0 has a WORLD_SIZE of 4");
}

TEST(test_tcp__a_second_rank_0_is_told_that_the_port_is_taken)
{
    struct tcp_options options[RANKS];
    options_of(options, 1);
    options[1].rank = 0;
    options[0].size = options[1].size = 2;
    assert_int_equal(run_as(options, 2, everywhere), 0);
    bool first = said[0].rc == ERR_BUSY;
    want_said(first ? 0 : 1, ERR_BUSY, "another process uses it");
    want_said(first ? 1 : 0, ERR_UNAVAILABLE, "rank 1 of 2 did not connect");
}

TEST(test_tcp__the_environment_says_who_a_process_is)
{
    struct tcp_options options;
    const char *const names[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
    const char *const values[] = {"3", "4", "node0", "29500"};
    for (size_t i = 0; i < 4; i++)
        setenv(names[i], values[i], 1);
    assert_int_equal(tcp_options_of_environment(&options), 0);
    assert_int_equal(options.rank, 3);
    assert_int_equal(options.size, 4);
    assert_string_equal(options.host, "node0");
    assert_string_equal(options.port, "29500");
    assert_string_equal(options.store_key, "");
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
    assert_int_equal(tcp_options_of_environment(&options), 0);
    assert_string_equal(options.store_key, "holdfast//2/port");
    setenv("RANK", "4", 1);
    assert_int_equal(tcp_options_of_environment(&options), ERR_INVALID);
    assert_non_null(strstr(report_line(), "RANK is \"4\", not a number from 0 to 3"));
    setenv("WORLD_SIZE", "x", 1);
    assert_int_equal(tcp_options_of_environment(&options), ERR_INVALID);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    unsetenv("TORCHELASTIC_RESTART_COUNT");
    for (size_t i = 0; i < 4; i++)
        unsetenv(names[i]);
}

/* ---- A store of torchrun ---- */

static int get(int fd, void *data, size_t bytes)
{
    return recv(fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes ? 0 : -1;
}

static int get_text(int fd, char out[256])
{
    uint64_t length;
    if (get(fd, &length, sizeof(length)) != 0 || length > 255)
        return -1;
    out[length] = '\0';
    return get(fd, out, length);
}

static char kept_key[256], kept_value[256];
static pthread_mutex_t store_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t store_changed = PTHREAD_COND_INITIALIZER;

/* Requests of one connection: a key that was set, one that is waited for, its value. */
static void *serve_one(void *argument)
{
    int fd = *(int *)argument;
    uint8_t kind;
    uint32_t magic = 0;
    uint64_t num;
    char key[256];
    free(argument);
    bool is_well =
        get(fd, &kind, 1) == 0 && kind == 0 && get(fd, &magic, 4) == 0 && magic == 0x3C85F7CE;
    while (is_well && get(fd, &kind, 1) == 0) {
        if (kind == 6 && (get(fd, &num, sizeof(num)) != 0 || num != 1))
            break;
        if (get_text(fd, key) != 0)
            break;
        pthread_mutex_lock(&store_lock);
        if (kind == 1 && get_text(fd, kept_value) == 0) {
            snprintf(kept_key, sizeof(kept_key), "%s", key);
            pthread_cond_broadcast(&store_changed);
        }
        while (kind != 1 && strcmp(kept_key, key) != 0)
            pthread_cond_wait(&store_changed, &store_lock);
        num = strlen(kept_value);
        if (kind == 6)
            (void)send(fd, "", 1, MSG_NOSIGNAL);
        if (kind == 3)
            (void)(send(fd, &num, sizeof(num), MSG_NOSIGNAL) +
                   send(fd, kept_value, num, MSG_NOSIGNAL));
        pthread_mutex_unlock(&store_lock);
    }
    close(fd);
    return NULL;
}

static void *serve_store(void *argument)
{
    int listener = *(int *)argument, fd;
    pthread_t thread;
    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        int *one = malloc(sizeof(*one));
        *one = fd;
        if (pthread_create(&thread, NULL, serve_one, one) == 0)
            pthread_detach(thread);
    }
    return NULL;
}

TEST(test_tcp__where_torchrun_has_the_port_its_store_tells_that_of_rank_0)
{
    struct tcp_options options[RANKS];
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    pid_t pids[RANKS];
    pthread_t thread;
    options_of(options, PATIENCE);
    own.sin_port = htons((uint16_t)atoi(port));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    assert_int_equal(bind(listener, (struct sockaddr *)&own, sizeof(own)), 0);
    assert_int_equal(listen(listener, 16), 0);
    for (uint32_t r = 0; r < RANKS; r++)
        snprintf(options[r].store_key, sizeof(options[r].store_key), "holdfast/a/0/port");
    start_as(pids, options, RANKS, everywhere); /* before there are threads, which no fork copies */
    assert_int_equal(pthread_create(&thread, NULL, serve_store, &listener), 0);
    assert_int_equal(wait_for(pids, RANKS), RANKS);
    pthread_mutex_lock(&store_lock);
    assert_string_equal(kept_key, "holdfast/a/0/port");
    assert_string_not_equal(kept_value, port);
    pthread_mutex_unlock(&store_lock);
    shutdown(listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(listener);
}

int main(void)
{
    said = mmap(NULL, RANKS * sizeof(*said), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                0);
    if (said == MAP_FAILED)
        return 1;
    return suite_run(NULL, NULL);
}
