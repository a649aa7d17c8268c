/* memory_bed.h - allocations that fail as a test plans.
 *
 * The linker sends the allocations of this tree through the functions below (--wrap, see
 * WRAP_MEMORY in mk/tests.mk). Those of jansson come through proto/base/json.c, and a digest of
 * OpenSSL counts as one. Allocations of gRPC, protobuf-c and liburing are not wrapped. A place is
 * the chain of callers of an allocation. Armed with place and number 0 the bed records the places,
 * and for each the number of its first allocation. Then the allocation at a place fails at its
 * first or a later encounter, or the one with a number fails: once, or with all that follow.
 * Mappings and threads fail likewise, except in a test that makes some itself meanwhile
 * (ALLOCATIONS_ONLY). The bed counts allocations that were not freed. */
#ifndef HOLDFAST_TESTS_MEMORY_BED_H
#define HOLDFAST_TESTS_MEMORY_BED_H

#include "proto/wire/rpc.h"
#include "tests/unit/sample.h"
#include "tests/unit/wrap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/descriptors.h"

#include <errno.h>
#include <execinfo.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PLACES_MAX 4000u
#define NEAR_CALLERS 5
#ifndef CALLERS
#define CALLERS NEAR_CALLERS /* callers of an allocation that identify a place */
#endif

/* The allocation that fails: at a place, or by its number since it was armed. With both 0 none
 * fails, and places are recorded. */
struct lack {
    uint64_t place, number;
    uint64_t encounter; /* with the place; 0: the first */
    bool for_ever;      /* and all later ones */
};

static struct {
    pthread_mutex_t lock;
    bool is_armed, has_failed;
    struct lack lack;
    uint64_t encounters, allocations; /* with the place; of all; since it was armed */
    uint32_t num_seen;
    struct {
        uint64_t place, number;
        uint64_t near;       /* the place by NEAR_CALLERS alone, which places may share */
        uint64_t encounters; /* since it was armed */
    } seen[PLACES_MAX];
    atomic_long live; /* allocations that were not freed */
} failing = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline void memory_arm(const struct lack *lack)
{
    failing.lack = *lack;
    failing.has_failed = false;
    failing.encounters = failing.allocations = 0;
    for (uint32_t i = 0; i < failing.num_seen && lack->place == 0 && lack->number == 0; i++)
        failing.seen[i].encounters = 0;
    __atomic_store_n(&failing.is_armed, true, __ATOMIC_RELEASE);
}

static inline void memory_disarm(void)
{
    __atomic_store_n(&failing.is_armed, false, __ATOMIC_RELEASE);
}

/* Call it before the first arming: backtrace's own allocations are made now. */
static inline void memory_begin(void)
{
    void *callers[1];
    backtrace(callers, 1);
}

/* Not inlined: the frames of this file are skipped by count, and the first caller after them
 * distinguishes two allocations of one function. */
static __attribute__((noinline)) uint64_t place_of_caller(uint64_t *out_near)
{
    void *callers[CALLERS + 3];
    int count = backtrace(callers, CALLERS + 3);
    uint64_t place = 1469598103934665603ull;
    for (int i = 3; i < count; i++) { /* without this file's own frames */
        place = (place ^ (uint64_t)(uintptr_t)callers[i]) * 1099511628211ull;
        *out_near = i < 3 + NEAR_CALLERS ? place | 1 : *out_near;
    }
    return place | 1;
}

static void note_place(uint64_t place, uint64_t near)
{
    uint32_t i = 0;
    while (i < failing.num_seen && failing.seen[i].place != place)
        i++;
    assert_true(i < PLACES_MAX);
    if (i == failing.num_seen) {
        failing.seen[i].place = place;
        failing.seen[i].near = near;
        failing.seen[i].number = failing.allocations;
        failing.seen[i].encounters = 0;
        failing.num_seen++;
    }
    failing.seen[i].encounters++;
}

static __attribute__((noinline)) bool fails(const char *name)
{
    (void)name;
    if (!__atomic_load_n(&failing.is_armed, __ATOMIC_ACQUIRE))
        return false;
    const struct lack *lack = &failing.lack;
    uint64_t near = 0, place = lack->number == 0 ? place_of_caller(&near) : 0;
    pthread_mutex_lock(&failing.lock);
    bool now = false;
    failing.allocations++;
    if (failing.has_failed)
        now = lack->for_ever;
    else if (lack->place != 0)
        now = place == lack->place && failing.encounters++ == lack->encounter;
    else if (lack->number != 0)
        now = failing.allocations == lack->number;
    else
        note_place(place, near);
    failing.has_failed = failing.has_failed || now;
    pthread_mutex_unlock(&failing.lock);
    if (now)
        errno = ENOMEM;
    return now;
}

static inline void *count_live(void *memory)
{
    failing.live += memory != NULL;
    return memory;
}

