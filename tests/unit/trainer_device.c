/* trainer_device.c - a step on a device whose lanes run late and whose memory the host cannot read
 * (tests/device): the bits of the CPU.
 *
 * Goal: every read and write of the host is ordered after the lanes, and reaches the device's
 * memory only by copies. A leaf's communication does not block the computing thread. Method:
 * parallel_bed.h on meshes of every axis, several seeds of delays. A host that touches the device's
 * memory dies; one that reads too early has NaN or old numbers. The test counts the waits for a
 * whole lane. */
#include "tests/device/async.h"
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"

#include <stdatomic.h>

#define BLOCKS "canonical.micro_batches=2 canonical.tp_blocks=2 canonical.cp_blocks="
#define ROTATE " parallelism.context_parallel_rotate_method="
static const char *const ways[] = {
    BLOCKS "2" ROTATE "alltoall",
    BLOCKS "1 training.mixed_precision_param=bfloat16 model.tied_embeddings=true"
           " training.document_mask=true canonical.groups=2",
    BLOCKS "2 training.document_mask=true" ROTATE "ulysses",
};

static void want_same_on_device(struct place place, int way, uint64_t seed)
{
    struct async_options options = {.seed = seed, .delay_us_max = 2};
    struct device_options device = {.custom = &options};
    struct outcome *outcome = new_outcome();
    assert_int_equal(device_open(&bed_device, &device_async, &device), 0);
    run_on(outcome, place, 0, 1, ways[way]);
    run_on(outcome, place, 1, 2, ways[way]); /* the state goes out and in again */
    device_close(bed_device);
    bed_device = NULL;
    want_same(reference_of(2, ways[way]), outcome, place);
    free_outcomes(outcome);
}

TEST(test_device__every_axis_has_the_bits_of_the_cpu)
{
    want_same_on_device((struct place){1, 1, 1, 0, 0, 0}, 0, 1);
    want_same_on_device((struct place){1, 1, 2, 0, 0, 0}, 1, 2);
    want_same_on_device((struct place){2, 2, 1, 0, 0, 0}, 1, 3);
    want_same_on_device((struct place){1, 1, 1, 2, 0, 0}, 1, 4);
    want_same_on_device((struct place){1, 1, 1, 0, 2, 2}, 0, 5);
    want_same_on_device((struct place){1, 1, 1, 0, 2, 0}, 2, 6);
}

static struct lane *_Atomic computing[2];
static atomic_uint num_computing, num_waits;

static int open_noting(struct device *device, struct lane **out, const char *name,
                       enum lane_kind kind)
{
    ERR_TRY(device_async.lane_open(device, out, name, kind));
    if (kind == LANE_COMPUTES)
        computing[num_computing++] = *out;
    return 0;
}

static int settle_counting(struct lane *lane, const struct mark *mark)
{
    num_waits += mark == NULL && (lane == computing[0] || lane == computing[1]);
    return device_async.settle(lane, mark);
}

static unsigned waits_of(unsigned leaves)
{
    const struct place two_shards = {1, 2, 1, 0, 0, 0};
    struct device_ops counting = device_async;
    counting.lane_open = open_noting;
    counting.settle = settle_counting;
    num_computing = num_waits = 0;
    assert_int_equal(device_open(&bed_device, &device_async, NULL), 0);
    bed_device->ops = &counting;
    free_outcomes(outcome_of(two_shards, 1, settings("canonical.micro_batches=%u", leaves)));
    assert_int_equal(num_computing, 2);
    device_close(bed_device);
    bed_device = NULL;
    return num_waits;
}

/* Each leaf has gathers and exchanges beside its computation. */
TEST(test_device__leaves_do_not_wait_on_the_host_for_what_is_computed)
{
    assert_int_equal(waits_of(6), waits_of(2));
}

SUITE(make_tokens, remove_tokens)
