/* dnn.c - attention by cuDNN (dnn.h).
 *
 * A plan is an engine of the library with all its choices made, for one graph. The first engine of
 * the library's heuristics is used that repeats its bits and that the library accepts. Without a
 * device the library is asked about a GPU with given properties. Of PLANS_MAX plans the oldest is
 * replaced.
 *
 * Scratch of a backward: delta, a float for each query and head, then the plan's workspace.
 *
 * Lock: guards the plans and the handle; it is held while attention is queued. */
#include "kernels/cuda/library/dnn.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/library/dnn_graph.h"
#include "kernels/cuda/library/lookup.h"
#include "proto/base/report.h"

#define PLANS_MAX 32u
#define CHOICES_MAX 8     /* of the heuristics */
#define VERSION_MIN 90800 /* properties of a device, and graphs without a handle */

struct plan {
    struct dnn_key key;
    struct dnn_graph graph;
    cudnnBackendDescriptor_t engine, plan; /* NULL: the library has none for this shape */
    size_t delta_bytes, workspace_bytes;
};

struct cuda_dnn {
    struct dnn_calls calls;
    cudnnHandle_t handle;            /* NULL: without a device */
    cudnnBackendDescriptor_t device; /* its properties; NULL: the handle has them */
    void *library;                   /* of dlopen; NULL: the program has the symbols */
    char description[48];
    char why[256]; /* the library's last refusal */
    size_t workspace_max;
    bool is_broken; /* a plan failed while scratch was computed: attention fails as well */
    pthread_mutex_t lock;
    struct plan plans[PLANS_MAX];
    uint32_t num_plans, oldest;
};

/* ---- Opening ---- */

static bool find_library(struct cuda_dnn *dnn)
{
    static const char *const names[] = {
#define X(name) "cudnn" #name,
        DNN_CALLS(X)
#undef X
    };
    return cuda_lookup(&dnn->library, &dnn->calls, names, sizeof(names) / sizeof(names[0]),
                       "libcudnn.so." CUDA_TEXT(CUDNN_MAJOR)) &&
           dnn->calls.GetVersion() >= VERSION_MIN;
}

