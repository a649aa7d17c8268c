/* kernels_simgpu.c - a CUDA GPU as a device (kernels/cuda/device.c), on simulated ones.
 *
 * Goal: the released object keeps the promises of device.h in every order that CUDA allows, reports
 * a failure in one line, and leaks nothing. The simulation detects errors that break CUDA programs.
 * Method: tests/simgpu in place of NVIDIA's runtime, orders by seed; each call of the runtime fails
 * once, and for ever. Checks that end a process run in a child. */
#include "tests/unit/simgpu_bed.h"
#include "tests/unit/suite.h"

#include <sys/mman.h>

/* ---- Order ---- */

TEST(test_simgpu__marks_order_lanes_under_every_seed)
{
    for (int seed = 0; seed < SEEDS; seed++) {
        struct bed bed;
        struct mark added = {0}, copied = {0};
        open_seed(&bed, seed);
        fill(&bed);
        for (int turn = 1; turn <= 5; turn++) {
            lane_wait(bed.first, &copied);
            add(&bed, bed.first);
            lane_mark(bed.first, &added);
            lane_wait(bed.second, &added);
            lane_copy(bed.second, bed.host, bed.at, BYTES);
            lane_mark(bed.second, &copied);
            if (turn % 2 == 0) {
                assert_int_equal(lane_settle_mark(bed.second, &copied), 0);
                assert_true(is_all(bed.host, 2.0f * (float)turn));
            }
        }
        assert_int_equal(lane_settle(bed.second), 0);
        assert_true(is_all(bed.host, 10));
        close_bed(&bed);
    }
}

static int sleep_5_ms(void *args)
{
    (void)args;
    clock_sleep_ms(5);
    return 0;
}

/* Work that is queued takes no time until it runs; the host's clock agrees when all has run. */
TEST(test_simgpu__timed_marks_tell_when_work_ran)
{
    for (int seed = 0; seed < SEEDS; seed++) {
        struct bed bed;
        struct mark origin = {.is_timed = true}, begin = {.is_timed = true},
                    end = {.is_timed = true};
        double to_begin = -1, work = -1;
        open_seed(&bed, seed);
        assert_true(device_keeps_time(bed.device));
        lane_mark(bed.first, &origin);
        assert_int_equal(lane_settle_mark(bed.first, &origin), 0);
        double host = clock_seconds();
        lane_mark(bed.second, &begin); /* of another lane */
        lane_call(bed.second, sleep_5_ms, NULL, 0);
        lane_mark(bed.second, &end);
        assert_int_equal(lane_settle_mark(bed.second, &end), 0);
        host = clock_seconds() - host;
        assert_int_equal(lane_elapsed(&to_begin, &origin, &begin), 0);
        assert_int_equal(lane_elapsed(&work, &begin, &end), 0);
        assert_true(to_begin >= 0 && work >= 5e-3 && to_begin + work <= host + 1e-4);
        close_bed(&bed);
    }
}

TEST(test_simgpu__lanes_that_communicate_go_first_and_those_that_save_last)
{
    static const enum lane_kind kinds[] = {LANE_COMPUTES, LANE_COMMUNICATES, LANE_SAVES};
    struct device *device;
    struct lane *lanes[3];
    simgpu_set("");
    assert_int_equal(device_open(&device, device_find("cuda"), NULL), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(lane_open(&lanes[i], device, "lane", kinds[i]), 0);
        assert_int_equal(simgpu_counts().first_streams, i >= 1);
        assert_int_equal(simgpu_counts().last_streams, i >= 2);
    }
    for (int i = 0; i < 3; i++)
        lane_close(lanes[i]);
    assert_int_equal(simgpu_counts().first_streams + simgpu_counts().last_streams, 0);
    device_close(device);
}

/* ---- Mistakes ---- */

/* Three mistakes; each shows under some of the seeds. */
static bool shows(int mistake, int seed)
{
    struct bed bed;
    struct mark added = {0}, copied = {0};
    open_seed(&bed, seed);
    fill(&bed);
    add(&bed, bed.first);
    lane_mark(mistake == 1 ? bed.second : bed.first, &added); /* 1: on the wrong lane */
    if (mistake != 0)                                         /* 0: no wait */
        lane_wait(bed.second, &added);
    lane_copy(bed.second, bed.host, bed.at, BYTES);
    lane_mark(bed.second, &copied);
    if (mistake == 2) /* 2: changed before it was copied */
        add(&bed, bed.first);
    assert_int_equal(lane_settle(mistake == 2 ? bed.first : bed.second), 0);
    assert_int_equal(lane_settle(mistake == 2 ? bed.second : bed.first), 0);
    bool is_wrong = !is_all(bed.host, 2);
    close_bed(&bed);
    return is_wrong;
}

