/* doctor_server.c - of doctor: checks the state of a ckptd, its disk, and the
 * certificate with which this user connects. */
#include "clients/cli/machine/doctor.h"

#include "proto/base/json.h"
#include "proto/tls/tls.h"
#include "proto/wire/ckpt.pb-c.h"

#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DAY_S 86400.0
#define DAYS_BAD 14.0 /* below it ckptd raises an alarm */
#define DAYS_WARN 30.0
#define CLOCK_BAD_S 60.0
#define HOURS_BAD 24.0 /* as for the alarm */
#define HOURS_WARN 72.0
#define SAVES_WARN 3u /* there should be space for so many */
#define INODES_WARN 1024u

static double real_of(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

static void check_version(struct doctor *doctor)
{
    Holdfast__V1__HelloRequest request = HOLDFAST__V1__HELLO_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.protocol = RPC_PROTOCOL;
    if (cli_call(&answer, doctor->cli, &request.base, CLI_CALL_MS) != 0) {
        doctor_say_error(doctor, DOCTOR_BAD, "version", "see the log of ckptd");
        return;
    }
    const Holdfast__V1__HelloReply *hello = (const Holdfast__V1__HelloReply *)answer;
    bool is_other = strcmp(hello->version, report_version) != 0;
    doctor_say(doctor, doctor_verdict(hello->protocol != RPC_PROTOCOL, is_other), "version",
               "install the same version on all nodes, ckptd first",
               "ckptd %s, ckpt-cli %s; protocol %u and %u", hello->version, report_version,
               hello->protocol, RPC_PROTOCOL);
    protobuf_c_message_free_unpacked(answer, NULL);
}

/* The server's time was read within the round trip, probably in its middle. */
static void check_clock(struct doctor *doctor)
{
    const json_t *clock = json_object_get(doctor->status, "time_seconds");
    double half = (doctor->answered_s - doctor->asked_s) / 2;
    if (!json_is_number(clock)) {
        doctor_say(doctor, DOCTOR_WARN, "clock", "update ckptd", "it does not report its time");
        return;
    }
    double ahead = json_number_value(clock) - doctor->asked_s - half, sure = fabs(ahead) - half;
    doctor_say(
        doctor, doctor_verdict(sure > CLOCK_BAD_S, sure > DOCTOR_CLOCK_WARN_S), "clock",
        "let both machines follow the same NTP servers: ages, retention by time and the ends "
        "of certificates go by these clocks",
        "ckptd's is %.3f s %s ours, give or take %.3f s", fabs(ahead),
        ahead < 0 ? "behind" : "ahead of", half);
}

/* ---- certificates ---- */

static void report_days(struct doctor *doctor, const char *check, double seconds, const char *whose)
{
    double days = seconds / DAY_S;
    const char *advice =
        "create a new one (holdfast-certificates) and put it there: ckptd and clients "
        "load it without a restart";
    enum verdict verdict = doctor_verdict(days < DAYS_BAD, days < DAYS_WARN);
    if (days < 0)
        doctor_say(doctor, verdict, check, advice, "%s expired %.1f days ago", whose, -days);
    else
        doctor_say(doctor, verdict, check, advice, "%s is valid for %.1f days", whose, days);
}

static void check_own_certificate(struct doctor *doctor)
{
    const char *folder = tls_client_directory();
    struct principal principal;
    char whose[PRINCIPAL_NAME_MAX + TLS_PATH_MAX];
    int64_t end_s;
    if (!doctor->is_far && access(folder, F_OK) != 0)
        return; /* a unix socket needs no certificate */
    int error = tls_directory_check(&end_s, folder);
    if (error == 0)
        error = tls_directory_identify(&principal, folder);
    if (error != 0) {
        doctor_say_error(doctor, doctor->is_far ? DOCTOR_BAD : DOCTOR_WARN, "certificate",
                         "holdfast-certificates creates what is missing");
        return;
    }
    snprintf(whose, sizeof whose, "%s of %.400s", principal.name, folder);
    report_days(doctor, "certificate", (double)end_s - doctor->answered_s, whose);
}

static void check_its_certificate(struct doctor *doctor)
{
    const json_t *tls = json_object_get(doctor->status, "tls");
    if (json_is_object(tls))
        report_days(doctor, "certificate", real_of(tls, "certificate_seconds_left"),
                    "ckptd's, or its authority's,");
}

/* ---- its state ---- */

static void check_saving(struct doctor *doctor)
{
    const json_t *health = json_object_get(doctor->status, "health");
    if (json_is_true(json_object_get(doctor->status, "draining")))
        doctor_say(doctor, DOCTOR_WARN, "saving", "wait, or start it again",
                   "ckptd is shutting down");
    if (json_is_true(json_object_get(health, "saving")))
        doctor_say(doctor, DOCTOR_OK, "saving", "", "ckptd expects the next save to succeed");
    else
        doctor_say(doctor, DOCTOR_BAD, "saving", "fix that; the next committed save clears this",
                   "the next save would fail: %s", member_text(health, "reason"));
}

static void check_alarms(struct doctor *doctor)
{
    json_t *alarms = json_object_get(doctor->status, "alarms");
    const json_t *alarm;
    size_t index;
    json_array_foreach(alarms, index, alarm)
    {
        const char *text = json_string_value(alarm);
        doctor_say(doctor, DOCTOR_BAD, "alarm", "do what it says; ckptd's log has the details",
                   "%s", text != NULL ? text : "?");
    }
    if (json_array_size(alarms) == 0)
        doctor_say(doctor, DOCTOR_OK, "alarm", "", "none");
}

/* ---- its disk ---- */

static void report_hours(struct doctor *doctor, const json_t *hours)
{
    double left = json_number_value(hours);
    if (json_is_number(hours))
        doctor_say(doctor, doctor_verdict(left < HOURS_BAD, left < HOURS_WARN), "disk fills",
                   "set retention.keep_last, or take a larger disk",
                   "full in %.1f h at the rate of the last saves", left);
}

static void check_room(struct doctor *doctor)
{
    const json_t *disk = json_object_get(doctor->status, "disk");
    uint64_t left = member_number(disk, "bytes_left"), need = doctor->save_bytes;
    uint64_t inodes = member_number(disk, "inodes_free");
    char have[32], size[32];
    if (member_number(disk, "bytes_total") == 0)
        return; /* unlimited or unknown; the alarms report the latter */
    if (need > 0)
        doctor_say(doctor, doctor_verdict(left < need, left / SAVES_WARN < need), "disk room",
                   "remove checkpoints (ckpt-cli prune), set retention.keep_last, or take a larger "
                   "disk",
                   "%s left for saves, of which the last had %s",
                   text_bytes(have, sizeof have, left), text_bytes(size, sizeof size, need));
    else
        doctor_say(doctor, doctor_verdict(left == 0, false), "disk room",
                   "free some space, or raise storage.usable_fraction",
                   "%s left for saves; no save was committed yet",
                   text_bytes(have, sizeof have, left));
    if (member_number(disk, "inodes_total") > 0 && inodes < INODES_WARN)
        doctor_say(doctor, DOCTOR_WARN, "disk inodes",
                   "remove files, or recreate the file system with more inodes", "%s free",
                   text_count(inodes, "inode").text);
    report_hours(doctor, json_object_get(disk, "hours_to_full"));
}

/* Reports ckptd's own selection: its container may refuse what this process may do. */
static void check_storage(struct doctor *doctor)
{
    const char *storage = member_text(doctor->status, "storage");
    bool has_ring = strncmp(storage, "io_uring", strlen("io_uring")) == 0;
    bool is_cached = strstr(storage, "through the page cache") != NULL;
    bool is_unregistered = strstr(storage, "unregistered") != NULL;
    doctor_say(doctor, doctor_verdict(false, !has_ring || is_cached || is_unregistered), "storage",
               is_cached  ? "put the store on ext4 or xfs: without O_DIRECT saves go through memory"
               : has_ring ? "set LimitMEMLOCK=infinity of ckptd's unit"
                          : "allow io_uring in ckptd's container: threads write, which is slower",
               "%s", storage);
}

void doctor_check_server(struct doctor *doctor)
{
    bool has_answer = doctor->status != NULL;
    if (has_answer) {
        check_version(doctor);
        check_clock(doctor);
    }
    check_own_certificate(doctor);
    if (!has_answer)
        return;
    check_its_certificate(doctor);
    check_saving(doctor);
    check_alarms(doctor);
    check_room(doctor);
    check_storage(doctor);
}
