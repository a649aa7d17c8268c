/* store.h - what a store of checkpoints is: one library for ckptd, libckpt and ckpt-cli, on any
 * back-end of storage.h.
 *
 *   <run>/step-NNNNNNNN-aNNNN/   a checkpoint's directory: shards, and a manifest written last. It
 *                                exists for readers while the manifest does.
 *   <run>/pins/<name>            a note: an operator wants the checkpoint of that name kept
 *   <run>/quarantine/<name>      a note: it is damaged
 *   <run>/leases/<name>.<nonce>  a process reads it, or writes it and has no manifest yet
 *   <run>/tombstones/<name>      it is being removed
 *   <run>/trash/<name>.<time>    it was removed at that time, and can be brought back
 *
 * `prefix` is the key of a checkpoint's directory, "<run>/step-NNNNNNNN-aNNNN". Names: retain.h;
 * which files may lie beside a manifest: origin.h; unfinished work: mark.h.
 *
 * All functions block, on any thread. Errors are those of storage.h where none is named. */
#ifndef HOLDFAST_STORAGE_STORE_STORE_H
#define HOLDFAST_STORAGE_STORE_STORE_H

#include "proto/format/manifest.h"
#include "proto/format/mark.h"
#include "proto/format/places.h"
#include "proto/format/retain.h"
#include "proto/format/verified.h"
#include "storage/storage.h"

/* ---- what a checkpoint's directory says: read.c, check.c ---- */

/* `summary` as the manifest in that directory has it. Where the run is another one and the origin
 * file vouches for it, summary->run becomes the directory's and summary->origin the manifest's.
 * ERR_MISMATCH: it was moved here by hand, and summary->origin tells from which run. ERR_CORRUPT:
 * the origin file is none. */
int store_settle(struct manifest_summary *summary, struct storage *storage, const char *run,
                 uint64_t step, uint64_t attempt);
/* The beginning of its manifest, settled. ERR_NOT_FOUND: it has none. ERR_CORRUPT, ERR_VERSION;
 * errors of store_settle(). */
int store_read_summary(struct manifest_summary *out, struct storage *storage, const char *run,
                       uint64_t step, uint64_t attempt);
/* The whole manifest, proven and settled, of the directory that the summary names; where that has a
 * nonce it must be that save's, else ERR_CORRUPT. Parse: of a text that was fetched, to be freed.
 */
int store_read_manifest(struct manifest **out, struct storage *storage,
                        const struct manifest_summary *summary);
int store_fetch_manifest(void **out, size_t *out_bytes, struct storage *storage,
                         const struct manifest_summary *summary);
int store_parse_manifest(struct manifest **out, struct storage *storage,
                         const struct manifest_summary *summary, const void *text, size_t bytes);
/* Where its shards lie; num_shards 0: all of them here. ERR_CORRUPT. */
int store_read_places(struct places *out, struct storage *storage,
                      const struct manifest_summary *summary);
/* What its last verify found. ERR_NOT_FOUND: nothing is noted of this save, and this thread's
 * report is as before. */
int store_read_verified(struct verified *out, struct storage *storage,
                        const struct manifest_summary *summary);
/* What ckptd's scrub has read back of a run (retain.h): nothing, where that cannot be read, which
 * is logged. ERR_MEMORY. */
int store_read_cursor(struct scrub_cursor *out, struct storage *storage, const char *run);
/* The journal of a run (history.h), cut to `size` with its NUL, and its number (storage.h). */
int store_read_history(char *text, size_t size, uint64_t *out_number, struct storage *storage,
                       const char *run);
/* The mark of a part of a save that another node coordinates. ERR_NOT_FOUND: there is none. */
int store_read_part(struct shard_identity *out, char out_coordinator[MARK_NODE_BYTES],
                    struct storage *storage, const char *prefix);
/* Why it is in quarantine, never "". ERR_NOT_FOUND: it is not. */
int store_read_reason(char *out, size_t size, struct storage *storage, const char *prefix);
/* 0: it is the one that the summary tells of, and all shards that must lie here do, with the right
 * size and header; `text_hash`, when not 0, is that of its manifest. ERR_NOT_FOUND: it has no
 * manifest. ERR_CORRUPT: it is damaged, or another one. Other errors: unknown. */
int store_check(struct storage *storage, const struct manifest_summary *summary,
                uint64_t text_hash);

/* ---- a directory without a manifest ---- */

