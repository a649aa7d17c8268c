/* ckpt.h - save and load sharded state through ckptd. All that a program needs.
 *
 * Version 1 of the interface (symbols CKPT_1 of libckpt.so.1) is frozen: a later version adds, and
 * a program compiled against it goes on working. What version 2 added is at the end.
 *
 * A program is a group of ranks. Each rank holds slices of named global tensors. The shortest life:
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
 * When ckptd is away: save_begin returns CKPT_UNAVAILABLE and training goes on. Each save_begin
 * tries again, at most once per back-off interval (0.1 s, doubling to 5 s; between tries it returns
 * at once) and waits at most 0.1 s for ckptd. When it is back, the same call describes again, which
 * needs every rank: it waits at most 1 s for the others, else CKPT_UNAVAILABLE for this save, and
 * the next tries again without back-off. So ranks may disagree about one save: those that began it
 * give it up (ckpt_save_abort) when another rank could not. A failed save never harms an older
 * checkpoint. A ckptd that is there and does not answer (stopped, or hanging) costs one save_begin
 * 1 s more than busy_ms (and 4 ms per MiB of the rank's image, at most 10 s), and one save_abort
 * 1 s; after that it counts as away. A save_copy that waits for ckptd to read what was announced
 * ends with CKPT_TIMEOUT after 10 s. One that waits for room in a window (below, at
 * ckpt_save_order), and so for a disk that may be slow, ends so when the disk stands still for 2 s,
 * or for busy_ms where that is more; or when all waits of the save are longer than that and the
 * time that its image takes at 16 MiB/s.
 *
 * Durability: "accepted" (in ckptd's memory), then "local" (committed, survives power loss), then
 * where ckptd has them "replicated" and "bucket".
 *
 * Errors: 0 or a negative code; ckpt_error() gives the line that explains the last one on this
 * thread: what happened, detail, hint. Threads: one struct ckpt may be used by one thread at a
 * time, but for ckpt_phase. Ownership: strings and tensors passed in stay the caller's; `data` must
 * stay valid while described. */
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
    CKPT_INVALID = -1,     /* an argument, or the order of calls */
    CKPT_NOT_FOUND = -2,   /* no such run or checkpoint */
    CKPT_EXISTS = -3,      /* the attempt has committed this step, or a later one */
    CKPT_STALE = -4,       /* a newer attempt of the run has taken over: stop */
    CKPT_BUSY = -5,        /* every image is still being written: skip or try again */
    CKPT_SPACE = -6,       /* the checkpoint does not fit on ckptd's disk: this save failed */
    CKPT_IO = -7,          /* the disk or a socket failed */
    CKPT_CORRUPT = -8,     /* stored data is damaged, or an answer of ckptd impossible */
    CKPT_UNAVAILABLE = -9, /* ckptd cannot be reached */
    CKPT_TIMEOUT = -10,
    CKPT_DENIED = -11,   /* ckptd does not serve this user, or its socket may be another's */
    CKPT_MEMORY = -12,   /* this program or ckptd is out of memory */
    CKPT_ABORTED = -13,  /* the save failed or was aborted */
    CKPT_MISMATCH = -14, /* tensors of the program and of the checkpoint differ */
    CKPT_VERSION = -15,  /* libckpt and ckptd, or ckptd and the store, do not know each other */
    CKPT_INTERNAL = -16, /* a fault of libckpt or ckptd */
    CKPT_UNSETTLED = -17 /* nobody can tell yet whether it happened: ask again */
};

/* This rank's slice of one tensor. dtype is the safetensors name ("F32", "BF16"). offset and extent
 * in elements; an extent of 0 means that the rank holds nothing of this tensor. data: row-major. */
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
    const char *server; /* "unix:/path"; "host:port" of a ckptd on another node, with the
                           certificates of $HOLDFAST_TLS; of version 2 "dir:/path" or
                           "s3://bucket/prefix", a store, which is read without ckptd: metadata,
                           lists and loads, all verified. How a bucket's server is reached AWS's
                           variables and HOLDFAST_S3_* say, as to ckpt-cli */
    const char *run;    /* [A-Za-z0-9._-], not '.' first, at most 100 bytes */
    uint32_t rank, world_size;
    uint32_t connect_ms;  /* first connection; 0: 10,000 */
    uint32_t describe_ms; /* wait for the other ranks in describe; 0: 60,000 */
    uint32_t busy_ms;     /* how long ckpt_save_begin may wait for an image; 0: not at all */
};

