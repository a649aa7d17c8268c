/* export.c - writes whole global tensors from the shards of a checkpoint to safetensors files.
 *
 * Two formats. "safetensors" is one file with our names. "hf" is a folder in Hugging Face's format.
 * It has config.json, the weights in files of at most --shard-size under its names and in its order
 * of rows (hf.h), and their index. It has the files that the run keeps of the folder from which it
 * was imported (hf/kept.c). If the user names another tokenizer, its tokenizer.json,
 * tokenizer_config.json and file replace the kept one. If there is no tokenizer, although the
 * checkpoint names one, export warns.
 *
 * Every place in the output is derived from the manifest (export_plan.c). Files are assembled block
 * by block (assembly.c), with conversion of elements. Every block is verified before its elements
 * are used. Without a step export uses the newest checkpoint, and if that is damaged the one before
 * it. The output appears when it is complete (export_folder.c, export_bucket.c). Memory does not
 * depend on the size of the model. */
#include "clients/cli/model/export.h"
#include "proto/base/json.h"

#include <stdlib.h>
#include <string.h>

/* ---- the data ---- */

static int open_output(void *user, struct output_file **out)
{
    struct export *export = user;
    uint32_t count = export->num_parts + export->num_kept;
    while (export->num_opened < count && export->parts[export->num_opened].is_there)
        export->num_opened++;
    *out = export->num_opened < count ? &export->parts[export->num_opened++].file : NULL;
    return 0;
}

static int take_complete(void *user, uint32_t worker, struct output_block *block)
{
    struct export *export = user;
    struct part *part = block->file->user;
    (void)worker;
    if (part->kept.memory == NULL) {
        assembly_write(block, export->folder, part->object, assembly_release);
        return 0;
    }
    memcpy((char *)part->kept.memory + block->start, block->data[0], block->bytes);
    assembly_release(block);
    return 0;
}

/* Stored bytes of the wanted tensors, for the progress bar. */
static uint64_t bytes_to_read(const struct export *export)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < export->num_items; i++) {
        const struct item *item = &export->items[i];
        if (export->parts[item->file].is_there)
            continue;
        enum dtype stored = export->tensors[item->tensor].dtype;
        bytes += item->bytes / dtype_bytes(item->dtype) * dtype_bytes(stored);
    }
    return bytes;
}

static int write_data(struct export *export)
{
    const struct assembly_hooks hooks = {
        .user = export, .open = open_output, .complete = take_complete};
    return assembly_run_whole(&export->checkpoint, &hooks, export->cli, "export",
                              bytes_to_read(export));
}

/* ---- files beside the weights ---- */

/* Publishes and frees `root`, built after json_begin(): an incomplete document is not published. */
static int publish_json(struct export *export, const char *name, json_t *root)
{
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(2) | json_shortest(root)) : NULL;
    json_decref(root);
    if (!json_end()) {
        free(text);
        text = NULL;
    }
    if (text == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %s", name);
    int error = export->place->publish(export, name, text, strlen(text));
    free(text);
    return error;
}