enum store_rest {
    STORE_REST_EMPTY,      /* nothing of ours is in it */
    STORE_REST_UNFINISHED, /* its mark says so */
    STORE_REST_TRASHED,    /* its manifest lies in the trash, and names what is here */
    STORE_REST_CUT_SHORT,  /* a removal, which left its tombstone */
    STORE_REST_WRITTEN,    /* a process that writes it holds a lease */
    STORE_REST_ASIDE       /* unknown: it is kept as it is */
};
int store_rest(struct storage *storage, const char *prefix, enum store_rest *out);

/* ---- the file of a shard, proven by its manifest: shard.c ---- */

struct store_shard {
    struct storage *storage;
    const struct manifest *manifest; /* the caller's, for as long */
    uint32_t shard;
    uint64_t identity;              /* of the checksums of its blocks */
    struct shard_geometry geometry; /* by the manifest */
    struct storage_object *object;  /* NULL: it is not open */
    uint64_t bytes;                 /* that the open file has */
    uint8_t *table;                 /* of checksums, proven; NULL: it was not read */
};
/* By the manifest; nothing is opened, and nothing to be closed. */
int store_shard_init(struct store_shard *out, struct storage *storage,
                     const struct manifest *manifest, uint32_t shard);
/* The file of that name with a suffix. ERR_NOT_FOUND; ERR_CORRUPT: it has another size. To be
 * closed also after an error, which frees the table as well. */
int store_shard_open(struct store_shard *file, const char *suffix);
void store_shard_close(struct store_shard *file);
/* Of an open one, as manifest_check_header(). */
int store_shard_check_header(const struct store_shard *file, struct shard_expected *expected);
/* Reads and proves its table, while the caller does something else; the end only after a begin
 * without an error. ERR_CORRUPT. */
int store_shard_begin_table(struct store_shard *file, struct storage_transfer *transfer);
int store_shard_end_table(struct store_shard *file, struct storage_transfer *transfer);
/* Opens it, and proves header and table. ERR_NOT_FOUND, ERR_CORRUPT. */
int store_shard_open_proven(struct store_shard *file);
/* Is `sum` what the table has for the block? ERR_CORRUPT. Likewise of the blocks that begin in
 * [start, start + bytes) of the file, which are there whole; `start` is that of the first. */
int store_shard_check_sum(const struct store_shard *file, uint64_t block, uint64_t sum);
int store_shard_check_blocks(const struct store_shard *file, const void *data, uint64_t start,
                             uint64_t bytes);
/* Opens and proves all shards that a manifest names; `summary` says where it lies. ERR_NOT_FOUND,
 * ERR_CORRUPT. */
int store_prove_shards(struct storage *storage, const struct manifest_summary *summary,
                       const void *text, size_t bytes);

/* ---- a look into a directory: look.c ---- */

#define STORE_SHARDS_MAX 32768u /* that a save has; more are told by a damaged manifest */
struct store_seen {
    bool has_manifest, has_mark;
    enum store_rest rest;              /* without a manifest */
    char coordinator[MARK_NODE_BYTES]; /* likewise: of the save that it is a part of; "" */
    struct manifest_summary summary;   /* all 0 where nothing vouches for it */
    struct places places;              /* to be freed */
    struct verified verified;
    uint32_t num_ours, num_others; /* names in it: shards, and what else there is */
};
/* Names, sizes and small files; opens no shard. 0, or what is wrong with the checkpoint; without a
 * manifest of the look. */
int store_look(struct store_seen *out, struct storage *storage, const char *run, uint64_t step,
               uint64_t attempt);
/* Likewise; *out_places, NULL is allowed, to be freed. ERR_NOT_FOUND: it has no manifest. */
int store_look_whole(struct manifest_summary *out, struct places *out_places,
                     struct storage *storage, const char *run, uint64_t step, uint64_t attempt);

/* ---- how a checkpoint comes into being: publish.c ---- */

struct store_mark {
    struct shard_identity identity; /* of any shard of the save */
    uint64_t boot_id;               /* of the ckptd that writes it; 0: a tool */
    const char *coordinator;        /* of a part of a save: the node that decides; else NULL */
    bool may_replace;               /* a mark that an earlier save of that step has left */
};
/* Marks the save's directory as unfinished work, durably: before its first shard. ERR_EXISTS. */
int store_mark(struct storage *storage, const struct store_mark *mark);
/* Removes the mark, where the manifest is durable. One that stays is told in the log. */
void store_unmark(struct storage *storage, const char *prefix);
/* Small files beside a manifest, whatever was there before. Places: none where all shards lie here.
 * Origin: of a checkpoint whose manifest has this summary, in the directory of `run`, unless it is
 * there. Verified: the result of a reading; *out is what the file says now. */
