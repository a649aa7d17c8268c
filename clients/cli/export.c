/* export.c - one safetensors file with whole global tensors, out of the shards of a checkpoint.
 *
 * The header is written first, since every place in the output follows from the manifest. Then each
 * shard is walked once, front to back; its elements are converted and written where they belong
 * with pwrite. Every block is verified before its elements are used. Memory does not depend on the
 * size of the model. The file appears under its name only when it is complete and durable: until
 * then it is FILE.part, which is removed on any error.
 *
 * Tensors lie by descending element size, then name, as the safetensors library itself writes them.
 * Only floating-point tensors are converted; integers keep their type. */
#include "clients/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER_BYTES_MAX (100u << 20) /* what the safetensors library accepts */
#define OPTIMIZER_PREFIX "optimizer."

struct output_tensor {
    uint32_t tensor; /* index into the manifest's table */
    bool is_wanted;
    enum dtype dtype;
    uint64_t start, bytes; /* in the file */
};

struct export
{
    const struct cli *cli;
    struct checkpoint checkpoint;
    struct output_tensor *tensors; /* per tensor of the table */
    uint32_t *order;               /* wanted ones, in file order */
    uint32_t num_wanted;
    uint64_t data_bytes, data_start;
    char part_path[4096 + 8];
    int fd;
    unsigned char *converted;
    struct progress progress;
    uint32_t shard;
};

/* ---- the plan ---- */

static int parse_dtype(bool *out_keep, enum dtype *out, const char *name)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {{"f32", DTYPE_F32}, {"bf16", DTYPE_BF16}, {"fp16", DTYPE_F16}};
    *out_keep = strcmp(name, "keep") == 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i].name) == 0) {
            *out = names[i].dtype;
            return 0;
        }
    }
    return *out_keep
               ? 0
               : report_error(ERR_INVALID, "keep, f32, bf16 or fp16", "unknown dtype '%s'", name);
}

/* qsort has no user pointer; the tool has one thread and one export. */
static const struct export *sorted_export;

static int compare_order(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    const struct export *export = sorted_export;
    uint32_t size_a = dtype_bytes(export->tensors[a].dtype);
    uint32_t size_b = dtype_bytes(export->tensors[b].dtype);
    if (size_a != size_b)
        return size_a > size_b ? -1 : 1;
    const struct tensor_meta *metas = export->checkpoint.manifest->table->tensors;
    return strcmp(metas[a].name, metas[b].name);
}

