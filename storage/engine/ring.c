/* ring.c - restricts io_uring, which is a large part of the kernel: a compromised process should
 * find no more of it than storage needs. So a ring is restricted before its first use, and after
 * the storage is open a program may give up making others. */
#include "storage/engine/ring.h"

#include "storage/engine/system.h"
#include "storage/storage.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define X32_BIT 0x40000000u /* x86-64: in the numbers of system calls of x32 programs */

static struct io_uring_restriction of_entry(unsigned char op)
{
    return (struct io_uring_restriction){.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = op};
}

static struct io_uring_restriction of_register(unsigned char op)
{
    return (struct io_uring_restriction){.opcode = IORING_RESTRICTION_REGISTER_OP,
                                         .register_op = op};
}

/* The shared liburing 2.3 declares functions for these two registrations, but lacks them. */
static int call_register(struct io_uring *ring, unsigned what, void *argument, unsigned count)
{
    long result = syscall(SYS_io_uring_register, ring->ring_fd, what, argument, count);
    return result < 0 ? -errno : 0;
}

static int restrict_and_enable(struct io_uring *ring)
{
    struct io_uring_restriction allowed[] = {
        of_entry(IORING_OP_READ),
        of_entry(IORING_OP_READ_FIXED),
        of_entry(IORING_OP_WRITE),
        of_entry(IORING_OP_WRITE_FIXED),
        of_entry(IORING_OP_FSYNC),
        of_register(IORING_REGISTER_BUFFERS),
        of_register(IORING_REGISTER_BUFFERS_UPDATE),
    };
    unsigned count = sizeof(allowed) / sizeof(allowed[0]);
    int result = call_register(ring, IORING_REGISTER_RESTRICTIONS, allowed, count);
    if (result == -EINVAL) /* before Linux 5.13 the last one is unknown, and none was set */
        result = call_register(ring, IORING_REGISTER_RESTRICTIONS, allowed, count - 1);
    return result < 0 ? result : call_register(ring, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
}

int ring_open(struct io_uring *out, unsigned entries)
{
    int result = io_uring_queue_init(entries, out, IORING_SETUP_R_DISABLED);
    if (result == -ENOMEM && ring_raise_memlock())
        result = io_uring_queue_init(entries, out, IORING_SETUP_R_DISABLED);
    if (result < 0)
        return result;
    result = restrict_and_enable(out);
    if (result < 0)
        io_uring_queue_exit(out);
    return result < 0 ? result : 0;
}

bool ring_raise_memlock(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == limit.rlim_max)
        return false;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
}

bool ring_may_lock(uint64_t bytes)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= bytes)
        return true;
    return syscall(SYS_capget, &header, data) == 0 &&
           (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

int storage_try_ring(void)
{
    struct io_uring ring;
    int result = ring_open(&ring, 1);
    if (result == 0)
        io_uring_queue_exit(&ring);
    return -result;
}

bool storage_may_lock(uint64_t bytes)
{
    ring_raise_memlock();
    return ring_may_lock(bytes);
}

int storage_forbid_rings(void)
{
    /* Its number is the same on every architecture but alpha and mips. */
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, ~X32_BIT),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
    /* For all threads; and without the CPU's speculation limits that the filter otherwise
     * implies. */
    unsigned long flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0)
        return 0;
    return report_errno(ERR_DENIED, "could not install a seccomp filter", "io_uring_setup");
}
