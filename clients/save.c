/* save.c - one save of one rank: an image from ckptd, one copy of every tensor, announcements.
 *
 *   begin   maps the segments of an image
 *   copy    bypasses the cache, in pieces of PIECE_BYTES; each is placed, copied and announced, so
 *           ckptd hashes and writes it while the next piece is copied
 *   tell    sends the digests of slices that other ranks hold, too (replicas.c)
 *   end     pushes END into the ring; then the handle is free
 *
 * The handle keeps the first failure of a save: later copies do nothing and save_end returns it, so
 * a caller may copy without checking. libckpt pushes no END for a failed save, so ckptd never
 * commits it.
 *
 * Bounds: when the ring is full the rank waits for ckptd at most RING_WAIT_MS, then the save
 * fails. */
#include "clients/remote.h"
#include "clients/session.h"

#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/base/stream_copy.h"
#include "proto/format/durability.h"
#include "proto/format/replica.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES (8u << 20)
#define RING_WAIT_MS 10000u
#define RING_PAUSE_US 50u
/* the longest time in which ckptd answers a WaitSave or BeginSave */
#define WAIT_CALL_MS 5000u
#define BUSY_PAUSE_MS 5u /* between two such BeginSaves */
/* A hanging ckptd must not delay the ranks for long. ckptd answers a BeginSave that need not wait
 * for an image at once, unless it must allocate or replace the image's memory. 256 MiB/s: a virtual
 * machine took 0.4 to 14 GiB/s, slow when its host had to find the memory first. */
#define BEGIN_CALL_MS 1000u
#define BEGIN_CALL_BYTES_PER_MS (1u << 18)
#define ABORT_CALL_MS 1000u
/* A wait of up to PROBE_MS gets PROBE_CALL_MS. When it fails, polls (waits of 0) make no call for 1
 * s, doubling to the max. */
#define PROBE_MS 10u
#define PROBE_CALL_MS 100u
#define PROBE_PAUSE_S_MAX 60u

