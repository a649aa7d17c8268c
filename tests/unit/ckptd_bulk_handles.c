/* ckptd_bulk_handles.c - handles of the objects that a node opened, and its blocks over the bulk
 * plane.
 *
 * Goal: a block is written at its offset and read back. A handle works only for the node that it
 * was given to, for the purpose it was opened for, and within the object. A handle in use, or of an
 * active client, is not evicted; readers leave nodes their share. Method: the table of handles and
 * the plane's side of it, on a local store. */
#include "ckptd/bulk/entered.h"
#include "proto/base/report.h"
#include "proto/bulk/bulk.h"
#include "tests/unit/store_bed.h"
#include "tests/unit/suite.h"

#define BLOCK 8192u
#define SIZE (4 * BLOCK)
#define KEY "run/shard"

struct bed {
    char path[BED_PATH_BYTES];
    struct storage *storage;
    struct handles *handles;
    struct handle *handle;
    struct bulk_entered of_n1, of_n2;
};

static _Alignas(4096) unsigned char room[BLOCK]; /* of a GET */

static int try_one(struct handle **out, struct handles *handles, const char *who, uint64_t client)
{
    struct principal principal;
    assert_true(principal_parse(&principal, who));
    return handles_new(handles, out, &principal, client);
}

static struct handle *open_one(struct handles *handles, const char *who, uint64_t client)
{
    struct handle *handle = NULL;
    assert_int_equal(try_one(&handle, handles, who, client), 0);
    return handle;
}

static int open_bed(void **state)
{
    static struct bed it;
    struct bed *bed = *state = &it;
    memset(bed, 0, sizeof *bed);
    bed_make_directory(bed->path);
    bed->storage = open_local(bed->path, false);
    assert_int_equal(handles_open(&bed->handles), 0);
    bed->handle = open_one(bed->handles, "holdfast://node/n1", 1);
    bed->handle->bytes = SIZE;
    bed->handle->is_writer = true;
    assert_int_equal(storage_object_create(bed->storage, &bed->handle->object, KEY, SIZE), 0);
    handles_used(bed->handles, bed->handle);
    bed->of_n1.opened =
        (struct bulk_handle){bed->storage, bed->handles, "holdfast://node/n1", NULL, NULL};
    bed->of_n2.opened =
        (struct bulk_handle){bed->storage, bed->handles, "holdfast://node/n2", NULL, NULL};
    return 0;
}

static int close_bed(void **state)
{
    struct bed *bed = *state;
    bulk_handle_close(&bed->of_n1.opened);
    bulk_handle_close(&bed->of_n2.opened);
    handles_close(bed->handles, bed->storage);
    storage_close(bed->storage);
    bed_remove_directory(bed->path);
    return 0;
}

static struct bulk_request request_of(const struct bed *bed, uint64_t offset, uint64_t bytes)
{
    return (struct bulk_request){.save = bed->handle->token, .offset = offset, .bytes = bytes};
}

static int begin_put(struct bulk_entered *entered, const struct bulk_request *request, void **to)
{
    return opened_source.put_begin(entered, request, to, NULL);
}

static int put(struct bulk_entered *entered, const struct bulk_request *request, int fill)
{
    void *to = NULL;
    ERR_TRY(begin_put(entered, request, &to));
    memset(to, fill, request->bytes);
    return opened_source.put_end(entered, request, 0);
}

static int get(struct bulk_entered *entered, const struct bulk_request *request)
{
    const void *out;
    ERR_TRY(opened_source.get_begin(entered, request));
    int error =
        opened_source.get_block(entered, request, request->offset, request->bytes, room, &out);
    opened_source.get_end(entered);
    return error;
}

TEST_WITH(struct bed *bed, test_opened__a_block_lies_where_it_says, open_bed, close_bed)
{
    const struct bulk_request first = request_of(bed, 0, BLOCK),
                              third = request_of(bed, 2 * BLOCK, BLOCK);
    assert_int_equal(put(&bed->of_n1, &first, 'a'), 0);
    assert_int_equal(put(&bed->of_n1, &third, 'c'), 0);
    assert_int_equal(get(&bed->of_n1, &third), 0);
    assert_int_equal(room[0], 'c');
    assert_int_equal(room[BLOCK - 1], 'c');
    assert_int_equal(get(&bed->of_n1, &first), 0);
    assert_int_equal(room[BLOCK - 1], 'a');
}

TEST_WITH(struct bed *bed, test_opened__a_handle_is_of_no_use_to_others, open_bed, close_bed)
{
    const struct bulk_request all = request_of(bed, 0, BLOCK);
    struct bulk_request guessed = all;
    guessed.save++;
    assert_int_equal(put(&bed->of_n2, &all, 'x'), ERR_UNAVAILABLE);
    assert_int_equal(get(&bed->of_n2, &all), ERR_UNAVAILABLE);
    assert_int_equal(put(&bed->of_n1, &guessed, 'x'), ERR_UNAVAILABLE);
    assert_int_equal(bed->handle->busy, 0);
}

