/* ckptd_rights.c - which users may make which requests.
 *
 * Goal: of the admitted users only operators may remove, free or add checkpoints. Every method,
 * also a new one, is for all, for operators or for other nodes, in both tables. A refusal tells the
 * user which setting to change, and the log names him. ckptd's own user and root are operators;
 * operators are admitted. Method: the service of ckptd_bed.h. The callers are children that become
 * other users before gRPC is started in this process, and call on command. Requests set only the
 * one flag that decides, so accepted requests have no effect. */
#include "tests/unit/ckptd_bed.h"
#include "tests/unit/suite.h"

#include <sys/stat.h>
#include <sys/wait.h>

#define USER 12345u
#define CHIEF 12346u /* an operator */

struct ask {
    char method[16];
    char flag[16]; /* a field of the request that is set; "": none */
    bool for_operators, for_nodes;
};

static const struct ask asks[] = {
    {"Hello", "", false, false},         {"OpenAttempt", "", false, false},
    {"Describe", "", false, false},      {"BeginSave", "", false, false},
    {"WaitSave", "", false, false},      {"TellReplicas", "", false, false},
    {"AbortSave", "", false, false},     {"OpenLoad", "", false, false},
    {"LoadShard", "", false, false},     {"ReleaseShard", "", false, false},
    {"CloseLoad", "", false, false},     {"List", "", false, false},
    {"Show", "", false, false},          {"Prune", "", true, false},
    {"Prune", "dry_run", false, false},  {"Pin", "", false, false},
    {"Pin", "unpin", true, false},       {"Release", "", true, false},
    {"Adopt", "", true, false},          {"Gc", "", true, false},
    {"Gc", "dry_run", false, false},     {"Status", "", false, false},
    {"Scrub", "", true, false},          {"History", "", false, false},
    {"Rescan", "", false, false},        {"Remove", "", true, false},
    {"Remove", "dry_run", false, false}, {"Reload", "", true, false},
    {"Undelete", "", true, false},       {"Undelete", "dry_run", false, false},
    {"ForceAttempt", "", true, false},   {"ForceAttempt", "dry_run", false, false},
    {"KeepVerified", "", true, false},   {"Stop", "", false, false},
    {"AskSave", "", false, false},       {"OpenBulk", "", false, false},
    {"Peer", "", false, true},           {"Join", "", false, true},
    {"BeginPart", "", false, true},      {"ReportPart", "", false, true},
    {"Attend", "", false, false},
};
#define NUM_ASKS (sizeof asks / sizeof *asks)

struct answer {
    int error;
    char line[512];
};

/* Another user, in a separate process. */
struct caller {
    uid_t uid;
    pid_t pid;
    int socket;
};
static struct caller user = {.uid = USER}, chief = {.uid = CHIEF};

/* ---- asking ---- */

static struct answer ask(const char *listen, const struct ask *what)
{
    char name[96];
    struct rpc_client *client = NULL;
    ProtobufCMessage *reply = NULL;
    const ProtobufCMethodDescriptor *method = protobuf_c_service_descriptor_get_method_by_name(
        &holdfast__v1__checkpoint__descriptor, what->method);
    CHECK(method);
    ProtobufCMessage *request = calloc(1, method->input->sizeof_message);
    CHECK(request);
    protobuf_c_message_init(method->input, request);
    if (what->flag[0]) {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name(method->input, what->flag);
        CHECK(field && field->type == PROTOBUF_C_TYPE_BOOL);
        *(protobuf_c_boolean *)((char *)request + field->offset) = true;
    }
    snprintf(name, sizeof name, "/holdfast.v1.Checkpoint/%s", what->method);
    struct answer answer = {.error = rpc_client_open(&client, listen)};
    if (answer.error == 0)
        answer.error = rpc_client_call(client, name, request, method->output, &reply, CALL_MS);
    snprintf(answer.line, sizeof answer.line, "%s", answer.error == 0 ? "" : report_line());
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    rpc_client_close(client);
    free(request);
    return answer;
}

