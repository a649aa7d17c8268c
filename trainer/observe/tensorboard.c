/* tensorboard.c - a file of events (see tensorboard.h). */
#include "trainer/observe/tensorboard.h"

#include "proto/base/process.h"
#include "proto/base/report.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 1024
#define EVENT_BYTES 4096u /* of one with all scalars of a step */

enum { SESSION_START = 1 };
enum { WIRE_VARINT, WIRE_DOUBLE, WIRE_BYTES, WIRE_FLOAT = 5 };

struct tensorboard {
    FILE *file;
    char path[PATH_BYTES];
    bool is_first, is_broken;
};

struct message {
    uint8_t bytes[EVENT_BYTES];
    size_t length;
};

/* ---- protocol buffers ---- */

static void put_bytes(struct message *m, const void *bytes, size_t length)
{
    CHECK(m->length + length <= EVENT_BYTES);
    memcpy(m->bytes + m->length, bytes, length);
    m->length += length;
}

static void put_varint(struct message *m, uint64_t value)
{
    do {
        uint8_t byte = (uint8_t)((value & 127) | (value > 127 ? 128 : 0));
        put_bytes(m, &byte, 1);
        value >>= 7;
    } while (value > 0);
}

static void put_field(struct message *m, uint32_t number, uint32_t wire, const void *value,
                      size_t length)
{
    put_varint(m, number << 3 | wire);
    if (wire == WIRE_BYTES)
        put_varint(m, length);
    put_bytes(m, value, length);
}

static void begin_event(struct message *m)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    m->length = 0;
    put_field(m, 1, WIRE_DOUBLE, &seconds, sizeof(seconds));
}

/* ---- records ---- */

static uint32_t masked_checksum(const void *bytes, size_t length)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < length; i++) {
        crc ^= ((const uint8_t *)bytes)[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void write_record(struct tensorboard *board, const struct message *event)
{
    uint64_t length = event->length;
    uint32_t of_length = masked_checksum(&length, sizeof(length));
    uint32_t of_event = masked_checksum(event->bytes, event->length);
    if (board->is_broken)
        return;
    fwrite(&length, sizeof(length), 1, board->file);
    fwrite(&of_length, sizeof(of_length), 1, board->file);
    fwrite(event->bytes, 1, event->length, board->file);
    fwrite(&of_event, sizeof(of_event), 1, board->file);
    board->is_broken = fflush(board->file) != 0 || ferror(board->file);
    if (board->is_broken)
        log_warn("train", "could not write %s: %s; it ends here", board->path, strerror(errno));
}

/* ---- */

/* And the folders above it. */
static int make_folder(char *path)
{
    for (char *at = path + 1;; at++) {
        char separator = *at;
        if (separator != '/' && separator != '\0')
            continue;
        *at = '\0';
        bool is_there = mkdir(path, 0777) == 0 || errno == EEXIST;
        int reason = errno;
        if (!is_there)
            return report_error(ERR_INVALID, "name another folder with metrics.save_tb_folder",
                                "could not make %s: %s", path, strerror(reason));
        *at = separator;
        if (separator == '\0')
            return 0;
    }
}

int tensorboard_open(struct tensorboard **out, const char *folder)
{
    struct tensorboard *board = calloc(1, sizeof(*board));
    char host[64] = "", day[32];
    time_t now = time(NULL);
    struct tm local;
    struct message event;
    if (board == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the events");
    process_host(host, sizeof(host));
    strftime(day, sizeof(day), "%Y%m%d-%H%M", localtime_r(&now, &local));
    snprintf(board->path, sizeof(board->path), "%s/%s", folder, day);
    board->is_first = access(folder, F_OK) != 0;
    int rc = make_folder(board->path);
    if (rc == 0) {
        snprintf(board->path, sizeof(board->path), "%s/%s/events.out.tfevents.%lld.%s.%d.0", folder,
                 day, (long long)now, host, (int)getpid());
        if ((board->file = fopen(board->path, "wb")) == NULL)
            rc = report_error(ERR_INVALID, "name another folder with metrics.save_tb_folder",
                              "could not create %s: %s", board->path, strerror(errno));
    }
    if (rc != 0) {
        free(board);
        return rc;
    }
    begin_event(&event);
    put_field(&event, 3, WIRE_BYTES, "brain.Event:2", 13);
    write_record(board, &event);
    *out = board;
    return 0;
}

void tensorboard_close(struct tensorboard *board)
{
    if (board == NULL)
        return;
    fclose(board->file);
    free(board);
}

bool tensorboard_is_first(const struct tensorboard *board)
{
    return board->is_first;
}

static void put_number(struct message *m, uint32_t number, uint64_t value)
{
    put_varint(m, number << 3 | WIRE_VARINT);
    put_varint(m, value);
}

void tensorboard_start(struct tensorboard *board, uint64_t attempt, int64_t step)
{
    struct message event, session = {.length = 0};
    char text[32];
    int length = snprintf(text, sizeof(text), "attempt %llu", (unsigned long long)attempt);
    put_number(&session, 1, SESSION_START);
    put_field(&session, 3, WIRE_BYTES, text, (size_t)length);
    begin_event(&event);
    put_number(&event, 2, (uint64_t)step + 1);
    put_field(&event, 7, WIRE_BYTES, session.bytes, session.length);
    write_record(board, &event);
}

void tensorboard_add(struct tensorboard *board, int64_t step,
                     const struct tensorboard_scalar *scalars, uint32_t num)
{
    struct message event, summary = {.length = 0};
    for (uint32_t i = 0; i < num; i++) {
        struct message value = {.length = 0};
        float single = (float)scalars[i].value;
        put_field(&value, 1, WIRE_BYTES, scalars[i].tag, strlen(scalars[i].tag));
        put_field(&value, 2, WIRE_FLOAT, &single, sizeof(single));
        put_field(&summary, 1, WIRE_BYTES, value.bytes, value.length);
    }
    begin_event(&event);
    put_number(&event, 2, (uint64_t)step);
    put_field(&event, 5, WIRE_BYTES, summary.bytes, summary.length);
    write_record(board, &event);
}
