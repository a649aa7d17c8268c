/* lanes.c - fibers, their order, and their waits (lanes.h).
 *
 * A fiber is a stack and, under sanitizers, an identity. There are as many as the largest block has
 * threads; a fiber runs one thread of a block after the other, without end. For each block the
 * threads are assigned to fibers at random. A thread that has to wait switches to one that may run.
 * If none may run and not all have ended, the block is stuck, which is reported.
 *
 * Sanitizers are found at run time by their symbols. Bytes of fibers are never passed to functions
 * of the C library that a sanitizer intercepts: copies are loops (compiled with -fno-builtin). */
#include "tests/cuda/lanes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define WEAK __attribute__((weak))
WEAK void *__tsan_get_current_fiber(void);
WEAK void *__tsan_create_fiber(unsigned flags);
WEAK void __tsan_switch_to_fiber(void *fiber, unsigned flags);
WEAK void __tsan_acquire(void *at);
WEAK void __tsan_release(void *at);
WEAK void __sanitizer_start_switch_fiber(void **save, const void *bottom, size_t bytes);
WEAK void __sanitizer_finish_switch_fiber(void *save, const void **bottom, size_t *bytes);
WEAK void __asan_poison_memory_region(const volatile void *at, size_t bytes);
WEAK void __asan_unpoison_memory_region(const volatile void *at, size_t bytes);
#define TSAN_NO_SYNC 1

/* Under ThreadSanitizer blocks use so many sets of fibers in turn. If a fiber runs a second block,
 * its barriers pass its history of the first block to the others, which hides races. */
#define SETS_MAX 4
#define STACK_BYTES ((size_t)256 << 10)
/* Stack tops that differ by a multiple of a page share the sets of the first-level cache. */
#define STACK_SHIFT 320
#define WARPS_MAX (LANES_THREADS_MAX / LANES_WARP)
#define COPIES_MAX 512
#define ARGS_MAX 4096
#define SHARED_CALLS_MAX 16
#define SHARED_ALIGN 128
#define GRID_YZ_MAX 65535

/* ---- State ---- */

struct context {
    void *sp, *tsan, *asan;
    const void *bottom;
    size_t bytes;
};

enum state { READY, AT_BARRIER, AT_WARP, ENDED };
struct copy {
    void *to;
    const void *from;
    unsigned group;
};
struct thread {
    struct lanes_place place;
    struct context *fiber;
    enum state state;
    const char *file; /* where the thread waits */
    int line;
    unsigned shared_calls;
    unsigned num_copies, first_copy, group; /* copies not made; the group being filled */
};
struct warp {
    enum lanes_collective kind;
    unsigned arrived, number;
    const char *file;
    int line;
    char sync[SETS_MAX][2]; /* addresses for ThreadSanitizer, used in turn */
    unsigned turn;
    unsigned char in[LANES_WARP][LANES_EXCHANGE_MAX], out[LANES_WARP][LANES_EXCHANGE_MAX];
};

static struct {
    uint64_t seed, random;
    const struct lanes_launch *launch;
    unsigned char args[ARGS_MAX];
    struct context host, fibers[SETS_MAX][LANES_THREADS_MAX];
    unsigned num_fibers[SETS_MAX], set;
    struct context *left; /* the context that was left last */
    struct thread threads[LANES_THREADS_MAX], *now;
    struct copy (*copies)[COPIES_MAX];
    uint64_t ready[LANES_THREADS_MAX / 64];
    struct warp warps[WARPS_MAX];
    unsigned at_barrier, ended, barrier_turn;
    const char *barrier_file; /* of the first thread that waits */
    int barrier_line;
    char barrier_sync[SETS_MAX][2], begin_sync, end_sync;
    unsigned char *shared;
    size_t shared_used, shared_at[SHARED_CALLS_MAX];
    unsigned shared_calls;
} m;
const struct lanes_place *lanes_here;

static void copy_bytes(void *to, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)to)[i] = ((const unsigned char *)from)[i];
}

