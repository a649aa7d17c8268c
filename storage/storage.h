/* storage.h - objects on tiers. Handles bytes and names, not checkpoints.
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
 * that object: the caller writes the bytes to a new name.
 *
 * Keys are relative paths of [A-Za-z0-9._-] components, without "." and "..", at most 512 bytes and
 * 255 a component; components that begin with ".holdfast" are reserved. Any other key is
 * ERR_INVALID. A path through a symbolic link is ERR_DENIED: links are not followed.
 *
 * A bucket has no directories: a key with others below it is listed as one, sync_names has no
 * effect, rename is refused, the space is unknown. A big object appears whole with the SYNC after
 * its last byte; an earlier SYNC makes nothing durable. Each of its bytes is written once.
 * ERR_UNSETTLED: the outcome is unknown. The object may exist, now or later; try again, and remove
 * nothing meanwhile.
 *
 * Threads: a storage may be used from any thread. Callbacks run on a thread of the back-end, one at
 * a time, never inside storage_submit; they may submit, and must not block (nor call any other
 * storage function). Requests and their buffers belong to the caller and must not be touched until
 * the callback. The back-end does not order requests: a SYNC covers the writes whose callbacks ran
 * before it was submitted. Close objects when their requests are done, and the storage last.
 * Errors: ERR_IO, ERR_SPACE, ERR_NOT_FOUND, ERR_EXISTS, ERR_BUSY (the store is locked, or there are
 * no descriptors left), ERR_DENIED, ERR_INVALID, ERR_MEMORY, ERR_CORRUPT (of a read), ERR_ABORTED
 * (of a request that was given up); from a bucket also ERR_UNAVAILABLE, ERR_UNSETTLED, ERR_STALE
 * (the store's lock was lost). */
#ifndef HOLDFAST_STORAGE_H
#define HOLDFAST_STORAGE_H

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
#define STORAGE_LOCK_NAME ".holdfast.lock" /* for `local`, in the root, since its first writer */

/* prefix/name, or only the name if the prefix is "". False: longer than a key may be. */
bool storage_join(char out[STORAGE_KEY_MAX + 1], const char *prefix, const char *name);

struct storage;        /* an open back-end */
struct storage_object; /* an open big object */
struct storage_hold;   /* a small object that ends with its holder */
struct rpc_client;
struct storage_bucket; /* storage/bucket/options.h */

enum storage_op { STORAGE_READ, STORAGE_WRITE, STORAGE_SYNC };
#define STORAGE_OPS 3u

