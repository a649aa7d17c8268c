/* session.c - connected ranks and readers: their rows, their rings, their end.
 *
 *   arena connection ──► control page set and eventfd; its end is the rank's end
 *   eventfd ──► ring drained ──► entries to stage.c
 *
 * When a rank's connection ends, ckptd first reads its ring to the end: announcements from before
 * its death count. Then it gives up the saves that the rank has not ended, and returns its spare
 * images to the pool; images of committed checkpoints stay. When ckptd ends the session of a rank
 * in the middle of a save, the image waits until the rank disconnects: it may still be copying.
 *
 * A session is a row of a table of limits.sessions; a token names it: its remainder is the row, the
 * rest is random, so a token of another boot is unknown. */
#include "ckptd/memory/session.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/history.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/memory/renew.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/wire/arena.h"
#include "proto/wire/ckpt.pb-c.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define STILL_MS 3000 /* a rank whose last sign of life is so much older is named */
#define STILL_TEXT_MAX 80u

/* ---- the table ---- */

int session_table_open(struct service *service, const struct session_events *events)
{
    struct session_table *table = calloc(1, sizeof *table);
    service->sessions = table;
    if (table)
        table->rows = calloc((size_t)service->config->limit_sessions, sizeof *table->rows);
    if (!table || !table->rows)
        return report_error(ERR_MEMORY, NULL, "no memory for the table of sessions");
    table->events = events;
    return 0;
}

int session_look(struct session **out, struct service *service, uint64_t token)
{
    struct session *session =
        &service->sessions->rows[token % (uint64_t)service->config->limit_sessions];
    if (token == 0 || session->token != token)
        return report_error(ERR_NOT_FOUND, "describe the tensors again",
                            "the session is not known; ckptd may have restarted");
    *out = session;
    return 0;
}

int session_find(struct session **out, struct service *service, uint64_t token)
{
    ERR_TRY(session_look(out, service, token));
    (*out)->spoke_ms = clock_ms();
    return 0;
}

int session_find_rank(struct session **out, struct service *service, uint64_t token)
{
    struct session *session;
    ERR_TRY(session_find(&session, service, token));
    if (!session->is_rank)
        return report_error(ERR_NOT_FOUND, "describe first", "the session is not a rank's");
    *out = session;
    return 0;
}

bool session_is_there(const struct service *service, uint64_t token)
{
    uint64_t rows = (uint64_t)service->config->limit_sessions;
    return token != 0 && service->sessions->rows[token % rows].token == token;
}

static void never_connected(struct timer *timer)
{
    session_end(CONTAINER_OF(timer, struct session, timer), "it never connected to the arena");
}

int session_new(struct session **out, struct service *service, struct run *run)
{
    struct session *session = NULL;
    uint64_t rows = (uint64_t)service->config->limit_sessions, row = 0, token = 0;
    /* From the row after the one taken last, which is normally free. */
    for (uint64_t i = 0; i < rows && !session; i++) {
        row = (service->sessions->next + i) % rows;
        if (service->sessions->rows[row].token == 0)
            session = &service->sessions->rows[row];
    }
    if (!session)
        return report_error(ERR_BUSY, "raise limits.sessions", "all %lld sessions are in use",
                            (long long)service->config->limit_sessions);
    memset(session, 0, sizeof *session);
    service->sessions->next = row + 1;
    while (session->token == 0) {
        service_random(&token, sizeof token);
        session->token = (token >> 1) / rows * rows + row;
    }
    session->service = service;
    session->run = run;
    session->control_fd = session->event_fd = session->watch.fd = -1;
    session->timer.run = never_connected;
    loop_timer(service->loop, &session->timer, service->config->limit_connect_ms);
    *out = session;
    return 0;
}

void session_table_close(struct service *service)
{
    struct session_table *table = service->sessions;
    if (!table)
        return;
    for (int64_t i = 0; table->rows && i < service->config->limit_sessions; i++)
        if (table->rows[i].token != 0)
            session_end(&table->rows[i], "ckptd ends");
    free(table->rows);
    free(table);
    service->sessions = NULL;
}

