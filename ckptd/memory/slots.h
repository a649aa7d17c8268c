/* slots.h - the images of a rank; see slots.c. */
#ifndef HOLDFAST_CKPTD_MEMORY_SLOTS_H
#define HOLDFAST_CKPTD_MEMORY_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

struct session;

/* Lends a new session the images of its first saves while memory is free and ready; appends their
 * segments to `out`, which has room for SLOTS_PER_RANK images, and returns their number. */
uint32_t slots_lend_ahead(uint32_t *out, struct session *session);
/* The slot for the next save, its image SPARE and with segments. ERR_BUSY. */
int slots_choose(uint32_t *out_slot, struct session *session);
/* After ERR_BUSY: true if only memory was lacking. */
bool slots_lack_memory(const struct session *session);

#endif
