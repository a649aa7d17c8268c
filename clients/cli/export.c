/* export.c - whole global tensors in safetensors files, out of the shards of a checkpoint.
 *
 * Two formats. "safetensors" is one file with our names. "hf" is a folder as Hugging Face has it:
 * config.json, the weights in files of at most --shard-size under its names and in its order of
 * rows (hf.h), their index; when a tokenizer is named, its tokenizer.json and
 * tokenizer_config.json, and the file itself; when none is though the checkpoint names one, that is
 * told.
 *
 * Every place in the output follows from the manifest (export_plan.c). Files are put together block
 * by block (assembly.c), elements converted on the way, and written with O_DIRECT beside the final
 * name, which appears only when all is complete and durable. Until then it is NAME.part (characters
 * that storage does not take replaced by '_'), which is removed on any error. Every block is
 * verified before its elements are used. Memory does not depend on the size of the model.
 */
#include "clients/cli/export.h"
#include "proto/json.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- where to ---- */

static int remove_file(void *user, const struct storage_entry *entry)
{
    return storage_remove(user, entry->name);
}

/* Is all of it what an export leaves? */
static int visit_beside(void *user, const struct storage_entry *entry)
{
    static const char *const names[] = {HF_CONFIG, HF_INDEX, "model*.safetensors", HF_TOKENIZER,
                                        HF_TOKENIZER_CONFIG};
    const struct export *export = user;
    bool is_ours = entry->is_dir && strcmp(entry->name, HF_ORIGINAL) == 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        is_ours = is_ours || (!entry->is_dir && fnmatch(names[i], entry->name, 0) == 0);
    return is_ours ? 0
                   : report_error(ERR_EXISTS, "name another folder",
                                  "%s is no unfinished export: it holds %s", export->beside,
                                  entry->name);
}

/* The folder that an earlier export left; what is not a plain file in it keeps it. */
static int remove_beside(struct export *export)
{
    static const struct storage_options options = {.is_quiet = true};
    struct storage *folder = NULL;
    int error = storage_open(&folder, &storage_local, export->beside, &options);
    if (error == 0)
        error = storage_list(folder, "", visit_beside, export);
    if (error == 0) {
        error = storage_remove(folder, HF_TOKENIZER_FILE); /* then its folder is empty */
        if (error == 0 || error == ERR_NOT_FOUND)
            error = storage_list(folder, "", remove_file, folder);
    }
    if (error == 0) /* what a publication that was cut short left, hidden from the list */
        error = storage_sweep(folder, "", &(struct storage_sweep){.removes = true});
    storage_close(folder);
    if (error == 0 && rmdir(export->beside) != 0)
        error =
            report_errno(ERR_IO, "could not remove what an earlier export left", export->beside);
    return error;
}

/* Is there something of that name? What cannot be looked at is an error, and not nothing. */
static int look_for(bool *out_exists, struct stat *out, const char *path)
{
    *out_exists = lstat(path, out) == 0;
    return *out_exists || errno == ENOENT
               ? 0
               : report_errno(ERR_IO, "could not look at the place of the output", path);
}

static int open_hf_folder(struct export *export)
{
    static const struct storage_options options = {.is_quiet = true};
    snprintf(export->beside, sizeof export->beside, "%s.part", export->cli->output);
    struct stat status;
    bool exists;
    ERR_TRY(look_for(&exists, &status, export->cli->output));
    if (exists)
        return report_error(ERR_EXISTS, "name another folder", "%s exists already",
                            export->cli->output);
    ERR_TRY(look_for(&exists, &status, export->beside));
    if (exists && !S_ISDIR(status.st_mode))
        return report_error(ERR_EXISTS, "name another folder", "%s is no folder", export->beside);
    if (exists && !export->cli->is_forced)
        return report_error(ERR_EXISTS, "add --force to replace it when no other export is running",
                            "%s exists already", export->beside);
    if (exists)
        ERR_TRY(remove_beside(export));
    if (mkdir(export->beside, 0777) != 0)
        return report_errno(ERR_IO, "could not create the output", export->beside);
    export->is_folder_ours = true;
    return storage_open(&export->folder, &storage_local, export->beside, &options);
}

