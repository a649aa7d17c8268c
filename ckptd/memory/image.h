/* image.h - the bytes of a shard in memory, with the passes that hash, write and read them; see
 * image.c. On the service thread, except where stated otherwise. */
#ifndef HOLDFAST_CKPTD_MEMORY_IMAGE_H
#define HOLDFAST_CKPTD_MEMORY_IMAGE_H

#include "ckptd/core/loop.h"
#include "ckptd/core/tier.h"
#include "ckptd/machines/read_plan.h"
#include "ckptd/memory/pool.h"
#include "proto/layout/layout.h"
#include "storage/store/store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct service;
struct run;
struct stage;
struct checkpoint;
struct shard_wait;

enum image_state {
    IMAGE_SPARE,    /* kept for its session's next save */
    IMAGE_STAGING,  /* a save in work */
    IMAGE_READING,  /* being filled from the store */
    IMAGE_RESIDENT, /* equal to a shard of a committed checkpoint */
    IMAGE_ENDING    /* unused; waits for I/O in progress */
};

/* The steps of a pass for each chunk. */
enum image_pass {
    PASS_STAGE,   /* hash the announced bytes, add the digests; in parallel, write */
    PASS_REWRITE, /* write again the bytes that were hashed before */
    PASS_READ     /* read, then hash */
};

struct image;
/* The unit of hashing and I/O: config block_bytes of the image. Kept small: there is one per block
 * of the pool. */
struct chunk {
    struct image *image;
    uint32_t index;       /* in the file; a window reuses a chunk for a later index */
    atomic_uint steps;    /* steps in progress; the last one reports the chunk */
    bool is_written;      /* PASS_STAGE: its bytes are in the file */
    uint64_t unannounced; /* data bytes that the rank has not announced yet */
    struct job job;
    struct event reported;
    struct storage_request request;
    /* Of throttle_queue.c: */
    struct chunk *next_held;
    int64_t stamp;
    bool is_paced;   /* it counts as in flight there */
    bool is_awaited; /* its report wakes the service thread */
};

/* The bytes of a shard in memory: segments, and the state of the passes over them. A window has
 * fewer segments than the file needs, and fewer chunks: both are rings over the file, of which only
 * the part from the first unwritten chunk on is in memory. It is never resident. Jobs pass it
 * between the service thread and the workers; a worker touches only its chunk, the sums of its
 * blocks, and the digests under `mutex`. */
struct image {
    struct service *service;
    struct image *next, *prev; /* service->images */
    enum image_state state;
    struct image **slot; /* its slot in the session, or NULL: no session has it */
    /* The run of the saves, whose ranks may write to it at any time; NULL: for loads, and only
     * ckptd writes to it. */
    const struct run *run;
    /* READING and RESIDENT: the checkpoint whose shard `shard` it holds. */
    struct checkpoint *checkpoint;
    uint32_t shard;
    enum tier_index tier;      /* READING: the tier of its file; for a save the local one */
    uint32_t readers;          /* loads, and the pass; not reclaimed while > 0 */
    uint64_t table_hash;       /* of its checksum table, as in the manifest */
    struct read_shard reading; /* which of its chunks are in memory, and the READ in progress */
    int64_t pass_begun_ms;
    /* Loads up to this number were open when its bytes were read from the store. */
    uint64_t read_until;
    bool in_hand; /* its rank may still copy into it, even after the save is over: it is not lent */
    bool is_window;
    uint32_t *segments, *generations; /* generations: as the rank was told */
    uint32_t num_segments, max_segments;

    struct shard_geometry geometry;
    uint64_t identity;    /* of the block checksums */
    uint64_t *sums;       /* per block */
    uint32_t num_chunks;  /* of the file */
    struct chunk *chunks; /* by image_chunk() */
    uint32_t num_rooms;   /* chunks in memory at once */
    enum image_pass pass;
    struct storage_object *object;
    bool is_from_elsewhere; /* some chunks were read in another tier than the local one */
    bool ends_reading;      /* after it, all of the checkpoint was read in the local tier */
    bool needs_far_hold;    /* a READ in the far tier without a lease there yet (held.h) */
    struct storage_hold *far_hold;
    uint32_t busy;          /* chunks in progress; service thread */
    atomic_uint unfinished; /* of them, not yet reported */
    atomic_bool stopped;    /* steps that have not begun are skipped: hashing and transfers */
    struct fault fault;     /* first of the pass */
    /* After every report of a chunk, on the service thread. */
    void (*advance)(struct image *image, struct chunk *chunk);

