/* sets_file.h - reads and writes the sets of nodes of a run's attempts in a store; machines/sets.c
 * decides. Any thread; the functions block. */
#ifndef HOLDFAST_CKPTD_CORE_SETS_FILE_H
#define HOLDFAST_CKPTD_CORE_SETS_FILE_H

#include "ckptd/machines/sets.h"

struct storage;

/* Of the newest attempt in that store which has any. */
int sets_file_find(struct sets *out, struct storage *storage, const char *run);
/* Creates "<run>/attempts/<number>" with that text, unless the store knows what the text does not:
 * then ERR_STALE. ERR_EXISTS. *out: those of the text, also after an error. */
int sets_file_take(struct sets *out, struct storage *storage, const char *key, const char *text,
                   size_t bytes);
/* Likewise where it was opened, when most of the others hold it: the file says so. */
int sets_file_take_last(struct sets *out, struct storage *storage, const char *key,
                        const char *text);
/* Creates its ".held", `nonce` its text. ERR_STALE: the file is not there with that nonce. */
int sets_file_hold(struct storage *storage, const char *key, const char *nonce, size_t bytes);

#endif
