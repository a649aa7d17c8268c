/* race.c - can several racing writers of one name win? The last question of the probe.
 *
 * A server may check whether a name is taken before it writes, and not at the moment of the write.
 * It then refuses writers in sequence, but accepts two at the same moment. So RACE_WRITERS
 * conditional PUTs of one name, or as many completions (the selected kind for small objects), are
 * sent at once, RACE_ROUNDS times. Rounds with one winner prove nothing; one round with two winners
 * proves that the server is unsafe. */
#include "storage/bucket/bucket.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct racer {
    struct bucket *bucket;
    const char *key;
    pthread_mutex_t *start; /* locked until all are ready */
    struct s3_upload upload;
    char etag[HTTP_HEADER_BYTES];
    pthread_t thread;
    bool is_put, has_won;
};

static int put_once(struct racer *racer, bool *out_is_unsettled)
{
    struct iovec body = {"probe\n", 6};
    struct s3_call call = {.method = "PUT",
                           .key = racer->key,
                           .headers = {"if-none-match: *"},
                           .num_headers = 1,
                           .send = &body,
                           .num_send = 1};
    int error = s3_perform(racer->bucket, &call);
    *out_is_unsettled = call.is_unsettled;
    s3_call_free(&call);
    return error;
}

static int complete_once(struct racer *racer, bool *out_is_unsettled)
{
    return s3_upload_complete(racer->bucket, &racer->upload, racer->key, racer->etag,
                              sizeof racer->etag, 1, true, out_is_unsettled);
}

static void *run_racer(void *argument)
{
    struct racer *racer = argument;
    bool is_unsettled = false;
    pthread_mutex_lock(racer->start);
    pthread_mutex_unlock(racer->start);
    int error =
        racer->is_put ? put_once(racer, &is_unsettled) : complete_once(racer, &is_unsettled);
    /* An unanswered request may have won or not: it proves nothing. */
    racer->has_won = error == 0 && !is_unsettled;
    return NULL;
}

/* Aborts the uploads that were begun and did not win. */
static void abort_losers(struct racer *racers, uint32_t num_begun)
{
    for (uint32_t i = 0; i < num_begun; i++)
        if (!racers[i].has_won)
            s3_upload_abort(racers[i].bucket, &racers[i].upload, racers[i].key);
}

/* Makes all ready to be completed. *out_begun: number of begun uploads, also after an error. */
static int begin_uploads(struct racer *racers, uint32_t *out_begun)
{
    struct iovec body = {"probe\n", 6};
    int error = 0;
    for (*out_begun = 0; *out_begun < RACE_WRITERS && error == 0; *out_begun += error == 0) {
        struct racer *racer = &racers[*out_begun];
        error = s3_upload_begin(racer->bucket, &racer->upload, racer->key, NULL, 0);
    }
    for (uint32_t i = 0; i < RACE_WRITERS && error == 0; i++)
        error = s3_upload_part(racers[i].bucket, &racers[i].upload, racers[i].key, 1, &body, NULL,
                               racers[i].etag);
    return error;
}

static int run_race(struct racer *racers, uint32_t *out_winners)
{
    pthread_mutex_t start = PTHREAD_MUTEX_INITIALIZER;
    uint32_t num_threads = 0;
    pthread_mutex_lock(&start);
    for (bool goes_on = true; goes_on && num_threads < RACE_WRITERS; num_threads += goes_on) {
        racers[num_threads].start = &start;
        goes_on =
            pthread_create(&racers[num_threads].thread, NULL, run_racer, &racers[num_threads]) == 0;
    }
    pthread_mutex_unlock(&start);
    *out_winners = 0;
    for (uint32_t i = 0; i < num_threads; i++) {
        pthread_join(racers[i].thread, NULL);
        *out_winners += racers[i].has_won;
    }
    pthread_mutex_destroy(&start);
    if (num_threads < RACE_WRITERS)
        return report_error(ERR_MEMORY, NULL,
                            "no threads to test the conditional writes of a bucket");
    return 0;
}

int bucket_race(struct bucket *bucket, const char *key, bool is_put, uint32_t *out_winners)
{
    *out_winners = 0;
    for (uint32_t round = 0; round < RACE_ROUNDS && *out_winners < 2; round++) {
        struct racer racers[RACE_WRITERS];
        uint32_t num_begun = 0;
        for (uint32_t i = 0; i < RACE_WRITERS; i++)
            racers[i] = (struct racer){.bucket = bucket, .key = key, .is_put = is_put};
        int error = is_put ? 0 : begin_uploads(racers, &num_begun);
        if (error == 0)
            error = run_race(racers, out_winners);
        abort_losers(racers, num_begun);
        ERR_TRY(error);
        ERR_TRY(bucket_remove_at(bucket, key));
    }
    return 0;
}
