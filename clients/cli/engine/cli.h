/* cli.h - shared by the files of ckpt-cli.
 *
 * main.c parses the command line into struct cli by the tables of commands.c; each command is a
 * function, mostly in a separate file. Commands on files read a store directory, given by the user
 * or by a server (server.c). They use store.c (its checkpoints), shard.c (their files) and scan.h
 * (their bytes; every block is verified before its use).
 *
 * Everything read from a store is hostile: numbers are checked before use, text is made printable
 * before it reaches a terminal. Memory does not grow with the size of a checkpoint's tensors. */
#ifndef HOLDFAST_CLIENTS_CLI_ENGINE_CLI_H
#define HOLDFAST_CLIENTS_CLI_ENGINE_CLI_H

#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "proto/format/shard.h"
#include "proto/format/verified.h"
#include "proto/layout/layout.h"
#include "proto/wire/rpc.h"
#include "storage/store/store.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Exit codes of ckpt-cli; sysexits.h where it has a fitting one. In the README and in --help. */
enum cli_exit {
    CLI_FINE = 0,
    CLI_DIFFERS = 1,      /* verify found damage, diff found a difference */
    CLI_USAGE = 2,        /* wrong command line */
    CLI_VERSION = 65,     /* an unknown format or protocol */
    CLI_NOT_FOUND = 66,   /* no such store, run, checkpoint, file or pin */
    CLI_UNAVAILABLE = 69, /* the server cannot be reached or did not answer in time */
    CLI_INTERNAL = 70,    /* out of memory, or a bug */
    CLI_IO = 74           /* a read or write failed, or was refused */
};

struct json_t; /* of jansson */

struct cli {
    char store[4096];
    char server[280];
    char output[4096], metrics[4096];
    char dtype[8];
    int64_t keep_last, keep_every, keep_best, shards;
    int64_t shard_size, count, expected;
    double interval;
    char mesh[96], only[1024], exceptions[1024], format[24], tokenizer[4096], model[4096], run[128];
    char slices[1024], object[LAYOUT_NAME_MAX];
    char keep_within[32], metric[64], best[8], note[256];
    char sample[32], from[4200];
    char queued[1024], on_alarm[1024]; /* shell commands */
    int64_t silent_s, age_s;
    char mtbf[32], restart_time[32];
    double step_time, save_time;
    int64_t nodes;
    int64_t bytes, block, depth, grace_s;
    double time_s;
    char write[4096];
    int64_t seed;
    bool is_released, is_all, is_pin;
    bool is_json, is_weights_only, is_forced, is_quick, is_help;
    bool is_dry_run, may_remove_most, is_yes, is_now, is_unsaved, is_settings, is_watched;
    const char *args[2];
    bool is_path[2];       /* the argument is a path, not a checkpoint */
    char resolved[2][200]; /* the checkpoints of arguments that were tags */
    int num_args;
    bool is_run_meant; /* an argument that is only a run means all of it, not its newest checkpoint
                        */
    const char *typed; /* list: print only names that begin with this; NULL: everything */
    bool is_run_typed; /* and of those only the runs */
};

/* Durability as ckptd names it: a checkpoint in a directory survives power loss. */
#define CLI_STORED "local" /* for a directory; store_durability() for any store */

