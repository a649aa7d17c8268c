/* simgpu.h - simulated GPUs: the CUDA runtime and a part of cuBLASLt, defined against NVIDIA's
 * headers and linked in place of the libraries. The released objects are linked with it unchanged;
 * kernels run on lanes of the CPU (tests/cuda/lanes.h).
 *
 * Order: an operation runs after the earlier ones of its stream and after the events that its
 * stream waits for; no other order holds. Streams have no threads: operations run inside calls of
 * the host, one at a time.
 *
 *   seed % 3   0: as late as allowed: only when the host waits, and only what it waits for
 *              1: as early as allowed: within the call that queues
 *              2: at random
 *
 * Memory: a device's memory holds NaN when it is new, ends at an inaccessible page, and is
 * accessible only while an operation runs. The host that accesses it dies of SIGSEGV, and so does a
 * kernel that accesses another device's. A copy from or to host memory that is neither page-locked
 * nor registered is staged within the call, as CUDA does it, and counted. Page-locked memory is
 * read when the copy runs.
 *
 * Graphs: operations queued on a captured stream are kept, and not run; a launch queues them with
 * the pointers of that moment. Addresses of freed memory are never reused: a graph or other code
 * that accesses them causes SIGSEGV.
 *
 * Refused with CUDA's error: handles that are none, a device that is not there, memory that is not
 * allocated, calls from a host function, memory registered twice, an event recorded on another
 * device than its own, priorities out of the range, which CUDA would clamp; while capturing,
 * events, host functions, communication, waiting, allocating and copies of memory that is not page-
 * locked, and the capture is void. A kernel that the lanes refuse ends the process; so does memory
 * that is unregistered while a copy is queued with it.
 *
 * Settings, "name=value,...": of simgpu_set(), or of the variable SIMGPU when the first call comes.
 *
 *   seed=N devices=N memory=BYTES   0, 1, 80 GiB for each device
 *   node=N                          0: the NUMA node that every device says it is on
 *   capability=N                    90: ten times the devices' compute capability
 *   driver=N                        serves CUDA N at most, 12080 is 12.8; 0: there is none
 *   peers=0                         no device reaches another's memory
 *   readonly=N                      0: memory that is mapped read-only cannot be registered
 *   algorithm=N dropped=N           0, 0: which algorithm cuBLASLt chooses for a product; those
 *                                   below `dropped` are not offered
 *   fail=CALL:N                     the N-th call of that name fails, once; N+: it and all later.
 *                                   "kernel": the launch succeeds and the device is lost later
 *   sick=WHAT                       the last GPU has errors, rows (that cannot be replaced),
 *                                   pending (rows), bus (half of its lanes), generation (of PCIe,
 *                                   3 of 5), links (one down), heat
 *   folder=PATH                     GPUs of several processes exchange by files there
 *   flip=BYTES:N                    the N-th copy of at least so many bytes onto devices
 *                                   arrives with a flipped bit
 *   torn=BYTES:N                    the same for copies from devices
 */
#ifndef HOLDFAST_TESTS_SIMGPU_H
#define HOLDFAST_TESTS_SIMGPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Programs that are built without NVIDIA's headers do not link them: then these are NULL. */
#define SIMGPU_WEAK __attribute__((weak))

/* Call it when no work is queued. Ends the process at an unknown setting. */
SIMGPU_WEAK void simgpu_set(const char *settings);

struct simgpu_counts {
    uint64_t kernels, copies, staged_copies, products, heuristics, attentions, failures;
    uint64_t allocations, pinned, registered; /* ranges that are there now */
    uint64_t streams, events, graphs;         /* that are there now; graphs that can be launched */
    uint64_t first_streams, last_streams;     /* of them, of the greatest and the least priority */
    uint64_t captures, graph_launches;
};
SIMGPU_WEAK struct simgpu_counts simgpu_counts(void);

/* ---- For other libraries that queue on streams, such as one that communicates ---- */

struct simgpu_work {
    void (*run)(void *args);
    /* NULL: always. True when it may run, called under the lock of all streams. `blocker` names a
     * stream (cudaStream_t) that has to progress first; NULL: another thread's call changes it. */
    bool (*is_ready)(void *args);
    void *(*blocker)(void *args);
    uint32_t devices; /* a bit for each whose memory it touches; 0: its stream's alone */
};
#define SIMGPU_ALL_DEVICES UINT32_MAX
/* 0 or a cudaError_t. args: `bytes` of them are copied; run may touch memory of devices. */
SIMGPU_WEAK int simgpu_queue(void *stream, const struct simgpu_work *work, const void *args,
                             size_t bytes);
/* Counts a call of this name; true when it is the one that has to fail (fail=). */
SIMGPU_WEAK bool simgpu_fails(const char *call);

#endif
