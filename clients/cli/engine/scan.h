/* scan.h - moves the bytes of the offline tools: deep reads for the device, and work on a few
 * threads.
 *
 *   scan_run      verified blocks of shards, requested one by one and processed in any order; for
 *                 verify
 *   assembly_run  the same, and copies every element to its place in the 1 MiB blocks of an
 *                 output; for export, convert and diff
 *
 * Both run on the caller's thread until all is done, or until the first error, which is then this
 * thread's last error. Memory is SCAN_BUFFERS blocks, and ASSEMBLY_BLOCKS more for an assembly, for
 * any size of the checkpoint. */
#ifndef HOLDFAST_CLIENTS_SCAN_H
#define HOLDFAST_CLIENTS_SCAN_H

#include "clients/cli/engine/cli.h"

#define SCAN_BLOCK CHECKSUM_BLOCK_BYTES
#define SCAN_BUFFERS 40u    /* 32 on the device (the engine's depth), the others with the workers */
#define SCAN_WORKERS_MAX 4u /* threads that hash and convert; at most the number of cores */
#define ASSEMBLY_BLOCKS 128u  /* of output, under way at a time; for all sides together */
#define ASSEMBLY_SIDES_MAX 2u /* checkpoints that one assembly reads */

/* Memory for transfers, aligned to 2 MiB and in huge pages if the system has them; free(). */
void *scan_memory(size_t bytes);

/* ---- scan.c ---- */

struct scan;
struct output_file;

/* One block of a shard. */
struct scan_read {
    struct shard_file *file; /* taken by next(); the scan drops it */
    uint64_t block;
    uint32_t side;              /* for an assembly: the index of the checkpoint */
    struct output_file *output; /* for an assembly: the output of the block, */
    uint64_t first;             /* and the first block of it that needs this one */
};

enum scan_next { SCAN_END, SCAN_READ, SCAN_WAIT };

struct scan_hooks {
    void *user;
    /* Gives the next block to read, with the file taken. Caller's thread; may block. SCAN_WAIT:
     * call again after scan_wake or after the next block is done. Or an error. */
    int (*next)(void *user, struct scan_read *out);
    /* Processes a verified block; on a worker's thread, workers count from 0. */
    int (*take)(void *user, uint32_t worker, const struct scan_read *read, const void *data);
    /* Receives a damaged block (`error_number` 0), or an unreadable one. Caller's thread, in the
     * order of next(). */
    int (*damaged)(void *user, const struct scan_read *read, int error_number);
    struct progress *progress; /* NULL: none */
};

/* `store` has the shards. */
int scan_open(struct scan **out, struct storage *store);
void scan_close(struct scan *scan); /* NULL is allowed */
int scan_run(struct scan *scan, const struct scan_hooks *hooks);
/* Call it from any thread, also from a storage callback. */
void scan_wake(struct scan *scan);
/* Keeps `error` with the calling thread's text and ends the scan. */
void scan_fail(struct scan *scan, int error);
uint32_t scan_workers(void);

/* ---- assembly.c ---- */

/* One tensor of an output file: a whole tensor of the checkpoint, a box of it, or a tensor that the
 * checkpoint stores as boxes (layout_join). */
struct output_tensor {
    uint32_t tensor[ASSEMBLY_SIDES_MAX]; /* index in each side's table */
    uint32_t num_parts; /* number of boxes it is joined from, from that index on; 0: not joined */
    const struct tensor_meta *joined; /* if joined: the whole tensor */
    enum dtype dtype;                 /* in the output; elements are rounded to it */
    struct box box;                   /* the box of it in the output, by its rows there */
    uint32_t head_rows;               /* 0, or: rows are permuted by heads_to_halves */
    uint64_t start, bytes;            /* in the file; start is a multiple of the dtype's size */
};
/* The row of the Hugging Face tensor with our row `row` of wq or wk; a head has `head_rows`. */
static inline uint64_t heads_to_halves(uint64_t row, uint32_t head_rows)
{
    uint64_t inside = row % head_rows;
    return row - inside + inside % 2 * (head_rows / 2) + inside / 2;
}

/* Selects all of a tensor, or of a joined one: box and bytes. */
void output_tensor_whole(struct output_tensor *tensor, const struct tensor_meta *meta);

/* An output file; its public fields stay the caller's, unchanged until the assembly ends. */
struct output_file {
    uint64_t bytes;   /* of head and tensors */
    const void *head; /* the bytes before the first tensor */
    uint64_t head_bytes;
    struct output_tensor *tensors; /* ascending, without overlap */
    uint32_t num_tensors;
    void *user;
    /* Private to the assembly. */
    uint64_t num_blocks, base;              /* its first block's number among all files */
    uint32_t *place_of[ASSEMBLY_SIDES_MAX]; /* index in `tensors` per tensor of a side's table */
    atomic_uint num_reads; /* reads that may still use it, although every block is complete */
};

/* One block of an output file, complete. */
struct output_block {
    struct output_file *file;
    uint64_t index, start, bytes;            /* in the file */
    unsigned char *data[ASSEMBLY_SIDES_MAX]; /* SCAN_BLOCK bytes per side; zeros after `bytes` */
    struct storage_request request;          /* free for the writer of the block */
    struct assembly *assembly;
    _Atomic uint64_t missing; /* bytes, of all sides */
    bool is_free;
};

struct assembly_hooks {
    void *user;
    /* The one output file; or NULL: open() gives the next, NULL at the end. Caller's thread; may
     * block. Free a file after the assembly by output_file_deinit(). */
    struct output_file *file;
    int (*open)(void *user, struct output_file **out);
    /* A block is complete; called on a worker's thread (`worker` up to scan_workers() inclusive).
     * The block must be released, now or later, also when this fails. */
    int (*complete)(void *user, uint32_t worker, struct output_block *block);
    struct progress *progress; /* NULL: none */
    uint32_t num_blocks;       /* under way at a time; 0: as many as ASSEMBLY_BLOCKS allows */
};

/* Index of the first tensor that ends after a byte of the file. */
uint32_t output_tensor_after(const struct output_file *file, uint64_t byte);
void output_file_deinit(struct output_file *file);
int assembly_run(struct checkpoint *sides, uint32_t num_sides, const struct assembly_hooks *hooks);
/* The same for one checkpoint, which is loaded here and must be intact, with a progress bar of so
 * many bytes. */
int assembly_run_whole(struct checkpoint *checkpoint, const struct assembly_hooks *hooks,
                       const struct cli *cli, const char *verb, uint64_t bytes);
void assembly_release(struct output_block *block);
/* Writes a complete block at its place in `object`, in units of SHARD_ALIGN if the store needs
 * them. `written` runs on the storage's thread and must release it. A failed write ends the
 * assembly before that. */
void assembly_write(struct output_block *block, struct storage *store,
                    struct storage_object *object, void (*written)(struct output_block *block));

#endif
