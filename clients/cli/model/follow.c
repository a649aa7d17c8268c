/* follow.c - writes or prints the weights of each checkpoint of a run, as it is committed.
 *
 * ckpt_newer() finds the next checkpoint: ordered by attempt, then step, never back. One load, and
 * so one lease, reads its tensors, or the wanted slices of them, from ckptd's memory if they are
 * still there. If several checkpoints are committed while a version is read or written, follow
 * skips to the newest. It also skips a version that is removed before it was read, or damaged.
 *
 * With --output a version is a safetensors file in a folder. It is loaded into a mapping of
 * .NAME.part, and gets its name when it is complete and durable. The folder's lock excludes a
 * second follower. A restarted follower continues after the newest file.
 *
 * Every version is compared with the digests of its manifest before it is published, for whole
 * tensors that keep their type. Memory: with --output the converted tensors, else all wanted
 * ones. */
#include "clients/ckpt.h"
#include "clients/cli/engine/cli.h"
#include "clients/cli/model/weights.h"

#include "proto/format/retain.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define LOOK_MS 1000u
#define SUFFIX ".safetensors"
#define NAME_BYTES 256u /* of a version's file */

/* A tensor, or a box of it, in the output. */
struct want {
    const struct ckpt_tensor_info *info; /* NULL: it is stored as boxes, and has no digest */
    struct tensor_meta meta;             /* of the whole stored tensor */
    enum dtype dtype;                    /* in the output */
    struct box box;
    uint64_t elements, start, bytes; /* in the output; start: from the begin of the data */
    unsigned char *data, *raw;       /* in the output, and as stored: the same if nothing changes */
    struct digest digest;            /* of the output, as of a tensor of that shape */
};

struct version {
    struct ckpt_metadata *metadata;
    struct want *wants;
    uint32_t count;
    char *header;
    size_t header_bytes;
    uint64_t data_bytes, raw_bytes;
    unsigned char *image, *raw; /* header and data; tensors to be converted */
    char part[NAME_BYTES + 8];
    int file; /* < 0: no file */
    double seconds;
    uint64_t bytes_memory;
};

struct follow {
    const struct cli *cli;
    struct ckpt *ckpt;
    char run[128];
    int folder; /* < 0: none */
    uint64_t attempt, step;
};

/* ---- selection ---- */

/* Parses "2:7", ":7", "2:" or ":" for a dimension of `length`; *at moves after it. */
static bool parse_range(uint64_t *offset, uint64_t *extent, uint64_t length, const char **at)
{
    char *end = NULL;
    uint64_t first = **at == ':' ? 0 : strtoull(*at, &end, 10);
    const char *colon = end != NULL ? end : *at;
    if (*colon != ':' || **at == '-' || **at == '+' || **at == ' ')
        return false;
    bool is_open = colon[1] == '\0' || colon[1] == ',' || colon[1] == ';';
    uint64_t last = is_open ? length : strtoull(colon + 1, &end, 10);
    *at = is_open ? colon + 1 : end;
    *offset = first;
    *extent = last - first;
    return first < last && last <= length && (is_open || (colon[1] >= '0' && colon[1] <= '9'));
}

static int fail_slice(const struct tensor_meta *meta, const char *text)
{
    char shape[256];
    return report_error(ERR_INVALID, "write NAME=BEGIN:END,... within the shape, ':' for all of it",
                        "--slice %.*s does not fit %s %s", (int)strcspn(text, ";"), text,
                        meta->name, text_shape(shape, sizeof shape, meta));
}