/* Which tensors, as what, and where. */
static int plan_output(struct export *export)
{
    const struct layout_table *table = export->checkpoint.manifest->table;
    bool keep;
    enum dtype dtype = DTYPE_F32;
    int error = parse_dtype(&keep, &dtype, export->cli->dtype);
    if (error != 0)
        return error;
    export->tensors = calloc((size_t)table->num_tensors + 1, sizeof *export->tensors);
    export->order = calloc((size_t)table->num_tensors + 1, sizeof *export->order);
    if (export->tensors == NULL || export->order == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %u tensors", table->num_tensors);
    for (uint32_t i = 0; i < table->num_tensors; i++) {
        const struct tensor_meta *meta = &table->tensors[i];
        struct output_tensor *out = &export->tensors[i];
        *out = (struct output_tensor){.tensor = i, .dtype = meta->dtype};
        out->is_wanted = !export->cli->is_weights_only ||
                         strncmp(meta->name, OPTIMIZER_PREFIX, strlen(OPTIMIZER_PREFIX)) != 0;
        if (!keep && convert_is_float(meta->dtype))
            out->dtype = dtype;
        if (out->is_wanted)
            export->order[export->num_wanted++] = i;
    }
    sorted_export = export;
    qsort(export->order, export->num_wanted, sizeof *export->order, compare_order);
    for (uint32_t i = 0; i < export->num_wanted; i++) {
        struct output_tensor *out = &export->tensors[export->order[i]];
        const struct tensor_meta *meta = &table->tensors[out->tensor];
        out->start = export->data_bytes;
        out->bytes = dtype_bytes(out->dtype);
        for (uint32_t d = 0; d < meta->dims; d++)
            out->bytes *= meta->shape[d];
        export->data_bytes += out->bytes;
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
    for (uint32_t i = 0; i < export->num_wanted; i++) {
        const struct output_tensor *tensor = &export->tensors[export->order[i]];
        const struct tensor_meta *meta =
            &export->checkpoint.manifest->table->tensors[tensor->tensor];
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

static int write_at(int fd, const void *data, uint64_t bytes, uint64_t offset)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t now = pwrite(fd, (const char *)data + done, bytes - done, (off_t)(offset + done));
        if (now < 0 && errno == EINTR)
            continue;
        if (now <= 0)
            return report_errno(errno == ENOSPC || errno == EDQUOT ? ERR_SPACE : ERR_IO,
                                "could not write the export", "pwrite");
        done += (uint64_t)now;
    }
    return 0;
}

/* The length, the JSON and spaces up to a multiple of 8. */
static int write_header(struct export *export)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the header");
    fseek(out, 8, SEEK_SET);
    print_header(out, export);
    for (long at = ftell(out); at % 8 != 0; at++)
        fputc(' ', out);
    if (fclose(out) != 0 || text == NULL) {
        free(text);
        return report_error(ERR_MEMORY, NULL, "no memory for the header");
    }
    uint64_t length = bytes - 8;
    int error = 0;
    if (length > HEADER_BYTES_MAX)
        error = report_error(ERR_INVALID, "export fewer tensors", "the header would be too long");
    for (int i = 0; i < 8; i++)
        text[i] = (char)(length >> (8 * i));
    export->data_start = bytes;
    if (error == 0)
        error = write_at(export->fd, text, bytes, 0);
    free(text);
    return error;
}

/* ---- the data ---- */

struct output_run {
    const struct export *export;
    uint64_t base; /* file offset of the tensor */
    uint32_t element_bytes;
    int error;
};

static void write_run(void *user, uint64_t global, uint64_t count, uint64_t element)
{
    struct output_run *run = user;
    if (run->error == 0)
        run->error =
            write_at(run->export->fd, run->export->converted + element * run->element_bytes,
                     count * run->element_bytes, run->base + global * run->element_bytes);
}

static bool is_wanted(void *user, uint32_t tensor)
{
    return ((const struct export *)user)->tensors[tensor].is_wanted;
}

static int take_elements(void *user, uint32_t tensor, const struct box *box, uint64_t first,
                         uint64_t count, const void *data)
{
    struct export *export = user;
    const struct output_tensor *out = &export->tensors[tensor];
    const struct tensor_meta *meta = &export->checkpoint.manifest->table->tensors[tensor];
    struct output_run run = {.export = export,
                             .base = export->data_start + out->start,
                             .element_bytes = dtype_bytes(out->dtype)};
    convert_elements(export->converted, out->dtype, data, meta->dtype, count);
    slice_runs(box, meta, first, count, write_run, &run);
    return run.error;
}

static int take_damaged(void *user, uint64_t block, uint64_t start, uint64_t bytes)
{
    struct export *export = user;
    return report_error(ERR_CORRUPT, "run `ckpt-cli verify`, or export an older checkpoint",
                        "%s: shard %u: block %llu (bytes %llu to %llu) is damaged",
                        export->checkpoint.name, export->shard + 1, (unsigned long long)block,
                        (unsigned long long)start, (unsigned long long)(start + bytes));
}

static int write_shard(struct export *export, uint32_t shard)
{
    const struct shard_scan hooks = {.user = export,
                                     .wants = is_wanted,
                                     .elements = take_elements,
                                     .damaged = take_damaged,
                                     .progress = &export->progress};
    struct shard_file file;
    export->shard = shard;
    int error = shard_file_open(&file, &export->checkpoint, shard);
    if (error != 0) {
        char message[256];
        snprintf(message, sizeof message, "%s", report_message());
        return report_error(error, "run `ckpt-cli verify`, or export an older checkpoint",
                            "%s: shard %u: %s", export->checkpoint.name, shard + 1, message);
    }
    error = shard_scan(&export->checkpoint, &file, &hooks);
    shard_file_close(&file, export->checkpoint.store);
    return error;
}

/* Bytes that the scans will read, for the bar: the wanted tensors as they are stored. */
static uint64_t bytes_to_read(const struct export *export)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < export->num_wanted; i++) {
        const struct output_tensor *out = &export->tensors[export->order[i]];
        enum dtype stored = export->checkpoint.manifest->table->tensors[out->tensor].dtype;
        bytes += out->bytes / dtype_bytes(out->dtype) * dtype_bytes(stored);
    }
    return bytes;
}

