/* hub.c - the thread of rank 0 that handles the calls of all ranks.
 *
 * A group has a member for each of its ranks, and each member a connection (link). When all members
 * of a group have sent a call, the hub compares the calls and answers all. It never waits for a
 * single member, except for the rest of a frame that has begun.
 *
 * A member that leaves with TCP_KIND_BYE breaks its group: calls of other members fail, both
 * current and later ones. If a connection ends without it, its rank is lost: the hub tells each
 * rank which one, and ends. It also ends when every rank has left the world in order, and when not
 * all have come in time: then it tells each rank which are missing.
 *
 * A connection without a hello is closed. A second connection of the same rank is refused, and the
 * first stays. */
#include "proto/base/report.h"
#include "trainer/comm/tcp/private.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define FRAME_SECONDS 30 /* limit for the rest of a frame */
#define CHECK_MS 100     /* interval of clock checks, until all ranks are connected */

struct group;
/* A connection; it belongs to a member after its hello. */
struct link {
    int fd;
    uint32_t rank, world_rank;
    struct group *group; /* NULL: no hello so far, or the listener */
    struct link *next;   /* in the list without a hello */
    bool has_asked;
    uint32_t made; /* of a split: its new group */
    struct tcp_ask ask;
    char *data; /* of the call */
};
struct group {
    struct group *next;
    uint32_t id, size;
    /* Members that are connected; wait for the answer; have left. */
    uint32_t num_here, num_asked, num_left;
    bool is_broken;
    uint32_t left; /* the rank that broke it */
    struct link **members;
};
struct hub {
    struct link listener;
    int events;
    pthread_t thread;
    struct tcp_options options;
    struct timespec until;  /* deadline for all ranks to connect */
    struct group *groups;   /* the world is the last */
    struct link *strangers; /* connections without a hello */
    uint32_t num_groups;    /* made */
    bool has_begun;         /* all ranks were connected */
    bool is_over;
    char reason[TCP_TEXT_MAX]; /* the first reason, for all links that end later; "": none */
};

/* ---- Answers ---- */

/* If the answer does not arrive, the end of the connection is noticed later. */
static void answer(struct link *link, struct tcp_answer head, const void *data)
{
    struct timespec until = tcp_deadline(FRAME_SECONDS);
    if (tcp_send(link->fd, &head, sizeof(head), &until) == 0)
        (void)tcp_send(link->fd, data, head.bytes, &until);
}

static void answer_text(struct link *link, int error, const char *text)
{
    answer(link, (struct tcp_answer){.error = error, .bytes = strlen(text)}, text);
}

/* Removes a link from the list of those without a hello. */
static void forget(struct hub *hub, const struct link *link)
{
    struct link **at = &hub->strangers;
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
}

static void close_link(struct hub *hub, struct link *link)
{
    (void)epoll_ctl(hub->events, EPOLL_CTL_DEL, link->fd, NULL);
    if (link->group != NULL)
        link->group->members[link->rank] = NULL;
    else
        forget(hub, link);
    close(link->fd);
    free(link->data);
    free(link);
}

/* Tells every rank, and ends the hub. */
static void end_all(struct hub *hub, const char *text)
{
    if (hub->is_over)
        return;
    hub->is_over = true;
    if (hub->reason[0] == '\0')
        snprintf(hub->reason, sizeof(hub->reason), "%s", text);
    for (struct group *group = hub->groups; group != NULL; group = group->next)
        for (uint32_t r = 0; r < group->size; r++)
            if (group->members[r] != NULL) {
                answer_text(group->members[r], ERR_UNAVAILABLE, hub->reason);
                shutdown(group->members[r]->fd, SHUT_RDWR);
            }
}

static void break_group(struct hub *hub, struct group *group)
{
    group->is_broken = true;
    for (uint32_t r = 0; r < group->size; r++)
        if (group->members[r] != NULL && group->members[r]->has_asked) {
            if (hub->reason[0] == '\0')
                snprintf(hub->reason, sizeof(hub->reason),
                         "rank %u of a group has closed its connection", group->left);
            answer_text(group->members[r], ERR_UNAVAILABLE, hub->reason);
            group->members[r]->has_asked = false;
        }
    group->num_asked = 0;
}

/* ---- Groups ---- */

static struct group *new_group(struct hub *hub, uint32_t size)
{
    struct group *group = calloc(1, sizeof(*group));
    if (group != NULL)
        group->members = calloc(size, sizeof(struct link *));
    if (group == NULL || group->members == NULL) {
        free(group);
        return NULL;
    }
    group->id = hub->num_groups++;
    group->size = size;
    group->next = hub->groups;
    return hub->groups = group;
}

static struct group *find_group(struct hub *hub, uint32_t id)
{
    struct group *group = hub->groups;
    while (group != NULL && group->id != id)
        group = group->next;
    return group;
}

