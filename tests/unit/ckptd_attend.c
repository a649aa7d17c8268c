/* ckptd_attend.c - Attend: a rank of another node tells what it does, and learns what it is asked.
 *
 * Goal: ckptd describes such a rank by its notes, in its own clock, but none that its own end cuts
 * off; the reply has what Stop and AskSave asked of the rank. Any bytes may come as notes. Those of
 * a wrong size, or of a session that is none of a rank, change nothing; those of a session change
 * no other. The call is no sign of life. A rank that has not run, while another did, is named in
 * the history. Method: the service of ckptd_bed.h, whose ranks map their pages, so that the test
 * sees what the call writes. */
#include "ckptd/core/catalog.h"
#include "ckptd/memory/session.h"
#include "proto/base/clock.h"
#include "proto/wire/arena_notes.h"
#include "tests/unit/ckptd_bed.h"
#include "tests/unit/suite.h"

#define CLOCK_NS 5000000000ull /* the other node has run for 5 s */

static struct peer peers[RANKS];

static int set_up(void **state)
{
    bed_set_up(state);
    bed_open_world(*state, peers, RANKS);
    return 0;
}

static int tear_down(void **state)
{
    peers_close(peers, RANKS);
    return bed_tear_down(state);
}

#define ATTEND_TEST(name) BED_TEST_BETWEEN(name, set_up, tear_down)

struct told {
    uint64_t session;
    const void *notes;
    size_t bytes;
    uint32_t spoke_s;
};

static int attend(struct bed *bed, struct session_asked *out, const struct told *told)
{
    Holdfast__V1__AttendRequest request = HOLDFAST__V1__ATTEND_REQUEST__INIT;
    Holdfast__V1__AttendReply *reply;
    request.session = told->session;
    request.notes.data = (uint8_t *)(uintptr_t)told->notes;
    request.notes.len = told->bytes;
    request.clock_ns = CLOCK_NS;
    request.spoke_s = told->spoke_s;
    int error = call(bed, "Attend", &request.base, &holdfast__v1__attend_reply__descriptor, &reply);
    if (error != 0)
        return error;
    *out = (struct session_asked){reply->asked, reply->asked_within_s, reply->saves_asked};
    FREE_REPLY(reply);
    return 0;
}

static struct arena_notes made_notes(void)
{
    struct arena_notes notes = {.has_left = 1}; /* which only the end of the connections says */
    const struct arena_note note = {.number = 3, .step = 7, .bytes = 64, .operation = 4, .part = 0};
    arena_note_call(&notes, &note, &(struct arena_text){"all_gather", "dp_shard", "gather"});
    notes.calls[3].since_ns = CLOCK_NS - 2000000000u;
    return notes;
}

ATTEND_TEST(test_attend__a_lost_rank_is_described_in_the_clock_of_ckptd)
{
    struct arena_notes notes = made_notes();
    struct session_asked asked;
    char log[8192];
    assert_int_equal(
        attend(bed, &asked, &(struct told){peers[0].token, &notes, sizeof notes, .spoke_s = 4}), 0);
    assert_int_equal(asked.asked, 0);
    assert_int_equal(asked.saves, 0);
    bed_divert_log(bed);
    peer_close(&peers[0]);
    assert_true(wait_number(bed, "sessions", "ranks", RANKS - 1));
    bed_read_log(bed, log, sizeof log);
    assert_non_null(strstr(log, "rank 0 is gone: step 7, in all_gather of dp_shard (lane gather, "
                                "operation 4, 64 bytes) for 2."));
}

ATTEND_TEST(test_attend__a_rank_that_the_end_of_ckptd_cuts_off_is_not_lost)
{
    struct arena_notes notes = made_notes();
    struct session_asked asked;
    char log[8192];
    assert_int_equal(
        attend(bed, &asked, &(struct told){peers[0].token, &notes, sizeof notes, .spoke_s = 4}), 0);
    bed_divert_log(bed);
    bed_stop(bed);
    bed_read_log(bed, log, sizeof log);
    assert_null(strstr(log, "is gone: "));
}

ATTEND_TEST(test_attend__the_reply_has_what_ckptd_asks)
{
    struct arena_notes notes = made_notes();
    struct told told = {peers[1].token, &notes, sizeof notes, 0};
    struct session_asked asked;
    Holdfast__V1__AskSaveRequest save = HOLDFAST__V1__ASK_SAVE_REQUEST__INIT;
    Holdfast__V1__StopRequest stop = HOLDFAST__V1__STOP_REQUEST__INIT;
    save.run = stop.run = (char *)(uintptr_t)RUN;
    stop.grace_seconds = 100;
    stop.without_save = true;
    assert_int_equal(try_call(bed, "AskSave", &save.base), 0);
    assert_int_equal(try_call(bed, "AskSave", &save.base), 0);
    assert_int_equal(attend(bed, &asked, &told), 0);
    assert_int_equal(asked.saves, 2);
    assert_int_equal(asked.asked, 0);
    assert_int_equal(asked.within_s, 0);
    assert_int_equal(try_call(bed, "Stop", &stop.base), 0);
    assert_int_equal(attend(bed, &asked, &told), 0);
    assert_int_equal(asked.asked, ARENA_ASKED_STOP | ARENA_ASKED_NO_SAVE);
    assert_in_range(asked.within_s, 90, 100);
    /* All ranks that begin a save know the requests that led to it. */
    Holdfast__V1__BeginSaveRequest begin = HOLDFAST__V1__BEGIN_SAVE_REQUEST__INIT;
    Holdfast__V1__BeginSaveReply *reply;
    begin.session = peers[0].token;
    begin.step = 1;
    assert_int_equal(
        call(bed, "BeginSave", &begin.base, &holdfast__v1__begin_save_reply__descriptor, &reply),
        0);
    assert_int_equal(reply->saves_asked, 2);
    assert_int_equal(reply->asked, asked.asked);
    FREE_REPLY(reply);
}

