/* participating.h - decides when a node takes part in an attempt that another node coordinates, and
 * what it does with its part of a save. A pure state machine, one per part: events go in, an action
 * comes out. It does no I/O, reads no clock and allocates nothing, so the daemon and the simulator
 * run the same code. The states and the invariants are drawn at the head of participating.c.
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

/* ---- which attempt, and whose ---- */

enum participating_whose {
    PARTICIPATING_OURS, /* this node's own, or of a release that named no coordinator */
    PARTICIPATING_A_PEERS,
    PARTICIPATING_A_STRANGERS
};

/* A rank describes itself; attempts by their numbers, 0: none. */
struct participating_arrival {
    uint64_t attempt, served, newest; /* the rank's; the one served here; the newest heard of */
    enum participating_whose whose;   /* of the rank's attempt, once that was looked up */
    bool has_saves;                   /* in work here, those of other coordinators included */
    bool has_waited;                  /* long enough for what coordinators decide */
};

enum participating_entry {
    PARTICIPATING_DESCRIBE, /* go on as with every rank */
    PARTICIPATING_SETTLE,   /* give up own saves that nobody ends; then decide again */
    PARTICIPATING_GIVE_UP,  /* these, and the parts: participating_leave; then decide again */
    PARTICIPATING_FOLLOW,   /* serve that attempt from now on; then describe */
    PARTICIPATING_REFUSE    /* no peer coordinates it */
};

/* Is it to be looked up, whose the attempt is? */
bool participating_is_unknown(const struct participating_arrival *arrival);
enum participating_entry participating_arrive(const struct participating_arrival *arrival);

/* ---- a part of a save ---- */

enum participating_action {
    PARTICIPATING_NOTHING,
    PARTICIPATING_SEND,    /* a report; then participating_answered or _unanswered */
    PARTICIPATING_WAIT,    /* report after a while: then participating_changed */
    PARTICIPATING_PLACE,   /* write the manifest that the coordinator names; participating_placed */
    PARTICIPATING_DONE,    /* the save is committed */
    PARTICIPATING_KEEP,    /* it exists here; unknown whether every holder has the manifest */
    PARTICIPATING_DISCARD, /* remove the shards, then the mark */
    PARTICIPATING_LEAVE    /* forget it; its files stay until the coordinator can be asked */
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
    bool is_left;       /* a start found its mark: there is nothing of it in memory */
    bool is_reporting;  /* a report is under way, and */
    bool has_news;      /* something has changed since it was made */
    bool has_missed;    /* the node that was named did not give the manifest */
    bool is_whole;      /* the other nodes' shards came, too */
    uint32_t num_named; /* durable shards whose names are known to be durable */
};

/* A rank's shard, when a report is made. */
struct participating_shard {
    bool has_failed, is_durable, is_ended; /* the rank has announced everything */
    bool is_told;                          /* a report with its digests was answered */
};

/* The report's words about it. */
struct participating_line {
    Holdfast__V1__PartState state;
    bool has_digests;
};

/* All that a node knows of its part. */
struct participating_report {
    bool must_name; /* before it is sent, the names of the shards are to be durable */
    bool is_placed, has_missed;
    uint32_t num_durable, num_named;
};

/* A part of which a start finds the mark of another node, and no manifest. */
void participating_recover(struct participating *part);

/* Something has become of the part, or the wait is over. */
enum participating_action participating_changed(struct participating *part);
/* Makes the report that is to be sent; then each shard is added. */
struct participating_report participating_report(const struct participating *part);
struct participating_line participating_add(struct participating_report *report,
                                            const struct participating_shard *shard);
/* The answer to that report; or none came, or the report could not be sent. */
enum participating_action participating_answered(struct participating *part,
                                                 const struct participating_report *report,
                                                 Holdfast__V1__PartVerdict verdict);
enum participating_action participating_unanswered(struct participating *part);
/* Is the manifest durable here? If not: was another node to give it? */
enum participating_action participating_placed(struct participating *part, bool is_durable,
                                               bool was_elsewhere);
/* A whole copy came, with its manifest. */
enum participating_action participating_completed(struct participating *part);
/* Another attempt comes, and the coordinator has not answered. */
enum participating_action participating_leave(struct participating *part, uint32_t num_begun,
                                              uint32_t num_durable);

#endif
