/* arena_notes.c - the current work of a rank (see arena_notes.h). */
#include "proto/wire/arena_notes.h"

#include "proto/base/clock.h"

#include <stdio.h>
#include <string.h>

/* ---- one note ---- */

typedef uint64_t __attribute__((may_alias)) word;
_Static_assert(sizeof(struct arena_note) % sizeof(word) == 0 &&
                   offsetof(struct arena_note, number) == 0,
               "the number is the first word");

/* All words but the number. Another thread or process may write `from`, or read `to`. */
static void move_words(struct arena_note *to, const struct arena_note *from)
{
    for (size_t i = 1; i < sizeof(*to) / sizeof(word); i++)
        __atomic_store_n((word *)to + i, __atomic_load_n((const word *)from + i, __ATOMIC_RELAXED),
                         __ATOMIC_RELAXED);
}

/* Copies a note. False: it is empty, or being written. */
static bool read_note(struct arena_note *out, struct arena_note *at)
{
    out->number = __atomic_load_n(&at->number, __ATOMIC_ACQUIRE);
    move_words(out, at);
    /* Adds nothing: the release orders it after the copy. */
    return out->number != 0 && __atomic_fetch_add(&at->number, 0, __ATOMIC_ACQ_REL) == out->number;
}

/* ---- the rank ---- */

static void put_text(char out[static ARENA_NOTE_TEXT], const char *text)
{
    size_t length = text != NULL ? strnlen(text, ARENA_NOTE_TEXT - 1) : 0;
    memcpy(out, text != NULL ? text : "", length);
    out[length] = '\0';
}

/* The number is 0 while the rest changes. */
static void put_note(struct arena_note *at, const struct arena_note *note)
{
    __atomic_store_n(&at->number, 0, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_RELEASE); /* SIGKILL can stop the rank between two stores */
    move_words(at, note);
    __atomic_store_n(&at->number, note->number, __ATOMIC_RELEASE);
}

static void write_note(struct arena_note *at, const struct arena_note *note,
                       const struct arena_text *text)
{
    struct arena_note made = *note;
    made.since_ns = clock_ns();
    made.until_ns = 0;
    put_text(made.what, text->what);
    put_text(made.of, text->of);
    put_text(made.lane, text->lane);
    put_note(at, &made);
}

void arena_note_call(struct arena_notes *notes, const struct arena_note *note,
                     const struct arena_text *text)
{
    write_note(&notes->calls[note->number % ARENA_CALLS], note, text);
}

void arena_note_end(struct arena_notes *notes, uint64_t number)
{
    struct arena_note *at = &notes->calls[number % ARENA_CALLS];
    if (__atomic_load_n(&at->number, __ATOMIC_RELAXED) == number)
        __atomic_store_n(&at->until_ns, clock_ns(), __ATOMIC_RELAXED);
}

void arena_note_lane(struct arena_notes *notes, const struct arena_note *note,
                     const struct arena_text *text)
{
    uint32_t i = 0;
    while (i < ARENA_LANES && __atomic_load_n(&notes->lanes[i].number, __ATOMIC_RELAXED) != 0 &&
           strncmp(notes->lanes[i].lane, text->lane, ARENA_NOTE_TEXT - 1) != 0)
        i++;
    if (i < ARENA_LANES)
        write_note(&notes->lanes[i], note, text);
}

void arena_note_alive(struct arena_notes *notes)
{
    uint32_t now = (uint32_t)clock_ms();
    __atomic_store_n(&notes->alive_ms, now != 0 ? now : 1, __ATOMIC_RELAXED);
}

uint32_t arena_notes_alive_ms(struct arena_notes *notes)
{
    return __atomic_load_n(&notes->alive_ms, __ATOMIC_RELAXED);
}

void arena_note_leave(struct arena_notes *notes)
{
    __atomic_store_n(&notes->has_left, 1, __ATOMIC_RELEASE);
}

bool arena_notes_has_left(struct arena_notes *notes)
{
    return __atomic_load_n(&notes->has_left, __ATOMIC_ACQUIRE) != 0;
}

/* ---- from node to node ---- */

