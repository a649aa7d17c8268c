/* trainer_flight_compare.c - the rank that did not join, found from the dumps of all.
 *
 * Goal: among ranks in threads the one that another waits for is named, wherever it is; so is a
 * rank that SIGKILL ended, by its ring. Method: each rank writes its recorder (flight_write) into a
 * folder at a moment when the others wait; the text of the comparison is searched. A killed rank is
 * a separate process. */
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/comm/comm.h"
#include "trainer/comm/flight.h"
#include "trainer/comm/flight_compare.h"
#include "trainer/comm/flight_ring.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 3u

static char folder[256];

static void dump_path(char out[300], uint32_t rank)
{
    snprintf(out, 300, "%s/rank_%u.json", folder, rank);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "%s/hf-compare-%d", getenv("TMPDIR"), (int)getpid());
    return mkdir(folder, 0777);
}

static int remove_folder(void **state)
{
    char path[300];
    (void)state;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        dump_path(path, rank);
        unlink(path);
    }
    return rmdir(folder);
}

/* A call that has ended and, where the rank waits, another one. */
static void make_calls(struct flight *flight, uint32_t rank, enum comm_kind kind, uint64_t sequence,
                       bool waits)
{
    struct comm world = {
        .rank = rank, .size = RANKS, .name = "world", .lane = "compute", .flight = flight};
    struct comm_call call = {.kind = COMM_BARRIER, .site = "here.c:1"};
    assert_non_null(flight);
    world.num_calls = 1;
    uint64_t id = flight_begin(flight, &world, &call);
    flight_start(flight, id);
    flight_end(flight, id, 0);
    if (waits) {
        world.num_calls = sequence;
        call.kind = kind;
        call.site = "there.c:2";
        flight_start(flight, flight_begin(flight, &world, &call));
    }
}

static void write_dump(uint32_t rank, enum comm_kind kind, uint64_t sequence, bool waits)
{
    char path[300];
    struct flight *flight = flight_new(rank);
    make_calls(flight, rank, kind, sequence, waits);
    dump_path(path, rank);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    flight_write(flight, "test", file);
    assert_int_equal(fclose(file), 0);
    flight_free(flight);
}

static const char *compare_in(const char *in, const char *prefix)
{
    static char text[4096];
    memset(text, 0, sizeof(text));
    FILE *out = fmemopen(text, sizeof(text) - 1, "w");
    assert_non_null(out);
    assert_int_equal(flight_compare(in, prefix, out), 0);
    assert_int_equal(fclose(out), 0);
    return text;
}

TEST(test_flight_compare__a_rank_that_waits_for_none_is_named)
{
    write_dump(0, COMM_SUM_I64, 2, true);
    write_dump(1, COMM_SUM_I64, 1, false);
    write_dump(2, COMM_SUM_I64, 2, true);
    const char *text = compare_in(folder, "rank_");
    assert_non_null(strstr(text, "3 dumps of 3 ranks\n"));
    assert_non_null(strstr(text, "rank 1 did not join: it waits for no other rank, after barrier 1 "
                                 "of world, 0 bytes, at here.c:1\n"));
    assert_non_null(strstr(text, "\nrank 2 waits in "));
    assert_null(strstr(text, "rank 0 did not join"));
    assert_null(strstr(text, "rank 2 did not join"));
}

TEST(test_flight_compare__a_rank_without_a_dump_is_named)
{
    char path[300];
    dump_path(path, 2);
    unlink(path);
    write_dump(0, COMM_BARRIER, 2, true);
    write_dump(1, COMM_BARRIER, 2, true);
    const char *text = compare_in(folder, "rank_");
    assert_non_null(strstr(text, "2 dumps of 3 ranks\n"));
    assert_non_null(strstr(text, "rank 2 did not join: it left no dump\n"));
    assert_null(strstr(text, "rank 1 did not join"));
}

