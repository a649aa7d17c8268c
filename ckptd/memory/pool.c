/* pool.c - the memory of images: equal memfd segments, allocated once.
 *
 * Each segment is created, sized, mapped once, sealed against SHRINK, GROW and SEAL, so that no
 * holder of the descriptor can cause a fault. It is backed, so that later access never lacks
 * memory, and registered with the storage as a fixed buffer. The index of a segment is the index of
 * its buffer.
 *
 * At start ckptd creates and maps every segment, in microseconds each, and fails if descriptors or
 * addresses are lacking. Memory comes later. A segment is bare until a worker has backed and
 * registered it, which takes 0.2 to 2 s for 1 GiB: in the background (pool_renew), from the last
 * segment on, or before it is lent (pool_clean). A save or load takes ready segments first, then
 * bare ones from the first on. ckptd checks the free memory of the host when it opens the pool and,
 * for the rest of the pool, before each segment: other processes allocate meanwhile. If the pool
 * cannot be filled, its budget is void: the caller of pool_renew() shuts down (server.c).
 *
 * Backing: pages of 2 MiB as far as the kernel gives them (MADV_COLLAPSE, Linux 6.1, which needs no
 * permission in /sys), the rest by fallocate. Fewer pages make every copy into a fresh mapping
 * cheaper (arena.h), and every transfer, since the disk's driver gets a few long pieces. It comes
 * first: registered memory is pinned, and pinned memory is not collapsed.
 *
 * NUMA nodes. A GPU copies from memory of its own NUMA node at the full rate of its link. So an
 * owner may want its segments on a node: ckptd tells the kernel before their memory is allocated
 * (mbind, "preferred": if that node is full it uses another). A segment whose memory was allocated
 * elsewhere is replaced for that owner, once. If the kernel has no nodes, or refuses, ckptd logs
 * one line, and segments stay where they are.
 *
 * Readers get a second descriptor, opened O_RDONLY through /proc, which cannot be mapped writable.
 * The mode of the file keeps other users from opening it for writing in the same way.
 *
 * No seal revokes a writable descriptor or mapping: a former owner can write there later, or punch
 * a hole (MADV_REMOVE). Then ckptd hashes other memory, through its mapping, than the registered
 * pages that the device reads. So a segment belongs to one owner, the ranks of one attempt of a
 * run; the next owner, and every load, gets a new file in its place, at the same address and index.
 * The memory of the old file returns to the system at once, even if it is still mapped. That takes
 * as long as zeroing (0.15 to 0.22 s for 1 GiB in pages of 2 MiB), and ckptd does it when the ranks
 * leave, before a save waits for it. Between the saves of an attempt nothing is cleaned.
 *
 * A segment also remembers whose bytes it holds: one that goes from a load of one run to that of
 * another is zeroed. Bytes of one run are not zeroed between its saves: every byte of a shard is
 * written again, or was not read and is not lent.
 *
 * Threads: a worker cleans segments (pool_clean, pool_renew) under a lock per segment, where two
 * workers may meet; the segment is not used meanwhile. The service thread sets the marks for
 * cleaning, when a segment is taken or its owner goes, and lends it only without them. A worker
 * clears them when all is done, `bare` last.
 *
 * Limit: the number of segments; pool_take is all or nothing and returns ERR_BUSY. */
#include "ckptd/memory/pool.h"
#include "proto/base/report.h"
#include "proto/wire/arena.h"
#include "storage/storage.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1; missing in some C libraries */
#endif

/* From the kernel's interface (linux/mempolicy.h), which no C library has. */
#define POLICY_PREFERRED 1
#define POLICY_ASKS_NODE 3 /* node of the page at an address */
#define NODES_MAX 1024u

struct segment {
    /* Used by a worker while it cleans, under `lock`. */
    pthread_mutex_t lock;
    int fd, fd_read_only;
    uint8_t *base;
    uint64_t huge_bytes;
    uint32_t generation; /* how often it was replaced */
    /* Its owner, or the last one; run 0: none, it holds zeros; attempt 0: no other process
     * writes. */
    struct pool_owner owner;
    atomic_bool stale; /* a former owner may have it mapped writable */
    atomic_bool dirty; /* it may hold bytes of another run than the owner's */
    atomic_bool bare;  /* it has no memory yet, and never had an owner */
    bool lent;
    /* 1 + a NUMA node; 0: any. */
    atomic_uint wanted;           /* by its owner; set on the service thread */
    atomic_uint asked_for, is_on; /* by a worker: the node asked for, and the node of its memory */
};

