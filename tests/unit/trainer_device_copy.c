/* trainer_device_copy.c - saves straight from a device's memory into ckptd's, beside the update.
 *
 * Goal: a piece that ckptd reads when it is announced is the state at the save's begin, whatever
 * the update posts meanwhile. The update waits for no announcement. Unmapped memory and failed
 * copies spoil no later save. Method: the copy thread, the optimizer and device_copy.c on the
 * device of tests/device and on simulated GPUs, under several seeds. The linker sends libckpt's
 * calls here (--wrap): memory that is mapped and unmapped as ckptd's, read at the moment of the
 * announcement. Digests are compared with those of the state before. */
#include "kernels/device.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "tests/device/async.h"
#include "tests/simgpu/simgpu.h"
#include "tests/unit/suite.h"
#include "tests/unit/trainer_bed.h"
#include "trainer/snapshot/copier.h"
#include "trainer/snapshot/device_copy.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

enum { SLICES = 5, EACH = 3000, COUNT = SLICES * EACH, PARTS = NUM_STATE_PARTS, EMPTY = 2 };
/* Slices are columns 2 to 11 of 300 rows each of one tensor; of one, others save the first rows. */
enum { ROWS = EACH / 10, WIDTH = 10, COLUMNS = 13, LEFT = 2, CUT = 3, CUT_ROWS = 120 };
#define BYTES (COUNT * sizeof(float))
#define PIECE_BYTES ((uint64_t)5000)
#define NEVER UINT32_MAX
#define CUT_BYTES (CUT_ROWS * WIDTH * sizeof(float))

struct ckpt_save {
    bool is_window;
    uint32_t num_unannounced, num_places, fails_at;
    uint64_t place_bytes;
    sem_t *gate; /* an announcement waits here; NULL: none does */
    char seen[PARTS * BYTES];
    bool is_summed[PARTS * SLICES];
    uint64_t sums[PARTS * SLICES][2];
};
static struct ckpt_save image;
static bool compares_nothing;
static struct ckpt_memory_hooks hooks;
static char *arena;

/* ---- libckpt ---- */

int __wrap_ckpt_hook_memory(struct ckpt *ckpt, const struct ckpt_memory_hooks *of);
int __wrap_ckpt_save_place(struct ckpt_save *save, uint32_t index, uint64_t from_byte,
                           struct ckpt_place *out);
int __wrap_ckpt_save_announce(struct ckpt_save *save, const struct ckpt_place *place);
bool __wrap_ckpt_save_is_window(const struct ckpt_save *save);
int __wrap_ckpt_save_digest(struct ckpt_save *save, uint32_t index, const uint64_t digest[2]);

