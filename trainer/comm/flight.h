/* flight.h - a rank's flight recorder: its last calls of all communicators, in a ring.
 *
 * comm_run begins a record when a call is made and ends it when the call returns; a send ends with
 * its wait. The ring is dumped when a rank's wait times out, when its call differs from those of
 * other ranks, or when it ends all ranks. A dump has calls under way in the log and, if a folder is
 * set, the whole ring as JSON. flight_dump_all dumps every rank of this process, at any time and
 * from any thread. With a folder the ring is a file there, which stays if the rank is killed
 * (flight_ring.h).
 *
 * The executor of a step's program sets the operation of each lane. So a record, a dump and the
 * error text of a different call name the operation, and the program's other or next one.
 *
 * Threads: each recorder has a lock, held for a few stores. */
#ifndef HOLDFAST_TRAINER_FLIGHT_H
#define HOLDFAST_TRAINER_FLIGHT_H

#include "trainer/comm/comm.h"

#include <stdio.h>
#include <time.h>

#define FLIGHT_RECORDS 1024u /* default of flight_set */

/* An operation of the step's program. */
struct flight_place {
    const char *what;                   /* a constant; NULL: none */
    uint32_t index, stage, leaf, block; /* block UINT32_MAX: none */
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
void flight_free(struct flight *flight);  /* NULL is allowed */
/* Reads the ring that another process writes, or wrote before it died, for flight_write.
 * ERR_INVALID: it is no ring of this build (flight_ring.h). */
int flight_read(struct flight **out, bool *out_is_dead, const char *path);

struct flight_options {
    uint32_t num_records;
    int64_t timeout_seconds; /* of a wait for other ranks until flight_set_limit; 0: no limit */
    const char *folder;      /* of dumps and the ring; "": none. Must outlive the recorder */
    const char *prefix;      /* of their names; likewise */
};
/* Call before other threads use it. ERR_MEMORY. */
int flight_set(struct flight *flight, const struct flight_options *options);
struct flight_options flight_options_of(const struct flight *flight);

/* Sets the limit of waits that begin from here on, and the name of its setting, a constant. 0: no
 * limit. Any thread. */
void flight_set_limit(struct flight *flight, int64_t seconds, const char *setting);
const char *flight_limit_setting(const struct flight *flight);
/* The time on CLOCK_MONOTONIC at which a wait that begins now times out; zeros: never. NULL:
 * never. */
struct timespec flight_deadline(const struct flight *flight);

/* From here on lanes run this program, from its beginning: `next` finds the first operation of a
 * lane from `index` on. NULL: the program has ended. */
struct flight_program {
    bool (*next)(const void *user, const char *lane, uint32_t index, struct flight_place *out);
    const void *user;
};
void flight_follow(struct flight *flight, const struct flight_program *program);
/* Sets this thread's operation and lane (a constant), until flight_leave_op. */
void flight_enter_op(struct flight *flight, const char *lane, const struct flight_place *place);
void flight_leave_op(void);
/* A thread's place in its program, for error texts of other threads while it is there. */
struct flight_mark {
    struct flight *flight;
    const char *lane;
    struct flight_place at;
};
struct flight_mark flight_mark(struct flight *flight); /* of this thread */
/* " in operation 7, gather of ..., where ...", or "" outside of operations. Any thread. */
#define FLIGHT_TEXT_MAX 256u
void flight_tell_mark(const struct flight_mark *mark, char out[FLIGHT_TEXT_MAX]);

/* A rank whose process stands still. */
struct flight_still {
    uint32_t rank;
    double seconds;
};

/* Called when a call begins and ends, and when a lane enters an operation, on that thread. One call
 * at a time, since the recorder's lock is held. NULL: no calls. */
struct flight_mirror {
    void (*begin)(void *user, const struct flight_record *record);
    void (*end)(void *user, uint64_t id);
    void (*enter)(void *user, const char *lane, const struct flight_place *place);
    void (*alive)(void *user); /* of flight_beat_all, on its thread */
    bool (*find_still)(void *user, struct flight_still *out);
    void *user;
};
void flight_set_mirror(struct flight *flight, const struct flight_mirror *mirror);

uint64_t flight_begin(struct flight *flight, const struct comm *comm, const struct comm_call *call);
void flight_start(struct flight *flight, uint64_t id);
void flight_end(struct flight *flight, uint64_t id, int rc);
uint64_t flight_last(struct flight *flight); /* the newest record's id; 0: none */
/* Copies the record, if it is still in the ring. */
bool flight_find(struct flight *flight, uint64_t id, struct flight_record *out);

/* Sums of a rank's calls since the recorder was made or cleared: one per group and kind, in the
 * order of their first calls. */
struct flight_sum {
    const char *group;
    enum comm_kind kind;
    uint64_t calls, bytes, sent; /* bytes: comm_call_bytes; sent: comm_call_sent */
};
#define FLIGHT_SUMS_MAX 64u /* calls of further groups and kinds are not summed */
uint32_t flight_sums(struct flight *flight, struct flight_sum out[FLIGHT_SUMS_MAX]);
void flight_clear_sums(struct flight *flight);

/* comm_run calls these when a call between ranks begins and has returned. Several may be under way
 * at a time, on different lanes. */
void flight_call_begins(struct flight *flight);
void flight_call_ends(struct flight *flight);
/* The time since the recorder was made during which a call was under way: this rank waited for
 * others, or moved data. */
double flight_called_seconds(struct flight *flight);

/* Notes for all recorders of this process that it runs. Call every FLIGHT_BEAT_MS from one thread
 * that waits for no other rank; it does not wait here for recorders in use. After a gap of
 * FLIGHT_STILL_MS nothing is noted for FLIGHT_AFTER_MS: launchers continue a stopped process to end
 * it, and the gap must outlast that. */
#define FLIGHT_BEAT_MS 500
#define FLIGHT_STILL_MS 3000
#define FLIGHT_AFTER_MS 10000
void flight_beat_all(void);

/* The rank of which the process stands still for the longest time, by the rings in a folder. False:
 * there is none, or no folder is set (""). */
bool flight_find_still(struct flight_still *out, const char *folder, const char *prefix);
/* The same by the mirror, which also knows ranks of other hosts, and may take a second. */
bool flight_ask_still(struct flight *flight, struct flight_still *out);

/* Writes JSON: {"rank": .., "reason": "..", "boot": .., "alive_ms": .., "lanes": [place of each,
 * next operation], "entries": [oldest ..]}. */
void flight_write(struct flight *flight, const char *reason, FILE *out);
/* Dumps to the log and the folder. */
void flight_dump(struct flight *flight, const char *reason);
void flight_dump_all(const char *reason);

#endif
