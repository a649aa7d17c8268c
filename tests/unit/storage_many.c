/* storage_many.c - a check of each of many objects, several at once.
 *
 * Goal: each is checked once; as many at once as the back-end answers, and never more. The error is
 * that of the same checks made in sequence. Method: a store in memory that counts as remote and
 * answers AT_ONCE checks; checks wait for each other. */
#include "storage/engine/backend.h"
#include "tests/unit/suite.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define AT_ONCE 4u
#define COUNT 100u
#define WAIT_S 10

static struct storage_ops far_ops;

struct bed {
    struct storage *storage;
    pthread_mutex_t mutex; /* guards the fields below */
    pthread_cond_t changed;
    uint32_t num_begun, num_now, num_most, looked[COUNT];
    bool has_failed; /* the look of index 5 */
};

static void bed_open(struct bed *bed)
{
    *bed = (struct bed){.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    far_ops = storage_memory;
    far_ops.flags |= STORAGE_REMOTE;
    assert_int_equal(storage_open(&bed->storage, &storage_memory, "", NULL), 0);
    struct storage_base *base = (struct storage_base *)bed->storage;
    base->ops = &far_ops;
    base->num_at_once = AT_ONCE;
}

/* Under the mutex: waits until the condition holds, or time runs out. */
static void wait_until(struct bed *bed, bool (*is_so)(const struct bed *bed))
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += WAIT_S;
    while (!is_so(bed) && pthread_cond_timedwait(&bed->changed, &bed->mutex, &end) == 0)
        ;
}

static bool have_begun(const struct bed *bed)
{
    return bed->num_begun >= AT_ONCE;
}

static int look_together(void *user, size_t index)
{
    struct bed *bed = user;
    pthread_mutex_lock(&bed->mutex);
    bed->looked[index]++;
    bed->num_begun++;
    bed->num_now++;
    bed->num_most = bed->num_now > bed->num_most ? bed->num_now : bed->num_most;
    pthread_cond_broadcast(&bed->changed);
    wait_until(bed, have_begun);
    if (index < AT_ONCE) { /* time for one too many to begin */
        pthread_mutex_unlock(&bed->mutex);
        nanosleep(&(struct timespec){.tv_nsec = 100 * 1000 * 1000}, NULL);
        pthread_mutex_lock(&bed->mutex);
    }
    bed->num_now--;
    pthread_mutex_unlock(&bed->mutex);
    return 0;
}

TEST(test_many__each_is_looked_at_once_and_as_many_at_once_as_the_store_answers)
{
    struct bed bed;
    bed_open(&bed);
    assert_int_equal(storage_for_many(bed.storage, COUNT, look_together, &bed), 0);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(bed.looked[i], 1);
    assert_int_equal(bed.num_most, AT_ONCE);
    assert_int_equal(storage_for_many(bed.storage, 0, look_together, &bed), 0);
    assert_int_equal(bed.num_begun, COUNT);
    storage_close(bed.storage);
}

static bool has_failed(const struct bed *bed)
{
    return bed->has_failed;
}

/* The third fails, and the sixth before it. */
static int look_and_fail(void *user, size_t index)
{
    struct bed *bed = user;
    int error = 0;
    if (index > 5) /* the failure is to be noticed meanwhile */
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    pthread_mutex_lock(&bed->mutex);
    bed->num_begun++;
    if (index == 2)
        wait_until(bed, has_failed);
    if (index == 2)
        error = report_error(ERR_DENIED, NULL, "the third");
    if (index == 5)
        error = report_error(ERR_IO, NULL, "the sixth");
    bed->has_failed |= index == 5;
    pthread_cond_broadcast(&bed->changed);
    pthread_mutex_unlock(&bed->mutex);
    return error;
}

TEST(test_many__the_first_failure_in_the_order_counts_and_those_behind_do_not_begin)
{
    struct bed bed;
    bed_open(&bed);
    assert_int_equal(storage_for_many(bed.storage, COUNT, look_and_fail, &bed), ERR_DENIED);
    assert_string_equal(report_message(), "the third");
    assert_true(bed.num_begun >= 6 && bed.num_begun < COUNT / 2);
    storage_close(bed.storage);
}

SUITE(NULL, NULL)
