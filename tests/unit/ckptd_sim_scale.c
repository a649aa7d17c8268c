/* ckptd_sim_scale.c - the coordinator's cost of a commit, by the number of ranks.
 *
 * Goal: messages and bytes of a commit grow no faster than the ranks, manifests included: a node
 * gets it once, few from the coordinator, the others from a node that has it. Waiting nodes ask in
 * each round; the number of rounds grows with the logarithm of the nodes. Method: sim_scale.h, with
 * the real machine and messages, at 512 ranks on 64 nodes and at 2,048 on 256; it counts messages
 * and bytes, no time. The largest, 16,384 ranks on 2,048 nodes, and CPU seconds are a row of the
 * bench (scale_nodes.c). */
#include "tests/unit/sim_scale.h"
#include "tests/unit/suite.h"

static const struct model_mesh few = {4, 16, 8}, many = {4, 64, 8};

static void save_once(struct scale *out, struct model_mesh mesh)
{
    scale_open(out, mesh, 1);
    assert_true(scale_save(out));
    assert_true(scale_save(out)); /* the next one, too */
    scale_close(out);
}

TEST(test_sim_scale__a_commit_of_four_times_the_ranks_takes_four_times_the_bytes)
{
    struct scale small, large;
    save_once(&small, few);
    save_once(&large, many);
    assert_int_equal(large.ranks, 4 * small.ranks);
    assert_true(large.messages * 10 < small.messages * 4 * 11);
    assert_true(large.bytes_in * 20 < small.bytes_in * 4 * 21);
    assert_true(large.bytes_out * 20 < small.bytes_out * 4 * 21);
    assert_true(large.text_bytes < small.text_bytes * 4);
    assert_true(large.bytes_manifests < small.bytes_manifests * 5);
    assert_true(large.bytes_manifests + large.bytes_between >=
                (large.nodes - 1) * large.text_bytes);
    assert_true(large.rounds < 2 * small.rounds);
}

SUITE(NULL, NULL)