static const struct session_events *events_of(const struct service *service)
{
    return service->sessions->events;
}

/* ---- the ring ---- */

void session_drain(struct session *session)
{
    struct arena_entry entry;
    bool any = true;
    /* At most one ring: later entries wake the thread again. */
    for (uint32_t i = 0; i < ARENA_RING_ENTRIES && any && session->control; i++) {
        if (arena_pop(session->control, &entry, &any) != 0) {
            log_warn("session", "run %s, rank %u: the ring is broken: %s", session->run->name,
                     session->rank, report_message());
            munmap(session->control, sizeof *session->control);
            session->control = NULL; /* nothing more is read: its saves end with the session */
            return;
        }
        if (any) {
            session->spoke_ms = clock_ms();
            events_of(session->service)->announced(session, &entry);
        }
    }
}

void session_let_go(struct session *session, uint64_t save)
{
    for (uint32_t i = 0; i < SLOTS_PER_RANK; i++)
        if (session->slots[i] && (save == 0 || session->slot_ids[i] == save))
            image_let_go(session->slots[i]);
    events_of(session->service)->let_go(session);
}

void session_drain_run(struct run *run)
{
    struct service *service = run->service;
    for (int64_t i = 0; i < service->config->limit_sessions; i++) {
        struct session *session = &service->sessions->rows[i];
        if (session->token != 0 && session->is_rank && session->run == run)
            session_drain(session);
    }
}

uint32_t session_num_busy(const struct service *service)
{
    uint32_t count = 0;
    for (int64_t i = 0; i < service->config->limit_sessions; i++) {
        const struct session *session = &service->sessions->rows[i];
        if (session->token != 0 && session->is_rank && session->control)
            count += arena_is_busy(session->control);
    }
    return count;
}

/* When it last announced a phase; 0: its phases have no time. */
static int64_t phase_ms(const struct session *session)
{
    const struct arena_control *control = session->control;
    return control ? 1000 * (int64_t)__atomic_load_n(&control->spoke_s, __ATOMIC_RELAXED) : 0;
}

/* A rank of an older libckpt announces phases without their time: it counts as alive. */
static bool is_alive(const struct session *session, int64_t since_ms)
{
    const struct arena_control *control = session->control;
    if (session->spoke_ms >= since_ms || !control)
        return session->spoke_ms >= since_ms;
    bool says_phases = __atomic_load_n(&control->phase, __ATOMIC_RELAXED) != ARENA_PHASE_NONE;
    return phase_ms(session) != 0 ? phase_ms(session) >= since_ms : says_phases;
}

struct session_ranks session_ranks_of(const struct run *run)
{
    const struct service *service = run->service;
    struct session_ranks out = {.silent_ms = -1};
    const struct session *silent_one = NULL;
    for (int64_t i = 0; i < service->config->limit_sessions; i++) {
        const struct session *session = &service->sessions->rows[i];
        if (session->token == 0 || !session->is_rank || session->run != run)
            continue;
        int64_t phase = phase_ms(session);
        int64_t silent = clock_ms() - (phase > session->spoke_ms ? phase : session->spoke_ms);
        out.count++;
        if (phase != 0 && silent > out.silent_ms) {
            out.silent = session->rank;
            out.silent_ms = silent > 0 ? silent : 0;
            silent_one = session;
        }
    }
    if (silent_one)
        (void)arena_notes_describe(out.doing, &silent_one->control->notes);
    return out;
}

uint32_t session_num_alive(const struct run *run, int64_t since_ms)
{
    const struct service *service = run->service;
    uint32_t count = 0;
    for (int64_t i = 0; i < service->config->limit_sessions; i++) {
        const struct session *session = &service->sessions->rows[i];
        count += session->token != 0 && session->is_rank && session->run == run &&
                 is_alive(session, since_ms);
    }
    return count;
}

