/* attend.c - Attend: mirrors the control page of a rank on another node.
 *
 * ckptd keeps a page for such a rank as for any other, and reads and writes it in the same way.
 * This call brings the rank's notes and the time of its phase into it, and returns what ckptd has
 * written there. The phase itself stays out: it concerns ranks that share memory and disk with
 * ckptd.
 *
 * The bytes of the notes are hostile, as those in a page that a rank maps are. The call says
 * nothing about the rank's training, since a thread beside it makes the call: it does not count as
 * a sign of life. Only the time of the phase does. */
#include "ckptd/run/attend.h"
#include "ckptd/memory/session.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <string.h>

static int find_page(struct session **out, struct service *service,
                     const Holdfast__V1__AttendRequest *request)
{
    ERR_TRY(session_look(out, service, request->session));
    if (!(*out)->control)
        return report_error(ERR_NOT_FOUND, "describe first", "the session is not a rank's");
    if (request->notes.len != sizeof(struct arena_notes))
        return report_error(ERR_INVALID, "use client and ckptd of the same version",
                            "notes of %zu bytes, not %zu", request->notes.len,
                            sizeof(struct arena_notes));
    return 0;
}

void attend_call(struct service *service, struct rpc_call *call,
                 const Holdfast__V1__AttendRequest *request)
{
    Holdfast__V1__AttendReply reply = HOLDFAST__V1__ATTEND_REPLY__INIT;
    struct session *session;
    struct arena_notes notes;
    int error = find_page(&session, service, request);
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    uint64_t later_ns = clock_ns() - request->clock_ns;
    uint64_t spoke_s = (request->spoke_s * CLOCK_SECOND_NS + later_ns) / CLOCK_SECOND_NS;
    memcpy(&notes, request->notes.data, sizeof notes); /* aligned */
    arena_notes_copy(&session->control->notes, &notes, later_ns);
    if (request->spoke_s != 0)
        __atomic_store_n(&session->control->spoke_s, (uint32_t)spoke_s, __ATOMIC_RELAXED);
    const struct session_asked asked = session_asked_of(session);
    reply.asked = asked.asked;
    reply.asked_within_s = asked.within_s;
    reply.saves_asked = asked.saves;
    rpc_call_reply(call, &reply.base);
}
