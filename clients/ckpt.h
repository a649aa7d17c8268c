/* ckpt.h - save and load sharded state through ckptd. A program needs only this header.
 *
 * Version 1 of the interface (symbols CKPT_1 of libckpt.so.1) is frozen: later versions only add,
 * so a program compiled against it continues to work. The additions of version 2 are at the end.
 *
 * A program is a group of ranks. Each rank holds slices of named global tensors. The shortest
 * program:
 *
 *     struct ckpt *ckpt;
 *     ckpt_open(&ckpt, &(struct ckpt_options){.server = "unix:/run/ckptd.sock", .run = "llama",
 *                                             .rank = rank, .world_size = n});
 *     uint64_t attempt;
 *     if (rank == 0)
 *         ckpt_attempt_open(ckpt, &attempt, NULL, NULL);  -- then broadcast it to all ranks
 *     ckpt_describe(ckpt, attempt, tensors, num_tensors); -- every rank, its slices
 *     ckpt_load(ckpt, &(struct ckpt_load_options){.step = CKPT_NEWEST}, &loaded); -- all slices
 *     for (...) {
 *         ... one step ...
 *         ckpt_save_begin(ckpt, &save, step, state_json);  -- an image in shared memory
 *         for (i = 0; i < num_tensors; i++)
 *             ckpt_save_copy(save, ckpt_save_order(ckpt, i)); -- the one copy; announced at once
 *         ckpt_save_end(save);                             -- returns; ckptd makes it durable
 *     }
 *     ckpt_save_wait(ckpt, step, timeout_ms);              -- durable, committed
 *     ckpt_close(ckpt);
 *
 * A checkpoint can be loaded by any number of ranks with any other slices. Every byte is checked
 * against its block checksum before the load returns.
 *
 * When ckptd is not running, ckpt_save_begin returns CKPT_UNAVAILABLE and training continues. Each
 * save_begin tries to connect, at most once per back-off interval, and waits at most 0.1 s for
 * ckptd. The interval is 0.1 s, doubling to 5 s; between tries the call returns at once. When ckptd
 * runs again, the same call describes the tensors again, which needs every rank. It waits at most 1
 * s for the other ranks, else it returns CKPT_UNAVAILABLE for this save, and the next call tries
 * again without back-off. So one save may begin on some ranks only: when it fails on one rank, the
 * others abort it (ckpt_save_abort). A failed save never harms an older checkpoint.
 *
 * When ckptd runs but does not answer (stopped, or hanging), one save_begin takes 1 s more than
 * busy_ms, plus 4 ms per MiB of the rank's image, at most 10 s; twice that on another node. One
 * save_abort takes 1 s. After that libckpt treats ckptd as not running. A save_copy that waits for
 * ckptd to read announced bytes returns CKPT_TIMEOUT after 10 s. A save_copy may also wait for
 * space in a window (see ckpt_save_order), and so for the disk. It returns CKPT_TIMEOUT when the
 * disk writes nothing for 2 s, or for busy_ms if that is longer. It also does when all waits of the
 * save exceed that time plus the time of its image at 16 MiB/s.
 *
 * Durability: "accepted" (in ckptd's memory), then "local" (committed, survives power loss). If
 * ckptd has such tiers, then "replicated" and "bucket".
 *
 * Errors: 0 or a negative code; ckpt_error() returns a line about the last error of this thread:
 * event, detail, hint. Threads: one thread at a time may use a struct ckpt, except for ckpt_phase.
 * Ownership: strings and tensors passed in stay the caller's; `data` must stay valid while
 * described. */
#ifndef HOLDFAST_CKPT_H
#define HOLDFAST_CKPT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CKPT_DIMS_MAX 4       /* of struct ckpt_tensor */
#define CKPT_ARRAY_DIMS_MAX 8 /* of struct ckpt_array, below */
#define CKPT_NEWEST (-1)

