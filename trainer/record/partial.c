/* partial.c - see partial.h. */
#include "trainer/record/partial.h"

#include "kernels/device.h"
#include "proto/base/memfile.h"
#include "proto/base/report.h"
#include "trainer/parallel/parallel.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define READ_BYTES (16u << 20) /* of rows that are summed */
#define MEANS 2u               /* of embedding and output, at most */

/* ---- tensors that fit ---- */

int partial_check_shape(const struct config *config, const struct model_shape *ours,
                        const struct model_shape *theirs, const char *source, const char *hint)
{
    struct model_difference difference, rest;
    struct model_shape bridged = *theirs;
    char both[REPORT_TEXT_MAX];
    bridged.vocab = ours->vocab;
    bridged.layers = ours->layers;
    bridged.is_tied = ours->is_tied;
    bool fits = !model_shape_differs(&rest, ours, &bridged);
    if (!model_shape_differs(&difference, ours, theirs) || (fits && config->partial))
        return 0;
    snprintf(both, sizeof(both), "%s, or load what fits: set checkpoint.partial", hint);
    if (config->partial) /* name the obstacle */
        difference = rest;
    return report_error(ERR_MISMATCH, fits ? both : hint,
                        "the model of %s has %s = %s, this configuration %s", source,
                        difference.field, difference.theirs, difference.ours);
}

const struct ckpt_tensor_info *partial_find(const struct ckpt_metadata *metadata, const char *name)
{
    for (uint32_t i = 0; i < metadata->num_tensors; i++)
        if (strcmp(metadata->tensors[i].name, name) == 0)
            return &metadata->tensors[i];
    return NULL;
}

/* True if the tensor has a row per token. */
static bool is_by_token(const struct model_tensor *tensor, const struct model_shape *shape)
{
    return tensor->role == MODEL_COLUMNS && (tensor->block == 0 || tensor->block > shape->layers);
}

static int choose_rows(struct partial_rows *out, const struct model_tensor *ours,
                       const struct ckpt_tensor_info *theirs, bool is_by_token)
{
    bool fits = theirs->dims == ours->dims && strcmp(theirs->dtype, "F32") == 0 &&
                (ours->dims < 2 || theirs->shape[1] == ours->width) &&
                (is_by_token || theirs->shape[0] == ours->rows);
    if (!fits)
        return report_error(ERR_MISMATCH,
                            "let it begin fresh by checkpoint.partial_fresh, or import the "
                            "checkpoint's model by `ckpt-cli import`",
                            "%s of the checkpoint is %s of %u dimensions, [%" PRIu64 ", %" PRIu64
                            "], this model's F32 [%" PRIu64 ", %" PRIu64 "]",
                            ours->name, theirs->dtype, theirs->dims, theirs->shape[0],
                            theirs->dims > 1 ? theirs->shape[1] : 1, ours->rows, ours->width);
    out->theirs = theirs->shape[0];
    out->taken = out->theirs < ours->rows ? out->theirs : ours->rows;
    return 0;
}

int partial_choose(struct partial *out, const struct config *config,
                   const struct model_table *model, const struct ckpt_metadata *metadata)
{
    char part[MODEL_PART_BYTES];
    uint64_t taken = 0;
    if (model_names_nothing(part, model, config->partial_fresh))
        return report_error(ERR_INVALID, "give parts of names, as output or layers.3.",
                            "checkpoint.partial_fresh: no tensor's name contains \"%s\"", part);
    for (uint32_t i = 0; i < model->num_tensors; i++) {
        const struct model_tensor *tensor = &model->tensors[i];
        const struct ckpt_tensor_info *theirs = partial_find(metadata, tensor->name);
        if (theirs != NULL && !model_is_named(tensor->name, config->partial_fresh))
            ERR_TRY(choose_rows(&out->rows[i], tensor, theirs, is_by_token(tensor, &model->shape)));
        taken += out->rows[i].taken;
    }
    return taken > 0 ? 0
                     : report_error(ERR_MISMATCH,
                                    "name another checkpoint.initial_load_path, or leave it out",
                                    "no tensor of run %s, step %" PRIu64 ", can be loaded",
                                    metadata->info.run, metadata->info.step);
}

