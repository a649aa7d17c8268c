/* store.h - a store of checkpoints: one library for ckptd, libckpt and ckpt-cli, on any back-end of
 * storage.h.
 *
 *   <run>/step-NNNNNNNN-aNNNN/   a checkpoint's directory: shards, and a manifest written last. It
 *                                exists for readers while the manifest does.
 *   <run>/pins/<name>            a note: an operator has pinned the checkpoint of that name
 *   <run>/quarantine/<name>      a note: it is damaged
 *   <run>/leases/<name>.<nonce>  a process reads it, or writes it and has no manifest yet
 *   <run>/tombstones/<name>      it is being removed
 *   <run>/trash/<name>.<time>    it was removed at that time, and can be restored
 *
 * `prefix` is the key of a checkpoint's directory, "<run>/step-NNNNNNNN-aNNNN". Names: retain.h;
 * files beside a manifest: origin.h; unfinished work: mark.h.
 *
 * All functions block, on any thread. Errors are those of storage.h unless named here. */
#ifndef HOLDFAST_STORAGE_STORE_STORE_H
#define HOLDFAST_STORAGE_STORE_STORE_H

#include "proto/format/manifest.h"
#include "proto/format/mark.h"
#include "proto/format/places.h"
#include "proto/format/retain.h"
#include "proto/format/verified.h"
#include "storage/storage.h"

/* ---- reading a checkpoint's directory: read.c, check.c ---- */

/* Corrects a `summary` that was read from the manifest in that directory. If its run is another one
 * and the origin file confirms it, summary->run becomes the directory's and summary->origin the
 * manifest's. ERR_MISMATCH: it was moved here by hand, and summary->origin is its run. ERR_CORRUPT:
 * the origin file is invalid. */
int store_settle(struct manifest_summary *summary, struct storage *storage, const char *run,
                 uint64_t step, uint64_t attempt);
/* Reads the summary of its manifest, settled. ERR_NOT_FOUND: it has none. ERR_CORRUPT, ERR_VERSION;
 * errors of store_settle(). */
int store_read_summary(struct manifest_summary *out, struct storage *storage, const char *run,
                       uint64_t step, uint64_t attempt);
/* Reads the whole manifest, verified and settled, of the summary's directory. If the summary has a
 * nonce, the manifest must have the same, else ERR_CORRUPT. Parse: the same for a text that was
 * fetched. The caller frees *out. */
int store_read_manifest(struct manifest **out, struct storage *storage,
                        const struct manifest_summary *summary);
int store_fetch_manifest(void **out, size_t *out_bytes, struct storage *storage,
                         const struct manifest_summary *summary);
int store_parse_manifest(struct manifest **out, struct storage *storage,
                         const struct manifest_summary *summary, const void *text, size_t bytes);
/* Reads the places of its shards; num_shards 0: all are here. ERR_CORRUPT. */
int store_read_places(struct places *out, struct storage *storage,
                      const struct manifest_summary *summary);
/* Reads the result of its last verify. ERR_NOT_FOUND: there is none for this save, and this
 * thread's report is unchanged. */
int store_read_verified(struct verified *out, struct storage *storage,
                        const struct manifest_summary *summary);
/* Reads the progress of ckptd's scrub in a run (retain.h); if it is unreadable, an empty one, and
 * logs that. ERR_MEMORY. */
int store_read_cursor(struct scrub_cursor *out, struct storage *storage, const char *run);
/* Reads the journal of a run (history.h), cut to `size` with its NUL, and its number
 * (storage.h). */
int store_read_history(char *text, size_t size, uint64_t *out_number, struct storage *storage,
                       const char *run);
/* Reads the mark of a part of a save that another node coordinates. ERR_NOT_FOUND: there is
 * none. */
int store_read_part(struct shard_identity *out, char out_coordinator[MARK_NODE_BYTES],
                    struct storage *storage, const char *prefix);
/* Reads why it is quarantined, never "". ERR_NOT_FOUND: it is not. */
int store_read_reason(char *out, size_t size, struct storage *storage, const char *prefix);
/* 0: it is the summary's checkpoint, and all its shards that must be here exist, with the right
 * size and header; `text_hash`, if not 0, is that of its manifest. ERR_NOT_FOUND: it has no
 * manifest. ERR_CORRUPT: it is damaged, or another one. Other errors: unknown. */
int store_check(struct storage *storage, const struct manifest_summary *summary,
                uint64_t text_hash);