/* What the manifest says about the run, given by rank 0. JSON objects of at most 1 MiB and 100
 * levels, or CKPT_INVALID, as the state of a save is; NULL for {}. */
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

/* What a load found. Free with ckpt_loaded_free. */
struct ckpt_loaded {
    struct ckpt_info info;
    char *state_json, *identity_json, *config_json, *data_json;
    char *skipped; /* one line per newer checkpoint passed over, and why; "" for none */
    uint64_t bytes_memory, bytes_local; /* source of the shards that this rank read */
    double seconds;
};

struct ckpt_load_options {
    int64_t step;       /* CKPT_NEWEST, or a step */
    uint64_t attempt;   /* 0: the newest attempt that has the step */
    int64_t below_step; /* with CKPT_NEWEST: only older steps than this; 0: no limit */
    /* Tensors to fill; NULL: the described ones. */
    const struct ckpt_tensor *tensors;
    uint32_t num_tensors;
};

/* What a rank is doing, as far as it concerns who shares memory and disk with it. */
enum ckpt_phase {
    CKPT_PHASE_BUSY = 1, /* interference costs most: the updates and sums that memory bounds */
    CKPT_PHASE_QUIET = 2 /* it costs least */
};

struct ckpt;
struct ckpt_save;

int ckpt_open(struct ckpt **out, const struct ckpt_options *options);
/* A call with a closed handle is CKPT_INVALID, as with NULL, until one that is opened has its
 * address: so set it to NULL. A close beside another call of the handle is not allowed. */
void ckpt_close(struct ckpt *ckpt);
const char *ckpt_error(void);

/* Rank 0 only. Settles the run's older saves and takes a new attempt number, durably. *out_newest
 * (may be NULL): the newest committed checkpoint, step 0 and attempt 0 when there is none. */
int ckpt_attempt_open(struct ckpt *ckpt, uint64_t *out_attempt, struct ckpt_info *out_newest,
                      const struct ckpt_attempt_options *options);
/* Every rank; waits for all. CKPT_MISMATCH when the slices do not tile the tensors. Ranks that
 * describe the same slice are replicas: a save has the tensor as one of them holds it, whole, and
 * tensors are dealt out so that all write about as much. Where each rank's contents are to be saved
 * they need different names or places. Replicas are compared, as far as ckpt_save_copy sees their
 * bytes: all of 256 KiB, of more a sample that changes with the step. Where they differ the save is
 * committed with a warning, or refused, as ckptd's saves.replicas says. */
int ckpt_describe(struct ckpt *ckpt, uint64_t attempt, const struct ckpt_tensor *tensors,
                  uint32_t num_tensors);

/* Fills the slices. CKPT_NOT_FOUND: no (such) checkpoint. CKPT_MISMATCH: another model. On any
 * error the contents of the slices are undefined. A damaged checkpoint that is named is
 * CKPT_CORRUPT. With CKPT_NEWEST the load goes back to the newest that is whole, also when it finds
 * the damage itself, and `skipped` has a line of each that was passed over; CKPT_CORRUPT: none is.
 *
 * Several ranks must not go on from different checkpoints. When every rank loads CKPT_NEWEST into
 * what it described (tensors NULL; attempt and below_step 0) at the same ckptd, all of them get the
 * same one: a rank returns when every rank has loaded, but waits for one that has not called
 * ckpt_load at most 10 s. In other loads of CKPT_NEWEST with a world_size above 1, and at several
 * ckptds or none, damage that a rank finds is CKPT_CORRUPT: every rank loads again, or one names a
 * step to all. */
