/* private.h - shared by the files of the simulated GPU. One lock guards all of it. */
#ifndef HOLDFAST_TESTS_SIMGPU_PRIVATE_H
#define HOLDFAST_TESTS_SIMGPU_PRIVATE_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stddef.h>

#include "tests/simgpu/simgpu.h"

#define SIMGPU_DEVICES_MAX 16

enum op_kind { OP_WORK, OP_HOST, OP_RECORD, OP_WAIT };
struct op {
    struct op *next;
    enum op_kind kind;
    struct CUevent_st *event;
    uint64_t point; /* of the event's records */
    struct simgpu_work work;
    void *user; /* OP_HOST: the argument of its function */
    size_t bytes;
    max_align_t args[];
};

struct CUstream_st {
    struct CUstream_st *next;
    struct op *first, *last;
    uint64_t posted, done;
    int device, priority;
    bool is_busy;               /* one of its operations runs */
    struct CUgraph_st *capture; /* collects the queued operations; NULL: nothing is captured */
};

/* graphs.c: the operations queued during the capture, with the pointers of that moment. */
struct CUgraph_st {
    struct op *first, **last;
    pthread_t thread; /* that captures */
    bool is_void;     /* a call was refused during the capture */
};
void simgpu_capture(struct CUstream_st *stream, struct op *op);
/* Fails the call when the stream is captured, and invalidates the capture. */
bool simgpu_spoils_capture(struct CUstream_st *stream);
bool simgpu_is_unsafe(const char *call); /* likewise, for captures of this thread */

struct CUevent_st {
    struct CUevent_st *next;
    uint64_t recorded, done; /* records so far; the last one that was reached */
    uint64_t reached_ns;     /* when it was */
    uint32_t num_users;      /* operations that name it */
    int device;
    bool is_timed, is_destroyed;
};

enum region_kind { REGION_DEVICE, REGION_PINNED, REGION_REGISTERED };
struct region {
    struct region *next;
    char *at, *mapped;
    size_t bytes, mapped_bytes;
    enum region_kind kind;
    int device;
};

struct simgpu {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* an operation has ended, or was queued */
    bool is_set, has_no_peers, registers_read_only;
    uint64_t seed, random;
    int num_devices, capability, driver, node;
    size_t memory_bytes;
    uint64_t algorithm, dropped; /* cuBLASLt's choice; those below are not offered */
    char fail_call[48];
    uint64_t fail_at, fail_calls;
    bool fails_for_ever;
    char sick[16];    /* the fault of the last device; "": none */
    char folder[192]; /* of bytes between processes; "": there is one process */
    /* For copies onto devices, and from them: the arriving bytes have a flipped bit. */
    struct flip {
        size_t bytes;
        uint32_t at; /* counts down; 0: none does */
    } flip, torn;
    cudaError_t lost[SIMGPU_DEVICES_MAX]; /* of a device: every later call gives it */
    struct CUstream_st *streams;
    struct CUevent_st *events;
    struct region *regions;
    struct simgpu_counts counts;
};
extern struct simgpu simgpu;

/* settings.c. With the lock. */
void simgpu_first_call(void);
bool simgpu_fails_locked(const char *call);
uint64_t simgpu_draw(void);

/* memory.c. With the lock. NULL: the address is in none. */
struct region *simgpu_region(const void *at);
/* Makes the memory of these devices and no others accessible until the lock is released: successive
 * operations change the protection once. */
void simgpu_open_memory(uint32_t devices);
void simgpu_unlock(void);
void simgpu_wait(void); /* for simgpu.changed */

/* processes.c. With the lock. */
bool simgpu_has_processes(void);
void simgpu_post_part(const char *name, const void *data, size_t bytes);
bool simgpu_has_part(const char *name);
bool simgpu_take_part(const char *name, void *to, size_t bytes); /* false: it has another size */
void simgpu_begin_processes(const char *folder);

/* streams.c. With the lock. */
void simgpu_drop_event(struct CUevent_st *event); /* one user less; NULL is none */
bool simgpu_is_stream(const struct CUstream_st *stream);
struct op *simgpu_new_op(enum op_kind kind, const struct simgpu_work *work, const void *args,
                         size_t bytes);
void simgpu_post(struct CUstream_st *stream, struct op *op); /* may run operations */
void simgpu_finish(struct CUstream_st *stream, uint64_t posted);
bool simgpu_try(struct CUstream_st *stream);     /* one operation further; is all of it done? */
bool simgpu_try_event(struct CUevent_st *event); /* likewise */
void simgpu_finish_event(struct CUevent_st *event, uint64_t point);
void simgpu_finish_device(int device);
bool simgpu_run_any(int device); /* one operation; false: none may run */

/* Each call of the runtime begins with CALL, which ends in CUDA's error when it has to. */
int simgpu_device(void); /* of this thread */
cudaError_t simgpu_enter(const char *call);
cudaError_t simgpu_leave(cudaError_t error);

#endif
