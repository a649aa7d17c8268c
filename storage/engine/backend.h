/* backend.h - private to storage/: the table of a back-end, and how its structs begin.
 *
 * A slot implements the storage_* function of its name (storage.h), which has asserted the
 * arguments. The comments here are for back-ends only. */
#ifndef HOLDFAST_STORAGE_BACKEND_H
#define HOLDFAST_STORAGE_BACKEND_H

#include "storage/engine/measured.h"
#include "storage/storage.h"

enum storage_flags {
    STORAGE_DURABLE = 1, /* synced data survives power loss */
    STORAGE_DIRECT = 2,  /* requests bypass the page cache */
    STORAGE_REMOTE = 4,  /* a request is a message to another machine: few, large ones */
    STORAGE_BYTES = 8,   /* sizes, offsets and buffers are not held to STORAGE_ALIGN */
    STORAGE_ABSENT = 16  /* not reached yet: all operations return ERR_UNAVAILABLE */
};

struct storage_ops {
    const char *name;
    uint32_t version;
    uint32_t flags;
    /* `options` is never NULL. */
    int (*open)(struct storage **out, const char *where, const struct storage_options *options);
    void (*close)(struct storage *storage);
    /* (optional, both or none; without: requests run unregistered) */
    int (*register_buffers)(struct storage *storage, const struct iovec *buffers, uint32_t count);
    void (*replace_buffer)(struct storage *storage, uint32_t index, const struct iovec *buffer);
    int (*object_create)(struct storage *storage, struct storage_object **out, const char *key,
                         uint64_t bytes);
    int (*object_open)(struct storage *storage, struct storage_object **out, const char *key,
                       uint64_t *out_bytes);
    void (*object_close)(struct storage *storage, struct storage_object *object);
    /* Ends each request by storage_done(), also after immediate errors. */
    void (*submit)(struct storage *storage, struct storage_request *request);
    int (*sync_names)(struct storage *storage, const char *prefix);
    int (*publish)(struct storage *storage, const char *key, const void *data, size_t bytes);
    int (*fetch)(struct storage *storage, const char *key, void *data, size_t size,
                 uint64_t *out_bytes);
    int (*list)(struct storage *storage, const char *prefix,
                int (*visit)(void *user, const struct storage_entry *entry), void *user);
    int (*remove)(struct storage *storage, const char *key);
    /* (optional; without: refused) */
    int (*rename)(struct storage *storage, const char *key, const char *other);
    int (*replace)(struct storage *storage, const char *key, const char *other); /* likewise */
    int (*lock)(struct storage *storage);                                        /* (optional) */
    int (*space)(struct storage *storage, struct storage_space *out);
    /* (optional; all three or none; without: the store is within one process) */
    int (*hold)(struct storage *storage, struct storage_hold **out, const char *key,
                const void *data, size_t bytes);
    void (*release)(struct storage *storage, struct storage_hold *hold, bool stays);
    int (*find_holder)(struct storage *storage, const char *key);
    /* (optional; without: there are none) */
    int (*sweep)(struct storage *storage, const char *prefix, struct storage_sweep *sweep);
    /* (optional; without: 0, as no other process can change it) */
    int (*stamp)(struct storage *storage, const char *prefix, uint64_t *out, uint64_t *out_age_ms);
    /* (optional; without: nothing) */
    void (*link)(struct storage *storage, struct storage_link *out);
};

/* First in every struct storage and struct storage_object, so the wrappers find the table. */
struct storage_base {
    const struct storage_ops *ops;
    struct storage_meter *meter; /* meter.c; NULL for an object */
    const char *text;            /* the selected engine and why; NULL: the name of the table */
    bool is_locked; /* storage_lock() has succeeded: this process is the store's single writer */
    uint32_t num_at_once; /* calls that it answers in parallel; 0: storage_for_many() makes one */
};

/* Adds a back-end for storage_find(): tests link one that injects faults (tests/fault/). Call it
 * before any other call. */
void storage_add(const struct storage_ops *ops);
/* Ends a request; calls request->done(). */
void storage_done(struct storage_request *request);

#endif
