/* stacks.c - where the threads of this process are (see stacks.h).
 *
 * What handlers call is safe there: write, tgkill, nanosleep, prctl and atomics. backtrace() is,
 * too, once it has loaded libgcc, for which stacks_start() calls it: it finds tables without a lock
 * (_dl_find_object). backtrace_symbols_fd() allocates nothing. */
#include "proto/base/stacks.h"
#include "proto/base/sanitized.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RANK_NONE (-1)
#define RANK_MANY (-2)
#define MEMBERS_MAX 1024 /* threads; one more is not asked */
#define FRAMES_MAX 64
#define STACK_BYTES 65536  /* of a handler, beside the registers that the kernel saves */
#define ANSWER_ROUNDS 1000 /* milliseconds that a thread is waited for */

struct member {
    atomic_int tid; /* 0: free; -1: being filled or emptied */
    atomic_int rank;
    void *stack;
    size_t bytes;
};

static struct member members[MEMBERS_MAX];
static pthread_key_t key;
static atomic_bool is_started;
static atomic_int asked;                 /* thread that is to print; 0: it has */
static atomic_int crashed;               /* the first thread that did; 0: none */
static atomic_int only_rank = RANK_NONE; /* that threads of this process have said */
static _Thread_local struct member *mine;

static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static const char *const crash_names[] = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"};
#define NUM_CRASHES (sizeof(crashes) / sizeof(crashes[0]))

static int asking_signal(void)
{
    return SIGRTMIN + 3;
}

static int own_tid(void)
{
    return (int)syscall(SYS_gettid);
}

/* ---- what a handler prints ---- */

struct line {
    char text[256];
    size_t length;
};

static void put(struct line *line, const char *text)
{
    for (; *text != '\0' && line->length < sizeof(line->text); text++)
        line->text[line->length++] = *text;
}

static void put_number(struct line *line, int number)
{
    char digits[16];
    size_t at = sizeof(digits) - 1;
    digits[at] = '\0';
    do
        digits[--at] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    put(line, digits + at);
}

static void print_line(const struct line *line)
{
    ssize_t written = write(STDERR_FILENO, line->text, line->length);
    (void)written; /* there is nobody else to tell */
}

/* "process 4700, thread 4711 (gather) of rank 3: REASON" and its frames. */
static void print_own_stack(const char *reason)
{
    void *frames[FRAMES_MAX];
    char name[17] = "";
    struct line line = {.length = 0};
    prctl(PR_GET_NAME, name);
    put(&line, "process ");
    put_number(&line, (int)getpid());
    put(&line, ", thread ");
    put_number(&line, own_tid());
    put(&line, " (");
    put(&line, name);
    put(&line, ")");
    int rank = mine != NULL && mine->rank >= 0 ? mine->rank : only_rank;
    if (rank >= 0) {
        put(&line, " of rank ");
        put_number(&line, rank);
    }
    put(&line, ": ");
    put(&line, reason);
    put(&line, "\n");
    print_line(&line);
    backtrace_symbols_fd(frames, backtrace(frames, FRAMES_MAX), STDERR_FILENO);
}

static void on_asked(int number)
{
    int saved = errno;
    int tid = own_tid();
    (void)number;
    if (asked == tid) {
        print_own_stack("is here");
        atomic_compare_exchange_strong(&asked, &tid, 0);
    }
    errno = saved;
}

/* Of a thread that does not answer, as one in a call of a file system that hangs, its name is
 * printed by who asks. */
