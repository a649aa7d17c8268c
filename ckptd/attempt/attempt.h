/* attempt.h - attempts: the fencing numbers of a run, and the description by its ranks; see
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

/* The fields of an attempt for the manifest; durable in "<run>/attempts/0003". */
struct attempt {
    uint64_t number;
    uint32_t world_size;
    char *config_json, *identity_json, *mesh_json, *data_json;
    char code_version[64];
    struct sets sets;               /* the nodes on which it depends */
    char coordinator[33];           /* the node that opened it; "": this node without a name */
    char owner[PRINCIPAL_TEXT_MAX]; /* the identity it is charged to (quota.c); "": none */
    char who[RPC_WHO_MAX];          /* who opened it; "": ckptd was restarted since */
    uint64_t parent_step, parent_attempt; /* the checkpoint it loaded; attempt 0: none */
    bool parent_is_final;                 /* a save has begun: a later load is no parent */
    bool parent_kept;                     /* it is durable */
};

/* Notes the checkpoint that the attempt loaded; durably, when it first saves. */
void attempt_set_parent(struct run *run, uint64_t step, uint64_t attempt);
void attempt_keep_parent(struct run *run);
/* The rules by which the run's checkpoints stay here: those of [retention], and, if that allows it,
 * checkpoint.keep_latest_k of the trainers' attempt. */
struct retain_rules attempt_rules(const struct run *run);
void attempt_free(struct attempt *attempt);
/* A JSON object of a request, "" for {}; json_decref() it. ERR_INVALID names the field. */
struct json_t;
int attempt_read_object(struct json_t **out, const char *text, const char *field);

/* Facts that this ckptd adds to the file. */
struct attempt_facts {
    struct sets sets; /* the nodes on which it depends */
    bool is_held;     /* it needs no quorum */
    char owner[PRINCIPAL_TEXT_MAX];
};
/* Makes the text of "<run>/attempts/<number>", with the sections of the request. The caller frees
 * it. */
int attempt_write(char **out, const struct run *run, uint64_t number,
                  const struct attempt_facts *facts,
                  const Holdfast__V1__OpenAttemptRequest *request);
/* Must a number be created in the far tier as well, before it is answered? */
bool attempt_needs_far(const struct service *service);
/* The nonce of that text. */
void attempt_nonce(char out[33], const char *text);
/* Makes that text durable, exclusively; first in the far tier, if needed. Blocks; any thread.
 * ERR_EXISTS; ERR_STALE: this node has a newer one; ERR_UNAVAILABLE: the far tier did not
 * answer. */
int attempt_publish(struct attempt **out, const struct run *run, uint64_t number, const char *text);
/* Reads it from the store, with its parent. Blocks. */
int attempt_read_back(struct attempt **out, const struct run *run, uint64_t number);
/* Reads it from this node's or another's store, as it was opened. Blocks. ERR_NOT_FOUND. */
struct storage;
int attempt_read_from(struct attempt **out, struct storage *storage, const char *run,
                      uint64_t number);

#endif
