/* hash.c - SHA-256, MD5 and HMAC of OpenSSL, for bytes in several pieces. */
#include "storage/http/hash.h"

#include "proto/base/report.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdbool.h>

static int digest(unsigned char *out, const EVP_MD *kind, const struct iovec *pieces, size_t count)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool is_fine = context != NULL && EVP_DigestInit_ex(context, kind, NULL) == 1;
    for (size_t i = 0; i < count && is_fine; i++)
        is_fine = EVP_DigestUpdate(context, pieces[i].iov_base, pieces[i].iov_len) == 1;
    is_fine = is_fine && EVP_DigestFinal_ex(context, out, NULL) == 1;
    EVP_MD_CTX_free(context);
    return is_fine ? 0 : report_error(ERR_MEMORY, NULL, "OpenSSL could not make a digest");
}

int hash_sha256(unsigned char out[HASH_SHA256_BYTES], const struct iovec *pieces, size_t count)
{
    return digest(out, EVP_sha256(), pieces, count);
}

int hash_md5(unsigned char out[HASH_MD5_BYTES], const struct iovec *pieces, size_t count)
{
    return digest(out, EVP_md5(), pieces, count);
}

int hash_hmac(unsigned char out[HASH_SHA256_BYTES], const void *key, size_t key_bytes,
              const void *data, size_t bytes)
{
    return HMAC(EVP_sha256(), key, (int)key_bytes, data, bytes, out, NULL) != NULL
               ? 0
               : report_error(ERR_MEMORY, NULL, "OpenSSL could not make an HMAC");
}

void hash_hex(char *out, const unsigned char *bytes, size_t count)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * count] = '\0';
}
