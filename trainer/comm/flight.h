/* flight.h - a rank's flight recorder: its last calls of all communicators, in a ring.
 *
 * comm_run begins a record when a call is made and ends it when the call returns; a send ends with
 * its wait. When a rank waits in vain, calls something else than the others, or ends all ranks, the
 * ring is dumped: what is under way to the log and, where a folder is set, the whole ring as JSON.
 * flight_dump_all does so for every rank of this process, at any time and from any thread. With a
 * folder the ring itself lies there, in a file: of a rank that is killed it stays (flight_ring.h).
 *
 * Who runs a step's program says which operation each lane is in: so a record, a dump and the text
 * of a call that differs name the operation, and what the program has instead or next.
 *
 * Threads: a recorder has a lock of its own, held for a few stores. */
#ifndef HOLDFAST_TRAINER_FLIGHT_H
#define HOLDFAST_TRAINER_FLIGHT_H

#include "trainer/comm/comm.h"

#include <stdio.h>
#include <time.h>

#define FLIGHT_RECORDS 1024u /* until flight_set says otherwise */

/* An operation of the step's program. */
struct flight_place {
    const char *what;                   /* a constant; NULL: none */
    uint32_t index, stage, leaf, block; /* block UINT32_MAX: of none */
};

enum flight_state { FLIGHT_ENQUEUED, FLIGHT_STARTED, FLIGHT_DONE, FLIGHT_FAILED };

struct flight_record {
    uint64_t id;       /* counts this rank's calls from 1 */
    uint64_t sequence; /* of the collective in its group; for messages, of the last one */
    enum comm_kind kind;
    enum flight_state state;
    const char *group, *lane, *site;
    uint32_t size, rank, peer; /* of the group */
    int tag;
    size_t bytes;
    uint64_t enqueued_ns, started_ns, ended_ns; /* CLOCK_MONOTONIC */
    struct flight_place place;                  /* of the thread that called */
};

struct flight *flight_new(uint32_t rank); /* NULL: no memory */
void flight_free(struct flight *flight);  /* NULL is none */
/* What another process records into that file, or recorded before it died: to write it.
 * ERR_INVALID: it is no ring of this build (flight_ring.h). */
int flight_read(struct flight **out, bool *out_is_dead, const char *path);

struct flight_options {
    uint32_t num_records;
    int64_t timeout_seconds; /* of a wait for other ranks until flight_set_limit; 0: for ever */
    const char *folder;      /* of dumps and the ring; "": none. Outlives the recorder */
    const char *prefix;      /* of their names; likewise */
};
/* Before other threads use it. ERR_MEMORY. */
int flight_set(struct flight *flight, const struct flight_options *options);

/* How long a wait that begins from here on may last, and the setting that says so, a constant. Any
 * thread. 0: for ever. */
void flight_set_limit(struct flight *flight, int64_t seconds, const char *setting);
const char *flight_limit_setting(const struct flight *flight);
/* When a wait that begins now has lasted too long, on CLOCK_MONOTONIC; zeros: never. NULL: never.
 */
struct timespec flight_deadline(const struct flight *flight);

/* From here on lanes go through this program, from its begin: `next` finds the first operation of a
 * lane from `index` on. NULL: the program has ended. */
struct flight_program {
    bool (*next)(const void *user, const char *lane, uint32_t index, struct flight_place *out);
    const void *user;
};
void flight_follow(struct flight *flight, const struct flight_program *program);
/* This thread is in an operation of the lane (a constant), until flight_leave. */
void flight_enter(struct flight *flight, const char *lane, const struct flight_place *place);
void flight_leave(void);
/* Where a thread is in its program, for whoever has to say so while it is there. */
struct flight_mark {
    struct flight *flight;
    const char *lane;
    struct flight_place at;
};
struct flight_mark flight_mark(struct flight *flight); /* of this thread */
/* " in operation 7, gather of ..., where ...", or "": it is in none. Any thread. */
#define FLIGHT_TEXT_MAX 256u
void flight_tell_mark(const struct flight_mark *mark, char out[FLIGHT_TEXT_MAX]);

/* Is told of each call as it begins and ends, and of each operation that a lane enters, by the
 * thread that does; one at a time, as the recorder's lock is held. NULL: nobody is. */
struct flight_mirror {
    void (*begin)(void *user, const struct flight_record *record);
    void (*end)(void *user, uint64_t id);
    void (*enter)(void *user, const char *lane, const struct flight_place *place);
    void *user;
};
void flight_set_mirror(struct flight *flight, const struct flight_mirror *mirror);

uint64_t flight_begin(struct flight *flight, const struct comm *comm, const struct comm_call *call);
void flight_start(struct flight *flight, uint64_t id);
void flight_end(struct flight *flight, uint64_t id, int rc);
uint64_t flight_last(struct flight *flight); /* the newest record's id; 0: there is none */
/* The record, where the ring still has it. */
bool flight_find(struct flight *flight, uint64_t id, struct flight_record *out);

/* What a rank has called since the recorder was made or cleared: a sum per group and kind, in the
 * order of their first calls. */
struct flight_sum {
    const char *group;
    enum comm_kind kind;
    uint64_t calls, bytes, sent; /* bytes: comm_call_bytes; sent: comm_call_sent */
};
#define FLIGHT_SUMS_MAX 64u /* calls of one more are not summed */
uint32_t flight_sums(struct flight *flight, struct flight_sum out[FLIGHT_SUMS_MAX]);
void flight_clear_sums(struct flight *flight);

/* A call of other ranks begins, and has returned: comm_run's. Several may be under way at a time,
 * on lanes of their own. */
void flight_call_begins(struct flight *flight);
void flight_call_ends(struct flight *flight);
/* For how long since the recorder was made at least one was under way: this rank waited for others,
 * or moved data. */
double flight_called_seconds(struct flight *flight);

/* JSON: {"rank": .., "reason": "..", "lanes": [where each is, what is next], "entries": [oldest
 * ..]}.
 */
void flight_write(struct flight *flight, const char *reason, FILE *out);
/* To the log and the folder. */
void flight_dump(struct flight *flight, const char *reason);
void flight_dump_all(const char *reason);

#endif