int ckpt_load(struct ckpt *ckpt, const struct ckpt_load_options *options, struct ckpt_loaded **out);
void ckpt_loaded_free(struct ckpt_loaded *loaded);

/* An image to copy into; one save at a time per handle. While every image is being written it waits
 * at most busy_ms, then CKPT_BUSY. Besides CKPT_UNAVAILABLE: CKPT_STALE, CKPT_SPACE, and
 * CKPT_ABORTED when the save of this step is over, and not every rank that began it knows. A step
 * that was given up may be begun again, by all ranks. */
int ckpt_save_begin(struct ckpt *ckpt, struct ckpt_save **out, uint64_t step,
                    const char *state_json /* rank 0; NULL elsewhere */);
/* The same, but waits for an image at most `busy_ms`, whatever ckpt_options.busy_ms says. */
int ckpt_save_begin_within(struct ckpt *ckpt, struct ckpt_save **out, uint64_t step,
                           const char *state_json, uint32_t busy_ms);
/* Saves that the handle begins from now on are the last of its run, which ends: they come before
 * the saves of other runs when ckptd's memory is short. All ranks; a ckptd that does not know of it
 * takes them as they come. */
void ckpt_save_last(struct ckpt *ckpt);
/* One rank, when a rank's ckpt_save_begin was CKPT_BUSY and no rank has that save open: of the
 * run's saves in work the newest that waits behind another one is given up, for all ranks, and its
 * images come free; then begin again, within some time. Its step goes to *out_step. CKPT_BUSY: none
 * waits behind another; the earliest is never given up, so that one is committed however often this
 * is called. */
int ckpt_save_make_way(struct ckpt *ckpt, uint64_t *out_step);
/* The tensor that lies i-th in the image. Valid after ckpt_describe, and the same for the whole
 * attempt. Copy in this order: where ckptd's memory is smaller than the images of its ranks, an
 * image is a window that the disk empties from the front. ckpt_save_copy then waits for the disk,
 * and a tensor beyond the window whose turn it is not is CKPT_INVALID. */
uint32_t ckpt_save_order(const struct ckpt *ckpt, uint32_t i);
/* Copies tensor `index` into the image and announces it. Once per tensor, also of those that
 * another rank writes. May go unchecked: the first failure is kept, later copies do nothing, and
 * save_end returns it. */
int ckpt_save_copy(struct ckpt_save *save, uint32_t index);
/* All copied: ckptd may commit. The save has ended then, also on error: calls with it are
 * CKPT_INVALID until the handle's next one begins. */
int ckpt_save_end(struct ckpt_save *save);
void ckpt_save_abort(struct ckpt_save *save);
/* Until the save of `step` is committed. CKPT_ABORTED with the reason when it failed. A save that
 * somebody waits for does not wait for ckptd's manners (its settings pace.*).
 * A timeout of 0 asks only: CKPT_TIMEOUT when it is not committed yet, or ckptd does not answer
 * within 0.1 s; CKPT_UNAVAILABLE when there is none, which says nothing about the save: the next
 * ckptd knows. Then a timeout of 0 does not ask again for 1 s, doubling to 60 s, until ckptd has
 * answered something. One of 1 to 10 ms gives ckptd those 0.1 s, too, but is a wait. */
int ckpt_save_wait(struct ckpt *ckpt, uint64_t step, uint32_t timeout_ms);
/* What is wrong with the save that the last ckpt_save_wait found committed: one line, "" for
 * nothing. That every tensor equals the checkpoint before it, to the bit: the optimizer stands
 * still, or what is described is not what is trained; or that replicas differ. Valid until the next
 * ckpt_save_wait. */
const char *ckpt_save_warning(const struct ckpt *ckpt);
/* What the save that the last ckpt_save_wait asked for survives: "accepted", in ckptd's memory, the
 * end of the ranks; "local", on its disk, a loss of power as well; "" nothing: it failed, or nobody
 * answered. Valid until the next ckpt_save_wait. */
const char *ckpt_save_durability(const struct ckpt *ckpt);

