/* checkpoint.h - a run and its checkpoints, as all parts of ckptd know them. catalog.c keeps the
 * lists. */
#ifndef HOLDFAST_CKPTD_CORE_CHECKPOINT_H
#define HOLDFAST_CKPTD_CORE_CHECKPOINT_H

#include "ckptd/core/loop.h"
#include "ckptd/core/tier.h"
#include "ckptd/machines/sets.h"
#include "proto/base/checksum.h"
#include "proto/base/histogram.h"
#include "proto/format/manifest.h"
#include "proto/format/retain.h"

#include <stdbool.h>
#include <stdint.h>

#define DURABILITY_LOCAL "local" /* in answers: it is on the store's disk and synced */
#define RUN_NAME_MAX 100         /* bytes; longer names are refused */
#define PIN_NOTE_MAX 256         /* with its NUL; what is longer is cut */

struct service;
struct run;
struct image;
struct coordinator;
struct pruning;
struct storage_hold;

/* Which checkpoint a save turned out to equal, to the bit. attempt 0: none. */
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
    bool is_damaged;         /* what damaged it is in the log, and in a note beside it */
    bool is_given_up;        /* it is not sent there until a restart */
    bool is_volatile;        /* in that node's memory: it goes with its ckptd */
    int64_t proven;          /* all of it was, there; seconds since the epoch; 0: nobody knows */
    int64_t tried_ms;        /* the scrub could not read it: that proves nothing;
                                as loop_now_ms(), 0: not since the start */
    uint64_t manifest_hash;  /* of its text there, once it was sent or loaded; else 0; not of the
                                local one */
};

/* Those of a checkpoint: one for each tier of this node's own, and one for each peer that has, or
 * had, something to do with it; copies.c. */
struct copies {
    struct copy local, memory, far;
    struct copy **peers; /* by tier; owned, and so is each */
    uint32_t num_peers, room_peers;
};

/* An operator's hold in one tier, as last seen. */
struct pin {
    bool is_made;
    char *note; /* owned; NULL: none, or nobody can read it, and the pin holds all the same */
};

/* The number that rules of the best ones go by (policy.h), once a plan has read it. */
struct checkpoint_metric {
    bool is_known;
    bool is_there; /* the manifest has one */
    double value;
};

/* What open loads have to do with a shard. */
struct shard_use {
    uint32_t loads;    /* that planned it and have not released it */
    bool is_bad_here;  /* it was read in the local tier, and is damaged or missing there */
    bool is_read_here; /* likewise all of it, and is whole */
};

struct checkpoint {
    struct checkpoint *next; /* of the run; newest attempt first, then newest step */
    struct run *run;
    struct manifest_summary summary;
    struct pin pin, far_pin; /* in this node's store; in the far tier, whoever made it there */
    struct copies copies;
    bool damaged; /* quarantined: no tier has it whole; reported, never deleted, never served */
    const char
        *flaw; /* while damaged: FLAW_..., proto/format/flaw.h; it may be whole all the same */
    bool damage_is_proven;
    char damage[sizeof((struct fault *)0)->message + sizeof((struct fault *)0)->detail + 2];
    char content[CHECKSUM_SHA256_HEX]; /* as in struct save; "": not known yet */
    struct repeat repeat;              /* since ckptd started, */
    char *replicas;                    /* likewise: where they differ, owned; NULL: nowhere */
    struct image **images;             /* per shard, or NULL; NULL while there is none */
    /* Saved by ranks of several nodes: per shard the tier of the node that it was saved on,
     * NUM_TIERS of one that is no peer; owned. NULL: every copy has all. */
    uint16_t *places;
    bool was_committed;        /* by this ckptd, since it started */
    bool came_damaged;         /* likewise, and proven damaged when it was read the first time */
    bool is_led_elsewhere;     /* the node of its first shard sees to its copies */
    uint32_t num_images;       /* entered and not left yet */
    struct manifest *manifest; /* cached while leased */
    uint64_t manifest_hash;    /* of its text, once it was written or loaded; else 0 */
    struct checkpoint_metric metric;
    bool goes_far;             /* it is to be there: queue_plan(), when that was last asked */
    bool is_wanted_far;        /* somebody waits for it there: it drains first */
    bool is_wanted_replicated; /* likewise, on other nodes */
    char given_up[256];        /* why it never goes far, until a restart; "": it may */
    bool is_wanted_local;      /* ranks load it from elsewhere: it is kept here, where it fits */
    struct shard_use *uses;    /* while leased; per shard */
    uint32_t leases;           /* loads, their opening, passes for them, and scrubs */
    bool is_suspect; /* a tool found damage in the local copy, and the scrub has not read it since,
                        which it does first: retention takes it for damaged */
    uint32_t loads;  /* over the socket; restore/held.c's, */
    bool is_awaited; /* with one that a reader of the ckptd before may open again, */
    struct storage_hold *hold;     /* and the file that says so; NULL: there is none */
    struct storage_hold *far_hold; /* likewise, in the far tier: bytes of it are read there */
    bool is_going_far;             /* its drain is under way */
    bool is_promised;              /* it is not in the list: a save, a tool or a removal has it */
    char *tier_text;               /* for answers, owned */
};