/* May the file get that name? --force replaces files, and none of a checkpoint. */
static int check_path(const struct export *export)
{
    const char *path = export->cli->output;
    char manifest[sizeof export->parent + sizeof MANIFEST_NAME + 1];
    struct stat status, other;
    bool exists, is_checkpoint;
    ERR_TRY(look_for(&exists, &status, path));
    if (path[strlen(path) - 1] == '/' || (exists && !S_ISREG(status.st_mode)))
        return report_error(ERR_EXISTS, "name a file", "%s is not a plain file", path);
    snprintf(manifest, sizeof manifest, "%s/" MANIFEST_NAME, export->parent);
    ERR_TRY(look_for(&is_checkpoint, &other, manifest));
    if (is_checkpoint)
        return report_error(ERR_DENIED, "name a file elsewhere", "%s lies in a checkpoint", path);
    return exists && !export->cli->is_forced
               ? report_error(ERR_EXISTS, "name another file, or add --force", "%s exists already",
                              path)
               : 0;
}

/* The folder of the output as a storage, and a key in it that no user's name can upset. */
static int open_file_folder(struct export *export)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    static const struct storage_options options = {.is_quiet = true};
    const char *path = export->cli->output;
    char copy[4096], *key = export->parts[0].key;
    struct stat status;
    strcpy(copy, path);
    strcpy(export->parent, dirname(copy));
    strcpy(copy, path);
    snprintf(key, sizeof export->parts[0].key, "%.200s.part", basename(copy));
    for (char *c = key; *c != '\0'; c++) {
        if (strchr(good, *c) == NULL)
            *c = '_';
    }
    if (stat(export->parent, &status) != 0 || !S_ISDIR(status.st_mode))
        return report_errno(ERR_IO, "could not create the output", path);
    int error = check_path(export);
    return error == 0 ? storage_open(&export->folder, &storage_local, export->parent, &options)
                      : error;
}

static uint64_t align_up(uint64_t value)
{
    return (value + SHARD_ALIGN - 1) / SHARD_ALIGN * SHARD_ALIGN;
}

static int create_part(struct export *export, struct part *part)
{
    const char *folder = export->is_hf ? export->beside : export->parent;
    int error = export->cli->is_forced ? storage_remove(export->folder, part->key) : 0;
    if (error == 0 || error == ERR_NOT_FOUND)
        error = storage_object_create(export->folder, &part->object, part->key,
                                      align_up(part->file.bytes));
    if (error == ERR_EXISTS)
        return report_error(ERR_EXISTS, "add --force to replace it when no other export is running",
                            "%s/%s exists already", folder, part->key);
    if (error == ERR_SPACE)
        return report_error(ERR_SPACE, "free some space, or export to another disk",
                            "no space for %llu bytes in %s", (unsigned long long)part->file.bytes,
                            folder);
    export->num_created += error == 0;
    return error;
}

/* ---- the data ---- */

static int open_output(void *user, struct output_file **out)
{
    struct export *export = user;
    *out =
        export->num_opened < export->num_parts ? &export->parts[export->num_opened++].file : NULL;
    return 0;
}

static int take_complete(void *user, uint32_t worker, struct output_block *block)
{
    struct export *export = user;
    struct part *part = block->file->user;
    (void)worker;
    assembly_write(block, export->folder, part->object, assembly_release);
    return 0;
}

/* Bytes of the wanted tensors as they are stored, for the bar. */
static uint64_t bytes_to_read(const struct export *export)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < export->num_items; i++) {
        const struct item *item = &export->items[i];
        enum dtype stored = export->checkpoint.manifest->table->tensors[item->tensor].dtype;
        bytes += item->bytes / dtype_bytes(item->dtype) * dtype_bytes(stored);
    }
    return bytes;
}

