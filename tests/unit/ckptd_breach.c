/* ckptd_breach.c - trainers that misuse their shared memory.
 *
 * Goal: whatever a rank does to its arena (holes, truncation, seals, late writes), ckptd continues
 * and serves committed data unchanged. Above all, other saves are untouched: later saves of other
 * ranks are whole on disk, also while the offender still writes by its old mappings. Method: a raw
 * client; a pool so small that the next attempt gets the same segments. A restart, so that loads
 * come from the disk and not from memory. SEED=<n> and ROUNDS=<n>. */
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#define SMALL_POOL (10 * MIB) /* two images of one rank */

static struct peer peers[RANKS];

static int set_up(void **state)
{
    struct bed *bed = bed_new();
    *state = bed;
    bed->config.pool_bytes = SMALL_POOL;
    memset(peers, 0, sizeof peers);
    return bed_start(bed);
}

/* ---- the offender ---- */

enum deed { PUNCH, WRITE, NUM_DEEDS };

/* Once over all memory that the peer has mapped. */
static void offend(const struct peer *peer, enum deed deed)
{
    size_t bytes = (size_t)peer->bed->config.segment_bytes;
    for (uint32_t i = 0; i < POOL_SEGMENTS_MAX; i++) {
        if (peer->mapped[i] && deed == WRITE)
            memset(peer->mapped[i], 0xee, bytes);
        else if (peer->mapped[i])
            CHECK(madvise(peer->mapped[i], bytes, MADV_REMOVE) == 0);
    }
}

struct offender {
    const struct peer *peer;
    atomic_bool stop;
    pthread_t thread;
};

static void *offend_on(void *argument)
{
    struct offender *offender = argument;
    for (int i = 0; !offender->stop; i++) {
        offend(offender->peer, i % NUM_DEEDS);
        sleep_ms(1);
    }
    return NULL;
}

/* The peer hangs up, as a killed rank does, but its mappings stay: another process has them. */
static struct peer leave_with_mappings(void)
{
    struct peer former = peers[0];
    memset(peers[0].mapped, 0, sizeof peers[0].mapped);
    peer_close(&peers[0]);
    return former;
}

static uint32_t count_shared(const struct peer *former)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < peers[0].num_segments; i++)
        count += former->mapped[peers[0].segments[i]] != NULL;
    return count;
}

static void unmap(const struct peer *former)
{
    for (uint32_t i = 0; i < POOL_SEGMENTS_MAX; i++)
        if (former->mapped[i])
            munmap(former->mapped[i], (size_t)former->bed->config.segment_bytes);
}

/* ---- the harm to others ---- */

BED_TEST_BETWEEN(test_breach__a_hole_does_not_part_a_load_from_its_disk, set_up, bed_tear_down)
{
    bed_open_world(bed, peers, 1);
    for (uint64_t step = 1; step <= 3; step++)
        assert_true(save_step(peers, 1, step));
    offend(&peers[0], PUNCH);
    struct peer former = leave_with_mappings();
    for (uint64_t step = 1; step <= 3; step++) /* 1 takes the memory of 2 or 3 */
        assert_int_equal(load_all(bed, (int64_t)step, NULL), 0);
    unmap(&former);
    Holdfast__V1__ListReply *reply = bed_list(bed);
    for (uint32_t i = 0; i < 3; i++)
        assert_string_equal(reply->checkpoints[i]->damage, "");
    FREE_REPLY(reply);
}

BED_TEST_BETWEEN(test_breach__who_writes_on_after_his_attempt_reaches_no_other, set_up,
                 bed_tear_down)
{
    const char *text = getenv("ROUNDS");
    uint64_t rounds = text ? strtoull(text, NULL, 10) : 4, step = 0;
    bed_open_world(bed, peers, 1);
    for (uint64_t round = 0; round < rounds; round++) {
        assert_true(save_step(peers, 1, ++step));
        assert_true(save_step(peers, 1, ++step));
        struct peer former = leave_with_mappings();
        struct offender offender = {.peer = &former};
        assert_int_equal(pthread_create(&offender.thread, NULL, offend_on, &offender), 0);
        bed_open_world(bed, peers, 1);
        for (int i = 0; i < 4; i++)
            assert_true(save_step(peers, 1, ++step));
        assert_true(count_shared(&former) > 0);
        offender.stop = true;
        pthread_join(offender.thread, NULL);
        unmap(&former);
    }
    peers_close(peers, 1);
    bed_restart(bed);
    for (uint64_t i = 1; i <= step; i++)
        assert_int_equal(load_all(bed, (int64_t)i, NULL), 0);
}

/* ---- the harm to oneself ---- */

static void load_if_whole(struct bed *bed, int64_t step)
{
    struct loading loading;
    if (load_open(&loading, bed, step) != 0)
        return;
    int error = load_shard(&loading, 0, NULL);
    assert_true(error == 0 || error == ERR_CORRUPT);
    load_close(&loading);
}

/* At each point of a save, one save each. If it is committed, its data is as hashed, or ckptd finds
 * the damage when it reads the file. The save before is whole; ckptd continues. */
