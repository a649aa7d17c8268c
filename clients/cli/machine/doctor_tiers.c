/* doctor_tiers.c - of doctor: checks where a ckptd's checkpoints go beside its disk: the other
 * nodes with their links, and the far tier. The rates are those of transfers, without the time
 * between them; what saves need is the mean over their interval. */
#include "clients/cli/machine/doctor.h"

#include "proto/base/json.h"

#include <math.h>
#include <string.h>

#define NODE_CLOCK_BAD_S 30.0 /* as for the alarm */
#define ROUND_TRIP_WARN_S 0.05
#define REQUEST_WARN_S 20.0 /* as HoldfastTierSlow in deploy/prometheus */

/* ---- other nodes ---- */

/* What the node tells of itself; ckptd measures its clock to half the time of a call. */
static void check_node_state(struct doctor *doctor, const char *check, const json_t *node)
{
    const char *ours = member_text(doctor->status, "version");
    const char *its = member_text(json_object_get(node, "told"), "version");
    const json_t *clock = json_object_get(node, "clock_ahead_seconds");
    double ahead = json_number_value(clock), off = fabs(ahead);
    if (its[0] != '\0' && strcmp(its, ours) != 0)
        doctor_say(doctor, DOCTOR_WARN, check,
                   "install the same version on all nodes: it may refuse calls of the newer one",
                   "its ckptd is %s, and this one is %s", its, ours);
    if (json_is_number(clock) && off > DOCTOR_CLOCK_WARN_S)
        doctor_say(doctor, doctor_verdict(off > NODE_CLOCK_BAD_S, true), check,
                   "let all nodes follow the same NTP servers: ages, retention by time and the "
                   "ends of certificates go by these clocks",
                   "its clock is %.1f s %s that of this ckptd", off,
                   ahead < 0 ? "behind" : "ahead of");
}

static void check_node(struct doctor *doctor, const json_t *node)
{
    const json_t *links = json_object_get(node, "links");
    const json_t *trip = json_object_get(json_object_get(links, "control"), "rtt_seconds");
    bool is_lost = json_is_true(json_object_get(node, "lost"));
    uint64_t silent_s = member_number(node, "silent_seconds");
    char check[64];
    snprintf(check, sizeof check, "node %s", member_text(node, "name"));
    report_make_printable(check);
    if (is_lost || silent_s > 0)
        doctor_say(doctor, doctor_verdict(is_lost, true), check,
                   "check that its ckptd runs, and the network between: it receives no copies",
                   "%s for %llu s: %s", is_lost ? "lost, silent" : "silent",
                   (unsigned long long)silent_s, member_text(node, "offline"));
    else if (!json_is_number(trip))
        doctor_say(doctor, DOCTOR_WARN, check, "ask again in a moment", "it has not answered yet");
    else
        doctor_say(doctor, doctor_verdict(false, json_number_value(trip) > ROUND_TRIP_WARN_S),
                   check, "check the network between: a commit needs calls between the nodes",
                   "a call takes %.2f ms", 1e3 * json_number_value(trip));
    check_node_state(doctor, check, node);
}

/* The rates of the plane that moves the bytes; no row before it has moved some. */
static void check_link(struct doctor *doctor, const json_t *node)
{
    const json_t *links = json_object_get(node, "links");
    const json_t *calls = json_object_get(links, "control"), *bulk = json_object_get(links, "bulk");
    bool is_bulk = member_number(bulk, "bytes_in") + member_number(bulk, "bytes_out") > 0;
    const json_t *plane = is_bulk ? bulk : calls;
    double in = json_number_value(json_object_get(plane, "bytes_per_second_in"));
    double out = json_number_value(json_object_get(plane, "bytes_per_second_out"));
    char check[64], away[32], back[32], need[64];
    if (in <= 0 && out <= 0)
        return;
    snprintf(check, sizeof check, "link %s", member_text(node, "name"));
    report_make_printable(check);
    doctor_say(doctor, doctor_verdict(false, out > 0 && out < doctor->need_rate), check,
               "check the network between: copies of the saves there take longer than the interval "
               "of saves",
               "%s/s out, %s/s in during transfers%s", text_bytes(away, sizeof away, (uint64_t)out),
               text_bytes(back, sizeof back, (uint64_t)in), doctor_need(need, sizeof need, doctor));
}

static void check_nodes(struct doctor *doctor)
{
    const json_t *nodes = json_object_get(doctor->status, "nodes"), *node;
    size_t index;
    json_array_foreach(json_object_get(nodes, "peers"), index, node)
    {
        check_node(doctor, node);
        check_link(doctor, node);
    }
}

/* ---- the far tier ---- */

/* The kind of its requests with the longest 99th percentile; NULL: there were none. */
static const json_t *slowest_requests(const json_t *status)
{
    const json_t *list = json_object_get(status, "tier_io"), *slowest = NULL;
    double most = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *of = json_array_get(list, i);
        double seconds = json_number_value(json_object_get(of, "p99_seconds"));
        if (strcmp(member_text(of, "tier"), "far") == 0 && (!slowest || seconds > most)) {
            slowest = of;
            most = seconds;
        }
    }
    return slowest;
}

static const char *advice_for(const json_t *tier)
{
    return member_number(tier, "given_up") > 0
               ? "fix what its alarm says, then start ckptd again: it tries them no more until then"
           : member_text(tier, "offline")[0] != '\0'
               ? "fix that: a node that is lost takes what waits with it"
               : "check the link, and the limits of the bucket (HOLDFAST_S3_RATE) or file server";
}

static void check_far_tier(struct doctor *doctor)
{
    const json_t *tier = json_object_get(doctor->status, "tier");
    const json_t *of = slowest_requests(doctor->status);
    const char *offline = member_text(tier, "offline");
    double rate = json_number_value(json_object_get(tier, "bytes_per_second"));
    double median = json_number_value(json_object_get(of, "p50_seconds"));
    double most = json_number_value(json_object_get(of, "p99_seconds"));
    bool is_slow = most > REQUEST_WARN_S || (rate > 0 && rate < doctor->need_rate);
    char speed[32], need[64], op[96] = "no request yet";
    if (!json_is_object(tier))
        return;
    if (of)
        snprintf(op, sizeof op, "slowest requests: %.32s, median %.1f ms, 99%% %.1f ms",
                 member_text(of, "op"), 1e3 * median, 1e3 * most);
    doctor_say(
        doctor, doctor_verdict(member_number(tier, "given_up") > 0, offline[0] != '\0' || is_slow),
        "far tier", advice_for(tier),
        "%llu there, %llu to go, the last at %s/s%s; %s; %s since the start%s%s",
        (unsigned long long)member_number(tier, "checkpoints"),
        (unsigned long long)member_number(tier, "waiting"),
        text_bytes(speed, sizeof speed, (uint64_t)rate), doctor_need(need, sizeof need, doctor), op,
        text_count(member_number(tier, "errors"), "error").text,
        offline[0] != '\0' ? ", now: " : "", offline);
}

void doctor_check_tiers(struct doctor *doctor)
{
    if (doctor->status == NULL)
        return;
    check_nodes(doctor);
    check_far_tier(doctor);
}
