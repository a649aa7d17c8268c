/* service.h - what all parts of ckptd share. */
#ifndef HOLDFAST_CKPTD_SERVICE_H
#define HOLDFAST_CKPTD_SERVICE_H

#include "ckptd/catalog.h"
#include "ckptd/config.h"
#include "ckptd/ledger.h"
#include "ckptd/loop.h"
#include "ckptd/node/gate.h"
#include "ckptd/node/place.h"
#include "storage/storage.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RESCAN_SKIPPED_MAX 64u

struct run;
struct session;
struct load;
struct image;
struct shard_wait;
struct beginning;
struct connection;
struct failure;
struct collecting;
struct scrub;
struct metrics;
struct door;
struct pool;
struct rescan;
struct rescan_waiter;
struct rpc_server;

/* Everything. One thread, the service thread, owns it and all that hangs on it, unless a field says
 * otherwise; events, timers and jobs (loop.h) are how others tell it something and how it has
 * blocking work done. */
struct service {
    const struct config *config;
    struct loop *loop;
    struct storage *storage;
    struct pool *pool;
    struct rpc_server *rpc;
    struct door *door;
    uint64_t boot_id;
    char arena_path[160];
    char socket_path[128];
    struct place place; /* of the store */
    atomic_bool drain_asked;
    bool draining;
    bool takes_last_saves; /* while draining: of the ranks that are connected */
    int64_t drain_until_ms, last_saves_until_ms;
    /* Calls that wait for memory are tried again; restore/ and run/ set what is run. */
    struct timer retry_loads, retry_saves;
    struct event drain_event;
    struct timer drain_timer;
    char offline[512];  /* why nothing is saved any more; "" normally */
    struct fault fault; /* why it gave up */
    struct run *runs;
    uint32_t num_runs, num_checkpoints;
    struct session *sessions; /* config limit_sessions of them */
    uint64_t next_session;    /* row at which the search for a free one begins */
    struct load *loads;       /* config limit_loads of them */
    uint64_t next_load;
    struct image *images;
    struct shard_wait *starved; /* LoadShard calls that wait for segments, oldest first */
    uint32_t chunks_in_passes;  /* READ and VERIFY */
    struct job renewal;         /* of the pool, a segment at a time */
    bool renews, renews_more;
    struct fault renewal_fault;   /* the pool cannot be filled */
    struct beginning *beginnings; /* BeginSave calls that wait for an image, oldest first */
    struct connection *connections;
    struct failure *failures; /* a ring */
    uint32_t num_failures;
    struct gate gate;
    struct ledger ledger;
    struct collecting *collecting;        /* a Gc under way, or NULL */
    struct timer retain_timer;            /* until retention may begin */
    struct rescan *rescan;                /* a look under way, or NULL */
    struct rescan_waiter *rescan_waiters; /* for the next */
    uint64_t looked_stamp;                /* of the root, when its names were read last */
    struct {                              /* since the start; of the last look */
        uint64_t added, vanished;
        char *skipped[RESCAN_SKIPPED_MAX]; /* what is there and not listed, and why */
        uint32_t num_skipped;
    } rescanned;
    struct policies policies;  /* the configuration's, or as they were read again */
    struct event reload_event; /* of reload.c */
    atomic_bool reload_asked;
    bool is_reloading, must_reload;
    struct timer held_timer; /* of restore/held.c */
    uint32_t num_releases;   /* of its files, under way */
    bool is_closing;         /* the loop has ended */
    struct timer look_timer; /* health.c's */
    bool cannot_save;        /* as the log said last */
    struct scrub *scrub;     /* NULL: off */
    struct metrics *metrics; /* likewise */
    struct {                 /* since the start, and of the newest commit */
        uint64_t commits, failed, refused, unchanged, pruned, bytes_written, bytes_read;
        char run[RUN_NAME_MAX + 1];
        uint64_t step, attempt, bytes;
        double seconds, staging_seconds, sync_seconds, names_seconds, manifest_seconds;
        char unchanged_run[RUN_NAME_MAX + 1]; /* the newest save that equals the one before it */
        struct repeat unchanged_save, unchanged_before;
    } stats;
};

/* From any thread, also again: stop taking work, finish what runs within limits.drain_ms, end. */
void service_drain(struct service *service);
/* Was the end asked for, by service_drain or service_give_up? Any thread. */
bool service_is_ending(const struct service *service);
/* Refuses with ERR_UNAVAILABLE while draining. */
int service_check_open(const struct service *service);
/* The same for the save of a rank that is connected, which may be its last. */
int service_check_last_saves(const struct service *service);
/* Refuses with ERR_IO while the store is offline. */
int service_check_online(const struct service *service);
/* Memory came back, or more may be read or verified now: calls that wait are tried again. */
void service_retry_waiting(struct service *service);
/* A save or a session ended: BeginSave calls that wait are tried again. */
void service_retry_saves(struct service *service);
void service_random(void *out, size_t bytes);
void service_go_offline(struct service *service, const char *why);
/* It cannot serve as it was told to: ends as by service_drain, and service_run says why. */
void service_give_up(struct service *service, const struct fault *fault);

#endif
