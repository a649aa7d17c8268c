/* processes.c - bytes between the simulated GPUs of several processes: files of one folder.
 *
 * With the setting `folder` bytes for another process are a file there, which that process removes.
 * It is written under another name, so it is whole when it is visible.
 *
 * Between threads an operation runs when a thread waits for it, or for an operation that needs it.
 * The waits of another process are unknown here, so a thread runs all runnable operations every
 * millisecond. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/report.h"
#include "tests/simgpu/private.h"

#define PATH_BYTES 512
#define TURN_NS 1000000

bool simgpu_has_processes(void)
{
    return simgpu.folder[0] != '\0';
}

static void path_of(char out[PATH_BYTES], const char *name, const char *end)
{
    CHECK(snprintf(out, PATH_BYTES, "%s/%s%s", simgpu.folder, name, end) < PATH_BYTES);
}

void simgpu_post_part(const char *name, const void *data, size_t bytes)
{
    char path[PATH_BYTES], making[PATH_BYTES];
    path_of(path, name, "");
    path_of(making, name, ".new");
    FILE *file = fopen(making, "wb");
    CHECK(file != NULL && fwrite(data, 1, bytes, file) == bytes);
    CHECK(fclose(file) == 0 && rename(making, path) == 0);
}

bool simgpu_has_part(const char *name)
{
    char path[PATH_BYTES];
    path_of(path, name, "");
    return access(path, F_OK) == 0;
}

bool simgpu_take_part(const char *name, void *to, size_t bytes)
{
    char path[PATH_BYTES];
    struct stat what;
    path_of(path, name, "");
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL && fstat(fileno(file), &what) == 0);
    bool is_well = (size_t)what.st_size == bytes && fread(to, 1, bytes, file) == bytes;
    fclose(file);
    unlink(path);
    return is_well;
}

/* ---- GPUs that get on by themselves ---- */

static void *get_on(void *argument)
{
    (void)argument;
    for (;;) {
        nanosleep(&(struct timespec){.tv_nsec = TURN_NS}, NULL);
        pthread_mutex_lock(&simgpu.lock);
        for (int device = 0; device < simgpu.num_devices; device++)
            while (simgpu_run_any(device)) {
            }
        simgpu_unlock();
    }
    return NULL;
}

void simgpu_begin_processes(const char *folder)
{
    sigset_t all, before;
    pthread_t thread;
    bool is_first = simgpu.folder[0] == '\0';
    CHECK(snprintf(simgpu.folder, sizeof(simgpu.folder), "%s", folder) > 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    CHECK(!is_first || pthread_create(&thread, NULL, get_on, NULL) == 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
