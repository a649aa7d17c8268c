/* bucket.h - corpora in a bucket: their objects as files of this machine. Private to
 * trainer/corpus; bucket.c describes their places. */
#ifndef HOLDFAST_TRAINER_CORPUS_BUCKET_H
#define HOLDFAST_TRAINER_CORPUS_BUCKET_H

#include "trainer/corpus/corpus.h"

/* True if the name begins with s3://. */
bool bucket_is_named(const char *name);
/* Writes the path of the local copy (file or folder) of s3://BUCKET/PATH to `out`, and fetches it
 * if it does not exist yet. ERR_NOT_FOUND, ERR_DENIED, ERR_SPACE, ERR_UNAVAILABLE; ERR_BUSY: the
 * objects changed meanwhile; ERR_ABORTED. */
int bucket_fetch_corpus(char out[CORPUS_PATH_BYTES], const char *name,
                        const struct corpus_request *request);

#endif