bool partial_is_whole(const struct partial *p, uint32_t tensor)
{
    uint64_t rows = p->model->tensors[tensor].rows;
    return p->rows[tensor].taken == rows && p->rows[tensor].theirs == rows;
}

/* ---- the table ---- */

static void print_range(FILE *out, const char *what, uint64_t first, uint64_t end)
{
    if (first < end)
        fprintf(out, "%srows %" PRIu64 "-%" PRIu64 " %s", first > 0 ? ", " : "", first, end - 1,
                what);
}

static void print_tensor(FILE *out, const struct partial *p, uint32_t i)
{
    const struct partial_rows *rows = &p->rows[i];
    uint64_t ours = p->model->tensors[i].rows;
    fprintf(out, "%s: ", p->model->tensors[i].name);
    if (rows->taken == 0 || partial_is_whole(p, i)) {
        fprintf(out, "%s\n", rows->taken == 0 ? "fresh" : "taken");
        return;
    }
    print_range(out, "taken", 0, rows->taken);
    print_range(out, p->has_means ? "mean of those" : "fresh", rows->taken, ours);
    print_range(out, "left", rows->taken, rows->theirs);
    fputc('\n', out);
}

/* Bits of the tensors of a layer that are taken. */
static uint32_t taken_of(const struct partial *p, uint32_t layer, uint32_t *out_first,
                         uint32_t *out_num)
{
    uint32_t taken = 0;
    *out_num = model_block_tensors(p->model, layer + 1, out_first);
    for (uint32_t i = 0; i < *out_num; i++)
        taken |= (uint32_t)(p->rows[*out_first + i].taken > 0) << i;
    return taken;
}

static void print_layers(FILE *out, uint32_t first, uint32_t last)
{
    if (first == last)
        fprintf(out, "layers.%u.", first);
    else
        fprintf(out, "layers.%u-%u.", first, last);
}

/* Prints layers [first, end), which are alike. */
static void print_alike(FILE *out, const struct partial *p, uint32_t first, uint32_t end,
                        bool is_taken)
{
    uint32_t tensor, num, taken = taken_of(p, first, &tensor, &num), named = 0;
    uint32_t all = (1u << num) - 1, mask = is_taken ? taken : all & ~taken;
    if (mask == 0)
        return;
    print_layers(out, first, end - 1);
    for (uint32_t i = 0; i < num && mask != all; i++)
        if (mask >> i & 1)
            fprintf(out, "%s%s", named++ > 0 ? ", " : "",
                    strchr(p->model->tensors[tensor + i].name + strlen("layers."), '.') + 1);
    fprintf(out, "%s: %s\n", mask == all ? "*" : "", is_taken ? "taken" : "fresh");
}

static bool is_ours(const struct partial *p, const char *name)
{
    uint32_t i = 0;
    while (i < p->model->num_tensors && strcmp(p->model->tensors[i].name, name) != 0)
        i++;
    return i < p->model->num_tensors;
}

static void print_left(FILE *out, const struct partial *p, const struct ckpt_metadata *metadata)
{
    uint32_t first = UINT32_MAX, last = 0, layer;
    for (uint32_t i = 0; i < metadata->num_tensors; i++) {
        const char *name = metadata->tensors[i].name;
        if (sscanf(name, "layers.%" SCNu32 ".", &layer) == 1 && layer >= p->model->shape.layers) {
            first = layer < first ? layer : first;
            last = layer > last ? layer : last;
        } else if (strncmp(name, "optimizer.", strlen("optimizer.")) != 0 &&
                   ckpt_object_name(&metadata->tensors[i]) == NULL && !is_ours(p, name)) {
            fprintf(out, "%s: left\n", name);
        }
    }
    if (first > last)
        return;
    print_layers(out, first, last);
    fputs("*: left\n", out);
}

