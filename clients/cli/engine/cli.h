/* cli.h - what the files of ckpt-cli share.
 *
 * main.c holds the table of commands and reads the command line into struct cli; each command is
 * one function of a file of its own. Commands on files read a store directory, named or told by a
 * server (server.c), through store.c (which checkpoints there are) and engine/: shard.c (their
 * files), scan.h (their bytes, every block verified before anything looks at it).
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
    CLI_VERSION = 65,     /* a format or protocol that this build does not know */
    CLI_NOT_FOUND = 66,   /* no such store, run, checkpoint, file or pin */
    CLI_UNAVAILABLE = 69, /* the server cannot be reached or did not answer in time */
    CLI_INTERNAL = 70,    /* out of memory, or a bug */
    CLI_IO = 74           /* reading or writing failed, or was refused */
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
    char queued[1024], on_alarm[1024]; /* of a shell */
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
    bool is_path[2];       /* that argument is no checkpoint */
    char resolved[2][200]; /* of those that were tags, the checkpoints */
    int num_args;
    bool is_run_meant; /* an argument that is a run alone means all of it, not its newest */
    const char *typed; /* list: only the names that begin so, for a shell; NULL: everything */
    bool is_run_typed; /* of those the runs alone */
};

/* How durable what a store's directory holds is, in ckptd's words: it outlives a loss of power. */
#define CLI_STORED "local" /* of a directory; store_durability() of any store */
#define CLI_DAMAGED "damaged"
#define CLI_MOVED "moved" /* into another run's directory, and not adopted */

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

#define CLI_CALL_MS 10000u /* for calls that look, or change a name */
/* One call to the server that --server names. *out is freed by protobuf_c_message_free_unpacked().
 * Where it may take longer than CLI_CALL_MS a line on the terminal says that ckptd is at work, and
 * how many checkpoints it has removed, as Status tells. */
int cli_call(ProtobufCMessage **out, const struct cli *cli, const ProtobufCMessage *request,
             uint32_t timeout_ms);
/* The same of a method of another service, which answers by such a message. */
int cli_call_other(ProtobufCMessage **out, const struct cli *cli, const char *path,
                   const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                   uint32_t timeout_ms);
/* Where libckpt finds what --store or --server name: `out`, of `size`. */
const char *cli_address(char *out, size_t size, const struct cli *cli);
/* What Status says, an object; json_decref() it. As cli_call. */
int cli_call_status(struct json_t **out, const struct cli *cli);
struct selection;
/* The manifest of the one that is meant, settled; newer ones that were passed over are told.
 * *out_answer, unless NULL: all that Show says, a ShowReply. As cli_call. */
int server_manifest(struct manifest **out, ProtobufCMessage **out_answer, const struct cli *cli,
                    const struct selection *selection);
/* ERR_NOT_FOUND: other tiers alone have what the first argument means, so there is no file of it to
 * be changed. */
int server_need_here(const struct cli *cli);
/* Asks it where its store is and puts the path into cli->store; from then on the command is one on
 * a directory, with cli->server set. ERR_NOT_FOUND, ERR_DENIED: it cannot be reached from here. */
int server_find_store(struct cli *cli);
/* Likewise for a command that only reads: of a server on another node its store over TLS, and of
 * one here, where other tiers alone have what is meant, those through it. */
int server_find_source(struct cli *cli);
/* Makes `out` a command like `cli` on another store, which the first bytes of `text` name: DIR, or
 * unix:/PATH of its ckptd. ERR_INVALID: they name none. */
int server_find_named(struct cli *out, const struct cli *cli, const char *text, size_t length);
/* Before so much is written into its store: there is room, and this process is one of ckptd's user
 * or root's, who creates files for the owner of the directory. ERR_SPACE, ERR_DENIED. */
int server_prepare_write(const struct cli *cli, uint64_t bytes);
/* Has it commit what was written there, into the directory of `run`, or NULL: of the manifest's. A
 * ckptd that goes away is waited for. After ERR_IO, ERR_UNAVAILABLE and ERR_TIMEOUT nobody can tell
 * whether it did. */
int server_adopt(const struct cli *cli, const void *manifest, size_t bytes, bool begins_run,
                 const char *run);
/* Has it read a run again at once, "" all, and what is damaged there (or NULL) before all others;
 * or pause that. *out_is_elsewhere (or NULL): it has no copy of that one to read. */
int server_scrub(bool *out_is_elsewhere, const struct cli *cli, bool pauses, const char *run,
                 const struct manifest_summary *suspect);