/* The saves of a run since its last commit, or since ckptd started. */
struct run_health {
    uint32_t failures;  /* in a row, for whatever reason */
    int code;           /* of the newest; 0 or ERR_ABORTED: its ranks gave it up */
    bool is_store;      /* the store or ckptd caused one of them: `reason` is the newest of those */
    char reason[512];   /* else of the newest; "": none */
    uint32_t at_client; /* of them, those that their ranks have told of */
    uint64_t told;      /* 1 + the step of the newest of these; 0: none */
    char client_reason[256];
};

/* When this ckptd committed the run's saves. */
struct commit_pace {
    uint64_t attempt; /* of the newest commit; 0: there was none */
    int64_t last_ms;
    int64_t interval_ms; /* between two of an attempt (outcomes.c); 0: not known */
};

/* Lines of its journal that are not on the disk yet. */
struct history {
    char *lines; /* owned; NULL: there was none */
    size_t bytes;
};

/* Where the scrub of the far tier stands within a checkpoint. step and attempt 0: nowhere. */
struct proven_place {
    uint64_t step, attempt;
    uint64_t shard, byte; /* read next */
    int64_t begun;        /* seconds since the epoch */
};

/* What of a run was proven there: scrub/scrub_log.c. */
struct proven {
    uint64_t number; /* of the object that holds it; 0: none */
    bool is_known;   /* it was read since the start, or since another ckptd wrote it */
    bool must_keep;  /* it is to be written */
    struct proven_place place;
};

struct run {
    struct run *next;
    char name[RUN_NAME_MAX + 1];
    uint64_t tag; /* number of the run within this process, from 1 */
    struct service *service;
    struct fault unreadable; /* why the start could not read it; code 0: it could */
    uint64_t newest_attempt; /* durable; from the store */
    struct {                 /* the rank that was lost here last, the first of: */
        uint64_t attempt;    /* 0: none was */
        int64_t at_ms;
        char text[480]; /* "rank 1 of attempt 7: step 12, in ..." */
    } lost;
    struct sets sets;                /* the nodes that its newest attempt counts on */
    uint64_t *sets_seen;             /* refresh/refresh.c: of which file at each peer; owned */
    uint32_t refresh_index;          /* likewise: among the runs of the look that begins */
    struct checkpoint *checkpoints;  /* newest first */
    struct checkpoint *promised;     /* not in the list: see catalog_is_promised() */
    uint64_t adopting;               /* the attempt of keep/admit.c's work; 0: none */
    struct coordinator *coordinator; /* run/: its attempt, and what is in work */
    struct pruning *pruning;         /* keep/retain.c: under way, or NULL */
    bool retain_again;               /* there was a commit meanwhile */
    struct fault unpruned[2];        /* why the rules removed nothing: in the local, the far tier */
    struct scrub_cursor scrubbed;    /* scrub/scrub_pass.c, */
    struct proven proven;            /* in the far tier */
    bool scrub_asked;                /* likewise: a pass over it is due */
    uint64_t
        fenced_attempt; /* attempt/remote_lease.c: which a start elsewhere took over; 0: none */
    char fenced[256];   /* by whom */
    struct run_health health;
    struct commit_pace pace;
    struct histogram save_seconds, load_seconds; /* of those that were committed, and closed */
    char replicas[560];     /* where they differ, of the last save that was compared; "": nowhere */
    struct history history; /* history.c */
    uint64_t refreshed_stamp; /* likewise: of its directory, when its names were read last; 0: look
                              again */
};

/* Nothing may remove it now. */
static inline bool catalog_in_use(const struct checkpoint *checkpoint)
{
    return checkpoint->leases > 0;
}

/* The pin that keeps it, in whichever tier, or NULL. */
static inline const struct pin *catalog_pin(const struct checkpoint *checkpoint)
{
    if (checkpoint->pin.is_made)
        return &checkpoint->pin;
    return checkpoint->far_pin.is_made ? &checkpoint->far_pin : NULL;
}

/* What is known of its copy there, to be read: nothing is set in that of a peer that has none. */
const struct copy *copies_at(const struct checkpoint *checkpoint, enum tier_index tier);
/* Likewise, to be changed. Without memory what is noted of a peer is lost: the next look at it
 * finds what is there. */
struct copy *copies_note(struct checkpoint *checkpoint, enum tier_index tier);
/* All that there are, nearest first: from 0 to copies_count() - 1. */
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

/* The newest that is whole, or NULL. */
static inline struct checkpoint *catalog_newest(const struct run *run)
{
    struct checkpoint *checkpoint = run->checkpoints;
    while (checkpoint && checkpoint->damaged)
        checkpoint = checkpoint->next;
    return checkpoint;
}

#endif
