/* replica.h - copies of other nodes' checkpoints in this node's memory; see replica.c. Blocks; any
 * thread, but for what says otherwise. */
#ifndef HOLDFAST_CKPTD_PEERS_REPLICA_H
#define HOLDFAST_CKPTD_PEERS_REPLICA_H

#include "proto/format/manifest.h"
#include "storage/storage.h"

#include <stdbool.h>

struct json_t;
struct service;

/* The store where another node writes the object of that key, or lists it: replica.M1. */
struct storage *replica_place(struct service *service, const char *key);
/* A copy of this checkpoint is whole in memory: those of its run before it go, replica.M3. */
void replica_evict(struct service *service, const struct manifest_summary *newest);
/* The node that held a directory by that lease has let go of it, or was silent for too long. What
 * it wrote there, here or in memory, and did not make a checkpoint goes: replica.M3. */
void replica_remove_left(struct service *service, const char *lease);
/* For Status: bytes and copies; null: nothing is kept in memory. On the service thread. */
struct json_t *replica_describe(const struct service *service);

#endif
