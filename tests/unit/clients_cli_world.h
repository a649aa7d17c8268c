/* clients_cli_world.h - the store and the models that clients_cli_bed.h runs commands on.
 *
 * A world is a store with a run of four checkpoints in two shards, and a Llama of some KiB with the
 * Hugging Face folder that it was imported from. Commands write into `out`, and into `work`, a copy
 * of the run for commands that change a store. */
#ifndef HOLDFAST_TESTS_CLIENTS_CLI_WORLD_H
#define HOLDFAST_TESTS_CLIENTS_CLI_WORLD_H

#define LARGE_WIDTH 40000u /* three blocks of output in all: only the steps matter here */
#include "tests/unit/clients_store_bed.h"
#include "tests/unit/descriptors.h"
#include "tests/unit/mark_bed.h"
#include "tests/unit/suite.h"

#include <ftw.h>
#include <jansson.h>

#define SAID_BYTES_MAX 65536

struct world {
    struct fixture fixture; /* fixture.root is the store */
    char root[256], model[300], out[300], work[300];
    int said_fd, noise_fd; /* stdout and stderr of a command */
    char said[SAID_BYTES_MAX];
    char what[160]; /* the current run and its failure, for messages */
    uint64_t store; /* the hash of its files' identities */
    /* Of the current command without a failure: its files, and its output without and with
     * --json. */
    uint64_t left;
    char said_then[2][SAID_BYTES_MAX];
    /* The ckptd that commands ask: none, a ckptd, or a ckptd for its store, as main() does first.
     * Then the addresses of the ckptds of the store and `out`, and the function that empties `out`
     * and has it served again. */
    enum { ON_DIRECTORY, ASKS, FINDS } through;
    const char *source, *target;
    void (*renew)(struct world *world);
};

/* ---- a model, and what its training wrote ---- */

static const char model_config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":8,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":16,"
    "\"vocab_size\":512,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"rope_scaling\":"
    "{\"rope_type\":\"llama3\",\"factor\":8.0},\"tie_word_embeddings\":false}";

/* A tensor of a header; *at moves past its data. */
static void put_tensor(FILE *out, const char *name, unsigned rows, unsigned width, unsigned *at)
{
    char shape[32];
    unsigned bytes = rows * (width != 0 ? width : 1) * 4;
    snprintf(shape, sizeof shape, width != 0 ? "[%u,%u]" : "[%u]", rows, width);
    fprintf(out, "%s\"%s.weight\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%u,%u]}",
            *at > 0 ? "," : "{", name, shape, *at, *at + bytes);
    *at += bytes;
}

static void write_model(const char *folder)
{
    static const struct {
        const char *name;
        unsigned rows, width;
    } layer[] = {
        {"input_layernorm", 8, 0},  {"self_attn.q_proj", 8, 8}, {"self_attn.k_proj", 4, 8},
        {"self_attn.v_proj", 4, 8}, {"self_attn.o_proj", 8, 8}, {"post_attention_layernorm", 8, 0},
        {"mlp.gate_proj", 16, 8},   {"mlp.down_proj", 8, 16},   {"mlp.up_proj", 16, 8}};
    char path[400], name[96], *header;
    size_t bytes;
    unsigned at = 0;
    assert_int_equal(mkdir(folder, 0755), 0);
    FILE *text = open_memstream(&header, &bytes);
    put_tensor(text, "model.embed_tokens", 512, 8, &at);
    for (unsigned number = 0; number < 2; number++) {
        for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
            snprintf(name, sizeof name, "model.layers.%u.%s", number, layer[i].name);
            put_tensor(text, name, layer[i].rows, layer[i].width, &at);
        }
    }
    put_tensor(text, "model.norm", 8, 0, &at);
    put_tensor(text, "lm_head", 512, 8, &at);
    fputc('}', text);
    fclose(text);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    uint64_t length = bytes;
    fwrite(&length, sizeof length, 1, file);
    fwrite(header, 1, bytes, file);
    for (unsigned i = 0; i < at / 4; i++)
        fwrite(&(float){(float)i / 64}, sizeof(float), 1, file);
    assert_int_equal(fclose(file), 0);
    free(header);
    snprintf(path, sizeof path, "%s/config.json", folder);
    file = fopen(path, "wb");
    fputs(model_config, file);
    assert_int_equal(fclose(file), 0);
}

/* A token for each byte, none longer. */
static void write_tokenizer(const char *path)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (unsigned byte = 0; byte < 256; byte++)
        fprintf(file, "%c%c== %u\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
    assert_int_equal(fclose(file), 0);
}

static void write_metrics(const char *path)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (unsigned attempt = 1; attempt <= 2; attempt++) {
        fprintf(file, "{\"attempt\":%u,\"start_step\":%u,\"from_attempt\":%u,\"run\":\"run\"}\n",
                attempt, attempt - 1, attempt - 1);
        for (unsigned step = attempt; step <= 20; step++)
            fprintf(file, "{\"attempt\":%u,\"step\":%u,\"loss\":%u,\"lr\":0.5}\n", attempt, step,
                    20 - step);
    }
    assert_int_equal(fclose(file), 0);
}

/* ---- files ---- */

enum survey_by { BY_SIZE, BY_CONTENT, BY_IDENTITY };

/* Lists the files below a path, with names and the requested attributes. */
static struct {
    uint64_t sum;
    size_t cut; /* of the path */
    enum survey_by by;
    const char *suffix; /* counts these files alone; NULL: all */
    unsigned count;
} survey;

