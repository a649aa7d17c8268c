/* store_identity.h - the identity of a far tier, independent of its name; see store_identity.c. Any
 * thread; blocks. */
#ifndef HOLDFAST_CKPTD_CORE_STORE_IDENTITY_H
#define HOLDFAST_CKPTD_CORE_STORE_IDENTITY_H

struct storage;

#define STORE_IDENTITY_BYTES 33u /* 32 random digits, and a NUL */

/* Reads the identity of `far`, or makes one. It must be the one that `local` remembers for this
 * place, a text as in tier.store; if none is remembered, it is noted. ERR_MISMATCH: it is another
 * store. */
int store_identity_take(char out[STORE_IDENTITY_BYTES], struct storage *far, struct storage *local,
                        const char *place);
/* The identity of a local store; makes one if there is none. */
int store_identity_of(char out[STORE_IDENTITY_BYTES], struct storage *local);
/* Does it still have that identity? ERR_MISMATCH. */
int store_identity_check(struct storage *far, const char *identity, const char *place);

#endif
