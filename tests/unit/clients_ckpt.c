/* clients_ckpt.c - libckpt and a real ckptd, every byte compared.
 *
 * Goal: any number of ranks loads a checkpoint that any other number saved, with any layout, from
 * memory and from disk. Damage is named and an older checkpoint takes its place. Errors have the
 * promised code; ckptd learns in which phase a rank is. Method: random layouts, 1 to 5 ranks as
 * threads, a ckptd of the test (clients_bed.h). */
#include "proto/base/sanitized.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "tests/unit/clients_bed.h"
#include "tests/unit/suite.h"

#include <jansson.h>
#include <sys/resource.h>

/* ---- round trips ---- */

BED_TEST(test_ckpt__any_world_size_loads_what_any_other_saved)
{
    uint64_t step = 0;
    for (uint32_t world = 1; world <= 5; world++) {
        for (int round = 0; round < 2; round++) {
            save_world(bed, world, 100 + step, step + 1);
            step++;
            struct group group = load_world(bed, 1 + (world + 2 * round) % 5, 200 + step, 0);
            assert_int_equal(group.loaded_step, step);
            assert_true(group.bytes_memory > 0); /* memory outlived the ranks that saved */
            assert_int_equal(group.bytes_local, 0);
        }
    }
    restart_ckptd(bed, SIGKILL);
    for (uint32_t world = 1; world <= 5; world++) {
        struct group group = load_world(bed, world, 300 + world, 1 + (world * 7) % step);
        assert_true(group.bytes_local > 0);
    }
}

/* A reader of some boxes of some tensors. */
struct reader {
    const struct bed *bed;
    uint64_t random, step;
    uint64_t wrong; /* elements; or UINT64_MAX: it could not load */
    pthread_t thread;
};

static struct ckpt_tensor draw_box(uint64_t *random, uint32_t index)
{
    struct ckpt_tensor out;
    place(&out, index, 0, 0, 1);
    for (uint32_t d = 0; d < out.dims; d++) {
        if (draw(random, 3) == 0)
            continue; /* all of this dimension */
        out.offset[d] = draw(random, out.shape[d]);
        out.extent[d] = 1 + draw(random, out.shape[d] - out.offset[d]);
    }
    out.data = malloc(tensor_elements(&out) * model[index].bytes);
    return out;
}

static void *read_boxes(void *argument)
{
    struct reader *reader = argument;
    struct ckpt_tensor tensors[TENSORS];
    uint32_t indices[TENSORS], count = 0;
    struct ckpt *ckpt = open_single(reader->bed, RUN);
    struct ckpt_loaded *loaded = NULL;
    for (uint32_t i = 0; i < TENSORS; i++) {
        if (i + 1 < TENSORS && draw(&reader->random, 2) == 0)
            continue;
        indices[count] = i;
        tensors[count++] = draw_box(&reader->random, i);
    }
    if (ckpt_load(ckpt,
                  &(struct ckpt_load_options){
                      .step = (int64_t)reader->step, .tensors = tensors, .num_tensors = count},
                  &loaded) != 0) {
        fprintf(stderr, "# %s\n", ckpt_error());
        reader->wrong = UINT64_MAX;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (loaded != NULL)
            reader->wrong += values(&tensors[i], indices[i], reader->step, false);
        free(tensors[i].data);
    }
    ckpt_loaded_free(loaded);
    ckpt_close(ckpt);
    return NULL;
}

/* A number of ckptd's status. */
static double status_real(const struct bed *bed, const char *part, const char *name)
{
    Holdfast__V1__StatusRequest request = HOLDFAST__V1__STATUS_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    struct rpc_client *client = NULL;
    assert_int_equal(rpc_client_open(&client, bed->server), 0);
    assert_int_equal(rpc_client_call(client, "/holdfast.v1.Checkpoint/Status", &request.base,
                                     &holdfast__v1__status_reply__descriptor, &answer, 20000),
                     0);
    json_t *status = json_loads(((Holdfast__V1__StatusReply *)answer)->json, 0, NULL);
    const json_t *number = json_object_get(json_object_get(status, part), name);
    assert_true(json_is_number(number));
    double value = json_number_value(number);
    json_decref(status);
    protobuf_c_message_free_unpacked(answer, NULL);
    rpc_client_close(client);
    return value;
}