/* Announces the phase that begins now; it lasts until the next one is announced. With pace.quiet
 * ckptd then begins to write in quiet phases only, within bounds (deploy/ckptd.conf). Cheap enough
 * for every step: a store, and a system call only when ckptd waits for the end of a busy phase.
 * Without a session nothing happens. May be called by one thread while another is in save_copy,
 * save_end or save_abort. */
void ckpt_phase(struct ckpt *ckpt, enum ckpt_phase phase);

/* ---- version 2 (symbols CKPT_2) ---- */

/* For the handles that this thread opens from now on: when *stop turns from 0 (a signal handler may
 * set it), a wait for ckptd ends within 0.1 s with CKPT_ABORTED: in ckpt_open, which makes no
 * handle then, and in the calls before the handle's first ckpt_save_begin. NULL: none does. */
void ckpt_heed_stop(const volatile int *stop);

/* ckpt_attempt_open that knows about others. A run that is being trained is not taken from who
 * trains it: the call waits limits.takeover_ms (10 s) for ranks that are dying, then is
 * CKPT_EXISTS, and ckpt_error() says who has the run; ckpt_attempt_open has CKPT_BUSY there. Starts
 * with the same HOLDFAST_LAUNCH_TOKEN, or else the same SLURM_JOB_ID, in the environment of the
 * same user take over at once; so does CKPT_TAKE_OVER in `flags`. */
#define CKPT_TAKE_OVER 1u
int ckpt_attempt_take(struct ckpt *ckpt, uint64_t *out_attempt, struct ckpt_info *out_newest,
                      const struct ckpt_attempt_options *options, uint32_t flags);

/* What `ckpt-cli stop` asks of the ranks of the handle's run: to end behind the step that they are
 * in, and without NO_SAVE to save it; 0: nothing. All ranks must agree on what they do, as not all
 * see it at once. Cheap enough for every step: one load. A rank on another node than its ckptd sees
 * it from its next ckpt_save_begin. */
#define CKPT_ASKED_STOP 1u
#define CKPT_ASKED_NO_SAVE 2u
uint32_t ckpt_asked(const struct ckpt *ckpt);
/* Seconds that are left for it, negative when they are over; INFINITY: no time was given. */
double ckpt_asked_within(const struct ckpt *ckpt);

/* How often `ckpt-cli save` asked for a save, in the session of the handle: a new one begins at 0.
 * As ckpt_asked, but a rank on another node than its ckptd is not asked. */
uint32_t ckpt_saves_asked(const struct ckpt *ckpt);

/* What the rank is doing, so that ckptd can tell it when the rank dies, by whatever signal, or
 * hangs. */
struct ckpt_doing {
    uint32_t size;            /* sizeof(struct ckpt_doing) */
    uint32_t operation, part; /* a place in the step, and its micro-batch; UINT32_MAX: unknown */
    uint64_t number;          /* of a call: counted from 1 */
    uint64_t step, bytes;
    const char *what, *of, *lane; /* "all_gather", "dp_shard", "gather": 23 bytes of each */
};
/* A call begins, or ends; the lane, one of at most 8, is in an operation from now on. Some stores,
 * so cheap enough for each; without a session, or with an older ckptd, nothing. By one thread at a
 * time, and as ckpt_phase. Of a rank on another node than its ckptd nothing is seen. */
void ckpt_note_call(struct ckpt *ckpt, const struct ckpt_doing *doing);
void ckpt_note_end(struct ckpt *ckpt, uint64_t number);
void ckpt_note_lane(struct ckpt *ckpt, const struct ckpt_doing *doing);
/* How many saves of the run, as it was described, ckptd's disk has room for, where no rule of ckptd
 * removes older ones (its key retention.keep_last is one). -1: a rule does, or ckptd has not said.
 */
int64_t ckpt_room_saves(const struct ckpt *ckpt);
/* Of the handle that opened the attempt: hours until ckptd's disk was full then, at the rate of its
 * last saves less what was removed. INFINITY: it did not fill; -1: ckptd had no rate yet. */
double ckpt_hours_to_full(const struct ckpt *ckpt);