/* Every command returns 0, a negative code of report.h, or CLI_DIFFERS. */
int cli_list(const struct cli *cli);
int cli_show(const struct cli *cli);
int cli_verify(const struct cli *cli);
int cli_diff(const struct cli *cli);
int cli_export(const struct cli *cli);
int cli_convert(const struct cli *cli);
int cli_du(const struct cli *cli);
int cli_gc(const struct cli *cli);
int cli_watch(const struct cli *cli);
int cli_follow(const struct cli *cli);
int cli_import(const struct cli *cli);
int cli_import_python(const struct cli *cli);
int cli_export_python(const struct cli *cli);
int cli_prune(const struct cli *cli);
int cli_advise(const struct cli *cli);
int cli_bench_io(const struct cli *cli);
int cli_doctor(const struct cli *cli);
int cli_report(const struct cli *cli);
int cli_rm(const struct cli *cli);
int cli_undelete(const struct cli *cli);
int cli_adopt(const struct cli *cli);
int cli_cp(const struct cli *cli);
int cli_repair(const struct cli *cli);
int cli_rename(const struct cli *cli);
int cli_pin(const struct cli *cli);
int cli_tag(const struct cli *cli);
int cli_untag(const struct cli *cli);
int cli_unpin(const struct cli *cli);
int cli_status(const struct cli *cli);
int cli_health(const struct cli *cli);
int cli_watchdog(const struct cli *cli);
int cli_reload(const struct cli *cli);
int cli_stop(const struct cli *cli);
int cli_save(const struct cli *cli);
int cli_attempt(const struct cli *cli);
int cli_rescan(const struct cli *cli);
int cli_scrub(const struct cli *cli);
int cli_history(const struct cli *cli);

/* ---- server.c: a running ckptd ---- */

#define CLI_CALL_MS 10000u /* for calls that read, or change a name */
/* One call to the server of --server. Free *out by protobuf_c_message_free_unpacked(). If it takes
 * long, a line on the terminal shows that ckptd is at work, and how many checkpoints it has
 * removed, from Status. */
int cli_call(ProtobufCMessage **out, const struct cli *cli, const ProtobufCMessage *request,
             uint32_t timeout_ms);
/* The same for a method of another service with such a reply. */
int cli_call_other(ProtobufCMessage **out, const struct cli *cli, const char *path,
                   const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                   uint32_t timeout_ms);
/* The address for libckpt of the store or server of --store or --server: `out`, of `size`. */
const char *cli_address(char *out, size_t size, const struct cli *cli);
/* The object of Status; json_decref() it. Errors as of cli_call(). */
int cli_call_status(struct json_t **out, const struct cli *cli);
struct selection;
/* The manifest of the selected checkpoint, settled; prints newer ones that were skipped.
 * *out_answer, unless NULL: the ShowReply. Errors as of cli_call(). */
int server_manifest(struct manifest **out, ProtobufCMessage **out_answer, const struct cli *cli,
                    const struct selection *selection);
/* ERR_NOT_FOUND: only other tiers have the checkpoint of the first argument, so it has no file here
 * to change. */
int server_need_here(const struct cli *cli);
/* Gets the path of its store and puts it into cli->store; from then on the command works on a
 * directory, with cli->server set. ERR_NOT_FOUND, ERR_DENIED: the directory cannot be reached from
 * here. */
int server_find_store(struct cli *cli);
/* The same for a command that only reads. The store of a server on another node is read over TLS.
 * If only other tiers of a local server have the checkpoint, they are read through it. */
int server_find_source(struct cli *cli);
/* Makes `out` a command like `cli` on another store, named by the first `length` bytes of `text`:
 * DIR, or unix:/PATH of its ckptd. ERR_INVALID: they name none. */
int server_find_named(struct cli *out, const struct cli *cli, const char *text, size_t length);
/* Call it before `bytes` are written into its store: checks the space, and that this process runs
 * as ckptd's user or as root, who creates files for the owner of the directory. ERR_SPACE,
 * ERR_DENIED. */
int server_prepare_write(const struct cli *cli, uint64_t bytes);
/* Has the server commit the written checkpoint, in the directory of `run`, or NULL: the manifest's.
 * Waits for a ckptd that goes away. After ERR_IO, ERR_UNAVAILABLE and ERR_TIMEOUT the outcome is
 * unknown. */
int server_adopt(const struct cli *cli, const void *manifest, size_t bytes, bool begins_run,
                 const char *run);
