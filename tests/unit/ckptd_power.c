/* ckptd_power.c - the power goes at each step of a daemon's life, and the disk keeps any part of
 * what was not synced.
 *
 * Goal: whatever a file system leaves of a start on a store with rubbish, of saves, a pin and a
 * prune, of a removal of rubbish, of an adoption: the next start finds every acknowledged
 * checkpoint whole, lists nothing torn, and all works again; and so does the start after it when
 * that was cut as well. Method: the stories of ckptd_story.h on the real directory back-end, whose
 * calls power_bed.h keeps. After every one of them come the states in which all that was not synced
 * is lost, all is kept, one of it is lost, one is kept, one is torn, every subset where it is no
 * more than SUBSET_MAX changes, and random parts; each is made as a directory, and a daemon starts
 * on it. (ckptd_faults.c cuts the power too, by operations of storage.h; the calls below that are
 * here.)
 *
 * In make test STATES of them, drawn so that every call has its turn; TORTURE=1 takes all. SEED=
 * repeats a run.
 * time limit: 300 s */
#include "tests/unit/ckptd_stories.h"
#include "tests/unit/power_bed.h"
#include "tests/unit/random.h"

#define STATES 400u         /* of a story, in make test */
#define SUBSET_MAX 12u      /* not synced: all subsets; more: random ones */
#define RANDOM_STATES 6u    /* after each call */
#define CUT_AGAIN 5u        /* of so many starts one is cut as well */
#define SEEN_MAX (1u << 22) /* states, by their hash */
#define TOLD_MAX 16u

/* ---- what an observer had heard by then ---- */

static struct {
    unsigned at[TOLD_MAX], count; /* changes there were when it was told */
    struct told told[TOLD_MAX];
} heard;

static void hear(const struct told *told)
{
    assert_true(heard.count < TOLD_MAX);
    heard.at[heard.count] = power_changes();
    heard.told[heard.count++] = *told;
}

/* How often it had been told something before the change of that number was made. */
static unsigned count_told(unsigned num_changes)
{
    unsigned count = 0;
    while (count < heard.count && heard.at[count] <= num_changes)
        count++;
    return count;
}

/* ---- the states ---- */

struct walk {
    /* Looks at a state that was not seen before; the first of those after a change comes first. */
    void (*visit)(struct walk *walk, const struct power_state *state, bool is_first);
    struct bed *bed;
    const struct story *story;
    unsigned count, visited, stride; /* states; looked at: every stride-th */
    bool is_first;
    unsigned num_pending, pending[POWER_CHANGES_MAX];
    uint64_t *seen; /* SEEN_MAX hashes, 0: free */
};

/* The same parts of the same log, after which the same was told. */
static uint64_t hash_state(const struct power_state *state)
{
    uint64_t hash = 1 + count_told(state->num_changes);
    for (unsigned i = 0; i < state->num_changes; i++)
        if (state->fates[i] != POWER_LOST && power->changes[i].kind != POWER_SYNC) {
            hash ^= (uint64_t)i << 2 | state->fates[i];
            splitmix64(&hash);
            hash = splitmix64(&hash);
        }
    return hash | 1;
}

static bool is_new(struct walk *walk, const struct power_state *state)
{
    uint64_t hash = hash_state(state);
    size_t at = hash % SEEN_MAX;
    assert_true(walk->count < SEEN_MAX / 2);
    for (; walk->seen[at] != 0; at = (at + 1) % SEEN_MAX)
        if (walk->seen[at] == hash)
            return false;
    walk->seen[at] = hash;
    return true;
}

static void offer(struct walk *walk, const struct power_state *state)
{
    if (!is_new(walk, state))
        return;
    walk->count++;
    walk->visit(walk, state, walk->is_first);
    walk->is_first = false;
}

static void set_pending(const struct walk *walk, struct power_state *state, enum power_fate fate)
{
    for (unsigned i = 0; i < walk->num_pending; i++)
        state->fates[walk->pending[i]] = (unsigned char)fate;
}

/* One change has another fate than all others. */
static void offer_one(struct walk *walk, struct power_state *state, unsigned at,
                      enum power_fate fate, enum power_fate others)
{
    set_pending(walk, state, others);
    state->fates[at] = (unsigned char)fate;
    offer(walk, state);
}

static void offer_subsets(struct walk *walk, struct power_state *state)
{
    for (unsigned set = 0; set < 1u << walk->num_pending; set++) {
        for (unsigned i = 0; i < walk->num_pending; i++)
            state->fates[walk->pending[i]] = set >> i & 1 ? POWER_KEPT : POWER_LOST;
        offer(walk, state);
    }
}

static void draw_pending(const struct walk *walk, struct power_state *state)
{
    for (unsigned i = 0; i < walk->num_pending; i++) {
        unsigned at = walk->pending[i];
        unsigned fates = power_can_tear(&power->changes[at]) ? 4 : 2;
        state->fates[at] = (unsigned char)next_random(fates);
    }
}

/* The power goes before the change of that number. */
static void begin_state(struct walk *walk, struct power_state *state, unsigned num_changes)
{
    state->num_changes = num_changes;
    walk->num_pending = 0;
    for (unsigned i = 0; i < num_changes; i++)
        if (power_is_durable(&power->changes[i], num_changes))
            state->fates[i] = POWER_KEPT;
        else
            walk->pending[walk->num_pending++] = i;
}

