/* server.c - calls of commands to a running ckptd, beside their own calls.
 *
 * A command that works on the files of checkpoints also works with a server. A ckptd with a socket
 * is on this node: it only tells the path of its store, and the command works on that directory as
 * with --store. The directory must be the same: in another container the same path may be another
 * store, so ckptd also sends the device and inode of its directory. A command that only reads
 * (verify, diff, export, convert, du, tags) may use a ckptd of another node, HOST:PORT. It reads
 * that store over TLS (storage/peer.c), so it needs no access to the directory. It also reads by
 * the socket's ckptd if only other tiers have a checkpoint that it may read. Both ways lease the
 * checkpoint, which ckptd respects.
 *
 * Files that import and convert write there become a checkpoint only by ckptd (Adopt). They wait
 * for a ckptd that restarts at that moment, because repeating the call is harmless. */
#include "clients/cli/engine/cli.h"
#include "clients/session.h"

#include "proto/base/address.h"
#include "proto/base/clock.h"
#include "proto/base/json.h"
#include "proto/format/origin.h"
#include "proto/tls/tls.h"
#include "proto/tls/why.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define TURNED_AWAY_MS 100 /* a ckptd that refuses a client does so within this time */
#define CALLS_MAX 3u       /* of a ckptd that had no free connection, and has one again */
#define TELL_EVERY_NS 300000000l
#define ADOPT_CALL_MS 600000u /* ckptd reads the checksum tables of all shards */
#define ADOPT_AGAIN_MS 200u
#define ADOPT_PATIENCE_MS 60000u /* with a ckptd that does not answer, before it is an error */

/* Does it hang up at once? It reads nothing before that decision. */
static bool hangs_up(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLRDHUP};
    return poll(&wait, 1, TURNED_AWAY_MS) > 0 && (wait.revents & (POLLRDHUP | POLLHUP)) != 0;
}

/* ckptd always admits root and its own user: with them a hang-up means that it is full, or
 * dying. */
static bool may_connect(int fd)
{
    struct ucred server;
    socklen_t size = sizeof server;
    return geteuid() == 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &server, &size) != 0 ||
           server.uid == geteuid();
}

/* A call had no answer: reports whether ckptd runs, and may refuse this user. *out_is_there: it
 * would answer by now. */
static int explain_no_answer(const struct cli *cli, bool *out_is_there)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct address server;
    ERR_TRY(address_parse(&server, cli->server));
    if (server.kind == ADDRESS_TLS) {
        void (*before)(int) = signal(SIGPIPE, SIG_IGN);
        int error = tls_explain_failure(cli->server, &server, tls_client_directory());
        signal(SIGPIPE, before);
        return error;
    }
    snprintf(address.sun_path, sizeof address.sun_path, "%s", server.path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_there = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    bool is_denied = !is_there && errno == EACCES, is_gone = !is_there && errno == ENOENT;
    bool is_full = is_there && hangs_up(fd);
    if (is_full && !may_connect(fd)) {
        is_denied = true;
        is_full = false;
    }
    if (fd >= 0)
        close(fd);
    if (is_denied)
        return report_error(
            ERR_DENIED, "connect as ckptd's user, or as one of its access.uids or access.operators",
            "user %u may not connect to %s", (unsigned)geteuid(), cli->server);
    if (is_full)
        return report_error(
            ERR_UNAVAILABLE, "its log names the clients; or raise limits.sessions",
            "the ckptd at %s closes connections: all are in use, or it is shutting down",
            cli->server);
    *out_is_there = is_there;
    if (is_there)
        return report_error(
            ERR_UNAVAILABLE, "try again; its log names the clients",
            "the ckptd at %s closed the connection: all were in use, or it shut down", cli->server);
    return report_error(ERR_UNAVAILABLE, "start ckptd, or name its socket with --server unix:/PATH",
                        is_gone ? "no ckptd answered at %s: there is no such socket"
                                : "no ckptd answered at %s",
                        cli->server);
}