TEST(test_simgpu__mistakes_of_order_show)
{
    for (int mistake = 0; mistake < 3; mistake++) {
        int seen = 0;
        for (int seed = 0; seed < SEEDS; seed++)
            seen += shows(mistake, seed);
        assert_in_range(seen, 1, SEEDS);
    }
}

static int note(void *args)
{
    int *const *at = args;
    ++**at;
    return 0;
}

TEST(test_simgpu__host_work_runs_in_a_lanes_order)
{
    for (int seed = 0; seed < 3; seed++) {
        struct bed bed;
        int called = 0, *at = &called;
        open_seed(&bed, seed);
        lane_call(bed.first, note, &at, sizeof(at));
        lane_call(bed.first, note, &at, sizeof(at));
        assert_int_equal(lane_settle(bed.first), 0);
        assert_int_equal(called, 2);
        close_bed(&bed);
    }
}

/* ---- Memory ---- */

static void touch_device(struct bed *bed)
{
    *(volatile float *)bed->at = 1;
}
static void touch_pinned(struct bed *bed)
{
    *(volatile float *)bed->host = 1;
}
/* The kernel, not the host: its last value is past the end. */
static void run_past_the_end(struct bed *bed)
{
    POST(bed->kernels, bed->first, add, .y = bed->at, .x = bed->other, .count = COUNT + 64,
         .dtype = KERNEL_F32);
    (void)lane_settle(bed->first);
}

TEST(test_simgpu__only_operations_touch_a_devices_memory)
{
    struct bed bed;
    open_seed(&bed, 0);
    assert_int_equal(signal_of(touch_pinned, &bed), 0);
    assert_int_equal(signal_of(touch_device, &bed), SIGSEGV);
    assert_int_equal(signal_of(run_past_the_end, &bed), SIGSEGV);
    close_bed(&bed);
}

TEST(test_simgpu__page_locked_memory_is_read_late_and_other_memory_at_once)
{
    struct bed bed;
    float *pageable = malloc(BYTES);
    open_seed(&bed, 0); /* as late as allowed */
    fill(&bed);
    for (int i = 0; i < COUNT; i++)
        pageable[i] = bed.host[i] = (float)i + 7;
    uint64_t staged = simgpu_counts().staged_copies;
    lane_copy(bed.first, bed.at, bed.host, BYTES);
    lane_copy(bed.first, bed.other, pageable, BYTES);
    assert_int_equal(simgpu_counts().staged_copies, staged + 1);
    for (int i = 0; i < COUNT; i++)
        pageable[i] = bed.host[i] = (float)i + 8;
    lane_copy(bed.first, bed.host, bed.at, BYTES);
    assert_int_equal(lane_settle(bed.first), 0);
    assert_true(is_all(bed.host, 8));
    lane_copy(bed.first, bed.host, bed.other, BYTES);
    assert_int_equal(lane_settle(bed.first), 0);
    assert_true(is_all(bed.host, 7));
    free(pageable);
    close_bed(&bed);
}

static void unpin_before_the_copy(struct bed *bed)
{
    lane_copy(bed->first, bed->at, bed->pageable, BYTES);
    device_unpin(bed->device, bed->pageable);
}

TEST(test_simgpu__pinned_memory_is_read_late_and_stays_until_then)
{
    struct bed bed;
    open_seed(&bed, 0);
    bed.pageable = malloc(BYTES);
    assert_int_equal(device_pin(bed.device, bed.pageable, BYTES, false), 0);
    for (int i = 0; i < COUNT; i++)
        bed.pageable[i] = (float)i + 7;
    uint64_t staged = simgpu_counts().staged_copies;
    lane_copy(bed.first, bed.at, bed.pageable, BYTES);
    for (int i = 0; i < COUNT; i++)
        bed.pageable[i] = (float)i + 8;
    lane_copy(bed.first, bed.host, bed.at, BYTES);
    assert_int_equal(lane_settle(bed.first), 0);
    assert_true(is_all(bed.host, 8) && simgpu_counts().staged_copies == staged);
    assert_int_equal(signal_of(unpin_before_the_copy, &bed), SIGABRT);
    device_unpin(bed.device, bed.pageable);
    assert_int_equal(simgpu_counts().registered, 0);
    lane_copy(bed.first, bed.at, bed.pageable, BYTES);
    assert_int_equal(simgpu_counts().staged_copies, staged + 1);
    free(bed.pageable);
    close_bed(&bed);
}

