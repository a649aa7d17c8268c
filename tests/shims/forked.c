/* forked.c - a program that is loaded once and run many times: most commands of ckpt-cli take a
 * fifth of the time that loading its libraries takes.
 *
 *     LD_PRELOAD=build/shims/forked.so FORKED_SOCKET=fd FORKED_PRELOAD=what-else ckpt-cli
 *
 * Before main() it takes requests from that socket, one at a time: a packet of arguments, each
 * with its NUL, the program's name first, and with it two descriptors. A forked process runs
 * main() with these arguments, on these as its stdout and stderr; its wait status is the answer.
 * It ends with this process, and this one when the socket is closed. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS_MAX 256
#define REQUEST_BYTES_MAX (128 * 1024)

typedef int (*program)(int, char **, char **);

static program its_main;
static char request[REQUEST_BYTES_MAX];

/* The bytes of a request, with its descriptors; 0 at the end. */
static size_t receive(int socket, int fds[2])
{
    union {
        char space[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {request, sizeof request};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.space,
                             .msg_controllen = sizeof control.space};
    ssize_t bytes = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (bytes == 0)
        return 0;
    const struct cmsghdr *header = bytes > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header == NULL || header->cmsg_len != CMSG_LEN(2 * sizeof(int)) ||
        (message.msg_flags & MSG_TRUNC) != 0 || request[bytes - 1] != '\0')
        abort(); /* or the test would test nothing */
    memcpy(fds, CMSG_DATA(header), 2 * sizeof(int));
    return (size_t)bytes;
}

static int run(int socket, const int fds[2], size_t bytes, char **environment)
{
    static char *words[WORDS_MAX + 1];
    int num = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(socket);
    if (dup2(fds[0], STDOUT_FILENO) < 0 || dup2(fds[1], STDERR_FILENO) < 0)
        abort();
    close(fds[0]);
    close(fds[1]);
    for (char *word = request; word < request + bytes; word += strlen(word) + 1) {
        if (num == WORDS_MAX)
            abort();
        words[num++] = word;
    }
    return its_main(num, words, environment);
}

static int serve(int argc, char **argv, char **environment)
{
    (void)argc;
    (void)argv;
    int socket = atoi(getenv("FORKED_SOCKET")), fds[2], status;
    unsetenv("FORKED_SOCKET"); /* for child processes of the program */
    unsetenv("LD_PRELOAD");
    if (getenv("FORKED_PRELOAD") != NULL)
        setenv("LD_PRELOAD", getenv("FORKED_PRELOAD"), 1);
    unsetenv("FORKED_PRELOAD");
    for (size_t bytes; (bytes = receive(socket, fds)) > 0;) {
        pid_t pid = fork();
        if (pid == 0)
            return run(socket, fds, bytes, environment);
        close(fds[0]);
        close(fds[1]);
        while (waitpid(pid, &status, 0) < 0) {
            if (errno != EINTR)
                abort();
        }
        if (send(socket, &status, sizeof status, MSG_NOSIGNAL) < 0)
            break;
    }
    _exit(0);
}

int __libc_start_main(program main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*end)(void), void *stack);

int __libc_start_main(program main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*end)(void), void *stack)
{
    int (*next)(program, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    its_main = main;
    return next(getenv("FORKED_SOCKET") != NULL ? serve : main, argc, argv, init, fini, end, stack);
}