/* ---- a directory without a manifest ---- */

enum store_rest {
    STORE_REST_EMPTY,      /* it has no member of a checkpoint */
    STORE_REST_UNFINISHED, /* by its mark */
    STORE_REST_TRASHED,    /* its manifest is in the trash, and names its objects */
    STORE_REST_CUT_SHORT,  /* a removal, which left its tombstone */
    STORE_REST_WRITTEN,    /* its writer holds a lease */
    STORE_REST_ASIDE       /* unknown: it is kept unchanged */
};
int store_rest(struct storage *storage, const char *prefix, enum store_rest *out);

/* ---- the file of a shard, verified by its manifest: shard.c ---- */

struct store_shard {
    struct storage *storage;
    const struct manifest *manifest; /* the caller's, as long as the file */
    uint32_t shard;
    uint64_t identity;              /* for the checksums of its blocks */
    struct shard_geometry geometry; /* by the manifest */
    struct storage_object *object;  /* NULL: it is not open */
    uint64_t bytes;                 /* of the open file */
    uint8_t *table;                 /* its verified checksum table; NULL: not read */
};
/* Fills it from the manifest; opens nothing, so it need not be closed. */
int store_shard_init(struct store_shard *out, struct storage *storage,
                     const struct manifest *manifest, uint32_t shard);
/* Opens the file of that name with a suffix. ERR_NOT_FOUND; ERR_CORRUPT: it has another size. Close
 * it also after an error; that frees the table, too. */
int store_shard_open(struct store_shard *file, const char *suffix);
void store_shard_close(struct store_shard *file);
/* Checks the header of an open file like manifest_check_header(). */
int store_shard_check_header(const struct store_shard *file, struct shard_expected *expected);
/* Reads and verifies its table while the caller does other work; call the end only after a
 * successful begin. ERR_CORRUPT. */
int store_shard_begin_table(struct store_shard *file, struct storage_transfer *transfer);
int store_shard_end_table(struct store_shard *file, struct storage_transfer *transfer);
/* Opens it, and verifies header and table. ERR_NOT_FOUND, ERR_CORRUPT. */
int store_shard_open_proven(struct store_shard *file);
/* Is `sum` the table's entry for the block? ERR_CORRUPT. check_blocks: the same for the whole
 * blocks in [start, start + bytes) of the file; `start` is the start of the first. */
int store_shard_check_sum(const struct store_shard *file, uint64_t block, uint64_t sum);
int store_shard_check_blocks(const struct store_shard *file, const void *data, uint64_t start,
                             uint64_t bytes);
/* Opens and verifies all shards that a manifest names; `summary` has their directory.
 * ERR_NOT_FOUND, ERR_CORRUPT. */
int store_prove_shards(struct storage *storage, const struct manifest_summary *summary,
                       const void *text, size_t bytes);

/* ---- inspecting a directory: look.c ---- */

#define STORE_SHARDS_MAX 32768u /* of a save; a manifest with more is damaged */
struct store_seen {
    bool has_manifest, has_mark;
    enum store_rest rest;              /* without a manifest */
    char coordinator[MARK_NODE_BYTES]; /* likewise: the node that coordinates its save; "" */
    struct manifest_summary summary;   /* all 0 if it is unverified */
    struct places places;              /* the caller frees it */
    struct verified verified;
    uint32_t num_ours, num_others; /* names in it: shards, and others */
};
/* Reads names, sizes and small files; opens no shard. 0, or the fault of the checkpoint; without a
 * manifest an error of the inspection itself. */
int store_inspect(struct store_seen *out, struct storage *storage, const char *run, uint64_t step,
                  uint64_t attempt);
/* The same; the caller frees *out_places (NULL is allowed). ERR_NOT_FOUND: it has no manifest. */
int store_inspect_committed(struct manifest_summary *out, struct places *out_places,
                            struct storage *storage, const char *run, uint64_t step,
                            uint64_t attempt);

/* ---- creating a checkpoint: publish.c ---- */

struct store_mark {
    struct shard_identity identity; /* of any shard of the save */
    uint64_t boot_id;               /* of the ckptd that writes it; 0: a tool */
    const char *coordinator;        /* for a part of a save: the node that decides; else NULL */
    bool may_replace;               /* may replace a mark that an earlier save of that step left */
};
/* Marks the save's directory as unfinished work, durably: call it before the first shard.
 * ERR_EXISTS. */
