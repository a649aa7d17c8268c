/* estimate.c - estimates a step on a mesh (see estimate.h): combines and prints the ranks of
 * forecast/dry.c. */
#include "trainer/forecast/estimate.h"
#include "proto/base/json.h"
#include "proto/base/report.h"
#include "trainer/model/shape.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const double mib = 1 << 20;

int estimate_ranks(struct dry_rank *stages, const struct config *config,
                   const struct model_table *table, struct kernels *kernels, uint32_t num_ranks,
                   FILE *plan)
{
    uint32_t num_stages = (uint32_t)config->pp;
    struct dry_options options = {
        .config = config, .table = table, .kernels = kernels, .size = num_ranks, .plan = plan};
    for (uint32_t stage = 0; stage < num_stages; stage++) {
        options.rank = num_ranks / num_stages * stage;
        if (plan != NULL)
            fprintf(plan, "rank %u of %u\n", options.rank, num_ranks);
        ERR_TRY(dry_run(&stages[stage], &options));
    }
    return 0;
}

/* ---- sums ---- */

struct estimate_work estimate_work(const struct dry_rank *stages, const struct config *config,
                                   const struct model_table *table)
{
    struct estimate_work sum = {0};
    double leaves = (double)config->micro_batches;
    double tokens = leaves * (double)config->local_batch_size * (double)config->seq_len;
    for (int64_t stage = 0; stage < config->pp; stage++) {
        const uint64_t *work = stages[stage].work;
        /* tp and cp cut each leaf's work evenly, and every leaf has the same work. */
        double ranks = leaves / stages[stage].leaves * (double)(config->tp * config->cp);
        sum.forward += ranks * (double)work[OP_FORWARD];
        sum.recomputation += ranks * (double)work[OP_RECOMPUTE];
        sum.backward += ranks * (double)(work[OP_BACKWARD] + work[OP_BACKWARD_INPUT] +
                                         work[OP_BACKWARD_WEIGHT]);
    }
    sum.model = tokens * model_flops_per_token(table, (uint32_t)config->seq_len);
    return sum;
}

static const char *const traffic_names[NUM_TRAFFIC] = {"pp", "dp", "cp", "tp", "world"};

static enum traffic traffic_of(const char *group)
{
    static const struct {
        const char *group;
        enum traffic traffic;
    } list[] = {{"pp", TRAFFIC_PP},      {"dp", TRAFFIC_DP},       {"dp_shard", TRAFFIC_DP},
                {"copies", TRAFFIC_DP},  {"owners", TRAFFIC_DP},   {"peers", TRAFFIC_DP},
                {"replica", TRAFFIC_DP}, {"replicas", TRAFFIC_DP}, {"cp", TRAFFIC_CP},
                {"ring", TRAFFIC_CP},    {"sums", TRAFFIC_DP},     {"tp", TRAFFIC_TP}};
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
        if (strcmp(list[i].group, group) == 0)
            return list[i].traffic;
    return TRAFFIC_WORLD;
}

uint64_t estimate_traffic(const struct dry_rank *rank, enum traffic traffic)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < rank->num_sent; i++)
        sum += traffic_of(rank->sent[i].group) == traffic ? rank->sent[i].sent : 0;
    return sum;
}

int64_t estimate_budget(const struct config *config)
{
    return config->ac_mode == RECOMPUTE_BUDGET ? config->budget_bytes : 0;
}

/* ---- text ---- */

static void print_gpu(const struct dry_rank *r)
{
    const struct gpu_memory *gpu = &r->gpu;
    uint64_t all = r->kept + r->shared + gpu->context + gpu->libraries + gpu->graphs + gpu->nccl +
                   gpu->workspace;
    printf("%-28s %12.2f  estimated, like the next four: trainer/plan/gpu_memory.c has sources\n",
           "CUDA's context", (double)gpu->context / mib);
    printf("%-28s %12.2f  code and handles\n", "cuBLASLt, cuDNN, kernels",
           (double)gpu->libraries / mib);
    printf("%-28s %12.2f  by the batches of a step\n", "CUDA graphs", (double)gpu->graphs / mib);
    printf("%-28s %12.2f  by its formula for peers and channels\n", "NCCL's buffers",
           (double)gpu->nccl / mib);
    printf("%-28s %12.2f  cuBLASLt's, or cuDNN's for gradients of attention where that is more\n",
           "libraries' workspace", (double)gpu->workspace / mib);
    printf("%-28s %12.2f  about\n", "of a GPU in all", (double)all / mib);
}

