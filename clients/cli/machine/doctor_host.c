/* doctor_host.c - of doctor: checks the resources of this machine and the limits of this user that
 * ckptd and the ranks need. The limits are those of this process; ckptd's unit or container may
 * have others. So a shortage here is only a warning. */
#include "clients/cli/machine/disk_test.h"
#include "clients/cli/machine/doctor.h"

#include "proto/base/json.h"
#include "storage/engine/system.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#define TEST_BYTES (64ull << 20)
#define TEST_SECONDS 2.0
#define SYNC_WARN_S 1.0
#define NEED_FACTOR 2.0  /* a save should take at most half of the time to the next */
#define FILES_WARN 4096u /* limits.sessions = 1024, each with several */
#define SHM_BYTES_OF_DOCKER (64ull << 20) /* Docker's default for a container */
#define CORES_WARN 4                      /* two hash (threads.workers), beside the ranks */

static const char DISK_HINT[] = "put the store on a local disk with ext4 or xfs";

/* ---- the store's disk ---- */

static const struct file_system {
    unsigned long magic; /* of statfs(2) */
    const char *name;
    enum verdict verdict;
    const char *why;
} file_systems[] = {
    {0xef53, "ext4", DOCTOR_OK, ""},
    {0x58465342, "xfs", DOCTOR_OK, ""},
    {0xf2f52010, "f2fs", DOCTOR_OK, ""},
    {0x9123683e, "btrfs", DOCTOR_WARN, ": it is copy-on-write"},
    {0x2fc12fc1, "zfs", DOCTOR_WARN, ": it cannot reserve the space of a save"},
    {0x794c7630, "overlay", DOCTOR_WARN, ": a container's layer, deleted with the container"},
    {0x65735546, "fuse", DOCTOR_WARN, ": its program decides what is durable"},
    {0x6969, "nfs", DOCTOR_WARN, ": it is shared with other machines"},
    {0x0bd00bd0, "lustre", DOCTOR_WARN, ": it is shared with other machines"},
    {0x47504653, "gpfs", DOCTOR_WARN, ": it is shared with other machines"},
    {0x00c36400, "ceph", DOCTOR_WARN, ": it is shared with other machines"},
    {0xff534d42, "cifs", DOCTOR_WARN, ": it is shared with other machines"},
    {0x01021994, "tmpfs", DOCTOR_BAD, ": it is memory, lost at a power failure"},
};

static void check_file_system(struct doctor *doctor)
{
    struct statfs status;
    char safe[512];
    const struct file_system *found = NULL;
    text_safe(safe, sizeof safe, doctor->store);
    if (statfs(doctor->store, &status) != 0) {
        doctor_say(doctor, DOCTOR_WARN, "file system", "check the store's disk", "%s: %s", safe,
                   strerror(errno));
        return;
    }
    for (size_t i = 0; i < sizeof file_systems / sizeof *file_systems; i++)
        if (file_systems[i].magic == ((unsigned long)status.f_type & 0xffffffff))
            found = &file_systems[i];
    if (found != NULL)
        doctor_say(doctor, found->verdict, "file system", DISK_HINT, "%s is %s%s", safe,
                   found->name, found->why);
    else
        doctor_say(doctor, DOCTOR_OK, "file system", "", "%s is of type %#lx", safe,
                   (unsigned long)status.f_type & 0xffffffff);
}

static bool is_on_store_disk(const struct doctor *doctor)
{
    struct stat here, there;
    return stat(doctor->cli->write, &here) == 0 && stat(doctor->store, &there) == 0 &&
           here.st_dev == there.st_dev;
}

/* Describes the last save, "; the last save: ..."; returns its bytes per second, or 0. A save of
 * several nodes is the sum of all nodes, so it does not measure this disk. */
static double describe_last_save(char *out, size_t size, const struct doctor *doctor)
{
    const json_t *last = json_object_get(doctor->status, "last_commit");
    const json_t *nodes = json_object_get(doctor->status, "nodes");
    double write = json_number_value(json_object_get(last, "staging_seconds"));
    double sync = json_number_value(json_object_get(last, "sync_seconds"));
    uint64_t bytes = member_number(last, "bytes");
    char text[32], speed[32];
    out[0] = '\0';
    if (bytes == 0 || json_array_size(json_object_get(nodes, "peers")) > 0 || write + sync <= 0)
        return 0;
    double rate = (double)bytes / (write + sync);
    snprintf(out, size, "; the last save: %s, written in %.2f s, synced in %.2f s: %s/s",
             text_bytes(text, sizeof text, bytes), write, sync,
             text_bytes(speed, sizeof speed, (uint64_t)rate));
    return rate;
}

