/* values.h - JSON in a text, found without being judged. Private to trainer/corpus.
 *
 * Where a value ends is told by its quotes and brackets alone. So it can be read of a line whose
 * other members jansson refuses, and a text can be cut between its values. */
#ifndef HOLDFAST_TRAINER_CORPUS_VALUES_H
#define HOLDFAST_TRAINER_CORPUS_VALUES_H

#include <stdbool.h>
#include <stddef.h>

#define VALUE_OPEN ((size_t)-1)        /* it does not end in the text */
#define VALUE_OPEN_STRING ((size_t)-2) /* nor does a string of it */

/* The place behind the value that begins at `at`, or one of the above: then it is over `bytes`. */
size_t values_end(const char *text, size_t at, size_t bytes);
/* Turns each half of a surrogate pair without the other in the text of a value, \ud800 to \udfff,
 * into \ufffd; are there any? */
bool values_mend(char *text, size_t bytes);

#endif