TEST(test_flight_compare__a_rank_that_is_behind_or_calls_something_else_is_named)
{
    write_dump(0, COMM_BARRIER, 3, true);
    write_dump(1, COMM_BARRIER, 2, true);
    write_dump(2, COMM_SUM_I64, 3, true);
    const char *text = compare_in(folder, "rank_");
    assert_non_null(strstr(text, "rank 1 did not join: it waits elsewhere, in barrier 2 of world"));
    assert_non_null(strstr(text, "rank 2 did not join: it waits elsewhere, in "));
    assert_null(strstr(text, "rank 0 did not join"));
    write_dump(1, COMM_BARRIER, 3, true);
    write_dump(2, COMM_BARRIER, 3, true);
    assert_non_null(strstr(compare_in(folder, "rank_"), "all ranks joined"));
}

/* A rank that was killed in a call of one lane, while another lane's call is as far as all. */
static void write_lanes(uint32_t rank, uint64_t gathers, uint32_t size)
{
    char path[300];
    struct flight *flight = flight_new(rank);
    struct comm_call call = {.kind = COMM_BARRIER, .site = "there.c:2"};
    struct comm shard = {
        .rank = rank, .size = size, .name = "dp_shard", .lane = "gather", .flight = flight};
    make_calls(flight, rank, COMM_BARRIER, 2, true);
    shard.num_calls = gathers;
    flight_start(flight, flight_begin(flight, &shard, &call));
    dump_path(path, rank);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    flight_write(flight, "test", file);
    assert_int_equal(fclose(file), 0);
    flight_free(flight);
}

TEST(test_flight_compare__a_rank_that_is_behind_in_any_group_of_all_ranks_is_named)
{
    for (uint32_t rank = 0; rank < RANKS; rank++)
        write_lanes(rank, rank == 1 ? 7 : 8, RANKS);
    const char *text = compare_in(folder, "rank_");
    assert_non_null(strstr(text, "rank 1 did not join: it waits elsewhere, in "));
    assert_null(strstr(text, "rank 0 did not join"));
    assert_null(strstr(text, "rank 2 did not join"));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        write_lanes(rank, rank == 1 ? 7 : 8, RANKS - 1); /* who is in it is not known */
    assert_non_null(strstr(compare_in(folder, "rank_"), "all ranks joined"));
}

TEST(test_flight_compare__what_is_no_dump_is_refused)
{
    char path[300];
    dump_path(path, 1);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs("{}", file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(flight_compare(folder, "rank_", stdout), ERR_INVALID);
    assert_non_null(strstr(report_line(), "rank_1.json"));
    assert_int_equal(flight_compare(folder, "other_", stdout), ERR_NOT_FOUND);
    assert_int_equal(flight_compare("/nowhere", "rank_", stdout), ERR_NOT_FOUND);
}

/* ---- rings ---- */

static struct flight *keep_ring(uint32_t rank)
{
    struct flight_options options = {.num_records = 8, .folder = folder, .prefix = "kept_"};
    struct flight *flight = flight_new(rank);
    assert_non_null(flight);
    assert_int_equal(flight_set(flight, &options), 0);
    return flight;
}

/* A process with a rank that waits for others, or for none, and is killed there. */
static void kill_rank(uint32_t rank, bool waits)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct flight *flight = keep_ring(rank);
        flight_enter_op(flight, "compute",
                        &(struct flight_place){.what = "gather", .index = 7, .block = UINT32_MAX});
        make_calls(flight, rank, COMM_SUM_I64, 2, waits);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(test_flight_ring__a_rank_that_was_killed_in_a_call_is_named_by_its_ring)
{
    char path[300];
    struct flight *living = keep_ring(0);
    make_calls(living, 0, COMM_SUM_I64, 2, true);
    kill_rank(1, true);
    const char *text = compare_in(folder, "kept_");
    assert_non_null(strstr(text, "rank 2 did not join: it left no dump\n"));
    assert_non_null(strstr(text, "rank 1 is dead: its process ended in "));
    assert_non_null(strstr(text, " 2 of world, 0 bytes, at there.c:2, in operation 7, gather"));
    assert_non_null(strstr(text, "rank 0 waits in ")); /* it lives, and has made no dump */
    assert_null(strstr(text, "rank 0 is dead"));
    flight_dump(living, "test");
    text = compare_in(folder, "kept_");
    assert_non_null(strstr(text, "rank 1 is dead: "));
    assert_null(strstr(text, "rank 1 may")); /* not that it stood still, too */
    flight_free(living);
    snprintf(path, sizeof(path), "%s/kept_0.json", folder);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof(path), "%s/kept_0.ring", folder);
    assert_int_not_equal(access(path, F_OK), 0); /* of a rank that ends nothing is left */
    snprintf(path, sizeof(path), "%s/kept_1.ring", folder);
    assert_int_equal(unlink(path), 0);
}

