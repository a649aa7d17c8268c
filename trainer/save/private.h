/* private.h - the struct and functions that this folder's files share. */
#ifndef HOLDFAST_TRAINER_SAVE_PRIVATE_H
#define HOLDFAST_TRAINER_SAVE_PRIVATE_H

#include "clients/ckpt.h"
#include "proto/base/report.h"
#include "trainer/record/identity.h"
#include "trainer/record/partial.h"
#include "trainer/save/folder_files.h"
#include "trainer/save/interval.h"
#include "trainer/save/replicas.h"
#include "trainer/save/snapshot.h"
#include "trainer/snapshot/copier.h"
#include "trainer/snapshot/device_copy.h"

/* Path of a file with "RUN STEP" of the newest durable save. */
#define SAVED_FILE_VARIABLE "HOLDFAST_SAVED_FILE"
#define STATE_PARTS ((uint32_t)NUM_STATE_PARTS)
#define SNAPSHOT_NAME_BYTES 96u
#define PENDING_MAX 4u /* pending saves that rank 0 tracks */
#define ASK_MS 1000u   /* wait of a call for the end of a save */

/* A save that is copied and not known to be durable. */
struct pending {
    int64_t step;
    double since;           /* the end of its copy */
    uint32_t heeded_before; /* saves_heeded, if it fails */
};

struct snapshot {
    struct config *config;
    const struct mesh *mesh;
    const struct state *state;
    struct kernels *kernels;
    struct ckpt *ckpt;                     /* NULL: checkpoint.enable is off */
    uint32_t saves_heeded;                 /* of ckpt_saves_asked() */
    uint32_t heeded_before;                /* by the saves before the newest */
    double heed_at, heed_pause;            /* not before, after a save that failed */
    uint64_t doing_step;                   /* the current step, for the flight recorder's mirror */
    uint64_t attempt;                      /* 0: none, a reader */
    int64_t newest_step;                   /* before the load; -1: none */
    int64_t checked_step, checked_attempt; /* the checkpoint that was checked to be of this run */
    char
        oldest_time[32]; /* rank 0 of a replay from the beginning: of the run's oldest checkpoint */
    /* STATE_PARTS per slice, first all parameters; then, after the description, `files`. */
    struct ckpt_tensor *tensors;
    uint32_t num_tensors; /* without those of `files` */
    struct folder_files files;
    bool has_no_moments; /* tensors are only the parameters: the last save, if so configured */
    char (*names)[SNAPSHOT_NAME_BYTES];
    uint64_t bytes;  /* of this rank's slices */
    uint32_t *order; /* tensors in the order of copies */
    /* Per slice: the number of copied tensors after which it may change. */
    uint32_t *copied_at;
    struct replicas *replicas; /* NULL: no copies to compare */
    struct copier *copier;
    uint32_t *copied_for;  /* per piece: the first slice that is not complete before it */
    const struct op **ops; /* per slice: the operation that posted it; NULL: none */
    void (*note_copy)(void *user, const struct op *op, bool is_end);
    void *user;
    struct device_copy *device_copy; /* NULL: the host has the state */
    struct ckpt_save *save;          /* owned by the copy thread while copying_step >= 0 */
    int64_t copying_step;            /* begun, not known to be copied; -1: none */
    double begin_seconds;            /* duration of its begin */
    struct history *history;         /* NULL: none */
    struct identity of;              /* describes the saved state */
    char *identity_json, *data_json;
    struct partial partial; /* if a run begins in part */
    char *origin_json;      /* rank 0: of the folder that the model came from; NULL: none */
    char *orders_json;      /* lineage.h; only rank 0 has earlier ones */
    int64_t pending_step;   /* the newest saved step, not known to be durable; -1: none */
    int64_t durable_step;   /* newest step known to be durable; -1: none */
    /* Rank 0 only: saves that have not ended, the oldest first. */
    struct pending pending[PENDING_MAX];
    uint32_t num_pending;
    /* Rank 0 alone: a save that is durable here and not yet as checkpoint.durability says, whose
     * time until then is being measured; step < 0: there is none. */
    struct pending spreading;
    double polled_at;
    int64_t newest_durable;           /* -1: none known */
    int settled_rc;                   /* result of the newest save that has ended */
    bool has_failed;                  /* a save failed after its copy */
    bool must_stop;                   /* a save failed, and checkpoint.required is set */
    char warned[2 * REPORT_TEXT_MAX]; /* the last warning of a save */
    const volatile sig_atomic_t *want_stop;
    double (*asked_at)(void); /* NULL: not known */
    double grace_end; /* the agreed time by which the run should have ended; INFINITY: no limit */
    double deadline;  /* of the last save; 0: not begun */
    struct snapshot_times times;
    struct pace { /* rank 0: speed of training, measured from save to save */
        double at, waited;
        int64_t step;
        double step_seconds; /* 0: not known yet */
    } pace;
    struct interval interval; /* rank 0, of INTERVAL_AUTO */
    double durable_seconds;   /* rank 0: of the last save, from its copy; 0: not known yet */
};

