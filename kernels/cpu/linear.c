/* linear.c - matrix products by oneDNN. Only this file uses it.
 *
 * An item is some whole rows of the result: one library call on one thread. The bits of a call
 * depend on its shape, strides and types and on the library's own choice of instructions, none of
 * which depends on the number of threads. At most two shapes occur in a product: the last item may
 * have fewer rows.
 *
 * Primitives are kept by shape, at most ENTRIES_MAX; the oldest is replaced. An entry has memory
 * objects for every thread of the pool, so running an item allocates nothing here and uses nothing
 * shared. Scratchpads are the caller's memory. Products that need more than LIBRARY_SCRATCH, or
 * that the library cannot make on this machine (bf16 without AVX-512), are refused here;
 * isa/product.c makes them.
 *
 * The library is built on OpenMP. Each thread that calls it sets its own OpenMP thread count to 1
 * first, which is a per-thread setting and stays. Each struct library has its own engine, streams
 * and primitives. oneDNN locks its process-wide data, so threads of ranks do not interfere.
 *
 * A folded product is made in the thread's scratch, item by item, and added from there: the
 * library's own addition has another order.
 *
 * `tests/bench/run -k products` compares the cost with one call on the whole matrix. Items are not
 * cut into columns, because the library is fastest with dense results. */
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/items.h"
#include "proto/base/report.h"

#define ENTRIES_MAX 256

/* The key of a primitive: the item's shape and the strides. */
struct key {
    uint32_t m, n, k, accumulate, in, out;
    uint64_t a_row, a_column, b_row, b_column;
};
_Static_assert(sizeof(struct key) == 6 * 4 + 4 * 8, "keys are compared by their bytes: no padding");

struct library_entry {
    struct key key;
    bool usable; /* false: the library refused it; not tried again */
    dnnl_primitive_t primitive;
    dnnl_memory_t *memory; /* [threads][4]: src, weights, dst, scratchpad */
};

struct library {
    dnnl_engine_t engine;
    dnnl_stream_t streams[THREADS_MAX];
    uint32_t num_threads, num_entries, oldest;
    struct library_entry entries[ENTRIES_MAX];
    char name[64];
};

static dnnl_data_type_t type_of(uint32_t dtype)
{
    return dtype == KERNEL_F32 ? dnnl_f32 : dnnl_bf16;
}

static void entry_deinit(struct library_entry *entry, uint32_t num_threads)
{
    for (uint32_t i = 0; entry->memory && i < 4 * num_threads; i++)
        dnnl_memory_destroy(entry->memory[i]);
    free(entry->memory);
    dnnl_primitive_destroy(entry->primitive);
    *entry = (struct library_entry){0};
}

struct descriptions {
    dnnl_memory_desc_t src, weights, dst;
};

static bool describe(struct descriptions *out, const struct key *key)
{
    dnnl_dims_t a = {key->m, key->k},
                a_strides = {(dnnl_dim_t)key->a_row, (dnnl_dim_t)key->a_column};
    dnnl_dims_t b = {key->k, key->n},
                b_strides = {(dnnl_dim_t)key->b_row, (dnnl_dim_t)key->b_column};
    dnnl_dims_t c = {key->m, key->n}, c_strides = {key->n, 1};
    return !dnnl_memory_desc_init_by_strides(&out->src, 2, a, type_of(key->in), a_strides) &&
           !dnnl_memory_desc_init_by_strides(&out->weights, 2, b, type_of(key->in), b_strides) &&
           !dnnl_memory_desc_init_by_strides(&out->dst, 2, c, type_of(key->out), c_strides);
}

static bool attributes(dnnl_primitive_attr_t *out, bool accumulate)
{
    dnnl_post_ops_t post = NULL;
    bool ok = !dnnl_primitive_attr_create(out) &&
              !dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (ok && accumulate)
        ok = !dnnl_post_ops_create(&post) && !dnnl_post_ops_append_sum(post, 1.0f) &&
             !dnnl_primitive_attr_set_post_ops(*out, post);
    dnnl_post_ops_destroy(post);
    return ok;
}

static bool memories(struct library_entry *entry, struct library *library,
                     const struct descriptions *d, const dnnl_memory_desc_t *scratchpad)
{
    entry->memory = calloc((size_t)4 * library->num_threads, sizeof(dnnl_memory_t));
    if (!entry->memory)
        return false;
    const dnnl_memory_desc_t *all[4] = {&d->src, &d->weights, &d->dst, scratchpad};
    for (uint32_t i = 0; i < 4 * library->num_threads; i++)
        if (dnnl_memory_create(&entry->memory[i], all[i % 4], library->engine, DNNL_MEMORY_NONE))
            return false;
    return true;
}

/* Fills the entry; leaves it unusable when the library refuses. */
static void entry_init(struct library_entry *entry, struct library *library, const struct key *key)
{
    struct descriptions d;
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    *entry = (struct library_entry){.key = *key};
    if (!describe(&d, key) || !attributes(&attr, key->accumulate) ||
        dnnl_matmul_desc_init(&matmul, &d.src, &d.weights, NULL, &d.dst) ||
        dnnl_primitive_desc_create(&pd, &matmul, attr, library->engine, NULL))
        goto out;
    const dnnl_memory_desc_t *scratchpad =
        dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    if (dnnl_memory_desc_get_size(scratchpad) <= LIBRARY_SCRATCH &&
        !dnnl_primitive_create(&entry->primitive, pd))
        entry->usable = memories(entry, library, &d, scratchpad);
out:
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attr);
}

