/* history.h - where the journal of a run lies, and its bounds: ckptd writes it, ckpt-cli reads it.
 *
 * A numbered object of storage.h in "<run>/history": lines of JSON, the oldest first, each
 * {"time", "event", "step", "attempt", "by", "detail"}; step and attempt are left out where the
 * event is of no checkpoint. When it is longer than HISTORY_BYTES_MAX its oldest lines go. */
#ifndef HOLDFAST_PROTO_FORMAT_HISTORY_H
#define HOLDFAST_PROTO_FORMAT_HISTORY_H

#define HISTORY_FOLDER "history"
#define HISTORY_BYTES_MAX (64u << 10) /* some 400 events */

#endif
