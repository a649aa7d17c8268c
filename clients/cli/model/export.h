/* export.h - an export, which is first planned and then written. Private to export.c and to
 *
 *   export_plan.c     which tensors go into which file, and where in it
 *   export_folder.c   an output in a directory of this machine
 *   export_bucket.c   one in a bucket */
#ifndef HOLDFAST_CLIENTS_CLI_MODEL_EXPORT_H
#define HOLDFAST_CLIENTS_CLI_MODEL_EXPORT_H

#include "clients/cli/engine/scan.h"
#include "clients/cli/hf/hf.h"
#include "clients/cli/model/weights.h"

#include <stdbool.h>
#include <stdint.h>

/* A tensor to export. */
struct item {
    uint32_t tensor; /* index in export->tensors */
    uint32_t file;
    uint32_t head_rows; /* as in struct output_tensor */
    enum dtype dtype;
    uint64_t bytes;
    char name[LAYOUT_NAME_MAX];
};

struct part {
    struct output_file file;
    char *header;
    struct storage_object *object;
    bool is_there;           /* complete, from an interrupted export */
    struct ckpt_object kept; /* memory not NULL: a LAYOUT_HF_OBJECT, read completely first */
    char key[64 + 256];      /* while it is being written */
};

struct export;
/* The destination of an export. */
struct export_place {
    int (*open)(struct export *export); /* export->folder */
    int (*create)(struct export *export, struct part *part);
    int (*finish)(struct export *export, struct part *part); /* all its bytes are written */
    int (*publish)(struct export *export, const char *name, const void *data, size_t bytes);
    int (*name)(struct export *export); /* everything is written: makes the output appear */
    void (*abandon)(struct export *export, int error); /* keeps the error's text */
};
extern const struct export_place export_to_folder, export_to_bucket;

struct export
{
    const struct cli *cli;
    const struct export_place *place;
    bool is_hf;
    struct hf_run run;
    struct model_shape model;
    struct hf_tokenizer tokenizer; /* if one was named */
    struct checkpoint checkpoint;
    struct dtype_rules dtypes;
    bool has_other_dtypes;       /* of hf: other types than in the imported folder */
    struct tensor_meta *tensors; /* the checkpoint's tensors, boxes joined (layout_join) */
    uint32_t *first, num_tensors;
    struct item *items;              /* by file, then place */
    uint32_t num_items, num_objects; /* objects stay in the checkpoint */
    struct part *parts;              /* the kept files follow the others */
    uint32_t num_parts, num_kept, num_opened, num_created;
    bool keeps_tokenizer; /* the folder's own tokenizer files */
    uint64_t bytes;
    struct storage *folder;     /* of the parts */
    struct output_place output; /* for a single file */
    char beside[4096 + 8];      /* of hf: the temporary name of its folder */
    bool is_folder_ours;
};

/* Is it a file that an export in Hugging Face's format leaves in its folder? */
bool export_leaves(const struct storage_entry *entry);

/* Plans items, parts, their headers, the place of every tensor, and the named tokenizer, all in
 * `export`; the caller frees them, also after an error. ERR_INVALID, ERR_MISMATCH, ERR_MEMORY. */
int export_plan(struct export *export);

#endif
