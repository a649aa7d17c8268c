/* ckptd.h - what the files of the daemon share. Private to ckptd/.
 *
 * One thread, the service thread, owns every struct below unless a field says otherwise; events,
 * timers and jobs (loop.h) are how others tell it something and how it has blocking work done. So
 * nothing here needs a lock but the digests of an image (image.c).
 *
 * The life of a checkpoint, file by file: door (who may come in), session (attempts, ranks, slices,
 * rings), stage (announced ranges become written blocks), commit (decides), save (performs what
 * commit decides), publish (names, manifest), catalog (what exists), restore/ (leases, verified
 * reads). */
#ifndef HOLDFAST_CKPTD_H
#define HOLDFAST_CKPTD_H

#include "ckptd/catalog.h"
#include "ckptd/keep/ledger.h"
#include "ckptd/keep/scrub.h"
#include "ckptd/loop.h"
#include "ckptd/node/pace.h"
#include "ckptd/node/pool.h"
#include "ckptd/run/commit.h"
#include "proto/arena.h"
#include "proto/checksum.h"
#include "proto/ckpt.pb-c.h"
#include "proto/layout.h"
#include "proto/manifest.h"
#include "proto/report.h"
#include "proto/rpc.h"
#include "proto/shard.h"
#include "storage/storage.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SLOTS_PER_RANK 2u /* images of a session; when both are written, BeginSave is ERR_BUSY */
#define DURABILITY_LOCAL "local"  /* in answers: it is on the store's disk and synced */
#define JSON_BYTES_MAX (1u << 20) /* of each JSON field of a request; longer ones are refused */

/* ---- config.c ---- */

struct config {
    char config_file[256];
    char listen[128]; /* "unix:/path" */
    char store[512];
    char log[256];
    char access_uids[256], access_operators[256];
    int64_t pool_bytes, segment_bytes;
    char huge_pages[16];
    int64_t queue_depth, block_bytes, storage_threads;
    char engine[16];
    double usable_fraction;
    int64_t threads_workers, threads_rpc;
    int64_t limit_sessions, limit_loads, limit_runs, limit_checkpoints;
    int64_t limit_describe_ms, limit_connect_ms, limit_load_wait_ms, limit_lease_ms;
    int64_t limit_wait_ms, limit_drain_ms, limit_last_save_ms;
    char pace_io_priority[32], pace_cpu_affinity[256];
    int64_t pace_cpu_nice;
    int64_t pace_write_rate; /* bytes per second; 0: no limit */
    bool pace_quiet;
    int64_t pace_quiet_wait_ms;
    int64_t retain_last, retain_every, retain_within, retain_best;
    char retain_metric[64], retain_order[8];
    bool retain_most;
    char metrics_file[256];
    int64_t metrics_every_ms;
    int64_t scrub_rate, scrub_period, scrub_start_ms; /* bytes per second, 0: none; seconds */
};
/* Defaults, then the file named by --config, then the other arguments. ERR_INVALID. With --help,
 * *out_help is set and nothing else is checked. */
int config_load(struct config *out, int argc, char **argv, bool *out_help);
void config_print_help(void);
/* Keeps this thread, and those that it starts from now on, on pace.cpu_affinity. ERR_INVALID. */
int config_pin(const struct config *config);
/* Is it one of access.uids or access.operators? Of the latter? */
bool config_allows_uid(const struct config *config, uid_t uid);
bool config_is_operator(const struct config *config, uid_t uid);

/* ---- image.c ---- */

struct service;
struct run;
struct save;
struct stage;
struct session;
struct checkpoint;

enum image_state {
    IMAGE_SPARE,    /* kept for its session's next save */
    IMAGE_STAGING,  /* a save in work */
    IMAGE_READING,  /* being filled from the store */
    IMAGE_RESIDENT, /* equal to a shard of a committed checkpoint */
    IMAGE_ENDING    /* nobody wants it; waits for the I/O under way */
};

/* What a pass over the chunks of an image does with each. */
enum image_pass {
    PASS_STAGE,   /* hash what the rank announced, add the digests; beside it, write */
    PASS_REWRITE, /* write again what was hashed before */
    PASS_READ,    /* read, then hash */
    PASS_VERIFY   /* hash what is in memory */
};

