/* clients_offline.c - libckpt on a store's directory, without ckptd.
 *
 * Goal: a checkpoint that any ranks saved through ckptd loads from the directory in any cut, every
 * byte verified. Damage is named and an older checkpoint found. Nothing is written. Method: a real
 * ckptd makes the store (clients_bed.h), is ended, and a handle on "dir:" reads it. */
#include "tests/unit/clients_bed.h"
#include "tests/unit/suite.h"

static struct ckpt *open_dir_as(const struct bed *bed, const char *run, uint32_t world)
{
    struct ckpt *ckpt = NULL;
    char server[300];
    snprintf(server, sizeof server, "dir:%s", bed->store);
    assert_int_equal(
        ckpt_open(&ckpt, &(struct ckpt_options){.server = server, .run = run, .world_size = world}),
        0);
    return ckpt;
}

static struct ckpt *open_dir(const struct bed *bed, const char *run)
{
    return open_dir_as(bed, run, 1);
}

static char skipped[1024]; /* by the last load */

/* The rank's slices of a world that `seed` cuts; the error, or a mismatch. */
static int load_cut(struct ckpt *ckpt, uint64_t seed, uint32_t rank, uint32_t world,
                    const struct ckpt_load_options *options, uint64_t *out_step)
{
    struct ckpt_tensor tensors[TENSORS];
    struct ckpt_load_options all = *options;
    struct ckpt_loaded *loaded = NULL;
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < TENSORS; i++) {
        place(&tensors[i], i, seed, rank, world);
        tensors[i].data = malloc(tensor_elements(&tensors[i]) * model[i].bytes + 1);
    }
    all.tensors = tensors;
    all.num_tensors = TENSORS;
    int error = ckpt_load(ckpt, &all, &loaded);
    for (uint32_t i = 0; i < TENSORS; i++) {
        wrong += error == 0 ? values(&tensors[i], i, loaded->info.step, false) : 0;
        free(tensors[i].data);
    }
    if (error == 0) {
        *out_step = loaded->info.step;
        snprintf(skipped, sizeof skipped, "%s", loaded->skipped);
        assert_non_null(strstr(loaded->state_json, "\"mark\""));
        assert_true(loaded->bytes_memory == 0 && loaded->bytes_local > 0);
    }
    ckpt_loaded_free(loaded);
    assert_int_equal(wrong, 0);
    return error;
}

static int open_saved(void **state)
{
    if (bed_open(state) != 0)
        return -1;
    struct bed *bed = *state;
    save_world(bed, 3, 41, 1);
    save_world(bed, 2, 42, 2);
    return end_ckptd(bed);
}

TEST_BETWEEN(test_offline__any_cut_loads_from_the_directory, open_saved, bed_close)
{
    struct ckpt *ckpt = open_dir(*state, RUN);
    uint64_t step = 0;
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(load_cut(ckpt, 77, rank, 4, &(struct ckpt_load_options){.step = 1}, &step),
                         0);
        assert_int_equal(step, 1);
    }
    assert_int_equal(
        load_cut(ckpt, 78, 0, 1, &(struct ckpt_load_options){.step = CKPT_NEWEST}, &step), 0);
    assert_int_equal(step, 2);
    const struct ckpt_load_options older = {.step = CKPT_NEWEST, .below_step = 2};
    assert_int_equal(load_cut(ckpt, 79, 0, 1, &older, &step), 0);
    assert_int_equal(step, 1);
    ckpt_close(ckpt);
}

TEST_BETWEEN(test_offline__lists_and_metadata_are_those_of_ckptd, open_saved, bed_close)
{
    struct ckpt *ckpt = open_dir(*state, RUN);
    struct ckpt_metadata *metadata;
    struct ckpt_list *list;
    assert_int_equal(ckpt_metadata(ckpt, CKPT_NEWEST, 0, &metadata), 0);
    assert_int_equal(metadata->info.step, 2);
    assert_int_equal(metadata->num_tensors, TENSORS);
    assert_string_equal(metadata->info.durability, "local");
    ckpt_metadata_free(metadata);
    assert_int_equal(ckpt_list(ckpt, true, &list), 0);
    assert_int_equal(list->num_entries, 2);
    assert_int_equal(list->entries[0].info.step, 2);
    ckpt_list_free(list);
    ckpt_close(ckpt);
}