/* "; saves here need 1.50 MiB/s", or how long a save takes at that rate of this disk. */
static void describe_need(char *out, size_t size, const struct doctor *doctor, double rate)
{
    char text[32];
    if (doctor_need(out, size, doctor)[0] != '\0')
        return;
    if (doctor->save_bytes > 0 && rate > 0)
        snprintf(out, size, "; a save of %s takes %.2f s at that rate",
                 text_bytes(text, sizeof text, doctor->save_bytes),
                 (double)doctor->save_bytes / rate);
    else
        snprintf(out, size, "; no save to compare with");
}

static void check_write(struct doctor *doctor)
{
    struct disk_test test = {.folder = doctor->cli->write,
                             .bytes = TEST_BYTES,
                             .block = DISK_TEST_BLOCK,
                             .depth = DISK_TEST_DEPTH,
                             .seconds_max = TEST_SECONDS,
                             .is_write_only = true};
    char text[32], speed[32], last[160], need[96];
    if (test.folder[0] == '\0')
        return;
    if (disk_test_run(&test, doctor->cli) != 0) {
        doctor_say_error(doctor, DOCTOR_BAD, "write", "name another folder on the store's disk");
        return;
    }
    if (doctor->store[0] != '\0' && !is_on_store_disk(doctor))
        doctor_say(doctor, DOCTOR_WARN, "write", "name a folder on the store's disk",
                   "%s is not on the store's disk", test.folder);
    double rate = disk_test_durable(&test),
           rate_last = describe_last_save(last, sizeof last, doctor);
    describe_need(need, sizeof need, doctor, rate);
    bool is_slow = rate < rate_last / 2 || rate < NEED_FACTOR * doctor->need_rate ||
                   test.sync.max > SYNC_WARN_S;
    doctor_say(doctor, is_slow ? DOCTOR_WARN : DOCTOR_OK, "write",
               "check what else writes there (iostat -x 1), and measure longer: ckpt-cli bench io",
               "%s written and synced at %s/s, a sync took up to %.1f ms%s%s",
               text_bytes(text, sizeof text, test.write.bytes),
               text_bytes(speed, sizeof speed, (uint64_t)rate), 1e3 * test.sync.max, last, need);
}

/* ---- memory ---- */

/* A line of /proc/meminfo in its unit (kB, or none); -1: there is none. */
static long long meminfo(const char *name)
{
    char line[128];
    long long value = -1;
    size_t length = strlen(name);
    FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && value < 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, length) == 0 && line[length] == ':')
            sscanf(line + length + 1, "%lld", &value);
    if (file != NULL)
        fclose(file);
    return value;
}

static uint64_t meminfo_bytes(const char *name)
{
    long long value = meminfo(name);
    return value > 0 ? (uint64_t)value << 10 : 0;
}

/* "of ckptd", or of a ckptd with default settings. */
static const char *whose_pool(const struct doctor *doctor)
{
    return doctor->status != NULL && !doctor->is_far ? "ckptd's pool" : "the default pool";
}

static void check_memory(struct doctor *doctor)
{
    uint64_t available = meminfo_bytes("MemAvailable"), missing = doctor->pool_bytes_missing;
    char have[32], all[32], lacks[32];
    bool is_short = missing > available, is_known = doctor->status != NULL && !doctor->is_far;
    doctor_say(doctor,
               is_short && is_known ? DOCTOR_BAD
               : is_short           ? DOCTOR_WARN
                                    : DOCTOR_OK,
               "memory", "lower memory.pool_bytes, or stop other programs that use the memory",
               "%s available; %s, %s, still needs %s", text_bytes(have, sizeof have, available),
               whose_pool(doctor), text_bytes(all, sizeof all, doctor->pool_bytes),
               text_bytes(lacks, sizeof lacks, missing));
}

static const char *limit_text(char *out, size_t size, rlim_t limit)
{
    if (limit == RLIM_INFINITY)
        snprintf(out, size, "unlimited");
    else
        snprintf(out, size, "%llu", (unsigned long long)limit);
    return out;
}

static void check_memlock(struct doctor *doctor)
{
    struct rlimit limit = {0};
    char most[32], pool[32];
    bool may = storage_may_lock(doctor->pool_bytes); /* raises the limit, as ckptd does */
    getrlimit(RLIMIT_MEMLOCK, &limit);
    doctor_say(doctor, may ? DOCTOR_OK : DOCTOR_WARN, "memlock",
               "set LimitMEMLOCK=infinity of ckptd's unit, or ulimit -l unlimited: otherwise each "
               "write pins its memory again",
               "%s bytes may be locked%s; %s has %s", limit_text(most, sizeof most, limit.rlim_max),
               may && limit.rlim_max < doctor->pool_bytes ? ", and this user may exceed it" : "",
               whose_pool(doctor), text_bytes(pool, sizeof pool, doctor->pool_bytes));
}

