/* memory_bed.h - allocations that fail when a test says so.
 *
 * The linker sends the allocations of this tree through the functions below (--wrap, see
 * WRAP_MEMORY in the Makefile); those of jansson come by proto/json.c. What gRPC, protobuf-c and
 * liburing allocate is theirs. A place is the chain of callers of an allocation. Armed with place
 * and number 0 it notes the places, and the number of the allocation that each was first met with;
 * then the allocation at a place, or of a number, fails when it is first met: once, or with all
 * from there on. Mappings and threads that the system refuses are a lack of memory too, but for a
 * test that makes some itself meanwhile (ALLOCATIONS_ONLY). What was allocated and not freed is
 * counted. */
#ifndef HOLDFAST_TESTS_MEMORY_BED_H
#define HOLDFAST_TESTS_MEMORY_BED_H

#include "proto/rpc.h"
#include "tests/unit/wrap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/descriptors.h"

#include <errno.h>
#include <execinfo.h>
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
#define CALLERS NEAR_CALLERS /* of an allocation that tell a place from another */
#endif

static struct {
    pthread_mutex_t lock;
    bool is_armed, for_ever, has_failed;
    uint64_t place, number; /* of what fails; 0: not by this */
    uint64_t allocations;   /* since it was armed */
    uint32_t num_seen;
    struct {
        uint64_t place, number;
        uint64_t near; /* the place by NEAR_CALLERS alone, which others may share */
    } seen[PLACES_MAX];
    atomic_long live; /* allocations that were not freed */
} failing = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Arms: the allocation at `place`, or of `number`, fails; with both 0 they are noted. */
static inline void memory_arm(uint64_t place, uint64_t number, bool for_ever)
{
    failing.place = place;
    failing.number = number;
    failing.for_ever = for_ever;
    failing.has_failed = false;
    failing.allocations = 0;
    __atomic_store_n(&failing.is_armed, true, __ATOMIC_RELEASE);
}

static inline void memory_disarm(void)
{
    __atomic_store_n(&failing.is_armed, false, __ATOMIC_RELEASE);
}

/* Before it is first armed: backtrace's own allocations are made now. */
static inline void memory_begin(void)
{
    void *callers[1];
    backtrace(callers, 1);
}

/* Not inlined: the frames of this file are left out by their number, and the first caller behind
 * them tells two allocations of one function apart. */
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
    for (uint32_t i = 0; i < failing.num_seen; i++)
        if (failing.seen[i].place == place)
            return;
    assert_true(failing.num_seen < PLACES_MAX);
    failing.seen[failing.num_seen].place = place;
    failing.seen[failing.num_seen].near = near;
    failing.seen[failing.num_seen++].number = failing.allocations;
}

static __attribute__((noinline)) bool fails(const char *name)
{
    (void)name;
    if (!__atomic_load_n(&failing.is_armed, __ATOMIC_ACQUIRE))
        return false;
    uint64_t near = 0, place = failing.number == 0 ? place_of_caller(&near) : 0;
    pthread_mutex_lock(&failing.lock);
    bool now = false;
    failing.allocations++;
    if (failing.has_failed)
        now = failing.for_ever;
    else if (failing.place != 0)
        now = place == failing.place;
    else if (failing.number != 0)
        now = failing.allocations == failing.number;
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

/* What rpc_unpack made of a message is counted, and goes by protobuf-c. */
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

/* Nothing is left of what has happened since there were `live` allocations and *least descriptors;
 * other threads may free theirs a little later. */
static inline bool is_let_go(long live, unsigned *least)
{
    bool is_closed = are_closed(least);
    for (unsigned waited = 0; failing.live != live && waited < PATIENCE_MS; waited++)
        wait_ms(1);
    return is_closed && failing.live == live;
}

/* ---- a story with one failure ---- */

#define TRIES_MAX 8 /* to meet a place that only some orders of events come to */

typedef void tell_function(void *user, uint64_t place, bool for_ever);

/* Until the place is met; true when it was. No telling leaves anything behind: *least is the
 * smallest number of descriptors so far. Not inlined, and called from one line, as the callers of
 * an allocation may reach up to here. */
static __attribute__((noinline, unused)) bool
fail_place(void *user, tell_function *tell, uint64_t place, bool for_ever, unsigned *least)
{
    for (int i = 0; i < TRIES_MAX; i++) {
        long live = failing.live;
        tell(user, place, for_ever);
        if (!is_let_go(live, least))
            fail_msg("%ld allocations left, and %u descriptors in place of %u", failing.live - live,
                     count_descriptors(), *least);
        if (failing.has_failed)
            return true;
        wait_ms(place != 0 ? 50u << i / 2 : 0); /* as for memory that ckptd makes anew */
    }
    return false;
}

/* Tells it with every place failing, once and for ever; returns how many there are. Place 0, which
 * no telling meets, notes them: those too that only some tellings come to. */
static inline uint32_t fail_each_place(void *user, tell_function *tell)
{
    tell(user, 0, false); /* what comes once is there */
    unsigned least = count_descriptors();
    uint32_t unmet = 0;
    failing.num_seen = 0;
    for (uint32_t i = 0; i < 2 * (1 + failing.num_seen); i++) {
        uint64_t place = i < 2 ? 0 : failing.seen[i / 2 - 1].place;
        print_message("# place %u of %u\n", i / 2, failing.num_seen);
        unmet += !fail_place(user, tell, place, i % 2 == 1, &least) && place != 0;
    }
    print_message("# %u places, once and for ever; %u times one was not met\n", failing.num_seen,
                  unmet);
    assert_int_equal(unmet, 0);
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