static uint64_t status_number(const struct bed *bed, const char *part, const char *name)
{
    return (uint64_t)status_real(bed, part, name);
}

/* Waits until the number is as large as that. */
static void await_number(const struct bed *bed, const char *part, const char *name, uint64_t least)
{
    for (uint64_t end = now_ns() + 20000000000ull; status_number(bed, part, name) < least;) {
        assert_true(now_ns() < end);
        sleep_ms(10);
    }
}

BED_TEST(test_ckpt__the_last_rows_of_a_tensor_cost_little_more_than_themselves)
{
    struct ckpt_loaded *loaded = NULL;
    struct ckpt_tensor tensor;
    save_world(bed, 1, 1, 1); /* one shard of 7 MB */
    restart_ckptd(bed, SIGTERM);
    place(&tensor, 0, 0, 0, 1); /* in its middle, 2.7 MB of it */
    tensor.offset[0] = 400;
    tensor.extent[0] -= 400;
    uint64_t bytes = tensor_elements(&tensor) * model[0].bytes;
    tensor.data = malloc(bytes);
    struct ckpt *ckpt = open_single(bed, RUN);
    assert_int_equal(ckpt_load(ckpt,
                               &(struct ckpt_load_options){
                                   .step = CKPT_NEWEST, .tensors = &tensor, .num_tensors = 1},
                               &loaded),
                     0);
    assert_int_equal(values(&tensor, 0, 1, false), 0);
    assert_in_range(status_number(bed, "since_start", "bytes_read"), bytes,
                    bytes + (2u << 20)); /* blocks of 1 MiB */
    free(tensor.data);
    ckpt_loaded_free(loaded);
    ckpt_close(ckpt);
}

/* With a pool that holds all images, one in which images are evicted, and one through which a shard
 * has to be read in parts. */
BED_TEST(test_ckpt__readers_of_any_boxes_together_get_what_was_saved)
{
    struct reader readers[4];
    seed_random();
    for (uint64_t step = 1; step <= 3; step++)
        save_world(bed, (uint32_t)step, random_state + step, step);
    for (int round = 0; round < 24; round++) {
        if (round % 4 == 0) {
            bed->pool = round < 8 ? "96MiB" : round < 16 ? "8MiB" : "3MiB";
            restart_ckptd(bed, SIGTERM);
        }
        for (uint32_t i = 0; i < 4; i++) {
            readers[i] = (struct reader){
                .bed = bed, .random = next_random(UINT64_MAX), .step = 1 + next_random(3)};
            pthread_create(&readers[i].thread, NULL, read_boxes, &readers[i]);
        }
        for (uint32_t i = 0; i < 4; i++)
            pthread_join(readers[i].thread, NULL);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(readers[i].wrong, 0);
    }
}

/* Many saves by one attempt: both images are used again and again, and BUSY is an answer. */
static int work_save_many(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                          uint32_t rank)
{
    for (uint64_t step = 1; step <= group->step; step++) {
        struct ckpt_save *save;
        uint64_t end = now_ns() + 20000000000ull;
        int error;
        while ((error = ckpt_save_begin(ckpt, &save, step, rank == 0 ? "{\"mark\":1}" : NULL)) ==
                   CKPT_BUSY &&
               now_ns() < end)
            sleep_ms(1);
        if (error != 0 || copy_all(save, tensors, step) != 0)
            return rank_failed(group, "save", rank);
    }
    return ckpt_save_wait(ckpt, group->step, 30000) == 0 ? 0 : rank_failed(group, "wait", rank);
}

BED_TEST(test_ckpt__saves_follow_each_other_without_waiting_for_the_disk)
{
    struct group group = make_group(bed, 3, 5, 20);
    group.work = work_save_many;
    assert_int_equal(run_group(&group), 0);
    for (uint64_t step = 17; step <= 20; step++)
        load_world(bed, 2, 6, step);
    restart_ckptd(bed, SIGTERM);
    load_world(bed, 4, 7, 20);
}

