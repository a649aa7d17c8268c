/* trainer_environment.c - the environment of a run's ranks.
 *
 * Goal: a checkpoint records host, libraries and variables, no secret, and the ranks that differ
 * from rank 0, in bounded bytes. A change that may alter bits gives one line. Method: ranks that
 * are threads, with other kernels each; variables that are set here; pairs of environments. */
#include "tests/unit/suite.h"
#include "trainer/comm/comm.h"
#include "trainer/record/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *kept; /* by rank 0 */

/* Two are like rank 0; of 15 each is another. */
static const char *kernels_of(uint32_t rank, char out[32], uint32_t size)
{
    snprintf(out, 32, "kernels %u", size > 4 ? rank : rank == 1 || rank == 3);
    return out;
}

static int rank_main(struct comm *world, void *user)
{
    char kernels[32], *text = NULL;
    int rc = environment_gather(&text, world, kernels_of(world->rank, kernels, world->size));
    (void)user;
    assert_int_equal(text != NULL, world->rank == 0 && rc == 0);
    if (text != NULL)
        kept = text;
    return rc;
}

static json_t *gather(uint32_t ranks)
{
    assert_int_equal(comm_local_run(ranks, rank_main, NULL), 0);
    json_t *found = json_loads(kept, 0, NULL);
    assert_non_null(found);
    return found;
}

static void forget(json_t *found)
{
    json_decref(found);
    free(kept);
}

static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

TEST(test_environment__host_libraries_and_variables_are_kept_and_no_secret)
{
    char host[64] = "";
    setenv("NCCL_ALGO", "Ring", 1);
    setenv("NCCL_API_KEY", "do not keep", 1);
    setenv("OMP_FROM", "https://me:do not keep@here", 1);
    setenv("AWS_REGION", "do not keep", 1);
    setenv("OMPI_MCA_ess_base_vpid", "do not keep", 1);
    json_t *found = gather(1);
    const json_t *variables = json_object_get(found, "variables");
    gethostname(host, sizeof(host) - 1);
    assert_string_equal(text_at(json_object_get(found, "hosts"), host), "0");
    assert_non_null(
        strstr(text_at(json_object_get(found, "libraries"), "libc"), "libc.so.6, build "));
    assert_non_null(strstr(text_at(found, "command"), "trainer_environment"));
    assert_int_equal(strlen(text_at(found, "program")), 16);
    assert_string_equal(text_at(variables, "NCCL_ALGO"), "Ring");
    assert_null(strstr(kept, "do not keep"));
    assert_null(json_object_get(found, "ranks"));
    assert_null(json_object_get(found, "left_out"));
    forget(found);
}

TEST(test_environment__ranks_that_differ_from_rank_0_are_named)
{
    char host[64] = "";
    json_t *found = gather(4);
    const json_t *ranks = json_object_get(found, "ranks");
    gethostname(host, sizeof(host) - 1);
    assert_string_equal(text_at(json_object_get(found, "hosts"), host), "0-3");
    assert_int_equal(json_object_size(ranks), 1);
    assert_string_equal(text_at(json_object_get(ranks, "1,3"), "kernels"), "kernels 1");
    assert_int_equal(json_object_size(json_object_get(ranks, "1,3")), 1);
    forget(found);
}

TEST(test_environment__its_bytes_are_bounded)
{
    static char value[100000];
    char name[32];
    memset(value, 'x', sizeof(value) - 1);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "HOLDFAST_LONG_%d", i);
        setenv(name, value, 1);
    }
    json_t *found = gather(15);
    assert_in_range(strlen(kept), 10000, 30000);
    const json_t *ranks = json_object_get(found, "ranks");
    assert_int_equal(json_object_size(ranks), ENVIRONMENT_OTHERS_MAX);
    assert_string_equal(text_at(json_object_get(ranks, "8"), "kernels"), "kernels 8");
    /* Some 9 of the variables, and the 6 ranks that are not described. */
    assert_in_range(json_integer_value(json_object_get(found, "left_out")), 6 + 8, 6 + 12);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "HOLDFAST_LONG_%d", i);
        unsetenv(name);
    }
    forget(found);
}

static void changed(const char *own, const char *stored, const char *want)
{
    char line[ENVIRONMENT_LINE_MAX];
    json_t *now = json_loads(own, JSON_DECODE_ANY, NULL),
           *then = json_loads(stored, JSON_DECODE_ANY, NULL);
    assert_int_equal(environment_changes(line, now, then), want[0] != '\0');
    assert_string_equal(line, want);
    json_decref(now);
    json_decref(then);
}

TEST(test_environment__a_change_is_said_where_it_may_alter_bits)
{
    changed(
        "{\"cpu\":\"A\",\"libraries\":{\"libm\":\"2\",\"libmpi\":\"x\"},\"command\":\"a\"}",
        "{\"cpu\":\"A\",\"libraries\":{\"libm\":\"1\"},\"command\":\"b\",\"hosts\":{\"c\":\"0\"}}",
        "libraries.libm was \"1\", now \"2\"");
    changed("{\"cpu\":\"A\",\"variables\":{\"LD_PRELOAD\":\"p\",\"HOLDFAST_X\":\"1\"}}",
            "{\"cpu\":\"B\",\"variables\":{}}",
            "cpu was \"B\", now \"A\"; variables.LD_PRELOAD was nothing, now \"p\"");
    changed("{\"cpu\":\"A\"}", "null", ""); /* of an older program */
}

SUITE(NULL, NULL)
