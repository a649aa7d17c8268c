/* trainer_estimate.c - the estimate for a mesh, compared with the real use of that mesh.
 *
 * Goal: memory, calls, bytes and work of a dry rank are those of the real one, for every axis and
 * mode. All ranks together work as much as the estimate's sum. The sum follows from the shape.
 * Method: one step of the tiny model on real ranks (threads), with counting kernels in front of the
 * real ones and the sums of the flight recorders; memory is the sum of the ranks' allocations. */
#include "tests/unit/parallel_bed.h"
#include "tests/unit/suite.h"
#include "trainer/forecast/estimate.h"

#define RANKS_MAX 16

/* The use of a real rank. */
struct taken {
    uint64_t kept, shared, state, work;
    struct flight_sum sums[FLIGHT_SUMS_MAX];
    uint32_t num_sums, copies;
};

struct real_step {
    struct config config;
    struct taken of[RANKS_MAX];
};

static bool is_state(const char *name, const void *user)
{
    static const char *const names[] = {"parameters",
                                        "exp_avg",
                                        "exp_avg_sq",
                                        "gradient accumulators",
                                        "sums of a group",
                                        "gradient shard",
                                        "parameters in compute dtype"};
    (void)user;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static int make_step(struct rank *r, void *user)
{
    struct real_step *s = user;
    struct taken *taken = &s->of[r->world->rank];
    struct step_result result;
    taken->kept = memory_kept_bytes(parallel_memory(r->p));
    taken->shared = memory_shared_bytes(parallel_memory(r->p));
    taken->copies = mesh_group_size(parallel_mesh_of(r->p), GROUP_COPIES);
    taken->state = memory_peak(parallel_memory(r->p), is_state, NULL);
    flight_clear_sums(r->world->flight);
    int rc = parallel_step(r->p, &(struct step_input){.ahead = r->ahead, .step = 1}, &result);
    taken->num_sums = flight_sums(r->world->flight, taken->sums);
    taken->work = kernels_counted(r->used);
    return rc;
}

static void want_same_calls(const struct dry_rank *dry, const struct taken *real)
{
    assert_int_equal(dry->num_sent, real->num_sums);
    for (uint32_t i = 0; i < dry->num_sent; i++) {
        uint32_t j = 0; /* lanes call beside each other: in any order */
        while (j < real->num_sums && (real->sums[j].kind != dry->sent[i].kind ||
                                      strcmp(real->sums[j].group, dry->sent[i].group) != 0))
            j++;
        if (j == real->num_sums || real->sums[j].calls != dry->sent[i].calls ||
            real->sums[j].bytes != dry->sent[i].bytes || real->sums[j].sent != dry->sent[i].sent)
            fail_msg("rank %u: %llu calls of %s in %s, %llu bytes, are not what the rank called",
                     dry->rank, (unsigned long long)dry->sent[i].calls,
                     comm_kind_name(dry->sent[i].kind), dry->sent[i].group,
                     (unsigned long long)dry->sent[i].bytes);
    }
}

/* Elements of the state of all ranks that are no copies of another's. */
static void want_memory(const struct dry_rank *dry, const struct taken *real, uint32_t ranks)
{
    uint64_t state = 0, elements = 0;
    for (enum module m = 0; m < NUM_MODULES; m++) {
        elements += dry->of[m].elements;
        state += dry->of[m].weights + dry->of[m].gradients + dry->of[m].optimizer;
    }
    assert_int_equal(dry->kept, real[0].kept);
    assert_int_equal(dry->shared, real[0].shared);
    assert_int_equal((state + 127) / 128, (real[0].state + 127) / 128);
    /* Parameters and two moments; copies share the work, except for rows that do not divide. */
    double image = (double)(dry->image * real[0].copies) / ((double)elements * 3 * sizeof(float));
    assert_true(image > 0.99 && image < 1.1);
    assert_true(dry->activations > 0 && dry->activations <= dry->shared + dry->kept);
    /* Of the stage; other sizes may give other gaps between the parts. */
    for (uint32_t i = 1; i < ranks; i++)
        assert_true(real[i].kept + real[i].shared <= (dry->kept + dry->shared) * 1.01);
}

static void want_estimate(uint32_t size, const char *of)
{
    struct real_step *s = calloc(1, sizeof(*s));
    struct dry_rank *stages = calloc(RANKS_MAX, sizeof(*stages));
    struct planned planned = open_planned(of);
    uint64_t work = 0;
    s->config = planned.config;
    assert_int_equal(on_ranks(size, &(struct rank_options){.config = &s->config,
                                                           .run = make_step,
                                                           .user = s,
                                                           .counts = true}),
                     0);
    assert_int_equal(estimated(stages, size, of), 0);
    uint32_t per_stage = size / (uint32_t)s->config.pp;
    for (uint32_t stage = 0; stage < (uint32_t)s->config.pp; stage++) {
        want_same_calls(&stages[stage], &s->of[stage * per_stage]);
        want_memory(&stages[stage], &s->of[stage * per_stage], per_stage);
    }
    for (uint32_t rank = 0; rank < size; rank++)
        work += s->of[rank].work;
    struct estimate_work sum = estimate_work(stages, &s->config, planned.table);
    assert_true(sum.forward > 0 && sum.backward > sum.forward);
    double all = sum.forward + sum.backward + sum.recomputation;
    if (fabs(all / (double)work - 1) > 1e-12)
        fail_msg("an estimate of %.0f FLOP, the ranks made %llu", all, (unsigned long long)work);
    close_planned(&planned);
    free(stages);
    free(s);
}

TEST(test_estimate__a_dry_rank_takes_what_the_real_one_takes)
{
    static const struct {
        uint32_t size;
        const char *of;
    } ways[] = {
        {1, "activation_checkpoint.mode=full"},
        {4, "training.mixed_precision_param=bfloat16"},
        {4, "training.mixed_precision_param=bfloat16 canonical.tp_blocks=2 "
            "parallelism.data_parallel_replicate_degree=2 model.converters=float8 "
            "quantize.linear.float8.enable_fsdp_float8_all_gather=true"},
        {3, "parallelism.data_parallel_replicate_degree=3 model.tied_embeddings=true"},
        {4, "parallelism.data_parallel_replicate_degree=2 parallelism.zero_stage=1 "
            "parallelism.bucket_cap_mb=1"},
        {4, "parallelism.data_parallel_replicate_degree=2 training.reduction=fast"},
        {4, "parallelism.data_parallel_replicate_degree=2 training.reduction=fast "
            "training.mixed_precision_reduce=bfloat16 model.tied_embeddings=true"},
        {6, "parallelism.data_parallel_replicate_degree=3 canonical.micro_batches=12 "
            "canonical.groups=4 model.tied_embeddings=true"},
        {4, "parallelism.tensor_parallel_degree=4 canonical.tp_blocks=4"},
        {4, "parallelism.tensor_parallel_degree=2 canonical.tp_blocks=4 "
            "parallelism.disable_loss_parallel=true"},
        {4, "parallelism.context_parallel_degree=2 canonical.tp_blocks=2"},
        {4, "parallelism.context_parallel_degree=4 "
            "parallelism.context_parallel_rotate_method=alltoall activation_checkpoint.mode=full"},
        {4, "parallelism.pipeline_parallel_degree=2 model.tied_embeddings=true "
            "activation_checkpoint.mode=selective"},
        {2, "parallelism.pipeline_parallel_degree=2 parallelism.pipeline_parallel_schedule=ZBH1"},
        {16, "parallelism.pipeline_parallel_degree=2 parallelism.tensor_parallel_degree=2 "
             "parallelism.context_parallel_degree=2 parallelism.data_parallel_replicate_degree=2 "
             "parallelism.pipeline_parallel_schedule=Interleaved1F1B"},
    };
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        want_estimate(ways[i].size, ways[i].of);
}

/* Bytes of the gradients that a rank keeps, of all that it keeps. */
static uint64_t gradient_bytes(const char *reduce, uint64_t *out_kept)
{
    struct dry_rank rank;
    uint64_t bytes = 0;
    const char *of = "model.flavor=debugmodel parallelism.data_parallel_replicate_degree=2"
                     " training.reduction=fast training.mixed_precision_reduce=";
    assert_int_equal(estimated(&rank, 4, settings("%s%s", of, reduce)), 0);
    for (enum module m = 0; m < NUM_MODULES; m++)
        bytes += rank.of[m].gradients;
    *out_kept = rank.kept;
    return bytes;
}

TEST(test_estimate__sums_of_bf16_take_half_the_bytes)
{
    uint64_t kept, kept_narrow, bytes = gradient_bytes("float32", &kept);
    assert_int_equal(2 * gradient_bytes("bfloat16", &kept_narrow), bytes);
    assert_int_equal(kept - kept_narrow, bytes / 2);
}

/* The use of each of the two stages of six layers; 0: it was refused. */
static void bytes_within(uint64_t out[2], const char *mode, uint64_t budget)
{
    struct dry_rank stages[2];
    const char *of = settings("model.n_layers=12 parallelism.pipeline_parallel_degree=2"
                              " activation_checkpoint.mode=%s",
                              mode);
    if (budget > 0)
        of =
            settings("%s activation_checkpoint.memory_budget=%llu", of, (unsigned long long)budget);
    int rc = estimated(stages, 2, of);
    for (int i = 0; i < 2; i++)
        out[i] = rc == 0 ? stages[i].kept + stages[i].shared : 0;
    if (rc != 0)
        assert_non_null(strstr(report_message(), "activation_checkpoint.memory_budget"));
}

/* From keeping everything down to nothing: an estimate's own memory fits, and with one byte less
 * the next mode is chosen. */
TEST(test_estimate__a_budget_in_bytes_is_filled_as_far_as_layers_allow)
{
    uint64_t most[2], least[2], now[2], last = 0;
    uint32_t steps = 0;
    bytes_within(most, "none", 0);
    bytes_within(least, "full", 0);
    for (uint64_t budget = most[0]; budget > 0; budget = now[0] > 0 ? now[0] - 1 : 0, steps++) {
        bytes_within(now, "memory_budget", budget);
        assert_true(now[0] <= budget && now[1] <= budget);
        assert_true(steps > 0 || now[0] == most[0]);
        last = now[0] > 0 ? now[0] : last;
    }
    assert_int_equal(last, least[0] > least[1] ? least[0] : least[1]);
    assert_true(steps > 6); /* each layer counts, once or twice */
    want_estimate(2, settings("model.n_layers=12 parallelism.pipeline_parallel_degree=2"
                              " activation_checkpoint.mode=memory_budget"
                              " activation_checkpoint.memory_budget=%llu",
                              (unsigned long long)(most[0] + last) / 2));
}

/* In MiB: 384 for a peer of the machine, or for a ring, on all channels; 128 for the network. */
static uint64_t nccl_of(uint32_t size, const char *of)
{
    struct dry_rank stages[4];
    assert_int_equal(
        estimated(stages, size, settings("kernels.device=cuda comm.backend=nccl %s", of)), 0);
    assert_true(stages[0].gpu.context > 0 && stages[0].gpu.libraries > 0);
    return stages[0].gpu.nccl >> 20;
}

TEST(test_estimate__nccl_takes_buffers_for_peers_of_the_machine_rings_and_the_network)
{
    assert_int_equal(nccl_of(1, ""), 0);
    /* Gradients go to each owner; parameters and losses go around. */
    assert_int_equal(nccl_of(4, ""), (3 + 1 + 1) * 384);
    assert_int_equal(nccl_of(4, "memory_estimation.machine_ranks=2"), (1 + 1 + 1) * 384 + 128);
    /* Shards of several sizes are sent. */
    assert_int_equal(nccl_of(3, ""), (2 + 2 + 1) * 384);
    assert_int_equal(nccl_of(4, "training.reduction=fast"), (1 + 1 + 1) * 384);
    /* A boundary between stages; losses go to the first. */
    assert_int_equal(nccl_of(2, "parallelism.pipeline_parallel_degree=2"), (1 + 1) * 384);
    assert_int_equal(nccl_of(4, "parallelism.pipeline_parallel_degree=4 model.n_layers=4"
                                " memory_estimation.machine_ranks=1"),
                     128 + 384);
}

/* Four machines of four: of a leaf's gradient 12 / 15 leave one, of a machine's sum 3 / 16. */
TEST(test_estimate__a_machines_sum_leaves_it_in_place_of_its_leaves)
{
    const char *of = "memory_estimation.enable=true memory_estimation.machine_ranks=4"
                     " canonical.micro_batches=16 canonical.groups=%d";
    struct dry_rank leaves, sums;
    uint64_t gradient = 0;
    assert_int_equal(estimated(&leaves, 16, settings(of, 1)), 0);
    assert_int_equal(estimated(&sums, 16, settings(of, 4)), 0);
    for (uint32_t i = 0; i < leaves.num_sent; i++)
        if (leaves.sent[i].kind == COMM_ALL_TO_ALL)
            gradient += leaves.sent[i].sent / 15 * 16;
    double less = (double)(leaves.away - sums.away), all = (double)gradient;
    assert_float_equal(less, all * (12 - 3) / 16, 0.01 * all);
}

TEST(test_estimate__graphs_are_of_a_step_with_one_leaf_and_of_what_is_folded_behind_it)
{
    struct dry_rank one, more, none;
    const char *of = "kernels.device=cuda model.n_layers=2 canonical.micro_batches=%d %s";
    assert_int_equal(estimated(&one, 1, settings(of, 1, "")), 0);
    assert_int_equal(estimated(&more, 1, settings(of, 4, "")), 0);
    assert_int_equal(estimated(&none, 1, settings(of, 1, "kernels.graphs=false")), 0);
    /* Four blocks forward, backward and updated, each of 20 nodes. */
    assert_int_equal(one.gpu.graphs, 4 * 3 * 20 * (64 << 10));
    /* Three of them have weights' gradients of products. */
    assert_int_equal(more.gpu.graphs, one.gpu.graphs + 3 * 20 * (64 << 10));
    assert_int_equal(none.gpu.graphs, 0);
}

static uint64_t workspace_of(const char *of)
{
    struct dry_rank rank;
    const char *whole = "kernels.device=cuda model.n_layers=1 model.dim=512 model.n_heads=8"
                        " model.n_kv_heads=2 training.seq_len=4096 canonical.micro_batches=1"
                        " training.mixed_precision_param=bfloat16 %s";
    assert_int_equal(estimated(&rank, 1, settings(whole, of)), 0);
    return rank.gpu.workspace;
}

TEST(test_estimate__a_librarys_workspace_is_that_of_attention_where_cudnn_has_it)
{
    const uint64_t of_cublas = 32 << 20, of_cudnn = 8 * 4096 * (2 * 4096 + 4 * 64);
    assert_int_equal(workspace_of(""), of_cudnn);
    assert_int_equal(workspace_of("model.n_kv_heads=8"), of_cudnn - 8 * 4096 * 4 * 64);
    assert_int_equal(workspace_of("training.mixed_precision_param=float32"), of_cublas);
    assert_int_equal(workspace_of("model.n_heads=16"), of_cublas); /* of 32 values each */
    assert_int_equal(workspace_of("training.document_mask=true"), of_cublas);
    assert_int_equal(workspace_of("kernels.attention=own"), of_cublas);
    assert_int_equal(workspace_of("memory_estimation.rank_gib=4"), of_cublas);
    assert_int_equal(workspace_of("kernels.device=cpu"), 0);
}

/* Rank 1 of three: the bytes that leave it, summed by kind. */
TEST(test_estimate__bytes_sent_are_those_that_leave_the_rank)
{
    struct comm *world, *pair;
    struct flight_sum sums[FLIGHT_SUMS_MAX];
    struct comm_request request;
    const size_t send[] = {1, 20, 300}, recv[] = {4, 20, 60}, counts[] = {5, 7, 9},
                 at[] = {0, 0, 0};
    int64_t numbers[6];
    char to[64] = {0};
    assert_int_equal(comm_dry_open(&world, 1, 3), 0);
    assert_int_equal(COMM_CALL(world, .kind = COMM_SPLIT, .out = &pair, .group_size = 2), 0);
    pair->name = "pair";
    flight_clear_sums(world->flight);
    assert_int_equal(comm_all_to_all_v(world, to, send, at, to, recv, at), 0);
    assert_int_equal(comm_all_gather_v(world, to, 20, to, recv, at), 0);
    assert_int_equal(comm_all_reduce_i64(world, numbers, 6), 0);
    assert_int_equal(comm_reduce_scatter_floats(world, to, to, counts, sizeof(float)), 0);
    assert_int_equal(comm_broadcast(world, to, 50, 1), 0);
    assert_int_equal(comm_broadcast(world, to, 50, 2), 0);
    assert_int_equal(comm_send(world, 2, 16, to, 11, &request), 0);
    assert_int_equal(comm_receive(world, 0, 16, to, 13), 0);
    assert_int_equal(comm_broadcast(pair, to, 17, 0), 0);
    static const struct {
        const char *group;
        enum comm_kind kind;
        uint64_t calls, sent;
    } want[] = {{"world", COMM_ALL_TO_ALL, 1, 301}, {"world", COMM_ALL_GATHER, 1, 40},
                {"world", COMM_SUM_I64, 1, 64},     {"world", COMM_REDUCE_SCATTER, 1, 56},
                {"world", COMM_BROADCAST, 2, 100},  {"world", COMM_SEND, 1, 11},
                {"world", COMM_RECEIVE, 1, 0},      {"pair", COMM_BROADCAST, 1, 17}};
    assert_int_equal(flight_sums(world->flight, sums), sizeof(want) / sizeof(want[0]));
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        assert_string_equal(sums[i].group, want[i].group);
        assert_int_equal(sums[i].kind, want[i].kind);
        assert_int_equal(sums[i].calls, want[i].calls);
        assert_int_equal(sums[i].sent, want[i].sent);
    }
    comm_free(pair);
    comm_free(world);
}

