/* clients_store.c - which checkpoints a store has, and whether their files are in order.
 *
 * Goal: names select the right checkpoints; missing, short and exchanged files are damage, reported
 * and not fatal; hostile text is made harmless. Method: checkpoints of clients_store_bed.h, then
 * changed. */
#include "tests/unit/clients_store_bed.h"
#include "tests/unit/suite.h"

/* ---- files and names ---- */

TEST(test_load__a_missing_or_short_shard_and_a_changed_manifest_are_damage)
{
    struct fixture fixture;
    struct checkpoint checkpoint;
    char path[600];
    fixture_open(&fixture, 3, 400);
    write_checkpoint(&fixture, "run", 7, 1);
    struct storage *store = open_store(&fixture);
    snprintf(path, sizeof path, "%s/run/step-00000007-a0001/shard-00001-of-00003.safetensors",
             fixture.root);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(round == 0 ? truncate(path, 4096) : unlink(path), 0);
        open_loaded(&checkpoint, store, "run");
        assert_non_null(checkpoint.shards[0].damage);
        assert_non_null(
            strstr(checkpoint.shards[0].damage, round == 0 ? "bytes instead of" : "missing"));
        assert_null(checkpoint.shards[1].damage);
        assert_int_equal(checkpoint_need_whole(&checkpoint), ERR_CORRUPT);
        checkpoint_close(&checkpoint);
    }
    snprintf(path, sizeof path, "%s/run/step-00000007-a0001/manifest.json", fixture.root);
    int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, "7", 1, 4300), 1);
    close(fd);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run"), ERR_CORRUPT);
    storage_close(store);
    fixture_close(&fixture);
}

TEST(test_catalog__the_newest_attempt_comes_first_and_uncommitted_ones_not_at_all)
{
    struct fixture fixture;
    struct checkpoint checkpoint;
    struct store_list catalog;
    fixture_open(&fixture, 1, 500);
    write_checkpoint(&fixture, "run", 100, 1);
    write_checkpoint(&fixture, "run", 200, 1);
    write_checkpoint(&fixture, "run", 150, 2);
    write_checkpoint(&fixture, "run", 100, 2);
    write_checkpoint(&fixture, "other", 5, 1);
    shell("cd '%s' && mkdir run/step-00000900-a0009 run/rubbish && touch run/step-1-a1 && cp -r "
          "run/step-00000100-a0001 run/step-00000300-a0001",
          fixture.root);
    struct storage *store = open_store(&fixture);
    assert_int_equal(store_list_read(&catalog, store, ""), 0);
    assert_int_equal(catalog.count, 6);
    assert_string_equal(catalog.entries[0].summary.run, "other");
    assert_int_equal(catalog.entries[1].summary.step, 150);
    assert_int_equal(catalog.entries[2].summary.attempt, 2);
    /* The copy under another name is listed as such. */
    assert_int_equal(catalog.entries[3].summary.step, 300);
    assert_non_null(catalog.entries[3].damage);
    store_list_free(&catalog);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run"), 0);
    assert_string_equal(checkpoint.name, "run@150-a2");
    checkpoint_close(&checkpoint);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run@100"), 0);
    assert_string_equal(checkpoint.name, "run@100-a2");
    checkpoint_close(&checkpoint);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run@100-a1"), 0);
    checkpoint_close(&checkpoint);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run@300"), ERR_MISMATCH);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run@101"), ERR_NOT_FOUND);
    assert_int_equal(checkpoint_open(&checkpoint, store, "nobody"), ERR_NOT_FOUND);
    storage_close(store);
    fixture_close(&fixture);
}

static int read_stored(void *user, struct manifest **out, const struct selection *selection)
{
    return checkpoint_manifest(out, user, selection);
}

TEST(test_lineage__that_goes_in_circles_or_up_is_cut)
{
    static const uint64_t parents[] = {3, 4, INT64_MAX};
    for (size_t i = 0; i < sizeof parents / sizeof *parents; i++) {
        struct fixture fixture;
        struct checkpoint checkpoint;
        struct lineage lineage;
        fixture_open(&fixture, 1, 600);
        fixture.parent_step = 20;
        fixture.parent_attempt = parents[i];
        write_checkpoint(&fixture, "run", 20, 3); /* resumed from itself, or from a later one */
        fixture.parent_attempt = 3;
        write_checkpoint(&fixture, "run", 30, 4);
        struct storage *store = open_store(&fixture);
        assert_int_equal(checkpoint_open(&checkpoint, store, "run"), 0);
        assert_int_equal(lineage_read(&lineage, checkpoint.manifest, read_stored, store), 0);
        assert_int_equal(lineage.count, 1);
        assert_int_equal(lineage.list[0].state, ANCESTOR_THERE);
        assert_int_equal(lineage.list[0].attempt, 3);
        assert_true(lineage.is_cut);
        lineage_free(&lineage);
        checkpoint_close(&checkpoint);
        storage_close(store);
        fixture_close(&fixture);
    }
}

TEST(test_selection__refuses_what_is_not_a_name)
{
    static const char *const bad[] = {"",
                                      "@5",
                                      "run@",
                                      "run@x",
                                      "run@5-a",
                                      "a/b",
                                      "run@5-a0",
                                      "run@5-a1x",
                                      "run@-5",
                                      "run@5a1",
                                      "r@ 5",
                                      "run@5@6",
                                      "run@99999999999999999999"};
    struct selection selection;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(selection_parse(&selection, bad[i]), ERR_INVALID);
    assert_int_equal(selection_parse(&selection, "llama-7b.x@0012-a03"), 0);
    assert_string_equal(selection.run, "llama-7b.x");
    assert_int_equal(selection.step, 12);
    assert_int_equal(selection.attempt, 3);
    assert_int_equal(selection_parse(&selection, "llama"), 0);
    assert_int_equal(selection.step, -1);
}

TEST(test_text__hostile_names_reach_neither_terminal_nor_json_raw)
{
    char out[64], *json;
    size_t bytes;
    assert_string_equal(text_safe(out, sizeof out, "a\x1b[31mb\x9b\n"), "a?[31mb??");
    assert_string_equal(text_safe(out, 4, "abcdef"), "abc");
    FILE *file = open_memstream(&json, &bytes);
    text_json(file, "q\"\\\x1b\xc3\n\xc3\xa9");
    fclose(file);
    assert_string_equal(json, "\"q\\\"\\\\\\u001b\\ufffd\\u000a\xc3\xa9\"");
    free(json);
}

SUITE(NULL, NULL)