struct pool {
    uint64_t segment_bytes;
    atomic_uint_least64_t huge_bytes; /* of all segments, in pages of 2 MiB */
    bool huge;
    struct storage *storage; /* NULL: no buffers are registered */
    uint32_t count, num_free;
    atomic_uint num_begun; /* segments whose memory was allocated, or is being */
    atomic_uint num_ready; /* segments that are not bare */
    uint32_t next;         /* where the search for a free one begins */
    struct segment *segments;
};

static int fail_backing(uint32_t index, uint64_t bytes)
{
    char detail[160];
    snprintf(detail, sizeof detail, "segment %u of %llu bytes: %s", index,
             (unsigned long long)bytes, strerror(errno));
    return report_set(ERR_MEMORY, "could not take the memory of the pool", detail,
                      "lower memory.pool_bytes");
}

/* Backs a segment with pages of 2 MiB; returns the number of bytes. A refusal is normal (an older
 * kernel, fragmented memory); fallocate backs the rest. */
static uint64_t back_with_huge_pages(const struct segment *segment, uint64_t bytes)
{
    uint64_t whole = bytes / ARENA_HUGE_BYTES * ARENA_HUGE_BYTES;
    /* The kernel refuses a range without any page. */
    for (uint64_t at = 0; at < whole; at += ARENA_HUGE_BYTES)
        if (pwrite(segment->fd, "", 1, (off_t)at) != 1)
            return 0;
    return whole > 0 && madvise(segment->base, whole, MADV_COLLAPSE) == 0 ? whole : 0;
}

/* Makes the file of a segment, without memory; maps it at segment->base, or anywhere if that is
 * NULL. */
static int make_file(struct segment *segment, uint64_t bytes, uint32_t index)
{
    char path[64];
    int error = arena_create(&segment->fd, "holdfast-segment", bytes);
    if (error == 0)
        error = arena_map((void **)&segment->base, segment->base, segment->fd, bytes,
                          PROT_READ | PROT_WRITE);
    if (error != 0)
        return error == ERR_MEMORY ? fail_backing(index, bytes) : error;
    if (fchmod(segment->fd, S_IRUSR) != 0)
        return report_errno(ERR_MEMORY, "could not close a memory segment to writers", "fchmod");
    snprintf(path, sizeof path, "/proc/self/fd/%d", segment->fd);
    segment->fd_read_only = open(path, O_RDONLY | O_CLOEXEC);
    if (segment->fd_read_only < 0)
        return report_errno(ERR_MEMORY, "could not open a segment for reading", path);
    return 0;
}

/* Sets the preferred node for the memory of a segment. The file keeps it, so it also holds for
 * pages from fallocate. */
static void choose_node(const struct segment *segment, uint64_t bytes, uint32_t wanted)
{
    static atomic_flag is_said = ATOMIC_FLAG_INIT;
    const uint32_t bits = 8 * sizeof(unsigned long);
    unsigned long nodes[NODES_MAX / (8 * sizeof(unsigned long))] = {0};
    if (wanted == 0)
        return;
    errno = EINVAL;
    if (wanted <= NODES_MAX) {
        nodes[(wanted - 1) / bits] = 1ul << (wanted - 1) % bits;
        if (syscall(SYS_mbind, segment->base, bytes, POLICY_PREFERRED, nodes,
                    (unsigned long)NODES_MAX, 0) == 0)
            return;
    }
    if (!atomic_flag_test_and_set(&is_said))
        log_warn(
            "memory",
            "could not place images on NUMA node %u of the device whose tensors are copied: %s",
            wanted - 1, strerror(errno));
}

/* 1 + the node of its first page; 0: the kernel does not say. */
static uint32_t node_of(const struct segment *segment)
{
    int node = -1;
    long error = syscall(SYS_get_mempolicy, &node, NULL, 0ul, segment->base,
                         (unsigned long)POLICY_ASKS_NODE);
    return error == 0 && node >= 0 ? (uint32_t)node + 1 : 0;
}

