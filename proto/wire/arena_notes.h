/* arena_notes.h - what a rank is doing, in its control page: a flight recorder that outlives it.
 *
 * The rank notes its calls between ranks as they begin and end, and the operation that each of its
 * lanes (queues of work) is in. A note is some stores. ckptd has the page mapped: when the rank
 * dies, by whatever signal, or hangs, ckptd tells in what. A rank that leaves says so, and is no
 * loss.
 *
 * One thread at a time notes; ckptd may read at any time and takes what it reads as hostile: a
 * note may be torn, or any bytes. */
#ifndef HOLDFAST_PROTO_WIRE_ARENA_NOTES_H
#define HOLDFAST_PROTO_WIRE_ARENA_NOTES_H

#include "proto/wire/arena.h"

/* A call begins, of which `note->number` is new, counted from 1: since, until and the texts are
 * filled in here. Texts are cut to what a note holds; NULL is "". */
struct arena_text {
    const char *what, *of, *lane;
};
void arena_note_call(struct arena_notes *notes, const struct arena_note *note,
                     const struct arena_text *text);
void arena_note_end(struct arena_notes *notes, uint64_t number);
/* The lane, one of at most ARENA_LANES, is in the operation from now on. */
void arena_note_lane(struct arena_notes *notes, const struct arena_note *note,
                     const struct arena_text *text);
/* The session ends as the rank wants it to. */
void arena_note_leave(struct arena_notes *notes);

/* "step 7, in all_gather of dp_shard (lane gather, operation 12, 3.0 MiB) for 2.1 s": of the calls
 * under way that began first and last, else the operation that began last, else the call that ended
 * last. False, and "": the rank has noted nothing, or has left. Any bytes in, printable text out.
 */
#define ARENA_TELL_MAX 400u
bool arena_notes_tell(char out[ARENA_TELL_MAX], struct arena_notes *notes);

#endif
