/* lease.c - leases in a bucket, and the store's single writer.
 *
 * A lease is a small object that its holder writes again every third of its duration, which is in a
 * header. One response gives any process the time of the last write and the present time, both by
 * the server's clock: no other clock counts. The lease of a holder that dies, or cannot reach the
 * server, expires after lease_s.
 *
 * The lock is a numbered lease, ".holdfast.lock/<number>". A process takes it by making the next
 * number, which the server grants to one of two; the highest is valid. A process with a lower one
 * is no longer the writer. It notices that at the next renewal, or when it could not renew for
 * lease_s by its own monotonic clock. From then on all its changes to the store are refused
 * (ERR_STALE). */
#include "proto/base/clock.h"
#include "storage/bucket/bucket.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOCK_FOLDER STORAGE_LOCK_NAME "/"
#define NUMBER_DIGITS 20
#define HOLDER_BYTES 256u
#define FORMAT_LINE "format 2\n" /* as in locks.c */

struct storage_hold {
    struct storage_hold *next;
    char key[S3_KEY_BYTES]; /* the key in the bucket */
    char header[64];
    size_t bytes;
    char data[];
};

struct keeper {
    struct bucket *bucket;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the following */
    pthread_cond_t wake;
    struct storage_hold *holds;
    struct storage_hold *renewing; /* is being written: it is not freed meanwhile */
    struct storage_hold *lock;     /* one of `holds`; NULL: not taken */
    uint64_t lock_number;
    bool stop;
};

/* ---- expiry of leases ---- */

/* 0: its holder lives. ERR_NOT_FOUND: it does not exist, or has expired. */
static int check_lease(struct bucket *bucket, const char *key)
{
    struct http_call there;
    ERR_TRY(s3_head(bucket, &there, key));
    if (there.date == 0 || there.changed == 0)
        return report_error(ERR_CORRUPT, NULL, "the server does not say how old \"%s\" is", key);
    int64_t seconds = there.lease[0] != '\0' ? strtoll(there.lease, NULL, 10) : 0;
    return there.date - there.changed <= seconds
               ? 0
               : report_error(ERR_NOT_FOUND, NULL, "\"%s\" has expired", key);
}

struct newest {
    uint64_t number, count;
    uint64_t older[16]; /* some that may be removed */
    size_t num_older;
};

static int visit_lock(void *user, const struct storage_entry *entry)
{
    struct newest *newest = user;
    char *end;
    uint64_t number = strtoull(entry->name, &end, 10);
    if (*end != '\0' || entry->is_dir)
        return 0;
    uint64_t older = number > newest->number ? newest->number : number;
    newest->number = number > newest->number ? number : newest->number;
    if (older > 0 && newest->num_older < sizeof newest->older / sizeof newest->older[0])
        newest->older[newest->num_older++] = older;
    return 0;
}

static void lock_key(char out[S3_KEY_BYTES], const struct bucket *bucket, uint64_t number)
{
    char whole[S3_KEY_BYTES];
    bucket_key(whole, bucket, LOCK_FOLDER);
    CHECK(snprintf(out, S3_KEY_BYTES, "%s%0*" PRIu64, whole, NUMBER_DIGITS, number) <
          (int)S3_KEY_BYTES);
}

/* 0: a process has the lock, whose number is *out; ERR_NOT_FOUND: none has it, and *out is the last
 * one. */
static int find_lock(struct bucket *bucket, struct newest *out)
{
    char folder[S3_KEY_BYTES], key[S3_KEY_BYTES];
    memset(out, 0, sizeof *out);
    bucket_key(folder, bucket, LOCK_FOLDER);
    ERR_TRY(bucket_list_at(bucket, folder, visit_lock, out));
    if (out->number == 0)
        return report_error(ERR_NOT_FOUND, NULL, "no process holds the lock");
    lock_key(key, bucket, out->number);
    return check_lease(bucket, key);
}

int bucket_find_holder(struct storage *storage, const char *key)
{
    struct bucket *bucket = bucket_of(storage);
    struct newest newest;
    char whole[S3_KEY_BYTES];
    if (key == NULL)
        return find_lock(bucket, &newest);
    bucket_key(whole, bucket, key);
    return check_lease(bucket, whole);
}

/* ---- renewal ---- */

static void lose_lock(struct bucket *bucket)
{
    if (!atomic_exchange(&bucket->is_lock_lost, true))
        log_error("storage", "the lock of s3://%s/%s was lost: another process has taken it",
                  bucket->name, bucket->prefix);
}

