/* options.h - settings for the server of a bucket, and their rows in a table of options. */
#ifndef HOLDFAST_STORAGE_BUCKET_OPTIONS_H
#define HOLDFAST_STORAGE_BUCKET_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/* Settings for the servers of buckets. Empty texts are filled from the environment
 * (storage_bucket_environment), else with AWS's defaults. Secrets are no settings: `credentials`
 * names their source. */
struct storage_bucket {
    char endpoint[512]; /* "https://HOST[:PORT]" */
    char region[64];
    char style[8];          /* "auto", "path": /BUCKET/KEY, or "virtual": the bucket in the host */
    char authorities[4096]; /* PEM file of the authorities whose certificates are accepted */
    char credentials[16];   /* "auto", "environment", "file", "web_identity", "instance" */
    char credentials_file[4096], profile[64];
    char role[512], token_file[4096], sts_endpoint[512]; /* web_identity */
    char instance_endpoint[512];                         /* instance: of the metadata service */
    int64_t part_bytes;    /* of a big object's parts, except the last */
    int64_t connections;   /* parallel connections for requests */
    int64_t rate;          /* bytes per second sent; 0: no limit */
    int64_t retry_s;       /* how long one request is retried */
    int64_t stall_s;       /* a request fails when no byte moves for this time */
    int64_t lease_s;       /* a lease expires when it is not renewed for this time */
    int64_t upload_idle_s; /* an upload may be removed when it gets no part for this time */
    bool single_writer;    /* no conditional writes there, and no other process writes */
};
/* Rows of a table of options (proto/base/options.h) for a struct storage_bucket `f` within a `t`.
 */
/* clang-format off */
#define STORAGE_BUCKET_OPTIONS(t, f, prefix) \
    OPTION_STRING(t, f endpoint, prefix "endpoint", "", \
                  "S3 server, https://HOST[:PORT]; empty: AWS's"), \
    OPTION_STRING(t, f region, prefix "region", "", "region of the bucket; empty: us-east-1"), \
    OPTION_CHOICE(t, f style, prefix "style", "auto", "auto,path,virtual", \
                  "bucket in the path or in the host name; auto: path if endpoint is set"), \
    OPTION_STRING(t, f authorities, prefix "authorities", "", \
                  "PEM file of certificate authorities; empty: the system's"), \
    OPTION_CHOICE(t, f credentials, prefix "credentials", "auto", \
                  "auto,environment,file,web_identity,instance", \
                  "source of the keys; auto: the first that exists"), \
    OPTION_STRING(t, f credentials_file, prefix "credentials_file", "", \
                  "shared credentials file; empty: ~/.aws/credentials"), \
    OPTION_STRING(t, f profile, prefix "profile", "", "section of that file; empty: default"), \
    OPTION_STRING(t, f role, prefix "role", "", "ARN to assume with a web identity"), \
    OPTION_STRING(t, f token_file, prefix "token_file", "", \
                  "file with the token of a web identity"), \
    OPTION_STRING(t, f sts_endpoint, prefix "sts_endpoint", "", \
                  "token service; empty: AWS's for the region"), \
    OPTION_STRING(t, f instance_endpoint, prefix "instance_endpoint", "", \
                  "metadata service with an instance's role; empty: not used"), \
    OPTION_BYTES(t, f part_bytes, prefix "part_bytes", "16MiB", 65536, 4294963200.0, \
                 "bytes of an upload's part"), \
    OPTION_INT(t, f connections, prefix "connections", 8, 1, 256, \
               "requests to the server at once"), \
    OPTION_BYTES(t, f rate, prefix "rate", "0", 0, 1e15, \
                 "bytes per second to send; 0: no limit"), \
    OPTION_GONE(prefix "windows", "one rate applies at all times of day: HOLDFAST_S3_RATE"), \
    OPTION_INT(t, f retry_s, prefix "retry_s", 60, 0, 86400, "time to retry a request"), \
    OPTION_INT(t, f stall_s, prefix "stall_s", 30, 1, 3600, \
               "a request without traffic for this time has failed"), \
    OPTION_INT(t, f lease_s, prefix "lease_s", 60, 3, 86400, \
               "a lease without renewal for this time has expired"), \
    OPTION_INT(t, f upload_idle_s, prefix "upload_idle_s", 86400, 1, 31536000, \
               "an upload without a new part for this time may be removed"), \
    OPTION_BOOL(t, f single_writer, prefix "single_writer", "false", \
                "the bucket has no conditional writes and no other writer")
/* clang-format on */
/* The table's defaults, then the environment: AWS_ENDPOINT_URL_S3, AWS_REGION and so on, then
 * HOLDFAST_S3_ENDPOINT, HOLDFAST_S3_PART_BYTES, ...: one for each option. ERR_INVALID. */
int storage_bucket_environment(struct storage_bucket *out);

#endif