/* Applies --slice to a tensor's box: the first matching pattern counts. */
static int apply_slices(struct want *want, const char *slices)
{
    char pattern[LAYOUT_NAME_MAX];
    for (const char *entry = slices; *entry != '\0'; entry += entry[0] == ';') {
        size_t length = strcspn(entry, "=;");
        const char *at = entry + length + 1;
        if (length >= sizeof pattern || entry[length] != '=')
            return fail_slice(&want->meta, entry);
        memcpy(pattern, entry, length);
        pattern[length] = '\0';
        if (fnmatch(pattern, want->meta.name, 0) != 0) {
            entry += strcspn(entry, ";");
            continue;
        }
        for (uint32_t d = 0; d < want->meta.dims; d++) {
            if (!parse_range(&want->box.offset[d], &want->box.extent[d], want->meta.shape[d],
                             &at) ||
                (*at == ',') != (d + 1 < want->meta.dims))
                return fail_slice(&want->meta, entry);
            at += *at == ',';
        }
        return *at == '\0' || *at == ';' ? 0 : fail_slice(&want->meta, entry);
    }
    return 0;
}

static int fill_meta(struct tensor_meta *out, const struct ckpt_tensor_info *info)
{
    *out = (struct tensor_meta){.dims = info->dims};
    snprintf(out->name, sizeof out->name, "%s", info->name);
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
        out->shape[d] = d < info->dims ? info->shape[d] : 1;
    return dtype_parse(&out->dtype, info->dtype);
}

static int compare_wants(const void *left, const void *right)
{
    const struct want *a = left, *b = right;
    uint32_t size_a = dtype_bytes(a->dtype), size_b = dtype_bytes(b->dtype);
    return size_a != size_b ? (size_a > size_b ? -1 : 1) : strcmp(a->meta.name, b->meta.name);
}

static int plan_want(struct want *want, const struct dtype_rules *rules, const struct cli *cli)
{
    want->dtype = dtype_rules_apply(rules, &want->meta);
    memcpy(want->box.extent, want->meta.shape, sizeof want->box.extent);
    ERR_TRY(apply_slices(want, cli->slices));
    want->elements = box_elements(&want->box, want->meta.dims);
    want->bytes = want->elements * dtype_bytes(want->dtype);
    return 0;
}

/* Sets their places in the file. */
static void place_wants(struct version *version)
{
    qsort(version->wants, version->count, sizeof *version->wants, compare_wants);
    for (uint32_t i = 0; i < version->count; i++) {
        struct want *want = &version->wants[i];
        want->start = version->data_bytes;
        version->data_bytes += want->bytes;
        if (want->dtype != want->meta.dtype)
            version->raw_bytes += want->elements * dtype_bytes(want->meta.dtype);
    }
}

/* Selects tensors, boxes joined, and the box of each. Bytes objects are left out. */
static int choose_wants(struct version *version, const struct layout_table *table,
                        const uint32_t *first, const struct cli *cli)
{
    struct dtype_rules rules;
    ERR_TRY(dtype_rules_parse(&rules, cli, table));
    ERR_TRY(tensors_check_wanted(table, cli));
    for (uint32_t i = 0; i < table->num_tensors; i++) {
        const struct tensor_meta *meta = &table->tensors[i];
        if (tensor_is_object(meta) || !tensor_is_wanted(meta, cli))
            continue;
        struct want *want = &version->wants[version->count++];
        *want = (struct want){.meta = *meta};
        if (first[i + 1] - first[i] == 1)
            want->info = &version->metadata->tensors[first[i]];
        ERR_TRY(plan_want(want, &rules, cli));
    }
    return 0;
}

static int plan_wants(struct version *version, const struct cli *cli)
{
    const uint32_t count = version->metadata->num_tensors;
    struct tensor_meta *metas = calloc((size_t)count + 1, sizeof *metas);
    uint32_t *first = calloc((size_t)count + 1, sizeof *first);
    struct layout_table table = {.tensors = metas};
    version->wants = calloc((size_t)count + 1, sizeof *version->wants);
    int error = metas != NULL && first != NULL && version->wants != NULL
                    ? 0
                    : report_error(ERR_MEMORY, NULL, "no memory for a version");
    for (uint32_t i = 0; error == 0 && i < count; i++)
        error = fill_meta(&metas[i], &version->metadata->tensors[i]);
    if (error == 0) {
        table.num_tensors = layout_join(metas, first, count);
        error = choose_wants(version, &table, first, cli);
    }
    free(metas);
    free(first);
    if (error == 0)
        place_wants(version);
    return error;
}

