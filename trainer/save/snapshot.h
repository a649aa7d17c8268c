/* snapshot.h - the training state in ckptd: find the newest step, take an attempt, load, save,
 * wait.
 *
 * The state is what parallel.h lays out (parameters and both moments, each rank its shard) and the
 * small numbers of struct progress. With checkpoint.enable off every call does nothing and
 * succeeds.
 *
 * Errors. No connection at the start, a checkpoint of another model, or a newer attempt (ERR_STALE)
 * ends training. A save that fails, or finds no room (ERR_BUSY) or no ckptd, is logged and skipped,
 * unless checkpoint.required is set; the next save tries again. The trainer waits for the last
 * save.
 *
 * All calls but snapshot_poll, snapshot_phase, snapshot_asked, snapshot_recorded, snapshot_is_due
 * and the getters are collective: every rank makes them, in the same order, and gets the same
 * result. */
#ifndef HOLDFAST_TRAINER_SNAPSHOT_H
#define HOLDFAST_TRAINER_SNAPSHOT_H

#include "trainer/data/jumps.h"
#include "trainer/parallel/parallel.h"
#include "trainer/record/broken.h"
#include "trainer/record/outliers.h"

#include <signal.h>

/* The small part of the state. A checkpoint of step s has the values after s updates. */
struct progress {
    int64_t step;             /* updates made in the run */
    int64_t optimizer_update; /* updates applied to the moments */
    int64_t schedule_update;  /* position on the learning-rate curve */
    uint64_t next_sample;     /* global index; reading continues where the jumps lead from it */
    struct jumps jumps;       /* skipped samples */
    struct broken_steps broken;
    struct outliers outliers; /* statistics for finding outliers */
    uint64_t tokens;          /* trained on so far */
    double loss, grad_norm;   /* of the last step, unchanged: */
    uint64_t tokens_digest;   /* of struct step_result; 0: not known */
};

struct snapshot;

struct snapshot_options {
    struct config *config; /* must outlive the snapshot, as must mesh and state */
    const struct mesh *mesh;
    const struct state *state;
    struct data *data; /* a load sets its place */
    const struct model_table *model;
    struct kernels *kernels;
    struct history *history; /* set by a load, saved by rank 0; NULL: none */
    const char *environment; /* environment.h: description in checkpoints; NULL: none */
    /* Not 0: this rank was asked to stop. Until the first save, every wait for ckptd then ends with
     * ERR_ABORTED. If rank 0 sees it during a wait for a save, checkpoint.final_seconds begin. */
    const volatile sig_atomic_t *want_stop;
    /* The time of the request, as clock_seconds(); 0: none. NULL: not known. */
    double (*asked_at)(void);
    /* Called on the copy thread for operations passed to snapshot_post_copy(). NULL: no calls. */
    void (*note_copy)(void *user, const struct op *op, bool is_end);
    void *user;
};

struct snapshot_times {
    double attempt_seconds, load_seconds; /* of the start */
    uint64_t loaded_bytes;                /* this rank's */
    double save_seconds; /* training's waits for saves so far, without the last save */
    /* From the copy until it had checkpoint.durability, as rank 0 saw it; 0: none yet. */
    double longest_save_seconds;
    uint32_t num_saves;    /* number of those saves */
    uint64_t attempt;      /* of this start; 0: none */
    uint64_t from_attempt; /* the attempt that saved the loaded checkpoint; 0: nothing was loaded */
};

/* Connects. */
int snapshot_open(struct snapshot **out, const struct snapshot_options *options);
void snapshot_close(struct snapshot *snapshot);
const struct snapshot_times *snapshot_times(const struct snapshot *snapshot);

/* Finds the step that a load takes; -1: the run has none. With checkpoint.initial_load_path a run
 * without steps gets its step 0 here, if that is imported. Refuses a run that cannot continue from
 * it (ERR_MISMATCH: another model, or another canonical order) before it changes the run. Sets
 * training.numerics of the configuration. */
int snapshot_find_step(struct snapshot *snapshot, int64_t *out_step);
/* Takes an attempt of the run, once: ends other starts that train it, and allows saves. Without an
 * attempt the snapshot is a reader: it loads, and changes nothing. */
int snapshot_take(struct snapshot *snapshot);
bool snapshot_is_taken(const struct snapshot *snapshot);

/* Posts the copies of a save under way, as struct step_copies describes. */
bool snapshot_post_copy(struct snapshot *snapshot, uint32_t block, const struct op *op);
void snapshot_wait_copy(struct snapshot *snapshot, uint32_t block, struct lane *lane);

