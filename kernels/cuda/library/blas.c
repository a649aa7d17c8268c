/* blas.c - products by cuBLASLt (blas.h).
 *
 * The library's matrices are column-major, so c = a b is requested as c^T = b^T a^T: its first
 * operand is b, its rows are the columns here. Sums are float and rounded once: parts of a sum over
 * k may only be added in float. Two products of the same shape with a common operand are a batch
 * whose strides are the distances of their matrices. The data of a shape (descriptors, algorithm)
 * are made once and kept; of SHAPES_MAX shapes the oldest is replaced.
 *
 * Lock: guards the kept shapes; it is held while a product is queued. */
#include "kernels/cuda/library/blas.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/library/lookup.h"
#include "proto/base/report.h"

#define SHAPES_MAX 256u
#define OPERAND_ALIGN 16u /* cuda_product_fits requires it of rows */

#define CALLS(X)                    \
    X(Create)                       \
    X(Destroy)                      \
    X(GetVersion)                   \
    X(MatmulDescCreate)             \
    X(MatmulDescDestroy)            \
    X(MatmulDescSetAttribute)       \
    X(MatrixLayoutCreate)           \
    X(MatrixLayoutDestroy)          \
    X(MatrixLayoutSetAttribute)     \
    X(MatmulPreferenceCreate)       \
    X(MatmulPreferenceDestroy)      \
    X(MatmulPreferenceSetAttribute) \
    X(MatmulAlgoGetHeuristic)       \
    X(MatmulAlgoCheck)              \
    X(Matmul)

struct calls {
#define X(name) __typeof__(cublasLt##name) *name;
    CALLS(X)
#undef X
};

/* The properties that decide an algorithm. */
struct key {
    uint32_t m, n, k;
    uint32_t a_by_k, b_by_k, is_added, is_float, is_float8, a_is_e5m2;
    int32_t batch;
};
struct shape {
    struct key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c; /* here: the library's second, first, and result */
    bool has_algorithm;             /* false: the library has none for this shape */
    cublasLtMatmulAlgo_t algorithm;
};

struct cuda_blas {
    struct cuda_library base;
    struct calls calls;
    cublasLtHandle_t handle;
    void *library; /* of dlopen; NULL: the program has the symbols */
    char description[48];
    pthread_mutex_t lock;
    struct shape shapes[SHAPES_MAX];
    uint32_t num_shapes, oldest;
};

/* ---- Opening ---- */

static bool find_library(struct cuda_blas *blas)
{
    static const char *const names[] = {
#define X(name) "cublasLt" #name,
        CALLS(X)
#undef X
    };
    return cuda_lookup(&blas->library, &blas->calls, names, sizeof(names) / sizeof(names[0]),
                       "libcublasLt.so." CUDA_TEXT(CUBLAS_VER_MAJOR));
}

static int multiply(const struct cuda_library *library, const struct cuda_call *call,
                    const struct product *p);

int cuda_blas_open(struct cuda_blas **out)
{
    struct cuda_blas *blas = calloc(1, sizeof(*blas));
    *out = NULL;
    if (!blas)
        return report_error(ERR_MEMORY, NULL, "no memory for a GPU's products");
    blas->base.multiply = multiply;
    pthread_mutex_init(&blas->lock, NULL);
    if (!find_library(blas)) {
        cuda_blas_close(blas);
        return 0;
    }
    cublasStatus_t status = blas->calls.Create(&blas->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        blas->handle = NULL;
        cuda_blas_close(blas);
        return report_error(ERR_UNAVAILABLE, NULL, "CUDA: cuBLASLt does not start (status %d)",
                            (int)status);
    }
    snprintf(blas->description, sizeof(blas->description), "cuBLASLt %zu",
             blas->calls.GetVersion());
    *out = blas;
    return 0;
}

