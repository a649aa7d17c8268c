/* private.h - the struct that open.c, load.c and save.c share. */
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

/* Names a file for "RUN STEP" of the newest durable save. */
#define SAVED_FILE_VARIABLE "HOLDFAST_SAVED_FILE"
#define STATE_PARTS ((uint32_t)NUM_STATE_PARTS)
#define SNAPSHOT_NAME_BYTES 96u
#define PENDING_MAX 4u /* saves whose end is looked for */
#define ASK_MS 1000u   /* of a question that waits for the end of a save */

/* A save that was copied and is not known to be durable. */
struct pending {
    int64_t step;
    double since; /* the end of its copy */
};

struct snapshot {
    struct config *config;
    const struct mesh *mesh;
    const struct state *state;
    struct kernels *kernels;
    struct ckpt *ckpt;                     /* NULL: checkpoint.enable is off */
    uint32_t saves_heeded;                 /* of ckpt_saves_asked() */
    uint64_t doing_step;                   /* that is under way, for whoever asks what it is */
    uint64_t attempt;                      /* 0: none, a reader */
    int64_t newest_step;                   /* seen before the load; -1: none */
    int64_t checked_step, checked_attempt; /* the checkpoint that was found to be of this run */
    /* STATE_PARTS per slice: first all parameters; then, once described, `files`. */
    struct ckpt_tensor *tensors;
    uint32_t num_tensors; /* without those of `files` */
    struct folder_files files;
    bool has_no_moments; /* tensors are the parameters alone: the last save, if so configured */
    char (*names)[SNAPSHOT_NAME_BYTES];
    uint64_t bytes;            /* of this rank's slices */
    uint32_t *order;           /* tensors as they are copied */
    uint32_t *copied_at;       /* per slice: so many of them must be copied before it may change */
    struct replicas *replicas; /* NULL: there is nothing to compare */
    struct copier *copier;
    uint32_t *copied_for;  /* per piece: the first slice that is whole behind it or later ones */
    const struct op **ops; /* per slice: by which the program posted it; NULL: none has */
    void (*note_copy)(void *user, const struct op *op, bool is_end);
    void *user;
    struct device_copy *device_copy; /* NULL: the host has the state */
    struct ckpt_save *save;          /* the copy thread's, while copying_step >= 0 */
    int64_t copying_step;            /* begun, not known to be copied; -1: none */
    double begin_seconds;            /* of its begin */
    struct history *history;         /* NULL: there is none */
    struct identity of;              /* what is saved */
    char *identity_json, *data_json;
    struct partial partial; /* while a run begins in part */
    char *origin_json;      /* rank 0: of the folder that the model came from; NULL: none */
    char *orders_json;      /* lineage.h; rank 0 alone knows more than its own */
    int64_t pending_step;   /* the newest saved one, when not known to be durable; -1: none */
    int64_t durable_step;   /* newest known to be durable; -1: none */
    /* Rank 0 alone: saves whose end is not known yet, the oldest first. */
    struct pending pending[PENDING_MAX];
    uint32_t num_pending;
    /* Rank 0 alone: a save that is durable here and not yet as checkpoint.durability says, whose
     * time until then is being measured; step < 0: there is none. */
    struct pending spreading;
    double polled_at;
    int64_t newest_durable;           /* -1: none is known */
    int settled_rc;                   /* how the newest whose end is known ended */
    bool has_failed;                  /* some save failed after its copy */
    bool must_stop;                   /* a save failed, and checkpoint.required is set */
    char warned[2 * REPORT_TEXT_MAX]; /* the last warning of a save */
    const volatile sig_atomic_t *want_stop;
    double (*asked_at)(void); /* NULL: nobody knows */
    double grace_end; /* by which the run should have ended, as ranks agreed; INFINITY: whenever */
    double deadline;  /* of the end; 0: it has not begun */
    struct snapshot_times times;
    struct pace { /* rank 0: of training, measured from save to save */
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

/* doing.c: what this rank does is noted where ckptd sees it. */
void snapshot_note(struct snapshot *s, bool is_on);
/* save.c */
/* A step without its waits for saves, since the save before; with its validations. */
void snapshot_measure_step(struct snapshot *s, int64_t step);
/* Replicas that differ end training, and leave a run without this checkpoint. Collective. */
int snapshot_compare(struct snapshot *s, int64_t step);
/* All ranks begin, and their copy threads start; or none does. Training waits since `start`. */
int snapshot_begin_save(struct snapshot *s, const struct progress *p, double start);
/* Until the copy in progress is made; all ranks learn how it went. */
int snapshot_end_copy(struct snapshot *s);
/* The save of the step is copied, or was begun before: its end is waited for. */
void snapshot_add_pending(struct snapshot *s, int64_t step, double since);
/* Rank 0: of which pending saves is the end known by now? */
void snapshot_ask_pending(struct snapshot *s);
/* Until the pending saves have ended; all ranks get rank 0's answer for the newest. */
int snapshot_wait_pending(struct snapshot *s);
/* final.c: of the wait for a pending save that began at `start`. */
double snapshot_seconds_left(struct snapshot *s, double start);

/* open.c: by which a tensor of the state is saved. */
void snapshot_name(char out[SNAPSHOT_NAME_BYTES], const struct model_tensor *tensor,
                   enum state_part part);
/* open.c: from here on saves hold no moments. Collective; no save is being copied. */
int snapshot_leave_moments_out(struct snapshot *s);
/* load.c */
/* Says which newer checkpoints ckptd has passed over, and why. */
void snapshot_say_skipped(const struct ckpt_loaded *loaded);
int snapshot_read_progress(struct snapshot *s, struct progress *p,
                           const struct ckpt_loaded *loaded);
/* recorded.c. Rank 0: the run has no checkpoint to make the step again from; names the steps of
 * which it has one. ERR_NOT_FOUND. */
int snapshot_fail_replay(const struct snapshot *s);
/* arrived.c: behind a load of that checkpoint. ERR_ABORTED: what is on the devices is not what it
 * has. Collective. */
int snapshot_check_arrived(struct snapshot *s, struct ckpt *ckpt, int64_t step, int64_t attempt,
                           bool has_moments);
/* initial.c: of a run that has no checkpoint. */
/* Rank 0. ERR_EXISTS: it is probably the one that was called "default" when it had no name. */
int snapshot_check_nameless(const struct snapshot *s);
/* All that follow are collective. */
bool snapshot_wants_initial(const struct snapshot *s);
/* Where the path is no run of our ckptd: afterwards the run has step 0. */
int snapshot_import_initial(struct snapshot *s);
/* Where it is one: before the attempt is taken, whose checkpoints say where the model is from. */
int snapshot_look_at_initial(struct snapshot *s);
int snapshot_load_initial(struct snapshot *s, struct progress *p);
/* Refuses where snapshot_export() of that step would find something else. */
int snapshot_check_export(struct snapshot *s, int64_t step);

#endif
