/* storage_fault.h - a back-end for tests: wraps another one and injects errors, delays, and power
 * losses. Only programs that link tests/fault/ open "fault:" stores; released programs do not. */
#ifndef HOLDFAST_TESTS_FAULT_STORAGE_FAULT_H
#define HOLDFAST_TESTS_FAULT_STORAGE_FAULT_H

#include "storage/storage.h"

/* `where` is "<settings>:<back-end>:<where of that>", settings such as
 * "seed=1,error=0.01,delay_us=100,lost=0.5,fail_at=7" (all optional):
 *  - seed: of every decision; the same calls in the same order meet the same faults;
 *  - error: chance that an operation fails and has no effect; a failed sync also loses the data
 *    that it should have made durable, whatever later syncs return, as Linux does;
 *  - delay_us: every request waits up to so many microseconds before it starts;
 *  - least_us: and so many in addition;
 *  - lost: chance, at storage_fault_crash, that an unsynced page, name, removal or rename is lost
 *    (0.5);
 *  - late: chance that a failing publish fails at its last sync: the name is gone, and a crash may
 *    bring it back; and that a failing rename was carried out;
 *  - fail_at: the operation of this number fails, once; counted from 1 over all that can fail;
 *  - fail_from: that operation and every later one fail;
 *  - only: the operations of this name are counted and fail, and no others: "read", "write",
 *    "sync", "create", "open", "publish", "fetch", "list", "remove", "rename", "sync_names",
 *    "register", "lock", "space", "hold", "find_holder", "sweep";
 *  - key: likewise, those on keys with this text in them; transfers have none;
 *  - errno: the number of the errno with which operations fail, instead of EIO. */
extern const struct storage_ops storage_fault;

/* Simulates a power loss and a restart. Requests in flight end with ERR_IO. By the seed unsynced
 * data is kept, dropped or torn; so are the files of holds, which have no holder any more. Objects
 * opened before fail from then on and can only be closed, holds only released. The storage works
 * again and shows the state after a restart, as does a new open of the wrapped back-end. Do not
 * call it from a callback. */
int storage_fault_crash(struct storage *storage);
/* How many operations it has counted. */
uint64_t storage_fault_operations(struct storage *storage);

#endif
