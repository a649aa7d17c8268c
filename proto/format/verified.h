/* verified.h - the result of the last verification of a stored checkpoint: the small file
 * verified.json beside its manifest.
 *
 * `ckpt-cli verify` writes it if its user may. ckptd writes it after its scrub has read a
 * checkpoint out of turn, after a load of all of it, and for an operator's verify over TLS
 * (KeepVerified). It belongs to the checkpoint with that nonce and is removed with it. `ckpt-cli
 * list` and `show` print it. prune and retention use its `known` (proto/format/retain.h). A partial
 * read without damage keeps `known`; the next complete read sets it.
 *
 * It proves nothing about a directory that was copied by hand, because the file is copied, too.
 * Files of earlier versions lack "known"; it follows from the percentage and the damages. Earlier
 * versions ignore "known". */
#ifndef HOLDFAST_PROTO_FORMAT_VERIFIED_H
#define HOLDFAST_PROTO_FORMAT_VERIFIED_H

#include "proto/base/report.h"
#include "proto/format/manifest.h"

#define VERIFIED_BYTES_MAX 512u

enum verified_known {
    VERIFIED_UNKNOWN,
    VERIFIED_WHOLE,  /* every block was read and matches its checksum */
    VERIFIED_DAMAGED /* some block does not match */
};

struct verified {
    char time[32];  /* as in a manifest */
    double percent; /* of its blocks that were read */
    int64_t seed;   /* of the choice of blocks, if less than 100 */
    uint64_t damages;
    enum verified_known known;
};

/* "<run>/step-.../verified.json", as manifest_key. */
int verified_key(char *out, size_t size, const struct manifest_summary *summary);
const char *verified_known_name(enum verified_known known); /* "unknown", "whole", "damaged" */
/* Writes the result with the current time. `before`: the replaced file's; zeros without one. */
void verified_write(char out[VERIFIED_BYTES_MAX], const struct manifest_summary *summary,
                    const struct verified *result, const struct verified *before);
/* ERR_NOT_FOUND, with zeros: it is no result of this checkpoint. */
int verified_read(struct verified *out, const char *text, size_t bytes,
                  const struct manifest_summary *summary);
/* Does retention treat it as damaged, after that result of store_read_verified()? An unreadable
 * file may record damage. */
static inline bool verified_stays(int error, const struct verified *verified)
{
    return (error != 0 && error != ERR_NOT_FOUND) || verified->known == VERIFIED_DAMAGED;
}
/* Was it read back, without damage known since? `by_scrub`: the scrub's cursor has it as read
 * back. */
static inline bool verified_is_read_back(const struct verified *verified, bool by_scrub)
{
    return verified->known == VERIFIED_UNKNOWN ? by_scrub : verified->known == VERIFIED_WHOLE;
}

#endif
