/* throttle_queue.h - delays chunks that are ready, for throttling; see throttle_queue.c. */
#ifndef HOLDFAST_CKPTD_MEMORY_THROTTLE_QUEUE_H
#define HOLDFAST_CKPTD_MEMORY_THROTTLE_QUEUE_H

#include "ckptd/core/loop.h"
#include "ckptd/machines/throttle.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct image;
struct chunk;

/* Delayed chunks, oldest first. */
struct throttle_queue {
    struct service *service;
    struct throttle pace;
    struct chunk *first, *last;
    uint32_t num_held, in_flight, num_started;
    bool busy; /* a rank was busy at checked_ms */
    int64_t checked_ms;
    struct timer timer;
};

int throttle_queue_open(struct service *service);
void throttle_queue_close(struct service *service);
/* Calls image_start_chunk() for a stage when throttling allows. */
void throttle_queue_start_chunk(struct image *image, uint32_t index);
/* After the report of any chunk of a stage. */
void throttle_queue_chunk_ended(struct chunk *chunk);
/* Forgets the delayed chunks of an image. */
void throttle_queue_drop(struct image *image);
/* A rank has woken the service thread: it may have become quiet. */
void throttle_queue_phase_changed(struct service *service);
/* Saves must no longer be delayed: shutdown, or an attempt is being opened. */
void throttle_queue_hurry(struct service *service);

#endif