/* Has it note what was found beside its local copy. ERR_DENIED: that takes an operator.
 * ERR_NOT_FOUND: it has no such copy. ERR_VERSION: it is of before that call. */
int server_keep_verified(const struct cli *cli, const struct manifest_summary *summary,
                         const struct verified *result);
/* Has it take a checkpoint out of quarantine. */
int server_release(const struct cli *cli, const struct manifest_summary *summary);

/* ---- text.c: what reaches the user ---- */

/* Asks at the terminal; --yes answers. ERR_DENIED: no, and `otherwise` says what that means. */
int text_confirm(const struct cli *cli, const char *question, const char *otherwise);

/* A JSON string with its quotes; bytes that are no UTF-8 become U+FFFD. */
void text_json(FILE *out, const char *text);
/* The value in ASCII, with all control characters escaped; `flags` are jansson's. ERR_IO. */
int text_json_value(FILE *out, const struct json_t *value, size_t flags);
/* "7d", "12h", "30m", "45s" in seconds; 0 of "". ERR_INVALID names the option. */
int span_parse(uint64_t *out, const char *option, const char *text);
/* A document on stdout, or an error and perhaps a part of it. */
int text_document(const struct json_t *root);
/* The same of one as of json_pack(). */
int text_pack(const char *format, ...);
/* Members of an object; 0, or "": it has none of that kind, or a number below 0. */
uint64_t member_number(const struct json_t *object, const char *name);
const char *member_text(const struct json_t *object, const char *name);
/* Replaces what is not printable ASCII by '?', cuts to `size`. */
const char *text_safe(char *out, size_t size, const char *text);
/* "3.21 GiB". */
const char *text_bytes(char *out, size_t size, uint64_t bytes);
/* "1 tensor", "3 tensors", "2 directories": text_count(3, "tensor").text, in the call it is for. */
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

/* A line on the terminal that is stderr, in place of the one before, cut to its width; "": none. */
void text_transient(const char *line);

/* A bar on stderr; silent when stderr is not a terminal, and with --json. */
struct progress {
    const char *verb; /* "verify" */
    const char *unit; /* of `total` and `done`: "directory"; NULL: bytes, whose rate is told */
    uint64_t total, done;
    uint64_t begin_ns, shown_ns;
    bool is_shown;
};
bool progress_is_wanted(const struct cli *cli);
/* `total` 0: nothing is shown. */
void progress_begin(struct progress *progress, const struct cli *cli, const char *verb,
                    uint64_t total);
void progress_add(struct progress *progress, uint64_t amount);
/* Before a line is printed: takes the bar away until the next progress_add. */
void progress_hide(const struct progress *progress);
void progress_end(struct progress *progress);

/* An error on its way from one thread to another. */
struct failure {
    int error;
    struct report_text text;
};
/* Keeps `error` with the calling thread's text, unless it is 0 or there is one already. */
void failure_keep(struct failure *failure, int error);
/* Makes it the calling thread's last error; returns it, or 0. */
int failure_report(const struct failure *failure);

/* ---- undelete.c ---- */

/* Behind "removed": "; for 7 days `ckpt-cli undelete` takes it back\n", or "\n" for 0 seconds. */
struct trash_note {
    char text[128];
};
struct trash_note trash_note(uint64_t seconds);

/* ---- store.c: which checkpoints there are; checkpoint.c: one of them ---- */

/* RUN[@STEP[-aATTEMPT]] */
struct selection {
    char run[128];
    int64_t step;                         /* -1: the newest */
    uint64_t attempt;                     /* 0: the newest that has the step */
    uint64_t passed_step, passed_attempt; /* attempt not 0: only what is older than this one */
};
int selection_parse(struct selection *out, const char *text);
/* A run alone. */
int selection_parse_run(struct selection *out, const char *text);
/* Nothing is as it says: ERR_NOT_FOUND; ERR_CORRUPT where the newest was meant and all are damaged.
 */
int selection_fail_none(const struct selection *selection, bool any_damaged);

/* For reading. ERR_NOT_FOUND: there is no such directory, or it is no store. */
int store_open(struct storage **out, const struct cli *cli);
/* Likewise: no directory becomes a store by it. */
int store_open_writable(struct storage **out, const struct cli *cli);
/* The store of a command, which has `run`, unless NULL: to be read; or to be changed, under its
 * lock. *out is NULL after an error. */