static void prolong_lock(struct bucket *bucket, uint64_t begin_ns)
{
    atomic_store(&bucket->lock_until_ns,
                 begin_ns + (uint64_t)bucket->settings.lease_s * CLOCK_SECOND_NS);
}

/* Runs on the keeper's thread, without the mutex. A lost lock is not renewed. Removes a lock object
 * that this process may have written after another process took the lock. */
static void renew(struct keeper *keeper, struct storage_hold *hold)
{
    struct bucket *bucket = keeper->bucket;
    struct newest newest = {0};
    uint64_t begin = clock_ns();
    bool is_lock = hold == keeper->lock;
    if (is_lock && atomic_load(&bucket->is_lock_lost))
        return;
    int error = bucket_put_at(bucket, hold->key, hold->data, hold->bytes, hold->header);
    if (error != 0)
        log_warn("storage", "a lease was not renewed: %s", report_line());
    if (error != 0 || !is_lock)
        return;
    error = find_lock(bucket, &newest);
    if (newest.number > keeper->lock_number) {
        lose_lock(bucket);
        bucket_remove_at(bucket, hold->key);
    } else if (error == 0) {
        prolong_lock(bucket, begin);
    }
}

static void wait_for_next(struct keeper *keeper)
{
    uint64_t third = (uint64_t)keeper->bucket->settings.lease_s * CLOCK_SECOND_NS / 3;
    const struct timespec until = clock_after_ns(CLOCK_MONOTONIC, third);
    while (!keeper->stop &&
           pthread_cond_timedwait(&keeper->wake, &keeper->mutex, &until) != ETIMEDOUT)
        continue;
}

static void *renew_leases(void *argument)
{
    struct keeper *keeper = argument;
    pthread_mutex_lock(&keeper->mutex);
    while (!keeper->stop) {
        wait_for_next(keeper);
        for (struct storage_hold *hold = keeper->holds; hold != NULL && !keeper->stop;) {
            keeper->renewing = hold;
            pthread_mutex_unlock(&keeper->mutex);
            renew(keeper, hold);
            pthread_mutex_lock(&keeper->mutex);
            keeper->renewing = NULL;
            hold = hold->next;
            pthread_cond_broadcast(&keeper->wake);
        }
    }
    pthread_mutex_unlock(&keeper->mutex);
    return NULL;
}

