/* address.c - see address.h. */
#include "proto/address.h"

#include "proto/report.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEME "unix:"

static int parse_unix(struct address *out, const char *path)
{
    if (path[0] != '/')
        return report_error(ERR_INVALID, "give unix: and an absolute path",
                            "'" SCHEME "%s' names no socket", path);
    if (strlen(path) >= sizeof out->path)
        return report_error(ERR_INVALID, "name a shorter path",
                            "the path of a socket has at most %zu bytes, and " SCHEME "%s has %zu",
                            sizeof out->path - 1, path, strlen(path));
    *out = (struct address){.kind = ADDRESS_UNIX};
    snprintf(out->path, sizeof out->path, "%s", path);
    return 0;
}

static bool is_port(const char *text)
{
    size_t length = strspn(text, "0123456789");
    return length > 0 && length <= 5 && text[length] == '\0' && atoi(text) >= 1 &&
           atoi(text) <= 65535;
}

/* Copies the host before `end`. An address of IPv6 has colons of its own, so it is in brackets. */
static bool take_host(char *out, size_t size, const char *text, const char *end)
{
    bool has_brackets = text[0] == '[';
    if (has_brackets && (end - text < 3 || end[-1] != ']'))
        return false;
    const char *from = text + has_brackets, *to = end - has_brackets;
    size_t length = (size_t)(to - from);
    if (length == 0 || length >= size || memchr(from, '/', length) ||
        (!has_brackets && memchr(from, ':', length)))
        return false;
    snprintf(out, size, "%.*s", (int)length, from);
    return true;
}

int address_parse(struct address *out, const char *text)
{
    if (strncmp(text, SCHEME, strlen(SCHEME)) == 0)
        return parse_unix(out, text + strlen(SCHEME));
    const char *colon = strrchr(text, ':');
    *out = (struct address){.kind = ADDRESS_TLS};
    if (!colon || !is_port(colon + 1) || !take_host(out->host, sizeof out->host, text, colon))
        return report_error(ERR_INVALID, "give unix:/PATH, or HOST:PORT",
                            "'%s' is no address of a ckptd", text);
    snprintf(out->port, sizeof out->port, "%s", colon + 1);
    return 0;
}