/* Error codes. */
enum {
    CKPT_INVALID = -1,     /* a wrong argument, or a wrong order of calls */
    CKPT_NOT_FOUND = -2,   /* no such run or checkpoint */
    CKPT_EXISTS = -3,      /* the attempt has committed this step, or a later one */
    CKPT_STALE = -4,       /* a newer attempt of the run has taken over: stop */
    CKPT_BUSY = -5,        /* every image is still being written: skip the save or try again */
    CKPT_SPACE = -6,       /* the checkpoint does not fit on ckptd's disk: this save failed */
    CKPT_IO = -7,          /* the disk or a socket failed */
    CKPT_CORRUPT = -8,     /* stored data is damaged, or an answer of ckptd is invalid */
    CKPT_UNAVAILABLE = -9, /* ckptd cannot be reached */
    CKPT_TIMEOUT = -10,
    CKPT_DENIED = -11,   /* ckptd refuses this user, or its socket may belong to another user */
    CKPT_MEMORY = -12,   /* this program or ckptd is out of memory */
    CKPT_ABORTED = -13,  /* the save failed or was aborted */
    CKPT_MISMATCH = -14, /* tensors of the program and of the checkpoint differ */
    CKPT_VERSION = -15,  /* versions do not fit: of libckpt and ckptd, or of ckptd and the store */
    CKPT_INTERNAL = -16, /* a fault of libckpt or ckptd */
    CKPT_UNSETTLED = -17 /* the outcome is not known yet: call again */
};

/* This rank's slice of one tensor. dtype is the safetensors name ("F32", "BF16"). offset and extent
 * in elements; with an extent of 0 the rank holds nothing of this tensor. data: row-major. */
struct ckpt_tensor {
    const char *name;
    const char *dtype;
    uint32_t dims;
    uint64_t shape[CKPT_DIMS_MAX];
    uint64_t offset[CKPT_DIMS_MAX];
    uint64_t extent[CKPT_DIMS_MAX];
    void *data;
};

struct ckpt_options {
    /* "unix:/path"; "host:port" of a ckptd on another node, with the certificates of $HOLDFAST_TLS;
     * since version 2 "dir:/path" or "s3://bucket/prefix": a store, read without ckptd (metadata,
     * lists and verified loads). AWS's variables and HOLDFAST_S3_* configure access to a bucket, as
     * for ckpt-cli. */
    const char *server;
    const char *run; /* [A-Za-z0-9._-], not '.' first, at most 100 bytes */
    uint32_t rank, world_size;
    uint32_t connect_ms;  /* first connection; 0: 10,000 */
    uint32_t describe_ms; /* wait for the other ranks in describe; 0: 60,000 */
    uint32_t busy_ms;     /* how long ckpt_save_begin may wait for an image; 0: not at all */
};

/* Data of rank 0 about the run for the manifest. JSON objects of at most 1 MiB and 100 levels, like
 * the state of a save, or CKPT_INVALID; NULL for {}. */
struct ckpt_attempt_options {
    const char *config_json, *identity_json, *mesh_json, *data_json, *code_version;
};

struct ckpt_info {
    char run[128];
    uint64_t step, attempt;
    char nonce[33];
    uint64_t bytes;
    char time[32];
    uint32_t world_size;
    char durability[16];
    bool in_memory;
};

/* Result of a load. Free it with ckpt_loaded_free. */
struct ckpt_loaded {
    struct ckpt_info info;
    char *state_json, *identity_json, *config_json, *data_json;
    /* One line with the reason for each newer checkpoint that was skipped; "" for none. */
    char *skipped;
    uint64_t bytes_memory, bytes_local; /* by source, of the shards that this rank read */
    double seconds;
};

struct ckpt_load_options {
    int64_t step;       /* CKPT_NEWEST, or a step */
    uint64_t attempt;   /* 0: the newest attempt that has the step */
    int64_t below_step; /* with CKPT_NEWEST: only steps below this one; 0: no limit */
    /* Tensors to fill; NULL: the described ones. */
    const struct ckpt_tensor *tensors;
    uint32_t num_tensors;
};

/* The phase of a rank's step, for processes that share memory and disk with it. */
enum ckpt_phase {
    CKPT_PHASE_BUSY = 1, /* interference costs most: updates and sums, which are memory-bound */
    CKPT_PHASE_QUIET = 2 /* interference costs least */
};