static int publish_index(struct export *export)
{
    json_begin();
    json_t *map = json_object();
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < export->num_items; i++) {
        const struct item *item = &export->items[i];
        json_object_set_new(map, item->name, json_string(export->parts[item->file].key));
        bytes += item->bytes;
    }
    return publish_json(
        export, HF_INDEX,
        json_pack("{s{sI} so}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map));
}

/* A named tokenizer replaces the folder's, unless it is the same. */
static int compare_tokenizers(struct export *export)
{
    for (uint32_t i = export->num_parts; i < export->num_parts + export->num_kept; i++) {
        const struct part *part = &export->parts[i];
        const void *data;
        uint64_t bytes;
        bool is_same = export->cli->tokenizer[0] == '\0';
        if (!hf_kept_is_tokenizer(part->key))
            continue;
        ERR_TRY(ckpt_object_get(&part->kept, &data, &bytes));
        if (!is_same)
            ERR_TRY(hf_tokenizer_compare(&is_same, &export->tokenizer, part->key, data, bytes));
        export->keeps_tokenizer = export->keeps_tokenizer || is_same;
    }
    return 0;
}

static int publish_kept(struct export *export)
{
    for (uint32_t i = export->num_parts; i < export->num_parts + export->num_kept; i++) {
        const struct part *part = &export->parts[i];
        const void *data;
        uint64_t bytes;
        bool is_named = export->tokenizer.text != NULL && export->tokenizer.name == NULL &&
                        strcmp(part->key, HF_TOKENIZER_FILE) == 0;
        if (is_named) /* a named file of tiktoken goes there */
            continue;
        ERR_TRY(ckpt_object_get(&part->kept, &data, &bytes));
        ERR_TRY(export->place->publish(export, part->key, data, bytes));
    }
    return 0;
}

/* Is the folder's own file of that name exported? */
static bool keeps_file(const struct export *export, const char *name)
{
    bool has = false;
    for (uint32_t i = export->num_parts; i < export->num_parts + export->num_kept; i++)
        has = has || strcmp(export->parts[i].key, name) == 0;
    return has && export->keeps_tokenizer;
}

static int publish_tokenizer(struct export *export)
{
    const struct hf_tokenizer *tokenizer = &export->tokenizer;
    char *text = NULL;
    size_t bytes = 0;
    json_t *config = NULL;
    int (*publish)(struct export *, const char *, const void *, size_t) = export->place->publish;
    if (tokenizer->name != NULL)
        return export->keeps_tokenizer
                   ? 0
                   : publish(export, tokenizer->name, tokenizer->text, tokenizer->bytes);
    int error = publish(export, HF_TOKENIZER_FILE, tokenizer->text, tokenizer->bytes);
    if (error != 0 || keeps_file(export, HF_TOKENIZER))
        return error;
    if (error == 0)
        error = hf_tokenizer_json(&text, &bytes, tokenizer);
    if (error == 0)
        error = publish(export, HF_TOKENIZER, text, bytes);
    free(text);
    if (error != 0 || keeps_file(export, HF_TOKENIZER_CONFIG))
        return error;
    error = hf_tokenizer_config(&config, tokenizer);
    return error != 0 ? error : publish_json(export, HF_TOKENIZER_CONFIG, config);
}

static int publish_hf(struct export *export)
{
    json_t *config = NULL;
    struct hf_ends ends = {0};
    bool has_tokenizer = export->cli->tokenizer[0] != '\0';
    int error = export->num_parts > 1 ? publish_index(export) : 0;
    if (error == 0)
        error = compare_tokenizers(export);
    if (error == 0 && (export->keeps_tokenizer || !has_tokenizer))
        error = publish_kept(export);
    else if (error == 0 && export->num_kept > 0)
        log_warn("export",
                 "--tokenizer differs from that of the folder that run %s began with: "
                 "the other files of that folder are not exported",
                 export->checkpoint.manifest->summary.run);
    if (error == 0 && has_tokenizer)
        error = publish_tokenizer(export);
    if (error == 0)
        error = hf_ends_of(&ends, &export->run, has_tokenizer ? &export->tokenizer : NULL,
                           export->keeps_tokenizer);
    if (error == 0)
        error = hf_model_config(&config, &export->model,
                                export->has_other_dtypes ? &export->items[0].dtype : NULL, &ends,
                                &export->run);
    hf_ends_close(&ends);
    if (error == 0)
        error = publish_json(export, HF_CONFIG, config);
    return error != 0 ? error : storage_sync_names(export->folder, "");
}

/* ---- begin and end ---- */

static int write_output(struct export *export)
{
    const struct export_place *place = export->place;
    int error = place->open(export);
    for (uint32_t i = 0; i < export->num_parts && error == 0; i++)
        error = place->create(export, &export->parts[i]);
    if (error == 0)
        error = write_data(export);
    for (uint32_t i = 0; i < export->num_parts && error == 0; i++)
        error = place->finish(export, &export->parts[i]);
    if (error == 0 && export->is_hf)
        error = publish_hf(export);
    if (error == 0)
        error = place->name(export);
    for (uint32_t i = 0; i < export->num_parts && export->folder != NULL; i++)
        storage_object_close(export->folder, export->parts[i].object);
    if (error != 0)
        place->abandon(export, error);
    return error;
}

static void print_result(const struct export *export)
{
    const char *durability = store_durability(export->cli->output);
    char size[32];
    if (export->cli->is_json) {
        printf("{\"checkpoint\": \"%s\", \"output\": ", export->checkpoint.name);
        text_json(stdout, export->cli->output);
        printf(", \"tensors\": %u, \"objects_left_out\": %u, \"files\": %u, \"bytes\": %llu, "
               "\"durability\": \"%s\"}\n",
               export->num_items, export->num_objects, export->num_parts,
               (unsigned long long)export->bytes, durability);
    } else {
        printf("%s: %s, %s, written to %s, %s\n", export->checkpoint.name,
               text_count(export->num_items, "tensor").text,
               text_bytes(size, sizeof size, export->bytes), export->cli->output, durability);
    }
}

static int check_usage(const struct cli *cli)
{
    if (cli->output[0] == '\0')
        return report_error(ERR_INVALID, "add --output PATH", "no output was named");
    if (strcmp(cli->format, "hf") != 0 && cli->tokenizer[0] != '\0')
        return report_error(ERR_INVALID, "add --format hf",
                            "a safetensors file cannot hold a tokenizer");
    if (strcmp(cli->format, "hf") == 0 && cli->only[0] != '\0')
        return report_error(ERR_INVALID, "leave out --format hf",
                            "--only does not apply to --format hf, which exports all weights");
    return 0;
}

static void close_export(struct export *export)
{
    for (uint32_t i = 0; i < export->num_parts + export->num_kept && export->parts != NULL; i++) {
        output_file_deinit(&export->parts[i].file);
        free(export->parts[i].kept.memory);
        free(export->parts[i].file.tensors);
        free(export->parts[i].header);
    }
    free(export->parts);
    free(export->items);
    free(export->tensors);
    free(export->first);
    hf_tokenizer_close(&export->tokenizer);
    verified_report(export->cli, &export->checkpoint);
    hf_run_close(&export->run);
    checkpoint_close(&export->checkpoint);
    storage_close(export->folder);
}

/* Without a step: prints the damaged checkpoint and selects the one before it. */
static bool select_older(struct selection *selection, const struct export *export)
{
    if (selection->step >= 0 || !checkpoint_has_damage(&export->checkpoint))
        return false;
    const struct manifest_summary *summary = &export->checkpoint.manifest->summary;
    selection->passed_step = summary->step;
    selection->passed_attempt = summary->attempt;
    skipped_print(selection->run, summary->step, summary->attempt, report_message());
    return true;
}

/* *out_again: the selection now names an older checkpoint. */
static int export_one(bool *out_again, struct selection *selection, struct storage *store,
                      const struct cli *cli)
{
    struct export export = {.cli = cli, .is_hf = strcmp(cli->format, "hf") == 0};
    export.place = strncmp(cli->output, "s3://", 5) == 0 ? &export_to_bucket : &export_to_folder;
    *out_again = false;
    ERR_TRY(checkpoint_open_selected(&export.checkpoint, store, selection));
    int error = export_plan(&export);
    if (error == 0)
        error = write_output(&export);
    if (error == 0)
        print_result(&export);
    else
        *out_again = select_older(selection, &export);
    close_export(&export);
    return error;
}

int cli_export(const struct cli *cli)
{
    struct storage *store = NULL;
    struct selection selection;
    bool again = true;
    int error = check_usage(cli);
    if (error == 0)
        error = selection_parse(&selection, cli->args[0]);
    if (error == 0)
        error = store_open(&store, cli);
    if (error == 0)
        while (again)
            error = export_one(&again, &selection, store, cli);
    if (error == ERR_NOT_FOUND && selection.passed_attempt != 0)
        error = selection_fail_none(&selection, true);
    storage_close(store);
    return error;
}
