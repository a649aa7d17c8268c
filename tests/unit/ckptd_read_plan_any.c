/* ckptd_read_plan_any.c - any loads, a small pool and a device take turns in a random order.
 *
 * Goal: the invariants read_plan.P1 to P7 (ckptd/machines/read_plan.c), and that each call is
 * answered. Method: the machine alone in seeded worlds (SEED=, READ_WORLDS=), with a pump of a few
 * lines. A model by byte ranges, not by chunks, gives the allowed reads and the required results.
 * Where all loads are open from the start and nothing fails, each chunk is read once, however small
 * the pool. */
#include "ckptd/machines/read_plan.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 64u /* bytes, and a segment of the pool */
#define CHUNKS 6u
#define CHECKPOINTS 2u
#define SHARDS 4u
#define LOADS 4u
#define SPANS 8u /* of a load */
#define IMAGES 16u
#define STEPS_MAX 20000u

struct client {
    struct read_load load; /* first */
    struct read_want wants[SHARDS];
    uint32_t order[SHARDS], checkpoint, num_spans;
    struct read_range ranges[SPANS];
    struct span {
        uint32_t shard;
        uint64_t first, end; /* bytes */
    } spans[SPANS];
    bool is_open, is_calling, is_over, reads_all; /* the last: it goes through whole shards */
    struct image *held[SHARDS];
    struct read_call call;
    uint32_t shard;
    uint64_t at; /* of it, and the first byte that it has yet to copy */
};

struct image {
    struct read_shard shard;
    uint8_t chunks[CHUNKS];
    bool is_used, is_listed, needed[CHUNKS], under_way[CHUNKS], there[CHUNKS]; /* the model */
    uint32_t checkpoint, number, segments, readers, num_waiting;
    enum read_action job; /* OPEN or CLOSE: a worker has it */
    struct client *waiting[LOADS];
};

static struct world {
    struct read_plan plan;
    uint32_t pool, num_free, num_starved, failures;
    bool is_plain; /* one checkpoint, all loads open at once, nothing fails */
    bool retries;
    struct read_file files[CHECKPOINTS][SHARDS];
    uint32_t reads[CHECKPOINTS][SHARDS][CHUNKS];
    struct image images[IMAGES];
    struct client clients[LOADS], *starved[LOADS];
} world;

static uint32_t num_chunks(const struct read_file *file)
{
    return (uint32_t)((file->file_bytes + CHUNK - 1) / CHUNK);
}

static struct image *image_of(uint32_t checkpoint, uint32_t number)
{
    for (uint32_t i = 0; i < IMAGES; i++) {
        struct image *image = &world.images[i];
        if (image->is_listed && image->checkpoint == checkpoint && image->number == number)
            return image;
    }
    return NULL;
}

static bool wanted(const struct image *image)
{
    bool is_wanted = false;
    for (uint32_t i = 0; i < LOADS; i++)
        is_wanted |= world.clients[i].is_open && world.clients[i].checkpoint == image->checkpoint &&
                     world.clients[i].wants[image->number].is_wanted;
    return image->is_listed && is_wanted;
}

static void free_image(struct image *image)
{
    assert_int_equal(image->shard.state, READ_IDLE);
    world.num_free += image->segments;
    world.retries = true;
    memset(image, 0, sizeof *image);
}

static void drop_unwanted(struct image *image)
{
    if (image && image->readers == 0 && image->shard.state == READ_IDLE && !wanted(image))
        free_image(image);
}

static void hold(struct client *client, uint32_t shard, struct image *image)
{
    struct image *before = client->held[shard];
    if (before == image)
        return;
    client->held[shard] = image;
    if (image)
        image->readers++;
    if (before) {
        before->readers--;
        drop_unwanted(before);
    }
}

/* read_plan.P3 */
static void lend(struct client *client, struct image *image)
{
    uint64_t from = client->call.from_byte;
    hold(client, client->shard, image);
    uint64_t end = read_plan_lend_end(&client->call, &image->shard);
    assert_true(end > from && end <= image->shard.file.file_bytes);
    for (uint64_t chunk = from / CHUNK; chunk * CHUNK < end; chunk++)
        assert_true(image->there[chunk]);
    client->at = end;
    client->is_calling = false;
}

