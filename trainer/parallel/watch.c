/* watch.c - ends a run whose numbers leave the range of floats (debug.watch_numbers).
 *
 * As Hugging Face's DebugUnderflowOverflow does: the rank records, for each module, forward and
 * backward, the largest magnitudes of weights, inputs, outputs and gradients (model/notes.c). It
 * keeps those of the last modules. The first value that is not finite, or beyond debug.watch_bound,
 * ends the recording. After the gradients of a step ranks find out which of them saw such a value
 * first. The order is: the earliest leaf, forward before backward, blocks in order. The value came
 * from there and spread to other ranks. That rank prints its history and names the tensor. All
 * ranks return its code, and the step is discarded.
 *
 * With debug.watch_folder each rank writes the record of all modules, one file for each watched
 * step.
 *
 * With debug.replay_blame the run continues, and the records of all samples are compared (blame.c).
 *
 * The host waits for the device after each block. Results do not change by a bit. */
#include "proto/base/report.h"
#include "trainer/parallel/execution.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define VALUES_MAX 4u /* of a module in one direction */

struct frame { /* one module, forward or backward */
    char module[64];
    bool is_backward;
    uint32_t leaf, num;
    struct value {
        const char *what;
        struct kernel_extent extent;
    } of[VALUES_MAX];
};

struct watch {
    struct device *device;
    struct model_notes notes;
    struct kernel_extent *extents;               /* PINNED: the extents of `notes` */
    struct kernel_extent whole[MODEL_NOTES_MAX]; /* of the notes, all samples together */
    struct frame *ring;                          /* [num_frames] */
    uint32_t num_frames;
    uint64_t num_seen; /* frames so far; the newest lies at (num_seen - 1) % num_frames */
    uint32_t bound;    /* bits of |x|; a value above it ends the run */
    bool is_on;        /* in this step */
    struct value broken;
    int64_t when; /* place of the broken value in the step (when_of); INT64_MAX: none */
    int64_t *all; /* [ranks] */
    FILE *file;   /* of the step; NULL: no file */
};

static uint32_t bits_of(double value)
{
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof(bits));
    return bits;
}

/* The most notes of a leaf, as when_of counts them. */
static uint32_t num_notes(const struct parallel *p)
{
    return 2 * num_all_blocks(p->plan) * 3 * MODEL_NOTES_MAX;
}

