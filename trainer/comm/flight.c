/* flight.c - the ring of a rank's calls (see flight.h). */
#include "trainer/comm/flight.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/comm/flight_ring.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct flight {
    pthread_mutex_t lock; /* guards all fields but rank and options */
    uint32_t rank;
    struct flight_ring *ring;
    int ring_fd;     /* of the ring's file; -1: the ring is memory of this process */
    char *ring_path; /* of the ring's file */
    struct flight_options options;
    _Atomic int64_t limit_seconds;
    _Atomic(const char *) limit_setting;
    struct flight_sum sums[FLIGHT_SUMS_MAX];
    uint32_t num_sums;
    uint32_t num_called; /* calls under way */
    uint64_t called_since_ns, called_ns;
    struct flight_program program; /* next NULL: none */
    struct flight_mirror mirror;   /* begin NULL: none */
    struct flight *next;           /* in all_flights */
};

/* The recorders of this process, for flight_dump_all. */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct flight *all_flights;

static const char *const states[] = {"enqueued", "started", "done", "failed"};

/* Owns the ring; NULL: no memory. */
static struct flight *with_ring(struct flight_ring *ring)
{
    struct flight *flight = ring != NULL ? calloc(1, sizeof(*flight)) : NULL;
    if (flight == NULL) {
        flight_ring_free(ring, -1, NULL);
        return NULL;
    }
    flight->ring = ring;
    flight->ring_fd = -1;
    flight->rank = ring->rank;
    flight->options = (struct flight_options){.folder = "", .prefix = "rank_"};
    pthread_mutex_init(&flight->lock, NULL);
    return flight;
}

struct flight *flight_new(uint32_t rank)
{
    struct flight *flight = with_ring(flight_ring_new(rank, FLIGHT_RECORDS));
    if (flight == NULL)
        return NULL;
    pthread_mutex_lock(&all_lock);
    flight->next = all_flights;
    all_flights = flight;
    pthread_mutex_unlock(&all_lock);
    return flight;
}

void flight_free(struct flight *flight)
{
    if (flight == NULL)
        return;
    pthread_mutex_lock(&all_lock);
    struct flight **link = &all_flights;
    while (*link != NULL && *link != flight)
        link = &(*link)->next;
    if (*link != NULL) /* not one of flight_read() */
        *link = flight->next;
    pthread_mutex_unlock(&all_lock);
    pthread_mutex_destroy(&flight->lock);
    flight_ring_free(flight->ring, flight->ring_fd, flight->ring_path);
    free(flight->ring_path);
    free(flight);
}

/* Creates a ring in the folder, so that it outlives this process. NULL: not possible. */
static struct flight_ring *create_ring(struct flight *flight, const struct flight_options *options)
{
    struct flight_ring *ring = NULL;
    if (asprintf(&flight->ring_path, "%s/%s%u.ring", options->folder, options->prefix,
                 flight->rank) < 0) {
        flight->ring_path = NULL;
        return NULL;
    }
    mkdir(options->folder, 0777);
    if (flight_ring_create(&ring, &flight->ring_fd, flight->ring_path, flight->rank,
                           options->num_records) != 0)
        log_warn("comm", "the last calls are lost if this process is killed: %s", report_line());
    return ring;
}

int flight_set(struct flight *flight, const struct flight_options *options)
{
    struct flight_ring *ring = NULL;
    CHECK(flight->ring_fd < 0);
    if (options->folder[0] != '\0')
        ring = create_ring(flight, options);
    if (ring == NULL)
        ring = flight_ring_new(flight->rank, options->num_records);
    if (ring == NULL)
        return report_error(ERR_MEMORY, "lower comm.trace_buf_size",
                            "no memory for a ring of %u calls", options->num_records);
    pthread_mutex_lock(&flight->lock);
    ring->count = flight->ring->count;
    flight_ring_free(flight->ring, -1, NULL);
    flight->ring = ring;
    flight->options = *options;
    pthread_mutex_unlock(&flight->lock);
    flight_set_limit(flight, options->timeout_seconds, "comm.train_timeout_seconds");
    return 0;
}

struct flight_options flight_options_of(const struct flight *flight)
{
    return flight->options;
}

int flight_read(struct flight **out, bool *out_is_dead, const char *path)
{
    struct flight_ring *ring;
    ERR_TRY(flight_ring_read(&ring, out_is_dead, path));
    *out = with_ring(ring);
    return *out != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for a recorder");
}

