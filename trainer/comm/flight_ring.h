/* flight_ring.h - the memory of a flight recorder: of the process, or of a file that outlives it.
 *
 * A file is mapped by its process and written by stores alone, so an event costs no system call,
 * and what was stored is there after SIGKILL. Its constants (names, sites) are addresses of that
 * process; the first store of each also puts its text into the file's table, where a reader finds
 * it. The process holds a lock on the file as long as it lives: who can take it knows that it is
 * dead. What a start before left under the same name goes into the folder "before" beside it.
 *
 * The reader must be of the same build of the layout: FLIGHT_RING_VERSION and record_bytes say.
 * A reader on the same machine sees a torn record at worst: the newest, whose id does not fit. */
#ifndef HOLDFAST_TRAINER_FLIGHT_RING_H
#define HOLDFAST_TRAINER_FLIGHT_RING_H

#include "trainer/comm/flight.h"

#define FLIGHT_RING_MAGIC "HFFLIGHT"
#define FLIGHT_RING_VERSION 1u
#define FLIGHT_LANES_MAX 8u
#define FLIGHT_TEXTS 1024u /* a power of two; a text that finds no room near its place is "?" */
#define FLIGHT_TEXT_BYTES 56u

struct flight_lane {
    const char *lane;
    struct flight_place at, due; /* due: what the program has there */
    uint64_t since_ns;
};

struct flight_ring {
    char magic[8];
    uint32_t version, record_bytes;
    uint32_t rank, num_records, num_lanes;
    bool is_file;
    uint64_t count; /* records ever made */
    struct flight_lane lanes[FLIGHT_LANES_MAX];
    struct flight_text {
        uint64_t address; /* in its process; 0: none */
        char text[FLIGHT_TEXT_BYTES];
    } texts[FLIGHT_TEXTS];
    struct flight_record records[]; /* of id: records[id % num_records] */
};

/* Of the process. NULL: no memory. */
struct flight_ring *flight_ring_new(uint32_t rank, uint32_t num_records);
/* In a new file, all of whose blocks are there. ERR_IO, ERR_SPACE. */
int flight_ring_create(struct flight_ring **out, int *out_fd, const char *path, uint32_t rank,
                       uint32_t num_records);
/* fd and path as of its creation; -1 and NULL: there is no file. It is removed. */
void flight_ring_free(struct flight_ring *ring, int fd, const char *path);

/* What the process with this file has stored, or had, in memory of its own. ERR_INVALID: it is no
 * ring, or of another build. */
int flight_ring_read(struct flight_ring **out, bool *out_is_dead, const char *path);

static inline uint32_t flight_text_place(uint64_t address)
{
    return (uint32_t)(address * 0x9e3779b97f4a7c15u >> 40) % FLIGHT_TEXTS;
}
/* The text, a constant or NULL, can be read from the file. */
void flight_ring_put_text(struct flight_ring *ring, const char *text);
static inline void flight_ring_keep_text(struct flight_ring *ring, const char *text)
{
    uint64_t address = (uintptr_t)text;
    if (ring->is_file && text != NULL && ring->texts[flight_text_place(address)].address != address)
        flight_ring_put_text(ring, text);
}

#endif
