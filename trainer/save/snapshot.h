/* snapshot.h - the training state in ckptd: look, take an attempt, load, save, wait.
 *
 * The state is what parallel.h lays out (parameters and both moments, each rank its shard) and the
 * small numbers of struct progress. With checkpoint.enable off every call does nothing and
 * succeeds.
 *
 * What stops training and what does not: no connection at the start, a checkpoint of another model,
 * a newer attempt (ERR_STALE) stop it. A save that fails, finds no room (ERR_BUSY) or no ckptd is
 * said and skipped, unless checkpoint.required; the next save tries again. The last save is waited
 * for.
 *
 * All calls but snapshot_poll, snapshot_phase, snapshot_asked, snapshot_recorded, snapshot_is_due
 * and the getters are collective: every rank makes them, in the same order, and gets the same
 * answer. */
#ifndef HOLDFAST_TRAINER_SNAPSHOT_H
#define HOLDFAST_TRAINER_SNAPSHOT_H

#include "trainer/data/jumps.h"
#include "trainer/parallel/parallel.h"
#include "trainer/record/outliers.h"

#include <signal.h>

/* The small part of the state. A checkpoint of step s holds it as it is after s updates. */
struct progress {
    int64_t step;             /* updates made in the run */
    int64_t optimizer_update; /* updates that the moments have seen */
    int64_t schedule_update;  /* position on the learning-rate curve */
    uint64_t next_sample;     /* global index; where the jumps lead on from it, reading goes on */
    struct jumps jumps;       /* samples that are left out */
    struct outliers outliers; /* what steps are measured by */
    uint64_t tokens;          /* trained on so far */
    double loss, grad_norm;   /* of the last step, as is: */
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
    struct history *history; /* a load sets it, a save of rank 0 has it; NULL: there is none */
    const char *environment; /* environment.h: what checkpoints say of it; NULL: nothing */
    /* Not 0: this rank was asked to stop. Until the first save every wait for ckptd ends then with
     * ERR_ABORTED; from when rank 0 sees it while it waits for a save, checkpoint.final_seconds are
     * left. */
    const volatile sig_atomic_t *want_stop;
    double (*asked_at)(void); /* when, as clock_seconds(); 0: not yet. NULL: nobody knows */
    /* Of what snapshot_post_copy lets go, on the thread that copies; NULL: nobody is told. */
    void (*note_copy)(void *user, const struct op *op, bool is_end);
    void *user;
};

struct snapshot_times {
    double attempt_seconds, load_seconds; /* of the start */
    uint64_t loaded_bytes;                /* this rank's */
    double save_seconds; /* that training has waited for saves so far, but for the last one */
    /* From the copy until it was as durable as checkpoint.durability says, as rank 0 saw it; 0: no
     * save was yet. */
    double longest_save_seconds;
    uint32_t num_saves;          /* those saves */
    uint64_t attempt;            /* of this start; 0: it takes none */
    uint64_t from_attempt; /* which saved what this start has loaded; 0: it has loaded nothing */
};

/* Connects. */
int snapshot_open(struct snapshot **out, const struct snapshot_options *options);
void snapshot_close(struct snapshot *snapshot);
const struct snapshot_times *snapshot_times(const struct snapshot *snapshot);

/* Which step would be loaded; -1: the run has none. With checkpoint.initial_load_path a run without
 * any gets its step 0 here, where that is imported. Refuses what may not go on from it
 * (ERR_MISMATCH: another model, or another canonical order), before the run is touched. Settles
 * training.numerics of the configuration. */
int snapshot_look(struct snapshot *snapshot, int64_t *out_step);
/* Takes an attempt of the run, once: ends whoever trains it, and allows to save. Without one the
 * snapshot is a reader's: it loads, and changes nothing. */
int snapshot_take(struct snapshot *snapshot);
bool snapshot_is_taken(const struct snapshot *snapshot);

