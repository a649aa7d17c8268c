/* tensorboard.c - writes a file of events (see tensorboard.h). */
#include "trainer/observe/tensorboard.h"

#include "proto/base/clock.h"
#include "proto/base/process.h"
#include "proto/base/report.h"
#include "proto/model/tensorboard.pb-c.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 1024
#define EVENT_BYTES 4096u /* of an event with all scalars of a step */
#define SCALARS_MAX 32u

enum { SESSION_START = 1 };
struct tensorboard {
    FILE *file;
    char path[PATH_BYTES];
    bool is_first, has_started, is_broken;
};

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

static void write_event(struct tensorboard *board, Tensorboard__Event *event)
{
    uint8_t bytes[EVENT_BYTES];
    event->has_wall_time = true;
    event->wall_time = clock_wall_seconds();
    uint64_t length = tensorboard__event__get_packed_size(event);
    CHECK(length <= EVENT_BYTES);
    tensorboard__event__pack(event, bytes);
    uint32_t of_length = masked_checksum(&length, sizeof(length));
    uint32_t of_event = masked_checksum(bytes, length);
    if (board->is_broken)
        return;
    fwrite(&length, sizeof(length), 1, board->file);
    fwrite(&of_length, sizeof(of_length), 1, board->file);
    fwrite(bytes, 1, length, board->file);
    fwrite(&of_event, sizeof(of_event), 1, board->file);
    board->is_broken = fflush(board->file) != 0 || ferror(board->file);
    if (board->is_broken)
        log_warn("train", "could not write %s: %s; nothing more is written to it", board->path,
                 strerror(errno));
}

/* ---- */

/* Creates a folder, and the folders above it. */
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
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
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
    event.file_version = "brain.Event:2";
    write_event(board, &event);
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

void tensorboard_start(struct tensorboard *board, uint64_t attempt, int64_t step)
{
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    Tensorboard__SessionLog session = TENSORBOARD__SESSION_LOG__INIT;
    char text[32];
    snprintf(text, sizeof(text), "attempt %llu", (unsigned long long)attempt);
    board->is_first = board->is_first && !board->has_started;
    board->has_started = true;
    session.has_status = event.has_step = true;
    session.status = SESSION_START;
    session.msg = text;
    event.step = step + 1;
    event.session_log = &session;
    write_event(board, &event);
}

void tensorboard_add(struct tensorboard *board, int64_t step,
                     const struct tensorboard_scalar *scalars, uint32_t num)
{
    Tensorboard__Event event = TENSORBOARD__EVENT__INIT;
    Tensorboard__Summary summary = TENSORBOARD__SUMMARY__INIT;
    Tensorboard__Value values[SCALARS_MAX], *list[SCALARS_MAX];
    CHECK(num <= SCALARS_MAX);
    for (uint32_t i = 0; i < num; i++) {
        values[i] = (Tensorboard__Value)TENSORBOARD__VALUE__INIT;
        values[i].tag = (char *)(uintptr_t)scalars[i].tag;
        values[i].has_simple_value = true;
        values[i].simple_value = (float)scalars[i].value;
        list[i] = &values[i];
    }
    summary.n_value = num;
    summary.value = list;
    event.has_step = true;
    event.step = step;
    event.summary = &summary;
    write_event(board, &event);
}
