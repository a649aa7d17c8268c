/* check.c - ckptd --check: checks the conditions of a start, changes nothing and starts nothing.
 *
 * It reports the limits of the system as well: without io_uring, or with little lockable memory,
 * ckptd works but is slower. The pool is no file of /dev/shm (memfd); NCCL and MPI, which the ranks
 * use, have theirs there.
 *
 * The configuration has been read and accepted when this is called. It checks the store, as a
 * reader without a lock sees it, the directory of the socket, the ports, the certificates, the far
 * tier, and the memory for the pool. A store that a ckptd serves now is fine: this may be its next
 * configuration; the last line then names the process that must end first. */
#include "ckptd/front/check.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/directory.h"
#include "ckptd/core/service.h"
#include "ckptd/core/tier.h"
#include "ckptd/front/network.h"
#include "proto/base/address.h"
#include "proto/base/report.h"
#include "proto/format/retain.h"
#include "proto/tls/tls.h"
#include "storage/engine/system.h"
#include "storage/store/store.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define SHM_BYTES_OF_DOCKER (64ull << 20) /* the default of a container */

/* Counts of the store's contents. */
struct survey {
    struct storage *storage;
    const char *run;
    uint64_t runs, checkpoints, unfinished, damaged;
};

/* Prints this thread's last error as a problem; returns false. */
static bool fail(void)
{
    printf("problem: %s\n", report_line());
    return false;
}

static int visit_step(void *user, const struct storage_entry *entry)
{
    struct survey *survey = user;
    struct manifest_summary summary;
    uint64_t step, attempt;
    if (!entry->is_dir || !retain_parse(entry->name, &step, &attempt))
        return 0;
    int error =
        store_inspect_committed(&summary, NULL, survey->storage, survey->run, step, attempt);
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

static void cut_name(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash)
        slash[slash == path] = '\0';
}

/* For a missing store: a start makes the directory, but not those above it. */
static bool check_place(const char *store)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", store);
    while (strlen(folder) > 1 && folder[strlen(folder) - 1] == '/')
        folder[strlen(folder) - 1] = '\0';
    if (strchr(folder, '/'))
        cut_name(folder);
    else
        snprintf(folder, sizeof folder, ".");
    if (access(folder, W_OK | X_OK) == 0) {
        printf("store: %s is not there; a start makes it\n", store);
        return true;
    }
    report_errno(ERR_DENIED, "the store's directory cannot be made there", folder);
    return fail();
}

static bool check_store(const struct config *config, bool *out_is_served)
{
    const struct storage_options options = {.read_only = true, .is_ours_alone = true};
    struct survey survey = {0};
    struct stat status;
    if (config->store_must_exist && directory_need_store(config->store) != 0)
        return fail();
    if (stat(config->store, &status) != 0)
        return check_place(config->store);
    int error = storage_open(&survey.storage, &storage_local, config->store, &options);
    *out_is_served = error == 0 && storage_find_holder(survey.storage, NULL) == 0;
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
           *out_is_served ? "it is in use now" : "it is not in use");
    if ((int64_t)survey.runs <= config->limit_runs &&
        (int64_t)(survey.checkpoints + survey.damaged) <= config->limit_checkpoints)
        return true;
    report_error(ERR_BUSY, "raise limits.runs or limits.checkpoints",
                 "the store has more runs or checkpoints than the limits allow");
    return fail();
}

static bool check_socket(const struct config *config)
{
    char folder[sizeof config->listen];
    snprintf(folder, sizeof folder, "%s", config->listen + strlen("unix:"));
    cut_name(folder);
    if (access(folder, F_OK) != 0 && errno == ENOENT)
        cut_name(folder); /* a start makes the innermost directory */
    if (access(folder, W_OK | X_OK) == 0) {
        printf("socket: %s\n", config->listen);
        return true;
    }
    report_errno(ERR_DENIED, "no socket can be made there", folder);
    return fail();
}

