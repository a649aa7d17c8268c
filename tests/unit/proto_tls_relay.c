/* proto_tls_relay.c - whose place in the handshake a newcomer takes.
 *
 * Goal: of connections that come in one turn of the relay's thread the oldest silent ones make
 * room, and a client that has sent its first bytes is never among them. Method: a verified peer
 * holds the relay's thread in its callback while the others are handed over, so that all of them
 * come in one turn. */
#include "proto/tls/stream.h"
#include "proto/tls/tls.h"
#include "tests/unit/shell.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WAIT_MS = 20000, CROWD = 3 * TLS_HANDSHAKES_EACH };

struct world {
    char folder[128], server[160], client[160];
    struct tls_relay *relay;
    struct tls_keys *keys;
    sem_t entered, may_go;
    int num_verified;
};

/* The first holds the thread. */
static void verified(void *user, int socket, const struct principal *principal)
{
    struct world *world = user;
    (void)principal;
    close(socket);
    world->num_verified++;
    sem_post(&world->entered);
    if (world->num_verified == 1)
        sem_wait(&world->may_go);
}

static int open_world(void **state)
{
    static struct world world;
    const char *parent = getenv("TMPDIR");
    snprintf(world.folder, sizeof world.folder, "%s/tr-XXXXXX", parent ? parent : "/var/tmp");
    if (mkdtemp(world.folder) == NULL)
        return -1;
    snprintf(world.server, sizeof world.server, "%s/node", world.folder);
    snprintf(world.client, sizeof world.client, "%s/anna", world.folder);
    shell("deploy/certificates authority %s/authority >/dev/null 2>&1", world.folder);
    shell("deploy/certificates issue %s/authority %s holdfast://node/n1 127.0.0.1 >/dev/null 2>&1",
          world.folder, world.server);
    shell("deploy/certificates issue %s/authority %s holdfast://operator/anna >/dev/null 2>&1",
          world.folder, world.client);
    const struct tls_relay_options options = {.directory = world.server,
                                              .num_connections = 10 * CROWD,
                                              .user = &world,
                                              .verified = verified};
    sem_init(&world.entered, 0, 0);
    sem_init(&world.may_go, 0, 0);
    signal(SIGPIPE, SIG_IGN);
    *state = &world;
    return tls_keys_open_client(&world.keys, world.client, "h2") != 0 ||
           tls_relay_open(&world.relay, &options) != 0;
}

static int close_world(void **state)
{
    struct world *world = *state;
    tls_relay_close(world->relay);
    tls_keys_close(world->keys);
    shell("rm -rf '%s'", world->folder);
    return 0;
}

/* The client's end of a connection that the relay gets. */
static int connect_from(struct world *world, const char *from, int *out_of_relay)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    *out_of_relay = pair[1];
    if (from != NULL)
        tls_relay_adopt(world->relay, pair[1], from);
    return pair[0];
}

static void shake_hands(struct world *world, int socket)
{
    struct tls_stream *stream = NULL;
    assert_int_equal(tls_stream_open(&stream, world->keys, socket, "127.0.0.1", WAIT_MS, NULL), 0);
    sem_wait(&world->entered);
    tls_stream_close(stream);
}

struct honest {
    struct world *world;
    int socket;
};

static void *come_in(void *argument)
{
    const struct honest *honest = argument;
    shake_hands(honest->world, honest->socket);
    return NULL;
}

static bool is_closed(int socket)
{
    struct pollfd state = {.fd = socket, .events = POLLIN};
    return poll(&state, 1, 0) == 1;
}

static void test_relay__the_oldest_silent_connections_make_room(void **state)
{
    struct world *world = *state;
    int silent[CROWD], of_relay;
    struct honest honest = {.world = world};
    pthread_t thread;
    shake_hands(world, connect_from(world, "10.0.0.1", &of_relay)); /* it holds the thread now */
    honest.socket = connect_from(world, NULL, &of_relay);
    assert_int_equal(pthread_create(&thread, NULL, come_in, &honest), 0);
    struct pollfd first = {.fd = of_relay, .events = POLLIN};
    assert_int_equal(poll(&first, 1, WAIT_MS), 1); /* its first bytes are there */
    tls_relay_adopt(world->relay, of_relay, "10.0.0.2");
    for (int i = 0; i < CROWD; i++)
        silent[i] = connect_from(world, "10.0.0.2", &of_relay);
    sem_post(&world->may_go);
    pthread_join(thread, NULL);
    assert_int_equal(world->num_verified, 2);
    /* One of the places was the honest client's while they came. */
    for (int i = 0; i < CROWD; i++) {
        assert_int_equal(is_closed(silent[i]), i < CROWD - (int)TLS_HANDSHAKES_EACH + 1);
        close(silent[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
        test_relay__the_oldest_silent_connections_make_room, open_world, close_world)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
