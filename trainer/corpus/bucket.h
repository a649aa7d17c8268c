/* bucket.h - corpora in a bucket: their objects as files of this machine. Private to
 * trainer/corpus; bucket.c says where they lie. */
#ifndef HOLDFAST_TRAINER_CORPUS_BUCKET_H
#define HOLDFAST_TRAINER_CORPUS_BUCKET_H

#include "trainer/corpus/corpus.h"

/* Does it begin with s3://? */
bool bucket_is_named(const char *name);
/* Writes the path of the file or folder on this machine that has the bytes of s3://BUCKET/PATH, to
 * `out`; they are fetched when it is not there yet. ERR_NOT_FOUND, ERR_DENIED, ERR_SPACE,
 * ERR_UNAVAILABLE; ERR_BUSY: they changed meanwhile; ERR_ABORTED. */
int bucket_fetch_corpus(char out[CORPUS_PATH_BYTES], const char *name,
                        const struct corpus_request *request);

#endif
