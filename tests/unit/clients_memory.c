/* clients_memory.c - each allocation of libckpt fails, once and for ever, against a real ckptd.
 *
 * Goal: out of memory is reported as an error of the call that needed memory. The same call works
 * when there is memory again. A save that could not be begun or copied affects no other. Committed
 * checkpoints stay whole and load bit by bit, and no run leaks an allocation or a descriptor.
 * Method: one rank opens, describes, saves, loads, loses its session and saves again, with
 * memory_bed.h between libckpt and the system. The first runs record the places of allocations.
 * Then each place of the sample fails at its first encounter, once, and in another run together
 * with all later allocations; and once at a random later encounter. SEED= repeats that; SAMPLE=1
 * takes every place (sample.h), TORTURE=1 each allocation by its number, too. Mappings and
 * allocations by other code of the process during the calls are included. */
#include "clients/session.h"
#include "proto/base/report.h"
#include "tests/unit/clients_bed.h"
#include "tests/unit/in_memory.h"
#include "tests/unit/memory_bed.h"

#define FIRST_STEP 1        /* committed before anything fails */
#define CALL_SECONDS_MAX 15 /* before the 20 s for which call_save() would wait */
#define UNHEARD_MAX 10      /* tellings in a row */

struct rank {
    struct ckpt *ckpt;
    struct ckpt_tensor tensors[TENSORS];
    uint64_t attempt;
    uint64_t step, committed; /* the newest that was tried, and that was committed */
    bool is_for_ever;
    bool is_unheard; /* a call was not, in this telling */
};

static void fill_rank(struct rank *rank)
{
    memset(rank, 0, sizeof *rank);
    for (uint32_t i = 0; i < TENSORS; i++) {
        place(&rank->tensors[i], i, 1, 0, 1);
        rank->tensors[i].data = malloc(tensor_elements(&rank->tensors[i]) * model[i].bytes + 1);
    }
}

static void free_rank(struct rank *rank)
{
    ckpt_close(rank->ckpt);
    for (uint32_t i = 0; i < TENSORS; i++)
        free(rank->tensors[i].data);
}

/* ---- the calls; each 0 or an error, and may be made again ---- */

static const char *server;

static int call_open(struct rank *rank)
{
    return ckpt_open(
        &rank->ckpt,
        &(struct ckpt_options){.server = server, .run = RUN, .world_size = 1, .busy_ms = 5000});
}

static int call_attempt(struct rank *rank)
{
    return ckpt_attempt_open(rank->ckpt, &rank->attempt, NULL, NULL);
}

static int call_describe(struct rank *rank)
{
    return ckpt_describe(rank->ckpt, rank->attempt, rank->tensors, TENSORS);
}

static int call_save(struct rank *rank)
{
    struct ckpt_save *save;
    int error = ckpt_save_begin(rank->ckpt, &save, ++rank->step, "{\"mark\":1}");
    if (error == 0)
        error = copy_all(save, rank->tensors, rank->step);
    if (error == 0)
        error = ckpt_save_wait(rank->ckpt, rank->step, 20000);
    rank->committed = error == 0 ? rank->step : rank->committed;
    return error;
}

static int call_load(struct rank *rank)
{
    struct ckpt_loaded *loaded = NULL;
    struct group group = {.failures = 0};
    for (uint32_t i = 0; i < TENSORS; i++)
        memset(rank->tensors[i].data, 0, tensor_elements(&rank->tensors[i]) * model[i].bytes);
    int error = ckpt_load(rank->ckpt, &(struct ckpt_load_options){.step = CKPT_NEWEST}, &loaded);
    if (error != 0) {
        assert_null(loaded);
        return error;
    }
    check_values(&group, rank->tensors, loaded->info.step, 0);
    assert_int_equal(group.failures, 0);
    assert_true(loaded->info.step >= rank->committed);
    assert_non_null(strstr(loaded->state_json, "\"mark\""));
    ckpt_loaded_free(loaded);
    return 0;
}

