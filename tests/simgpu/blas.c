/* blas.c - the part of cuBLASLt that is used, on simulated GPUs (simgpu.h).
 *
 * A product is computed by the CPU's back-end (kernels.h), so bits are those of the CPU. Supported
 * are the shapes that kernels.h has: dense bf16 operands, x w^T, dout w, dout^T x; for others the
 * heuristic has no algorithm. An algorithm remembers its product, and has a number (algorithm=):
 * all except number 0 have other bits, in the first value of the result. Refused are: an algorithm
 * used for another product, an operand less aligned than promised, a workspace smaller than asked
 * for, memory that the device does not know. The used workspace is overwritten with NaN.
 *
 * Each product of a batch reads and writes one stride after the product before it. Refused are
 * strides back, results that meet, and batches of float8.
 *
 * Float8 as the manual has it: the first operand transposed, the second not, k and the result's
 * rows whole sixteens, a scale of each in the device's memory, read when the product runs. */
#include <cublasLt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "kernels/kernels.h"
#include "proto/base/report.h"
#include "tests/simgpu/private.h"
#include "tests/unit/lane_bed.h"

#define WORKSPACE_ALIGN 256u /* of the library's manual, for the pointer */
#define WORKSPACE_USED ((size_t)256 << 10)
#define VERSION ((size_t)CUBLAS_VERSION)

/* NVIDIA's opaque structs hold ours. */
struct product {
    int32_t op_a, op_b, compute, scale;
    const float *scale_a, *scale_b;
};
struct layout {
    uint64_t rows, columns;
    int64_t ld, stride; /* of a batch: to the next matrix */
    int32_t type, batch;
};
struct preference {
    uint64_t workspace_bytes;
    uint32_t align[4], schemes;
};
struct problem {
    struct product product;
    struct layout a, b, c;
};
_Static_assert(sizeof(struct product) <= sizeof(cublasLtMatmulDescOpaque_t), "fits");
_Static_assert(sizeof(struct layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits");
_Static_assert(sizeof(struct preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "fits");

static void *new_zeros(size_t bytes)
{
    void *at = calloc(1, bytes);
    CHECK(at != NULL);
    return at;
}

/* ---- Handles and descriptors ---- */

size_t cublasLtGetVersion(void)
{
    return VERSION;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    cudaError_t error = simgpu_enter(__func__);
    *out = error == cudaSuccess ? new_zeros(1) : NULL;
    (void)simgpu_leave(error);
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (simgpu_fails(__func__))
        return CUBLAS_STATUS_ALLOC_FAILED;
    struct product product = {CUBLAS_OP_N, CUBLAS_OP_N, compute, scale, NULL, NULL};
    *out = new_zeros(sizeof(**out));
    memcpy(*out, &product, sizeof(product));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product)
{
    free(product);
    return CUBLAS_STATUS_SUCCESS;
}

/* An attribute, and where a descriptor of ours has it. */
struct attribute {
    int name;
    size_t at, bytes;
};
static cublasStatus_t set_attribute(void *to, const struct attribute *known, size_t num, int name,
                                    const void *value, size_t bytes)
{
    for (size_t i = 0; i < num; i++) {
        if (known[i].name != name || known[i].bytes != bytes)
            continue;
        memcpy((char *)to + known[i].at, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}
#define NUM_OF(known) (sizeof(known) / sizeof((known)[0]))

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t to,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    static const struct attribute known[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, offsetof(struct product, op_a), sizeof(int32_t)},
        {CUBLASLT_MATMUL_DESC_TRANSB, offsetof(struct product, op_b), sizeof(int32_t)},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, offsetof(struct product, scale_a), sizeof(void *)},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, offsetof(struct product, scale_b), sizeof(void *)},
    };
    if (simgpu_fails(__func__))
        return CUBLAS_STATUS_INVALID_VALUE;
    return set_attribute(to, known, NUM_OF(known), (int)attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
    struct layout layout = {rows, columns, ld, 0, type, 1};
    if (simgpu_fails(__func__) || ld < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    *out = new_zeros(sizeof(**out));
    memcpy(*out, &layout, sizeof(layout));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t to,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
    static const struct attribute known[] = {
        {CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, offsetof(struct layout, batch), sizeof(int32_t)},
        {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, offsetof(struct layout, stride),
         sizeof(int64_t)},
    };
    if (simgpu_fails(__func__))
        return CUBLAS_STATUS_INVALID_VALUE;
    return set_attribute(to, known, NUM_OF(known), (int)attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

/* The library's defaults: no workspace, operands at multiples of 256. */
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    struct preference preference = {0, {256, 256, 256, 256}, CUBLASLT_REDUCTION_SCHEME_MASK};
    if (simgpu_fails(__func__))
        return CUBLAS_STATUS_ALLOC_FAILED;
    *out = new_zeros(sizeof(**out));
    memcpy(*out, &preference, sizeof(preference));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t to,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    static const struct attribute known[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, offsetof(struct preference, workspace_bytes), 8},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, offsetof(struct preference, schemes), 4},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, offsetof(struct preference, align[0]), 4},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, offsetof(struct preference, align[1]), 4},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, offsetof(struct preference, align[2]), 4},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, offsetof(struct preference, align[3]), 4},
    };
    if (simgpu_fails(__func__))
        return CUBLAS_STATUS_INVALID_VALUE;
    return set_attribute(to, known, NUM_OF(known), (int)attribute, value, bytes);
}