struct image;
/* The unit of hashing and I/O: config block_bytes of the image. Kept small: there is one per block
 * of the pool. */
struct chunk {
    struct image *image;
    uint32_t index;       /* in the file; a window's chunks take the next one when theirs is done */
    atomic_uint steps;    /* under way; the one that ends last reports the chunk */
    bool is_written;      /* PASS_STAGE: its bytes are in the file */
    bool is_asked;        /* a READ or VERIFY is to take it, and has not yet */
    bool is_proven;       /* PASS_READ: its bytes are in memory, and are what the table says */
    uint64_t unannounced; /* data bytes that the rank has yet to announce */
    struct job job;
    struct event reported;
    struct storage_request request;
    /* gate.c's */
    struct chunk *next_held;
    int64_t stamp;
    bool is_paced;   /* it counts as under way there */
    bool is_awaited; /* its report wakes the service thread */
};

/* The bytes of a shard in memory: segments, and the machinery that moves and proves them. A window
 * has fewer segments than the file needs, and fewer chunks: both are rings over the file, of which
 * only the part from the first unwritten chunk on is in memory. It is never resident. Passed
 * between the service thread and the workers by jobs; a worker touches only its chunk, the sums
 * of its blocks, and the digests under `mutex`. */
struct image {
    struct service *service;
    struct image *next, *prev; /* service->images */
    enum image_state state;
    struct session *session; /* whose slot it is, or NULL */
    uint32_t slot;
    struct checkpoint *checkpoint; /* READING and RESIDENT: of which it holds shard `shard` */
    uint32_t shard;
    uint32_t readers;    /* loads, and the pass; not reclaimed while > 0 */
    uint64_t table_hash; /* of its checksum table, as the manifest has it */
    bool in_pass;        /* READ or VERIFY */
    int64_t pass_begun_ms;
    bool had_writer;     /* when the pass began */
    bool verified;       /* by a pass, with no writer since */
    uint64_t read_until; /* loads up to this number were open when its bytes came from the store */
    bool in_hand; /* its rank may still copy into it, also when the save is over: lent to nobody */
    bool is_window;
    uint32_t *segments, *generations; /* the latter as its rank was told */
    uint32_t num_segments, max_segments;

    struct shard_geometry geometry;
    uint64_t identity;    /* of the block checksums */
    uint64_t *sums;       /* per block */
    uint32_t num_chunks;  /* of the file */
    uint32_t num_missing; /* of them, still to be read; not 0: those that are there are proven */
    struct chunk *chunks; /* by image_chunk() */
    uint32_t num_rooms;   /* chunks in memory at once */
    enum image_pass pass;
    struct storage_object *object;
    uint32_t busy;          /* chunks under way; service thread */
    atomic_uint unfinished; /* of them, not yet reported */
    atomic_bool stopped;    /* what has not begun is skipped: hashing, and transfers */
    struct fault fault;     /* first of the pass */
    /* After every report of a chunk, on the service thread. */
    void (*advance)(struct image *image, struct chunk *chunk);

    struct job job;             /* before and after a READ or VERIFY pass */
    struct shard_wait *waiting; /* for that pass; service thread */
    uint32_t num_asked;         /* chunks that are asked */
    uint64_t asked_bytes;       /* since the pass began */
    /* PASS_READ: what may be in memory; of a part only these chunks (restore/part.c). */
    uint32_t first_chunk, end_chunk;
    uint8_t *stored_table; /* as it is in the file, from a multiple of STORAGE_ALIGN */

    /* PASS_STAGE */
    struct stage *stage;
    const struct shard_tensor *tensors; /* borrowed from the group */
    const struct tensor_meta *metas;    /* of the layout table */
    uint32_t num_tensors;
    pthread_mutex_t mutex;
    struct digest *digests; /* per tensor; guarded by mutex while chunks are under way */
};

/* Arrays and chunks for a file of this geometry; no segments. ERR_MEMORY; ERR_SPACE: it has 2^32
 * chunks or more. */
int image_new(struct image **out, struct service *service, const struct shard_geometry *geometry);
/* The same with at most `max_segments` at once: a window where the file needs more. */
int image_new_window(struct image **out, struct service *service,
                     const struct shard_geometry *geometry, uint32_t max_segments);
