/* sets_file.h - reads and writes the sets of nodes of a run's attempts in a store; machines/sets.c
 * decides. Any thread; the functions block. */
#ifndef HOLDFAST_CKPTD_CORE_SETS_FILE_H
#define HOLDFAST_CKPTD_CORE_SETS_FILE_H

#include "ckptd/machines/sets.h"

struct storage;

/* Reads the sets of the newest attempt in that store that has any. */
int sets_file_find(struct sets *out, struct storage *storage, const char *run);
/* Creates "<run>/attempts/<number>" with that text, unless the store has newer sets than the text
 * assumes: then ERR_STALE. ERR_EXISTS. *out: the sets of the text, also after an error. */
int sets_file_take(struct sets *out, struct storage *storage, const char *key, const char *text,
                   size_t bytes);
/* The same at the node that opened the attempt, when most of the others hold it: the file says
 * so. */
int sets_file_take_last(struct sets *out, struct storage *storage, const char *key,
                        const char *text);
/* Creates its ".held" file with `nonce` as its text. ERR_STALE: the file is not there with that
 * nonce. */
int sets_file_hold(struct storage *storage, const char *key, const char *nonce, size_t bytes);

#endif
