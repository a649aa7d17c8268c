/* storage.h - objects on tiers. Knows bytes and names, not checkpoints.
 *
 * A back-end is one const struct storage_ops (engine/backend.h): a directory, a bucket, another
 * ckptd's store, memory. The functions below assert their arguments and call its table.
 *
 * Two kinds of objects:
 *  - big ones (shards): create with their final size reserved, write by asynchronous requests in
 *    any order, sync, close. Reads likewise.
 *  - small ones (manifests, attempts, leases): publish() makes the whole object appear at once,
 *    exclusively and durably, or not at all.
 *
 * Names are durable only after sync_names() on their directories. An error of a sync is final for
 * that object: the caller rewrites to a new name.
 *
 * Keys are relative paths of [A-Za-z0-9._-] components, without "." and "..", at most 512 bytes and
 * 255 a component; components that begin with ".holdfast" are reserved. Anything else is
 * ERR_INVALID. A path through a symbolic link is ERR_DENIED: links are not followed.
 *
 * In a bucket there are no directories: a key with others below it is listed as one, sync_names has
 * nothing to do, rename is refused, the space is unknown. A big object appears whole with the SYNC
 * that follows the last of its bytes; a SYNC before that makes nothing durable. Each byte of it is
 * written once. What cannot be known to have happened is ERR_UNSETTLED: it may be there, now or
 * later; ask again, and remove nothing meanwhile.
 *
 * Threads: a storage may be used from any thread. Callbacks run on a thread of the back-end, one at
 * a time, never inside storage_submit; they may submit, and must not block (nor call any other
 * storage function). Requests and their buffers belong to the caller and must not be touched until
 * the callback. The back-end does not order requests: a SYNC covers the writes whose callbacks ran
 * before it was submitted. Close objects when their requests are done, and the storage last.
 * Errors: ERR_IO, ERR_SPACE, ERR_NOT_FOUND, ERR_EXISTS, ERR_BUSY (the store is locked, or there are
 * no descriptors left), ERR_DENIED, ERR_INVALID, ERR_MEMORY, ERR_CORRUPT (of a read), ERR_ABORTED
 * (of a request that was given up); of a bucket also ERR_UNAVAILABLE, ERR_UNSETTLED, ERR_STALE (the
 * store's lock was lost). */
#ifndef HOLDFAST_STORAGE_H
#define HOLDFAST_STORAGE_H

#include "proto/base/histogram.h"
#include "proto/base/lanes.h"
#include "proto/base/report.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/uio.h>

#define STORAGE_KEY_MAX 512
#define STORAGE_ALIGN 4096u                /* of offsets, sizes and buffers of requests */
#define STORAGE_LOCK_NAME ".holdfast.lock" /* of `local`, in the root from the first writer on */

/* prefix/name; the name alone where the prefix is "". False: longer than any key. */
bool storage_join(char out[STORAGE_KEY_MAX + 1], const char *prefix, const char *name);

struct storage;        /* an open back-end */
struct storage_object; /* an open big object */
struct storage_hold;   /* a small object that ends with its holder */
struct rpc_client;
struct storage_bucket; /* storage/bucket/options.h */

enum storage_op { STORAGE_READ, STORAGE_WRITE, STORAGE_SYNC };
#define STORAGE_OPS 3u

/* What of a store is measured: its requests by storage_op, and behind those of a bucket each try of
 * what it asks its server, by method. STORAGE_LIST is a GET of names. */
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

struct storage_request {
    enum storage_op op;
    struct storage_object *object;
    uint64_t offset; /* multiple of storage_align() */
    void *data;      /* aligned to STORAGE_ALIGN; NULL for SYNC */
    uint32_t bytes;  /* multiple of storage_align() */
    int32_t buffer;  /* index of the registered buffer that holds `data`, or -1 */
    /* Of a WRITE: NULL, or the SHA-256 of these bytes in hexadecimal, which a store that needs it
     * takes instead of making it again; see storage_write_hashed(). */
    const char *sha256;
    /* NULL, or: a transfer that has not begun when this is true ends with ERR_ABORTED. One that has
     * begun is finished. It is looked at until done(); a SYNC does not look at it. */
    const atomic_bool *given_up;
    void (*done)(struct storage_request *request); /* runs once, on the engine's thread */
    void *user;
    /* Result, valid in done(): 0 or an error code; the errno behind it. A request is complete or
     * failed: short transfers are resubmitted by the engine. A read past the end is ERR_CORRUPT. */
    int error;
    int error_number;
    /* Private to the back-end until done(). */
    union {
        struct storage_request *next;
        struct lane_link link; /* proto/base/lanes.h */
    };
    uint32_t bytes_done;
    uint32_t retries;
    struct storage_meter *meter; /* meter.c */
    uint64_t begun_us;
};