/* As after a restart of ckptd: the next save makes a new session. */
static int call_lose(struct rank *rank)
{
    session_forget(rank->ckpt);
    return 0;
}

/* ---- tellings ---- */

/* True when it worked; once there is memory again it has to, unless ckptd is not heard. */
static bool try_call(struct rank *rank, const char *name, int (*call)(struct rank *rank))
{
    for (int try = 0; try < 2; try++) {
        uint64_t began = now_ns();
        int error = call(rank);
        uint64_t took_ns = now_ns() - began;
        if (error == 0 && took_ns <= CALL_SECONDS_MAX * 1000000000ull)
            return true;
        if (error == ERR_UNAVAILABLE &&
            (rank->is_unheard || took_ns >= SESSION_HELLO_AGAIN_MS * 1000000ull)) {
            rank->is_unheard = true; /* while ckptd handles a save, or in the back-off */
            return false;
        }
        bool is_memory = error == ERR_MEMORY && (strstr(ckpt_error(), "memory") != NULL ||
                                                 strstr(ckpt_error(), "allocate") != NULL);
        if (!is_memory || try == 1 || took_ns > CALL_SECONDS_MAX * 1000000000ull)
            fail_msg("%s%s: answer %d (%s) after %.1f s", name, try == 0 ? "" : ", again", error,
                     ckpt_error(), (double)took_ns / 1e9);
        if (rank->is_for_ever)
            return false;
    }
    return false;
}

/* False when ckptd was not heard. */
static bool tell_once(const struct lack *lack)
{
    struct rank rank;
    fill_rank(&rank);
    rank.step = FIRST_STEP;
    rank.is_for_ever = lack->for_ever;
    memory_arm(lack);
    bool goes_on = try_call(&rank, "open", call_open) && try_call(&rank, "attempt", call_attempt) &&
                   try_call(&rank, "describe", call_describe);
    if (goes_on) {
        try_call(&rank, "save", call_save);
        try_call(&rank, "load", call_load);
        try_call(&rank, "lose", call_lose);
        try_call(&rank, "save after a loss", call_save);
        try_call(&rank, "load again", call_load);
    }
    memory_disarm();
    if (goes_on && lack->for_ever) { /* the same handle, now that there is memory */
        rank.is_for_ever = false;
        try_call(&rank, "save afterwards", call_save);
        try_call(&rank, "load afterwards", call_load);
    }
    free_rank(&rank);
    return !rank.is_unheard;
}

/* Again where ckptd was not reached, as on a busy machine; if the lack of memory caused it, it
 * stays so. */
static void tell(void *user, const struct lack *lack)
{
    (void)user;
    for (int unheard = 0; !tell_once(lack); unheard++)
        if (unheard == UNHEARD_MAX)
            fail_msg("ckptd was not heard in %d tellings: %s", unheard + 1, ckpt_error());
}

/* Otherwise the runs would fill the disk, and the list that an attempt gets would be longer at
 * first. */
static void keep_little(struct bed *bed)
{
    configure_ckptd(bed, "[retention]\nkeep_last = 2\nmay_remove_most = true\n");
}

static void test_memory__libckpt_without_it_says_so_and_goes_on_when_it_is_back(void **state)
{
    struct bed *bed = *state;
    server = bed->server;
    keep_little(bed);
    save_world(bed, 1, 1, FIRST_STEP);
    assert_true(fail_each_place(bed, tell) > 20);
    load_world(bed, 3, 5, 0);
}

/* Room for the images of this rank's last sessions: each run lends it some ahead. */
static int open_roomy(void **state)
{
    return bed_open_with(state, "192MiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_memory__libckpt_without_it_says_so_and_goes_on_when_it_is_back, open_roomy,
            bed_close),
    };
    memory_begin();
    tell_in_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
