/* session.h - connected ranks and readers; see session.c. */
#ifndef HOLDFAST_CKPTD_MEMORY_SESSION_H
#define HOLDFAST_CKPTD_MEMORY_SESSION_H

#include "ckptd/core/loop.h"
#include "proto/base/principal.h"
#include "proto/format/shard.h"
#include "proto/wire/arena_notes.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct run;
struct stage;
struct image;
struct connection;

#define SLOTS_PER_RANK 2u /* images of a session; when both are written, BeginSave is ERR_BUSY */

struct session {
    uint64_t token; /* random; 0: slot not in use */
    struct service *service;
    struct run *run;
    bool is_rank;
    uint64_t attempt;
    uint32_t rank, world_size;     /* of its attempt */
    struct connection *connection; /* when it ends, so does the session */
    struct timer timer;            /* until the connection comes */
    uint32_t num_loads;
    /* Ranks only. */
    struct principal owner;         /* who described it */
    uint32_t memory_node;           /* of its images, as in pool_owner */
    struct shard_geometry geometry; /* of its shards */
    uint32_t image_segments;        /* fewer than the file needs: its images are windows */
    int control_fd, event_fd;
    struct arena_control *control;
    struct watch watch;  /* event_fd */
    int64_t spoke_ms;    /* when the rank, or ckptd on its behalf, last acted */
    uint64_t num_begins; /* number of BeginSave calls: only the newest counts */
    uint64_t begun;      /* `asked` of the BeginSave whose save was begun last */
    struct image *slots[SLOTS_PER_RANK];
    struct stage *slot_stages[SLOTS_PER_RANK]; /* the stage a STAGING image belongs to */
    uint64_t slot_ids[SLOTS_PER_RANK]; /* the save that began there last, even if it is over */
};

/* For the session of a rank. */
struct session_options {
    struct run *run;
    struct principal owner;
    uint64_t attempt;
    uint32_t rank, world_size, memory_node;
    struct shard_geometry geometry;
    uint32_t image_segments;
};

/* Callbacks to the upper floors; server.c sets them. */
struct session_events {
    void (*announced)(struct session *session, const struct arena_entry *entry); /* in its ring */
    void (*phase_changed)(struct service *service); /* of some rank, or the rank has gone */
    void (*let_go)(struct session *session);        /* the rank copies no more into its images */
    /* Its rings are read: its stages continue without it. */
    void (*leaves)(struct session *session);
    void (*rank_left)(struct session *session); /* and its images no longer belong to it */
    void (*ended)(struct session *session);     /* of a rank or a reader */
    /* ckptd ended the session, not the peer. `left`: the images into which it may still copy,
     * SLOTS_PER_RANK or NULL each. */
    void (*part)(struct connection *connection, struct image *const *left);
    bool (*lends)(const struct session *session, uint32_t segment); /* to be read */
};

struct session_table {
    const struct session_events *events;
    struct session *rows; /* config limit_sessions of them */
    uint64_t next;        /* row at which the search for a free row begins */
};

int session_table_open(struct service *service, const struct session_events *events);
void session_table_close(struct service *service);
/* ERR_NOT_FOUND. */
int session_look(struct session **out, struct service *service, uint64_t token);
/* Also notes that it is alive. */
int session_find(struct session **out, struct service *service, uint64_t token);
/* ERR_NOT_FOUND also if it is not a rank's. */
int session_find_rank(struct session **out, struct service *service, uint64_t token);
/* ERR_BUSY, ERR_MEMORY. With a control page set and an eventfd. */
int session_new_rank(struct session **out, struct service *service,
                     const struct session_options *options);
/* ERR_BUSY. A session that is not a rank's is for loads. */
int session_new(struct session **out, struct service *service, struct run *run);
void session_end(struct session *session, const char *why);
/* Its connection has ended. Logs a rank that has not left by itself, with its last phase. The
 * journal has the first such rank of an attempt, or the last one that left. */
void session_lost(struct session *session);
void session_drain(struct session *session);
/* The rank no longer uses the image of `save`; 0: any image. */
void session_let_go(struct session *session, uint64_t save);
bool session_may_map(const struct session *session, uint32_t segment, bool writable);
/* Ends the rank sessions of a run's attempts before `attempt`. */
void session_end_older(struct run *run, uint64_t attempt);
void session_drain_run(struct run *run);
uint32_t session_num_busy(const struct service *service); /* ranks that announced a busy phase */
/* Number of ranks of the run that are connected, or just arrived, and acted at or after
 * `since_ms`. */
uint32_t session_num_alive(const struct run *run, int64_t since_ms);
/* The owner of a connected rank of the run: `asker`, if that owns one. NULL: no rank is connected.
 */
const struct principal *session_owner(const struct run *run, const struct principal *asker);
/* Asks the run's connected ranks (enum arena_asked) to act within `grace_s` unless that is 0;
 * returns how many those are. */
uint32_t session_ask(const struct run *run, uint32_t asked, uint32_t grace_s);
/* The same for a save. */
uint32_t session_ask_save(const struct run *run);
/* What the rank of the session is asked. */
struct session_asked {
    uint32_t asked;    /* enum arena_asked */
    uint32_t within_s; /* the time left for it, at least 1; 0: no limit */
    uint32_t saves;    /* in all */
};
struct session_asked session_asked_of(const struct session *session);
/* The state of the run's ranks on this node. */
struct session_ranks {
    uint32_t count;    /* connected, or just arrived */
    uint32_t silent;   /* the rank with the oldest phase, of those that report phases */
    int64_t silent_ms; /* the age of that phase; -1: no rank reports phases, or none is here */
    char doing[ARENA_TELL_MAX]; /* its note of the phase; "": none */
};
struct session_ranks session_ranks_of(const struct run *run);
/* Finds the rank here whose process has not run for the longest time (arena_note_alive), if another
 * rank has run for long since then: that one does not stand still, it waits. */
bool session_find_still(uint32_t *out_rank, double *out_seconds, const struct run *run);
bool session_is_there(const struct service *service, uint64_t token);
/* Has the run a session of a rank or a reader? */
bool session_any_of(const struct run *run);
bool session_any_rank(const struct service *service); /* is any rank described and connected? */

#endif
