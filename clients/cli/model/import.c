/* import.c - makes a checkpoint of step 0 from a Hugging Face folder: config.json, safetensors
 * files.
 *
 * Everything in the folder is hostile: JSON has limits, the header parser checks all
 * (proto/layout/safetensors.h), and every tensor must exist once, with the shape in config.json.
 * The source has no checksums and no alignment, so its bytes do not pass through scan.c. A few
 * threads read the elements of each block of the new shards, widen them to float, which is exact,
 * and pass the block to the writer (writer.h). Memory is three blocks and a head per thread, and
 * the parsed headers. FOLDER may be in a bucket: then these reads are ranges of objects.
 *
 * The folder's other files, such as its tokenizer, become objects (kept.c), each a tensor of bytes.
 *
 * The trainer starts from it as from a seed checkpoint: state.optimizer.step is 0, so its moments
 * are zeros, which need not be stored. */
#include "clients/cli/assemble/writer.h"
#include "clients/cli/hf/source.h"
#include "clients/session.h"
#include "proto/base/json.h"
#include "proto/layout/safetensors.h"

#include <libgen.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_BYTES_MAX (16u << 20)
#define FILES_MAX 512u /* that are open at a time */
#define HEAD_BYTES_MAX (64ull << 20)
#define SHARD_BYTES (4ull << 30) /* of a shard, without --shards */

struct source_file {
    struct hf_file file;
    struct safetensors header;
};

struct import {
    const struct cli *cli;
    struct hf_folder folder;
    struct model_shape model;
    json_t *config, *weight_map; /* weight_map NULL: there is one file */
    struct source_file *files;
    uint32_t num_files;
    struct hf_source *sources; /* by our names */
    uint32_t num_sources;
    struct hf_source tied_head; /* of a tied model that has one anyway; file NULL: it has none */
    uint64_t head_bytes;        /* of the largest head whose rows are permuted */
    struct ckpt_object kept[HF_KEPT_FILES];
    char *identity_json, *config_json, *data_json, mesh_json[96];
    struct writer writer;
    struct progress progress;
    /* The shard that is being filled. */
    struct output_file *file;
    atomic_uint_fast64_t next, bytes_done;
    pthread_mutex_t lock; /* guards the failure */
    struct failure failure;
};

/* ---- the folder's files ---- */

