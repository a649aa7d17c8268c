/* retain.c - the retention rules, one pass each over the checkpoints, newest first or in the rule's
 * order. */
#include "proto/format/retain.h"

#include "proto/base/json.h"
#include "proto/base/report.h"
#include "proto/format/shard.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int retain_newest_first(const struct retain_item *a, const struct retain_item *b)
{
    if (a->attempt != b->attempt)
        return a->attempt > b->attempt ? -1 : 1;
    return (a->step < b->step) - (a->step > b->step);
}

static int newest_first(const void *a, const void *b)
{
    return retain_newest_first(*(struct retain_item *const *)a, *(struct retain_item *const *)b);
}

/* retain.R1 to R4. */
static void protect(struct retain_item **sorted, uint32_t count)
{
    uint32_t good = 0, proven = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct retain_item *item = sorted[i];
        if (item->is_pinned)
            item->reasons |= RETAIN_PINNED;
        if (item->is_leased)
            item->reasons |= RETAIN_LEASED;
        if (item->is_damaged)
            item->reasons |= RETAIN_UNVERIFIABLE;
        else if (good++ < RETAIN_GOOD_MIN)
            item->reasons |= RETAIN_GOOD;
        if (item->is_proven && !item->is_damaged && proven++ < RETAIN_GOOD_MIN)
            item->reasons |= RETAIN_PROVEN;
    }
}

/* retain.R3: only of undamaged ones. */
static void keep_last(struct retain_item **sorted, uint32_t count, uint32_t wanted)
{
    for (uint32_t i = 0; i < count && wanted > 0; i++)
        if (!sorted[i]->is_damaged) {
            sorted[i]->reasons |= RETAIN_LAST;
            wanted--;
        }
}

static int by_step(const void *a, const void *b)
{
    const struct retain_item *const *x = a, *const *y = b;
    return (*x)->step != (*y)->step ? ((*x)->step < (*y)->step ? -1 : 1) : newest_first(a, b);
}

/* Keeps, of each such step, the undamaged one of the newest attempt. Leaves the list sorted by
 * step. */
static void keep_every(struct retain_item **sorted, uint32_t count, uint64_t every)
{
    qsort(sorted, count, sizeof(struct retain_item *), by_step);
    const struct retain_item *kept = NULL;
    for (uint32_t i = 0; i < count; i++) {
        struct retain_item *item = sorted[i];
        if (item->step % every != 0 || item->is_damaged || (kept && kept->step == item->step))
            continue;
        item->reasons |= RETAIN_EVERY;
        kept = item;
    }
}

static int by_value(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Seconds from an older one to the next; -1: the clock went backwards, or jumped too far. */
static int64_t gap_between(const struct retain_item *newer, const struct retain_item *older)
{
    int64_t gap;
    return __builtin_sub_overflow(newer->time, older->time, &gap) || gap < 0 ? -1 : gap;
}

/* The longest gap between two checkpoints that still counts as time. A gap longer than the span of
 * the rule and than RETAIN_JUMP usual gaps is a jump of the clock, or a pause. `sorted` holds
 * two. */
static uint64_t longest_gap(int64_t *room, struct retain_item **sorted, uint32_t count,
                            uint64_t seconds)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i + 1 < count; i++)
        room[i] = gap_between(sorted[i], sorted[i + 1]);
    qsort(room, count - 1, sizeof *room, by_value);
    int64_t usual = room[(count - 2) / 2];
    if (usual > 0 && __builtin_mul_overflow((uint64_t)usual, RETAIN_JUMP, &longest))
        longest = UINT64_MAX;
    return longest > seconds ? longest : seconds;
}

/* An age is the sum of the gaps since then, without those that count as no time. No checkpoint is
 * older than its date tells: one dated after the newest stays. */