static int write_data(struct export *export)
{
    const struct assembly_hooks hooks = {.user = export,
                                         .open = open_output,
                                         .complete = take_complete,
                                         .progress = &export->progress};
    int error = checkpoint_load(&export->checkpoint, LOAD_TABLES);
    if (error == 0)
        error = checkpoint_need_whole(&export->checkpoint);
    if (error != 0)
        return error;
    progress_begin(&export->progress, export->cli, "export", bytes_to_read(export));
    error = assembly_run(&export->checkpoint, 1, &hooks);
    progress_end(&export->progress);
    return error;
}

/* Cuts a file to its size and makes it durable. */
static int finish_part(struct export *export, struct part *part)
{
    char path[sizeof export->beside + sizeof part->key + 1];
    snprintf(path, sizeof path, "%s/%s", export->is_hf ? export->beside : export->parent,
             part->key);
    if (truncate(path, (off_t)part->file.bytes) != 0)
        return report_errno(ERR_IO, "could not cut the export to its size", path);
    return storage_transfer(export->folder, STORAGE_SYNC, part->object, 0, NULL, 0);
}

/* ---- what lies beside the weights ---- */

/* Takes `root`, which was built after json_begin: what lacks a part is not published. */
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
    int error = storage_publish(export->folder, name, text, strlen(text));
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

static int publish_tokenizer(struct export *export)
{
    const struct hf_tokenizer *tokenizer = &export->tokenizer;
    char *text = NULL;
    size_t bytes = 0;
    json_t *config = NULL;
    int error =
        storage_publish(export->folder, HF_TOKENIZER_FILE, tokenizer->text, tokenizer->bytes);
    if (error == 0)
        error = hf_tokenizer_json(&text, &bytes, tokenizer);
    if (error == 0)
        error = storage_publish(export->folder, HF_TOKENIZER, text, bytes);
    free(text);
    if (error == 0)
        error = hf_tokenizer_config(&config, tokenizer);
    return error != 0 ? error : publish_json(export, HF_TOKENIZER_CONFIG, config);
}

static int publish_hf(struct export *export)
{
    json_t *config = NULL;
    bool has_tokenizer = export->cli->tokenizer[0] != '\0';
    int error = export->num_parts > 1 ? publish_index(export) : 0;
    if (error == 0 && has_tokenizer)
        error = publish_tokenizer(export);
    if (error == 0)
        error = hf_model_config(&config, &export->model, export->items[0].dtype,
                                has_tokenizer ? &export->tokenizer : NULL);
    if (error == 0)
        error = publish_json(export, HF_CONFIG, config);
    return error != 0 ? error : storage_sync_names(export->folder, "");
}

/* ---- from begin to end ---- */

/* Where a file system knows no flags of a rename, as NFS, a folder takes the place of nothing but
 * an empty one. 0, or -1 with errno. */
static int place(const char *from, const char *path, bool is_folder, bool may_replace)
{
    if (!is_folder && !may_replace)
        return storage_place(AT_FDCWD, from, path);
    int result = renameat2(AT_FDCWD, from, AT_FDCWD, path, is_folder ? RENAME_NOREPLACE : 0);
    bool lacks_flags = result != 0 && (errno == EINVAL || errno == ENOSYS);
    return is_folder && lacks_flags ? rename(from, path) : result;
}

