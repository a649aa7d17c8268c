/* calls.c - runs every call of a communicator, and records it in the flight recorder. */
#include "proto/base/report.h"
#include "proto/base/stacks.h"
#include "trainer/comm/private.h"

#include <stdatomic.h>
#include <string.h>

static const char *const names[NUM_COMM_KINDS] = {
    [COMM_SPLIT] = "split",
    [COMM_BARRIER] = "barrier",
    [COMM_BROADCAST] = "broadcast",
    [COMM_ALL_GATHER] = "all_gather",
    [COMM_ALL_TO_ALL] = "all_to_all",
    [COMM_SUM_I64] = "all_reduce of integers",
    [COMM_SUM_FLOATS] = "all_reduce of floats",
    [COMM_REDUCE_SCATTER] = "reduce_scatter",
    [COMM_SEND] = "send",
    [COMM_RECEIVE] = "receive",
    [COMM_WAIT] = "wait",
};

const char *comm_kind_name(enum comm_kind kind)
{
    return names[kind];
}

struct comm comm_base(const struct comm_ops *ops, uint32_t rank, uint32_t size,
                      struct flight *flight)
{
    return (struct comm){.ops = ops,
                         .rank = rank,
                         .size = size,
                         .name = "world",
                         .lane = "compute",
                         .flight = flight};
}

static size_t sum_of(const size_t *list, uint32_t num)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < num; i++)
        sum += list[i];
    return sum;
}

size_t comm_call_bytes(const struct comm *comm, const struct comm_call *call)
{
    switch (call->kind) {
    case COMM_ALL_GATHER:
    case COMM_ALL_TO_ALL:
        return sum_of(call->recv_bytes, comm->size);
    case COMM_REDUCE_SCATTER:
        return sum_of(call->counts, comm->size) * call->element;
    default:
        return call->bytes;
    }
}

size_t comm_call_sent(const struct comm *comm, const struct comm_call *call)
{
    size_t others = comm->size - 1;
    switch (call->kind) {
    case COMM_BROADCAST:
        return comm->rank == call->peer ? others * call->bytes : 0;
    case COMM_ALL_GATHER:
        return others * call->bytes;
    case COMM_ALL_TO_ALL:
        return sum_of(call->send_bytes, comm->size) - call->send_bytes[comm->rank];
    case COMM_SUM_I64:
    case COMM_SUM_FLOATS:
        return 2 * others * call->bytes / comm->size;
    case COMM_REDUCE_SCATTER:
        return comm_call_bytes(comm, call) - call->counts[comm->rank] * call->element;
    case COMM_SEND:
        return call->bytes;
    default:
        return 0;
    }
}

void comm_tell_site(const struct comm_call *call, char out[COMM_SITE_MAX])
{
    char where[FLIGHT_TEXT_MAX] = "";
    if (call->mark != NULL)
        flight_tell_mark(call->mark, where);
    snprintf(out, COMM_SITE_MAX, "%s%s", call->site, where);
}

int comm_mismatch(const struct comm *comm, const struct comm_call *call, uint32_t other_rank,
                  enum comm_kind other_kind, const char *other_site)
{
    char site[COMM_SITE_MAX];
    comm_tell_site(call, site);
    return report_error(ERR_MISMATCH,
                        "report this defect: all ranks of a group must make the same call",
                        "call %llu of %s: rank %u makes %s at %s, rank %u makes %s at %s",
                        (unsigned long long)comm->num_calls, comm->name, comm->rank,
                        names[call->kind], site, other_rank, names[other_kind], other_site);
}

struct comm_sign comm_sign(const struct comm *comm, const struct comm_call *call)
{
    struct comm_sign sign = {.kind = call->kind, .peer = call->peer, .bytes = call->bytes};
    if (call->kind == COMM_ALL_GATHER || call->kind == COMM_REDUCE_SCATTER) /* parts may differ */
        sign.bytes = comm_call_bytes(comm, call);
    comm_tell_site(call, sign.site);
    return sign;
}

