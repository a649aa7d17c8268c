/* check_clients_crowd.c - many ranks of one user that start at once on one node.
 *
 * Goal: when a user has used up its budget (proto/wire/rpc_budget.h) its ranks are delayed and none
 * fails. libckpt waits out the second in which the user may not connect, within its limits. Method:
 * a real ckptd that admits another user, and a process of that user. It opens connections until the
 * kernel refuses it. Then 200 ranks, as threads, open at once, describe their tensors during more
 * such floods, and save. */
#include "tests/unit/clients_bed.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

enum {
    CLIENTS = 200,
    USER = 12345,
    TRIES_MAX = 20000,
    COLUMNS = 16,
    STEPS_MAX = 60,
    STEP_MS = 500,
    FLOODS = 4,
    FLOOD_PAUSE_MS = 1050
};

struct crowd {
    const char *server;
    uint64_t attempt;
    pthread_barrier_t barrier;
    pthread_t flood;
    atomic_int failures, begun;
};
struct member {
    struct crowd *crowd;
    uint32_t rank;
    pthread_t thread;
};

static void note_failure(struct crowd *crowd, const struct member *member, const char *what)
{
    if (crowd->failures++ < 5)
        fprintf(stderr, "# rank %u: %s: %s\n", member->rank, what, ckpt_error());
}

/* Like a trainer: all together or not at all, and again with the next step. */
static int save_row(struct crowd *crowd, struct ckpt *ckpt, uint32_t rank)
{
    for (uint64_t step = 1; step <= STEPS_MAX; step++) {
        struct ckpt_save *save = NULL;
        int error = ckpt_save_begin(ckpt, &save, step, rank == 0 ? "{\"mark\":1}" : NULL);
        crowd->begun += error == 0;
        pthread_barrier_wait(&crowd->barrier);
        bool is_whole = crowd->begun == CLIENTS;
        pthread_barrier_wait(&crowd->barrier);
        crowd->begun = 0;
        if (is_whole) {
            ckpt_save_copy(save, 0);
            error = ckpt_save_end(save);
            return error == 0 ? ckpt_save_wait(ckpt, step, 60000) : error;
        }
        if (error == 0)
            ckpt_save_abort(save);
        sleep_ms(STEP_MS);
    }
    return CKPT_TIMEOUT;
}

/* Connects until the kernel refuses. */
static bool get_shut_out(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    for (int i = 0; i < TRIES_MAX; i++) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int rc = connect(fd, (struct sockaddr *)&address, sizeof address), reason = errno;
        close(fd);
        if (rc != 0)
            return reason == EACCES;
    }
    return false;
}

/* Meanwhile the ranks describe. */
static void *flood_again(void *argument)
{
    const struct crowd *crowd = argument;
    for (int i = 0; i < FLOODS; i++, sleep_ms(FLOOD_PAUSE_MS))
        get_shut_out(crowd->server + strlen("unix:"));
    return NULL;
}

static void *run_member(void *argument)
{
    struct member *member = argument;
    struct crowd *crowd = member->crowd;
    struct ckpt *ckpt = NULL;
    float row[COLUMNS];
    struct ckpt_tensor tensor = {.name = "rows",
                                 .dtype = "F32",
                                 .dims = 2,
                                 .shape = {CLIENTS, COLUMNS},
                                 .offset = {member->rank},
                                 .extent = {1, COLUMNS},
                                 .data = row};
    for (uint32_t i = 0; i < COLUMNS; i++)
        row[i] = (float)(member->rank * COLUMNS + i);
    if (ckpt_open(&ckpt, &(struct ckpt_options){.server = crowd->server,
                                                .run = RUN,
                                                .rank = member->rank,
                                                .world_size = CLIENTS}) != 0)
        note_failure(crowd, member, "open");
    else if (member->rank == 0 && ckpt_attempt_open(ckpt, &crowd->attempt, NULL, NULL) != 0)
        note_failure(crowd, member, "attempt");
    if (member->rank == 0 && pthread_create(&crowd->flood, NULL, flood_again, crowd) != 0)
        note_failure(crowd, member, "the flood");
    pthread_barrier_wait(&crowd->barrier);
    if (crowd->failures == 0 && ckpt_describe(ckpt, crowd->attempt, &tensor, 1) != 0)
        note_failure(crowd, member, "describe");
    if (member->rank == 0)
        pthread_join(crowd->flood, NULL);
    pthread_barrier_wait(&crowd->barrier);
    if (crowd->failures == 0 && save_row(crowd, ckpt, member->rank) != 0)
        note_failure(crowd, member, "save");
    ckpt_close(ckpt);
    return NULL;
}

/* The process of the other user: 0 when all checks pass. */
static int run_crowd(const char *server)
{
    struct crowd crowd = {.server = server};
    static struct member members[CLIENTS];
    /* grp.h has another struct group */
    if (syscall(SYS_setgroups, 0, NULL) != 0 || setgid(USER) != 0 || setuid(USER) != 0)
        return 2;
    if (!get_shut_out(server + strlen("unix:"))) {
        fprintf(stderr, "# user %d was not shut out\n", USER);
        return 3;
    }
    pthread_barrier_init(&crowd.barrier, NULL, CLIENTS);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        members[i] = (struct member){.crowd = &crowd, .rank = i};
        if (pthread_create(&members[i].thread, NULL, run_member, &members[i]) != 0)
            return 4;
    }
    for (uint32_t i = 0; i < CLIENTS; i++)
        pthread_join(members[i].thread, NULL);
    return crowd.failures == 0 ? 0 : 1;
}

static bool answers(const struct bed *bed)
{
    for (int i = 0; i < 200; i++, sleep_ms(50))
        if (access(bed->server + strlen("unix:"), F_OK) == 0)
            return true;
    return false;
}

static void test_crowd__ranks_that_start_while_their_user_is_shut_out_all_save(void **state)
{
    struct bed *bed = *state;
    if (geteuid() != 0)
        skip(); /* only root can be another user */
    configure_ckptd(bed, "[access]\nuids = \"12345\"\n");
    chmod(bed->root, 0755);
    assert_true(answers(bed));
    pid_t child = fork(); /* before any thread of gRPC is there */
    if (child == 0)
        _exit(run_crowd(bed->server));
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static int bed_open_large(void **state)
{
    return bed_open_with(state, "512MiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
        test_crowd__ranks_that_start_while_their_user_is_shut_out_all_save, bed_open_large,
        bed_close)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
