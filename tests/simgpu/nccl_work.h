/* nccl_work.h - a communicator of the simulated NCCL and its operations, shared by nccl.c (calls,
 * their order) and nccl_sums.c. Simgpu's lock guards it. */
#ifndef HOLDFAST_TESTS_SIMGPU_NCCL_WORK_H
#define HOLDFAST_TESTS_SIMGPU_NCCL_WORK_H

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#define RANKS_MAX 16
#define PARTS_MAX 64
#define ALL (-1)

/* The last three: one for each rank. */
enum part_kind { PART_SEND, PART_RECV, PART_GATHER, PART_SUM, PART_SCATTER };
struct part {
    enum part_kind kind;
    int peer, root;  /* root: of PART_SUM, the rank that gets it; ALL */
    uint64_t number; /* of its kind between the two */
    const char *from;
    char *to;
    size_t bytes, element; /* the latter: of a sum */
    bool is_done;
};
/* The calls that a rank queued in one group. */
struct work {
    struct work *next;
    ncclComm_t comm;
    cudaStream_t stream;
    bool has_arrived, is_over, is_posted; /* the last: to other processes */
    uint32_t num;
    struct part parts[PARTS_MAX];
};

struct world {
    struct world *next;
    ncclUniqueId id;
    int size, joined, left;
    struct ncclComm *of[RANKS_MAX];
};
struct ncclComm {
    struct world *world;
    int rank;
    bool is_aborted, is_connected; /* with all other processes */
    ncclResult_t error;            /* asynchronous */
    uint64_t sent[RANKS_MAX], received[RANKS_MAX], gathered, summed;
    struct work *handed;        /* the group that ended last and is on no stream yet; NULL: none */
    uint32_t asks;              /* that it takes at least */
    struct work *works, **last; /* not freed before the communicator is */
};

/* nccl_sums.c. */
bool simgpu_is_sum(const struct part *part);
/* Of all ranks at once, each of which has queued its call. */
void simgpu_add_all(const struct work *work, const struct part *call);

#endif
