/* clients_group.c - see clients_bed.h: the model, its layouts and values, and groups of ranks. */
#include "tests/unit/clients_bed.h"

const struct model_tensor model[TENSORS] = {
    {"tok_embeddings.weight", "F32", 2, 4, {517, 1300, 0, 0}},
    {"layers.0.attention.wq.weight", "BF16", 2, 2, {700, 811, 0, 0}},
    {"layers.0.attention_norm.weight", "F32", 1, 4, {37, 0, 0, 0}},
    {"optimizer.exp_avg.tok_embeddings.weight", "F32", 2, 4, {517, 1300, 0, 0}},
    {"experts", "F16", 4, 2, {3, 5, 7, 11}},
    {"optimizer.step", "I64", 0, 8, {0}},
    {"mask", "U8", 3, 1, {13, 1, 29, 0}},
    {"tiny", "F64", 1, 8, {2, 0, 0, 0}},
};

uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 33) * 0xff51afd7ed558ccdull;
    value = (value ^ value >> 33) * 0xc4ceb9fe1a85ec53ull;
    return value ^ value >> 33;
}

void cut(uint64_t *out_offset, uint64_t *out_extent, uint64_t random, uint64_t length,
         uint32_t parts, uint32_t index)
{
    uint64_t cuts[RANKS_MAX + 1] = {0};
    cuts[parts] = length;
    for (uint32_t i = 1; i < parts; i++) {
        uint64_t cut = draw(&random, length + 1);
        uint32_t at = i;
        for (; at > 1 && cuts[at - 1] > cut; at--)
            cuts[at] = cuts[at - 1];
        cuts[at] = cut;
    }
    *out_offset = cuts[index];
    *out_extent = cuts[index + 1] - cuts[index];
}

static uint32_t draw_divisor(uint64_t *random, uint32_t number)
{
    uint32_t divisor;
    do
        divisor = 1 + (uint32_t)draw(random, number);
    while (number % divisor != 0);
    return divisor;
}

void place(struct ckpt_tensor *out, uint32_t index, uint64_t seed, uint32_t rank, uint32_t world)
{
    const struct model_tensor *tensor = &model[index];
    uint64_t random = seed * 1000 + index;
    *out = (struct ckpt_tensor){.name = tensor->name, .dtype = tensor->dtype, .dims = tensor->dims};
    for (uint32_t d = 0; d < tensor->dims; d++)
        out->shape[d] = out->extent[d] = tensor->shape[d];
    uint32_t replicas = tensor->dims == 0 ? world : draw_divisor(&random, world);
    uint32_t parts = tensor->dims < 2 ? world / replicas : draw_divisor(&random, world / replicas);
    uint32_t other = world / replicas / parts, d = 0, e = 0;
    if (tensor->dims > 0)
        d = (uint32_t)draw(&random, tensor->dims);
    if (tensor->dims > 1)
        e = (d + 1 + (uint32_t)draw(&random, tensor->dims - 1)) % tensor->dims;
    uint32_t place = rank / replicas;
    if (parts > 1)
        cut(&out->offset[d], &out->extent[d], random, out->shape[d], parts, place / other);
    if (other > 1)
        cut(&out->offset[e], &out->extent[e], random + 1, out->shape[e], other, place % other);
}

static uint64_t value_of(uint32_t tensor, uint64_t step, uint64_t global)
{
    return mix(global + ((uint64_t)tensor << 40) + (step << 48));
}

uint64_t values(const struct ckpt_tensor *tensor, uint32_t index, uint64_t step, bool fill)
{
    unsigned char *at = tensor->data;
    uint32_t bytes = model[index].bytes;
    uint64_t wrong = 0, elements = tensor_elements(tensor);
    for (uint64_t i = 0; i < elements; i++, at += bytes) {
        uint64_t rest = i, global = 0, stride = 1;
        for (uint32_t d = tensor->dims; d-- > 0;) {
            global += (tensor->offset[d] + rest % tensor->extent[d]) * stride;
            rest /= tensor->extent[d];
            stride *= tensor->shape[d];
        }
        uint64_t value = value_of(index, step, global);
        if (fill)
            memcpy(at, &value, bytes);
        else
            wrong += memcmp(at, &value, bytes) != 0;
    }
    return wrong;
}

int rank_failed(struct group *group, const char *what, uint32_t rank)
{
    group->failures++;
    fprintf(stderr, "# rank %u of %u: %s: %s\n", rank, group->world, what, ckpt_error());
    return -1;
}

struct rank_start {
    struct group *group;
    uint32_t rank;
};

static int run_rank(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                    uint32_t rank)
{
    bool is_ready = ckpt != NULL;
    if (is_ready && rank == 0 && ckpt_attempt_open(ckpt, &group->attempt, NULL, NULL) != 0)
        rank_failed(group, "attempt", rank);
    pthread_barrier_wait(&group->barrier);
    if (group->failures > 0)
        return -1;
    if (ckpt_describe(ckpt, group->attempt, tensors, TENSORS) != 0)
        return rank_failed(group, "describe", rank);
    return group->work(group, ckpt, tensors, rank);
}

static void *rank_main(void *argument)
{
    const struct rank_start *start = argument;
    struct group *group = start->group;
    struct ckpt_tensor tensors[TENSORS];
    struct ckpt *ckpt = NULL;
    for (uint32_t i = 0; i < TENSORS; i++) {
        place(&tensors[i], i, group->seed, start->rank, group->world);
        tensors[i].data = malloc(tensor_elements(&tensors[i]) * model[i].bytes + 1);
    }
    if (ckpt_open(&ckpt, &(struct ckpt_options){.server = group->server,
                                                .run = RUN,
                                                .rank = start->rank,
                                                .world_size = group->world,
                                                .describe_ms = group->describe_ms}) != 0)
        rank_failed(group, "open", start->rank);
    run_rank(group, ckpt, tensors, start->rank);
    ckpt_close(ckpt);
    for (uint32_t i = 0; i < TENSORS; i++)
        free(tensors[i].data);
    return NULL;
}

