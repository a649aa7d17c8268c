/* address.h - the address of a ckptd: "unix:/path" for clients on its node, "host:port" for clients
 * with a certificate (TLS). A host is a name, an IPv4 address, or an IPv6 address in brackets. */
#ifndef HOLDFAST_PROTO_BASE_ADDRESS_H
#define HOLDFAST_PROTO_BASE_ADDRESS_H

enum address_kind { ADDRESS_UNIX, ADDRESS_TLS };

struct address {
    enum address_kind kind;
    char path[108];          /* ADDRESS_UNIX: as long as the kernel allows */
    char host[256], port[6]; /* ADDRESS_TLS; host without brackets */
};

/* After ERR_INVALID the error text names the fault of the address. */
int address_parse(struct address *out, const char *text);
/* Connects a non-blocking socket to an ADDRESS_TLS. ERR_UNAVAILABLE: no connection within 2 s. */
int address_connect(int *out, const struct address *address);
/* Opens a socket that listens at "host:port"; `key` names the setting in errors. ERR_INVALID,
 * ERR_BUSY, ERR_IO. */
int address_listen(int *out, const char *text, const char *key);

#endif
