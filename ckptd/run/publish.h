/* publish.h - the last two steps before a checkpoint exists; see publish.c. */
#ifndef HOLDFAST_CKPTD_RUN_PUBLISH_H
#define HOLDFAST_CKPTD_RUN_PUBLISH_H

struct checkpoint;
struct save;

/* Both end with commit_names_synced, commit_published. */
void publish_sync_names(struct save *save);
void publish_manifest(struct save *save);
/* The committed checkpoint that this save's digests are compared with, or NULL. */
struct checkpoint *publish_before(const struct save *save);

#endif