/* The names of the variables that say where buckets are and what they mean, a line each. */
void storage_bucket_print_help(FILE *out);

struct storage_options {
    uint32_t queue_depth; /* requests in flight on the device; 0: 32 */
    bool force_pwrite;    /* do not try io_uring */
    uint32_t num_threads; /* of the pwrite engine; 0: 4 */
    bool read_only;       /* offline readers: no lock is needed, nothing is created */
    bool is_ours_alone;   /* ERR_DENIED where other users could change the root; see local.c */
    bool is_quiet;        /* what was chosen is logged for debugging only */
    /* `local`: other machines use the directory, too. Its lock, leases and sweeps hold between them
     * only where the file system passes open-file-description locks on. */
    bool is_shared;
    const struct storage_bucket *bucket; /* `s3`; NULL: as the environment says */
    bool opens_briefly;   /* `s3`: the opening is tried for seconds only: who opens asks again */
    bool lists_all_names; /* `s3`: also those that no key can have; else lists leave them out */
    const char *tls_directory; /* `peer`: who asks, proto/tls/tls.h */
    struct rpc_client *rpc;    /* (optional) `peer`: its calls go by this one, which outlives it */
};

/* Where a store is, as people write it: "s3://BUCKET[/PREFIX]", "dir:/PATH" (one that is shared),
 * "/PATH" or "PATH". */
#define STORAGE_WHERE_BYTES 4096u
struct storage_where {
    const struct storage_ops *ops;
    char place[STORAGE_WHERE_BYTES]; /* as ops->open takes it */
    bool is_shared;
};
/* ERR_INVALID says what is wrong with it. */
int storage_where_parse(struct storage_where *out, const char *text);
/* Both at once; `options` as of storage_open(). */
int storage_open_where(struct storage **out, const char *text,
                       const struct storage_options *options);

struct storage_space {
    /* To an ordinary user, without what root keeps. bytes_total 0: nobody knows, as of a bucket. */
    uint64_t bytes_total, bytes_free;
    uint64_t inodes_total, inodes_free; /* 0, 0 where the tier has none */
    int refusal_number; /* errno of why nothing can be written, as far as that is known; 0 */
};

/* What went to and from a store in another machine, and for how long, by how it went. */
enum storage_plane { STORAGE_CALLS, STORAGE_BULK, NUM_STORAGE_PLANES };
struct storage_flow {
    uint64_t bytes, ns;
};
struct storage_link {
    struct storage_flow in[NUM_STORAGE_PLANES], out[NUM_STORAGE_PLANES];
    double rtt_seconds;    /* of STORAGE_BULK, as the kernel measured it; 0: not known */
    bool is_clock_known;   /* the server has told its time: */
    int64_t clock_ahead_s; /* its clock less this machine's */
};

#define STORAGE_TAG_BYTES 128u
struct storage_entry {
    const char *name; /* last component; borrowed during the callback */
    bool is_dir;
    uint64_t bytes;
    uint64_t links;   /* names of the same bytes; 0 where the tier has no such thing */
    const char *tag;  /* changes with the bytes (an ETag); NULL where the tier has no such thing */
    bool is_foreign;  /* of another user than this process; likewise */
    bool is_volatile; /* it goes with the process that has it */
    bool is_no_key;   /* with lists_all_names: no key can have this name */
};

/* Temporary files that publications left when they were cut short. */
struct storage_sweep {
    uint64_t seconds; /* those that have not changed for so long */
    bool removes;
    uint64_t files, bytes; /* added to: what was found */
};

extern const struct storage_ops storage_local;
extern const struct storage_ops storage_memory;
extern const struct storage_ops storage_s3;   /* `where`: "BUCKET" or "BUCKET/PREFIX" */
extern const struct storage_ops storage_peer; /* another ckptd's; `where`: "HOST:PORT" */
/* In the place of one that was not reached yet: all is ERR_UNAVAILABLE. Without `where`. */
extern const struct storage_ops storage_absent;
/* By name; NULL when unknown. */
const struct storage_ops *storage_find(const char *name);

