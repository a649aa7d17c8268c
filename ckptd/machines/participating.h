/* participating.h - decides what a node does with its part of a save that another node coordinates.
 * A pure state machine, one per part: events go in, an action comes out. It does no I/O, reads no
 * clock and allocates nothing, so the daemon and the simulator run the same code. The states and
 * the invariants are drawn at the head of participating.c.
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