int run_group(struct group *group)
{
    pthread_t threads[RANKS_MAX];
    struct rank_start starts[RANKS_MAX];
    pthread_barrier_init(&group->barrier, NULL, group->world);
    for (uint32_t rank = 0; rank < group->world; rank++) {
        starts[rank] = (struct rank_start){group, rank};
        pthread_create(&threads[rank], NULL, rank_main, &starts[rank]);
    }
    for (uint32_t rank = 0; rank < group->world; rank++)
        pthread_join(threads[rank], NULL);
    pthread_barrier_destroy(&group->barrier);
    return group->failures;
}

int copy_all(struct ckpt_save *save, struct ckpt_tensor *tensors, uint64_t step)
{
    for (uint32_t i = 0; i < TENSORS; i++) {
        uint32_t index = (i * 3 + (uint32_t)step) % TENSORS; /* in another order each time */
        values(&tensors[index], index, step, true);
        ckpt_save_copy(save, index);
        if (tensors[index].data != NULL) /* the copy is the save's: this must not reach it */
            memset(tensors[index].data, 0xee,
                   tensor_elements(&tensors[index]) * model[index].bytes);
    }
    return ckpt_save_end(save);
}

int work_save(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors, uint32_t rank)
{
    struct ckpt_save *save;
    const char *state = "{\n \"mark\" : 1,\n \"said\": \"a  \\\"b\" }"; /* of any layout */
    if (ckpt_save_begin(ckpt, &save, group->step, rank == 0 ? state : NULL) != 0)
        return rank_failed(group, "begin", rank);
    if (copy_all(save, tensors, group->step) != 0)
        return rank_failed(group, "end", rank);
    if (ckpt_save_wait(ckpt, group->step, 30000) != 0)
        return rank_failed(group, "wait", rank);
    return 0;
}

int save_together(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                  uint32_t rank, uint64_t step, bool until_committed)
{
    struct ckpt_save *save = NULL;
    pthread_barrier_wait(&group->barrier);
    if (rank == 0)
        group->votes = 0;
    pthread_barrier_wait(&group->barrier);
    uint64_t begin = now_ns();
    int error = ckpt_save_begin(ckpt, &save, step, rank == 0 ? "{\"mark\":1}" : NULL);
    uint64_t took = now_ns() - begin;
    if (rank == 0 && took > group->begin_ns_max)
        group->begin_ns_max = took;
    if (error != 0 && error != CKPT_UNAVAILABLE && error != CKPT_BUSY && error != CKPT_ABORTED)
        rank_failed(group, "begin", rank);
    if (error == 0)
        group->votes++;
    pthread_barrier_wait(&group->barrier);
    if (group->votes < (int)group->world) {
        if (error == 0)
            ckpt_save_abort(save);
        return CKPT_UNAVAILABLE;
    }
    error = copy_all(save, tensors, step);
    return error != 0 || !until_committed ? error : ckpt_save_wait(ckpt, step, 20000);
}

int check_values(struct group *group, struct ckpt_tensor *tensors, uint64_t step, uint32_t rank)
{
    for (uint32_t i = 0; i < TENSORS; i++) {
        uint64_t wrong = values(&tensors[i], i, step, false);
        if (wrong == 0)
            continue;
        fprintf(stderr, "# rank %u: %s: %llu elements are wrong\n", rank, model[i].name,
                (unsigned long long)wrong);
        group->failures++;
    }
    return 0;
}

int work_load(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors, uint32_t rank)
{
    struct ckpt_loaded *loaded;
    struct ckpt_load_options options = {.step =
                                            group->step != 0 ? (int64_t)group->step : CKPT_NEWEST};
    if (ckpt_load(ckpt, &options, &loaded) != 0)
        return rank_failed(group, "load", rank);
    check_values(group, tensors, loaded->info.step, rank);
    if (strstr(loaded->state_json, "\"mark\"") == NULL)
        group->failures++;
    pthread_barrier_wait(&group->barrier);
    if (rank == 0)
        group->loaded_step = loaded->info.step;
    __atomic_fetch_add(&group->bytes_memory, loaded->bytes_memory, __ATOMIC_RELAXED);
    __atomic_fetch_add(&group->bytes_local, loaded->bytes_local, __ATOMIC_RELAXED);
    ckpt_loaded_free(loaded);
    pthread_barrier_wait(&group->barrier);
    return 0;
}

int load_alone(struct group *group, struct ckpt_tensor *tensors, const char *run, uint64_t step,
               uint32_t connect_ms)
{
    struct ckpt *reader = NULL;
    struct ckpt_loaded *loaded = NULL;
    int error = ckpt_open(&reader, &(struct ckpt_options){.server = group->server,
                                                          .run = run,
                                                          .world_size = 1,
                                                          .connect_ms = connect_ms});
    if (error == 0)
        error = ckpt_load(reader,
                          &(struct ckpt_load_options){
                              .step = (int64_t)step, .tensors = tensors, .num_tensors = TENSORS},
                          &loaded);
    if (error == 0) {
        check_values(group, tensors, step, 0);
        group->bytes_local += loaded->bytes_local;
        ckpt_loaded_free(loaded);
    }
    ckpt_close(reader);
    return error;
}
