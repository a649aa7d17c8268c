/* export.c - one safetensors file with whole global tensors, out of the shards of a checkpoint.
 *
 * Every place in the output follows from the manifest. The file is put together block by block
 * (assembly.c), elements converted on the way, and written with O_DIRECT beside its name; it
 * appears under its name only when it is complete and durable. Until then it is FILE.part
 * (characters that storage does not take replaced by '_'), which is removed on any error. Every
 * block is verified before its elements are used. Memory does not depend on the size of the model.
 *
 * Tensors lie by descending element size, then name, as the safetensors library itself writes them,
 * from a multiple of 4096 on. Only floating-point tensors are converted; integers keep their type.
 */
#include "clients/cli/scan.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_BYTES_MAX (100u << 20) /* what the safetensors library accepts */

struct export
{
    const struct cli *cli;
    struct checkpoint checkpoint;
    enum dtype *dtypes; /* in the output, per tensor of the table */
    uint32_t *order;    /* wanted tensors, in file order */
    struct output_file file;
    char *header;
    struct storage *folder;
    struct storage_object *part;
    char parent[4096], part_key[256];
    struct progress progress;
};

/* ---- the plan ---- */

/* qsort has no user pointer; the tool exports once. */
static const struct export *sorted_export;

static int compare_order(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    const struct export *export = sorted_export;
    uint32_t size_a = dtype_bytes(export->dtypes[a]);
    uint32_t size_b = dtype_bytes(export->dtypes[b]);
    if (size_a != size_b)
        return size_a > size_b ? -1 : 1;
    const struct tensor_meta *metas = export->checkpoint.manifest->table->tensors;
    return strcmp(metas[a].name, metas[b].name);
}