int comm_compare(const struct comm *comm, const struct comm_call *call, const struct comm_sign *all)
{
    struct comm_sign mine = comm_sign(comm, call);
    for (uint32_t r = 0; r < comm->size; r++)
        if (memcmp(&all[r], &mine, offsetof(struct comm_sign, site)) != 0)
            return comm_mismatch(comm, call, r, (enum comm_kind)all[r].kind, all[r].site);
    return 0;
}

#define STILL_MAX 80u

/* " (the process of rank 1 has shown no sign of life for 5.3 s)", or "": none does that is known.
 */
static void tell_still(const struct comm *comm, char out[STILL_MAX])
{
    struct flight_options options = flight_options_of(comm->flight);
    struct flight_still still;
    out[0] = '\0';
    if (flight_find_still(&still, options.folder, options.prefix) ||
        flight_ask_still(comm->flight, &still))
        snprintf(out, STILL_MAX, " (the process of rank %u has shown no sign of life for %.1f s)",
                 still.rank, still.seconds);
}

int comm_late(const struct comm *comm, const struct comm_call *call)
{
    static atomic_flag is_dumped = ATOMIC_FLAG_INIT;
    char site[COMM_SITE_MAX], still[STILL_MAX];
    comm_tell_site(call, site);
    tell_still(comm, still);
    if (!atomic_flag_test_and_set(&is_dumped)) /* other lanes time out for the same reason */
        stacks_dump_all("a wait for other ranks was too long");
    return report_error(ERR_UNAVAILABLE,
                        "see which rank did not join (ckpt-cli server history RUN; trainer "
                        "--flight FOLDER), and start the run again",
                        "rank %u of %s waited longer than %s in %s at %s%s", comm->rank, comm->name,
                        flight_limit_setting(comm->flight), names[call->kind], site, still);
}

/* True for an error whose reason another rank or lane has. */
static bool is_silent(int rc)
{
    return rc == ERR_UNAVAILABLE && report_message()[0] == '\0';
}

static int run(struct comm *comm, const struct comm_call *call)
{
    flight_call_begins(comm->flight);
    int rc = comm->ops->run(comm, call);
    flight_call_ends(comm->flight);
    bool is_told = comm->ops->is_failed != NULL && comm->ops->is_failed(comm);
    if (rc != 0 && !is_silent(rc) && !is_told) {
        struct report_text text;
        report_keep(&text);
        flight_dump(comm->flight, rc == ERR_MISMATCH ? "calls differ" : "a call failed");
        rc = report_restore(&text, rc);
    }
    if (rc == 0 && call->kind == COMM_SPLIT) {
        (*call->out)->flight = comm->flight;
        (*call->out)->name = "a part of the world";
        (*call->out)->lane = comm->lane;
    }
    return rc;
}

int comm_run(struct comm *comm, const struct comm_call *call)
{
    if (call->kind == COMM_WAIT) {
        int waited = run(comm, call);
        flight_end(comm->flight, call->request->record, waited);
        return waited;
    }
    uint64_t id = flight_begin(comm->flight, comm, call);
    struct flight_mark mark = flight_mark(comm->flight);
    struct comm_call told = *call; /* the call as other ranks see it; they may make another */
    told.mark = &mark;
    flight_start(comm->flight, id);
    int rc = run(comm, call->kind < COMM_SEND ? &told : call);
    if (call->kind == COMM_SEND && rc == 0)
        call->request->record = id; /* the record ends with the wait */
    else
        flight_end(comm->flight, id, rc);
    if (call->kind < COMM_SEND) /* messages may be made by another thread */
        comm->num_calls++;
    return rc;
}

void comm_free(struct comm *comm)
{
    if (comm != NULL)
        comm->ops->free(comm);
}

int comm_fail(struct comm *world, int error)
{
    if (is_silent(error) || world->ops->fail == NULL || world->ops->fail(world, error))
        return error;
    report_clear();
    return ERR_UNAVAILABLE;
}

void comm_abort(struct comm *comm, int exit_code)
{
    flight_dump(comm->flight, "all ranks are ended");
    comm->ops->abort(comm, exit_code);
}
