/* numbered.h - a text that changes and survives a crash at any moment, on every back-end. */
#ifndef HOLDFAST_STORAGE_NUMBERED_H
#define HOLDFAST_STORAGE_NUMBERED_H

#include "storage/storage.h"

/* A changing state: small objects in `folder` with numbers as names, of which the highest is valid.
 * A publication adds the next number, then removes all but the last two. A concurrent list may miss
 * the new one, but never both. Fetches the valid one as a text, cut to `size` with its NUL; number
 * 0 and "": there is none. */
int storage_fetch_numbered(struct storage *storage, const char *folder, uint64_t *out_number,
                           char *text, size_t size);
/* Publishes the one after `number`, which stays; older ones are removed. ERR_EXISTS: another
 * process has published it. */
int storage_publish_numbered(struct storage *storage, const char *folder, uint64_t number,
                             const char *text);

#endif