static int take_memory(struct segment *segment, uint64_t bytes, uint32_t index, bool huge,
                       uint32_t wanted)
{
    choose_node(segment, bytes, wanted);
    segment->huge_bytes = huge ? back_with_huge_pages(segment, bytes) : 0;
    if (fallocate(segment->fd, 0, 0, (off_t)bytes) != 0)
        return fail_backing(index, bytes);
    segment->asked_for = wanted;
    segment->is_on = node_of(segment);
    return 0;
}

static void close_files(const struct segment *segment)
{
    if (segment->fd >= 0)
        close(segment->fd);
    if (segment->fd_read_only >= 0)
        close(segment->fd_read_only);
}

/* Registers empty places: each is filled when its segment has memory, which is pinned then. */
static int register_places(const struct pool *pool)
{
    struct iovec *places = calloc(pool->count, sizeof *places);
    if (!places)
        return report_error(ERR_MEMORY, NULL, "no memory for the list of segments");
    for (uint32_t i = 0; i < pool->count; i++)
        places[i].iov_len = pool->segment_bytes;
    int error = storage_register_buffers(pool->storage, places, pool->count);
    free(places);
    return error;
}

/* An allocation beyond the host's memory does not fail: the kernel kills a process. `bytes` of the
 * pool are not allocated yet. */
static int check_available(uint64_t pool_bytes, uint64_t bytes)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof line, file) &&
           sscanf(line, "MemAvailable: %llu kB", &kib) != 1)
        continue;
    if (file)
        fclose(file);
    if (kib == 0 || (bytes + ARENA_BESIDE_BYTES) / 1024 < kib) /* unknown: the kernel decides */
        return 0;
    return report_error(ERR_MEMORY, "lower memory.pool_bytes",
                        "a pool of %llu MiB, %llu of them still to be taken, does not fit into the "
                        "memory of this host: %llu MiB are available",
                        (unsigned long long)pool_bytes >> 20, (unsigned long long)bytes >> 20,
                        kib >> 10);
}

int pool_open(struct pool **out, uint64_t pool_bytes, uint64_t segment_bytes, bool huge,
              struct storage *storage)
{
    CHECK(segment_bytes > 0 && pool_bytes % segment_bytes == 0);
    ERR_TRY(check_available(pool_bytes, pool_bytes));
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return report_error(ERR_MEMORY, NULL, "no memory for the pool");
    pool->segment_bytes = segment_bytes;
    pool->huge = huge;
    pool->storage = storage;
    pool->segments = calloc(pool_bytes / segment_bytes, sizeof *pool->segments);
    int error = pool->segments ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the pool");
    for (uint64_t i = 0; i < pool_bytes / segment_bytes && error == 0; i++) {
        struct segment *segment = &pool->segments[i];
        *segment = (struct segment){.fd = -1, .fd_read_only = -1, .bare = true};
        pthread_mutex_init(&segment->lock, NULL);
        pool->count++;
        error = make_file(segment, segment_bytes, (uint32_t)i);
    }
    if (error == 0 && storage)
        error = register_places(pool);
    if (error != 0) {
        pool_close(pool);
        return error;
    }
    pool->num_free = pool->count;
    *out = pool;
    return 0;
}

void pool_close(struct pool *pool)
{
    if (!pool)
        return;
    for (uint32_t i = 0; i < pool->count; i++) {
        struct segment *segment = &pool->segments[i];
        if (segment->base)
            munmap(segment->base, pool->segment_bytes);
        close_files(segment);
        pthread_mutex_destroy(&segment->lock);
    }
    free(pool->segments);
    free(pool);
}

static bool same_owner(struct pool_owner a, struct pool_owner b)
{
    return a.run == b.run && a.attempt == b.attempt;
}

/* Was its memory allocated on another node, without a request for this one? */
static bool is_elsewhere(const struct segment *segment, uint32_t wanted)
{
    return wanted != 0 && wanted != segment->asked_for && wanted != segment->is_on &&
           segment->is_on != 0;
}

/* `stale` first: see clean_segment(). */
static void change_owner(struct segment *segment, struct pool_owner owner)
{
    segment->wanted = owner.memory_node;
    if (segment->owner.attempt != 0 && !same_owner(segment->owner, owner))
        segment->stale = true;
    if (segment->owner.run != 0 && segment->owner.run != owner.run)
        segment->dirty = true;
    segment->owner = owner;
}