/* The copy of a save that goes on behind the step, as struct step_copies has it. */
bool snapshot_post_copy(struct snapshot *snapshot, uint32_t block, const struct op *op);
void snapshot_wait_copy(struct snapshot *snapshot, uint32_t block, struct lane *lane);

/* Fills state and *progress from the newest checkpoint that all ranks can load, walking back over
 * damaged ones, or from checkpoint.load_step; a run that has none starts from
 * checkpoint.initial_load_path. *out_loaded: false when there is neither.
 * ERR_MISMATCH: another model, or another canonical order. */
int snapshot_load(struct snapshot *snapshot, struct progress *progress, bool *out_loaded);

/* Will snapshot_load() take weights in part (checkpoint.partial)? Then the state is that of a new
 * model before. */
bool snapshot_begins_in_part(const struct snapshot *snapshot);

/* What the run's checkpoints say of steps that are made again. */
struct recorded {
    struct history losses; /* the newest one's */
    struct jumps jumps;    /* likewise */
    bool has_norm;         /* there is one of the step, which has this: */
    double grad_norm;
    uint64_t tokens_digest; /* likewise; 0: not known */
};
/* Rank 0 alone. `step`: the one of which the gradient norm is asked. */
int snapshot_recorded(struct snapshot *snapshot, int64_t step, struct recorded *out);

/* Saves. Returns with async_mode "disabled" when durable, with "async" when copied, with
 * "async_with_pinned_mem" at once: then the copy runs on, as far as the step's
 * program posts it; the state may only be read, and each block changed behind snapshot_wait_copy().
 * An error means: stop training. */
int snapshot_save(struct snapshot *snapshot, const struct progress *progress);
/* To be called after each update of the state: waits for the rest of a copy in progress, and says
 * how it went. An error means: stop training. */
int snapshot_copied(struct snapshot *snapshot);
/* Waits until the saves so far have ended, as before a load. An error means: stop training. */
int snapshot_settle(struct snapshot *snapshot);
/* After the last step was saved: its weights go to checkpoint.export_folder, with
 * checkpoint.last_save_in_hf, where no model is yet. */
int snapshot_export(struct snapshot *snapshot, int64_t step);
/* Has a failed save ended training (checkpoint.required)? The last save is due all the same. Of
 * NULL: no. */
bool snapshot_must_stop(const struct snapshot *snapshot);
/* Some rank was asked to stop: is there time to save behind the step? False: its time is cut
 * (grace.h), and the longest save of this start does not fit into the rest. */
int snapshot_has_time(struct snapshot *snapshot, bool *out);
/* Saves, tries again when that fails, and waits until the checkpoint is durable. ERR_ABORTED after
 * FINAL_TRIES failures that do not pass by themselves, ERR_TIMEOUT after checkpoint.final_seconds.
 * Does nothing when this step is durable already; begins nothing without the time for it. */
int snapshot_save_final(struct snapshot *snapshot, const struct progress *progress);
/* The step begins: what this rank does is noted as done in it (doing.c). Not collective. */
void snapshot_begins_step(struct snapshot *snapshot, int64_t step);
/* Tells ckptd whether what comes now suffers from its work. Not collective. */
void snapshot_phase(struct snapshot *snapshot, bool is_busy);
/* What `ckpt-cli stop` and `ckpt-cli save` ask of this rank: SWITCH_STOP, SWITCH_STOP_UNSAVED, or
 * until a save is begun SWITCH_SAVE. Not collective. */
unsigned snapshot_asked(const struct snapshot *snapshot);
/* The newest step that is known to be durable; -1: none is, or there are no checkpoints. Not
 * collective. */
int64_t snapshot_durable_step(const struct snapshot *snapshot);
/* Rank 0, behind each step: with checkpoint.interval = "auto", should a save come behind this one?
 * Not collective. */
bool snapshot_is_due(struct snapshot *snapshot, int64_t step);
/* Logs when a pending save has become durable or has failed. Rank 0 asks ckptd, at most once a
 * second; the others do nothing. */
void snapshot_poll(struct snapshot *snapshot);

#endif