static int start(struct cuda_dnn *dnn, const char *properties)
{
    struct dnn_maker m = {.calls = &dnn->calls, .status = CUDNN_STATUS_SUCCESS};
    if (!properties) {
        m.status = dnn->calls.Create(&dnn->handle);
    } else {
        dnn_begin(&m, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
        dnn_set(&m, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                (int64_t)strlen(properties), properties);
        dnn->device = dnn_end(&m);
    }
    if (m.status == CUDNN_STATUS_SUCCESS)
        return 0;
    dnn->handle = NULL;
    return report_error(ERR_UNAVAILABLE, NULL, "CUDA: cuDNN does not start (status %d)",
                        (int)m.status);
}

static int open_library(struct cuda_dnn **out, const char *properties)
{
    struct cuda_dnn *dnn = calloc(1, sizeof(*dnn));
    int error = 0;
    *out = NULL;
    if (!dnn)
        return report_error(ERR_MEMORY, NULL, "no memory for a GPU's attention");
    pthread_mutex_init(&dnn->lock, NULL);
    bool is_there = find_library(dnn);
    if (is_there)
        error = start(dnn, properties);
    if (!is_there || error != 0) {
        cuda_dnn_close(dnn);
        return error;
    }
    snprintf(dnn->description, sizeof(dnn->description), "cuDNN %zu", dnn->calls.GetVersion());
    *out = dnn;
    return 0;
}

int cuda_dnn_open(struct cuda_dnn **out, size_t memory_bytes)
{
    int error = open_library(out, NULL);
    if (*out)
        (*out)->workspace_max = memory_bytes / DNN_WORKSPACE_PART;
    return error;
}

int cuda_dnn_open_for(struct cuda_dnn **out, const char *properties)
{
    int error = open_library(out, properties);
    if (error == 0 && !*out)
        error = report_error(ERR_UNAVAILABLE, NULL, "CUDA: cuDNN %d.%d or newer was not found",
                             VERSION_MIN / 10000, VERSION_MIN / 100 % 100);
    return error;
}

static void drop_plan(struct cuda_dnn *dnn, struct plan *plan)
{
    if (plan->plan)
        dnn->calls.BackendDestroyDescriptor(plan->plan);
    if (plan->engine)
        dnn->calls.BackendDestroyDescriptor(plan->engine);
    dnn_graph_free(&plan->graph, &dnn->calls);
    memset(plan, 0, sizeof(*plan));
}

void cuda_dnn_close(struct cuda_dnn *dnn)
{
    if (!dnn)
        return;
    for (uint32_t i = 0; i < dnn->num_plans; i++)
        drop_plan(dnn, &dnn->plans[i]);
    if (dnn->device)
        dnn->calls.BackendDestroyDescriptor(dnn->device);
    if (dnn->handle)
        dnn->calls.Destroy(dnn->handle);
    if (dnn->library)
        dlclose(dnn->library);
    pthread_mutex_destroy(&dnn->lock);
    free(dnn);
}

const char *cuda_dnn_describe(const struct cuda_dnn *dnn)
{
    return dnn ? dnn->description : "own attention";
}

/* ---- Plans ---- */

static void set_device(const struct cuda_dnn *dnn, struct dnn_maker *m,
                       cudnnBackendAttributeName_t name)
{
    if (dnn->device)
        dnn_set(m, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &dnn->device);
}

/* Gets one number or descriptor, or as many as fit. */
static int64_t get(struct dnn_maker *m, cudnnBackendDescriptor_t from,
                   cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t room,
                   void *out)
{
    int64_t count = 0;
    if (m->status == CUDNN_STATUS_SUCCESS)
        m->status = m->calls->BackendGetAttribute(from, name, type, room, &count, out);
    return m->status == CUDNN_STATUS_SUCCESS ? count : 0;
}

/* True if an engine with its choices adds in the same order each time. */
static bool repeats_bits(struct dnn_maker *m, cudnnBackendDescriptor_t choice)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    bool repeats = true;
    dnn_begin(m, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendDescriptor_t engine = m->at;
    get(m, choice, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    int64_t num = get(m, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                      CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
    for (int64_t i = 0; i < num; i++)
        repeats = repeats && notes[i] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    if (m->at)
        m->calls->BackendDestroyDescriptor(m->at);
    return repeats && m->status == CUDNN_STATUS_SUCCESS;
}

/* NULL: refused; m has the reason. */
static cudnnBackendDescriptor_t finish_plan(const struct cuda_dnn *dnn, struct dnn_maker *m,
                                            cudnnBackendDescriptor_t choice)
{
    dnn_begin(m, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    dnn_set(m, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &choice);
    if (dnn->handle)
        dnn_set(m, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn->handle);
    set_device(dnn, m, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
    return dnn_end(m);
}

/* Uses the first suitable choice, and frees the others. */
static cudnnStatus_t take_choice(const struct cuda_dnn *dnn, struct plan *plan,
                                 cudnnBackendDescriptor_t *choices, int64_t num)
{
    struct dnn_maker m = {.calls = &dnn->calls, .status = CUDNN_STATUS_NOT_SUPPORTED};
    for (int64_t i = 0; i < num && !plan->plan; i++) {
        m.status = CUDNN_STATUS_SUCCESS;
        if (!repeats_bits(&m, choices[i])) {
            m.status = CUDNN_STATUS_NOT_SUPPORTED;
            continue;
        }
        plan->plan = finish_plan(dnn, &m, choices[i]);
        if (plan->plan) {
            plan->engine = choices[i];
            choices[i] = NULL;
        }
    }
    int64_t bytes = 0;
    if (plan->plan)
        get(&m, plan->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
    plan->workspace_bytes = (size_t)bytes;
    return m.status;
}

static cudnnStatus_t ask_heuristics(const struct cuda_dnn *dnn, struct plan *plan)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    struct dnn_maker m = {.calls = &dnn->calls, .status = CUDNN_STATUS_SUCCESS};
    cudnnBackendDescriptor_t choices[CHOICES_MAX] = {0};
    int64_t num = 0, made = 0;
    dnn_begin(&m, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    dnn_set(&m, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
            &plan->graph.graph);
    dnn_set(&m, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    set_device(dnn, &m, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
    cudnnBackendDescriptor_t heuristics = dnn_end(&m);
    for (; made < CHOICES_MAX && m.status == CUDNN_STATUS_SUCCESS; made++) {
        dnn_begin(&m, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        choices[made] = m.at;
    }
    num = get(&m, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, made,
              choices);
    cudnnStatus_t status = m.status;
    if (status == CUDNN_STATUS_SUCCESS)
        status = take_choice(dnn, plan, choices, num);
    for (int64_t i = 0; i < made; i++)
        if (choices[i])
            dnn->calls.BackendDestroyDescriptor(choices[i]);
    if (heuristics)
        dnn->calls.BackendDestroyDescriptor(heuristics);
    return status;
}

/* True for the library's kinds of refusal; other codes are its failures, or bugs here. */
static bool is_refusal(cudnnStatus_t status)
{
    return status >= CUDNN_STATUS_NOT_SUPPORTED && status < CUDNN_STATUS_NOT_SUPPORTED + 1000;
}

static void say_none(const struct cuda_dnn *dnn, const struct dnn_key *key)
{
    log_info("kernels",
             "cuDNN has no plan for attention%s of %u sequences of %u, %u heads of %u values: our "
             "own kernels compute it, which may be slower (%s)",
             key->is_backward ? "'s gradients" : "", key->batch, key->seq, key->heads,
             key->head_dim, dnn->why);
}

/* Call with the lock held. NULL: *out_status has the reason. */
static struct plan *plan_of(struct cuda_dnn *dnn, const struct dnn_key *key,
                            cudnnStatus_t *out_status)
{
    for (uint32_t i = 0; i < dnn->num_plans; i++)
        if (memcmp(&dnn->plans[i].key, key, sizeof(*key)) == 0)
            return &dnn->plans[i];
    bool is_full = dnn->num_plans == PLANS_MAX;
    struct plan *plan = &dnn->plans[is_full ? dnn->oldest++ % PLANS_MAX : dnn->num_plans];
    size_t rows = (size_t)key->batch * key->heads * key->seq;
    drop_plan(dnn, plan);
    dnn->num_plans += !is_full;
    *out_status = dnn_graph_new(&plan->graph, &dnn->calls, dnn->handle, key);
    if (*out_status == CUDNN_STATUS_SUCCESS)
        *out_status = ask_heuristics(dnn, plan);
    if (*out_status != CUDNN_STATUS_SUCCESS)
        dnn->calls.GetLastErrorString(dnn->why, sizeof(dnn->why));
    if (*out_status != CUDNN_STATUS_SUCCESS && !is_refusal(*out_status)) {
        drop_plan(dnn, plan); /* without a key: a later call fails again */
        return NULL;
    }
    if (!plan->plan)
        say_none(dnn, key);
    plan->key = *key;
    plan->delta_bytes =
        key->is_backward ? (rows * sizeof(float) + DNN_ALIGN - 1) & ~(DNN_ALIGN - 1) : 0;
    return plan;
}

/* 0: no plan. */
static size_t scratch_of(const struct plan *plan)
{
    return plan->plan ? DNN_ALIGN + plan->delta_bytes + plan->workspace_bytes : 0;
}

static struct dnn_key key_of(const struct kernel_shapes *s, bool is_backward)
{
    return (struct dnn_key){s->batch, s->seq, s->heads, s->kv_heads, s->head_dim, is_backward};
}

static bool fits(uint32_t head_dim, enum kernel_dtype dtype)
{
    return dtype == KERNEL_BF16 && (head_dim == 64 || head_dim == 128);
}

/* Call with the lock held. */
static cudnnStatus_t make_plan(struct cuda_dnn *dnn, const struct kernel_shapes *shapes,
                               bool is_backward, size_t *out_scratch_bytes)
{
    const struct dnn_key key = key_of(shapes, is_backward);
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    const struct plan *plan = plan_of(dnn, &key, &status);
    *out_scratch_bytes = plan ? scratch_of(plan) : 0;
    return status;
}

int cuda_dnn_plan(struct cuda_dnn *dnn, const struct kernel_shapes *shapes, bool is_backward,
                  size_t *out_scratch_bytes)
{
    int error = 0;
    pthread_mutex_lock(&dnn->lock);
    cudnnStatus_t status = make_plan(dnn, shapes, is_backward, out_scratch_bytes);
    if (*out_scratch_bytes == 0)
        error = report_error(ERR_UNAVAILABLE, NULL, "CUDA: cuDNN refuses attention (status %d): %s",
                             (int)status, dnn->why);
    pthread_mutex_unlock(&dnn->lock);
    return error;
}

size_t cuda_dnn_scratch_bytes(struct cuda_dnn *dnn, const struct kernel_shapes *shapes)
{
    size_t most = 0;
    pthread_mutex_lock(&dnn->lock);
    for (int backward = 0; backward < 2 && fits(shapes->head_dim, shapes->dtype); backward++) {
        size_t bytes = 0;
        cudnnStatus_t status = make_plan(dnn, shapes, backward != 0, &bytes);
        dnn->is_broken = dnn->is_broken || (status != CUDNN_STATUS_SUCCESS && !is_refusal(status));
        if (bytes > most && bytes <= dnn->workspace_max)
            most = bytes;
    }
    pthread_mutex_unlock(&dnn->lock);
    return most;
}

/* ---- Running ---- */

struct bound {
    void *at[DNN_FIRST_VIRTUAL];
    float scale, hidden, one;
};

static cudnnStatus_t execute(struct cuda_dnn *dnn, const struct plan *plan, struct bound *bound,
                             const struct cuda_call *call)
{
    struct dnn_maker m = {.calls = &dnn->calls, .status = CUDNN_STATUS_SUCCESS};
    uintptr_t scratch = ((uintptr_t)call->scratch + DNN_ALIGN - 1) & ~(uintptr_t)(DNN_ALIGN - 1);
    void *workspace = (void *)(scratch + plan->delta_bytes), *at[DNN_FIRST_VIRTUAL];
    int64_t ids[DNN_FIRST_VIRTUAL], num = 0;
    bound->scale = 1.0f / sqrtf((float)plan->key.head_dim);
    bound->hidden = -INFINITY;
    bound->one = 1;
    bound->at[DNN_SCALE] = &bound->scale;
    bound->at[DNN_HIDDEN] = &bound->hidden;
    bound->at[DNN_ONE] = &bound->one;
    bound->at[DNN_DELTA] = (void *)scratch;
    for (int i = DNN_Q; i < DNN_FIRST_VIRTUAL; i++) {
        if (!dnn_graph_binds(&plan->key, (enum dnn_tensor)i))
            continue;
        ids[num] = i;
        at[num++] = bound->at[i];
    }
    dnn_begin(&m, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    dnn_set(&m, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, num, ids);
    dnn_set(&m, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, num, at);
    dnn_set(&m, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    cudnnBackendDescriptor_t pack = dnn_end(&m);
    if (m.status == CUDNN_STATUS_SUCCESS)
        m.status = dnn->calls.SetStream(dnn->handle, call->stream);
    if (m.status == CUDNN_STATUS_SUCCESS)
        m.status = dnn->calls.BackendExecute(dnn->handle, plan->plan, pack);
    if (pack)
        dnn->calls.BackendDestroyDescriptor(pack);
    return m.status;
}

/* The arguments of either operation. Returns false if cuDNN cannot run it. */
#define WHOLE(a)                                                           \
    (fits((a)->head_dim, (a)->dtype) && !(a)->starts && (a)->first == 0 && \
     ((a)->queries == 0 || (a)->queries == (a)->seq))

static bool take_forward(struct dnn_key *key, struct bound *to, const struct kernel_attention *a)
{
    *key = (struct dnn_key){a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, false};
    to->at[DNN_Q] = (void *)a->q;
    to->at[DNN_KEY] = (void *)a->key;
    to->at[DNN_VALUE] = (void *)a->value;
    to->at[DNN_OUT] = a->out;
    to->at[DNN_LSE] = a->lse;
    return WHOLE(a);
}

static bool take_backward(struct dnn_key *key, struct bound *to,
                          const struct kernel_attention_backward *a)
{
    *key = (struct dnn_key){a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, true};
    to->at[DNN_Q] = (void *)a->q;
    to->at[DNN_KEY] = (void *)a->key;
    to->at[DNN_VALUE] = (void *)a->value;
    to->at[DNN_OUT] = (void *)a->out;
    to->at[DNN_LSE] = (void *)a->lse;
    to->at[DNN_DOUT] = (void *)a->dout;
    to->at[DNN_DQ] = a->dq;
    to->at[DNN_DKEY] = a->dkey;
    to->at[DNN_DVALUE] = a->dvalue;
    return WHOLE(a) && !a->is_partial;
}

int cuda_dnn_run(struct cuda_dnn *dnn, const struct cuda_call *call, size_t scratch_bytes,
                 enum kernel_op op, const void *args, bool *out_is_own)
{
    struct dnn_key key;
    struct bound bound = {0};
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    *out_is_own = !(op == KERNEL_ATTENTION && take_forward(&key, &bound, args)) &&
                  !(op == KERNEL_ATTENTION_BACKWARD && take_backward(&key, &bound, args));
    if (*out_is_own)
        return cudaSuccess;
    pthread_mutex_lock(&dnn->lock);
    const struct plan *plan = dnn->is_broken ? NULL : plan_of(dnn, &key, &status);
    size_t needed = plan ? scratch_of(plan) : 0;
    *out_is_own = plan && (needed == 0 || needed > scratch_bytes || needed > dnn->workspace_max);
    if (plan && !*out_is_own)
        status = execute(dnn, plan, &bound, call);
    pthread_mutex_unlock(&dnn->lock);
    bool is_queued = plan && status == CUDNN_STATUS_SUCCESS;
    return *out_is_own || is_queued ? cudaSuccess : cudaErrorUnknown;
}