/* Gives back the segments and frees all. Nothing may be under way. */
void image_free(struct image *image);
uint32_t image_segments_needed(const struct service *service, uint64_t file_bytes);
/* Takes the segments it needs for `run`, reclaiming memory that nobody uses. ERR_BUSY. */
int image_take_segments(struct image *image, const struct run *run);
/* Frees an image that has no session, no checkpoint, no reader, no writer and no I/O; returns true
 * then. */
bool image_settle(struct image *image);
/* Will an open load ask for it? */
bool image_is_wanted(const struct image *image);
/* Its rank copies no more into it. */
void image_let_go(struct image *image);
/* Copy between private memory and the image, across segments. */
void image_put(struct image *image, uint64_t offset, const void *data, uint64_t bytes);
void image_get(const struct image *image, uint64_t offset, void *out, uint64_t bytes);
void image_chunk_range(const struct image *image, uint32_t index, uint64_t *out_start,
                       uint64_t *out_end);
bool image_chunk_is_tail(const struct image *image, uint32_t index); /* touches the table */
/* Of a window only while the chunk is in it. */
struct chunk *image_chunk(const struct image *image, uint32_t index);
uint32_t image_tail_chunks(const struct service *service, const struct shard_geometry *geometry);
/* Are its bytes in memory? Proven or not: of what a save left they always are. */
bool image_has_chunk(const struct image *image, uint32_t index);
/* Is what it has of the checksum table in that chunk the same as in `table`? */
bool image_has_table(const struct image *image, uint32_t index, const uint8_t *table);
/* Starts chunk `index` in the current pass; its report comes later. */
void image_start_chunk(struct image *image, uint32_t index);
/* Writes a chunk whose bytes are final, without hashing. */
void image_write_chunk(struct image *image, uint32_t index);
/* Writes all chunks to a new file, without hashing. */
void image_rewrite(struct image *image);
/* The checksum table as it belongs into the file, in fresh memory (to be freed); *out_hash is what
 * the manifest keeps. Worker or service thread, when every block was hashed. */
int image_make_table(uint8_t **out, uint64_t *out_bytes, uint64_t *out_hash,
                     const struct image *image);
/* After VERIFY: do the sums equal the table in the image, and the table the manifest? */
int image_check_table(const struct image *image, uint64_t table_hash);
/* From now on it is the checkpoint's image of this shard. ERR_MEMORY. */
int image_enter_checkpoint(struct image *image, struct checkpoint *checkpoint, uint32_t shard);
/* Leaves the checkpoint; becomes SPARE of its session or goes. */
void image_leave_checkpoint(struct image *image);
/* Leaves it on the way to image_free(). */
void image_detach(struct image *image);

/* ---- session.c ---- */

struct parked { /* a call that waits; its message lives as long as the call */
    struct parked *next;
    struct rpc_call *call;
    const ProtobufCMessage *message;
};

struct group_rank {
    struct slice *slices;
    uint32_t count;
    bool described;
    struct rpc_call *call; /* waits for the others; NULL otherwise */
    uint64_t session;      /* token of its last session, which may be over; 0: none yet */
    struct save_item *items;
    uint32_t num_items;
    struct shard_tensor *tensors;
    uint32_t num_tensors;
    struct shard_geometry geometry;
    uint32_t image_segments; /* fewer than the file needs: its images are windows */
};

/* The slices of all ranks of one attempt, and the plan made of them. */
struct group {
    struct run *run;
    uint64_t attempt;
    uint32_t world_size, num_described;
    uint32_t num_windows; /* ranks that save through a window */
    bool planning, planned;
    bool abandoned; /* a new attempt came while it was planned: free when the job ends */
    struct layout_table *table;
    struct group_rank *ranks;
    struct timer timer; /* describe deadline */
    struct job job;
    struct fault fault;
};

/* What the manifest says about an attempt; durable in "<run>/attempts/0003". */
struct attempt {
    uint64_t number;
    uint32_t world_size;
    char *config_json, *identity_json, *mesh_json, *data_json;
    char code_version[64];
    uint64_t parent_step, parent_attempt; /* what it loaded; attempt 0: nothing */
    bool parent_is_final;                 /* a save has begun: what is loaded later is no parent */
    bool parent_kept;                     /* it is durable */
};