/* Of the line that ckpt_error() gives, what to do about it; "": nobody knows. */
const char *ckpt_error_hint(void);

/* The structs of version 2 begin with `size`, to be set to sizeof the struct: libckpt reads, and
 * fills, as much of it as the program knows. Those that libckpt makes have it set. */

/* struct ckpt_tensor with room for 8 dimensions. dims 0 is a scalar: one element. In a list each
 * has the size of the first. dtype: any name of safetensors up to 8 bytes an element, also "BOOL",
 * "F8_E4M3", "U16". */
struct ckpt_array {
    uint32_t size, dims;
    const char *name, *dtype;
    uint64_t shape[CKPT_ARRAY_DIMS_MAX];
    uint64_t offset[CKPT_ARRAY_DIMS_MAX];
    uint64_t extent[CKPT_ARRAY_DIMS_MAX];
    void *data; /* of a description it may be NULL where the caller copies (ckpt_save_place) */
};
/* ckpt_describe with these. A rank may list a tensor several times, with different boxes of it, as
 * a strided or uneven cut leaves them; then the boxes of all ranks tile it, equal ones being
 * replicas. Such a tensor is stored as its boxes: ckpt_metadata lists each, by the name
 * NAME@OFFSETS ("w@4,0", with the box's extents for a shape). Loads by NAME, in any cut, put them
 * together. */
int ckpt_describe_arrays(struct ckpt *ckpt, uint64_t attempt, const struct ckpt_array *arrays,
                         uint32_t num_arrays);
/* Before a description: this rank compares, before each save, what it holds with the ranks that
 * hold the same, and begins no save where they differ. When all ranks say so each replica saves a
 * part of a slice, which is faster where a few tensors are most of the bytes. A rank that says so
 * and does not compare gets a mixture of its replicas. */
void ckpt_compares_replicas(struct ckpt *ckpt);
/* The bytes of described tensor `index` are at `data` from now on; no other rank has to know. Not
 * while a save is open. */
int ckpt_move(struct ckpt *ckpt, uint32_t index, void *data);

/* ckpt_load of any arrays, described or not, each any number of times. Needs no attempt. */
struct ckpt_load_request {
    uint32_t size, num_arrays;
    int64_t step, below_step; /* as in ckpt_load_options; below_step 0: no limit */
    uint64_t attempt;
    const struct ckpt_array *arrays;
};
int ckpt_load_arrays(struct ckpt *ckpt, const struct ckpt_load_request *request,
                     struct ckpt_loaded **out);

/* What a checkpoint holds, before anything is described. step: CKPT_NEWEST, or one; attempt 0: the
 * newest that has it. Free with ckpt_metadata_free. */
struct ckpt_tensor_info {
    uint32_t size, dims;
    const char *name, *dtype;
    uint64_t shape[CKPT_ARRAY_DIMS_MAX];
    uint64_t digest[2]; /* of its contents, however they are cut: proto/base/checksum.h */
};
struct ckpt_metadata {
    uint32_t size, num_tensors;
    struct ckpt_info info;                  /* in_memory is not known here: false */
    const struct ckpt_tensor_info *tensors; /* by name */
    const char *state_json, *identity_json, *config_json, *data_json, *mesh_json;
    const char *damage; /* why it is in quarantine; "": it is not */
};
int ckpt_metadata(struct ckpt *ckpt, int64_t step, uint64_t attempt, struct ckpt_metadata **out);
void ckpt_metadata_free(struct ckpt_metadata *metadata);

/* The checkpoints of the handle's run, or with all_runs of every run that the user may see, newest
 * first within each. Free with ckpt_list_free. */
