/* service.h - what all parts of ckptd share. */
#ifndef HOLDFAST_CKPTD_CORE_SERVICE_H
#define HOLDFAST_CKPTD_CORE_SERVICE_H

#include "ckptd/core/config.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/tier.h"
#include "storage/storage.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rpc_server;

/* Everything. One thread, the service thread, owns it and all that hangs on it, unless a field says
 * otherwise; events, timers and jobs (loop.h) are how others tell it something and how it has
 * blocking work done. */
#define SERVICE_ASKED_MAX 16u

/* The longest that one call waits for something; clients ask again. */
#define SERVICE_WAIT_MS_MAX 60000

struct service {
    const struct config *config;
    struct loop *loop;
    struct storage *storage; /* the local tier's */
    struct tier tiers[NUM_TIERS];
    struct crew *peer_crew; /* tier.c: of all peers; NULL: there is none */
    uint32_t num_lost;      /* refresh/refresh.c: peers that are lost */
    struct rpc_server *rpc;
    uint64_t boot_id;
    int64_t start_s; /* by the wall clock */
    char arena_path[160];
    char socket_path[128];
    atomic_bool drain_asked;
    bool draining;
    bool takes_last_saves; /* while draining: of the ranks that are connected */
    int64_t drain_until_ms, last_saves_until_ms;
    struct event drain_event;
    struct timer drain_timer;
    char offline[512];  /* why nothing is saved any more; "" normally */
    bool is_away;       /* only because the store's directory is elsewhere: until it is back */
    struct fault fault; /* why it gave up */
    struct ledger ledger;
    struct policies policies; /* the configuration's, or as they were read again (reload.c) */
    /* Calls that wait for memory are tried again; restore/ and run/ set what is run. */
    struct timer retry_loads, retry_saves;
    struct timer health_timer;     /* health.c looks whether ckptd can save */
    struct leak_watch *leak_watch; /* status/leak_watch.c */
    bool cannot_save;              /* as it said last */
    struct asked {
        uint64_t hash;
        int64_t logged_ms;
    } asked[SERVICE_ASKED_MAX]; /* calls.c: what is not logged again for a while */
    bool is_closing;            /* the loop has ended */
    /* The parts, each in the keeping of the file that is named. */
    struct store_watch *store_watch; /* memory/store_watch.c; NULL: the store is no directory */
    struct pool *pool;               /* memory/pool.c */
    struct renewal *renewal;         /* memory/renew.c */
    struct image *images;            /* memory/image.c */
    struct session_table *sessions;  /* memory/session.c */
    struct throttle_queue *throttle_queue;         /* memory/throttle_queue.c */
    struct catalog *catalog;                       /* catalog.c */
    const struct coordinator_ops *coordinator_ops; /* run/run.c */
    const struct hooks *hooks;                     /* server.c */
    struct outcomes *outcomes;                     /* save/outcomes.c */
    struct newcomer *newcomers;    /* run/open.c: starts that wait for a run, oldest first */
    struct beginning *beginnings;  /* save/begin.c: calls that wait for an image, oldest first */
    uint32_t num_last_waiting;     /* of them for memory for the last save of a run */
    struct load_table *loads;      /* restore/lease.c */
    struct held_files *held;       /* restore/held.c */
    struct collecting *collecting; /* keep/gc.c: a Gc under way, or NULL */
    struct retention *retention;   /* keep/retain.c */
    struct trash *trash;           /* keep/trash.c */
    struct trash *far_trash;       /* likewise; NULL: there is no far tier */
    struct scrub *scrub;           /* scrub/scrub.c; NULL: off */
    struct scrub *far_scrub;       /* likewise; also NULL: there is no far tier */
    struct reload *reload;         /* reload.c */
    struct journals *journals;     /* history.c */
    struct replication
        *replications[NUM_TIERS];         /* tiers/replicate.c; NULL: there is no such tier */
    struct refresh *refreshes[NUM_TIERS]; /* refresh/refresh.c; likewise */
    struct choices *choices;              /* copies.c; NULL: each is made anew */
    struct queue *queue;                  /* tiers/queue.c; NULL: there is no other tier */
    struct timer remote_leases;           /* attempt/remote_lease.c */
    struct timer replicate_soon;          /* tiers/replicate.c, */
    int64_t replicate_checked_ms;         /* likewise: the last look at all queues */
    struct buffers *peer_buffers; /* tiers/shard_copy.c: of all peers; NULL: there is none */
    struct durability_waiter *durability_waiters; /* tiers/wait_durability.c */
    struct serving *serving;                      /* peers/serve.c */
    struct followers *followers;     /* peers/join_save.c; NULL: there are no other nodes */
    struct lead_save *lead_save;     /* peers/lead_save.c; likewise */
    struct rounds *rounds;           /* peers/rounds.c; likewise */
    struct publishing *publishings;  /* tiers/majority.c: numbers on their way */
    struct peer_status *peer_status; /* peers/peer_status.c; likewise */
    struct metrics *metrics;         /* metrics.c; NULL: off */
    struct http_server *http_server; /* status/http_server.c; likewise */
    struct listeners *listeners;     /* listen.c */
    struct network *network;         /* network.c; NULL: no other machine comes in */
    struct bulk_plane *bulk;         /* bulk/plane.c; NULL: nor do bytes */
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
/* Whether ckptd can save may have changed: health.c looks soon. */
void service_check_health(struct service *service);
void service_random(void *out, size_t bytes);
/* Until the files of tls.directory end, so that nobody is let in any more; below 0: they have.
 * False: no other machine comes in. */
bool service_seconds_left(int64_t *out, const struct service *service);
/* Until a restart. */
void service_go_offline(struct service *service, const char *why);
/* Until service_come_back(), or service_go_offline() for a reason that lasts. */
void service_go_away(struct service *service, const char *why);
void service_come_back(struct service *service);
/* It cannot serve as it was told to: ends as by service_drain, and service_run says why. */
void service_give_up(struct service *service, const struct fault *fault);

#endif