#define WRAP_COUNTED(type, name, parameters, arguments)                         \
    type __real_##name parameters;                                              \
    type __wrap_##name parameters;                                              \
    type __wrap_##name parameters                                               \
    {                                                                           \
        return fails(#name) ? NULL : (type)count_live(__real_##name arguments); \
    }

WRAP_COUNTED(void *, malloc, (size_t bytes), (bytes))
WRAP_COUNTED(void *, calloc, (size_t count, size_t bytes), (count, bytes))
WRAP_COUNTED(void *, aligned_alloc, (size_t alignment, size_t bytes), (alignment, bytes))
WRAP_COUNTED(char *, strdup, (const char *text), (text))
WRAP_COUNTED(char *, strndup, (const char *text, size_t bytes), (text, bytes))
WRAP_COUNTED(FILE *, open_memstream, (char **out, size_t *bytes), (out, bytes)) /* its text */

FILE *__real_fopencookie(void *cookie, const char *mode, cookie_io_functions_t functions);
FILE *__wrap_fopencookie(void *cookie, const char *mode, cookie_io_functions_t functions);
FILE *__wrap_fopencookie(void *cookie, const char *mode, cookie_io_functions_t functions)
{
    return fails("fopencookie") ? NULL : __real_fopencookie(cookie, mode, functions);
}

char *__real_realpath(const char *path, char *out);
char *__wrap_realpath(const char *path, char *out);
char *__wrap_realpath(const char *path, char *out)
{
    return fails("realpath") ? NULL
           : out == NULL     ? count_live(__real_realpath(path, NULL))
                             : __real_realpath(path, out);
}

int __real_posix_memalign(void **out, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes)
{
    int error = fails("posix_memalign") ? ENOMEM : __real_posix_memalign(out, alignment, bytes);
    if (error == 0)
        count_live(*out);
    return error;
}

void *__real_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes)
{
    if (fails("realloc"))
        return NULL;
    void *memory = __real_realloc(old, bytes);
    return old == NULL ? count_live(memory) : memory;
}

void __real_free(void *memory);
void __wrap_free(void *memory);
void __wrap_free(void *memory)
{
    failing.live -= memory != NULL;
    __real_free(memory);
}

int __real_EVP_Digest(const void *data, size_t bytes, unsigned char *out, unsigned *out_bytes,
                      const EVP_MD *type, ENGINE *engine);
int __wrap_EVP_Digest(const void *data, size_t bytes, unsigned char *out, unsigned *out_bytes,
                      const EVP_MD *type, ENGINE *engine);
int __wrap_EVP_Digest(const void *data, size_t bytes, unsigned char *out, unsigned *out_bytes,
                      const EVP_MD *type, ENGINE *engine)
{
    return fails("EVP_Digest") ? 0 : __real_EVP_Digest(data, bytes, out, out_bytes, type, engine);
}

/* The result of rpc_unpack is counted; protobuf-c frees it. */
static void free_counted(void *user, void *memory)
{
    (void)user;
    __wrap_free(memory);
}

static void *take_nothing(void *user, size_t bytes)
{
    (void)user, (void)bytes;
    return NULL;
}

void __real_protobuf_c_message_free_unpacked(ProtobufCMessage *message, ProtobufCAllocator *with);
void __wrap_protobuf_c_message_free_unpacked(ProtobufCMessage *message, ProtobufCAllocator *with);
void __wrap_protobuf_c_message_free_unpacked(ProtobufCMessage *message, ProtobufCAllocator *with)
{
    ProtobufCAllocator counted = {take_nothing, free_counted, NULL};
    assert_null(with);
    __real_protobuf_c_message_free_unpacked(message, &counted);
}

/* Checks for leaks since there were `live` allocations and *least descriptors; other threads may
 * free theirs a little later. */
static inline bool is_let_go(long live, unsigned *least)
{
    bool is_closed = are_closed(least);
    for (unsigned waited = 0; failing.live != live && waited < PATIENCE_MS; waited++)
        wait_ms(1);
    return is_closed && failing.live == live;
}

/* ---- a story with one failure ---- */

#define TRIES_MAX 8       /* tries to meet a place that only some orders of events reach */
#define TRIES_LATER 2     /* tries to meet a place that often; timing decides too */
#define NUMBERS_MAX 3000u /* of up to so many allocations each fails; of more a share */
#define LATER_SPARE 5u    /* beyond half of them, this number may be unmet: a sample is small */
/* Turns of a place that one telling met only by timing, and the next TRIES_MAX did not.
 */
#define RARE_TURNS 2
#define PLACES_APART 5u /* one place in so many fails, in make test */

typedef void tell_function(void *user, const struct lack *lack);

static inline bool is_noting(const struct lack *lack)
{
    return lack->place == 0 && lack->number == 0;
}

/* How often the story is told until the failure occurs. */
static __attribute__((noinline, unused)) int tries_of(const struct lack *lack)
{
    if (lack->number != 0)
        return 1;
    return lack->encounter > 0 ? TRIES_LATER : TRIES_MAX;
}

/* Tells the story until the failure occurred; true when it did. No telling may leak: *least is the
 * smallest number of descriptors so far. Not inlined, and called from one line for all places, as
 * the recorded callers may reach up to here. For the same reason it has no branch that the compiler
 * could duplicate. */
