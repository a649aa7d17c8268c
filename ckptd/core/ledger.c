/* ledger.c - promises of disk space, and the rate at which it fills; see the header. */
#include "ckptd/core/ledger.h"
#include "proto/base/report.h"
#include "storage/storage.h"

#include <stdio.h>

#define MS_PER_HOUR 3600000.0

uint64_t ledger_usable(const struct ledger *ledger, const struct storage_space *space)
{
    return (uint64_t)(ledger->usable_fraction * (double)space->bytes_total);
}

uint64_t ledger_used(const struct storage_space *space)
{
    return space->bytes_total - space->bytes_free;
}

uint64_t ledger_room(const struct ledger *ledger, const struct storage_space *space)
{
    uint64_t usable = ledger_usable(ledger, space), used = ledger_used(space);
    uint64_t room = usable > used ? usable - used : 0;
    room = room < space->bytes_free ? room : space->bytes_free;
    return room > ledger->promised.bytes ? room - ledger->promised.bytes : 0;
}

static int check_inodes(const struct ledger *ledger, const struct storage_space *space,
                        uint64_t inodes)
{
    uint64_t kept = ledger->promised.inodes + LEDGER_INODES_KEPT;
    if (space->inodes_total == 0 || inodes + kept <= space->inodes_free)
        return 0;
    return report_error(ERR_SPACE, "remove files, or make the file system with more inodes",
                        "a checkpoint of %llu files does not fit: %llu inodes are free, %llu of "
                        "them promised to other saves and %u kept for removals",
                        (unsigned long long)inodes, (unsigned long long)space->inodes_free,
                        (unsigned long long)ledger->promised.inodes, LEDGER_INODES_KEPT);
}

int ledger_promise(struct ledger *ledger, struct ledger_promise *out,
                   const struct storage_space *space, uint64_t bytes, uint64_t inodes)
{
    if (bytes > ledger_room(ledger, space))
        return report_error(ERR_SPACE, "remove checkpoints, or raise storage.usable_fraction",
                            "a checkpoint of %llu bytes does not fit: %llu of %llu usable bytes "
                            "are in use, %llu promised",
                            (unsigned long long)bytes, (unsigned long long)ledger_used(space),
                            (unsigned long long)ledger_usable(ledger, space),
                            (unsigned long long)ledger->promised.bytes);
    ERR_TRY(check_inodes(ledger, space, inodes));
    ledger->promised.bytes += bytes;
    ledger->promised.inodes += inodes;
    *out = (struct ledger_promise){bytes, inodes};
    return 0;
}

static uint64_t excess(uint64_t wanted, uint64_t there)
{
    return wanted > there ? wanted - there : 0;
}

struct ledger_promise ledger_deficit(const struct ledger *ledger, const struct storage_space *space,
                                     uint64_t bytes, uint64_t inodes)
{
    uint64_t promised = ledger->promised.bytes + bytes;
    uint64_t usable = excess(ledger_used(space) + promised, ledger_usable(ledger, space));
    uint64_t on_disk = excess(promised, space->bytes_free);
    uint64_t files = ledger->promised.inodes + LEDGER_INODES_KEPT + inodes;
    return (struct ledger_promise){usable > on_disk ? usable : on_disk,
                                   space->inodes_total > 0 ? excess(files, space->inodes_free) : 0};
}

void ledger_take(struct ledger *ledger, struct ledger_promise *promise, uint64_t bytes,
                 uint64_t inodes)
{
    CHECK(bytes <= promise->bytes && inodes <= promise->inodes);
    CHECK(bytes <= ledger->promised.bytes && inodes <= ledger->promised.inodes);
    promise->bytes -= bytes;
    promise->inodes -= inodes;
    ledger->promised.bytes -= bytes;
    ledger->promised.inodes -= inodes;
}

void ledger_end(struct ledger *ledger, struct ledger_promise *promise)
{
    ledger_take(ledger, promise, promise->bytes, promise->inodes);
}

/* ---- the rate ---- */

void ledger_note(struct ledger *ledger, int64_t ms, int64_t bytes)
{
    ledger->changes[ledger->num_changes++ % LEDGER_CHANGES_MAX] = (struct ledger_change){ms, bytes};
}

/* The number of the oldest remembered change, and its age. */
static uint32_t oldest(int64_t *out_ms_ago, const struct ledger *ledger, int64_t now_ms)
{
    uint32_t first =
        ledger->num_changes > LEDGER_CHANGES_MAX ? ledger->num_changes - LEDGER_CHANGES_MAX : 0;
    *out_ms_ago = now_ms - ledger->changes[first % LEDGER_CHANGES_MAX].ms;
    return first;
}

bool ledger_knows_growth(const struct ledger *ledger, int64_t now_ms)
{
    int64_t ms;
    oldest(&ms, ledger, now_ms);
    return ledger->num_changes >= 2 && ms >= LEDGER_SPAN_MS_MIN;
}

double ledger_growth(const struct ledger *ledger, int64_t now_ms)
{
    int64_t ms;
    uint32_t first = oldest(&ms, ledger, now_ms);
    double bytes = 0;
    if (!ledger_knows_growth(ledger, now_ms))
        return 0;
    /* The bytes of the oldest change were there when its time began. */
    for (uint32_t i = first + 1; i != ledger->num_changes; i++)
        bytes += (double)ledger->changes[i % LEDGER_CHANGES_MAX].bytes;
    return bytes / (double)ms * MS_PER_HOUR;
}

double ledger_hours_to_full(const struct ledger *ledger, const struct storage_space *space,
                            int64_t now_ms)
{
    double growth = ledger_growth(ledger, now_ms);
    return growth > 0 ? (double)ledger_room(ledger, space) / growth : -1.0;
}

void ledger_say_hours(char out[LEDGER_TEXT_BYTES], const struct ledger *ledger,
                      const struct storage_space *space, int64_t now_ms)
{
    double hours = ledger_hours_to_full(ledger, space, now_ms);
    if (!ledger_knows_growth(ledger, now_ms))
        snprintf(out, LEDGER_TEXT_BYTES,
                 "the time until it is full is unknown: no save rate is known");
    else if (hours < 0)
        snprintf(out, LEDGER_TEXT_BYTES, "it does not fill at the rate of the last saves");
    else
        snprintf(out, LEDGER_TEXT_BYTES, "it is full in %.1f hours at the rate of the last saves",
                 hours);
}

bool ledger_must_warn(struct ledger *ledger, const struct storage_space *space, int64_t now_ms,
                      uint64_t bytes)
{
    double hours = ledger_hours_to_full(ledger, space, now_ms);
    bool is_short =
        ledger_room(ledger, space) < 2 * bytes || (hours >= 0 && hours < LEDGER_WARN_HOURS);
    bool is_recent = ledger->warned_ms != 0 && now_ms - ledger->warned_ms < LEDGER_WARN_MS;
    bool must_warn = is_short && !ledger->is_short && !is_recent;
    ledger->is_short = is_short && (ledger->is_short || must_warn);
    ledger->warned_ms = must_warn ? now_ms : ledger->warned_ms;
    return must_warn;
}