static struct library_entry *find(struct library *library, const struct key *key)
{
    for (uint32_t i = 0; i < library->num_entries; i++)
        if (memcmp(&library->entries[i].key, key, sizeof(*key)) == 0)
            return &library->entries[i];
    return NULL;
}

static struct library_entry *obtain(struct library *library, const struct key *key)
{
    struct library_entry *entry = find(library, key);
    if (entry)
        return entry;
    if (library->num_entries < ENTRIES_MAX) {
        entry = &library->entries[library->num_entries++];
    } else {
        entry = &library->entries[library->oldest];
        library->oldest = (library->oldest + 1) % ENTRIES_MAX;
        entry_deinit(entry, library->num_threads);
    }
    entry_init(entry, library, key);
    return entry;
}

static struct library_entry *obtain_rows(struct library *library, const struct product_args *args,
                                         uint32_t rows)
{
    struct key key = {.m = rows,
                      .n = args->n,
                      .k = args->k,
                      .accumulate = args->accumulate,
                      .in = args->in,
                      .out = args->out,
                      .a_row = args->a_row,
                      .a_column = args->a_column,
                      .b_row = args->b_row,
                      .b_column = args->b_column};
    return obtain(library, &key);
}

bool library_prepare(struct library_product *out, struct library *library,
                     const struct product_args *args)
{
    omp_set_num_threads(1);
    *out = (struct library_product){.args = args, .owner = library};
    uint32_t rest = args->m % args->item_rows;
    out->last = obtain_rows(library, args, rest ? rest : args->item_rows);
    out->whole = args->m > rest ? obtain_rows(library, args, args->item_rows) : out->last;
    return out->whole->usable && out->last->usable;
}

static void add_leaf(const struct library_product *p, struct range rows, const float *leaf,
                     const struct worker *worker)
{
    struct kernel_fold fold = {.acc = (float *)p->args->c + rows.begin * p->args->n,
                               .leaf = leaf,
                               .count = (rows.end - rows.begin) * p->args->n};
    for (uint32_t i = 0; i < divide_up(fold.count, FLAT_ITEM); i++)
        p->fold(&fold, i, worker);
}

void library_product_item(const void *product, uint32_t item, const struct worker *worker)
{
    const struct library_product *p = product;
    const struct product_args *a = p->args;
    struct range rows = item_range(item, a->item_rows, a->m);
    struct library_entry *entry = rows.end == a->m ? p->last : p->whole;
    dnnl_memory_t *memory = entry->memory + (size_t)4 * worker->index;
    char *leaf = (char *)worker->scratch + LIBRARY_SCRATCH;
    char *c = (char *)a->c + rows.begin * a->n * kernel_dtype_bytes(a->out);
    void *handles[4] = {(char *)a->a + rows.begin * a->a_row * kernel_dtype_bytes(a->in),
                        (char *)a->b, a->is_folded ? leaf : c, worker->scratch};
    dnnl_exec_arg_t args[4] = {{DNNL_ARG_SRC, memory[0]},
                               {DNNL_ARG_WEIGHTS, memory[1]},
                               {DNNL_ARG_DST, memory[2]},
                               {DNNL_ARG_SCRATCHPAD, memory[3]}};
    omp_set_num_threads(1);
    for (int i = 0; i < 4; i++)
        REQUIRE(dnnl_memory_set_data_handle(memory[i], handles[i]) == dnnl_success);
    dnnl_stream_t stream = p->owner->streams[worker->index];
    REQUIRE(dnnl_primitive_execute(entry->primitive, stream, 4, args) == dnnl_success);
    REQUIRE(dnnl_stream_wait(stream) == dnnl_success);
    if (a->is_folded)
        add_leaf(p, rows, (const float *)(const void *)leaf, worker);
}

static const char *isa_name(dnnl_cpu_isa_t isa)
{
    switch (isa) {
    case dnnl_cpu_isa_sse41:
        return "sse41";
    case dnnl_cpu_isa_avx:
        return "avx";
    case dnnl_cpu_isa_avx2:
        return "avx2";
    case dnnl_cpu_isa_avx2_vnni:
        return "avx2_vnni";
    case dnnl_cpu_isa_avx512_core:
        return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
        return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
        return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
        return "avx512_core_amx";
    default:
        return "other";
    }
}

const char *library_describe(const struct library *library)
{
    return library->name;
}

void library_free(struct library *library)
{
    if (!library)
        return;
    for (uint32_t i = 0; i < library->num_entries; i++)
        entry_deinit(&library->entries[i], library->num_threads);
    for (uint32_t i = 0; i < library->num_threads; i++)
        dnnl_stream_destroy(library->streams[i]);
    dnnl_engine_destroy(library->engine);
    free(library);
}

/* ERR_MEMORY; ERR_INTERNAL when the library does not start. */
int library_new(struct library **out, uint32_t num_threads)
{
    *out = NULL;
    struct library *library = calloc(1, sizeof(*library));
    if (!library)
        return ERR_MEMORY;
    library->num_threads = num_threads;
    dnnl_set_verbose(0);
    bool ok = !dnnl_engine_create(&library->engine, dnnl_cpu, 0);
    for (uint32_t i = 0; ok && i < num_threads; i++)
        ok = !dnnl_stream_create(&library->streams[i], library->engine, dnnl_stream_in_order);
    if (!ok) {
        library_free(library);
        return ERR_INTERNAL;
    }
    const dnnl_version_t *version = dnnl_version();
    snprintf(library->name, sizeof(library->name), "oneDNN %d.%d.%d %s", version->major,
             version->minor, version->patch, isa_name(dnnl_get_effective_cpu_isa()));
    *out = library;
    return 0;
}
