/* store_identity.h - which store a far tier is, whatever its name says; see store_identity.c. Any
 * thread; blocks. */
#ifndef HOLDFAST_CKPTD_CORE_STORE_IDENTITY_H
#define HOLDFAST_CKPTD_CORE_STORE_IDENTITY_H

struct storage;

#define STORE_IDENTITY_BYTES 33u /* 32 random digits, and a NUL */

/* The identity of `far`, made if there is none, is the one that `local` remembers for this place, a
 * text as of tier.store; if it remembers none, it does from now on. ERR_MISMATCH: it is another
 * store. */
int store_identity_take(char out[STORE_IDENTITY_BYTES], struct storage *far, struct storage *local,
                        const char *place);
/* That of a local store, made if there is none. */
int store_identity_of(char out[STORE_IDENTITY_BYTES], struct storage *local);
/* Is it still that? ERR_MISMATCH. */
int store_identity_check(struct storage *far, const char *identity, const char *place);

#endif