    struct job job;             /* before and after a READ pass */
    struct shard_wait *waiting; /* waiters for that pass; service thread */
    struct store_shard stored;  /* the file of that pass */

    /* PASS_STAGE */
    struct stage *stage;
    bool is_urgent; /* a client waits for its save: throttle_queue.c delays no chunk */
    const struct shard_tensor *tensors; /* borrowed from the group */
    const struct tensor_meta *metas;    /* of the layout table */
    uint32_t num_tensors;
    pthread_mutex_t mutex;
    struct digest *digests; /* per tensor; guarded by mutex while chunks are in progress */
};

/* Allocates arrays and chunks for a file of this geometry, without segments. It gets at most
 * `max_segments`: a window if the file needs more. ERR_MEMORY; ERR_SPACE: it has 2^32 chunks or
 * more. */
int image_new(struct image **out, struct service *service, const struct shard_geometry *geometry,
              uint32_t max_segments);
/* Returns the segments and frees all. No I/O may be in progress. */
void image_free(struct image *image);
uint32_t image_segments_needed(const struct service *service, uint64_t file_bytes);
/* Takes the segments it needs for this owner, and reclaims unused memory. ERR_BUSY. */
int image_take_segments(struct image *image, struct pool_owner owner);
/* Frees an image without session, checkpoint, readers, writer and I/O; then returns true. */
bool image_settle(struct image *image);
/* Will an open load ask for it? */
bool image_is_wanted(const struct image *image);
/* Its rank stops copying into it. */
void image_let_go(struct image *image);
/* Copy between private memory and the image, across segments. */
void image_put(struct image *image, uint64_t offset, const void *data, uint64_t bytes);
void image_get(const struct image *image, uint64_t offset, void *out, uint64_t bytes);
void image_chunk_range(const struct image *image, uint32_t index, uint64_t *out_start,
                       uint64_t *out_end);
bool image_chunk_is_tail(const struct image *image, uint32_t index); /* touches the table */
/* For a window only while the chunk is in it. */
struct chunk *image_chunk(const struct image *image, uint32_t index);
uint32_t image_tail_chunks(const struct service *service, const struct shard_geometry *geometry);
/* Is the part of the checksum table in that chunk equal to `table`? */
bool image_has_table(const struct image *image, uint32_t index, const uint8_t *table);
/* The storage of its file. */
struct storage *image_storage(const struct image *image);
/* Starts chunk `index` in the current pass; its report comes later. */
void image_start_chunk(struct image *image, uint32_t index);
/* Writes a chunk whose bytes are final, without hashing. */
void image_write_chunk(struct image *image, uint32_t index);
/* Writes all chunks to a new file, without hashing. */
void image_rewrite(struct image *image);
/* Makes the checksum table as written to the file (the caller frees it); *out_hash is for the
 * manifest. Worker or service thread, when all blocks were hashed. */
int image_make_table(uint8_t **out, uint64_t *out_bytes, uint64_t *out_hash,
                     const struct image *image);
/* Has `data` the checksum of that block of the file? Adds the digests of its tensors' bytes to
 * `digests`. Any thread, after the block was hashed. */
bool image_fits(struct image *image, uint64_t block, const uint8_t *data, struct digest *digests);
/* Makes it the checkpoint's image of this shard. ERR_MEMORY. */
int image_enter_checkpoint(struct image *image, struct checkpoint *checkpoint, uint32_t shard);
/* Leaves the checkpoint; becomes SPARE of its session or is freed. */
void image_leave_checkpoint(struct image *image);
/* Leaves the checkpoint before image_free(). */
void image_detach(struct image *image);

/* Frees an image without readers or open loads, unless it is of the newest checkpoint. */
void image_drop_unwanted(struct image *image);
/* Removes a reader; then frees the image if it is unused. */
void image_end_reading(struct image *image);

#endif