void partial_print(FILE *out, const struct partial *p, const struct ckpt_metadata *metadata)
{
    uint32_t layers = p->model->shape.layers, tensor, num;
    print_tensor(out, p, 0);
    for (uint32_t first = 0, end; first < layers; first = end) {
        uint32_t taken = taken_of(p, first, &tensor, &num);
        end = first + 1;
        while (end < layers && taken_of(p, end, &tensor, &num) == taken)
            end++;
        print_alike(out, p, first, end, true);
        print_alike(out, p, first, end, false);
    }
    for (uint32_t i = p->model->first_tensor[layers + 1]; i < p->model->num_tensors; i++)
        print_tensor(out, p, i);
    print_left(out, p, metadata);
}

static int log_table(const struct partial *p, const struct ckpt_metadata *metadata)
{
    char *text = NULL, *rest = NULL;
    size_t bytes;
    FILE *out = memfile_open(&text, &bytes);
    if (out == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the list of loaded tensors");
    partial_print(out, p, metadata);
    bool is_whole = memfile_close(out);
    log_info("checkpoint",
             "from run %s, step %" PRIu64 ", checkpoint.partial loads:", metadata->info.run,
             metadata->info.step);
    for (char *line = is_whole ? strtok_r(text, "\n", &rest) : NULL; line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        log_info("checkpoint", "  %s", line);
    free(text);
    return is_whole ? 0
                    : report_error(ERR_MEMORY, NULL, "no memory for the list of loaded tensors");
}

/* ---- means ---- */

static bool has_mean(const struct partial *p, uint32_t tensor)
{
    const struct partial_rows *rows = &p->rows[tensor];
    return p->has_means && rows->taken > 0 && rows->taken < p->model->tensors[tensor].rows;
}

static float *mean_of(const struct partial *p, uint32_t tensor)
{
    return p->means + (tensor == 0 ? 0 : p->model->shape.dim);
}

/* One row after the other, so that the size of a read does not matter. */
static int add_up(double *sums, const struct model_tensor *tensor, uint64_t rows,
                  const struct ckpt_load_options *from, struct ckpt *ckpt)
{
    uint64_t width = tensor->width, most = READ_BYTES / sizeof(float) / width;
    most = most < 1 ? 1 : most;
    float *some = malloc(most * width * sizeof(*some));
    int rc = some != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for rows of a mean");
    for (uint64_t first = 0; first < rows && rc == 0; first += most) {
        uint64_t num = rows - first < most ? rows - first : most;
        struct ckpt_tensor wanted = {.name = tensor->name,
                                     .dtype = "F32",
                                     .dims = tensor->dims,
                                     .shape = {rows, width},
                                     .offset = {first},
                                     .extent = {num, width},
                                     .data = some};
        struct ckpt_load_options options = *from;
        struct ckpt_loaded *loaded = NULL;
        options.tensors = &wanted;
        options.num_tensors = 1;
        rc = ckpt_load(ckpt, &options, &loaded);
        ckpt_loaded_free(loaded);
        for (uint64_t i = 0; i < num * width && rc == 0; i++)
            sums[i % width] += some[i];
    }
    free(some);
    return rc;
}

static int make_mean(struct partial *p, uint32_t tensor, const struct ckpt_load_options *from,
                     struct ckpt *ckpt)
{
    const struct model_tensor *of = &p->model->tensors[tensor];
    uint64_t rows = p->rows[tensor].theirs;
    double *sums = calloc(of->width, sizeof(*sums));
    int rc = sums != NULL ? add_up(sums, of, rows, from, ckpt)
                          : report_error(ERR_MEMORY, NULL, "no memory for a mean");
    for (uint64_t i = 0; i < of->width && rc == 0; i++)
        mean_of(p, tensor)[i] = (float)(sums[i] / (double)rows);
    free(sums);
    return rc;
}

/* ---- all ranks ---- */

/* Called on rank 0. */
static int choose_tensors(struct partial *p, const struct config *config, struct ckpt *ckpt,
                          int64_t step, int64_t attempt)
{
    struct ckpt_metadata *metadata = NULL;
    struct ckpt_load_options from = {.step = step, .attempt = (uint64_t)attempt};
    ERR_TRY(ckpt_metadata(ckpt, step, (uint64_t)attempt, &metadata));
    int rc = partial_choose(p, config, p->model, metadata);
    if (rc == 0)
        rc = log_table(p, metadata);
    ckpt_metadata_free(metadata);
    for (uint32_t i = 0; i < p->model->num_tensors && rc == 0; i++)
        if (has_mean(p, i))
            rc = make_mean(p, i, &from, ckpt);
    return rc;
}

static int take_room(struct partial *out, const struct config *config,
                     const struct model_table *model)
{
    *out = (struct partial){.model = model,
                            .has_means = config->partial_rows == PARTIAL_MEAN,
                            .rows = calloc(model->num_tensors, sizeof(*out->rows)),
                            .means = calloc(MEANS, model->shape.dim * sizeof(float))};
    return out->rows != NULL && out->means != NULL
               ? 0
               : report_error(ERR_MEMORY, NULL, "no memory for the list of loaded tensors");
}

int partial_open(struct partial *out, const struct config *config, const struct model_table *model,
                 struct comm *world, struct ckpt *ckpt, int64_t step, int64_t attempt)
{
    ERR_TRY(parallel_agree(world, take_room(out, config, model)));
    ERR_TRY(parallel_agree(
        world, world->rank == 0 ? choose_tensors(out, config, ckpt, step, attempt) : 0));
    ERR_TRY(comm_broadcast(world, out->rows, model->num_tensors * sizeof(*out->rows), 0));
    return comm_broadcast(world, out->means, MEANS * model->shape.dim * sizeof(float), 0);
}

void partial_close(struct partial *p)
{
    free(p->rows);
    free(p->means);
    *p = (struct partial){0};
}

bool partial_clip(const struct partial *p, struct ckpt_tensor *tensor, uint32_t of)
{
    const struct partial_rows *rows = &p->rows[of];
    uint64_t first = tensor->offset[0];
    tensor->shape[0] = rows->theirs;
    if (first >= rows->taken)
        return false;
    if (tensor->extent[0] > rows->taken - first)
        tensor->extent[0] = rows->taken - first;
    return true;
}

static void fill_slice(const struct partial *p, const struct state *state,
                       const struct state_slice *slice, uint32_t tensor, const float *means)
{
    const struct box *box = &slice->param.box;
    uint64_t taken = p->rows[tensor].taken, end = box->offset[0] + box->extent[0];
    uint64_t row = taken > box->offset[0] ? taken : box->offset[0];
    const float *mean = means + (mean_of(p, tensor) - p->means) + box->offset[1];
    for (; row < end; row++)
        lane_copy(
            state->lane,
            state_at(state, STATE_PARAM, slice->param.at + (row - box->offset[0]) * box->extent[1]),
            mean, box->extent[1] * sizeof(*mean));
}

int partial_fill(const struct partial *p, const struct state *state)
{
    size_t bytes = MEANS * p->model->shape.dim * sizeof(*p->means);
    struct device *device = state->lane->device;
    void *pinned = NULL;
    ERR_TRY(device_alloc(device, &pinned, bytes, PINNED));
    memcpy(pinned, p->means, bytes);
    for (uint32_t i = 0; i < state->num_slices; i++) {
        uint32_t tensor = (uint32_t)(state->slices[i].tensor - p->model->tensors);
        if (has_mean(p, tensor))
            fill_slice(p, state, &state->slices[i], tensor, pinned);
    }
    int rc = lane_settle(state->lane);
    device_free(device, pinned);
    return rc;
}
