/* split.h - cuts text into the pieces inside which byte pairs may merge.
 *
 * A piece is one match of Llama 3's regular expression. Bytes that are not UTF-8 are pieces of one
 * byte each, so any input is covered, in order and without a gap.
 *
 *     struct split *split;
 *     split_open(&split);
 *     split_run(split, text, bytes, on_piece, user);
 *     split_close(split);
 *
 * A splitter belongs to one thread. Errors: ERR_MEMORY; ERR_INTERNAL when PCRE2 gives up. */
#ifndef HOLDFAST_SPLIT_H
#define HOLDFAST_SPLIT_H

#include <stddef.h>

struct split;
int split_open(struct split **out);
void split_close(struct split *split);
/* `on_piece` returns 0, or a code that ends the run and is passed on. `piece` points into `text`. */
int split_run(struct split *split, const char *text, size_t bytes,
              int (*on_piece)(void *user, const char *piece, size_t piece_bytes), void *user);

#endif
