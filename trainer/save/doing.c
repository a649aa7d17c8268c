/* doing.c - the flight recorder's mirror in ckptd's memory (see snapshot.h).
 *
 * If a rank is killed or hangs, its recorder is lost, unless comm.save_traces_folder keeps it in a
 * file. So the rank also writes its current call and operation to the page that it shares with
 * ckptd, or that libckpt sends to a ckptd on another node each second. ckptd names rank, call and
 * operation in its log, its history and its status. A rank that has waited too long for others asks
 * ckptd which of them stands still. */
#include "trainer/comm/comm.h"
#include "trainer/comm/flight.h"
#include "trainer/save/private.h"

#define STILL_ASK_MS 1000u /* of a rank that has waited too long, for ckptd's answer */

static void note_call(void *user, const struct flight_record *record)
{
    const struct snapshot *s = user;
    bool is_placed = record->place.what != NULL;
    ckpt_note_call(s->ckpt,
                   &(struct ckpt_doing){.size = sizeof(struct ckpt_doing),
                                        .operation = is_placed ? record->place.index : UINT32_MAX,
                                        .part = is_placed ? record->place.leaf : UINT32_MAX,
                                        .number = record->id,
                                        .step = s->doing_step,
                                        .bytes = record->bytes,
                                        .what = comm_kind_name(record->kind),
                                        .of = record->group,
                                        .lane = record->lane});
}

static void note_end(void *user, uint64_t id)
{
    const struct snapshot *s = user;
    ckpt_note_end(s->ckpt, id);
}

static void note_lane(void *user, const char *lane, const struct flight_place *place)
{
    const struct snapshot *s = user;
    ckpt_note_lane(s->ckpt, &(struct ckpt_doing){.size = sizeof(struct ckpt_doing),
                                                 .operation = place->index,
                                                 .part = place->leaf,
                                                 .step = s->doing_step,
                                                 .what = place->what,
                                                 .lane = lane});
}

static void note_alive(void *user)
{
    const struct snapshot *s = user;
    ckpt_note_alive(s->ckpt);
}

static bool find_still(void *user, struct flight_still *out)
{
    const struct snapshot *s = user;
    bool is_found = ckpt_find_still(s->ckpt, &out->rank, &out->seconds, STILL_ASK_MS) == 0;
    if (!is_found)
        report_clear();
    return is_found;
}

void snapshot_note(struct snapshot *s, bool is_on)
{
    struct flight_mirror mirror = {note_call, note_end, note_lane, note_alive, find_still, s};
    if (s->ckpt != NULL && is_on)
        ckpt_note_alive(s->ckpt); /* the rank may stand still before flight_beat_all comes */
    if (s->ckpt != NULL)
        flight_set_mirror(s->mesh->world->flight, is_on ? &mirror : NULL);
}

void snapshot_begins_step(struct snapshot *s, int64_t step)
{
    s->doing_step = (uint64_t)step;
}
