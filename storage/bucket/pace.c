/* pace.c - limits the sending rate of a store over all its connections.
 *
 * A bucket of tokens, one per byte, filled at the rate and at most BURST_NS deep. A sender that
 * takes more than are available waits for the rest, in turn. */
#include "proto/base/clock.h"
#include "storage/bucket/bucket.h"

#include <stdlib.h>

#define BURST_NS (CLOCK_SECOND_NS / 10)

struct pace {
    int64_t rate; /* 0: no limit */
    const _Atomic uint64_t *ends_ns;
    pthread_mutex_t mutex; /* guards free_ns */
    uint64_t free_ns;      /* when all taken tokens will have been sent */
};

int pace_open(struct pace **out, int64_t rate, const _Atomic uint64_t *ends_ns)
{
    struct pace *pace = calloc(1, sizeof *pace);
    if (pace == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a rate");
    pace->rate = rate;
    pace->ends_ns = ends_ns;
    pthread_mutex_init(&pace->mutex, NULL);
    *out = pace;
    return 0;
}

void pace_close(struct pace *pace)
{
    if (pace == NULL)
        return;
    pthread_mutex_destroy(&pace->mutex);
    free(pace);
}

void pace_take(void *user, size_t bytes)
{
    struct pace *pace = user;
    if (pace->rate == 0)
        return;
    pthread_mutex_lock(&pace->mutex);
    uint64_t now = clock_ns();
    uint64_t from = pace->free_ns + BURST_NS > now ? pace->free_ns : now - BURST_NS;
    pace->free_ns = from + (uint64_t)((double)bytes / (double)pace->rate * (double)CLOCK_SECOND_NS);
    uint64_t until = pace->free_ns;
    pthread_mutex_unlock(&pace->mutex);
    if (until > now)
        http_rest(pace->ends_ns, until - now);
}