static int survey_file(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)walk;
    size_t length = strlen(path), tail = survey.suffix != NULL ? strlen(survey.suffix) : 0;
    /* Ignored: findings of verify, locks, leases, temporary files, the reserve for a full disk, and
     * the journal, which ckptd writes a little later. */
    if (type != FTW_F || strstr(path, "/verified.json") != NULL ||
        strstr(path, "/.holdfast.") != NULL || strstr(path, "/leases/") != NULL ||
        strstr(path, "/history/") != NULL || strstr(path, "/tombstones/reserve") != NULL ||
        length < tail ||
        strcmp(path + length - tail, survey.suffix != NULL ? survey.suffix : "") != 0)
        return 0;
    survey.count++;
    uint64_t name = checksum_bytes(path + survey.cut, length - survey.cut);
    uint64_t facts[4] = {name, (uint64_t)status->st_size, 0, 0};
    if (survey.by == BY_IDENTITY) {
        facts[2] = status->st_ino;
        facts[3] = (uint64_t)status->st_mtim.tv_nsec;
    } else if (survey.by == BY_CONTENT) {
        char *text = malloc((size_t)status->st_size + 1);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        assert_int_equal(fread(text, 1, (size_t)status->st_size, file), status->st_size);
        facts[2] = checksum_bytes(text, (size_t)status->st_size);
        fclose(file);
        free(text);
    }
    survey.sum += checksum_bytes(facts, sizeof facts);
    return 0;
}

/* 0 when nothing is there. */
static uint64_t survey_of(const char *path, enum survey_by by)
{
    survey.sum = survey.count = 0;
    survey.cut = strlen(path);
    survey.by = by;
    survey.suffix = NULL;
    nftw(path, survey_file, 16, FTW_PHYS);
    return survey.sum;
}

static unsigned count_files(const char *path, const char *suffix)
{
    survey.count = 0;
    survey.cut = strlen(path);
    survey.by = BY_SIZE;
    survey.suffix = suffix;
    nftw(path, survey_file, 16, FTW_PHYS);
    return survey.count;
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status, (void)type, (void)walk;
    return remove(path);
}

static void remove_tree(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int open_capture(const char *root, const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", root, name);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

/* ---- a command, and its output ---- */

static void set_defaults(struct cli *cli)
{
    *cli = (struct cli){.dtype = "keep",
                        .format = "auto",
                        .best = "lowest",
                        .metric = "loss",
                        .shard_size = 1ll << 30};
}

static void read_said(struct world *world)
{
    ssize_t got = pread(world->said_fd, world->said, sizeof world->said - 1, 0);
    assert_true(got >= 0 && got < (ssize_t)sizeof world->said - 1);
    world->said[got] = '\0';
}

/* Starts and ends the wrappers of system calls around a command. */
struct between {
    void (*begin)(void *user);
    void (*end)(void *user);
    void *user;
};

static int run_quietly(struct world *world, int (*run)(const struct cli *cli),
                       const struct cli *cli, const struct between *between)
{
    int kept_out = dup(STDOUT_FILENO), kept_err = dup(STDERR_FILENO);
    fflush(NULL);
    assert_int_equal(ftruncate(world->said_fd, 0), 0);
    assert_int_equal(ftruncate(world->noise_fd, 0), 0);
    dup2(world->said_fd, STDOUT_FILENO);
    dup2(world->noise_fd, STDERR_FILENO);
    report_clear();
    if (between != NULL)
        between->begin(between->user);
    int error = run(cli);
    if (between != NULL)
        between->end(between->user);
    fflush(NULL);
    dup2(kept_out, STDOUT_FILENO);
    dup2(kept_err, STDERR_FILENO);
    close(kept_out);
    close(kept_err);
    read_said(world);
    return error;
}

/* ---- the world, from begin to end ---- */

static int world_open(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    struct fixture *fixture = &world->fixture;
    static struct cli cli; /* too large for a stack */
    char path[400];
    *state = world;
    fixture_open(fixture, 2, 17);
    snprintf(world->root, sizeof world->root, "%s", fixture->root);
    snprintf(path, sizeof path, "%s/store", world->root);
    assert_int_equal(mkdir(path, 0755), 0);
    strcpy(fixture->root, path);
    snprintf(world->model, sizeof world->model, "%s/model", world->root);
    snprintf(world->out, sizeof world->out, "%s/out", world->root);
    snprintf(world->work, sizeof world->work, "%s/work", world->root);
    for (uint64_t step = 1; step <= 4; step++) {
        for (uint32_t i = 0; i < TENSORS; i++) /* the values differ from step to step */
            fixture->data[i][0] ^= (unsigned char)step;
        write_checkpoint(fixture, "run", step, 1);
    }
    write_model(world->model);
    snprintf(path, sizeof path, "%s/tokenizer.model", world->root);
    write_tokenizer(path);
    snprintf(path, sizeof path, "%s/steps.jsonl", world->root);
    write_metrics(path);
    set_defaults(&cli);
    strcpy(cli.store, fixture->root);
    strcpy(cli.run, "llama");
    cli.args[0] = world->model;
    cli.num_args = 1;
    world->said_fd = open_capture(world->root, "said");
    world->noise_fd = open_capture(world->root, "noise");
    assert_int_equal(run_quietly(world, cli_import, &cli, NULL), 0);
    world->store = survey_of(fixture->root, BY_IDENTITY);
    return 0;
}

static int world_close(void **state)
{
    struct world *world = *state;
    close(world->said_fd);
    close(world->noise_fd);
    strcpy(world->fixture.root, world->root);
    fixture_close(&world->fixture);
    free(world);
    return 0;
}

#endif