int store_mark(struct storage *storage, const struct store_mark *mark);
/* Removes the mark, after the manifest is durable. A failure is only logged. */
void store_unmark(struct storage *storage, const char *prefix);
/* Write small files beside a manifest, replacing older ones. Places: no file if all shards are
 * here. Origin: for a checkpoint whose manifest has this summary, in the directory of `run`, unless
 * it exists. Verified: the result of a verification; *out is the new content of the file. */
int store_put(struct storage *storage, const char *key, const void *text, size_t bytes);
int store_put_places(struct storage *storage, const struct manifest_summary *summary,
                     const struct places *places);
int store_put_origin(struct storage *storage, const struct manifest_summary *summary,
                     const char *run);
int store_put_verified(struct verified *out, struct storage *storage,
                       const struct manifest_summary *summary, const struct verified *result);
/* Cursor: stores the scrub's progress as the object after cursor->number. Note: call it before the
 * commit of a checkpoint that was not read back, though newer ones may have been; under the store's
 * lock. */
int store_put_cursor(struct storage *storage, const char *run, const struct scrub_cursor *cursor);
int store_note_unread(struct storage *storage, const struct manifest_summary *summary);
/* Publishes the manifest of a directory whose names are durable (storage_sync_names), and removes
 * the mark. ERR_EXISTS. ERR_IO: a power loss may bring the manifest back, so the shards stay. */
int store_commit(struct storage *storage, const char *prefix, const void *text, size_t bytes);

/* ---- listing checkpoints: list.c ---- */

#define STORE_LIST_MAX (1u << 20) /* checkpoints; then ERR_BUSY */
#define STORE_DAMAGE_BYTES 512u   /* of a text about the damage of one */

/* The directories of checkpoints in a run, with any contents, newest first: by attempt, then step
 * (retain.h). store_names_free(). */
struct store_names {
    struct store_name {
        uint64_t step, attempt;
        bool is_volatile; /* as in storage_list() */
    } * list;
    uint32_t count, room;
    bool is_any; /* the run's directory is not empty */
};
int store_list_names(struct store_names *out, struct storage *storage, const char *run);
void store_names_free(struct store_names *names);
int store_newest_first(const void *left, const void *right); /* for struct store_name and qsort() */
/* Calls `call` for every directory that may be a run, with its name; a nonzero result stops. */
int store_for_runs(struct storage *storage, int (*call)(void *user, const char *run), void *user);
/* The highest number among the attempts of a run; 0: there is none. */
int store_newest_attempt(uint64_t *out, struct storage *storage, const char *run);

struct store_entry {
    struct manifest_summary summary; /* run, step and attempt are those of the directory's name;
                                        attempt 0: the run itself, which could not be read */
    char *damage;       /* the fault, or the reason of its quarantine; owned; NULL: none known */
    int unread;         /* the error of the read that failed, `damage` has its text; 0: none */
    const char *flaw;   /* of proto/format/flaw.h; NULL: none */
    bool may_be_pinned; /* result of store_list_find_pins() */
};
void store_entry_free(struct store_entry *entry);
/* The flaw of a checkpoint for that error from reading its summary. */
const char *store_flaw(int error);

struct store_list {
    struct store_entry *entries; /* by run; newest first */
    uint32_t count, room;
};
/* Lists one run, or all with run "". Then a run that cannot be read has one entry, and the list
 * continues. */
int store_list_read(struct store_list *out, struct storage *storage, const char *run);
void store_list_free(struct store_list *list);
/* Does the list have one of that name? */
bool store_list_has(const struct store_list *list, const struct manifest_summary *summary);
/* Finds the pins of a list by one request per run; if they cannot be listed, all of the run may be
 * pinned. ERR_MEMORY. */
int store_list_find_pins(struct store_list *list, struct storage *storage);

/* Selects a checkpoint. */
struct store_choice {
    const char *run;
    int64_t step;                         /* -1: the newest */
    uint64_t attempt;                     /* 0: any */
    int64_t below_step;                   /* with step -1: only smaller steps; 0: any */
    uint64_t passed_step, passed_attempt; /* attempt not 0: only those after this one in a list */
};
/* Finds the first match. A damaged or unreadable one matches only if its step is named; else `skip`
 * (or NULL) is called for it, and a nonzero result ends the search. One of a later version matches,
 * because an older one has another state. Free the entry. ERR_NOT_FOUND. */
