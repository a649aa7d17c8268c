/* convert.c - writes a checkpoint again into another store, with other element types, fewer
 * tensors, or another number of shards. Run, step and attempt stay the same. The store is a
 * directory, or that of a running ckptd, which commits the written checkpoint (Adopt).
 *
 * It is a checkpoint like any other (writer.h), with a new nonce, and with the source's nonce in
 * its lineage. assembly.c assembles its shards block by block.
 *
 * Floating-point elements are rounded to nearest even, integers stay unchanged. Without --shards
 * and --mesh every shard of the source becomes one with the same slices. With them the shards are
 * those that so many ranks of a trainer write (layout_plan_save). If no tensor changes, it succeeds
 * only when each has the digest in the source's manifest. */
#include "clients/cli/assemble/writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct convert {
    const struct cli *cli;
    bool is_exact;                /* every tensor is kept, with its type */
    struct checkpoint checkpoint; /* the source */
    struct writer writer;
    struct cli target; /* like a command on the target store; `server` if one serves it */
    uint32_t *old_of;  /* index in the source's table, per tensor of the new one */
    char mesh_json[96];
};

/* ---- the plan of a conversion ---- */

static int copy_layout(struct layout *out, const struct layout *from)
{
    uint64_t cells = layout_cells(from);
    *out = (struct layout){.dims = from->dims};
    out->owners = malloc((cells + 1) * sizeof *out->owners);
    bool is_whole = out->owners != NULL;
    if (is_whole)
        memcpy(out->owners, from->owners, cells * sizeof *out->owners);
    for (uint32_t d = 0; d < from->dims && is_whole; d++) {
        out->num_cuts[d] = from->num_cuts[d];
        out->cuts[d] = malloc(from->num_cuts[d] * sizeof *out->cuts[d]);
        is_whole = out->cuts[d] != NULL;
        if (is_whole)
            memcpy(out->cuts[d], from->cuts[d], from->num_cuts[d] * sizeof *out->cuts[d]);
    }
    return is_whole ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the layouts");
}

/* Selects tensors, and the layouts that they still use. */
static int plan_table(struct convert *convert, const struct dtype_rules *dtypes)
{
    const struct layout_table *old = convert->checkpoint.manifest->table;
    struct layout_table *table = convert->writer.manifest.table = calloc(1, sizeof *table);
    uint32_t *layout_of = malloc((old->num_layouts + 1) * sizeof *layout_of);
    convert->old_of = calloc((size_t)old->num_tensors + 1, sizeof *convert->old_of);
    if (table != NULL) {
        table->tensors = calloc((size_t)old->num_tensors + 1, sizeof *table->tensors);
        table->layout_of = calloc((size_t)old->num_tensors + 1, sizeof *table->layout_of);
        table->layouts = calloc((size_t)old->num_layouts + 1, sizeof *table->layouts);
    }
    if (table == NULL || layout_of == NULL || convert->old_of == NULL || table->tensors == NULL ||
        table->layout_of == NULL || table->layouts == NULL) {
        free(layout_of);
        return report_error(ERR_MEMORY, NULL, "no memory for %s",
                            text_count(old->num_tensors, "tensor").text);
    }
    for (uint32_t i = 0; i < old->num_layouts; i++)
        layout_of[i] = UINT32_MAX;
    int error = 0;
    for (uint32_t i = 0; i < old->num_tensors && error == 0; i++) {
        if (!tensor_is_wanted(&old->tensors[i], convert->cli))
            continue;
        uint32_t *layout = &layout_of[old->layout_of[i]], at = table->num_tensors++;
        if (*layout == UINT32_MAX) {
            *layout = table->num_layouts++;
            error = copy_layout(&table->layouts[*layout], &old->layouts[old->layout_of[i]]);
        }
        table->tensors[at] = old->tensors[i];
        table->layout_of[at] = *layout;
        convert->old_of[at] = i;
        table->tensors[at].dtype = dtype_rules_apply(dtypes, &old->tensors[i]);
    }
    free(layout_of);
    return error != 0 ? error : layout_table_index(table);
}

