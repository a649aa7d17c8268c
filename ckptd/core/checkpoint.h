/* checkpoint.h - a run and its checkpoints, for all parts of ckptd. catalog.c keeps the lists. */
#ifndef HOLDFAST_CKPTD_CORE_CHECKPOINT_H
#define HOLDFAST_CKPTD_CORE_CHECKPOINT_H

#include "ckptd/core/loop.h"
#include "ckptd/core/tier.h"
#include "ckptd/machines/sets.h"
#include "proto/base/checksum.h"
#include "proto/base/clock.h"
#include "proto/base/histogram.h"
#include "proto/format/manifest.h"
#include "proto/format/retain.h"

#include <stdbool.h>
#include <stdint.h>

#define DURABILITY_LOCAL "local" /* in answers: it is on the store's disk and synced */
#define RUN_NAME_MAX 100         /* bytes; longer names are refused */
#define PIN_NOTE_MAX 256         /* with its NUL; a longer note is cut */

struct service;
struct run;
struct image;
struct coordinator;
struct pruning;
struct storage_hold;

/* The checkpoint that a save equals, to the bit. attempt 0: none. */
struct repeat {
    uint64_t step, attempt;
};

/* The checkpoint in one tier. */
struct copy {
    struct checkpoint *checkpoint;
    enum tier_index tier;
    struct copy *next, **at; /* of all in that tier: tier.copies */
    bool is_there;           /* committed, as far as ckptd has seen */
    bool is_part;            /* only some shards: the others are on other nodes (places) */
    bool is_damaged;         /* the damage is in the log, and in a note beside it */
    bool is_given_up;        /* it is not copied there until a restart */
    bool is_volatile;        /* in that node's memory: lost when its ckptd stops */
    /* When all of it was verified there; seconds since the epoch; 0: unknown. */
    int64_t proven;
    /* Last failed read by the scrub, which proves nothing; as clock_ms(), 0: none since the
     * start. */
    int64_t tried_ms;
    /* Of its manifest there, once it was sent or loaded; else 0; not of the local one. */
    uint64_t manifest_hash;
};

/* The copies of a checkpoint: one record for each tier of this node, and one for each peer that has
 * or had a copy; copies.c. */
struct copies {
    struct copy local, memory, far;
    struct copy **peers; /* by tier; the array and its elements are owned */
    uint32_t num_peers, room_peers;
};

/* An operator's hold in one tier, as last seen. */
struct pin {
    bool is_made;
    char *note; /* owned; NULL: none, or unreadable; the pin holds anyway */
};

/* The value for the rules that keep the best (policy.h), once a plan has read it. */
struct checkpoint_metric {
    bool is_known;
    bool is_there; /* the manifest has the value */
    double value;
};

/* Open loads of a shard. */
struct shard_use {
    uint32_t loads;    /* that planned the shard and have not released it */
    bool is_bad_here;  /* it was read in the local tier, and is damaged or missing there */
    bool is_read_here; /* all of it was read in the local tier, and is whole */
};

struct checkpoint {
    struct checkpoint *next; /* of the run; newest attempt first, then newest step */
    struct run *run;
    struct manifest_summary summary;
    struct pin pin, far_pin; /* in this node's store; in the far tier, by any node */
    struct copies copies;
    bool damaged; /* quarantined: no tier has a whole copy; reported, never deleted, never served */
    /* While damaged: FLAW_..., proto/format/flaw.h; with some flaws its bytes are whole. */
    const char *flaw;
    char damage[sizeof((struct fault *)0)->message + sizeof((struct fault *)0)->detail + 2];
    char content[CHECKSUM_SHA256_HEX]; /* as in struct save; "": unknown */
    struct repeat repeat;              /* found since ckptd started, */
    char *replicas;                    /* as these: where replicas differ, owned; NULL: nowhere */
    struct image **images;             /* per shard, NULL: none; NULL: no images */
    /* Saved by ranks of several nodes: per shard the tier of its node, NUM_TIERS of one that is no
     * peer; owned. NULL: every copy has all shards. */
    uint16_t *places;
    bool was_committed;        /* by this ckptd, since it started */
    bool came_damaged;         /* as was_committed, and damaged at its first read */
    bool is_led_elsewhere;     /* the node of its first shard makes its copies */
    uint32_t num_images;       /* entered and not left yet */
    struct manifest *manifest; /* cached while leased */
    uint64_t manifest_hash;    /* of its text, once written or loaded; else 0 */
    struct checkpoint_metric metric;
    bool goes_far;             /* wanted in the far tier, by the last queue_plan() */
    bool is_wanted_far;        /* a client waits for it there: it drains first */
    bool is_wanted_replicated; /* the same, on other nodes */
    char given_up[256];        /* why it never goes to the far tier, until a restart; "": it may */
    bool is_wanted_local;      /* ranks load it from another tier: it is kept here if it fits */
    struct shard_use *uses;    /* while leased; per shard */
    /* By loads, by the opening of loads, by their passes, and by scrubs. */
    uint32_t leases;
    /* A tool found the local copy damaged; the scrub reads it first, and until then retention
     * counts it as damaged. */
    bool is_suspect;
    uint32_t loads;            /* of restore/held.c, over the socket; */
    bool is_awaited;           /* one of them may be reopened by a reader of the former ckptd; */
    struct storage_hold *hold; /* the file of these loads; NULL: none */
    struct storage_hold *far_hold; /* the same in the far tier, while bytes are read there */
    bool is_going_far;             /* its drain is in progress */
    bool is_promised;              /* it is not in the list: a save, a tool or a removal owns it */
    char *tier_text;               /* for answers, owned */
};

