/* no_uring.c - runs a program where the system refuses io_uring, as many containers do.
 *
 *     build/shims/no_uring PROGRAM [ARGUMENT...]
 *
 * A seccomp filter answers EPERM to the three calls of io_uring; the program's children inherit it.
 * `make test-no-uring` runs the whole suite so. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXIT_NOT_RUN 126

/* Their numbers are the same on every architecture. */
_Static_assert(SYS_io_uring_setup == 425 && SYS_io_uring_register == 427, "three in a row");

static int refuse_io_uring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_io_uring_setup, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_io_uring_register, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0)
        return 0;
    /* An unprivileged process may do it if its children cannot gain rights. */
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
               ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)
               : -1;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: no_uring PROGRAM [ARGUMENT...]\n");
        return EXIT_NOT_RUN;
    }
    if (refuse_io_uring() != 0) {
        fprintf(stderr, "no_uring: a seccomp filter is not permitted: %s\n", strerror(errno));
        return EXIT_NOT_RUN;
    }
    execvp(argv[1], argv + 1);
    fprintf(stderr, "no_uring: %s: %s\n", argv[1], strerror(errno));
    return EXIT_NOT_RUN;
}