/* Has the server verify a run again at once, "" all, and the damaged checkpoint (or NULL) first; or
 * pauses that. *out_is_elsewhere (or NULL): it has no copy of that one to read. */
int server_scrub(bool *out_is_elsewhere, const struct cli *cli, bool pauses, const char *run,
                 const struct manifest_summary *suspect);
/* Has the server store the result beside its local copy. ERR_DENIED: only an operator may.
 * ERR_NOT_FOUND: it has no such copy. ERR_VERSION: it is older than that call. */
int server_keep_verified(const struct cli *cli, const struct manifest_summary *summary,
                         const struct verified *result);
/* Has the server end the quarantine of a checkpoint. */
int server_release(const struct cli *cli, const struct manifest_summary *summary);

/* ---- text.c: output for users ---- */

/* Asks at the terminal; --yes answers. ERR_DENIED: the answer was no; `otherwise` is the text for
 * that. */
int text_confirm(const struct cli *cli, const char *question, const char *otherwise);

/* Prints a JSON string with its quotes; bytes that are not UTF-8 become U+FFFD. */
void text_json(FILE *out, const char *text);
/* Prints the value in ASCII, with all control characters escaped; `flags` are jansson's. ERR_IO. */
int text_json_value(FILE *out, const struct json_t *value, size_t flags);
/* Parses "7d", "12h", "30m", "45s" to seconds; "" is 0. ERR_INVALID names the option. */
int span_parse(uint64_t *out, const char *option, const char *text);
/* Prints a document to stdout; after an error a part of it may be printed. */
int text_document(const struct json_t *root);
/* The same, built like json_pack(). */
int text_pack(const char *format, ...);
/* Members of an object; 0, or "": there is none of that type, or a negative number. */
uint64_t member_number(const struct json_t *object, const char *name);
const char *member_text(const struct json_t *object, const char *name);
/* Replaces characters that are not printable ASCII by '?', cuts to `size`. */
const char *text_safe(char *out, size_t size, const char *text);
/* "3.21 GiB". */
const char *text_bytes(char *out, size_t size, uint64_t bytes);
/* "1 tensor", "3 tensors", "2 directories": text_count(3, "tensor").text, valid within the
 * expression. */
struct text_count {
    char text[64];
};
struct text_count text_count(uint64_t count, const char *noun);
/* "run@1000-a3": text_checkpoint("run", 1000, 3).text, likewise. */
struct text_checkpoint {
    char text[200];
};
struct text_checkpoint text_checkpoint(const char *run, uint64_t step, uint64_t attempt);
/* The same of an object's members run, step and attempt. */
struct text_checkpoint member_checkpoint(const struct json_t *object);
/* "[4096,512]" for a shape. */
const char *text_shape(char *out, size_t size, const struct tensor_meta *tensor);

/* Shows a line on the terminal of stderr, replacing the previous one, cut to its width; "":
 * none. */
void text_transient(const char *line);

/* A progress bar on stderr; silent when stderr is not a terminal, and with --json. */
struct progress {
    const char *verb; /* "verify" */
    const char *unit; /* of `total` and `done`: "directory"; NULL: bytes, shown with their rate */
    uint64_t total, done;
    uint64_t begin_ns, shown_ns;
    bool is_shown;
};
bool progress_is_wanted(const struct cli *cli);
/* `total` 0: no bar is shown. */
void progress_begin(struct progress *progress, const struct cli *cli, const char *verb,
                    uint64_t total);
void progress_add(struct progress *progress, uint64_t amount);
/* Call it before a line is printed: hides the bar until the next progress_add. */
void progress_hide(const struct progress *progress);
void progress_end(struct progress *progress);

/* An error that one thread passes to another. */
struct failure {
    int error;
    struct report_text text;
};
/* Keeps `error` with the calling thread's text, unless it is 0 or one is kept already. */
void failure_keep(struct failure *failure, int error);
/* Makes it the calling thread's last error; returns it, or 0. */
int failure_report(const struct failure *failure);