static uint64_t gathered_by_shards(const char *gathers_codes)
{
    struct dry_rank rank;
    uint64_t sent = 0;
    const char *of = "model.flavor=debugmodel model.converters=float8"
                     " training.mixed_precision_param=bfloat16"
                     " quantize.linear.float8.enable_fsdp_float8_all_gather=";
    assert_int_equal(estimated(&rank, 4, settings("%s%s", of, gathers_codes)), 0);
    for (uint32_t i = 0; i < rank.num_sent; i++)
        if (strcmp(rank.sent[i].group, "dp_shard") == 0)
            sent += rank.sent[i].sent;
    return sent;
}

/* Nearly all of that model is weights of float8 products. */
TEST(test_estimate__codes_halve_what_shards_gather)
{
    uint64_t numbers = gathered_by_shards("false"), codes = gathered_by_shards("true");
    assert_true(2 * codes > numbers && 2 * codes < numbers + numbers / 20);
}

/* Of each of 11 leaves all other rows' logits come, in place of a part of them and back; and the
 * losses need not go. Memory: the logits of all 32 rows in place of 8, twice. */
TEST(test_estimate__logits_that_are_gathered_whole_are_counted)
{
    struct dry_rank cut, whole;
    uint64_t logits = 32 * 4096 * sizeof(float);
    const char *of = "parallelism.tensor_parallel_degree=4 model.vocab_size=4096"
                     " parallelism.disable_loss_parallel=";
    assert_int_equal(estimated(&cut, 4, settings("%sfalse", of)), 0);
    assert_int_equal(estimated(&whole, 4, settings("%strue", of)), 0);
    uint64_t more = estimate_traffic(&whole, TRAFFIC_TP) - estimate_traffic(&cut, TRAFFIC_TP);
    assert_int_equal(more, 11 * (logits * 3 / 4 - 2 * (logits / 4 * 3 / 4) - 32 / 4 * 4 * 3));
    uint64_t took = whole.kept + whole.shared - cut.kept - cut.shared;
    assert_true(took > logits && took <= 2 * (logits - logits / 4) + 4096);
}