/* Blocking work on an attempt's files; one at a time per run. */
struct attempt_work {
    struct job job;
    bool busy;
    uint64_t number;
    char *text;              /* to be written */
    struct attempt *attempt; /* read back */
    struct fault fault;
};

struct run {
    struct run *next;
    char name[RUN_NAME_MAX + 1];
    uint64_t tag; /* number of the run within this process, from 1 */
    struct service *service;
    struct commit machine;
    struct attempt *attempt; /* the open one, or NULL */
    struct group *group;
    struct parked opening;     /* call NULL: none */
    struct parked *describing; /* wait until the attempt is read back */
    struct attempt_work take, resume, parent;
    struct pruning *pruning;        /* under way, or NULL */
    bool retain_again;              /* there was a commit meanwhile */
    uint64_t adopting;              /* the attempt of keep/admit.c's work; 0: none */
    struct fault unreadable;        /* why the start could not read it; code 0: it could */
    uint64_t newest_attempt;        /* durable; from the store */
    struct checkpoint *checkpoints; /* newest first */
    struct save *saves;
    struct scrub_cursor scrubbed;
};

struct connection;
struct session {
    uint64_t token; /* random; 0: slot not in use */
    struct service *service;
    struct run *run;
    bool is_rank;
    uint64_t attempt;
    uint32_t rank;
    struct connection *connection; /* its end is the session's end */
    struct timer timer;            /* until the connection comes */
    uint32_t num_loads;
    /* Ranks only. */
    int control_fd, event_fd;
    struct arena_control *control;
    struct watch watch;  /* event_fd */
    uint64_t num_begins; /* BeginSaves: the newest is the one that counts */
    struct image *slots[SLOTS_PER_RANK];
    struct save *slot_saves[SLOTS_PER_RANK]; /* the save a STAGING image belongs to */
    uint64_t slot_ids[SLOTS_PER_RANK]; /* the save that began there last, also when it is over */
};

int session_table_open(struct service *service);
void session_table_close(struct service *service);
/* ERR_NOT_FOUND. */
int session_find(struct session **out, struct service *service, uint64_t token);
/* ERR_BUSY. A session without a run's rank serves loads. */
int session_new(struct session **out, struct service *service, struct run *run);
void session_end(struct session *session, const char *why);
void session_drain(struct session *session);
/* The rank is done with the image of `save`; 0: with all. */
void session_let_go(struct session *session, uint64_t save);
bool session_may_map(const struct session *session, uint32_t segment, bool writable);
/* The rank sessions of a run's attempts before `attempt`. */
void session_end_older(struct run *run, uint64_t attempt);
void session_drain_run(struct run *run);
bool session_any_rank(const struct service *service); /* is one described, and has not gone? */
void session_describe(struct service *service, struct rpc_call *call,
                      const Holdfast__V1__DescribeRequest *request);
/* Takes slices over from a message. ERR_INVALID, ERR_MEMORY. */
int session_take_slices(struct slice **out, Holdfast__V1__Slice *const *slices, size_t count);
void group_free(struct group *group);

/* ---- attempt.c ---- */

void attempt_open(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__OpenAttemptRequest *request);
/* Makes the newest attempt known again after a restart, then takes the call up once more. True when
 * the call waits for that. */
bool attempt_resume(struct run *run, struct rpc_call *call,
                    const Holdfast__V1__DescribeRequest *request);
/* Performs the actions of a run's machine; called after every commit_*() call. */
void run_perform(struct run *run, const struct commit_actions *actions);
/* Remembers what the attempt loaded; durably, when it saves. */
void attempt_set_parent(struct run *run, uint64_t step, uint64_t attempt);
void attempt_keep_parent(struct run *run);
void attempt_free(struct attempt *attempt);
/* A JSON object of a request, "" for {}; json_decref() it. ERR_INVALID names the field. */
struct json_t;
int attempt_read_object(struct json_t **out, const char *text, const char *field);

/* ---- stage.c ---- */

struct interval {
    uint64_t start, end;
};