/* Gives the output its name, durably. */
static int name_output(struct export *export)
{
    char part_path[sizeof export->parent + sizeof export->parts->key + 1];
    const char *path = export->cli->output, *from = export->beside;
    if (!export->is_hf) {
        snprintf(part_path, sizeof part_path, "%s/%s", export->parent, export->parts[0].key);
        from = part_path;
    }
    bool may_replace = export->cli->is_forced && !export->is_hf;
    if (place(from, path, export->is_hf, may_replace) != 0)
        return report_errno(errno == EEXIST ? ERR_EXISTS : ERR_IO, "could not name the export",
                            path);
    export->num_created = 0;
    export->is_folder_ours = false;
    if (!export->is_hf)
        return storage_sync_names(export->folder, "");
    char copy[4096];
    strcpy(copy, path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = fd >= 0 && fsync(fd) == 0
                    ? 0
                    : report_errno(ERR_IO, "could not make the export durable", path);
    if (fd >= 0)
        close(fd);
    return error;
}

/* After an error: what was created, as far as that goes; keeps the error's text. */
static void remove_output(struct export *export, int error)
{
    struct failure failure = {0};
    failure_keep(&failure, error);
    for (uint32_t i = 0; i < export->num_created; i++)
        storage_remove(export->folder, export->parts[i].key);
    if (export->is_folder_ours)
        remove_beside(export);
    failure_report(&failure);
}

static int write_output(struct export *export)
{
    int error = export->is_hf ? open_hf_folder(export) : open_file_folder(export);
    for (uint32_t i = 0; i < export->num_parts && error == 0; i++)
        error = create_part(export, &export->parts[i]);
    if (error == 0)
        error = write_data(export);
    for (uint32_t i = 0; i < export->num_parts && error == 0; i++)
        error = finish_part(export, &export->parts[i]);
    if (error == 0 && export->is_hf)
        error = publish_hf(export);
    if (error == 0)
        error = name_output(export);
    for (uint32_t i = 0; i < export->num_parts && export->folder != NULL; i++)
        storage_object_close(export->folder, export->parts[i].object);
    if (error != 0)
        remove_output(export, error);
    return error;
}

static void print_result(const struct export *export)
{
    char size[32];
    if (export->cli->is_json) {
        printf("{\"checkpoint\": ");
        text_json(stdout, export->checkpoint.name);
        printf(", \"output\": ");
        text_json(stdout, export->cli->output);
        printf(", \"tensors\": %u, \"files\": %u, \"bytes\": %llu, "
               "\"durability\": \"" CLI_STORED "\"}\n",
               export->num_items, export->num_parts, (unsigned long long)export->bytes);
    } else {
        printf("%s: %s, %s, written to %s, " CLI_STORED "\n", export->checkpoint.name,
               text_count(export->num_items, "tensor").text,
               text_bytes(size, sizeof size, export->bytes), export->cli->output);
    }
}

static int check_usage(const struct cli *cli)
{
    if (cli->output[0] == '\0')
        return report_error(ERR_INVALID, "add --output PATH", "no output was named");
    if (strcmp(cli->format, "hf") != 0 && cli->tokenizer[0] != '\0')
        return report_error(ERR_INVALID, "add --format hf",
                            "one safetensors file has no place for a tokenizer");
    if (strcmp(cli->format, "hf") == 0 && cli->only[0] != '\0')
        return report_error(ERR_INVALID, "leave out --format hf",
                            "a folder of Hugging Face has all weights: it takes no --only");
    return 0;
}

int cli_export(const struct cli *cli)
{
    struct export export = {.cli = cli, .is_hf = strcmp(cli->format, "hf") == 0};
    struct storage *store = NULL;
    int error = check_usage(cli);
    if (error == 0)
        error = store_open(&store, cli);
    if (error == 0)
        error = checkpoint_open(&export.checkpoint, store, cli->args[0]);
    if (error == 0)
        error = export_plan(&export);
    if (error == 0)
        error = write_output(&export);
    if (error == 0)
        print_result(&export);
    for (uint32_t i = 0; i < export.num_parts && export.parts != NULL; i++) {
        output_file_deinit(&export.parts[i].file);
        free(export.parts[i].file.tensors);
        free(export.parts[i].header);
    }
    free(export.parts);
    free(export.items);
    hf_tokenizer_close(&export.tokenizer);
    checkpoint_close(&export.checkpoint);
    storage_close(export.folder);
    storage_close(store);
    return error;
}