/* ---- undelete.c ---- */

/* Follows "removed": "; for 7 days `ckpt-cli undelete` can restore it\n", or "\n" for 0 seconds. */
struct trash_note {
    char text[128];
};
struct trash_note trash_note(uint64_t seconds);

/* ---- store.c: the checkpoints of a store; checkpoint.c: one of them ---- */

/* RUN[@STEP[-aATTEMPT]] */
struct selection {
    char run[128];
    int64_t step;                         /* -1: the newest */
    uint64_t attempt;                     /* 0: the newest that has the step */
    uint64_t passed_step, passed_attempt; /* attempt not 0: only older ones than this */
};
int selection_parse(struct selection *out, const char *text);
/* Parses a run without a step. */
int selection_parse_run(struct selection *out, const char *text);
/* Reports that none matches: ERR_NOT_FOUND; ERR_CORRUPT if the newest was selected and all are
 * damaged. */
int selection_fail_none(const struct selection *selection, bool any_damaged);

/* Opens it for reading. ERR_NOT_FOUND: there is no such directory, or it is no store. */
int store_open(struct storage **out, const struct cli *cli);
/* Opens it for writing: never makes a directory a store. */
int store_open_writable(struct storage **out, const struct cli *cli);
/* Opens the store of a command, which has `run` (unless NULL): for reading, or for changes, under
 * its lock. *out is NULL after an error. */
int store_begin(struct storage **out, const struct cli *cli, const char *run, bool changes);
/* Are both the same store? The other one need not exist. */
int store_compare(bool *out_is_same, const char *store, const char *other);
/* The durability of its checkpoints: CLI_STORED, or "bucket". */
const char *store_durability(const char *store);
/* Locks it for a single writer. ERR_BUSY: `option` names the ckptd that may do the work. */
int store_lock(struct storage *store, const char *option);
/* ERR_NOT_FOUND: the store has no run of that name. */
int store_need_run(struct storage *store, const char *run);
/* ERR_NOT_FOUND: the run has no checkpoint of the selected step and attempt. */
int store_need_checkpoint(struct storage *store, const struct selection *selection);
struct store_pin {
    bool is_there;
    char note[256];
};
/* An unreadable pin still protects the checkpoint. ERR_MEMORY. */
int store_read_pin(struct store_pin *out, struct storage *store,
                   const struct manifest_summary *summary);
/* Does another tier than the local one have a copy? `tiers` is a server's list, or NULL. */
bool tiers_have_copies(const char *tiers);
/* The level as text: a server's far tier, the level "bucket", may be a directory. */
const char *tiers_level(const char *durability, const char *tiers);

#define DAMAGE_HINT "run `ckpt-cli verify`, or take an older checkpoint"

/* A damaged checkpoint that is newer than the selected newest intact one. */
struct skipped {
    uint64_t step, attempt;
    char damage[STORE_DAMAGE_BYTES];
};
/* Prints it to stderr. */
void skipped_print(const char *run, uint64_t step, uint64_t attempt, const char *damage);

/* An open checkpoint: its manifest and, once loaded, its shards. It is leased, so no process
 * removes it meanwhile. */
struct checkpoint {
    struct storage *store;
    struct skipped *skipped; /* at most RPC_SKIPPED_MAX, the newest first */
    uint32_t num_skipped, room_skipped;
    struct storage_hold *lease; /* NULL: no lease could be written */
    struct manifest *manifest;
    char *text; /* the text of the manifest */
    size_t text_bytes;
    char name[200];                      /* "run@1000-a3" */
    char quarantine[STORE_DAMAGE_BYTES]; /* why it is quarantined; "": it is not */
    struct shard_file *shards;           /* set by checkpoint_load(), one per shard */
    struct shard_file **opened;
    uint64_t clock; /* finds the least recently used of `opened` */
};
/* Finds, leases and reads it: the manifest, with its SHA-256. Without a step it opens the newest
 * that is not known to be damaged, and prints newer ones. ERR_NOT_FOUND, ERR_CORRUPT,
 * ERR_VERSION. */