struct ckpt_list_entry {
    uint32_t size;
    bool pinned, read_back; /* read back: whole, from the disk, and every checksum was right */
    struct ckpt_info info;
    const char *damage, *pin_note; /* "": none */
};
struct ckpt_list {
    uint32_t size, num_entries;
    const struct ckpt_list_entry *entries;
};
int ckpt_list(struct ckpt *ckpt, bool all_runs, struct ckpt_list **out);
void ckpt_list_free(struct ckpt_list *list);
/* Weights that flow: the newest checkpoint of the handle's run behind (attempt, step), ordered by
 * attempt, then step, that is whole; 0, 0: of all. Looks five times a second until there is one,
 * for timeout_ms; 0: once. What it gives is committed, so it is never half there; a caller that
 * passes what it got last never goes back, and skips what was committed and passed meanwhile.
 * A run that has not begun, and a ckptd that went away, are waited for. CKPT_TIMEOUT: none came. A
 * checkpoint may be removed before it is loaded: then the load is CKPT_NOT_FOUND; ask again. */
int ckpt_newer(struct ckpt *ckpt, uint64_t attempt, uint64_t step, uint32_t timeout_ms,
               struct ckpt_info *out);
/* Keeps a checkpoint of the run from being pruned, and says why; or, with note NULL, no longer. */
int ckpt_pin(struct ckpt *ckpt, uint64_t step, uint64_t attempt, const char *note);

/* Bytes objects: bytes by name and of any length, such as the place of a data loader, saved and
 * committed with the arrays. Each is one array of the description, with room to grow:
 *
 *     struct ckpt_object object = {.size = sizeof object, .name = "loader"};
 *     object.room = ckpt_object_room(bytes);
 *     object.memory = malloc(object.room);
 *     ckpt_object_describe(&object, &arrays[n]);    -- then ckpt_describe_arrays
 *     ckpt_object_set(&object, data, bytes);        -- before each save, also of another length
 *
 * ckpt_object_set is CKPT_SPACE when the bytes have outgrown the room. Ranks have objects of their
 * own, by different names. Stored is a U8 tensor "object:NAME": ckpt_object_name gives NAME
 * of such a one of ckpt_metadata, NULL of another. ckpt_object_load reads one, and
 * ckpt_object_free frees what it gives; CKPT_NOT_FOUND: no such checkpoint, or it has none of that
 * name. ckpt_object_get finds the bytes in memory that a load has filled as an array. */
struct ckpt_object {
    uint32_t size;
    const char *name;
    void *memory; /* the caller's, of `room` bytes; as the data of an array is */
    uint64_t room;
    char stored[192]; /* libckpt's own */
};
uint64_t ckpt_object_room(uint64_t bytes);
int ckpt_object_describe(struct ckpt_object *object, struct ckpt_array *out);
int ckpt_object_set(struct ckpt_object *object, const void *data, uint64_t bytes);
const char *ckpt_object_name(const struct ckpt_tensor_info *tensor);
int ckpt_object_get(const struct ckpt_object *object, const void **out, uint64_t *out_bytes);
int ckpt_object_load(struct ckpt *ckpt, int64_t step, uint64_t attempt, const char *name,
                     void **out, uint64_t *out_bytes);
void ckpt_object_free(void *data);

/* The caller copies, for example from a device: instead of ckpt_save_copy(save, index)
 *
 *     struct ckpt_place at = {.size = sizeof at};
 *     while ((error = ckpt_save_place(save, index, at.from_byte + at.bytes, &at)) == 0 &&
 *            at.bytes > 0) {
 *         ... copy at.bytes, from byte at.from_byte of the tensor's slice on, to at.to ...
 *         ckpt_save_announce(save, &at);
 *     }
 *
 * ckpt_save_place waits for room as ckpt_save_copy does, and gives the first piece at or behind a
 * byte of the slice; bytes 0: there is none. Any number may be asked for before the first is
 * announced, in any order, as long as the image is no window (ckpt_save_is_window): there each is
 * announced before the next is asked for. Each is announced once, when its bytes are there. The
 * address is good until the save ends. Errors are kept, as those of ckpt_save_copy. */
struct ckpt_place {
    uint32_t size, index;
    void *to;
    uint64_t from_byte, bytes;
    uint64_t image_byte; /* libckpt's own */
};
int ckpt_save_place(struct ckpt_save *save, uint32_t index, uint64_t from_byte,
                    struct ckpt_place *out);
