/* ckptd_bed.c - a ckptd inside a unit test, and a client without libckpt: calls, descriptions of
 * slices, images that are mapped and filled, saves. */
#include "tests/unit/ckptd_bed.h"

uint64_t bed_rows, bed_columns;

static void bed_stand_still(struct event *event)
{
    struct bed *bed = CONTAINER_OF(event, struct bed, turn);
    sem_post(&bed->is_held);
    while (sem_wait(&bed->may_go_on) != 0)
        ;
    sem_post(&bed->is_held);
}

void bed_hold(struct bed *bed)
{
    bed->turn.run = bed_stand_still;
    assert_int_equal(sem_init(&bed->is_held, 0, 0), 0);
    assert_int_equal(sem_init(&bed->may_go_on, 0, 0), 0);
    loop_post(bed->service->loop, &bed->turn);
    while (sem_wait(&bed->is_held) != 0)
        ;
}

void bed_go_on(struct bed *bed)
{
    sem_post(&bed->may_go_on);
    while (sem_wait(&bed->is_held) != 0) /* so the next bed_hold finds it at rest */
        ;
}

void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* ---- the service ---- */

void *bed_thread(void *argument)
{
    service_run(argument);
    return NULL;
}

void bed_end_thread(struct bed *bed)
{
    rpc_client_close(bed->rpc);
    bed->rpc = NULL;
    service_drain(bed->service);
    pthread_join(bed->thread, NULL);
}

void bed_close_service(struct bed *bed)
{
    service_close(bed->service);
    bed->service = NULL;
}

void bed_stop(struct bed *bed)
{
    if (!bed->service)
        return;
    bed_end_thread(bed);
    bed_close_service(bed);
}

/* So that no test depends on how far the pool was filled at its begin. */
static void bed_await_pool(const struct bed *bed)
{
    const struct pool *pool = bed->service->pool;
    for (int ms = 0; pool_ready_count(pool) < pool_size(pool); ms++) {
        assert_true(ms < 20000);
        sleep_ms(1);
    }
}

int bed_start(struct bed *bed)
{
    int error = service_open(&bed->service, &bed->config);
    if (error != 0)
        return error;
    assert_int_equal(pthread_create(&bed->thread, NULL, bed_thread, bed->service), 0);
    if (!bed->may_be_bare)
        bed_await_pool(bed);
    error = rpc_client_open(&bed->rpc, bed->config.listen);
    if (error != 0)
        bed_stop(bed);
    return error;
}

void bed_divert_log(struct bed *bed)
{
    char path[100];
    snprintf(path, sizeof path, "%s/log", bed->root);
    fflush(stderr);
    bed->stderr_fd = dup(STDERR_FILENO);
    bed->log_fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(bed->stderr_fd >= 0 && bed->log_fd >= 0);
    assert_int_equal(dup2(bed->log_fd, STDERR_FILENO), STDERR_FILENO);
}

void bed_read_log(struct bed *bed, char *out, size_t bytes)
{
    assert_int_equal(dup2(bed->stderr_fd, STDERR_FILENO), STDERR_FILENO);
    close(bed->stderr_fd);
    ssize_t count = pread(bed->log_fd, out, bytes - 1, 0);
    out[count > 0 ? count : 0] = '\0';
    close(bed->log_fd);
}

void bed_restart(struct bed *bed)
{
    bed_stop(bed);
    assert_int_equal(bed_start(bed), 0);
}

