/* sources.c - the sources of a bucket's keys, in the order of the search.
 *
 *   environment   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN. Their values are
 *                 moved from the environment to memory that core dumps omit.
 *   web_identity  AssumeRoleWithWebIdentity of the token service (STS) with the token in a file
 *   file          the shared credentials file, section `profile`: aws_access_key_id, ...
 *   instance      the role of the machine, from a metadata service (IMDSv2), if its address is
 *                 configured
 *
 * Files and responses are read into memory of the same kind, or wiped. */
#include "storage/bucket/sources.h"

#include "proto/base/clock.h"
#include "storage/http/http.h"
#include "storage/http/sigv4.h"
#include "storage/http/xml.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES_MAX (64u << 10)
#define URL_BYTES 16384u
#define STALL_S 10
#define INSTANCE_TOKEN_SECONDS "21600"

static void copy_text(char *out, size_t size, const char *text, size_t bytes)
{
    snprintf(out, size, "%.*s", (int)bytes, text);
}

static bool has_both(const struct keys *keys)
{
    return keys->access_key[0] != '\0' && keys->secret_key[0] != '\0';
}

/* "2026-11-24T20:00:00Z" as a time of the monotonic clock. */
static int64_t end_of(const char *text)
{
    struct tm utc = {0};
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &utc);
    if (rest == NULL)
        return 0;
    int64_t left = (int64_t)timegm(&utc) - (int64_t)time(NULL);
    return clock_ms() / 1000 + (left > 1 ? left : 1);
}

/* ---- environment ---- */

/* The keys from the environment; other stores of this process find them here. */
static struct keys *moved;
static pthread_mutex_t moved_lock = PTHREAD_MUTEX_INITIALIZER;

static void move_value(char *out, size_t size, const char *name)
{
    char *value = getenv(name);
    if (value == NULL || value[0] == '\0')
        return;
    copy_text(out, size, value, strlen(value));
    explicit_bzero(value, strlen(value));
    unsetenv(name);
}

static int read_environment(struct keys *out, const struct storage_bucket *settings)
{
    (void)settings;
    pthread_mutex_lock(&moved_lock);
    if (moved == NULL)
        moved = secret_allocate(sizeof *moved);
    if (moved != NULL) {
        move_value(moved->access_key, sizeof moved->access_key, "AWS_ACCESS_KEY_ID");
        move_value(moved->secret_key, sizeof moved->secret_key, "AWS_SECRET_ACCESS_KEY");
        move_value(moved->token, sizeof moved->token, "AWS_SESSION_TOKEN");
        *out = *moved;
    }
    pthread_mutex_unlock(&moved_lock);
    if (moved == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for credentials");
    return has_both(out) ? 0 : report_error(ERR_NOT_FOUND, NULL, "no keys in the environment");
}

/* ---- file ---- */

/* Reads into `out`, ended by a NUL. */
static int read_file(char *out, size_t size, const char *path)
{
    size_t got = 0;
    ssize_t moved_now = 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return report_errno(errno == ENOENT ? ERR_NOT_FOUND : ERR_DENIED,
                            "could not open the file of credentials", path);
    while (got + 1 < size && moved_now > 0) {
        moved_now = read(fd, out + got, size - 1 - got);
        got += moved_now > 0 ? (size_t)moved_now : 0;
    }
    int error =
        moved_now < 0 ? report_errno(ERR_IO, "could not read the file of credentials", path) : 0;
    close(fd);
    out[got] = '\0';
    return error;
}

static char *trim(char *text)
{
    text += strspn(text, " \t");
    for (size_t length = strlen(text); length > 0 && strchr(" \t\r", text[length - 1]) != NULL;)
        text[--length] = '\0';
    return text;
}

static void read_setting(struct keys *out, char *line)
{
    char *equals = strchr(line, '=');
    if (equals == NULL)
        return;
    *equals = '\0';
    const char *name = trim(line), *value = trim(equals + 1);
    if (strcmp(name, "aws_access_key_id") == 0)
        copy_text(out->access_key, sizeof out->access_key, value, strlen(value));
    else if (strcmp(name, "aws_secret_access_key") == 0)
        copy_text(out->secret_key, sizeof out->secret_key, value, strlen(value));
    else if (strcmp(name, "aws_session_token") == 0)
        copy_text(out->token, sizeof out->token, value, strlen(value));
}

/* Parses lines of "[section]" and "name = value". */
static void read_section(struct keys *out, char *text, const char *section)
{
    bool is_in = false;
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;) {
        line = trim(line);
        size_t length = strlen(line);
        if (line[0] == '[' && length > 2) {
            line[length - 1] = '\0';
            is_in = strcmp(trim(line + 1), section) == 0;
        } else if (is_in && line[0] != '#' && line[0] != ';') {
            read_setting(out, line);
        }
    }
}

