/* priority.c - I/O priorities of writes: their names, and what a disk's scheduler makes of them.
 *
 * The kernel carries a priority with each request (io_uring) or takes that of the thread (pwrite);
 * whether it means anything is decided by the scheduler of the block device. Writes through the
 * page cache reach the disk by threads of the kernel and have none. */
#include "storage/engine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/ioprio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

int storage_io_priority_parse(uint16_t *out, const char *text)
{
    static const char best_effort[] = "best-effort:";
    size_t length = sizeof(best_effort) - 1;
    *out = 0;
    if (strcmp(text, "none") == 0)
        return 0;
    if (strcmp(text, "idle") == 0) {
        *out = IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0);
        return 0;
    }
    if (strncmp(text, best_effort, length) == 0 && text[length] >= '0' && text[length] <= '7' &&
        text[length + 1] == '\0') {
        *out = (uint16_t)IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, text[length] - '0');
        return 0;
    }
    return report_error(ERR_INVALID, "write none, idle or best-effort:0 to best-effort:7",
                        "\"%s\" is not an I/O priority", text);
}

void engine_thread_priority(uint16_t priority)
{
    static _Thread_local uint16_t current;
    if (priority != current && syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, priority) == 0)
        current = priority;
}

/* The scheduler that is chosen, between brackets in "none [mq-deadline] kyber". A partition's is
 * its disk's. */
static bool read_scheduler(char *out, size_t size, dev_t device)
{
    static const char *const places[] = {"queue/scheduler", "../queue/scheduler"};
    char path[96], text[128];
    ssize_t bytes = -1;
    for (size_t i = 0; i < 2 && bytes < 0; i++) {
        snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s", major(device), minor(device),
                 places[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        bytes = read(fd, text, sizeof(text) - 1);
        close(fd);
    }
    if (bytes < 0)
        return false;
    text[bytes] = '\0';
    char *start = strchr(text, '['), *end = start != NULL ? strchr(start, ']') : NULL;
    if (end != NULL)
        *end = '\0';
    snprintf(out, size, "%s", end != NULL ? start + 1 : "none");
    return true;
}

void engine_priority_describe(char *out, size_t size, int fd, uint16_t priority)
{
    char scheduler[32];
    struct stat status;
    out[0] = '\0';
    if (priority == 0)
        return;
    bool is_known =
        fstat(fd, &status) == 0 && read_scheduler(scheduler, sizeof(scheduler), status.st_dev);
    if (!is_known)
        snprintf(out, size, ", writes with an I/O priority (whether it matters is not known here)");
    else
        snprintf(out, size, ", writes with an I/O priority (the scheduler %s %s)", scheduler,
                 strcmp(scheduler, "bfq") == 0           ? "honours it"
                 : strcmp(scheduler, "mq-deadline") == 0 ? "honours its class"
                                                         : "ignores it");
}