/* Copies the fields that both manifests share. */
static void inherit_manifest(struct convert *convert)
{
    const struct manifest *old = convert->checkpoint.manifest;
    struct manifest *manifest = &convert->writer.manifest;
    *manifest = *old;
    manifest->table = NULL;
    manifest->digests = NULL;
    manifest->shards = NULL;
    memcpy(manifest->converted_from, old->summary.nonce, sizeof manifest->converted_from);
}

/* ---- the plan of another cut ---- */

/* The axes of a mesh over which shards differ. */
struct mesh_plan {
    uint32_t replicas, shards;
    unsigned named; /* a bit per axis that was given */
};

static int parse_axis(struct mesh_plan *mesh, const char *name, size_t length, uint64_t degree)
{
    static const char *const axes[] = {"dp_shard", "dp_replicate", "pp", "cp", "tp"};
    size_t axis = 0, count = sizeof axes / sizeof *axes;
    while (axis < count && (length != strlen(axes[axis]) || strncmp(name, axes[axis], length) != 0))
        axis++;
    if (axis == count || (axis > 1 && degree != 1))
        return report_error(ERR_INVALID,
                            "use dp_shard and dp_replicate: the trainer shards along these",
                            "--mesh: axis '%.*s' with degree %llu is not supported", (int)length,
                            name, (unsigned long long)degree);
    if (mesh->named & (1u << axis))
        return report_error(ERR_INVALID, "name each axis once",
                            "--mesh: the axis '%s' was given twice", axes[axis]);
    mesh->named |= 1u << axis;
    if (axis == 0)
        mesh->shards = (uint32_t)degree;
    else if (axis == 1)
        mesh->replicas = (uint32_t)degree;
    return 0;
}

/* Parses "dp_shard=4" or "dp_replicate=2,dp_shard=4". */
static int parse_mesh(struct mesh_plan *out, const struct cli *cli)
{
    *out = (struct mesh_plan){1, cli->shards > 0 ? (uint32_t)cli->shards : 1, 0};
    for (const char *at = cli->mesh; *at != '\0';) {
        size_t length = strcspn(at, "=,");
        char *end = NULL;
        unsigned long long degree = at[length] == '=' ? strtoull(at + length + 1, &end, 10) : 0;
        if (degree < 1 || degree > SHARDS_MAX || at[length + 1] < '0' || at[length + 1] > '9' ||
            (*end != '\0' && (*end != ',' || end[1] == '\0')))
            return report_error(ERR_INVALID, "dp_shard=4, or dp_replicate=2,dp_shard=4",
                                "--mesh '%s' is not a list of axes and degrees", cli->mesh);
        int error = parse_axis(out, at, length, degree);
        if (error != 0)
            return error;
        at = *end == ',' ? end + 1 : end;
    }
    uint64_t ranks = (uint64_t)out->replicas * out->shards;
    if (ranks > SHARDS_MAX ||
        (cli->mesh[0] != '\0' && cli->shards > 0 && (uint64_t)cli->shards != ranks))
        return report_error(ERR_INVALID, NULL, "a mesh of %s does not fit %s",
                            text_count(ranks, "rank").text,
                            text_count((uint64_t)cli->shards, "shard").text);
    return 0;
}

static int plan_cut(struct convert *convert)
{
    struct manifest *manifest = &convert->writer.manifest;
    struct layout_table *uncut = manifest->table;
    struct mesh_plan mesh;
    ERR_TRY(parse_mesh(&mesh, convert->cli));
    ERR_TRY(writer_plan_rows(&manifest->table, uncut, mesh.replicas, mesh.shards));
    layout_table_free(uncut);
    manifest->summary.shards = manifest->summary.world_size = mesh.replicas * mesh.shards;
    snprintf(convert->mesh_json, sizeof convert->mesh_json,
             "{\"pp\":1,\"dp_replicate\":%u,\"dp_shard\":%u,\"cp\":1,\"tp\":1}", mesh.replicas,
             mesh.shards);
    manifest->mesh_json = convert->mesh_json;
    return 0;
}