/* As a client of ckptd maps a segment: shared, of a file that may be written, for reading alone. */
static float *map_read_only(void)
{
    int file = memfd_create("segment", MFD_CLOEXEC);
    float values[COUNT];
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)i + 7;
    assert_int_equal(write(file, values, BYTES), BYTES);
    void *at = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, file, 0);
    assert_true(at != MAP_FAILED);
    close(file);
    return at;
}

static void write_pageable(struct bed *bed)
{
    *(volatile float *)bed->pageable = 1;
}

TEST(test_simgpu__memory_that_is_mapped_read_only_is_pinned_and_stays_so)
{
    for (int can = 0; can < 2; can++) {
        struct bed bed;
        assert_int_equal(open_bed(&bed, can ? "readonly=1" : "readonly=0"), 0);
        bed.pageable = map_read_only();
        uint64_t staged = simgpu_counts().staged_copies;
        assert_int_equal(device_pin(bed.device, bed.pageable, BYTES, true), 0);
        assert_int_equal(simgpu_counts().registered, 1);
        assert_int_equal(signal_of(write_pageable, &bed), SIGSEGV);
        lane_copy(bed.first, bed.at, bed.pageable, BYTES);
        lane_copy(bed.first, bed.host, bed.at, BYTES);
        assert_int_equal(lane_settle(bed.first), 0);
        assert_true(is_all(bed.host, 7) && simgpu_counts().staged_copies == staged);
        device_unpin(bed.device, bed.pageable);
        assert_int_equal(simgpu_counts().registered, 0);
        assert_int_equal(signal_of(write_pageable, &bed), SIGSEGV);
        munmap(bed.pageable, BYTES);
        close_bed(&bed);
    }
}

/* A failure to pin is reported, and does not fail the next launch. */
TEST(test_simgpu__memory_that_cannot_be_pinned_is_said)
{
    struct bed bed;
    assert_int_equal(open_bed(&bed, "fail=cudaHostRegister:1"), 0);
    assert_int_equal(device_pin(bed.device, &bed, sizeof(bed), true), ERR_UNAVAILABLE);
    assert_non_null(strstr(report_line(), "CUDA: memory could not be page-locked"));
    fill(&bed);
    add(&bed, bed.first);
    assert_int_equal(lane_settle(bed.first), 0);
    device_unpin(bed.device, &bed);
    add(&bed, bed.first);
    assert_int_equal(lane_settle(bed.first), 0);
    close_bed(&bed);
}

TEST(test_simgpu__a_mark_is_of_its_lanes_device_whoever_makes_it)
{
    struct device *devices[2];
    struct lane *lane;
    struct mark mark = {0};
    simgpu_set("devices=2");
    for (uint32_t i = 2; i-- > 0;) /* the first is opened last: it is this thread's */
        assert_int_equal(
            device_open(&devices[i], device_find("cuda"), &(struct device_options){.index = i}), 0);
    assert_int_equal(lane_open(&lane, devices[1], "second", LANE_COMPUTES), 0);
    device_close(devices[0]);
    assert_int_equal(device_open(&devices[0], device_find("cuda"), NULL), 0);
    lane_mark(lane, &mark);
    assert_int_equal(lane_settle(lane), 0);
    lane_close(lane);
    device_close(devices[1]);
    device_close(devices[0]);
}

/* ---- Products ---- */

#define ROWS 40
#define IN 48
#define OUT 64
#define AREA (OUT * OUT) /* elements; more than any of the three matrices has */

/* An operand of float8 products, after its numbers. */
static void *operand_of(struct kernels *kernels, struct lane *lane, char *at, size_t rows,
                        uint32_t width, enum kernel_float8 format)
{
    struct kernel_round_float8 args = {.out = at + AREA * 2,
                                       .x = at,
                                       .count = rows * width,
                                       .width = width,
                                       .format = format,
                                       .dtype = KERNEL_BF16};
    assert_true(kernel_float8_bytes(rows, width, KERNEL_BF16) <= AREA * 2);
    kernel_round_float8(kernels, lane, &args);
    return args.out;
}