static void print_stage(const struct dry_rank *r, const struct config *config)
{
    uint32_t num_stages = (uint32_t)config->pp;
    printf("\nrank %u, stage %u of %u: %u leaves of the step\n", r->rank, r->stage_rank, num_stages,
           r->leaves);
    printf("%-28s %12s %12s %12s %12s %12s\n", "module, in MiB", "M elements", "weights",
           "gradients", "optimizer", "activations");
    for (enum module m = 0; m < NUM_MODULES; m++)
        printf("%-28s %12.2f %12.2f %12.2f %12.2f %12.2f\n", module_name(m),
               (double)r->of[m].elements * 1e-6, (double)r->of[m].weights / mib,
               (double)r->of[m].gradients / mib, (double)r->of[m].optimizer / mib,
               (double)r->of[m].activations / mib);
    printf("%-28s %12.2f  the most at a time, all modules\n", "activations",
           (double)r->activations / mib);
    printf("%-28s %12.2f  parameters, gradients, streams\n", "on their way",
           (double)r->gathered / mib);
    printf("%-28s %12.2f  partial sums, tokens, the kernels' scratch\n", "other",
           (double)r->scratch / mib);
    printf("%-28s %12.2f  to the byte, of which %.2f MiB are kept for the whole run\n",
           "the rank takes", (double)(r->kept + r->shared) / mib, (double)r->kept / mib);
    if (config->device == DEVICE_CUDA)
        print_gpu(r);
    if (r->host > 0)
        printf("%-28s %12.2f  parameters and moments (training.enable_cpu_offload)\n",
               "and of the host's memory", (double)r->host / mib);
    printf("%-28s %12u  and %u all but norms and SwiGLU, %u their input alone\n",
           "layers that keep all", r->layers[MODEL_KEEP_ALL], r->layers[MODEL_KEEP_PRODUCTS],
           r->layers[MODEL_KEEP_NOTHING]);
    if (estimate_budget(config) > 0)
        printf("%-28s %12.2f  the most that the rank may take\n", "memory_budget",
               (double)config->budget_bytes / mib);
    printf("%-28s %12.2f  in ckptd's memory, per image\n", "checkpoint image",
           (double)r->image / mib);
    printf("%-28s", "sent in a step, MiB");
    for (enum traffic t = 0; t < NUM_TRAFFIC; t++)
        printf("  %s %.2f", traffic_names[t], (double)estimate_traffic(r, t) / mib);
    printf(
        "\n%-28s %12.2f  MiB over its own link; a ring's, over those of all ranks of a machine\n",
        "of it to other machines", (double)r->away / mib);
}

static void print_text(const struct config *config, const struct model_table *table,
                       const struct dry_rank *stages, uint32_t num_ranks)
{
    struct estimate_work work = estimate_work(stages, config, table);
    int64_t others = config->pp * config->dp_replicate * config->cp * config->tp;
    for (int64_t stage = 0; stage < config->pp; stage++)
        print_stage(&stages[stage], config);
    printf("\n%s %s, %.2f M parameters, vocabulary %u\n", config->text.model_name,
           shape_name(config), (double)model_shape_parameters(&table->shape) * 1e-6,
           table->shape.vocab);
    printf("%u ranks: pp %" PRId64 " x dp_replicate %" PRId64 " x dp_shard %" PRId64
           " x cp %" PRId64 " x tp %" PRId64 "\n",
           num_ranks, config->pp, config->dp_replicate, (int64_t)num_ranks / others, config->cp,
           config->tp);
    printf("a step: %" PRId64 " micro-batches of %" PRId64 " x %" PRId64 " tokens\n",
           config->micro_batches, config->local_batch_size, config->seq_len);
    printf(
        "TFLOP of a step: forward %.3f, backward %.3f, recomputation %.3f (2 N I O of a product, "
        "causal attention);\n"
        "by 6 P + 12 L H D T for each token %.3f\n",
        work.forward * 1e-12, work.backward * 1e-12, work.recomputation * 1e-12,
        work.model * 1e-12);
    printf("bubble %.1f %% of the schedule, where forward, input's and weight's gradient take one "
           "unit each\n",
           100 * stages[0].bubble);
    printf("The first rank of each stage is counted: it has the most leaves and the largest shard, "
           "all others at most as much.\n");
    for (uint32_t i = 0; i < stages[0].num_hints; i++)
        printf("hint %s: %s\n", stages[0].hints[i].id, stages[0].hints[i].text);
}

/* ---- JSON ---- */

static json_t *json_of_modules(const struct dry_rank *r)
{
    json_t *all = json_object();
    for (enum module m = 0; m < NUM_MODULES; m++)
        json_object_set_new(
            all, module_name(m),
            json_pack("{s:I, s:I, s:I, s:I, s:I}", "elements", (json_int_t)r->of[m].elements,
                      "weights", (json_int_t)r->of[m].weights, "gradients",
                      (json_int_t)r->of[m].gradients, "optimizer", (json_int_t)r->of[m].optimizer,
                      "activations", (json_int_t)r->of[m].activations));
    return all;
}