static void drop_shape(struct cuda_blas *blas, struct shape *shape)
{
    if (shape->product)
        blas->calls.MatmulDescDestroy(shape->product);
    cublasLtMatrixLayout_t layouts[] = {shape->a, shape->b, shape->c};
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
        if (layouts[i])
            blas->calls.MatrixLayoutDestroy(layouts[i]);
    memset(shape, 0, sizeof(*shape));
}

void cuda_blas_close(struct cuda_blas *blas)
{
    if (!blas)
        return;
    for (uint32_t i = 0; i < blas->num_shapes; i++)
        drop_shape(blas, &blas->shapes[i]);
    if (blas->handle)
        blas->calls.Destroy(blas->handle);
    if (blas->library)
        dlclose(blas->library);
    pthread_mutex_destroy(&blas->lock);
    free(blas);
}

const char *cuda_blas_describe(const struct cuda_blas *blas)
{
    return blas ? blas->description : "own products";
}

/* ---- A shape ---- */

/* [rows, k] here, or [k, rows]; column-major it is reversed. */
static cublasStatus_t make_layout(const struct cuda_blas *blas, cublasLtMatrixLayout_t *out,
                                  const struct key *key, bool is_a)
{
    uint32_t rows = is_a ? key->m : key->n, k = key->is_float8 ? 2 * key->k : key->k;
    bool by_k = is_a ? key->a_by_k : key->b_by_k;
    cudaDataType_t type = !key->is_float8          ? CUDA_R_16BF
                          : is_a && key->a_is_e5m2 ? CUDA_R_8F_E5M2
                                                   : CUDA_R_8F_E4M3;
    return blas->calls.MatrixLayoutCreate(out, type, by_k ? k : rows, by_k ? rows : k,
                                          by_k ? k : rows);
}

/* The distances between the matrices of two products; 0: the same matrix. */
struct strides {
    int64_t a, b, c; /* in values */
};

static cublasStatus_t set_strides(const struct cuda_blas *blas, const struct shape *s,
                                  const struct strides *by)
{
    const struct {
        cublasLtMatrixLayout_t of;
        int64_t stride;
    } layouts[] = {{s->a, by->a}, {s->b, by->b}, {s->c, by->c}};
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < 3 && status == CUBLAS_STATUS_SUCCESS; i++)
        status = blas->calls.MatrixLayoutSetAttribute(
            layouts[i].of, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &layouts[i].stride,
            sizeof(layouts[i].stride));
    return status;
}

/* The algorithm of a batch is chosen for adjacent matrices, and used for any places. */
static cublasStatus_t make_batch(const struct cuda_blas *blas, const struct shape *s)
{
    const struct key *key = &s->key;
    cublasLtMatrixLayout_t layouts[] = {s->a, s->b, s->c};
    struct strides dense = {.c = (int64_t)key->m * key->n};
    *(key->a_by_k ? &dense.b : &dense.a) = (int64_t)(key->a_by_k ? key->n : key->m) * key->k;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < 3 && status == CUBLAS_STATUS_SUCCESS; i++)
        status = blas->calls.MatrixLayoutSetAttribute(
            layouts[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &key->batch, sizeof(key->batch));
    return status == CUBLAS_STATUS_SUCCESS ? set_strides(blas, s, &dense) : status;
}