static int start_keeper(struct bucket *bucket, struct keeper **out)
{
    struct keeper *keeper = calloc(1, sizeof *keeper);
    pthread_condattr_t attributes;
    if (keeper == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to keep a lease");
    keeper->bucket = bucket;
    pthread_mutex_init(&keeper->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&keeper->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    int error = engine_thread_start(&keeper->thread, "hf-leases", renew_leases, keeper);
    if (error != 0) {
        pthread_cond_destroy(&keeper->wake);
        pthread_mutex_destroy(&keeper->mutex);
        free(keeper);
        return error;
    }
    *out = keeper;
    return 0;
}

/* Starts the keeper with the first lease. */
static int ensure_keeper(struct bucket *bucket)
{
    pthread_mutex_lock(&bucket->mutex);
    int error = bucket->keeper == NULL ? start_keeper(bucket, &bucket->keeper) : 0;
    pthread_mutex_unlock(&bucket->mutex);
    return error;
}

void keeper_close(struct keeper *keeper)
{
    if (keeper == NULL)
        return;
    if (keeper->lock != NULL)
        bucket_release((struct storage *)keeper->bucket, keeper->lock,
                       atomic_load(&keeper->bucket->is_lock_lost));
    pthread_mutex_lock(&keeper->mutex);
    keeper->stop = true;
    pthread_cond_broadcast(&keeper->wake);
    pthread_mutex_unlock(&keeper->mutex);
    pthread_join(keeper->thread, NULL);
    while (keeper->holds != NULL) {
        struct storage_hold *hold = keeper->holds;
        keeper->holds = hold->next;
        free(hold);
    }
    pthread_cond_destroy(&keeper->wake);
    pthread_mutex_destroy(&keeper->mutex);
    free(keeper);
}

/* ---- holds ---- */

static int make_hold(struct storage_hold **out, struct bucket *bucket, const char *key,
                     const void *data, size_t bytes)
{
    struct storage_hold *hold = calloc(1, sizeof *hold + bytes + 1);
    if (hold == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate a hold");
    snprintf(hold->key, sizeof hold->key, "%s", key);
    snprintf(hold->header, sizeof hold->header, "x-amz-meta-holdfast-lease: %" PRId64,
             bucket->settings.lease_s);
    hold->bytes = bytes;
    if (bytes > 0)
        memcpy(hold->data, data, bytes);
    int error = bucket_publish_at(bucket, key, hold->data, bytes, hold->header);
    if (error == 0)
        error = ensure_keeper(bucket);
    if (error != 0) {
        free(hold);
        return error;
    }
    *out = hold;
    return 0;
}

static void add_hold(struct keeper *keeper, struct storage_hold *hold)
{
    hold->next = keeper->holds;
    keeper->holds = hold;
}

int bucket_hold(struct storage *storage, struct storage_hold **out, const char *key,
                const void *data, size_t bytes)
{
    struct bucket *bucket = bucket_of(storage);
    char whole[S3_KEY_BYTES];
    bucket_key(whole, bucket, key);
    ERR_TRY(make_hold(out, bucket, whole, data, bytes));
    pthread_mutex_lock(&bucket->keeper->mutex);
    add_hold(bucket->keeper, *out);
    pthread_mutex_unlock(&bucket->keeper->mutex);
    return 0;
}

/* A remaining lease expires. */
void bucket_release(struct storage *storage, struct storage_hold *hold, bool stays)
{
    struct bucket *bucket = bucket_of(storage);
    struct keeper *keeper = bucket->keeper;
    pthread_mutex_lock(&keeper->mutex);
    while (keeper->renewing != NULL)
        pthread_cond_wait(&keeper->wake, &keeper->mutex);
    struct storage_hold **link = &keeper->holds;
    while (*link != hold)
        link = &(*link)->next;
    *link = hold->next;
    keeper->lock = keeper->lock == hold ? NULL : keeper->lock;
    pthread_mutex_unlock(&keeper->mutex);
    if (!stays && bucket_remove_at(bucket, hold->key) != 0)
        log_warn("storage", "could not remove a lease, which stays until it expires: %s",
                 report_line());
    free(hold);
}

/* ---- the lock ---- */

static int refuse_busy(struct bucket *bucket, uint64_t number)
{
    char key[S3_KEY_BYTES], text[HOLDER_BYTES] = "";
    uint64_t bytes = 0;
    snprintf(key, sizeof key, LOCK_FOLDER "%0*" PRIu64, NUMBER_DIGITS, number);
    bucket_fetch((struct storage *)bucket, key, text, sizeof text - 1, &bytes);
    text[strcspn(text, "\n")] = '\0';
    report_make_printable(text);
    return report_error(ERR_BUSY, "stop it, or use another store", "the store is in use by %s",
                        text[0] ? text : "(unknown)");
}

static void take_lock(struct bucket *bucket, struct storage_hold *hold, uint64_t number,
                      uint64_t begin_ns)
{
    struct keeper *keeper = bucket->keeper;
    pthread_mutex_lock(&keeper->mutex);
    add_hold(keeper, hold);
    keeper->lock = hold;
    keeper->lock_number = number;
    pthread_mutex_unlock(&keeper->mutex);
    prolong_lock(bucket, begin_ns);
}

int bucket_lock(struct storage *storage)
{
    struct bucket *bucket = bucket_of(storage);
    struct newest newest;
    struct storage_hold *hold = NULL;
    char key[S3_KEY_BYTES], text[HOLDER_BYTES], host[64] = "";
    uint64_t begin = clock_ns();
    ERR_TRY(bucket_refuse_read_only(bucket));
    int error = find_lock(bucket, &newest);
    if (error == 0)
        return refuse_busy(bucket, newest.number);
    if (error != ERR_NOT_FOUND)
        return error;
    gethostname(host, sizeof host - 1);
    int length =
        snprintf(text, sizeof text, "process %ld on %s\n" FORMAT_LINE, (long)getpid(), host);
    lock_key(key, bucket, newest.number + 1);
    error = make_hold(&hold, bucket, key, text, (size_t)length);
    if (error == ERR_EXISTS)
        return refuse_busy(bucket, newest.number + 1);
    if (error != 0)
        return error;
    take_lock(bucket, hold, newest.number + 1, begin);
    for (size_t i = 0; i < newest.num_older; i++) {
        lock_key(key, bucket, newest.older[i]);
        bucket_remove_at(bucket, key);
    }
    return 0;
}
