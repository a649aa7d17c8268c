/* products.c - the matrix products of one Llama training step, and nothing else.
 *
 *     products DIM HIDDEN KV_DIM LAYERS VOCAB ROWS
 *
 * Command on stdin: `run`, answered with {"seconds", "flop"}: forward, input gradient and weight
 * gradient of every linear layer, over ROWS tokens in fp32 by oneDNN's sgemm with its own threads
 * (OMP_NUM_THREADS). This is what the machine's library makes of the same shapes when nothing has
 * to be bitwise and nothing else has to be done; attention's own products are left out on both
 * sides of the comparison. */
#include "tests/bench/bench.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdint.h>
#include <string.h>

struct shape {
    dnnl_dim_t in, out;
};

struct work {
    struct shape shapes[8];
    uint32_t repeat[8];
    uint32_t num_shapes;
    dnnl_dim_t rows;
    float *x, *y, *w;             /* inputs */
    float *out_x, *out_y, *out_w; /* apart from them, so that numbers do not grow */
};

static float *new_floats(dnnl_dim_t count)
{
    float *data = aligned_alloc(64, ((size_t)count * sizeof(float) + 63) / 64 * 64);
    BENCH_TRY(data == NULL, "out of memory");
    for (dnnl_dim_t i = 0; i < count; i++)
        data[i] = (float)(i % 97) * 0.01f - 0.48f;
    return data;
}

/* Forward x w^T, backward dy w, weight gradient dy^T x; all row-major. */
static void run_products(const struct work *work, const struct shape *s)
{
    dnnl_dim_t n = work->rows;
    BENCH_TRY(dnnl_sgemm('N', 'T', n, s->out, s->in, 1, work->x, s->in, work->w, s->in, 0,
                         work->out_y, s->out),
              "forward");
    BENCH_TRY(dnnl_sgemm('N', 'N', n, s->in, s->out, 1, work->y, s->out, work->w, s->in, 0,
                         work->out_x, s->in),
              "input gradient");
    BENCH_TRY(dnnl_sgemm('T', 'N', s->out, s->in, n, 1, work->y, s->out, work->x, s->in, 0,
                         work->out_w, s->in),
              "weight gradient");
}

static void run(const struct work *work)
{
    double flop = 0, began = bench_seconds();
    for (uint32_t i = 0; i < work->num_shapes; i++) {
        const struct shape *s = &work->shapes[i];
        for (uint32_t k = 0; k < work->repeat[i]; k++)
            run_products(work, s);
        flop += 6.0 * (double)(work->rows * s->in * s->out) * work->repeat[i];
    }
    printf("{\"seconds\": %.6f, \"flop\": %.0f}\n", bench_seconds() - began, flop);
}

int main(int argc, char **argv)
{
    char command[16];
    BENCH_TRY(argc != 7, "usage: products DIM HIDDEN KV_DIM LAYERS VOCAB ROWS");
    dnnl_dim_t dim = atoll(argv[1]), hidden = atoll(argv[2]), kv = atoll(argv[3]);
    dnnl_dim_t vocab = atoll(argv[5]);
    uint32_t layers = (uint32_t)atoll(argv[4]);
    struct work work = {
        .shapes = {{dim, dim}, {dim, kv}, {dim, hidden}, {hidden, dim}, {dim, vocab}},
        .repeat = {2 * layers, 2 * layers, 2 * layers, layers, 1},
        .num_shapes = 5,
        .rows = atoll(argv[6]),
    };
    dnnl_dim_t widest = hidden > vocab ? hidden : vocab;
    BENCH_TRY(dim < 1 || widest < dim || work.rows < 1, "numbers must be positive");
    work.x = new_floats(work.rows * widest);
    work.y = new_floats(work.rows * widest);
    work.w = new_floats(dim * widest);
    work.out_x = new_floats(work.rows * widest);
    work.out_y = new_floats(work.rows * widest);
    work.out_w = new_floats(dim * widest);
    while (fgets(command, sizeof command, stdin) != NULL) {
        BENCH_TRY(strcmp(command, "run\n") != 0, "unknown command on stdin");
        run(&work);
        fflush(stdout);
    }
    free(work.x);
    free(work.y);
    free(work.w);
    free(work.out_x);
    free(work.out_y);
    free(work.out_w);
    return 0;
}
