/* room.c - is there memory for what a start is going to allocate (see room.h)?
 *
 * Of a GPU all is taken at the start: the question is asked first, so that who does not fit is told
 * by how much.
 *
 * Memory of the plan is taken page by page while training runs: without this question a start that
 * is too large is killed in its first step. What ckptd lends for images is ckptd's, and counted by
 * it. */
#include "trainer/room.h"
#include "kernels/device.h"
#include "proto/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES 4400
#define PARTS_NAMED 4u

static const double gib = 1 << 30;

/* The number behind `name` in a file of "name number" lines, or the first number without a name; 0:
 * there is none, or it is "max". */
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

/* What one control group leaves. */
static uint64_t left_in_group(const struct group_files *files, const char *group)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", group, files->limit);
    uint64_t limit = number_in(path, "");
    if (limit == 0)
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", group, files->usage);
    uint64_t usage = number_in(path, "");
    snprintf(path, sizeof path, "%s/memory.stat", group);
    uint64_t cache = number_in(path, files->cache); /* given back before anybody is killed */
    usage -= cache < usage ? cache : usage;
    return limit > usage ? limit - usage : 0;
}

/* The least that a group or one above it leaves. `path`: of the group below its folder. */
static uint64_t left_above(const char *root, const struct group_files *files, char *path)
{
    char group[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    for (;;) {
        snprintf(group, sizeof group, "%.1000s%s%.3000s", root, files->folder, path);
        uint64_t left = left_in_group(files, group);
        least = left < least ? left : least;
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return least;
        *slash = '\0';
    }
}

/* A line of /proc/self/cgroup: "4:memory:/path", or "0::/path" of version 2. */
static uint64_t left_by_line(const char *root, char *line)
{
    char *controllers = strchr(line, ':');
    char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (path == NULL)
        return UINT64_MAX;
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    if (strcmp(controllers, ":memory") == 0)
        return left_above(root, &versions[0], path);
    return controllers[1] == '\0' ? left_above(root, &versions[1], path) : UINT64_MAX;
}

uint64_t room_available(const char *root)
{
    char path[PATH_BYTES], line[PATH_BYTES];
    snprintf(path, sizeof path, "%.1000s/proc/meminfo", root);
    uint64_t kib = number_in(path, "MemAvailable:"), least = UINT64_MAX;
    if (kib > 0)
        least = (kib + number_in(path, "SwapFree:")) << 10;
    snprintf(path, sizeof path, "%.1000s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        uint64_t left = left_by_line(root, line);
        least = left < least ? left : least;
    }
    if (file != NULL)
        fclose(file);
    return least;
}

/* "logits 2.0 GiB, ..." of a rank, the largest first. */
static void name_parts(char *out, size_t size, const struct memory *plan)
{
    struct memory_part parts[PARTS_NAMED];
    uint32_t num = memory_largest(plan, parts, PARTS_NAMED);
    size_t at = 0;
    for (uint32_t i = 0; i < num && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s %.2f GiB", i > 0 ? ", " : "",
                               parts[i].name, (double)parts[i].bytes / gib);
}

int room_check(const struct memory *plan, const char *what, uint32_t num_ranks, uint64_t available)
{
    char parts[256] = "";
    uint64_t rank = memory_kept_bytes(plan) + memory_shared_bytes(plan), all = rank * num_ranks;
    if (all <= available)
        return 0;
    name_parts(parts, sizeof parts, plan);
    return report_error(
        ERR_INVALID,
        "use more machines or devices, or a smaller training.local_batch_size, seq_len or model; "
        "--estimate prints the whole plan",
        "%u ranks on this %s need %.2f GiB of memory, %.2f GiB are available; the largest "
        "parts of a rank's %.2f GiB: %s",
        num_ranks, what, (double)all / gib, (double)available / gib, (double)rank / gib, parts);
}

int room_check_device(const struct memory *plan, struct device *device, uint32_t num_threads)
{
    struct device_room room;
    ERR_TRY(device_room(device, &room));
    if (room.all == 0)
        return 0;
    uint32_t ranks = (num_threads + room.devices - 1) / room.devices;
    return room_check(plan, "GPU", ranks, room.free);
}