struct ckpt;
struct ckpt_save;

int ckpt_open(struct ckpt **out, const struct ckpt_options *options);
/* A call with a closed handle returns CKPT_INVALID, as with NULL, unless a new handle has the same
 * address. So set the pointer to NULL. Do not close a handle during another call with it. */
void ckpt_close(struct ckpt *ckpt);
const char *ckpt_error(void);

/* For rank 0 only. Settles the run's older saves and takes a new attempt number, durably.
 * *out_newest (may be NULL): the newest committed checkpoint, step 0 and attempt 0 when there is
 * none. */
int ckpt_attempt_open(struct ckpt *ckpt, uint64_t *out_attempt, struct ckpt_info *out_newest,
                      const struct ckpt_attempt_options *options);
/* Called by every rank; waits for all. CKPT_MISMATCH: the slices do not tile the tensors. Ranks
 * that describe the same slice are replicas. A save stores the tensor of one of them, whole, and
 * ckptd distributes tensors so that all write about the same amount. To save the contents of each
 * rank, use different names or places. ckptd compares replicas, if ckpt_save_copy reads their
 * bytes: all of up to 256 KiB, else a sample that changes with the step. When they differ, ckptd
 * commits the save with a warning or refuses it (ckptd's key saves.replicas). */
int ckpt_describe(struct ckpt *ckpt, uint64_t attempt, const struct ckpt_tensor *tensors,
                  uint32_t num_tensors);

/* Fills the slices. CKPT_NOT_FOUND: no (such) checkpoint. CKPT_MISMATCH: another model.
 * CKPT_CORRUPT: the named checkpoint is damaged. On any error the contents of the slices are
 * undefined. With CKPT_NEWEST the load goes back to the newest intact checkpoint, also when it
 * finds the damage itself; `skipped` has a line for each skipped one. CKPT_CORRUPT: none is intact.
 *
 * All ranks must continue from the same checkpoint. libckpt ensures that when every rank loads
 * CKPT_NEWEST into its described tensors (tensors NULL; attempt and below_step 0) from the same
 * ckptd. Then a rank returns when every rank has loaded; it waits at most 10 s for a rank that has
 * not called ckpt_load. Other loads of CKPT_NEWEST with a world_size above 1, and loads from
 * several ckptds or a store, return CKPT_CORRUPT when a rank finds damage. Then every rank loads
 * again, or one rank names a step to all. */
int ckpt_load(struct ckpt *ckpt, const struct ckpt_load_options *options, struct ckpt_loaded **out);
void ckpt_loaded_free(struct ckpt_loaded *loaded);

/* Lends an image to copy into; one save at a time per handle. While every image is being written it
 * waits at most busy_ms, then returns CKPT_BUSY. Further errors: CKPT_UNAVAILABLE; CKPT_STALE;
 * CKPT_SPACE; CKPT_ABORTED: the save of this step has ended, and some rank that began it does not
 * know that yet. All ranks may begin an aborted step again. */
int ckpt_save_begin(struct ckpt *ckpt, struct ckpt_save **out, uint64_t step,
                    const char *state_json /* rank 0; NULL elsewhere */);
/* The same, but waits at most `busy_ms` for an image instead of ckpt_options.busy_ms. */
int ckpt_save_begin_within(struct ckpt *ckpt, struct ckpt_save **out, uint64_t step,
                           const char *state_json, uint32_t busy_ms);
/* Saves that the handle begins from now on are the last of its run. When ckptd's memory is short
 * they get images before the saves of other runs. Call it on all ranks; an older ckptd ignores
 * it. */
void ckpt_save_last(struct ckpt *ckpt);
/* One rank calls this after a ckpt_save_begin returned CKPT_BUSY, while no rank has that save open.
 * ckptd gives up, for all ranks, the newest of the run's saves that waits for an earlier one, and
 * its images become free. Then begin again, within some time. *out_step is the step of the save
 * that was given up. CKPT_BUSY: no save waits for another. ckptd never gives up the earliest save,
 * so it commits one however often this is called. */
