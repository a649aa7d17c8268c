/* context.c - see context.h. */
#include "proto/tls/context.h"
#include "proto/base/report.h"
#include "proto/tls/tls.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

#define CERTIFICATE "certificate.pem"
#define KEY "key.pem"
#define AUTHORITY "authority.pem"
#define REVOKED "revoked.pem"
#define ALIVE_S 5 /* silence before the peer's kernel is probed, and between two probes */
#define ALIVE_TRIES 3
/* The peer is gone when its kernel does not acknowledge bytes for this time. */
#define UNACKED_MS 20000

/* gRPC's threads run until the process exits, so a handshake may be under way then: nothing of
 * OpenSSL is freed at exit. The first use of OpenSSL decides that, so this runs before main(). */
__attribute__((constructor)) static void keep_openssl(void)
{
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
}

void tls_path(char out[TLS_PATH_MAX], const char *directory, const char *name)
{
    snprintf(out, TLS_PATH_MAX, "%s/%s", directory, name);
}

const char *tls_client_directory(void)
{
    const char *directory = getenv("HOLDFAST_TLS");
    return directory && directory[0] ? directory : "/etc/holdfast/tls";
}

void tls_socket_set(int socket)
{
    const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},           {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, ALIVE_S},    {IPPROTO_TCP, TCP_KEEPINTVL, ALIVE_S},
        {IPPROTO_TCP, TCP_KEEPCNT, ALIVE_TRIES}, {IPPROTO_TCP, TCP_USER_TIMEOUT, UNACKED_MS}};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) /* a unix socket has none */
        setsockopt(socket, options[i].level, options[i].name, &options[i].value,
                   sizeof options[i].value);
}

const char *tls_error_text(void)
{
    unsigned long error = ERR_get_error();
    const char *text = error ? ERR_reason_error_string(error) : NULL;
    ERR_clear_error();
    return text ? text : "no reason given";
}

static uint64_t changed_ns(const char *directory, const char *name)
{
    char path[TLS_PATH_MAX];
    struct stat info;
    tls_path(path, directory, name);
    if (stat(path, &info) != 0)
        return 0;
    return (uint64_t)info.st_mtim.tv_sec * 1000000000 + (uint64_t)info.st_mtim.tv_nsec +
           info.st_ino;
}

void tls_stamp(struct tls_stamp *out, const char *directory)
{
    *out =
        (struct tls_stamp){changed_ns(directory, CERTIFICATE) ^ changed_ns(directory, KEY) * 31,
                           changed_ns(directory, AUTHORITY) ^ changed_ns(directory, REVOKED) * 31};
}

static int fail_file(const char *path)
{
    return report_error(ERR_INVALID, "make it anew: holdfast-certificates",
                        "%s could not be used: %s", path, tls_error_text());
}

/* Another user who can read the key can impersonate ckptd. */
static int check_key(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return report_errno(errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "could not look at the key",
                            path);
    if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        return report_error(ERR_DENIED, "chmod 600", "%s can be read by others: its mode is %04o",
                            path, (unsigned)info.st_mode & 07777);
    return 0;
}

static int load_own(SSL_CTX *context, const char *directory)
{
    char certificate[TLS_PATH_MAX], key[TLS_PATH_MAX];
    tls_path(certificate, directory, CERTIFICATE);
    tls_path(key, directory, KEY);
    ERR_TRY(check_key(key));
    if (SSL_CTX_use_certificate_chain_file(context, certificate) != 1)
        return fail_file(certificate);
    if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(context) != 1)
        return fail_file(key);
    return 0;
}

static int load_trust(SSL_CTX *context, const char *directory)
{
    char authority[TLS_PATH_MAX], revoked[TLS_PATH_MAX];
    struct stat info;
    tls_path(authority, directory, AUTHORITY);
    tls_path(revoked, directory, REVOKED);
    X509_STORE *store = SSL_CTX_get_cert_store(context);
    if (SSL_CTX_load_verify_file(context, authority) != 1)
        return fail_file(authority);
    SSL_CTX_set_client_CA_list(context, SSL_load_client_CA_file(authority));
    if (stat(revoked, &info) != 0 && errno == ENOENT)
        return 0;
    X509_LOOKUP *lookup = X509_STORE_add_lookup(store, X509_LOOKUP_file());
    if (!lookup || X509_load_crl_file(lookup, revoked, X509_FILETYPE_PEM) <= 0)
        return fail_file(revoked);
    X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
    return 0;
}

#define PROTOCOL_MAX 64

/* A protocol in ALPN's form: its length, its name. Returns the bytes. */
static unsigned wire_protocol(unsigned char out[PROTOCOL_MAX], const char *protocol)
{
    size_t length = strlen(protocol);
    CHECK(length < PROTOCOL_MAX);
    out[0] = (unsigned char)length;
    memcpy(out + 1, protocol, length);
    return (unsigned)length + 1;
}