/* ---- Problems ---- */

static struct problem problem_of(const void *product, const void *a, const void *b, const void *c)
{
    struct problem p;
    memset(&p, 0, sizeof(p));
    memcpy(&p.product, product, sizeof(p.product));
    memcpy(&p.a, a, sizeof(p.a));
    memcpy(&p.b, b, sizeof(p.b));
    memcpy(&p.c, c, sizeof(p.c));
    return p;
}

static bool is_float8(const struct problem *p)
{
    bool is_whole = (p->a.rows | p->a.columns) % 16 == 0;
    return p->a.type == CUDA_R_8F_E4M3 && is_whole &&
           (p->b.type == CUDA_R_8F_E4M3 || p->b.type == CUDA_R_8F_E5M2);
}

/* The result is [n, m] row by row: of which operation of kernels.h, NUM_KERNEL_OPS: of none. */
static enum kernel_op op_of(const struct problem *p)
{
    bool a_t = p->product.op_a == CUBLAS_OP_T, b_t = p->product.op_b == CUBLAS_OP_T;
    bool is_dense = p->a.ld == (int64_t)p->a.rows && p->b.ld == (int64_t)p->b.rows &&
                    p->c.ld == (int64_t)p->c.rows;
    bool is_bf16 = p->a.type == CUDA_R_16BF && p->b.type == CUDA_R_16BF;
    bool is_float = p->product.compute == CUBLAS_COMPUTE_32F && p->product.scale == CUDA_R_32F;
    if (is_dense && is_float && is_float8(p) && a_t && !b_t)
        return KERNEL_LINEAR_BACKWARD_INPUT; /* with the first operand turned */
    if (!is_dense || !is_bf16 || !is_float)
        return NUM_KERNEL_OPS;
    if (b_t)
        return a_t || p->c.type != CUDA_R_32F ? NUM_KERNEL_OPS : KERNEL_LINEAR_BACKWARD_WEIGHT;
    return a_t ? KERNEL_LINEAR : KERNEL_LINEAR_BACKWARD_INPUT;
}

static uint64_t k_of(const struct problem *p)
{
    return p->product.op_a == CUBLAS_OP_T ? p->a.rows : p->a.columns;
}

