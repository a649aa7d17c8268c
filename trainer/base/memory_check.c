/* memory_check.c - checks that memory suffices for a start's allocations (see memory_check.h).
 *
 * A GPU's memory of the plan is allocated at the start, that of libraries later. The check comes
 * first, so that the error text says how much is missing.
 *
 * Host memory of the plan is allocated page by page during training: without this check the kernel
 * kills a start that is too large in its first step. Memory that ckptd lends for images is counted
 * by ckptd. */
#include "trainer/base/memory_check.h"
#include "kernels/device.h"
#include "proto/base/process.h"
#include "proto/base/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES 4400
#define PARTS_NAMED 4u

static const double gib = 1 << 30;

/* The number after `name` in a file of "name number" lines, or the first number if there is no
 * name; 0: none, or "max". */
static uint64_t number_in(const char *path, const char *name)
{
    char line[256];
    uint64_t value = 0;
    FILE *file = fopen(path, "re");
    while (file != NULL && value == 0 && fgets(line, sizeof line, file) != NULL) {
        size_t length = strlen(name);
        if (strncmp(line, name, length) == 0)
            value = strtoull(line + length, NULL, 10);
    }
    if (file != NULL)
        fclose(file);
    return value;
}

struct group_files {
    const char *folder, *limit, *usage, *cache;
};
static const struct group_files versions[] = {
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file"},
    {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"},
};

/* The limit of one control group. */
static uint64_t limit_of_group(const struct group_files *files, const char *group)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", group, files->limit);
    uint64_t limit = number_in(path, "");
    return limit > 0 ? limit : UINT64_MAX;
}

/* The memory left in it. */
static uint64_t left_in_group(const struct group_files *files, const char *group)
{
    char path[PATH_BYTES + 64];
    uint64_t limit = limit_of_group(files, group);
    if (limit == UINT64_MAX)
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", group, files->usage);
    uint64_t usage = number_in(path, "");
    snprintf(path, sizeof path, "%s/memory.stat", group);
    uint64_t cache = number_in(path, files->cache); /* freed before a kill */
    usage -= cache < usage ? cache : usage;
    return limit > usage ? limit - usage : 0;
}

typedef uint64_t group_question(const struct group_files *files, const char *group);

/* The least value of a group and the groups above it. `path`: of the group, relative to its
 * folder. */
static uint64_t least_above(const char *root, const struct group_files *files, char *path,
                            group_question *ask)
{
    char group[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    for (;;) {
        snprintf(group, sizeof group, "%.1000s%s%.3000s", root, files->folder, path);
        uint64_t answer = ask(files, group);
        least = answer < least ? answer : least;
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return least;
        *slash = '\0';
    }
}

/* Handles a line of /proc/self/cgroup: "4:memory:/path", or "0::/path" of version 2. */
static uint64_t least_by_line(const char *root, char *line, group_question *ask)
{
    char *controllers = strchr(line, ':');
    char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (path == NULL)
        return UINT64_MAX;
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    if (strcmp(controllers, ":memory") == 0)
        return least_above(root, &versions[0], path, ask);
    return controllers[1] == '\0' ? least_above(root, &versions[1], path, ask) : UINT64_MAX;
}

static uint64_t least_of_groups(const char *root, group_question *ask)
{
    char path[PATH_BYTES], line[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    snprintf(path, sizeof path, "%.1000s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        uint64_t answer = least_by_line(root, line, ask);
        least = answer < least ? answer : least;
    }
    if (file != NULL)
        fclose(file);
    return least;
}

static uint64_t kib_in(const char *root, const char *file, const char *name)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%.1000s/proc/%s", root, file);
    return number_in(path, name) << 10;
}

uint64_t memory_check_available(const char *root)
{
    uint64_t machine = kib_in(root, "meminfo", "MemAvailable:");
    uint64_t groups = least_of_groups(root, left_in_group);
    if (machine == 0)
        return groups;
    machine += kib_in(root, "meminfo", "SwapFree:");
    return machine < groups ? machine : groups;
}

uint64_t memory_check_capacity(const char *root)
{
    uint64_t machine = kib_in(root, "meminfo", "MemTotal:");
    uint64_t groups = least_of_groups(root, limit_of_group);
    return machine > 0 && machine < groups ? machine : groups;
}

struct memory_check_taken memory_check_taken(const char *root)
{
    struct process_memory memory;
    process_measure(&memory, root);
    return (struct memory_check_taken){.peak = memory.peak,
                                       .own = memory.private_memory + memory.swapped};
}

void memory_check_forget_peak(const char *root)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%.1000s/proc/self/clear_refs", root);
    FILE *file = fopen(path, "we");
    if (file == NULL)
        return;
    fputc('5', file);
    fclose(file);
}

/* "logits 2.0 GiB, ..." per rank, the largest first. */
static void name_parts(char *out, size_t size, const struct memory *plan, bool is_on_host)
{
    struct memory_part parts[PARTS_NAMED];
    uint32_t num = memory_largest(plan, is_on_host, parts, PARTS_NAMED);
    size_t at = 0;
    for (uint32_t i = 0; i < num && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s %.2f GiB", i > 0 ? ", " : "",
                               parts[i].name, (double)parts[i].bytes / gib);
}

int memory_check(const struct memory_need *need, uint64_t available)
{
    char parts[256] = "", beside[64] = "";
    bool is_on_host = need->of == MEMORY_HOST_OF_GPU;
    uint64_t rank = is_on_host ? memory_host_bytes(need->plan)
                               : memory_kept_bytes(need->plan) + memory_shared_bytes(need->plan);
    uint64_t libraries = need->beside.once + need->beside.each * need->num_ranks;
    uint64_t all = rank * need->num_ranks + libraries;
    if (all <= available)
        return 0;
    name_parts(parts, sizeof parts, need->plan, is_on_host);
    if (libraries > 0)
        snprintf(beside, sizeof beside, " (about %.2f GiB for libraries and graphs)",
                 (double)libraries / gib);
    return report_error(
        ERR_INVALID,
        "use more machines or devices, or a smaller training.local_batch_size, seq_len or model; "
        "--estimate prints the whole plan",
        "%u ranks on this %s need %.2f GiB of memory%s, %.2f GiB are available; the largest "
        "parts of a rank's %.2f GiB: %s",
        need->num_ranks, need->of == MEMORY_GPU ? "GPU" : "machine", (double)all / gib, beside,
        (double)available / gib, (double)rank / gib, parts);
}

int memory_check_device(const struct memory *plan, const struct memory_beside *beside,
                        struct device *device, uint32_t num_threads)
{
    struct device_room room;
    ERR_TRY(device_room(device, &room));
    if (room.all == 0)
        return 0;
    uint32_t ranks = (num_threads + room.devices - 1) / room.devices;
    struct memory_need need = {
        .plan = plan, .of = MEMORY_GPU, .num_ranks = ranks, .beside = *beside};
    return memory_check(&need, room.free);
}
