/* directory.h - a directory as a store: see directory.c. Any thread. */
#ifndef HOLDFAST_CKPTD_CORE_DIRECTORY_H
#define HOLDFAST_CKPTD_CORE_DIRECTORY_H

/* What tells the directory that was opened from another one in its place. */
struct directory {
    char *path;  /* without links; to be freed; NULL: it is none */
    char id[40]; /* device and inode */
};

/* ERR_NOT_FOUND: there is no store there; what is not mounted is named. */
int directory_need_store(const char *where);
/* The same of a far tier, which may be of before there were marks, and has runs then. */
int directory_need_tier(const char *where);
/* What lies there now. */
void directory_take(struct directory *out, const char *where);
/* ERR_IO: what was taken was moved away, or another disk is mounted there. */
int directory_check(const struct directory *directory);

#endif
