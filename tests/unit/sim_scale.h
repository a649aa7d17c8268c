/* sim_scale.h - one save of many ranks on many nodes: the coordinator of a 405B model and its
 * nodes, with the messages that they send each other.
 *
 * Method. The coordinator decides by machines/commit.c and machines/coordinating.c and writes a
 * manifest with proto/format/manifest.c; the nodes report as peers/join_part.c does. Every message
 * is packed and unpacked as on the wire. The nodes come in an order of the seed, and one message in
 * sixteen comes twice. `scale` counts the messages and bytes on the coordinator's link.
 *
 * Left out: gRPC and TLS below the messages, the ranks' own rings, and the disks. The manifest goes
 * beside the messages: from the coordinator (bytes_manifests), or from one node to another
 * (bytes_between), as machines/manifest_fanout.c says. A node that has to wait for it asks in the
 * next round.
 */
#ifndef HOLDFAST_TESTS_SIM_SCALE_H
#define HOLDFAST_TESTS_SIM_SCALE_H

#include "ckptd/machines/commit.h"
#include "ckptd/machines/coordinating.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "proto/format/shard.h"
#include "proto/layout/layout.h"
#include "proto/wire/ckpt.pb-c.h"
#include "tests/bench/scale_model.h"
#include "tests/unit/random.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCALE_RANKS_PER_NODE 8u
#define SCALE_RUN "scale"
#define SCALE_NONCE "0123456789abcdef0123456789abcdef"

struct scale {
    struct model_mesh mesh;
    uint32_t ranks, nodes;
    uint64_t random, step;
    struct commit *machine;
    struct manifest manifest;  /* the plan's part about shards; its digests are of the last save */
    uint32_t *num_tensors;     /* by rank */
    uint32_t *order;           /* of the nodes, in which they come */
    bool *is_placed, *is_told; /* by node: it has the manifest; its digests were answered */
    char *text;                /* of the manifest */
    size_t text_bytes;
    bool is_published, is_committed;
    struct coordinating coordinating;
    /* Of the last save. */
    uint64_t messages, bytes_in, bytes_out, bytes_manifests, bytes_between;
    uint32_t rounds; /* of reports until every node had the manifest */
};

static inline void scale_check(int error, const char *what)
{
    if (error == 0)
        return;
    fprintf(stderr, "scale: %s: %s\n", what, report_line());
    exit(1);
}

static inline void *scale_room(size_t count, size_t size)
{
    void *room = calloc(count, size);
    scale_check(room == NULL, "out of memory");
    return room;
}

/* ---- the plan of the run ---- */

static inline void scale_plan(struct scale *scale)
{
    struct slice *room = scale_room(MODEL_TENSORS, sizeof *room);
    const struct slice **slices = scale_room(scale->ranks, sizeof *slices);
    uint32_t *counts = scale_room(scale->ranks, sizeof *counts);
    for (uint32_t i = 0; i < scale->ranks; i++) {
        counts[i] = model_slices(room, scale->mesh, i);
        struct slice *own = scale_room(counts[i], sizeof *own);
        memcpy(own, room, counts[i] * sizeof *own);
        slices[i] = own;
    }
    scale_check(layout_plan_save(&scale->manifest.table, slices, counts, scale->ranks,
                                 LAYOUT_EQUAL_REPLICAS),
                "plan");
    for (uint32_t i = 0; i < scale->ranks; i++) {
        struct shard_geometry geometry;
        scale_check(shard_geometry(&geometry, scale->manifest.table, i, SCALE_RUN, scale->ranks),
                    "geometry");
        scale->manifest.shards[i] = (struct manifest_shard){.bytes = geometry.file_bytes,
                                                            .data_start = geometry.data_start};
        scale->manifest.summary.bytes += geometry.file_bytes;
        scale->num_tensors[i] = counts[i];
        free((void *)(uintptr_t)slices[i]);
    }
    free(counts);
    free(slices);
    free(room);
}