/* Can `owner` use it as it is? */
static bool is_ready(const struct segment *segment, struct pool_owner owner)
{
    struct segment would = {.owner = segment->owner};
    change_owner(&would, owner);
    return !segment->bare && !segment->stale && !segment->dirty && !would.stale && !would.dirty &&
           !is_elsewhere(segment, owner.memory_node);
}

uint32_t pool_ready_for(const struct pool *pool, struct pool_owner owner)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < pool->count; i++)
        count += !pool->segments[i].lent && is_ready(&pool->segments[i], owner);
    return count;
}

int pool_take(struct pool *pool, uint32_t *out_segments, uint32_t count, struct pool_owner owner)
{
    if (count > pool->num_free)
        return report_error(ERR_BUSY, "enlarge memory.pool_bytes, or load and save less at once",
                            "%u segments were requested, %u of %u are free", count, pool->num_free,
                            pool->count);
    /* First round: segments that need no cleaning. */
    for (uint32_t taken = 0, checked = 0; taken < count;
         checked++, pool->next = (pool->next + 1) % pool->count) {
        struct segment *segment = &pool->segments[pool->next];
        CHECK(checked < 2 * pool->count);
        if (segment->lent || (checked < pool->count && !is_ready(segment, owner)))
            continue;
        segment->lent = true;
        change_owner(segment, owner);
        out_segments[taken++] = pool->next;
    }
    pool->num_free -= count;
    return 0;
}

void pool_give(struct pool *pool, const uint32_t *segments, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        CHECK(segments[i] < pool->count && pool->segments[segments[i]].lent);
        pool->segments[segments[i]].lent = false;
    }
    pool->num_free += count;
}

bool pool_is_dirty(const struct pool *pool, const uint32_t *segments, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct segment *segment = &pool->segments[segments[i]];
        if (segment->bare || segment->stale || segment->dirty ||
            is_elsewhere(segment, segment->wanted))
            return true;
    }
    return false;
}

static uint32_t index_of(const struct pool *pool, const struct segment *segment)
{
    return (uint32_t)(segment - pool->segments);
}

static void register_segment(struct pool *pool, const struct segment *segment)
{
    if (pool->storage)
        storage_replace_buffer(pool->storage, index_of(pool, segment),
                               &(struct iovec){segment->base, pool->segment_bytes});
}

/* Allocates the memory of a bare segment. The last one logs that the pool is full. */
static int fill_segment(struct pool *pool, struct segment *segment)
{
    uint32_t before = atomic_fetch_add(&pool->num_begun, 1);
    int error = check_available(pool->count * pool->segment_bytes,
                                (pool->count - before) * pool->segment_bytes);
    if (error == 0)
        error = take_memory(segment, pool->segment_bytes, index_of(pool, segment), pool->huge,
                            segment->wanted);
    if (error != 0) {
        atomic_fetch_sub(&pool->num_begun, 1);
        return error;
    }
    register_segment(pool, segment);
    pool->huge_bytes += segment->huge_bytes;
    if (atomic_fetch_add(&pool->num_ready, 1) + 1 == pool->count)
        log_info("memory", "took %llu MiB in %u segments, %llu MiB of it in pages of 2 MiB",
                 (unsigned long long)(pool->count * pool->segment_bytes) >> 20, pool->count,
                 (unsigned long long)pool->huge_bytes >> 20);
    return 0;
}

/* Makes a new file in the place of the old one, whose memory is freed first: the pool is a
 * budget. */
static int renew_segment(struct pool *pool, struct segment *segment)
{
    uint32_t index = index_of(pool, segment);
    struct segment fresh = {.fd = -1, .fd_read_only = -1, .base = segment->base};
    if (pool->storage)
        storage_replace_buffer(pool->storage, index, NULL);
    if (fallocate(segment->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                  (off_t)pool->segment_bytes) != 0)
        log_warn("memory",
                 "could not free a segment's memory, which its previous users still map: %s",
                 strerror(errno));
    int error = make_file(&fresh, pool->segment_bytes, index);
    if (error == 0)
        error = take_memory(&fresh, pool->segment_bytes, index, pool->huge, segment->wanted);
    if (error != 0) { /* stale as before; either file may be mapped */
        close_files(&fresh);
        return error;
    }
    register_segment(pool, segment);
    close_files(segment);
    pool->huge_bytes += fresh.huge_bytes - segment->huge_bytes;
    segment->fd = fresh.fd;
    segment->fd_read_only = fresh.fd_read_only;
    segment->huge_bytes = fresh.huge_bytes;
    segment->asked_for = fresh.asked_for;
    segment->is_on = fresh.is_on;
    segment->generation++;
    return 0;
}

