/* graphs.h - holds posts of a stream back and queues them at once, as a CUDA graph.
 *
 * Held posts are bytes: a head and the arguments. At a cut, posts that equal earlier ones to the
 * byte are queued by one launch of the graph that was captured then; others are captured. So a
 * changed pointer or shape never uses an old graph. If capturing is refused, which is logged, or
 * when there are GRAPHS_MAX graphs, posts are queued one by one. At the end the log has the numbers
 * of made and launched graphs. One thread. */
#ifndef HOLDFAST_CUDA_GRAPHS_H
#define HOLDFAST_CUDA_GRAPHS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#define GRAPHS_MAX 1024u

struct cuda_graphs;

/* Queues one post on the stream. */
typedef cudaError_t cuda_queue_fn(void *user, const void *post);

/* `user` is borrowed. ERR_MEMORY. */
int cuda_graphs_new(struct cuda_graphs **out, cudaStream_t stream, cuda_queue_fn *queue,
                    void *user);
/* Its posts must have ended. NULL is allowed. */
void cuda_graphs_free(struct cuda_graphs *graphs);
/* NULL: false. */
bool cuda_graphs_is_holding(const struct cuda_graphs *graphs);
void cuda_graphs_begin(struct cuda_graphs *graphs);
/* Copies the post. Returns false if there is no memory: the caller then cuts and queues the
 * post. */
bool cuda_graphs_hold(struct cuda_graphs *graphs, const void *post, size_t bytes);
/* Queues the held posts. Later posts are held again. */
cudaError_t cuda_graphs_cut(struct cuda_graphs *graphs);
/* Cuts; later posts are not held. */
cudaError_t cuda_graphs_end(struct cuda_graphs *graphs);

#endif
