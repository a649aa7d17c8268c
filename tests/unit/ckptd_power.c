/* ckptd_power.c - the power is lost at each step of a daemon's life, and the disk keeps any part of
 * the unsynced changes.
 *
 * Goal: a file system may leave any part of a start on a store with rubbish, of saves, a pin and a
 * prune, of a removal of rubbish, of an adoption. The next start finds every acknowledged
 * checkpoint whole, lists no torn one, and everything works again. The same holds for the start
 * after a start that was interrupted anywhere. Method: the stories of ckptd_story.h on the real
 * directory back-end, whose calls power_bed.h records. Each state of power_walk.h is made as a
 * directory, and a daemon starts on it. For some states that start is recorded, too. It is cut
 * after a random change, with any part of its unsynced changes, and after each change, with all of
 * them and with none. (ckptd_faults.c cuts the power between operations of storage.h; this file
 * between the calls below it.)
 *
 * SAMPLE=1 takes STATES of them, drawn so that every call has its turn, make test one in
 * STATES_APART of these (sample.h); TORTURE=1 takes all, cuts the start on each, and in another
 * turn the one after that, too. SEED= repeats a run. */
#include "tests/unit/ckptd_stories.h"
#include "tests/unit/power_walk.h"
#include "tests/unit/sample.h"
#include "tests/unit/suite.h"

#define STATES 400u /* of a story, and those in which all is lost */
#define STATES_APART 5u
#define CUT_AGAIN 5u /* of so many starts one is cut as well; with TORTURE=1 all, and twice */
#define WALKED 2u    /* of so many of these one is cut after each of its changes */
#define TOLD_MAX 16u

/* ---- the acknowledgements up to that point ---- */

static struct {
    unsigned at[TOLD_MAX], count; /* changes there were when it was told */
    struct peer_status told[TOLD_MAX];
} heard;

static void hear(const struct peer_status *told)
{
    assert_true(heard.count < TOLD_MAX);
    heard.at[heard.count] = power_changes();
    heard.told[heard.count++] = *told;
}

/* The number of acknowledgements before the change of that number was made. */
static unsigned count_told(unsigned num_changes)
{
    unsigned count = 0;
    while (count < heard.count && heard.at[count] <= num_changes)
        count++;
    return count;
}

/* ---- the checks ---- */

struct telling {
    struct bed *bed;
    const struct story *story;
    bool is_torture;
    struct sample sample;    /* of the states */
    char cut[160];           /* where a state is made */
    struct peer_status told; /* by the state that is looked at */
    unsigned num_cut;
    unsigned num_walked, num_ends; /* starts cut after each change; looked at after such cuts */
};

/* A start on `path`, in the log of that number. */
static void record_start(struct bed *bed, const char *path, unsigned log)
{
    power = &power_logs[log];
    power_record(path);
    assert_int_equal(bed_start(bed), 0);
    bed_stop(bed);
    power_stop();
}

/* The recorded start is cut anywhere: the resulting state is made at `path`. */
static void cut_start(const char *path)
{
    struct power_state state;
    static struct walk walk;
    begin_state(&walk, &state,
                power->num_placed +
                    (unsigned)next_random(power->num_changes - power->num_placed + 1));
    draw_pending(&walk, &state);
    shell("rm -rf '%s'", path);
    power_make(&state, path);
}

/* The start after the one that the log has. */
static void look_again(struct walk *walk, const struct power_state *state, bool is_first)
{
    struct telling *telling = walk->user;
    (void)is_first;
    print_message("# %s: and after %u changes of the start, %u not synced\n", telling->story->name,
                  state->num_changes - power->num_placed, walk->num_pending);
    power_make(state, telling->cut);
    telling->story->check(telling->bed, telling->cut, &telling->told);
    shell("rm -rf '%s'", telling->cut);
}

/* The start that the log has is cut after each of its changes. */
static void walk_start(struct telling *telling)
{
    static struct walk walk;
    telling->num_walked++;
    shell("rm -rf '%s'", telling->cut);
    walk = (struct walk){
        .visit = look_again, .count_told = promises_nothing, .user = telling, .is_short = true};
    walk_states(&walk, 0);
    telling->num_ends += walk.count;
}

/* The state is made, a start on it cut so many times, each time the one after the last cut; then
 * it is judged. */
static void look_at(struct telling *telling, const struct power_state *state, unsigned num_cuts)
{
    uint64_t chances = random_state; /* those of the walk stay as they are */
    power_make(state, telling->cut);
    for (unsigned i = 1; i <= num_cuts; i++) {
        record_start(telling->bed, telling->cut, i);
        cut_start(telling->cut);
    }
    telling->story->check(telling->bed, telling->cut, &telling->told);
    shell("rm -rf '%s'", telling->cut);
    if (num_cuts == 1 && telling->num_cut++ % WALKED == 0)
        walk_start(telling);
    power = &power_logs[0];
    random_state = chances;
}

static void look(struct walk *walk, const struct power_state *state, bool is_first)
{
    struct telling *telling = walk->user;
    struct bed *bed = telling->bed;
    unsigned times_told = count_told(state->num_changes);
    if ((!is_first && walk->count % walk->stride != 0) || !sample_takes(&telling->sample))
        return;
    telling->told = times_told > 0 ? heard.told[times_told - 1] : (struct peer_status){0};
    snprintf(telling->cut, sizeof telling->cut, "%s/cut", bed->root);
    snprintf(bed->config.store, sizeof bed->config.store, "%s", telling->cut);
    bool is_cut_again = walk->visited++ % CUT_AGAIN == 0;
    unsigned least = is_cut_again && !telling->is_torture, most = telling->is_torture ? 2 : least;
    for (unsigned num_cuts = least; num_cuts <= most; num_cuts++) {
        print_message("# %s: state %u, after %u changes, %u not synced, cut %u more times\n",
                      telling->story->name, walk->count, state->num_changes - power->num_placed,
                      walk->num_pending, num_cuts);
        look_at(telling, state, num_cuts);
    }
}

/* Runs the story while its changes are recorded. */
static void record_story(const struct story *story, struct bed *bed)
{
    char plain[160];
    struct peer_status told = {0};
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

TEST_BETWEEN(test_power__whatever_it_leaves_nothing_acknowledged_is_lost, open_with_stories,
             close_with_made)
{
    bool is_torture = getenv("TORTURE") != NULL;
    seed_random();
    when_told = hear;
    for (size_t i = 0; i < NUM_STORIES; i++) {
        static struct walk walk;
        struct telling telling = {*state, &stories[i], .is_torture = is_torture,
                                  .sample = sample_begin(STATES_APART)};
        walk = (struct walk){.visit = count_only, .count_told = count_told, .user = &telling};
        record_story(&stories[i], *state);
        uint64_t seed = random_state;
        walk_states(&walk, seed);
        walk.stride = is_torture || walk.count < STATES ? 1 : walk.count / STATES;
        print_message("# %s: %u changes, %u states\n", stories[i].name,
                      power->num_changes - power->num_placed, walk.count);
        assert_true(walk.count > stories[i].operations_least);
        walk.visit = look;
        walk_states(&walk, seed);
        print_message("# %s: %u looked at; %u starts cut after each change, %u times in all\n",
                      stories[i].name, walk.visited, telling.num_walked, telling.num_ends);
        assert_true(telling.num_ends > telling.num_walked);
    }
}

int main(void)
{
    log_setup("ckptd_power", NULL);
    tell_in_memory();
    return suite_run(NULL, NULL);
}
