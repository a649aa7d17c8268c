/* hf.h - a Llama as Hugging Face keeps it: names of tensors, order of rows, config.json, its
 * tokenizer, and what else lies in its folder.
 *
 * Our tensors have torchtitan's names, and rotary embedding turns the pairs (2i, 2i + 1) of a
 * head's rows. Hugging Face turns (i, i + D/2): its rows of wq and wk are ours in another order,
 * first the even ones of a head, then the odd ones. Everything else is the same bits. A tied model
 * has no output projection, there as here. */
#ifndef HOLDFAST_CLIENTS_HF_H
#define HOLDFAST_CLIENTS_HF_H

#include "clients/ckpt.h"
#include "proto/format/manifest.h"
#include "proto/model/model_shape.h"
#include "proto/model/vocab.h"

#include <stdbool.h>
#include <stdint.h>

#define HF_CONFIG "config.json"
#define HF_QUANTIZATION "quantization_config" /* a key of it */
#define HF_INDEX "model.safetensors.index.json"
#define HF_SINGLE "model.safetensors"
#define HF_TOKENIZER "tokenizer.json"
#define HF_TOKENIZER_CONFIG "tokenizer_config.json"
/* Where Meta keeps tiktoken's file: beside the others programs would take it for SentencePiece's.
 */
#define HF_ORIGINAL "original"
#define HF_TOKENIZER_FILE HF_ORIGINAL "/tokenizer.model"
#define HF_SENTENCEPIECE "tokenizer.model"

struct json_t; /* jansson's */

/* What a manifest says of a run, NULL where it says nothing. To be closed, also after an error.
 * ERR_MEMORY. "config" of an imported model has two sections, which the trainer hands on from
 * checkpoint to checkpoint: "hf", the folder's config.json, and "hf_dtypes", what its tensors were
 * stored as: {"default": "BF16", "tensors": {NAME: "F32"}}. */
struct hf_run {
    struct json_t *identity, *config, *data;
};
int hf_run_open(struct hf_run *out, const struct manifest *manifest);
void hf_run_close(struct hf_run *run);
#define HF_CONFIG_BYTES_MAX (1u << 20)
/* As the trainer and an import write it, with the positions that it is made for. ERR_INVALID: it
 * names no model. */
int hf_model_of(struct model_shape *out, const struct hf_run *run);
/* *out is freed with json_decref. ERR_MEMORY: then it is NULL, and never a part of the document. */
int hf_model_identity(struct json_t **out, const struct model_shape *model);
/* The tokens around a text as config.json has them, NULL where they are not known: those of the
 * data that the model was trained on, else those of the tokenizer's file, else what it was imported
 * with; that as well where it names the trained one, perhaps among others, or where the folder's
 * own tokenizer goes out (`keeps`). `tokenizer` may be NULL. To be closed. ERR_MEMORY. */
struct hf_tokenizer;
struct hf_ends {
    struct json_t *begin, *end;
};
int hf_ends_of(struct hf_ends *out, const struct hf_run *run, const struct hf_tokenizer *tokenizer,
               bool keeps);
void hf_ends_close(struct hf_ends *ends);
/* `dtype` NULL: the tensors are of the types with which they were imported. Of an imported model it
 * is the folder's own config.json, changed where the model is another. */
int hf_model_config(struct json_t **out, const struct model_shape *model, const enum dtype *dtype,
                    const struct hf_ends *ends, const struct hf_run *run);

struct hf_tensor {
    char ours[128], theirs[128];
    uint32_t dims;
    uint64_t shape[2];
    uint32_t head_rows; /* not 0: rows change places within heads of so many */
};
uint32_t hf_num_tensors(const struct model_shape *model);
/* The type that the tensor had in an imported folder. False: nothing says so, or a conversion gave
 * it, stored as `stored`, another since. */
bool hf_dtype_of(enum dtype *out, const struct hf_run *run, const struct hf_tensor *tensor,
                 enum dtype stored);
/* In the order of the model: embedding, layers, norm, output. */
void hf_tensor(struct hf_tensor *out, const struct model_shape *model, uint32_t index);

/* ---- tokenizer.c ---- */

struct hf_tokenizer {
    char *text; /* of the file */
    size_t bytes;
    const char *name; /* of one that loaders read as it is; NULL: tiktoken's, of which follows */
    struct vocab vocab;
    uint32_t num_special; /* behind the ranks; not more than the model has room for */
};
/* Reads the file of a tokenizer: tiktoken's, or tokenizer.json or SentencePiece's. `sha256`: what
 * its hash has to be (ERR_MISMATCH); NULL: anything. Then num_special may be lowered, to 2 at
 * least. */
int hf_tokenizer_open(struct hf_tokenizer *out, const char *path, const char *sha256);
void hf_tokenizer_close(struct hf_tokenizer *tokenizer);
/* The text of tokenizer.json, to be freed. */
int hf_tokenizer_json(char **out, size_t *out_bytes, const struct hf_tokenizer *tokenizer);
/* Is a folder's file `name` this tokenizer? Of tiktoken's a tokenizer.json is, too, that has the
 * same tokens. ERR_MEMORY. */
int hf_tokenizer_compare(bool *out_is, const struct hf_tokenizer *tokenizer, const char *name,
                         const void *data, size_t bytes);
/* As hf_model_config. */
int hf_tokenizer_config(struct json_t **out, const struct hf_tokenizer *tokenizer);

/* ---- kept.c ---- */

#define HF_KEPT_FILES 10u
#define HF_KEPT_BYTES_MAX (64u << 20) /* of each */
struct hf_folder;
const char *hf_kept_name(uint32_t index);
bool hf_kept_is_tokenizer(const char *name); /* the whole of one, and not how it is used */
/* Objects of the files that the folder has; `memory` of others is NULL. Free them also after an
 * error. ERR_INVALID: one is too long. */
int hf_kept_read(struct ckpt_object out[HF_KEPT_FILES], const struct hf_folder *folder);
void hf_kept_free(struct ckpt_object kept[HF_KEPT_FILES]);

/* Private to hf/: hands a document out, unless a part of it is missing for lack of memory, which
 * `is_whole` says. */
int hf_hand_out(struct json_t **out, struct json_t *root, bool is_whole);

#endif
