/* ahead.c - reading a rank's leaves ahead (see ahead.h).
 *
 * Slots are a ring. `next` is the leaf that the thread reads now or next. It advances when its slot
 * is full, at most to the step after the wanted one. A new start (`generation`) makes the thread
 * discard its current read. */
#include "trainer/data/ahead.h"

#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/base/stacks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 4u /* without a mask */

struct place {
    int64_t step;
    uint64_t first; /* sample of the step */
    uint32_t micro_step;
};

struct slot {
    struct place place;
    struct data_batch batch;
    uint64_t counted;
    int rc;
    struct report_text text; /* if rc is not 0 */
};

struct ahead {
    struct ahead_options options;
    uint32_t num_slots;
    bool has_mask;
    struct slot *slots;
    int32_t *numbers; /* of all slots */
    size_t batch_numbers;
    double waited;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards all fields that follow, and the states of slots */
    pthread_cond_t changed;
    struct place next;
    int64_t wanted_step;
    uint32_t head, num_full;
    uint64_t generation; /* 0: no leaf was wanted yet */
    bool has_failed, is_closing;
};

static struct leaves leaves_of(const struct ahead *a, int64_t step)
{
    struct leaves leaves = a->options.leaves;
    leaves.num = a->options.leaves_of_step(a->options.user, step);
    return leaves;
}

/* The rank's leaf at a place, or LEAF_NONE. */
static uint32_t leaf_of(const struct ahead *a, const struct place *place)
{
    struct leaves leaves = leaves_of(a, place->step);
    if (place->micro_step >= leaves_micro_steps(&leaves))
        return LEAF_NONE;
    return leaves_at(&leaves, a->options.rank, place->micro_step);
}

static uint32_t count_leaves(const struct ahead *a, const struct leaves *leaves)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < leaves_micro_steps(leaves); i++)
        count += leaves_at(leaves, a->options.rank, i) != LEAF_NONE;
    return count;
}

static uint64_t sample_of(const struct ahead *a, const struct place *place)
{
    return place->first + (uint64_t)leaf_of(a, place) * a->options.batch;
}

/* ---- the thread ---- */

/* Skips micro-steps in which the rank has no leaf, and steps in which it has no more leaves. */
static void skip_to_leaf(struct ahead *a)
{
    struct place *next = &a->next;
    while (next->step <= a->wanted_step + 1 && leaf_of(a, next) == LEAF_NONE) {
        struct leaves leaves = leaves_of(a, next->step);
        if (++next->micro_step < leaves_micro_steps(&leaves))
            continue;
        if (next->step > a->wanted_step)
            return;
        next->first += (uint64_t)leaves.num * a->options.batch;
        next->step++;
        next->micro_step = 0;
    }
}

static bool has_work(const struct ahead *a)
{
    return a->generation > 0 && !a->has_failed && a->num_full < a->num_slots &&
           a->next.step <= a->wanted_step + 1 && leaf_of(a, &a->next) != LEAF_NONE;
}

static void read_leaf(struct ahead *a, struct slot *slot)
{
    const struct ahead_options *o = &a->options;
    slot->rc = data_read(o->data, sample_of(a, &slot->place), o->batch, &slot->batch);
    if (slot->rc != 0)
        report_keep(&slot->text);
    slot->counted = 0;
    for (size_t i = 0; i < a->batch_numbers && a->has_mask && slot->rc == 0; i++)
        slot->counted += slot->batch.targets[i] >= 0;
}

/* Call with the mutex held; it is released during the read. */
static void fill_slot(struct ahead *a)
{
    struct slot *slot = &a->slots[(a->head + a->num_full) % a->num_slots];
    uint64_t generation = a->generation;
    slot->place = a->next;
    pthread_mutex_unlock(&a->mutex);
    read_leaf(a, slot);
    pthread_mutex_lock(&a->mutex);
    if (generation != a->generation)
        return;
    a->num_full++;
    a->has_failed = slot->rc != 0;
    a->next.micro_step++;
    skip_to_leaf(a);
    pthread_cond_broadcast(&a->changed);
}

