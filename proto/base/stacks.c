/* stacks.c - prints the stacks of this process's threads (see stacks.h).
 *
 * The signal handlers call only async-signal-safe functions: write, tgkill, nanosleep, prctl and
 * atomics. backtrace() is safe once it has loaded libgcc, so stacks_start() calls it: it finds
 * tables without a lock (_dl_find_object). backtrace_symbols_fd() allocates nothing. */
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
#define MEMBERS_MAX 1024 /* further threads print no stack */
#define FRAMES_MAX 64
#define STACK_BYTES 65536  /* of a handler, without the registers that the kernel saves */
#define ANSWER_ROUNDS 1000 /* milliseconds to wait for a thread */

struct member {
    atomic_int tid; /* 0: free; -1: being filled or emptied */
    atomic_int rank;
    void *stack;
    size_t bytes;
};

static struct member members[MEMBERS_MAX];
static pthread_key_t key;
static atomic_bool is_started;
static atomic_int asked;                 /* the thread that must print; 0: it has printed */
static atomic_int crashed;               /* the first thread that crashed; 0: none */
static atomic_int only_rank = RANK_NONE; /* the rank of this process's threads */
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

static void append_text(struct line *line, const char *text)
{
    for (; *text != '\0' && line->length < sizeof(line->text); text++)
        line->text[line->length++] = *text;
}

static void append_number(struct line *line, int number)
{
    char digits[16];
    size_t at = sizeof(digits) - 1;
    digits[at] = '\0';
    do
        digits[--at] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    append_text(line, digits + at);
}

static void print_line(const struct line *line)
{
    ssize_t written = write(STDERR_FILENO, line->text, line->length);
    (void)written; /* stderr has failed: the failure cannot be reported */
}

/* "process 4700, thread 4711 (gather) of rank 3: REASON" and its frames. */
static void print_own_stack(const char *reason)
{
    void *frames[FRAMES_MAX];
    char name[17] = "";
    struct line line = {.length = 0};
    prctl(PR_GET_NAME, name);
    append_text(&line, "process ");
    append_number(&line, (int)getpid());
    append_text(&line, ", thread ");
    append_number(&line, own_tid());
    append_text(&line, " (");
    append_text(&line, name);
    append_text(&line, ")");
    int rank = mine != NULL && mine->rank >= 0 ? mine->rank : only_rank;
    if (rank >= 0) {
        append_text(&line, " of rank ");
        append_number(&line, rank);
    }
    append_text(&line, ": ");
    append_text(&line, reason);
    append_text(&line, "\n");
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

/* Signals a thread and waits until it has printed. The caller prints the id of a thread that does
 * not answer, as one in a call of a hanging file system. */
static bool dump_member(const struct member *member)
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
    append_text(&line, "thread ");
    append_number(&line, tid);
    append_text(&line, " does not answer\n");
    print_line(&line);
    return false;
}

/* In a crash the first thread that does not answer ends the round, so that the process ends
 * soon. */
static void dump_members(bool is_crash)
{
    for (size_t i = 0; i < MEMBERS_MAX; i++)
        if (!dump_member(&members[i]) && is_crash)
            break;
    asked = 0;
}

/* ---- a crash ---- */

/* The handler is reset already. A fault of the thread itself comes again when the handler returns,
 * and abort() continues by itself. A signal that another process sent must be raised again. */
static void on_crash(int number, siginfo_t *info, void *context)
{
    int none = 0;
    const char *name = "";
    (void)context;
    for (size_t i = 0; i < NUM_CRASHES; i++)
        name = crashes[i] == number ? crash_names[i] : name;
    if (atomic_compare_exchange_strong(&crashed, &none, own_tid())) {
        print_own_stack(name);
        dump_members(true);
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
        sigdelset(&action.sa_mask, crashes[i]); /* a crash within the handler ends the process */
    for (size_t i = 0; i < NUM_CRASHES; i++)
        sigaction(crashes[i], &action, NULL);
}

/* ---- members ---- */

static void free_member(void *user)
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
    if (pthread_key_create(&key, free_member) != 0 ||
        sigaction(asking_signal(), &action, NULL) != 0)
        return;
    if (!IS_SANITIZED)
        catch_crashes();
    is_started = true;
}

static struct member *claim_member(void)
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
    struct member *member = mine != NULL ? mine : claim_member();
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
    dump_members(false);
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
