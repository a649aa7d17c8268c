/* credentials.c - one set of keys, its source and its expiry.
 *
 * A reader-writer lock: requests read, a renewal writes. The thread whose request finds the renewal
 * due, EARLY_S before the expiry, performs it. */
#include "storage/bucket/credentials.h"

#include "proto/base/clock.h"
#include "storage/bucket/sources.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EARLY_S 300 /* before the expiry */
#define AGAIN_S 10  /* between two tries to renew */

struct credentials {
    struct storage_bucket settings;
    const struct source *source;
    pthread_rwlock_t lock; /* guards *keys, tried_s, is_refused */
    struct keys *keys;     /* of secret_allocate() */
    int64_t tried_s;
    bool is_refused;
};

static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

void *secret_allocate(size_t bytes)
{
    size_t size = whole_pages(bytes);
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, size, MADV_DONTDUMP);
    mlock(memory, size); /* best effort: keeps it out of the swap, too */
    return memory;
}

void secret_free(void *memory, size_t bytes)
{
    if (memory == NULL)
        return;
    explicit_bzero(memory, bytes);
    munmap(memory, whole_pages(bytes));
}

static int refuse_none(const struct storage_bucket *settings)
{
    return report_error(ERR_DENIED,
                        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them into "
                        "~/.aws/credentials",
                        "there are no credentials for the bucket in: %s",
                        strcmp(settings->credentials, "auto") == 0
                            ? "the environment, web identity, the shared file, an instance's role"
                            : settings->credentials);
}

/* Uses the named source, or the first one that is configured. */
static int find_keys(struct credentials *credentials)
{
    const struct storage_bucket *settings = &credentials->settings;
    bool is_any = strcmp(settings->credentials, "auto") == 0;
    for (size_t i = 0; i < num_credential_sources; i++) {
        const struct source *source = &credential_sources[i];
        if (!is_any && strcmp(settings->credentials, source->name) != 0)
            continue;
        explicit_bzero(credentials->keys, sizeof *credentials->keys);
        int error = source->read(credentials->keys, settings);
        credentials->source = source;
        if (error != ERR_NOT_FOUND)
            return error;
    }
    return refuse_none(settings);
}

int credentials_open(struct credentials **out, const struct storage_bucket *settings)
{
    struct credentials *credentials = calloc(1, sizeof *credentials);
    if (credentials != NULL)
        credentials->keys = secret_allocate(sizeof *credentials->keys);
    if (credentials == NULL || credentials->keys == NULL) {
        free(credentials);
        return report_error(ERR_MEMORY, NULL, "no memory for credentials");
    }
    credentials->settings = *settings;
    pthread_rwlock_init(&credentials->lock, NULL);
    int error = find_keys(credentials);
    if (error != 0)
        credentials_close(credentials);
    else
        *out = credentials;
    return error;
}

void credentials_close(struct credentials *credentials)
{
    if (credentials == NULL)
        return;
    secret_free(credentials->keys, sizeof *credentials->keys);
    pthread_rwlock_destroy(&credentials->lock);
    free(credentials);
}

/* ---- renewal ---- */

static bool is_due(const struct credentials *credentials, int64_t now)
{
    int64_t expires = credentials->keys->expires_s;
    bool is_near = expires != 0 && now >= expires - EARLY_S;
    return (is_near || credentials->is_refused) && now >= credentials->tried_s + AGAIN_S;
}

/* 0 also while the old keys are still valid. */
static int renew(struct credentials *credentials)
{
    int64_t now = clock_ms() / 1000;
    if (!is_due(credentials, now)) /* another thread has renewed them */
        return 0;
    credentials->tried_s = now;
    credentials->is_refused = false;
    struct keys *fresh = secret_allocate(sizeof *fresh);
    int error = fresh != NULL ? credentials->source->read(fresh, &credentials->settings)
                              : report_error(ERR_MEMORY, NULL, "no memory for credentials");
    if (error == 0)
        memcpy(credentials->keys, fresh, sizeof *fresh);
    secret_free(fresh, sizeof *fresh);
    int64_t expires = credentials->keys->expires_s;
    if (error == 0 || expires == 0 || now >= expires)
        return error;
    log_warn("storage", "credentials could not be renewed, the present ones expire in %lld s: %s",
             (long long)(expires - now), report_line());
    return 0;
}

int credentials_take(struct credentials *credentials, const struct keys **out)
{
    int error = 0;
    pthread_rwlock_rdlock(&credentials->lock);
    if (is_due(credentials, clock_ms() / 1000)) {
        pthread_rwlock_unlock(&credentials->lock);
        pthread_rwlock_wrlock(&credentials->lock);
        error = renew(credentials);
        pthread_rwlock_unlock(&credentials->lock);
        pthread_rwlock_rdlock(&credentials->lock);
    }
    *out = credentials->keys;
    if (error != 0)
        pthread_rwlock_unlock(&credentials->lock);
    return error;
}

void credentials_drop(struct credentials *credentials)
{
    pthread_rwlock_unlock(&credentials->lock);
}

void credentials_expire(struct credentials *credentials)
{
    pthread_rwlock_wrlock(&credentials->lock);
    credentials->is_refused = true;
    pthread_rwlock_unlock(&credentials->lock);
}

const char *credentials_source(const struct credentials *credentials)
{
    return credentials->source->name;
}
