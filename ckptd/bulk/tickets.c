/* tickets.c - see tickets.h. */
#include "ckptd/bulk/tickets.h"
#include "ckptd/core/service.h"
#include "proto/base/report.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct ticket {
    uint8_t bytes[BULK_TICKET_BYTES];
    int64_t until_ms; /* 0: free row */
    struct principal holder;
    struct ticket_right right;
};

struct tickets {
    pthread_mutex_t mutex;
    struct ticket rows[TICKETS_MAX];
};

int tickets_open(struct tickets **out)
{
    struct tickets *tickets = calloc(1, sizeof *tickets);
    if (!tickets)
        return report_error(ERR_MEMORY, NULL, "no memory for tickets");
    pthread_mutex_init(&tickets->mutex, NULL);
    *out = tickets;
    return 0;
}

void tickets_close(struct tickets *tickets)
{
    if (!tickets)
        return;
    pthread_mutex_destroy(&tickets->mutex);
    free(tickets);
}

/* A free row for the holder; NULL: none, or it has too many. */
static struct ticket *find_row(struct tickets *tickets, const struct principal *holder,
                               int64_t now_ms)
{
    struct ticket *found = NULL;
    uint32_t count = 0;
    for (struct ticket *row = tickets->rows; row < tickets->rows + TICKETS_MAX; row++) {
        if (row->until_ms <= now_ms)
            found = row;
        else
            count += principal_is_same(&row->holder, holder);
    }
    return count < TICKETS_EACH ? found : NULL;
}

int tickets_issue(struct tickets *tickets, uint8_t out[BULK_TICKET_BYTES],
                  const struct principal *holder, const struct ticket_right *right, int64_t now_ms)
{
    pthread_mutex_lock(&tickets->mutex);
    struct ticket *row = find_row(tickets, holder, now_ms);
    if (row) {
        service_random(row->bytes, sizeof row->bytes);
        row->until_ms = now_ms + TICKETS_VALID_MS;
        row->holder = *holder;
        row->right = *right;
        memcpy(out, row->bytes, sizeof row->bytes);
    }
    pthread_mutex_unlock(&tickets->mutex);
    return row ? 0
               : report_error(ERR_BUSY, "use the existing ones, or wait until they expire",
                              "there are too many tickets for the bulk plane");
}

/* In constant time, so that the time does not reveal how much is right. */
static bool is_equal(const uint8_t *a, const uint8_t *b)
{
    uint8_t differs = 0;
    for (size_t i = 0; i < BULK_TICKET_BYTES; i++)
        differs |= a[i] ^ b[i];
    return differs == 0;
}

int tickets_check(struct tickets *tickets, struct ticket_right *out, const uint8_t *ticket,
                  const struct principal *peer, int64_t now_ms)
{
    bool is_good = false;
    pthread_mutex_lock(&tickets->mutex);
    for (struct ticket *row = tickets->rows; row < tickets->rows + TICKETS_MAX; row++) {
        if (row->until_ms <= now_ms || !is_equal(row->bytes, ticket) ||
            (peer && !principal_is_same(&row->holder, peer)))
            continue;
        *out = row->right;
        is_good = true;
    }
    pthread_mutex_unlock(&tickets->mutex);
    return is_good ? 0
                   : report_error(
                         ERR_DENIED, "request one with OpenBulk",
                         "the ticket is unknown, has expired, or was issued to another client");
}
