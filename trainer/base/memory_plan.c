/* memory_plan.c - the static memory plan (see memory_plan.h).
 *
 * Time counts takes and gives of the dry run. A buffer has a life [birth, death) for each take.
 * Placement is greedy by size: the largest first, each at the lowest offset without an overlap with
 * a placed buffer that lives at the same time. Three areas are allocated: for kept buffers, for
 * buffers that the step shares, and for buffers kept on the host.
 *
 * Guarantees: two buffers whose lives meet never overlap (asserted after placing); take() after the
 * recording asserts name, index and size, so a step that differs from the dry run stops at once. */
#include "trainer/base/memory_plan.h"
#include "kernels/device.h"
#include "proto/base/array.h"
#include "proto/base/report.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TIME_NEVER UINT64_MAX

struct life {
    uint64_t birth, death;
};

struct buffer {
    const char *name;
    uint32_t index;
    size_t bytes;       /* rounded up to MEMORY_ALIGN */
    struct life *lives; /* one after the other */
    uint32_t num_lives, lives_capacity;
    uint64_t offset; /* in its area */
    bool is_taken, is_on_host;
};

enum area_kind { AREA_KEPT, AREA_SHARED, AREA_HOST, NUM_AREAS };
struct area {
    char *at;
    uint64_t bytes;
};

struct memory {
    struct buffer *buffers;
    uint32_t num_buffers, capacity;
    uint32_t *places; /* [2 x capacity] hash table: 1 + a buffer's number, or 0 */
    uint64_t time;
    struct area areas[NUM_AREAS];
    struct device *device; /* whose memory they are; NULL: the host's */
    bool is_placed, is_full, is_short, is_there;
};

int memory_new(struct memory **out)
{
    *out = calloc(1, sizeof(**out));
    return *out != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the memory plan");
}

static void release(const struct memory *memory, const struct area *area)
{
    if (memory->device != NULL)
        device_free(memory->device, area->at);
    else if (area->at != NULL)
        munmap(area->at, area->bytes);
}

void memory_free(struct memory *memory)
{
    if (memory == NULL)
        return;
    for (uint32_t i = 0; i < NUM_AREAS; i++)
        release(memory, &memory->areas[i]);
    for (uint32_t i = 0; i < memory->num_buffers; i++)
        free(memory->buffers[i].lives);
    free(memory->buffers);
    free(memory->places);
    free(memory);
}

/* The slot of a buffer in the table, or a free one: the first from its hash (FNV-1a) on. */
static uint32_t *place_of(const struct memory *memory, const char *name, uint32_t index)
{
    uint32_t hash = 2166136261u ^ index, mask = 2 * memory->capacity - 1;
    for (const char *at = name; *at != '\0'; at++)
        hash = (hash ^ (uint8_t)*at) * 16777619u;
    for (uint32_t i = hash ^ hash >> 15;; i++) {
        uint32_t *place = &memory->places[i & mask];
        const struct buffer *b = &memory->buffers[*place - (*place > 0)];
        bool is_it =
            *place > 0 && b->index == index && (b->name == name || strcmp(b->name, name) == 0);
        if (is_it || *place == 0)
            return place;
    }
}

static struct buffer *find(const struct memory *memory, const char *name, uint32_t index)
{
    uint32_t place = memory->capacity > 0 ? *place_of(memory, name, index) : 0;
    return place > 0 ? &memory->buffers[place - 1] : NULL;
}

static bool is_kept(const struct buffer *b)
{
    return b->num_lives > 0 && b->lives[b->num_lives - 1].death == TIME_NEVER;
}

static enum area_kind area_of(const struct buffer *b)
{
    return b->is_on_host ? AREA_HOST : is_kept(b) ? AREA_KEPT : AREA_SHARED;
}

static void begin_life(struct memory *memory, struct buffer *b)
{
    if (array_reserve(&b->lives, &b->lives_capacity, b->num_lives, sizeof(*b->lives)) != 0) {
        memory->is_short = true; /* memory_place reports it */
        return;
    }
    b->lives[b->num_lives++] = (struct life){memory->time++, TIME_NEVER};
}

