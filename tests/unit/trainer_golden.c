/* trainer_golden.c - the bits of runs that exist stay as they are.
 *
 * Goal: a change of the trainer or of the kernels leaves every loss and every gradient norm of four
 * runs as they were recorded, to the last bit; initial weights and the tables of rotary embedding
 * too. Two of them have training.numerics = 1: they were recorded before there was a choice.
 * Method: tests/golden/losses has a configuration, a tokens file and the recorded loss file per
 * run; `kernels.backend = "reference"` keeps libraries and vector code out. The C library's
 * functions of mathematics are not replaced: their bits differ between versions. A digest of them
 * detects another libm, for which nothing was recorded; then the tests are skipped (77). */
#include "proto/base/checksum.h"
#include "tests/unit/shell.h"
#include "tests/unit/suite.h"
#include "tests/unit/trainer_bed.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define FOLDER "tests/golden/losses"
#define VOCAB 320
#define SEED 7
#define ROPE_SEQ 64
#define PROBES 4096

/* Recorded with glibc 2.36. */
#define LIBM_DIGEST UINT64_C(0xa158752778752a08)
#define WEIGHTS_DIGEST UINT64_C(0x421f10a3b38b2592)
#define ROPE_DIGEST UINT64_C(0xd0961f0beba32bef)

/* The trainer's calls and the plain kernels, at arguments of realistic size. */
static uint64_t digest_of_libm(void)
{
    static double values[PROBES][5];
    for (int i = 0; i < PROBES; i++) {
        double x = (i + 0.5) / PROBES;
        values[i][0] = exp(-20 * x);
        values[i][1] = log(x);
        values[i][2] = pow(500000.0, -x);
        values[i][3] = cos(6.5 * x);
        values[i][4] = sin(100 * x);
    }
    return checksum_bytes(values, sizeof(values));
}

static void check_digest(const char *what, uint64_t got, uint64_t want)
{
    if (got != want)
        fail_msg("%s: digest %016" PRIx64 ", recorded was %016" PRIx64, what, got, want);
}

TEST(test_golden__initial_weights_have_the_recorded_bits)
{
    struct model_table *table;
    assert_int_equal(new_table(&table, "tiny", VOCAB), 0);
    uint64_t digest = 0;
    for (uint32_t i = 0; i < table->num_tensors; i++) {
        const struct model_tensor *tensor = &table->tensors[i];
        size_t count = tensor->rows * tensor->width;
        float *values = malloc(count * sizeof(*values));
        model_init_box(values, tensor, &(struct box){.extent = {tensor->rows, tensor->width}},
                       SEED);
        digest = checksum_seeded(values, count * sizeof(*values), digest);
        free(values);
    }
    model_table_free(table);
    check_digest("initial weights", digest, WEIGHTS_DIGEST);
}

TEST(test_golden__rope_tables_have_the_recorded_bits)
{
    float table[2][ROPE_SEQ * 64];
    uint64_t digest = 0;
    static const struct {
        uint32_t head_dim;
        double theta;
    } cases[] = {{16, 500000.0}, {128, 10000.0}, {64, 500000.0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t bytes = ROPE_SEQ * cases[i].head_dim / 2 * sizeof(float);
        struct model_shape shape = {.head_dim = cases[i].head_dim, .rope_theta = cases[i].theta};
        double frequencies[64];
        model_shape_frequencies(frequencies, &shape);
        kernel_rope_table(table[0], table[1], ROPE_SEQ, cases[i].head_dim, frequencies);
        digest = checksum_seeded(table[0], bytes, digest);
        digest = checksum_seeded(table[1], bytes, digest);
    }
    check_digest("tables of rotary embedding", digest, ROPE_DIGEST);
}

static size_t read_file(char *out, size_t size, const char *path)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_msg("could not open %s", path);
    size_t got = fread(out, 1, size - 1, file);
    out[got] = '\0';
    fclose(file);
    return got;
}

static void check_run(const char *name)
{
    char folder[] = "/tmp/golden-XXXXXX", path[64], want[4096], got[4096];
    const char *build = getenv("BUILD");
    assert_non_null(mkdtemp(folder));
    shell("%s/trainer --config " FOLDER "/%s.toml --metrics.loss_file %s/loss >%s/log 2>&1 ||"
          " { cat %s/log; false; }",
          build != NULL ? build : "build", name, folder, folder, folder);
    snprintf(path, sizeof(path), FOLDER "/%s.txt", name);
    assert_true(read_file(want, sizeof(want), path) > 0);
    snprintf(path, sizeof(path), "%s/loss", folder);
    read_file(got, sizeof(got), path);
    shell("rm -r %s", folder);
    if (strcmp(got, want) != 0)
        fail_msg("%s: the losses were\n%s\nand are\n%s", name, want, got);
}

/* One rank in float32, three shards in bfloat16, two replicas of two shards, a tied model. */
TEST(test_golden__runs_have_the_recorded_losses)
{
    check_run("one");
    check_run("fsdp");
    check_run("hsdp");
    check_run("tied");
}

int main(void)
{
    if (digest_of_libm() != LIBM_DIGEST) {
        printf("another libm (digest %016" PRIx64 "): nothing is recorded for it\n",
               digest_of_libm());
        return 77;
    }
    return suite_run(NULL, NULL);
}
