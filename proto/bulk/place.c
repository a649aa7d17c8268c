/* place.c - the address of the bulk plane; see bulk.h. */
#include "proto/base/address.h"
#include "proto/base/report.h"
#include "proto/bulk/bulk.h"

#include <stdio.h>
#include <string.h>

int bulk_address(char *out, size_t size, const char *server, const char *told, bool is_plain)
{
    const char *colon = strrchr(server, ':');
    struct address address;
    int length = told[0] == ':' && colon ? (int)(colon - server) : 0;
    if ((size_t)snprintf(out, size, "%.*s%s", length, server, told) >= size)
        return report_error(ERR_INVALID, NULL, "the address of a bulk plane is too long");
    ERR_TRY(address_parse(&address, out));
    if (!is_plain || strcmp(address.host, "127.0.0.1") == 0 || strcmp(address.host, "::1") == 0)
        return 0;
    return report_error(ERR_DENIED, "set tls.bulk_plain to false",
                        "ckptd wants bytes without TLS at %s, which is another machine", out);
}