/* Which tensors, as what, and in which order. */
static int plan_order(struct export *export)
{
    const struct layout_table *table = export->checkpoint.manifest->table;
    bool keep;
    enum dtype dtype = DTYPE_F32;
    int error = convert_parse(&keep, &dtype, export->cli->dtype);
    if (error != 0)
        return error;
    export->dtypes = calloc((size_t)table->num_tensors + 1, sizeof *export->dtypes);
    export->order = calloc((size_t)table->num_tensors + 1, sizeof *export->order);
    if (export->dtypes == NULL || export->order == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %u tensors", table->num_tensors);
    for (uint32_t i = 0; i < table->num_tensors; i++) {
        const struct tensor_meta *meta = &table->tensors[i];
        export->dtypes[i] = !keep && convert_is_float(meta->dtype) ? dtype : meta->dtype;
        if (tensor_is_wanted(meta, export->cli))
            export->order[export->file.num_tensors++] = i;
    }
    sorted_export = export;
    qsort(export->order, export->file.num_tensors, sizeof *export->order, compare_order);
    return 0;
}

/* Places from the start of the data. */
static int plan_places(struct export *export)
{
    const struct layout_table *table = export->checkpoint.manifest->table;
    struct output_file *file = &export->file;
    file->tensors = calloc((size_t)file->num_tensors + 1, sizeof *file->tensors);
    if (file->tensors == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %u tensors", file->num_tensors);
    for (uint32_t i = 0; i < file->num_tensors; i++) {
        const struct tensor_meta *meta = &table->tensors[export->order[i]];
        struct output_tensor *out = &file->tensors[i];
        out->tensor[0] = export->order[i];
        out->dtype = export->dtypes[export->order[i]];
        out->start = file->bytes;
        output_tensor_whole(out, meta);
        file->bytes += out->bytes;
    }
    return 0;
}

/* ---- the header ---- */

static void print_header(FILE *out, const struct export *export)
{
    const struct manifest_summary *summary = &export->checkpoint.manifest->summary;
    fprintf(out, "{\"__metadata__\":{\"format\":\"pt\",\"run\":");
    text_json(out, summary->run);
    fprintf(out,
            ",\"step\":\"%llu\",\"attempt\":\"%llu\",\"nonce\":", (unsigned long long)summary->step,
            (unsigned long long)summary->attempt);
    text_json(out, summary->nonce);
    fputc('}', out);
    for (uint32_t i = 0; i < export->file.num_tensors; i++) {
        const struct output_tensor *tensor = &export->file.tensors[i];
        const struct tensor_meta *meta =
            &export->checkpoint.manifest->table->tensors[tensor->tensor[0]];
        char shape[128];
        fputc(',', out);
        text_json(out, meta->name);
        fprintf(out, ":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%llu,%llu]}",
                dtype_name(tensor->dtype), text_shape(shape, sizeof shape, meta),
                (unsigned long long)tensor->start,
                (unsigned long long)(tensor->start + tensor->bytes));
    }
    fputc('}', out);
}

/* The length, the JSON and spaces up to a multiple of SHARD_ALIGN; then all places are known. */
static int make_header(struct export *export)
{
    size_t bytes = 0;
    FILE *out = open_memstream(&export->header, &bytes);
    if (out == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the header");
    fwrite("\0\0\0\0\0\0\0", 1, 8, out);
    print_header(out, export);
    for (long at = ftell(out); at % SHARD_ALIGN != 0; at++)
        fputc(' ', out);
    bool has_failed = ferror(out) != 0;
    if (fclose(out) != 0 || has_failed)
        return report_error(ERR_MEMORY, NULL, "no memory for the header");
    uint64_t length = bytes - 8;
    if (length > HEADER_BYTES_MAX)
        return report_error(ERR_INVALID, "safetensors allows no more: export with --weights-only",
                            "a header of %llu bytes is over the limit of %u",
                            (unsigned long long)length, HEADER_BYTES_MAX);
    for (int i = 0; i < 8; i++)
        export->header[i] = (char)(length >> (8 * i));
    export->file.head = export->header;
    export->file.head_bytes = bytes;
    export->file.bytes += bytes;
    for (uint32_t i = 0; i < export->file.num_tensors; i++)
        export->file.tensors[i].start += bytes;
    return 0;
}

/* ---- the file ---- */

/* The folder of the output as a storage, and a key in it that no user's name can upset. */
static int open_folder(struct export *export)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    static const struct storage_options options = {.is_quiet = true};
    const char *path = export->cli->output;
    char copy[4096];
    struct stat status;
    if (!export->cli->is_forced && access(path, F_OK) == 0)
        return report_error(ERR_EXISTS, "name another file, or add --force", "%s exists already",
                            path);
    strcpy(copy, path);
    strcpy(export->parent, dirname(copy));
    strcpy(copy, path);
    snprintf(export->part_key, sizeof export->part_key, "%.200s.part", basename(copy));
    for (char *c = export->part_key; *c != '\0'; c++) {
        if (strchr(good, *c) == NULL)
            *c = '_';
    }
    if (stat(export->parent, &status) != 0 || !S_ISDIR(status.st_mode))
        return report_errno(ERR_IO, "could not create the output", path);
    return storage_open(&export->folder, &storage_local, export->parent, &options);
}

static uint64_t align_up(uint64_t value)
{
    return (value + SHARD_ALIGN - 1) / SHARD_ALIGN * SHARD_ALIGN;
}

static int create_part(struct export *export)
{
    int error = storage_object_create(export->folder, &export->part, export->part_key,
                                      align_up(export->file.bytes));
    if (error == ERR_EXISTS)
        return report_error(ERR_EXISTS, "remove it when no other export is running",
                            "%s/%s exists already", export->parent, export->part_key);
    if (error == ERR_SPACE)
        return report_error(ERR_SPACE, "free some space, or export to another disk",
                            "no space for %llu bytes in %s", (unsigned long long)export->file.bytes,
                            export->parent);
    return error;
}

static int take_complete(void *user, uint32_t worker, struct output_block *block)
{
    struct export *export = user;
    (void)worker;
    assembly_write(block, export->folder, export->part, assembly_release);
    return 0;
}

/* Bytes of the wanted tensors as they are stored, for the bar. */
static uint64_t bytes_to_read(const struct export *export)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < export->file.num_tensors; i++) {
        const struct output_tensor *out = &export->file.tensors[i];
        enum dtype stored = export->checkpoint.manifest->table->tensors[out->tensor[0]].dtype;
        bytes += out->bytes / dtype_bytes(out->dtype) * dtype_bytes(stored);
    }
    return bytes;
}