static void map_arena(void)
{
    arena = mmap(NULL, PARTS * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(arena != MAP_FAILED);
    hooks.came(hooks.user, arena, PARTS * BYTES, true);
}

static void unmap_arena(void)
{
    if (arena == NULL)
        return;
    hooks.goes(hooks.user, arena, PARTS * BYTES);
    munmap(arena, PARTS * BYTES);
    arena = NULL;
}

int __wrap_ckpt_hook_memory(struct ckpt *ckpt, const struct ckpt_memory_hooks *of)
{
    (void)ckpt;
    hooks = *of;
    return 0;
}

bool __wrap_ckpt_save_is_window(const struct ckpt_save *save)
{
    return save->is_window;
}

/* Tensor `index` is part index / SLICES of slice index % SLICES. */
int __wrap_ckpt_save_place(struct ckpt_save *save, uint32_t index, uint64_t from_byte,
                           struct ckpt_place *out)
{
    uint64_t bytes = index % SLICES == EMPTY ? 0 : EACH * sizeof(float);
    assert_true(!save->is_window || save->num_unannounced == 0);
    if (save->num_places++ == save->fails_at) {
        unmap_arena(); /* as when ckptd went away */
        return report_error(ERR_UNAVAILABLE, NULL, "ckptd went away");
    }
    if (index % SLICES == CUT && from_byte < CUT_BYTES)
        from_byte = CUT_BYTES;
    *out = (struct ckpt_place){.size = sizeof(*out), .index = index, .from_byte = from_byte};
    out->image_byte = index * EACH * sizeof(float) + from_byte;
    out->to = arena + out->image_byte;
    out->bytes = bytes - from_byte < PIECE_BYTES ? bytes - from_byte : PIECE_BYTES;
    save->num_unannounced += out->bytes > 0;
    return 0;
}

int __wrap_ckpt_save_announce(struct ckpt_save *save, const struct ckpt_place *place)
{
    if (save->gate != NULL)
        sem_wait(save->gate);
    memcpy(save->seen + place->image_byte, place->to, place->bytes);
    save->num_unannounced--;
    return 0;
}

int __wrap_ckpt_save_digest(struct ckpt_save *save, uint32_t index, const uint64_t digest[2])
{
    assert_int_equal(save->num_unannounced, 0);
    assert_false(save->is_summed[index]);
    save->is_summed[index] = true;
    memcpy(save->sums[index], digest, sizeof(save->sums[index]));
    return 0;
}

/* ---- the bed ---- */

struct bed {
    struct device *device;
    struct kernels *kernels;
    struct lane *lane;
    struct config config;
    struct state_slice slices[SLICES];
    struct state state;
    float *host; /* PINNED, of all parts */
    struct device_copy *copy;
    struct copier *copier;
    uint32_t copied_at[SLICES];
    int64_t updates;
};

static int copy_piece(void *user, uint32_t piece)
{
    struct bed *bed = user;
    uint32_t slice = piece % SLICES;
    ERR_TRY(device_copy_tensor(bed->copy, &image, piece,
                               state_at(&bed->state, piece / SLICES, slice * EACH)));
    if (piece + 1 == bed->copied_at[slice])
        device_copy_mark(bed->copy, slice);
    return 0;
}
static int end_copy(void *user, int rc)
{
    struct bed *bed = user;
    return device_copy_end(bed->copy, &image, rc);
}
static void hold(void *user, uint32_t slice, struct lane *lane)
{
    device_copy_hold_lane(((struct bed *)user)->copy, slice, lane);
}

static void *take(struct bed *bed, size_t bytes, enum device_memory where)
{
    void *at = NULL;
    assert_int_equal(device_alloc(bed->device, &at, bytes, where), 0);
    return at;
}

static void open_state(struct bed *bed)
{
    static const struct model_tensor tensor = {.dims = 2, .width = COLUMNS};
    bed->host = take(bed, PARTS * BYTES, PINNED);
    bed->state = (struct state){.num_slices = SLICES,
                                .slices = bed->slices,
                                .count = COUNT,
                                .moment_count = COUNT,
                                .lane = bed->lane,
                                .param = take(bed, BYTES, ON_DEVICE),
                                .exp_avg = take(bed, BYTES, ON_DEVICE),
                                .exp_avg_sq = take(bed, BYTES, ON_DEVICE),
                                .grad = take(bed, BYTES, ON_DEVICE),
                                .update = take(bed, state_update_bytes(SLICES), ON_DEVICE),
                                .host_update = take(bed, state_update_bytes(SLICES), PINNED)};
    for (uint32_t i = 0; i < SLICES; i++) {
        const struct state_place place = {
            .at = i * EACH,
            .count = i == EMPTY ? 0 : EACH,
            .box = {.offset = {i * ROWS, LEFT}, .extent = {i == EMPTY ? 0 : ROWS, WIDTH}}};
        bed->slices[i] = (struct state_slice){
            .tensor = &tensor, .block = i, .param = place, .moment = place, .grad_at = place.at};
        bed->copied_at[i] = (PARTS - 1) * SLICES + i + 1;
    }
    for (int i = 0; i < COUNT; i++)
        bed->host[i] = (float)(i % 97) + 0.5f;
    lane_copy(bed->lane, bed->state.param, bed->host, BYTES);
    lane_copy(bed->lane, bed->state.grad, bed->host, BYTES);
    assert_int_equal(state_zero_moments(&bed->state), 0);
}

static void open_bed(struct bed *bed, const struct device_ops *ops, uint64_t seed)
{
    struct async_options late = {.seed = seed, .delay_us_max = 400};
    struct device_options options = {.custom = ops == &device_async ? &late : NULL};
    *bed = (struct bed){.config = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}};
    assert_int_equal(device_open(&bed->device, ops, &options), 0);
    struct kernels_options kernels = {.num_threads = 1,
                                      .device = ops == &device_async ? NULL : bed->device};
    assert_int_equal(kernels_new(&bed->kernels, &kernels), 0);
    assert_int_equal(lane_open(&bed->lane, bed->device, "compute", LANE_COMPUTES), 0);
    open_state(bed);
    image = (struct ckpt_save){.fails_at = NEVER};
    assert_int_equal(
        device_copy_open(&bed->copy, &bed->state, compares_nothing ? NULL : bed->kernels), 0);
    assert_non_null(bed->copy);
    assert_int_equal(device_copy_hook(bed->copy, NULL), 0);
    map_arena();
    struct copier_options copier = {.num_pieces = PARTS * SLICES,
                                    .num_slices = SLICES,
                                    .copied_at = bed->copied_at,
                                    .copy = copy_piece,
                                    .end = end_copy,
                                    .hold = hold,
                                    .user = bed};
    assert_int_equal(copier_open(&bed->copier, &copier), 0);
}