int store_begin(struct storage **out, const struct cli *cli, const char *run, bool changes);
/* Are both the same store? The other one need not exist. */
int store_compare(bool *out_is_same, const char *store, const char *other);
/* How durable what is in it is: CLI_STORED, or "bucket". */
const char *store_durability(const char *store);
/* For the only one that writes. ERR_BUSY: `option` names the ckptd that may do the work. */
int store_lock(struct storage *store, const char *option);
/* ERR_NOT_FOUND: the store has no run of that name. */
int store_need_run(struct storage *store, const char *run);
/* ERR_NOT_FOUND: the run has none of that step and attempt, which are both named. */
int store_need_checkpoint(struct storage *store, const struct selection *selection);
struct store_pin {
    bool is_there;
    char note[256];
};
/* One that cannot be read holds all the same. ERR_MEMORY. */
int store_read_pin(struct store_pin *out, struct storage *store,
                   const struct manifest_summary *summary);
/* Has another tier than the local one a copy? As a server tells which have it, or NULL. */
bool tiers_have_copies(const char *tiers);

#define DAMAGE_HINT "run `ckpt-cli verify`, or take an older checkpoint"

/* A newer one that is damaged, when the newest that is whole was asked for. */
struct skipped {
    uint64_t step, attempt;
    char damage[STORE_DAMAGE_BYTES];
};
/* Says so on stderr. */
void skipped_tell(const char *run, uint64_t step, uint64_t attempt, const char *damage);

/* An open checkpoint: its manifest and, once loaded, its shards. Nothing removes it meanwhile. */
struct checkpoint {
    struct storage *store;
    struct skipped *skipped; /* at most RPC_SKIPPED_MAX, the newest first */
    uint32_t num_skipped, room_skipped;
    bool any_denied;            /* of them */
    struct storage_hold *lease; /* NULL where none can be written */
    struct manifest *manifest;
    char *text; /* the manifest's bytes */
    size_t text_bytes;
    char name[200];                      /* "run@1000-a3" */
    char quarantine[STORE_DAMAGE_BYTES]; /* why it is there; "": it is not */
    struct shard_file *shards;           /* of checkpoint_load(), one per shard */
    struct shard_file **opened;
    uint64_t clock; /* for the one of `opened` that was taken longest ago */
};
/* Finds, leases and reads it: the manifest, sha256 and all. Without a step the newest that is not
 * known to be damaged, and newer ones are told. ERR_NOT_FOUND, ERR_CORRUPT, ERR_VERSION. */
int checkpoint_open(struct checkpoint *out, struct storage *store, const char *text);
/* The same of what was selected already. */
int checkpoint_open_selected(struct checkpoint *out, struct storage *store,
                             const struct selection *selection);
void checkpoint_close(struct checkpoint *checkpoint);
/* Fills in step and attempt of the one that is meant, as the store has it, or the server, whichever
 * tier that has it in. */
int checkpoint_find(struct selection *selection, const struct cli *cli);
/* Does it carry bytes (ckpt_object_describe)? Files of tensors leave such ones out. */
bool tensor_is_object(const struct tensor_meta *tensor);
/* Does it belong into the output? --weights-only leaves the optimizer's out, --only what fits none
 * of its patterns. */
bool tensor_is_wanted(const struct tensor_meta *tensor, const struct cli *cli);
/* ERR_INVALID: a pattern of --only fits no tensor, or none is left. */
int tensors_check_wanted(const struct layout_table *table, const struct cli *cli);

/* A manifest alone, without a lease: of a checkpoint, or with step -1 the newest of an attempt that
 * can be read. Errors as of checkpoint_open(). */
int checkpoint_manifest(struct manifest **out, struct storage *store,
                        const struct selection *selection);

/* ---- list.c ---- */

/* What `list --json` prints of the run that is the first argument; json_decref() it. `has_damage`:
 * a checkpoint is damaged, for which `list` ends with 1. */
int list_read(struct json_t **out, bool *out_has_damage, const struct cli *cli);

/* ---- settings.c: with what two checkpoints were made ---- */

/* An array of {"what", "first", "second"}, to be json_decref()ed; a side that lacks it is left out.
 * ERR_MEMORY. */
int settings_compare(struct json_t **out, const struct manifest *a, const struct manifest *b);
/* A side as people read it: a text as it is, anything else as JSON, "-" where there is none. To be
 * freed; NULL: no memory. */
char *settings_value(const struct json_t *value);
/* A table of it, below an empty line; of none nothing. ERR_MEMORY. */
int settings_print(const struct json_t *found);

/* ---- output.c: a file of their own that commands write ---- */

