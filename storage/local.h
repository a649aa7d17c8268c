/* local.h - private to local.c, names.c and locks.c: objects as files below one directory. */
#ifndef HOLDFAST_STORAGE_LOCAL_H
#define HOLDFAST_STORAGE_LOCAL_H

#include "storage/engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>

#define TEMPORARY_PREFIX ".holdfast.tmp."
#define TEMPORARY_BYTES 64u

struct local {
    struct storage_base base;
    int root_fd;
    int lock_fd; /* -1 until locked */
    bool read_only, is_quiet;
    bool is_shared; /* other machines use the directory, too */
    atomic_bool is_lock_lost;
    atomic_int refusal_number;   /* errno of a write test that failed; 0: writes succeed */
    struct local_keeper *keeper; /* of its locks, if it is shared or locked; else NULL */
    struct engine *engine;
    const char *direct_text;
    char refusal[256]; /* why the first-choice engine is not used */
    char text[512];
};

static inline struct local *local_of(struct storage *storage)
{
    return (struct local *)storage;
}

/* Reports errno as an error; `key` "" is the root. */
int local_fail(const char *message, const char *key);
int local_refuse_read_only(const struct local *local);
/* Descriptors, or -1 with errno. A path "" is the directory itself. */
int local_open_beneath(int directory, const char *path, int flags);
/* The directory of `key` (created if missing, when `make`); *out_name is the last component. */
int local_open_parent(const struct local *local, const char *key, bool make, const char **out_name);
int local_create_temporary(char out[TEMPORARY_BYTES], int parent);
/* 0, or -1 with errno. */
int local_write_all(int fd, const char *data, size_t bytes);

/* names.c: opens a regular file for reading; *out_bytes is its size. */
int local_open_for_reading(int *out_fd, uint64_t *out_bytes, const struct local *local,
                           const char *key);
/* names.c: functions of the back-end's table. */
int local_sync_names(struct storage *storage, const char *prefix);
int local_publish(struct storage *storage, const char *key, const void *data, size_t bytes);
int local_fetch(struct storage *storage, const char *key, void *data, size_t size,
                uint64_t *out_bytes);
int local_list(struct storage *storage, const char *prefix,
               int (*visit)(void *user, const struct storage_entry *entry), void *user);
int local_stamp(struct storage *storage, const char *prefix, uint64_t *out, uint64_t *out_age_ms);
int local_remove(struct storage *storage, const char *key);
int local_rename(struct storage *storage, const char *key, const char *other);
int local_replace(struct storage *storage, const char *key, const char *other);
int local_sweep(struct storage *storage, const char *prefix, struct storage_sweep *sweep);

/* locks.c: locks an open file, until it is closed. 0, or -1 with errno. */
int local_lock_file(int fd);
bool local_is_locked(int directory, const char *name);
int local_keeper_open(struct local *local);
void local_keeper_close(struct local_keeper *keeper);
/* locks.c: functions of the back-end's table. */
int local_lock(struct storage *storage);
int local_hold(struct storage *storage, struct storage_hold **out, const char *key,
               const void *data, size_t bytes);
void local_release(struct storage *storage, struct storage_hold *hold, bool stays);
int local_find_holder(struct storage *storage, const char *key);

#endif
