/* verified.h - what was found when a stored checkpoint was read last: the small file verified.json
 * beside its manifest.
 *
 * `ckpt-cli verify` leaves it where its user may write. ckptd leaves it for what its scrub reads
 * out of turn, for a load of all of it, and for an operator's verify over TLS (KeepVerified). It
 * belongs to the checkpoint with that nonce and goes with it. list and show print it. prune and
 * retention count by what it says is known (proto/format/retain.h). A reading of a part of the
 * blocks that finds no damage changes nothing of that; the next reading of all of them does.
 *
 * It proves nothing about a directory that was copied by hand, which takes it along. Files of
 * earlier versions lack "known": it follows from the percentage and the damages. Earlier versions
 * pass over "known" in ours. */
#ifndef HOLDFAST_PROTO_FORMAT_VERIFIED_H
#define HOLDFAST_PROTO_FORMAT_VERIFIED_H

#include "proto/base/report.h"
#include "proto/format/manifest.h"

#define VERIFIED_BYTES_MAX 512u

enum verified_known {
    VERIFIED_UNKNOWN,
    VERIFIED_WHOLE,  /* each block was read, and is as its checksum says */
    VERIFIED_DAMAGED /* of some that is not so */
};

struct verified {
    char time[32];  /* as of a manifest */
    double percent; /* of its blocks */
    int64_t seed;   /* by which they were chosen, of less than 100 */
    uint64_t damages;
    enum verified_known known;
};

/* "<run>/step-.../verified.json", as manifest_key. */
int verified_key(char *out, size_t size, const struct manifest_summary *summary);
const char *verified_known_name(enum verified_known known); /* "unknown", "whole", "damaged" */
/* Now. `before`: of the file that is replaced; zeros without one. */
void verified_write(char out[VERIFIED_BYTES_MAX], const struct manifest_summary *summary,
                    const struct verified *result, const struct verified *before);
/* ERR_NOT_FOUND, with zeros: it is no note of this checkpoint. */
int verified_read(struct verified *out, const char *text, size_t bytes,
                  const struct manifest_summary *summary);
/* Does retention take it for damaged, after that answer of store_read_verified()? What cannot be
 * read may say so. */
static inline bool verified_stays(int error, const struct verified *verified)
{
    return (error != 0 && error != ERR_NOT_FOUND) || verified->known == VERIFIED_DAMAGED;
}
/* Was it read back, and is not known to be damaged since? `by_scrub`: as its cursor says. */
static inline bool verified_is_read_back(const struct verified *verified, bool by_scrub)
{
    return verified->known == VERIFIED_UNKNOWN ? by_scrub : verified->known == VERIFIED_WHOLE;
}

#endif
