/* introduce.c - logs and writes rank 0's description of a run (see introduce.h). */
#include "trainer/run/introduce.h"
#include "proto/base/report.h"
#include "trainer/base/memory_plan.h"
#include "trainer/comm/comm.h"
#include "trainer/forecast/estimate.h"
#include "trainer/model/shape.h"
#include "trainer/parallel/hints.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int save_config(const struct config *config, const char *json)
{
    char path[2 * CONFIG_TEXT_MAX + 2];
    if (mkdir(config->dump_folder, 0777) != 0 && errno != EEXIST)
        return report_error(ERR_INVALID, "make its parent, or name another folder",
                            "could not make job.dump_folder %s: %s", config->dump_folder,
                            strerror(errno));
    snprintf(path, sizeof(path), "%s/%s", config->dump_folder, config->save_config_file);
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return report_error(ERR_INVALID, "name another file",
                            "could not create job.save_config_file %s: %s", path, strerror(errno));
    bool is_written = fprintf(file, "%s\n", json) > 0;
    if (fclose(file) != 0 || !is_written)
        return report_errno(ERR_IO, "could not write job.save_config_file", path);
    return 0;
}

/* "dp_replicate 2 x dp_shard 2", and the other axes with a degree above 1. */
static void describe_mesh(char out[128], const struct mesh *mesh)
{
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t axis = 0; axis < NUM_AXES; axis++)
        if (mesh->degree[axis] > 1 || axis == AXIS_REPLICATE || axis == AXIS_SHARD)
            at += (size_t)snprintf(out + at, 128 - at, "%s%s %u", at > 0 ? " x " : "",
                                   mesh_axis_name(axis), mesh->degree[axis]);
}

/* Logs the result of a budget in bytes. */
static void note_budget(const struct rank *r)
{
    uint32_t layers[NUM_MODEL_KEEPS];
    if (estimate_budget(r->config) == 0)
        return;
    parallel_count_kept(r->parallel, layers);
    log_info("train",
             "activation_checkpoint.memory_budget = %s: of this rank's layers %u keep all, %u all "
             "but norms and SwiGLU, %u their input alone",
             r->config->memory_budget, layers[MODEL_KEEP_ALL], layers[MODEL_KEEP_PRODUCTS],
             layers[MODEL_KEEP_NOTHING]);
}

static void warn_of_hints(const struct rank *r)
{
    struct hint hints[HINTS_MAX];
    uint32_t num = parallel_hints(hints, r->parallel);
    for (uint32_t i = 0; i < num; i++)
        log_warn("train", "%s", hints[i].text);
}

/* A misspelt name leaves its products in float8. */
static void warn_of_filter(const struct rank *r)
{
    char part[MODEL_PART_BYTES];
    if (r->config->is_float8 && model_names_nothing(part, r->table, r->config->float8_filter))
        log_warn("config", "quantize.linear.float8.filter_fqns: no module's name contains \"%s\"",
                 part);
}

void introduce_run(const struct rank *r)
{
    const struct config *config = r->config;
    const struct mesh *mesh = parallel_mesh_of(r->parallel);
    char type[CONFIG_TYPE_MAX], axes[128];
    if (r->world->rank != 0)
        return;
    describe_mesh(axes, mesh);
    log_info("train", "%s", config->description);
    log_info("train", "%s %s: %.2f M parameters, vocabulary %u, %s", config->text.model_name,
             shape_name(config), (double)model_shape_parameters(&r->table->shape) * 1e-6,
             r->table->shape.vocab, config_describe_type(type, config));
    log_info("train",
             "mesh %s (%s), %lld threads each, %s; a step is %lld micro-batches of %lld x %lld "
             "tokens, %s reduction",
             axes, r->world->ops->name, (long long)config->threads, kernels_describe(r->kernels),
             (long long)config->micro_batches, (long long)config->local_batch_size,
             (long long)config->seq_len, config->text.reduction);
    const struct memory *memory = parallel_memory(r->parallel);
    log_info("train", "memory plan per rank: %.1f MiB kept, %.1f MiB shared within the step",
             (double)memory_kept_bytes(memory) / 1048576.0,
             (double)memory_shared_bytes(memory) / 1048576.0);
    if (memory_host_bytes(memory) > 0)
        log_info("train", "and %.1f MiB of the host's: what the optimizer alone reads",
                 (double)memory_host_bytes(memory) / 1048576.0);
    note_budget(r);
    warn_of_hints(r);
    warn_of_filter(r);
    data_warn_of_small(r->data, (uint64_t)config->global_batch_size);
    if (!config->checkpoint_enable)
        log_warn("checkpoint",
                 "checkpoint.enable is off: nothing is saved, and the run cannot be resumed");
}

static int show_config(const struct config *config)
{
    char *json = trainer_config_to_json(config);
    if (json == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the configuration's text");
    if (config->print_config)
        log_info("config", "%s", json);
    int rc = config->save_config_file[0] != 0 ? save_config(config, json) : 0;
    free(json);
    return rc;
}

int introduce_config(const struct rank *r)
{
    return parallel_agree(r->world, r->world->rank == 0 ? show_config(r->config) : 0);
}
