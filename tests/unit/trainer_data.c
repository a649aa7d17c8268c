/* trainer_data.c - tokens files and the order of samples.
 *
 * Goal: the tokens read are those that were encoded. Every epoch visits every sample once, in an
 * order that depends on seed and epoch alone. A file with any error is refused. Method: a file of
 * format 1, written here, of tokens that a function computes, and read back; exhaustive bijection
 * checks for all sizes from 1 to 2000; fields of the header, and a token, changed in turn. Other
 * damage of a file: trainer_tokens_file.c. */
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/data/data.h"
#include "trainer/data/leaves.h"
#include "trainer/data/order.h"
#include "trainer/data/tokens_file.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES 2002 /* with both special tokens: 2004 tokens */
#define TOKENIZER "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define SEQ 3
#define HEADER_BYTES 4096

static char path[80];

static unsigned char text_byte(uint32_t index)
{
    return (unsigned char)(index * 7 + index / 251);
}

/* begin_of_text, bytes, end_of_text. */
static int32_t want_token(uint64_t position)
{
    if (position == 0)
        return 256;
    return position > TEXT_BYTES ? 257 : text_byte((uint32_t)position - 1);
}

/* With one changed byte that checksums do not detect: the header's checksum is recomputed. */
static void write_tokens(size_t at, unsigned char flip)
{
    static union {
        struct {
            struct tokens_header header;
            uint16_t tokens[TEXT_BYTES + 2];
        };
        unsigned char bytes[HEADER_BYTES + 2 * (TEXT_BYTES + 2)];
    } of;
    of.header = (struct tokens_header){.magic = TOKENS_MAGIC,
                                       .version = 1,
                                       .header_bytes = HEADER_BYTES,
                                       .token_bytes = 2,
                                       .vocab = 258,
                                       .num_tokens = TEXT_BYTES + 2};
    memcpy(of.header.tokenizer_hash, TOKENIZER, 64);
    for (uint32_t i = 0; i < TEXT_BYTES + 2; i++)
        of.tokens[i] = (uint16_t)want_token(i);
    of.header.hash = checksum_bytes(of.tokens, sizeof of.tokens);
    of.bytes[at] ^= flip;
    of.header.header_hash = checksum_bytes(&of.header, HEADER_BYTES - 8);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(&of, sizeof of, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

static int setup(void **state)
{
    const char *tmp = getenv("TMPDIR");
    (void)state;
    snprintf(path, sizeof(path), "%s/tokens", tmp != NULL ? tmp : "/tmp");
    write_tokens(0, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

TEST(test_data__reads_back_what_was_written_in_permuted_order)
{
    struct data *data;
    int32_t inputs[5 * SEQ], targets[5 * SEQ];
    assert_int_equal(data_open(&data, path, SEQ, 42), 0);
    const struct data_info *info = data_info(data);
    assert_int_equal(info->num_tokens, TEXT_BYTES + 2);
    assert_int_equal(info->num_samples,
                     (TEXT_BYTES + 1) / SEQ); /* the last partial one is dropped */
    assert_int_equal(info->vocab, 258);
    assert_string_equal(info->tokenizer_hash, TOKENIZER);
    for (uint64_t first = 0; first < 3 * info->num_samples; first += 5) {
        assert_int_equal(data_read(data, first, 5, &(struct data_batch){inputs, targets, NULL}), 0);
        for (uint64_t i = 0; i < 5 * SEQ; i++) {
            uint64_t position = data_permute(data, first + i / SEQ) * SEQ + i % SEQ;
            assert_int_equal(inputs[i], want_token(position));
            assert_int_equal(targets[i], want_token(position + 1));
        }
    }
    data_close(data);
}

TEST(test_data__every_epoch_is_a_permutation_for_every_size)
{
    const uint64_t epochs[] = {0, 1, 1000003};
    for (uint32_t size = 1; size <= 2000; size++) {
        struct order order;
        assert_true(order_init(&order, size, size));
        for (size_t i = 0; i < sizeof(epochs) / sizeof(epochs[0]); i++) {
            bool is_seen[2000] = {false};
            for (uint64_t draw = 0; draw < size; draw++) {
                uint64_t at = order_permute(&order, epochs[i] * size + draw);
                assert_true(at < size && !is_seen[at]);
                is_seen[at] = true;
            }
        }
    }
}

/* Lines "SEED SAMPLES FIRST COUNT: SAMPLE SAMPLE ...", made by clients/examples/sample_order.py. */
TEST(test_data__the_order_is_the_one_that_is_documented)
{
    unsigned long long seed, samples, first, count, want;
    uint32_t lines = 0;
    FILE *file = fopen("tests/golden/sample_order.txt", "re");
    assert_non_null(file);
    while (fscanf(file, "%llu %llu %llu %llu:", &seed, &samples, &first, &count) == 4) {
        struct order order;
        assert_true(order_init(&order, seed, samples));
        for (uint64_t i = 0; i < count; i++) {
            assert_int_equal(fscanf(file, "%llu", &want), 1);
            assert_int_equal(order_permute(&order, first + i), want);
        }
        lines++;
    }
    fclose(file);
    assert_int_equal(lines, 4);
}

TEST(test_data__every_draw_of_a_mixture_is_of_one_source)
{
    static const uint64_t weights[] = {700000, 0, 1, 250000, 49999};
    uint64_t counts[5] = {0}, draws[5], index;
    for (uint64_t n = 0; n < 20000; n++) {
        order_draws(draws, weights, 5, n);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(draws[i], counts[i]);
            double share = (double)n * (double)weights[i] / 1e6;
            assert_true((double)draws[i] > share - 5 && (double)draws[i] < share + 5);
        }
        uint32_t source = order_source(weights, 5, n, &index);
        assert_true(source < 5 && weights[source] > 0);
        assert_int_equal(index, counts[source]++);
    }
}

/* Random permutations agree in about one place. */
TEST(test_data__the_order_depends_on_seed_and_epoch)
{
    enum { SAMPLES = 2003 };
    struct order order, other;
    uint32_t alike[4] = {0}; /* to another seed, to another epoch, to no order, to a cyclic one */
    assert_true(order_init(&order, 5, SAMPLES));
    assert_true(order_init(&other, 6, SAMPLES));
    for (uint64_t i = 0; i < SAMPLES; i++) {
        uint64_t at = order_permute(&order, i);
        alike[0] += at == order_permute(&other, i);
        alike[1] += at == order_permute(&order, SAMPLES + i);
        alike[2] += at == i;
        alike[3] += at + 1 == order_permute(&order, i + 1);
    }
    for (int i = 0; i < 4; i++)
        assert_true(alike[i] < 10);
}

static bool is_proving(void)
{
    glob_t tasks;
    bool is_found = false;
    assert_int_equal(glob("/proc/self/task/*/comm", 0, NULL, &tasks), 0);
    for (size_t i = 0; i < tasks.gl_pathc && !is_found; i++) {
        char name[32] = "";
        FILE *file = fopen(tasks.gl_pathv[i], "re");
        if (file == NULL)
            continue; /* it has ended */
        is_found = fgets(name, sizeof(name), file) != NULL && strcmp(name, "data-proof\n") == 0;
        fclose(file);
    }
    globfree(&tasks);
    return is_found;
}

/* The result of reads from the file after the thread that verifies all of it has ended. */
static int prove(struct data *data)
{
    int32_t inputs[SEQ], targets[SEQ];
    int result = data_prove(data);
    while (result == 0 && is_proving())
        usleep(1000);
    return result != 0 ? result
                       : data_read(data, 0, 1, &(struct data_batch){inputs, targets, NULL});
}

TEST(test_data__fields_and_tokens_that_do_not_fit_are_refused)
{
    struct data *data;
    const struct {
        size_t at;
        int want;
    } cases[] = {
        {HEADER_BYTES - 1, 0}, /* the checksum, made anew */
        {0, ERR_CORRUPT},      /* magic */
        {8, ERR_VERSION},      /* version */
        {13, ERR_CORRUPT},     /* size of the header */
        {16, ERR_CORRUPT},     /* bytes of a token */
        {23, ERR_CORRUPT},     /* vocabulary too large */
        {24, ERR_CORRUPT},     /* number of tokens */
        {31, ERR_CORRUPT},     /* its high byte: no overflow */
        {32, ERR_CORRUPT},     /* hash of the tokens */
        {40, ERR_CORRUPT},     /* hash of the tokenizer: no hexadecimal digit */
        {4100, ERR_CORRUPT}    /* a token */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_tokens(cases[i].at, 0xff);
        int result = data_open(&data, path, SEQ, 1);
        if (result == 0) {
            result = prove(data);
            data_close(data);
        }
        assert_int_equal(result, cases[i].want);
    }
    write_tokens(0, 0);
}

TEST(test_data__open_refuses_short_and_missing_files)
{
    struct data *data;
    assert_int_equal(data_open(&data, "/nowhere/tokens", SEQ, 1), ERR_NOT_FOUND);
    assert_non_null(strstr(report_line(), "/nowhere/tokens"));
    assert_int_equal(data_open(&data, path, TEXT_BYTES + 1, 1), 0);
    data_close(data);
    assert_int_equal(data_open(&data, path, TEXT_BYTES + 2, 1), ERR_INVALID);
    assert_non_null(strstr(report_line(), "training.seq_len"));
}

TEST(test_data__read_reports_a_file_that_shrinks)
{
    struct data *data;
    int32_t inputs[SEQ], targets[SEQ];
    assert_int_equal(data_open(&data, path, SEQ, 1), 0);
    assert_int_equal(truncate(path, HEADER_BYTES), 0);
    assert_int_equal(data_read(data, 0, 1, &(struct data_batch){inputs, targets, NULL}),
                     ERR_CORRUPT);
    data_close(data);
    assert_int_equal(truncate(path, 8), 0);
    assert_int_equal(data_open(&data, path, SEQ, 1), ERR_CORRUPT);
    write_tokens(0, 0);
}

/* Steps of up to 12 leaves in every number of groups, on up to 4 x 4 data ranks. */
static void want_each_leaf_once(const struct leaves *l)
{
    uint32_t seen[12] = {0}, rank, step;
    for (uint32_t r = 0; r < l->replicas * l->shards; r++)
        for (uint32_t i = 0; i < leaves_micro_steps(l); i++) {
            uint32_t leaf = leaves_at(l, r, i);
            if (leaf == LEAF_NONE)
                continue;
            seen[leaf]++;
            leaves_find(l, leaf, &rank, &step);
            assert_true(rank == r && step == i);
            /* A group stays within its replica, and in its round. */
            uint32_t group = leaf / (l->num / l->groups);
            assert_true(l->groups == 1 || (group % l->replicas == r / l->shards &&
                                           group / l->replicas == i / leaves_round(l)));
        }
    for (uint32_t leaf = 0; leaf < l->num; leaf++)
        assert_int_equal(seen[leaf], 1);
}

TEST(test_leaves__each_has_one_rank_and_micro_step)
{
    for (uint32_t i = 0; i < 12 * 12 * 4 * 4; i++) {
        struct leaves l = {1 + i % 12, 1 + i / 12 % 12, 1 + i / 144 % 4, 1 + i / 576};
        if (l.num % l.groups == 0)
            want_each_leaf_once(&l);
    }
}

SUITE(setup, teardown)