TEST(test_flight_ring__what_a_start_left_is_compared_after_the_next_has_begun)
{
    char before[300], path[400];
    kill_rank(0, true);
    kill_rank(1, false);
    kill_rank(2, true);
    struct flight *next = keep_ring(1);
    flight_free(keep_ring(0));
    flight_free(keep_ring(2));
    snprintf(before, sizeof(before), "%s/before", folder);
    const char *text = compare_in(before, "kept_");
    assert_non_null(strstr(text, "3 dumps of 3 ranks\nthe processes of all ranks are dead"));
    assert_non_null(strstr(text, "rank 1 did not join: it waits for no other rank, after barrier 1 "
                                 "of world, 0 bytes, at here.c:1, in operation 7, gather; lane "
                                 "compute: operation 7, gather\n"));
    assert_null(strstr(text, "rank 0 did not join"));
    flight_free(next);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        snprintf(path, sizeof(path), "%s/kept_%u.ring", before, rank);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(before), 0);
}

/* ---- a process that stands still ---- */

static void set_number(uint32_t rank, size_t offset, int64_t number)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/kept_%u.ring", folder, rank);
    int file = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(file >= 0);
    assert_int_equal(pwrite(file, &number, sizeof(number), (off_t)offset), sizeof(number));
    assert_int_equal(close(file), 0);
}

static void set_alive_ms(uint32_t rank, int64_t alive_ms)
{
    set_number(rank, offsetof(struct flight_ring, alive_ms), alive_ms);
}

TEST(test_flight_ring__a_rank_that_stands_still_in_the_call_of_all_is_named)
{
    struct flight *of[RANKS];
    struct flight_still still;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        of[rank] = keep_ring(rank);
        make_calls(of[rank], rank, COMM_SUM_I64, 2, true);
    }
    flight_beat_all();
    assert_non_null(strstr(compare_in(folder, "kept_"), "all ranks joined"));
    assert_false(flight_find_still(&still, folder, "kept_"));
    set_alive_ms(1, clock_wall_ms() - 2 * FLIGHT_STILL_MS);
    const char *text = compare_in(folder, "kept_");
    assert_non_null(strstr(text, "rank 1 did not join: its process stood still for "));
    assert_null(strstr(text, "rank 0 did not join"));
    assert_null(strstr(text, "all ranks joined"));
    assert_true(flight_find_still(&still, folder, "kept_"));
    assert_int_equal(still.rank, 1);
    assert_true(still.seconds >= 2e-3 * FLIGHT_STILL_MS);
    assert_false(flight_find_still(&still, folder, "other_"));
    assert_false(flight_find_still(&still, "", "kept_"));
    set_number(1, offsetof(struct flight_ring, boot), 7); /* of another host, of another clock */
    assert_non_null(strstr(compare_in(folder, "kept_"), "all ranks joined"));
    assert_false(flight_find_still(&still, folder, "kept_"));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        flight_free(of[rank]);
}

TEST(test_flight_ring__a_rank_that_made_no_dump_as_others_did_is_named)
{
    char path[300];
    struct flight *of[RANKS];
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        of[rank] = keep_ring(rank);
        make_calls(of[rank], rank, COMM_SUM_I64, 2, true);
        if (rank != 2)
            flight_dump(of[rank], "test");
    }
    const char *text = compare_in(folder, "kept_");
    assert_non_null(
        strstr(text, "rank 2 may have stood still: it made no dump, as others did, in"));
    assert_null(strstr(text, "rank 0 may"));
    assert_null(strstr(text, "all ranks joined"));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        flight_free(of[rank]);
        snprintf(path, sizeof(path), "%s/kept_%u.json", folder, rank);
        assert_int_equal(unlink(path), rank == 2 ? -1 : 0);
    }
}

SUITE(make_folder, remove_folder)