TEST_BETWEEN(test_offline__a_changed_byte_is_named_and_the_older_one_loads, open_saved, bed_close)
{
    const struct bed *bed = *state;
    struct ckpt *ckpt = open_dir(bed, RUN), *rank = open_dir_as(bed, RUN, 2);
    const struct ckpt_load_options newest = {.step = CKPT_NEWEST}, named = {.step = 2};
    uint64_t step = 0;
    shell("f=$(ls '%s/" RUN "'/step-00000002-*/shard-00002*) && "
          "printf '\\377\\001\\376' | dd of=\"$f\" bs=1 seek=1500000 conv=notrunc 2>/dev/null",
          bed->store);
    assert_int_equal(load_cut(ckpt, 5, 0, 1, &named, &step), CKPT_CORRUPT);
    assert_non_null(strstr(ckpt_error(), "shard 1 of " RUN "@2"));
    assert_int_equal(load_cut(ckpt, 5, 0, 1, &newest, &step), 0);
    assert_int_equal(step, 1);
    assert_non_null(strstr(skipped, "step 2, attempt 2: "));
    assert_non_null(strstr(skipped, "shard 1 of " RUN "@2"));
    /* One of several ranks cannot know what the others find. */
    assert_int_equal(load_cut(rank, 5, 0, 1, &newest, &step), CKPT_CORRUPT);
    assert_non_null(strstr(ckpt_error_hint(), "the same one on every rank"));
    shell("rm '%s/" RUN "'/step-00000001-*/shard-00001*", bed->store);
    assert_int_equal(load_cut(ckpt, 5, 0, 1, &newest, &step), CKPT_CORRUPT); /* not "no such" */
    assert_non_null(strstr(ckpt_error(), "shard 0 of " RUN "@1"));
    ckpt_close(rank);
    ckpt_close(ckpt);
}

/* All verification rests on the table with the checksums. */
TEST_BETWEEN(test_offline__a_changed_checksum_or_length_is_damage, open_saved, bed_close)
{
    const struct bed *bed = *state;
    struct ckpt *ckpt = open_dir(bed, RUN);
    const struct ckpt_load_options named = {.step = 2};
    uint64_t step = 0;
    shell("f=$(ls '%s/" RUN "'/step-00000002-*/shard-00001*) && cp \"$f\" '%s/kept' && "
          "printf 'x' | dd of=\"$f\" bs=1 seek=$(($(stat -c %%s \"$f\") - 1)) conv=notrunc "
          "2>/dev/null",
          bed->store, bed->root);
    assert_int_equal(load_cut(ckpt, 5, 0, 1, &named, &step), CKPT_CORRUPT);
    assert_non_null(strstr(ckpt_error(), "does not match the checksums"));
    shell("f=$(ls '%s/" RUN "'/step-00000002-*/shard-00001*) && cp '%s/kept' \"$f\" && "
          "truncate -s -4096 \"$f\"",
          bed->store, bed->root);
    assert_int_equal(load_cut(ckpt, 5, 0, 1, &named, &step), CKPT_CORRUPT);
    assert_non_null(strstr(ckpt_error(), "another length"));
    shell("rm '%s/" RUN "'/step-00000002-*/shard-00001*", bed->store);
    assert_int_equal(load_cut(ckpt, 5, 0, 1, &named, &step), CKPT_CORRUPT);
    assert_non_null(strstr(ckpt_error(), "missing"));
    ckpt_close(ckpt);
}

TEST_BETWEEN(test_offline__what_is_in_quarantine_is_listed_and_never_the_newest, open_saved,
             bed_close)
{
    const struct bed *bed = *state;
    struct ckpt *ckpt = open_dir(bed, RUN);
    struct ckpt_list *list;
    struct ckpt_metadata *metadata;
    shell("cd '%s/" RUN "' && mkdir -p quarantine && printf 'a bad block' >quarantine/$(ls -d "
          "step-00000002-*)",
          bed->store);
    assert_int_equal(ckpt_list(ckpt, false, &list), 0);
    assert_string_equal(list->entries[0].damage, "a bad block");
    assert_string_equal(list->entries[1].damage, "");
    ckpt_list_free(list);
    assert_int_equal(ckpt_metadata(ckpt, CKPT_NEWEST, 0, &metadata), 0);
    assert_int_equal(metadata->info.step, 1);
    ckpt_metadata_free(metadata);
    assert_int_equal(ckpt_metadata(ckpt, 2, 0, &metadata), 0); /* named: shown, with the reason */
    assert_string_equal(metadata->damage, "a bad block");
    ckpt_metadata_free(metadata);
    uint64_t step;
    assert_int_equal(load_cut(ckpt, 5, 0, 1, &(struct ckpt_load_options){.step = 2}, &step),
                     CKPT_CORRUPT);
    ckpt_close(ckpt);
}

TEST_BETWEEN(test_offline__what_would_write_is_refused, open_saved, bed_close)
{
    struct ckpt *ckpt = open_dir(*state, RUN);
    uint64_t attempt;
    struct ckpt_tensor tensor = {.name = "a", .dtype = "U8", .data = &attempt};
    assert_int_equal(ckpt_attempt_open(ckpt, &attempt, NULL, NULL), CKPT_INVALID);
    assert_non_null(strstr(ckpt_error(), "read-only"));
    assert_int_equal(ckpt_describe(ckpt, 1, &tensor, 1), CKPT_INVALID);
    assert_int_equal(ckpt_pin(ckpt, 1, 1, "no"), CKPT_INVALID);
    ckpt_close(ckpt);
    assert_int_equal(ckpt_open(&ckpt, &(struct ckpt_options){.server = "dir:/no/such/place",
                                                             .run = RUN,
                                                             .world_size = 1}),
                     CKPT_NOT_FOUND);
}

SUITE(NULL, NULL)
