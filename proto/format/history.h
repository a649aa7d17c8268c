/* history.h - the journal of a run: its place and bounds. ckptd writes it, ckpt-cli reads it.
 *
 * A numbered object of storage.h in "<run>/history": lines of JSON, the oldest first, each {"time",
 * "event", "step", "attempt", "by", "detail"}; step and attempt are omitted when the event has no
 * checkpoint. Beyond HISTORY_BYTES_MAX ckptd drops the oldest lines. */
#ifndef HOLDFAST_PROTO_FORMAT_HISTORY_H
#define HOLDFAST_PROTO_FORMAT_HISTORY_H

#define HISTORY_FOLDER "history"
#define HISTORY_BYTES_MAX (64u << 10) /* some 400 events */

#endif
