/* hf.h - what the readers of a tokenizer.json share (private to hf*.c). */
#ifndef HOLDFAST_TOKENIZER_HF_H
#define HOLDFAST_TOKENIZER_HF_H

#include "proto/base/json.h"
#include "trainer/tokenizer/model.h"

struct reader {
    const char *name; /* of the file, for messages */
    struct tokenizer *out;
    bool is_byte_level;
    double *scores; /* of Unigram, by number; NULL: there are none */
};

/* ERR_INVALID: a part that is not supported. ERR_CORRUPT: no such file is written. */
int hf_refuse(const struct reader *reader, const char *what, const char *value);
int hf_bad(const struct reader *reader, const char *what);
const char *hf_text_of(const json_t *object, const char *key); /* "": there is none */

/* Refuses members of a part that are set to anything but what the list says. What is missing or
 * null is taken. */
struct expected {
    const char *key;
    const char *value; /* as text; "true", "false"; "": also 0 */
};
int hf_expect(const struct reader *reader, const json_t *part, const char *type,
              const struct expected *list);

int hf_read_model(struct reader *reader, const json_t *model);
/* Behind the added tokens. */
int hf_add_scores(struct reader *reader);

#endif