/* `where`: of `local` the directory, created when missing; of `memory` the most bytes it may hold,
 * "" for 1 GiB. `options` NULL: the defaults. */
int storage_open(struct storage **out, const struct storage_ops *ops, const char *where,
                 const struct storage_options *options);
void storage_close(struct storage *storage);
/* Registers memory for fixed-buffer requests, once; index i of a request's `buffer` is buffers[i].
 * One whose iov_base is NULL is a place that storage_replace_buffer() fills. What the system
 * refuses (RLIMIT_MEMLOCK) is no error: requests then run unregistered. */
int storage_register_buffers(struct storage *storage, const struct iovec *buffers, uint32_t count);
/* Lets go of the memory of a registered buffer, and puts `buffer` in its place; NULL: nothing yet.
 * No request on it may be under way. Any thread. */
void storage_replace_buffer(struct storage *storage, uint32_t index, const struct iovec *buffer);
/* Exclusive create with `bytes` (a multiple of storage_align()) reserved; missing directories are
 * created. Writes past `bytes` fail with ERR_INVALID. Closing an unfinished object leaves it: the
 * caller removes it. ERR_SPACE, ERR_EXISTS. */
int storage_object_create(struct storage *storage, struct storage_object **out, const char *key,
                          uint64_t bytes);
/* For reading; *out_bytes its size. */
int storage_object_open(struct storage *storage, struct storage_object **out, const char *key,
                        uint64_t *out_bytes);
void storage_object_close(struct storage *storage, struct storage_object *object);
/* Of sizes, offsets and buffers of requests: STORAGE_ALIGN, or 1 with STORAGE_BYTES. */
uint32_t storage_align(struct storage *storage);
/* Queues a request; done() always runs, also for errors found at once. */
void storage_submit(struct storage *storage, struct storage_request *request);
/* What the requests of this store were since it was opened, each from submit to done. Percentiles
 * are of the last few thousand; 0: there was none. */
struct storage_measured {
    struct storage_measured_op {
        uint64_t operations, bytes; /* bytes 0 of a SYNC, and of what a bucket asks */
        double p50_seconds, p99_seconds;
        struct histogram seconds; /* of all, by HISTOGRAM_REQUEST_US */
    } of[STORAGE_MEASURES];
    uint32_t in_work; /* submitted, and not done yet */
};
void storage_measured(struct storage *storage, struct storage_measured *out);
/* fsync of the directory `prefix` and of every parent up to the root. */
int storage_sync_names(struct storage *storage, const char *prefix);
/* A small object, whole and exclusive; missing directories are created. On return it is durable,
 * with every directory above it. ERR_EXISTS: the key is taken. After ERR_IO it is gone, but may be
 * back after a power loss. ERR_UNSETTLED: nobody can tell whether it is there, or will be. */
int storage_publish(struct storage *storage, const char *key, const void *data, size_t bytes);
/* Up to `size` bytes from the start of an object; *out_bytes is its whole size. */
int storage_fetch(struct storage *storage, const char *key, void *data, size_t size,
                  uint64_t *out_bytes);
/* Whole object in fresh memory (to be freed), at most `max` bytes (ERR_CORRUPT beyond). A NUL
 * follows the last byte and is not counted. */
int storage_fetch_all(struct storage *storage, const char *key, size_t max, void **out,
                      size_t *out_bytes);
/* Calls visit for every entry directly below `prefix` ("" for the root), in no order; a non-zero
 * return stops and is returned. A missing prefix lists nothing. */
int storage_list(struct storage *storage, const char *prefix,
                 int (*visit)(void *user, const struct storage_entry *entry), void *user);
/* Calls look for each index below `count`, several at once, on this thread and others. What is not
 * 0 is returned, of the least index; others may have been looked at meanwhile. */
int storage_for_many(struct storage *storage, size_t count, int (*look)(void *user, size_t index),
                     void *user);
/* One object or one empty directory; not durable until sync_names. ERR_NOT_FOUND; ERR_EXISTS when
 * the directory is not empty. */
int storage_remove(struct storage *storage, const char *key);
/* Gives an object or a directory, with all in it, another key, whose directories are created; at
 * once, or not at all; not durable until sync_names of both directories. ERR_NOT_FOUND; ERR_EXISTS:
 * the other key is taken. */
