/* graphs.h - what is posted on a stream, held back and queued at once, as a CUDA graph.
 *
 * Held posts are bytes: a head and the arguments. Where they are cut, those that are the same to
 * the byte as some before are queued by one launch of the graph that was captured then; others are
 * captured. So a pointer or a shape that changed cannot meet an old graph. Where capturing is
 * refused, which is said, and when there are GRAPHS_MAX graphs, posts are queued one by one. The
 * log has at the end how many graphs were made and launched. One thread. */
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
/* Nothing of it is on its way. NULL is none. */
void cuda_graphs_free(struct cuda_graphs *graphs);
/* NULL holds nothing. */
bool cuda_graphs_is_holding(const struct cuda_graphs *graphs);
void cuda_graphs_begin(struct cuda_graphs *graphs);
/* Copied. False: no memory; the post is the caller's to queue, behind a cut. */
bool cuda_graphs_hold(struct cuda_graphs *graphs, const void *post, size_t bytes);
/* What is held is queued. Later posts are held again. */
cudaError_t cuda_graphs_cut(struct cuda_graphs *graphs);
/* Cuts, and later posts are not held. */
cudaError_t cuda_graphs_end(struct cuda_graphs *graphs);

#endif