void flight_set_limit(struct flight *flight, int64_t seconds, const char *setting)
{
    if (flight == NULL)
        return;
    flight->limit_setting = setting;
    flight->limit_seconds = seconds;
}

const char *flight_limit_setting(const struct flight *flight)
{
    return flight->limit_setting;
}

struct timespec flight_deadline(const struct flight *flight)
{
    uint64_t seconds = flight != NULL ? (uint64_t)flight->limit_seconds : 0;
    return seconds == 0 ? (struct timespec){0}
                        : clock_after_ns(CLOCK_MONOTONIC, seconds * CLOCK_SECOND_NS);
}

/* ---- signs of life ---- */

/* Is there a sign of life to note? False for a while after the process stood still. */
static bool is_steady(void)
{
    static int64_t last_ms, quiet_until_ms;
    int64_t now = clock_ms();
    if (last_ms != 0 && now - last_ms >= FLIGHT_STILL_MS)
        quiet_until_ms = now + FLIGHT_AFTER_MS;
    last_ms = now;
    return now >= quiet_until_ms;
}

void flight_beat_all(void)
{
    if (!is_steady())
        return;
    pthread_mutex_lock(&all_lock);
    for (struct flight *flight = all_flights; flight != NULL; flight = flight->next) {
        if (pthread_mutex_trylock(&flight->lock) != 0)
            continue; /* perhaps for long, as by a dump to a file system that hangs */
        flight->ring->alive_ms = clock_wall_ms();
        if (flight->mirror.begin != NULL)
            flight->mirror.alive(flight->mirror.user);
        pthread_mutex_unlock(&flight->lock);
    }
    pthread_mutex_unlock(&all_lock);
}

bool flight_ask_still(struct flight *flight, struct flight_still *out)
{
    pthread_mutex_lock(&flight->lock);
    const struct flight_mirror *mirror = &flight->mirror;
    bool is_found = mirror->begin != NULL && mirror->find_still(mirror->user, out);
    pthread_mutex_unlock(&flight->lock);
    return is_found;
}

/* ---- the step's program ---- */

/* Of this thread. */
static _Thread_local struct flight_place here;
static _Thread_local const char *here_lane;

void flight_follow(struct flight *flight, const struct flight_program *program)
{
    if (flight == NULL)
        return;
    pthread_mutex_lock(&flight->lock);
    flight->program = program != NULL ? *program : (struct flight_program){0};
    if (program != NULL) /* otherwise places stay at the program's end */
        flight->ring->num_lanes = 0;
    pthread_mutex_unlock(&flight->lock);
}

void flight_set_mirror(struct flight *flight, const struct flight_mirror *mirror)
{
    if (flight == NULL)
        return;
    pthread_mutex_lock(&flight->lock);
    flight->mirror = mirror != NULL ? *mirror : (struct flight_mirror){0};
    pthread_mutex_unlock(&flight->lock);
}

/* NULL: the lane has no place yet. Call with the lock held. */
static struct flight_lane *find_lane(struct flight *flight, const char *lane)
{
    for (uint32_t i = 0; i < flight->ring->num_lanes; i++)
        if (strcmp(flight->ring->lanes[i].lane, lane) == 0)
            return &flight->ring->lanes[i];
    return NULL;
}

/* Call with the lock held. */
static bool find_due(const struct flight *flight, const char *lane, uint32_t from,
                     struct flight_place *out)
{
    const struct flight_program *program = &flight->program;
    return program->next != NULL && program->next(program->user, lane, from, out);
}

void flight_enter_op(struct flight *flight, const char *lane, const struct flight_place *place)
{
    here = *place;
    here_lane = lane;
    if (flight == NULL)
        return;
    pthread_mutex_lock(&flight->lock);
    struct flight_lane *of = find_lane(flight, lane);
    uint32_t from = of != NULL ? of->at.index + 1 : 0;
    if (of == NULL && flight->ring->num_lanes < FLIGHT_LANES_MAX)
        of = &flight->ring->lanes[flight->ring->num_lanes++];
    if (of != NULL) {
        *of = (struct flight_lane){.lane = lane, .at = *place, .since_ns = clock_ns()};
        (void)find_due(flight, lane, from, &of->due);
        flight_ring_keep_text(flight->ring, lane);
        flight_ring_keep_text(flight->ring, place->what);
        flight_ring_keep_text(flight->ring, of->due.what);
    }
    if (flight->mirror.begin != NULL)
        flight->mirror.enter(flight->mirror.user, lane, place);
    pthread_mutex_unlock(&flight->lock);
}

