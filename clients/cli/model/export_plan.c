/* export_plan.c - plans which tensors go into which file of an export, and at which place.
 *
 * A file has its tensors in the order of the safetensors library: descending element size, then
 * name. They begin at a multiple of 4096. */
#include "clients/cli/hf/files.h"
#include "clients/cli/model/export.h"
#include "proto/base/json.h"

#include <stdlib.h>
#include <string.h>

/* `kept`: its type if no other is requested. */
static struct item *add_item(struct export *export, uint32_t tensor, enum dtype kept,
                             const char *name)
{
    struct tensor_meta meta = export->tensors[tensor];
    struct item *item = &export->items[export->num_items++];
    meta.dtype = kept;
    *item = (struct item){.tensor = tensor, .dtype = dtype_rules_apply(&export->dtypes, &meta)};
    item->bytes = tensor_elements(&meta) * dtype_bytes(item->dtype);
    snprintf(item->name, sizeof item->name, "%s", name);
    return item;
}

static int find_tensor(uint32_t *out, const struct export *export, const struct hf_tensor *want)
{
    const struct layout_table *table = export->checkpoint.manifest->table;
    int64_t found = layout_find(table, want->ours);
    if (found < 0)
        return report_error(ERR_INVALID, "export one file: --format safetensors",
                            "the checkpoint has no tensor %s", want->ours);
    const struct tensor_meta *meta = &table->tensors[found];
    if (meta->dims != want->dims || meta->shape[0] != want->shape[0] ||
        meta->shape[1] != want->shape[1] || !convert_is_float(meta->dtype))
        return report_error(ERR_INVALID, "export one file: --format safetensors",
                            "tensor %s does not fit the model that the checkpoint names",
                            want->ours);
    *out = (uint32_t)found;
    return 0;
}

