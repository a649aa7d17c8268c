/* where.c - parses the address of a store as users write it.
 *
 *   s3://BUCKET[/PREFIX]   a bucket of an S3 server, or all below a prefix in it
 *   dir:/PATH              a directory that other machines use, too: NFS, Lustre, GPFS
 *   peer:HOST:PORT         the store of the ckptd at that address, also peer:unix:/PATH; only for
 *                          tools that read
 *   /PATH, PATH            a directory of this machine
 *
 * "gs://b" and "s3:/b" name no store and are refused; "./s3:/b" is a directory of that name. */
#include "storage/engine/engine.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

struct scheme {
    const char *begin;
    const struct storage_ops *ops;
    bool is_shared;
};

static const struct scheme schemes[] = {
    {"s3://", &storage_s3, false},
    {"dir:", &storage_local, true},
    {"peer:", &storage_peer, false},
    {"", &storage_local, false},
};

/* As "gs://b" and "s3:/b" do. */
static bool begins_like_scheme(const char *text)
{
    const char *at = text;
    while (isalnum((unsigned char)*at))
        at++;
    return at > text && at[0] == ':' && at[1] == '/';
}

int storage_where_parse(struct storage_where *out, const char *text)
{
    const struct scheme *scheme = schemes;
    while (strncmp(text, scheme->begin, strlen(scheme->begin)) != 0)
        scheme++;
    const char *place = text + strlen(scheme->begin);
    if (place[0] == '\0' || strlen(place) >= sizeof out->place ||
        (scheme->begin[0] == '\0' && begins_like_scheme(text)))
        return report_error(ERR_INVALID, "write s3://BUCKET/PREFIX, dir:/PATH or /PATH",
                            "\"%s\" is not the name of a store", text);
    *out = (struct storage_where){.ops = scheme->ops, .is_shared = scheme->is_shared};
    snprintf(out->place, sizeof out->place, "%s", place);
    for (size_t last = strlen(place) - 1; last > 0 && out->place[last] == '/'; last--)
        out->place[last] = '\0'; /* equal places get equal texts */
    return 0;
}

int storage_open_where(struct storage **out, const char *text,
                       const struct storage_options *options)
{
    struct storage_where where;
    struct storage_options own = options ? *options : (struct storage_options){0};
    *out = NULL;
    ERR_TRY(storage_where_parse(&where, text));
    own.is_shared = where.is_shared;
    return storage_open(out, where.ops, where.place, &own);
}