static int keep_within(struct retain_item **sorted, uint32_t count, uint64_t seconds)
{
    uint32_t newest = 0;
    while (newest < count && sorted[newest]->is_damaged)
        sorted[newest++]->reasons |= RETAIN_WITHIN;
    if (count - newest < 2) {
        for (uint32_t i = newest; i < count; i++)
            sorted[i]->reasons |= RETAIN_WITHIN;
        return 0;
    }
    int64_t *room = calloc(count, sizeof *room);
    if (room == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a plan of %u checkpoints", count);
    uint64_t longest = longest_gap(room, sorted + newest, count - newest, seconds);
    free(room);
    uint64_t age = 0;
    for (uint32_t i = newest; i < count; i++) {
        int64_t gap = i > newest ? gap_between(sorted[i - 1], sorted[i]) : 0;
        int64_t dated = gap_between(sorted[newest], sorted[i]);
        age += gap > 0 && (uint64_t)gap <= longest ? (uint64_t)gap : 0;
        if (age <= seconds || dated < 0 || (uint64_t)dated <= seconds)
            sorted[i]->reasons |= RETAIN_WITHIN;
    }
    return 0;
}

static bool has_metric(const struct retain_item *item)
{
    return item->has_metric && !item->is_damaged && isfinite(item->metric);
}

/* `sign` 1: the lowest first, -1: the highest. Of equals the newer first; those without a metric
 * last. */
static int by_metric(const void *a, const void *b, int sign)
{
    const struct retain_item *x = *(struct retain_item *const *)a;
    const struct retain_item *y = *(struct retain_item *const *)b;
    if (has_metric(x) != has_metric(y))
        return has_metric(x) ? -1 : 1;
    if (!has_metric(x) || x->metric == y->metric)
        return newest_first(a, b);
    return x->metric < y->metric ? -sign : sign;
}

static int lowest_first(const void *a, const void *b)
{
    return by_metric(a, b, 1);
}

static int highest_first(const void *a, const void *b)
{
    return by_metric(a, b, -1);
}

/* Leaves the list sorted by metric. */
static int keep_best(struct retain_item **sorted, uint32_t count, const struct retain_rules *rules)
{
    qsort(sorted, count, sizeof(struct retain_item *),
          rules->best_is_highest ? highest_first : lowest_first);
    if (!has_metric(sorted[0]))
        return report_error(ERR_INVALID, "name a metric that the manifests' state holds",
                            "no checkpoint has a value of the metric to keep the best by");
    for (uint32_t i = 0; i < count && i < rules->keep_best && has_metric(sorted[i]); i++)
        sorted[i]->reasons |= RETAIN_BEST;
    return 0;
}

int retain_check(const struct retain_rules *rules)
{
    return rules->keep_last > 0 || rules->keep_every > 0 || rules->keep_within > 0 ||
                   rules->keep_best > 0
               ? 0
               : report_error(ERR_INVALID,
                              "give at least one of keep-last, keep-every, keep-within "
                              "and keep-best",
                              "no rule says which checkpoints to keep");
}

/* `sorted` has the existing ones, at least one. */
static int apply_rules(struct retain_item **sorted, uint32_t count,
                       const struct retain_rules *rules)
{
    int error = 0;
    qsort(sorted, count, sizeof(struct retain_item *), newest_first);
    protect(sorted, count);
    keep_last(sorted, count, rules->keep_last);
    if (rules->keep_within > 0)
        error = keep_within(sorted, count, rules->keep_within);
    if (error == 0 && rules->keep_best > 0)
        error = keep_best(sorted, count, rules);
    if (rules->keep_every > 0)
        keep_every(sorted, count, rules->keep_every);
    return error;
}

int retain_plan(struct retain_item *items, uint32_t count, const struct retain_rules *rules,
                uint32_t *out_removed)
{
    int error = retain_check(rules);
    *out_removed = 0;
    if (error != 0 || count == 0)
        return error;
    struct retain_item **sorted = calloc(count, sizeof(struct retain_item *));
    if (sorted == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a plan of %u checkpoints", count);
    uint32_t there = 0;
    for (uint32_t i = 0; i < count; i++) {
        items[i].reasons = items[i].is_vanished ? RETAIN_VANISHED : 0;
        if (!items[i].is_vanished)
            sorted[there++] = &items[i];
    }
    if (there > 0)
        error = apply_rules(sorted, there, rules);
    free(sorted);
    uint32_t counted = 0;
    for (uint32_t i = 0; i < count && error == 0; i++) {
        *out_removed += items[i].reasons == 0;
        counted += retain_counts(items[i].reasons);
    }
    if (error == 0 && retain_is_most(*out_removed, counted) && !rules->may_remove_most)
        error = report_error(
            ERR_DENIED,
            "look at the plan (--dry-run); --most, or retention.may_remove_most, allows it",
            "%u of %u checkpoints would go, more than half", *out_removed, counted);
    return error;
}

int retain_plan_seen(struct retain_item *items, uint32_t count, const struct retain_rules *rules,
                     uint32_t *out_removed, int (*check)(void *user, uint32_t index), void *user)
{
    int error = retain_plan(items, count, rules, out_removed);
    if ((error != 0 && error != ERR_DENIED) || *out_removed == 0)
        return error;
    for (uint32_t i = 0; i < count; i++)
        if (!items[i].is_damaged && !items[i].is_vanished)
            ERR_TRY(check(user, i));
    return retain_plan(items, count, rules, out_removed);
}

const char *retain_text(char *out, size_t size, unsigned reasons)
{
    static const char *const names[RETAIN_REASONS] = {"last",   "every",    "within",       "best",
                                                      "pinned", "leased",   "unverifiable", "good",
                                                      "proven", "vanished", "draining"};
    size_t at = 0;
    snprintf(out, size, "%s", reasons == 0 ? "remove" : "");
    for (uint32_t i = 0; i < RETAIN_REASONS && at < size; i++)
        if (reasons & (1u << i))
            at += (size_t)snprintf(out + at, size - at, "%s%s", at > 0 ? ", " : "", names[i]);
    return out;
}

/* ---- reading names and times ---- */

bool retain_parse(const char *name, uint64_t *out_step, uint64_t *out_attempt)
{
    unsigned long long step, attempt;
    char key[64];
    if (sscanf(name, "step-%llu-a%llu", &step, &attempt) != 2 || attempt == 0 || step > INT64_MAX ||
        attempt > INT64_MAX || shard_dir_key(key, sizeof key, "r", step, attempt) != 0 ||
        strcmp(key + 2, name) != 0)
        return false;
    *out_step = step;
    *out_attempt = attempt;
    return true;
}

bool retain_is_checkpoint(const char *name)
{
    uint64_t step, attempt;
    return retain_parse(name, &step, &attempt);
}

int retain_metric(struct retain_item *item, const char *state_json, const char *name)
{
    json_t *state;
    json_error_t reason;
    int error = json_read(&state, state_json, strlen(state_json), &reason);
    const json_t *value = json_object_get(json_object_get(state, "metrics"), name);
    item->has_metric = json_is_number(value);
    item->metric = json_number_value(value);
    json_decref(state);
    return error == ERR_MEMORY ? error : 0;
}

int64_t retain_time(const char *text)
{
    struct tm utc = {0};
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return end != NULL && *end == '\0' ? (int64_t)timegm(&utc) : 0;
}

/* ---- the scrub's cursor ---- */

void scrub_cursor_write(char out[SCRUB_CURSOR_BYTES_MAX], const struct scrub_cursor *cursor)
{
    snprintf(out, SCRUB_CURSOR_BYTES_MAX,
             "1 %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 " %" PRIu64
             " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
             cursor->attempt, cursor->step, cursor->shard, cursor->block, cursor->begun,
             cursor->ended, cursor->proven_attempt, cursor->proven_step, cursor->unread_attempt,
             cursor->unread_step, cursor->last_unread_attempt, cursor->last_unread_step,
             cursor->missed);
}

bool scrub_cursor_read(struct scrub_cursor *out, uint64_t number, const char *text)
{
    struct scrub_cursor found = {.number = number};
    char again[SCRUB_CURSOR_BYTES_MAX];
    *out = found;
    if (number == 0)
        return true;
    int count =
        sscanf(text,
               "1 %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNd64 " %" SCNd64 " %" SCNu64
               " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
               &found.attempt, &found.step, &found.shard, &found.block, &found.begun, &found.ended,
               &found.proven_attempt, &found.proven_step, &found.unread_attempt, &found.unread_step,
               &found.last_unread_attempt, &found.last_unread_step, &found.missed);
    /* The first version wrote six numbers, the next one eight: a line that ends between two
     * numbers. sscanf accepts signs and spaces that ckptd never writes, so a text is valid only if
     * writing it again gives the same. */
    if (count != 6 && count != 8 && count != 13)
        return false;
    size_t end = strlen(text) - 1;
    scrub_cursor_write(again, &found);
    if (text[end] != '\n' || strncmp(text, again, end) != 0 ||
        (again[end] != ' ' && again[end] != '\n'))
        return false;
    *out = found;
    return true;
}

static bool is_before(uint64_t step, uint64_t attempt, uint64_t other_step, uint64_t other_attempt)
{
    return attempt != other_attempt ? attempt < other_attempt : step < other_step;
}

void scrub_cursor_except(struct scrub_cursor *cursor, uint64_t step, uint64_t attempt)
{
    bool is_first = cursor->last_unread_attempt == 0;
    if (is_first || is_before(step, attempt, cursor->unread_step, cursor->unread_attempt)) {
        cursor->unread_attempt = attempt;
        cursor->unread_step = step;
    }
    if (is_first ||
        is_before(cursor->last_unread_step, cursor->last_unread_attempt, step, attempt)) {
        cursor->last_unread_attempt = attempt;
        cursor->last_unread_step = step;
    }
}

void scrub_cursor_brought(struct scrub_cursor *cursor, uint64_t step, uint64_t attempt)
{
    scrub_cursor_except(cursor, step, attempt);
    if (cursor->begun != 0 && is_before(step, attempt, cursor->step, cursor->attempt))
        cursor->missed = 1;
}

bool scrub_has_proven(const struct scrub_cursor *cursor, uint64_t step, uint64_t attempt)
{
    return !is_before(cursor->proven_step, cursor->proven_attempt, step, attempt) &&
           (is_before(step, attempt, cursor->unread_step, cursor->unread_attempt) ||
            is_before(cursor->last_unread_step, cursor->last_unread_attempt, step, attempt));
}
