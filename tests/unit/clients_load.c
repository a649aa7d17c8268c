/* clients_load.c - concurrent loads: ranks that write to the memory, and ranks that load together.
 *
 * Goal: whatever a rank does to the segments that it saved into and still maps, a load returns the
 * saved bytes, or an error. Ranks that load the newest together get the same checkpoint, also where
 * only one of them reads a damaged part. Method: the race itself. A rank of a real ckptd
 * (clients_bed.h) saves, and a thread flips words of all that the rank has mapped for as long as
 * another session loads. Every element is compared. also without io_uring */
#include "clients/session.h"
#include "tests/unit/clients_bed.h"
#include "tests/unit/suite.h"

#define ROUNDS 24u

/* ---- the thread that flips ---- */

struct flipper {
    struct ckpt *ckpt;
    pthread_t thread;
    atomic_bool is_over;
};

static void flip_mapped(const struct ckpt *ckpt)
{
    for (uint32_t i = 0; i < ckpt->num_mappings; i++) {
        void *middle = ckpt->mappings[i].data + ckpt->segment_bytes / 2;
        if (ckpt->mappings[i].data != NULL)
            __atomic_fetch_xor((uint32_t *)middle, 0xffffffffu, __ATOMIC_SEQ_CST);
    }
}

/* Flips a word of each segment, and flips it back, so that all is unchanged in the end. */
static void *flip(void *argument)
{
    struct flipper *flipper = argument;
    while (!atomic_load(&flipper->is_over)) {
        flip_mapped(flipper->ckpt);
        flip_mapped(flipper->ckpt);
    }
    return NULL;
}

static void start_flipper(struct flipper *flipper, struct ckpt *ckpt)
{
    *flipper = (struct flipper){.ckpt = ckpt};
    pthread_create(&flipper->thread, NULL, flip, flipper);
}

static void stop_flipper(struct flipper *flipper)
{
    atomic_store(&flipper->is_over, true);
    pthread_join(flipper->thread, NULL);
}

/* ---- loads meanwhile ---- */

static int copy_by_hook(void *user, void *to, const void *from, uint64_t bytes)
{
    (void)user;
    memcpy(to, from, bytes);
    return 0;
}

/* By a separate handle, which maps the lent memory; with hooks, like a client that copies to a
 * device. */
static int load_beside(struct group *group, struct ckpt_tensor *tensors, uint64_t step, bool hooks)
{
    const struct ckpt_memory_hooks copies = {.size = sizeof copies, .copy = copy_by_hook};
    const struct ckpt_load_options options = {
        .step = (int64_t)step, .tensors = tensors, .num_tensors = TENSORS};
    struct ckpt *reader = NULL;
    struct ckpt_loaded *loaded = NULL;
    int error = ckpt_open(
        &reader, &(struct ckpt_options){.server = group->server, .run = RUN, .world_size = 1});
    if (error == 0 && hooks)
        error = ckpt_hook_memory(reader, &copies);
    if (error == 0)
        error = ckpt_load(reader, &options, &loaded);
    if (error != 0)
        return rank_failed(group, "load", 0);
    check_values(group, tensors, step, 0);
    group->bytes_memory += loaded->bytes_memory;
    group->bytes_local += loaded->bytes_local;
    ckpt_loaded_free(loaded);
    ckpt_close(reader);
    return 0;
}

static int work_flip(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                     uint32_t rank)
{
    struct flipper flipper;
    for (uint64_t step = 1; step <= ROUNDS; step++) {
        struct ckpt_save *save;
        if (ckpt_save_begin(ckpt, &save, step, "{\"mark\":1}") != 0 ||
            copy_all(save, tensors, step) != 0 || ckpt_save_wait(ckpt, step, 30000) != 0)
            return rank_failed(group, "save", rank);
        start_flipper(&flipper, ckpt);
        int error = load_beside(group, tensors, step, step % 2 == 0);
        stop_flipper(&flipper);
        if (error != 0)
            return error;
    }
    return 0;
}

BED_TEST(test_load__a_rank_that_changes_what_it_saved_changes_no_load)
{
    struct group group = make_group(bed, 1, 1, 0);
    group.work = work_flip;
    assert_int_equal(run_group(&group), 0);
    assert_true(group.bytes_local > 0); /* some of it was found to be changed */
    load_world(bed, 1, 1, ROUNDS);      /* on the disk it is as saved */
}

/* ---- ranks that load together ---- */

static struct {
    uint64_t steps[2];
    bool is_told[2];
} found;