int storage_rename(struct storage *storage, const char *key, const char *other);
/* Gives an object the key of another one, which is gone: at once, or not at all; not durable until
 * sync_names of both directories. Who has the other one open keeps its bytes. ERR_NOT_FOUND. */
int storage_replace(struct storage *storage, const char *key, const char *other);
bool storage_renames(struct storage *storage);  /* can it? */
bool storage_replaces(struct storage *storage); /* likewise */
/* Takes the store's one writer lock until close; once, before threads share the store. ERR_BUSY
 * names the holder's pid. ERR_VERSION: it was written by a later version. */
int storage_lock(struct storage *storage);
bool storage_is_locked(struct storage *storage); /* by this process */
bool storage_is_shared(struct storage *storage); /* can another process have it open, too? */
int storage_space(struct storage *storage, struct storage_space *out);
/* A small object that is there as long as its holder: until release, or the end of the process
 * however that comes. Not durable. Also where the store was opened for reading only. */
int storage_hold(struct storage *storage, struct storage_hold **out, const char *key,
                 const void *data, size_t bytes);
void storage_release(struct storage *storage, struct storage_hold *hold); /* NULL is allowed */
/* Likewise, but the object stays, held by nobody, as if the process had ended. Does not wait. */
void storage_leave(struct storage *storage, struct storage_hold *hold);
/* 0: somebody, here or elsewhere, holds it; ERR_NOT_FOUND: nobody, or it is not there. `key` NULL:
 * the store's writer lock, which a store within one process always has. */
int storage_find_holder(struct storage *storage, const char *key);
/* Looks for temporary files directly below `prefix`. */
int storage_sweep(struct storage *storage, const char *prefix, struct storage_sweep *sweep);
/* *out, not 0: a number that changes with the names directly below `prefix`, unless that happens as
 * soon as the time before: it changed *out_age_ms ago. 0: nobody else can change them. */
int storage_stamp(struct storage *storage, const char *prefix, uint64_t *out, uint64_t *out_age_ms);
/* Of a store in another machine; else all zeros. Does not wait. */
void storage_link(struct storage *storage, struct storage_link *out);
/* One line for the log: "io_uring, depth 32, O_DIRECT". */
const char *storage_describe(struct storage *storage);
/* From here on the process makes no io_uring, in whatever thread (seccomp(2)); those that it has go
 * on. What it starts inherits that and gains no rights. ERR_DENIED: the kernel has no filters. */
int storage_forbid_rings(void);
/* What `local` would find here: 0, or the errno by which io_uring is refused; and whether so many
 * bytes of buffers may be registered (RLIMIT_MEMLOCK, as far as it may be raised). */
int storage_try_ring(void);
bool storage_may_lock(uint64_t bytes);
/* For files beside a store, too: renames one in the open directory, or AT_FDCWD, and replaces none;
 * where the file system lacks that rename, as NFS, by a link and an unlink. 0, or -1 with errno. */
int storage_place(int parent, const char *temporary, const char *name);
/* One request that is under way while the caller does something else, until storage_end() waits for
 * it: exactly once, on any thread. Lies still meanwhile. */
struct storage_transfer {
    struct storage_request request;
    sem_t done;
};
void storage_begin(struct storage_transfer *transfer, struct storage *storage, enum storage_op op,
                   struct storage_object *object, uint64_t offset, void *data, uint32_t bytes);
int storage_end(struct storage_transfer *transfer);
/* Both at once. Not for the hot path. */
int storage_transfer(struct storage *storage, enum storage_op op, struct storage_object *object,
                     uint64_t offset, void *data, uint32_t bytes);
/* A WRITE by who has made the bytes' SHA-256; until the end of the call. */
int storage_write_hashed(struct storage *storage, struct storage_object *object, uint64_t offset,
                         void *data, uint32_t bytes, const char *sha256);

/* A state that changes: small objects in `folder` with numbers for names, of which the highest
 * counts. The next is published, then those before removed but for one: a list that is read
 * meanwhile may miss the next, and never misses both.
 * The one that counts, as a text, cut to `size` with its NUL; number 0 and "": there is none. */
int storage_fetch_numbered(struct storage *storage, const char *folder, uint64_t *out_number,
                           char *text, size_t size);
/* As the one after `number`, which stays; what is older goes. ERR_EXISTS: somebody else has
 * published that. */
int storage_publish_numbered(struct storage *storage, const char *folder, uint64_t number,
                             const char *text);

#endif
