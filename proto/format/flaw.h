/* flaw.h - flaws of a checkpoint, as lists and answers name them. */
#ifndef HOLDFAST_PROTO_FORMAT_FLAW_H
#define HOLDFAST_PROTO_FORMAT_FLAW_H

#define FLAW_DAMAGED "damaged"
#define FLAW_UNREAD "unreadable" /* a read failed; its bytes may be whole */
#define FLAW_MOVED "moved"       /* it is in another run's directory: proto/format/origin.h */
/* Shards without a manifest that no mark proves unfinished: mark.h. */
#define FLAW_ASIDE "set aside"
#define FLAW_NEWER "newer" /* a later version wrote it */
/* Part of a save whose coordinator has not told the outcome: mark.h. */
#define FLAW_IN_DOUBT "in doubt"

#define IN_DOUBT_TEXT \
    "node %s coordinated its save and has not said what came of it: the ckptd here asks it"

#endif