/* One rank's part of a save: from announced ranges to a durable file. */
struct stage {
    struct save *save; /* NULL: this rank has not begun */
    uint32_t rank;
    struct session *session; /* NULL when the rank has gone */
    uint32_t slot;
    struct image *image;
    struct interval *announced; /* sorted, disjoint, merged */
    uint32_t num_announced, max_announced;
    uint64_t unannounced;
    uint32_t unwritten;          /* chunks */
    uint32_t num_tail, unhashed; /* chunks that touch the table; of them, with data to be hashed */
    uint32_t released;           /* of a window: leading chunks that are written and have left it */
    bool ended, created, tabling, tabled, syncing, durable, rewritten, stopping, removing;
    bool has_job;                     /* `job` is under way; there is one at a time */
    uint64_t header_hash, table_hash; /* as the manifest has them */
    struct fault fault;               /* the first */
    struct fault job_fault;           /* of the job, set by the worker */
    struct job job;
    struct storage_request sync;
    struct event synced;
};

int stage_begin(struct stage *stage, struct save *save, struct session *session, uint32_t slot);
void stage_entry(struct session *session, const struct arena_entry *entry);
/* Stops the I/O and removes the file; save_stage_stopped() is called when it is done. */
void stage_stop(struct stage *stage);

/* ---- save.c ---- */

struct save_waiter {
    struct save_waiter *next;
    struct rpc_call *call;
    struct save *save;
    struct timer timer;
};

struct save {
    struct save *next;
    struct service *service;
    struct run *run;
    struct group *group;
    uint64_t id, step, attempt;
    char nonce[33];
    char dir[STORAGE_KEY_MAX];
    char *state_json;
    struct stage *stages; /* per rank */
    uint32_t world_size;
    uint32_t num_begun, num_stopped; /* stages */
    bool discarding;
    bool urgent; /* somebody waits for it: gate.c holds nothing of it back */
    struct save_waiter *waiters;
    struct job job;
    struct fault fault;
    enum commit_outcome outcome;
    struct manifest_summary summary;
    uint64_t manifest_hash;        /* of the text that was published */
    struct checkpoint *checkpoint; /* its entry in the catalog, until it is committed */
    struct digest *digests;
    char content[CHECKSUM_SHA256_HEX]; /* one hash of the names and digests of all tensors */
    struct repeat repeat;
    /* The checkpoint before it when ckptd has not seen its digests yet; attempt 0: it has. */
    struct {
        uint64_t step, attempt;
        char content[CHECKSUM_SHA256_HEX];
    } before;
    uint64_t bytes;
    struct ledger_promise promise; /* of the disk, not taken yet */
    int64_t begun_ms, ended_ms, durable_ms, named_ms;
};

void save_wait(struct service *service, struct rpc_call *call,
               const Holdfast__V1__WaitSaveRequest *request);
void save_abort(struct service *service, struct rpc_call *call,
                const Holdfast__V1__AbortSaveRequest *request);
void save_identity(struct shard_identity *out, const struct save *save, uint32_t rank);
struct save *save_find(struct run *run, uint64_t id); /* or NULL */
/* A save that does not fit is over before it began; what WaitSave says of it is this thread's last
 * error. */
void save_refuse(struct run *run, uint64_t step, uint64_t attempt);
/* It is over: nothing of it is under way. */
void save_free(struct save *save);
/* From stage.c: */
void save_stage_ended(struct stage *stage);
void save_stage_durable(struct stage *stage);
void save_stage_failed(struct stage *stage, const char *reason);
void save_stage_stopped(struct stage *stage);
/* From run_perform(): */
void save_perform(struct run *run, const struct commit_action *action);
struct failure { /* of a save that is over; the newest FAILURES_MAX are kept */
    char run[RUN_NAME_MAX + 1];
    uint64_t step, attempt;
    char reason[512];
};
#define FAILURES_MAX 256u

/* ---- begin.c ---- */

/* Gives a new session the images of its first saves while memory is free and ready; appends their
 * segments to `out`, which has room for SLOTS_PER_RANK images, and returns how many. */
uint32_t save_lend_ahead(uint32_t *out, struct session *session);
/* Memory that is not ready is made so, before somebody waits for it: of the pool at the start; free
 * memory that the ranks of an attempt had, when they have gone. */
void save_renew(struct service *service);
void save_disown(struct service *service, struct pool_owner owner);
void save_begin(struct service *service, struct rpc_call *call,
                const Holdfast__V1__BeginSaveRequest *request);