static bool ask(const struct member *member)
{
    int tid = member->tid;
    if (tid <= 0 || tid == own_tid())
        return true;
    asked = tid;
    if (syscall(SYS_tgkill, getpid(), tid, asking_signal()) != 0)
        return true; /* it has ended */
    for (int i = 0; i < ANSWER_ROUNDS && asked == tid && member->tid == tid; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (asked != tid || member->tid != tid)
        return true;
    struct line line = {.length = 0};
    put(&line, "thread ");
    put_number(&line, tid);
    put(&line, " does not answer\n");
    print_line(&line);
    return false;
}

/* So that a crash ends soon, one thread that does not answer ends the round. */
static void ask_all(bool is_crash)
{
    for (size_t i = 0; i < MEMBERS_MAX; i++)
        if (!ask(&members[i]) && is_crash)
            break;
    asked = 0;
}

/* ---- a crash ---- */

/* The handler is reset already. A fault that is the thread's own comes again when it returns, and
 * abort() goes on by itself; a signal that was sent must be sent again. */
static void on_crash(int number, siginfo_t *info, void *context)
{
    int none = 0;
    const char *name = "";
    (void)context;
    for (size_t i = 0; i < NUM_CRASHES; i++)
        name = crashes[i] == number ? crash_names[i] : name;
    if (atomic_compare_exchange_strong(&crashed, &none, own_tid())) {
        print_own_stack(name);
        ask_all(true);
    } else {
        nanosleep(&(struct timespec){.tv_sec = 2}, NULL); /* the first one ends the process */
    }
    if (info->si_code <= 0)
        raise(number);
}

static void catch_crashes(void)
{
    struct sigaction action = {.sa_sigaction = on_crash,
                               .sa_flags = SA_SIGINFO | SA_ONSTACK | (int)SA_RESETHAND};
    sigfillset(&action.sa_mask);
    for (size_t i = 0; i < NUM_CRASHES; i++)
        sigdelset(&action.sa_mask, crashes[i]); /* one within the handler ends the process */
    for (size_t i = 0; i < NUM_CRASHES; i++)
        sigaction(crashes[i], &action, NULL);
}

/* ---- members ---- */

static void leave(void *user)
{
    struct member *member = user;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, asking_signal());
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    member->tid = -1;
    sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
    munmap(member->stack, member->bytes);
    mine = NULL;
    member->tid = 0;
}

void stacks_start(void)
{
    void *frame;
    struct sigaction action = {.sa_handler = on_asked, .sa_flags = SA_ONSTACK | SA_RESTART};
    (void)backtrace(&frame, 1);
    sigfillset(&action.sa_mask);
    for (size_t i = 0; i < NUM_CRASHES; i++)
        sigdelset(&action.sa_mask, crashes[i]);
    if (pthread_key_create(&key, leave) != 0 || sigaction(asking_signal(), &action, NULL) != 0)
        return;
    if (!IS_SANITIZED)
        catch_crashes();
    is_started = true;
}

static struct member *take_member(void)
{
    for (size_t i = 0; i < MEMBERS_MAX; i++) {
        int none = 0;
        if (atomic_compare_exchange_strong(&members[i].tid, &none, -1))
            return &members[i];
    }
    return NULL;
}

static bool fill_member(struct member *member)
{
    sigset_t set;
    member->bytes = STACK_BYTES + (size_t)getauxval(AT_MINSIGSTKSZ);
    member->stack =
        mmap(NULL, member->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (member->stack == MAP_FAILED)
        return false;
    if (sigaltstack(&(stack_t){.ss_sp = member->stack, .ss_size = member->bytes}, NULL) != 0) {
        munmap(member->stack, member->bytes);
        return false;
    }
    mine = member;
    pthread_setspecific(key, member);
    member->tid = own_tid();
    sigemptyset(&set);
    sigaddset(&set, asking_signal());
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    return true;
}

void stacks_join(int rank)
{
    if (!is_started)
        return;
    struct member *member = mine != NULL ? mine : take_member();
    if (member == NULL)
        return;
    member->rank = rank;
    int none = RANK_NONE;
    if (rank >= 0 && !atomic_compare_exchange_strong(&only_rank, &none, rank) && none != rank)
        only_rank = RANK_MANY;
    if (mine == NULL && !fill_member(member))
        member->tid = 0;
}

/* ---- all ---- */

static bool is_member(int tid)
{
    for (size_t i = 0; i < MEMBERS_MAX; i++)
        if (members[i].tid == tid)
            return true;
    return false;
}

static void print_name(int tid)
{
    char path[64], name[32] = "";
    snprintf(path, sizeof(path), "/proc/self/task/%d/comm", tid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    if (fgets(name, sizeof(name), file) != NULL)
        name[strcspn(name, "\n")] = '\0';
    fclose(file);
    dprintf(STDERR_FILENO, "process %d, thread %d (%s): is not asked\n", (int)getpid(), tid, name);
}

void stacks_dump_all(const char *reason)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    dprintf(STDERR_FILENO, "stacks of process %d: %s\n", (int)getpid(), reason);
    if (mine != NULL)
        print_own_stack("asks the others");
    ask_all(false);
    DIR *tasks = opendir("/proc/self/task");
    for (const struct dirent *entry = NULL; tasks != NULL && (entry = readdir(tasks)) != NULL;) {
        int tid = atoi(entry->d_name);
        if (tid > 0 && tid != own_tid() && !is_member(tid))
            print_name(tid);
    }
    if (tasks != NULL)
        closedir(tasks);
    pthread_mutex_unlock(&lock);
}
