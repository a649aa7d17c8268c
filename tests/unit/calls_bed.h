/* calls_bed.h - system calls that fail or transfer fewer bytes than asked, as a test plans.
 *
 * The linker sends these calls of storage/ and of the tools through the functions below (--wrap of
 * the names in WRAP_CALLS of mk/tests.mk), which count them. */
#ifndef HOLDFAST_TESTS_CALLS_BED_H
#define HOLDFAST_TESTS_CALLS_BED_H

#include "storage/storage.h"
#include "tests/unit/wrap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALLS_NAMED_MAX 4096u

static struct {
    atomic_uint calls; /* calls since the plan began */
    unsigned first;    /* number of the call that fails; 0: none */
    const char *only;  /* count and fail calls of this name alone; NULL: all */
    bool for_ever, is_short;
    int number;                            /* errno */
    atomic_bool was_named;                 /* a rename succeeded: the new name may exist */
    void (*before_rename)(const char *to); /* called just before a rename; NULL: nothing */
    const char *names[CALLS_NAMED_MAX];    /* names of the calls by number, when none fails */
} failing;

/* The number of this call, from 1; 0: the plan does not count it. */
static inline unsigned count_call(const char *name)
{
    if (failing.only != NULL && strcmp(failing.only, name) != 0)
        return 0;
    unsigned call = ++failing.calls;
    if (failing.first == 0 && call < CALLS_NAMED_MAX)
        failing.names[call] = name;
    return call;
}

/* True, with errno set, when this call has to fail. */
static inline bool fails(const char *name)
{
    unsigned call = count_call(name);
    if (failing.first == 0 || failing.is_short ||
        !(call == failing.first || (failing.for_ever && call > failing.first)))
        return false;
    errno = failing.number;
    return true;
}

/* How many bytes of a transfer succeed: whole pages, or half of less than a page. */
static inline size_t part(const char *name, size_t bytes)
{
    unsigned call = count_call(name);
    bool is_cut =
        failing.first != 0 && (call == failing.first || (failing.for_ever && call > failing.first));
    if (!is_cut || bytes <= 1 || bytes == STORAGE_ALIGN)
        return bytes;
    return bytes > STORAGE_ALIGN ? STORAGE_ALIGN : bytes / 2;
}

WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), -1)
WRAP(int, mkdirat, (int fd, const char *path, mode_t mode), (fd, path, mode), -1)
WRAP(int, fsync, (int fd), (fd), -1)
WRAP(int, fdatasync, (int fd), (fd), -1)
WRAP(int, fallocate, (int fd, int mode, off_t at, off_t bytes), (fd, mode, at, bytes), -1)
WRAP(int, ftruncate, (int fd, off_t bytes), (fd, bytes), -1)
WRAP(int, fstat, (int fd, struct stat *out), (fd, out), -1)
WRAP(int, fstatat, (int fd, const char *path, struct stat *out, int flags), (fd, path, out, flags),
     -1)
WRAP(int, statx, (int fd, const char *path, int flags, unsigned mask, struct statx *out),
     (fd, path, flags, mask, out), -1)
WRAP(int, fstatvfs, (int fd, struct statvfs *out), (fd, out), -1)
WRAP(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags), -1)
WRAP(int, linkat, (int a, const char *from, int b, const char *to, int flags),
     (a, from, b, to, flags), -1)
WRAP(DIR *, fdopendir, (int fd), (fd), NULL)
WRAP(struct dirent *, readdir, (DIR * directory), (directory), NULL)
WRAP(ssize_t, getrandom, (void *out, size_t bytes, unsigned flags), (out, bytes, flags), -1)

int __real_renameat2(int a, const char *from, int b, const char *to, unsigned flags);
int __wrap_renameat2(int a, const char *from, int b, const char *to, unsigned flags);
int __wrap_renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    if (failing.before_rename != NULL)
        failing.before_rename(to);
    int result = fails("renameat2") ? -1 : __real_renameat2(a, from, b, to, flags);
    failing.was_named = failing.was_named || result == 0;
    return result;
}

WRAP(int, fchown, (int fd, uid_t user, gid_t group), (fd, user, group), -1)
WRAP(int, stat, (const char *path, struct stat *out), (path, out), -1)
WRAP(int, lstat, (const char *path, struct stat *out), (path, out), -1)
WRAP(int, access, (const char *path, int mode), (path, mode), -1)

/* Linux closes the descriptor even when close() fails. */
int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    bool has_failed = fails("close");
    int number = errno, result = __real_close(fd);
    if (has_failed)
        errno = number;
    return has_failed ? -1 : result;
}

WRAP(int, truncate, (const char *path, off_t bytes), (path, bytes), -1)
WRAP(int, rmdir, (const char *path), (path), -1)

int __real_openat(int fd, const char *path, int flags, ...);
int __wrap_openat(int fd, const char *path, int flags, ...);
int __wrap_openat(int fd, const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
    va_end(list);
    return fails("openat") ? -1 : __real_openat(fd, path, flags, mode);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
    va_end(list);
    return fails("open") ? -1 : __real_open(path, flags, mode);
}

WRAP_FCNTL
WRAP_SYSCALL

#define WRAP_TRANSFER(name, pointer)                                     \
    ssize_t __real_##name(int fd, pointer data, size_t bytes, off_t at); \
    ssize_t __wrap_##name(int fd, pointer data, size_t bytes, off_t at); \
    ssize_t __wrap_##name(int fd, pointer data, size_t bytes, off_t at)  \
    {                                                                    \
        if (failing.is_short)                                            \
            return __real_##name(fd, data, part(#name, bytes), at);      \
        return fails(#name) ? -1 : __real_##name(fd, data, bytes, at);   \
    }

WRAP_TRANSFER(pread, void *)
WRAP_TRANSFER(pwrite, const void *)

ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    if (failing.is_short)
        return __real_write(fd, data, part("write", bytes));
    return fails("write") ? -1 : __real_write(fd, data, bytes);
}

#endif
