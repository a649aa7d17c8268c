/* doctor.h - shared by the files of doctor: each check adds its result. */
#ifndef HOLDFAST_CLIENTS_CLI_MACHINE_DOCTOR_H
#define HOLDFAST_CLIENTS_CLI_MACHINE_DOCTOR_H

#include "clients/cli/engine/cli.h"

enum verdict { DOCTOR_OK, DOCTOR_WARN, DOCTOR_BAD };

#define DOCTOR_CLOCK_WARN_S 1.0

struct doctor {
    const struct cli *cli;
    /* Of the ckptd; NULL: it did not answer. */
    struct json_t *status;
    double asked_s, answered_s;              /* by our clock, since 1970 */
    bool is_far;                             /* reached over TLS: it may be on another machine */
    char store[4096];                        /* its directory; "": not accessible from here */
    uint64_t pool_bytes, pool_bytes_missing; /* of ckptd's pool here; not allocated yet */
    uint64_t save_bytes; /* of the last save, or of the newest checkpoint; 0: there is none */
    /* What the runs' saves write on this node, by bytes and interval; 0: unknown. */
    double need_rate;
    struct json_t *found;
    enum verdict worst;
};

/* ---- doctor_rows.c ---- */

static inline enum verdict doctor_verdict(bool is_bad, bool is_warn)
{
    return is_bad ? DOCTOR_BAD : is_warn ? DOCTOR_WARN : DOCTOR_OK;
}

/* Adds a row to the table. `advice`: a sentence without its full stop; "" with DOCTOR_OK. */
void doctor_say(struct doctor *doctor, enum verdict verdict, const char *check, const char *advice,
                const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Adds this thread's last error as a row; its hint, or `otherwise`, is the advice. */
void doctor_say_error(struct doctor *doctor, enum verdict verdict, const char *check,
                      const char *otherwise);
/* "; saves here need 1.50 MiB/s", or "". Returns `out`. */
const char *doctor_need(char *out, size_t size, const struct doctor *doctor);
/* Prints all rows to stdout. */
int doctor_print(const struct doctor *doctor);

/* ---- doctor_server.c: checks of a ckptd; without an answer, of this user's certificate ---- */

void doctor_check_server(struct doctor *doctor);

/* ---- doctor_tiers.c: other nodes, and the far tier ---- */

void doctor_check_tiers(struct doctor *doctor);

/* ---- doctor_host.c: checks of this machine and this user ---- */

void doctor_check_host(struct doctor *doctor);

#endif
