/* check.c - ckptd --check: looks at what a start needs, changes nothing and starts nothing.
 *
 * The configuration has been read and accepted when this is called. Looked at are the store, as a
 * reader without a lock sees it, the directory of the socket, and the memory for the pool. A store
 * that a ckptd serves now is fine: its next configuration may be what is checked. */
#include "ckptd/check.h"
#include "ckptd/catalog.h"
#include "ckptd/node/directory.h"
#include "ckptd/scan.h"
#include "ckptd/service.h"
#include "proto/report.h"
#include "proto/retain.h"
#include "storage/storage.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What was counted in the store. */
struct survey {
    struct storage *storage;
    const char *run;
    uint64_t runs, checkpoints, unfinished, damaged;
};

/* This thread's last error is a problem; false. */
static bool fail(void)
{
    printf("problem: %s\n", report_line());
    return false;
}

static int visit_step(void *user, const struct storage_entry *entry)
{
    struct survey *survey = user;
    struct manifest_summary summary;
    struct service service = {.storage = survey->storage};
    struct run run = {.service = &service};
    uint64_t step, attempt;
    if (!entry->is_dir || !retain_parse(entry->name, &step, &attempt))
        return 0;
    snprintf(run.name, sizeof run.name, "%s", survey->run);
    int error = scan_look(&summary, &run, step, attempt);
    survey->checkpoints += error == 0;
    survey->unfinished += error == ERR_NOT_FOUND;
    survey->damaged += error != 0 && error != ERR_NOT_FOUND;
    if (error != 0 && error != ERR_NOT_FOUND)
        printf("damaged: %s/%s: %s\n", survey->run, entry->name, report_line());
    return error == ERR_MEMORY ? error : 0;
}

static int visit_run(void *user, const struct storage_entry *entry)
{
    struct survey *survey = user;
    if (!entry->is_dir || !run_name_valid(entry->name))
        return 0;
    survey->runs++;
    survey->run = entry->name;
    return storage_list(survey->storage, entry->name, visit_step, survey);
}

static bool check_store(const struct config *config)
{
    const struct storage_options options = {.read_only = true, .is_ours_alone = true};
    struct survey survey = {0};
    struct stat status;
    if (config->store_must_exist && directory_need_store(config->store) != 0)
        return fail();
    if (stat(config->store, &status) != 0) {
        printf("store: %s is not there; a start makes it\n", config->store);
        return true;
    }
    int error = storage_open(&survey.storage, &storage_local, config->store, &options);
    bool is_served = error == 0 && storage_find_holder(survey.storage, NULL) == 0;
    if (error == 0)
        error = storage_list(survey.storage, "", visit_run, &survey);
    if (error == 0 && access(config->store, W_OK) != 0)
        error = report_errno(ERR_DENIED, "this user may not write into the store", config->store);
    if (survey.storage)
        storage_close(survey.storage);
    if (error != 0)
        return fail();
    printf("store: %s has %llu runs, %llu checkpoints, %llu damaged ones, %llu directories without "
           "a manifest; %s\n",
           config->store, (unsigned long long)survey.runs, (unsigned long long)survey.checkpoints,
           (unsigned long long)survey.damaged, (unsigned long long)survey.unfinished,
           is_served ? "it is in use now" : "nobody uses it");
    if ((int64_t)survey.runs <= config->limit_runs &&
        (int64_t)(survey.checkpoints + survey.damaged) <= config->limit_checkpoints)
        return true;
    report_error(ERR_BUSY, "raise limits.runs or limits.checkpoints", "the store holds too much");
    return fail();
}

static bool check_socket(const struct config *config)
{
    char folder[sizeof config->listen];
    snprintf(folder, sizeof folder, "%s", config->listen + strlen("unix:"));
    char *slash = strrchr(folder, '/');
    slash[slash == folder] = '\0';
    if (access(folder, W_OK | X_OK) == 0) {
        printf("socket: %s\n", config->listen);
        return true;
    }
    report_errno(ERR_DENIED, "no socket can be made there", folder);
    return fail();
}

static bool check_memory(const struct config *config)
{
    char line[128];
    long long available = -1;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && available < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lld kB", &available) == 1)
            available *= 1024;
    if (file)
        fclose(file);
    printf("memory: a pool of %lld bytes; %lld are available\n", (long long)config->pool_bytes,
           available);
    if (available < 0 || available >= config->pool_bytes)
        return true;
    report_error(ERR_MEMORY, "lower memory.pool_bytes, or end what uses the memory",
                 "the pool does not fit into the memory that is available");
    return fail();
}

bool check_all(const struct config *config)
{
    bool is_directory =
        strncmp(config->store, "memory:", 7) != 0 && strncmp(config->store, "fault:", 6) != 0;
    bool is_fine = !is_directory || check_store(config);
    is_fine &= check_socket(config);
    is_fine &= check_memory(config);
    printf("%s\n", is_fine ? "ckptd would start" : "a person must act");
    return is_fine;
}