/* Three products at once: a pair of a size, side by side or the second in front of the first; three
 * of a size; no pair. The library gets the last two as one if they are a pair, side by side. */
static const struct {
    uint32_t out_dim[3];
    uint64_t calls[2], shapes[2]; /* of the library: side by side, in reverse */
} threes[] = {{{OUT / 2, OUT / 4, OUT / 4}, {2, 3}, {2, 2}},
              {{OUT / 4, OUT / 4, OUT / 4}, {2, 3}, {2, 1}},
              {{OUT / 4, OUT / 2, OUT / 4}, {3, 3}, {2, 2}}};

static void multiply_three(struct kernels *kernels, struct lane *lane, char *at, int which,
                           bool is_turned)
{
    bool is_backward = which % 2 != 0;
    const uint32_t *out_dim = threes[which / 2].out_dim;
    struct kernel_linears f = {.x = at, .num = 3, .rows = ROWS, .in = IN, .dtype = KERNEL_BF16};
    struct kernel_linears_backward_weight b = {.x = at + AREA * 4,
                                               .num = 3,
                                               .rows = ROWS,
                                               .in = IN,
                                               .dtype = KERNEL_BF16,
                                               .is_folded = is_turned};
    uint32_t first = 0;
    for (uint32_t turn = 0; turn < 3; turn++) {
        uint32_t i = is_turned && turn > 0 ? 3 - turn : turn;
        f.out_dim[i] = b.out_dim[i] = out_dim[i];
        f.w[i] = at + AREA * 4 + first * IN * 2;
        f.out[i] = at + AREA * 8 + first * ROWS * 2;
        b.dout[i] = at + first * ROWS * 2;
        b.dw[i] = (float *)(at + AREA * 8) + first * IN;
        first += out_dim[i];
    }
    if (is_backward)
        kernel_linears_backward_weight(kernels, lane, &b);
    else
        kernel_linears(kernels, lane, &f);
}

/* One of the three products of a weight [OUT,IN] on any device, from 3 on of float8 operands; c is
 * float where is_partial, and a weight's gradient folded. From 6 on products at once. */
#define AT_ONCE 6
#define WAYS 12
static void multiply(struct kernels *kernels, struct lane *lane, char *at, int which, bool partial)
{
    if (which >= AT_ONCE) {
        multiply_three(kernels, lane, at, which - AT_ONCE, partial);
        return;
    }
    static const struct {
        uint32_t rows[2], width[2];
    } shapes[] = {{{ROWS, OUT}, {IN, IN}}, {{ROWS, OUT}, {OUT, IN}}, {{ROWS, ROWS}, {OUT, IN}}};
    void *a = at, *b = at + AREA * 4, *c = at + AREA * 8;
    bool is8 = which >= 3;
    enum kernel_float8 format = partial ? KERNEL_E4M3 : KERNEL_E5M2; /* of a gradient */
    which %= 3;
    if (is8) {
        a = operand_of(kernels, lane, a, shapes[which].rows[0], shapes[which].width[0],
                       which == 0 ? KERNEL_E4M3 : format);
        b = operand_of(kernels, lane, b, shapes[which].rows[1], shapes[which].width[1],
                       KERNEL_E4M3);
    }
    if (which == 0)
        POST(kernels, lane, linear, c, a, b, ROWS, IN, OUT, KERNEL_BF16, partial, is8);
    else if (which == 1)
        POST(kernels, lane, linear_backward_input, c, a, b, ROWS, IN, OUT, KERNEL_BF16, format, is8,
             partial, is8);
    else
        POST(kernels, lane, linear_backward_weight, .dw = c, .dout = a, .x = b, .rows = ROWS,
             .in = IN, .out_dim = OUT, .dtype = KERNEL_BF16, .dout_format = format,
             .is_folded = partial, .is_float8 = is8);
}

/* Small whole numbers as bf16: every product is exact. */
static void fill_products(uint16_t *at)
{
    for (size_t i = 0; i < (size_t)AREA * 4; i++) {
        float value = (float)(int)(i * 2654435761u >> 20 & 7) - 3;
        if (i < (size_t)AREA * 2 && i % 16 == 5)
            value = 0x3p-14f; /* no normal number of e4m3, beside a 4 */
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        at[i] = (uint16_t)(bits >> 16);
    }
    memset((char *)at + AREA * 8, 0, AREA * 4);
}