/* Fills state and *progress from the newest checkpoint that all ranks can load, skipping damaged
 * ones, or from checkpoint.load_step. A run without checkpoints starts from
 * checkpoint.initial_load_path. *out_loaded: false if there is neither. ERR_MISMATCH: another
 * model, or another canonical order. */
int snapshot_load(struct snapshot *snapshot, struct progress *progress, bool *out_loaded);

/* True if snapshot_load() will take only some weights (checkpoint.partial). Initialise the state as
 * a new model before. */
bool snapshot_begins_in_part(const struct snapshot *snapshot);

/* Records in the run's checkpoints of steps that are repeated. */
struct recorded {
    struct history losses; /* of the newest checkpoint */
    struct jumps jumps;    /* likewise */
    struct broken_steps broken;
    int64_t attempt; /* of the replayed step's own checkpoint; 0: none is known: */
    bool has_norm;
    double grad_norm;
    uint64_t tokens_digest; /* 0: not known */
    int64_t older_step;     /* the newest checkpoint before the loaded one; -1: none */
};
/* Rank 0 only. `loaded`: the loaded step. */
int snapshot_recorded(struct snapshot *snapshot, int64_t loaded, struct recorded *out);

/* The tensors of the state, compared by digests with those of a checkpoint. */
struct state_compared {
    uint32_t num, num_apart;
    char first_apart[128];
};
/* Call after an update: compares the state with that checkpoint. Rank 0 gets *out. */
int snapshot_compare_made(struct snapshot *snapshot, int64_t step, int64_t attempt,
                          struct state_compared *out);

/* Saves. Returns with async_mode "disabled" when durable, with "async" when copied, with
 * "async_with_pinned_mem" at once. The copy then continues as the step's program posts it. The
 * state may be read; each block may change only after snapshot_wait_copy(). An error means: stop
 * training. */
int snapshot_save(struct snapshot *snapshot, const struct progress *progress);
/* Call after each update of the state: waits for the rest of a copy in progress and logs its
 * result. An error means: stop training. */
int snapshot_copied(struct snapshot *snapshot);
/* Waits until the saves so far have ended, as before a load. An error means: stop training. */
int snapshot_settle(struct snapshot *snapshot);
/* Call after the last step was saved. With checkpoint.last_save_in_hf exports its weights to
 * checkpoint.export_folder, if that has no model yet. */
int snapshot_export(struct snapshot *snapshot, int64_t step);
/* True if a failed save has ended training (checkpoint.required). The last save is made anyway.
 * NULL: false. */
bool snapshot_must_stop(const struct snapshot *snapshot);
/* Call when some rank was asked to stop. *out: false if the grace time (grace.h) does not suffice
 * for the longest save of this start, after the step. */
int snapshot_has_time(struct snapshot *snapshot, bool *out);
/* Saves, tries again after a failure, and waits until the checkpoint is durable. ERR_ABORTED after
 * FINAL_TRIES errors that are not temporary, ERR_TIMEOUT after checkpoint.final_seconds. Does
 * nothing if this step is durable already; begins no save that cannot end in time. */
int snapshot_save_final(struct snapshot *snapshot, const struct progress *progress);
/* Call when the step begins: ckptd then shows it as this rank's step (doing.c). Not collective. */
void snapshot_begins_step(struct snapshot *snapshot, int64_t step);
/* Tells ckptd whether the next phase of training suffers from ckptd's work. Not collective. */
void snapshot_phase(struct snapshot *snapshot, bool is_busy);
/* Requests of `ckpt-cli stop` and `ckpt-cli save` to this rank: SWITCH_STOP, SWITCH_STOP_UNSAVED,
 * or SWITCH_SAVE until a save is begun, with pauses after one that was not. Also SWITCH_RENEW if
 * the rank has lost its ckptd, with pauses. Not collective. */
unsigned snapshot_asked(const struct snapshot *snapshot);
/* Call on all ranks when one has SWITCH_RENEW and no copy is in progress: connects to ckptd again
 * if it is back, so that requests reach the ranks before the next save. */
void snapshot_renew(struct snapshot *snapshot);
/* The newest step known to be durable; -1: none, or checkpoints are off. Not collective. */
int64_t snapshot_durable_step(const struct snapshot *snapshot);
/* Rank 0, after each step: true if a save is due with checkpoint.interval = "auto". Not
 * collective. */
bool snapshot_is_due(struct snapshot *snapshot, int64_t step);
/* Logs when a pending save has become durable or has failed. Rank 0 asks ckptd at most once a
 * second; other ranks do nothing. */
void snapshot_poll(struct snapshot *snapshot);

#endif