/* ---- one version ---- */

/* The shape of the box. */
static const char *given_shape(char *out, size_t size, const struct want *want)
{
    struct tensor_meta given = want->meta;
    memcpy(given.shape, want->box.extent, sizeof given.shape);
    return text_shape(out, size, &given);
}

static int make_header(struct version *version)
{
    const struct ckpt_info *info = &version->metadata->info;
    struct weights_header header;
    char shape[256];
    ERR_TRY(weights_header_begin(&header, info->run, info->step, info->attempt, info->nonce));
    for (uint32_t i = 0; i < version->count; i++) {
        const struct want *want = &version->wants[i];
        weights_header_add(&header, want->meta.name, want->dtype,
                           given_shape(shape, sizeof shape, want), want->start, want->bytes);
    }
    int error = weights_header_end(&header);
    version->header = header.text;
    version->header_bytes = header.bytes;
    return error;
}

/* Allocates space on the disk first: a store into a mapping without space raises a signal, not an
 * error. */
static int create_file(struct version *version, const struct follow *follow, uint64_t bytes)
{
    const struct ckpt_info *info = &version->metadata->info;
    snprintf(version->part, sizeof version->part, ".%s-step-%08llu-a%04llu" SUFFIX ".part",
             info->run, (unsigned long long)info->step, (unsigned long long)info->attempt);
    version->file =
        openat(follow->folder, version->part, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (version->file < 0)
        return report_errno(ERR_IO, "could not create a file", version->part);
    errno = posix_fallocate(version->file, 0, (off_t)bytes);
    if (errno != 0)
        return report_errno(errno == ENOSPC ? ERR_SPACE : ERR_IO,
                            "could not reserve the space of a file", version->part);
    return 0;
}

static int map(unsigned char **out, uint64_t bytes, int file)
{
    int flags = file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *memory = bytes > 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0) : NULL;
    if (memory == MAP_FAILED)
        return report_error(ERR_MEMORY, NULL, "no memory for %llu bytes of a version",
                            (unsigned long long)bytes);
    *out = memory;
    return 0;
}

static int make_room(struct version *version, const struct follow *follow)
{
    uint64_t bytes = version->header_bytes + version->data_bytes;
    if (follow->folder >= 0)
        ERR_TRY(create_file(version, follow, bytes));
    ERR_TRY(map(&version->image, bytes, version->file));
    ERR_TRY(map(&version->raw, version->raw_bytes, -1));
    memcpy(version->image, version->header, version->header_bytes);
    unsigned char *raw = version->raw;
    for (uint32_t i = 0; i < version->count; i++) {
        struct want *want = &version->wants[i];
        bool is_kept = want->dtype == want->meta.dtype;
        want->data = version->image + version->header_bytes + want->start;
        want->raw = is_kept ? want->data : raw;
        raw += is_kept ? 0 : want->elements * dtype_bytes(want->meta.dtype);
    }
    return 0;
}