bool snapshot_is_rank_0(const struct snapshot *s);
/* open.c: checkpoint.durability. */
enum ckpt_level snapshot_level(const struct snapshot *s);

/* doing.c: shows ckptd the current call of this rank. */
void snapshot_note(struct snapshot *s, bool is_on);
/* save.c */
/* Measures a step since the previous save, without waits for saves, with validations. */
void snapshot_measure_step(struct snapshot *s, int64_t step);
/* Different replicas end training, and the run does not get this checkpoint. Collective. */
int snapshot_compare(struct snapshot *s, int64_t step);
/* Begins a save and starts the copy threads on all ranks; if one fails, none begins. `start`: the
 * time from which training waits. */
int snapshot_begin_save(struct snapshot *s, const struct progress *p, double start);
/* Waits for the copy in progress. All ranks get the same result. */
int snapshot_end_copy(struct snapshot *s);
/* Call when the save of the step is copied, or was begun before: adds it to the pending saves. */
void snapshot_add_pending(struct snapshot *s, int64_t step, double since);
/* Rank 0: asks ckptd which pending saves have ended. */
void snapshot_poll_pending(struct snapshot *s);
/* Waits until the pending saves have ended; all ranks get rank 0's result of the newest. */
int snapshot_wait_pending(struct snapshot *s);
/* final.c: seconds left of the wait for a pending save that began at `start`. */
double snapshot_seconds_left(struct snapshot *s, double start);

/* open.c: the name of a saved tensor of the state. */
void snapshot_name(char out[SNAPSHOT_NAME_BYTES], const struct model_tensor *tensor,
                   enum state_part part);
/* open.c: later saves have no moments. Collective; no save may be under way. */
int snapshot_leave_moments_out(struct snapshot *s);
/* load.c */
/* Logs the newer checkpoints that ckptd skipped, with the reason. */
void snapshot_log_skipped(const struct ckpt_loaded *loaded);
int snapshot_read_progress(struct snapshot *s, struct progress *p,
                           const struct ckpt_loaded *loaded);
/* recorded.c. Rank 0: the first and the last step below that one with an undamaged checkpoint; -1:
 * none. */
int snapshot_find_steps(const struct snapshot *s, int64_t below, int64_t *out_first,
                        int64_t *out_last);
/* arrived.c: call after a load of that checkpoint. ERR_ABORTED: the state on the devices differs
 * from the checkpoint. Collective. */
int snapshot_check_arrived(struct snapshot *s, struct ckpt *ckpt, int64_t step, int64_t attempt,
                           bool has_moments);
/* initial.c: for a run without a checkpoint. */
/* Rank 0. ERR_EXISTS: it is probably the run that was called "default" before it had a name. */
int snapshot_check_nameless(const struct snapshot *s);
/* All of the following are collective. */
bool snapshot_wants_initial(const struct snapshot *s);
/* If the path is not a run of this ckptd: imports it, and the run has step 0. */
int snapshot_import_initial(struct snapshot *s);
/* If the path is such a run: call before the attempt is taken, since its checkpoints name the
 * model's origin. */
int snapshot_check_initial(struct snapshot *s);
int snapshot_load_initial(struct snapshot *s, struct progress *p);
/* Fails if snapshot_export() of that step cannot succeed. */
int snapshot_check_export(struct snapshot *s, int64_t step);

#endif