static int write_data(struct export *export)
{
    const struct assembly_hooks hooks = {.user = export,
                                         .file = &export->file,
                                         .complete = take_complete,
                                         .progress = &export->progress};
    int error = checkpoint_load(&export->checkpoint, false);
    if (error == 0)
        error = checkpoint_need_whole(&export->checkpoint);
    if (error != 0)
        return error;
    progress_begin(&export->progress, "export", bytes_to_read(export));
    error = assembly_run(&export->checkpoint, 1, &hooks);
    progress_end(&export->progress);
    return error;
}

/* Cuts the file to its size, makes it durable and gives it its name. */
static int publish_output(struct export *export)
{
    char part_path[4096 + 256];
    const char *path = export->cli->output;
    snprintf(part_path, sizeof part_path, "%s/%s", export->parent, export->part_key);
    if (truncate(part_path, (off_t) export->file.bytes) != 0)
        return report_errno(ERR_IO, "could not cut the export to its size", part_path);
    int error = storage_transfer(export->folder, STORAGE_SYNC, export->part, 0, NULL, 0);
    if (error != 0)
        return error;
    if (renameat2(AT_FDCWD, part_path, AT_FDCWD, path,
                  export->cli->is_forced ? 0 : RENAME_NOREPLACE) != 0)
        return report_errno(errno == EEXIST ? ERR_EXISTS : ERR_IO, "could not name the export",
                            path);
    return storage_sync_names(export->folder, "");
}

static int write_output(struct export *export)
{
    int error = open_folder(export);
    if (error == 0)
        error = create_part(export);
    bool is_created = error == 0;
    if (error == 0)
        error = write_data(export);
    if (error == 0)
        error = publish_output(export);
    if (export->folder != NULL)
        storage_object_close(export->folder, export->part);
    if (error != 0 && is_created) {
        struct failure failure = {0};
        failure_keep(&failure, error);
        storage_remove(export->folder, export->part_key);
        failure_report(&failure);
    }
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
        printf(", \"tensors\": %u, \"bytes\": %llu}\n", export->file.num_tensors,
               (unsigned long long)export->file.bytes);
    } else {
        printf("%s: %u tensors, %s, written to %s\n", export->checkpoint.name,
               export->file.num_tensors, text_bytes(size, sizeof size, export->file.bytes),
               export->cli->output);
    }
}

int cli_export(const struct cli *cli)
{
    struct export export = {.cli = cli};
    struct storage *store = NULL;
    int error = cli->output[0] != '\0'
                    ? 0
                    : report_error(ERR_INVALID, "add --output FILE", "no output was named");
    if (error == 0)
        error = store_open(&store, cli);
    if (error == 0)
        error = checkpoint_open(&export.checkpoint, store, cli->args[0]);
    if (error == 0)
        error = plan_order(&export);
    if (error == 0)
        error = plan_places(&export);
    if (error == 0)
        error = make_header(&export);
    if (error == 0)
        error = write_output(&export);
    if (error == 0)
        print_result(&export);
    output_file_deinit(&export.file);
    free(export.file.tensors);
    free(export.header);
    free(export.dtypes);
    free(export.order);
    checkpoint_close(&export.checkpoint);
    storage_close(export.folder);
    storage_close(store);
    return error;
}