/* Its name appears when all of it is there and durable. */
struct output_place {
    const char *path;
    bool may_replace;
    struct storage *folder; /* that it is in; storage_close() it */
    char parent[4096];      /* the path of that */
    char key[256];          /* its name in there until then: NAME.part */
};
/* ERR_EXISTS: there is something of that name, and --force was not given, or it is no plain file.
 * ERR_DENIED: it would lie in a checkpoint. */
int output_open(struct output_place *out, const char *path, bool may_replace);
/* Gives what is whole its name, durably. */
int output_name(const struct output_place *output);
/* All of it, of a small file. */
int output_write(const char *path, bool may_replace, const void *data, size_t bytes);
/* Is there something of that name? What cannot be looked at is an error, and not nothing. */
struct stat;
int output_look_for(bool *out_exists, struct stat *out, const char *path);

/* ---- verified.c: what the last verify of a checkpoint found ---- */

/* Where it cannot be kept the result is told all the same. */
void verified_keep(const struct cli *cli, const struct manifest_summary *summary,
                   const struct verified *result);
/* Tells the ckptd that serves it of damage; it believes nobody, and reads it again itself. */
void verified_tell_server(const struct cli *cli, const struct manifest_summary *summary);
/* Of a command that is no verify and read `checkpoint`: where that has damage the result is kept
 * and told. The caller's error stays. */
void verified_report(const struct cli *cli, const struct checkpoint *checkpoint);
/* Takes one that was found whole out of quarantine, by the ckptd that serves it or in its
 * directory. ERR_NOT_FOUND: it was not in it, as its directory says. */
int verified_release(const struct cli *cli, const struct manifest_summary *summary);
/* False: there is none. `store` may be NULL. */
bool verified_find(struct verified *out, struct storage *store,
                   const struct manifest_summary *summary);
/* "verified 2 h ago, whole". */
const char *verified_text(char *out, size_t size, const struct verified *verified);
struct json_t *verified_json(const struct verified *verified);
/* The store of a list, also that of a server, which keeps no such results; NULL: it cannot be read
 * from here. */
struct storage *verified_store(const struct cli *cli);

/* ---- tags.c: names for checkpoints ---- */

#define TAG_NAME_MAX 64 /* bytes with the NUL */
#define TAG_TEXT_MAX 64 /* of the file */
struct tag {
    char name[TAG_NAME_MAX];
    uint64_t step, attempt;
};
/* Of one run; tags_free(). */
struct tags {
    struct tag *list;
    uint32_t count, room;
};
/* A tag begins with a letter: what begins with a digit is a step. ERR_INVALID. */
int tags_check_name(const char *name);
void tags_key(char out[STORAGE_KEY_MAX + 1], const char *run, const char *name);
/* Puts the checkpoint in place of RUN@NAME among the arguments. ERR_NOT_FOUND. */
int tags_resolve(struct cli *cli);
/* None where the store cannot be read, or is NULL. */
void tags_read(struct tags *out, struct storage *store, const char *run);
/* The names of one checkpoint, with a space between them; "": it has none. */
const char *tags_text(char *out, size_t size, const struct tags *tags, uint64_t step,
                      uint64_t attempt);
void tags_free(struct tags *tags);

/* ---- status.c: of a store without a ckptd ---- */

/* What the looks of a watch have seen; zero before the first. */
struct store_polls {
    struct store_list before;       /* of the last one; store_list_free() */
    uint64_t count, commits, bytes; /* committed since the first */
};
/* An object as of cli_call_status, of what files tell; json_decref() it. NULL: it is one look. */
int status_of_store(struct json_t **out, const struct cli *cli, struct store_polls *looks);

/* ---- screen.c ---- */

/* What a person asks of it first, on one screen. */
void status_print_screen(const struct json_t *root);

/* ---- lineage.c: what it was resumed from ---- */

struct ancestor {
    uint64_t step, attempt;
    enum { ANCESTOR_THERE, ANCESTOR_GONE, ANCESTOR_UNREADABLE } state;
    struct manifest_summary summary; /* of one that is there, */
    char converted_from[33];         /* and as in its manifest */
};
struct lineage {
    struct ancestor *list; /* the one that was loaded, the one before, ... */
    uint32_t count, room;
    bool is_cut; /* what came before is not known */
};
/* `read` gives the manifest of a checkpoint of the same run, or of the newest of an attempt. */
int lineage_read(struct lineage *out, const struct manifest *manifest,
                 int (*read)(void *user, struct manifest **out, const struct selection *selection),
                 void *user);
