/* ckptd_list.c - List over more checkpoints than one answer holds.
 *
 * Goal: pages hold every checkpoint once and in order, whatever is added or removed between them,
 * and fit into an answer however long the texts of damage are. Method: a service in this process
 * (ckptd_bed.h) whose catalog is filled by hand before it runs. */
#include "tests/unit/ckptd_bed.h"
#include "tests/unit/suite.h"

#define MANY 20000u /* more than a page */
#define FEW 3u
#define TRASH_S 3600

static const char *const runs[] = {"first", "many", "last"};
static const uint32_t counts[] = {FEW, MANY, FEW};

/* `count` checkpoints by two attempts, which overlap. */
static void fill_run(struct service *service, const char *name, uint32_t count)
{
    struct run *run;
    struct checkpoint *checkpoint;
    const struct places here = {0};
    assert_int_equal(run_find(&run, service, name, true), 0);
    for (uint32_t i = 0; i < count; i++) {
        struct manifest_summary summary = {.version = MANIFEST_VERSION,
                                           .nonce = "0123456789abcdef0123456789abcdef",
                                           .time = "2026-01-01T00:00:00Z",
                                           .world_size = 1,
                                           .shards = 1};
        summary.attempt = 1 + 2 * i / count;
        summary.step = summary.attempt == 1 ? 10 * i : 10 * (i - count / 4);
        snprintf(summary.run, sizeof summary.run, "%s", name);
        assert_int_equal(catalog_add(&checkpoint, run, &summary, TIER_LOCAL, &here), 0);
    }
}

static void fill(void **state)
{
    struct bed *bed = bed_new();
    *state = bed;
    snprintf(bed->config.store, sizeof bed->config.store, "memory:16777216"); /* not looked at */
    assert_int_equal(service_open(&bed->service, &bed->config), 0);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        fill_run(bed->service, runs[i], counts[i]);
}

static int serve(struct bed *bed)
{
    assert_int_equal(pthread_create(&bed->thread, NULL, bed_thread, bed->service), 0);
    return rpc_client_open(&bed->rpc, bed->config.listen);
}

static int set_up(void **state)
{
    fill(state);
    return serve(*state);
}

/* All are damaged, with the longest reasons. */
static int set_up_damaged(void **state)
{
    fill(state);
    struct bed *bed = *state;
    for (struct run *run = bed->service->catalog->runs; run; run = run->next)
        for (struct checkpoint *c = run->checkpoints; c; c = c->next) {
            c->damaged = true;
            memset(c->damage, 'd', sizeof c->damage - 1);
        }
    return serve(bed);
}

static int get_page(struct bed *bed, const char *run, const char *page,
                    Holdfast__V1__ListReply **out)
{
    Holdfast__V1__ListRequest request = HOLDFAST__V1__LIST_REQUEST__INIT;
    request.run = (char *)run;
    request.page = (char *)page;
    return call(bed, "List", &request.base, &holdfast__v1__list_reply__descriptor, out);
}

/* The entries of a list seen so far. */
struct seen {
    uint32_t count;
    char run[128];
    uint64_t step, attempt;
    char next[256];
};

/* Adds a page: runs come by their names, and within a run the order continues. */
static void see_page(struct seen *seen, const Holdfast__V1__ListReply *page)
{
    for (size_t i = 0; i < page->n_checkpoints; i++, seen->count++) {
        const Holdfast__V1__CheckpointSummary *c = page->checkpoints[i];
        if (strcmp(seen->run, c->run) == 0)
            assert_true(c->attempt < seen->attempt ||
                        (c->attempt == seen->attempt && c->step < seen->step));
        else
            assert_true(strcmp(seen->run, c->run) < 0);
        snprintf(seen->run, sizeof seen->run, "%s", c->run);
        seen->step = c->step;
        seen->attempt = c->attempt;
    }
    snprintf(seen->next, sizeof seen->next, "%s", page->next);
}

static uint32_t list_all(struct bed *bed, const char *run, uint32_t *out_pages)
{
    struct seen seen = {0};
    *out_pages = 0;
    do {
        Holdfast__V1__ListReply *page;
        assert_int_equal(get_page(bed, run, seen.next, &page), 0);
        assert_true(*out_pages == 0 || page->n_checkpoints > 0);
        see_page(&seen, page);
        FREE_REPLY(page);
        ++*out_pages;
    } while (seen.next[0]);
    return seen.count;
}