static json_t *json_of_calls(const struct dry_rank *r)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < r->num_sent; i++)
        json_array_append_new(all, json_pack("{s:s, s:s, s:I, s:I, s:I}", "group", r->sent[i].group,
                                             "call", comm_kind_name(r->sent[i].kind), "calls",
                                             (json_int_t)r->sent[i].calls, "bytes",
                                             (json_int_t)r->sent[i].bytes, "sent",
                                             (json_int_t)r->sent[i].sent));
    return all;
}

static json_t *json_of_stage(const struct dry_rank *r)
{
    json_t *sent = json_object();
    for (enum traffic t = 0; t < NUM_TRAFFIC; t++)
        json_object_set_new(sent, traffic_names[t],
                            json_integer((json_int_t)estimate_traffic(r, t)));
    json_t *layers = json_pack("{s:I, s:I, s:I}", "all", (json_int_t)r->layers[MODEL_KEEP_ALL],
                               "products", (json_int_t)r->layers[MODEL_KEEP_PRODUCTS], "input",
                               (json_int_t)r->layers[MODEL_KEEP_NOTHING]);
    json_t *gpu =
        json_pack("{s:I, s:I, s:I, s:I, s:I}", "context", (json_int_t)r->gpu.context, "libraries",
                  (json_int_t)r->gpu.libraries, "graphs", (json_int_t)r->gpu.graphs, "nccl",
                  (json_int_t)r->gpu.nccl, "workspace", (json_int_t)r->gpu.workspace);
    return json_pack(
        "{s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:o, s:I, s:o, s:o}", "rank",
        (json_int_t)r->rank, "stage", (json_int_t)r->stage_rank, "leaves", (json_int_t)r->leaves,
        "modules", json_of_modules(r), "activations", (json_int_t)r->activations, "on_their_way",
        (json_int_t)r->gathered, "other", (json_int_t)r->scratch, "kept", (json_int_t)r->kept,
        "shared", (json_int_t)r->shared, "host", (json_int_t)r->host, "gpu_about", gpu,
        "checkpoint_image", (json_int_t)r->image, "sent", sent, "sent_away", (json_int_t)r->away,
        "calls", json_of_calls(r), "layers_keep", layers);
}

static json_t *json_of_hints(const struct dry_rank *r)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < r->num_hints; i++)
        json_array_append_new(
            all, json_pack("{s:s, s:s}", "id", r->hints[i].id, "text", r->hints[i].text));
    return all;
}

int estimate_print_json(json_t *all)
{
    int rc = all != NULL && json_dumpf(all, stdout, JSON_INDENT(2)) == 0
                 ? 0
                 : report_error(ERR_MEMORY, NULL, "could not print the estimate as JSON");
    printf("\n");
    json_decref(all);
    return rc;
}

static int print_json(const struct config *config, const struct model_table *table,
                      const struct dry_rank *stages, uint32_t num_ranks)
{
    struct estimate_work work = estimate_work(stages, config, table);
    json_t *list = json_array();
    for (int64_t stage = 0; stage < config->pp; stage++)
        json_array_append_new(list, json_of_stage(&stages[stage]));
    json_t *all = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:f, s:f, s:f, s:f}, s:f, s:o, s:o}", "model",
        shape_name(config), "parameters", (json_int_t)model_shape_parameters(&table->shape),
        "ranks", (json_int_t)num_ranks, "micro_batches", (json_int_t)config->micro_batches,
        "local_batch_size", (json_int_t)config->local_batch_size, "seq_len",
        (json_int_t)config->seq_len, "memory_budget", (json_int_t)estimate_budget(config), "flop",
        "forward", work.forward, "backward", work.backward, "recomputation", work.recomputation,
        "model", work.model, "bubble", stages[0].bubble, "stages", list, "hints",
        json_of_hints(&stages[0]));
    return estimate_print_json(all);
}

int estimate_print(const struct config *config, const struct model_table *table,
                   struct kernels *kernels, uint32_t num_ranks)
{
    struct dry_rank *stages = calloc((size_t)config->pp, sizeof(*stages));
    if (stages == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the stages of an estimate");
    int rc = estimate_ranks(stages, config, table, kernels, num_ranks,
                            config->estimate_json ? NULL : stdout);
    if (rc == 0 && config->estimate_json)
        rc = print_json(config, table, stages, num_ranks);
    else if (rc == 0)
        print_text(config, table, stages, num_ranks);
    free(stages);
    return rc;
}
