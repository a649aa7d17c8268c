/* address.h - where a ckptd answers: "unix:/path" for those on its node, "host:port" for everybody
 * who has a certificate (TLS). A host is a name, an IPv4 address, or an IPv6 address in brackets.
 */
#ifndef HOLDFAST_PROTO_BASE_ADDRESS_H
#define HOLDFAST_PROTO_BASE_ADDRESS_H

enum address_kind { ADDRESS_UNIX, ADDRESS_TLS };

struct address {
    enum address_kind kind;
    char path[108];          /* ADDRESS_UNIX: as long as the kernel allows */
    char host[256], port[6]; /* ADDRESS_TLS; host without brackets */
};

/* ERR_INVALID says what is wrong with it. */
int address_parse(struct address *out, const char *text);
/* A socket of an ADDRESS_TLS, connected, which does not block. ERR_UNAVAILABLE: not within 2 s. */
int address_connect(int *out, const struct address *address);
/* A socket that listens at "host:port"; `key` names the setting in errors. ERR_INVALID, ERR_BUSY,
 * ERR_IO. */
int address_listen(int *out, const char *text, const char *key);

#endif
