/* publish.h - the last two steps before a checkpoint exists; see publish.c. */
#ifndef HOLDFAST_CKPTD_SAVE_PUBLISH_H
#define HOLDFAST_CKPTD_SAVE_PUBLISH_H

struct run;
struct commit_action;

/* Perform COMMIT_SYNC_NAMES and COMMIT_PUBLISH (run.c); they end with commit_names_synced,
 * commit_published. */
void publish_sync_names(struct run *run, const struct commit_action *action);
void publish_manifest(struct run *run, const struct commit_action *action);

#endif