/* Makes room for one more buffer; false: no memory. */
static bool grow(struct memory *memory)
{
    uint32_t capacity = memory->capacity == 0 ? 256 : 2 * memory->capacity;
    if (memory->num_buffers < memory->capacity)
        return true;
    if (capacity > MEMORY_BUFFERS_MAX)
        return false;
    struct buffer *grown = realloc(memory->buffers, capacity * sizeof(*grown));
    if (grown == NULL)
        return false;
    memory->buffers = grown;
    uint32_t *places = calloc(2 * (size_t)capacity, sizeof(*places));
    if (places == NULL)
        return false;
    free(memory->places);
    memory->places = places;
    memory->capacity = capacity;
    for (uint32_t i = 0; i < memory->num_buffers; i++)
        *place_of(memory, grown[i].name, grown[i].index) = i + 1;
    return true;
}

static struct buffer *record(struct memory *memory, const char *name, uint32_t index, size_t bytes)
{
    if (!grow(memory)) {
        memory->is_full = true; /* memory_place reports it */
        return NULL;
    }
    struct buffer *b = &memory->buffers[memory->num_buffers];
    *place_of(memory, name, index) = ++memory->num_buffers;
    *b = (struct buffer){.name = name, .index = index, .bytes = bytes};
    return b;
}

