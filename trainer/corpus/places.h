/* places.h - the folders of this machine for made or fetched corpora, and the lock of the process
 * that makes or fetches them. Private to trainer/corpus. */
#ifndef HOLDFAST_TRAINER_CORPUS_PLACES_H
#define HOLDFAST_TRAINER_CORPUS_PLACES_H

#include "trainer/corpus/corpus.h"

/* $XDG_CACHE_HOME/holdfast, or ~/.cache/holdfast. ERR_INVALID: there is neither. */
int places_user_cache(char out[CORPUS_PATH_BYTES]);
/* Creates a folder with its parents. Returns false if it is not writable. */
bool places_make_folder(const char *path);
/* Waits for the lock on this file; closing *out releases it. ERR_ABORTED: stopped. */
int places_lock(int *out, const char *path, const volatile sig_atomic_t *want_stop);

#endif