void flight_leave_op(void)
{
    here = (struct flight_place){0};
}

static void print_place(const struct flight_place *place, char out[static FLIGHT_TEXT_MAX / 2])
{
    int length = snprintf(out, FLIGHT_TEXT_MAX / 2, "operation %u, %s of stage %u, leaf %u",
                          place->index, place->what, place->stage, place->leaf);
    if (place->block != UINT32_MAX)
        snprintf(out + length, FLIGHT_TEXT_MAX / 2 - (size_t)length, ", block %u", place->block);
}

struct flight_mark flight_mark(struct flight *flight)
{
    return (struct flight_mark){.flight = flight, .lane = here_lane, .at = here};
}

void flight_tell_mark(const struct flight_mark *mark, char out[FLIGHT_TEXT_MAX])
{
    char at[FLIGHT_TEXT_MAX / 2], due[FLIGHT_TEXT_MAX / 2] = "";
    out[0] = '\0';
    if (mark->flight == NULL || mark->at.what == NULL)
        return;
    print_place(&mark->at, at);
    pthread_mutex_lock(&mark->flight->lock);
    const struct flight_lane *of = find_lane(mark->flight, mark->lane);
    if (of != NULL && of->due.what != NULL && of->due.index != mark->at.index)
        print_place(&of->due, due);
    pthread_mutex_unlock(&mark->flight->lock);
    snprintf(out, FLIGHT_TEXT_MAX, " in %.110s%s%.110s", at,
             due[0] != '\0' ? ", where its program expects " : "", due);
}

/* ---- records ---- */

/* NULL: overwritten. Call with the lock held. */
static struct flight_record *at(struct flight *flight, uint64_t id)
{
    struct flight_record *record = &flight->ring->records[id % flight->ring->num_records];
    return record->id == id ? record : NULL;
}

/* Call with the lock held. */
static void add_to_sums(struct flight *flight, const struct flight_record *record, size_t sent)
{
    uint32_t i = 0;
    while (i < flight->num_sums && (flight->sums[i].kind != record->kind ||
                                    (flight->sums[i].group != record->group &&
                                     strcmp(flight->sums[i].group, record->group) != 0)))
        i++;
    if (i == FLIGHT_SUMS_MAX)
        return;
    if (i == flight->num_sums)
        flight->sums[flight->num_sums++] =
            (struct flight_sum){.group = record->group, .kind = record->kind};
    flight->sums[i].calls++;
    flight->sums[i].bytes += record->bytes;
    flight->sums[i].sent += sent;
}

uint32_t flight_sums(struct flight *flight, struct flight_sum out[FLIGHT_SUMS_MAX])
{
    pthread_mutex_lock(&flight->lock);
    uint32_t num = flight->num_sums;
    memcpy(out, flight->sums, num * sizeof(*out));
    pthread_mutex_unlock(&flight->lock);
    return num;
}

void flight_clear_sums(struct flight *flight)
{
    pthread_mutex_lock(&flight->lock);
    flight->num_sums = 0;
    pthread_mutex_unlock(&flight->lock);
}

void flight_call_begins(struct flight *flight)
{
    if (flight == NULL)
        return;
    uint64_t now = clock_ns();
    pthread_mutex_lock(&flight->lock);
    if (flight->num_called++ == 0)
        flight->called_since_ns = now;
    pthread_mutex_unlock(&flight->lock);
}

void flight_call_ends(struct flight *flight)
{
    if (flight == NULL)
        return;
    uint64_t now = clock_ns();
    pthread_mutex_lock(&flight->lock);
    if (--flight->num_called == 0 && now > flight->called_since_ns)
        flight->called_ns += now - flight->called_since_ns;
    pthread_mutex_unlock(&flight->lock);
}

double flight_called_seconds(struct flight *flight)
{
    if (flight == NULL)
        return 0;
    pthread_mutex_lock(&flight->lock);
    double seconds = 1e-9 * (double)flight->called_ns;
    pthread_mutex_unlock(&flight->lock);
    return seconds;
}

/* flight_enter_op has kept the text of its place. */
static void keep_texts(struct flight_ring *ring, const struct flight_record *record)
{
    flight_ring_keep_text(ring, record->group);
    flight_ring_keep_text(ring, record->lane);
    flight_ring_keep_text(ring, record->site);
}

