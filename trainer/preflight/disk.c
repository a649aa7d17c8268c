/* disk.c - measures a host's disk with ckptd's writes (see preflight.h, debug.preflight_folder).
 *
 * `ckpt-cli bench io` writes as ckptd does, with ckptd's storage code. If fio is installed, it
 * writes too, with the same blocks and number of requests. This distinguishes a slow disk from slow
 * code of Holdfast. Both remove their files. */
#include "proto/base/json.h"
#include "trainer/preflight/private.h"
#include "trainer/save/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_BYTES (256u << 10)
#define WRITTEN_MIB "256"
#define SECONDS_MAX "2" /* of the writes, and of the reads */

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

static void read_all(char *out, int from)
{
    size_t at = 0;
    ssize_t length;
    while ((length = read(from, out + at, OUTPUT_BYTES - 1 - at)) > 0)
        at += (size_t)length;
    out[at] = '\0';
}

/* The JSON object that the program prints; NULL: the program is missing, or failed. */
static json_t *run_for_json(const char *const *argv)
{
    int ends[2], status = 0;
    pid_t child;
    char *text = malloc(OUTPUT_BYTES);
    json_t *json = NULL;
    if (text == NULL || pipe2(ends, O_CLOEXEC) != 0) {
        free(text);
        return NULL;
    }
    bool is_started = spawn(&child, argv, ends) == 0;
    close(ends[1]);
    if (is_started)
        read_all(text, ends[0]);
    close(ends[0]);
    while (is_started && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    const char *begin = is_started && status == 0 ? strchr(text, '{') : NULL;
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
static double measure_with_fio(const char *folder, const json_t *ours)
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
    json_t *said = run_for_json(argv);
    double rate = number_at(json_array_get(json_object_get(said, "jobs"), 0), "write.bw_bytes");
    json_decref(said);
    return rate;
}

void disk_measure(struct disk_facts *out, const char *folder)
{
    char program[PATH_MAX];
    tool_find(program);
    const char *const argv[] = {program,           "bench",  "io",        folder,   "--bytes",
                                WRITTEN_MIB "MiB", "--time", SECONDS_MAX, "--json", NULL};
    json_t *said = run_for_json(argv);
    *out = (struct disk_facts){.has_failed = said == NULL,
                               .write = number_at(said, "write.bytes_per_second"),
                               .durable = number_at(said, "durable_bytes_per_second"),
                               .read = number_at(said, "read.bytes_per_second")};
    if (said != NULL)
        out->fio_write = measure_with_fio(folder, said);
    json_decref(said);
}