static void lend_ready(struct image *image, bool is_over)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < image->num_waiting; i++) {
        struct client *client = image->waiting[i];
        if (is_over || read_plan_may_lend(&client->call, &image->shard))
            lend(client, image);
        else
            image->waiting[left++] = client;
    }
    image->num_waiting = left;
}

/* ---- the model of needed bytes: read_plan.P2 ---- */

static void need(struct image *image, uint64_t first, uint64_t end)
{
    const struct read_file *file = &image->shard.file;
    bool all = !image->shard.is_part;
    for (uint64_t chunk = first / CHUNK; chunk * CHUNK < end; chunk++)
        image->needed[chunk] = true;
    for (uint64_t at = file->data_start; at < file->table_start; at += CHUNK - at % CHUNK)
        all = all && (image->needed[at / CHUNK] || image->there[at / CHUNK]);
    for (uint32_t chunk = 0; all && chunk < num_chunks(file); chunk++)
        image->needed[chunk] = true;
}

static void ask_for_load(struct image *image, const struct client *client)
{
    for (uint32_t i = 0; i < client->num_spans; i++)
        if (client->spans[i].shard == image->number)
            need(image, client->spans[i].first, client->spans[i].end);
    read_plan_ask(&image->shard, &client->load, image->number);
}

static void ask_for_call(struct image *image, const struct client *client)
{
    uint64_t byte = client->call.from_byte, file_bytes = image->shard.file.file_bytes;
    bool is_there = image->there[byte / CHUNK];
    need(image, byte, is_there || image->needed[byte / CHUNK] ? byte + 1 : file_bytes);
    read_plan_ask_from(&image->shard, byte);
}

/* ---- the pump ---- */

static void perform(struct image *image, enum read_action action);
static void answer(struct client *client);

static void start(struct image *image)
{
    uint32_t chunk;
    bool wakes;
    while (read_plan_start(&image->shard, &chunk, &wakes)) {
        assert_true(image->needed[chunk]);
        assert_false(image->there[chunk] || image->under_way[chunk]); /* read_plan.P1 */
        image->under_way[chunk] = true;
        world.reads[image->checkpoint][image->number][chunk]++;
    }
}

static bool was_read(uint32_t shard)
{
    uint32_t reads = 0;
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
        reads += world.reads[0][shard][chunk];
    return image_of(0, shard) || reads > 0;
}

static void begin_pass(struct image *image)
{
    enum read_action action = read_plan_begin(&image->shard);
    image->readers++;
    for (uint32_t shard = 0; world.is_plain && shard < image->number; shard++)
        assert_true(was_read(shard)); /* read_plan.P6 */
    for (uint32_t i = 0; i < LOADS; i++) {
        const struct client *client = &world.clients[i];
        if (client->is_open && client->checkpoint == image->checkpoint &&
            client->wants[image->number].is_wanted &&
            (!image->shard.is_part || client == image->waiting[0]))
            ask_for_load(image, client);
    }
    for (uint32_t i = 0; i < image->num_waiting; i++)
        ask_for_call(image, image->waiting[i]);
    perform(image, action);
}

static void end_pass(struct image *image, bool is_done)
{
    image->readers--;
    world.retries = true;
    if (is_done) {
        for (uint32_t chunk = image->shard.first; chunk < image->shard.end; chunk++)
            assert_true(image->there[chunk] || !image->needed[chunk]); /* read_plan.P4 */
        lend_ready(image, true);
    }
    uint32_t count = image->num_waiting;
    struct client *again[LOADS];
    memcpy(again, image->waiting, sizeof again);
    image->num_waiting = 0;
    image->is_listed &= is_done && !image->shard.is_part;
    drop_unwanted(image);
    for (uint32_t i = 0; i < count; i++)
        answer(again[i]);
}