int ckpt_save_make_way(struct ckpt *ckpt, uint64_t *out_step);
/* The index of the i-th tensor in the image. Valid after ckpt_describe, and constant for the
 * attempt. Copy in this order: where ckptd's memory is smaller than the images of its ranks, an
 * image is a window that the disk empties from the front. ckpt_save_copy then waits for the disk,
 * and returns CKPT_INVALID for a tensor beyond the window that is not the next in order. */
uint32_t ckpt_save_order(const struct ckpt *ckpt, uint32_t i);
/* Copies tensor `index` into the image and announces it. Call it once per tensor, also for tensors
 * that another rank writes. The caller need not check the result: later copies do nothing after a
 * failure, and ckpt_save_end returns the first failure. */
int ckpt_save_copy(struct ckpt_save *save, uint32_t index);
/* Announces the end: ckptd may commit. The save handle ends here, also on error: calls with it
 * return CKPT_INVALID until the next save of the handle begins. */
int ckpt_save_end(struct ckpt_save *save);
void ckpt_save_abort(struct ckpt_save *save);
/* Waits until the save of `step` is committed. CKPT_ABORTED: it failed, with the reason. ckptd does
 * not throttle a save that a rank waits for (its keys pace.*).
 *
 * A timeout of 0 only polls. CKPT_TIMEOUT: the save is not committed yet, or ckptd did not answer
 * within 0.1 s. CKPT_UNAVAILABLE: ckptd is not running; the state of the save is then unknown until
 * it runs again. After an unanswered poll, polls do not call ckptd for 1 s, doubling to 60 s, until
 * ckptd answers a call. A timeout of 1 to 10 ms also gives ckptd 0.1 s to answer, but is a wait. */
int ckpt_save_wait(struct ckpt *ckpt, uint64_t step, uint32_t timeout_ms);
/* A warning about the committed save of the last ckpt_save_wait: one line, or "". Either every
 * tensor equals the previous checkpoint, to the bit: the optimizer does not update, or the
 * described tensors are not those that train. Or replicas differ. Valid until the next
 * ckpt_save_wait. */
const char *ckpt_save_warning(const struct ckpt *ckpt);
/* The durability of the save of the last ckpt_save_wait. "accepted": in ckptd's memory; it survives
 * the end of the ranks. "local": on its disk; it also survives power loss. "": the save failed, or
 * ckptd did not answer. Valid until the next ckpt_save_wait. */
const char *ckpt_save_durability(const struct ckpt *ckpt);

/* Announces a phase; it lasts until the next one is announced. With pace.quiet ckptd begins writes
 * in quiet phases only, within bounds (deploy/ckptd.conf). Cheap enough for every step: a store,
 * and a system call only when ckptd waits for the end of a busy phase. Without a session nothing
 * happens. One thread may call it while another is in save_copy, save_end or save_abort. */
void ckpt_phase(struct ckpt *ckpt, enum ckpt_phase phase);

/* ---- version 2 (symbols CKPT_2) ---- */

/* Applies to handles that this thread opens from now on. When *stop becomes nonzero (a signal
 * handler may set it), waits for ckptd end within 0.1 s with CKPT_ABORTED. That holds for
 * ckpt_open, which then makes no handle, and for calls before the handle's first ckpt_save_begin.
 * NULL: no stop flag. */
void ckpt_heed_stop(const volatile int *stop);

/* ckpt_attempt_open that respects other launchers. It does not take over a run that is being
 * trained. It waits limits.takeover_ms (10 s) for dying ranks, then returns CKPT_EXISTS, and
 * ckpt_error() names the holder of the run; ckpt_attempt_open returns CKPT_BUSY in that case.
 * Starts by the same user with the same HOLDFAST_LAUNCH_TOKEN, or else the same SLURM_JOB_ID, in
 * the environment take over at once. With CKPT_TAKE_OVER in `flags` every start does. */
#define CKPT_TAKE_OVER 1u
int ckpt_attempt_take(struct ckpt *ckpt, uint64_t *out_attempt, struct ckpt_info *out_newest,
                      const struct ckpt_attempt_options *options, uint32_t flags);

