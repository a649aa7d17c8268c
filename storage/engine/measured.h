/* measured.h - figures of an open storage: its requests, and the link to another machine. */
#ifndef HOLDFAST_STORAGE_ENGINE_MEASURED_H
#define HOLDFAST_STORAGE_ENGINE_MEASURED_H

#include "proto/base/histogram.h"
#include "storage/storage.h"

/* The measures of a store: its requests by storage_op, then those of a bucket, each try of a
 * request to its server, by method. STORAGE_LIST is a GET of names. */
enum storage_measure {
    STORAGE_GET = STORAGE_OPS,
    STORAGE_PUT,
    STORAGE_HEAD,
    STORAGE_LIST,
    STORAGE_POST,
    STORAGE_DELETE,
    STORAGE_MEASURES
};
/* "read", "write", "sync", "get", "put", ... */
const char *storage_measure_name(unsigned measure);

/* Figures of this store's requests since it was opened, each from submit to done. Percentiles are
 * of the last few thousand; 0: there were none. */
struct storage_measured {
    struct storage_measured_op {
        uint64_t operations, bytes; /* bytes is 0 for a SYNC, and for requests of a bucket */
        double p50_seconds, p99_seconds;
        struct histogram seconds; /* of all, by HISTOGRAM_REQUEST_US */
    } of[STORAGE_MEASURES];
    uint32_t in_work; /* submitted, and not done yet */
};
void storage_measured(struct storage *storage, struct storage_measured *out);

/* Traffic to and from a store on another machine, with its time, per plane. */
enum storage_plane { STORAGE_CALLS, STORAGE_BULK, NUM_STORAGE_PLANES };
struct storage_flow {
    uint64_t bytes, ns;
};
struct storage_link {
    struct storage_flow in[NUM_STORAGE_PLANES], out[NUM_STORAGE_PLANES];
    double rtt_seconds;    /* of STORAGE_BULK, as the kernel measured it; 0: unknown */
    bool is_clock_known;   /* the server has sent its time: */
    int64_t clock_ahead_s; /* its clock less this machine's */
};
/* For a store on another machine; else all zeros. Does not wait. */
void storage_link(struct storage *storage, struct storage_link *out);

#endif