static void perform(struct image *image, enum read_action action)
{
    if (action == READ_OPEN || action == READ_CLOSE)
        image->job = action;
    else if (action == READ_START)
        start(image);
    else if (action != READ_NOTHING)
        end_pass(image, action == READ_DONE);
}

/* Memory for a read: from images that no load wants, then as read_plan.P7 allows. */
static bool take_memory(const struct read_taker *taker, uint32_t count)
{
    struct image *taken[IMAGES];
    uint32_t num_taken = 0, found = world.num_free;
    for (int is_wanted = 0; is_wanted < 2; is_wanted++) {
        for (uint32_t i = 0; i < IMAGES && found < count; i++) {
            struct image *image = &world.images[i];
            if (!image->is_listed || image->readers > 0 || wanted(image) != is_wanted ||
                (is_wanted &&
                 !read_plan_may_take(taker, world.files[image->checkpoint], image->number)))
                continue;
            taken[num_taken++] = image;
            found += image->segments;
        }
    }
    if (found < count)
        return false;
    for (uint32_t i = 0; i < num_taken; i++)
        free_image(taken[i]);
    world.num_free -= count;
    return true;
}

static bool make_image(uint32_t checkpoint, uint32_t number, struct client *client)
{
    const struct read_file *file = &world.files[checkpoint][number];
    uint32_t segments = num_chunks(file);
    bool is_part = segments > world.pool;
    const struct read_taker taker = {world.files[checkpoint], number, client != NULL};
    if (is_part)
        segments = read_plan_part_segments(world.pool);
    if (!take_memory(&taker, segments))
        return false;
    struct image *image = world.images;
    while (image->is_used)
        image++;
    assert_true(image < world.images + IMAGES);
    *image = (struct image){.is_used = true,
                            .is_listed = !is_part,
                            .checkpoint = checkpoint,
                            .number = number,
                            .segments = segments};
    if (is_part)
        read_plan_part(&image->shard, &world.plan, file, image->chunks, segments,
                       client->call.from_byte);
    else
        read_plan_shard(&image->shard, &world.plan, file, image->chunks);
    if (client)
        image->waiting[image->num_waiting++] = client;
    begin_pass(image);
    return true;
}

static void answer(struct client *client)
{
    uint32_t number = client->shard;
    const struct read_file *file = &world.files[client->checkpoint][number];
    struct image *image = image_of(client->checkpoint, number), *held = client->held[number];
    const struct read_found found = {
        .image = image ? &image->shard : NULL,
        .part = held && held->shard.is_part ? &held->shard : NULL,
        .is_right = true,
        .is_in_parts = num_chunks(file) > world.pool,
        .bytes = file->file_bytes,
    };
    switch (read_plan_call(&client->call, &found, CHUNK)) {
    case READ_ANSWER_LEND:
        lend(client, image);
        return;
    case READ_ANSWER_LEND_PART:
        lend(client, held);
        return;
    case READ_ANSWER_WAIT:
        image->waiting[image->num_waiting++] = client;
        ask_for_call(image, client);
        start(image);
        if (image->shard.state == READ_RUNNING)
            lend_ready(image, false);
        return;
    case READ_ANSWER_READ:
        image->waiting[image->num_waiting++] = client;
        begin_pass(image);
        return;
    case READ_ANSWER_MAKE:
    case READ_ANSWER_MAKE_PART:
        hold(client, number, NULL);
        if (!make_image(client->checkpoint, number, client))
            world.starved[world.num_starved++] = client;
        return;
    default:
        fail();
    }
}

static bool read_next(void)
{
    struct read_next next = {0};
    uint32_t shard;
    for (uint32_t i = 0; i < LOADS; i++) {
        struct client *client = &world.clients[i];
        bool is_taken = !client->is_open;
        while (!is_taken && read_plan_at(&shard, &next, &client->load)) {
            const struct image *image = image_of(client->checkpoint, shard);
            is_taken = read_plan_offer(&next, &client->load, image ? &image->shard : NULL);
        }
    }
    if (!next.load)
        return false;
    const struct client *client = (const struct client *)next.load;
    struct image *image = image_of(client->checkpoint, next.shard);
    if (image)
        begin_pass(image);
    return image || make_image(client->checkpoint, next.shard, NULL);
}