int store_put(struct storage *storage, const char *key, const void *text, size_t bytes);
int store_put_places(struct storage *storage, const struct manifest_summary *summary,
                     const struct places *places);
int store_put_origin(struct storage *storage, const struct manifest_summary *summary,
                     const char *run);
int store_put_verified(struct verified *out, struct storage *storage,
                       const struct manifest_summary *summary, const struct verified *result);
/* What the scrub has read back, as the one after cursor->number. Note: before a checkpoint is
 * committed that was not read back, though newer ones may have been; under the store's lock. */
int store_put_cursor(struct storage *storage, const char *run, const struct scrub_cursor *cursor);
int store_note_unread(struct storage *storage, const struct manifest_summary *summary);
/* Publishes the manifest of a directory whose names are durable (storage_sync_names), and removes
 * the mark. ERR_EXISTS. ERR_IO: a power loss may bring the manifest back, so the shards stay. */
int store_commit(struct storage *storage, const char *prefix, const void *text, size_t bytes);

/* ---- which checkpoints there are: list.c ---- */

#define STORE_LIST_MAX (1u << 20) /* checkpoints; then ERR_BUSY */
#define STORE_DAMAGE_BYTES 512u   /* of a text that says what is wrong with one */

/* The directories of checkpoints in a run, whatever is in them, newest first: by attempt, then step
 * (retain.h). store_names_free(). */
struct store_names {
    struct store_name {
        uint64_t step, attempt;
        bool is_volatile; /* as of storage_list() */
    } * list;
    uint32_t count, room;
    bool is_any; /* the run's directory has something in it */
};
int store_list_names(struct store_names *out, struct storage *storage, const char *run);
void store_names_free(struct store_names *names);
int store_newest_first(const void *left, const void *right); /* of struct store_name, for qsort() */
/* Calls look for every directory that may be a run, by name; a result other than 0 stops. */
int store_for_runs(struct storage *storage, int (*look)(void *user, const char *run), void *user);
/* The highest number among the attempts of a run; 0: there is none. */
int store_newest_attempt(uint64_t *out, struct storage *storage, const char *run);

struct store_entry {
    struct manifest_summary summary; /* run, step and attempt are those of the directory's name;
                                        attempt 0: the run itself, which could not be read */
    char *damage;     /* what is wrong, or why it is in quarantine; owned; NULL: nothing is known */
    bool is_denied;   /* it could not be read, and `damage` says why */
    const char *flaw; /* of proto/format/flaw.h; NULL: none */
    bool may_be_pinned; /* of store_list_find_pins() */
};
void store_entry_free(struct store_entry *entry);
/* The flaw of a checkpoint whose summary was read with that error. */
const char *store_flaw(int error);

struct store_list {
    struct store_entry *entries; /* by run; newest first */
    uint32_t count, room;
};
/* Those of one run, or of all with run "", where a run that cannot be read has an entry of its own
 * and does not end the list. */
int store_list_read(struct store_list *out, struct storage *storage, const char *run);
void store_list_free(struct store_list *list);
/* Has it one of that name? */
bool store_list_has(const struct store_list *list, const struct manifest_summary *summary);
/* Finds the pins of a list by one request a run; where they cannot be listed, all of the run may be
 * pinned. ERR_MEMORY. */
int store_list_find_pins(struct store_list *list, struct storage *storage);

/* Which checkpoint is meant. */
struct store_choice {
    const char *run;
    int64_t step;                         /* -1: the newest */
    uint64_t attempt;                     /* 0: any */
    int64_t below_step;                   /* of the newest: only such steps; 0: any */
    uint64_t passed_step, passed_attempt; /* attempt not 0: only those after this one in a list */
};
/* The first that is meant. One that is damaged or cannot be read is taken only where its step is
 * named, else `skip` (or NULL) is told of it, and a result other than 0 ends the search. One of a
 * later version is taken, since an older one is another state than the newest. Free the entry.
 * ERR_NOT_FOUND. */
int store_find(struct store_entry *out, struct storage *storage, const struct store_choice *choice,
               int (*skip)(void *user, const struct store_entry *entry), void *user);