static void free_group(struct hub *hub, struct group *group)
{
    struct group **at = &hub->groups;
    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    free(group->members);
    free(group);
}

/* ---- complete calls ---- */

static bool is_same(const struct tcp_ask *a, const struct tcp_ask *b)
{
    return memcmp(&a->sign, &b->sign, offsetof(struct comm_sign, site)) == 0;
}

/* Tells each member whose call differs about the other call. */
static bool are_all_same(struct group *group)
{
    struct link **m = group->members;
    bool is_well = true;
    for (uint32_t r = 1; r < group->size; r++)
        is_well = is_well && is_same(&m[0]->ask, &m[r]->ask);
    for (uint32_t r = 0; r < group->size && !is_well; r++) {
        uint32_t other = 0;
        while (other + 1 < group->size && is_same(&m[r]->ask, &m[other]->ask))
            other++;
        answer(m[r],
               (struct tcp_answer){
                   .error = ERR_MISMATCH, .about = other, .bytes = sizeof(struct comm_sign)},
               &m[other]->ask.sign);
    }
    return is_well;
}

static void answer_each(struct group *group, const void *data, uint64_t bytes)
{
    for (uint32_t r = 0; r < group->size; r++)
        answer(group->members[r], (struct tcp_answer){.bytes = bytes}, data);
}

static int gather(struct group *group)
{
    uint64_t bytes = 0, at = 0;
    for (uint32_t r = 0; r < group->size; r++)
        bytes += group->members[r]->ask.bytes;
    char *all = malloc(bytes + 1);
    if (all == NULL)
        return ERR_MEMORY;
    for (uint32_t r = 0; r < group->size; at += group->members[r++]->ask.bytes)
        memcpy(all + at, group->members[r]->data, group->members[r]->ask.bytes);
    answer_each(group, all, bytes);
    free(all);
    return 0;
}

static int broadcast(struct group *group)
{
    uint64_t root = group->members[0]->ask.sign.peer;
    if (root >= group->size)
        return ERR_INVALID;
    for (uint32_t r = 0; r < group->size; r++)
        answer(group->members[r],
               (struct tcp_answer){.bytes = r == root ? 0 : group->members[root]->ask.bytes},
               group->members[root]->data);
    return 0;
}

static int sum(struct group *group)
{
    int64_t *sums = (int64_t *)(void *)group->members[0]->data;
    uint64_t bytes = group->members[0]->ask.bytes;
    for (uint32_t r = 1; r < group->size; r++) {
        const int64_t *from = (const int64_t *)(void *)group->members[r]->data;
        if (group->members[r]->ask.bytes != bytes)
            return ERR_INVALID;
        for (uint64_t i = 0; i < bytes / sizeof(int64_t); i++)
            sums[i] += from[i];
    }
    answer_each(group, sums, bytes);
    return 0;
}

/* A member's data are the sizes of its parts, then the parts. */
static bool has_parts(const struct link *link, uint32_t size)
{
    const uint64_t *bytes = (const uint64_t *)(void *)link->data;
    uint64_t left = link->ask.bytes;
    bool is_well = left >= size * sizeof(*bytes);
    left -= is_well ? size * sizeof(*bytes) : 0;
    for (uint32_t r = 0; r < size && is_well; r++) {
        is_well = bytes[r] <= left;
        left -= is_well ? bytes[r] : 0;
    }
    return is_well && left == 0;
}

static int exchange_for(struct group *group, uint32_t rank)
{
    uint64_t num = 0, at = 0;
    for (uint32_t r = 0; r < group->size; r++)
        num += ((const uint64_t *)(void *)group->members[r]->data)[rank];
    char *all = malloc(num + 1);
    if (all == NULL)
        return ERR_MEMORY;
    for (uint32_t r = 0; r < group->size; r++) {
        const uint64_t *bytes = (const uint64_t *)(void *)group->members[r]->data;
        const char *part = (const char *)(bytes + group->size);
        for (uint32_t i = 0; i < rank; i++)
            part += bytes[i];
        memcpy(all + at, part, bytes[rank]);
        at += bytes[rank];
    }
    answer(group->members[rank], (struct tcp_answer){.bytes = num}, all);
    free(all);
    return 0;
}

static int exchange(struct group *group)
{
    for (uint32_t r = 0; r < group->size; r++)
        if (!has_parts(group->members[r], group->size))
            return ERR_INVALID;
    for (uint32_t r = 0; r < group->size; r++)
        ERR_TRY(exchange_for(group, r));
    return 0;
}