struct storage_request {
    enum storage_op op;
    struct storage_object *object;
    uint64_t offset; /* multiple of storage_align() */
    void *data;      /* aligned to STORAGE_ALIGN; NULL for SYNC */
    uint32_t bytes;  /* multiple of storage_align() */
    int32_t buffer;  /* index of the registered buffer that holds `data`, or -1 */
    /* For a WRITE: NULL, or the SHA-256 of these bytes in hexadecimal; a store that needs it then
     * does not compute it; see storage_write_hashed(). */
    const char *sha256;
    /* NULL, or: when this becomes true, a transfer that has not begun ends with ERR_ABORTED. One
     * that has begun is finished. The back-end reads it until done(); a SYNC ignores it. */
    const atomic_bool *given_up;
    void (*done)(struct storage_request *request); /* runs once, on the engine's thread */
    void *user;
    /* Result, valid in done(): 0 or an error code, and its errno. A request is complete or failed:
     * the engine continues short transfers. A read past the end is ERR_CORRUPT. */
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

/* Prints the names and meanings of the environment variables for buckets, one per line. */
void storage_bucket_print_help(FILE *out);

struct storage_options {
    uint32_t queue_depth; /* requests in flight on the device; 0: 32 */
    bool force_pwrite;    /* do not try io_uring */
    uint32_t num_threads; /* of the pwrite engine; 0: 4 */
    bool read_only;       /* for offline readers: needs no lock, creates nothing */
    bool is_ours_alone;   /* ERR_DENIED if other users could change the root; see local.c */
    bool is_quiet;        /* log the selected engine at debug level only */
    /* `local`: other machines use the directory, too. Its lock, leases and sweeps work between them
     * only if the file system supports open-file-description locks across machines. */
    bool is_shared;
    const struct storage_bucket *bucket; /* `s3`; NULL: from the environment */
    /* (optional) `s3`: from that time on (clock_ns(); 0: not yet known) no request begins, and
     * those under way end with ERR_UNAVAILABLE within about a second. It outlives the store. */
    const _Atomic uint64_t *ends_ns;
    bool opens_briefly;   /* `s3`: try to open for seconds only: the caller retries */
    bool lists_all_names; /* `s3`: lists include names that no key can have; else they are left out
                           */
    const char *tls_directory; /* `peer`: the client's certificate, proto/tls/tls.h */
    struct rpc_client *rpc;    /* (optional) `peer`: its calls use this client, which outlives it */
};

/* The address of a store as users write it: "s3://BUCKET[/PREFIX]", "dir:/PATH" (a shared one),
 * "/PATH" or "PATH". */
#define STORAGE_WHERE_BYTES 4096u
struct storage_where {
    const struct storage_ops *ops;
    char place[STORAGE_WHERE_BYTES]; /* the `where` of storage_open() */
    bool is_shared;
};
/* After ERR_INVALID the error text names the fault. */
int storage_where_parse(struct storage_where *out, const char *text);
/* Parses and opens; `options` as in storage_open(). */
int storage_open_where(struct storage **out, const char *text,
                       const struct storage_options *options);

struct storage_space {
    /* For an ordinary user, without root's reserve. bytes_total 0: unknown, as for a bucket. */
    uint64_t bytes_total, bytes_free;
    uint64_t inodes_total, inodes_free; /* 0, 0 if the tier has none */
    int refusal_number;                 /* errno of the last failed write test, if known; else 0 */
};

#define STORAGE_TAG_BYTES 128u
struct storage_entry {
    const char *name; /* last component; borrowed during the callback */
    bool is_dir;
    uint64_t bytes;
    uint64_t links;   /* names of the same bytes; 0 if the tier has none */
    const char *tag;  /* changes with the bytes (an ETag); NULL if the tier has none */
    bool is_foreign;  /* owned by another user than this process's; false likewise */
    bool is_volatile; /* it is lost with the process that has it */
    bool is_no_key;   /* only with lists_all_names: no key can have this name */
};

/* Temporary files of interrupted publications. */
struct storage_sweep {
    uint64_t seconds; /* only those unchanged for this time */
    bool removes;
    uint64_t files, bytes; /* results, added to */
};

extern const struct storage_ops storage_local;
extern const struct storage_ops storage_memory;
extern const struct storage_ops storage_s3;   /* `where`: "BUCKET" or "BUCKET/PREFIX" */
extern const struct storage_ops storage_peer; /* another ckptd's; `where`: "HOST:PORT" */
/* Replaces a store that was not reached yet: all operations return ERR_UNAVAILABLE. Has no
 * `where`. */
extern const struct storage_ops storage_absent;
/* By name; NULL when unknown. */
const struct storage_ops *storage_find(const char *name);

/* `where`: for `local` the directory, created if missing; for `memory` the limit of bytes, "" for 1
 * GiB. `options` NULL: the defaults. */
int storage_open(struct storage **out, const struct storage_ops *ops, const char *where,
                 const struct storage_options *options);
void storage_close(struct storage *storage);
/* Registers memory for fixed-buffer requests, once; index i of a request's `buffer` is buffers[i].
 * If its iov_base is NULL, storage_replace_buffer() fills it later. A refusal by the system
 * (RLIMIT_MEMLOCK) is no error: requests then run unregistered. */
int storage_register_buffers(struct storage *storage, const struct iovec *buffers, uint32_t count);
/* Unregisters the memory of a buffer, and registers `buffer` in its place; NULL: none yet. No
 * request on it may be under way. Any thread. */
void storage_replace_buffer(struct storage *storage, uint32_t index, const struct iovec *buffer);
/* Exclusive create with `bytes` (a multiple of storage_align()) reserved; missing directories are
 * created. Writes past `bytes` fail with ERR_INVALID. Closing an unfinished object leaves it: the
 * caller removes it. ERR_SPACE, ERR_EXISTS. */
int storage_object_create(struct storage *storage, struct storage_object **out, const char *key,
                          uint64_t bytes);
/* Opens an object for reading; *out_bytes is its size. */
int storage_object_open(struct storage *storage, struct storage_object **out, const char *key,
                        uint64_t *out_bytes);
void storage_object_close(struct storage *storage, struct storage_object *object);
/* The alignment of sizes, offsets and buffers of requests: STORAGE_ALIGN, or 1 with
 * STORAGE_BYTES. */
uint32_t storage_align(struct storage *storage);
/* Queues a request; done() always runs, also for immediate errors. */
void storage_submit(struct storage *storage, struct storage_request *request);
/* fsync of the directory `prefix` and of every parent up to the root. */
int storage_sync_names(struct storage *storage, const char *prefix);
/* Publishes a small object, whole and exclusive; creates missing directories. On return it is
 * durable, with every directory above it. ERR_EXISTS: the key is taken. After ERR_IO it is removed,
 * but may be back after a power loss. ERR_UNSETTLED: it is unknown whether it exists, or will. */
int storage_publish(struct storage *storage, const char *key, const void *data, size_t bytes);
/* Reads up to `size` bytes from the start of an object; *out_bytes is its whole size. */
int storage_fetch(struct storage *storage, const char *key, void *data, size_t size,
                  uint64_t *out_bytes);
/* Reads a whole object into new memory (the caller frees it), at most `max` bytes (ERR_CORRUPT
 * beyond). A NUL follows the last byte and is not counted. */
int storage_fetch_all(struct storage *storage, const char *key, size_t max, void **out,
                      size_t *out_bytes);
/* Calls visit for every entry directly below `prefix` ("" for the root), in no order; a non-zero
 * return stops and is returned. A missing prefix lists nothing. */
int storage_list(struct storage *storage, const char *prefix,
                 int (*visit)(void *user, const struct storage_entry *entry), void *user);
/* Calls `call` for each index below `count`, several at once, on this thread and others. Returns
 * the nonzero result of the lowest index; calls for higher ones may have run. */
int storage_for_many(struct storage *storage, size_t count, int (*call)(void *user, size_t index),
                     void *user);
/* Removes one object or one empty directory; not durable until sync_names. ERR_NOT_FOUND;
 * ERR_EXISTS when the directory is not empty. */
int storage_remove(struct storage *storage, const char *key);
/* Renames an object, or a directory with its contents, creating the directories of the new key. It
 * is atomic, and not durable until sync_names of both directories. ERR_NOT_FOUND; ERR_EXISTS: the
 * other key is taken. */
int storage_rename(struct storage *storage, const char *key, const char *other);
/* Renames an object over another one, which is removed. It is atomic, and not durable until
 * sync_names of both directories. Processes that have the other one open keep its bytes.
 * ERR_NOT_FOUND. */
int storage_replace(struct storage *storage, const char *key, const char *other);
bool storage_renames(struct storage *storage);  /* does it support rename? */
bool storage_replaces(struct storage *storage); /* does it support replace? */
/* Takes the store's single writer lock until close; call it once, before threads share the store.
 * ERR_BUSY names the holder's pid. ERR_VERSION: a later version has written the store. */
int storage_lock(struct storage *storage);
bool storage_is_locked(struct storage *storage); /* by this process */
bool storage_is_shared(struct storage *storage); /* can another process have it open? */
int storage_space(struct storage *storage, struct storage_space *out);
/* Makes a small object that exists as long as its holder: until release, or any end of the process.
 * Not durable. Also allowed on a store opened for reading only. */
int storage_hold(struct storage *storage, struct storage_hold **out, const char *key,
                 const void *data, size_t bytes);
void storage_release(struct storage *storage, struct storage_hold *hold); /* NULL is allowed */
/* Releases the hold, but the object stays without a holder, as if the process had ended. Does not
 * wait. */
void storage_leave(struct storage *storage, struct storage_hold *hold);
/* 0: a process, here or elsewhere, holds it; ERR_NOT_FOUND: none, or it does not exist. `key` NULL:
 * the store's writer lock; a store within one process always has it. */
int storage_find_holder(struct storage *storage, const char *key);
/* Finds temporary files directly below `prefix`. */
int storage_sweep(struct storage *storage, const char *prefix, struct storage_sweep *sweep);
/* *out, not 0: a number that changes with the names directly below `prefix`. A change within the
 * resolution of its time stamp may keep it: *out_age_ms is the time since the last change. 0: no
 * other process can change the names. */
int storage_stamp(struct storage *storage, const char *prefix, uint64_t *out, uint64_t *out_age_ms);
/* One line for the log: "io_uring, depth 32, O_DIRECT". */
const char *storage_describe(struct storage *storage);
/* Also for files beside a store: renames a file in the open directory, or AT_FDCWD, without
 * replacing another. On a file system without that rename, such as NFS, by a link and an unlink. 0,
 * or -1 with errno. */
int storage_place(int parent, const char *temporary, const char *name);
/* One request that runs while the caller does other work, until storage_end() waits for it: exactly
 * once, on any thread. Must not move meanwhile. */
struct storage_transfer {
    struct storage_request request;
    sem_t done;
};
void storage_begin(struct storage_transfer *transfer, struct storage *storage, enum storage_op op,
                   struct storage_object *object, uint64_t offset, void *data, uint32_t bytes);
int storage_end(struct storage_transfer *transfer);
/* Begin and end in one call. Not for the hot path. */
int storage_transfer(struct storage *storage, enum storage_op op, struct storage_object *object,
                     uint64_t offset, void *data, uint32_t bytes);
/* A WRITE by a caller that has the bytes' SHA-256; `sha256` must stay valid during the call. */
int storage_write_hashed(struct storage *storage, struct storage_object *object, uint64_t offset,
                         void *data, uint32_t bytes, const char *sha256);

#endif