static void *thread_main(void *user)
{
    struct ahead *a = user;
    stacks_join(-1);
    pthread_mutex_lock(&a->mutex);
    while (!a->is_closing) {
        if (has_work(a))
            fill_slot(a);
        else
            pthread_cond_wait(&a->changed, &a->mutex);
    }
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

/* ---- opening and closing ---- */

static int take_memory(struct ahead *a)
{
    size_t planes = a->options.wants_starts ? 3 : 2;
    a->slots = calloc(a->num_slots, sizeof *a->slots);
    a->numbers = calloc((size_t)a->num_slots * planes * a->batch_numbers, sizeof *a->numbers);
    if (a->slots == NULL || a->numbers == NULL)
        return report_error(ERR_MEMORY, "lower training.local_batch_size",
                            "no memory to read samples ahead");
    for (uint32_t i = 0; i < a->num_slots; i++) {
        int32_t *at = a->numbers + (size_t)i * planes * a->batch_numbers;
        a->slots[i].batch = (struct data_batch){
            at, at + a->batch_numbers, a->options.wants_starts ? at + 2 * a->batch_numbers : NULL};
    }
    return 0;
}

int ahead_open(struct ahead **out, const struct ahead_options *options)
{
    const struct data_info *info = data_info(options->data);
    struct ahead *a = calloc(1, sizeof *a);
    if (a == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to read samples ahead");
    a->options = *options;
    a->has_mask = info->has_mask;
    a->batch_numbers = (size_t)options->batch * info->seq_len;
    uint32_t step_slots = leaves_micro_steps(&options->leaves);
    a->num_slots = a->has_mask ? 2 * step_slots : SLOTS;
    int rc = take_memory(a);
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->changed, NULL);
    if (rc == 0 && pthread_create(&a->thread, NULL, thread_main, a) != 0)
        rc = report_error(ERR_MEMORY, "raise the limit of threads (ulimit -u)",
                          "the thread that reads samples could not be started");
    if (rc != 0) {
        free(a->slots);
        free(a->numbers);
        free(a);
        return rc;
    }
    pthread_setname_np(a->thread, "data-ahead");
    *out = a;
    return 0;
}

void ahead_close(struct ahead *a)
{
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->mutex);
    a->is_closing = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->mutex);
    pthread_join(a->thread, NULL);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->mutex);
    free(a->slots);
    free(a->numbers);
    free(a);
}

/* ---- the steps ---- */

static void drop_head(struct ahead *a)
{
    a->head = (a->head + 1) % a->num_slots;
    a->num_full--;
}

/* True if the rank's first leaf of the step is the next one. */
static bool is_there(const struct ahead *a, const struct place *wanted)
{
    const struct place *comes = a->num_full > 0 ? &a->slots[a->head].place : &a->next;
    return a->generation > 0 && !a->has_failed && comes->step == wanted->step &&
           comes->micro_step == wanted->micro_step && comes->first == wanted->first;
}

void ahead_step(struct ahead *a, int64_t step, uint64_t first)
{
    struct place wanted = {step, first, 0};
    struct leaves leaves = leaves_of(a, step);
    bool has_leaf = count_leaves(a, &leaves) > 0;
    while (has_leaf && leaf_of(a, &wanted) == LEAF_NONE)
        wanted.micro_step++;
    pthread_mutex_lock(&a->mutex);
    a->wanted_step = step;
    while (a->num_full > 0 && a->slots[a->head].place.step < step)
        drop_head(a);
    if (has_leaf && !is_there(a, &wanted)) {
        a->generation++;
        a->num_full = 0;
        a->has_failed = false;
        a->next = wanted;
    }
    skip_to_leaf(a);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->mutex);
}

/* Call with the mutex held: waits until `num` slots are full, or the last of them has an error. */
static int wait_for(struct ahead *a, uint32_t num)
{
    double start = clock_seconds();
    while (a->num_full < num && !a->has_failed)
        pthread_cond_wait(&a->changed, &a->mutex);
    a->waited += clock_seconds() - start;
    if (!a->has_failed || a->num_full > num)
        return 0;
    const struct slot *last = &a->slots[(a->head + a->num_full - 1) % a->num_slots];
    return report_restore(&last->text, last->rc);
}

int ahead_count(struct ahead *a, uint64_t *out)
{
    struct leaves leaves = leaves_of(a, a->wanted_step);
    uint32_t mine = count_leaves(a, &leaves);
    *out = (uint64_t)mine * a->batch_numbers;
    if (!a->has_mask || mine == 0)
        return 0;
    *out = 0;
    pthread_mutex_lock(&a->mutex);
    int rc = wait_for(a, mine);
    for (uint32_t i = 0; i < mine && rc == 0; i++)
        *out += a->slots[(a->head + i) % a->num_slots].counted;
    pthread_mutex_unlock(&a->mutex);
    return rc;
}

int ahead_take(struct ahead *a, const struct data_batch *out)
{
    size_t bytes = a->batch_numbers * sizeof(int32_t);
    pthread_mutex_lock(&a->mutex);
    int rc = wait_for(a, 1);
    if (rc == 0) {
        const struct slot *slot = &a->slots[a->head];
        memcpy(out->inputs, slot->batch.inputs, bytes);
        memcpy(out->targets, slot->batch.targets, bytes);
        if (out->starts != NULL)
            memcpy(out->starts, slot->batch.starts, bytes);
        drop_head(a);
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->mutex);
    return rc;
}

double ahead_waited(struct ahead *a)
{
    double waited = a->waited;
    a->waited = 0;
    return waited;
}

const struct data *ahead_data(const struct ahead *a)
{
    return a->options.data;
}
