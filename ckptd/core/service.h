/* service.h - the state that all parts of ckptd share. */
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

/* The state of ckptd. The service thread owns it and all that it points to, unless a field says
 * otherwise. Other threads post events; blocking work is a job (loop.h). */
#define SERVICE_ASKED_MAX 16u

/* The longest time that one call waits; clients call again. */
#define SERVICE_WAIT_MS_MAX 60000

struct service {
    const struct config *config;
    struct loop *loop;
    struct storage *storage; /* the local tier's */
    struct tier tiers[NUM_TIERS];
    struct crew *peer_crew; /* tier.c: of all peers; NULL: no peers */
    uint32_t num_lost;      /* refresh/refresh.c: number of lost peers */
    struct rpc_server *rpc;
    uint64_t boot_id;
    int64_t start_s; /* by the wall clock */
    char arena_path[160];
    char socket_path[128];
    atomic_bool drain_asked;
    bool draining;
    bool takes_last_saves; /* while draining: connected ranks may still save */
    int64_t drain_until_ms, last_saves_until_ms;
    struct event drain_event;
    struct timer drain_timer;
    char offline[512];  /* why ckptd saves nothing; "" normally */
    bool is_away;       /* only until the store's directory is back */
    struct fault fault; /* why it gave up */
    struct ledger ledger;
    struct policies policies; /* of the configuration, or of the last reload (reload.c) */
    /* Retries of calls that wait for memory; restore/ and run/ set the callbacks. */
    struct timer retry_loads, retry_saves;
    struct timer health_timer;     /* health.c checks whether ckptd can save */
    struct leak_watch *leak_watch; /* status/leak_watch.c */
    bool cannot_save;              /* last state of that check */
    struct asked {
        uint64_t hash;
        int64_t logged_ms;
    } asked[SERVICE_ASKED_MAX]; /* calls.c: requests that are not logged again for a while */
    bool is_closing;            /* the loop has ended */
    /* The parts; each belongs to the named file. */
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
    struct newcomer *newcomers;   /* run/open.c: starts that wait for a run, oldest first */
    struct beginning *beginnings; /* save/begin.c: calls that wait for an image, oldest first */
    /* Of them, calls that wait for memory for the last save of a run. */
    uint32_t num_last_waiting;
    struct load_table *loads;                    /* restore/lease.c */
    struct held_files *held;                     /* restore/held.c */
    struct collecting *collecting;               /* keep/gc.c: a Gc in progress, or NULL */
    struct retention *retention;                 /* keep/retain.c */
    struct trash *trash;                         /* keep/trash.c */
    struct trash *far_trash;                     /* as `trash`; NULL: no far tier */
    struct scrub *scrub;                         /* scrub/scrub.c; NULL: off */
    struct scrub *far_scrub;                     /* as `scrub`; also NULL: no far tier */
    struct reload *reload;                       /* reload.c */
    struct journals *journals;                   /* history.c */
    struct replication *replications[NUM_TIERS]; /* tiers/replicate.c; NULL: no such tier */
    struct refresh *refreshes[NUM_TIERS];        /* refresh/refresh.c; as replications */
    struct choices *choices;                     /* copies.c; NULL: each choice is made anew */
    struct queue *queue;                         /* tiers/queue.c; NULL: no other tier */
    struct timer remote_leases;                  /* attempt/remote_lease.c */
    struct timer replicate_soon;                 /* tiers/replicate.c, */
    int64_t replicate_checked_ms; /* tiers/replicate.c: the last check of all queues */
    struct buffers *peer_buffers; /* tiers/shard_copy.c: shared by all peers; NULL: no peers */
    struct durability_waiter *durability_waiters; /* tiers/wait_durability.c */
    struct serving *serving;                      /* peers/serve.c */
    struct followers *followers;                  /* peers/join_save.c; NULL: no other nodes */
    struct lead_save *lead_save;                  /* peers/lead_save.c; as `followers` */
    struct rounds *rounds;                        /* peers/rounds.c; as `followers` */
    struct publishing *publishings;  /* tiers/majority.c: numbers that are being published */
    struct peer_status *peer_status; /* peers/peer_status.c; as `followers` */
    struct metrics *metrics;         /* metrics.c; NULL: off */
    struct http_server *http_server; /* status/http_server.c; NULL: off */
    struct listeners *listeners;     /* listen.c */
    struct network *network;         /* network.c; NULL: no access from other machines */
    struct bulk_plane *bulk;         /* bulk/plane.c; NULL: no bulk plane */
};

/* From any thread, may be repeated: take no more work, finish what runs within limits.drain_ms,
 * shut down. */
void service_drain(struct service *service);
/* Was a shutdown requested, by service_drain() or service_give_up()? Any thread. */
bool service_is_ending(const struct service *service);
/* Refuses with ERR_UNAVAILABLE while draining. */
int service_check_open(const struct service *service);
/* The same for the save of a connected rank, which may be its last. */
int service_check_last_saves(const struct service *service);
/* Refuses with ERR_IO while the store is offline. */
int service_check_online(const struct service *service);
/* Memory was freed, or more may be read or verified now: retries the calls that wait. */
void service_retry_waiting(struct service *service);
/* A save or a session ended: retries the BeginSave calls that wait. */
void service_retry_saves(struct service *service);
/* The ability to save may have changed: health.c checks it soon. */
void service_check_health(struct service *service);
void service_random(void *out, size_t bytes);
/* Seconds until the certificates of tls.directory expire, after which no client can connect; below
 * 0: expired. False: no access from other machines. */
bool service_seconds_left(int64_t *out, const struct service *service);
/* Lasts until a restart. */
void service_go_offline(struct service *service, const char *why);
/* Lasts until service_come_back(), or service_go_offline() for a permanent reason. */
void service_go_away(struct service *service, const char *why);
void service_come_back(struct service *service);
/* ckptd cannot serve as configured: shuts down as by service_drain(), and service_run() returns the
 * fault. */
void service_give_up(struct service *service, const struct fault *fault);

#endif