/* The request of `ckpt-cli stop` to the ranks of the handle's run: to stop after the current step,
 * and to save it unless NO_SAVE is set; 0: none. Ranks may see it at different times, so they must
 * agree on their action. Cheap enough for every step: one load. A rank on another node than its
 * ckptd sees the request within about a second, or, if that ckptd is older, at its next
 * ckpt_save_begin. */
#define CKPT_ASKED_STOP 1u
#define CKPT_ASKED_NO_SAVE 2u
uint32_t ckpt_asked(const struct ckpt *ckpt);
/* Seconds left to stop, negative after the deadline; INFINITY: no deadline. */
double ckpt_asked_within(const struct ckpt *ckpt);

/* The number of saves that `ckpt-cli save` has requested of the handle. Like ckpt_asked. It never
 * falls, so a request stays when ckptd ends before the save. */
uint32_t ckpt_saves_asked(const struct ckpt *ckpt);

/* Without these two a rank connects to a restarted ckptd at its next ckpt_save_begin, and requests
 * do not reach it before. ckpt_is_lost: the connection has ended, and it is time to try again.
 * Cheap enough for every step: one system call. ckpt_renew describes the tensors again, as a
 * ckpt_save_begin does, with the same waits. Both are for times without an open save. All ranks
 * should agree that one is lost, then all call ckpt_renew, which does nothing on the others. After
 * a failure ckpt_is_lost is false for 200 times as long as the try took: 0.5 s to 60 s. */
bool ckpt_is_lost(const struct ckpt *ckpt);
int ckpt_renew(struct ckpt *ckpt);

/* The current work of the rank. ckptd reports it when the rank dies, by any signal, or hangs. */
struct ckpt_doing {
    uint32_t size;            /* sizeof(struct ckpt_doing) */
    uint32_t operation, part; /* index in the step, and its micro-batch; UINT32_MAX: unknown */
    uint64_t number;          /* of a call: counted from 1 */
    uint64_t step, bytes;
    const char *what, *of, *lane; /* "all_gather", "dp_shard", "gather": at most 23 bytes each */
};
/* Records that a call begins or ends, or that a lane, one of at most 8, begins an operation. Cheap
 * enough for each call: a few stores. Nothing happens without a session or with an older ckptd. One
 * thread at a time may call these, with the same rule as ckpt_phase. libckpt sends the notes of a
 * rank on another node to ckptd once a second, so after SIGKILL they are up to that old. */
void ckpt_note_call(struct ckpt *ckpt, const struct ckpt_doing *doing);
void ckpt_note_end(struct ckpt *ckpt, uint64_t number);
void ckpt_note_lane(struct ckpt *ckpt, const struct ckpt_doing *doing);
/* Records that this process runs: call it once a second or more, from a thread that waits for no
 * other rank. When a rank is lost ckptd then names the one whose process gave no sign. Any thread,
 * before ckpt_close. */
void ckpt_note_alive(struct ckpt *ckpt);
/* Finds the rank of the run on this ckptd that has given no sign of life (ckpt_note_alive) for the
 * longest time, while others did. For a rank that has waited too long: ckptd's answer takes at most
 * timeout_ms. Any thread, before ckpt_close. CKPT_NOT_FOUND: there is none, or ckptd is an older
 * one. */
int ckpt_find_still(struct ckpt *ckpt, uint32_t *out_rank, double *out_seconds,
                    uint32_t timeout_ms);
/* The number of saves of the run, as described, for which ckptd's disk has space. -1: a rule of
 * ckptd removes older saves (such as its key retention.keep_last), or ckptd has not told. */
int64_t ckpt_room_saves(const struct ckpt *ckpt);
/* For the handle that opened the attempt: hours, from then on, until ckptd's disk is full, at the
 * rate of its last saves less removals. INFINITY: never; -1: ckptd had no rate yet. */
double ckpt_hours_to_full(const struct ckpt *ckpt);

/* The hint of the line of ckpt_error(); "": none. */
const char *ckpt_error_hint(void);