static int read_shared_file(struct keys *out, const struct storage_bucket *settings)
{
    char path[STORAGE_WHERE_BYTES + 32];
    const char *home = getenv("HOME");
    const char *section = settings->profile[0] ? settings->profile : "default";
    bool is_named = settings->credentials_file[0] != '\0';
    if (!is_named && home == NULL)
        return report_error(ERR_NOT_FOUND, NULL, "no home directory");
    snprintf(path, sizeof path, "%s%s", is_named ? settings->credentials_file : home,
             is_named ? "" : "/.aws/credentials");
    char *text = secret_allocate(FILE_BYTES_MAX);
    if (text == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for credentials");
    int error = read_file(text, FILE_BYTES_MAX, path);
    if (error == 0)
        read_section(out, text, section);
    secret_free(text, FILE_BYTES_MAX);
    if (error == ERR_NOT_FOUND && is_named)
        error = ERR_DENIED;
    if (error == 0 && !has_both(out))
        error = report_error(is_named ? ERR_DENIED : ERR_NOT_FOUND, "name another profile",
                             "%s has no keys in [%s]", path, section);
    return error;
}

/* ---- web identity ---- */

static int read_assumed(void *user, const char *path, const char *text)
{
    struct keys *out = user;
    const char *name = strstr(path, "/Credentials/");
    if (text == NULL || name == NULL)
        return 0;
    name += strlen("/Credentials/");
    if (strcmp(name, "AccessKeyId") == 0)
        copy_text(out->access_key, sizeof out->access_key, text, strlen(text));
    else if (strcmp(name, "SecretAccessKey") == 0)
        copy_text(out->secret_key, sizeof out->secret_key, text, strlen(text));
    else if (strcmp(name, "SessionToken") == 0)
        copy_text(out->token, sizeof out->token, text, strlen(text));
    else if (strcmp(name, "Expiration") == 0)
        out->expires_s = end_of(text);
    return 0;
}

/* One request without a signature; a response with a status other than 200 is an error. */
static int perform_request(struct http_call *call, const struct storage_bucket *settings,
                           const char *what)
{
    struct http_settings http = {.authorities = settings->authorities,
                                 .stall_s = STALL_S,
                                 .no_proxy = strcmp(what, "metadata") == 0};
    struct http_connection *connection = NULL;
    ERR_TRY(http_open(&connection, &http));
    int error = http_perform(connection, call);
    http_close(connection);
    if (error == 0 && call->status != 200)
        error = report_error(call->status >= 500 ? ERR_UNAVAILABLE : ERR_DENIED, NULL,
                             "the %s service answered %d", what, call->status);
    return error;
}

/* Writes the form of the request, which has the token. */
static int write_form(char *form, const struct storage_bucket *settings, char *token)
{
    snprintf(form, URL_BYTES,
             "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleSessionName=holdfast-%ld"
             "&RoleArn=",
             (long)getpid());
    ERR_TRY(sigv4_encode(form, URL_BYTES, settings->role, 0));
    return sigv4_encode(strcat(form, "&WebIdentityToken="), URL_BYTES, trim(token), 0);
}

static int assume_role(struct keys *out, const struct storage_bucket *settings, char *form)
{
    char url[640];
    struct iovec body = {form, strlen(form)};
    if (settings->sts_endpoint[0] != '\0')
        snprintf(url, sizeof url, "%s/", settings->sts_endpoint);
    else
        snprintf(url, sizeof url, "https://sts.%s.amazonaws.com/",
                 settings->region[0] ? settings->region : "us-east-1");
    struct http_call call = {.method = "POST",
                             .url = url,
                             .headers = {"Content-Type: application/x-www-form-urlencoded"},
                             .num_headers = 1,
                             .send = &body,
                             .num_send = 1};
    int error = perform_request(&call, settings, "token");
    if (error == 0)
        error = xml_read(call.text ? call.text : "", call.text_bytes, read_assumed, out);
    http_call_free(&call);
    return error == 0 && !has_both(out)
               ? report_error(ERR_DENIED, NULL, "the token service gave no keys")
               : error;
}

static int read_web_identity(struct keys *out, const struct storage_bucket *settings)
{
    if (settings->token_file[0] == '\0' || settings->role[0] == '\0')
        return report_error(ERR_NOT_FOUND, NULL, "no web identity is set up");
    char *token = secret_allocate(FILE_BYTES_MAX), *form = secret_allocate(URL_BYTES);
    int error = token != NULL && form != NULL
                    ? read_file(token, FILE_BYTES_MAX / 4, settings->token_file)
                    : report_error(ERR_MEMORY, NULL, "no memory for credentials");
    for (char *end = token; error == 0 && (end = strchr(end, '\n')) != NULL;)
        *end = '\0';
    if (error == ERR_NOT_FOUND)
        error = ERR_DENIED; /* it is configured, but missing */
    if (error == 0)
        error = write_form(form, settings, token);
    if (error == 0)
        error = assume_role(out, settings, form);
    secret_free(token, FILE_BYTES_MAX);
    secret_free(form, URL_BYTES);
    return error;
}

/* ---- instance ---- */

/* Copies the text of a member of the response's one flat object; its texts have no escapes. */
static void copy_member(char *out, size_t size, const char *json, const char *name)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\"", name);
    const char *at = strstr(json, quoted);
    if (at == NULL)
        return;
    at += strlen(quoted);
    at += strspn(at, " \t\r\n:");
    if (*at == '"')
        copy_text(out, size, at + 1, strcspn(at + 1, "\"\\"));
}

