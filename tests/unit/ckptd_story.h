/* ckptd_story.h - one story of a daemon's life, for tests in which something of it fails.
 *
 * The daemon starts on a store with rubbish of a save and of prunes cut short before and after the
 * marker was removed. It serves a load, two saves, a pin, a prune and a load. An observer records
 * every answer. check_store compares the store with that record: acknowledged checkpoints are
 * whole, no torn one is listed, pins held, and everything works again. */
#ifndef HOLDFAST_TESTS_CKPTD_STORY_H
#define HOLDFAST_TESTS_CKPTD_STORY_H

#define ROWS 64u
#define COLUMNS 256u /* 64 KiB in all: only the number of operations matters here */
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/ckptd_tools_bed.h"
#include "tests/unit/in_memory.h"
#include "tests/unit/suite.h"

#define FIRST_STEPS 5u  /* of the store before each story; step 3 is half removed */
#define PINNED_STEP 2u  /* before the story */
#define LEASED_STEP 4u  /* a tool reads it during the story */
#define LAST_STEP 7u    /* saved by the story */
#define AFTER_STEP 100u /* saved by the check */

static struct peer peers[RANKS];

/* ---- the store that a story begins with ---- */

static inline int prune(struct bed *bed, uint32_t keep_last)
{
    Holdfast__V1__PruneRequest request = HOLDFAST__V1__PRUNE_REQUEST__INIT;
    Holdfast__V1__PruneReply *reply;
    request.run = RUN;
    request.keep_last = keep_last;
    request.may_remove_most = true;
    int error = call(bed, "Prune", &request.base, &holdfast__v1__prune_reply__descriptor, &reply);
    if (error != 0)
        return error;
    for (size_t i = 0; i < reply->n_entries; i++)
        if (reply->entries[i]->error[0] != '\0')
            error = ERR_IO;
    FREE_REPLY(reply);
    return error;
}

static inline int open_with_story(void **state)
{
    struct bed *bed = bed_new();
    *state = bed;
    bed->config.limit_drain_ms = 1000;
    bed->config.limit_describe_ms = 500; /* when one rank fails the others wait only briefly */
    bed->config.pool_bytes = 8 * MIB;
    assert_int_equal(bed_start(bed), 0);
    bed_save_steps(bed, peers, RANKS, 1, FIRST_STEPS);
    assert_int_equal(bed_pin(bed, PINNED_STEP, false), 0);
    bed_stop(bed);
    shell("cd '%s/store/" RUN "' && mkdir -p tombstones && : >tombstones/step-00000001-a0001 &&"
          " : >tombstones/step-00000003-a0001 && rm step-00000003-a0001/manifest.json &&"
          " cp -r step-00000003-a0001 step-00000009-a0001",
          bed->root);
    put_mark(bed->config.store, RUN, 9, 1);
    return 0;
}

/* ---- the story ---- */

/* The observer's record of answers. */
struct peer_status {
    bool saved[LAST_STEP + 1];
    bool pinned, was_pruned; /* requested, whatever the answer */
    bool adopted;
};

/* (optional) Called with the answer at once. */
static void (*when_told)(const struct peer_status *told);

static inline void tell_observer(const struct peer_status *told)
{
    if (when_told)
        when_told(told);
}

/* True when all ranks heard that it was committed. */
static inline bool story_save(struct bed *bed, uint64_t step)
{
    Holdfast__V1__WaitSaveRequest request = HOLDFAST__V1__WAIT_SAVE_REQUEST__INIT;
    Holdfast__V1__WaitSaveReply *reply;
    for (uint32_t i = 0; i < RANKS; i++)
        if (peer_begin(&peers[i], step) != 0)
            return false;
    for (uint32_t i = 0; i < RANKS; i++)
        peer_finish(&peers[i], step);
    request.run = RUN;
    request.step = step;
    request.attempt = bed->attempt;
    request.timeout_ms = 10000;
    if (call(bed, "WaitSave", &request.base, &holdfast__v1__wait_save_reply__descriptor, &reply) !=
        0)
        return false;
    bool committed = reply->state == HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED;
    FREE_REPLY(reply);
    return committed;
}

static inline void live_through(struct bed *bed, struct peer_status *told)
{
    load_all(bed, -1, NULL);
    if (open_attempt(bed, RANKS) == 0) {
        bool are_open = peers_open(peers, bed, RANKS) == 0;
        for (uint64_t step = LAST_STEP - 1; are_open && step <= LAST_STEP; step++) {
            told->saved[step] = story_save(bed, step);
            tell_observer(told);
        }
        peers_close(peers, RANKS); /* one rank may be further than the other */
    }
    if (told->saved[LAST_STEP - 1])
        told->pinned = bed_pin(bed, LAST_STEP - 1, false) == 0;
    told->was_pruned = true;
    tell_observer(told);
    prune(bed, 2);
    load_all(bed, -1, NULL);
}

/* ---- afterwards ---- */