static void walk_states_at(struct walk *walk, struct power_state *state, unsigned num_changes)
{
    begin_state(walk, state, num_changes);
    walk->is_first = true;
    set_pending(walk, state, POWER_LOST);
    offer(walk, state);
    set_pending(walk, state, POWER_KEPT);
    offer(walk, state);
    for (unsigned i = 0; i < walk->num_pending; i++) {
        unsigned at = walk->pending[i];
        offer_one(walk, state, at, POWER_LOST, POWER_KEPT);
        offer_one(walk, state, at, POWER_KEPT, POWER_LOST);
        if (power_can_tear(&power->changes[at])) {
            offer_one(walk, state, at, POWER_FIRST_PART, POWER_KEPT);
            offer_one(walk, state, at, POWER_LAST_PART, POWER_KEPT);
        }
    }
    if (walk->num_pending <= SUBSET_MAX)
        offer_subsets(walk, state);
    for (unsigned i = 0; i < RANDOM_STATES; i++) {
        draw_pending(walk, state);
        offer(walk, state);
    }
}

/* In the same order each time: `seed` begins the chances. */
static void walk_states(struct walk *walk, uint64_t seed)
{
    static struct power_state state;
    walk->count = walk->visited = 0;
    walk->seen = calloc(SEEN_MAX, sizeof *walk->seen);
    assert_non_null(walk->seen);
    random_state = seed;
    for (unsigned i = power->num_placed; i <= power->num_changes; i++)
        walk_states_at(walk, &state, i);
    free(walk->seen);
}

/* ---- what is looked at ---- */

static void count_only(struct walk *walk, const struct power_state *state, bool is_first)
{
    (void)walk, (void)state, (void)is_first;
}

/* The start on `path` is cut as well, anywhere: what it leaves is there then. */
static void cut_start(struct bed *bed, const char *path)
{
    static struct power_state state;
    static struct walk walk;
    uint64_t chances = random_state; /* those of the walk stay as they are */
    power = &power_logs[1];
    power_record(path);
    assert_int_equal(bed_start(bed), 0);
    bed_stop(bed);
    power_stop();
    begin_state(&walk, &state,
                power->num_placed +
                    (unsigned)next_random(power->num_changes - power->num_placed + 1));
    draw_pending(&walk, &state);
    shell("rm -rf '%s'", path);
    power_make(&state, path);
    power = &power_logs[0];
    random_state = chances;
}

static void look(struct walk *walk, const struct power_state *state, bool is_first)
{
    char cut[160];
    unsigned times_told = count_told(state->num_changes);
    struct told told = times_told > 0 ? heard.told[times_told - 1] : (struct told){0};
    if (!is_first && walk->count % walk->stride != 0)
        return;
    snprintf(cut, sizeof cut, "%s/cut", walk->bed->root);
    snprintf(walk->bed->config.store, sizeof walk->bed->config.store, "%s", cut);
    power_make(state, cut);
    bool is_cut_again = walk->visited++ % CUT_AGAIN == 0;
    print_message("# %s: state %u, after %u changes, %u not synced%s\n", walk->story->name,
                  walk->count, state->num_changes - power->num_placed, walk->num_pending,
                  is_cut_again ? "; cut again" : "");
    if (is_cut_again)
        cut_start(walk->bed, cut);
    walk->story->check(walk->bed, cut, &told);
    shell("rm -rf '%s'", cut);
}

/* Lives through the story while its changes are kept. */
static void record_story(const struct story *story, struct bed *bed)
{
    char plain[160];
    struct told told = {0};
    struct tool_lease tool;
    snprintf(plain, sizeof plain, "%s/told", bed->root);
    snprintf(bed->config.store, sizeof bed->config.store, "%s", plain);
    story->place(bed, plain);
    if (story->leased_step != 0)
        tool_lease_take(&tool, plain, story->leased_step);
    if (!story->bring)
        power_record(plain);
    snprintf(bed->config.engine, sizeof bed->config.engine, "pwrite"); /* a ring makes no calls */
    assert_int_equal(bed_start(bed), 0);
    if (story->bring) {
        story->bring(bed, plain);
        power_record(plain);
    }
    heard.count = 0;
    story->live(bed, &told);
    power_stop();
    bed_stop(bed);
    if (story->leased_step != 0)
        tool_lease_end(&tool);
    shell("rm -rf '%s'", plain);
}

static void test_power__whatever_it_leaves_nothing_acknowledged_is_lost(void **state)
{
    bool is_torture = getenv("TORTURE") != NULL;
    seed_random();
    when_told = hear;
    for (size_t i = 0; i < NUM_STORIES; i++) {
        static struct walk walk;
        walk = (struct walk){.visit = count_only, .bed = *state, .story = &stories[i]};
        record_story(&stories[i], *state);
        uint64_t seed = random_state;
        walk_states(&walk, seed);
        walk.stride = is_torture || walk.count < STATES ? 1 : walk.count / STATES;
        print_message("# %s: %u changes, %u states\n", stories[i].name,
                      power->num_changes - power->num_placed, walk.count);
        assert_true(walk.count > stories[i].operations_least);
        walk.visit = look;
        walk_states(&walk, seed);
        print_message("# %s: %u looked at\n", stories[i].name, walk.visited);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_power__whatever_it_leaves_nothing_acknowledged_is_lost,
                                        open_with_stories, close_with_made),
    };
    log_setup("ckptd_power", NULL);
    tell_in_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
