/* disk.c - measures a host's disk with ckptd's writes (see preflight.h, debug.preflight_folder).
 *
 * `ckpt-cli bench io` writes as ckptd does, with ckptd's storage code. If fio is installed, it
 * writes too, with the same blocks and number of requests. This distinguishes a slow disk from slow
 * code of Holdfast. Both remove their files. A stuck disk stops neither the preflight nor its other
 * hosts: a program that does not end in time is killed, and left if the kernel keeps it. */
#include "proto/base/clock.h"
#include "proto/base/json.h"
#include "trainer/preflight/private.h"
#include "trainer/save/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_BYTES (256u << 10)
#define WRITTEN_MIB "256"
#define SECONDS_MAX "2" /* of the writes, and of the reads */
#define KILLED_MS 2000  /* a killed program that stays longer is stuck in the kernel */

extern char **environ;

/* Starts the program with its stdout in the pipe. The trainer blocks signals, the child does
 * not. */
static int spawn(pid_t *child, const char *const *argv, const int *ends)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    int error =
        posix_spawnp(child, argv[0], &actions, &attributes, (char **)(uintptr_t)argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* Reads until the end of the output. Returns false if that did not come until then. */
static bool read_all(char *out, int from, int64_t until_ms)
{
    struct pollfd waited = {.fd = from, .events = POLLIN};
    size_t at = 0;
    ssize_t length = 1;
    while (length > 0) {
        int64_t left = until_ms - clock_ms();
        int ready = left > 0 ? poll(&waited, 1, (int)left) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            break;
        length = read(from, out + at, OUTPUT_BYTES - 1 - at);
        at += length > 0 ? (size_t)length : 0;
    }
    out[at] = '\0';
    return length == 0;
}

/* Waits for its end until then. Returns false if it still runs. */
static bool has_ended(pid_t child, int64_t until_ms, int *out_status)
{
    pid_t ended;
    while ((ended = waitpid(child, out_status, WNOHANG)) == 0 && clock_ms() < until_ms)
        clock_sleep_ms(10);
    return ended != 0;
}

/* Returns true if the program ended by itself with 0 within the time. */
static bool collect(char *out, pid_t child, int from, int64_t limit_ms)
{
    int64_t until_ms = clock_ms() + limit_ms;
    int status = -1;
    if (read_all(out, from, until_ms) && has_ended(child, until_ms, &status))
        return status == 0;
    kill(child, SIGKILL);
    (void)has_ended(child, clock_ms() + KILLED_MS, &status);
    return false;
}

/* The JSON object that the program prints; NULL: the program is missing, failed, or took longer
 * than that. */
static json_t *run_for_json(const char *const *argv, int64_t limit_ms)
{
    int ends[2];
    pid_t child;
    char *text = malloc(OUTPUT_BYTES);
    json_t *json = NULL;
    if (text == NULL || pipe2(ends, O_CLOEXEC) != 0) {
        free(text);
        return NULL;
    }
    bool is_started = spawn(&child, argv, ends) == 0;
    close(ends[1]);
    bool is_done = is_started && collect(text, child, ends[0], limit_ms);
    close(ends[0]);
    const char *begin = is_done ? strchr(text, '{') : NULL;
    if (begin != NULL)
        json = json_loads(begin, JSON_DISABLE_EOF_CHECK, NULL);
    free(text);
    return json;
}

static double number_at(const json_t *json, const char *path)
{
    return json_number_value(json_at(json, path));
}

/* 0: fio is missing, or failed. */
static double measure_with_fio(const char *folder, const json_t *ours, int64_t limit_ms)
{
    char directory[CONFIG_TEXT_MAX + 16], block[48], depth[48];
    snprintf(directory, sizeof directory, "--directory=%s", folder);
    snprintf(block, sizeof block, "--bs=%.0f", number_at(ours, "block_bytes"));
    snprintf(depth, sizeof depth, "--iodepth=%.0f", number_at(ours, "depth"));
    const char *const argv[] = {"fio",
                                "--name=holdfast",
                                directory,
                                block,
                                depth,
                                "--filename=.holdfast.fio",
                                "--rw=write",
                                "--size=" WRITTEN_MIB "m",
                                "--runtime=" SECONDS_MAX,
                                "--ioengine=libaio",
                                "--direct=1",
                                "--end_fsync=1",
                                "--unlink=1",
                                "--output-format=json",
                                NULL};
    json_t *said = run_for_json(argv, limit_ms);
    double rate = number_at(json_array_get(json_object_get(said, "jobs"), 0), "write.bw_bytes");
    json_decref(said);
    return rate;
}

void disk_measure(struct disk_facts *out, const char *folder, int64_t limit_ms)
{
    char program[PATH_MAX];
    tool_find(program);
    const char *const argv[] = {program,           "bench",  "io",        folder,   "--bytes",
                                WRITTEN_MIB "MiB", "--time", SECONDS_MAX, "--json", NULL};
    int64_t began = clock_ms();
    json_t *said = run_for_json(argv, limit_ms);
    *out = (struct disk_facts){.has_failed = said == NULL,
                               .is_stuck = said == NULL && clock_ms() - began >= limit_ms,
                               .write = number_at(said, "write.bytes_per_second"),
                               .durable = number_at(said, "durable_bytes_per_second"),
                               .read = number_at(said, "read.bytes_per_second")};
    if (said != NULL)
        out->fio_write = measure_with_fio(folder, said, limit_ms);
    json_decref(said);
}
