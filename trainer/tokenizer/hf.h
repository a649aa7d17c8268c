/* hf.h - declarations that the readers of a tokenizer.json share (private to hf*.c). */
#ifndef HOLDFAST_TOKENIZER_HF_H
#define HOLDFAST_TOKENIZER_HF_H

#include "proto/base/json.h"
#include "trainer/tokenizer/model.h"

struct reader {
    const char *name; /* the file's name, for messages */
    struct tokenizer *out;
    bool is_byte_level;
    double *scores; /* of Unigram, by number; NULL: none */
};

/* ERR_INVALID: the file has a part that is not supported. ERR_CORRUPT: the file is damaged. */
int hf_refuse_part(const struct reader *reader, const char *what, const char *value);
int hf_bad(const struct reader *reader, const char *what);
const char *hf_text_of(const json_t *object, const char *key); /* "": missing */

/* Refuses members of a part whose values differ from the list. A missing or null member is
 * accepted. */
struct expected {
    const char *key;
    const char *value; /* as text; "true", "false"; "": also 0 */
};
int hf_expect(const struct reader *reader, const json_t *part, const char *type,
              const struct expected *list);

int hf_read_model(struct reader *reader, const json_t *model);
/* Call after the added tokens are read. */
int hf_add_scores(struct reader *reader);

#endif
