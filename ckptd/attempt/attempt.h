/* attempt.h - attempts: the fencing numbers of a run, and what its ranks said about themselves; see
 * attempt.c. */
#ifndef HOLDFAST_CKPTD_ATTEMPT_ATTEMPT_H
#define HOLDFAST_CKPTD_ATTEMPT_ATTEMPT_H

#include "ckptd/core/loop.h"
#include "ckptd/machines/sets.h"
#include "proto/format/retain.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct run;

#define JSON_BYTES_MAX (1u << 20) /* of each JSON field of a request; longer ones are refused */

/* What the manifest says about an attempt; durable in "<run>/attempts/0003". */
struct attempt {
    uint64_t number;
    uint32_t world_size;
    char *config_json, *identity_json, *mesh_json, *data_json;
    char code_version[64];
    struct sets sets;               /* the nodes it counts on */
    char coordinator[33];           /* the node that opened it; "": this one, it has no name */
    char owner[PRINCIPAL_TEXT_MAX]; /* whose it counts as (quota.c); "": nobody's */
    char who[RPC_WHO_MAX];          /* opened it; "": ckptd was restarted since */
    uint64_t parent_step, parent_attempt; /* what it loaded; attempt 0: nothing */
    bool parent_is_final;                 /* a save has begun: what is loaded later is no parent */
    bool parent_kept;                     /* it is durable */
};

/* Remembers what the attempt loaded; durably, when it saves. */
void attempt_set_parent(struct run *run, uint64_t step, uint64_t attempt);
void attempt_keep_parent(struct run *run);
/* Which of the run's checkpoints stay here: as [retention] says, and where that heeds trainers, as
 * checkpoint.keep_latest_k of the attempt does. */
struct retain_rules attempt_rules(const struct run *run);
void attempt_free(struct attempt *attempt);
/* A JSON object of a request, "" for {}; json_decref() it. ERR_INVALID names the field. */
struct json_t;
int attempt_read_object(struct json_t **out, const char *text, const char *field);

/* What this ckptd says of it there. */
struct attempt_facts {
    struct sets sets; /* the nodes it counts on */
    bool is_held;     /* it needs no quorum */
    char owner[PRINCIPAL_TEXT_MAX];
};
/* The text of "<run>/attempts/<number>", its sections as the request has them. To be freed. */
int attempt_write(char **out, const struct run *run, uint64_t number,
                  const struct attempt_facts *facts,
                  const Holdfast__V1__OpenAttemptRequest *request);
/* Is a number created in the far tier, too, before it is answered? */
bool attempt_needs_far(const struct service *service);
/* The nonce of that text. */
void attempt_nonce(char out[33], const char *text);
/* Makes that text durable, exclusively, in the far tier first, where that is needed. Blocks; any
 * thread. ERR_EXISTS; ERR_STALE: this node knows of a newer one; ERR_UNAVAILABLE: the far tier did
 * not answer. */
int attempt_publish(struct attempt **out, const struct run *run, uint64_t number, const char *text);
/* From the store, with what it loaded. Blocks. */
int attempt_read_back(struct attempt **out, const struct run *run, uint64_t number);
/* From this node's or another's store, as it was opened. Blocks. ERR_NOT_FOUND. */
struct storage;
int attempt_read_from(struct attempt **out, struct storage *storage, const char *run,
                      uint64_t number);

#endif
