/* why.c - see why.h. */
#include "proto/tls/why.h"
#include "proto/base/report.h"
#include "proto/tls/stream.h"
#include "proto/tls/tls.h"

#include <stdio.h>
#include <time.h>

#define STEP_MS 2000u

int tls_explain_failure(const char *name, const struct address *server, const char *directory)
{
    struct tls_keys *keys = NULL;
    struct tls_stream *stream = NULL;
    int64_t end_s;
    int fd;
    char byte, reason[256];
    int error = tls_directory_check(&end_s, directory);
    if (error == 0 && end_s <= time(NULL))
        return report_error(ERR_UNAVAILABLE, "make new ones: holdfast-certificates",
                            "the certificate or the authority in %s has ended", directory);
    error = error == 0 ? tls_keys_open_client(&keys, directory, "h2") : error;
    if (error != 0)
        return report_error(ERR_UNAVAILABLE, "its log tells whom it refused, and why",
                            "no ckptd answered at %s, or one end refused the other's certificate "
                            "(the files of %s)",
                            name, directory);
    bool is_connected = address_connect(&fd, server) == 0;
    bool is_believed =
        is_connected && tls_stream_open(&stream, keys, fd, server->host, STEP_MS, NULL) == 0;
    error = is_believed ? tls_stream_read(stream, &byte, sizeof byte, STEP_MS) : 0;
    snprintf(reason, sizeof reason, "%s",
             is_connected || !report_detail()[0] ? report_message() : report_detail());
    tls_stream_close(stream);
    tls_keys_close(keys);
    if (!is_connected)
        return report_error(ERR_UNAVAILABLE, "start ckptd, or look at its tls.listen",
                            "no ckptd answered at %s: %s", name, reason);
    if (!is_believed)
        return report_error(ERR_UNAVAILABLE, "the files of its tls.directory, or ours, are wrong",
                            "the ckptd at %s is not believed with the files of %s: %s", name,
                            directory, reason);
    if (error != ERR_UNAVAILABLE)
        return report_error(ERR_UNAVAILABLE, "try again", "the ckptd at %s did not answer in time",
                            name);
    return report_error(ERR_UNAVAILABLE, "its log tells whom it refused, and why",
                        "the ckptd at %s hung up on the certificate in %s: %s", name, directory,
                        reason);
}