int checkpoint_open(struct checkpoint *out, struct storage *store, const char *text);
/* The same for a parsed selection. */
int checkpoint_open_selected(struct checkpoint *out, struct storage *store,
                             const struct selection *selection);
void checkpoint_close(struct checkpoint *checkpoint);
/* Fills in step and attempt of the selected checkpoint, from the store, or from the server in any
 * of its tiers. */
int checkpoint_find(struct selection *selection, const struct cli *cli);
/* Is it a bytes object (ckpt_object_describe)? Tensor files omit those. */
bool tensor_is_object(const struct tensor_meta *tensor);
/* Is it part of the output? --weights-only omits the optimizer's tensors, --only those that match
 * none of its patterns. */
bool tensor_is_wanted(const struct tensor_meta *tensor, const struct cli *cli);
/* ERR_INVALID: a pattern of --only matches no tensor, or none is left. */
int tensors_check_wanted(const struct layout_table *table, const struct cli *cli);

/* Reads only a manifest, without a lease: of a checkpoint, or with step -1 the newest readable one
 * of an attempt. Errors as of checkpoint_open(). */
int checkpoint_manifest(struct manifest **out, struct storage *store,
                        const struct selection *selection);

/* ---- list.c ---- */

/* The output of `list --json` for the run of the first argument; json_decref() it. `has_damage`: a
 * checkpoint is damaged, for which `list` exits with 1. */
int list_read(struct json_t **out, bool *out_has_damage, const struct cli *cli);

/* ---- history.c ---- */

/* The journal of a run, an array of events, the oldest first; json_decref() it. */
int journal_read(struct json_t **out, const struct cli *cli, const char *run);

/* ---- settings.c: the settings of two checkpoints ---- */

/* An array of {"what", "first", "second"}; json_decref() it. A member is missing if its side has no
 * value. ERR_MEMORY. */
int settings_compare(struct json_t **out, const struct manifest *a, const struct manifest *b);
/* The value for display: a text unchanged, other types as JSON, "-" if there is none. Free it;
 * NULL: no memory. */
char *settings_value(const struct json_t *value);
/* Prints a table after an empty line; prints nothing for an empty array. ERR_MEMORY. */
int settings_print(const struct json_t *found);

/* ---- output.c: files that commands write ---- */

/* An output file whose name appears when it is complete and durable. */
struct output_place {
    const char *path;
    bool may_replace;
    struct storage *folder; /* its folder; storage_close() it */
    char parent[4096];      /* the folder's path */
    char key[256];          /* its name until it is complete: NAME.part */
};
/* ERR_EXISTS: the name is taken, and --force was not given, or it is no regular file. ERR_DENIED:
 * it is in a checkpoint. */
int output_open(struct output_place *out, const char *path, bool may_replace);
/* Gives the complete file its name, durably. */
int output_name(const struct output_place *output);
/* Writes a whole small file. */
int output_write(const char *path, bool may_replace, const void *data, size_t bytes);
/* Does the name exist? An unreadable one is an error, not a missing one. */
struct stat;
int output_find(bool *out_exists, struct stat *out, const char *path);

/* ---- verified.c: the result of a checkpoint's last verify ---- */

/* If the result cannot be stored, it is printed all the same. */
void verified_keep(const struct cli *cli, const struct manifest_summary *summary,
                   const struct verified *result);
/* Reports damage to the ckptd that serves the checkpoint; ckptd reads it again before it believes
 * that. */
void verified_report_to_server(const struct cli *cli, const struct manifest_summary *summary);
/* For other commands than verify that have read `checkpoint`: stores and reports damage that they
 * found. The caller's error is unchanged. */