/* Bit s: step s is listed. Every listed checkpoint must be whole and load bit by bit. */
static inline uint64_t list_and_load(struct bed *bed)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    uint64_t steps = 0;
    for (size_t i = 0; i < reply->n_checkpoints; i++) {
        uint64_t step = reply->checkpoints[i]->step;
        assert_string_equal(reply->checkpoints[i]->durability, "local");
        steps |= 1ull << (step < 63 ? step : 63);
        assert_int_equal(load_all(bed, (int64_t)step, NULL), 0);
    }
    FREE_REPLY(reply);
    return steps;
}

/* Checkpoints that a tool reads or writes were not removed. */
static inline void check_leased(const char *plain, uint64_t step)
{
    shell("ls '%s/" RUN "/step-%08u-a0001/'shard-* >/dev/null", plain, (unsigned)step);
}

/* Prunes until that step has gone. A load's leases are released a moment after CloseLoad is
 * answered (ckptd/restore/held.c); the step stays until then. */
static inline void prune_loaded(struct bed *bed, uint64_t step)
{
    bool is_there = true;
    for (unsigned i = 0; i < 1000 && is_there; i++) {
        assert_int_equal(prune(bed, 1), 0);
        Holdfast__V1__ListReply *reply = bed_list(bed);
        is_there = false;
        for (size_t k = 0; k < reply->n_checkpoints; k++)
            is_there |= reply->checkpoints[k]->step == step;
        FREE_REPLY(reply);
        if (is_there)
            usleep(5000);
    }
}

static inline void check_store(struct bed *bed, const char *plain, const struct peer_status *told)
{
    snprintf(bed->config.store, sizeof bed->config.store, "%s", plain);
    assert_int_equal(bed_start(bed), 0);
    uint64_t steps = list_and_load(bed);
    assert_false(steps >> 3 & 1 || steps >> 9 & 1); /* their manifests were lost */
    assert_true(steps >> PINNED_STEP & 1);
    assert_true(!told->pinned || steps >> (LAST_STEP - 1) & 1);
    if (told->saved[LAST_STEP])
        assert_true(steps >> LAST_STEP & 1);
    if (told->saved[LAST_STEP - 1])
        assert_true(steps >> (LAST_STEP - 1) & 1);
    /* One of the last two good ones, unless the last was committed, acknowledged or not. */
    if (!told->was_pruned || !(steps >> LAST_STEP & 1))
        assert_true(steps >> FIRST_STEPS & 1);
    if (!told->was_pruned)
        assert_true(steps >> 4 & 1 && steps >> 1 & 1);
    /* The daemon saves and prunes again, and unfinished removals are completed. */
    bed_save_steps(bed, peers, RANKS, AFTER_STEP, AFTER_STEP);
    prune_loaded(bed, 1);
    steps = list_and_load(bed);
    assert_true(steps >> 63 & 1 && steps >> PINNED_STEP & 1 && !(steps >> 1 & 1));
    bed_stop(bed);
    shell("cd '%s/" RUN "' && test -z \"$(ls tombstones | grep -v reserve)\" && for d in step-*; do"
          " test -e $d/manifest.json || exit 1; done",
          plain);
}

/* ---- requests of tools to a daemon that serves, for other stories ---- */

#define RELEASED_STEP 4u /* released from quarantine */
#define WRITTEN_STEP 51u /* has no manifest: a tool writes it */

/* Copies the store, adds a quarantined checkpoint and one without a manifest. */
static inline void place_unclean(struct bed *bed, const char *plain)
{
    shell("cp -r '%s/store' '%s' && cd '%s/" RUN "' && mkdir -p quarantine &&"
          " echo 'the test' >quarantine/step-%08u-a0001 && cp -r step-00000005-a0001"
          " step-%08u-a0001 && rm step-%08u-a0001/manifest.json",
          bed->root, plain, plain, RELEASED_STEP, WRITTEN_STEP, WRITTEN_STEP);
    put_mark(plain, RUN, WRITTEN_STEP, 1);
}

/* During service: adds the remains that crashes leave of saves, removals, notes, leases and
 * publications. */
static inline void put_rubbish(const char *plain)
{
    shell("cd '%s/" RUN "' && cp -r step-00000005-a0001 step-00000050-a0001 &&"
          " rm step-00000050-a0001/manifest.json && touch pins/step-00000077-a0001 &&"
          " : >tombstones/step-00000005-a0001 && mkdir -p leases &&"
          " : >leases/step-00000005-a0001.0123456789abcdef &&"
          " touch -d '1 hour ago' .holdfast.tmp.0123456789abcdef",
          plain);
    put_mark(plain, RUN, 50, 1);
}

static inline void ask_to_clean(struct bed *bed)
{
    gc(bed, false, NULL);
    release(bed, RELEASED_STEP);
}

static inline void check_cleaned(struct bed *bed)
{
    assert_true(gc(bed, false, NULL) >= 0);
    assert_int_equal(gc(bed, true, NULL), 0);
    assert_int_equal(release(bed, RELEASED_STEP), 0);
    assert_true(list_and_load(bed) == (1u << 1 | 1u << 2 | 1u << 4 | 1u << 5));
}

#endif
