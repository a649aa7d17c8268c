/* clients_bed.c - see clients_bed.h: the ckptd, and saves and loads with it. */
#include "tests/unit/clients_bed.h"

#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>

void start_ckptd(struct bed *bed)
{
    char program[512];
    const char *build = getenv("BUILD");
    bool has_faults =
        strncmp(bed->store, "fault:", 6) == 0; /* only the tests' ckptd supports them */
    snprintf(program, sizeof program, "%s/%s", build != NULL ? build : "build",
             has_faults ? "tests/ckptd" : "ckptd");
    char *argv[] = {program,
                    "--listen",
                    bed->server,
                    "--store",
                    bed->store,
                    "--memory.pool_bytes",
                    (char *)(uintptr_t)bed->pool,
                    "--limits.takeover_ms",
                    "0", /* a start ends the one before at once */
                    "--memory.segment_bytes",
                    "1MiB",
                    bed->config[0] != '\0' ? "--config" : NULL,
                    bed->config,
                    NULL};
    char log[260];
    posix_spawn_file_actions_t actions;
    snprintf(log, sizeof log, "%s/ckptd.log", bed->root);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    assert_int_equal(posix_spawn(&bed->ckptd, program, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
}

int end_process(pid_t *pid, int signal)
{
    int status;
    if (*pid <= 0)
        return -1;
    kill(*pid, signal);
    while (waitpid(*pid, &status, 0) < 0 && errno == EINTR)
        continue;
    *pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool stop_ckptd(const struct bed *bed)
{
    int status;
    return kill(bed->ckptd, SIGSTOP) == 0 && waitpid(bed->ckptd, &status, WUNTRACED) > 0 &&
           WIFSTOPPED(status);
}

int end_ckptd(struct bed *bed)
{
    if (bed->ckptd <= 0 || end_process(&bed->ckptd, SIGTERM) == 0)
        return 0;
    fprintf(stderr, "# ckptd did not end well; its log:\n");
    shell("tail -n 60 '%s/ckptd.log' >&2", bed->root);
    return -1;
}

int bed_open_with(void **state, const char *pool)
{
    struct bed *bed = calloc(1, sizeof *bed);
    const char *parent = getenv("TMPDIR");
    bed->pool = pool;
    snprintf(bed->root, sizeof bed->root, "%s/ckpt-XXXXXX", parent != NULL ? parent : "/var/tmp");
    if (mkdtemp(bed->root) == NULL)
        return -1;
    snprintf(bed->server, sizeof bed->server, "unix:%s/s", bed->root);
    snprintf(bed->store, sizeof bed->store, "%s/store", bed->root);
    start_ckptd(bed);
    *state = bed;
    return 0;
}

int bed_open(void **state)
{
    return bed_open_with(state, "96MiB");
}

int bed_close(void **state)
{
    struct bed *bed = *state;
    int error = end_ckptd(bed);
    if (getenv("KEEP") == NULL)
        shell("rm -rf '%s'", bed->root);
    free(bed);
    return error;
}

void restart_ckptd(struct bed *bed, int signal)
{
    if (signal == SIGTERM)
        assert_int_equal(end_ckptd(bed), 0);
    end_process(&bed->ckptd, signal);
    start_ckptd(bed);
}

void configure_ckptd(struct bed *bed, const char *text)
{
    snprintf(bed->config, sizeof bed->config, "%s/ckptd.conf", bed->root);
    FILE *file = fopen(bed->config, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    restart_ckptd(bed, SIGKILL);
}

void save_world(const struct bed *bed, uint32_t world, uint64_t seed, uint64_t step)
{
    struct group group = make_group(bed, world, seed, step);
    group.work = work_save;
    assert_int_equal(run_group(&group), 0);
}

struct group load_world(const struct bed *bed, uint32_t world, uint64_t seed, uint64_t step)
{
    struct group group = make_group(bed, world, seed, step);
    group.work = work_load;
    assert_int_equal(run_group(&group), 0);
    return group;
}

struct ckpt *open_single(const struct bed *bed, const char *run)
{
    struct ckpt *ckpt = NULL;
    assert_int_equal(
        ckpt_open(&ckpt,
                  &(struct ckpt_options){.server = bed->server, .run = run, .world_size = 1}),
        0);
    return ckpt;
}

void damage_shard(const struct bed *bed, uint64_t step, const char *shard)
{
    char directory[300], path[700];
    struct dirent *entry;
    unsigned char value;
    snprintf(directory, sizeof directory, "%s/" RUN, bed->store);
    DIR *list = opendir(directory);
    assert_non_null(list);
    int found = 0;
    while ((entry = readdir(list)) != NULL) {
        if (strncmp(entry->d_name, "step-", 5) != 0 ||
            strtoull(entry->d_name + 5, NULL, 10) != step)
            continue;
        snprintf(path, sizeof path, "%s/%s/%s", directory, entry->d_name, shard);
        int fd = open(path, O_RDWR);
        assert_true(fd >= 0);
        assert_int_equal(pread(fd, &value, 1, 1500000), 1);
        value ^= 1;
        assert_int_equal(pwrite(fd, &value, 1, 1500000), 1);
        fsync(fd);
        close(fd);
        found++;
    }
    closedir(list);
    assert_int_equal(found, 1);
}
