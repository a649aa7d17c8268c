/* trainer_execute.c - a rank that cannot continue its program ends the others, and itself.
 *
 * Goal: when any operation of the computing thread or of a lane fails, every rank ends at once, and
 * only the failed rank has the reason. Method: ranks are threads, on a mesh of stages and shards or
 * tensor parallel. One of them fails in one operation, or in one call of its communicators before
 * the call is made, one after the other until no failure is left. A wait that no failure ends lasts
 * LATE_SECONDS, and then has its own reason. With --mpi ranks are processes and one call fails
 * (tests/integration/comm_mpi.sh). */
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"
#include "trainer/comm/flight.h"
#include "trainer/parallel/execution.h"

#include <stdatomic.h>
#include <time.h>

#define RANKS 4u
#define LATE_SECONDS 10

/* Without stages parameters are gathered for every leaf. */
enum form { STAGES_AND_SHARDS, STAGES_AND_TENSOR, SHARDS };

struct failing {
    struct config config;
    enum form form;
    uint32_t rank;           /* that fails */
    uint32_t at_op, at_call; /* counted from 1; 0: in none */
    bool while_computing;    /* in a gather, while the rank is within the next operation */
    struct walk execution[RANKS];
    struct model_batch batch[RANKS];
    char said[RANKS][512]; /* a rank's error */
    int result[RANKS];
    /* Of the rank that fails. */
    uint32_t num_ops;
    atomic_uint num_calls;
    atomic_bool is_armed, is_due, is_within;
    atomic_uint num_ended; /* other ranks */
};

static struct failing *bed;
static struct comm_ops failing_ops;
static const struct comm_ops *real_ops;

/* ---- failures ---- */