/* Memory came back, a save or a session ended: BeginSave calls that wait may go on. */
void save_begin_wake(struct service *service);
void save_begin_close(struct service *service); /* answers those that wait */

/* ---- gate.c ---- */

/* Chunks that are ready and wait for their time, oldest first. */
struct gate {
    struct pace pace;
    struct chunk *first, *last;
    uint32_t num_held, in_flight, num_started;
    bool busy; /* some rank was, at looked_ms */
    int64_t looked_ms;
    struct timer timer;
};

void gate_init(struct service *service);
/* image_start_chunk for a stage, when it is time. */
void gate_start_chunk(struct image *image, uint32_t index);
/* After the report of any chunk of a stage. */
void gate_chunk_ended(struct chunk *chunk);
/* Forgets what waits of an image. */
void gate_drop(struct image *image);
/* A rank woke us: it may have become quiet. */
void gate_phase_changed(struct service *service);
/* Something changed that lets saves go at once: draining, an attempt that is being opened. */
void gate_hurry(struct service *service);
/* Somebody waits for this save, from now on. */
void gate_hurry_save(const struct save *save);
/* Somebody waits for memory. */
void gate_hurry_all(struct service *service);
/* How many ranks announced a busy phase; they will tell of its end. */
uint32_t gate_num_busy(const struct service *service);

/* ---- publish.c ---- */

/* Both end with commit_names_synced, commit_published. */
void publish_sync_names(struct save *save);
void publish_manifest(struct save *save);
/* The committed checkpoint that this save's digests are compared with, or NULL. */
struct checkpoint *publish_before(const struct save *save);

/* ---- restore/ ---- */

/* file.c: the file of a committed shard. Block; any thread. */
int file_geometry(struct shard_geometry *out, const struct manifest *manifest, uint32_t shard);
/* ERR_CORRUPT when it has another size. */
int file_open(struct storage_object **out, struct storage *storage,
              const struct manifest_summary *summary, uint32_t shard, uint64_t want_bytes);
/* The table's whole pages, proven, in fresh memory (to be freed). ERR_CORRUPT. */
int file_read_table(uint8_t **out, struct storage *storage, struct storage_object *object,
                    const struct shard_geometry *geometry, uint64_t table_hash,
                    const struct manifest_summary *summary, uint32_t shard);
/* Is `sum` what that table has for the block? ERR_CORRUPT. */
int file_check_block(const uint8_t *table, const struct shard_geometry *geometry, uint64_t block,
                     uint64_t sum, const struct manifest_summary *summary, uint32_t shard);

struct load {
    uint64_t number; /* 0: slot not in use */
    struct service *service;
    struct session *session;
    struct checkpoint *checkpoint;
    struct load_shard {
        struct image *held;
        bool wanted;                      /* by its plan, and not released yet */
        uint32_t first_range, num_ranges; /* of it, in `ranges` */
    } * shards;                           /* per shard of the checkpoint */
    uint32_t *plan;                       /* the shards that it wanted first, ascending */
    uint32_t num_planned;
    struct chunk_range *ranges; /* what it wanted of them; ascending and apart within a shard */
    uint32_t next;              /* of the plan: what ahead.c looks at next */
    struct timer timer;         /* lease */
};

int restore_open(struct service *service);
void restore_close(struct service *service);
void restore_open_load(struct service *service, struct rpc_call *call,
                       const Holdfast__V1__OpenLoadRequest *request);
void restore_load_shard(struct service *service, struct rpc_call *call,
                        const Holdfast__V1__LoadShardRequest *request);
void restore_release_shard(struct service *service, struct rpc_call *call,
                           const Holdfast__V1__ReleaseShardRequest *request);
void restore_close_load(struct service *service, struct rpc_call *call,
                        const Holdfast__V1__CloseLoadRequest *request);
void restore_end_session(struct session *session); /* ends its loads */
bool restore_lends(const struct session *session, uint32_t segment);
/* Memory came back, or something else may be read or proven now: calls that wait may go on. */
void restore_wake(struct service *service);

/* ---- door.c ---- */