static void close_bed(struct bed *bed)
{
    copier_close(bed->copier);
    unmap_arena();
    device_copy_close(bed->copy);
    lane_close(bed->lane);
    kernels_free(bed->kernels);
    device_close(bed->device);
}

/* Every device that is here, under several seeds. */
static void on_all(void (*story)(struct bed *bed))
{
    struct bed bed;
    char settings[16];
    for (uint64_t seed = 0; seed < 3; seed++) {
        open_bed(&bed, &device_async, seed);
        story(&bed);
        close_bed(&bed);
        if (device_find("cuda") == NULL)
            continue;
        snprintf(settings, sizeof(settings), "seed=%d", (int)seed);
        simgpu_set(settings);
        open_bed(&bed, device_find("cuda"), seed);
        story(&bed);
        close_bed(&bed);
    }
}

/* As a step that follows a save: all is posted at once. */
static void start(struct copier *copier)
{
    copier_start(copier);
    for (uint32_t i = 0; i < SLICES; i++)
        (void)copier_post(copier, i);
}

static void update(struct bed *bed)
{
    struct optimizer_step step = {.update = ++bed->updates, .lr = 0.01, .grad_norm = 1};
    optimizer_begin(&bed->state, bed->lane, &bed->config, &step);
    for (uint32_t i = 0; i < bed->state.num_slices; i++) {
        copier_wait_slice(bed->copier, i, bed->lane);
        optimizer_update(&bed->state, bed->kernels, bed->lane, i);
    }
}

static void read_state(struct bed *bed, char *out)
{
    for (uint32_t part = 0; part < PARTS; part++)
        lane_copy(bed->lane, bed->host + part * COUNT, state_at(&bed->state, part, 0), BYTES);
    assert_int_equal(lane_settle(bed->lane), 0);
    memcpy(out, bed->host, PARTS * BYTES);
}

/* The digest of a tensor's rows from `row` on, element by element as its box has them. */
static struct digest digest_of(const char *data, uint32_t slice, uint32_t row)
{
    struct digest digest = {{0}};
    for (; row < ROWS; row++)
        digest_add(&digest, data + row * WIDTH * sizeof(float), WIDTH, sizeof(float),
                   (uint64_t)(slice * ROWS + row) * COLUMNS + LEFT);
    return digest;
}

/* The empty slice is not mentioned. */
static void want_saved(const char *before)
{
    for (uint32_t i = 0; i < PARTS * SLICES; i++) {
        size_t at = i * EACH * sizeof(float), cut = i % SLICES == CUT ? CUT_BYTES : 0;
        assert_true(image.is_summed[i] == (i % SLICES != EMPTY && !compares_nothing));
        if (i % SLICES == EMPTY)
            continue;
        assert_memory_equal(image.seen + at + cut, before + at + cut, EACH * sizeof(float) - cut);
        struct digest digest = digest_of(before + at, i % SLICES, cut > 0 ? CUT_ROWS : 0);
        if (!compares_nothing)
            assert_memory_equal(image.sums[i], digest.sum, sizeof(digest.sum));
    }
    memset(image.is_summed, 0, sizeof(image.is_summed));
}

/* A save that begins after an update that has not run yet; the next one is posted meanwhile. */
static void save_beside_updates(struct bed *bed)
{
    static char before[PARTS * BYTES];
    struct copier_times times;
    for (int round = 0; round < 4; round++) {
        read_state(bed, before);
        assert_int_equal(device_copy_begin(bed->copy), 0);
        start(bed->copier);
        update(bed);
        assert_int_equal(copier_wait(bed->copier, &times), 0);
        assert_int_equal(image.num_unannounced, 0);
        want_saved(before);
    }
}

TEST(test_device_copy__a_save_beside_an_update_holds_the_state_before_it)
{
    on_all(save_beside_updates);
}

/* The same first update twice: the contents of the second save are known, and no host waited in
 * between. */
static void save_behind_an_update(struct bed *bed)
{
    static char after[PARTS * BYTES];
    struct copier_times times;
    update(bed);
    assert_int_equal(device_copy_begin(bed->copy), 0);
    start(bed->copier);
    assert_int_equal(copier_wait(bed->copier, &times), 0);
    read_state(bed, after);
    want_saved(after);
}