/* The structs of version 2 begin with `size`, which the program sets to the sizeof of the struct.
 * libckpt reads and fills only that much. In structs that libckpt makes `size` is set. */

/* struct ckpt_tensor with room for 8 dimensions. dims 0 is a scalar: one element. In a list all
 * have the size of the first. dtype: any safetensors name of up to 8 bytes per element, also
 * "BOOL", "F8_E4M3", "U16". */
struct ckpt_array {
    uint32_t size, dims;
    const char *name, *dtype;
    uint64_t shape[CKPT_ARRAY_DIMS_MAX];
    uint64_t offset[CKPT_ARRAY_DIMS_MAX];
    uint64_t extent[CKPT_ARRAY_DIMS_MAX];
    void *data; /* may be NULL in a description when the caller copies (ckpt_save_place) */
};
/* ckpt_describe for struct ckpt_array. A rank may list a tensor several times, with different
 * boxes, for a strided or uneven cut. Then the boxes of all ranks must tile it; equal boxes are
 * replicas. ckptd stores such a tensor as its boxes: ckpt_metadata lists each as NAME@OFFSETS
 * ("w@4,0", with the box's extents as the shape). Loads by NAME, in any cut, combine them. */
int ckpt_describe_arrays(struct ckpt *ckpt, uint64_t attempt, const struct ckpt_array *arrays,
                         uint32_t num_arrays);
/* Call it before describing. It declares that this rank compares its slices with its replicas
 * before each save, and begins no save when they differ. When all ranks declare that, each replica
 * saves a part of a slice, which is faster when a few tensors have most of the bytes. A rank that
 * declares it but does not compare may save a mixture of its replicas. */
void ckpt_compares_replicas(struct ckpt *ckpt);
/* From now on the bytes of described tensor `index` are at `data`; other ranks need not know. Not
 * allowed while a save is open. */
int ckpt_move(struct ckpt *ckpt, uint32_t index, void *data);

/* ckpt_load for any arrays, described or not, each any number of times. Needs no attempt. */
struct ckpt_load_request {
    uint32_t size, num_arrays;
    int64_t step, below_step; /* as in ckpt_load_options; below_step 0: no limit */
    uint64_t attempt;
    const struct ckpt_array *arrays;
};
int ckpt_load_arrays(struct ckpt *ckpt, const struct ckpt_load_request *request,
                     struct ckpt_loaded **out);

/* The contents of a checkpoint, available before anything is described. step: CKPT_NEWEST or a
 * number; attempt 0: the newest that has the step. Free with ckpt_metadata_free. */
struct ckpt_tensor_info {
    uint32_t size, dims;
    const char *name, *dtype;
    uint64_t shape[CKPT_ARRAY_DIMS_MAX];
    uint64_t digest[2]; /* of the contents, independent of the cut: proto/base/checksum.h */
};
struct ckpt_metadata {
    uint32_t size, num_tensors;
    struct ckpt_info info;                  /* in_memory is always false here */
    const struct ckpt_tensor_info *tensors; /* by name */
    const char *state_json, *identity_json, *config_json, *data_json, *mesh_json;
    const char *damage; /* why it is quarantined; "": it is not */
};
int ckpt_metadata(struct ckpt *ckpt, int64_t step, uint64_t attempt, struct ckpt_metadata **out);
void ckpt_metadata_free(struct ckpt_metadata *metadata);

/* The checkpoints of the handle's run, or with all_runs of every run that the user may see, newest
 * first within each. Free with ckpt_list_free. */
struct ckpt_list_entry {
    uint32_t size;
    bool pinned,
        read_back; /* read_back: read completely from the disk, and every checksum was right */
    struct ckpt_info info;
    const char *damage, *pin_note; /* "": none */
};
struct ckpt_list {
    uint32_t size, num_entries;
    const struct ckpt_list_entry *entries;
};
int ckpt_list(struct ckpt *ckpt, bool all_runs, struct ckpt_list **out);
void ckpt_list_free(struct ckpt_list *list);
/* Finds the newest intact checkpoint of the handle's run after (attempt, step), ordered by attempt,
 * then step; 0, 0: of all. Use it to follow a run's weights. Polls five times a second until there
 * is one, for timeout_ms; 0: once. The result is committed, so never partial. A caller that passes
 * its last result never goes back, and skips checkpoints that newer ones have overtaken. The call
 * also waits for a run that has not begun, and for a ckptd that went away. CKPT_TIMEOUT: none came.
 * The checkpoint may be removed before it is loaded: then the load returns CKPT_NOT_FOUND; call
 * this again. */
