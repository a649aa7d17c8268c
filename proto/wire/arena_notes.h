/* arena_notes.h - the current work of a rank, recorded in its control page. ckptd can read it after
 * the rank died.
 *
 * The rank notes its calls between ranks as they begin and end, and the operation that each of its
 * lanes (queues of work) is in. A note costs a few stores. ckptd has the page mapped: when the rank
 * dies, by any signal, or hangs, ckptd reports its last work. A rank that leaves normally marks
 * that; ckptd then does not report a lost rank. ckptd gets the notes of a rank on another node once
 * a second (Attend in ckpt.proto): after SIGKILL they are up to that old.
 *
 * One thread at a time writes notes. ckptd may read at any time and treats the notes as hostile: a
 * note may be torn, or hold any bytes. */
#ifndef HOLDFAST_PROTO_WIRE_ARENA_NOTES_H
#define HOLDFAST_PROTO_WIRE_ARENA_NOTES_H

#include "proto/wire/arena.h"

/* A call begins. `note->number` is new, counted from 1; since_ns, until_ns and the texts are filled
 * in here. Texts are cut to the size in a note; NULL is "". */
struct arena_text {
    const char *what, *of, *lane;
};
void arena_note_call(struct arena_notes *notes, const struct arena_note *note,
                     const struct arena_text *text);
void arena_note_end(struct arena_notes *notes, uint64_t number);
/* The lane, one of at most ARENA_LANES, begins the operation. */
void arena_note_lane(struct arena_notes *notes, const struct arena_note *note,
                     const struct arena_text *text);
/* The rank's process runs. Noted often by a thread that waits for no other rank, so that a process
 * that stands still (SIGSTOP, a stopped node) differs from one that waits. Any thread. */
void arena_note_alive(struct arena_notes *notes);
/* When the process last ran, of a clock that wraps; 0: unknown. */
uint32_t arena_notes_alive_ms(struct arena_notes *notes);
/* The rank ends the session in order. */
void arena_note_leave(struct arena_notes *notes);
bool arena_notes_has_left(struct arena_notes *notes);

/* Copies the notes, whose writer may be at work, over those in `to`, but not the mark of the end:
 * `later_ns` is added to their times. */
void arena_notes_copy(struct arena_notes *to, struct arena_notes *from, uint64_t later_ns);

/* "step 7, in all_gather of dp_shard (lane gather, operation 12, 3.0 MiB) for 2.1 s". Describes the
 * first and the last call under way, else the newest operation, else the call that ended last.
 * False, and "": the rank has written no note, or has left. Accepts any bytes; the text is
 * printable. */
#define ARENA_TELL_MAX 400u
bool arena_notes_describe(char out[ARENA_TELL_MAX], struct arena_notes *notes);

#endif