struct bed *bed_new_with(uint64_t rows, uint64_t columns)
{
    struct bed *bed = calloc(1, sizeof *bed);
    bed_rows = rows;
    bed_columns = columns;
    bed->run = RUN;
    const char *parent = getenv("TMPDIR");
    snprintf(bed->root, sizeof bed->root, "%s/ckptd-XXXXXX", parent ? parent : "/var/tmp");
    assert_non_null(mkdtemp(bed->root));
    char *argv[] = {"ckptd",     "--listen",
                    bed->listen, "--store",
                    bed->store,  "--memory.pool_bytes",
                    "24MiB",     "--memory.segment_bytes",
                    "1MiB",      "--limits.drain_ms",
                    "3000",      "--limits.last_save_ms",
                    "0",         NULL};
    bool help;
    memcpy(bed->argv, argv, sizeof argv);
    snprintf(bed->listen, sizeof bed->listen, "unix:%s/s", bed->root);
    snprintf(bed->store, sizeof bed->store, "%s/store", bed->root);
    assert_int_equal(config_load(&bed->config, 13, bed->argv, &help), 0);
    bed->config.limit_takeover_ms = 0; /* a start ends the one before at once */
    return bed;
}

void bed_free(struct bed *bed)
{
    bed_stop(bed);
    shell("rm -rf '%s'", bed->root);
    free(bed);
}

void bed_forget_damage(const struct bed *bed)
{
    shell("rm -rf '%s/store/" RUN "/quarantine'", bed->root);
}

int bed_tear_down(void **state)
{
    bed_free(*state);
    return 0;
}

/* ---- calls ---- */

int call(struct bed *bed, const char *method, const ProtobufCMessage *request,
         const ProtobufCMessageDescriptor *type, void *out)
{
    char name[96];
    snprintf(name, sizeof name, "/holdfast.v1.Checkpoint/%s", method);
    *(ProtobufCMessage **)out = NULL;
    return rpc_client_call(bed->rpc, name, request, type, (ProtobufCMessage **)out, CALL_MS);
}

int try_call(struct bed *bed, const char *method, const ProtobufCMessage *request)
{
    const ProtobufCMethodDescriptor *described = protobuf_c_service_descriptor_get_method_by_name(
        &holdfast__v1__checkpoint__descriptor, method);
    ProtobufCMessage *reply;
    assert_non_null(described);
    int error = call(bed, method, request, described->output, &reply);
    if (error == 0)
        protobuf_c_message_free_unpacked(reply, NULL);
    return error;
}

json_t *bed_status(struct bed *bed)
{
    Holdfast__V1__StatusRequest request = HOLDFAST__V1__STATUS_REQUEST__INIT;
    Holdfast__V1__StatusReply *reply;
    assert_int_equal(
        call(bed, "Status", &request.base, &holdfast__v1__status_reply__descriptor, &reply), 0);
    json_t *status = json_loads(reply->json, 0, NULL);
    FREE_REPLY(reply);
    assert_non_null(status);
    return status;
}

double status_number(struct bed *bed, const char *part, const char *name)
{
    json_t *status = bed_status(bed);
    const json_t *value = json_object_get(json_object_get(status, part), name);
    assert_true(json_is_number(value));
    double number = json_number_value(value);
    json_decref(status);
    return number;
}

bool wait_number(struct bed *bed, const char *part, const char *name, double want)
{
    for (int ms = 0; ms < BED_PATIENCE_MS; ms += 10) {
        if (status_number(bed, part, name) == want)
            return true;
        sleep_ms(10);
    }
    return false;
}

Holdfast__V1__ListReply *bed_list(struct bed *bed)
{
    Holdfast__V1__ListRequest request = HOLDFAST__V1__LIST_REQUEST__INIT;
    Holdfast__V1__ListReply *reply;
    request.run = RUN;
    assert_int_equal(
        call(bed, "List", &request.base, &holdfast__v1__list_reply__descriptor, &reply), 0);
    return reply;
}

int bed_pin(struct bed *bed, uint64_t step, bool unpin)
{
    Holdfast__V1__PinRequest request = HOLDFAST__V1__PIN_REQUEST__INIT;
    request.run = RUN;
    request.step = step;
    request.attempt = bed->attempt;
    request.unpin = unpin;
    request.note = "the test";
    return try_call(bed, "Pin", &request.base);
}

