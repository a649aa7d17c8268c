/* flaw.h - what may be wrong with a checkpoint, as lists and answers name it. */
#ifndef HOLDFAST_PROTO_FORMAT_FLAW_H
#define HOLDFAST_PROTO_FORMAT_FLAW_H

#define FLAW_DAMAGED "damaged"
#define FLAW_MOVED "moved" /* it lies in another run's directory: proto/format/origin.h */
#define FLAW_ASIDE \
    "set aside"            /* shards without a manifest, and nothing proves them rubbish: mark.h */
#define FLAW_NEWER "newer" /* a later version wrote it */
#define FLAW_IN_DOUBT \
    "in doubt" /* a part of a save whose coordinator has not said what came of it: mark.h */

#define IN_DOUBT_TEXT \
    "node %s coordinated its save and has not said what came of it: the ckptd here asks it"

#endif
