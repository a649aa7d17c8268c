/* pairs.c - measures the links of all pairs of ranks (see preflight.h).
 *
 * In a round each rank sends to the rank at the round's offset after it and receives from the one
 * as far before it, all at once. The rounds of all offsets cover all pairs. A rate is that of the
 * receiver, and ends with the last byte: its own send may still go on. */
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/comm/comm.h"
#include "trainer/preflight/private.h"

#include <math.h>

#define TIMES 4 /* the fastest counts; one more before them connects */

static int exchange(struct comm *group, const struct trial_room *room, uint32_t offset,
                    size_t bytes, double *out_seconds)
{
    struct comm_request request = {0};
    char *sent = room->device, *come = sent + TRIAL_BYTES;
    uint32_t next = (group->rank + offset) % group->size;
    ERR_TRY(comm_barrier(group));
    double start = clock_seconds();
    ERR_TRY(comm_send(group, next, COMM_TAG_RING, sent, bytes, &request));
    ERR_TRY(comm_receive(group, preflight_peer(group->rank, group->size, offset), COMM_TAG_RING,
                         come, bytes));
    *out_seconds = clock_seconds() - start;
    return comm_wait(group, &request);
}

/* *out_wrong: the received bytes are not those of the sender. */
static int measure(struct comm *group, const struct trial_room *room, uint32_t offset, size_t bytes,
                   double *out_rate, bool *out_wrong)
{
    uint32_t from = preflight_peer(group->rank, group->size, offset);
    double seconds;
    for (uint32_t i = 0; i <= TIMES; i++) {
        trial_fill(room->from, bytes, group->rank + i);
        lane_copy(room->lane, room->device, room->from, bytes);
        ERR_TRY(lane_settle(room->lane));
        ERR_TRY(exchange(group, room, offset, bytes, &seconds));
        if (i > 0)
            *out_rate = fmax(*out_rate, (double)bytes / seconds);
        lane_copy(room->lane, room->to, (char *)room->device + TRIAL_BYTES, bytes);
        ERR_TRY(lane_settle(room->lane));
        *out_wrong |= !trial_is_filled(room->to, bytes, from + i);
    }
    return 0;
}

int pairs_measure(struct pair_rates *out, struct comm *group, const struct trial_room *room,
                  uint32_t *out_wrong)
{
    for (uint32_t round = 0; round < preflight_rounds(group->size); round++) {
        uint32_t offset = preflight_offset(group->size, round);
        bool is_wrong = false;
        for (uint32_t i = 0; i < PREFLIGHT_PAYLOADS; i++)
            ERR_TRY(
                measure(group, room, offset, preflight_bytes(i), &out->of[round][i], &is_wrong));
        if (is_wrong) /* continue with the other ranks */
            *out_wrong = preflight_peer(group->rank, group->size, offset);
    }
    return 0;
}
