/* values.h - JSON in a text, found without being judged. Private to trainer/corpus.
 *
 * Where a value ends is told by its quotes and brackets alone. So it can be read of a line whose
 * other members jansson refuses, and a text can be cut between its values. */
#ifndef HOLDFAST_TRAINER_CORPUS_VALUES_H
#define HOLDFAST_TRAINER_CORPUS_VALUES_H

#include <stdbool.h>
#include <stddef.h>

/* How the documents of a file lie in it. */
enum values_form {
    FORM_TEXT,   /* it is one */
    FORM_LINES,  /* an object per line */
    FORM_JSON,   /* lines, or one of the following, as the file's first bytes say */
    FORM_VALUES, /* objects, with line breaks inside or none between */
    FORM_ARRAY   /* an array of objects */
};
/* Of a file of FORM_JSON whose first bytes these are. Only a first line that is no whole value, or
 * has another behind it, makes it anything but lines. */
enum values_form values_form_of(const char *text, size_t bytes);
/* Bytes of the byte-order mark of UTF-8 that a text begins with: no part of it. */
size_t values_mark(const char *text, size_t bytes);
/* Of a part that begins a file of FORM_VALUES or FORM_ARRAY: the place before its values. */
size_t values_first(enum values_form form, const char *text, size_t bytes);
/* The place at `at` or behind it where a value may begin, or `bytes`. */
size_t values_next(const char *text, size_t at, size_t bytes);
/* The end of the last whole value from `at` on, where a part may end; `bytes`: there is none. */
size_t values_cut(const char *text, size_t at, size_t bytes);

#define VALUE_OPEN ((size_t)-1)        /* it does not end in the text */
#define VALUE_OPEN_STRING ((size_t)-2) /* nor does a string of it */

/* The place behind the value that begins at `at`, or one of the above: then it is over `bytes`. */
size_t values_end(const char *text, size_t at, size_t bytes);
/* Turns each half of a surrogate pair without the other in the text of a value, \ud800 to \udfff,
 * into \ufffd; are there any? */
bool values_mend(char *text, size_t bytes);

#endif