static void offend_while_saving(struct bed *bed, enum deed deed, int when)
{
    bed_open_world(bed, peers, 1);
    assert_true(save_step(peers, 1, 1));
    assert_int_equal(peer_begin(&peers[0], 2), 0);
    if (when == 0)
        offend(&peers[0], deed);
    peer_fill(&peers[0], 2);
    peer_announce(&peers[0], ARENA_ENTRY_RANGE, peers[0].data_byte, peers[0].bytes);
    if (when == 1)
        offend(&peers[0], deed);
    peer_announce(&peers[0], ARENA_ENTRY_END, 0, 0);
    if (when == 2)
        offend(&peers[0], deed);
    wait_save(bed, 2, NULL);
    peers_close(peers, 1);
    load_if_whole(bed, 2);
    bed_open_world(bed, peers, 1);
    assert_true(save_step(peers, 1, 3)); /* ckptd continues, and the next one is whole */
    peers_close(peers, 1);
    bed_restart(bed);
    assert_int_equal(load_all(bed, 1, NULL), 0);
    assert_int_equal(load_all(bed, 3, NULL), 0);
    load_if_whole(bed, 2);
}

/* Each deed on a fresh bed. */
TEST(test_breach__a_rank_that_punches_or_overwrites_its_own_save_harms_itself_alone)
{
    for (int i = 0; i < 3 * NUM_DEEDS; i++) {
        assert_int_equal(set_up(state), 0);
        offend_while_saving(*state, i % NUM_DEEDS, i / NUM_DEEDS);
        bed_tear_down(state);
    }
}

/* All control data that rank and daemon share becomes zero, or random, between two entries; the
 * daemon reads it before the rank hangs up. */
BED_TEST_BETWEEN(test_breach__a_control_page_of_zeros_or_noise_ends_at_most_the_session, set_up,
                 bed_tear_down)
{
    uint64_t one = 1;
    seed_random();
    for (int i = 0; i < 8; i++) {
        bed_open_world(bed, peers, 1);
        assert_int_equal(peer_begin(&peers[0], (uint64_t)i + 1), 0);
        peer_fill(&peers[0], (uint64_t)i + 1);
        peer_announce(&peers[0], ARENA_ENTRY_RANGE, peers[0].data_byte, MIB);
        uint8_t *page = (uint8_t *)peers[0].control;
        if (i % 2 == 0)
            assert_int_equal(madvise(page, sizeof *peers[0].control / 4096 * 4096, MADV_REMOVE), 0);
        for (size_t b = 0; i % 2 == 1 && b < sizeof *peers[0].control; b++)
            page[b] = (uint8_t)next_random(256);
        assert_int_equal(write(peers[0].event_fd, &one, sizeof one), sizeof one);
        json_decref(
            bed_status(bed)); /* its answer comes after the entry that the rank woke it for */
        peers_close(peers, 1);
        assert_int_not_equal(wait_save(bed, (uint64_t)i + 1, NULL),
                             HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    }
    bed_open_world(bed, peers, 1);
    assert_true(save_step(peers, 1, 100));
    peers_close(peers, 1);
    bed_restart(bed);
    assert_int_equal(load_all(bed, 100, NULL), 0);
}

/* ---- memory that a session can reach, in a pool that has room ---- */

BED_TEST(test_breach__a_session_gets_only_what_is_lent_to_it)
{
    struct loading loading;
    int fds[ARENA_FDS_MAX];
    bed_open_world(bed, peers, RANKS);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    assert_int_equal(peer_begin(&peers[1], 1), 0);
    assert_int_equal(peer_map(&peers[1], peers[0].segments, 1, true), ERR_DENIED);
    assert_int_equal(peer_map(&peers[1], peers[0].segments, 1, false), ERR_DENIED);
    assert_int_equal(peer_map(&peers[1], (uint32_t[]){POOL_SEGMENTS_MAX - 1}, 1, true), ERR_DENIED);
    for (uint32_t i = 0; i < RANKS; i++)
        peer_finish(&peers[i], 1);
    assert_int_equal(wait_save(bed, 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    assert_int_equal(load_open(&loading, bed, -1), 0);
    assert_int_equal(load_shard(&loading, 0, NULL), 0);
    struct arena_request request = {
        .kind = ARENA_REQUEST_SEGMENTS, .num_segments = 1, .segments = {loading.peer.segments[0]}};
    assert_int_equal(arena_ask(&loading.peer, &request, fds), 0);
    assert_true(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0) == MAP_FAILED);
    assert_int_not_equal(ftruncate(fds[0], 0), 0);
    close(fds[0]);
    load_close(&loading);
    peers_close(peers, RANKS);
}

BED_TEST(test_breach__nonsense_on_the_arena_socket_ends_only_that_connection)
{
    char noise[sizeof(struct arena_request)];
    bed_open_world(bed, peers, 1);
    int fd = arena_connect(bed);
    memset(noise, 0x5a, sizeof noise);
    assert_int_equal(send(fd, noise, sizeof noise, MSG_NOSIGNAL), sizeof noise);
    assert_int_equal(recv(fd, noise, sizeof noise, 0), 0); /* hung up */
    close(fd);
    /* A session's line belongs to one connection. */
    struct peer thief = peers[0];
    thief.socket = arena_connect(bed);
    struct arena_request request = {.kind = ARENA_REQUEST_CONTROL};
    int fds[ARENA_FDS_MAX];
    assert_int_equal(arena_ask(&thief, &request, fds), ERR_EXISTS);
    close(thief.socket);
    assert_true(save_step(peers, 1, 1));
    peers_close(peers, 1);
}

BED_TEST(test_breach__a_broken_ring_ends_the_session)
{
    uint64_t one = 1;
    bed_open_world(bed, peers, 1);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    __atomic_store_n(&peers[0].control->head, UINT64_MAX / 2, __ATOMIC_SEQ_CST);
    assert_int_equal(write(peers[0].event_fd, &one, sizeof one), sizeof one);
    assert_int_equal(wait_save(bed, 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_FAILED);
    assert_int_equal(peer_begin(&peers[0], 2), ERR_NOT_FOUND);
    peers_close(peers, 1);
}

SUITE(NULL, NULL)