/* Whom the kernel names has no certificate. */
TEST_WITH(struct bed *bed, test_opened__users_of_the_machine_have_handles_of_their_own, open_bed,
          close_bed)
{
    struct handle *first, *same, *other, *used;
    const struct principal users[] = {principal_of_user(ROLE_USER, 1000, 1),
                                      principal_of_user(ROLE_USER, 1001, 2)};
    assert_int_equal(handles_new(bed->handles, &first, &users[0], 2), 0);
    assert_int_equal(handles_use(bed->handles, &used, users[0].name, first->token), 0);
    assert_ptr_equal(used, first);
    assert_int_equal(handles_use(bed->handles, &used, users[1].name, first->token),
                     ERR_UNAVAILABLE);
    for (unsigned i = 1; i < HANDLES_EACH; i++)
        assert_int_equal(handles_new(bed->handles, &same, &users[0], 2), 0);
    assert_int_equal(handles_new(bed->handles, &same, &users[0], 2), ERR_BUSY);
    assert_int_equal(handles_new(bed->handles, &other, &users[1], 2), 0);
}

TEST_WITH(struct bed *bed, test_opened__only_whole_blocks_of_the_object_move, open_bed, close_bed)
{
    static const struct {
        uint64_t offset, bytes;
    } wrong[] = {{SIZE, BLOCK},
                 {SIZE - BLOCK, 2 * BLOCK},
                 {512, BLOCK},
                 {0, 512},
                 {UINT64_MAX - 4095, 4096}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct bulk_request request = request_of(bed, wrong[i].offset, wrong[i].bytes);
        assert_int_equal(put(&bed->of_n1, &request, 'x'), ERR_INVALID);
        assert_int_equal(get(&bed->of_n1, &request), ERR_INVALID);
    }
    assert_int_equal(bed->handle->busy, 0);
    bed->handle->is_writer = false; /* as it is of an object that was opened for reading */
    const struct bulk_request right = request_of(bed, 0, BLOCK);
    assert_int_equal(put(&bed->of_n1, &right, 'x'), ERR_INVALID);
}

TEST_WITH(struct bed *bed, test_opened__a_write_that_failed_is_told, open_bed, close_bed)
{
    void *to = NULL;
    const struct bulk_request request = request_of(bed, 0, BLOCK);
    assert_int_equal(begin_put(&bed->of_n1, &request, &to), 0);
    assert_int_equal(opened_source.put_end(&bed->of_n1, &request, ERR_CORRUPT), ERR_CORRUPT);
    assert_int_equal(begin_put(&bed->of_n1, &request, &to), 0);
    struct storage_object *object = bed->handle->object;
    storage_object_close(bed->storage, object);
    assert_int_equal(storage_object_open(bed->storage, &bed->handle->object, KEY, &(uint64_t){0}),
                     0);
    assert_true(opened_source.put_end(&bed->of_n1, &request, 0) != 0); /* open for reading now */
}

TEST_WITH(struct bed *bed, test_opened__what_is_in_use_stays, open_bed, close_bed)
{
    struct handle *taken = NULL;
    void *to = NULL;
    const struct bulk_request request = request_of(bed, 0, BLOCK);
    bed->handle->used_ms -= 2 * HANDLES_SILENT_MS;
    assert_int_equal(begin_put(&bed->of_n1, &request, &to), 0);
    assert_null(handles_take_silent(bed->handles, HANDLES_SILENT_MS));
    assert_int_equal(handles_take(bed->handles, &taken, bed->of_n1.opened.who, request.save),
                     ERR_BUSY);
    assert_int_equal(opened_source.put_end(&bed->of_n1, &request, 0), 0);
    assert_null(handles_take_silent(bed->handles, HANDLES_SILENT_MS)); /* it was used just now */
    bed->handle->used_ms -= 2 * HANDLES_SILENT_MS;
    taken = handles_take_silent(bed->handles, HANDLES_SILENT_MS);
    assert_ptr_equal(taken, bed->handle);
    handles_end(taken, bed->storage, false);
    assert_int_equal(put(&bed->of_n1, &request, 'x'), ERR_UNAVAILABLE);
}

static uint32_t count_chain(struct handle *first)
{
    uint32_t count = 0;
    for (; first; first = first->next)
        count++;
    return count;
}

TEST(test_opened__a_client_that_works_keeps_all_that_it_has)
{
    static const char who[] = "holdfast://reader";
    struct handles *handles;
    assert_int_equal(handles_open(&handles), 0);
    struct handle *all[] = {open_one(handles, who, 7), open_one(handles, who, 7),
                            open_one(handles, who, 8), open_one(handles, "holdfast://reader/a", 7)};
    for (int i = 0; i < 4; i++) {
        handles_used(handles, all[i]);
        all[i]->used_ms -= 2 * HANDLES_SILENT_MS;
    }
    assert_int_equal(handles_use(handles, &all[0], who, all[0]->token), 0);
    handles_used(handles, all[0]);
    struct handle *silent = handles_take_silent(handles, HANDLES_SILENT_MS);
    assert_int_equal(count_chain(silent), 2); /* another client, another identity */
    handles_end(silent, NULL, false);
    assert_int_equal(handles_use(handles, &all[1], who, all[1]->token), 0);
    handles_close(handles, NULL);
}

TEST(test_opened__readers_take_no_place_from_nodes)
{
    struct handles *handles;
    struct handle *handle;
    uint32_t count[3] = {0};
    static const char *const who[] = {"holdfast://reader", "holdfast://operator/anna",
                                      "holdfast://node/n1"};
    assert_int_equal(handles_open(&handles), 0);
    for (int i = 0; i < 3; i++)
        while (try_one(&handle, handles, who[i], 0) == 0)
            count[i]++;
    assert_int_equal(count[0], HANDLES_EACH);
    assert_int_equal(count[1], HANDLES_READERS - HANDLES_EACH);
    assert_int_equal(count[2], HANDLES_MAX - HANDLES_READERS);
    handles_close(handles, NULL);
}

SUITE(NULL, NULL)
