/* hf.h - a Llama in Hugging Face's format: names of tensors, order of rows, config.json, its
 * tokenizer, and the other files of its folder.
 *
 * Our tensors have torchtitan's names, and rotary embedding rotates the pairs (2i, 2i + 1) of a
 * head's rows. Hugging Face rotates (i, i + D/2): its rows of wq and wk are ours in another order,
 * first the even ones of a head, then the odd ones. All other bits are the same. A tied model has
 * no output projection in either format. */
#ifndef HOLDFAST_CLIENTS_HF_H
#define HOLDFAST_CLIENTS_HF_H

#include "clients/ckpt.h"
#include "proto/format/manifest.h"
#include "proto/model/model_shape.h"
#include "proto/model/vocab.h"

#include <stdbool.h>
#include <stdint.h>

#define HF_CONFIG "config.json"
#define HF_QUANTIZATION "quantization_config" /* one of its keys */
#define HF_INDEX "model.safetensors.index.json"
#define HF_SINGLE "model.safetensors"
#define HF_TOKENIZER "tokenizer.json"
#define HF_TOKENIZER_CONFIG "tokenizer_config.json"
/* Meta's place for tiktoken's file: beside the other files programs take it for SentencePiece's. */
#define HF_ORIGINAL "original"
#define HF_TOKENIZER_FILE HF_ORIGINAL "/tokenizer.model"
#define HF_SENTENCEPIECE "tokenizer.model"

struct json_t; /* jansson's */

/* A manifest's facts about a run, NULL if there are none. Close it, also after an error.
 * ERR_MEMORY. "config" of an imported model has two sections, which the trainer copies from
 * checkpoint to checkpoint. "hf" is the folder's config.json. "hf_dtypes" has the stored types of
 * its tensors: {"default": "BF16", "tensors": {NAME: "F32"}}. */
struct hf_run {
    struct json_t *identity, *config, *data;
};
int hf_run_open(struct hf_run *out, const struct manifest *manifest);
void hf_run_close(struct hf_run *run);
#define HF_CONFIG_BYTES_MAX (1u << 20)
/* The model, as the trainer or an import writes it, with its number of positions. ERR_INVALID: the
 * run names no model. */
int hf_model_of(struct model_shape *out, const struct hf_run *run);
/* json_decref() *out. ERR_MEMORY: then it is NULL, and never a partial document. */
int hf_model_identity(struct json_t **out, const struct model_shape *model);
/* The tokens around a text, for config.json, NULL if unknown. They are those of the data on which
 * the model was trained, else those of the tokenizer's file, else the imported ones. The imported
 * ones are also used if they include the trained one, or if the folder's own tokenizer is exported
 * (`keeps`). `tokenizer` may be NULL. Close it. ERR_MEMORY. */
struct hf_tokenizer;
struct hf_ends {
    struct json_t *begin, *end;
};
int hf_ends_of(struct hf_ends *out, const struct hf_run *run, const struct hf_tokenizer *tokenizer,
               bool keeps);
void hf_ends_close(struct hf_ends *ends);
/* `dtype` NULL: the tensors have their imported types. For an imported model it is the folder's own
 * config.json, changed where the model differs. */
int hf_model_config(struct json_t **out, const struct model_shape *model, const enum dtype *dtype,
                    const struct hf_ends *ends, const struct hf_run *run);

struct hf_tensor {
    char ours[128], theirs[128];
    uint32_t dims;
    uint64_t shape[2];
    uint32_t head_rows; /* not 0: rows are permuted within heads of so many rows */
};
uint32_t hf_num_tensors(const struct model_shape *model);
/* The type that the tensor had in an imported folder. False: it is unknown, or a conversion has
 * since given it another, stored as `stored`. */
bool hf_dtype_of(enum dtype *out, const struct hf_run *run, const struct hf_tensor *tensor,
                 enum dtype stored);
/* In the order of the model: embedding, layers, norm, output. */
void hf_tensor(struct hf_tensor *out, const struct model_shape *model, uint32_t index);

/* ---- tokenizer.c ---- */

struct hf_tokenizer {
    char *text; /* of the file */
    size_t bytes;
    const char *name; /* of a file that loaders read unchanged; NULL: tiktoken's, described below */
    struct vocab vocab;
    uint32_t num_special; /* after the ranks; at most as many as the model has room for */
};
/* Reads the file of a tokenizer: tiktoken's, or tokenizer.json or SentencePiece's. `sha256`: its
 * expected hash (ERR_MISMATCH); NULL: any. Then num_special may be lowered, to 2 at least. */
int hf_tokenizer_open(struct hf_tokenizer *out, const char *path, const char *sha256);
void hf_tokenizer_close(struct hf_tokenizer *tokenizer);
/* The text of tokenizer.json; the caller frees it. */
int hf_tokenizer_json(char **out, size_t *out_bytes, const struct hf_tokenizer *tokenizer);
/* Is a folder's file `name` this tokenizer? tiktoken's file also equals a tokenizer.json with the
 * same tokens. ERR_MEMORY. */
int hf_tokenizer_compare(bool *out_is, const struct hf_tokenizer *tokenizer, const char *name,
                         const void *data, size_t bytes);
/* As hf_model_config(). */
int hf_tokenizer_config(struct json_t **out, const struct hf_tokenizer *tokenizer);

/* ---- kept.c ---- */

#define HF_KEPT_FILES 10u
#define HF_KEPT_BYTES_MAX (64u << 20) /* of each */
struct hf_folder;
const char *hf_kept_name(uint32_t index);
bool hf_kept_is_tokenizer(const char *name); /* a complete tokenizer, not its settings */
/* Objects of the existing files of the folder; `memory` of the others is NULL. Free them also after
 * an error. ERR_INVALID: one is too long. */
int hf_kept_read(struct ckpt_object out[HF_KEPT_FILES], const struct hf_folder *folder);
void hf_kept_free(struct ckpt_object kept[HF_KEPT_FILES]);

/* Private to hf/: sets *out to a document, unless memory was short for a part of it (`is_whole`
 * false). */
int hf_hand_out(struct json_t **out, struct json_t *root, bool is_whole);

#endif