void verified_report(const struct cli *cli, const struct checkpoint *checkpoint);
/* Ends the quarantine of an intact checkpoint, by the ckptd that serves it or in its directory.
 * ERR_NOT_FOUND: by its directory it was not quarantined. */
int verified_release(const struct cli *cli, const struct manifest_summary *summary);
/* False: there is none. `store` may be NULL. */
bool verified_find(struct verified *out, struct storage *store,
                   const struct manifest_summary *summary);
/* "verified 2 h ago, whole". */
const char *verified_text(char *out, size_t size, const struct verified *verified);
struct json_t *verified_json(const struct verified *verified);
/* The store for a list's results, also of a server, which does not send them; NULL: it cannot be
 * read from here. */
struct storage *verified_store(const struct cli *cli);

/* ---- tags.c: names for checkpoints ---- */

#define TAG_NAME_MAX 64 /* bytes with the NUL */
#define TAG_TEXT_MAX 64 /* of the file */
struct tag {
    char name[TAG_NAME_MAX];
    uint64_t step, attempt;
};
/* The tags of one run; tags_free(). */
struct tags {
    struct tag *list;
    uint32_t count, room;
};
/* A tag begins with a letter: a step begins with a digit. ERR_INVALID. */
int tags_check_name(const char *name);
void tags_key(char out[STORAGE_KEY_MAX + 1], const char *run, const char *name);
/* Replaces RUN@NAME among the arguments by the checkpoint. ERR_NOT_FOUND. */
int tags_resolve(struct cli *cli);
/* Empty if the store cannot be read, or is NULL. */
void tags_read(struct tags *out, struct storage *store, const char *run);
/* The tags of one checkpoint, separated by spaces; "": it has none. */
const char *tags_text(char *out, size_t size, const struct tags *tags, uint64_t step,
                      uint64_t attempt);
void tags_free(struct tags *tags);

/* ---- status.c: of a store without a ckptd ---- */

/* The results of a watch's polls; zero before the first. */
struct store_polls {
    struct store_list before;       /* of the last poll; store_list_free() */
    uint64_t count, commits, bytes; /* committed since the first poll */
};
/* An object like that of cli_call_status(), from files; json_decref() it. NULL: a single poll. */
int status_of_store(struct json_t **out, const struct cli *cli, struct store_polls *polls);

/* ---- screen.c ---- */

/* Prints the most important facts on one screen. */
void status_print_screen(const struct json_t *root);

/* ---- lineage.c: the checkpoints that it resumed from ---- */

struct ancestor {
    uint64_t step, attempt;
    enum { ANCESTOR_THERE, ANCESTOR_GONE, ANCESTOR_UNREADABLE } state;
    struct manifest_summary summary; /* of an existing one, */
    char converted_from[33];         /* and from its manifest */
};
struct lineage {
    struct ancestor *list; /* the loaded one, the one before, ... */
    uint32_t count, room;
    bool is_cut; /* earlier ones are unknown */
};
/* `read` reads the manifest of a checkpoint of the same run, or of the newest of an attempt. */
int lineage_read(struct lineage *out, const struct manifest *manifest,
                 int (*read)(void *user, struct manifest **out, const struct selection *selection),
                 void *user);
void lineage_free(struct lineage *lineage);
/* Is it the error of a missing or unreadable manifest? That ends a chain, but no command. */
bool lineage_is_lost(int error);
void lineage_print(const struct lineage *lineage);
/* Adds it as members of the object. */
int lineage_add_json(struct json_t *root, const struct lineage *lineage);

/* ---- objects.c: its bytes objects ---- */