/* Maps the segments of the image; checks that they hold it. */
static int map_image(struct ckpt_save *save, const Holdfast__V1__BeginSaveReply *reply)
{
    struct ckpt *ckpt = save->ckpt;
    if (reply->n_segments != ckpt->image_segments || reply->n_generations != reply->n_segments)
        return report_error(ERR_CORRUPT, "client and ckptd may be of different versions",
                            "ckptd lent %zu segments for an image of %u", reply->n_segments,
                            ckpt->image_segments);
    unsigned char **room =
        realloc(save->segments, (reply->n_segments + 1) * sizeof *save->segments);
    if (room == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %zu segments", reply->n_segments);
    save->segments = room;
    save->num_segments = (uint32_t)reply->n_segments;
    if (ckpt->remote != NULL)
        ERR_TRY(
            remote_begin(ckpt, save->id, reply->segments, reply->generations, save->num_segments));
    return session_map_writable(ckpt, save->segments, reply->segments, reply->generations,
                                save->num_segments);
}

/* Calls BeginSave, again while all images are busy and the time is not over. On another node ckptd
 * is called once more when the connection is lost. Before that calls may time out: it takes some
 * seconds until a connection that died without a word counts as lost (proto/wire/rpc_client.c). */
static int request_image(struct ckpt *ckpt, Holdfast__V1__BeginSaveRequest *request,
                         ProtobufCMessage **answer, uint32_t busy_ms)
{
    uint64_t end = clock_ns() + (uint64_t)busy_ms * 1000000u;
    uint64_t answer_ms = BEGIN_CALL_MS + ckpt->image_bytes / BEGIN_CALL_BYTES_PER_MS;
    answer_ms = answer_ms < SESSION_CALL_MS ? answer_ms : SESSION_CALL_MS;
    for (bool has_lost = ckpt->remote == NULL;;) {
        uint64_t now = clock_ns();
        uint64_t left_ms = now < end ? (end - now) / 1000000u : 0;
        request->busy_ms = left_ms < WAIT_CALL_MS ? (uint32_t)left_ms : WAIT_CALL_MS;
        int error =
            session_call(ckpt, answer, &request->base, request->busy_ms + (uint32_t)answer_ms);
        bool is_over = clock_ns() >= end;
        bool is_lost = error == ERR_UNAVAILABLE || (error == ERR_TIMEOUT && !is_over);
        if (error == ERR_BUSY ? is_over : has_lost || !is_lost)
            return error;
        has_lost = has_lost || error == ERR_UNAVAILABLE;
        /* ckptd may wait for less than requested. */
        clock_sleep_ms(BUSY_PAUSE_MS);
    }
}

static void give_up(struct ckpt_save *save)
{
    struct ckpt *ckpt = save->ckpt;
    Holdfast__V1__AbortSaveRequest request = HOLDFAST__V1__ABORT_SAVE_REQUEST__INIT;
    request.session = ckpt->link.token;
    request.save = save->id;
    request.reason = "given up by the rank";
    save->is_open = false;
    /* Best effort: if ckptd does not receive it, it gives up the save when this rank begins the
     * next save or disconnects. The caller's error text is kept. */
    struct report_text text;
    report_keep(&text);
    remote_give_up(ckpt);
    if (session_alive(ckpt))
        (void)session_send(ckpt, &request.base, ABORT_CALL_MS);
    report_restore(&text, 0);
}

static int call_begin(struct ckpt *ckpt, uint64_t step, const char *state_json, uint32_t busy_ms)
{
    Holdfast__V1__BeginSaveRequest request = HOLDFAST__V1__BEGIN_SAVE_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.session = ckpt->link.token;
    request.step = step;
    request.asked = ++ckpt->num_begins;
    request.is_last = ckpt->is_last;
    request.state_json = (char *)(state_json != NULL ? state_json : "");
    int error = request_image(ckpt, &request, &answer, busy_ms);
    /* Memory for the reply may have failed: then ckptd may have begun a save. */
    if (error == ERR_MEMORY)
        session_drop(ckpt);
    if (error != 0)
        return error;
    Holdfast__V1__BeginSaveReply *reply = (Holdfast__V1__BeginSaveReply *)answer;
    struct ckpt_save *save = &ckpt->save;
    save->id = reply->save;
    remote_want(ckpt, reply->asked, reply->asked_within_s, reply->saves_asked);
    save->image = reply->image;
    save->step = step;
    save->error = 0;
    window_begin(save);
    replicas_begin(save);
    error = map_image(save, reply);
    save->is_open = error == 0;
    if (error != 0)
        give_up(save); /* ckptd began it: the other ranks need not wait for this one */
    protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

int ckpt_save_begin_within(struct ckpt *ckpt, struct ckpt_save **out, uint64_t step,
                           const char *state_json, uint32_t busy_ms)
{
    ERR_TRY(session_handle_check(ckpt));
    int error = 0;
    if (ckpt->attempt == 0 || ckpt->save.is_open)
        return report_error(ERR_INVALID, "describe, begin, copy, end: in this order",
                            "a save was begun %s",
                            ckpt->attempt == 0 ? "before ckpt_describe" : "while another is open");
    rpc_client_heed_stop(ckpt->rpc, NULL); /* a stop must not end a save: it waits for it */
    if (!session_alive(ckpt))
        error = session_renew(ckpt);
    if (error != 0)
        return error;
    error = remote_wait(ckpt, busy_ms);
    if (error == 0)
        error = call_begin(ckpt, step, state_json, busy_ms);
    if (error == 0)
        *out = &ckpt->save;
    /* ckptd is gone, or another ckptd does not know the session: the next save makes a new one. */
    if (error == ERR_UNAVAILABLE || error == ERR_NOT_FOUND || error == ERR_TIMEOUT) {
        session_drop(ckpt);
        error = report_error(ERR_UNAVAILABLE, "the next save describes again",
                             "ckptd at %s lost the session: %s", ckpt->server, report_message());
    }
    return error;
}

int ckpt_save_begin(struct ckpt *ckpt, struct ckpt_save **out, uint64_t step,
                    const char *state_json)
{
    return ckpt_save_begin_within(ckpt, out, step, state_json,
                                  session_handle_is_open(ckpt) ? ckpt->busy_ms : 0);
}

void ckpt_save_last(struct ckpt *ckpt)
{
    if (session_handle_is_open(ckpt))
        ckpt->is_last = true;
}

int ckpt_save_make_way(struct ckpt *ckpt, uint64_t *out_step)
{
    ERR_TRY(session_handle_check(ckpt));
    Holdfast__V1__AbortSaveRequest request = HOLDFAST__V1__ABORT_SAVE_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    if (!session_alive(ckpt))
        return report_error(ERR_UNAVAILABLE, "the next save reconnects",
                            "there is no session with ckptd at %s", ckpt->server);
    request.session = ckpt->link.token;
    request.waiting = true;
    ERR_TRY(session_call(ckpt, &answer, &request.base, ABORT_CALL_MS));
    *out_step = ((Holdfast__V1__AbortSaveReply *)answer)->step;
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}

static void wake_ckptd(const struct ckpt *ckpt)
{
    uint64_t one = 1;
    /* A full counter has already woken ckptd; session_alive() notices a closed one. */
    if (write(ckpt->event, &one, sizeof one) < 0)
        return;
}

void ckpt_phase(struct ckpt *ckpt, enum ckpt_phase phase)
{
    if (!session_handle_is_open(ckpt))
        return;
    if (ckpt->control != NULL && arena_set_phase(ckpt->control, (enum arena_phase)phase))
        wake_ckptd(ckpt);
}

static bool takes_notes(const struct ckpt *ckpt)
{
    return session_handle_is_open(ckpt) && session_has_notes(ckpt);
}

static struct arena_note note_of(const struct ckpt_doing *doing, uint64_t number)
{
    return (struct arena_note){.number = number,
                               .step = doing->step,
                               .bytes = doing->bytes,
                               .operation = doing->operation,
                               .part = doing->part};
}

void ckpt_note_call(struct ckpt *ckpt, const struct ckpt_doing *doing)
{
    struct arena_note note = note_of(doing, doing->number);
    if (takes_notes(ckpt) && note.number != 0)
        arena_note_call(&ckpt->control->notes, &note,
                        &(struct arena_text){doing->what, doing->of, doing->lane});
}

void ckpt_note_end(struct ckpt *ckpt, uint64_t number)
{
    if (takes_notes(ckpt))
        arena_note_end(&ckpt->control->notes, number);
}

void ckpt_note_lane(struct ckpt *ckpt, const struct ckpt_doing *doing)
{
    struct arena_note note = note_of(doing, 1);
    if (takes_notes(ckpt))
        arena_note_lane(&ckpt->control->notes, &note,
                        &(struct arena_text){doing->what, doing->of, doing->lane});
}

void ckpt_note_alive(struct ckpt *ckpt)
{
    if (!session_handle_is_open(ckpt))
        return;
    pthread_mutex_lock(&ckpt->alive_lock);
    if (ckpt->alive_notes != NULL)
        arena_note_alive(ckpt->alive_notes);
    pthread_mutex_unlock(&ckpt->alive_lock);
}

int64_t ckpt_room_saves(const struct ckpt *ckpt)
{
    bool is_known =
        session_handle_is_open(ckpt) && ckpt->room_saves > 0 && ckpt->room_saves <= INT64_MAX;
    return is_known ? (int64_t)ckpt->room_saves - 1 : -1;
}

double ckpt_hours_to_full(const struct ckpt *ckpt)
{
    return session_handle_is_open(ckpt) ? ckpt->full_hours : -1;
}

uint32_t ckpt_asked(const struct ckpt *ckpt)
{
    return session_handle_is_open(ckpt) && ckpt->control != NULL ? arena_asked(ckpt->control) : 0;
}

uint32_t ckpt_saves_asked(const struct ckpt *ckpt)
{
    if (!session_handle_is_open(ckpt))
        return 0;
    return ckpt->saves_asked + (ckpt->control != NULL ? arena_saves_asked(ckpt->control) : 0);
}

double ckpt_asked_within(const struct ckpt *ckpt)
{
    uint32_t until_s = ckpt_asked(ckpt) != 0 ? arena_asked_until_s(ckpt->control) : 0;
    return until_s != 0 ? until_s - 1e-9 * (double)clock_ns() : INFINITY;
}

/* Pushes one entry; waits while the ring is full. ckptd may not read it before it is woken. */
static int push_entry(struct ckpt_save *save, const struct arena_entry *entry)
{
    struct ckpt *ckpt = save->ckpt;
    uint64_t end = 0;
    while (!arena_push(ckpt->control, entry)) {
        uint64_t now = clock_ns();
        end = end != 0 ? end : now + RING_WAIT_MS * 1000000ull;
        wake_ckptd(ckpt);
        if (!session_alive(ckpt))
            return report_error(ERR_UNAVAILABLE, "the next save reconnects",
                                "the connection to ckptd was lost during the save of step %llu",
                                (unsigned long long)save->step);
        if (now >= end)
            return report_error(ERR_TIMEOUT, "see ckptd's log: it does not read announcements",
                                "ckptd did not empty the ring within %u ms", RING_WAIT_MS);
        clock_sleep_ns(RING_PAUSE_US * 1000u);
    }
    return 0;
}

static int announce(struct ckpt_save *save, const struct arena_entry *entry)
{
    int error = push_entry(save, entry);
    if (error == 0)
        wake_ckptd(save->ckpt);
    return error;
}

/* Places one piece: within one segment, and within the window. */
static int place_piece(struct ckpt_save *save, const struct session_item *item, uint64_t done,
                       struct ckpt_place *out)
{
    uint64_t image_byte = item->image_byte + done, bytes = item->bytes - done, end;
    uint64_t segment_bytes = save->ckpt->segment_bytes, inside = image_byte % segment_bytes;
    ERR_TRY(window_wait(&end, save, item->tensor, image_byte));
    bytes = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
    bytes = bytes < segment_bytes - inside ? bytes : segment_bytes - inside;
    *out = (struct ckpt_place){
        .size = sizeof *out,
        .index = item->tensor,
        .to = save->segments[image_byte / segment_bytes % save->num_segments] + inside,
        .from_byte = item->slice_byte + done,
        .bytes = bytes < end - image_byte ? bytes : end - image_byte,
        .image_byte = image_byte};
    return 0;
}

/* The item of the tensor with the first byte at or after `from_byte` of the slice. */
static const struct session_item *find_item(const struct ckpt *ckpt, uint32_t index,
                                            uint64_t from_byte)
{
    const struct session_item *found = NULL;
    for (uint32_t i = ckpt->first_item[index]; i < ckpt->first_item[index + 1]; i++) {
        const struct session_item *item = &ckpt->items[i];
        if (item->slice_byte + item->bytes > from_byte &&
            (found == NULL || item->slice_byte < found->slice_byte))
            found = item;
    }
    return found;
}

int ckpt_save_place(struct ckpt_save *save, uint32_t index, uint64_t from_byte,
                    struct ckpt_place *out)
{
    ERR_TRY(session_save_check(save));
    struct ckpt *ckpt = save->ckpt;
    CHECK(index < ckpt->tensors.count);
    const struct session_item *item = find_item(ckpt, index, from_byte);
    *out = (struct ckpt_place){.size = sizeof *out, .index = index};
    if (save->error == 0 && item != NULL)
        save->error = place_piece(
            save, item, from_byte > item->slice_byte ? from_byte - item->slice_byte : 0, out);
    return save->error;
}

bool ckpt_save_is_window(const struct ckpt_save *save)
{
    return session_save_is_open(save) && save->ckpt->is_window;
}

int ckpt_save_announce(struct ckpt_save *save, const struct ckpt_place *place)
{
    ERR_TRY(session_save_check(save));
    CHECK(place->index < save->ckpt->tensors.count);
    if (save->error == 0 && place->bytes > save->ckpt->left[place->index])
        save->error = report_error(ERR_INVALID, "announce each place once",
                                   "more bytes of tensor %s were announced than it has",
                                   save->ckpt->tensors.slices[place->index].tensor.name);
    if (save->error == 0)
        save->error = announce(save, &(struct arena_entry){.kind = ARENA_ENTRY_RANGE,
                                                           .image = save->image,
                                                           .save = save->id,
                                                           .offset = place->image_byte,
                                                           .bytes = place->bytes});
    if (save->error == 0)
        window_announced(save, place->index, place->bytes);
    return save->error;
}

int ckpt_save_digest(struct ckpt_save *save, uint32_t index, const uint64_t digest[2])
{
    ERR_TRY(session_save_check(save));
    CHECK(index < save->ckpt->tensors.count);
    const struct session_item *item = find_item(save->ckpt, index, 0);
    bool is_told = item != NULL && save->ckpt->takes_digests;
    for (uint32_t i = 0; i < 2 && is_told && save->error == 0; i++)
        save->error = announce(save, &(struct arena_entry){.kind = ARENA_ENTRY_DIGEST_0 + i,
                                                           .image = save->image,
                                                           .save = save->id,
                                                           .offset = item->image_byte,
                                                           .bytes = digest[i]});
    return save->error;
}

int ckpt_save_copy(struct ckpt_save *save, uint32_t index)
{
    ERR_TRY(session_save_check(save));
    struct ckpt_place place = {0};
    const unsigned char *from = save->ckpt->tensors.data[index];
    if (save->error == 0 && from == NULL && save->ckpt->left[index] > 0)
        save->error = report_error(
            ERR_INVALID, "ckpt_move says where it is, or use ckpt_save_place",
            "tensor %s was described without data", save->ckpt->tensors.slices[index].tensor.name);
    while (ckpt_save_place(save, index, place.from_byte + place.bytes, &place) == 0 &&
           place.bytes > 0) {
        stream_copy(place.to, from + place.from_byte, place.bytes);
        ckpt_save_announce(save, &place);
    }
    if (save->error == 0)
        replicas_hash(save, index, from);
    return save->error;
}

/* ---- replicas.c ---- */

static int send_remote_replicas(struct ckpt_save *save, uint64_t *words, size_t count)
{
    struct ckpt *ckpt = save->ckpt;
    Holdfast__V1__TellReplicasRequest request = HOLDFAST__V1__TELL_REPLICAS_REQUEST__INIT;
    request.session = ckpt->link.token;
    request.save = save->id;
    request.digests = words;
    request.n_digests = count;
    return session_send(ckpt, &request.base, SESSION_CALL_MS);
}

static int send_replicas(struct ckpt_save *save)
{
    struct ckpt *ckpt = save->ckpt;
    uint64_t *words = (uint64_t *)ckpt->replica_digests;
    size_t count = (size_t)REPLICA_WORDS * ckpt->num_replicas;
    if (count > 0 && ckpt->remote != NULL)
        return send_remote_replicas(save, words, count);
    for (size_t i = 0; i < count; i += 2)
        ERR_TRY(push_entry(save, &(struct arena_entry){.kind = ARENA_ENTRY_REPLICA,
                                                       .image = save->image,
                                                       .save = save->id,
                                                       .offset = words[i],
                                                       .bytes = words[i + 1]}));
    return 0;
}

_Static_assert(CKPT_SAMPLE_MAX == REPLICA_BLOCKS && CKPT_SAMPLE_BYTES_MAX == REPLICA_BLOCK_BYTES,
               "ckpt.h says so");

int ckpt_save_sample(struct ckpt_save *save, uint32_t index, struct ckpt_span *out,
                     uint32_t *out_count)
{
    ERR_TRY(session_save_check(save));
    const struct ckpt *ckpt = save->ckpt;
    CHECK(index < ckpt->tensors.count);
    const struct slice *slice = &ckpt->tensors.slices[index];
    *out_count = 0;
    if (ckpt->num_replicas == 0 || ckpt->replica_of[index] == 0)
        return 0;
    uint64_t seed = replica_seed(slice->tensor.name, save->step);
    uint64_t bytes = slice_bytes(slice);
    for (uint32_t i = 0; i < REPLICA_BLOCKS; i++) {
        struct replica_block block = replica_block(bytes, seed, i);
        if (block.bytes > 0)
            out[(*out_count)++] = (struct ckpt_span){block.first, block.bytes};
    }
    return 0;
}

int ckpt_save_sampled(struct ckpt_save *save, uint32_t index, const void *data)
{
    struct ckpt_span spans[REPLICA_BLOCKS];
    struct checksum_128 hashes[REPLICA_BLOCKS];
    uint32_t count;
    const unsigned char *at = data;
    ERR_TRY(ckpt_save_sample(save, index, spans, &count));
    for (uint32_t i = 0; i < count; at += spans[i++].bytes)
        hashes[i] = checksum_128(at, spans[i].bytes);
    if (count > 0)
        replica_digest_of(&save->ckpt->replica_digests[save->ckpt->replica_of[index] - 1], hashes,
                          count);
    return 0;
}

/* ---- the end ---- */

int ckpt_save_end(struct ckpt_save *save)
{
    ERR_TRY(session_save_check(save));
    if (save->error == 0)
        save->error = send_replicas(save);
    if (save->error == 0)
        save->error = announce(
            save,
            &(struct arena_entry){.kind = ARENA_ENTRY_END, .image = save->image, .save = save->id});
    if (save->error == 0 && !session_alive(save->ckpt))
        save->error = report_error(ERR_UNAVAILABLE, "the next save reconnects",
                                   "the connection to ckptd was lost during the save of step %llu",
                                   (unsigned long long)save->step);
    int error = save->error;
    if (error != 0 && error != ERR_UNAVAILABLE)
        give_up(save);
    save->is_open = false;
    return error;
}

void ckpt_save_abort(struct ckpt_save *save)
{
    if (session_save_is_open(save))
        give_up(save);
}

int ckpt_save_failed(struct ckpt *ckpt, uint64_t step, const char *reason)
{
    ERR_TRY(session_handle_check(ckpt));
    Holdfast__V1__AbortSaveRequest request = HOLDFAST__V1__ABORT_SAVE_REQUEST__INIT;
    request.run = ckpt->run;
    request.step = step;
    request.attempt = ckpt->attempt;
    request.reason = (char *)(uintptr_t)(reason != NULL ? reason : "no reason given");
    return session_send(ckpt, &request.base, ABORT_CALL_MS);
}

/* Converts one answer to a result; ERR_BUSY: the save is not settled yet. */
static int read_outcome(struct ckpt *ckpt, const Holdfast__V1__WaitSaveReply *reply, uint64_t step,
                        enum durability level)
{
    bool has_reason = reply->reason != NULL && reply->reason[0] != '\0';
    snprintf(ckpt->durability, sizeof ckpt->durability, "%s", reply->durability);
    switch (reply->state) {
    case HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED:
        snprintf(ckpt->warning, sizeof ckpt->warning, "%s", has_reason ? reply->reason : "");
        return 0;
    case HOLDFAST__V1__SAVE_STATE__SAVE_STAGING:
        return level == DURABLE_ACCEPTED && reply->accepted ? 0 : ERR_BUSY;
    case HOLDFAST__V1__SAVE_STATE__SAVE_FAILED:
        return report_error(ERR_ABORTED, "older checkpoints are unharmed",
                            "the save of step %llu failed: %s", (unsigned long long)step,
                            has_reason ? reply->reason : "no reason given");
    default:
        return report_error(ERR_ABORTED, "ckptd may have restarted; older checkpoints are unharmed",
                            "ckptd does not know the save of step %llu", (unsigned long long)step);
    }
}

const char *ckpt_save_warning(const struct ckpt *ckpt)
{
    return session_handle_is_open(ckpt) ? ckpt->warning : "";
}

const char *ckpt_save_durability(const struct ckpt *ckpt)
{
    return session_handle_is_open(ckpt) ? ckpt->durability : "";
}

/* ckptd did not answer a poll. Each further poll costs training PROBE_CALL_MS while ckptd hangs, so
 * polls pause. */
static void postpone_polls(struct ckpt *ckpt)
{
    uint32_t pause_s = ckpt->poll_pause_s == 0 ? 1 : 2 * ckpt->poll_pause_s;
    ckpt->poll_pause_s = pause_s < PROBE_PAUSE_S_MAX ? pause_s : PROBE_PAUSE_S_MAX;
    ckpt->poll_ns = clock_ns() + ckpt->poll_pause_s * 1000000000ull;
}

static int wait_for_level(struct ckpt *ckpt, uint64_t step, enum durability level,
                          uint32_t timeout_ms)
{
    ERR_TRY(session_handle_check(ckpt));
    Holdfast__V1__WaitSaveRequest request = HOLDFAST__V1__WAIT_SAVE_REQUEST__INIT;
    uint64_t end = clock_ns() + (uint64_t)timeout_ms * 1000000u;
    request.run = ckpt->run;
    request.step = step;
    request.attempt = ckpt->attempt;
    request.durability = (char *)(uintptr_t)durability_text(level);
    ckpt->warning[0] = ckpt->durability[0] = '\0';
    if (timeout_ms == 0 && clock_ns() < ckpt->poll_ns)
        return report_error(ERR_TIMEOUT, "check whether ckptd hangs",
                            "ckptd at %s did not answer; the client will ask again later",
                            ckpt->server);
    for (;;) {
        ProtobufCMessage *answer = NULL;
        uint64_t now = clock_ns();
        uint64_t left_ms = now < end ? (end - now + 999999u) / 1000000u : 0; /* 0: no wait */
        request.timeout_ms = left_ms < WAIT_CALL_MS ? (uint32_t)left_ms : WAIT_CALL_MS;
        int error = session_call(ckpt, &answer, &request.base,
                                 timeout_ms <= PROBE_MS ? PROBE_CALL_MS
                                                        : request.timeout_ms + SESSION_CALL_MS);
        if ((error == ERR_TIMEOUT || error == ERR_UNAVAILABLE) && timeout_ms == 0)
            postpone_polls(ckpt);
        if (error != 0)
            return error;
        error = read_outcome(ckpt, (Holdfast__V1__WaitSaveReply *)answer, step, level);
        protobuf_c_message_free_unpacked(answer, NULL);
        if (error != ERR_BUSY)
            return error;
        if (clock_ns() >= end)
            return report_error(
                ERR_TIMEOUT, "wait longer, or see ckptd's log",
                "the save of step %llu was not %s within %u ms", (unsigned long long)step,
                level == DURABLE_LOCAL ? "durable" : durability_text(level), timeout_ms);
    }
}

int ckpt_save_wait(struct ckpt *ckpt, uint64_t step, uint32_t timeout_ms)
{
    return wait_for_level(ckpt, step, DURABLE_LOCAL, timeout_ms);
}

int ckpt_save_wait_for(struct ckpt *ckpt, uint64_t step, enum ckpt_level level, uint32_t timeout_ms)
{
    if (level < CKPT_LEVEL_ACCEPTED || level > CKPT_LEVEL_BUCKET)
        return report_error(ERR_INVALID, "one of enum ckpt_level", "there is no level %d",
                            (int)level);
    return wait_for_level(ckpt, step, (enum durability)level, timeout_ms);
}