int open_attempt(struct bed *bed, uint32_t world_size)
{
    Holdfast__V1__OpenAttemptRequest request = HOLDFAST__V1__OPEN_ATTEMPT_REQUEST__INIT;
    Holdfast__V1__OpenAttemptReply *reply;
    request.run = (char *)(uintptr_t)bed->run;
    request.world_size = world_size;
    request.config_json = "{\"training\":{\"steps\":3}}";
    int error = call(bed, "OpenAttempt", &request.base,
                     &holdfast__v1__open_attempt_reply__descriptor, &reply);
    if (error != 0)
        return error;
    bed->attempt = reply->attempt;
    FREE_REPLY(reply);
    return 0;
}

int bed_connect(const struct bed *bed, const char *door)
{
    const struct timeval limit = {.tv_sec = BED_PATIENCE_MS / 1000};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", bed->root, door);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

int arena_ask(struct peer *peer, struct arena_request *request, int *fds)
{
    struct arena_reply reply;
    request->magic = ARENA_MAGIC;
    request->version = ARENA_VERSION;
    request->session = peer->token;
    if (send(peer->socket, request, sizeof *request, MSG_NOSIGNAL) != sizeof *request)
        return ERR_UNAVAILABLE;
    int error = arena_receive_reply(peer->socket, &reply, fds, ARENA_FDS_MAX);
    return error != 0 ? error : reply.error;
}

static int peer_connect(struct peer *peer)
{
    struct arena_request request = {.kind = ARENA_REQUEST_CONTROL};
    int fds[ARENA_FDS_MAX];
    peer->socket = arena_connect(peer->bed);
    int error = arena_ask(peer, &request, fds);
    if (error != 0)
        return error;
    peer->control =
        mmap(NULL, sizeof *peer->control, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    assert_true(peer->control != MAP_FAILED);
    close(fds[0]);
    peer->event_fd = fds[1];
    return 0;
}

void rows_init(struct rows *out, uint64_t first, uint64_t count)
{
    *out = (struct rows){
        .shape = {bed_rows, bed_columns}, .offset = {first, 0}, .extent = {count, bed_columns}};
    holdfast__v1__slice__init(&out->slice);
    out->slice.name = "weights";
    out->slice.dtype = "F32";
    out->slice.shape = out->shape;
    out->slice.offset = out->offset;
    out->slice.extent = out->extent;
    out->slice.n_shape = out->slice.n_offset = out->slice.n_extent = 2;
    out->slices[0] = &out->slice;
}

struct describing {
    struct peer *peer;
    uint32_t world_size;
    int error;
    pthread_t thread;
};

static void *describe_thread(void *argument)
{
    struct describing *describing = argument;
    struct peer *peer = describing->peer;
    uint64_t each = bed_rows / describing->world_size;
    struct rows rows;
    Holdfast__V1__DescribeRequest request = HOLDFAST__V1__DESCRIBE_REQUEST__INIT;
    Holdfast__V1__DescribeReply *reply;
    rows_init(&rows, peer->rank * each, each);
    request.run = (char *)(uintptr_t)peer->bed->run;
    request.attempt = peer->bed->attempt;
    request.rank = peer->rank;
    request.world_size = describing->world_size;
    request.slices = rows.slices;
    request.n_slices = 1;
    describing->error = call(peer->bed, "Describe", &request.base,
                             &holdfast__v1__describe_reply__descriptor, &reply);
    if (describing->error != 0)
        return NULL;
    peer->token = reply->session;
    peer->image_bytes = reply->image_bytes;
    peer->data_byte = reply->items[0]->image_byte;
    peer->bytes = reply->items[0]->bytes;
    peer->image_segments = reply->image_segments;
    peer->num_ahead = (uint32_t)reply->n_segments;
    assert_true(peer->num_ahead <= POOL_SEGMENTS_MAX);
    for (uint32_t i = 0; i < peer->num_ahead; i++)
        peer->ahead[i] = reply->segments[i];
    FREE_REPLY(reply);
    describing->error = peer_connect(peer);
    return NULL;
}

int peers_open(struct peer *peers, struct bed *bed, uint32_t world_size)
{
    struct describing describing[PEERS_MAX];
    int error = 0;
    assert_true(world_size <= PEERS_MAX);
    memset(peers, 0, world_size * sizeof *peers);
    for (uint32_t i = 0; i < world_size; i++) {
        peers[i] = (struct peer){.bed = bed, .rank = i, .socket = -1, .event_fd = -1};
        describing[i] = (struct describing){.peer = &peers[i], .world_size = world_size};
        pthread_create(&describing[i].thread, NULL, describe_thread, &describing[i]);
    }
    for (uint32_t i = 0; i < world_size; i++) {
        pthread_join(describing[i].thread, NULL);
        error = error != 0 ? error : describing[i].error;
    }
    return error;
}

void peer_close(struct peer *peer)
{
    for (uint32_t i = 0; i < POOL_SEGMENTS_MAX; i++)
        if (peer->mapped[i])
            munmap(peer->mapped[i], (size_t)peer->bed->config.segment_bytes);
    if (peer->control)
        munmap(peer->control, sizeof *peer->control);
    if (peer->event_fd >= 0)
        close(peer->event_fd);
    if (peer->socket >= 0)
        close(peer->socket);
    memset(peer->mapped, 0, sizeof peer->mapped);
    peer->control = NULL;
    peer->event_fd = peer->socket = -1;
}

void peers_close(struct peer *peers, uint32_t world_size)
{
    for (uint32_t i = 0; i < world_size; i++)
        peer_close(&peers[i]);
}

/* ---- saving ---- */

int peer_map(struct peer *peer, const uint32_t *segments, uint32_t count, bool writable)
{
    for (uint32_t i = 0; i < count; i++) {
        struct arena_request request = {.kind = ARENA_REQUEST_SEGMENTS,
                                        .num_segments = 1,
                                        .writable = writable,
                                        .segments = {segments[i]}};
        int fds[ARENA_FDS_MAX];
        if (writable && peer->mapped[segments[i]])
            continue;
        int error = arena_ask(peer, &request, fds);
        if (error != 0)
            return error;
        void *map = mmap(NULL, (size_t)peer->bed->config.segment_bytes,
                         PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fds[0], 0);
        close(fds[0]);
        assert_true(map != MAP_FAILED);
        if (peer->mapped[segments[i]])
            munmap(peer->mapped[segments[i]], (size_t)peer->bed->config.segment_bytes);
        peer->mapped[segments[i]] = map;
    }
    return 0;
}

uint8_t *peer_byte(const struct peer *peer, uint64_t image_byte)
{
    uint64_t segment = (uint64_t)peer->bed->config.segment_bytes;
    uint32_t number = peer->segments[image_byte / segment % peer->num_segments];
    return peer->mapped[number] + image_byte % segment;
}

int peer_begin_within(struct peer *peer, uint64_t step, uint32_t busy_ms)
{
    Holdfast__V1__BeginSaveRequest request = HOLDFAST__V1__BEGIN_SAVE_REQUEST__INIT;
    Holdfast__V1__BeginSaveReply *reply;
    request.session = peer->token;
    request.step = step;
    request.state_json = peer->state_json ? (char *)(uintptr_t)peer->state_json : "";
    request.busy_ms = busy_ms;
    request.is_last = peer->is_last;
    int error = call(peer->bed, "BeginSave", &request.base,
                     &holdfast__v1__begin_save_reply__descriptor, &reply);
    if (error != 0)
        return error;
    peer->save = reply->save;
    peer->slot = reply->image;
    peer->num_segments = (uint32_t)reply->n_segments;
    memcpy(peer->segments, reply->segments, reply->n_segments * sizeof *reply->segments);
    FREE_REPLY(reply);
    return peer_map(peer, peer->segments, peer->num_segments, true);
}

int peer_begin(struct peer *peer, uint64_t step)
{
    return peer_begin_within(peer, step, 0);
}

uint32_t element(uint64_t step, uint64_t index)
{
    return (uint32_t)(step * 2654435761u + index * 40503u);
}

void peer_fill_part(struct peer *peer, uint64_t step, uint64_t from, uint64_t to)
{
    uint64_t first = peer->rank * (peer->bytes / 4);
    for (uint64_t i = from / 4; i < to / 4; i++) {
        uint32_t value = element(step, first + i);
        memcpy(peer_byte(peer, peer->data_byte + 4 * i), &value, 4);
    }
}

void peer_fill(struct peer *peer, uint64_t step)
{
    peer_fill_part(peer, step, 0, peer->bytes);
}

void peer_announce(struct peer *peer, uint32_t kind, uint64_t offset, uint64_t bytes)
{
    struct arena_entry entry = {
        .kind = kind, .image = peer->slot, .save = peer->save, .offset = offset, .bytes = bytes};
    uint64_t one = 1;
    while (!arena_push(peer->control, &entry))
        sleep_ms(1);
    assert_int_equal(write(peer->event_fd, &one, sizeof one), sizeof one);
}

void peer_finish(struct peer *peer, uint64_t step)
{
    peer_fill(peer, step);
    peer_announce(peer, ARENA_ENTRY_RANGE, peer->data_byte, peer->bytes);
    peer_announce(peer, ARENA_ENTRY_END, 0, 0);
}

void peer_abort(struct peer *peer)
{
    Holdfast__V1__AbortSaveRequest request = HOLDFAST__V1__ABORT_SAVE_REQUEST__INIT;
    request.session = peer->token;
    request.save = peer->save;
    request.reason = "changed its mind";
    assert_int_equal(try_call(peer->bed, "AbortSave", &request.base), 0);
}

Holdfast__V1__SaveState ask_save(struct bed *bed, uint64_t step, uint32_t timeout_ms,
                                 char reason[512])
{
    Holdfast__V1__WaitSaveRequest request = HOLDFAST__V1__WAIT_SAVE_REQUEST__INIT;
    Holdfast__V1__WaitSaveReply *reply;
    request.run = (char *)(uintptr_t)bed->run;
    request.step = step;
    request.attempt = bed->attempt;
    request.timeout_ms = timeout_ms;
    assert_int_equal(
        call(bed, "WaitSave", &request.base, &holdfast__v1__wait_save_reply__descriptor, &reply),
        0);
    Holdfast__V1__SaveState state = reply->state;
    if (reason)
        snprintf(reason, 512, "%s", reply->reason);
    FREE_REPLY(reply);
    return state;
}

Holdfast__V1__SaveState wait_save(struct bed *bed, uint64_t step, char reason[512])
{
    return ask_save(bed, step, 10000, reason);
}

bool save_step(struct peer *peers, uint32_t world_size, uint64_t step)
{
    for (uint32_t i = 0; i < world_size; i++)
        if (peer_begin(&peers[i], step) != 0)
            return false;
    for (uint32_t i = 0; i < world_size; i++)
        peer_finish(&peers[i], step);
    return wait_save(peers[0].bed, step, NULL) == HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED;
}

void bed_open_world(struct bed *bed, struct peer *peers, uint32_t world_size)
{
    assert_int_equal(open_attempt(bed, world_size), 0);
    assert_int_equal(peers_open(peers, bed, world_size), 0);
}

void bed_flip_byte(const struct bed *bed, uint64_t step, uint64_t attempt, const char *file,
                   uint64_t at)
{
    char path[300];
    uint8_t byte;
    snprintf(path, sizeof path, "%s/store/" RUN "/step-%08llu-a%04llu/%s", bed->root,
             (unsigned long long)step, (unsigned long long)attempt, file);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

void bed_save_steps(struct bed *bed, struct peer *peers, uint32_t world_size, uint64_t first,
                    uint64_t last)
{
    bed_open_world(bed, peers, world_size);
    for (uint64_t step = first; step <= last; step++)
        assert_true(save_step(peers, world_size, step));
    peers_close(peers, world_size);
}