/* ---- a call that takes long ---- */

/* Shows on the terminal that ckptd is at work, and how much it has removed, until the answer. */
struct waiting_line {
    const struct cli *cli;
    pthread_t thread;
    sem_t is_over;
    bool is_begun;
};

static void show_once(const struct waiting_line *waiting_line, int64_t *pruned_before)
{
    char line[sizeof waiting_line->cli->server + 96];
    json_t *status = NULL;
    int64_t pruned = -1;
    if (cli_call_status(&status, waiting_line->cli) == 0)
        pruned =
            json_integer_value(json_object_get(json_object_get(status, "since_start"), "pruned"));
    json_decref(status);
    if (*pruned_before < 0)
        *pruned_before = pruned;
    snprintf(line, sizeof line, "the ckptd at %s is working ...", waiting_line->cli->server);
    if (pruned > *pruned_before)
        snprintf(line, sizeof line, "the ckptd at %s has removed %s ...", waiting_line->cli->server,
                 text_count((uint64_t)(pruned - *pruned_before), "checkpoint").text);
    text_transient(line);
}

static void *show_progress(void *argument)
{
    struct waiting_line *waiting_line = argument;
    int64_t pruned_before = -1;
    struct timespec next;
    do {
        show_once(waiting_line, &pruned_before);
        next = clock_after_ns(CLOCK_REALTIME, TELL_EVERY_NS);
    } while (sem_timedwait(&waiting_line->is_over, &next) != 0);
    return NULL;
}

static void begin_line(struct waiting_line *waiting_line, const struct cli *cli)
{
    *waiting_line = (struct waiting_line){.cli = cli};
    sem_init(&waiting_line->is_over, 0, 0);
    waiting_line->is_begun =
        pthread_create(&waiting_line->thread, NULL, show_progress, waiting_line) == 0;
}

static void end_line(struct waiting_line *waiting_line)
{
    sem_post(&waiting_line->is_over);
    if (waiting_line->is_begun)
        pthread_join(waiting_line->thread, NULL);
    sem_destroy(&waiting_line->is_over);
    text_transient("");
}

static int call_once(ProtobufCMessage **out, const struct cli *cli, const char *method,
                     const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                     uint32_t timeout_ms)
{
    struct rpc_client *client = NULL;
    struct waiting_line waiting_line;
    ERR_TRY(rpc_client_open(&client, cli->server));
    bool is_long = timeout_ms > CLI_CALL_MS && progress_is_wanted(cli);
    if (is_long)
        begin_line(&waiting_line, cli);
    int error = rpc_client_call(client, method, request, type, out, timeout_ms);
    if (is_long)
        end_line(&waiting_line);
    rpc_client_close(client);
    return error;
}

/* Every call may be repeated, and is, when its answer was lost. */
int cli_call_other(ProtobufCMessage **out, const struct cli *cli, const char *path,
                   const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                   uint32_t timeout_ms)
{
    bool is_there = true;
    int error = ERR_UNAVAILABLE;
    for (uint32_t i = 0; i < CALLS_MAX && error == ERR_UNAVAILABLE && is_there; i++) {
        is_there = false;
        error = call_once(out, cli, path, request, type, timeout_ms);
        if (error == ERR_UNAVAILABLE)
            error = explain_no_answer(cli, &is_there);
    }
    return error;
}

int cli_call(ProtobufCMessage **out, const struct cli *cli, const ProtobufCMessage *request,
             uint32_t timeout_ms)
{
    char path[96];
    const ProtobufCMethodDescriptor *method = session_method(path, request);
    return cli_call_other(out, cli, path, request, method->output, timeout_ms);
}

/* A call with an empty reply. */
static int call_simple(const struct cli *cli, const ProtobufCMessage *request, uint32_t timeout_ms)
{
    ProtobufCMessage *answer = NULL;
    ERR_TRY(cli_call(&answer, cli, request, timeout_ms));
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}