/* ---- memory that comes back ---- */

/* Saves and loads in turns: the memory of an image goes to a load and returns to the rank. */
static int work_share_memory(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                             uint32_t rank)
{
    for (uint64_t step = 2; step <= group->step; step++) {
        struct ckpt_save *save;
        struct ckpt_loaded *loaded;
        if (ckpt_save_begin(ckpt, &save, step, "{\"mark\":1}") != 0 ||
            copy_all(save, tensors, step) != 0 || ckpt_save_wait(ckpt, step, 30000) != 0)
            return rank_failed(group, "save", rank);
        if (ckpt_load(ckpt, &(struct ckpt_load_options){.step = (int64_t)step}, &loaded) != 0)
            return rank_failed(group, "load", rank);
        check_values(group, tensors, step, rank);
        ckpt_loaded_free(loaded);
        if (load_alone(group, tensors, RUN, 1, 0) != 0) /* which needs more memory than is free */
            return rank_failed(group, "load of step 1", rank);
    }
    return 0;
}

BED_TEST(test_ckpt__memory_that_a_load_had_is_the_ranks_own_again)
{
    save_world(bed, 1, 1, 1);
    bed->pool = "20MiB"; /* two images of 7 MB, and less than a third */
    restart_ckptd(bed, SIGTERM);
    struct group group = make_group(bed, 1, 1, 12);
    group.work = work_share_memory;
    assert_int_equal(run_group(&group), 0);
    assert_true(group.bytes_local > 0); /* its memory was taken from the rank's images */
    restart_ckptd(bed, SIGTERM);
    for (uint64_t step = 1; step <= 12; step++)
        load_world(bed, 2, 6, step);
}

/* ---- damage ---- */

BED_TEST(test_ckpt__damage_is_named_and_the_older_checkpoint_loads)
{
    struct ckpt_loaded *loaded = NULL;
    struct ckpt_tensor tensors[TENSORS];
    save_world(bed, 2, 21, 1);
    save_world(bed, 2, 22, 2);
    assert_int_equal(end_ckptd(bed), 0);
    damage_shard(bed, 2, "shard-00002-of-00002.safetensors");
    start_ckptd(bed);
    struct ckpt *ckpt = open_single(bed, RUN);
    struct ckpt_load_options options = {
        .step = CKPT_NEWEST, .tensors = tensors, .num_tensors = TENSORS};
    for (uint32_t i = 0; i < TENSORS; i++) {
        place(&tensors[i], i, 1, 0, 1);
        tensors[i].data = malloc(tensor_elements(&tensors[i]) * model[i].bytes);
    }
    for (int again = 0; again < 2; again++) { /* it finds the damage; it is known */
        assert_int_equal(ckpt_load(ckpt, &options, &loaded), 0);
        assert_int_equal(loaded->info.step, 1);
        assert_non_null(strstr(loaded->skipped, "step 2, attempt "));
        assert_non_null(strstr(loaded->skipped, "shard-00002-of-00002"));
        ckpt_loaded_free(loaded);
        for (uint32_t i = 0; i < TENSORS; i++)
            assert_int_equal(values(&tensors[i], i, 1, false), 0);
    }
    options.step = 2;
    assert_int_equal(ckpt_load(ckpt, &options, &loaded), CKPT_CORRUPT);
    assert_non_null(strstr(ckpt_error(), "shard-00002-of-00002"));
    fprintf(stderr, "# %s\n", ckpt_error());
    ckpt_close(ckpt);
    assert_int_equal(end_ckptd(bed), 0);
    damage_shard(bed, 1, "shard-00001-of-00002.safetensors");
    start_ckptd(bed);
    ckpt = open_single(bed, RUN);
    options.step = CKPT_NEWEST; /* a program must not take this for a run without checkpoints */
    assert_int_equal(ckpt_load(ckpt, &options, &loaded), CKPT_CORRUPT);
    assert_non_null(strstr(ckpt_error(), "shard-00001-of-00002"));
    ckpt_close(ckpt);
    for (uint32_t i = 0; i < TENSORS; i++)
        free(tensors[i].data);
}

/* ---- refusals ---- */

