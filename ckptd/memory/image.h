/* image.h - the bytes of a shard in memory, and the machinery that moves and verifies them; see
 * image.c. On the service thread, but for what says otherwise. */
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
    IMAGE_ENDING    /* nobody wants it; waits for the I/O under way */
};

/* What a pass over the chunks of an image does with each. */
enum image_pass {
    PASS_STAGE,   /* hash what the rank announced, add the digests; beside it, write */
    PASS_REWRITE, /* write again what was hashed before */
    PASS_READ     /* read, then hash */
};

struct image;
/* The unit of hashing and I/O: config block_bytes of the image. Kept small: there is one per block
 * of the pool. */
struct chunk {
    struct image *image;
    uint32_t index;       /* in the file; a window's chunks take the next one when theirs is done */
    atomic_uint steps;    /* under way; the one that ends last reports the chunk */
    bool is_written;      /* PASS_STAGE: its bytes are in the file */
    uint64_t unannounced; /* data bytes that the rank has yet to announce */
    struct job job;
    struct event reported;
    struct storage_request request;
    /* Of throttle_queue.c: */
    struct chunk *next_held;
    int64_t stamp;
    bool is_paced;   /* it counts as under way there */
    bool is_awaited; /* its report wakes the service thread */
};

/* The bytes of a shard in memory: segments, and the machinery that moves and proves them. A window
 * has fewer segments than the file needs, and fewer chunks: both are rings over the file, of which
 * only the part from the first unwritten chunk on is in memory. It is never resident. Passed
 * between the service thread and the workers by jobs; a worker touches only its chunk, the sums
 * of its blocks, and the digests under `mutex`. */
struct image {
    struct service *service;
    struct image *next, *prev; /* service->images */
    enum image_state state;
    struct image **slot;           /* where its session has it, or NULL: it is no session's */
    const struct run *run;         /* it was made for saves of that, and ranks may write to it for
                                    * ever; NULL: for loads, and only ckptd writes to it */
    struct checkpoint *checkpoint; /* READING and RESIDENT: of which it holds shard `shard` */
    uint32_t shard;
    enum tier_index tier;      /* READING: where its file is; of a save the local one */
    uint32_t readers;          /* loads, and the pass; not reclaimed while > 0 */
    uint64_t table_hash;       /* of its checksum table, as the manifest has it */
    struct read_shard reading; /* which of its chunks are there, and the READ under way */
    int64_t pass_begun_ms;
    uint64_t read_until; /* loads up to this number were open when its bytes came from the store */
    bool in_hand; /* its rank may still copy into it, also when the save is over: lent to nobody */
    bool is_window;
    uint32_t *segments, *generations; /* the latter as its rank was told */
    uint32_t num_segments, max_segments;

    struct shard_geometry geometry;
    uint64_t identity;    /* of the block checksums */
    uint64_t *sums;       /* per block */
    uint32_t num_chunks;  /* of the file */
    struct chunk *chunks; /* by image_chunk() */
    uint32_t num_rooms;   /* chunks in memory at once */
    enum image_pass pass;
    struct storage_object *object;
    bool is_from_elsewhere; /* some was read in another tier than the local one */
    bool ends_reading;      /* with it all of the checkpoint was read in the local one */
    bool needs_far_hold;    /* a READ in the far tier, of what is not leased there yet (held.h) */
    struct storage_hold *far_hold;
    uint32_t busy;          /* chunks under way; service thread */
    atomic_uint unfinished; /* of them, not yet reported */
    atomic_bool stopped;    /* what has not begun is skipped: hashing, and transfers */
    struct fault fault;     /* first of the pass */
    /* After every report of a chunk, on the service thread. */
    void (*advance)(struct image *image, struct chunk *chunk);

    struct job job;             /* before and after a READ pass */
    struct shard_wait *waiting; /* for that pass; service thread */
    struct store_shard stored;  /* the file of that pass */

    /* PASS_STAGE */
    struct stage *stage;
    bool is_urgent; /* somebody waits for its save: throttle_queue.c holds nothing of it back */
    const struct shard_tensor *tensors; /* borrowed from the group */
    const struct tensor_meta *metas;    /* of the layout table */
    uint32_t num_tensors;
    pthread_mutex_t mutex;
    struct digest *digests; /* per tensor; guarded by mutex while chunks are under way */
};

/* Arrays and chunks for a file of this geometry; no segments, of which it will have `max_segments`
 * at most: a window where the file needs more. ERR_MEMORY; ERR_SPACE: it has 2^32 chunks or more.
 */
int image_new(struct image **out, struct service *service, const struct shard_geometry *geometry,
              uint32_t max_segments);
/* Gives back the segments and frees all. Nothing may be under way. */
void image_free(struct image *image);
uint32_t image_segments_needed(const struct service *service, uint64_t file_bytes);
/* Takes the segments it needs for this owner, reclaiming memory that nobody uses. ERR_BUSY. */
int image_take_segments(struct image *image, struct pool_owner owner);
/* Frees an image that has no session, no checkpoint, no reader, no writer and no I/O; returns true
 * then. */
bool image_settle(struct image *image);
/* Will an open load ask for it? */
bool image_is_wanted(const struct image *image);
/* Its rank copies no more into it. */
void image_let_go(struct image *image);
/* Copy between private memory and the image, across segments. */
void image_put(struct image *image, uint64_t offset, const void *data, uint64_t bytes);
void image_get(const struct image *image, uint64_t offset, void *out, uint64_t bytes);
void image_chunk_range(const struct image *image, uint32_t index, uint64_t *out_start,
                       uint64_t *out_end);
bool image_chunk_is_tail(const struct image *image, uint32_t index); /* touches the table */
/* Of a window only while the chunk is in it. */
struct chunk *image_chunk(const struct image *image, uint32_t index);
uint32_t image_tail_chunks(const struct service *service, const struct shard_geometry *geometry);
/* Is what it has of the checksum table in that chunk the same as in `table`? */
bool image_has_table(const struct image *image, uint32_t index, const uint8_t *table);
/* In which its file is. */
struct storage *image_storage(const struct image *image);
/* Starts chunk `index` in the current pass; its report comes later. */
void image_start_chunk(struct image *image, uint32_t index);
/* Writes a chunk whose bytes are final, without hashing. */
void image_write_chunk(struct image *image, uint32_t index);
/* Writes all chunks to a new file, without hashing. */
void image_rewrite(struct image *image);
/* The checksum table as it belongs into the file, in fresh memory (to be freed); *out_hash is what
 * the manifest keeps. Worker or service thread, when every block was hashed. */
int image_make_table(uint8_t **out, uint64_t *out_bytes, uint64_t *out_hash,
                     const struct image *image);
/* Is `data` what was hashed as that block of the file? What its tensors' bytes add to their digests
 * goes to `digests`. Any thread, after the block was hashed. */
bool image_fits(struct image *image, uint64_t block, const uint8_t *data, struct digest *digests);
/* From now on it is the checkpoint's image of this shard. ERR_MEMORY. */
int image_enter_checkpoint(struct image *image, struct checkpoint *checkpoint, uint32_t shard);
/* Leaves the checkpoint; becomes SPARE of its session or goes. */
void image_leave_checkpoint(struct image *image);
/* Leaves it on the way to image_free(). */
void image_detach(struct image *image);

/* An image that nobody reads or wants goes, unless it is of the newest checkpoint. */
void image_drop_unwanted(struct image *image);
/* A reader less; an image that nobody needs any more is gone afterwards. */
void image_end_reading(struct image *image);

#endif