const char *cli_address(char *out, size_t size, const struct cli *cli)
{
    bool is_store = cli->store[0] != '\0';
    bool is_directory = is_store && strncmp(cli->store, "s3://", 5) != 0;
    snprintf(out, size, "%s%s", is_directory ? "dir:" : "", is_store ? cli->store : cli->server);
    return out;
}

int cli_call_status(struct json_t **out, const struct cli *cli)
{
    Holdfast__V1__StatusRequest request = HOLDFAST__V1__STATUS_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.expected_bytes = (uint64_t)cli->expected;
    ERR_TRY(cli_call(&answer, cli, &request.base, CLI_CALL_MS));
    const char *text = ((const Holdfast__V1__StatusReply *)answer)->json;
    json_error_t reason;
    int error = json_read(out, text, strlen(text), &reason);
    protobuf_c_message_free_unpacked(answer, NULL);
    if (error == ERR_MEMORY || json_is_object(*out))
        return error;
    json_decref(*out);
    *out = NULL;
    return report_error(ERR_CORRUPT, NULL, "ckptd's status is not a JSON object");
}

int server_manifest(struct manifest **out, ProtobufCMessage **out_answer, const struct cli *cli,
                    const struct selection *selection)
{
    Holdfast__V1__ShowRequest request = HOLDFAST__V1__SHOW_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.run = (char *)(uintptr_t)selection->run;
    request.step = selection->step;
    request.attempt = selection->attempt;
    ERR_TRY(cli_call(&answer, cli, &request.base, CLI_CALL_MS));
    const Holdfast__V1__ShowReply *reply = (const Holdfast__V1__ShowReply *)answer;
    for (size_t i = 0; i < reply->n_skipped && selection->attempt == 0; i++)
        skipped_print(selection->run, reply->skipped[i]->step, reply->skipped[i]->attempt,
                      reply->skipped[i]->damage);
    int error = manifest_read(out, reply->manifest_json, strlen(reply->manifest_json));
    if (error == 0)
        origin_rename(&(*out)->summary, selection->run);
    if (error == 0 && out_answer != NULL)
        *out_answer = answer;
    else
        protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

/* ---- the path of its store ---- */

/* Is `path` here the server's directory? */
static int check_reach(const char *path, const char *id, const struct cli *cli)
{
    static const char hint[] = "run ckpt-cli where that directory is, as a user who may read it";
    struct stat status;
    char safe[512], found[64] = "";
    text_safe(safe, sizeof safe, path);
    if (stat(path, &status) == 0 && access(path, R_OK | X_OK) == 0)
        snprintf(found, sizeof found, "%llx:%llx", (unsigned long long)status.st_dev,
                 (unsigned long long)status.st_ino);
    else
        return report_error(errno == EACCES || errno == EPERM ? ERR_DENIED : ERR_NOT_FOUND, hint,
                            "the store of the ckptd at %s cannot be reached from here: %s: %s",
                            cli->server, safe, strerror(errno));
    if (strcmp(found, id) != 0)
        return report_error(ERR_NOT_FOUND, hint,
                            "the store of the ckptd at %s cannot be reached from here: %s is "
                            "another directory here",
                            cli->server, safe);
    return 0;
}

/* May an argument mean `summary`, the next one of a list? Only a run means its newest intact one,
 * which `seen` records, or all of it, as a tag may be on any. */
static bool is_meant(const struct cli *cli, bool seen[2],
                     const Holdfast__V1__CheckpointSummary *summary)
{
    bool is_any = true, is_it = false;
    for (int i = 0; i < cli->num_args && i < 2; i++) {
        size_t length = strcspn(cli->args[i], "@");
        const char *step = cli->args[i] + length;
        if (cli->is_path[i])
            continue;
        is_any = false;
        if (strlen(summary->run) != length || strncmp(cli->args[i], summary->run, length) != 0)
            continue;
        if (step[0] == '@') {
            is_it |=
                !isdigit((unsigned char)step[1]) || strtoull(step + 1, NULL, 10) == summary->step;
        } else {
            is_it |= cli->is_run_meant || (!seen[i] && summary->damage[0] == '\0');
            seen[i] |= summary->damage[0] == '\0';
        }
    }
    return is_any || is_it;
}

/* Is a checkpoint that an argument may mean missing in the store's directory? */
static int find_elsewhere(bool *out, const struct cli *cli)
{
    Holdfast__V1__ListRequest request = HOLDFAST__V1__LIST_REQUEST__INIT;
    char page[STORAGE_KEY_MAX] = "";
    bool seen[2] = {false, false};
    *out = false;
    do {
        ProtobufCMessage *answer = NULL;
        request.page = page;
        ERR_TRY(cli_call(&answer, cli, &request.base, CLI_CALL_MS));
        const Holdfast__V1__ListReply *reply = (const Holdfast__V1__ListReply *)answer;
        for (size_t i = 0; i < reply->n_checkpoints && !*out; i++) {
            const Holdfast__V1__CheckpointSummary *summary = reply->checkpoints[i];
            *out = is_meant(cli, seen, summary) && summary->tiers[0] != '\0' &&
                   strncmp(summary->tiers, CLI_STORED, strlen(CLI_STORED)) != 0;
        }
        snprintf(page, sizeof page, "%s", reply->next);
        protobuf_c_message_free_unpacked(answer, NULL);
    } while (page[0] != '\0' && !*out);
    return 0;
}

int server_need_here(const struct cli *cli)
{
    bool is_elsewhere;
    ERR_TRY(find_elsewhere(&is_elsewhere, cli));
    return is_elsewhere ? report_error(ERR_NOT_FOUND, "name that tier's store with --store",
                                       "%s is not in the store of the ckptd at %s: only other "
                                       "tiers have it, or a part of it",
                                       cli->args[0], cli->server)
                        : 0;
}

int server_find_source(struct cli *cli)
{
    Holdfast__V1__HelloRequest request = HOLDFAST__V1__HELLO_REQUEST__INIT;
    struct address server;
    bool is_elsewhere = true;
    ERR_TRY(address_parse(&server, cli->server));
    if (server.kind != ADDRESS_TLS)
        ERR_TRY(find_elsewhere(&is_elsewhere, cli));
    if (!is_elsewhere)
        return server_find_store(cli);
    request.protocol = RPC_PROTOCOL;
    ERR_TRY(call_simple(cli, &request.base, CLI_CALL_MS));
    snprintf(cli->store, sizeof cli->store, "peer:%s", cli->server);
    return 0;
}

int server_find_store(struct cli *cli)
{
    json_t *status = NULL;
    int error = cli_call_status(&status, cli);
    if (error != 0)
        return error;
    const char *path = json_string_value(json_object_get(status, "store"));
    const char *id = json_string_value(json_object_get(status, "store_id"));
    if (path == NULL || id == NULL || id[0] == '\0' || strlen(path) >= sizeof cli->store)
        error = report_error(ERR_NOT_FOUND, NULL, "the store of the ckptd at %s is not a directory",
                             cli->server);
    else
        error = check_reach(path, id, cli);
    if (error == 0)
        snprintf(cli->store, sizeof cli->store, "%s", path);
    json_decref(status);
    return error;
}

int server_find_named(struct cli *out, const struct cli *cli, const char *text, size_t length)
{
    static const char socket[] = "unix:";
    bool is_server = strncmp(text, socket, strlen(socket)) == 0;
    size_t room = is_server ? sizeof out->server : sizeof out->store;
    *out = *cli;
    out->server[0] = out->store[0] = '\0';
    if (length == 0 || length >= room)
        return report_error(ERR_INVALID, "name DIR, or unix:/PATH of its ckptd",
                            "'%s' names no store, or its name is too long", text);
    snprintf(is_server ? out->server : out->store, room, "%.*s", (int)length, text);
    return is_server ? server_find_store(out) : 0;
}

/* ---- writing into it ---- */

int server_prepare_write(const struct cli *cli, uint64_t bytes)
{
    json_t *status = NULL;
    char need[32], have[32];
    ERR_TRY(cli_call_status(&status, cli));
    json_int_t uid = json_integer_value(json_object_get(status, "uid"));
    json_int_t left =
        json_integer_value(json_object_get(json_object_get(status, "disk"), "bytes_left"));
    json_decref(status);
    if (left < 0 || (uint64_t)left < bytes)
        return report_error(ERR_SPACE, "free some space, or take another disk",
                            "the ckptd at %s has room for %s, and %s are needed", cli->server,
                            text_bytes(have, sizeof have, left > 0 ? (uint64_t)left : 0),
                            text_bytes(need, sizeof need, bytes));
    if (uid != (json_int_t)geteuid() && (geteuid() != 0 || uid <= 0))
        return report_error(ERR_DENIED, "run ckpt-cli as that user, or as root",
                            "the ckptd at %s runs as user %lld, and could not remove files of user "
                            "%lld",
                            cli->server, (long long)uid, (long long)geteuid());
    return 0;
}

int server_adopt(const struct cli *cli, const void *manifest, size_t bytes, bool begins_run,
                 const char *run)
{
    Holdfast__V1__AdoptRequest request = HOLDFAST__V1__ADOPT_REQUEST__INIT;
    uint32_t waited_ms = 0;
    request.begins_run = begins_run;
    request.run = (char *)(uintptr_t)(run != NULL ? run : "");
    request.manifest = (ProtobufCBinaryData){bytes, (uint8_t *)(uintptr_t)manifest};
    for (;; waited_ms += ADOPT_AGAIN_MS) {
        int error = call_simple(cli, &request.base, ADOPT_CALL_MS);
        if ((error != ERR_UNAVAILABLE && error != ERR_BUSY) || waited_ms >= ADOPT_PATIENCE_MS)
            return error;
        if (waited_ms == 0)
            log_warn("server", "waiting: %s", report_line());
        clock_sleep_ms(ADOPT_AGAIN_MS);
    }
}

int server_scrub(bool *out_is_elsewhere, const struct cli *cli, bool pauses, const char *run,
                 const struct manifest_summary *suspect)
{
    Holdfast__V1__ScrubRequest request = HOLDFAST__V1__SCRUB_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.action =
        pauses ? HOLDFAST__V1__SCRUB_ACTION__SCRUB_PAUSE : HOLDFAST__V1__SCRUB_ACTION__SCRUB_START;
    request.run = (char *)(uintptr_t)run;
    if (suspect != NULL) {
        request.step = suspect->step;
        request.attempt = suspect->attempt;
    }
    int error = cli_call(&answer, cli, &request.base, CLI_CALL_MS);
    if (error == 0 && out_is_elsewhere != NULL)
        *out_is_elsewhere = ((const Holdfast__V1__ScrubReply *)answer)->elsewhere;
    if (error == 0)
        protobuf_c_message_free_unpacked(answer, NULL);
    return error;
}

int server_keep_verified(const struct cli *cli, const struct manifest_summary *summary,
                         const struct verified *result)
{
    Holdfast__V1__KeepVerifiedRequest request = HOLDFAST__V1__KEEP_VERIFIED_REQUEST__INIT;
    request.run = (char *)(uintptr_t)summary->run;
    request.step = summary->step;
    request.attempt = summary->attempt;
    request.nonce = (char *)(uintptr_t)summary->nonce;
    request.percent = result->percent;
    request.seed = result->seed;
    request.damages = result->damages;
    return call_simple(cli, &request.base, CLI_CALL_MS);
}

int server_release(const struct cli *cli, const struct manifest_summary *summary)
{
    Holdfast__V1__ReleaseRequest request = HOLDFAST__V1__RELEASE_REQUEST__INIT;
    request.run = (char *)(uintptr_t)summary->run;
    request.step = summary->step;
    request.attempt = summary->attempt;
    return call_simple(cli, &request.base, CLI_CALL_MS);
}
