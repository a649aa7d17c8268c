/* clients_remote.c - libckpt with a ckptd on another node: loads over the network.
 *
 * Goal: every world loads correctly what every other world saved. Long runs are received in place,
 * across the ends of segments; short ones come in one piece and are copied. It also loads by the
 * user's copies, and in parts where ckptd's memory holds no whole shard. Method: a real ckptd with
 * segments of 1 MiB (clients_bed.h), saved into over its unix socket and loaded from over TLS, with
 * certificates of a test authority. tests/integration/remote.py tests saves over the network. */
#include "tests/unit/clients_bed.h"
#include "tests/unit/suite.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* ---- ckptd on two sockets ---- */

static uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    close(fd);
    return ntohs(address.sin_port);
}

static char far[64]; /* the address that ranks of other nodes have */

static void listen_far(struct bed *bed)
{
    char text[1000], identity[260];
    uint16_t port = free_port();
    shell("deploy/certificates authority %s/authority >/dev/null 2>&1", bed->root);
    shell("deploy/certificates issue %s/authority %s/node holdfast://node/n1 127.0.0.1 "
          ">/dev/null 2>&1",
          bed->root, bed->root);
    shell("deploy/certificates issue %s/authority %s/rank holdfast://operator/test "
          ">/dev/null 2>&1",
          bed->root, bed->root);
    snprintf(identity, sizeof identity, "%s/rank", bed->root);
    setenv("HOLDFAST_TLS", identity, 1);
    snprintf(far, sizeof far, "127.0.0.1:%u", port);
    snprintf(text, sizeof text,
             "[tls]\nlisten = \"%s\"\nbulk = \"127.0.0.1:%u\"\ndirectory = \"%s/node\"\n", far,
             free_port(), bed->root);
    configure_ckptd(bed, text);
    ckpt_close(open_single(bed, "await"));
}

static int open_far(void **state)
{
    int error = bed_open_with(state, "96MiB");
    if (error == 0)
        listen_far(*state);
    return error;
}

static void load_far(const struct bed *bed, uint32_t world, uint64_t seed, uint64_t step)
{
    struct group group = make_group(bed, world, seed, step);
    group.server = far;
    group.work = work_load;
    assert_int_equal(run_group(&group), 0);
}

/* ---- tests ---- */

TEST_BETWEEN(test_remote__every_world_loads_what_every_world_saved, open_far, bed_close)
{
    struct bed *bed = *state;
    static const uint32_t worlds[] = {1, 2, 3};
    for (uint32_t i = 0; i < 3; i++) {
        save_world(bed, worlds[i], 140 + i, i + 1);
        for (uint32_t j = 0; j < 3; j++)
            load_far(bed, worlds[j], 160 + 3 * i + j, i + 1);
    }
    bed->pool = "3MiB"; /* in parts, from the disk */
    restart_ckptd(bed, SIGTERM);
    ckpt_close(open_single(bed, "await"));
    for (uint32_t j = 0; j < 3; j++)
        load_far(bed, worlds[j], 180 + j, 2);
}

/* ---- the user's copies ---- */

static atomic_ulong hooked_bytes;

static void ignore_came(void *user, void *at, uint64_t bytes, bool is_writable)
{
    (void)user, (void)at, (void)bytes, (void)is_writable;
}

static void ignore_goes(void *user, void *at, uint64_t bytes)
{
    (void)user, (void)at, (void)bytes;
}

static int copy_hooked(void *user, void *to, const void *from, uint64_t bytes)
{
    (void)user;
    memcpy(to, from, bytes);
    hooked_bytes += bytes;
    return 0;
}

static int copied_hooked(void *user)
{
    (void)user;
    return 0;
}

static int work_load_hooked(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                            uint32_t rank)
{
    const struct ckpt_memory_hooks hooks = {.size = sizeof hooks,
                                            .came = ignore_came,
                                            .goes = ignore_goes,
                                            .copy = copy_hooked,
                                            .copied = copied_hooked};
    if (ckpt_hook_memory(ckpt, &hooks) != 0)
        return rank_failed(group, "hook", rank);
    return work_load(group, ckpt, tensors, rank);
}

/* A device's memory cannot be received into. */
TEST_BETWEEN(test_remote__the_users_copies_make_every_byte, open_far, bed_close)
{
    struct bed *bed = *state;
    struct group group = make_group(bed, 1, 12, 1);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < TENSORS; i++) {
        uint64_t elements = 1;
        for (uint32_t d = 0; d < model[i].dims; d++)
            elements *= model[i].shape[d];
        bytes += elements * model[i].bytes;
    }
    save_world(bed, 2, 11, 1);
    group.server = far;
    group.work = work_load_hooked;
    hooked_bytes = 0;
    assert_int_equal(run_group(&group), 0);
    assert_int_equal(hooked_bytes, bytes);
}

int main(void)
{
    if (system("command -v openssl >/dev/null") != 0) {
        puts("openssl is missing");
        return 77;
    }
    return suite_run(NULL, NULL);
}
