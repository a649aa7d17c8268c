/* load.c - fills slices from a committed checkpoint of any world size.
 *
 * OpenLoad leases the checkpoint and returns which boxes of which shards hold the wanted slices.
 * For each shard, LoadShard makes ckptd read and verify it into memory. load.c maps the segments
 * read-only at consecutive addresses, so that a shard reads as one array. It copies the boxes,
 * unmaps the segments and calls ReleaseShard. All ranks load the shards in ascending order, in
 * which ckptd reads ahead. So the next shard is resident when the last is copied, and ckptd drops a
 * shard when the slowest rank has passed it.
 *
 * LoadShard names the first needed byte of the shard; ckptd reads only the bytes of the plan. It
 * lends the contiguous bytes from there on that are verified so far. If its pool does not hold a
 * shard, it lends a part at a time: whole blocks. The boxes are copied as far as the lent bytes
 * reach, and the next LoadShard names the next needed byte.
 *
 * Memory that a rank saved and may still write to is copied block by block and verified here
 * (load_check.c). When a block was changed, the load continues from the shard's file.
 *
 * A handle on a store has no ckptd: offline_load.c plans and reads, and its parts are copied in the
 * same way.
 *
 * ckptd's answers are validated: every box must lie inside the saved slice, the wanted slice and
 * the shard. At the end the number of copied elements of each slice must equal its size.
 *
 * When ckptd restarts meanwhile, the load is opened again, of the same checkpoint, and continues
 * with its current shard: the new ckptd keeps that checkpoint for 10 s.
 *
 * Bounds: the load waits at most AGAIN_WAIT_MS for a ckptd that went away; load_view.c bounds the
 * wait for a busy one. */
#include "clients/load/load.h"

#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <stdlib.h>
#include <string.h>

#define OPEN_MS 120000u      /* OpenLoad may wait until a save is settled */
#define AGAIN_WAIT_MS 10000u /* the default of ckptd's limits.reopen_ms */
#define AGAIN_PAUSE_MS 50u

/* ---- the plan ---- */

static bool read_box(struct box *out, uint32_t dims, size_t num_offset, const uint64_t *offset,
                     size_t num_extent, const uint64_t *extent)
{
    if (num_offset != dims || num_extent != dims)
        return false;
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++) {
        out->offset[d] = d < dims ? offset[d] : 0;
        out->extent[d] = d < dims ? extent[d] : 1;
    }
    return true;
}

/* True when `inner` is not empty and lies within `outer`. */
static bool box_inside(const struct box *inner, const struct box *outer, uint32_t dims)
{
    for (uint32_t d = 0; d < dims; d++) {
        if (inner->extent[d] == 0 || inner->offset[d] < outer->offset[d] ||
            inner->offset[d] - outer->offset[d] > outer->extent[d] ||
            inner->extent[d] > outer->extent[d] - (inner->offset[d] - outer->offset[d]))
            return false;
    }
    return true;
}

/* Does the saved box lie within the shard's `shard_bytes`? */
static bool fits(const struct load *load, const struct load_item *item, uint64_t shard_bytes)
{
    const struct tensor_meta *tensor = &load->tensors.slices[item->slice].tensor;
    return item->data_byte <= shard_bytes &&
           box_elements(&item->saved, tensor->dims) <=
               (shard_bytes - item->data_byte) / dtype_bytes(tensor->dtype);
}

static int fail_place(uint32_t shard)
{
    return report_error(ERR_CORRUPT, "client and ckptd may be of different versions",
                        "ckptd answered with an invalid offset in shard %u", shard);
}