int watch_open(struct parallel *p)
{
    const struct config *config = p->plan->config;
    size_t num =
        config->replay_blame ? model_note_extents(p->plan->model) : (size_t)MODEL_NOTES_MAX;
    size_t bytes = num * sizeof(struct kernel_extent);
    void *at = NULL;
    if (!config->watch_numbers || (p->plan->device->ops->flags & DEVICE_DRY))
        return 0;
    struct watch *w = calloc(1, sizeof(*w));
    p->run.watch = w;
    if (w == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to watch numbers");
    w->device = p->plan->device;
    w->num_frames = (uint32_t)config->watch_modules;
    w->bound = config->watch_bound > 0 ? bits_of(config->watch_bound) : 0x7f7fffff;
    w->ring = calloc(w->num_frames, sizeof(*w->ring));
    w->all = calloc(p->plan->mesh.world->size, sizeof(*w->all));
    if (w->ring == NULL || w->all == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to watch numbers");
    ERR_TRY(device_alloc(p->plan->device, &at, bytes, ON_DEVICE));
    w->notes.extents = at;
    ERR_TRY(device_alloc(p->plan->device, &at, bytes, PINNED));
    w->extents = at;
    return blame_open(p, num_notes(p), &w->notes);
}

/* ---- numbers as text ---- */

/* The sign and payload of a NaN have no meaning. */
static void print_number(FILE *out, uint32_t bits)
{
    if (bits > 0x7f800000)
        fprintf(out, "%9s", "nan");
    else
        fprintf(out, "%9.2e", extent_value(bits));
}

static void print_head(FILE *out)
{
    fprintf(out, "  abs min   abs max  not finite\n");
}

static void print_module(FILE *out, const char *module, bool is_backward, uint32_t leaf)
{
    fprintf(out, "%32s%s, %s, leaf %u\n", "", module, is_backward ? "backward" : "forward", leaf);
}

static void print_value(FILE *out, const struct value *value)
{
    print_number(out, value->extent.smallest);
    fputc(' ', out);
    print_number(out, value->extent.largest);
    fprintf(out, "  %10u  %s\n", value->extent.not_finite, value->what);
}

static void close_file(struct watch *w)
{
    if (w->file == NULL)
        return;
    bool is_short = ferror(w->file) != 0;
    is_short = fclose(w->file) != 0 || is_short;
    w->file = NULL;
    if (is_short)
        log_warn("watch", "a file of debug.watch_folder is cut short: %s", strerror(errno));
}

static void open_file(struct parallel *p, int64_t step)
{
    char path[CONFIG_TEXT_MAX + 64];
    const char *folder = p->plan->config->watch_folder;
    (void)mkdir(folder, 0777); /* errors are reported when the file is created */
    snprintf(path, sizeof(path), "%s/step_%lld_rank_%u.txt", folder, (long long)step,
             p->plan->mesh.world->rank);
    p->run.watch->file = fopen(path, "we");
    if (p->run.watch->file == NULL)
        log_warn("watch", "could not create %s: %s", path, strerror(errno));
    else
        print_head(p->run.watch->file);
}

void watch_close(struct watch *w)
{
    if (w == NULL)
        return;
    close_file(w);
    device_free(w->device, w->notes.extents);
    device_free(w->device, w->extents);
    free(w->ring);
    free(w->all);
    free(w);
}

void watch_step(struct parallel *p, int64_t step)
{
    struct watch *w = p->run.watch;
    if (w == NULL)
        return;
    w->is_on = config_has_step(p->plan->config->watch_steps, step);
    w->num_seen = 0;
    w->when = INT64_MAX;
    close_file(w);
    if (w->is_on && p->plan->config->watch_folder[0] != '\0')
        open_file(p, step);
}

/* ---- an operation ---- */

static bool is_backward(const struct op *op)
{
    return op->kind == OP_BACKWARD || op->kind == OP_BACKWARD_INPUT ||
           op->kind == OP_BACKWARD_WEIGHT;
}

static bool is_watched(const struct op *op)
{
    return (op->kind == OP_KEYS && !op->is_second) || op->kind == OP_FORWARD ||
           op->kind == OP_LOSS || is_backward(op);
}

void watch_begin(struct parallel *p, const struct program *program, const struct op *op)
{
    struct watch *w = p->run.watch;
    if (w != NULL)
        model_watch(p->plan->model,
                    w->is_on && program == p->run.program && is_watched(op) ? &w->notes : NULL);
}

/* The place of a value in an order that all meshes share: leaves in order, forward, then backward,
 * blocks in order, then the values of a block. */
static int64_t when_of(const struct parallel *p, const struct op *op, uint32_t note)
{
    uint32_t blocks = num_all_blocks(p->plan);
    uint32_t block = is_backward(op) ? 2 * blocks - 1 - op->block : op->block;
    uint32_t part = op->kind == OP_KEYS || op->kind == OP_BACKWARD_INPUT    ? 0
                    : op->kind == OP_LOSS || op->kind == OP_BACKWARD_WEIGHT ? 2
                                                                            : 1;
    int64_t leaf = leaves_at(&p->exchange.leaves, my_data_rank(p->plan), op->leaf);
    return ((leaf * 2 * blocks + block) * 3 + part) * MODEL_NOTES_MAX + note;
}

/* The frame of a note: the newest frame, or the next if that is of another module. */
static struct frame *frame_of(struct watch *w, const struct model_note *note, uint32_t leaf,
                              bool is_new)
{
    struct frame *frame = &w->ring[(w->num_seen + w->num_frames - 1) % w->num_frames];
    if (!is_new && strcmp(frame->module, note->module) == 0 && frame->num < VALUES_MAX)
        return frame;
    frame = &w->ring[w->num_seen++ % w->num_frames];
    *frame = (struct frame){.leaf = leaf};
    memcpy(frame->module, note->module, sizeof(frame->module));
    return frame;
}

/* Writes all notes of an operation to the step's file. */
static void write_notes(const struct parallel *p, const struct op *op)
{
    const struct watch *w = p->run.watch;
    uint32_t leaf = leaves_at(&p->exchange.leaves, my_data_rank(p->plan), op->leaf);
    for (uint32_t i = 0; i < w->notes.num && w->file != NULL; i++) {
        const struct model_note *note = &w->notes.of[i];
        if (i == 0 || strcmp(note->module, note[-1].module) != 0)
            print_module(w->file, note->module, is_backward(op), leaf);
        print_value(w->file, &(struct value){note->what, w->whole[i]});
    }
}

/* Turns the notes of an operation into frames, up to the first value that ends the run. */
static void keep_notes(struct parallel *p, const struct op *op)
{
    struct watch *w = p->run.watch;
    uint32_t leaf = leaves_at(&p->exchange.leaves, my_data_rank(p->plan), op->leaf);
    for (uint32_t i = 0; i < w->notes.num && w->when == INT64_MAX; i++) {
        struct frame *frame = frame_of(w, &w->notes.of[i], leaf, i == 0);
        struct value value = {w->notes.of[i].what, w->whole[i]};
        frame->is_backward = is_backward(op);
        frame->of[frame->num++] = value;
        if (value.extent.largest <= w->bound)
            continue;
        w->broken = value;
        w->when = when_of(p, op, i);
    }
}

/* Puts the extents of a note together. */
static void merge_extents(struct watch *w)
{
    for (uint32_t i = 0; i < w->notes.num; i++) {
        const struct model_note *note = &w->notes.of[i];
        struct kernel_extent whole = {.smallest = UINT32_MAX};
        for (uint32_t k = note->first; k < note->first + note->num; k++) {
            const struct kernel_extent *part = &w->extents[k];
            whole.largest = part->largest > whole.largest ? part->largest : whole.largest;
            whole.smallest = part->smallest < whole.smallest ? part->smallest : whole.smallest;
            whole.not_finite += part->not_finite;
        }
        w->whole[i] = whole;
    }
}

int watch_end(struct parallel *p, const struct op *op)
{
    struct watch *w = p->run.watch;
    if (w == NULL || w->notes.num == 0)
        return 0;
    lane_copy(p->plan->lane, w->extents, w->notes.extents,
              w->notes.num_extents * sizeof(*w->extents));
    ERR_TRY(lane_settle(p->plan->lane));
    merge_extents(w);
    write_notes(p, op);
    keep_notes(p, op);
    uint32_t first = (uint32_t)(when_of(p, op, 0) % num_notes(p));
    int rc = p->run.blame != NULL ? blame_add_notes(p, op, first, &w->notes, w->extents) : 0;
    model_watch(p->plan->model, NULL);
    w->notes.num = 0;
    return rc;
}

/* ---- the end of a step ---- */

static void print_frames(const struct watch *w, FILE *out)
{
    uint32_t num = w->num_seen < w->num_frames ? (uint32_t)w->num_seen : w->num_frames;
    print_head(out);
    for (uint64_t i = w->num_seen - num; i < w->num_seen; i++) {
        const struct frame *frame = &w->ring[i % w->num_frames];
        print_module(out, frame->module, frame->is_backward, frame->leaf);
        for (uint32_t v = 0; v < frame->num; v++)
            print_value(out, &frame->of[v]);
    }
}

/* In one write, so that output of other ranks does not come between. */
static void print_history(const struct watch *w)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return;
    print_frames(w, out);
    if (fclose(out) == 0)
        fputs(text, stderr);
    free(text);
}

static int report_broken(const struct parallel *p, int64_t step)
{
    const struct watch *w = p->run.watch;
    const struct frame *frame = &w->ring[(w->num_seen - 1) % w->num_frames];
    uint32_t rank = p->plan->mesh.world->rank, shown = w->num_frames;
    shown = w->num_seen < shown ? (uint32_t)w->num_seen : shown;
    char text[96];
    if (w->broken.extent.not_finite > 0)
        snprintf(text, sizeof(text), "has %u numbers that are not finite",
                 w->broken.extent.not_finite);
    else
        snprintf(text, sizeof(text), "reaches %.3g, above debug.watch_bound",
                 extent_value(w->broken.extent.largest));
    log_error("watch", "step %lld, rank %u: the last %u modules, the newest last:", (long long)step,
              rank, shown);
    print_history(w);
    return report_error(ERR_INVALID, "lower optimizer.lr, or resume from an older checkpoint",
                        "step %lld: %s of %s %s, %s of leaf %u, first on rank %u, stage %u",
                        (long long)step, w->broken.what, frame->module, text,
                        frame->is_backward ? "backward" : "forward", frame->leaf, rank,
                        rank / (p->plan->mesh.world->size / p->plan->mesh.degree[AXIS_PP]));
}

int watch_agree(struct parallel *p, int64_t step, bool *out_is_broken)
{
    struct watch *w = p->run.watch;
    struct comm *world = p->plan->mesh.world;
    uint32_t first = 0;
    *out_is_broken = false;
    if (w == NULL || !w->is_on)
        return 0;
    close_file(w);
    memset(w->all, 0, world->size * sizeof(*w->all));
    w->all[world->rank] = w->when;
    ERR_TRY(comm_all_reduce_i64(world, w->all, world->size));
    for (uint32_t rank = 1; rank < world->size; rank++)
        first = w->all[rank] < w->all[first] ? rank : first;
    bool is_broken = w->all[first] != INT64_MAX;
    int rc = is_broken && first == world->rank ? report_broken(p, step) : 0;
    *out_is_broken = is_broken && p->run.blame == NULL;
    if (*out_is_broken)
        return parallel_agree(world, rc);
    if (is_broken) {
        int64_t leaf = first == world->rank ? w->ring[(w->num_seen - 1) % w->num_frames].leaf : 0;
        ERR_TRY(comm_all_reduce_i64(world, &leaf, 1));
        blame_is_named(p->run.blame, (uint32_t)leaf);
    }
    if (rc != 0) {
        log_warn("replay", "%s", report_message());
        report_clear();
    }
    return 0;
}