static int plan_hf(struct export *export)
{
    uint64_t limit = (uint64_t) export->cli->shard_size, filled = 0;
    uint32_t count = hf_num_tensors(&export->model);
    export->items = calloc(count, sizeof *export->items);
    if (export->items == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %s", text_count(count, "tensor").text);
    for (uint32_t i = 0; i < count; i++) {
        struct hf_tensor tensor;
        uint32_t found = 0;
        hf_tensor(&tensor, &export->model, i);
        int error = find_tensor(&found, export, &tensor);
        if (error != 0)
            return error;
        enum dtype stored = export->tensors[found].dtype, came = stored;
        bool is_imported = hf_dtype_of(&came, &export->run, &tensor, stored);
        struct item *item = add_item(export, found, is_imported ? came : stored, tensor.theirs);
        export->has_other_dtypes |= !is_imported || item->dtype != came;
        item->head_rows = tensor.head_rows;
        if (filled > 0 && filled + item->bytes > limit) {
            export->num_parts++;
            filled = 0;
        }
        filled += item->bytes;
        item->file = export->num_parts;
    }
    export->num_parts++;
    return 0;
}

static int plan_file(struct export *export)
{
    export->num_parts = 1;
    export->items = calloc((size_t) export->num_tensors + 1, sizeof *export->items);
    if (export->items == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %s",
                            text_count(export->num_tensors, "tensor").text);
    for (uint32_t i = 0; i < export->num_tensors; i++) {
        if (tensor_is_object(&export->tensors[i]))
            export->num_objects++;
        else if (tensor_is_wanted(&export->tensors[i], export->cli))
            add_item(export, i, export->tensors[i].dtype, export->tensors[i].name);
    }
    return 0;
}

static int compare_items(const void *left, const void *right)
{
    const struct item *a = left, *b = right;
    uint32_t size_a = dtype_bytes(a->dtype), size_b = dtype_bytes(b->dtype);
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    if (size_a != size_b)
        return size_a > size_b ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Call it after all places are known. */
static int make_header(const struct export *export, struct part *part, const struct item *items)
{
    const struct manifest_summary *summary = &export->checkpoint.manifest->summary;
    struct weights_header header;
    char shape[256];
    ERR_TRY(weights_header_begin(&header, summary->run, summary->step, summary->attempt,
                                 summary->nonce));
    for (uint32_t i = 0; i < part->file.num_tensors; i++) {
        const struct output_tensor *tensor = &part->file.tensors[i];
        text_shape(shape, sizeof shape, &export->tensors[items[i].tensor]);
        weights_header_add(&header, items[i].name, tensor->dtype, shape, tensor->start,
                           tensor->bytes);
    }
    int error = weights_header_end(&header);
    size_t bytes = header.bytes;
    part->header = header.text;
    if (error != 0)
        return error;
    part->file.head = part->header;
    part->file.head_bytes = bytes;
    part->file.bytes += bytes;
    for (uint32_t i = 0; i < part->file.num_tensors; i++)
        part->file.tensors[i].start += bytes;
    return 0;
}

/* Sets the places of the tensors in a file, from items[*first] on; *first moves after them. */
static int plan_part(struct export *export, uint32_t number, uint32_t *first)
{
    struct part *part = &export->parts[number];
    struct output_file *file = &part->file;
    const struct item *items = &export->items[*first];
    while (*first < export->num_items && export->items[*first].file == number) {
        (*first)++;
        file->num_tensors++;
    }
    file->user = part;
    file->tensors = calloc((size_t)file->num_tensors + 1, sizeof *file->tensors);
    if (file->tensors == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %s",
                            text_count(file->num_tensors, "tensor").text);
    for (uint32_t i = 0; i < file->num_tensors; i++) {
        struct output_tensor *out = &file->tensors[i];
        const uint32_t *first_part = &export->first[items[i].tensor];
        const struct tensor_meta *meta = &export->tensors[items[i].tensor];
        *out = (struct output_tensor){.tensor = {first_part[0]},
                                      .dtype = items[i].dtype,
                                      .head_rows = items[i].head_rows,
                                      .start = file->bytes};
        if (first_part[1] - first_part[0] > 1) {
            out->num_parts = first_part[1] - first_part[0];
            out->joined = meta;
        }
        output_tensor_whole(out, meta);
        file->bytes += out->bytes;
    }
    int error = make_header(export, part, items);
    export->bytes += file->bytes;
    return error;
}

/* Adds the objects of the folder from which the run was imported, each as a part. */
static int plan_kept(struct export *export)
{
    const struct layout_table *table = export->checkpoint.manifest->table;
    for (uint32_t i = 0; i < HF_KEPT_FILES && export->is_hf; i++) {
        struct part *part = &export->parts[export->num_parts + export->num_kept];
        snprintf(part->kept.stored, sizeof part->kept.stored,
                 LAYOUT_OBJECT_PREFIX LAYOUT_HF_OBJECT "%s", hf_kept_name(i));
        int64_t found = layout_find(table, part->kept.stored);
        if (found < 0 || !tensor_is_object(&table->tensors[found]))
            continue;
        snprintf(part->key, sizeof part->key, "%s", hf_kept_name(i));
        part->kept.name = part->kept.stored + strlen(LAYOUT_OBJECT_PREFIX);
        part->kept.room = tensor_elements(&table->tensors[found]);
        if (part->kept.room > ckpt_object_room(HF_KEPT_BYTES_MAX))
            return report_error(ERR_CORRUPT, NULL, "object %s has %llu bytes", part->kept.name,
                                (unsigned long long)part->kept.room);
        part->kept.memory = malloc(part->kept.room + 1);
        part->file.tensors = calloc(1, sizeof *part->file.tensors);
        export->num_kept++;
        if (part->kept.memory == NULL || part->file.tensors == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for %s", part->key);
        part->file.tensors[0] =
            (struct output_tensor){.tensor = {(uint32_t)found}, .dtype = DTYPE_U8};
        output_tensor_whole(part->file.tensors, &table->tensors[found]);
        part->file.bytes = part->kept.room;
        part->file.num_tensors = 1;
        part->file.user = part;
    }
    return 0;
}

static int plan_parts(struct export *export)
{
    uint32_t first = 0;
    int error = 0;
    if (export->num_items > 0)
        qsort(export->items, export->num_items, sizeof *export->items, compare_items);
    export->parts = calloc((size_t) export->num_parts + HF_KEPT_FILES + 1, sizeof *export->parts);
    if (export->parts == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %s",
                            text_count(export->num_parts, "file").text);
    for (uint32_t i = 0; i < export->num_parts && error == 0; i++) {
        error = plan_part(export, i, &first);
        if (export->is_hf && export->num_parts > 1)
            snprintf(export->parts[i].key, sizeof export->parts[i].key,
                     "model-%05u-of-%05u.safetensors", i + 1, export->num_parts);
        else if (export->is_hf)
            snprintf(export->parts[i].key, sizeof export->parts[i].key, HF_SINGLE);
    }
    return error != 0 ? error : plan_kept(export);
}

/* Reads the named file: it must have the model's tokens, or is refused. */
static int read_tokenizer(struct export *export)
{
    struct hf_tokenizer *tokenizer = &export->tokenizer;
    const char *sha256 = json_string_value(json_object_get(export->run.data, "tokenizer"));
    int error = hf_tokenizer_open(tokenizer, export->cli->tokenizer, sha256);
    if (error != 0 || tokenizer->name != NULL)
        return error;
    if (tokenizer->vocab.num_tokens + VOCAB_NUM_SPECIAL > export->model.vocab)
        error =
            report_error(ERR_MISMATCH, "name the tokenizer that the run was trained with",
                         "%s has %s and %u special ones, the model only %u", export->cli->tokenizer,
                         text_count(tokenizer->vocab.num_tokens, "token").text, VOCAB_NUM_SPECIAL,
                         export->model.vocab);
    if (error == 0 && tokenizer->vocab.num_tokens + tokenizer->num_special > export->model.vocab)
        tokenizer->num_special = export->model.vocab - tokenizer->vocab.num_tokens;
    return error;
}

/* Only a warning: the weights are complete, and some programs have a tokenizer. The run's
 * configuration may name the place of its tokenizer. */
static void warn_no_tokenizer(const struct export *export)
{
    const char *sha256 = json_string_value(json_object_get(export->run.data, "tokenizer"));
    const json_t *model = json_object_get(export->run.config, "model");
    const char *path = json_string_value(json_object_get(model, "hf_assets_path"));
    for (uint32_t i = 0; i < export->num_kept; i++)
        if (hf_kept_is_tokenizer(export->parts[export->num_parts + i].key))
            return;
    if (sha256 == NULL)
        return;
    log_warn("export", "the folder gets no tokenizer: add --tokenizer %s, whose SHA-256 is %s",
             path != NULL && path[0] != '\0' ? path : "FILE (of a trainer: model.hf_assets_path)",
             sha256);
}

/* Joins the boxes of a tensor that ranks held as several. Hugging Face's format has no boxes,
 * because it is for our trainer's runs: its ranks hold one box each. */
static int join_boxes(struct export *export)
{
    const struct layout_table *table = export->checkpoint.manifest->table;
    const uint32_t count = table->num_tensors;
    export->tensors = calloc((size_t)count + 1, sizeof *export->tensors);
    export->first = calloc((size_t)count + 1, sizeof *export->first);
    if (export->tensors == NULL || export->first == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %s", text_count(count, "tensor").text);
    memcpy(export->tensors, table->tensors, count * sizeof *export->tensors);
    for (uint32_t i = 0; i <= count; i++)
        export->first[i] = i;
    export->num_tensors =
        export->is_hf ? count : layout_join(export->tensors, export->first, count);
    int error = 0;
    for (uint32_t i = 0; i < export->num_tensors && error == 0; i++) {
        uint32_t first = export->first[i], parts = export->first[i + 1] - first;
        if (parts > 1)
            error = layout_check_joined(&export->tensors[i], &table->tensors[first], parts);
    }
    return error;
}

/* In the form of an import. */
static int read_config(struct export *export)
{
    struct hf_folder folder;
    json_t *config = NULL;
    int error = hf_folder_open(&folder, export->cli->model);
    if (error == 0)
        error = hf_folder_json(&config, &folder, HF_CONFIG, HF_CONFIG_BYTES_MAX);
    hf_folder_close(&folder);
    if (error == 0)
        error = model_shape_of_config(&export->model, config);
    json_begin();
    json_t *said = json_object();
    json_object_set(said, "hf", config);
    json_decref(config);
    json_decref(export->run.config);
    export->run.config = NULL;
    int made = hf_hand_out(&export->run.config, said, json_end());
    return error != 0 ? error : made;
}

static int find_model(struct export *export)
{
    if (export->cli->model[0] == '\0')
        return hf_model_of(&export->model, &export->run);
    if (json_object_get(export->run.identity, "model") != NULL)
        return report_error(ERR_INVALID, "leave --model out",
                            "the checkpoint already describes its model");
    return read_config(export);
}

int export_plan(struct export *export)
{
    int error = join_boxes(export);
    struct layout_table joined = {.tensors = export->tensors, .num_tensors = export->num_tensors};
    if (error == 0)
        error = dtype_rules_parse(&export->dtypes, export->cli, &joined);
    if (error == 0)
        error = tensors_check_wanted(&joined, export->cli);
    if (error == 0 && export->is_hf)
        error = hf_run_open(&export->run, export->checkpoint.manifest);
    if (error == 0 && export->is_hf)
        error = find_model(export);
    if (error == 0 && export->is_hf && export->cli->tokenizer[0] != '\0')
        error = read_tokenizer(export);
    if (error == 0)
        error = export->is_hf ? plan_hf(export) : plan_file(export);
    if (error == 0)
        error = plan_parts(export);
    if (error == 0 && export->is_hf && export->cli->tokenizer[0] == '\0')
        warn_no_tokenizer(export);
    return error;
}
