/* rpc_text.c - an error as the text of a gRPC status, and back. The form is in rpc_text.h. Reading
 * never fails: a text in another form becomes the detail of the code that fits the status best. */
#include "proto/wire/rpc_text.h"

#include "proto/base/report.h"

#include <stdio.h>
#include <string.h>

#define PARTS 4 /* name, message, detail, hint */

static size_t escape_part(char *out, size_t size, size_t at, const char *part)
{
    for (; *part && at + 4 < size; part++) {
        if (*part == '|' || *part == '%') {
            memcpy(out + at, *part == '|' ? "%7C" : "%25", 3);
            at += 3;
        } else {
            out[at++] = *part;
        }
    }
    out[at] = 0;
    return at;
}

void rpc_text_write(char out[RPC_TEXT_MAX], int error)
{
    const char *message = *report_message() ? report_message() : err_text(error);
    const char *parts[PARTS] = {err_name(error), message, report_detail(), report_hint()};
    size_t at = 0;
    for (size_t i = 0; i < PARTS; i++) {
        /* Leave room for the separators of the later parts. */
        at = escape_part(out, RPC_TEXT_MAX - (PARTS - i), at, parts[i]);
        if (i + 1 < PARTS)
            out[at++] = '|';
        out[at] = 0;
    }
}

static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        if (strncmp(from, "%7C", 3) == 0 || strncmp(from, "%25", 3) == 0) {
            *to++ = from[1] == '7' ? '|' : '%';
            from += 2;
        } else {
            *to++ = *from;
        }
    }
    *to = 0;
}

static int error_by_name(const char *name)
{
#define X(code, value, grpc, retry, text) \
    if (strcmp(name, #code) == 0)         \
        return code;
    ERR_MAP(X)
#undef X
    return 0;
}

/* Numbers of grpc/status.h. Where several codes have one, the least specific code is chosen. Our
 * codes of 9, FAILED_PRECONDITION, and 2, UNKNOWN, are all too specific for a foreign status. */
static int error_by_status(int status)
{
    switch (status) {
    case 1:  /* CANCELLED */
    case 10: /* ABORTED */
        return ERR_ABORTED;
    case 3: /* INVALID_ARGUMENT */
        return ERR_INVALID;
    case 4: /* DEADLINE_EXCEEDED */
        return ERR_TIMEOUT;
    case 5: /* NOT_FOUND */
        return ERR_NOT_FOUND;
    case 6: /* ALREADY_EXISTS */
        return ERR_EXISTS;
    case 7:  /* PERMISSION_DENIED */
    case 16: /* UNAUTHENTICATED */
        return ERR_DENIED;
    case 8: /* RESOURCE_EXHAUSTED */
        return ERR_BUSY;
    case 12: /* UNIMPLEMENTED */
        return ERR_VERSION;
    case 14: /* UNAVAILABLE */
        return ERR_UNAVAILABLE;
    case 15: /* DATA_LOSS */
        return ERR_CORRUPT;
    default:
        return ERR_INTERNAL;
    }
}

int rpc_text_read(const char *details, int grpc_status, const char *method)
{
    char text[RPC_TEXT_MAX];
    char *parts[PARTS] = {text, "", "", ""};
    int count = 1;
    snprintf(text, sizeof text, "%s", details);
    for (char *p = text; *p && count < PARTS; p++) {
        if (*p != '|')
            continue;
        *p = 0;
        parts[count++] = p + 1;
    }
    int error = count == PARTS ? error_by_name(text) : 0;
    if (error == 0) {
        char detail[RPC_TEXT_MAX + 256];
        snprintf(detail, sizeof detail, "%s: gRPC status %d: %s", method, grpc_status, details);
        error = error_by_status(grpc_status);
        return report_set(error, err_text(error), detail, "");
    }
    for (int i = 1; i < PARTS; i++)
        unescape(parts[i]);
    return report_set(error, parts[1], parts[2], parts[3]);
}