int ckpt_save_announce(struct ckpt_save *save, const struct ckpt_place *place);
bool ckpt_save_is_window(const struct ckpt_save *save);
/* And where other ranks hold the slice, too, before ckpt_save_end: the bytes of it that are
 * compared (ckpt_describe), of each rank that holds it. ckpt_save_sample gives their places,
 * *out_count of them; 0: none is compared. ckpt_save_sampled takes the bytes, those of one place
 * behind those of the other. */
#define CKPT_SAMPLE_MAX 16          /* places, */
#define CKPT_SAMPLE_BYTES_MAX 16384 /* and bytes of each */
struct ckpt_span {
    uint64_t from_byte, bytes;
};
int ckpt_save_sample(struct ckpt_save *save, uint32_t index, struct ckpt_span *out,
                     uint32_t *out_count);
int ckpt_save_sampled(struct ckpt_save *save, uint32_t index, const void *data);
/* Before ckpt_save_end, once a tensor: the digest (struct ckpt_tensor_info) of what ckpt_save_place
 * gives places for, made where it is copied from. Where ckptd finds another one in its memory the
 * save is not committed: ckpt_save_wait is CKPT_ABORTED and names the tensor. A ckptd that is
 * older, or reached over a network, does not compare. */
int ckpt_save_digest(struct ckpt_save *save, uint32_t index, const uint64_t digest[2]);

/* For who copies between ckptd's memory and a device: `came` is called when ckptd's memory was
 * mapped here, so that the device learns of it once (cudaHostRegister), `goes` before it is
 * unmapped: nothing may be copied from or to it any more. Memory of images is writable, and stays,
 * mostly as long as the handle. Memory of a load in progress is ckptd's, mapped read-only, or
 * libckpt's own, writable, where ranks may write to ckptd's. Loads of the handle then copy by
 * `copy` where it is not NULL, so their arrays may lie on a device; it may only post the copy.
 * `copied` waits for all that was posted, and is called before what is copied goes. Both return 0
 * or an error of this header, which the load returns. All are called on threads that call libckpt
 * with this handle. From now on, what is mapped already included; NULL: no longer. CKPT_INVALID:
 * of another size.
 * memory_node: 1 + the NUMA node that the device is on, where ckptd then places the images of an
 * attempt that is described from now on; 0: any. */
struct ckpt_memory_hooks {
    uint32_t size;
    void (*came)(void *user, void *at, uint64_t bytes, bool is_writable);
    void (*goes)(void *user, void *at, uint64_t bytes);
    int (*copy)(void *user, void *to, const void *from, uint64_t bytes);
    int (*copied)(void *user);
    void *user;
    uint32_t memory_node; /* a program of before does not have it */
};
int ckpt_hook_memory(struct ckpt *ckpt, const struct ckpt_memory_hooks *hooks);

/* ckpt_save_wait until the save survives that much. "accepted" is reached when every rank has
 * called ckpt_save_end: then the end of all ranks does not undo it. CKPT_INVALID: this ckptd never
 * reaches the level. */
enum ckpt_level {
    CKPT_LEVEL_ACCEPTED = 1,   /* in ckptd's memory */
    CKPT_LEVEL_LOCAL = 2,      /* committed, on the disks of its node */
    CKPT_LEVEL_REPLICATED = 3, /* on those of more than one node */
    CKPT_LEVEL_BUCKET = 4
};
int ckpt_save_wait_for(struct ckpt *ckpt, uint64_t step, enum ckpt_level level,
                       uint32_t timeout_ms);

/* Tells ckptd that this rank could not save `step`, and why: for a save that failed before
 * ckpt_save_begin, or whose reason ckptd does not know. `ckpt-cli status` and `health` tell it
 * until the run commits. Any number of ranks may tell of a step, which counts once. CKPT_NOT_FOUND:
 * the run has not begun; CKPT_UNAVAILABLE, CKPT_TIMEOUT after 1 s: ckptd did not hear it. */
int ckpt_save_failed(struct ckpt *ckpt, uint64_t step, const char *reason);

#ifdef __cplusplus
}
#endif
#endif