static void multiply_on(const struct device_ops *ops, enum kernel_backend backend, int which,
                        bool partial, uint16_t *host)
{
    struct device *device;
    struct kernels *kernels;
    struct lane *lane;
    void *at, *scratch, *pinned;
    assert_int_equal(device_open(&device, ops, NULL), 0);
    struct kernels_options options = {.backend = backend, .num_threads = 1, .device = device};
    assert_int_equal(kernels_new(&kernels, &options), 0);
    assert_int_equal(lane_open(&lane, device, "products", LANE_COMPUTES), 0);
    struct kernel_shapes shapes = {1, ROWS, IN, OUT, 1, 1, 8, OUT, KERNEL_BF16};
    size_t bytes = kernels_scratch_bytes(kernels, &shapes);
    assert_int_equal(device_alloc(device, &at, AREA * 12, ON_DEVICE), 0);
    assert_int_equal(device_alloc(device, &scratch, bytes, ON_DEVICE), 0);
    assert_int_equal(device_alloc(device, &pinned, AREA * 12, PINNED), 0);
    lane_set_scratch(lane, scratch, bytes);
    fill_products(pinned);
    lane_copy(lane, at, pinned, AREA * 12);
    for (int turn = 0; turn < 3; turn++)
        multiply(kernels, lane, at, which, partial);
    lane_copy(lane, pinned, at, AREA * 12);
    assert_int_equal(lane_settle(lane), 0);
    memcpy(host, pinned, AREA * 12);
    lane_close(lane);
    device_free(device, at);
    device_free(device, scratch);
    device_free(device, pinned);
    kernels_free(kernels);
    device_close(device);
}

TEST(test_simgpu__products_by_library_and_by_us_are_those_of_the_cpu)
{
    uint16_t *want = malloc(AREA * 12), *got = malloc(AREA * 12);
    simgpu_set("seed=2");
    for (int i = 0; i < 4 * WAYS; i++) {
        int which = i / 2 % WAYS;
        bool is8 = which >= 3 && which < AT_ONCE;
        size_t from = is8 ? AREA * 4 : 0; /* operands are laid out as the device wants them */
        bool partial = i % 2 != 0, is_own = i >= 2 * WAYS;
        uint64_t calls = which < AT_ONCE ? 1 : threes[(which - AT_ONCE) / 2].calls[partial];
        uint64_t shapes = which < AT_ONCE ? 1 : threes[(which - AT_ONCE) / 2].shapes[partial];
        struct simgpu_counts before = simgpu_counts();
        multiply_on(&device_cpu, KERNEL_BACKEND_BEST, which, partial, want);
        multiply_on(device_find("cuda"), is_own ? KERNEL_BACKEND_REFERENCE : KERNEL_BACKEND_BEST,
                    which, partial, got);
        if (memcmp(want + from, got + from, AREA * 12 - 2 * from) != 0)
            fail_msg("product %d, partial %d, own %d", which, partial, is_own);
        struct simgpu_counts after = simgpu_counts();
        assert_int_equal(after.products - before.products, is_own ? 0 : 3 * calls);
        assert_int_equal(after.heuristics - before.heuristics, is_own ? 0 : shapes);
        if (is_own && !is8)
            assert_int_equal(after.kernels - before.kernels, 3);
    }
    free(got);
    free(want);
}

/* The memory of the products, and scratch of the first lane. */
static int take_products(struct bed *bed, void **at)
{
    void *scratch = NULL;
    size_t bytes = kernels_scratch_bytes(bed->kernels, &(struct kernel_shapes){.batch = 1});
    ERR_TRY(device_alloc(bed->device, at, AREA * 12, ON_DEVICE));
    ERR_TRY(device_alloc(bed->device, &scratch, bytes, ON_DEVICE));
    lane_set_scratch(bed->first, scratch, bytes);
    return 0;
}

/* One algorithm for each shape, and for each type of the result. */
TEST(test_simgpu__an_algorithm_is_used_for_its_own_shape_alone)
{
    struct bed bed;
    void *at;
    open_seed(&bed, 1);
    assert_int_equal(take_products(&bed, &at), 0);
    uint64_t heuristics = simgpu_counts().heuristics;
    for (int i = 0; i < 12; i++)
        multiply(bed.kernels, bed.first, at, i % 3, i % 2 != 0);
    assert_int_equal(lane_settle(bed.first), 0);
    assert_int_equal(simgpu_counts().heuristics - heuristics, 5);
    close_bed(&bed);
}

