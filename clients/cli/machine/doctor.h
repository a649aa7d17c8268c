/* doctor.h - what the files of doctor share: each check says what it found. */
#ifndef HOLDFAST_CLIENTS_CLI_MACHINE_DOCTOR_H
#define HOLDFAST_CLIENTS_CLI_MACHINE_DOCTOR_H

#include "clients/cli/engine/cli.h"

enum verdict { DOCTOR_OK, DOCTOR_WARN, DOCTOR_BAD };

struct doctor {
    const struct cli *cli;
    /* Of the ckptd; NULL: it did not answer. */
    struct json_t *status;
    double asked_s, answered_s; /* by our clock, since 1970 */
    bool is_far;                /* it is reached over TLS: its machine may be another one */
    char store[4096];           /* its directory; "": it cannot be reached from here */
    uint64_t pool_bytes, pool_bytes_missing; /* of ckptd's pool here; not taken yet */
    uint64_t save_bytes; /* of the last save, or of the newest checkpoint; 0: there is none */
    struct json_t *found;
    enum verdict worst;
};

/* ---- doctor_rows.c ---- */

/* A row of the table. `advice`: what to do, a sentence without its full stop; "" of DOCTOR_OK. */
void doctor_say(struct doctor *doctor, enum verdict verdict, const char *check, const char *advice,
                const char *format, ...) __attribute__((format(printf, 5, 6)));
/* This thread's last error as a row; its hint, or `otherwise`, is what to do. */
void doctor_say_error(struct doctor *doctor, enum verdict verdict, const char *check,
                      const char *otherwise);
/* All rows, on stdout. */
int doctor_print(const struct doctor *doctor);

/* ---- doctor_server.c: what a ckptd tells; of one that did not answer this user's certificate ----
 */

void doctor_look_at_server(struct doctor *doctor);

/* ---- doctor_host.c: what this machine and this user have ---- */

void doctor_look_at_host(struct doctor *doctor);

#endif