/* Under its lock. While a mark is set the segment is not lent, so marks set meanwhile are void; a
 * bare one was never lent, whatever its other marks. Reads the marks in the reverse order of
 * change_owner(), so that a dirty one is known to be stale as well. */
static int clean_segment(struct pool *pool, struct segment *segment)
{
    bool dirty = segment->dirty, stale = segment->stale, bare = segment->bare;
    bool elsewhere = !bare && is_elsewhere(segment, segment->wanted);
    int error = 0;
    if (!dirty && !stale && !bare && !elsewhere)
        return 0; /* another worker was faster; it may be in use already */
    if (bare)
        error = fill_segment(pool, segment);
    else if (stale || elsewhere)
        error = renew_segment(pool, segment);
    else
        memset(segment->base, 0, pool->segment_bytes);
    if (error != 0)
        return error;
    segment->dirty = false;
    segment->stale = false;
    segment->bare = false;
    return 0;
}

int pool_clean(struct pool *pool, const uint32_t *segments, uint32_t count)
{
    int error = 0;
    for (uint32_t i = 0; i < count && error == 0; i++) {
        struct segment *segment = &pool->segments[segments[i]];
        pthread_mutex_lock(&segment->lock);
        error = clean_segment(pool, segment);
        pthread_mutex_unlock(&segment->lock);
    }
    return error;
}

bool pool_disown(struct pool *pool, struct pool_owner owner)
{
    bool any = false;
    for (uint32_t i = 0; i < pool->count; i++) {
        struct segment *segment = &pool->segments[i];
        if (!segment->lent && same_owner(segment->owner, owner))
            change_owner(segment, (struct pool_owner){.run = owner.run});
        any |= segment->stale;
    }
    return any;
}

/* Finds and locks the last bare or stale segment: first one that no other worker cleans, then any,
 * so that none is left at the end. */
static struct segment *lock_unclean(struct pool *pool, bool bare)
{
    for (int round = 0; round < 2; round++)
        for (uint32_t i = pool->count; i-- > 0;) {
            struct segment *segment = &pool->segments[i];
            if (bare ? !segment->bare : !segment->stale)
                continue;
            if (round > 0)
                pthread_mutex_lock(&segment->lock);
            else if (pthread_mutex_trylock(&segment->lock) != 0)
                continue;
            return segment;
        }
    return NULL;
}

int pool_renew(struct pool *pool, bool *out_more)
{
    struct segment *segment = lock_unclean(pool, true);
    if (!segment)
        segment = lock_unclean(pool, false);
    *out_more = false;
    if (!segment)
        return 0;
    bool bare = segment->bare;
    int error = clean_segment(pool, segment);
    pthread_mutex_unlock(&segment->lock);
    *out_more = error == 0;
    /* If a stale one fails, the next user of the segment tries again, and gets the error. */
    return bare ? error : 0;
}

uint64_t pool_segment_bytes(const struct pool *pool)
{
    return pool->segment_bytes;
}

uint64_t pool_huge_bytes(const struct pool *pool)
{
    return pool->huge_bytes;
}

uint32_t pool_size(const struct pool *pool)
{
    return pool->count;
}

uint32_t pool_ready_count(const struct pool *pool)
{
    return pool->num_ready;
}

uint32_t pool_free_count(const struct pool *pool)
{
    return pool->num_free;
}

uint8_t *pool_base(const struct pool *pool, uint32_t segment)
{
    CHECK(segment < pool->count);
    return pool->segments[segment].base;
}

void pool_generations(const struct pool *pool, uint32_t *out, const uint32_t *segments,
                      uint32_t count)
{
    CHECK(!pool_is_dirty(pool, segments, count));
    for (uint32_t i = 0; i < count; i++)
        out[i] = pool->segments[segments[i]].generation;
}

int pool_fd(const struct pool *pool, uint32_t segment)
{
    CHECK(segment < pool->count);
    return pool->segments[segment].fd;
}

int pool_fd_read_only(const struct pool *pool, uint32_t segment)
{
    CHECK(segment < pool->count);
    return pool->segments[segment].fd_read_only;
}