/* Orders ranks by key, then by rank. */
static int split(struct hub *hub, struct group *group)
{
    for (uint32_t r = 0; r < group->size; r++) {
        const struct tcp_ask *mine = &group->members[r]->ask;
        struct tcp_place place = {0};
        bool is_first = true;
        for (uint32_t j = 0; j < group->size; j++) {
            const struct tcp_ask *other = &group->members[j]->ask;
            if (other->color != mine->color)
                continue;
            place.size++;
            place.rank += other->key != mine->key ? other->key < mine->key : j < r;
            is_first = is_first && j >= r;
        }
        if (is_first && new_group(hub, place.size) == NULL)
            return ERR_MEMORY;
        group->members[r]->made = hub->num_groups - 1;
        for (uint32_t j = 0; j < r && !is_first; j++)
            if (group->members[j]->ask.color == mine->color)
                group->members[r]->made = group->members[j]->made;
        place.group = group->members[r]->made;
        answer(group->members[r], (struct tcp_answer){.bytes = sizeof(place)}, &place);
    }
    return 0;
}

static int complete(struct hub *hub, struct group *group)
{
    if (!are_all_same(group))
        return 0;
    switch ((enum comm_kind)group->members[0]->ask.sign.kind) {
    case COMM_SPLIT:
        return split(hub, group);
    case COMM_BARRIER:
        answer_each(group, NULL, 0);
        return 0;
    case COMM_BROADCAST:
        return broadcast(group);
    case COMM_ALL_GATHER:
        return gather(group);
    case COMM_ALL_TO_ALL:
        return exchange(group);
    case COMM_SUM_I64:
        return sum(group);
    default:
        return ERR_INVALID;
    }
}

/* ---- received frames ---- */

static void complete_call(struct hub *hub, struct group *group)
{
    int rc = complete(hub, group);
    group->num_asked = 0;
    for (uint32_t r = 0; r < group->size; r++) {
        free(group->members[r]->data);
        group->members[r]->data = NULL;
        group->members[r]->has_asked = false;
    }
    if (rc != 0)
        end_all(hub, rc == ERR_MEMORY ? "rank 0 has no memory for a call"
                                      : "a rank sent an invalid call");
}

/* The rank's connection has ended, or has sent an invalid frame. */
static void remove_member(struct hub *hub, struct link *link, bool is_bye)
{
    struct group *group = link->group;
    char text[TCP_TEXT_MAX];
    uint32_t rank = link->rank, world_rank = link->world_rank;
    close_link(hub, link);
    if (group == NULL)
        return;
    if (!is_bye) {
        snprintf(text, sizeof(text), "rank %u has ended", world_rank);
        if (!hub->is_over)
            log_warn("comm", "%s, so all ranks end", text);
        end_all(hub, text);
        return;
    }
    if (!group->is_broken)
        group->left = rank;
    break_group(hub, group);
    if (++group->num_left < group->size)
        return;
    if (group->id == 0)
        hub->is_over = true;
    else
        free_group(hub, group);
}

static void take_call(struct hub *hub, struct link *link)
{
    struct timespec until = tcp_deadline(FRAME_SECONDS);
    struct group *group = link->group;
    int rc = tcp_receive(link->fd, &link->ask, sizeof(link->ask), &until);
    bool is_bye = rc == 0 && link->ask.sign.kind == TCP_KIND_BYE;
    if (rc != 0 || is_bye || link->has_asked || link->ask.bytes > TCP_FRAME_MAX) {
        remove_member(hub, link, is_bye);
        return;
    }
    link->data = malloc(link->ask.bytes + sizeof(uint64_t));
    if (link->data == NULL || tcp_receive(link->fd, link->data, link->ask.bytes, &until) != 0) {
        remove_member(hub, link, false);
        return;
    }
    link->has_asked = true;
    if (group->is_broken)
        break_group(hub, group);
    else if (++group->num_asked == group->size)
        complete_call(hub, group);
}

static void refuse_link(struct hub *hub, struct link *link, const char *text)
{
    answer_text(link, ERR_INVALID, text);
    close_link(hub, link);
}

/* Members of the world are answered when all ranks are connected. */
static void welcome(struct hub *hub, struct link *link)
{
    struct group *group = link->group;
    if (group->id != 0)
        answer(link, (struct tcp_answer){.error = 0}, NULL);
    else if (group->num_here == group->size)
        answer_each(group, NULL, 0);
    hub->has_begun = hub->has_begun || (group->id == 0 && group->num_here == group->size);
}

static void take_hello(struct hub *hub, struct link *link)
{
    struct tcp_hello hello;
    char text[TCP_TEXT_MAX];
    if (recv(link->fd, &hello, sizeof(hello), MSG_DONTWAIT) != sizeof(hello) ||
        hello.magic != TCP_MAGIC) {
        close_link(hub, link); /* not a rank of this run */
        return;
    }
    struct group *group = find_group(hub, hello.group);
    if (group == NULL || group->size != hello.size || hello.rank >= hello.size) {
        snprintf(text, sizeof(text),
                 "this process is rank %u of %u, but rank 0 has a WORLD_SIZE of %u", hello.rank,
                 hello.size, hub->options.size);
        refuse_link(hub, link, text);
        return;
    }
    if (group->members[hello.rank] != NULL) {
        snprintf(text, sizeof(text), "another process is rank %u of this run", hello.rank);
        refuse_link(hub, link, text);
        return;
    }
    forget(hub, link);
    link->group = group;
    link->rank = hello.rank;
    link->world_rank = hello.world_rank;
    group->members[hello.rank] = link;
    group->num_here++;
    welcome(hub, link);
}