static inline void scale_open(struct scale *scale, struct model_mesh mesh, uint64_t seed)
{
    struct commit_actions actions = {0};
    *scale = (struct scale){.mesh = mesh, .ranks = model_ranks(mesh), .random = seed};
    scale->nodes = scale->ranks / SCALE_RANKS_PER_NODE;
    scale->machine = scale_room(1, sizeof *scale->machine);
    scale->num_tensors = scale_room(scale->ranks, sizeof *scale->num_tensors);
    scale->order = scale_room(scale->nodes, sizeof *scale->order);
    scale->is_placed = scale_room(scale->nodes, sizeof *scale->is_placed);
    scale->is_told = scale_room(scale->nodes, sizeof *scale->is_told);
    scale->manifest.digests = scale_room(MODEL_TENSORS, sizeof *scale->manifest.digests);
    scale->manifest.shards = scale_room(scale->ranks, sizeof *scale->manifest.shards);
    struct manifest_summary *summary = &scale->manifest.summary;
    *summary = (struct manifest_summary){.version = MANIFEST_VERSION,
                                         .attempt = 1,
                                         .nonce = SCALE_NONCE,
                                         .run = SCALE_RUN,
                                         .world_size = scale->ranks,
                                         .shards = scale->ranks};
    manifest_now(summary->time);
    scale_plan(scale);
    commit_init(scale->machine, 0);
    scale_check(commit_open(scale->machine, &actions, scale->ranks), "open");
    commit_taken(scale->machine, &actions, 1, 0);
}

static inline void scale_close(struct scale *scale)
{
    layout_table_free(scale->manifest.table);
    free(scale->manifest.digests);
    free(scale->manifest.shards);
    free(scale->machine);
    free(scale->num_tensors);
    free(scale->order);
    free(scale->is_placed);
    free(scale->is_told);
    free(scale->text);
}

/* ---- messages ---- */

/* The unpacked message as the receiver has it; the caller frees it. */
static inline ProtobufCMessage *scale_send(struct scale *scale, const ProtobufCMessage *message,
                                           uint64_t *bytes)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *room = scale_room(size + 1, 1);
    scale_check(protobuf_c_message_pack(message, room) != size, "pack");
    ProtobufCMessage *there = protobuf_c_message_unpack(message->descriptor, NULL, size, room);
    scale_check(there == NULL, "unpack");
    free(room);
    scale->messages++;
    *bytes += size;
    return there;
}

static inline void scale_free(void *message)
{
    protobuf_c_message_free_unpacked(message, NULL);
}

/* ---- the coordinator ---- */

static inline void scale_perform(struct scale *scale, const struct commit_actions *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct commit_action *action = &list->items[i];
        struct commit_actions more = {0};
        if (action->kind == COMMIT_SYNC_NAMES) {
            commit_names_synced(scale->machine, &more, action->save, 0);
        } else if (action->kind == COMMIT_PUBLISH) {
            scale->manifest.summary.step = scale->step;
            scale_check(manifest_write(&scale->text, &scale->text_bytes, &scale->manifest),
                        "manifest");
            scale->is_published = true;
            commit_published(scale->machine, &more, action->save, OUTCOME_DURABLE, 0);
        } else if (action->kind == COMMIT_DONE) {
            scale->is_committed = true;
        } else {
            scale_check(action->kind != COMMIT_PLACE, "a save failed");
        }
        scale_perform(scale, &more);
    }
}

static inline uint64_t scale_begin_at(struct scale *scale, uint32_t rank)
{
    struct commit_actions actions = {0};
    const struct commit_save *known = commit_find_step(scale->machine, scale->step);
    uint64_t id = known ? known->id : 0;
    if (!known || known->ranks[rank] == RANK_ABSENT) /* otherwise it comes twice */
        scale_check(commit_begin(scale->machine, &actions, &id, 1, rank, scale->step), "begin");
    scale_perform(scale, &actions);
    return id;
}

static inline void scale_take(struct scale *scale, uint64_t save, const Holdfast__V1__Part *part,
                              uint32_t node)
{
    struct commit_actions actions = {0};
    struct manifest_shard *shard = &scale->manifest.shards[part->rank];
    if (part->n_digests > 0) {
        scale_check(part->n_digests != 2 * (size_t)scale->num_tensors[part->rank], "digests");
        shard->header_hash = part->header_hash;
        shard->table_hash = part->table_hash;
        for (size_t i = 0; i < part->n_digests; i++)
            scale->manifest.digests[i / 2].sum[i % 2] += part->digests[i];
    }
    coordinating_part(scale->machine, &actions, save,
                      &(struct coordinating_part){node, part->rank, part->state, 0});
    scale_perform(scale, &actions);
}

/* No participant has left. */
static inline struct coordinating_rank scale_rank(const void *user, uint32_t rank)
{
    (void)user;
    return (struct coordinating_rank){.node = rank / SCALE_RANKS_PER_NODE};
}