static int plan(struct convert *convert)
{
    const struct cli *cli = convert->cli;
    const struct layout_table *table = convert->checkpoint.manifest->table;
    bool is_cut = cli->shards > 0 || cli->mesh[0] != '\0';
    struct dtype_rules dtypes;
    ERR_TRY(dtype_rules_parse(&dtypes, cli, table));
    ERR_TRY(tensors_check_wanted(table, cli));
    convert->is_exact =
        dtypes.keep && dtypes.num_exceptions == 0 && !cli->is_weights_only && cli->only[0] == '\0';
    if (convert->is_exact && !is_cut)
        return report_error(ERR_INVALID,
                            "add --dtype bf16, fp16 or fp32, --weights-only, --only, --shards or "
                            "--mesh",
                            "there is nothing to convert");
    inherit_manifest(convert);
    ERR_TRY(plan_table(convert, &dtypes));
    return is_cut ? plan_cut(convert) : 0;
}

/* ---- begin and end ---- */

/* A ckptd tells the path of its store. */
static int find_target(struct convert *convert)
{
    const struct cli *cli = convert->cli;
    struct cli *target = &convert->target;
    if (cli->output[0] == '\0')
        return report_error(ERR_INVALID, "add --output DIR, or --output unix:/PATH of its ckptd",
                            "no store to convert to was named");
    ERR_TRY(server_find_named(target, cli, cli->output, strlen(cli->output)));
    convert->writer.served = target->server[0] != '\0' ? target : NULL;
    convert->writer.option = "--output";
    bool is_same = false;
    ERR_TRY(store_compare(&is_same, cli->store, target->store));
    if (is_same)
        return report_error(ERR_INVALID, "name another store", "%s is the store of the source",
                            cli->output);
    return 0;
}

static uint64_t bytes_to_read(const struct convert *convert)
{
    const struct layout_table *table = convert->writer.manifest.table;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < table->num_tensors; i++) {
        const struct tensor_meta *meta =
            &convert->checkpoint.manifest->table->tensors[convert->old_of[i]];
        sum += tensor_elements(meta) * dtype_bytes(meta->dtype);
    }
    return sum;
}

static int write_shards(struct convert *convert)
{
    const struct assembly_hooks hooks = {
        .user = &convert->writer, .open = writer_shard, .complete = writer_complete};
    return assembly_run_whole(&convert->checkpoint, &hooks, convert->cli, "convert",
                              bytes_to_read(convert));
}

int cli_convert(const struct cli *cli)
{
    struct convert convert = {.cli = cli};
    struct storage *store = NULL;
    writer_init(&convert.writer);
    int error = store_open(&store, cli);
    if (error == 0)
        error = checkpoint_open(&convert.checkpoint, store, cli->args[0]);
    if (error == 0)
        error = plan(&convert);
    if (error == 0)
        error = find_target(&convert);
    if (error == 0)
        error = writer_plan(&convert.writer);
    if (error == 0)
        error = writer_open(&convert.writer, convert.target.store, cli->is_forced);
    if (error == 0) {
        convert.writer.source_of = convert.old_of;
        error = writer_end(&convert.writer, write_shards(&convert),
                           convert.is_exact ? convert.checkpoint.manifest->digests : NULL);
    }
    if (error == 0)
        writer_print_result(&convert.writer, cli, convert.checkpoint.name, cli->output);
    writer_deinit(&convert.writer);
    free(convert.old_of);
    verified_report(cli, &convert.checkpoint);
    checkpoint_close(&convert.checkpoint);
    storage_close(store);
    return error;
}
