/* directory.h - a directory as a store: see directory.c. Any thread. */
#ifndef HOLDFAST_CKPTD_CORE_DIRECTORY_H
#define HOLDFAST_CKPTD_CORE_DIRECTORY_H

/* Identifies the directory that was opened. */
struct directory {
    char *path;  /* without links; the caller frees it; NULL: not a directory */
    char id[40]; /* device and inode */
};

/* ERR_NOT_FOUND: there is no store; the message names a missing mount. */
int directory_need_store(const char *where);
/* The same for a far tier. One of a release without marks counts as a store if it has runs. */
int directory_need_tier(const char *where);
/* Records the directory that is there now. */
void directory_take(struct directory *out, const char *where);
/* ERR_IO: the recorded directory was moved away, or another disk is mounted there. */
int directory_check(const struct directory *directory);

#endif
