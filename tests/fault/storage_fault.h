/* storage_fault.h - a back-end for tests: wraps another one and injects errors, delays, and
 * what a power loss leaves. A program that links tests/fault/ opens "fault:" stores;
 * the programs that users get do not. */
#ifndef HOLDFAST_TESTS_FAULT_STORAGE_FAULT_H
#define HOLDFAST_TESTS_FAULT_STORAGE_FAULT_H

#include "storage/storage.h"

/* `where` is "<settings>:<back-end>:<where of that>", settings such as
 * "seed=1,error=0.01,delay_us=100,lost=0.5,fail_at=7" (all optional):
 *  - seed: of every decision; the same calls in the same order meet the same faults;
 *  - error: chance that an operation fails and has no effect; a failed sync also loses
 *    what it should have made durable, whatever later syncs say, as Linux does;
 *  - delay_us: every request waits up to so many microseconds before it starts;
 *  - least_us: and so many beside that;
 *  - lost: chance, at storage_fault_crash, that an unsynced page, name, removal or rename is lost
 *    (0.5);
 *  - late: chance that a publish which fails does so at its last sync: it is gone, and a crash may
 *    bring it back; and that a rename which fails was carried out;
 *  - fail_at: the operation of this number fails, once; counted from 1 over all that can fail;
 *  - fail_from: that operation and every later one fail;
 *  - only: the operations of this name are counted and fail, and no others: "read", "write",
 *    "sync", "create", "open", "publish", "fetch", "list", "remove", "rename", "sync_names",
 *    "register", "lock", "space", "hold", "find_holder", "sweep";
 *  - key: likewise, those on keys with this text in them; transfers have none;
 *  - errno: the number of the errno with which operations fail, instead of EIO. */
extern const struct storage_ops storage_fault;

/* Lose power and come back. Requests in flight end with ERR_IO; what was not synced is
 * kept, dropped or torn by the seed, the files of holds too, and nobody holds those any more.
 * Objects opened before fail from then on and only wait to be closed, holds to be released; the
 * storage itself works again and shows what a restart finds, as does a new open of the
 * wrapped back-end. Not to be called from a callback. */
int storage_fault_crash(struct storage *storage);
/* How many operations it has counted. */
uint64_t storage_fault_operations(struct storage *storage);

#endif