int store_find(struct store_entry *out, struct storage *storage, const struct store_choice *choice,
               int (*skip)(void *user, const struct store_entry *entry), void *user);

/* ---- notes and leases ---- */

enum store_note { STORE_PIN, STORE_QUARANTINE };
/* Writes a note, durably, and then checks for a removal under way: of a concurrent note and removal
 * at least one sees the other. ERR_NOT_FOUND: it is being removed; ERR_EXISTS: there is a note. */
int store_put_note(struct storage *storage, enum store_note kind, const char *prefix,
                   const char *text);
/* ERR_NOT_FOUND: there was none. */
int store_remove_note(struct storage *storage, enum store_note kind, const char *prefix);
/* 0: there is one; its text, printable, cut to `size` and ended by a NUL, if `size` > 0.
 * ERR_NOT_FOUND. */
int store_find_note(struct storage *storage, enum store_note kind, const char *prefix, char *text,
                    size_t size);
/* Is it pinned, and why? A pin that cannot be read, which is an error, still protects it; its note
 * is then "". */
int store_find_pin(struct storage *storage, bool *out_is_pinned, const char *prefix, char *note,
                   size_t size);
/* storage_list() of a run's notes; an entry has the name of its checkpoint. */
int store_for_notes(struct storage *storage, enum store_note kind, const char *run,
                    int (*visit)(void *user, const struct storage_entry *entry), void *user);
/* Leases the checkpoint to this process until storage_release(), or until the process ends: no
 * process removes it meanwhile. Take the lease before reading the manifest; everything that exists
 * then stays. `text` names the reader. *out is NULL if the back-end is within one process.
 * ERR_NOT_FOUND: it is being removed. ERR_DENIED, ERR_SPACE: no lease can be written here, so
 * removals do not see it. */
int store_lease(struct storage *storage, struct storage_hold **out, const char *prefix,
                const char *text);
/* Visits every lease of a run whose holder lives; an entry has the checkpoint's name. */
int store_for_leases(struct storage *storage, const char *run,
                     int (*visit)(void *user, const struct storage_entry *entry), void *user);
/* The same for leases without a holder whose text begins with `text`: their processes ended without
 * releasing them. store_forget_leases() removes all such files of a checkpoint. */
int store_for_left_leases(struct storage *storage, const char *run, const char *text,
                          int (*visit)(void *user, const struct storage_entry *entry), void *user);
int store_forget_leases(struct storage *storage, const char *prefix);

/* ---- removals ---- */

/* In "tombstones": not a tombstone, but a file that becomes the next one on a full disk. */
#define STORE_RESERVE "reserve"
/* Makes a run's directory of tombstones and the reserve in it, while there is space: on a full disk
 * a removal then needs neither a block nor an inode. */
int store_prepare_run(struct storage *storage, const char *run);
/* Removes a checkpoint so that a crash at any point leaves it whole or removed. The order:
 * tombstone, check of notes and leases, manifest, the rest, tombstone; each durable before the
 * next. Files of other programs stay, with their directory. The same call completes an interrupted
 * removal. ERR_DENIED: a note or a lease protects it, and nothing happened. */
int store_remove(struct storage *storage, const char *prefix);
/* The same for an operator who has named it: also from quarantine, and without a manifest. Pins and
 * leases still protect it. */
int store_erase(struct storage *storage, const char *prefix);
/* Removes all checkpoints of a run, its other files, and the run; see erase.c. */
int store_erase_run(struct storage *storage, const char *run);
/* Removes the rest of a directory without a manifest that is unfinished work, and its tombstone; if
 * there is a manifest only the tombstone. ERR_DENIED: its writer holds a lease; by a note it had a
 * manifest; or it is set aside. */
int store_clear(struct storage *storage, const char *prefix);
/* Completes a run's interrupted removals whose manifest is gone, and reverts the others. */
int store_recover_run(struct storage *storage, const char *run);

/* ---- removals that can be undone: move.c, trash.c ---- */

/* "<run>/trash/<name>.<seconds since 1970>" is a removed checkpoint, or only its manifest if the
 * back-end cannot rename. "<run>/trash/term" has the time that it stays, in seconds, for every tool
 * that removes. */