uint64_t flight_begin(struct flight *flight, const struct comm *comm, const struct comm_call *call)
{
    if (flight == NULL)
        return 0;
    struct flight_record record = {.sequence = comm->num_calls,
                                   .kind = call->kind,
                                   .group = comm->name,
                                   .lane = call->lane != NULL ? call->lane : comm->lane,
                                   .site = call->site,
                                   .size = comm->size,
                                   .rank = comm->rank,
                                   .peer = call->peer,
                                   .tag = call->tag,
                                   .bytes = comm_call_bytes(comm, call),
                                   .enqueued_ns = clock_ns(),
                                   .place = here};
    pthread_mutex_lock(&flight->lock);
    uint64_t id = record.id = flight->ring->count + 1;
    keep_texts(flight->ring, &record);
    flight->ring->records[id % flight->ring->num_records] = record;
    atomic_signal_fence(memory_order_release); /* a SIGKILL before this loses one record */
    flight->ring->count = id;
    add_to_sums(flight, &record, comm_call_sent(comm, call));
    if (flight->mirror.begin != NULL)
        flight->mirror.begin(flight->mirror.user, &record);
    pthread_mutex_unlock(&flight->lock);
    return id;
}

void flight_start(struct flight *flight, uint64_t id)
{
    if (flight == NULL)
        return;
    pthread_mutex_lock(&flight->lock);
    struct flight_record *record = at(flight, id);
    if (record != NULL) {
        record->state = FLIGHT_STARTED;
        record->started_ns = clock_ns();
    }
    pthread_mutex_unlock(&flight->lock);
}

void flight_end(struct flight *flight, uint64_t id, int rc)
{
    if (flight == NULL)
        return;
    pthread_mutex_lock(&flight->lock);
    struct flight_record *record = at(flight, id);
    if (record != NULL) {
        record->state = rc == 0 ? FLIGHT_DONE : FLIGHT_FAILED;
        record->ended_ns = clock_ns();
    }
    if (flight->mirror.begin != NULL)
        flight->mirror.end(flight->mirror.user, id);
    pthread_mutex_unlock(&flight->lock);
}

uint64_t flight_last(struct flight *flight)
{
    pthread_mutex_lock(&flight->lock);
    uint64_t id = flight->ring->count;
    pthread_mutex_unlock(&flight->lock);
    return id;
}

bool flight_find(struct flight *flight, uint64_t id, struct flight_record *out)
{
    pthread_mutex_lock(&flight->lock);
    const struct flight_record *record = at(flight, id);
    bool is_there = id > 0 && record != NULL;
    if (is_there)
        *out = *record;
    pthread_mutex_unlock(&flight->lock);
    return is_there;
}

/* ---- dumps ---- */

static void write_place(const struct flight_place *place, FILE *out)
{
    if (place->what == NULL)
        return;
    fprintf(out, ", \"operation\": %u, \"operation_name\": \"%s\", \"stage\": %u, \"leaf\": %u",
            place->index, place->what, place->stage, place->leaf);
    if (place->block != UINT32_MAX)
        fprintf(out, ", \"block\": %u", place->block);
}

static void write_record(const struct flight_record *r, bool is_first, FILE *out)
{
    fprintf(out,
            "%s\n{\"record_id\": %" PRIu64 ", \"process_group\": \"%s\", \"group_size\": %u, "
            "\"group_rank\": %u, \"lane\": \"%s\", \"collective_seq_id\": %" PRIu64
            ", \"profiling_name\": \"%s\", \"bytes\": %zu, \"peer\": %u, \"tag\": %d, "
            "\"site\": \"%s\", \"state\": \"%s\", \"time_created_ns\": %" PRIu64
            ", \"time_started_ns\": %" PRIu64 ", \"time_completed_ns\": %" PRIu64,
            is_first ? "" : ",", r->id, r->group, r->size, r->rank, r->lane, r->sequence,
            comm_kind_name(r->kind), r->bytes, r->peer, r->tag, r->site, states[r->state],
            r->enqueued_ns, r->started_ns, r->ended_ns);
    write_place(&r->place, out);
    fputc('}', out);
}

static void write_lane(const struct flight *flight, const struct flight_lane *of, bool is_first,
                       FILE *out)
{
    struct flight_place next;
    fprintf(out, "%s\n{\"lane\": \"%s\"", is_first ? "" : ",", of->lane);
    write_place(&of->at, out);
    if (of->due.what != NULL && of->due.index != of->at.index)
        fprintf(out, ", \"due\": %u, \"due_name\": \"%s\"", of->due.index, of->due.what);
    if (find_due(flight, of->lane, of->at.index + 1, &next))
        fprintf(out, ", \"next\": %u, \"next_name\": \"%s\"", next.index, next.what);
    fputc('}', out);
}