struct object {
    const char *name; /* the manifest's string */
    const struct tensor_meta *stored;
    const struct digest *digest;
    uint64_t bytes;
    bool is_measured; /* false: the length is unknown */
};
struct objects {
    struct object *list;
    uint32_t count;
};
/* Borrows from the manifest. ERR_MEMORY is the only error. */
int objects_read(struct objects *out, const struct cli *cli, const struct manifest *manifest);
void objects_free(struct objects *objects);
void objects_print(const struct objects *objects);
/* Adds it as a member, between json_begin() and json_end(). */
void objects_add_json(struct json_t *root, const struct objects *objects);
/* Prints the object of --object to stdout. ERR_NOT_FOUND, ERR_CORRUPT. */
int objects_write_one(const struct cli *cli);

/* ---- shard.c: its files ---- */

struct shard_file {
    struct store_shard stored;    /* with its table, unless that is damaged or not kept */
    char *damage, *header_damage; /* NULL: none. With `damage` no block can be verified. */
    int damage_error;             /* ERR_IO: it could not be read, which proves nothing */
    int header_error;             /* the same for the header */
    atomic_bool has_bad_block;    /* a block was read that does not match its checksum */
    uint32_t *read_for;           /* for wants.c, per block */
    /* Valid while the file is open. */
    struct shard_tensor *tensors; /* in file order */
    uint32_t num_tensors;
    uint64_t used;
    atomic_uint users;
};

/* The checks of each shard against the manifest: its size, checksum table and header. A quick load
 * checks a header of more than two pages only by the hash at its end. That proves that it was
 * written for this shard of this save, but not that its bytes are unchanged. A quick load keeps no
 * table, so no block can be verified then. */
enum load { LOAD_HEADERS, LOAD_QUICK };

/* Stores damage in `shards`; returns an error only if it could not check. Call it once. */
int checkpoint_load(struct checkpoint *checkpoint, enum load load);
void checkpoint_unload(struct checkpoint *checkpoint);
/* ERR_CORRUPT or ERR_IO when a shard is damaged. */
int checkpoint_need_whole(const struct checkpoint *checkpoint);
/* Was damage found in bytes that were read? */
bool checkpoint_has_damage(const struct checkpoint *checkpoint);
/* Prefixes this thread's last error with the names of checkpoint and shard. */
int checkpoint_fail(const struct checkpoint *checkpoint, uint32_t shard, int error);
/* Opens a loaded shard without damage; it stays open until it is dropped as often as taken. One
 * thread takes, any thread drops. */
int shard_take(struct shard_file **out, struct checkpoint *checkpoint, uint32_t shard);
void shard_drop(struct shard_file *file);
/* Index of the first tensor that ends after a byte of the file. */
uint32_t shard_tensor_at(const struct shard_file *file, uint64_t byte);

uint64_t tensor_elements(const struct tensor_meta *tensor);

/* ---- elements.c: element types ---- */

/* --dtype and --except: the types for floating-point tensors. Integers keep their type. */
#define DTYPE_EXCEPTIONS_MAX 16u
struct dtype_rules {
    bool keep;
    enum dtype dtype;
    struct dtype_exception {
        char pattern[LAYOUT_NAME_MAX]; /* for fnmatch(); the first match counts */
        bool keep;
        enum dtype dtype;
    } exceptions[DTYPE_EXCEPTIONS_MAX + 1];
    uint32_t num_exceptions;
};
/* For a checkpoint with these tensors. ERR_INVALID. */
int dtype_rules_parse(struct dtype_rules *out, const struct cli *cli,
                      const struct layout_table *table);
/* ERR_INVALID: no tensor's name matches that option's pattern. */
int pattern_check(const char *option, const char *pattern, const struct layout_table *table);
enum dtype dtype_rules_apply(const struct dtype_rules *rules, const struct tensor_meta *tensor);
bool convert_is_float(enum dtype dtype);
/* Converts between F64, F32, F16 and BF16 with round to nearest, ties to even; NaN stays NaN. Any
 * dtype to itself. */
void convert_elements(void *out, enum dtype to, const void *in, enum dtype from, uint64_t count);
/* Any dtype as a double. */
double convert_to_double(const void *in, enum dtype from, uint64_t index);

#endif
