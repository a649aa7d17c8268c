/* participating.h - decides when a node joins an attempt that another node coordinates, and how it
 * handles its part of a save. A pure state machine, one per part: events go in, an action comes
 * out. It does no I/O, reads no clock and allocates nothing, so the daemon and the simulator run
 * the same code. The states and the invariants are drawn at the head of participating.c.
 *
 *     struct participating part = {0};
 *     action = participating_changed(&part);
 *     ... perform it; tell the machine how it went ...
 *
 * The caller performs each action once. An event that no longer fits is ignored. */
#ifndef HOLDFAST_CKPTD_MACHINES_PARTICIPATING_H
#define HOLDFAST_CKPTD_MACHINES_PARTICIPATING_H

#include "proto/wire/ckpt.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- the attempt and its coordinator ---- */

enum participating_whose {
    PARTICIPATING_OURS, /* this node's, or of a release that named no coordinator */
    PARTICIPATING_A_PEERS,
    PARTICIPATING_A_STRANGERS
};

/* A rank describes itself; attempts are given by number, 0: none. */
struct participating_arrival {
    uint64_t attempt, served, newest; /* the rank's; the one served here; the newest known */
    enum participating_whose whose;   /* of the rank's attempt, once that was read */
    bool has_saves;                   /* in work here, including those of other coordinators */
    bool has_waited;                  /* long enough for decisions of coordinators */
};

enum participating_entry {
    PARTICIPATING_DESCRIBE, /* continue as for every rank */
    PARTICIPATING_SETTLE,   /* give up own saves that no rank ends; then decide again */
    PARTICIPATING_GIVE_UP,  /* these, and the parts: participating_leave; then decide again */
    PARTICIPATING_FOLLOW,   /* serve that attempt from now on; then describe */
    PARTICIPATING_REFUSE    /* no peer coordinates it */
};

/* Must the coordinator of the attempt be looked up? */
bool participating_is_unknown(const struct participating_arrival *arrival);
enum participating_entry participating_arrive(const struct participating_arrival *arrival);

/* ---- a part of a save ---- */

enum participating_action {
    PARTICIPATING_NOTHING,
    PARTICIPATING_SEND,    /* a report; then participating_answered or _unanswered */
    PARTICIPATING_WAIT,    /* report after a while: then participating_changed */
    PARTICIPATING_PLACE,   /* write the manifest from the coordinator; participating_placed */
    PARTICIPATING_DONE,    /* the save is committed */
    PARTICIPATING_KEEP,    /* it exists here; unknown whether every holder has the manifest */
    PARTICIPATING_DISCARD, /* remove the shards, then the mark */
    PARTICIPATING_LEAVE    /* forget it; its files stay until the coordinator answers */
};

enum participating_state {
    PARTICIPATING_UNDECIDED, /* no manifest here */
    PARTICIPATING_PLACING,
    PARTICIPATING_PLACED, /* the manifest is durable here */
    PARTICIPATING_OVER
};

/* Zeroed: a part that a rank begins here. */
struct participating {
    enum participating_state state;
    bool is_left;       /* a start found its mark: it is not in memory */
    bool is_reporting;  /* a report is in progress, and */
    bool has_news;      /* the part has changed since it was made */
    bool has_missed;    /* the named node did not supply the manifest */
    bool is_whole;      /* the other nodes' shards came as well */
    uint32_t num_named; /* durable shards whose names are known to be durable */
};

/* A rank's shard, when a report is made. */
struct participating_shard {
    bool has_failed, is_durable, is_ended; /* the rank has announced all bytes */
    bool is_told;                          /* a report with its digests was answered */
};

/* The entry of the report for it. */
struct participating_line {
    Holdfast__V1__PartState state;
    bool has_digests;
};

/* A node's report of its part. */
struct participating_report {
    bool must_name; /* the names of the shards must be durable before it is sent */
    bool is_placed, has_missed;
    uint32_t num_durable, num_named;
};

/* A part whose mark a start found, with another node as coordinator, without a manifest. */
void participating_recover(struct participating *part);

/* The part has changed, or the wait is over. */
enum participating_action participating_changed(struct participating *part);
/* Makes the report to send; then each shard is added. */
struct participating_report participating_report(const struct participating *part);
struct participating_line participating_add(struct participating_report *report,
                                            const struct participating_shard *shard);
/* The answer to that report; or there was none, or the report could not be sent. */
enum participating_action participating_answered(struct participating *part,
                                                 const struct participating_report *report,
                                                 Holdfast__V1__PartVerdict verdict);
enum participating_action participating_unanswered(struct participating *part);
/* Is the manifest durable here? If not: was another node to supply it? */
enum participating_action participating_placed(struct participating *part, bool is_durable,
                                               bool was_elsewhere);
/* A whole copy came, with its manifest. */
enum participating_action participating_completed(struct participating *part);
/* Another attempt comes, and the coordinator has not answered. */
enum participating_action participating_leave(struct participating *part, uint32_t num_begun,
                                              uint32_t num_durable);

#endif
