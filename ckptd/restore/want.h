/* want.h - which chunks of a shard open loads need; see want.c. */
#ifndef HOLDFAST_CKPTD_RESTORE_WANT_H
#define HOLDFAST_CKPTD_RESTORE_WANT_H

#include "proto/format/layout.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct load;
struct image;

/* Notes which chunks the load needs of each shard. ERR_MEMORY. */
int want_note(struct load *load, const struct load_item *items, uint32_t num_items,
              const struct slice *slices);
/* The chunk in which a byte of a file lies. */
uint32_t want_chunk(const struct service *service, uint64_t byte);
/* These have pass_ask() take what is not there. */
void want_ask(const struct load *load, struct image *image); /* what the load needs of the image */
void want_ask_from(struct image *image, uint64_t byte); /* to the end, if nobody asked for it */
void want_ask_all(struct image *image);                 /* for open loads and waiting calls */
/* Is there less in memory than the load needs? */
bool want_lacks(const struct load *load, const struct image *image);

#endif