/* A layout of two ranks that cuts both large tensors about in half: so no rank needs the second MiB
 * of the other's shard. */
static uint64_t seed_of_halves(void)
{
    for (uint64_t seed = 1;; seed++) {
        bool is_half = true;
        for (uint32_t index = 0; index <= 3; index += 3) {
            struct ckpt_tensor tensor;
            place(&tensor, index, seed, 1, 2);
            uint64_t whole = model[index].shape[0] * model[index].shape[1];
            uint64_t percent = 100 * tensor_elements(&tensor) / whole;
            is_half = is_half && percent >= 42 && percent <= 58;
        }
        if (is_half)
            return seed;
    }
}

/* Rank 0 needs no damaged byte, and has all its data long before rank 1 finds one. */
static int work_load_newest(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                            uint32_t rank)
{
    struct ckpt_loaded *loaded;
    if (rank == 1)
        sleep_ms(300);
    if (ckpt_load(ckpt, &(struct ckpt_load_options){.step = CKPT_NEWEST}, &loaded) != 0)
        return rank_failed(group, "load", rank);
    check_values(group, tensors, loaded->info.step, rank);
    found.steps[rank] = loaded->info.step;
    found.is_told[rank] = strstr(loaded->skipped, "shard-00002-of-00002") != NULL;
    ckpt_loaded_free(loaded);
    return 0;
}

BED_TEST(test_load__damage_that_one_rank_finds_has_all_load_the_older_checkpoint)
{
    uint64_t seed = seed_of_halves();
    save_world(bed, 2, seed, 1);
    save_world(bed, 2, seed, 2);
    assert_int_equal(end_ckptd(bed), 0);
    damage_shard(bed, 2, "shard-00002-of-00002.safetensors");
    start_ckptd(bed);
    struct group group = make_group(bed, 2, seed, 0);
    group.work = work_load_newest;
    assert_int_equal(run_group(&group), 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(found.steps[rank], 1);
        assert_true(found.is_told[rank]);
    }
}

#define WAIT_MS 10000u /* of a rank for one that does not load (ckptd/restore/together.h) */

/* Rank 1 continues without a load, mostly when rank 0 has loaded. */
static int work_load_or_leave(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                              uint32_t rank)
{
    struct ckpt_loaded *loaded;
    uint64_t begin = now_ns();
    if (rank == 1) {
        sleep_ms(500);
        return 0;
    }
    if (ckpt_load(ckpt, &(struct ckpt_load_options){.step = CKPT_NEWEST}, &loaded) != 0)
        return rank_failed(group, "load", rank);
    check_values(group, tensors, 1, rank);
    ckpt_loaded_free(loaded);
    group->failures += now_ns() - begin >= WAIT_MS * 1000000ull;
    return 0;
}

BED_TEST(test_load__a_rank_that_leaves_is_not_waited_for_by_those_that_load)
{
    save_world(bed, 2, 23, 1);
    struct group group = make_group(bed, 2, 23, 0);
    group.work = work_load_or_leave;
    assert_int_equal(run_group(&group), 0);
}

static struct bed *killed_bed;

/* ckptd is killed while rank 0 waits for rank 1: rank 0's data is whole all the same. */
static int work_load_around_kill(struct group *group, struct ckpt *ckpt,
                                 struct ckpt_tensor *tensors, uint32_t rank)
{
    struct ckpt_loaded *loaded;
    int error = CKPT_UNAVAILABLE;
    if (rank == 1) {
        sleep_ms(300);
        end_process(&killed_bed->ckptd, SIGKILL);
        start_ckptd(killed_bed);
    }
    for (int tries = 0; error == CKPT_UNAVAILABLE && tries < 500; tries++) {
        error = ckpt_load(ckpt, &(struct ckpt_load_options){.step = CKPT_NEWEST}, &loaded);
        if (rank == 0 && error != 0)
            break;
        if (error == CKPT_UNAVAILABLE)
            sleep_ms(20); /* it does not answer yet */
    }
    if (error != 0)
        return rank_failed(group, "load", rank);
    check_values(group, tensors, 1, rank);
    ckpt_loaded_free(loaded);
    return 0;
}

BED_TEST(test_load__a_kill_of_ckptd_fails_no_rank_that_waits_for_others)
{
    killed_bed = bed;
    save_world(killed_bed, 2, 24, 1);
    struct group group = make_group(killed_bed, 2, 24, 0);
    group.work = work_load_around_kill;
    assert_int_equal(run_group(&group), 0);
}

SUITE(NULL, NULL)
