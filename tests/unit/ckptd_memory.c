/* ckptd_memory.c - each allocation of a daemon's life fails, once and for ever.
 *
 * Goal: out of memory is an answer and never ends the daemon. Any allocation of start, load, save,
 * pin, prune, recovery, adoption, release or gc may fail. An acknowledged checkpoint stays whole,
 * no run leaks an allocation or a descriptor, and everything works after the next start. Method:
 * the story of ckptd_story.h, memory_bed.h between the daemon and the system. The first runs find
 * all places of allocations. Then each place of the sample fails at its first encounter, once, and
 * in another run together with all later allocations; and once at a random later encounter. SEED=
 * repeats that; SAMPLE=1 takes every place (sample.h), TORTURE=1 each allocation by its number,
 * too. Requests of tools to a daemon that serves (Adopt, Gc, Release) are tested likewise, and
 * repeated to the same daemon afterwards. */
#define ALLOCATIONS_ONLY /* the ranks of the story map memory and start threads */
#include "tests/unit/ckptd_story.h"
#include "tests/unit/memory_bed.h"
#include "tests/unit/suite.h"

/* An acknowledged checkpoint is in the list of the same daemon, whatever failed after the
 * answer. */
static void check_listed(struct bed *bed, const struct peer_status *told)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    uint64_t steps = 0;
    for (size_t i = 0; i < reply->n_checkpoints; i++)
        steps |= 1ull << reply->checkpoints[i]->step;
    FREE_REPLY(reply);
    for (uint64_t step = LAST_STEP - 1; step <= LAST_STEP; step++)
        assert_true(!told->saved[step] || steps >> step & 1);
}

static void tell_story(void *user, const struct lack *lack)
{
    struct bed *bed = user;
    char plain[160];
    struct peer_status told = {0};
    struct tool_lease reader;
    snprintf(plain, sizeof plain, "%s/told", bed->root);
    shell("cp -r '%s/store' '%s'", bed->root, plain);
    snprintf(bed->config.store, sizeof bed->config.store, "%s", plain);
    tool_lease_take(&reader, plain, LEASED_STEP);
    memory_arm(lack);
    if (bed_start(bed) == 0)
        live_through(bed, &told);
    memory_disarm();
    if (bed->service && !lack->for_ever) /* or it may have no memory left to accept calls */
        check_listed(bed, &told);
    bed_stop(bed);
    check_leased(plain, LEASED_STEP);
    tool_lease_end(&reader);
    check_store(bed, plain, &told);
    shell("rm -rf '%s'", plain);
}

/* ---- requests of tools to a daemon that serves ---- */

/* An allocation fails during the request `ask` to the daemon that `prepare` started; then `check`
 * repeats the request. */
struct asking {
    void (*prepare)(struct bed *bed, const char *plain);
    void (*ask)(struct bed *bed);
    void (*check)(struct bed *bed);
};

static void ask_with(const struct asking *asking, struct bed *bed, const struct lack *lack)
{
    char plain[160];
    snprintf(plain, sizeof plain, "%s/told", bed->root);
    snprintf(bed->config.store, sizeof bed->config.store, "%s", plain);
    asking->prepare(bed, plain);
    memory_arm(lack);
    asking->ask(bed);
    memory_disarm();
    asking->check(bed);
    bed_stop(bed);
    shell("rm -rf '%s'", plain);
}

static void prepare_adoption(struct bed *bed, const char *plain)
{
    bed_stop(bed);
    shell("mkdir '%s'", plain);
    assert_int_equal(bed_start(bed), 0);
    put_shards(bed, plain);
}

static void ask_to_adopt(struct bed *bed)
{
    adopt(bed, manifest);
}

static void check_adoption(struct bed *bed)
{
    assert_int_equal(adopt(bed, manifest), 0);
    assert_int_equal(load_all(bed, 1, NULL), 0);
}

static void tell_adoption(void *user, const struct lack *lack)
{
    const struct asking asking = {prepare_adoption, ask_to_adopt, check_adoption};
    ask_with(&asking, user, lack);
}

static void prepare_rubbish(struct bed *bed, const char *plain)
{
    place_unclean(bed, plain);
    assert_int_equal(bed_start(bed), 0);
    put_rubbish(plain);
}

static void tell_cleaning(void *user, const struct lack *lack)
{
    const struct asking asking = {prepare_rubbish, ask_to_clean, check_cleaned};
    ask_with(&asking, user, lack);
}

TEST_BETWEEN(test_memory__an_allocation_that_fails_is_an_error_and_no_more, open_with_story,
             bed_tear_down)
{
    assert_true(fail_each_place(*state, tell_story) >= 50);
}

TEST_BETWEEN(test_memory__an_adoption_that_lacks_memory_can_be_asked_for_again, open_with_made,
             close_with_made)
{
    assert_true(fail_each_place(*state, tell_adoption) >= 20);
}

TEST_BETWEEN(test_memory__what_lacks_memory_is_cleaned_and_released_the_next_time, open_with_story,
             bed_tear_down)
{
    assert_true(fail_each_place(*state, tell_cleaning) >= 20);
}

int main(void)
{
    memory_begin();
    tell_in_memory();
    log_setup("ckptd_memory", NULL);
    return suite_run(NULL, NULL);
}
