/* graphs.c - queues posts of a lane at once, as a CUDA graph (graphs.h).
 *
 * Steps repeat their batches in the same order, so the search begins after the graph that was found
 * last. */
#include "kernels/cuda/graphs.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/report.h"

#define POSTS_MIN 2 /* fewer save no time */
#define ALIGN sizeof(max_align_t)

struct graph {
    char *posts; /* the captured posts */
    size_t bytes;
    cudaGraphExec_t exec;
};

struct cuda_graphs {
    cudaStream_t stream;
    cuda_queue_fn *queue;
    void *user;
    struct graph graphs[GRAPHS_MAX];
    uint32_t num, next;    /* after the graph found last */
    uint64_t num_launched; /* number of launches of graphs */
    bool is_holding;
    bool is_off; /* the system refused to capture */
    char *posts; /* [size], then the post; each aligned */
    size_t bytes, room;
    uint32_t num_posts;
};

int cuda_graphs_new(struct cuda_graphs **out, cudaStream_t stream, cuda_queue_fn *queue, void *user)
{
    struct cuda_graphs *g = calloc(1, sizeof(*g));
    *out = g;
    if (!g)
        return report_error(ERR_MEMORY, NULL, "no memory for a lane's graphs");
    g->stream = stream;
    g->queue = queue;
    g->user = user;
    return 0;
}

void cuda_graphs_free(struct cuda_graphs *g)
{
    if (!g)
        return;
    if (g->num > 0)
        log_info("kernels", "CUDA graphs of a lane: %u made, %llu launched", g->num,
                 (unsigned long long)g->num_launched);
    for (uint32_t i = 0; i < g->num; i++) {
        (void)cudaGraphExecDestroy(g->graphs[i].exec);
        free(g->graphs[i].posts);
    }
    free(g->posts);
    free(g);
}

bool cuda_graphs_is_holding(const struct cuda_graphs *g)
{
    return g && g->is_holding;
}

void cuda_graphs_begin(struct cuda_graphs *g)
{
    g->is_holding = !g->is_off;
}

/* ---- Posts ---- */

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

bool cuda_graphs_hold(struct cuda_graphs *g, const void *post, size_t bytes)
{
    size_t needed = g->bytes + ALIGN + aligned(bytes);
    if (needed > g->room) {
        size_t room = 2 * needed;
        char *posts = realloc(g->posts, room);
        if (!posts)
            return false;
        g->posts = posts;
        g->room = room;
    }
    memset(g->posts + g->bytes, 0, needed - g->bytes); /* padding is compared, too */
    memcpy(g->posts + g->bytes, &bytes, sizeof(bytes));
    memcpy(g->posts + g->bytes + ALIGN, post, bytes);
    g->bytes = needed;
    g->num_posts++;
    return true;
}

static cudaError_t queue_all(const struct cuda_graphs *g)
{
    cudaError_t error = cudaSuccess;
    for (size_t at = 0, bytes; at < g->bytes && error == cudaSuccess;
         at += ALIGN + aligned(bytes)) {
        memcpy(&bytes, g->posts + at, sizeof(bytes));
        error = g->queue(g->user, g->posts + at + ALIGN);
    }
    return error;
}

/* ---- Graphs ---- */

static const struct graph *find(struct cuda_graphs *g)
{
    for (uint32_t i = 0; i < g->num; i++) {
        uint32_t at = (g->next + i) % g->num;
        const struct graph *graph = &g->graphs[at];
        if (graph->bytes == g->bytes && memcmp(graph->posts, g->posts, g->bytes) == 0) {
            g->next = at + 1;
            return graph;
        }
    }
    return NULL;
}

static cudaError_t capture(cudaGraphExec_t *out, const struct cuda_graphs *g)
{
    cudaGraph_t graph = NULL;
    cudaError_t error = cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess)
        return error;
    error = queue_all(g);
    cudaError_t ended = cudaStreamEndCapture(g->stream, &graph);
    error = error != cudaSuccess ? error : ended;
    if (error == cudaSuccess)
        error = cudaGraphInstantiate(out, graph, 0);
    if (graph)
        (void)cudaGraphDestroy(graph);
    return error;
}

/* A graph of the held posts; NULL: none. If capturing was refused, there will be none. */
static const struct graph *make(struct cuda_graphs *g)
{
    struct graph graph = {.bytes = g->bytes, .posts = malloc(g->bytes)};
    if (g->num == GRAPHS_MAX || !graph.posts) {
        free(graph.posts);
        return NULL;
    }
    cudaError_t error = capture(&graph.exec, g);
    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* the next launch checks the last error */
        log_warn("kernels",
                 "a CUDA graph failed after %u were made (%s): this lane launches its kernels one "
                 "by one from now on, which is slower",
                 g->num, cudaGetErrorString(error));
        free(graph.posts);
        g->is_off = true;
        return NULL;
    }
    memcpy(graph.posts, g->posts, g->bytes);
    g->graphs[g->num] = graph;
    return &g->graphs[g->num++];
}

cudaError_t cuda_graphs_cut(struct cuda_graphs *g)
{
    const struct graph *graph = NULL;
    if (g->num_posts >= POSTS_MIN && !g->is_off) {
        graph = find(g);
        if (!graph)
            graph = make(g);
    }
    g->num_launched += graph != NULL;
    cudaError_t error = graph ? cudaGraphLaunch(graph->exec, g->stream) : queue_all(g);
    g->bytes = g->num_posts = 0;
    return error;
}

cudaError_t cuda_graphs_end(struct cuda_graphs *g)
{
    g->is_holding = false;
    return cuda_graphs_cut(g);
}
