/* values.h - finds JSON values in a text without validating them. Private to trainer/corpus.
 *
 * Only quotes and brackets decide where a value ends. So a value can be read from a line with other
 * members that jansson refuses, and a text can be cut between its values. */
#ifndef HOLDFAST_TRAINER_CORPUS_VALUES_H
#define HOLDFAST_TRAINER_CORPUS_VALUES_H

#include <stdbool.h>
#include <stddef.h>

/* The form of a file's documents. */
enum values_form {
    FORM_TEXT,   /* the file is one document */
    FORM_LINES,  /* an object per line */
    FORM_JSON,   /* lines, or one of the following, depending on the file's first bytes */
    FORM_VALUES, /* objects, with line breaks inside or none between */
    FORM_ARRAY   /* an array of objects */
};
/* The form of a file of FORM_JSON that begins with these bytes. It is not lines only if the first
 * line is no complete value, or has more after it. */
enum values_form values_form_of(const char *text, size_t bytes);
/* Bytes of a UTF-8 byte-order mark at the beginning of a text, which is not part of it. */
size_t values_mark(const char *text, size_t bytes);
/* For the part that begins a file of FORM_VALUES or FORM_ARRAY: the place of its first value. */
size_t values_first(enum values_form form, const char *text, size_t bytes);
/* The first place at or after `at` where a value may begin, or `bytes`. */
size_t values_next(const char *text, size_t at, size_t bytes);
/* The end of the last complete value from `at` on, where a part may end; `bytes`: none. */
size_t values_cut(const char *text, size_t at, size_t bytes);

#define VALUE_OPEN ((size_t)-1)        /* it does not end in the text */
#define VALUE_OPEN_STRING ((size_t)-2) /* nor does a string of it */

/* The place after the value that begins at `at`, or one of the above, which are larger than
 * `bytes`. */
size_t values_end(const char *text, size_t at, size_t bytes);
/* Replaces each half of a surrogate pair without the other in the text of a value, \ud800 to
 * \udfff, by \ufffd. Returns true if there was one. */
bool values_mend(char *text, size_t bytes);

#endif