static bool is_consistent(const struct problem *p)
{
    uint64_t m = p->product.op_a == CUBLAS_OP_T ? p->a.columns : p->a.rows;
    uint64_t k_b = p->product.op_b == CUBLAS_OP_T ? p->b.columns : p->b.rows;
    uint64_t n = p->product.op_b == CUBLAS_OP_T ? p->b.rows : p->b.columns;
    bool is_one_batch = p->a.batch == p->c.batch && p->b.batch == p->c.batch;
    return m == p->c.rows && n == p->c.columns && k_of(p) == k_b && is_one_batch;
}

/* FNV-1a, 64 bits. */
static uint64_t hash_of(const struct problem *p)
{
    uint64_t hash = 0xcbf29ce484222325;
    struct problem of = *p;
    of.product.scale_a = of.product.scale_b = NULL;
    of.a.stride = of.b.stride = of.c.stride = 0;
    for (size_t i = 0; i < sizeof(of); i++)
        hash = (hash ^ ((const unsigned char *)&of)[i]) * 0x100000001b3;
    return hash;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int num_wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *num)
{
    struct problem p = problem_of(product, a, b, c);
    struct preference wishes;
    memcpy(&wishes, preference, sizeof(wishes));
    pthread_mutex_lock(&simgpu.lock);
    simgpu.counts.heuristics++;
    bool fails = simgpu_fails_locked(__func__);
    simgpu_unlock();
    *num = 0;
    if (fails || handle == NULL || num_wanted < 1 || memcmp(c, d, sizeof(*c)) != 0 ||
        !is_consistent(&p))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (op_of(&p) == NUM_KERNEL_OPS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(results, 0, sizeof(*results));
    uint64_t align = UINT64_MAX;
    for (size_t i = 0; i < 4; i++)
        align = wishes.align[i] < align ? wishes.align[i] : align;
    results->algo.data[0] = hash_of(&p);
    results->algo.data[1] = align;
    results->workspaceSize =
        wishes.workspace_bytes < WORKSPACE_USED ? wishes.workspace_bytes : WORKSPACE_USED;
    results->algo.data[2] = results->workspaceSize;
    results->algo.data[3] = simgpu.algorithm;
    results->state = CUBLAS_STATUS_SUCCESS;
    *num = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static bool is_offered(const cublasLtMatmulAlgo_t *algorithm)
{
    return algorithm->data[3] >= simgpu.dropped;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    struct problem p = problem_of(product, a, b, c);
    if (simgpu_fails(__func__) || handle == NULL || memcmp(c, d, sizeof(*c)) != 0 ||
        !is_consistent(&p) || algorithm->data[0] != hash_of(&p))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_offered(algorithm))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(result, 0, sizeof(*result)); /* its algorithm is not written */
    result->workspaceSize = algorithm->data[2];
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- A product ---- */

struct work {
    struct problem problem;
    const void *a, *b;
    void *c, *workspace;
    size_t workspace_bytes;
    uint64_t algorithm; /* its number */
    bool is_added;
};

/* The CPU that computes; used under the lock of all streams. */
static struct kernels *kernels;
static struct lane *lane;

static void open_cpu(void)
{
    struct device *device;
    if (kernels != NULL)
        return;
    struct kernels_options options = {.num_threads = 1};
    CHECK(kernels_new(&kernels, &options) == 0);
    CHECK(device_open(&device, &device_cpu, NULL) == 0);
    CHECK(lane_open(&lane, device, "blas", LANE_COMPUTES) == 0);
}

/* For the largest shape so far. */
static void take_scratch(uint32_t rows, uint32_t in, uint32_t out)
{
    struct kernel_shapes shapes = {.batch = 1,
                                   .seq = rows,
                                   .dim = in,
                                   .hidden = out,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_dim = 2,
                                   .vocab = out,
                                   .dtype = KERNEL_BF16};
    size_t bytes = kernels_scratch_bytes(kernels, &shapes);
    if (bytes <= lane->scratch_bytes)
        return;
    void *old = lane->scratch, *new = aligned_alloc(64, (bytes + 63) / 64 * 64);
    CHECK(new != NULL);
    lane_set_scratch(lane, new, bytes);
    free(old);
}

/* The number of a code of OCP's formats. */
static float number_of(unsigned char code, bool is_e5m2)
{
    int bits = is_e5m2 ? 2 : 3, lowest = is_e5m2 ? -14 : -6;
    int exponent = (code & 0x7f) >> bits, mantissa = code & ((1 << bits) - 1);
    bool is_special = is_e5m2 ? exponent == 31 : (code & 0x7f) == 0x7f;
    float number = exponent == 0
                       ? ldexpf((float)mantissa, lowest - bits)
                       : ldexpf((float)(mantissa + (1 << bits)), lowest + exponent - 1 - bits);
    if (is_special)
        number = is_e5m2 && mantissa == 0 ? INFINITY : NAN;
    return code & 0x80 ? -number : number;
}

/* Codes [rows,k] as bf16, every one exact: [rows,k], or turned. */
static uint16_t *numbers_of(const void *codes, const struct layout *layout, const float *scale,
                            bool is_turned)
{
    size_t k = layout->rows, rows = layout->columns;
    uint16_t *out = new_zeros(rows * k * sizeof(*out));
    for (size_t i = 0; i < rows * k; i++) {
        float x =
            *scale * number_of(((const unsigned char *)codes)[i], layout->type == CUDA_R_8F_E5M2);
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        out[is_turned ? i % k * rows + i / k : i] = (uint16_t)(bits >> 16);
    }
    return out;
}

static void run_operands(const struct work *w)
{
    const struct problem *p = &w->problem;
    uint32_t n = (uint32_t)p->c.rows, m = (uint32_t)p->c.columns, k = (uint32_t)k_of(p);
    bool is_partial = p->c.type == CUDA_R_32F;
    open_cpu();
    memset(w->workspace, 0xff, WORKSPACE_USED);
    switch (op_of(p)) {
    case KERNEL_LINEAR:
        take_scratch(m, k, n);
        POST(kernels, lane, linear, .out = w->c, .x = w->b, .w = w->a, .rows = m, .in = k,
             .out_dim = n, .dtype = KERNEL_BF16, .is_partial = is_partial);
        break;
    case KERNEL_LINEAR_BACKWARD_INPUT:
        take_scratch(m, n, k);
        POST(kernels, lane, linear_backward_input, .dx = w->c, .dout = w->b, .w = w->a, .rows = m,
             .in = n, .out_dim = k, .accumulate = w->is_added, .dtype = KERNEL_BF16,
             .is_partial = is_partial);
        break;
    default:
        take_scratch(k, n, m);
        POST(kernels, lane, linear_backward_weight, .dw = w->c, .dout = w->b, .x = w->a, .rows = k,
             .in = n, .out_dim = m, .dtype = KERNEL_BF16, .accumulate = w->is_added);
    }
}

static size_t element_of(const struct layout *layout)
{
    bool is_code = layout->type == CUDA_R_8F_E4M3 || layout->type == CUDA_R_8F_E5M2;
    return is_code ? 1 : layout->type == CUDA_R_32F ? 4 : 2;
}

static void run_batch(struct work *w)
{
    const struct problem *p = &w->problem;
    for (int32_t i = 0; i < p->c.batch; i++) {
        run_operands(w);
        w->a = (const char *)w->a + p->a.stride * (int64_t)element_of(&p->a);
        w->b = (const char *)w->b + p->b.stride * (int64_t)element_of(&p->b);
        w->c = (char *)w->c + p->c.stride * (int64_t)element_of(&p->c);
    }
}

static void run_product(void *args)
{
    struct work w = *(const struct work *)args;
    const struct problem *p = &w.problem;
    unsigned char *first = w.c;
    if (!is_float8(p)) {
        run_batch(&w);
    } else {
        uint16_t *a = numbers_of(w.a, &p->a, p->product.scale_a, true);
        uint16_t *b = numbers_of(w.b, &p->b, p->product.scale_b, false);
        w.a = a;
        w.b = b;
        run_operands(&w);
        free(a);
        free(b);
    }
    *first ^= w.algorithm != 0;
}

/* Page-locked memory can be, too. */
static bool can_be_touched(const void *at, size_t bytes)
{
    const struct region *region = simgpu_region(at);
    return region != NULL && (const char *)at + bytes <= region->at + region->bytes;
}

/* From the first value of a batch to the last. */
static size_t bytes_of(const struct layout *layout)
{
    size_t between = (size_t)(layout->batch - 1) * (size_t)layout->stride;
    return (layout->rows * layout->columns + between) * element_of(layout);
}

/* Results of a batch lie apart, each a whole number of `align` bytes after the one before. */
static bool is_batch_allowed(const struct problem *p, uintptr_t align)
{
    const struct layout *layouts[] = {&p->a, &p->b, &p->c};
    for (size_t i = 0; i < 3 && p->c.batch > 1; i++)
        if (layouts[i]->stride < 0 || (layouts[i]->stride * element_of(layouts[i]) & align) != 0)
            return false;
    bool are_apart = p->c.stride >= (int64_t)(p->c.rows * p->c.columns);
    return p->c.batch == 1 || (p->c.batch > 1 && are_apart && !is_float8(p));
}

/* With the lock. */
static bool is_allowed(const struct work *w, const cublasLtMatmulAlgo_t *algorithm)
{
    const struct problem *p = &w->problem;
    uintptr_t align = algorithm->data[1] - 1;
    bool is_aligned = (((uintptr_t)w->a | (uintptr_t)w->b | (uintptr_t)w->c) & align) == 0 &&
                      (uintptr_t)w->workspace % WORKSPACE_ALIGN == 0;
    bool has_scales = !is_float8(p) || (can_be_touched(p->product.scale_a, sizeof(float)) &&
                                        can_be_touched(p->product.scale_b, sizeof(float)));
    bool needs_zero_beta = op_of(p) == KERNEL_LINEAR;
    return algorithm->data[0] == hash_of(p) && is_offered(algorithm) && is_aligned && has_scales &&
           is_batch_allowed(p, align) && !(needs_zero_beta && w->is_added) &&
           w->workspace_bytes >= algorithm->data[2] &&
           can_be_touched(w->workspace, w->workspace_bytes) &&
           can_be_touched(w->a, bytes_of(&p->a)) && can_be_touched(w->b, bytes_of(&p->b)) &&
           can_be_touched(w->c, bytes_of(&p->c));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    struct work w = {.problem = problem_of(product, a_layout, b_layout, c_layout),
                     .a = a,
                     .b = b,
                     .c = d,
                     .workspace = workspace,
                     .workspace_bytes = workspace_bytes,
                     .is_added = *(const float *)beta != 0};
    cudaError_t error = simgpu_enter(__func__);
    bool is_right = handle != NULL && c == d && c_layout == d_layout &&
                    *(const float *)alpha == 1 && algorithm != NULL && simgpu_is_stream(stream);
    cublasStatus_t status = error != cudaSuccess ? CUBLAS_STATUS_EXECUTION_FAILED
                            : !is_right || !is_allowed(&w, algorithm) ? CUBLAS_STATUS_INVALID_VALUE
                                                                      : CUBLAS_STATUS_SUCCESS;
    if (status == CUBLAS_STATUS_SUCCESS) {
        w.algorithm = algorithm->data[3];
        simgpu.counts.products++;
        simgpu_post(stream, simgpu_new_op(OP_WORK, &(struct simgpu_work){.run = run_product}, &w,
                                          sizeof(w)));
    }
    (void)simgpu_leave(error);
    return status;
}