static void copy_notes(struct arena_note *to, struct arena_note *from, uint32_t count,
                       uint64_t later_ns)
{
    for (uint32_t i = 0; i < count; i++) {
        struct arena_note note;
        if (!read_note(&note, &from[i]))
            note.number = 0;
        note.since_ns += later_ns;
        note.until_ns += note.until_ns != 0 ? later_ns : 0;
        put_note(&to[i], &note);
    }
}

void arena_notes_copy(struct arena_notes *to, struct arena_notes *from, uint64_t later_ns)
{
    uint32_t alive_ms = arena_notes_alive_ms(from);
    if (alive_ms != 0)
        __atomic_store_n(&to->alive_ms, alive_ms + (uint32_t)((int64_t)later_ns / 1000000),
                         __ATOMIC_RELAXED);
    copy_notes(to->lanes, from->lanes, ARENA_LANES, later_ns);
    copy_notes(to->calls, from->calls, ARENA_CALLS, later_ns);
}

/* ---- ckptd ---- */

/* The same, with texts that are terminated and printable. */
static bool copy_note(struct arena_note *out, struct arena_note *at)
{
    char *texts[] = {out->what, out->of, out->lane};
    if (!read_note(out, at))
        return false;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        texts[i][ARENA_NOTE_TEXT - 1] = '\0';
        for (char *c = texts[i]; *c != '\0'; c++)
            *c = *c < ' ' || *c > '~' || *c == '"' || *c == '\\' ? '?' : *c;
    }
    return true;
}

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? 1e-9 * (double)(to_ns - from_ns) : 0;
}

static size_t append_note(char *out, size_t room, const struct arena_note *note, const char *how)
{
    char operation[40] = "", bytes[40] = "";
    uint64_t now = clock_ns();
    bool has_ended = note->until_ns != 0;
    if (note->operation != UINT32_MAX)
        snprintf(operation, sizeof(operation), ", operation %u", note->operation);
    if (note->bytes != 0)
        snprintf(bytes, sizeof(bytes), ", %llu bytes", (unsigned long long)note->bytes);
    int length =
        snprintf(out, room, "%s %s%s%s (lane %s%s%s) %s%.1f s%s", how, note->what,
                 note->of[0] != '\0' ? " of " : "", note->of, note->lane, operation, bytes,
                 has_ended ? "" : "for ", seconds(has_ended ? note->until_ns : note->since_ns, now),
                 has_ended ? " ago" : "");
    return length > 0 && (size_t)length < room ? (size_t)length : room - 1;
}

/* Is `one` newer, so that it is described? */
static bool is_later(const struct arena_note *one, const struct arena_note *other)
{
    return other->number == 0 || one->since_ns > other->since_ns;
}

bool arena_notes_describe(char out[ARENA_TELL_MAX], struct arena_notes *notes)
{
    struct arena_note note, first = {.number = 0}, last = first, lane = first, done = first;
    out[0] = '\0';
    if (arena_notes_has_left(notes))
        return false;
    for (uint32_t i = 0; i < ARENA_CALLS; i++) {
        if (!copy_note(&note, &notes->calls[i]))
            continue;
        if (note.until_ns != 0) {
            done = is_later(&note, &done) ? note : done;
            continue;
        }
        first = first.number == 0 || note.since_ns < first.since_ns ? note : first;
        last = is_later(&note, &last) ? note : last;
    }
    for (uint32_t i = 0; i < ARENA_LANES; i++)
        if (copy_note(&note, &notes->lanes[i]) && is_later(&note, &lane))
            lane = note;
    const struct arena_note *most = first.number != 0 ? &first : lane.number != 0 ? &lane : &done;
    if (most->number == 0)
        return false;
    int at = snprintf(out, ARENA_TELL_MAX, "step %llu", (unsigned long long)most->step);
    size_t end = (size_t)at + append_note(out + at, ARENA_TELL_MAX - (size_t)at, most,
                                          most == &done ? ", behind" : ", in");
    if (first.number != last.number)
        (void)append_note(out + end, ARENA_TELL_MAX - end, &last, ", and in");
    return true;
}