/* Clients name their protocol; a client that offers another one, or none, is refused. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_bytes,
                           const unsigned char *offered, unsigned bytes, void *user)
{
    unsigned char ours[PROTOCOL_MAX];
    unsigned our_bytes = wire_protocol(ours, user);
    unsigned char *found;
    (void)ssl;
    if (SSL_select_next_proto(&found, out_bytes, offered, bytes, ours, our_bytes) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = found; /* within `offered` */
    return SSL_TLSEXT_ERR_OK;
}

/* No session is resumed: each handshake verifies the certificate. */
static void set_rules(SSL_CTX *context, enum tls_side side, const char *protocol)
{
    unsigned char ours[PROTOCOL_MAX];
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
    if (side == TLS_CLIENT)
        SSL_CTX_set_alpn_protos(context, ours, wire_protocol(ours, protocol));
    else
        SSL_CTX_set_alpn_select_cb(context, choose_protocol, (void *)(uintptr_t)protocol);
}

int tls_context_open(SSL_CTX **out, const char *directory, enum tls_side side, const char *protocol)
{
    SSL_CTX *context = SSL_CTX_new(side == TLS_CLIENT ? TLS_client_method() : TLS_server_method());
    if (!context)
        return report_error(ERR_MEMORY, NULL, "no memory for TLS: %s", tls_error_text());
    set_rules(context, side, protocol);
    int error = load_own(context, directory);
    if (error == 0)
        error = load_trust(context, directory);
    if (error == 0)
        *out = context;
    else
        SSL_CTX_free(context);
    return error;
}

/* ---- expiry ---- */

static int64_t end_s_of(const X509 *certificate)
{
    struct tm end;
    return ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) == 1 ? timegm(&end) : 0;
}

int64_t tls_context_end_s(SSL_CTX *context)
{
    STACK_OF(X509) *authorities = X509_STORE_get1_all_certs(SSL_CTX_get_cert_store(context));
    int64_t own_s = end_s_of(SSL_CTX_get0_certificate(context)), trust_s = 0;
    for (int i = 0; i < (authorities ? sk_X509_num(authorities) : 0); i++) {
        int64_t one_s = end_s_of(sk_X509_value(authorities, i));
        trust_s = one_s > trust_s ? one_s : trust_s;
    }
    sk_X509_pop_free(authorities, X509_free);
    return own_s < trust_s ? own_s : trust_s;
}

int tls_directory_check(int64_t *out_end_s, const char *directory)
{
    SSL_CTX *context;
    ERR_TRY(tls_context_open(&context, directory, TLS_SERVER, "look"));
    *out_end_s = tls_context_end_s(context);
    SSL_CTX_free(context);
    return 0;
}

/* ---- identity ---- */

/* Takes the name if it is an identity of ours; *out_count counts those. */
static void read_name(struct principal *out, uint32_t *out_count, const GENERAL_NAME *name)
{
    if (name->type != GEN_URI)
        return;
    const ASN1_IA5STRING *uri = name->d.uniformResourceIdentifier;
    const char *text = (const char *)ASN1_STRING_get0_data(uri);
    struct principal found;
    if (strlen(text) == (size_t)ASN1_STRING_length(uri) && principal_parse(&found, text)) {
        *out = found;
        ++*out_count;
    }
}

/* Returns the number of identities in the certificate; *out is the last of them. */
static uint32_t read_identity(struct principal *out, const X509 *certificate)
{
    GENERAL_NAMES *names =
        certificate ? X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL) : NULL;
    uint32_t count = 0;
    for (int i = 0; i < (names ? sk_GENERAL_NAME_num(names) : 0); i++)
        read_name(out, &count, sk_GENERAL_NAME_value(names, i));
    GENERAL_NAMES_free(names);
    return count;
}

int tls_directory_identify(struct principal *out, const char *directory)
{
    SSL_CTX *context;
    ERR_TRY(tls_context_open(&context, directory, TLS_SERVER, "look"));
    uint32_t count = read_identity(out, SSL_CTX_get0_certificate(context));
    SSL_CTX_free(context);
    return count > 0 ? 0
                     : report_error(ERR_NOT_FOUND,
                                    "proto/base/principal.h lists the names that there "
                                    "are",
                                    "the certificate in %s names no identity", directory);
}

int tls_identify(struct principal *out, const SSL *ssl)
{
    X509 *certificate = SSL_get1_peer_certificate(ssl);
    uint32_t count = read_identity(out, certificate);
    X509_free(certificate);
    if (count == 1)
        return 0;
    return report_error(ERR_DENIED, "proto/base/principal.h lists the names that there are",
                        "its certificate names %u identities instead of one", count);
}