static __attribute__((noinline, unused)) bool fail_one(void *user, tell_function *tell,
                                                       const struct lack *lack, unsigned *least)
{
    unsigned pause_ms = is_noting(lack) ? 0 : 50; /* as for memory that ckptd makes anew */
    for (int i = 0, tries = tries_of(lack); i < tries; i++) {
        long live = failing.live;
        tell(user, lack);
        if (!is_let_go(live, least))
            fail_msg("%ld allocations left, and %u descriptors in place of %u", failing.live - live,
                     count_descriptors(), *least);
        if (failing.has_failed)
            return true;
        wait_ms(pause_ms << i / 2);
    }
    return false;
}

struct turns {
    struct sample sample;
    uint64_t next, allocations; /* of the longest telling without a failure */
    uint32_t unmet, later, unmet_later;
};

/* Chooses the next failure: none, twice; each place, once and for ever; the places that are met
 * again, once. Of the places those that the sample takes. False: all are done. */
static __attribute__((noinline, unused)) bool take_turn(struct turns *turns, struct lack *out)
{
    uint64_t seen = failing.num_seen, turn = turns->next, first_later = 2 * (1 + seen);
    while (turn >= 2 && turn < first_later && turn % 2 == 0 && !sample_takes(&turns->sample))
        turn += 2;
    turns->next = turn + 1;
    *out = (struct lack){.for_ever = turn % 2 == 1};
    if (turn < first_later) {
        out->place = turn < 2 ? 0 : failing.seen[turn / 2 - 1].place;
    } else {
        while (turn - first_later < seen &&
               (failing.seen[turn - first_later].encounters < 2 || !sample_takes(&turns->sample)))
            turn++;
        turns->next = turn + 1;
        if (turn - first_later == seen)
            return false;
        out->for_ever = false;
        out->place = failing.seen[turn - first_later].place;
        out->encounter = 1 + next_random(failing.seen[turn - first_later].encounters - 1);
    }
    print_message("# turn %" PRIu64 " of %" PRIu64 " places, encounter %" PRIu64 "\n", turn, seen,
                  1 + out->encounter);
    return true;
}

static __attribute__((noinline, unused)) void end_turn(struct turns *turns, const struct lack *lack,
                                                       bool is_met)
{
    if (is_noting(lack) && failing.allocations > turns->allocations)
        turns->allocations = failing.allocations;
    turns->later += lack->encounter > 0;
    turns->unmet_later += lack->encounter > 0 && !is_met;
    turns->unmet += !is_noting(lack) && lack->encounter == 0 && !is_met;
}

/* So many allocations by number, or a share of them. */
static inline void fail_each_number(void *user, tell_function *tell, uint64_t allocations,
                                    unsigned *least)
{
    uint64_t stride = 1 + allocations / NUMBERS_MAX, met = 0, told = 0;
    print_message("# %" PRIu64 " allocations, every %" PRIu64 "th of them fails\n", allocations,
                  stride);
    for (uint64_t number = 1 + next_random(stride); number <= allocations; number += stride)
        for (int for_ever = 0; for_ever < 2; for_ever++, told++) {
            print_message("# allocation %" PRIu64 " %s\n", number, for_ever ? "for ever" : "once");
            met += fail_one(user, tell, &(struct lack){.number = number, .for_ever = for_ever == 1},
                            least);
        }
    print_message("# %" PRIu64 " of %" PRIu64 " were met\n", met, told);
    assert_true(met > told / 2);
}

/* Tells the story with the places of the sample (SAMPLE=1: every place) failing, once and for ever,
 * and once at a later encounter. With TORTURE every allocation fails by its number, too. Returns
 * the number of places. Tellings without a failure record them, also those that only some orders
 * reach. */
static inline uint32_t fail_each_place(void *user, tell_function *tell)
{
    struct lack lack = {0};
    struct turns turns = {0};
    seed_random();
    turns.sample = sample_begin(PLACES_APART);
    tell(user, &lack); /* a place that is met once is there */
    unsigned least = count_descriptors();
    failing.num_seen = 0;
    while (take_turn(&turns, &lack)) {
        bool is_met = fail_one(user, tell, &lack, &least);
        end_turn(&turns, &lack, is_met);
    }
    print_message("# of %u places, once and for ever; %u again; %u and %u times one was not met\n",
                  failing.num_seen, turns.later, turns.unmet, turns.unmet_later);
    assert_true(turns.unmet <= RARE_TURNS);
    assert_true(turns.unmet_later <= turns.later / 2 + LATER_SPARE);
    if (getenv("TORTURE") != NULL)
        fail_each_number(user, tell, turns.allocations, &least);
    return failing.num_seen;
}

#ifndef ALLOCATIONS_ONLY
WRAP(void *, mmap, (void *at, size_t bytes, int protection, int flags, int fd, off_t offset),
     (at, bytes, protection, flags, fd, offset), MAP_FAILED)
WRAP(int, pthread_create,
     (pthread_t * out, const pthread_attr_t *attributes, void *(*start)(void *), void *argument),
     (out, attributes, start, argument), EAGAIN)
#endif

#endif
