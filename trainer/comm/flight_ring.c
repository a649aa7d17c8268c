/* flight_ring.c - see flight_ring.h. */
#include "trainer/comm/flight_ring.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_TRIES 8u

static size_t bytes_of(uint32_t num_records)
{
    return sizeof(struct flight_ring) + num_records * sizeof(struct flight_record);
}

int64_t flight_ring_boot(void)
{
    char text[64] = "", digits[16] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL || fgets(text, sizeof(text), file) == NULL)
        text[0] = '\0';
    if (file != NULL)
        fclose(file);
    for (size_t i = 0, used = 0; text[i] != '\0' && used < sizeof(digits) - 1; i++)
        if (text[i] != '-')
            digits[used++] = text[i];
    return (int64_t)strtoull(digits, NULL, 16);
}

static void fill_head(struct flight_ring *ring, uint32_t rank, uint32_t num_records)
{
    memcpy(ring->magic, FLIGHT_RING_MAGIC, sizeof(ring->magic));
    ring->version = FLIGHT_RING_VERSION;
    ring->record_bytes = sizeof(struct flight_record);
    ring->rank = rank;
    ring->num_records = num_records;
    ring->boot = flight_ring_boot();
    ring->alive_ms = clock_wall_ms();
}

struct flight_ring *flight_ring_new(uint32_t rank, uint32_t num_records)
{
    struct flight_ring *ring = calloc(1, bytes_of(num_records));
    if (ring != NULL)
        fill_head(ring, rank, num_records);
    return ring;
}

/* ---- a file ---- */

/* Moves the file of an earlier start whose process did not remove it. */
static void put_aside(const char *path)
{
    char folder[4096], aside[4608];
    const char *name = strrchr(path, '/');
    CHECK(name != NULL);
    if (access(path, F_OK) != 0)
        return;
    snprintf(folder, sizeof(folder), "%.*s/before", (int)(name - path), path);
    snprintf(aside, sizeof(aside), "%s%s", folder, name);
    if ((mkdir(folder, 0777) != 0 && errno != EEXIST) || rename(path, aside) != 0)
        log_warn("comm", "could not move %s, of an earlier start, to %s: %s", path, aside,
                 strerror(errno));
}

/* Allocates all blocks: a store into a hole of a full disk kills the process. */
static int map_new(struct flight_ring **out, int fd, size_t bytes)
{
    int error = posix_fallocate(fd, 0, (off_t)bytes);
    if (error != 0)
        return error;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (memory == MAP_FAILED)
        return errno;
    *out = memory;
    return 0;
}

int flight_ring_create(struct flight_ring **out, int *out_fd, const char *path, uint32_t rank,
                       uint32_t num_records)
{
    put_aside(path);
    unlink(path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return report_errno(ERR_IO, "could not create a ring of calls", path);
    (void)flock(fd, LOCK_EX | LOCK_NB);
    int error = map_new(out, fd, bytes_of(num_records));
    if (error != 0) {
        unlink(path);
        close(fd);
        errno = error;
        return report_errno(error == ENOSPC ? ERR_SPACE : ERR_IO, "could not map a ring of calls",
                            path);
    }
    fill_head(*out, rank, num_records);
    (*out)->is_file = true;
    *out_fd = fd;
    return 0;
}

void flight_ring_free(struct flight_ring *ring, int fd, const char *path)
{
    if (ring == NULL)
        return;
    if (!ring->is_file) {
        free(ring);
        return;
    }
    unlink(path);
    munmap(ring, bytes_of(ring->num_records));
    close(fd);
}

/* ---- texts ---- */

static struct flight_text *find_text(struct flight_ring *ring, uint64_t address)
{
    uint32_t place = flight_text_place(address);
    struct flight_text *text;
    for (uint32_t i = 0; i < TEXT_TRIES; i++) {
        text = &ring->texts[(place + i) % FLIGHT_TEXTS];
        if (text->address == address || text->address == 0)
            return text;
    }
    return NULL;
}

void flight_ring_put_text(struct flight_ring *ring, const char *text)
{
    struct flight_text *place = find_text(ring, (uintptr_t)text);
    if (place == NULL || place->address != 0)
        return;
    snprintf(place->text, sizeof(place->text), "%s", text);
    place->address = (uintptr_t)text;
}

/* ---- after death ---- */

static const char *text_at(struct flight_ring *ring, const char *address)
{
    struct flight_text *text = address != NULL ? find_text(ring, (uintptr_t)address) : NULL;
    if (address == NULL)
        return NULL;
    return text != NULL && text->address != 0 ? text->text : "?";
}

static void find_texts(struct flight_ring *ring)
{
    for (uint32_t i = 0; i < FLIGHT_TEXTS; i++)
        ring->texts[i].text[FLIGHT_TEXT_BYTES - 1] = '\0';
    for (uint32_t i = 0; i < ring->num_lanes; i++) {
        struct flight_lane *of = &ring->lanes[i];
        of->lane = text_at(ring, of->lane);
        of->at.what = text_at(ring, of->at.what);
        of->due.what = text_at(ring, of->due.what);
    }
    for (uint32_t i = 0; i < ring->num_records; i++) {
        struct flight_record *record = &ring->records[i];
        record->group = text_at(ring, record->group);
        record->lane = text_at(ring, record->lane);
        record->site = text_at(ring, record->site);
        record->place.what = text_at(ring, record->place.what);
        if ((unsigned)record->kind >= NUM_COMM_KINDS || (unsigned)record->state > FLIGHT_FAILED)
            record->id = 0; /* torn */
    }
}

static bool is_ring(const struct flight_ring *ring, size_t bytes)
{
    return bytes >= sizeof(*ring) && memcmp(ring->magic, FLIGHT_RING_MAGIC, 8) == 0 &&
           ring->version == FLIGHT_RING_VERSION &&
           ring->record_bytes == sizeof(struct flight_record) && ring->num_records > 0 &&
           bytes == bytes_of(ring->num_records) && ring->num_lanes <= FLIGHT_LANES_MAX;
}

static int read_all(struct flight_ring **out, int fd, size_t bytes, const char *path)
{
    size_t done = 0;
    struct flight_ring *ring = malloc(bytes + 1);
    if (ring == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the ring of %zu bytes", bytes);
    for (ssize_t got = 1; done < bytes && got > 0; done += got > 0 ? (size_t)got : 0)
        got = pread(fd, (char *)ring + done, bytes - done, (off_t)done);
    if (done < bytes || !is_ring(ring, bytes)) {
        free(ring);
        return report_error(ERR_INVALID, "read it with the trainer that wrote it",
                            "%s is not a flight recorder's ring of this build", path);
    }
    ring->is_file = false; /* so that it is freed as memory */
    find_texts(ring);
    *out = ring;
    return 0;
}

int flight_ring_read(struct flight_ring **out, bool *out_is_dead, const char *path)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return report_errno(ERR_IO, "could not open a ring of calls", path);
    *out_is_dead = flock(fd, LOCK_SH | LOCK_NB) == 0;
    int rc = fstat(fd, &about) == 0 ? read_all(out, fd, (size_t)about.st_size, path)
                                    : report_errno(ERR_IO, "could not read a ring of calls", path);
    close(fd);
    return rc;
}
