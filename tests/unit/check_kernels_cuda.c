/* check_kernels_cuda.c - the .cu files on lanes of a CPU have no race and no access out of
 * bounds.
 *
 * Goal: two accesses without a barrier between them, and one past a tensor, are reported with the
 * lines of the .cu file, in any order of threads. The kernels of kernels/cuda cause no report.
 * Method: build/cuda/racecheck and memcheck (tests/cuda/checked.c), kernels that are wrong on
 * purpose first. Only in builds without SANITIZER, where these two are built. */

#include "tests/unit/suite.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char said[1 << 16];

/* The exit status of a program below build/cuda; `said` is its output. */
static int run(const char *program, const char *words)
{
    char command[1024];
    const char *build = getenv("BUILD");
    snprintf(command, sizeof(command), "%s/cuda/%s %s 2>&1", build ? build : "build", program,
             words);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t got = fread(said, 1, sizeof(said) - 1, pipe);
    said[got] = '\0';
    while (fgetc(pipe) != EOF)
        continue;
    return pclose(pipe);
}

static void reported(const char *program, const char *fault, const char *what)
{
    char words[128];
    snprintf(words, sizeof(words), "fault %s", fault);
    int status = run(program, words);
    if (status == 0 || !strstr(said, what) || !strstr(said, "faulty.cu:"))
        fail_msg("%s: expected \"%s\" and a line of faulty.cu, got status %d and: %s", fault, what,
                 status, said);
}

static void silent(const char *program, const char *words)
{
    if (run(program, words) != 0)
        fail_msg("%s %s: %s", program, words, said);
}

TEST(test_racecheck__accesses_that_no_barrier_orders_are_reported)
{
    const char *races[] = {"no_barrier", "shuffle_as_a_barrier", "copy_over_what_is_read",
                           "blocks_write_the_same_value", "result_of_the_order_of_blocks"};
    for (size_t i = 0; i < sizeof(races) / sizeof(races[0]); i++)
        reported("racecheck", races[i], "WARNING: ThreadSanitizer: data race");
    silent("racecheck", "fault none");
}
TEST(test_memcheck__an_access_past_a_tensor_is_reported)
{
    reported("memcheck", "read_past_the_end", "ERROR: AddressSanitizer: heap-buffer-overflow");
    silent("memcheck", "fault none");
}
TEST(test_racecheck__the_kernels_have_no_race)
{
    silent("racecheck", "cases");
}
TEST(test_memcheck__the_kernels_stay_within_their_tensors)
{
    silent("memcheck", "cases");
}

int main(void)
{
    char path[512];
    const char *build = getenv("BUILD");
    snprintf(path, sizeof(path), "%s/cuda/racecheck", build ? build : "build");
    if (access(path, X_OK) != 0) {
        printf("no %s: it is built without SANITIZER\n", path);
        return 77;
    }
    return suite_run(NULL, NULL);
}