/* The coordinator's answer; the manifest goes beside it. */
static inline Holdfast__V1__PartVerdict scale_send_answer(struct scale *scale,
                                                          const struct coordinating_answer *answer)
{
    char name[16];
    Holdfast__V1__ReportPartReply reply = HOLDFAST__V1__REPORT_PART_REPLY__INIT;
    reply.verdict = answer->verdict;
    if (answer->has_manifest) {
        scale->bytes_manifests += scale->text_bytes;
    } else if (answer->verdict == HOLDFAST__V1__PART_VERDICT__VERDICT_PLACE) {
        scale_check(!scale->is_placed[answer->from], "the node that is named has no manifest");
        scale->bytes_between += scale->text_bytes;
        snprintf(name, sizeof name, "node-%05u", answer->from);
        reply.manifest_at = name;
        reply.manifest_hash = splitmix64(&scale->random);
    }
    scale_free(scale_send(scale, &reply.base, &scale->bytes_out));
    return reply.verdict;
}

static inline Holdfast__V1__PartVerdict scale_hear(struct scale *scale, uint32_t node,
                                                   const Holdfast__V1__ReportPartRequest *request)
{
    struct commit_actions actions = {0};
    const struct commit_save *save = commit_find_step(scale->machine, request->step);
    const struct coordinating_report report = {
        .node = node, .num_parts = (uint32_t)request->n_parts, .says_placed = request->placed};
    const struct coordinating_ranks ranks = {scale_rank, NULL};
    struct coordinating_answer answer = {0};
    uint64_t id = save ? save->id : 0;
    for (size_t i = 0; save && i < request->n_parts; i++)
        scale_take(scale, id, request->parts[i], node);
    if (save)
        coordinating_reported(&scale->coordinating, scale->machine, &actions, id, &report, &ranks);
    scale_perform(scale, &actions);
    if (commit_find(scale->machine, id))
        answer = coordinating_answer(&scale->coordinating, scale->machine, id, &report);
    else
        scale_check(
            !coordinating_recall(&answer.verdict, request->placed,
                                 &(struct coordinating_past){.is_here = scale->is_published,
                                                             .was_committed = scale->is_committed}),
            "verdict");
    return scale_send_answer(scale, &answer);
}

/* ---- the nodes ---- */

static inline bool scale_comes_twice(struct scale *scale)
{
    return splitmix64(&scale->random) % 16 == 0;
}

static inline void scale_begin(struct scale *scale, uint32_t node, uint32_t rank)
{
    Holdfast__V1__BeginPartRequest request = HOLDFAST__V1__BEGIN_PART_REQUEST__INIT;
    Holdfast__V1__BeginPartReply reply = HOLDFAST__V1__BEGIN_PART_REPLY__INIT;
    request.run = SCALE_RUN;
    request.attempt = 1;
    request.rank = rank;
    request.step = scale->step;
    request.state_json = rank == 0 ? "{\"metrics\":{\"loss\":2.5}}" : "";
    request.asked = splitmix64(&scale->random);
    request.boot_id = node + 1;
    reply.nonce = SCALE_NONCE;
    for (uint32_t times = 1 + scale_comes_twice(scale); times > 0; times--) {
        Holdfast__V1__BeginPartRequest *there =
            (Holdfast__V1__BeginPartRequest *)scale_send(scale, &request.base, &scale->bytes_in);
        scale_begin_at(scale, there->rank);
        scale_free(there);
        scale_free(scale_send(scale, &reply.base, &scale->bytes_out));
    }
}

/* Like fill() in peers/join_part.c: the node's whole report about its part. */
static inline Holdfast__V1__PartVerdict scale_report(struct scale *scale, uint32_t node,
                                                     Holdfast__V1__PartState state)
{
    static uint64_t digests[2 * MODEL_TENSORS];
    Holdfast__V1__ReportPartRequest request = HOLDFAST__V1__REPORT_PART_REQUEST__INIT;
    Holdfast__V1__Part parts[SCALE_RANKS_PER_NODE], *pointers[SCALE_RANKS_PER_NODE];
    Holdfast__V1__PartVerdict verdict = HOLDFAST__V1__PART_VERDICT__VERDICT_WAIT;
    request.run = SCALE_RUN;
    request.nonce = SCALE_NONCE;
    request.attempt = 1;
    request.step = scale->step;
    request.boot_id = node + 1;
    request.placed = scale->is_placed[node];
    request.parts = pointers;
    request.n_parts = SCALE_RANKS_PER_NODE;
    for (uint32_t i = 0; i < SCALE_RANKS_PER_NODE; i++) {
        Holdfast__V1__Part *part = pointers[i] = &parts[i];
        holdfast__v1__part__init(part);
        part->rank = node * SCALE_RANKS_PER_NODE + i;
        part->state = state;
        if (state != HOLDFAST__V1__PART_STATE__PART_DURABLE)
            part->written = scale->manifest.shards[part->rank].bytes;
        if (state != HOLDFAST__V1__PART_STATE__PART_DURABLE || scale->is_told[node])
            continue;
        part->bytes = scale->manifest.shards[part->rank].bytes;
        part->data_start = scale->manifest.shards[part->rank].data_start;
        part->header_hash = splitmix64(&scale->random);
        part->table_hash = splitmix64(&scale->random);
        part->digests = digests;
        part->n_digests = 2 * (size_t)scale->num_tensors[part->rank];
    }
    for (uint32_t times = 1 + scale_comes_twice(scale); times > 0; times--) {
        Holdfast__V1__ReportPartRequest *there =
            (Holdfast__V1__ReportPartRequest *)scale_send(scale, &request.base, &scale->bytes_in);
        verdict = scale_hear(scale, node, there);
        scale_free(there);
    }
    scale->is_told[node] = state == HOLDFAST__V1__PART_STATE__PART_DURABLE;
    if (verdict == HOLDFAST__V1__PART_VERDICT__VERDICT_PLACE)
        scale->is_placed[node] = true;
    return verdict;
}