static cublasStatus_t make_descriptors(const struct cuda_blas *blas, struct shape *s)
{
    const struct key *key = &s->key;
    cublasOperation_t first = key->b_by_k ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = key->a_by_k ? CUBLAS_OP_N : CUBLAS_OP_T;
    cublasStatus_t status =
        blas->calls.MatmulDescCreate(&s->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = blas->calls.MatmulDescSetAttribute(s->product, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                                    sizeof(first));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = blas->calls.MatmulDescSetAttribute(s->product, CUBLASLT_MATMUL_DESC_TRANSB,
                                                    &second, sizeof(second));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(blas, &s->a, key, true);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(blas, &s->b, key, false);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = blas->calls.MatrixLayoutCreate(&s->c, key->is_float ? CUDA_R_32F : CUDA_R_16BF,
                                                key->n, key->m, key->n);
    return status == CUBLAS_STATUS_SUCCESS && key->batch > 1 ? make_batch(blas, s) : status;
}

static cublasStatus_t set_preferences(const struct cuda_blas *blas, cublasLtMatmulPreference_t to)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, align = OPERAND_ALIGN;
    size_t workspace = BLAS_WORKSPACE_BYTES;
    cublasStatus_t status = blas->calls.MatmulPreferenceSetAttribute(
        to, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = blas->calls.MatmulPreferenceSetAttribute(
            to, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof(schemes));
    for (size_t i = 0; i < 4 && status == CUBLAS_STATUS_SUCCESS; i++)
        status = blas->calls.MatmulPreferenceSetAttribute(to, alignments[i], &align, sizeof(align));
    return status;
}

static cublasStatus_t choose_algorithm(const struct cuda_blas *blas, struct shape *s)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t best;
    int num = 0;
    cublasStatus_t status = blas->calls.MatmulPreferenceCreate(&preference);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    status = set_preferences(blas, preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = blas->calls.MatmulAlgoGetHeuristic(blas->handle, s->product, s->b, s->a, s->c,
                                                    s->c, preference, 1, &best, &num);
    blas->calls.MatmulPreferenceDestroy(preference);
    s->has_algorithm = status == CUBLAS_STATUS_SUCCESS && num > 0 &&
                       best.state == CUBLAS_STATUS_SUCCESS &&
                       best.workspaceSize <= BLAS_WORKSPACE_BYTES;
    if (s->has_algorithm)
        s->algorithm = best.algo;
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? CUBLAS_STATUS_SUCCESS : status;
}

struct choice {
    bool is_there; /* false: the library has none */
    cublasLtMatmulAlgo_t algorithm;
};
/* Uses an earlier choice, if the library still offers it for this shape. */
static cublasStatus_t take_algorithm(const struct cuda_blas *blas, struct shape *s,
                                     const struct choice *known)
{
    cublasLtMatmulHeuristicResult_t asked;
    if (!known->is_there)
        return CUBLAS_STATUS_SUCCESS;
    cublasStatus_t status = blas->calls.MatmulAlgoCheck(blas->handle, s->product, s->b, s->a, s->c,
                                                        s->c, &known->algorithm, &asked);
    s->has_algorithm =
        status == CUBLAS_STATUS_SUCCESS && asked.workspaceSize <= BLAS_WORKSPACE_BYTES;
    s->algorithm = known->algorithm;
    return s->has_algorithm ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static const struct shape *find_shape(const struct cuda_blas *blas, const struct key *key)
{
    for (uint32_t i = 0; i < blas->num_shapes; i++)
        if (memcmp(&blas->shapes[i].key, key, sizeof(*key)) == 0)
            return &blas->shapes[i];
    return NULL;
}

static void say_none(const struct key *key)
{
    log_info("kernels",
             "cuBLASLt has no algorithm for %d product(s) of %u x %u with %u terms in %s: our own "
             "kernels compute them, which may be slower",
             key->batch, key->m, key->n, key->k, key->is_float8 ? "float8" : "bf16");
}

/* Adds a shape with its algorithm: `known`, or NULL: the library's choice. Returns NULL with the
 * reason in *out_status. */
static const struct shape *add_shape(struct cuda_blas *blas, const struct key *key,
                                     const struct choice *known, cublasStatus_t *out_status)
{
    bool is_full = blas->num_shapes == SHAPES_MAX;
    struct shape *shape = &blas->shapes[is_full ? blas->oldest++ % SHAPES_MAX : blas->num_shapes];
    drop_shape(blas, shape);
    shape->key = *key;
    *out_status = make_descriptors(blas, shape);
    if (*out_status == CUBLAS_STATUS_SUCCESS)
        *out_status = known ? take_algorithm(blas, shape, known) : choose_algorithm(blas, shape);
    if (*out_status != CUBLAS_STATUS_SUCCESS) {
        drop_shape(blas, shape);
        return NULL;
    }
    if (!shape->has_algorithm)
        say_none(key);
    blas->num_shapes += !is_full;
    return shape;
}

/* Call with the lock held. NULL: *out_status has the reason. */
static const struct shape *shape_of(struct cuda_blas *blas, const struct product *p, int32_t batch,
                                    cublasStatus_t *out_status)
{
    bool is_float8 = p->scale_a != NULL;
    bool is_added = p->is_added && !p->is_folded; /* a leaf has the algorithm of a single product */
    const struct key key = {p->m,     p->n,        p->k,      p->a_by_k,    p->b_by_k,
                            is_added, p->is_float, is_float8, p->a_is_e5m2, batch};
    const struct shape *found = find_shape(blas, &key);
    return found ? found : add_shape(blas, &key, NULL, out_status);
}

/* ---- Choices as text ---- */

/* "M N K FLAGS BATCH ALGORITHM", the last in hexadecimal; NO_ALGORITHM: the library has none. */
#define LINE_BYTES 256u
#define WORDS (sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t))
#define NO_ALGORITHM "none"

static size_t write_line(char *out, const struct shape *s)
{
    const struct key *k = &s->key;
    int at = snprintf(out, LINE_BYTES, "%u %u %u %u%u%u%u%u%u %d ", k->m, k->n, k->k, k->a_by_k,
                      k->b_by_k, k->is_added, k->is_float, k->is_float8, k->a_is_e5m2, k->batch);
    for (size_t i = 0; i < WORDS && s->has_algorithm; i++)
        at += snprintf(out + at, LINE_BYTES - (size_t)at, "%016llx",
                       (unsigned long long)s->algorithm.data[i]);
    return (size_t)at + (size_t)snprintf(out + at, LINE_BYTES - (size_t)at, "%s\n",
                                         s->has_algorithm ? "" : NO_ALGORITHM);
}

char *cuda_blas_choices(struct cuda_blas *blas)
{
    size_t at = 0;
    if (!blas)
        return calloc(1, 1);
    pthread_mutex_lock(&blas->lock);
    char *text = calloc(blas->num_shapes + 1, LINE_BYTES);
    if (text && blas->num_shapes > 0)
        at = (size_t)snprintf(text, LINE_BYTES, "%s\n", blas->description);
    for (uint32_t i = 0; i < blas->num_shapes && text; i++)
        at += write_line(text + at, &blas->shapes[i]);
    pthread_mutex_unlock(&blas->lock);
    return text;
}

/* Returns false if it is no such line. */
static bool read_line(const char *line, struct key *k, struct choice *out)
{
    int at = 0;
    *k = (struct key){0};
    if (sscanf(line, "%u %u %u %1u%1u%1u%1u%1u%1u %d %n", &k->m, &k->n, &k->k, &k->a_by_k,
               &k->b_by_k, &k->is_added, &k->is_float, &k->is_float8, &k->a_is_e5m2, &k->batch,
               &at) < 10)
        return false;
    out->is_there = strncmp(line + at, NO_ALGORITHM, strlen(NO_ALGORITHM)) != 0;
    if (out->is_there && strcspn(line + at, "\n") != 16 * WORDS)
        return false;
    for (size_t i = 0; i < WORDS && out->is_there; i++) {
        unsigned long long word;
        if (sscanf(line + at + 16 * i, "%16llx", &word) != 1)
            return false;
        out->algorithm.data[i] = word;
    }
    return true;
}

/* Call with the lock held. */
static bool take_line(struct cuda_blas *blas, const char *line)
{
    struct key key;
    struct choice choice;
    cublasStatus_t status;
    return read_line(line, &key, &choice) && !find_shape(blas, &key) &&
           add_shape(blas, &key, &choice, &status) != NULL;
}

void cuda_blas_choose(struct cuda_blas *blas, const char *choices, struct kernel_choices *out)
{
    const char *line = strchr(choices, '\n');
    size_t name = line ? (size_t)(line - choices) : 0;
    bool is_same =
        blas && strlen(blas->description) == name && strncmp(blas->description, choices, name) == 0;
    if (blas)
        pthread_mutex_lock(&blas->lock);
    for (; line && line[1] != '\0'; line = strchr(line + 1, '\n'))
        *(is_same && take_line(blas, line + 1) ? &out->taken : &out->not_offered) += 1;
    if (blas)
        pthread_mutex_unlock(&blas->lock);
}

/* ---- A product ---- */

static int cuda_error_of(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS        ? cudaSuccess
           : status == CUBLAS_STATUS_ALLOC_FAILED ? cudaErrorMemoryAllocation
                                                  : cudaErrorUnknown;
}

/* The scales of float8 operands: they are read when the product runs. */
static cublasStatus_t set_scales(const struct cuda_blas *blas, const struct shape *s,
                                 const struct product *p)
{
    cublasStatus_t status = blas->calls.MatmulDescSetAttribute(
        s->product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->scale_b, sizeof(p->scale_b));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = blas->calls.MatmulDescSetAttribute(
            s->product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->scale_a, sizeof(p->scale_a));
    return status;
}

/* The strides of a product and the next one. Returns false if they are no batch. */
static bool find_strides(const struct product *p, struct strides *out)
{
    const struct product_next *next = &p->next[0];
    int64_t operand = (const char *)next->operand - (const char *)(p->a_by_k ? p->b : p->a);
    int64_t c = (const char *)next->c - (const char *)p->c;
    *out = (struct strides){.c = c / (p->is_float ? 4 : 2)};
    *(p->a_by_k ? &out->b : &out->a) = operand / 2;
    return next->size == (p->a_by_k ? p->n : p->m) && operand > 0 && c > 0;
}

static cublasStatus_t set_places(const struct cuda_blas *blas, const struct shape *s,
                                 const struct product *p, const struct strides *strides)
{
    if (s->key.batch > 1)
        return set_strides(blas, s, strides);
    return p->scale_a ? set_scales(blas, s, p) : CUBLAS_STATUS_SUCCESS;
}

/* The first `batch` products. */
static int multiply_batch(struct cuda_blas *blas, const struct cuda_call *call,
                          const struct product *p, int32_t batch, const struct strides *strides)
{
    const float alpha = 1, beta = p->is_added ? 1 : 0;
    char *workspace = (char *)(((uintptr_t)call->scratch + BLAS_ALIGN - 1) & ~(BLAS_ALIGN - 1));
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    pthread_mutex_lock(&blas->lock);
    const struct shape *s = shape_of(blas, p, batch, &status);
    bool has_algorithm = s && s->has_algorithm;
    if (has_algorithm)
        status = set_places(blas, s, p, strides);
    if (has_algorithm && status == CUBLAS_STATUS_SUCCESS)
        status = blas->calls.Matmul(blas->handle, s->product, &alpha, p->b, s->b, p->a, s->a, &beta,
                                    p->c, s->c, p->c, s->c, &s->algorithm, workspace,
                                    BLAS_WORKSPACE_BYTES, call->stream);
    pthread_mutex_unlock(&blas->lock);
    if (status != CUBLAS_STATUS_SUCCESS || has_algorithm)
        return cuda_error_of(status);
    struct product own = *p;
    own.num_next = (uint32_t)batch - 1;
    return p->scale_a ? cuda_product_float8(call, &own) : cuda_product_mma(call, &own);
}

/* The last two are one call if possible: only the shapes decide this, and so the bits. */
static int multiply(const struct cuda_library *library, const struct cuda_call *call,
                    const struct product *p)
{
    int error = cudaSuccess;
    for (uint32_t i = 0; i <= p->num_next && error == cudaSuccess;) {
        const struct product one = product_at(p, i);
        struct strides strides = {0};
        int32_t batch = one.num_next == 1 && find_strides(&one, &strides) ? 2 : 1;
        error = multiply_batch((struct cuda_blas *)library, call, &one, batch, &strides);
        i += (uint32_t)batch;
    }
    return error;
}