TEST(test_device_copy__a_save_comes_behind_the_update_that_was_posted)
{
    on_all(save_behind_an_update);
}

static void save_through_a_window(struct bed *bed)
{
    image.is_window = true;
    save_beside_updates(bed);
}

TEST(test_device_copy__in_a_window_each_piece_is_announced_before_the_next)
{
    on_all(save_through_a_window);
}

TEST(test_device_copy__without_kernels_nothing_is_digested)
{
    compares_nothing = true;
    on_all(save_beside_updates);
    compares_nothing = false;
}

static void update_while_none_is_announced(struct bed *bed)
{
    static char before[PARTS * BYTES];
    struct copier_times times;
    sem_t gate;
    assert_int_equal(sem_init(&gate, 0, 0), 0);
    image.gate = &gate;
    for (uint32_t i = 0; i < SLICES; i++)
        bed->copied_at[i] = i + 1; /* the first part alone: fewer pieces than may be under way */
    read_state(bed, before);
    assert_int_equal(device_copy_begin(bed->copy), 0);
    start(bed->copier);
    copier_wait_slice(bed->copier, SLICES - 1, bed->lane); /* returns: nothing was announced */
    assert_true(image.num_unannounced > 0);
    for (int i = 0; i < 1000; i++)
        sem_post(&gate);
    assert_int_equal(copier_wait(bed->copier, &times), 0);
    want_saved(before);
    sem_destroy(&gate);
}

TEST(test_device_copy__who_updates_waits_for_no_announcement)
{
    on_all(update_while_none_is_announced);
}

/* ckptd disconnects while pieces are under way; then it is back. */
static void lose_memory(struct bed *bed)
{
    struct copier_times times;
    for (uint32_t at = 1; at < 20; at += 6) {
        image.fails_at = at;
        image.num_places = 0;
        assert_int_equal(device_copy_begin(bed->copy), 0);
        start(bed->copier);
        update(bed); /* waits for no copy */
        assert_int_equal(copier_wait(bed->copier, &times), ERR_UNAVAILABLE);
        image = (struct ckpt_save){.fails_at = NEVER};
        map_arena();
        save_beside_updates(bed);
    }
}

TEST(test_device_copy__memory_goes_behind_the_copies_and_the_next_save_is_right)
{
    on_all(lose_memory);
}

TEST(test_device_copy__a_copy_that_fails_costs_its_save_and_no_other)
{
    struct bed bed;
    struct copier_times times;
    if (device_find("cuda") == NULL)
        return;
    for (int call = 1; call <= 20; call += 3) {
        char settings[48];
        simgpu_set("seed=2");
        open_bed(&bed, device_find("cuda"), 2);
        assert_int_equal(lane_settle(bed.lane), 0);
        snprintf(settings, sizeof(settings), "seed=2,fail=cudaMemcpyAsync:%d", call);
        simgpu_set(settings);
        assert_int_equal(device_copy_begin(bed.copy), 0);
        start(bed.copier);
        assert_int_equal(copier_wait(bed.copier, &times), ERR_UNAVAILABLE);
        image.num_unannounced = 0;
        save_beside_updates(&bed);
        close_bed(&bed);
    }
}

/* A load: from memory that the device has registered, and from other memory. */
static void load(struct bed *bed)
{
    static char other[BYTES], third[BYTES], got[PARTS * BYTES];
    for (size_t i = 0; i < BYTES; i++)
        arena[i] = (char)(i * 7), other[i] = (char)(i * 13), third[i] = (char)(i * 17);
    assert_int_equal(hooks.copy(hooks.user, bed->state.param, arena, BYTES), 0);
    assert_int_equal(hooks.copy(hooks.user, bed->state.exp_avg, other, BYTES), 0);
    assert_int_equal(hooks.copy(hooks.user, bed->state.exp_avg_sq, third, BYTES), 0);
    assert_int_equal(hooks.copied(hooks.user), 0);
    memset(other, 0, sizeof(other)); /* no copy reads it any more */
    read_state(bed, got);
    for (size_t i = 0; i < BYTES; i++)
        assert_true(got[i] == (char)(i * 7) && got[BYTES + i] == (char)(i * 13) &&
                    got[2 * BYTES + i] == (char)(i * 17));
}

TEST(test_device_copy__a_load_fills_the_device_from_any_memory)
{
    on_all(load);
}

SUITE(NULL, NULL)