/* The oldest record in the ring. Call with the lock held. */
static uint64_t first_id(const struct flight *flight)
{
    return flight->ring->count > flight->ring->num_records
               ? flight->ring->count - flight->ring->num_records + 1
               : 1;
}

void flight_write(struct flight *flight, const char *reason, FILE *out)
{
    pthread_mutex_lock(&flight->lock);
    uint64_t first = first_id(flight);
    bool is_first = true;
    fprintf(out,
            "{\"rank\": %u, \"reason\": \"%s\", \"boot\": %" PRId64 ", \"alive_ms\": %" PRId64
            ", \"lanes\": [",
            flight->rank, reason, flight->ring->boot, flight->ring->alive_ms);
    for (uint32_t i = 0; i < flight->ring->num_lanes; i++)
        write_lane(flight, &flight->ring->lanes[i], i == 0, out);
    fprintf(out, "], \"entries\": [");
    for (uint64_t id = first; id <= flight->ring->count; id++) {
        const struct flight_record *record = at(flight, id);
        if (record != NULL)
            write_record(record, is_first, out);
        is_first &= record == NULL;
    }
    fprintf(out, "\n]}\n");
    pthread_mutex_unlock(&flight->lock);
}

/* Logs each lane's place in the step's program, and its next operation. Call with the lock held. */
static void log_lanes(struct flight *flight, const char *reason)
{
    for (uint32_t i = 0; i < flight->ring->num_lanes; i++) {
        const struct flight_lane *of = &flight->ring->lanes[i];
        struct flight_place next = {0};
        char at[FLIGHT_TEXT_MAX / 2], due[FLIGHT_TEXT_MAX / 2], then[FLIGHT_TEXT_MAX / 2];
        bool is_due = of->due.what == NULL || of->due.index == of->at.index;
        bool has_next = find_due(flight, of->lane, of->at.index + 1, &next);
        print_place(&of->at, at);
        if (!is_due)
            print_place(&of->due, due);
        if (has_next)
            print_place(&next, then);
        log_warn("comm", "rank %u (%s): lane %s began %s %.3f s ago%s%s%s%s", flight->rank, reason,
                 of->lane, at, (double)(clock_ns() - of->since_ns) * 1e-9,
                 is_due ? "" : ", where its program expects ", is_due ? "" : due,
                 has_next ? "; next by its program: " : "", has_next ? then : "");
    }
}

/* Logs calls that are under way or failed, and the last that ended. Call with the lock held. */
static void log_records(struct flight *flight, const char *reason)
{
    uint64_t now = clock_ns();
    for (uint64_t id = first_id(flight); id <= flight->ring->count; id++) {
        const struct flight_record *r = &flight->ring->records[id % flight->ring->num_records];
        bool is_over = r->state == FLIGHT_DONE && id < flight->ring->count;
        if (r->id != id || is_over) /* another id: made before flight_set */
            continue;
        log_warn("comm",
                 "rank %u (%s): %s %" PRIu64 " of %s, %u ranks, %zu bytes, peer %u, tag %d, at %s, "
                 "lane %s: %s, called %.3f s ago",
                 flight->rank, reason, comm_kind_name(r->kind), r->sequence, r->group, r->size,
                 r->bytes, r->peer, r->tag, r->site, r->lane, states[r->state],
                 (double)(now - r->enqueued_ns) * 1e-9);
    }
}

void flight_dump(struct flight *flight, const char *reason)
{
    char path[4096];
    if (flight == NULL)
        return;
    pthread_mutex_lock(&flight->lock);
    log_lanes(flight, reason);
    log_records(flight, reason);
    pthread_mutex_unlock(&flight->lock);
    if (flight->options.folder[0] == '\0')
        return;
    snprintf(path, sizeof(path), "%s/%s%u.json", flight->options.folder, flight->options.prefix,
             flight->rank);
    mkdir(flight->options.folder, 0777);
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        log_warn("comm", "could not create %s: %s", path, strerror(errno));
        return;
    }
    flight_write(flight, reason, file);
    if (fclose(file) != 0)
        log_warn("comm", "could not write %s: %s", path, strerror(errno));
}

void flight_dump_all(const char *reason)
{
    pthread_mutex_lock(&all_lock);
    for (struct flight *flight = all_flights; flight != NULL; flight = flight->next)
        flight_dump(flight, reason);
    pthread_mutex_unlock(&all_lock);
}