static int read_role(struct keys *out, const struct http_call *call)
{
    char expires[64] = "";
    const char *json = call->text != NULL ? call->text : "";
    copy_member(out->access_key, sizeof out->access_key, json, "AccessKeyId");
    copy_member(out->secret_key, sizeof out->secret_key, json, "SecretAccessKey");
    copy_member(out->token, sizeof out->token, json, "Token");
    copy_member(expires, sizeof expires, json, "Expiration");
    out->expires_s = end_of(expires);
    return has_both(out) ? 0 : report_error(ERR_DENIED, NULL, "the metadata service gave no keys");
}

static int read_instance(struct keys *out, const struct storage_bucket *settings)
{
    static const char path[] = "/latest/meta-data/iam/security-credentials/";
    char url[1024], token[512], role[128];
    if (settings->instance_endpoint[0] == '\0')
        return report_error(ERR_NOT_FOUND, NULL, "no metadata service is set up");
    snprintf(url, sizeof url, "%s/latest/api/token", settings->instance_endpoint);
    struct http_call call = {
        .method = "PUT",
        .url = url,
        .headers = {"X-aws-ec2-metadata-token-ttl-seconds: " INSTANCE_TOKEN_SECONDS},
        .num_headers = 1};
    int error = perform_request(&call, settings, "metadata");
    snprintf(token, sizeof token, "X-aws-ec2-metadata-token: %s", call.text ? call.text : "");
    call.method = "GET";
    call.headers[0] = token;
    snprintf(url, sizeof url, "%s%s", settings->instance_endpoint, path);
    if (error == 0)
        error = perform_request(&call, settings, "metadata");
    if (error == 0) {
        copy_text(role, sizeof role, call.text ? call.text : "",
                  strcspn(call.text ? call.text : "", "\r\n"));
        snprintf(url, sizeof url, "%s%s%s", settings->instance_endpoint, path, role);
        error = perform_request(&call, settings, "metadata");
    }
    if (error == 0)
        error = read_role(out, &call);
    http_call_free(&call);
    explicit_bzero(token, sizeof token);
    return error;
}

const struct source credential_sources[] = {
    {"environment", read_environment},
    {"web_identity", read_web_identity},
    {"file", read_shared_file},
    {"instance", read_instance},
};
const size_t num_credential_sources = sizeof credential_sources / sizeof credential_sources[0];
