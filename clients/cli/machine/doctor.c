/* doctor.c - checks whether this node may lose time or checkpoints. A table of checks, each with
 * its result, a verdict, and advice.
 *
 *   ok    no action needed
 *   warn  it works, but is slower or nearer to a limit than necessary
 *   bad   saves fail, or checkpoints or hours are lost, unless an operator acts
 *
 * A check is a function that checks one thing and adds a row (doctor_say), or several. Checks that
 * need a ckptd's status are left out if it does not answer, those of its machine if it is reached
 * over TLS. Only --write writes.
 *
 * For a ckptd that is not running use `ckptd --check`: only ckptd reads its configuration. */
#include "clients/cli/machine/doctor.h"

#include "proto/base/address.h"
#include "proto/base/clock.h"
#include "proto/base/json.h"

#include <string.h>

#define POOL_BYTES (4ull << 30) /* memory.pool_bytes, the default */

/* Of the run's newest checkpoint, `member`. An older ckptd reports only the bytes of all of them.
 */
static uint64_t bytes_of_newest(const json_t *run, const char *member)
{
    uint64_t count = member_number(run, "checkpoints");
    if (json_object_get(run, member) != NULL)
        return member_number(run, member);
    return count > 0 ? member_number(run, "bytes") / count : 0;
}

/* Bytes of the last save. If this ckptd has made none: of the largest newest checkpoint. */
static uint64_t bytes_of_a_save(const json_t *status)
{
    uint64_t bytes = member_number(json_object_get(status, "last_commit"), "bytes"), most = 0;
    const json_t *run;
    size_t index;
    json_array_foreach(json_object_get(status, "runs"), index, run)
    {
        uint64_t newest = bytes_of_newest(run, "newest_bytes");
        most = newest > most ? newest : most;
    }
    return bytes > 0 ? bytes : most;
}

/* What this node's ranks of one run write, per second. */
static double rate_of_run(const json_t *run)
{
    double interval = json_number_value(json_object_get(run, "commit_interval_seconds"));
    return interval > 0 ? (double)bytes_of_newest(run, "newest_bytes_here") / interval : 0;
}

/* The sum of the runs that have ranks here; without ranks what the largest run needed. */
static double rate_of_saves(const json_t *status)
{
    double sum = 0, most = 0;
    const json_t *run;
    size_t index;
    json_array_foreach(json_object_get(status, "runs"), index, run)
    {
        double rate = rate_of_run(run);
        sum += member_number(run, "ranks") > 0 ? rate : 0;
        most = rate > most ? rate : most;
    }
    return sum > 0 ? sum : most;
}

static void read_status(struct doctor *doctor)
{
    const json_t *pool = json_object_get(doctor->status, "pool");
    struct cli here = *doctor->cli;
    doctor->save_bytes = bytes_of_a_save(doctor->status);
    doctor->need_rate = rate_of_saves(doctor->status);
    if (doctor->is_far)
        return;
    doctor->pool_bytes = member_number(pool, "bytes");
    doctor->pool_bytes_missing = doctor->pool_bytes - member_number(pool, "bytes_ready");
    if (server_find_store(&here) == 0)
        snprintf(doctor->store, sizeof doctor->store, "%s", here.store);
    else
        doctor_say_error(doctor, DOCTOR_WARN, "file system", "run it where the store is");
}

/* After no answer the error stays this thread's. */
static int read_server(struct doctor *doctor)
{
    struct address address;
    char server[280];
    ERR_TRY(address_parse(&address, doctor->cli->server));
    doctor->is_far = address.kind == ADDRESS_TLS;
    text_safe(server, sizeof server, doctor->cli->server);
    doctor->asked_s = clock_wall_seconds();
    int error = cli_call_status(&doctor->status, doctor->cli);
    doctor->answered_s = clock_wall_seconds();
    if (error == 0)
        doctor_say(doctor, DOCTOR_OK, "server", "", "%s answered in %.1f ms", server,
                   1e3 * (doctor->answered_s - doctor->asked_s));
    else
        doctor_say_error(doctor, DOCTOR_BAD, "server", "see below, and the log of ckptd");
    return error;
}

int cli_doctor(const struct cli *cli)
{
    struct doctor doctor = {.cli = cli, .pool_bytes = POOL_BYTES, .pool_bytes_missing = POOL_BYTES};
    struct report_text text = {.message = ""};
    json_begin();
    doctor.found = json_array();
    int error = read_server(&doctor);
    report_keep(&text);
    if (error == 0)
        read_status(&doctor);
    doctor_check_server(&doctor);
    doctor_check_tiers(&doctor);
    doctor_check_host(&doctor);
    bool is_whole = json_end();
    int printed = is_whole ? doctor_print(&doctor)
                           : report_error(ERR_MEMORY, NULL, "no memory for what was found");
    json_decref(doctor.status);
    json_decref(doctor.found);
    if (printed != 0)
        return printed;
    return error != 0 ? report_restore(&text, error) : doctor.worst == DOCTOR_BAD ? CLI_DIFFERS : 0;
}