static int read_header(struct source_file *source)
{
    const struct hf_file *file = &source->file;
    unsigned char first[8];
    uint64_t length = 0;
    if (file->bytes < sizeof first)
        return report_error(ERR_CORRUPT, NULL, "it is not a safetensors file");
    ERR_TRY(hf_file_read(file, first, 0, sizeof first));
    ERR_TRY(safetensors_length(&length, first, file->bytes));
    char *text = malloc(length);
    if (text == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a header");
    int error = hf_file_read(file, text, sizeof first, (uint32_t)length);
    if (error == 0)
        error = safetensors_parse(&source->header, text, length, file->bytes);
    free(text);
    return error;
}

static int open_file(struct import *import, const char *name)
{
    for (uint32_t i = 0; i < import->num_files; i++) {
        if (strcmp(import->files[i].file.name, name) == 0)
            return 0;
    }
    if (strchr(name, '/') != NULL || name[0] == '.' ||
        strlen(name) >= sizeof import->files->file.name)
        return report_error(ERR_CORRUPT, NULL, "the index names a file that is not in the folder");
    if (import->num_files == FILES_MAX)
        return report_error(ERR_CORRUPT, NULL, "the index names more than %u files", FILES_MAX);
    struct source_file *file = &import->files[import->num_files];
    ERR_TRY(hf_file_open(&file->file, &import->folder, name));
    import->num_files++;
    int error = read_header(file);
    if (error == 0)
        return 0;
    char safe[256], message[REPORT_TEXT_MAX];
    snprintf(message, sizeof message, "%s: %s", text_safe(safe, sizeof safe, name),
             report_message());
    return report_set(error, message, report_detail(), report_hint());
}

static int open_files(struct import *import)
{
    json_t *index = NULL;
    const char *key;
    json_t *value;
    import->files = calloc(FILES_MAX, sizeof *import->files);
    if (import->files == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the files");
    int error = hf_folder_json(&index, &import->folder, HF_INDEX, INDEX_BYTES_MAX);
    if (error == ERR_NOT_FOUND)
        return open_file(import, HF_SINGLE);
    if (error != 0)
        return error;
    import->weight_map = json_incref(json_object_get(index, "weight_map"));
    json_decref(index);
    if (!json_is_object(import->weight_map))
        return report_error(ERR_CORRUPT, NULL, "%s has no weight_map", HF_INDEX);
    json_object_foreach(import->weight_map, key, value)
    {
        const char *name = json_string_value(value);
        error = name != NULL ? open_file(import, name)
                             : report_error(ERR_CORRUPT, NULL, "the index does not name a file");
        if (error != 0)
            return error;
    }
    return 0;
}

/* ---- the tensors ---- */

static int compare_sources(const void *left, const void *right)
{
    return strcmp(((const struct hf_source *)left)->tensor.ours,
                  ((const struct hf_source *)right)->tensor.ours);
}

static int compare_names(const void *left, const void *right)
{
    return strcmp((*(struct hf_source *const *)left)->tensor.theirs,
                  (*(struct hf_source *const *)right)->tensor.theirs);
}

static int compare_name(const void *name, const void *source)
{
    return strcmp(name, (*(struct hf_source *const *)source)->tensor.theirs);
}

/* Checks one tensor of a file: it is the model's, with the right shape, and not seen before. */
static int add_tensor(struct import *import, struct hf_source *const *by_name,
                      const struct source_file *file, const struct safetensors_tensor *tensor)
{
    const struct tensor_meta *meta = &tensor->meta;
    const char *mapped = json_string_value(json_object_get(import->weight_map, meta->name));
    struct hf_source *const *found =
        bsearch(meta->name, by_name, import->num_sources, sizeof *by_name, compare_name);
    char shape[256];
    if (import->weight_map != NULL && (mapped == NULL || strcmp(mapped, file->file.name) != 0))
        return report_error(ERR_CORRUPT, NULL,
                            "%s holds tensor %s, which the index places elsewhere", file->file.name,
                            meta->name);
    if (strstr(meta->name, "rotary_emb.inv_freq") != NULL)
        return 0; /* derived from config.json */
    bool is_tied_head = import->model.is_tied && strcmp(meta->name, "lm_head.weight") == 0;
    if (found == NULL && !is_tied_head)
        return report_error(ERR_INVALID, "check that it is a Llama without extra tensors",
                            "%s holds tensor %s, which the model does not have", file->file.name,
                            meta->name);
    struct hf_source *source = is_tied_head ? &import->tied_head : *found;
    if (source->file != NULL)
        return report_error(ERR_CORRUPT, NULL, "tensor %s exists twice", meta->name);
    if (meta->dims != source->tensor.dims || meta->shape[0] != source->tensor.shape[0] ||
        meta->shape[1] != source->tensor.shape[1])
        return report_error(ERR_CORRUPT, NULL,
                            "tensor %s has the shape %s, which config.json contradicts", meta->name,
                            text_shape(shape, sizeof shape, meta));
    if (meta->dtype != DTYPE_F32 && meta->dtype != DTYPE_F16 && meta->dtype != DTYPE_BF16)
        return report_error(ERR_INVALID, "use weights in fp32, bf16 or fp16",
                            "tensor %s is of type %s", meta->name, dtype_name(meta->dtype));
    uint64_t head = source->tensor.head_rows * meta->shape[1] * dtype_bytes(meta->dtype);
    if (head > HEAD_BYTES_MAX)
        return report_error(ERR_INVALID, NULL, "a head of tensor %s has %llu bytes", meta->name,
                            (unsigned long long)head);
    import->head_bytes = import->head_bytes > head ? import->head_bytes : head;
    source->file = &file->file;
    source->dtype = meta->dtype;
    source->start = file->header.data_start + tensor->data_byte;
    return 0;
}

static int add_tensors(struct import *import, struct hf_source **by_name)
{
    int error = 0;
    for (uint32_t i = 0; i < import->num_sources; i++)
        by_name[i] = &import->sources[i];
    qsort(by_name, import->num_sources, sizeof *by_name, compare_names);
    for (uint32_t f = 0; f < import->num_files; f++) {
        const struct source_file *file = &import->files[f];
        for (uint32_t i = 0; i < file->header.num_tensors && error == 0; i++)
            error = add_tensor(import, by_name, file, &file->header.tensors[i]);
    }
    return error;
}

static int check_complete(const struct import *import)
{
    for (uint32_t i = 0; i < import->num_sources; i++) {
        if (import->sources[i].file == NULL)
            return report_error(ERR_CORRUPT, NULL, "the model has no tensor %s",
                                import->sources[i].tensor.theirs);
    }
    return 0;
}

/* A tied model has one matrix, and no place for a head with other values. */
static int check_tied_head(const struct import *import)
{
    const struct hf_source *embedding = import->sources;
    if (import->tied_head.file == NULL)
        return 0;
    while (strcmp(embedding->tensor.ours, "tok_embeddings.weight") != 0)
        embedding++;
    unsigned char *memory = scan_memory(3 * SCAN_BLOCK);
    int error =
        memory != NULL
            ? hf_source_check_tied(embedding, &import->tied_head, memory, SCAN_BLOCK)
            : report_error(ERR_MEMORY, NULL, "no memory for %s", import->tied_head.tensor.theirs);
    free(memory);
    return error;
}

static int find_sources(struct import *import)
{
    import->num_sources = hf_num_tensors(&import->model);
    import->sources = calloc(import->num_sources + HF_KEPT_FILES, sizeof *import->sources);
    struct hf_source **by_name = calloc(import->num_sources, sizeof *by_name);
    int error = import->sources != NULL && by_name != NULL
                    ? 0
                    : report_error(ERR_MEMORY, NULL, "no memory for %s",
                                   text_count(import->num_sources, "tensor").text);
    for (uint32_t i = 0; i < import->num_sources && error == 0; i++)
        hf_tensor(&import->sources[i].tensor, &import->model, i);
    hf_tensor(&import->tied_head.tensor, &import->model, import->num_sources);
    if (error == 0) {
        qsort(import->sources, import->num_sources, sizeof *import->sources, compare_sources);
        error = add_tensors(import, by_name);
    }
    free(by_name);
    if (error == 0)
        error = check_complete(import);
    return error != 0 ? error : check_tied_head(import);
}

/* ---- the manifest ---- */

static void add_kept(struct import *import)
{
    for (uint32_t i = 0; i < HF_KEPT_FILES; i++) {
        const struct ckpt_object *kept = &import->kept[i];
        struct hf_source *source = &import->sources[import->num_sources];
        if (kept->memory == NULL)
            continue;
        *source = (struct hf_source){.tensor = {.dims = 1, .shape = {kept->room, 1}},
                                     .dtype = DTYPE_U8,
                                     .object = kept->memory};
        snprintf(source->tensor.ours, sizeof source->tensor.ours, "%s", kept->stored);
        import->num_sources++;
    }
    qsort(import->sources, import->num_sources, sizeof *import->sources, compare_sources);
}

static int plan_table(struct import *import)
{
    add_kept(import);
    struct layout_table table = {.num_tensors = import->num_sources};
    struct manifest *manifest = &import->writer.manifest;
    uint64_t bytes = 0, shards = (uint64_t)import->cli->shards;
    table.tensors = calloc(import->num_sources, sizeof *table.tensors);
    if (table.tensors == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %s",
                            text_count(import->num_sources, "tensor").text);
    for (uint32_t i = 0; i < import->num_sources; i++) {
        const struct hf_tensor *tensor = &import->sources[i].tensor;
        struct tensor_meta *meta = &table.tensors[i];
        *meta =
            (struct tensor_meta){.dtype = import->sources[i].object != NULL ? DTYPE_U8 : DTYPE_F32,
                                 .dims = tensor->dims,
                                 .shape = {tensor->shape[0], tensor->shape[1], 1, 1}};
        strcpy(meta->name, tensor->ours);
        bytes += tensor_elements(meta) * dtype_bytes(meta->dtype);
    }
    if (shards == 0)
        shards = (bytes + SHARD_BYTES - 1) / SHARD_BYTES;
    shards = shards < 1 ? 1 : shards > SHARDS_MAX ? SHARDS_MAX : shards;
    int error = writer_plan_rows(&manifest->table, &table, 1, (uint32_t)shards);
    free(table.tensors);
    manifest->summary.shards = manifest->summary.world_size = (uint32_t)shards;
    snprintf(import->mesh_json, sizeof import->mesh_json,
             "{\"pp\":1,\"dp_replicate\":1,\"dp_shard\":%llu,\"cp\":1,\"tp\":1}",
             (unsigned long long)shards);
    return error;
}

static char *dump(json_t *root)
{
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT | json_shortest(root)) : NULL;
    json_decref(root);
    return text;
}

/* hf_run in hf.h describes the form. */
static json_t *dtypes_of(const struct import *import)
{
    enum dtype usual = import->sources[0].dtype;
    json_t *others = json_object();
    for (uint32_t i = 0; i < import->num_sources; i++) {
        const struct hf_source *source = &import->sources[i];
        if (source->dtype != usual)
            json_object_set_new(others, source->tensor.theirs,
                                json_string(dtype_name(source->dtype)));
    }
    return json_pack("{ss so}", "default", dtype_name(usual), "tensors", others);
}

static int plan_manifest(struct import *import)
{
    static char state_json[] = "{\"data\":{\"next_sample\":0},\"schedule\":{\"step\":0},"
                               "\"optimizer\":{\"step\":0}}";
    struct manifest *manifest = &import->writer.manifest;
    char copy[4096];
    snprintf(copy, sizeof copy, "%s", import->cli->args[0]);
    snprintf(manifest->summary.run, sizeof manifest->summary.run, "%s", import->cli->run);
    manifest->summary.attempt = 1;
    json_t *identity = NULL;
    ERR_TRY(hf_model_identity(&identity, &import->model));
    json_begin();
    import->identity_json = dump(identity);
    import->config_json =
        dump(json_pack("{sO so}", "hf", import->config, "hf_dtypes", dtypes_of(import)));
    /* Names that are not UTF-8 are left out. */
    json_t *data = json_pack("{ss}", "imported_from", basename(copy));
    import->data_json = dump(data != NULL ? data : json_object());
    if (!json_end() || import->identity_json == NULL || import->config_json == NULL ||
        import->data_json == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the manifest");
    manifest->identity_json = import->identity_json;
    manifest->config_json = import->config_json;
    manifest->data_json = import->data_json;
    manifest->state_json = state_json;
    manifest->mesh_json = import->mesh_json;
    int error = plan_table(import);
    return error != 0 ? error : writer_plan(&import->writer);
}

/* ---- the data ---- */

/* The buffers with which a thread fills blocks. */
struct room {
    unsigned char *block; /* of the output */
    struct hf_room source;
};

static int fill_block(const struct import *import, uint64_t index, struct room *room)
{
    const struct output_file *file = import->file;
    uint64_t start = index * SCAN_BLOCK, end = start + SCAN_BLOCK;
    int error = 0;
    memset(room->block, 0, SCAN_BLOCK);
    if (start < file->head_bytes)
        memcpy(room->block, (const char *)file->head + start,
               file->head_bytes < end ? file->head_bytes - start : SCAN_BLOCK);
    for (uint32_t i = output_tensor_after(file, start); i < file->num_tensors && error == 0; i++) {
        const struct output_tensor *tensor = &file->tensors[i];
        const struct hf_source *source = &import->sources[tensor->tensor[0]];
        uint64_t from = tensor->start > start ? tensor->start : start;
        uint64_t to = tensor->start + tensor->bytes < end ? tensor->start + tensor->bytes : end;
        if (from >= to)
            break;
        uint64_t before = tensor->box.offset[0] * source->tensor.shape[1];
        unsigned char *out = room->block + (from - start);
        if (source->object != NULL)
            memcpy(out, source->object + before + (from - tensor->start), to - from);
        else
            error = hf_source_read((float *)(void *)out, &room->source, source,
                                   before + (from - tensor->start) / sizeof(float),
                                   (to - from) / sizeof(float));
    }
    return error;
}

static bool has_failed(struct import *import, int error)
{
    pthread_mutex_lock(&import->lock);
    failure_keep(&import->failure, error);
    bool failed = import->failure.error != 0;
    pthread_mutex_unlock(&import->lock);
    return failed;
}

static void show_progress(struct import *import)
{
    uint64_t done = atomic_load(&import->bytes_done);
    progress_add(&import->progress, done - import->progress.done);
}

/* Fills blocks of the present shard, until there are no more. The caller's thread shows the
 * progress. */
static void fill_blocks(struct import *import, uint32_t worker)
{
    uint64_t num_blocks = (import->file->bytes + SCAN_BLOCK - 1) / SCAN_BLOCK, index;
    unsigned char *memory = scan_memory(2 * SCAN_BLOCK + import->head_bytes);
    int error = memory != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory to import with");
    struct room room = {.block = memory,
                        .source = {.read = memory + SCAN_BLOCK, .head = memory + 2 * SCAN_BLOCK}};
    while (!has_failed(import, error) &&
           (index = atomic_fetch_add(&import->next, 1)) < num_blocks) {
        error = fill_block(import, index, &room);
        if (error == 0)
            error = writer_take(import->file, worker, index, room.block);
        atomic_fetch_add(&import->bytes_done, SCAN_BLOCK);
        if (worker == scan_workers())
            show_progress(import);
    }
    free(memory);
}

struct filler {
    struct import *import;
    uint32_t worker;
};

static void *run_filler(void *argument)
{
    const struct filler *filler = argument;
    fill_blocks(filler->import, filler->worker);
    return NULL;
}

static int fill_shard(struct import *import)
{
    pthread_t threads[SCAN_WORKERS_MAX];
    struct filler fillers[SCAN_WORKERS_MAX];
    uint32_t started = 0;
    atomic_store(&import->next, 0);
    while (started < scan_workers()) {
        fillers[started] = (struct filler){import, started};
        if (pthread_create(&threads[started], NULL, run_filler, &fillers[started]) != 0)
            break;
        started++;
    }
    fill_blocks(import, scan_workers());
    while (started > 0)
        pthread_join(threads[--started], NULL);
    show_progress(import);
    return failure_report(&import->failure);
}

static int fill_shards(struct import *import)
{
    int error = 0;
    progress_begin(&import->progress, import->cli, "import", import->writer.manifest.summary.bytes);
    do {
        error = writer_shard(&import->writer, &import->file);
        if (error == 0 && import->file != NULL)
            error = fill_shard(import);
    } while (error == 0 && import->file != NULL);
    progress_end(&import->progress);
    return error;
}

/* ---- begin and end ---- */

static int check_usage(const struct cli *cli)
{
    if (strcmp(cli->format, "safetensors") == 0)
        return report_error(ERR_INVALID, "use hf, dcp or safetensors-folder",
                            "import does not support --format safetensors");
    if (cli->run[0] == '\0')
        return report_error(ERR_INVALID, "add --run NAME", "the new run has no name");
    if (!shard_run_is_valid(cli->run) || cli->run[0] == '.' || strlen(cli->run) > SESSION_RUN_MAX)
        return report_error(ERR_INVALID,
                            "letters, digits, '.', '_' and '-', not '.' first; at most 100",
                            "'%s' is not a valid run name", cli->run);
    return 0;
}

/* Quantized weights have other types, or names that no Llama has, and are refused. */
static void warn_of_quantization(const struct import *import)
{
    const json_t *said = json_object_get(import->config, HF_QUANTIZATION);
    const char *method = json_string_value(json_object_get(said, "quant_method"));
    char safe[64];
    if (json_is_object(said))
        log_warn("import",
                 "%s has a %s (%s), but the weights are not quantized: they are imported as they "
                 "are, and an export has no %s",
                 HF_CONFIG, HF_QUANTIZATION,
                 method != NULL ? text_safe(safe, sizeof safe, method) : "of no method",
                 HF_QUANTIZATION);
}

static int read_model(struct import *import)
{
    int error = hf_folder_open(&import->folder, import->cli->args[0]);
    if (error == 0)
        error = hf_folder_json(&import->config, &import->folder, HF_CONFIG, HF_CONFIG_BYTES_MAX);
    if (error == 0)
        error = model_shape_of_config(&import->model, import->config);
    if (error == 0)
        error = open_files(import);
    if (error == 0)
        error = find_sources(import);
    if (error == 0)
        warn_of_quantization(import);
    return error != 0 ? error : hf_kept_read(import->kept, &import->folder);
}

static int visit_attempt(void *user, const struct storage_entry *entry)
{
    (void)entry;
    return report_error(ERR_EXISTS, "give --run another name",
                        "a trainer of run %s was started already", (const char *)user);
}

/* Refuses a run that has checkpoints already; in a served store also one with attempts, whose ranks
 * may be about to save. */
static int check_new(struct import *import)
{
    struct store_list catalog = {0};
    char attempts[STORAGE_KEY_MAX];
    int error = 0;
    snprintf(attempts, sizeof attempts, "%s/attempts", import->cli->run);
    if (import->writer.served != NULL)
        error = storage_list(import->writer.store, attempts, visit_attempt,
                             (void *)(uintptr_t)import->cli->run);
    if (error == 0)
        error = store_list_read(&catalog, import->writer.store, import->cli->run);
    if (error == 0 && catalog.count > 0)
        error = report_error(ERR_EXISTS, "give --run another name",
                             "%s has checkpoints of run %s already", import->cli->store,
                             import->cli->run);
    store_list_free(&catalog);
    return error;
}

static void deinit(struct import *import)
{
    writer_deinit(&import->writer);
    for (uint32_t i = 0; i < import->num_files; i++) {
        safetensors_free(&import->files[i].header);
        hf_file_close(&import->files[i].file);
    }
    free(import->files);
    free(import->sources);
    hf_kept_free(import->kept);
    free(import->identity_json);
    free(import->config_json);
    free(import->data_json);
    json_decref(import->config);
    json_decref(import->weight_map);
    hf_folder_close(&import->folder);
    pthread_mutex_destroy(&import->lock);
}

int cli_import(const struct cli *cli)
{
    struct import import = {.cli = cli, .folder = {.fd = -1}};
    writer_init(&import.writer);
    import.writer.served = cli->server[0] != '\0' ? cli : NULL;
    import.writer.option = "--server";
    import.writer.begins_run = true;
    pthread_mutex_init(&import.lock, NULL);
    int error = check_usage(cli);
    if (error == 0)
        error = read_model(&import);
    if (error == 0)
        error = plan_manifest(&import);
    if (error == 0)
        error = writer_open(&import.writer, cli->store, cli->is_forced);
    if (error == 0)
        error = check_new(&import);
    if (error == 0)
        error = writer_end(&import.writer, fill_shards(&import), NULL);
    if (error == 0)
        writer_print_result(&import.writer, cli, text_checkpoint(cli->run, 0, 1).text, NULL);
    deinit(&import);
    return error;
}
