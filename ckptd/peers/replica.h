/* replica.h - copies of other nodes' checkpoints in this node's memory; see replica.c. Blocks; any
 * thread, except where stated otherwise. */
#ifndef HOLDFAST_CKPTD_PEERS_REPLICA_H
#define HOLDFAST_CKPTD_PEERS_REPLICA_H

#include "proto/format/manifest.h"
#include "storage/storage.h"

#include <stdbool.h>

struct json_t;
struct service;

/* The store in which another node writes or lists the object with that key: replica.M1. */
struct storage *replica_place(struct service *service, const char *key);
/* A copy of this checkpoint is complete in memory: evicts older ones of its run, replica.M3. */
void replica_evict(struct service *service, const struct manifest_summary *newest);
/* The node that held a directory by that lease has released it, or was silent for too long. Removes
 * its unfinished files in that directory, on the disk or in memory: replica.M3. */
void replica_remove_left(struct service *service, const char *lease);
/* For Status: bytes and number of copies; null: no copies are kept in memory. On the service
 * thread. */
struct json_t *replica_describe(const struct service *service);

#endif