/* The saves of a run since its last commit, or since ckptd started. */
struct run_health {
    uint32_t failures; /* in succession, for any reason */
    int code;          /* of the newest; 0 or ERR_ABORTED: its ranks gave it up */
    /* The store or ckptd caused one of them; then `reason` is of the newest of those. */
    bool is_store;
    char reason[512];   /* of the newest failure, if is_store is false; "": none */
    uint32_t at_client; /* failures that their ranks have reported */
    uint64_t told;      /* 1 + the step of the newest of these; 0: none */
    char client_reason[256];
};

/* The times of this ckptd's commits of the run. */
struct commit_pace {
    uint64_t attempt; /* of the newest commit; 0: none */
    int64_t last_ms;
    int64_t interval_ms; /* between two commits of an attempt (outcomes.c); 0: unknown */
};

/* Lines of its journal that are not on disk yet. */
struct history {
    char *lines; /* owned; NULL: none */
    size_t bytes;
    size_t dropped; /* of them, while a worker writes: go when it has ended (history_drop) */
};

/* Where the scrub of the far tier is within a checkpoint. step and attempt 0: nowhere. */
struct proven_place {
    uint64_t step, attempt;
    uint64_t shard, byte; /* the next to read */
    int64_t begun;        /* seconds since the epoch */
};

/* Which checkpoints of a run were verified there: scrub/scrub_log.c. */
struct proven {
    uint64_t number; /* of the object that stores it; 0: none */
    bool is_known;   /* it was read since the start, or since another ckptd wrote it */
    bool must_keep;  /* it must be written */
    struct proven_place place;
};

struct run {
    struct run *next;
    char name[RUN_NAME_MAX + 1];
    uint64_t tag; /* number of the run within this process, from 1 */
    struct service *service;
    struct fault unreadable; /* why the start could not read it; code 0: no error */
    uint64_t newest_attempt; /* durable; from the store */
    struct {                 /* the rank that was lost last on this node, the first of: */
        uint64_t attempt;    /* 0: none */
        int64_t at_ms;
        char text[560]; /* "rank 1 of attempt 7: step 12, in ..." */
    } lost;
    struct sets sets; /* the nodes on which its newest attempt depends */
    /* Of refresh/refresh.c: the stamp of the sets file at each peer; owned. */
    uint64_t *sets_seen;
    /* Of refresh/refresh.c: the index among the runs of the refresh that begins. */
    uint32_t refresh_index;
    struct checkpoint *checkpoints;  /* newest first */
    struct checkpoint *promised;     /* not in the list: see catalog_is_promised() */
    uint64_t adopting;               /* the attempt that keep/admit.c works on; 0: none */
    struct coordinator *coordinator; /* run/: its attempt, and the saves in work */
    struct pruning *pruning;         /* keep/retain.c: in progress, or NULL */
    bool retain_again;               /* a commit came meanwhile */
    struct fault unpruned[2];        /* why the rules removed nothing: in the local, the far tier */
    struct scrub_cursor scrubbed;    /* scrub/scrub_pass.c, */
    struct proven proven;            /* in the far tier */
    bool scrub_asked;                /* of scrub/scrub_pass.c: a pass over it is due */
    /* attempt/remote_lease.c: the attempt that a start elsewhere took over; 0: none. */
    uint64_t fenced_attempt;
    char fenced[256]; /* which start took it over */
    struct run_health health;
    struct commit_pace pace;
    struct histogram save_seconds, load_seconds; /* of committed saves, and of closed loads */
    /* Where replicas differ, of the last save that was compared; "": nowhere. */
    char replicas[560];
    struct history history; /* history.c */
    /* Of refresh/refresh.c: the stamp of its directory when its names were last read; 0: read them
     * again. */
    uint64_t refreshed_stamp;
};

/* True if it must not be removed now. */
static inline bool catalog_in_use(const struct checkpoint *checkpoint)
{
    return checkpoint->leases > 0;
}

/* The pin that keeps it, in either tier, or NULL. */
static inline const struct pin *catalog_pin(const struct checkpoint *checkpoint)
{
    if (checkpoint->pin.is_made)
        return &checkpoint->pin;
    return checkpoint->far_pin.is_made ? &checkpoint->far_pin : NULL;
}

/* The record of its copy there, to read; all zero for a peer without one. */
const struct copy *copies_at(const struct checkpoint *checkpoint, enum tier_index tier);
/* The same, to change. Without memory a change for a peer is lost: the next refresh of the peer
 * finds it again. */
struct copy *copies_note(struct checkpoint *checkpoint, enum tier_index tier);
/* All records, nearest tier first: index 0 to copies_count() - 1. */
uint32_t copies_count(const struct checkpoint *checkpoint);
const struct copy *copies_get(const struct checkpoint *checkpoint, uint32_t index);

/* Has that tier a whole copy? */
static inline bool catalog_has_copy(const struct checkpoint *checkpoint, enum tier_index tier)
{
    const struct copy *copy = copies_at(checkpoint, tier);
    return copy->is_there && !copy->is_damaged;
}

/* The image of a shard, or NULL. */
static inline struct image *catalog_image(const struct checkpoint *checkpoint, uint32_t shard)
{
    return checkpoint->images ? checkpoint->images[shard] : NULL;
}

/* The newest whole checkpoint, or NULL. */
static inline struct checkpoint *catalog_newest(const struct run *run)
{
    struct checkpoint *checkpoint = run->checkpoints;
    while (checkpoint && checkpoint->damaged)
        checkpoint = checkpoint->next;
    return checkpoint;
}

#endif
