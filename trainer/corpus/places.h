/* places.h - where this machine keeps what a corpus was made or fetched into, and the lock of who
 * does that. Private to trainer/corpus. */
#ifndef HOLDFAST_TRAINER_CORPUS_PLACES_H
#define HOLDFAST_TRAINER_CORPUS_PLACES_H

#include "trainer/corpus/corpus.h"

/* $XDG_CACHE_HOME/holdfast, or ~/.cache/holdfast. ERR_INVALID: there is neither. */
int places_user_cache(char out[CORPUS_PATH_BYTES]);
/* Makes a folder with its parents; false: it cannot be written to. */
bool places_make_folder(const char *path);
/* Waits for the lock that this file is; closing *out gives it back. ERR_ABORTED: stopped. */
int places_lock(int *out, const char *path, const volatile sig_atomic_t *want_stop);

#endif