/* Loads everything by one load of exactly this checkpoint. */
static int load_version(struct version *version, const struct follow *follow)
{
    const struct ckpt_info *info = &version->metadata->info;
    struct ckpt_array *arrays = calloc((size_t)version->count + 1, sizeof *arrays);
    struct ckpt_loaded *loaded = NULL;
    if (arrays == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a load");
    for (uint32_t i = 0; i < version->count; i++) {
        const struct want *want = &version->wants[i];
        arrays[i] = (struct ckpt_array){.size = sizeof *arrays,
                                        .dims = want->meta.dims,
                                        .name = want->meta.name,
                                        .dtype = dtype_name(want->meta.dtype),
                                        .data = want->raw};
        memcpy(arrays[i].shape, want->meta.shape, sizeof arrays[i].shape);
        memcpy(arrays[i].offset, want->box.offset, sizeof arrays[i].offset);
        memcpy(arrays[i].extent, want->box.extent, sizeof arrays[i].extent);
    }
    const struct ckpt_load_request request = {.size = sizeof request,
                                              .num_arrays = version->count,
                                              .step = (int64_t)info->step,
                                              .attempt = info->attempt,
                                              .arrays = arrays};
    int error = ckpt_load_arrays(follow->ckpt, &request, &loaded);
    free(arrays);
    if (error != 0)
        return error;
    version->seconds = loaded->seconds;
    version->bytes_memory = loaded->bytes_memory;
    ckpt_loaded_free(loaded);
    return 0;
}

/* Converts tensors if necessary; unconverted ones must have their digest. */
static int finish_version(struct version *version)
{
    for (uint32_t i = 0; i < version->count; i++) {
        struct want *want = &version->wants[i];
        bool is_kept = want->dtype == want->meta.dtype;
        if (!is_kept)
            convert_elements(want->data, want->dtype, want->raw, want->meta.dtype, want->elements);
        digest_add(&want->digest, want->data, want->elements, dtype_bytes(want->dtype), 0);
        if (is_kept && want->info != NULL && want->elements == tensor_elements(&want->meta) &&
            memcmp(want->digest.sum, want->info->digest, sizeof want->digest.sum) != 0)
            return report_error(ERR_CORRUPT, DAMAGE_HINT,
                                "tensor %s does not have the digest that was committed",
                                want->meta.name);
    }
    return 0;
}

static void close_version(struct version *version, const struct follow *follow)
{
    if (version->image != NULL)
        munmap(version->image, version->header_bytes + version->data_bytes);
    if (version->raw != NULL)
        munmap(version->raw, version->raw_bytes);
    if (version->file >= 0) {
        close(version->file);
        unlinkat(follow->folder, version->part, 0); /* already gone if it was published */
    }
    free(version->header);
    free(version->wants);
    ckpt_metadata_free(version->metadata);
}

/* ---- the folder ---- */

/* Is it the file of a version of the run? */
static bool is_version(const struct follow *follow, const char *name, uint64_t *step,
                       uint64_t *attempt)
{
    char own[NAME_BYTES];
    size_t run = strlen(follow->run), length = strlen(name), suffix = strlen(SUFFIX);
    if (length >= sizeof own || length < run + 1 + suffix || strncmp(name, follow->run, run) != 0 ||
        name[run] != '-' || strcmp(name + length - suffix, SUFFIX) != 0)
        return false;
    snprintf(own, sizeof own, "%.*s", (int)(length - run - 1 - suffix), name + run + 1);
    return retain_parse(own, step, attempt);
}

/* Calls `visit` with each name in the folder. */
static int for_names(const struct follow *follow, void (*visit)(void *user, const char *name),
                     void *user)
{
    int fd = openat(follow->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (folder == NULL && fd >= 0)
        close(fd);
    if (folder == NULL)
        return report_errno(ERR_IO, "could not list the folder", follow->cli->output);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        visit(user, entry->d_name);
    closedir(folder);
    return 0;
}

/* At the start: continues after the newest version, and removes unfinished files. */
static void visit_start(void *user, const char *name)
{
    struct follow *follow = user;
    uint64_t step, attempt;
    char whole[NAME_BYTES];
    size_t length = strlen(name);
    bool is_part = name[0] == '.' && length > 6 && strcmp(name + length - 5, ".part") == 0;
    snprintf(whole, sizeof whole, "%.*s", (int)(length > 6 ? length - 6 : 0), name + is_part);
    if (is_part && is_version(follow, whole, &step, &attempt))
        unlinkat(follow->folder, name, 0);
    if (is_part || !is_version(follow, name, &step, &attempt))
        return;
    if (attempt > follow->attempt || (attempt == follow->attempt && step > follow->step)) {
        follow->attempt = attempt;
        follow->step = step;
    }
}

static int open_folder(struct follow *follow)
{
    const char *path = follow->cli->output;
    follow->folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (follow->folder < 0)
        return report_errno(errno == ENOENT ? ERR_NOT_FOUND : ERR_IO,
                            "could not open the folder for the versions", path);
    if (flock(follow->folder, LOCK_EX | LOCK_NB) != 0)
        return report_error(ERR_BUSY, "name another folder",
                            "another `ckpt-cli follow` writes into %s", path);
    return for_names(follow, visit_start, follow);
}

/* The oldest existing version, and their number. */
struct oldest {
    const struct follow *follow;
    uint64_t step, attempt, count;
    char name[NAME_BYTES];
};

static void visit_oldest(void *user, const char *name)
{
    struct oldest *oldest = user;
    uint64_t step, attempt;
    if (!is_version(oldest->follow, name, &step, &attempt))
        return;
    if (oldest->count++ > 0 &&
        (attempt > oldest->attempt || (attempt == oldest->attempt && step > oldest->step)))
        return;
    oldest->step = step;
    oldest->attempt = attempt;
    snprintf(oldest->name, sizeof oldest->name, "%s", name);
}

static int remove_old(const struct follow *follow)
{
    for (;;) {
        struct oldest oldest = {.follow = follow};
        ERR_TRY(for_names(follow, visit_oldest, &oldest));
        if (oldest.count <= (uint64_t)follow->cli->keep_last)
            return 0;
        if (unlinkat(follow->folder, oldest.name, 0) != 0)
            return report_errno(ERR_IO, "could not remove an older version", oldest.name);
    }
}

/* Renames it to its name when it is durable. */
static int publish_version(struct version *version, const struct follow *follow,
                           char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "%s", version->part + 1);
    name[strlen(name) - strlen(".part")] = '\0';
    if (fdatasync(version->file) != 0 ||
        renameat(follow->folder, version->part, follow->folder, name) != 0 ||
        fsync(follow->folder) != 0)
        return report_errno(ERR_IO, "could not make a version durable", name);
    return follow->cli->keep_last > 0 ? remove_old(follow) : 0;
}

/* ---- output ---- */

static void print_json(const struct version *version, const struct follow *follow, const char *file)
{
    const struct ckpt_info *info = &version->metadata->info;
    char shape[256];
    printf("{\"run\": ");
    text_json(stdout, info->run);
    printf(", \"step\": %llu, \"attempt\": %llu, \"nonce\": ", (unsigned long long)info->step,
           (unsigned long long)info->attempt);
    text_json(stdout, info->nonce);
    printf(", \"bytes\": %llu, \"bytes_from_memory\": %llu, \"seconds\": %.6f",
           (unsigned long long)version->data_bytes, (unsigned long long)version->bytes_memory,
           version->seconds);
    if (file[0] != '\0') {
        char path[sizeof follow->cli->output + NAME_BYTES];
        snprintf(path, sizeof path, "%s/%s", follow->cli->output, file);
        printf(", \"file\": ");
        text_json(stdout, path);
    }
    printf(", \"tensors\": [");
    for (uint32_t i = 0; i < version->count; i++) {
        const struct want *want = &version->wants[i];
        printf("%s{\"name\": ", i > 0 ? ", " : "");
        text_json(stdout, want->meta.name);
        printf(", \"dtype\": \"%s\", \"shape\": %s, \"digest\": \"%016llx%016llx\"}",
               dtype_name(want->dtype), given_shape(shape, sizeof shape, want),
               (unsigned long long)want->digest.sum[0], (unsigned long long)want->digest.sum[1]);
    }
    printf("]}\n");
}

static void print_text(const struct version *version, const char *file)
{
    const struct ckpt_info *info = &version->metadata->info;
    char size[32], shape[256];
    printf("%s  %s, %s in %.3f s  %s\n", text_checkpoint(info->run, info->step, info->attempt).text,
           text_count(version->count, "tensor").text,
           text_bytes(size, sizeof size, version->data_bytes), version->seconds,
           file[0] != '\0'             ? file
           : version->bytes_memory > 0 ? "from memory"
                                       : "from the disk");
    for (uint32_t i = 0; file[0] == '\0' && i < version->count; i++) {
        const struct want *want = &version->wants[i];
        printf("  %s  %s %s  %016llx%016llx\n", want->meta.name, dtype_name(want->dtype),
               given_shape(shape, sizeof shape, want), (unsigned long long)want->digest.sum[0],
               (unsigned long long)want->digest.sum[1]);
    }
}

/* ---- begin and end ---- */

static int follow_version(const struct follow *follow, const struct ckpt_info *info)
{
    struct version version = {.file = -1};
    char name[NAME_BYTES] = "";
    int error = ckpt_metadata(follow->ckpt, (int64_t)info->step, info->attempt, &version.metadata);
    if (error == 0)
        error = plan_wants(&version, follow->cli);
    if (error == 0)
        error = make_header(&version);
    if (error == 0)
        error = make_room(&version, follow);
    if (error == 0)
        error = load_version(&version, follow);
    if (error == 0)
        error = finish_version(&version);
    if (error == 0 && follow->folder >= 0)
        error = publish_version(&version, follow, name);
    if (error == 0 && follow->cli->is_json)
        print_json(&version, follow, name);
    else if (error == 0)
        print_text(&version, name);
    fflush(stdout);
    struct report_text text;
    report_keep(&text);
    close_version(&version, follow);
    return report_restore(&text, error);
}

/* Does the error concern this version only, and not the next? */
static bool is_of_version(int error)
{
    return error == ERR_NOT_FOUND || error == ERR_CORRUPT;
}

/* Is ckptd away, or shutting down? */
static bool is_of_server(int error)
{
    return error == ERR_UNAVAILABLE || error == ERR_TIMEOUT || error == ERR_BUSY ||
           error == ERR_ABORTED;
}

static int follow_run(struct follow *follow)
{
    int error = 0;
    for (int64_t given = 0; error == 0 && !ferror(stdout);) {
        struct ckpt_info info;
        error = ckpt_newer(follow->ckpt, follow->attempt, follow->step, LOOK_MS, &info);
        if (error == ERR_TIMEOUT) {
            error = 0;
            continue;
        }
        if (error == 0)
            error = follow_version(follow, &info);
        if (error == ERR_CORRUPT)
            skipped_print(info.run, info.step, info.attempt, report_message());
        if (error == 0 || is_of_version(error)) {
            follow->attempt = info.attempt;
            follow->step = info.step;
            given += error == 0;
            error = 0;
        } else if (is_of_server(error)) {
            error = 0;
        }
        if (given > 0 && given == follow->cli->count)
            break;
    }
    return error;
}

int cli_follow(const struct cli *cli)
{
    struct cli weights = *cli;
    struct follow follow = {.cli = &weights, .folder = -1};
    struct selection selection;
    char address[sizeof cli->store + 8];
    weights.is_weights_only = true;
    ERR_TRY(selection_parse_run(&selection, cli->args[0]));
    snprintf(follow.run, sizeof follow.run, "%s", selection.run);
    int error = cli->output[0] != '\0' ? open_folder(&follow) : 0;
    if (error == 0)
        error = ckpt_open(&follow.ckpt, &(struct ckpt_options){
                                            .server = cli_address(address, sizeof address, cli),
                                            .run = follow.run,
                                            .world_size = 1,
                                            .connect_ms = LOOK_MS,
                                        });
    if (error == 0)
        error = follow_run(&follow);
    ckpt_close(follow.ckpt);
    if (follow.folder >= 0)
        close(follow.folder);
    return error;
}