static uint64_t draw(void)
{
    uint64_t z = m.random += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

_Noreturn static void refuse(const char *what, const char *file, int line)
{
    fprintf(stderr, "lanes: %s", m.launch ? m.launch->name : "no kernel");
    if (m.now)
        fprintf(stderr, ", block (%u, %u, %u), thread %u", m.now->place.block.x,
                m.now->place.block.y, m.now->place.block.z, m.now->place.thread.x);
    fprintf(stderr, ": %s", what);
    if (file)
        fprintf(stderr, " (%s:%d)", file, line);
    fprintf(stderr, "\n");
    abort();
}

void lanes_seed(uint64_t seed)
{
    m.seed = seed;
    m.random = seed;
}

/* ---- Fibers ---- */

void lanes_swap(void **save, void *load);
__asm__(".text\n.p2align 4\n.globl lanes_swap\n.type lanes_swap, @function\nlanes_swap:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size lanes_swap, . - lanes_swap\n");

/* Records the stack of the context that was left: that of the host is not known otherwise. */
static void arrive(struct context *here)
{
    const void *bottom = NULL;
    size_t bytes = 0;
    if (!__sanitizer_finish_switch_fiber)
        return;
    __sanitizer_finish_switch_fiber(here->asan, &bottom, &bytes);
    if (m.left == &m.host) {
        m.host.bottom = bottom;
        m.host.bytes = bytes;
    }
}

static void switch_to(struct context *from, struct context *to)
{
    m.left = from;
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(&from->asan, to->bottom, to->bytes);
    if (__tsan_switch_to_fiber)
        __tsan_switch_to_fiber(to->tsan, TSAN_NO_SYNC);
    lanes_swap(&from->sp, to->sp);
    arrive(from);
}

static void set_ready(struct thread *thread)
{
    unsigned t = thread->place.thread.x;
    thread->state = READY;
    m.ready[t / 64] |= (uint64_t)1 << (t % 64);
}

#define WORDS (LANES_THREADS_MAX / 64)
/* The first thread that may run, from `first` on, with wrap-around; NULL: none. */
static struct thread *next_ready(unsigned first)
{
    for (unsigned i = 0; i <= WORDS; i++) {
        unsigned word = (first / 64 + i) % WORDS;
        uint64_t bits = i == 0 ? m.ready[word] >> (first % 64) << (first % 64) : m.ready[word];
        if (bits != 0)
            return &m.threads[word * 64 + (unsigned)__builtin_ctzll(bits)];
    }
    return NULL;
}
static struct thread *last_ready(void)
{
    for (unsigned word = WORDS; word-- > 0;) {
        if (m.ready[word] != 0)
            return &m.threads[word * 64 + 63 - (unsigned)__builtin_clzll(m.ready[word])];
    }
    return NULL;
}
/* A thread that may run, chosen by the seed; NULL: none. */
static struct thread *pick(void)
{
    unsigned order = (unsigned)(m.seed % 3);
    if (order == 1)
        return last_ready();
    return next_ready(order == 0 ? 0 : (unsigned)(draw() % m.launch->threads));
}

_Noreturn static void stuck(void)
{
    for (unsigned t = 0; t < m.launch->threads; t++) {
        m.now = &m.threads[t];
        if (m.now->state == AT_BARRIER)
            refuse("waits for ever at a barrier that not all threads of the block reach",
                   m.now->file, m.now->line);
        if (m.now->state == AT_WARP)
            refuse("waits for ever in a collective that not all threads of the warp reach",
                   m.now->file, m.now->line);
    }
    abort();
}

/* The current thread has ended or waits: switches to another one. */
static void leave(struct context *from)
{
    struct thread *next = pick();
    if (!next && m.ended < m.launch->threads)
        stuck();
    if (next && next->fiber == from)
        m.now = next;
    if (!next || next->fiber != from) {
        m.now = next;
        lanes_here = next ? &next->place : NULL;
        switch_to(from, next ? next->fiber : &m.host);
    }
}

static void wait_as(enum state state, const char *file, int line)
{
    struct thread *self = m.now;
    unsigned t = self->place.thread.x;
    self->state = state;
    self->file = file;
    self->line = line;
    m.ready[t / 64] &= ~((uint64_t)1 << (t % 64));
    leave(self->fiber);
}

/* Lets other threads run first. */
static void yield(void)
{
    struct thread *self = m.now;
    leave(self->fiber);
}

static void fiber_main(void)
{
    struct context *self = m.now->fiber;
    arrive(self);
    for (;;) {
        if (__tsan_acquire)
            __tsan_acquire(&m.begin_sync);
        m.launch->kernel(m.args);
        if (m.now->num_copies > 0)
            refuse("ends before it waited for its asynchronous copies", NULL, 0);
        if (__tsan_release)
            __tsan_release(&m.end_sync);
        m.ended++;
        wait_as(ENDED, NULL, 0);
    }
}

static void *map(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        refuse("no memory for fibers", NULL, 0);
    return at;
}

static void make_fiber(struct context *fiber, unsigned i)
{
    char *stack = map(STACK_BYTES);
    if (mprotect(stack, 4096, PROT_NONE) != 0)
        refuse("a stack could not get its guard page", NULL, 0);
    fiber->bottom = stack + 4096;
    fiber->bytes = STACK_BYTES - 4096;
    fiber->tsan = __tsan_create_fiber ? __tsan_create_fiber(0) : NULL;
    /* At its first frame a stack is as after a call: 8 modulo 16. */
    uintptr_t top = ((uintptr_t)stack + STACK_BYTES - i % 12 * STACK_SHIFT) & ~(uintptr_t)15;
    void **frame = (void **)top - 2;
    frame[0] = (void *)(uintptr_t)fiber_main;
    frame[1] = NULL;
    for (int saved = 1; saved <= 6; saved++)
        frame[-saved] = NULL;
    fiber->sp = frame - 6;
}

/* ---- Launch ---- */

static void check_launch(const struct lanes_launch *launch)
{
    m.now = NULL;
    m.launch = launch;
    if (launch->threads == 0 || launch->threads > LANES_THREADS_MAX ||
        launch->threads % LANES_WARP != 0)
        refuse("a block is 32 to 1024 threads, whole warps", NULL, 0);
    if (launch->grid.x == 0 || launch->grid.x > INT32_MAX || launch->grid.y == 0 ||
        launch->grid.y > GRID_YZ_MAX || launch->grid.z == 0 || launch->grid.z > GRID_YZ_MAX)
        refuse("the grid is empty or larger than a GPU takes", NULL, 0);
    if (launch->shared_bytes > LANES_SHARED_MAX || launch->args_bytes > ARGS_MAX)
        refuse("more shared memory or arguments than a GPU takes", NULL, 0);
}

static void begin_shared(void)
{
    size_t bytes = LANES_SHARED_MAX + SHARED_ALIGN;
    if (!m.shared)
        m.shared = map(bytes);
    else if (__tsan_acquire && mmap(m.shared, bytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != m.shared)
        /* ThreadSanitizer forgets the history. */
        refuse("shared memory could not be mapped again", NULL, 0);
    m.shared_calls = 0;
    m.shared_used = m.launch->shared_bytes;
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(m.shared, bytes);
    for (size_t i = 0; i < m.shared_used; i++)
        m.shared[i] = 0xff;
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(m.shared + m.shared_used, bytes - m.shared_used);
}

static void begin_thread(unsigned t, struct context *fiber, struct lanes_dim block)
{
    struct thread *thread = &m.threads[t];
    const struct lanes_launch *launch = m.launch;
    thread->place = (struct lanes_place){.thread = {t, 0, 0},
                                         .block = block,
                                         .block_dim = {launch->threads, 1, 1},
                                         .grid_dim = launch->grid};
    thread->fiber = fiber;
    thread->shared_calls = thread->num_copies = thread->first_copy = thread->group = 0;
    set_ready(thread);
}

static void run_block(size_t index)
{
    const struct lanes_launch *launch = m.launch;
    unsigned n = launch->threads, turn = (unsigned)(draw() % n);
    struct lanes_dim block = {(unsigned)(index % launch->grid.x),
                              (unsigned)(index / launch->grid.x % launch->grid.y),
                              (unsigned)(index / launch->grid.x / launch->grid.y)};
    m.set = __tsan_create_fiber ? (unsigned)(draw() % SETS_MAX) : 0;
    for (unsigned *have = &m.num_fibers[m.set]; *have < n; (*have)++)
        make_fiber(&m.fibers[m.set][*have], *have);
    begin_shared();
    if (__tsan_release) /* the host does not acquire from fibers: blocks stay unordered */
        __tsan_release(&m.begin_sync);
    m.at_barrier = m.ended = 0;
    for (unsigned w = 0; w < WARPS_MAX; w++)
        m.warps[w].arrived = 0;
    for (unsigned t = 0; t < n; t++)
        begin_thread(t, &m.fibers[m.set][(t + turn) % n], block);
    leave(&m.host);
}

static size_t greatest_common_divisor(size_t a, size_t b)
{
    return b == 0 ? a : greatest_common_divisor(b, a % b);
}

void lanes_launch(const struct lanes_launch *launch)
{
    check_launch(launch);
    copy_bytes(m.args, launch->args, launch->args_bytes);
    if (!m.copies)
        m.copies = map(sizeof(*m.copies) * LANES_THREADS_MAX);
    m.host.tsan = __tsan_get_current_fiber ? __tsan_get_current_fiber() : NULL;
    size_t blocks = (size_t)launch->grid.x * launch->grid.y * launch->grid.z;
    size_t order = m.seed % 3, first = order == 0 ? 0 : order == 1 ? blocks - 1 : draw() % blocks;
    size_t step = order == 0 ? 1 : order == 1 ? blocks - 1 : draw() % blocks + 1;
    while (order == 2 && greatest_common_divisor(step, blocks) != 1)
        step++;
    for (size_t i = 0, at = first; i < blocks; i++, at = (at + step) % blocks)
        run_block(at);
    if (__tsan_acquire)
        __tsan_acquire(&m.end_sync);
    m.launch = NULL;
}

WEAK int lanes_queue(void *stream, const struct lanes_launch *launch)
{
    (void)stream;
    lanes_launch(launch);
    return 0;
}

/* ---- Barriers and shared memory ---- */

void lanes_barrier(const char *file, int line)
{
    char *sync = &m.barrier_sync[m.set][m.barrier_turn];
    if (m.at_barrier == 0) {
        m.barrier_file = file;
        m.barrier_line = line;
    } else if (m.barrier_line != line || m.barrier_file != file) {
        refuse("reaches a barrier while other threads wait at another one", file, line);
    }
    if (__tsan_release)
        __tsan_release(sync);
    if (++m.at_barrier < m.launch->threads) {
        wait_as(AT_BARRIER, file, line);
    } else {
        m.at_barrier = 0;
        m.barrier_turn = 1 - m.barrier_turn;
        for (unsigned t = 0; t < m.launch->threads; t++)
            set_ready(&m.threads[t]);
        if (m.seed % 3 != 2 || draw() % 2 == 0)
            yield();
    }
    if (__tsan_acquire)
        __tsan_acquire(sync);
}

void *lanes_shared_dynamic(void)
{
    return m.shared;
}

void *lanes_shared(size_t bytes)
{
    unsigned call = m.now->shared_calls++;
    if (call == SHARED_CALLS_MAX)
        refuse("too many pieces of shared memory", NULL, 0);
    if (call < m.shared_calls)
        return m.shared + m.shared_at[call];
    size_t at = (m.shared_used + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
    if (at + bytes > LANES_SHARED_MAX ||
        at + bytes - m.launch->shared_bytes > LANES_SHARED_STATIC_MAX)
        refuse("more shared memory than a GPU takes", NULL, 0);
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(m.shared + at, bytes);
    for (size_t i = 0; i < bytes; i++)
        m.shared[at + i] = 0xff;
    m.shared_at[m.shared_calls++] = at;
    m.shared_used = at + bytes;
    return m.shared + at;
}

/* ---- Warp collectives ---- */

static uint32_t word_of(const unsigned char *bytes)
{
    uint32_t word;
    copy_bytes(&word, bytes, sizeof(word));
    return word;
}

#define WORD_MAX 8
/* Each lane gets a word of the lane that `source` chooses. */
static void shuffle(struct warp *warp, unsigned (*source)(unsigned lane, unsigned number))
{
    for (unsigned lane = 0; lane < LANES_WARP; lane++)
        copy_bytes(warp->out[lane], warp->in[source(lane, warp->number) % LANES_WARP], WORD_MAX);
}
static unsigned lane_down(unsigned lane, unsigned number)
{
    return lane + number < LANES_WARP ? lane + number : lane;
}
static unsigned lane_xor(unsigned lane, unsigned number)
{
    return lane ^ number;
}
static unsigned lane_from(unsigned lane, unsigned number)
{
    (void)lane;
    return number;
}

static void combine_sync(struct warp *warp)
{
    (void)warp;
}
static void combine_down(struct warp *warp)
{
    shuffle(warp, lane_down);
}
static void combine_xor(struct warp *warp)
{
    shuffle(warp, lane_xor);
}
static void combine_from(struct warp *warp)
{
    shuffle(warp, lane_from);
}
static void combine_ballot(struct warp *warp)
{
    uint32_t bits = 0;
    for (unsigned lane = 0; lane < LANES_WARP; lane++)
        bits |= (uint32_t)(word_of(warp->in[lane]) != 0) << lane;
    for (unsigned lane = 0; lane < LANES_WARP; lane++)
        copy_bytes(warp->out[lane], &bits, sizeof(bits));
}

/* PTX ISA, "ldmatrix": lane l gets of each matrix elements (l / 4, 2 (l % 4)) and the next one in
 * the row, or with .trans those of the transposed matrix. */
static void matrix(struct warp *warp, bool is_transposed)
{
    for (unsigned lane = 0; lane < LANES_WARP; lane++) {
        for (unsigned i = 0; i < 8; i++) {
            unsigned row = lane / 4, column = lane % 4 * 2 + i % 2;
            unsigned from = i / 2 * 8 + (is_transposed ? column : row);
            unsigned at = is_transposed ? row : column;
            copy_bytes(warp->out[lane] + 2 * i, warp->in[from] + 2 * at, 2);
        }
    }
}
static void combine_matrix(struct warp *warp)
{
    matrix(warp, false);
}
static void combine_matrix_t(struct warp *warp)
{
    matrix(warp, true);
}

static float bf16_at(const unsigned char *bytes)
{
    uint32_t bits = (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 24;
    float value;
    copy_bytes(&value, &bits, sizeof(value));
    return value;
}

/* OCP's formats: `bits` bits after the first, subnormals below 2^lowest; the highest codes are NaN
 * (E4M3: one) or infinity and NaN (E5M2). */
static float float8_at(const unsigned char *byte, int bits, int lowest)
{
    int exponent = *byte >> bits & (0x7f >> bits), mantissa = *byte & ((1 << bits) - 1);
    bool is_special = bits == 3 ? (*byte & 0x7f) == 0x7f : exponent == 31;
    float value = (float)(exponent == 0 ? mantissa : mantissa + (1 << bits));
    int power = (exponent == 0 ? lowest : lowest + exponent - 1) - bits;
    for (; power > 0; power--)
        value *= 2;
    for (; power < 0; power++)
        value /= 2;
    if (is_special)
        value = bits == 2 && mantissa == 0 ? INFINITY : NAN;
    return *byte >> 7 ? -value : value;
}

/* PTX ISA, "matrix fragments for mma.m16n8k16" (.bf16) and "mma.m16n8k32" (.e4m3, .e5m2): a word
 * has `each` values (2, 4), at k = each (lane % 4); with g = lane / 4 and c = 2 (lane % 4)
 *     a: row g | row g + 8 | k + 4 each | both     b: column g | k + 4 each
 *     c: (g, c) (g, c + 1) (g + 8, c) (g + 8, c + 1)
 * Sums run over k in order, in float; a tensor core's order is not documented. */
struct operands {
    float a[16][32], b[32][8];
};
static float value_at(const unsigned char *word, unsigned i, unsigned each, bool is_e5m2)
{
    if (each == 2)
        return bf16_at(word + 2 * i);
    return float8_at(word + i, is_e5m2 ? 2 : 3, is_e5m2 ? -14 : -6);
}
static void read_operands(struct operands *o, const struct warp *warp, unsigned each)
{
    for (unsigned lane = 0; lane < LANES_WARP; lane++) {
        unsigned g = lane / 4, at = lane % 4 * each;
        const unsigned char *in = warp->in[lane];
        for (unsigned i = 0; i < 4 * each; i++) {
            unsigned word = i / each, k = at + i % each + word / 2 * 4 * each;
            o->a[g + word % 2 * 8][k] = value_at(in + 4 * word, i % each, each, warp->number == 1);
        }
        for (unsigned i = 0; i < 2 * each; i++)
            o->b[at + i % each + i / each * 4 * each][g] =
                value_at(in + 16 + 4 * (i / each), i % each, each, false);
    }
}
static void multiply(struct warp *warp, unsigned each)
{
    struct operands o;
    float c[16][8];
    read_operands(&o, warp, each);
    for (unsigned lane = 0; lane < LANES_WARP; lane++)
        for (unsigned i = 0; i < 4; i++)
            copy_bytes(&c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2], warp->in[lane] + 24 + 4 * i,
                       4);
    for (unsigned m_ = 0; m_ < 16; m_++)
        for (unsigned k = 0; k < 8 * each; k++)
            for (unsigned n = 0; n < 8; n++)
                c[m_][n] += o.a[m_][k] * o.b[k][n];
    for (unsigned lane = 0; lane < LANES_WARP; lane++)
        for (unsigned i = 0; i < 4; i++)
            copy_bytes(warp->out[lane] + 4 * i, &c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2], 4);
}
static void combine_mma(struct warp *warp)
{
    multiply(warp, 2);
}
static void combine_mma_float8(struct warp *warp)
{
    multiply(warp, 4);
}

static void (*const combine[LANES_COLLECTIVES])(struct warp *) = {
    [LANES_SYNC] = combine_sync,
    [LANES_DOWN] = combine_down,
    [LANES_XOR] = combine_xor,
    [LANES_FROM] = combine_from,
    [LANES_BALLOT] = combine_ballot,
    [LANES_MATRIX] = combine_matrix,
    [LANES_MATRIX_T] = combine_matrix_t,
    [LANES_MMA] = combine_mma,
    [LANES_MMA_FLOAT8] = combine_mma_float8,
};

void lanes_collect(enum lanes_collective kind, void *out, size_t out_bytes, const void *in,
                   size_t in_bytes, unsigned number, const char *file, int line)
{
    struct thread *self = m.now;
    unsigned t = self->place.thread.x;
    struct warp *warp = &m.warps[t / LANES_WARP];
    char *sync = &warp->sync[m.set][warp->turn];
    bool orders_memory = kind == LANES_SYNC;
    if (in_bytes > LANES_EXCHANGE_MAX || out_bytes > LANES_EXCHANGE_MAX)
        refuse("more bytes than a collective takes", file, line);
    if (warp->arrived > 0 && (warp->kind != kind || warp->number != number || warp->line != line))
        refuse("reaches a collective while its warp waits in another one", file, line);
    warp->kind = kind;
    warp->number = number;
    warp->file = file;
    warp->line = line;
    copy_bytes(warp->in[t % LANES_WARP], in, in_bytes);
    if (orders_memory && __tsan_release)
        __tsan_release(sync);
    if (++warp->arrived < LANES_WARP) {
        wait_as(AT_WARP, file, line);
    } else {
        combine[kind](warp);
        warp->arrived = 0;
        warp->turn = 1 - warp->turn;
        for (unsigned lane = 0; lane < LANES_WARP; lane++)
            set_ready(&m.threads[t / LANES_WARP * LANES_WARP + lane]);
    }
    if (orders_memory && __tsan_acquire)
        __tsan_acquire(sync);
    copy_bytes(out, warp->out[t % LANES_WARP], out_bytes);
}

/* ---- Asynchronous copies ---- */

bool lanes_copy_add(void *to, const void *from)
{
    struct thread *self = m.now;
    if (m.seed / 3 % 2 == 1)
        return true;
    if (self->num_copies == COPIES_MAX)
        refuse("too many asynchronous copies that are not waited for", NULL, 0);
    unsigned at = (self->first_copy + self->num_copies++) % COPIES_MAX;
    m.copies[self->place.thread.x][at] = (struct copy){to, from, self->group};
    return false;
}

void lanes_copy_commit(void)
{
    m.now->group++;
}

/* Groups are numbered from 0; all committed groups except the last `groups` are copied. */
bool lanes_copy_next(unsigned groups, void **to, const void **from)
{
    struct thread *self = m.now;
    const struct copy *copy = &m.copies[self->place.thread.x][self->first_copy % COPIES_MAX];
    if (self->num_copies == 0 || copy->group + groups >= self->group)
        return false;
    *to = copy->to;
    *from = copy->from;
    self->first_copy = (self->first_copy + 1) % COPIES_MAX;
    self->num_copies--;
    return true;
}