static struct ckpt_tensor small_tensor(float *data)
{
    return (struct ckpt_tensor){
        .name = "small", .dtype = "F32", .dims = 1, .shape = {4}, .extent = {4}, .data = data};
}

/* Begins an attempt and describes the tensor in it; its number. */
static uint64_t describe_in_attempt(struct ckpt *ckpt, const struct ckpt_tensor *tensor)
{
    uint64_t attempt;
    assert_int_equal(ckpt_attempt_open(ckpt, &attempt, NULL, NULL), 0);
    assert_int_equal(ckpt_describe(ckpt, attempt, tensor, 1), 0);
    return attempt;
}

static struct ckpt_save *copy_step(struct ckpt *ckpt, uint64_t step)
{
    struct ckpt_save *save;
    assert_int_equal(ckpt_save_begin(ckpt, &save, step, "{}"), 0);
    assert_int_equal(ckpt_save_copy(save, 0), 0);
    return save;
}

static void save_step(struct ckpt *ckpt, uint64_t step)
{
    assert_int_equal(ckpt_save_end(copy_step(ckpt, step)), 0);
    assert_int_equal(ckpt_save_wait(ckpt, step, 20000), 0);
}

BED_TEST(test_ckpt__a_load_that_cannot_fit_says_why)
{
    struct ckpt_loaded *loaded = NULL;
    float data[8] = {0};
    struct ckpt_tensor tensor = small_tensor(data);
    struct ckpt_load_options options = {.step = CKPT_NEWEST, .tensors = &tensor, .num_tensors = 1};
    struct ckpt *ckpt = open_single(bed, RUN);
    assert_int_equal(ckpt_load(ckpt, &options, &loaded), CKPT_NOT_FOUND);
    save_world(bed, 1, 1, 5);
    assert_int_equal(ckpt_load(ckpt, &options, &loaded), CKPT_NOT_FOUND); /* no such tensor */
    assert_non_null(strstr(ckpt_error(), "small"));
    tensor.name = "tiny"; /* another dtype and shape */
    assert_int_equal(ckpt_load(ckpt, &options, &loaded), CKPT_MISMATCH);
    assert_non_null(strstr(ckpt_error(), "tiny"));
    options.step = 77;
    assert_int_equal(ckpt_load(ckpt, &options, &loaded), CKPT_NOT_FOUND);
    assert_non_null(strstr(ckpt_error(), "77"));
    ckpt_close(ckpt);
}

BED_TEST(test_ckpt__an_older_attempt_is_told_to_stop)
{
    struct ckpt *old = open_single(bed, RUN), *young = open_single(bed, RUN);
    struct ckpt_save *save;
    float data[4] = {1, 2, 3, 4};
    struct ckpt_tensor tensor = small_tensor(data);
    uint64_t first = describe_in_attempt(old, &tensor);
    assert_true(describe_in_attempt(young, &tensor) > first);
    assert_int_equal(ckpt_save_begin(old, &save, 1, NULL), CKPT_STALE);
    assert_int_equal(ckpt_describe(old, first, &tensor, 1), CKPT_STALE);
    save_step(young, 1);
    ckpt_close(old);
    ckpt_close(young);
}

BED_TEST(test_ckpt__an_aborted_save_is_never_committed_and_the_next_one_is)
{
    struct ckpt *ckpt = open_single(bed, RUN);
    float data[4] = {1, 2, 3, 4};
    struct ckpt_tensor tensor = small_tensor(data);
    uint64_t attempt;
    describe_in_attempt(ckpt, &tensor);
    ckpt_save_abort(copy_step(ckpt, 1));
    assert_int_equal(ckpt_save_wait(ckpt, 1, 20000), CKPT_ABORTED);
    save_step(ckpt, 2);
    ckpt_close(ckpt);
    ckpt = open_single(bed, RUN);
    struct ckpt_info newest;
    assert_int_equal(ckpt_attempt_open(ckpt, &attempt, &newest, NULL), 0);
    assert_int_equal(newest.step, 2);
    ckpt_close(ckpt);
}