/* The ranks of the coordinator's own node: without messages. */
static inline void scale_own(struct scale *scale, Holdfast__V1__PartState state)
{
    for (uint32_t rank = 0; rank < SCALE_RANKS_PER_NODE; rank++) {
        struct commit_actions actions = {0};
        uint64_t id = scale_begin_at(scale, rank);
        if (state >= HOLDFAST__V1__PART_STATE__PART_ENDED)
            commit_ended(scale->machine, &actions, id, rank);
        if (state == HOLDFAST__V1__PART_STATE__PART_DURABLE)
            commit_durable(scale->machine, &actions, id, rank);
        scale_perform(scale, &actions);
    }
}

static inline void scale_shuffle(struct scale *scale)
{
    for (uint32_t i = 1; i < scale->nodes; i++) {
        uint32_t other = 1 + (uint32_t)(splitmix64(&scale->random) % i);
        scale->order[i] = scale->order[other];
        scale->order[other] = i;
    }
}

/* Each node reports once. Returns how many heard `verdict`. */
static inline uint32_t scale_round(struct scale *scale, Holdfast__V1__PartState state,
                                   Holdfast__V1__PartVerdict verdict)
{
    uint32_t count = 0;
    scale_shuffle(scale);
    for (uint32_t i = 1; i < scale->nodes; i++)
        count += scale_report(scale, scale->order[i], state) == verdict;
    return count;
}

/* A save of the next step, from the first BeginPart until every node knows that it is committed.
 * False: it was not committed. */
static inline bool scale_save(struct scale *scale)
{
    const Holdfast__V1__PartState durable = HOLDFAST__V1__PART_STATE__PART_DURABLE;
    scale->step++;
    scale->messages = scale->bytes_in = scale->bytes_out = 0;
    scale->bytes_manifests = scale->bytes_between = 0;
    scale->coordinating = (struct coordinating){0};
    scale->is_published = scale->is_committed = false;
    free(scale->text);
    scale->text = NULL;
    memset(scale->is_placed, 0, scale->nodes * sizeof *scale->is_placed);
    memset(scale->is_told, 0, scale->nodes * sizeof *scale->is_told);
    scale_own(scale, HOLDFAST__V1__PART_STATE__PART_BEGUN);
    for (uint32_t node = 1; node < scale->nodes; node++)
        for (uint32_t i = 0; i < SCALE_RANKS_PER_NODE; i++)
            scale_begin(scale, node, node * SCALE_RANKS_PER_NODE + i);
    scale_own(scale, HOLDFAST__V1__PART_STATE__PART_ENDED);
    scale_round(scale, HOLDFAST__V1__PART_STATE__PART_ENDED,
                HOLDFAST__V1__PART_VERDICT__VERDICT_WAIT);
    scale_own(scale, durable);
    scale_round(scale, durable, HOLDFAST__V1__PART_VERDICT__VERDICT_WAIT);
    for (scale->rounds = 0; !scale->is_committed && scale->rounds < scale->nodes; scale->rounds++)
        scale_round(scale, durable, HOLDFAST__V1__PART_VERDICT__VERDICT_PLACE);
    return scale->is_committed &&
           scale_round(scale, durable, HOLDFAST__V1__PART_VERDICT__VERDICT_COMMITTED) ==
               scale->nodes - 1;
}

#endif