#define STORE_TRASH "trash"
struct store_trashed {
    char prefix[STORAGE_KEY_MAX + 1]; /* its original key */
    char key[STORAGE_KEY_MAX + 1];    /* its present key */
    uint64_t step, attempt;           /* from its name; attempt 0: not a checkpoint's name */
    uint64_t seconds;                 /* when it was removed */
    uint64_t files, bytes;
    bool is_back; /* a stale manifest in the trash: the checkpoint has its own */
};
/* 0 seconds: removals are final. */
int store_trash_term(struct storage *storage, const char *run, uint64_t *out_seconds);
int store_trash_set_term(struct storage *storage, const char *run, uint64_t seconds);
/* Moves a checkpoint into the trash, with that time. `by_operator`: as by store_erase(). Errors as
 * of store_move(). */
int store_trash_put(struct storage *storage, const char *prefix, uint64_t seconds,
                    bool by_operator);
/* The same for all checkpoints of a run, for an operator; pins and leases refuse it before any is
 * moved. If the back-end cannot rename, directories without a manifest stay. */
int store_trash_put_all(struct storage *storage, const char *run, uint64_t seconds,
                        uint64_t *out_count);
/* Restores one. ERR_EXISTS: another checkpoint has its key. ERR_NOT_FOUND: it is no longer there.
 * ERR_CORRUPT: a shard that its manifest names is missing; it stays in the trash. */
int store_trash_take(struct storage *storage, const struct store_trashed *item);
/* Removes one for good. ERR_BUSY, ERR_DENIED: another process works on it; it stays. */
int store_trash_empty(struct storage *storage, const struct store_trashed *item);
/* Lists in any order; a checkpoint may be there several times. A run without a trash lists
 * nothing. */
int store_trash_list(struct storage *storage, const char *run,
                     int (*visit)(void *user, const struct store_trashed *item), void *user);

/* Moves the checkpoint to another key, which its readers do not use. If the back-end cannot rename
 * (storage_renames) only its manifest moves. Like a removal it makes a tombstone meanwhile, and
 * fails because of notes, leases and other removers (ERR_BUSY). A crash leaves the checkpoint under
 * either key, or its manifest under both. */
int store_move(struct storage *storage, const char *prefix, const char *other, bool by_operator);
/* Removes the objects at such a key: the manifest first. Files of other programs stay, with their
 * directory. */
int store_discard(struct storage *storage, const char *key);

/* ---- rubbish, which crashes left beside whole checkpoints: rubbish.c ---- */

enum store_rubbish_what {
    STORE_UNFINISHED, /* a directory without a manifest or a lease */
    STORE_CUT_SHORT,  /* a removal: such a directory with a tombstone, or a tombstone */
    /* A note on a missing checkpoint, a lease without a holder, a mark beside a manifest. */
    STORE_STALE,
    STORE_LEFTOVER, /* old temporary files of publications, in the directory `key` */
    STORE_UNKNOWN,  /* it could not be read; it stays, and `error` is the reason */
    STORE_ASIDE     /* without a manifest, and not proven rubbish: it stays */
};
struct store_rubbish {
    enum store_rubbish_what what;
    uint64_t files, bytes;
    int error;    /* it could not be read or removed; 0: no error */
    char *reason; /* of `error`, freed with the list; NULL: there was no memory for it */
    char key[STORAGE_KEY_MAX + 1];
};
struct store_rubbish_list {
    struct store_rubbish *items;
    size_t count;
    uint32_t room;
    /* (optional) called at each checkpoint, for a progress bar. */
    void (*on_checkpoint)(void *user);
    void *user;
};
#define STORE_RUBBISH_MAX 65536u /* findings in a list; more wait for the next */
/* Adds a run's rubbish, removing nothing. ERR_MEMORY: the list is incomplete. */
int store_rubbish_find(struct store_rubbish_list *out, struct storage *storage, const char *run);
/* Adds the rubbish in the root itself. */
int store_rubbish_find_above(struct store_rubbish_list *out, struct storage *storage);
/* Adds `key` as unreadable, with this thread's last error; ERR_MEMORY is not added but returned. */
int store_rubbish_unknown(struct store_rubbish_list *out, const char *key, int error);
void store_rubbish_free(struct store_rubbish_list *list);
/* An item that is already gone, or no longer rubbish, is no error. One that stays has
 * item->error. */
int store_rubbish_remove(struct storage *storage, struct store_rubbish *item);
/* Was it removed, or will it be? */
static inline bool store_rubbish_goes(const struct store_rubbish *item)
{
    return item->error == 0 && item->what != STORE_ASIDE;
}
/* The reason of item->error; never NULL. */
const char *store_rubbish_reason(const struct store_rubbish *item);

#endif