static void check_descriptors(struct doctor *doctor)
{
    struct rlimit limit = {0};
    char most[32];
    getrlimit(RLIMIT_NOFILE, &limit);
    doctor_say(doctor, limit.rlim_max < FILES_WARN ? DOCTOR_WARN : DOCTOR_OK, "nofile",
               "set LimitNOFILE=65536 of ckptd's unit: without a free one ckptd refuses a rank",
               "%s files may be open", limit_text(most, sizeof most, limit.rlim_max));
}

static void check_shm(struct doctor *doctor)
{
    struct statvfs status;
    char size[32], pool[32];
    if (statvfs("/dev/shm", &status) != 0) {
        doctor_say(doctor, DOCTOR_WARN, "/dev/shm", "mount a tmpfs there: NCCL and MPI need it",
                   "it does not exist");
        return;
    }
    uint64_t bytes = (uint64_t)status.f_blocks * status.f_frsize;
    doctor_say(doctor, bytes <= SHM_BYTES_OF_DOCKER ? DOCTOR_WARN : DOCTOR_OK, "/dev/shm",
               "give the container more (--shm-size): NCCL and MPI of the ranks share memory there",
               "%s; %s, %s, does not use it", text_bytes(size, sizeof size, bytes),
               whose_pool(doctor), text_bytes(pool, sizeof pool, doctor->pool_bytes));
}

/* The selected value (in brackets) of a file of /sys/kernel/mm/transparent_hugepage; "?": there is
 * none. */
static void read_choice(char out[16], const char *name)
{
    char path[96], line[128] = "";
    snprintf(path, sizeof path, "/sys/kernel/mm/transparent_hugepage/%s", name);
    FILE *file = fopen(path, "re");
    if (file == NULL || fgets(line, sizeof line, file) == NULL)
        line[0] = '\0';
    if (file != NULL)
        fclose(file);
    const char *begin = strchr(line, '['), *end = begin != NULL ? strchr(begin, ']') : NULL;
    snprintf(out, 16, "%.*s", end != NULL ? (int)(end - begin - 1) : 1,
             end != NULL ? begin + 1 : "?");
}

/* The pool requests huge pages itself (MADV_COLLAPSE), which only "deny" forbids. It cannot use
 * pages that are reserved (hugetlb). */
static void check_huge_pages(struct doctor *doctor)
{
    char anonymous[16], shared[16], size[32];
    long long free_pages = meminfo("HugePages_Free");
    uint64_t reserved = meminfo_bytes("Hugepagesize") * (uint64_t)(free_pages > 0 ? free_pages : 0);
    read_choice(anonymous, "enabled");
    read_choice(shared, "shmem_enabled");
    doctor_say(doctor, strcmp(shared, "deny") == 0 || reserved > 0 ? DOCTOR_WARN : DOCTOR_OK,
               "huge pages",
               reserved > 0 ? "free those that are reserved and not used: nothing here uses them "
                              "(vm.nr_hugepages = 0)"
                            : "echo never >/sys/kernel/mm/transparent_hugepage/shmem_enabled: then "
                              "ckptd may ask for them",
               "transparent: %s, of shared memory %s; reserved and free: %s", anonymous, shared,
               text_bytes(size, sizeof size, reserved));
}

/* ---- the system ---- */

static void check_ring(struct doctor *doctor)
{
    int number = storage_try_ring();
    doctor_say(doctor, number != 0 ? DOCTOR_WARN : DOCTOR_OK, "io_uring",
               "allow it in the container's seccomp profile, or set "
               "/proc/sys/kernel/io_uring_disabled to 0: otherwise threads write, which is slower",
               number != 0 ? "refused: %s" : "%s", number != 0 ? strerror(number) : "available");
}

static void check_kernel(struct doctor *doctor)
{
    struct utsname system;
    unsigned major = 0, minor = 0;
    if (uname(&system) != 0 || sscanf(system.release, "%u.%u", &major, &minor) != 2)
        return;
    bool is_old = major < 6 || (major == 6 && minor < 1);
    doctor_say(doctor, is_old ? DOCTOR_WARN : DOCTOR_OK, "kernel",
               "update it: 5.10 has the io_uring that ckptd asks for, 6.1 huge pages for the pool",
               "Linux %s", system.release);
}

static void check_cores(struct doctor *doctor)
{
    cpu_set_t mine;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int count = sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : (int)online;
    doctor_say(doctor, count < CORES_WARN ? DOCTOR_WARN : DOCTOR_OK, "cores",
               "give it more: besides the ranks, two hash each save (threads.workers)",
               "%d of %ld are available", count, online);
}

void doctor_check_host(struct doctor *doctor)
{
    if (doctor->store[0] != '\0')
        check_file_system(doctor);
    check_write(doctor);
    check_memory(doctor);
    check_memlock(doctor);
    check_descriptors(doctor);
    check_shm(doctor);
    check_huge_pages(doctor);
    check_ring(doctor);
    check_kernel(doctor);
    check_cores(doctor);
}