/* Listens for a moment. A ckptd that serves the store may have the ports until a start. */
static bool check_ports(const struct config *config, bool is_served)
{
    const struct {
        const char *key, *address;
    } ports[] = {{"tls.listen", config->tls_listen},
                 {"tls.bulk", config->tls_bulk},
                 {"http.listen", config->http_listen}};
    bool is_fine = true;
    for (size_t i = 0; i < sizeof ports / sizeof *ports; i++) {
        if (ports[i].address[0] == '\0')
            continue;
        int fd, error = address_listen(&fd, ports[i].address, ports[i].key);
        if (error == 0)
            close(fd);
        else if (error != ERR_BUSY || !is_served)
            is_fine = fail();
    }
    return is_fine;
}

static bool check_certificates(const struct config *config)
{
    int64_t end_s;
    if (config->tls_listen[0] == '\0')
        return true;
    if (tls_directory_check(&end_s, config->tls_directory) != 0 ||
        network_check_certificate(config->tls_directory) != 0)
        return fail();
    double days = (double)(end_s - time(NULL)) / 86400;
    printf("certificates: %s, valid for %.1f days\n", config->tls_directory, days);
    if (days > 0)
        return true;
    report_error(ERR_DENIED, "make new ones: holdfast-certificates",
                 "the certificate or the authority in %s has expired", config->tls_directory);
    return fail();
}

static bool check_tier(const struct config *config)
{
    bool is_final;
    if (config->tier_store[0] == '\0')
        return true;
    if (tier_check(&is_final, config) == 0)
        printf("tier: %s answers\n", config->tier_store);
    else if (is_final)
        return fail();
    else
        printf("tier: %s cannot be reached: %s; ckptd starts without it and retries\n",
               config->tier_store, report_line());
    return true;
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

/* ckptd starts without it, and warns each time. */
static void tell_metrics(const struct config *config)
{
    char folder[sizeof config->metrics_file + 2];
    snprintf(folder, sizeof folder, "%s%s", strchr(config->metrics_file, '/') ? "" : "./",
             config->metrics_file);
    cut_name(folder);
    if (config->metrics_file[0] != '\0' && access(folder, W_OK | X_OK) != 0)
        printf("metrics: %s cannot be written: %s: %s; make the directory, or set metrics.file\n",
               config->metrics_file, folder, strerror(errno));
}

/* A line per limit; a low limit does not prevent a start. */
static void tell_limits(const struct config *config)
{
    int number = storage_try_ring();
    struct statvfs space;
    if (number == 0)
        printf("io_uring: it can be used\n");
    else
        printf(
            "io_uring: refused (%s); threads write, which is slower: allow it in the container's "
            "seccomp profile, or set /proc/sys/kernel/io_uring_disabled to 0\n",
            strerror(number));
    if (storage_may_lock((uint64_t)config->pool_bytes))
        printf("memlock: the pool may be registered\n");
    else
        printf("memlock: RLIMIT_MEMLOCK is less than memory.pool_bytes = %lld; writes pin their "
               "memory one by one, which is slower: set LimitMEMLOCK=infinity of the unit, or "
               "ulimit -l unlimited\n",
               (long long)config->pool_bytes);
    if (statvfs("/dev/shm", &space) != 0)
        printf("/dev/shm: missing; ckptd does not need it, but NCCL and MPI of ranks do: mount a "
               "tmpfs there\n");
    else
        printf("/dev/shm: %llu bytes%s\n", (unsigned long long)space.f_blocks * space.f_frsize,
               (unsigned long long)space.f_blocks * space.f_frsize > SHM_BYTES_OF_DOCKER
                   ? "; ckptd does not need it"
                   : "; ckptd does not need it, but NCCL and MPI of ranks may need more: "
                     "--shm-size of docker");
}

bool check_all(const struct config *config)
{
    bool is_served = false;
    bool is_directory =
        strncmp(config->store, "memory:", 7) != 0 && strncmp(config->store, "fault:", 6) != 0;
    bool is_fine = !is_directory || check_store(config, &is_served);
    is_fine &= check_socket(config);
    is_fine &= check_ports(config, is_served);
    is_fine &= check_certificates(config);
    is_fine &= check_tier(config);
    is_fine &= check_memory(config);
    tell_metrics(config);
    tell_limits(config);
    if (is_fine && is_served)
        printf("ckptd would start after the ckptd that has the store open has ended; a start "
               "before that exits with %d\n",
               EXIT_RUN_AGAIN);
    else
        printf("%s\n", is_fine ? "ckptd would start" : "the operator must act");
    return is_fine;
}