ATTEND_TEST(test_attend__what_is_no_ranks_changes_nothing)
{
    static uint8_t bytes[sizeof(struct arena_notes) + 1];
    static struct arena_control before[RANKS];
    struct session_asked asked;
    memset(bytes, 0xff, sizeof bytes);
    for (uint32_t i = 0; i < RANKS; i++)
        memcpy(&before[i], peers[i].control, sizeof before[i]);
    for (size_t size = 0; size <= sizeof bytes; size += size == 0 ? sizeof bytes - 2 : 2)
        assert_int_equal(attend(bed, &asked, &(struct told){peers[0].token, bytes, size, 9}),
                         ERR_INVALID);
    const uint64_t unknown[] = {0, 1, peers[0].token + 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_int_equal(
            attend(bed, &asked, &(struct told){unknown[i], bytes, sizeof(struct arena_notes), 9}),
            ERR_NOT_FOUND);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_memory_equal(&before[i], peers[i].control, sizeof before[i]);
    assert_int_equal(
        attend(bed, &asked, &(struct told){peers[0].token, bytes, sizeof bytes - 1, 9}), 0);
    assert_memory_equal(&before[1], peers[1].control, sizeof before[1]);
    struct arena_notes *notes = &peers[0].control->notes;
    assert_int_equal(notes->has_left, 0);
    assert_memory_not_equal(&before[0].notes.calls, notes->calls, sizeof notes->calls);
    memcpy(notes, &before[0].notes, sizeof *notes);
    peers[0].control->spoke_s = before[0].spoke_s;
    assert_memory_equal(&before[0], peers[0].control, sizeof before[0]);
}

ATTEND_TEST(test_attend__any_bytes_are_described_printably)
{
    char log[65536];
    struct arena_notes notes;
    struct session_asked asked;
    bed_divert_log(bed);
    for (unsigned round = 0; round < 300; round++) {
        for (size_t i = 0; i < sizeof notes; i++)
            ((uint8_t *)&notes)[i] = (uint8_t)(rand() % (round % 2 ? 256 : 2) * 255);
        assert_int_equal(attend(bed, &asked,
                                &(struct told){peers[0].token, &notes, sizeof notes,
                                               (uint32_t)rand() * (round % 3)}),
                         0);
        json_decref(bed_status(bed));
    }
    peer_close(&peers[0]);
    assert_true(wait_number(bed, "sessions", "ranks", RANKS - 1));
    bed_read_log(bed, log, sizeof log);
    assert_non_null(strstr(log, "rank 0 is gone: step "));
    for (const char *c = log; *c != '\0'; c++)
        assert_true(*c == '\n' || (*c >= ' ' && *c <= '~'));
}

/* The time of the newest phase is one. */
ATTEND_TEST(test_attend__the_call_is_no_sign_of_life)
{
    struct arena_notes notes = made_notes();
    struct told told = {peers[0].token, &notes, sizeof notes, .spoke_s = 4};
    struct session_asked asked;
    struct run *run;
    sleep_ms(1200);
    assert_int_equal(attend(bed, &asked, &told), 0);
    bed_hold(bed);
    assert_int_equal(run_find(&run, bed->service, RUN, false), 0);
    const struct session_ranks silent = session_ranks_of(run);
    bed_go_on(bed);
    assert_int_equal(silent.silent, 0);
    assert_in_range(silent.silent_ms, 1000, 10000);
    assert_non_null(strstr(silent.doing, "step 7, in all_gather"));
    told.spoke_s = 5;
    assert_int_equal(attend(bed, &asked, &told), 0);
    bed_hold(bed);
    const struct session_ranks spoke = session_ranks_of(run);
    bed_go_on(bed);
    assert_in_range(spoke.silent_ms, 0, 1100);
}

/* The rank whose process stands still, for some 20 s; -1: none does. */
static int still_rank(struct bed *bed)
{
    Holdfast__V1__HistoryRequest request = HOLDFAST__V1__HISTORY_REQUEST__INIT;
    Holdfast__V1__HistoryReply *reply;
    int rank = -1;
    double seconds = 20;
    request.run = (char *)(uintptr_t)RUN;
    assert_int_equal(
        call(bed, "History", &request.base, &holdfast__v1__history_reply__descriptor, &reply), 0);
    const char *still = strstr(reply->lines, "\"event\":\"still\"");
    if (still != NULL)
        assert_int_equal(
            sscanf(strstr(still, "\"rank\":"), "\"rank\":%d,\"seconds\":%lf}\n", &rank, &seconds),
            2);
    assert_in_range((uint64_t)seconds, 20, 29);
    FREE_REPLY(reply);
    return rank;
}

/* If none has run, the whole machine may have been stopped. */
ATTEND_TEST(test_attend__a_rank_stands_still_if_another_has_run_since)
{
    uint32_t long_ago = (uint32_t)clock_ms() - 20000;
    assert_int_equal(still_rank(bed), -1);
    peers[1].control->notes.alive_ms = long_ago;
    assert_int_equal(still_rank(bed), -1);
    peers[0].control->notes.alive_ms = long_ago + 1000;
    assert_int_equal(still_rank(bed), -1);
    arena_note_alive(&peers[0].control->notes);
    assert_int_equal(still_rank(bed), 1);
    arena_note_alive(&peers[1].control->notes);
    assert_int_equal(still_rank(bed), -1);
}

SUITE(NULL, NULL)
