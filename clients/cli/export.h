/* export.h - an export that is planned and then written. Private to export.c and export_plan.c. */
#ifndef HOLDFAST_CLIENTS_CLI_EXPORT_H
#define HOLDFAST_CLIENTS_CLI_EXPORT_H

#include "clients/cli/engine/scan.h"
#include "clients/cli/hf/hf.h"
#include "clients/cli/weights.h"

#include <stdbool.h>
#include <stdint.h>

/* A tensor on its way out. */
struct item {
    uint32_t tensor; /* of the table */
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
    char key[64 + 256]; /* while it is being written */
};

struct export
{
    const struct cli *cli;
    bool is_hf;
    struct model_shape model;
    struct hf_tokenizer tokenizer; /* when one was named */
    struct checkpoint checkpoint;
    struct dtype_rules dtypes;
    struct item *items; /* by file, then place */
    uint32_t num_items;
    struct part *parts;
    uint32_t num_parts, num_opened, num_created;
    uint64_t bytes;
    struct storage *folder;              /* of the parts */
    char parent[4096], beside[4096 + 8]; /* of the output; of hf: what its folder is named so far */
    bool is_folder_ours;
    struct progress progress;
};

/* Items, parts, their headers and the place of every tensor, and the tokenizer that was named: all
 * in `export`, whose owner frees them, also after an error. ERR_INVALID, ERR_MISMATCH, ERR_MEMORY.
 */
int export_plan(struct export *export);

#endif
