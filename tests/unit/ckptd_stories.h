/* ckptd_stories.h - stories of a daemon's life, in which tests make each operation fail once.
 *
 * The first starts on a store with rubbish of a save and of prunes cut short before and after the
 * marker was removed. Then come a load, two saves, a pin, a prune, a load and the shutdown, while a
 * tool reads a checkpoint. In the second, tools have rubbish removed while one writes. In the
 * third, a tool brings a checkpoint. */
#ifndef HOLDFAST_TESTS_CKPTD_STORIES_H
#define HOLDFAST_TESTS_CKPTD_STORIES_H

#include "tests/unit/ckptd_story.h"
#include "tests/unit/suite.h"

struct story {
    const char *name;
    /* Makes the store at `plain`. */
    void (*place)(struct bed *bed, const char *plain);
    /* (optional) Changes the store as other processes do, after the daemon has started. */
    void (*bring)(struct bed *bed, const char *plain);
    /* The requests to the daemon. */
    void (*live)(struct bed *bed, struct peer_status *told);
    /* Checks the store afterwards, without faults: everything must work again. */
    void (*check)(struct bed *bed, const char *plain, const struct peer_status *told);
    uint64_t leased_step;      /* the step that a tool leases meanwhile; 0: none */
    uint32_t operations_least; /* fewer: ckptd was not asked for all of it */
};

static inline void place_store(struct bed *bed, const char *plain)
{
    shell("cp -r '%s/store' '%s'", bed->root, plain);
}

static inline void bring_rubbish(struct bed *bed, const char *plain)
{
    (void)bed;
    put_rubbish(plain);
}

static inline void live_with_tools(struct bed *bed, struct peer_status *told)
{
    (void)told;
    ask_to_clean(bed);
}

static inline void check_clean(struct bed *bed, const char *plain, const struct peer_status *told)
{
    (void)told;
    snprintf(bed->config.store, sizeof bed->config.store, "%s", plain);
    assert_int_equal(bed_start(bed), 0);
    check_cleaned(bed);
    bed_stop(bed);
}

static inline void place_nothing(struct bed *bed, const char *plain)
{
    (void)bed;
    shell("mkdir '%s'", plain);
}

static inline void bring_shards(struct bed *bed, const char *plain)
{
    put_shards(bed, plain);
}

static inline void live_with_adoption(struct bed *bed, struct peer_status *told)
{
    told->adopted = adopt(bed, manifest) == 0;
    tell_observer(told);
}

static inline void check_adopted(struct bed *bed, const char *plain, const struct peer_status *told)
{
    snprintf(bed->config.store, sizeof bed->config.store, "%s", plain);
    assert_int_equal(bed_start(bed), 0);
    bool is_there = load_all(bed, 1, NULL) == 0;
    assert_true(is_there || !told->adopted);
    if (!is_there) { /* the tool brings the checkpoint once more */
        bed_stop(bed);
        shell("test ! -e '%s/" STEP_DIR "/manifest.json' && rm -rf '%s/" RUN "'", plain, plain);
        assert_int_equal(bed_start(bed), 0);
        put_shards(bed, plain);
    }
    assert_int_equal(adopt(bed, manifest), 0);
    assert_int_equal(load_all(bed, 1, NULL), 0);
    bed_stop(bed);
}

static const struct story stories[] = {
    {"saves", place_store, NULL, live_through, check_store, LEASED_STEP, 60},
    {"tools", place_unclean, bring_rubbish, live_with_tools, check_clean, WRITTEN_STEP, 35},
    {"adoption", place_nothing, bring_shards, live_with_adoption, check_adopted, 0, 15},
};
#define NUM_STORIES (sizeof stories / sizeof stories[0])

/* Starts the daemon and runs the story; `bed` serves afterwards, unless the start failed. */
static inline void live_story(const struct story *story, struct bed *bed, const char *plain,
                              struct peer_status *told)
{
    memset(told, 0, sizeof *told);
    if (bed_start(bed) != 0)
        return;
    if (story->bring)
        story->bring(bed, plain);
    story->live(bed, told);
}

static inline int open_with_stories(void **state)
{
    int error = open_with_story(state);
    copy_made(*state);
    return error;
}

#endif