void *memory_take(struct memory *memory, const char *name, uint32_t index, size_t bytes)
{
    size_t rounded = (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
    struct buffer *b = find(memory, name, index);
    if (!memory->is_placed) {
        CHECK(b == NULL || (!b->is_taken && b->bytes == rounded));
        if (b == NULL)
            b = record(memory, name, index, rounded);
        if (b != NULL) {
            b->is_taken = true;
            begin_life(memory, b);
        }
        return NULL;
    }
    CHECK(b != NULL && b->bytes == rounded);
    CHECK(!b->is_taken || is_kept(b));
    b->is_taken = true;
    if (rounded == 0 || !memory->is_there)
        return NULL;
    return memory->areas[area_of(b)].at + b->offset;
}

void *memory_take_on_host(struct memory *memory, const char *name, uint32_t index, size_t bytes)
{
    void *at = memory_take(memory, name, index, bytes);
    struct buffer *b = find(memory, name, index);
    if (b != NULL && !memory->is_placed)
        b->is_on_host = true;
    return at;
}

void memory_give(struct memory *memory, const char *name, uint32_t index)
{
    struct buffer *b = find(memory, name, index);
    CHECK(memory->is_full || (b != NULL && b->is_taken && !b->is_on_host));
    if (b == NULL)
        return;
    b->is_taken = false;
    if (!memory->is_placed && b->num_lives > 0)
        b->lives[b->num_lives - 1].death = memory->time++;
}

/* ---- placing ---- */

static int by_size(const void *a, const void *b)
{
    const struct buffer *x = *(struct buffer *const *)a, *y = *(struct buffer *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->lives[0].birth < y->lives[0].birth ? -1 : 1;
}

static bool lives_meet(const struct buffer *a, const struct buffer *b)
{
    for (uint32_t i = 0, j = 0; i < a->num_lives && j < b->num_lives;) {
        if (a->lives[i].birth < b->lives[j].death && b->lives[j].birth < a->lives[i].death)
            return true;
        if (a->lives[i].death < b->lives[j].death)
            i++;
        else
            j++;
    }
    return false;
}

static bool places_meet(const struct buffer *a, const struct buffer *b)
{
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* The index in placed[count], sorted by offset, of a buffer with this offset. */
static uint32_t place_in_order(struct buffer *const *placed, uint32_t count, uint64_t offset)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (placed[middle]->offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Places a buffer at the lowest offset in a gap between placed buffers that live at the same
 * time. */
static void place_one(struct buffer **placed, uint32_t count, struct buffer *b)
{
    b->offset = 0;
    for (uint32_t i = 0; i < count && b->offset + b->bytes > placed[i]->offset; i++) {
        uint64_t end = placed[i]->offset + placed[i]->bytes;
        if (end > b->offset && lives_meet(placed[i], b))
            b->offset = end;
    }
    uint32_t at = place_in_order(placed, count, b->offset);
    memmove(&placed[at + 1], &placed[at], (count - at) * sizeof(struct buffer *));
    placed[at] = b;
}

static void check_places(struct buffer *const *placed, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        CHECK(placed[i - 1]->offset <= placed[i]->offset);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = i + 1; j < count && places_meet(placed[i], placed[j]); j++)
            CHECK(!lives_meet(placed[i], placed[j]));
}

int memory_place(struct memory *memory)
{
    if (memory->is_full)
        return report_error(ERR_MEMORY, "the model has too many layers for one rank",
                            "the memory plan has more than %u buffers", MEMORY_BUFFERS_MAX);
    struct buffer **order = calloc(2 * (memory->num_buffers + 1u), sizeof(*order));
    if (order == NULL || memory->is_short) {
        free(order);
        return report_error(ERR_MEMORY, NULL, "no memory for the memory plan");
    }
    struct buffer **placed = order + memory->num_buffers;
    uint32_t count = 0;
    for (uint32_t i = 0; i < memory->num_buffers; i++) {
        struct buffer *b = &memory->buffers[i];
        if (is_kept(b)) {
            struct area *area = &memory->areas[area_of(b)];
            b->offset = area->bytes;
            area->bytes += b->bytes;
        } else if (b->bytes > 0) {
            order[count++] = b;
        }
    }
    qsort(order, count, sizeof(*order), by_size);
    uint64_t *shared = &memory->areas[AREA_SHARED].bytes;
    for (uint32_t i = 0; i < count; i++) {
        place_one(placed, i, order[i]);
        uint64_t end = order[i]->offset + order[i]->bytes;
        *shared = end > *shared ? end : *shared;
    }
    check_places(placed, count);
    free(order);
    memory->is_placed = true;
    return 0;
}

static int allocate(struct memory *memory, struct area *area, enum device_memory where)
{
    void *data = NULL;
    if (area->bytes == 0)
        return 0;
    if (memory->device != NULL) {
        ERR_TRY(device_alloc(memory->device, &data, area->bytes, where));
        area->at = data;
        return 0;
    }
    data = mmap(NULL, area->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return report_error(ERR_MEMORY, "use more ranks, or a smaller training.local_batch_size",
                            "could not allocate %llu bytes", (unsigned long long)area->bytes);
    madvise(data, area->bytes, MADV_HUGEPAGE); /* fewer page faults where the kernel grants it */
    area->at = data;
    return 0;
}

int memory_commit(struct memory *memory, struct device *device)
{
    CHECK(memory->is_placed && !memory->is_there);
    memory->device = device;
    for (uint32_t i = 0; i < NUM_AREAS; i++)
        ERR_TRY(allocate(memory, &memory->areas[i], i == AREA_HOST ? PINNED : ON_DEVICE));
    memory->is_there = true;
    return 0;
}

bool memory_is_recording(const struct memory *memory)
{
    return !memory->is_placed;
}

/* ---- the table ---- */

uint64_t memory_kept_bytes(const struct memory *memory)
{
    return memory->areas[AREA_KEPT].bytes;
}
uint64_t memory_shared_bytes(const struct memory *memory)
{
    return memory->areas[AREA_SHARED].bytes;
}
uint64_t memory_host_bytes(const struct memory *memory)
{
    return memory->areas[AREA_HOST].bytes;
}

uint64_t memory_unshared_bytes(const struct memory *memory)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < memory->num_buffers; i++)
        sum += is_kept(&memory->buffers[i]) ? 0 : memory->buffers[i].bytes;
    return sum;
}

static bool is_first_of_name(const struct memory *memory, uint32_t i)
{
    for (uint32_t j = 0; j < i; j++)
        if (strcmp(memory->buffers[j].name, memory->buffers[i].name) == 0)
            return false;
    return true;
}

/* All buffers with the name of buffer `first`. */
static struct memory_part part_of(const struct memory *memory, uint32_t first, uint32_t *out_count)
{
    struct memory_part part = {.name = memory->buffers[first].name};
    *out_count = 0;
    for (uint32_t i = first; i < memory->num_buffers; i++) {
        if (strcmp(memory->buffers[i].name, part.name) != 0)
            continue;
        part.bytes += memory->buffers[i].bytes;
        (*out_count)++;
    }
    return part;
}

/* The most memory that buffers of this name use at a time. */
static uint64_t peak_of(const struct memory *memory, uint32_t first)
{
    uint64_t peak = 0;
    for (uint32_t i = first; i < memory->num_buffers; i++) {
        const struct buffer *at = &memory->buffers[i];
        uint64_t live = 0;
        if (strcmp(at->name, memory->buffers[first].name) != 0 || at->num_lives == 0)
            continue;
        struct life birth = {at->lives[0].birth, at->lives[0].birth + 1};
        struct buffer now = {.lives = &birth, .num_lives = 1};
        for (uint32_t j = first; j < memory->num_buffers; j++) {
            const struct buffer *b = &memory->buffers[j];
            bool is_same = strcmp(b->name, memory->buffers[first].name) == 0;
            if (is_same && (is_kept(b) || lives_meet(b, &now)))
                live += b->bytes;
        }
        peak = live > peak ? live : peak;
    }
    return peak;
}

uint32_t memory_largest(const struct memory *memory, bool is_on_host, struct memory_part *out,
                        uint32_t most)
{
    uint32_t num = 0;
    for (uint32_t i = 0; i < memory->num_buffers; i++) {
        if (!is_first_of_name(memory, i) || memory->buffers[i].is_on_host != is_on_host)
            continue;
        struct memory_part part = {memory->buffers[i].name, peak_of(memory, i)};
        uint32_t at = num < most ? num++ : most;
        for (; at > 0 && out[at - 1].bytes < part.bytes; at--)
            if (at < most)
                out[at] = out[at - 1];
        if (at < most)
            out[at] = part;
    }
    return num;
}

uint64_t memory_peak(const struct memory *memory, bool (*wants)(const char *name, const void *user),
                     const void *user)
{
    /* Bytes taken and given back at each time of the recording; modulo 2^64. */
    uint64_t *change = calloc(memory->time + 1, sizeof(*change)), kept = 0, now = 0, peak = 0;
    if (change == NULL)
        return UINT64_MAX;
    for (uint32_t i = 0; i < memory->num_buffers; i++) {
        const struct buffer *b = &memory->buffers[i];
        if (!wants(b->name, user))
            continue;
        kept += is_kept(b) ? b->bytes : 0;
        for (uint32_t life = 0; life < b->num_lives && !is_kept(b); life++) {
            change[b->lives[life].birth] += b->bytes;
            change[b->lives[life].death] -= b->bytes;
        }
    }
    for (uint64_t t = 0; t < memory->time; t++) {
        now += change[t];
        peak = now > peak ? now : peak;
    }
    free(change);
    return kept + peak;
}

void memory_print(const struct memory *memory, FILE *out)
{
    const double mib = 1 << 20;
    fprintf(out, "%-28s %7s %12s  %s\n", "buffer", "count", "MiB", "lives");
    for (uint32_t i = 0; i < memory->num_buffers; i++) {
        if (!is_first_of_name(memory, i))
            continue;
        uint32_t count;
        struct memory_part part = part_of(memory, i, &count);
        fprintf(out, "%-28s %7u %12.2f  %s\n", part.name, count, (double)part.bytes / mib,
                memory->buffers[i].is_on_host  ? "whole run, on the host"
                : is_kept(&memory->buffers[i]) ? "whole run"
                                               : "in the step");
    }
    const struct area *kept = &memory->areas[AREA_KEPT], *shared = &memory->areas[AREA_SHARED];
    fprintf(out, "%-28s %7s %12.2f  fixed addresses\n", "kept for the whole run", "",
            (double)kept->bytes / mib);
    fprintf(out, "%-28s %7s %12.2f  of %.2f unshared\n", "shared within the step", "",
            (double)shared->bytes / mib, (double)memory_unshared_bytes(memory) / mib);
    fprintf(out, "%-28s %7s %12.2f\n", "per rank", "", (double)(kept->bytes + shared->bytes) / mib);
    if (memory->areas[AREA_HOST].bytes > 0)
        fprintf(out, "%-28s %7s %12.2f  on the host\n", "per rank", "",
                (double)memory->areas[AREA_HOST].bytes / mib);
}