static void try_again(void)
{
    struct client *starved[LOADS];
    uint32_t count = world.num_starved;
    memcpy(starved, world.starved, sizeof starved);
    world.retries = false;
    world.num_starved = 0;
    for (uint32_t i = 0; i < count; i++)
        answer(starved[i]);
    while (read_plan_has_room(&world.plan, world.num_starved > 0) && read_next())
        ;
}

/* ---- clients ---- */

static void draw_client(struct client *client)
{
    memset(client, 0, sizeof *client);
    client->checkpoint = world.is_plain ? 0 : (uint32_t)next_random(CHECKPOINTS);
    client->load.checkpoint = world.files[client->checkpoint];
    client->load.shards = client->wants;
    client->load.order = client->order;
    client->load.ranges = client->ranges;
    client->reads_all = !world.is_plain && next_random(6) == 0;
    for (uint32_t shard = 0; shard < SHARDS && !client->reads_all; shard++) {
        const struct read_file *file = &world.files[client->checkpoint][shard];
        for (uint64_t n = world.is_plain + next_random(3 - world.is_plain); n > 0; n--) {
            uint64_t bytes = file->table_start - file->data_start, first = next_random(bytes);
            client->spans[client->num_spans++] =
                (struct span){shard, file->data_start + first,
                              file->data_start + first + 1 + next_random(bytes - first)};
        }
    }
}

static void open_client(struct client *client)
{
    for (uint32_t i = 0; i < client->num_spans; i++) {
        const struct span *span = &client->spans[i];
        read_plan_add(&client->load, span->shard,
                      (struct read_range){(uint32_t)(span->first / CHUNK),
                                          (uint32_t)((span->end - 1) / CHUNK) + 1});
        client->wants[span->shard].is_in_parts =
            num_chunks(&world.files[client->checkpoint][span->shard]) > world.pool;
    }
    read_plan_added(&client->load);
    client->is_open = true;
    for (uint32_t i = 0; i < client->load.num_planned; i++) {
        struct image *image = image_of(client->checkpoint, client->order[i]);
        if (!image || image->shard.state == READ_IDLE)
            continue;
        ask_for_load(image, client);
        start(image);
    }
    world.retries = true;
}

/* The first byte of its shard that it needs next; UINT64_MAX: none. */
static uint64_t next_byte(const struct client *client)
{
    const struct read_file *file = &world.files[client->checkpoint][client->shard];
    uint64_t next = UINT64_MAX;
    if (client->reads_all) /* the table of a shard in parts is no data */
        return client->at < file->table_start ? client->at : UINT64_MAX;
    for (uint32_t i = 0; i < client->num_spans; i++) {
        const struct span *span = &client->spans[i];
        uint64_t first = span->first > client->at ? span->first : client->at;
        if (span->shard == client->shard && first < span->end && first < next)
            next = first;
    }
    return next;
}

static void step_client(struct client *client)
{
    if (!client->is_open) {
        open_client(client);
        return;
    }
    uint64_t byte = next_byte(client);
    if (byte != UINT64_MAX) {
        client->call = (struct read_call){.from_byte = byte};
        client->is_calling = true;
        answer(client);
        return;
    }
    read_plan_release(&client->load, client->shard);
    hold(client, client->shard, NULL);
    drop_unwanted(image_of(client->checkpoint, client->shard));
    world.retries = true;
    client->at = 0;
    client->shard++;
    client->is_over = client->shard == SHARDS;
    client->is_open = !client->is_over;
}

/* ---- time ---- */

static bool fails(void)
{
    bool is_failure = world.failures > 0 && next_random(8) == 0;
    world.failures -= is_failure;
    return is_failure;
}