/* Also where the attempt continues after a restart, when ckptd has them from its file. */
BED_TEST(test_ckpt__what_a_run_says_of_itself_comes_back_as_it_was_sent)
{
    const struct ckpt_attempt_options said = {
        .config_json = "{ \"lr\" : 0.1, \"eps\":1E-8,\n\"decay\":0.10 }",
        .identity_json = "{\"text\":\"}],{\\\"\\\\\",\"config\":{\"lr\":2}}",
        .data_json = "{\"seed\": 12345678901234567}"};
    float data[4] = {1, 2, 3, 4};
    struct ckpt_tensor tensor = small_tensor(data);
    struct ckpt *ckpt = open_single(bed, RUN);
    uint64_t attempt;
    assert_int_equal(ckpt_attempt_open(ckpt, &attempt, NULL, &said), 0);
    for (uint64_t step = 1; step <= 2; step++) {
        if (step == 2) {
            ckpt_close(ckpt);
            restart_ckptd(bed, SIGKILL);
            ckpt = open_single(bed, RUN);
        }
        assert_int_equal(ckpt_describe(ckpt, attempt, &tensor, 1), 0);
        save_step(ckpt, step);
        struct ckpt_loaded *loaded;
        struct ckpt_load_options options = {
            .step = CKPT_NEWEST, .tensors = &tensor, .num_tensors = 1};
        assert_int_equal(ckpt_load(ckpt, &options, &loaded), 0);
        assert_int_equal(loaded->info.step, step);
        assert_string_equal(loaded->config_json, said.config_json);
        assert_string_equal(loaded->identity_json, said.identity_json);
        assert_string_equal(loaded->data_json, said.data_json);
        ckpt_loaded_free(loaded);
    }
    ckpt_close(ckpt);
}

/* `to` in place of `from` in the file of the run's first attempt. */
static void change_attempt(const struct bed *bed, const char *from, const char *to)
{
    char path[300], text[8192] = "";
    snprintf(path, sizeof path, "%s/store/" RUN "/attempts/0001", bed->root);
    FILE *file = fopen(path, "r+e");
    assert_non_null(file);
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    char *at = strstr(text, from);
    assert_non_null(at);
    rewind(file);
    assert_int_equal(ftruncate(fileno(file), 0), 0);
    fwrite(text, 1, (size_t)(at - text), file);
    fprintf(file, "%s%s", to, at + strlen(from));
    assert_true(bytes > 0 && fclose(file) == 0);
}

/* As an older ckptd laid it out, and as none did. */
BED_TEST(test_ckpt__an_attempt_is_gone_on_with_whatever_its_layout)
{
    const struct ckpt_attempt_options said = {.config_json = "{\"lr\": 1}"};
    float data[4] = {1, 2, 3, 4};
    struct ckpt_tensor tensor = small_tensor(data);
    struct ckpt *ckpt = open_single(bed, RUN);
    uint64_t attempt;
    assert_int_equal(ckpt_attempt_open(ckpt, &attempt, NULL, &said), 0);
    ckpt_close(ckpt);
    static const struct {
        const char *from, *to;
        int error;
    } changes[] = {{"\"config\":{\"lr\": 1}", "\n \"config\" : {\n  \"lr\": 1\n }", 0},
                   {"\"data\":{}", "\"data\":[]", CKPT_CORRUPT},
                   {"\"data\":[]", "\"date\":{}", CKPT_CORRUPT}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        end_process(&bed->ckptd, SIGKILL);
        change_attempt(bed, changes[i].from, changes[i].to);
        start_ckptd(bed);
        ckpt = open_single(bed, RUN);
        assert_int_equal(ckpt_describe(ckpt, attempt, &tensor, 1), changes[i].error);
        if (changes[i].error != 0)
            assert_non_null(strstr(ckpt_error(), "lacks the member 'data'"));
        ckpt_close(ckpt);
    }
}

/* How many lines of ckptd's log hold the text. */
static int count_logged(const struct bed *bed, const char *text)
{
    char path[260], line[2048];
    int count = 0;
    snprintf(path, sizeof path, "%s/ckptd.log", bed->root);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL)
        count += strstr(line, text) != NULL;
    fclose(file);
    return count;
}

