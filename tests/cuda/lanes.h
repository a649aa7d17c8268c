/* lanes.h - threads of a CUDA block on one thread of a CPU.
 *
 * The .cu files of kernels/cuda are compiled a second time, as C++ by the host's compiler; this
 * file has the functions that bodies.h calls there. A launch runs the blocks one after the other.
 * Each thread of a block is a fiber; it runs until it ends, or waits for others at a barrier or a
 * warp collective. Faults that depend on the order are provoked:
 *
 *   seed % 3      blocks, and the threads that may run: 0 the lowest first, 1 the highest first,
 *                 2 at random
 *   seed / 3 % 2  an asynchronous copy is made 0 as late as possible, in the wait; 1 at once shared
 *   memory is filled with 0xff (NaN) for each block
 *
 * Refused, with kernel, block, thread, file and line on stderr, then abort(): a barrier or a warp
 * collective that threads reach at different lines, or that some never reach; a block that is not
 * made of whole warps; more shared memory, arguments or blocks than a GPU allows; an asynchronous
 * copy that is never waited for.
 *
 * Under ThreadSanitizer (gcc's) each fiber counts as a thread, and only barriers, __syncwarp, the
 * launch and its end order memory: a shuffle does not, nor does the order in which fibers run. So
 * two accesses without a barrier between them give a report with both lines, in any order. Blocks
 * take turns with four sets of fibers, so this holds for most pairs of blocks, too. Under
 * AddressSanitizer an access past an allocation is a report.
 *
 * lanes.c is compiled without sanitizers, so its copies between fibers do not count as accesses.
 * One launch at a time, on one thread. */
#ifndef HOLDFAST_CUDA_LANES_H
#define HOLDFAST_CUDA_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LANES_WARP 32
#define LANES_THREADS_MAX 1024
#define LANES_SHARED_MAX 232448        /* bytes a block may have on sm_90 and sm_100 */
#define LANES_SHARED_STATIC_MAX 49152u /* part of it without a request */
#define LANES_EXCHANGE_MAX 64          /* bytes that a thread passes to a collective */

struct lanes_dim {
    unsigned x, y, z;
};
/* The place of the current fiber: CUDA's built-in variables. */
struct lanes_place {
    struct lanes_dim thread, block, block_dim, grid_dim;
};
extern const struct lanes_place *lanes_here;

void lanes_seed(uint64_t seed);

struct lanes_launch {
    const char *name;
    void (*kernel)(const void *args);
    const void *args; /* copied by the call */
    size_t args_bytes, shared_bytes;
    struct lanes_dim grid;
    unsigned threads;
};
void lanes_launch(const struct lanes_launch *launch);
/* Called by a launch of the .cu files: 0, or an error of the CUDA runtime. Programs with streams
 * define it, and call lanes_launch later, one launch at a time, with a copy of args. In others the
 * kernel has run when it returns. */
int lanes_queue(void *stream, const struct lanes_launch *launch);

/* ---- Called by fibers ---- */

void lanes_barrier(const char *file, int line);
/* Shared memory: the n-th call of a thread gives the same place to each thread of its block. */
void *lanes_shared(size_t bytes);
void *lanes_shared_dynamic(void);

/* A collective of a full warp: each of its 32 threads passes `in`, and gets `out` when all have
 * arrived. */
enum lanes_collective {
    LANES_SYNC,   /* orders memory among the warp */
    LANES_DOWN,   /* uint32_t of lane + number, the lane's own past the end */
    LANES_XOR,    /* uint32_t of lane ^ number */
    LANES_FROM,   /* uint32_t of lane `number` */
    LANES_BALLOT, /* uint32_t: bit l is set if lane l passed a value other than 0 */
    LANES_MATRIX, /* in: 16 bytes, row lane % 8 of matrix lane / 8; out: 4 fragments of 4 bytes */
    LANES_MATRIX_T /* the same, each matrix of 8 x 8 two-byte values transposed */,
    LANES_MMA, /* in: a[4], b[2] (two bf16 each), c[4] (float); out: c[4] of m16n8k16 */
    /* The same of float8, four codes in a word, m16n8k32; number: 1 if a is e5m2. */
    LANES_MMA_FLOAT8,
    LANES_COLLECTIVES
};
void lanes_collect(enum lanes_collective kind, void *out, size_t out_bytes, const void *in,
                   size_t in_bytes, unsigned number, const char *file, int line);

/* Asynchronous copies of 16 bytes (from NULL: zeros). add: true if the caller has to make the copy
 * now. next: a copy that has to be made so that at most `groups` groups are left; false if there is
 * none. */
bool lanes_copy_add(void *to, const void *from);
void lanes_copy_commit(void);
bool lanes_copy_next(unsigned groups, void **to, const void **from);

#ifdef __cplusplus
}
#endif
#endif