static bool wait_until(atomic_bool *condition, int64_t ms)
{
    for (int64_t i = 0; i < ms && !*condition; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return *condition;
}

static int made_to_fail(void)
{
    return report_error(ERR_IO, NULL, "made to fail");
}

/* Every call of the rank that fails. */
static int run_failing(struct comm *comm, const struct comm_call *call)
{
    bool is_call = atomic_fetch_add(&bed->num_calls, 1) + 1 == bed->at_call;
    bool is_gather = strcmp(comm->lane, lane_name(LANE_GATHER)) == 0 && bed->while_computing;
    if (is_gather && bed->is_armed) {
        bed->is_due = true;
        (void)wait_until(&bed->is_within, 1000 * LATE_SECONDS);
        is_call = true;
    }
    return is_call ? made_to_fail() : real_ops->run(comm, call);
}

/* The rank computes, and does not notice a failed lane of its own. */
static void stay_within(void)
{
    bed->is_armed = true;
    if (bed->is_within || !wait_until(&bed->is_due, 20))
        return;
    bed->is_within = true;
    for (int i = 0; i < 1000 * LATE_SECONDS && bed->num_ended == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static int at_op(struct parallel *p, struct walk *e, const struct op *op)
{
    uint32_t rank = p->plan->mesh.world->rank;
    if (op->kind == OP_BEGIN)
        e->batch = &bed->batch[rank];
    if (rank != bed->rank)
        return 0;
    if (bed->while_computing && op->kind == OP_FORWARD && op->leaf > 0)
        stay_within();
    return ++bed->num_ops == bed->at_op ? made_to_fail() : 0;
}

/* ---- a rank ---- */

static void fail_calls(struct parallel *p)
{
    real_ops = p->plan->mesh.world->ops;
    failing_ops = *real_ops;
    failing_ops.run = run_failing;
    for (uint32_t group = 0; group < NUM_GROUPS; group++)
        if (p->plan->mesh.of[group] != NULL)
            p->plan->mesh.of[group]->ops = &failing_ops;
}

static int run_step(struct rank *r, void *user)
{
    struct failing *f = user;
    struct flight_options options = {
        .num_records = 64, .timeout_seconds = LATE_SECONDS, .folder = "", .prefix = ""};
    ERR_TRY(flight_set(r->world->flight, &options));
    f->batch[r->world->rank] = step_batch(r->p, &r->p->run.tokens[0]); /* zeros do */
    f->execution[r->world->rank].at_op = at_op;
    ERR_TRY(comm_barrier(r->world));
    if (r->world->rank == f->rank)
        fail_calls(r->p);
    /* A rank whose program needs nothing more of the failed rank learns of the failure here. */
    int rc = parallel_agree(
        r->world, execute_program(r->p, r->p->run.program, &f->execution[r->world->rank]));
    /* With MPI, which may still write into its receive buffers: nothing is freed. */
    if (r->world->is_lost) {
        fprintf(stderr, "rank %u: %s\n", r->world->rank, report_line());
        comm_abort(r->world, EXIT_RUN_AGAIN);
    }
    return rc;
}

static int failing_rank(struct comm *world, void *user)
{
    struct failing *f = user;
    struct rank_options options = {
        .config = &f->config, .run = run_step, .user = f, .has_no_data = true};
    int rc = on_rank(world, &options);
    f->result[world->rank] = rc;
    snprintf(f->said[world->rank], sizeof(f->said[0]), "%s", rc != 0 ? report_line() : "");
    f->num_ended += world->rank != f->rank;
    return rc;
}

static void configure_mesh(struct failing *f, const char *backend)
{
    static const char *const forms[] = {
        [STAGES_AND_SHARDS] = "canonical.micro_batches=8 parallelism.pipeline_parallel_degree=2"
                              " parallelism.data_parallel_shard_degree=2",
        [STAGES_AND_TENSOR] = "canonical.micro_batches=2 parallelism.pipeline_parallel_degree=2"
                              " parallelism.tensor_parallel_degree=2",
        [SHARDS] = "canonical.micro_batches=8 parallelism.data_parallel_shard_degree=4",
    };
    f->config = configure(settings("model.tied_embeddings=true canonical.tp_blocks=2"
                                   " canonical.cp_blocks=2 comm.backend=%s %s",
                                   backend, forms[f->form]));
    bed = f;
}

/* True when a rank has failed: then all ranks have, and one gives the reason. */
static bool fails(struct failing *f)
{
    configure_mesh(f, "local");
    int rc = comm_local_run(RANKS, failing_rank, f);
    if (rc == 0)
        return false;
    assert_int_equal(rc, ERR_IO);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        const char *wanted = rank == f->rank ? "made to fail" : "";
        if (f->result[rank] == 0 || strcmp(f->said[rank], wanted) != 0)
            fail_msg("rank %u fails in operation %u or call %u; rank %u ends with %d and says: %s",
                     f->rank, f->at_op, f->at_call, rank, f->result[rank], f->said[rank]);
    }
    return true;
}

/* ---- tests ---- */

/* The plain kernels are slow, and under the thread sanitizer fifty times slower: fewer places. */
static uint32_t stride(void)
{
    return wants_plain_kernels() ? 13 : 1;
}

TEST(test_execute__an_operation_that_fails_ends_all_ranks)
{
    for (uint32_t rank = 0; rank < RANKS; rank += RANKS - 1) {
        uint32_t at = 1;
        while (fails(&(struct failing){.rank = rank, .at_op = at}))
            at += stride();
        assert_true(at > 10);
    }
}

TEST(test_execute__a_call_that_a_lane_does_not_make_ends_all_ranks)
{
    for (uint32_t i = 0; i < 4; i++) {
        enum form form = i < 2 ? STAGES_AND_SHARDS : STAGES_AND_TENSOR;
        uint32_t at = 1, rank = i % 2 * (RANKS - 1);
        while (fails(&(struct failing){.form = form, .rank = rank, .at_call = at}))
            at += stride();
        assert_true(at > 10);
    }
}

TEST(test_execute__a_lane_that_fails_ends_the_others_while_its_rank_computes)
{
    struct failing f = {.form = SHARDS, .rank = 1, .while_computing = true};
    assert_true(fails(&f));
    assert_true(f.is_within);
}

/* The job ends with the status of the rank that failed. */
static int fail_under_mpi(void)
{
    static struct failing f = {.rank = 1, .at_call = 8};
    struct comm *world;
    snprintf(tokens_path, sizeof(tokens_path), "unread");
    configure_mesh(&f, "mpi");
    int rc = comm_mpi_open(&world);
    return rc != 0 ? rc : failing_rank(world, &f);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--mpi") == 0)
        return fail_under_mpi();
    return suite_run(make_tokens, remove_tokens);
}