/* Makes the calls that the parent names, until the parent closes the pipe. */
static void serve(const struct caller *caller, int socket)
{
    char listen[128];
    struct ask what;
    if (setgid(caller->uid) != 0 || setuid(caller->uid) != 0)
        return;
    while (recv(socket, listen, sizeof listen, MSG_WAITALL) == sizeof listen &&
           recv(socket, &what, sizeof what, MSG_WAITALL) == sizeof what) {
        struct answer answer = ask(listen, &what);
        if (send(socket, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
            return;
    }
}

static void start(struct caller *caller)
{
    int sockets[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    caller->pid = fork();
    CHECK(caller->pid >= 0);
    if (caller->pid == 0) {
        close(sockets[0]);
        serve(caller, sockets[1]);
        _exit(0);
    }
    close(sockets[1]);
    caller->socket = sockets[0];
}

static void end(const struct caller *caller)
{
    shutdown(caller->socket, SHUT_RDWR); /* the other child has a copy */
    close(caller->socket);
    waitpid(caller->pid, NULL, 0);
}

static struct answer ask_as(const struct caller *caller, const struct bed *bed,
                            const struct ask *what)
{
    struct answer answer;
    char listen[128] = "";
    memcpy(listen, bed->config.listen, sizeof listen);
    assert_int_equal(send(caller->socket, listen, sizeof listen, MSG_NOSIGNAL), sizeof listen);
    assert_int_equal(send(caller->socket, what, sizeof *what, MSG_NOSIGNAL), sizeof *what);
    assert_int_equal(recv(caller->socket, &answer, sizeof answer, MSG_WAITALL), sizeof answer);
    return answer;
}

static void restart(struct bed *bed, const char *uids, const char *operators)
{
    if (geteuid() != 0) {
        print_message("skipped: only root can become another user\n");
        skip();
    }
    bed_stop(bed);
    snprintf(bed->config.access_uids, sizeof bed->config.access_uids, "%s", uids);
    snprintf(bed->config.access_operators, sizeof bed->config.access_operators, "%s", operators);
    assert_int_equal(bed_start(bed), 0);
    assert_int_equal(chmod(bed->root, 0755), 0);
}

/* ---- the tests ---- */

TEST(test_rights__each_method_is_for_all_or_for_operators)
{
    const ProtobufCServiceDescriptor *service = &holdfast__v1__checkpoint__descriptor;
    for (unsigned i = 0; i < service->n_methods; i++) {
        bool is_decided = false;
        for (size_t j = 0; j < NUM_ASKS; j++)
            is_decided |= strcmp(service->methods[i].name, asks[j].method) == 0;
        if (!is_decided)
            fail_msg("%s is not in the table of this test", service->methods[i].name);
    }
}

BED_TEST(test_rights__a_user_is_refused_what_operators_may)
{
    restart(bed, "12345", "12346");
    for (size_t i = 0; i < NUM_ASKS; i++) {
        struct answer answer = ask_as(&user, bed, &asks[i]);
        bool is_refused =
            answer.error == ERR_DENIED && strstr(answer.line, "access.operators") != NULL;
        if (is_refused != asks[i].for_operators ||
            (answer.error == ERR_DENIED) != (asks[i].for_operators || asks[i].for_nodes) ||
            answer.error == ERR_UNAVAILABLE)
            fail_msg("%s %s: %d %s", asks[i].method, asks[i].flag, answer.error, answer.line);
    }
}

BED_TEST(test_rights__an_operator_and_ckptds_own_user_are_refused_nothing)
{
    restart(bed, "12345", "12346");
    for (size_t i = 0; i < NUM_ASKS; i++) {
        struct answer answer = ask_as(&chief, bed, &asks[i]);
        struct answer own = ask(bed->config.listen, &asks[i]);
        if ((answer.error == ERR_DENIED) != asks[i].for_nodes || answer.error == ERR_UNAVAILABLE ||
            own.error != answer.error)
            fail_msg("%s %s: %d %s, own user: %d %s", asks[i].method, asks[i].flag, answer.error,
                     answer.line, own.error, own.line);
    }
}

BED_TEST(test_rights__operators_alone_open_the_door_to_themselves)
{
    static const struct ask hello = {"Hello", "", false, false}, gc = {"Gc", "", true, false};
    restart(bed, "", "12346");
    assert_int_equal(ask_as(&chief, bed, &gc).error, 0);
    assert_int_equal(ask_as(&user, bed, &hello).error, ERR_UNAVAILABLE);
    restart(bed, "12345", "");
    assert_int_equal(ask_as(&user, bed, &hello).error, 0);
    assert_int_equal(ask_as(&user, bed, &gc).error, ERR_DENIED);
    assert_int_equal(ask_as(&chief, bed, &hello).error, ERR_UNAVAILABLE);
}

BED_TEST(test_rights__who_is_refused_is_in_the_log)
{
    static const struct ask adopt = {"Adopt", "", true, false},
                            unpin = {"Pin", "unpin", true, false};
    char want[120], text[8192];
    restart(bed, "12345", "12346");
    bed_divert_log(bed);
    struct answer adopted = ask_as(&user, bed, &adopt), unpinned = ask_as(&user, bed, &unpin);
    bed_read_log(bed, text, sizeof text);
    assert_int_equal(adopted.error, ERR_DENIED);
    assert_int_equal(unpinned.error, ERR_DENIED);
    snprintf(want, sizeof want, "warn audit: Adopt refused to user 12345, process %d", user.pid);
    assert_non_null(strstr(text, want));
    snprintf(want, sizeof want, "warn audit: Pin refused to user 12345, process %d, unpin",
             user.pid);
    assert_non_null(strstr(text, want));
    assert_null(strstr(text, "asked for"));
}

int main(void)
{
    log_setup("ckptd_rights", NULL);
    start(&user);
    start(&chief);
    int failed = suite_run(NULL, NULL);
    end(&user);
    end(&chief);
    return failed;
}
