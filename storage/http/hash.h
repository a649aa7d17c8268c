/* hash.h - the digests of a bucket's protocol; hash.c wraps OpenSSL's.
 *
 * Threads: any. No state. */
#ifndef HOLDFAST_STORAGE_HTTP_HASH_H
#define HOLDFAST_STORAGE_HTTP_HASH_H

#include <stddef.h>
#include <sys/uio.h>

#define HASH_SHA256_BYTES 32u
#define HASH_SHA256_HEX 65u /* with its NUL */
#define HASH_MD5_BYTES 16u
#define HASH_MD5_HEX 33u

/* Of bytes in several pieces. ERR_MEMORY: OpenSSL failed. */
int hash_sha256(unsigned char out[HASH_SHA256_BYTES], const struct iovec *pieces, size_t count);
int hash_md5(unsigned char out[HASH_MD5_BYTES], const struct iovec *pieces, size_t count);
/* HMAC-SHA-256 (RFC 2104). */
int hash_hmac(unsigned char out[HASH_SHA256_BYTES], const void *key, size_t key_bytes,
              const void *data, size_t bytes);
/* 2 * bytes lower-case digits and a NUL. */
void hash_hex(char *out, const unsigned char *bytes, size_t count);

#endif