/* The three products on a GPU with these settings, which takes `choices` first. */
struct chosen {
    struct kernel_choices choices;
    char *made;
    uint64_t heuristics;
    uint16_t *products;
};
static struct chosen multiply_chosen(const char *settings, const char *choices)
{
    struct bed bed;
    struct chosen out = {.products = malloc(3 * AREA * 12)};
    void *at, *pinned;
    assert_int_equal(open_bed(&bed, settings), 0);
    assert_int_equal(take_products(&bed, &at), 0);
    assert_int_equal(device_alloc(bed.device, &pinned, AREA * 12, PINNED), 0);
    out.heuristics = simgpu_counts().heuristics;
    kernels_choose(bed.kernels, choices, &out.choices);
    for (int which = 0; which < 3; which++) {
        fill_products(pinned);
        lane_copy(bed.first, at, pinned, AREA * 12);
        multiply(bed.kernels, bed.first, at, which, false);
        lane_copy(bed.first, pinned, at, AREA * 12);
        assert_int_equal(lane_settle(bed.first), 0);
        memcpy((char *)out.products + (size_t)which * AREA * 12, pinned, AREA * 12);
    }
    out.heuristics = simgpu_counts().heuristics - out.heuristics;
    out.made = kernels_choices(bed.kernels);
    close_bed(&bed);
    return out;
}

/* Checks the bits: those of `old` or of `new`; and how many of three shapes took a given choice. */
static void want_chosen(const char *settings, const char *choices, const uint16_t *old,
                        const uint16_t *new, uint32_t taken, uint32_t not_offered)
{
    struct chosen got = multiply_chosen(settings, choices);
    assert_int_equal(got.choices.taken, taken);
    assert_int_equal(got.choices.not_offered, not_offered);
    assert_int_equal(got.heuristics, 3 - taken);
    assert_memory_equal(got.products, taken == 3 ? old : new, 3 * AREA * 12);
    free(got.products);
    free(got.made);
}

TEST(test_simgpu__an_algorithm_of_before_is_taken_where_it_is_offered)
{
    struct chosen old = multiply_chosen("seed=1", "");
    struct chosen new = multiply_chosen("seed=1,algorithm=1", "");
    assert_true(memcmp(old.products, new.products, 3 * AREA * 12) != 0);
    assert_string_not_equal(old.made, new.made);
    want_chosen("seed=1,algorithm=1", old.made, old.products, new.products, 3, 0);
    want_chosen("seed=1,algorithm=1,dropped=1", old.made, old.products, new.products, 0, 3);
    want_chosen("seed=1,algorithm=1,fail=cublasLtMatmulAlgoCheck:1+", old.made, old.products,
                new.products, 0, 3);
    old.made[0] = 'C'; /* another library's */
    want_chosen("seed=1,algorithm=1", old.made, old.products, new.products, 0, 3);
    strchr(new.made, '\n')[1] = 'x'; /* no shape */
    want_chosen("seed=1,algorithm=1", new.made, old.products, new.products, 2, 1);
    free(old.products);
    free(new.products);
    free(old.made);
    free(new.made);
}

static int multiply_failing(const char *settings)
{
    struct bed bed;
    void *at = NULL;
    int rc = open_bed(&bed, settings);
    if (rc == 0)
        rc = take_products(&bed, &at);
    for (int i = 0; i < 4 && rc == 0; i++)
        multiply(bed.kernels, bed.first, at, i < 3 ? i : AT_ONCE, false);
    if (rc == 0)
        rc = lane_settle(bed.first);
    close_bed(&bed);
    return rc;
}

static void want_no_memory(const char *call)
{
    (void)call;
    assert_int_equal(simgpu_counts().allocations, 0);
}

TEST(test_simgpu__every_call_of_the_library_that_fails_is_said)
{
    fail_each("cublasLtCreate cublasLtMatmulDescCreate cublasLtMatmulDescSetAttribute"
              " cublasLtMatrixLayoutCreate cublasLtMatrixLayoutSetAttribute"
              " cublasLtMatmulPreferenceCreate cublasLtMatmulPreferenceSetAttribute"
              " cublasLtMatmulAlgoGetHeuristic cublasLtMatmul",
              multiply_failing, want_no_memory);
}

/* ---- Failures ---- */