/* The next connected rank of the run from row *at on, which moves behind it; NULL: there is none.
 */
static const struct session *next_connected(const struct run *run, int64_t *at)
{
    const struct service *service = run->service;
    while (*at < service->config->limit_sessions) {
        const struct session *session = &service->sessions->rows[(*at)++];
        if (session->token != 0 && session->run == run && session->control)
            return session;
    }
    return NULL;
}

const struct principal *session_owner(const struct run *run, const struct principal *asker)
{
    const struct session *session;
    const struct principal *owner = NULL;
    for (int64_t at = 0; (session = next_connected(run, &at)) != NULL;) {
        owner = &session->owner;
        if (principal_is_same(owner, asker))
            break;
    }
    return owner;
}

uint32_t session_ask(const struct run *run, uint32_t asked, uint32_t grace_s)
{
    const struct session *session;
    uint32_t count = 0, until_s = grace_s != 0 ? (uint32_t)(clock_ms() / 1000) + grace_s : 0;
    for (int64_t at = 0; (session = next_connected(run, &at)) != NULL; count++)
        arena_want(session->control, asked, until_s);
    return count;
}

uint32_t session_ask_save(const struct run *run)
{
    const struct session *session;
    uint32_t count = 0;
    for (int64_t at = 0; (session = next_connected(run, &at)) != NULL; count++)
        arena_want_save(session->control);
    return count;
}

struct session_asked session_asked_of(const struct session *session)
{
    const struct arena_control *control = session->control;
    if (!control)
        return (struct session_asked){.asked = 0};
    struct session_asked out = {.asked = arena_asked(control), .saves = arena_saves_asked(control)};
    int64_t until_s = arena_asked_until_s(control), left_s = until_s - clock_ms() / 1000;
    out.within_s = until_s == 0 ? 0 : (uint32_t)(left_s > 1 ? left_s : 1);
    return out;
}

bool session_any_of(const struct run *run)
{
    const struct service *service = run->service;
    for (int64_t i = 0; i < service->config->limit_sessions; i++)
        if (service->sessions->rows[i].token != 0 && service->sessions->rows[i].run == run)
            return true;
    return false;
}

bool session_any_rank(const struct service *service)
{
    for (int64_t i = 0; i < service->config->limit_sessions; i++)
        if (service->sessions->rows[i].token != 0 && service->sessions->rows[i].is_rank)
            return true;
    return false;
}

static void ring_woke(struct watch *watch)
{
    struct session *session = CONTAINER_OF(watch, struct session, watch);
    struct service *service = session->service;
    uint64_t count;
    struct iovec place = {&count, sizeof count};
    /* The rank has the same eventfd: it may have emptied it, and its flags cannot be relied on. */
    if (preadv2(watch->fd, &place, 1, -1, RWF_NOWAIT) < 0 && errno != EAGAIN)
        log_warn("session", "could not read an eventfd: %s", strerror(errno));
    session_drain(session);
    if (!session->control)
        session_end(session, "its ring is broken");
    events_of(service)->phase_changed(service);
}

/* The control page set and the eventfd of a rank. */
static int open_control(struct session *session)
{
    size_t bytes = sizeof(struct arena_control);
    ERR_TRY(arena_create(&session->control_fd, "holdfast-control", bytes));
    if (fallocate(session->control_fd, 0, 0, (off_t)bytes) != 0)
        return report_errno(ERR_MEMORY, "could not make a control page set", "fallocate");
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, session->control_fd, 0);
    if (map == MAP_FAILED)
        return report_errno(ERR_MEMORY, "could not map a control page set", "mmap");
    session->control = map;
    session->control->magic = ARENA_MAGIC;
    session->control->version = ARENA_VERSION;
    session->control->entries = ARENA_RING_ENTRIES;
    session->control->session = session->token;
    session->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (session->event_fd < 0)
        return report_errno(ERR_MEMORY, "could not make an eventfd", "eventfd");
    session->watch.run = ring_woke;
    return loop_watch(session->service->loop, &session->watch, session->event_fd);
}