/* ---- notes and leases ---- */

enum store_note { STORE_PIN, STORE_QUARANTINE };
/* Writes a note, durably, and then looks for a removal under way: of a note and a removal at the
 * same time one sees the other. ERR_NOT_FOUND: it is being removed; ERR_EXISTS: there is a note. */
int store_put_note(struct storage *storage, enum store_note kind, const char *prefix,
                   const char *text);
/* ERR_NOT_FOUND: there was none. */
int store_remove_note(struct storage *storage, enum store_note kind, const char *prefix);
/* 0: there is one; its text, printable, cut to `size` and ended by a NUL, when `size` > 0.
 * ERR_NOT_FOUND. */
int store_find_note(struct storage *storage, enum store_note kind, const char *prefix, char *text,
                    size_t size);
/* Is it pinned, and why? A pin that cannot be read, which is an error, holds all the same; its note
 * is "" then. */
int store_find_pin(struct storage *storage, bool *out_is_pinned, const char *prefix, char *note,
                   size_t size);
/* storage_list of a run's notes; an entry has the name of its checkpoint. */
int store_for_notes(struct storage *storage, enum store_note kind, const char *run,
                    int (*visit)(void *user, const struct storage_entry *entry), void *user);
/* Leases the checkpoint to this process until storage_release(), or until the process ends: no
 * process removes it meanwhile. Take it before the manifest is read; what is there then stays.
 * `text` says who reads. *out is NULL where the back-end is within one process. ERR_NOT_FOUND: it
 * is being removed. ERR_DENIED, ERR_SPACE: no lease can be written here, so no removal sees it. */
int store_lease(struct storage *storage, struct storage_hold **out, const char *prefix,
                const char *text);
/* Visits every lease of a run whose holder lives; an entry has the checkpoint's name. */
int store_for_leases(struct storage *storage, const char *run,
                     int (*visit)(void *user, const struct storage_entry *entry), void *user);
/* Likewise the leases without a holder whose text begins with `text`: processes that ended without
 * releasing them. store_forget_leases() removes all such files of a checkpoint. */
int store_for_left_leases(struct storage *storage, const char *run, const char *text,
                          int (*visit)(void *user, const struct storage_entry *entry), void *user);
int store_forget_leases(struct storage *storage, const char *prefix);

/* ---- removals ---- */

/* In "tombstones": no tombstone, but the place of the next one where the disk is full. */
#define STORE_RESERVE "reserve"
/* Makes a run's directory of tombstones and the reserve in it, while there is room: on a full disk
 * a removal then needs neither a block nor an inode. */
int store_prepare_run(struct storage *storage, const char *run);
/* Removes a checkpoint so that a crash at any point leaves it whole or gone: tombstone, a look for
 * notes and leases, manifest, the rest, tombstone; each durable before the next. Files that are not
 * ours stay, with their directory. The same call takes up a removal that was cut short. ERR_DENIED:
 * a note or a lease keeps it, and nothing happened. */
int store_remove(struct storage *storage, const char *prefix);
/* Likewise, because a person has named it: also from quarantine, and one without a manifest. Pins
 * and leases keep it all the same. */
int store_erase(struct storage *storage, const char *prefix);
/* All checkpoints of a run, what lies beside them, and the run; see erase.c. */
int store_erase_run(struct storage *storage, const char *run);
/* Removes the rest of a directory without a manifest that is unfinished work, and a tombstone on
 * it; where there is a manifest the tombstone alone. ERR_DENIED: a process that writes it holds a
 * lease; a note says that it had its manifest; or it is set aside. */
int store_clear(struct storage *storage, const char *prefix);
/* Completes the removals of a run that were cut short where the manifest is gone, and takes the
 * others back. */
int store_recover_run(struct storage *storage, const char *run);

/* ---- removals that can be taken back: move.c, trash.c ---- */

/* "<run>/trash/<name>.<seconds since 1970>" is a removed checkpoint, or its manifest alone where
 * nothing can be renamed. How long it stays is told in "<run>/trash/term", in seconds, to every
 * tool that removes. */