static void step_image(struct image *image)
{
    enum read_action job = image->job;
    uint32_t chunk = (uint32_t)next_random(CHUNKS);
    image->job = READ_NOTHING;
    if (job == READ_OPEN) {
        perform(image, read_plan_opened(&image->shard, !fails()));
        return;
    }
    if (job == READ_CLOSE) {
        perform(image, read_plan_closed(&image->shard));
        return;
    }
    while (!image->under_way[chunk])
        chunk = (chunk + 1) % CHUNKS;
    image->under_way[chunk] = false;
    image->there[chunk] = !fails();
    enum read_action action = read_plan_came(&image->shard, chunk, image->there[chunk]);
    world.retries = true;
    lend_ready(image, false);
    perform(image, action);
}

/* read_plan.P5 */
static void check_sums(void)
{
    uint32_t asked = 0, segments = world.num_free;
    for (uint32_t i = 0; i < IMAGES; i++) {
        asked += world.images[i].shard.num_asked;
        segments += world.images[i].segments;
    }
    assert_int_equal(asked, world.plan.num_asked);
    assert_int_equal(segments, world.pool);
}

/* Performs one possible event. False: all is over. */
static bool step_world(void)
{
    uint32_t count = world.retries, left = 0;
    struct client *clients[LOADS];
    struct image *images[IMAGES];
    uint32_t num_clients = 0, num_images = 0;
    for (uint32_t i = 0; i < LOADS; i++) {
        left += !world.clients[i].is_over;
        if (!world.clients[i].is_over && !world.clients[i].is_calling)
            clients[num_clients++] = &world.clients[i];
    }
    for (uint32_t i = 0; i < IMAGES; i++)
        if (world.images[i].job != READ_NOTHING || world.images[i].shard.num_started > 0)
            images[num_images++] = &world.images[i];
    count += num_clients + num_images;
    if (count == 0) {
        assert_int_equal(left, 0); /* each call is answered */
        return false;
    }
    uint64_t which = next_random(count);
    if (which < num_clients)
        step_client(clients[which]);
    else if (which < num_clients + num_images)
        step_image(images[which - num_clients]);
    else
        try_again();
    check_sums();
    return true;
}

static void begin_world(void)
{
    memset(&world, 0, sizeof world);
    world.is_plain = next_random(2) == 0;
    /* In a plain world each shard fits into the pool. */
    world.pool = world.is_plain ? CHUNKS + (uint32_t)next_random(CHUNKS)
                                : 2 + (uint32_t)next_random(2 * CHUNKS);
    world.num_free = world.pool;
    world.failures = world.is_plain ? 0 : (uint32_t)next_random(4);
    read_plan_init(&world.plan, 1 + (uint32_t)next_random(2), CHUNK * (1 + next_random(3)));
    for (uint32_t i = 0; i < CHECKPOINTS * SHARDS; i++) {
        struct read_file *file = &world.files[i / SHARDS][i % SHARDS];
        *file = (struct read_file){.data_start = 8, .chunk_bytes = CHUNK};
        file->table_start = 16 + next_random((CHUNKS - 1) * CHUNK);
        file->file_bytes = file->table_start + 8 * (1 + next_random(4));
    }
    for (uint32_t i = 0; i < LOADS; i++) {
        draw_client(&world.clients[i]);
        if (world.is_plain)
            open_client(&world.clients[i]);
    }
}

static void end_world(void)
{
    for (uint32_t i = 0; i < IMAGES; i++)
        assert_false(world.images[i].is_used);
    for (uint32_t i = 0; world.is_plain && i < SHARDS * CHUNKS; i++)
        assert_in_range(world.reads[0][i / CHUNKS][i % CHUNKS], 0, 1);
}

TEST(test_read_plan_any__loads_read_what_they_want_and_end)
{
    uint64_t worlds = random_rounds("READ_WORLDS", 4000);
    seed_random();
    for (uint64_t i = 0; i < worlds; i++) {
        uint32_t steps = 0;
        begin_world();
        while (step_world())
            assert_true(++steps < STEPS_MAX);
        end_world();
    }
}

SUITE(NULL, NULL)
