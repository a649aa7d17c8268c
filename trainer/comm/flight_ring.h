/* flight_ring.h - the memory of a flight recorder: of the process, or of a file that outlives it.
 *
 * A process maps the file and writes it only by stores, so an event costs no system call, and the
 * data survive SIGKILL. Constants (names, sites) are addresses of that process; the first store of
 * each also puts its text into the file's table for readers. The process locks the file while it
 * lives: a reader that gets the lock knows that the process is dead. A file of an earlier start
 * with the same name is moved to the folder "before".
 *
 * The reader must have the same layout: FLIGHT_RING_VERSION and record_bytes are compared. A reader
 * on the same machine may see one torn record, the newest: its id does not match. */
#ifndef HOLDFAST_TRAINER_FLIGHT_RING_H
#define HOLDFAST_TRAINER_FLIGHT_RING_H

#include "trainer/comm/flight.h"

#define FLIGHT_RING_MAGIC "HFFLIGHT"
#define FLIGHT_RING_VERSION 2u
#define FLIGHT_LANES_MAX 8u
#define FLIGHT_TEXTS 1024u /* a power of two; a text without room near its place is "?" */
#define FLIGHT_TEXT_BYTES 56u

struct flight_lane {
    const char *lane;
    struct flight_place at, due; /* due: the program's operation there */
    uint64_t since_ns;
};

struct flight_ring {
    char magic[8];
    uint32_t version, record_bytes;
    uint32_t rank, num_records, num_lanes;
    bool is_file;
    uint64_t count;   /* number of records ever made */
    int64_t boot;     /* flight_ring_boot() of its process */
    int64_t alive_ms; /* wall clock: when its process last noted that it runs */
    struct flight_lane lanes[FLIGHT_LANES_MAX];
    struct flight_text {
        uint64_t address; /* in its process; 0: none */
        char text[FLIGHT_TEXT_BYTES];
    } texts[FLIGHT_TEXTS];
    struct flight_record records[]; /* of id: records[id % num_records] */
};

/* In memory of the process. NULL: no memory. */
struct flight_ring *flight_ring_new(uint32_t rank, uint32_t num_records);
/* In a new file, with all blocks allocated. ERR_IO, ERR_SPACE. */
int flight_ring_create(struct flight_ring **out, int *out_fd, const char *path, uint32_t rank,
                       uint32_t num_records);
/* fd and path as at its creation; -1 and NULL: no file. The file is removed. */
void flight_ring_free(struct flight_ring *ring, int fd, const char *path);

/* Copies the records that the process of this file has stored. ERR_INVALID: it is no ring, or of
 * another build. */
int flight_ring_read(struct flight_ring **out, bool *out_is_dead, const char *path);

/* Identifies the host and its last boot; 0: unknown. Rings of one boot have the same clock, and
 * show what their processes stored at once, which a network's file system does not do. */
int64_t flight_ring_boot(void);

static inline uint32_t flight_text_place(uint64_t address)
{
    return (uint32_t)(address * 0x9e3779b97f4a7c15u >> 40) % FLIGHT_TEXTS;
}
/* Makes the text, a constant or NULL, readable from the file. */
void flight_ring_put_text(struct flight_ring *ring, const char *text);
static inline void flight_ring_keep_text(struct flight_ring *ring, const char *text)
{
    uint64_t address = (uintptr_t)text;
    if (ring->is_file && text != NULL && ring->texts[flight_text_place(address)].address != address)
        flight_ring_put_text(ring, text);
}

#endif