static int work(const char *settings)
{
    struct bed bed;
    struct mark added = {0};
    int rc = open_bed(&bed, settings);
    if (rc == 0) {
        lane_zero(bed.first, bed.at, BYTES);
        lane_copy(bed.first, bed.other, bed.at, BYTES);
        add(&bed, bed.first);
        lane_mark(bed.first, &added);
        lane_wait(bed.second, &added);
        lane_copy(bed.second, bed.host, bed.at, BYTES);
        rc = lane_settle(bed.first);
        int second = lane_settle(bed.second);
        rc = rc != 0 ? rc : second;
    }
    close_bed(&bed);
    return rc;
}

/* Except of a lost device, which frees nothing. */
static void want_nothing_left(const char *call)
{
    struct simgpu_counts left = simgpu_counts();
    if (strcmp(call, "kernel") == 0)
        simgpu_set("");
    else
        assert_int_equal(left.streams + left.events, 0);
}

TEST(test_simgpu__every_call_fails_once_and_for_ever_and_leaves_nothing)
{
    fail_each("cudaGetDeviceCount cudaSetDevice cudaGetDeviceProperties cudaDriverGetVersion"
              " cudaRuntimeGetVersion cudaMalloc cudaHostAlloc cudaMemsetAsync cudaMemcpyAsync"
              " cudaLaunchKernel kernel cudaEventCreateWithFlags cudaEventRecord"
              " cudaStreamWaitEvent cudaStreamSynchronize cudaStreamCreateWithPriority"
              " cudaDeviceGetStreamPriorityRange",
              work, want_nothing_left);
}

TEST(test_simgpu__one_line_says_what_is_not_there)
{
    static const struct {
        const char *settings;
        int rc;
        const char *said;
    } ways[] = {
        {"driver=0", ERR_UNAVAILABLE,
         "CUDA: no GPU to compute on: the NVIDIA driver is not loaded"},
        {"driver=10020", ERR_UNAVAILABLE, "the driver supports CUDA up to 10.2"},
        {"driver=10020", ERR_UNAVAILABLE, "update the driver"},
        {"devices=0", ERR_UNAVAILABLE, "CUDA: no GPU to compute on: no CUDA-capable device"},
        {"capability=75", ERR_INVALID, "has compute capability 7.5, at least 8.0 is needed"},
        {"memory=20000", ERR_MEMORY,
         "CUDA: could not allocate a buffer of 12000 bytes: out of memory"},
    };
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        assert_int_equal(work(ways[i].settings), ways[i].rc);
        assert_non_null(strstr(report_line(), ways[i].said));
    }
}

TEST(test_simgpu__float8_products_need_capability_8_9)
{
    static const int capabilities[] = {80, 86, 89, 90, 100};
    for (size_t i = 0; i < sizeof(capabilities) / sizeof(capabilities[0]); i++) {
        struct bed bed;
        char setting[32];
        snprintf(setting, sizeof(setting), "capability=%d", capabilities[i]);
        assert_int_equal(open_bed(&bed, setting), 0);
        assert_int_equal(kernels_have_float8(bed.kernels), capabilities[i] >= 89);
        close_bed(&bed);
    }
}

TEST(test_simgpu__a_device_says_what_is_left_of_its_memory)
{
    struct bed bed;
    struct device_room before, after;
    void *more = NULL;
    assert_int_equal(open_bed(&bed, "devices=3,memory=1000000"), 0);
    assert_int_equal(device_room(bed.device, &before), 0);
    assert_int_equal(before.all, 1000000);
    assert_int_equal(before.devices, 3);
    assert_int_equal(device_alloc(bed.device, &more, 4096, ON_DEVICE), 0);
    assert_int_equal(device_room(bed.device, &after), 0);
    assert_in_range(before.free - after.free, 4096, 8192);
    close_bed(&bed);
    assert_int_equal(open_bed(&bed, "fail=cudaMemGetInfo:1"), 0);
    assert_int_equal(device_room(bed.device, &after), ERR_UNAVAILABLE);
    close_bed(&bed);
}

TEST(test_simgpu__a_device_says_near_which_memory_it_is)
{
    struct bed bed;
    assert_int_equal(open_bed(&bed, "node=3"), 0);
    assert_int_equal(device_memory_node(bed.device), 1 + 3);
    close_bed(&bed);
}

int main(void)
{
    if (device_find("cuda") == NULL) {
        printf("skipped: NVIDIA's headers are not here (make deps-cuda)\n");
        return 77;
    }
    return suite_run(NULL, NULL);
}