int session_new_rank(struct session **out, struct service *service,
                     const struct session_options *options)
{
    ERR_TRY(session_new(out, service, options->run));
    (*out)->is_rank = true;
    (*out)->owner = options->owner;
    (*out)->attempt = options->attempt;
    (*out)->rank = options->rank;
    (*out)->world_size = options->world_size;
    (*out)->memory_node = options->memory_node;
    (*out)->geometry = options->geometry;
    (*out)->image_segments = options->image_segments;
    int error = open_control(*out);
    if (error != 0)
        session_end(*out, "it could not be set up");
    return error;
}

/* ---- the end ---- */

/* Its images and saves continue without the rank. `left`: the images into which it may still
 * copy. */
static void leave_saves(struct session *session, struct image *left[SLOTS_PER_RANK])
{
    struct image *images[SLOTS_PER_RANK];
    if (!session->connection)
        session_let_go(session, 0); /* it disconnected, or never connected */
    events_of(session->service)->leaves(session);
    for (uint32_t i = 0; i < SLOTS_PER_RANK; i++) {
        images[i] = session->slots[i];
        left[i] = images[i] && images[i]->in_hand ? images[i] : NULL;
        if (left[i])
            log_info("session",
                     "run %s, attempt %llu: rank %u left during a save; its image is not reused "
                     "until the rank disconnects",
                     session->run->name, (unsigned long long)session->attempt, session->rank);
        if (images[i])
            images[i]->slot = NULL;
        session->slots[i] = NULL;
    }
    events_of(session->service)->rank_left(session);
    for (uint32_t i = 0; i < SLOTS_PER_RANK; i++)
        if (images[i])
            image_settle(images[i]);
    service_retry_waiting(session->service);
}

/* No other session of its attempt is connected. */
static bool is_alone(const struct session *session)
{
    const struct service *service = session->service;
    for (int64_t i = 0; i < service->config->limit_sessions; i++) {
        const struct session *other = &service->sessions->rows[i];
        if (other != session && other->token != 0 && other->is_rank && other->run == session->run &&
            other->attempt == session->attempt)
            return false;
    }
    return true;
}

void session_end(struct session *session, const char *why)
{
    struct service *service = session->service;
    struct image *left[SLOTS_PER_RANK] = {NULL};
    if (session->is_rank) {
        session_drain(session);
        log_debug("session", "run %s, attempt %llu: rank %u left: %s", session->run->name,
                  (unsigned long long)session->attempt, session->rank, why);
        leave_saves(session, left);
    }
    events_of(service)->ended(session);
    loop_unwatch(service->loop, &session->watch);
    loop_timer_cancel(service->loop, &session->timer);
    if (session->control)
        munmap(session->control, sizeof *session->control);
    if (session->control_fd >= 0)
        close(session->control_fd);
    if (session->event_fd >= 0)
        close(session->event_fd);
    if (session->connection)
        events_of(service)->part(session->connection, left);
    bool was_rank = session->is_rank;
    if (was_rank && is_alone(session))
        renew_disown(service,
                     (struct pool_owner){.run = session->run->tag, .attempt = session->attempt});
    session->token = 0;
    service_retry_saves(service); /* its own call may be among those that wait */
    if (was_rank && !service->draining)
        events_of(service)->phase_changed(service); /* no event follows when its busy phase ends */
}

/* How long ago the process of the rank last ran; -1: unknown. */
static int64_t still_ms(const struct session *session)
{
    uint32_t alive_ms = session->control ? arena_notes_alive_ms(&session->control->notes) : 0;
    int32_t age_ms = (int32_t)((uint32_t)clock_ms() - alive_ms);
    return alive_ms == 0 ? -1 : age_ms > 0 ? age_ms : 0;
}