BED_TEST(test_ckpt__a_save_that_equals_the_one_before_comes_with_a_warning)
{
    float data[4] = {1, 2, 3, 4};
    struct ckpt_tensor tensor = small_tensor(data);
    struct ckpt *ckpt = open_single(bed, RUN);
    describe_in_attempt(ckpt, &tensor);
    for (uint64_t step = 1; step <= 3; step++) {
        data[0] = step < 3 ? 1 : 5;
        struct ckpt_save *save = copy_step(ckpt, step);
        if (step == 3) /* not all of it is copied: it is on no disk */
            assert_true(ckpt_save_wait(ckpt, step, 0) == CKPT_TIMEOUT &&
                        strcmp(ckpt_save_durability(ckpt), "accepted") == 0);
        assert_int_equal(ckpt_save_end(save), 0);
        assert_int_equal(ckpt_save_wait(ckpt, step, 20000), 0);
        assert_string_equal(ckpt_save_durability(ckpt), "local");
        bool warned = strstr(ckpt_save_warning(ckpt), "every tensor equals") != NULL;
        assert_int_equal(warned, step == 2);
        assert_true(warned || ckpt_save_warning(ckpt)[0] == '\0');
        assert_int_equal(count_logged(bed, "every tensor equals"), step >= 2); /* said once */
    }
    assert_int_equal(count_logged(bed, "error commit: run " RUN ", step 2, attempt 1: every tensor "
                                       "equals the checkpoint of step 1, attempt 1"),
                     1);
    assert_int_equal(ckpt_save_wait(ckpt, 17, 0), CKPT_ABORTED); /* there was no such save */
    assert_string_equal(ckpt_save_durability(ckpt), "");
    ckpt_close(ckpt);
}

/* A rank that describes `data`, and a ckptd which by itself checks only every minute whether the
 * rank is still busy. */
static struct ckpt *open_with_phases(struct bed *bed, float data[4])
{
    struct ckpt_tensor tensor = small_tensor(data);
    configure_ckptd(bed, "[pace]\nquiet = true\nquiet_wait_ms = 60000\n");
    struct ckpt *ckpt = open_single(bed, RUN);
    ckpt_phase(ckpt, CKPT_PHASE_BUSY); /* no rank knows it yet */
    describe_in_attempt(ckpt, &tensor);
    assert_int_equal(status_number(bed, "pace", "ranks_busy"), 0);
    return ckpt;
}

/* A save that comes in a busy phase, which delays it. */
static void save_while_busy(const struct bed *bed, struct ckpt *ckpt, uint64_t step)
{
    ckpt_phase(ckpt, CKPT_PHASE_BUSY);
    assert_int_equal(status_number(bed, "pace", "ranks_busy"), 1);
    assert_int_equal(ckpt_save_end(copy_step(ckpt, step)), 0);
    await_number(bed, "pace", "chunks_held", 1);
    assert_int_equal(ckpt_save_wait(ckpt, step, 0), CKPT_TIMEOUT); /* no reason to hurry */
    sleep_ms(100);
    assert_int_equal(status_number(bed, "since_start", "commits"), step - 1);
}

BED_TEST(test_ckpt__a_save_is_held_back_while_a_rank_says_that_it_is_busy)
{
    float data[4] = {1, 2, 3, 4};
    struct ckpt *ckpt = open_with_phases(bed, data);
    for (uint64_t step = 1; step <= 2; step++) {
        data[0] = (float)step;
        save_while_busy(bed, ckpt, step);
        ckpt_phase(ckpt, CKPT_PHASE_QUIET); /* wakes ckptd */
        await_number(bed, "since_start", "commits", step);
        assert_int_equal(status_number(bed, "pace", "ranks_busy"), 0);
        assert_true(status_real(bed, "pace", "held_by_phases_seconds") > 0.09 * (double)step);
    }
    assert_int_equal(status_number(bed, "pace", "chunks_in_busy_phases"), 0);
    ckpt_close(ckpt);
}