#define STORE_TRASH "trash"
struct store_trashed {
    char prefix[STORAGE_KEY_MAX + 1]; /* the key that it had */
    char key[STORAGE_KEY_MAX + 1];    /* and has now */
    uint64_t step, attempt;           /* as its name says; attempt 0: it is no checkpoint's */
    uint64_t seconds;                 /* when it was removed */
    uint64_t files, bytes;
    bool is_back; /* a manifest that was left in the trash: the checkpoint has its own */
};
/* 0 seconds: removals are final. */
int store_trash_term(struct storage *storage, const char *run, uint64_t *out_seconds);
int store_trash_set_term(struct storage *storage, const char *run, uint64_t seconds);
/* Removes a checkpoint into the trash at that time. `is_told` as of store_erase(). Errors as of
 * store_move(). */
int store_trash_put(struct storage *storage, const char *prefix, uint64_t seconds, bool is_told);
/* All checkpoints of a run, when a person has said so; pins and leases refuse it before any goes.
 * Where nothing can be renamed, directories without a manifest stay. */
int store_trash_put_all(struct storage *storage, const char *run, uint64_t seconds,
                        uint64_t *out_count);
/* Takes one back. ERR_EXISTS: another checkpoint has its key. ERR_NOT_FOUND: it is not there any
 * more. ERR_CORRUPT: a shard that its manifest names is missing; it stays where it is. */
int store_trash_take(struct storage *storage, const struct store_trashed *item);
/* Removes one for good. ERR_BUSY, ERR_DENIED: another process works on it; it stays. */
int store_trash_empty(struct storage *storage, const struct store_trashed *item);
/* In no order; a checkpoint may be there several times. A run without a trash lists nothing. */
int store_trash_list(struct storage *storage, const char *run,
                     int (*visit)(void *user, const struct store_trashed *item), void *user);

/* Gives the checkpoint another key, whose readers do not look there. Where nothing can be renamed
 * (storage_renames) its manifest alone gets it. As a removal it leaves a tombstone meanwhile, and
 * gives way to notes, leases and other removers (ERR_BUSY); a crash leaves the checkpoint under the
 * one key or the other, or its manifest under both. */
int store_move(struct storage *storage, const char *prefix, const char *other, bool is_told);
/* Removes what is at such a key: the manifest first. Files that are not ours stay, with their
 * directory. */
int store_discard(struct storage *storage, const char *key);

/* ---- rubbish: what crashes left beside whole checkpoints; rubbish.c ---- */

enum store_rubbish_what {
    STORE_UNFINISHED, /* a directory without a manifest, which nobody leases */
    STORE_CUT_SHORT,  /* a removal: such a directory under a tombstone, or a tombstone */
    STORE_STALE,      /* a note on a checkpoint that is gone, a lease without a holder, a mark
                       * beside a manifest */
    STORE_LEFTOVER,   /* old temporary files of publications, in the directory `key` */
    STORE_UNKNOWN,    /* it could not be looked into; it stays, and `error` says why */
    STORE_ASIDE       /* without a manifest, and nothing proves it rubbish: it stays */
};
struct store_rubbish {
    enum store_rubbish_what what;
    uint64_t files, bytes;
    int error;    /* it could not be looked into, or not be removed; 0: it could */
    char *reason; /* of that, freed with the list; NULL: there was no memory for it */
    char key[STORAGE_KEY_MAX + 1];
};
struct store_rubbish_list {
    struct store_rubbish *items;
    size_t count;
    uint32_t room;
    void (*looked)(void *user); /* (optional) at a checkpoint: for a progress bar */
    void *user;
};
#define STORE_RUBBISH_MAX 65536u /* findings in a list; more wait for the next */
/* Adds a run's rubbish, removing nothing. ERR_MEMORY: the list is not whole. */
int store_rubbish_find(struct store_rubbish_list *out, struct storage *storage, const char *run);
/* Adds what lies in the root itself. */
int store_rubbish_find_above(struct store_rubbish_list *out, struct storage *storage);
/* Adds `key` as something that could not be looked into, for this thread's last error; ERR_MEMORY
 * says nothing about it and is returned. */
int store_rubbish_unknown(struct store_rubbish_list *out, const char *key, int error);
void store_rubbish_free(struct store_rubbish_list *list);
/* What is gone already, or no rubbish any more, is no error. What stays has item->error. */
int store_rubbish_remove(struct storage *storage, struct store_rubbish *item);
/* Is it to be removed, or was it? */
static inline bool store_rubbish_goes(const struct store_rubbish *item)
{
    return item->error == 0 && item->what != STORE_ASIDE;
}
/* Why item->error; never NULL. */
const char *store_rubbish_reason(const struct store_rubbish *item);

#endif