void lineage_free(struct lineage *lineage);
/* The error of a manifest that is lost, or cannot be read: that ends a chain, but no command. */
bool lineage_is_lost(int error);
void lineage_print(const struct lineage *lineage);
/* As members of the object. */
int lineage_add_json(struct json_t *root, const struct lineage *lineage);

/* ---- objects.c: its bytes objects ---- */

struct object {
    const char *name; /* in the manifest, as the others */
    const struct tensor_meta *stored;
    const struct digest *digest;
    uint64_t bytes;
    bool is_measured; /* false: the store could not say how many */
};
struct objects {
    struct object *list;
    uint32_t count;
};
/* Borrows from the manifest. ERR_MEMORY alone is an error. */
int objects_read(struct objects *out, const struct cli *cli, const struct manifest *manifest);
void objects_free(struct objects *objects);
void objects_print(const struct objects *objects);
/* As a member, between json_begin() and json_end(). */
void objects_add_json(struct json_t *root, const struct objects *objects);
/* Puts the one that --object names on stdout. ERR_NOT_FOUND, ERR_CORRUPT. */
int objects_write_one(const struct cli *cli);

/* ---- shard.c: its files ---- */

struct shard_file {
    struct store_shard stored;    /* with its table, but where that is damaged or not kept */
    char *damage, *header_damage; /* NULL: none. With `damage` no block can be proved. */
    int damage_error;             /* ERR_IO: it could not be read, which proves nothing */
    int header_error;             /* the same of the header */
    atomic_bool has_bad_block;    /* one was read that is not as its checksum says */
    uint32_t *read_for;           /* wants.c's, per block */
    /* While the file is open. */
    struct shard_tensor *tensors; /* in file order */
    uint32_t num_tensors;
    uint64_t used;
    atomic_uint users;
};

/* What is held against the manifest of each shard: its size, its checksum table and its header; or,
 * quick, a header of more than two pages by the hash at its end alone, which says
 * that it was written for this shard of this save and not whether its bytes still are that. A quick
 * load keeps no table: no block can be proved then. */
enum load { LOAD_HEADERS, LOAD_QUICK };

/* Damage is left in `shards`; returns what kept it from looking. Once. */
int checkpoint_load(struct checkpoint *checkpoint, enum load load);
void checkpoint_unload(struct checkpoint *checkpoint);
/* ERR_CORRUPT or ERR_IO when a shard is damaged. */
int checkpoint_need_whole(const struct checkpoint *checkpoint);
/* Was anything read of it that proves damage? */
bool checkpoint_has_damage(const struct checkpoint *checkpoint);
/* Puts the names of checkpoint and shard before this thread's last error. */
int checkpoint_fail(const struct checkpoint *checkpoint, uint32_t shard, int error);
/* Opens a loaded shard that is not damaged; it stays open until it is dropped as often. Taken by
 * one thread, dropped by any. */
int shard_take(struct shard_file **out, struct checkpoint *checkpoint, uint32_t shard);
void shard_drop(struct shard_file *file);
/* Index of the first tensor that ends behind a byte of the file. */
uint32_t shard_tensor_at(const struct shard_file *file, uint64_t byte);

uint64_t tensor_elements(const struct tensor_meta *tensor);

/* ---- elements.c: element types ---- */

/* --dtype and --except: what a floating-point tensor becomes. Integers keep their type. */
#define DTYPE_EXCEPTIONS_MAX 16u
struct dtype_rules {
    bool keep;
    enum dtype dtype;
    struct dtype_exception {
        char pattern[LAYOUT_NAME_MAX]; /* as of fnmatch(); the first that matches counts */
        bool keep;
        enum dtype dtype;
    } exceptions[DTYPE_EXCEPTIONS_MAX + 1];
    uint32_t num_exceptions;
};
/* For a checkpoint with these tensors. ERR_INVALID. */
int dtype_rules_parse(struct dtype_rules *out, const struct cli *cli,
                      const struct layout_table *table);
/* ERR_INVALID: no tensor has a name that fits the pattern of that option. */
int pattern_check(const char *option, const char *pattern, const struct layout_table *table);
enum dtype dtype_rules_apply(const struct dtype_rules *rules, const struct tensor_meta *tensor);
bool convert_is_float(enum dtype dtype);
/* Between F64, F32, F16 and BF16 with round to nearest, ties to even; NaN stays NaN. Any dtype to
 * itself. */
void convert_elements(void *out, enum dtype to, const void *in, enum dtype from, uint64_t count);
/* Any dtype as a double. */
double convert_to_double(const void *in, enum dtype from, uint64_t index);

#endif