BED_TEST(test_ckpt__the_shortest_wait_ends_what_holds_a_save_back)
{
    float data[4] = {1, 2, 3, 4};
    struct ckpt *ckpt = open_with_phases(bed, data);
    save_while_busy(bed, ckpt, 1);
    uint64_t end = now_ns() + 20000000000ull;
    while (ckpt_save_wait(ckpt, 1, 1) == CKPT_TIMEOUT)
        assert_true(now_ns() < end);
    assert_string_equal(ckpt_save_durability(ckpt), "local");
    assert_int_equal(status_number(bed, "pace", "ranks_busy"), 1);
    ckpt_close(ckpt);
}

static long count_faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

/* Not a matter of time: the page tables of an image are built when the tensors are described. */
BED_TEST(test_ckpt__the_first_saves_map_no_memory_in_the_step)
{
    const uint64_t bytes = 8u << 20; /* 2048 pages */
    float *data = calloc(1, bytes);
    assert_non_null(data);
    memset(data, 1, bytes);
    struct ckpt_tensor tensor = {.name = "a",
                                 .dtype = "F32",
                                 .dims = 1,
                                 .shape = {bytes / 4},
                                 .extent = {bytes / 4},
                                 .data = data};
    struct ckpt *ckpt = open_single(bed, RUN);
    struct ckpt_save *save;
    uint64_t attempt;
    /* ckptd cannot lend a save that it has not read yet. */
    for (int tries = 0;
         status_number(bed, "pool", "segments_ready") < status_number(bed, "pool", "segments");
         tries++) {
        assert_in_range(tries, 0, 2000);
        sleep_ms(10);
    }
    assert_int_equal(ckpt_attempt_open(ckpt, &attempt, NULL, NULL), 0);
    long described = count_faults();
    assert_int_equal(ckpt_describe(ckpt, attempt, &tensor, 1), 0);
    described = count_faults() - described;
    for (uint64_t step = 1; step <= 3; step++) {
        data[0] = (float)step;
        long faults = count_faults();
        assert_int_equal(ckpt_save_begin(ckpt, &save, step, "{}"), 0);
        assert_true(count_faults() - faults < 256);
        assert_int_equal(ckpt_save_copy(save, 0), 0);
        faults = count_faults() - faults;
        assert_int_equal(ckpt_save_end(save), 0);
        assert_int_equal(ckpt_save_wait(ckpt, step, 20000), 0);
        fprintf(stderr, "# describe %ld, save %llu: %ld page faults\n", described,
                (unsigned long long)step, faults);
        assert_true(faults < 256 || IS_SANITIZED); /* its shadow is touched */
    }
    ckpt_close(ckpt);
    free(data);
}

BED_TEST(test_ckpt__a_rank_that_never_comes_is_waited_for_no_longer_than_asked)
{
    struct ckpt *ckpt;
    float data[4] = {0};
    struct ckpt_tensor tensor = small_tensor(data);
    uint64_t attempt, begin = now_ns();
    assert_int_equal(ckpt_open(&ckpt, &(struct ckpt_options){.server = bed->server,
                                                             .run = RUN,
                                                             .world_size = 2,
                                                             .describe_ms = 300}),
                     0);
    assert_int_equal(ckpt_attempt_open(ckpt, &attempt, NULL, NULL), 0);
    assert_int_equal(ckpt_describe(ckpt, attempt, &tensor, 1), CKPT_TIMEOUT);
    assert_true(now_ns() - begin < 10000000000ull);
    ckpt_close(ckpt);
}

TEST(test_ckpt__an_absent_server_is_reported_after_the_wait_asked_for)
{
    struct ckpt *ckpt = NULL;
    uint64_t begin = now_ns();
    assert_int_equal(ckpt_open(&ckpt, &(struct ckpt_options){.server = "unix:/nonexistent/socket",
                                                             .run = RUN,
                                                             .world_size = 1,
                                                             .connect_ms = 300}),
                     CKPT_UNAVAILABLE);
    assert_true(now_ns() - begin < 3000000000ull);
    assert_non_null(strstr(ckpt_error(), "/nonexistent/socket"));
    assert_int_equal(
        ckpt_open(&ckpt,
                  &(struct ckpt_options){.server = "unix:/x", .run = "a/b", .world_size = 1}),
        CKPT_INVALID);
}

SUITE(NULL, NULL)
