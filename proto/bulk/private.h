/* private.h - the client's side of the bulk plane: its jobs, and the workers that execute them. For
 * client.c and workers.c. */
#ifndef HOLDFAST_PROTO_BULK_PRIVATE_H
#define HOLDFAST_PROTO_BULK_PRIVATE_H

#include "proto/base/address.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/bulk/bulk.h"
#include "proto/bulk/wire.h"
#include "proto/tls/stream.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct group {
    uint32_t left; /* jobs */
    int error;     /* the first; its text is in `text` of the bulk */
};

struct job {
    struct job *next;
    struct group *group;
    struct bulk_request request;
    unsigned char *to;          /* GET: for request.offset */
    const unsigned char *from;  /* PUT */
    struct bulk_answer *answer; /* (optional) */
    uint64_t done;              /* GET: bytes that have arrived */
    uint32_t num_damaged;
    bool is_again, was_again; /* it may have arrived; it was sent before */
};

struct worker {
    struct bulk *bulk;
    pthread_t thread;
    bool has_thread;
    struct tls_stream *stream;
    bool is_unhashed;          /* BULK_UNHASHED was granted */
    struct job *first, **last; /* sent, not answered */
    uint32_t count;
    int64_t failing_since_ms; /* 0: it is not failing */
    uint32_t pause_ms;
};

struct bulk {
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    struct address address;
    struct tls_keys *keys;
    uint8_t ticket[BULK_TICKET_BYTES];
    uint32_t ticket_number; /* counts renewals */
    bool is_renewing;
    int (*renew)(void *user, uint8_t ticket[BULK_TICKET_BYTES]);
    void *user;
    struct job *first, **last;
    struct group puts;
    uint32_t puts_under_way;
    int64_t progress_ms; /* time of the last answer, or of the begin of work */
    int lost;            /* why it is unreachable; 0: it is reachable */
    struct report_text text;
    struct bulk_counts counts;
    bool is_closing;
    char directory[512];
    uint32_t num_workers;
    struct worker workers[BULK_CONNECTIONS_MAX];
};

static inline struct timespec at_ms(int64_t ms)
{
    return (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
}

/* Call it with the mutex. */
void bulk_push_job(struct bulk *bulk, struct job *job);
/* Ends the waiting jobs of groups that have an error. */
void bulk_sweep(struct bulk *bulk);

/* Call it without the mutex. With fewer threads than `count` it is slower; ERR_MEMORY: there is
 * none. */
int bulk_start_workers(struct bulk *bulk, uint32_t count);

#endif