int ckpt_newer(struct ckpt *ckpt, uint64_t attempt, uint64_t step, uint32_t timeout_ms,
               struct ckpt_info *out);
/* Pins a checkpoint of the run, with a reason, so that it is not pruned; with note NULL unpins
 * it. */
int ckpt_pin(struct ckpt *ckpt, uint64_t step, uint64_t attempt, const char *note);

/* Bytes objects: named bytes of any length, such as the position of a data loader, saved and
 * committed with the arrays. Each is one array of the description, with room to grow:
 *
 *     struct ckpt_object object = {.size = sizeof object, .name = "loader"};
 *     object.room = ckpt_object_room(bytes);
 *     object.memory = malloc(object.room);
 *     ckpt_object_describe(&object, &arrays[n]);    -- then ckpt_describe_arrays
 *     ckpt_object_set(&object, data, bytes);        -- before each save, also of another length
 *
 * ckpt_object_set returns CKPT_SPACE when the bytes exceed the room. Objects of different ranks
 * need different names. An object is stored as a U8 tensor "object:NAME". ckpt_object_name returns
 * NAME for such a tensor of ckpt_metadata, NULL for others. ckpt_object_load reads an object, and
 * ckpt_object_free frees it; CKPT_NOT_FOUND: no such checkpoint, or no such object in it.
 * ckpt_object_get finds the bytes in memory that a load has filled as an array. */
struct ckpt_object {
    uint32_t size;
    const char *name;
    void *memory; /* the caller's, of `room` bytes; valid like the data of an array */
    uint64_t room;
    char stored[192]; /* private to libckpt */
};
uint64_t ckpt_object_room(uint64_t bytes);
int ckpt_object_describe(struct ckpt_object *object, struct ckpt_array *out);
int ckpt_object_set(struct ckpt_object *object, const void *data, uint64_t bytes);
const char *ckpt_object_name(const struct ckpt_tensor_info *tensor);
int ckpt_object_get(const struct ckpt_object *object, const void **out, uint64_t *out_bytes);
int ckpt_object_load(struct ckpt *ckpt, int64_t step, uint64_t attempt, const char *name,
                     void **out, uint64_t *out_bytes);
void ckpt_object_free(void *data);

/* To copy by itself, for example from a device, a program calls, instead of ckpt_save_copy(save,
 * index):
 *
 *     struct ckpt_place at = {.size = sizeof at};
 *     while ((error = ckpt_save_place(save, index, at.from_byte + at.bytes, &at)) == 0 &&
 *            at.bytes > 0) {
 *         ... copy at.bytes, from byte at.from_byte of the tensor's slice on, to at.to ...
 *         ckpt_save_announce(save, &at);
 *     }
 *
 * ckpt_save_place waits for space like ckpt_save_copy, and returns the first piece at or after a
 * byte of the slice; bytes 0: there is none. The caller may get any number of pieces, in any order,
 * before it announces the first. In a window (ckpt_save_is_window) it must announce each piece
 * before it gets the next. Announce each piece once, after its bytes are copied. The address is
 * valid until the save ends. The save keeps its first error, as with ckpt_save_copy. */
struct ckpt_place {
    uint32_t size, index;
    void *to;
    uint64_t from_byte, bytes;
    uint64_t image_byte; /* private to libckpt */
};
int ckpt_save_place(struct ckpt_save *save, uint32_t index, uint64_t from_byte,
                    struct ckpt_place *out);