bool session_find_still(uint32_t *out_rank, double *out_seconds, const struct run *run)
{
    const struct service *service = run->service;
    int64_t longest = -1, shortest = -1;
    for (int64_t i = 0; i < service->config->limit_sessions; i++) {
        const struct session *session = &service->sessions->rows[i];
        if (session->token == 0 || !session->is_rank || session->run != run)
            continue;
        int64_t age = still_ms(session);
        if (age > longest)
            *out_rank = session->rank;
        longest = age > longest ? age : longest;
        shortest = age >= 0 && (age < shortest || shortest < 0) ? age : shortest;
    }
    *out_seconds = 1e-3 * (double)longest;
    return longest - shortest >= STILL_MS;
}

static void note_lost(const struct session *session, const char *doing)
{
    struct run *run = session->run;
    unsigned long long attempt = session->attempt;
    char by[32];
    log_warn("session", "run %s, attempt %llu: rank %u is gone: %s", run->name, attempt,
             session->rank, doing);
    if (run->lost.attempt == attempt) /* others of it go with the first */
        return;
    run->lost.attempt = attempt;
    run->lost.at_ms = clock_ms();
    int length = snprintf(by, sizeof by, "rank %u", session->rank);
    snprintf(run->lost.text, sizeof run->lost.text, "%s of attempt %llu: %s", by, attempt, doing);
    history_note(run, &(struct history_event){.name = "lost",
                                              .by = by,
                                              .detail = run->lost.text + length + strlen(" of ")});
}

/* The last rank of an attempt on this node has left, and none was lost. */
static void note_left(const struct session *session)
{
    struct run *run = session->run;
    unsigned long long attempt = session->attempt;
    char by[32], detail[64];
    if (run->lost.attempt == attempt || !is_alone(session))
        return;
    snprintf(by, sizeof by, "rank %u", session->rank);
    snprintf(detail, sizeof detail, "the last of attempt %llu to leave", attempt);
    history_note(run, &(struct history_event){.name = "end", .by = by, .detail = detail});
}

void session_lost(struct session *session)
{
    char doing[ARENA_TELL_MAX + STILL_TEXT_MAX], still[STILL_TEXT_MAX];
    uint32_t rank;
    double seconds;
    /* At shutdown ckptd itself ends the connections. */
    if (session->is_rank && session->control && !session->run->service->is_closing) {
        if (arena_notes_describe(doing, &session->control->notes)) {
            if (session_find_still(&rank, &seconds, session->run)) {
                snprintf(still, sizeof still,
                         "; the process of rank %u had shown no sign of life for %.1f s", rank,
                         seconds);
                strcat(doing, still);
            }
            note_lost(session, doing);
        } else if (arena_notes_has_left(&session->control->notes)) {
            note_left(session);
        }
    }
    session_end(session, "its connection ended");
}

void session_end_older(struct run *run, uint64_t attempt)
{
    struct service *service = run->service;
    for (int64_t i = 0; i < service->config->limit_sessions; i++) {
        struct session *session = &service->sessions->rows[i];
        if (session->token == 0 || !session->is_rank || session->run != run ||
            session->attempt >= attempt)
            continue;
        /* A dead rank of another node: its session waits for a connection in vain. */
        if (session->control && __atomic_load_n(&session->control->is_cut, __ATOMIC_RELAXED) != 0)
            session_lost(session);
        else
            session_end(session, "a new attempt began");
    }
}

bool session_may_map(const struct session *session, uint32_t segment, bool writable)
{
    if (pool_is_dirty(session->service->pool, &segment, 1))
        return false; /* it is being cleaned for the session */
    if (!writable)
        return events_of(session->service)->lends(session, segment);
    for (uint32_t slot = 0; slot < SLOTS_PER_RANK; slot++) {
        const struct image *image = session->slots[slot];
        if (!image || image->state == IMAGE_RESIDENT)
            continue;
        for (uint32_t i = 0; i < image->num_segments; i++)
            if (image->segments[i] == segment)
                return true;
    }
    return false;
}
