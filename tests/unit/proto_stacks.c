/* proto_stacks.c - stacks of threads, when asked and in a crash.
 *
 * Goal: each thread that has joined prints its stack and continues with unchanged memory, also
 * below its stack pointer. A crash prints, and ends the process by its own signal. Method: stderr
 * is a file; a child crashes. */
#include "proto/base/sanitized.h"
#include "proto/base/stacks.h"
#include "tests/unit/suite.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define BELOW 8192u /* bytes below the stack pointer that are looked at */

static atomic_bool is_ready, may_go;
static size_t num_changed;

/* Makes no call between the first store and the last check. */
static void *keep_below(void *user)
{
    (void)user;
    prctl(PR_SET_NAME, "keeps-below");
    stacks_join(3);
    volatile unsigned char *below = (unsigned char *)__builtin_frame_address(0) - 1024 - BELOW;
    for (size_t i = 0; i < BELOW; i++)
        below[i] = (unsigned char)(i * 7);
    is_ready = true;
    while (!may_go)
        ;
    for (size_t i = 0; i < BELOW; i++)
        num_changed += below[i] != (unsigned char)(i * 7);
    return NULL;
}

/* Runs fn with stderr in a file, whose text it returns, to be freed. */
static char *said_by(void (*fn)(void))
{
    FILE *file = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_true(file != NULL && saved >= 0);
    dup2(fileno(file), STDERR_FILENO);
    fn();
    dup2(saved, STDERR_FILENO);
    close(saved);
    long length = (fseek(file, 0, SEEK_END), ftell(file));
    char *text = calloc(1, (size_t)length + 1);
    rewind(file);
    assert_int_equal(fread(text, 1, (size_t)length, file), (size_t)length);
    fclose(file);
    return text;
}

static void dump(void)
{
    stacks_dump_all("a test asks");
}

TEST(test_stacks__a_thread_prints_where_it_is_and_goes_on_untouched)
{
    pthread_t thread;
    if (IS_SANITIZED)
        skip(); /* the memory beside a frame is not ours then */
    assert_int_equal(pthread_create(&thread, NULL, keep_below, NULL), 0);
    while (!is_ready)
        usleep(1000);
    char *text = said_by(dump);
    char *second = said_by(dump);
    may_go = true;
    pthread_join(thread, NULL);
    assert_int_equal(num_changed, 0);
    const char *at = strstr(text, "(keeps-below) of rank 3: is here\n");
    assert_non_null(at);
    assert_non_null(strstr(at, "proto_stacks(+0x"));
    assert_non_null(strstr(second, "(keeps-below) of rank 3: is here\n"));
    free(text);
    free(second);
    text = said_by(dump);
    assert_null(strstr(text, "keeps-below")); /* it has ended */
    free(text);
}

static int crash_status;
static int *volatile nowhere;

static void crash(void)
{
    pid_t child = fork();
    if (child == 0) {
        stacks_start(); /* cmocka has its own handlers */
        stacks_join(5);
        *nowhere = 1;
        _exit(0);
    }
    waitpid(child, &crash_status, 0);
}

TEST(test_stacks__a_crash_prints_and_ends_by_its_own_signal)
{
    if (IS_SANITIZED)
        skip();
    char *text = said_by(crash);
    assert_true(WIFSIGNALED(crash_status) && WTERMSIG(crash_status) == SIGSEGV);
    const char *at = strstr(text, " of rank 5: SIGSEGV\n");
    assert_non_null(at);
    assert_non_null(strstr(at, "proto_stacks(+0x"));
    free(text);
}

int main(void)
{
    stacks_start();
    return suite_run(NULL, NULL);
}