BED_TEST_BETWEEN(test_list__pages_hold_every_checkpoint_once_and_in_order, set_up, bed_tear_down)
{
    uint32_t pages;
    assert_int_equal(list_all(bed, "", &pages), MANY + 2 * FEW);
    assert_int_equal(pages, 2);
    assert_int_equal(list_all(bed, "many", &pages), MANY);
    assert_int_equal(pages, 2);
    assert_int_equal(list_all(bed, "last", &pages), FEW); /* and not those of later runs */
    assert_int_equal(pages, 1);
}

static int remove_run(struct bed *bed, const char *run, bool is_forced, uint64_t want_trash_s)
{
    Holdfast__V1__RemoveRequest request = HOLDFAST__V1__REMOVE_REQUEST__INIT;
    Holdfast__V1__RemoveReply *reply;
    request.run = (char *)(uintptr_t)run;
    request.force = is_forced;
    request.dry_run = true;
    int error = call(bed, "Remove", &request.base, &holdfast__v1__remove_reply__descriptor, &reply);
    if (error != 0)
        return error;
    assert_int_equal(reply->trash_seconds, want_trash_s);
    FREE_REPLY(reply);
    return 0;
}

/* It was there when the service began, and could not be read. */
TEST_BETWEEN(test_list__a_run_that_cannot_be_read_is_named_once, NULL, bed_tear_down)
{
    struct bed *bed;
    struct run *run;
    Holdfast__V1__ListReply *page;
    uint32_t pages;
    fill(state);
    bed = *state;
    bed->service->policies.all.trash = TRASH_S;
    assert_int_equal(run_find(&run, bed->service, "broken", true), 0);
    fault_take(&run->unreadable, report_error(ERR_IO, NULL, "the disk is gone"));
    assert_int_equal(serve(bed), 0);
    assert_int_equal(get_page(bed, "", "", &page), 0);
    assert_string_equal(page->checkpoints[0]->run, "broken");
    assert_string_equal(page->checkpoints[0]->damage, "the disk is gone");
    assert_string_equal(page->checkpoints[0]->durability, "unreadable");
    assert_int_equal(page->checkpoints[0]->attempt, 0);
    FREE_REPLY(page);
    assert_int_equal(list_all(bed, "", &pages), 1 + MANY + 2 * FEW);
    assert_int_equal(list_all(bed, "many", &pages), MANY);
    assert_int_equal(get_page(bed, "broken", "", &page), ERR_IO);
    /* Nobody knows what it has: only a forced call removes it, into the trash if there is one. */
    assert_int_equal(remove_run(bed, "broken", false, 0), ERR_DENIED);
    assert_int_equal(remove_run(bed, "broken", true, TRASH_S), 0);
}

BED_TEST_BETWEEN(test_list__pages_of_damage_are_shorter, set_up_damaged, bed_tear_down)
{
    uint32_t pages;
    assert_int_equal(list_all(bed, "", &pages), MANY + 2 * FEW);
    assert_true(pages > 2);
}

BED_TEST_BETWEEN(test_list__a_page_begins_behind_a_checkpoint_that_is_gone, set_up, bed_tear_down)
{
    Holdfast__V1__ListReply *page;
    /* There is no step 11; those below it by attempt 1 are 10 and 0. */
    assert_int_equal(get_page(bed, "many", "many/step-00000011-a0001", &page), 0);
    assert_int_equal(page->n_checkpoints, 2);
    assert_true(page->checkpoints[0]->step == 10 && page->checkpoints[1]->step == 0);
    assert_string_equal(page->next, "");
    FREE_REPLY(page);
}

BED_TEST_BETWEEN(test_list__what_names_no_page_is_refused, set_up, bed_tear_down)
{
    Holdfast__V1__ListReply *page;
    assert_int_equal(get_page(bed, "", "nonsense", &page), ERR_INVALID);
    assert_int_equal(get_page(bed, "", "many/step-", &page), ERR_INVALID);
    assert_int_equal(get_page(bed, "", "nobody/step-00000001-a0001", &page), ERR_NOT_FOUND);
    assert_int_equal(get_page(bed, "nobody", "", &page), ERR_NOT_FOUND);
}

SUITE(NULL, NULL)