static void accept_one(struct hub *hub)
{
    int fd = accept4(hub->listener.fd, NULL, NULL, SOCK_CLOEXEC);
    struct link *link = fd >= 0 ? calloc(1, sizeof(*link)) : NULL;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
    if (fd < 0 && errno == EINVAL) /* hub_close */
        end_all(hub, "rank 0 has ended");
    if (link == NULL) {
        if (fd >= 0)
            close(fd);
        return;
    }
    tcp_set(fd);
    link->fd = fd;
    link->next = hub->strangers;
    hub->strangers = link;
    if (epoll_ctl(hub->events, EPOLL_CTL_ADD, fd, &event) != 0)
        close_link(hub, link);
}

/* ---- The thread ---- */

static void name_missing(struct hub *hub)
{
    const struct group *world = find_group(hub, 0);
    char text[TCP_TEXT_MAX] = "", *at = text;
    char *end = text + sizeof(text) - 96;
    if (hub->has_begun || !tcp_is_over(&hub->until))
        return;
    for (uint32_t r = 0; r < world->size && at < end; r++)
        if (world->members[r] == NULL)
            at += snprintf(at, 16, "%s%u", at == text ? "rank " : ", ", r);
    snprintf(at, 96, "%s of %u did not connect within comm.init_timeout_seconds",
             at < end ? "" : " and more", world->size);
    end_all(hub, text);
}

static void *serve(void *argument)
{
    struct hub *hub = argument;
    while (!hub->is_over) {
        struct epoll_event event; /* one at a time: it may free links of other events */
        int num = epoll_wait(hub->events, &event, 1, hub->has_begun ? -1 : CHECK_MS);
        struct link *link = num > 0 ? event.data.ptr : NULL;
        if (link == &hub->listener)
            accept_one(hub);
        else if (link != NULL && link->group == NULL)
            take_hello(hub, link);
        else if (link != NULL)
            take_call(hub, link);
        name_missing(hub);
    }
    return NULL;
}

static int start(struct hub *hub)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &hub->listener};
    hub->events = epoll_create1(EPOLL_CLOEXEC);
    if (hub->events < 0 || epoll_ctl(hub->events, EPOLL_CTL_ADD, hub->listener.fd, &event) != 0)
        return report_errno(ERR_IO, "could not watch a socket", NULL);
    return pthread_create(&hub->thread, NULL, serve, hub) == 0
               ? 0
               : report_error(ERR_BUSY, NULL, "could not start the thread that connects the ranks");
}

static void free_hub(struct hub *hub)
{
    while (hub->groups != NULL) {
        for (uint32_t r = 0; r < hub->groups->size; r++)
            if (hub->groups->members[r] != NULL)
                close_link(hub, hub->groups->members[r]);
        free_group(hub, hub->groups);
    }
    while (hub->strangers != NULL)
        close_link(hub, hub->strangers);
    if (hub->listener.fd >= 0)
        close(hub->listener.fd);
    if (hub->events >= 0)
        close(hub->events);
    free(hub);
}

/* Allows a connection for each communicator of each rank. */
static void allow_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

int hub_open(struct hub **out, char out_port[8], const struct tcp_options *options)
{
    bool has_store = options->store_key[0] != '\0';
    struct hub *hub = calloc(1, sizeof(*hub));
    if (hub == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to connect the ranks");
    *hub = (struct hub){.listener.fd = -1,
                        .events = -1,
                        .options = *options,
                        .until = tcp_deadline(options->timeout_seconds)};
    allow_files();
    int rc = new_group(hub, options->size) != NULL
                 ? 0
                 : report_error(ERR_MEMORY, NULL, "no memory to connect the ranks");
    if (rc == 0)
        rc = tcp_listen(&hub->listener.fd, options->host, has_store ? "0" : options->port);
    if (rc == 0)
        rc = tcp_port_of(hub->listener.fd, out_port);
    if (rc == 0)
        rc = start(hub);
    if (rc == 0)
        *out = hub;
    else
        free_hub(hub);
    return rc;
}

void hub_close(struct hub *hub, bool is_lost)
{
    if (hub == NULL)
        return;
    if (is_lost)
        shutdown(hub->listener.fd, SHUT_RDWR);
    pthread_join(hub->thread, NULL);
    free_hub(hub);
}