/* Products alone: weights times tokens, and pairs of a query and a key. */
TEST(test_estimate__work_follows_from_the_shape)
{
    const char *of = "activation_checkpoint.mode=full";
    struct planned planned = open_planned(of);
    const struct model_table *table = planned.table;
    struct dry_rank rank;
    assert_int_equal(estimated(&rank, 1, of), 0);
    const struct model_shape *s = &table->shape;
    struct estimate_work work = estimate_work(&rank, &planned.config, table);
    double tokens = 11.0 * 32, width = (double)s->heads * s->head_dim;
    double layers = 0, down = (double)s->layers * s->dim * s->hidden; /* w2: into the stream */
    double output = (double)s->vocab * s->dim;
    for (uint32_t i = 0; i < table->num_tensors; i++)
        if (table->tensors[i].dims == 2 && strstr(table->tensors[i].name, "layers") != NULL)
            layers += (double)table->tensors[i].rows * (double)table->tensors[i].width;
    double attention = width * s->layers * 11.0 * (32.0 * 33 / 2); /* heads, widths and pairs */
    assert_true(work.forward == 2 * (layers + output) * tokens + 4 * attention);
    assert_true(work.recomputation == 2 * (layers - down) * tokens + 4 * attention);
    assert_true(work.backward == 4 * (layers + output) * tokens + 10 * attention);
    close_planned(&planned);
}

/* Of a stage each tensor belongs to one module, and all stages together have the model. */
TEST(test_estimate__modules_have_all_parameters_once)
{
    const char *of =
        "parallelism.pipeline_parallel_degree=2 parallelism.data_parallel_shard_degree=1";
    struct planned planned = open_planned(of);
    struct dry_rank stages[2];
    uint64_t elements = 0;
    assert_int_equal(estimated(stages, 2, of), 0);
    for (int stage = 0; stage < 2; stage++)
        for (enum module m = 0; m < NUM_MODULES; m++)
            elements += stages[stage].of[m].elements;
    assert_int_equal(elements, model_shape_parameters(&planned.table->shape));
    assert_int_equal(stages[0].of[MODULE_OUTPUT].elements, 0);
    assert_int_equal(stages[1].of[MODULE_EMBEDDING].elements, 0);
    assert_int_equal(stages[1].of[MODULE_OUTPUT].elements,
                     (planned.table->shape.vocab + 1) * (uint64_t)planned.table->shape.dim);
    close_planned(&planned);
}

SUITE(make_tokens, remove_tokens)