static int write_data(struct export *export)
{
    uint64_t file_bytes = export->data_start + export->data_bytes;
    int error = 0;
    /* One block, each element at most eight times as wide as it was. */
    export->converted = malloc(8u * CHECKSUM_BLOCK_BYTES);
    if (export->converted == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to convert with");
    int number = posix_fallocate(export->fd, 0, (off_t)file_bytes);
    if (number == ENOSPC || number == EDQUOT || number == EFBIG)
        return report_error(ERR_SPACE, "free some space, or export to another disk",
                            "no space for %llu bytes: %s", (unsigned long long)file_bytes,
                            strerror(number));
    if (number != 0 && ftruncate(export->fd, (off_t)file_bytes) != 0)
        return report_errno(ERR_IO, "could not reserve the export", export->part_path);
    progress_begin(&export->progress, "export", bytes_to_read(export));
    for (uint32_t shard = 0; shard < export->checkpoint.manifest->summary.shards && error == 0;
         shard++)
        error = write_shard(export, shard);
    progress_end(&export->progress);
    return error;
}

/* ---- the file ---- */

static int open_output(struct export *export)
{
    const char *path = export->cli->output;
    snprintf(export->part_path, sizeof export->part_path, "%s.part", path);
    if (!export->cli->is_forced && access(path, F_OK) == 0)
        return report_error(ERR_EXISTS, "name another file, or add --force", "%s exists already",
                            path);
    export->fd = open(export->part_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (export->fd < 0 && errno == EEXIST)
        return report_error(ERR_EXISTS, "remove it when no other export is running",
                            "%s exists already", export->part_path);
    if (export->fd < 0)
        return report_errno(ERR_IO, "could not create the output", export->part_path);
    return 0;
}

/* Makes the finished file durable and gives it its name. */
static int publish_output(struct export *export)
{
    char parent[4096 + 8];
    const char *path = export->cli->output;
    if (fsync(export->fd) != 0)
        return report_errno(ERR_IO, "could not make the export durable", export->part_path);
    if (renameat2(AT_FDCWD, export->part_path, AT_FDCWD, path,
                  export->cli->is_forced ? 0 : RENAME_NOREPLACE) != 0)
        return report_errno(errno == EEXIST ? ERR_EXISTS : ERR_IO, "could not name the export",
                            path);
    strcpy(parent, path);
    int directory = open(dirname(parent), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0 || fsync(directory) != 0) {
        int error = report_errno(ERR_IO, "could not make the export's name durable", path);
        if (directory >= 0)
            close(directory);
        return error;
    }
    close(directory);
    return 0;
}

static int write_output(struct export *export)
{
    int error = open_output(export);
    if (error != 0)
        return error;
    error = write_header(export);
    if (error == 0)
        error = write_data(export);
    if (error == 0)
        error = publish_output(export);
    close(export->fd);
    if (error != 0)
        unlink(export->part_path);
    return error;
}

static void print_result(const struct export *export)
{
    char size[32];
    uint64_t bytes = export->data_start + export->data_bytes;
    if (export->cli->is_json) {
        printf("{\"checkpoint\": ");
        text_json(stdout, export->checkpoint.name);
        printf(", \"output\": ");
        text_json(stdout, export->cli->output);
        printf(", \"tensors\": %u, \"bytes\": %llu}\n", export->num_wanted,
               (unsigned long long)bytes);
    } else {
        printf("%s: %u tensors, %s, written to %s\n", export->checkpoint.name, export->num_wanted,
               text_bytes(size, sizeof size, bytes), export->cli->output);
    }
}

int cli_export(const struct cli *cli)
{
    struct export export = {.cli = cli, .fd = -1};
    struct storage *store = NULL;
    int error = cli->output[0] != '\0'
                    ? 0
                    : report_error(ERR_INVALID, "add --output FILE", "no output was named");
    if (error == 0)
        error = store_open(&store, cli);
    if (error == 0)
        error = checkpoint_open(&export.checkpoint, store, cli->args[0]);
    if (error == 0)
        error = plan_output(&export);
    if (error == 0)
        error = write_output(&export);
    if (error == 0)
        print_result(&export);
    free(export.tensors);
    free(export.order);
    free(export.converted);
    checkpoint_close(&export.checkpoint);
    if (store != NULL)
        storage_close(store);
    return error;
}