struct connection {
    struct connection *next;
    struct service *service;
    int fd;
    struct watch watch;
    struct session *session;
    struct image *left[SLOTS_PER_RANK]; /* in hand of a rank whose session is over */
    bool parted;
    struct timer timer; /* until the first request */
    size_t received;
    struct arena_request request;
};
#define RPC_CONNECTIONS_BESIDE 64u /* of gRPC, beside one for each session: tools */
struct door;
int door_open(struct service *service);
/* recvmsg.c. A sanitizer has a recvmsg, too: the linker takes ours for this call's sake. */
void recvmsg_take_over(void);
void door_close(struct service *service);
/* May that user, who has come in, remove, free and add checkpoints? */
bool door_is_operator(const struct service *service, uid_t uid);
void door_drop(struct connection *connection);
/* We end the session, not the peer: the connection stays until the peer hangs up when it holds
 * images in `left`. */
void door_part(struct connection *connection);

/* ---- server.c ---- */

/* Everything. */
struct service {
    const struct config *config;
    struct loop *loop;
    struct storage *storage;
    struct pool *pool;
    struct rpc_server *rpc;
    struct door *door;
    uint64_t boot_id;
    char arena_path[160];
    char socket_path[128];
    char *store_path, store_id[40]; /* of its directory; NULL, "": it is none */
    int64_t opened_ms;
    atomic_bool drain_asked;
    bool draining;
    bool takes_last_saves; /* while draining: of the ranks that are connected */
    int64_t drain_until_ms, last_saves_until_ms;
    struct event drain_event;
    struct timer drain_timer;
    char offline[512];  /* why nothing is saved any more; "" normally */
    struct fault fault; /* why it gave up */
    struct run *runs;
    uint32_t num_runs, num_checkpoints;
    struct session *sessions; /* config limit_sessions of them */
    uint64_t next_session;    /* row at which the search for a free one begins */
    struct load *loads;       /* config limit_loads of them */
    uint64_t next_load;
    struct image *images;
    struct shard_wait *starved; /* LoadShard calls that wait for segments, oldest first */
    struct timer wake_timer;
    uint32_t chunks_in_passes; /* READ and VERIFY */
    struct job renewal;        /* of the pool, a segment at a time */
    bool renews, renews_more;
    struct fault renewal_fault;   /* the pool cannot be filled */
    struct beginning *beginnings; /* BeginSave calls that wait for an image, oldest first */
    struct timer begin_timer;
    struct connection *connections;
    struct failure *failures; /* a ring */
    uint32_t num_failures;
    struct gate gate;
    struct ledger ledger;
    struct collecting *collecting; /* a Gc under way, or NULL */
    struct timer retain_timer;     /* until retention may begin */
    struct scrub *scrub;           /* NULL: off */
    struct metrics *metrics;       /* likewise */
    struct {                       /* since the start, and of the newest commit */
        uint64_t commits, failed, refused, unchanged, pruned, bytes_written, bytes_read;
        char run[RUN_NAME_MAX + 1];
        uint64_t step, attempt, bytes;
        double seconds, staging_seconds, sync_seconds, names_seconds, manifest_seconds;
        char unchanged_run[RUN_NAME_MAX + 1]; /* the newest save that equals the one before it */
        struct repeat unchanged_save, unchanged_before;
    } stats;
};

int service_open(struct service **out, const struct config *config);
/* Until the end. ERR_MEMORY: it gave up, and has said why in the log. */
int service_run(struct service *service);
/* From any thread, also again: stop taking work, finish what runs within limits.drain_ms, end. */
void service_drain(struct service *service);
/* Was the end asked for, by service_drain or service_give_up? Any thread. */
bool service_is_ending(const struct service *service);
void service_close(struct service *service);
/* Refuses with ERR_UNAVAILABLE while draining. */
int service_check_open(const struct service *service);
/* The same for the save of a rank that is connected, which may be its last. */
int service_check_last_saves(const struct service *service);
/* Refuses with ERR_IO while the store is offline. */
int service_check_online(const struct service *service);
void service_random(void *out, size_t bytes);
void service_go_offline(struct service *service, const char *why);
/* It cannot serve as it was told to: ends as by service_drain, and service_run says why. */
void service_give_up(struct service *service, const struct fault *fault);

/* ---- status.c ---- */

/* What Status answers, JSON to be freed; NULL without memory. */
char *service_status(const struct service *service);

/* ---- metrics.c ---- */

struct metrics;
int metrics_open(struct service *service);
void metrics_close(struct service *service); /* behind loop_close */

#endif