/* Reads the boxes of one item and checks them against the wanted slice. */
static int read_item(struct load_item *out, const struct load *load,
                     const Holdfast__V1__LoadItem *item)
{
    *out = (struct load_item){
        .slice = item->slice, .shard = item->shard, .data_byte = item->shard_byte};
    if (item->slice >= load->tensors.count)
        return fail_place(item->shard);
    const struct slice *wanted = &load->tensors.slices[item->slice];
    struct box whole = {.offset = {0}};
    memcpy(whole.extent, wanted->tensor.shape, sizeof whole.extent);
    uint32_t dims = wanted->tensor.dims;
    bool valid =
        read_box(&out->saved, dims, item->n_saved_offset, item->saved_offset, item->n_saved_extent,
                 item->saved_extent) &&
        read_box(&out->part, dims, item->n_offset, item->offset, item->n_extent, item->extent) &&
        box_inside(&out->saved, &whole, dims) && box_inside(&out->part, &out->saved, dims) &&
        box_inside(&out->part, &wanted->box, dims) && fits(load, out, UINT64_MAX);
    return valid ? 0 : fail_place(item->shard);
}

/* Reads the items of the answer. */
static int read_items(struct load *load, Holdfast__V1__OpenLoadReply *reply)
{
    size_t count = reply->n_items;
    load->items = calloc(count + 1, sizeof *load->items);
    if (load->items == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a plan of %zu items", count);
    for (; load->num_items < count; load->num_items++)
        ERR_TRY(read_item(&load->items[load->num_items], load, reply->items[load->num_items]));
    return 0;
}

static char *copy_json(const char *text)
{
    return strdup(text != NULL && text[0] != '\0' ? text : "{}");
}

/* Joins the lines, one per entry. */
static char *join_lines(char **lines, size_t count)
{
    size_t bytes = 1;
    for (size_t i = 0; i < count; i++)
        bytes += strlen(lines[i]) + 1;
    char *out = malloc(bytes), *end = out;
    for (size_t i = 0; i < count && out != NULL; i++) {
        end = stpcpy(end, lines[i]);
        *end++ = '\n';
    }
    if (out != NULL)
        *end = '\0';
    return out;
}

/* `texts`: state, identity, config and data. */
static int make_loaded(struct load *load, const char *const texts[4], char **skipped,
                       size_t num_skipped)
{
    struct ckpt_loaded *loaded = load->loaded = calloc(1, sizeof *loaded);
    if (loaded == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the result of a load");
    loaded->state_json = copy_json(texts[0]);
    loaded->identity_json = copy_json(texts[1]);
    loaded->config_json = copy_json(texts[2]);
    loaded->data_json = copy_json(texts[3]);
    loaded->skipped = join_lines(skipped, num_skipped);
    return loaded->state_json != NULL && loaded->identity_json != NULL &&
                   loaded->config_json != NULL && loaded->data_json != NULL &&
                   loaded->skipped != NULL
               ? 0
               : report_error(ERR_MEMORY, NULL, "no memory for the result of a load");
}

/* Reads the first answer, or that of a restarted ckptd, which must have the same plan, because it
 * is of the same checkpoint. */
static int read_answer(struct load *load, Holdfast__V1__OpenLoadReply *reply)
{
    const struct ckpt_loaded *before = load->loaded;
    const char *const texts[] = {reply->state_json, reply->identity_json, reply->config_json,
                                 reply->data_json};
    if (before != NULL)
        return reply->checkpoint != NULL &&
                       strcmp(before->info.nonce, reply->checkpoint->nonce) == 0 &&
                       load->num_items == reply->n_items
                   ? 0
                   : report_error(ERR_CORRUPT, "load again",
                                  "the ckptd that was started meanwhile has a different "
                                  "checkpoint of step %llu",
                                  (unsigned long long)before->info.step);
    ERR_TRY(make_loaded(load, texts, reply->skipped, reply->n_skipped));
    session_info_fill(&load->loaded->info, reply->checkpoint);
    return read_items(load, reply);
}

static int open_stored(struct load *load, const struct ckpt_load_options *options)
{
    const struct store_choice choice = {.run = load->ckpt->run,
                                        .step = options->step,
                                        .attempt = options->attempt,
                                        .below_step = options->below_step,
                                        .passed_step = load->passed.step,
                                        .passed_attempt = load->passed.attempt};
    load->segment_bytes = CHECKSUM_BLOCK_BYTES;
    ERR_TRY(offline_load_open(&load->offline, &load->items, &load->num_items, load->ckpt, &choice,
                              &load->tensors));
    const struct manifest *manifest = offline_load_manifest(load->offline);
    const char *const texts[] = {manifest->state_json, manifest->identity_json,
                                 manifest->config_json, manifest->data_json};
    ERR_TRY(make_loaded(load, texts, NULL, 0));
    session_info_read(&load->loaded->info, &manifest->summary, offline_durability(load->ckpt));
    return 0;
}

/* Connects to the memory lent for the load, by the rank's session or by a separate one. */
static int open_link(struct load *load, uint64_t session, uint64_t asked_by)
{
    struct ckpt *ckpt = load->ckpt;
    bool is_of_rank = asked_by != 0 && session == asked_by;
    if (load->segment_bytes == 0 || load->segment_bytes > SESSION_SEGMENT_BYTES_MAX)
        return report_error(ERR_CORRUPT, NULL, "ckptd has an invalid segment size of %llu bytes",
                            (unsigned long long)load->segment_bytes);
    if (remote_is(ckpt)) {
        load->remote = is_of_rank ? remote_session_link(ckpt) : &load->own_remote;
        return is_of_rank ? 0 : remote_link_open(load->remote, ckpt, session);
    }
    load->arena = is_of_rank ? &ckpt->link : &load->link;
    return is_of_rank ? 0
                      : arena_link_open(&load->link, ckpt->arena_path, session, SESSION_CALL_MS);
}

static int open_plan(struct load *load, const struct ckpt_load_options *options)
{
    struct ckpt *ckpt = load->ckpt;
    Holdfast__V1__OpenLoadRequest request = HOLDFAST__V1__OPEN_LOAD_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    if (offline_is(ckpt))
        return open_stored(load, options);
    request.session = session_alive(ckpt) ? ckpt->link.token : 0;
    request.run = ckpt->run;
    request.step = options->step;
    request.attempt = options->attempt;
    request.below_step = options->below_step > 0 ? options->below_step : -1;
    request.together = load->asks_together && request.session != 0;
    request.n_slices = load->tensors.count;
    int error = session_tensors_pack(&request.slices, &load->tensors);
    if (error == 0)
        error = session_call(ckpt, &answer, &request.base, OPEN_MS);
    free(request.slices);
    if (error != 0)
        return error;
    Holdfast__V1__OpenLoadReply *reply = (Holdfast__V1__OpenLoadReply *)answer;
    load->is_open = true;
    load->id = reply->load;
    load->is_together = request.together && reply->together;
    load->segment_bytes = reply->segment_bytes;
    error = read_answer(load, reply);
    if (error == 0)
        error = open_link(load, reply->session, request.session);
    protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

/* Closes the load at ckptd. Keeps the text of an earlier error; a lease that is not closed
 * expires. */
static void close_plan(struct load *load)
{
    Holdfast__V1__CloseLoadRequest request = HOLDFAST__V1__CLOSE_LOAD_REQUEST__INIT;
    struct report_text text;
    request.load = load->id;
    report_keep(&text);
    (void)session_send(load->ckpt, &request.base, SESSION_CALL_MS);
    report_restore(&text, 0);
    load->is_open = false;
}

/* ---- one shard ---- */

/* The first elements of [first, end), in the row-major order of `box`, that form a box. Returns
 * their number. */
static uint64_t first_box(struct box *out, const struct box *box, uint32_t dims, uint64_t first,
                          uint64_t end)
{
    uint64_t row = box_elements(box, dims); /* elements per index of the dimension before d */
    uint64_t rest = first;
    *out = *box;
    for (uint32_t d = 0; d < dims; d++) {
        row /= box->extent[d];
        uint64_t at = rest / row;
        rest -= at * row;
        out->offset[d] = box->offset[d] + at;
        if (rest == 0 && first + row <= end) { /* whole rows from here on */
            uint64_t rows = (end - first) / row;
            out->extent[d] = rows < box->extent[d] - at ? rows : box->extent[d] - at;
            return out->extent[d] * row;
        }
        out->extent[d] = 1;
    }
    return end - first; /* no dimensions: the one element */
}

/* Copies the part of an item that the view holds. */
static void copy_item(struct load *load, const struct shard_view *view,
                      const struct load_item *item, bool is_memory)
{
    const struct slice *wanted = &load->tensors.slices[item->slice];
    uint32_t dims = wanted->tensor.dims, size = dtype_bytes(wanted->tensor.dtype);
    uint64_t view_end = view->start + view->bytes;
    /* Elements never cross the border of a block, so nor that of a part. One that does anyway is
     * left out; the final count detects it. */
    uint64_t before = view->from > item->data_byte ? view->from - item->data_byte : 0;
    uint64_t at = before / size + (before % size != 0);
    uint64_t end = view_end > item->data_byte ? (view_end - item->data_byte) / size : 0;
    uint64_t saved = box_elements(&item->saved, dims);
    for (end = end < saved ? end : saved; at < end;) {
        struct box piece, part;
        at += first_box(&piece, &item->saved, dims, at, end);
        if (!box_intersect(&part, &piece, &item->part, dims))
            continue;
        load_copy_box(load, view, item, &part);
        uint64_t elements = box_elements(&part, dims);
        load->covered[item->slice] += elements;
        *(is_memory ? &load->bytes_memory : &load->bytes_local) += elements * size;
    }
}

/* The first needed byte of an item in the shard, from `from` on; UINT64_MAX: none. */
static uint64_t next_of_item(const struct load *load, const struct load_item *item, uint64_t from)
{
    const struct tensor_meta *tensor = &load->tensors.slices[item->slice].tensor;
    uint64_t first, end;
    box_span(&first, &end, &item->saved, &item->part, tensor->dims, dtype_bytes(tensor->dtype));
    if (item->data_byte + end <= from)
        return UINT64_MAX;
    return item->data_byte + first > from ? item->data_byte + first : from;
}

/* Copies the parts in the view of the items [*first, end) of the plan, all of one shard. *out_next
 * is the first needed byte after the view, or UINT64_MAX. *first moves past the completed items. */
static int copy_items(uint64_t *out_next, struct load *load, const struct shard_view *view,
                      size_t *first, size_t end, bool is_memory)
{
    *out_next = UINT64_MAX;
    for (size_t i = *first; i < end; i++) {
        const struct load_item *item = &load->items[i];
        if (!fits(load, item, view->length))
            return fail_place(item->shard);
        if (item->data_byte >= *out_next)
            break; /* so are the items after it: they are sorted */
        copy_item(load, view, item, is_memory);
        uint64_t next = next_of_item(load, item, view->start + view->bytes);
        *first += *first == i && next == UINT64_MAX;
        *out_next = next < *out_next ? next : *out_next;
    }
    return 0;
}

/* The end of the bytes that the items need of the shard, up to the first gap longer than a block
 * (CHECKSUM_BLOCK_BYTES). */
static uint64_t last_needed(const struct load *load, size_t first, size_t end, uint64_t at)
{
    uint64_t until = at + 1;
    for (size_t i = first; i < end; i++) {
        const struct load_item *item = &load->items[i];
        const struct slice *wanted = &load->tensors.slices[item->slice];
        uint64_t from, to;
        if (item->data_byte > until + CHECKSUM_BLOCK_BYTES)
            break;
        box_span(&from, &to, &item->saved, &item->part, wanted->tensor.dims,
                 dtype_bytes(wanted->tensor.dtype));
        until = item->data_byte + to > until ? item->data_byte + to : until;
    }
    return until;
}

/* The first byte of the shard that any of the items needs. */
static uint64_t first_needed(const struct load *load, size_t first, size_t end)
{
    uint64_t out = UINT64_MAX;
    for (size_t i = first; i < end && load->items[i].data_byte < out; i++) {
        uint64_t next = next_of_item(load, &load->items[i], 0);
        out = next < out ? next : out;
    }
    return out;
}

static int call_release(struct load *load, uint32_t shard)
{
    Holdfast__V1__ReleaseShardRequest request = HOLDFAST__V1__RELEASE_SHARD_REQUEST__INIT;
    request.load = load->id;
    request.shard = shard;
    return session_send(load->ckpt, &request.base, SESSION_CALL_MS);
}

/* The items of a shard that are still to be copied. */
struct items_left {
    size_t first, end; /* of the plan; `first` advances */
    uint64_t at;       /* the first byte of the shard that they need; it advances */
    uint32_t shard;
    bool is_memory;
};

/* Copies the items' bytes in the view. */
static int copy_view(struct items_left *left, struct load *load, const struct shard_view *view)
{
    uint64_t next = 0;
    int error = copy_items(&next, load, view, &left->first, left->end, left->is_memory);
    error = load_copy_finish(load, view, error);
    if (error == 0 && next <= left->at)
        error = report_error(ERR_CORRUPT, NULL, "ckptd lent a part of shard %u without byte %llu",
                             left->shard, (unsigned long long)left->at);
    if (error == 0)
        left->at = next;
    return error;
}

/* The same for a view that ranks may write to, by verified copies of its blocks. After a changed
 * block the rest comes from the file. */
static int copy_checked(struct items_left *left, struct load *load, struct shard_view *view)
{
    uint64_t view_end = view->start + view->bytes;
    int error = 0;
    while (error == 0 && left->at < view_end) {
        struct shard_view blocks;
        uint64_t until = last_needed(load, left->first, left->end, left->at);
        error = load_check(&blocks, load, view, left->at, until);
        if (error == 0)
            error = copy_view(left, load, &blocks);
    }
    return load->from_file ? 0 : error;
}

/* One LoadShard: loads the shard, or the part of it around left->at. */
static int load_part(struct items_left *left, struct load *load)
{
    struct shard_view view;
    bool is_shared = load->remote == NULL && load->offline == NULL;
    int error = load_view(&view, &left->is_memory, load, left->shard, left->at,
                          last_needed(load, left->first, left->end, left->at));
    if (error != 0)
        return error;
    if (view.table_start != 0) {
        error = copy_checked(left, load, &view);
        load_view_close(&view);
        return error;
    }
    if (is_shared)
        session_report_mapped(load->ckpt, view.data, view.mapped, false);
    error = copy_view(left, load, &view);
    if (is_shared)
        session_report_unmapped(load->ckpt, view.data, view.mapped);
    load_view_close(&view);
    return error;
}

static int load_shard(struct load *load, size_t first, size_t end)
{
    struct items_left left = {.first = first,
                              .end = end,
                              .at = first_needed(load, first, end),
                              .shard = load->items[first].shard};
    int error = 0;
    load->from_file = false; /* set for the previous shard, if ckptd restarted meanwhile */
    while (left.at != UINT64_MAX && error == 0)
        error = load_part(&left, load);
    /* After an error CloseLoad releases all shards. */
    return error != 0 || load->offline != NULL ? error : call_release(load, left.shard);
}

/* ---- after a restart of ckptd ---- */

static int open_plan_again(struct load *load)
{
    const struct ckpt_info *info = &load->loaded->info;
    const struct ckpt_load_options same = {.step = (int64_t)info->step, .attempt = info->attempt};
    arena_link_close(&load->link);
    remote_link_close(&load->own_remote);
    load->is_open = false; /* the ckptd that had it is gone */
    int error = open_plan(load, &same);
    if (error != 0 && load->is_open)
        close_plan(load);
    return error;
}

int load_open_again(struct load *load, int error)
{
    struct ckpt *ckpt = load->ckpt;
    uint64_t boot_id = ckpt->boot_id, end = clock_ns() + AGAIN_WAIT_MS * 1000000ull;
    struct report_text text;
    bool is_back = false;
    if (load->offline != NULL || (error != ERR_UNAVAILABLE && error != ERR_NOT_FOUND))
        return error;
    report_keep(&text);
    do {
        int answer = session_hello(ckpt, SESSION_CALL_MS);
        if (answer == 0 && ckpt->boot_id == boot_id && error == ERR_NOT_FOUND)
            break; /* the same ckptd has ended the load */
        is_back = answer == 0 && ckpt->boot_id != boot_id;
        if (is_back)
            answer = open_plan_again(load);
        if (answer == 0 && is_back)
            return 0;
        if (answer != 0 && answer != ERR_UNAVAILABLE && answer != ERR_TIMEOUT)
            return answer;
        clock_sleep_ms(AGAIN_PAUSE_MS);
    } while (clock_ns() < end);
    return report_restore(&text, error);
}

/* ---- all shards ---- */

/* Loads a shard. If a restart of ckptd interrupts it, loads it again from its beginning, with its
 * counts reset. */
static int load_shard_retrying(struct load *load, uint64_t *covered, size_t first, size_t end)
{
    size_t bytes = load->tensors.count * sizeof *covered;
    memcpy(covered, load->covered, bytes);
    for (;;) {
        int error = load_shard(load, first, end);
        if (error == 0 || (error = load_open_again(load, error)) != 0)
            return error;
        memcpy(load->covered, covered, bytes);
    }
}

static int check_covered(const struct load *load)
{
    for (uint32_t i = 0; i < load->tensors.count; i++) {
        const struct slice *wanted = &load->tensors.slices[i];
        uint64_t elements = box_elements(&wanted->box, wanted->tensor.dims);
        if (load->covered[i] != elements)
            return report_error(ERR_CORRUPT, "client and ckptd may be of different versions",
                                "tensor %s: %llu of %llu wanted elements were loaded",
                                wanted->tensor.name, (unsigned long long)load->covered[i],
                                (unsigned long long)elements);
    }
    return 0;
}

static int load_shards(struct load *load)
{
    size_t num_items = load->num_items, num_groups = 0;
    /* Index of the first item of each shard. */
    size_t *groups = calloc(num_items + 1, sizeof *groups);
    uint64_t *covered = calloc((size_t)load->tensors.count + 1, sizeof *covered);
    int error = 0;
    if (groups == NULL || covered == NULL) {
        free(groups);
        free(covered);
        return report_error(ERR_MEMORY, NULL, "no memory for a plan of %zu items", num_items);
    }
    for (size_t i = 0; i < num_items; i++) {
        if (i == 0 || load->items[i].shard != load->items[i - 1].shard)
            groups[num_groups++] = i;
    }
    groups[num_groups] = num_items;
    for (size_t i = 0; i < num_groups && error == 0; i++)
        error = load_shard_retrying(load, covered, groups[i], groups[i + 1]);
    free(groups);
    free(covered);
    return error;
}

int load_run(struct load *load, const struct ckpt_load_options *options, struct ckpt_loaded **out)
{
    uint64_t begin = clock_ns();
    load->covered = calloc((size_t)load->tensors.count + 1, sizeof *load->covered);
    if (load->covered == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a load");
    int error = open_plan(load, options);
    if (error != 0 &&
        load->is_open) /* ckptd died between its answer and the mapping of its memory */
        error = load_open_again(load, error);
    if (error == 0)
        error = load_shards(load);
    if (error == 0)
        error = check_covered(load);
    if (error == 0) {
        load->loaded->bytes_memory = load->bytes_memory;
        load->loaded->bytes_local = load->bytes_local;
        load->loaded->seconds = (double)(clock_ns() - begin) / 1e9;
    }
    *out = load->loaded;
    return error;
}

void load_close(struct load *load)
{
    if (load->is_open && !load->is_closed)
        close_plan(load);
    offline_load_free(load->offline);
    free(load->items);
    arena_link_close(&load->link);
    remote_link_close(&load->own_remote);
    load_copy_free(load);
    load_check_free(load);
    free(load->covered);
}

void ckpt_loaded_free(struct ckpt_loaded *loaded)
{
    if (loaded == NULL)
        return;
    free(loaded->state_json);
    free(loaded->identity_json);
    free(loaded->config_json);
    free(loaded->data_json);
    free(loaded->skipped);
    free(loaded);
}