int ckpt_save_announce(struct ckpt_save *save, const struct ckpt_place *place);
bool ckpt_save_is_window(const struct ckpt_save *save);
/* If other ranks hold the slice, too, call these before ckpt_save_end: they pass the bytes of the
 * slice that ckptd compares (see ckpt_describe), on each rank that holds it. ckpt_save_sample
 * returns *out_count places; 0: none is compared. ckpt_save_sampled takes the bytes, place after
 * place. */
#define CKPT_SAMPLE_MAX 16          /* places, */
#define CKPT_SAMPLE_BYTES_MAX 16384 /* and bytes of each */
struct ckpt_span {
    uint64_t from_byte, bytes;
};
int ckpt_save_sample(struct ckpt_save *save, uint32_t index, struct ckpt_span *out,
                     uint32_t *out_count);
int ckpt_save_sampled(struct ckpt_save *save, uint32_t index, const void *data);
/* Call it before ckpt_save_end, once per tensor: passes the digest (struct ckpt_tensor_info) of the
 * tensor's bytes that ckpt_save_place returns places for, computed at the source of the copy. When
 * ckptd finds another digest in its memory it does not commit the save: ckpt_save_wait returns
 * CKPT_ABORTED and names the tensor. A ckptd that is older, or reached over a network, does not
 * compare. */
int ckpt_save_digest(struct ckpt_save *save, uint32_t index, const uint64_t digest[2]);

/* Hooks for a program that copies between ckptd's memory and a device. libckpt calls `came` after
 * it has mapped ckptd's memory, so that the program can register it with the device once
 * (cudaHostRegister). It calls `goes` before it unmaps the memory: no copy may use it any more.
 *
 * Memory of images is writable, and mostly stays as long as the handle. Memory of a load in
 * progress is ckptd's, mapped read-only, or libckpt's own, writable, when ranks may write to
 * ckptd's. If `copy` is not NULL, loads of the handle copy by it, so their arrays may be on a
 * device; it may only enqueue the copy. `copied` waits for all enqueued copies; libckpt calls it
 * before it frees their sources. Both return 0 or an error of this header, which the load returns.
 *
 * All hooks run on threads that call libckpt with this handle. They apply from now on, also to
 * memory that is already mapped; NULL removes them. CKPT_INVALID: `size` is wrong. memory_node: 1 +
 * the NUMA node of the device; ckptd places the images of an attempt there that is described after
 * this call; 0: any. */
struct ckpt_memory_hooks {
    uint32_t size;
    void (*came)(void *user, void *at, uint64_t bytes, bool is_writable);
    void (*goes)(void *user, void *at, uint64_t bytes);
    int (*copy)(void *user, void *to, const void *from, uint64_t bytes);
    int (*copied)(void *user);
    void *user;
    uint32_t memory_node; /* programs of earlier versions do not have it */
};
int ckpt_hook_memory(struct ckpt *ckpt, const struct ckpt_memory_hooks *hooks);

/* ckpt_save_wait until the save has that durability. "accepted" is reached when every rank has
 * called ckpt_save_end: then the save survives the end of all ranks. CKPT_INVALID: this ckptd never
 * reaches the level. */
enum ckpt_level {
    CKPT_LEVEL_ACCEPTED = 1,   /* in ckptd's memory */
    CKPT_LEVEL_LOCAL = 2,      /* committed, on the disks of its node */
    CKPT_LEVEL_REPLICATED = 3, /* on the disks of more than one node */
    CKPT_LEVEL_BUCKET = 4
};
int ckpt_save_wait_for(struct ckpt *ckpt, uint64_t step, enum ckpt_level level,
                       uint32_t timeout_ms);

/* Reports to ckptd that this rank could not save `step`, and why: for a save that failed before
 * ckpt_save_begin, or for a reason that ckptd does not know. `ckpt-cli status` and `health` show it
 * until the run commits. Any number of ranks may report a step, which counts once. CKPT_NOT_FOUND:
 * the run has not begun; CKPT_UNAVAILABLE, CKPT_TIMEOUT after 1 s: ckptd did not receive it. */
int ckpt_save_failed(struct ckpt *ckpt, uint64_t step, const char *reason);

#ifdef __cplusplus
}
#endif
#endif
