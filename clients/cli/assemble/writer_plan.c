/* writer_plan.c - plans a new checkpoint (see writer.h): its layouts, each shard's part of them,
 * the digests, and whether its manifest can hold them. */
#include "clients/cli/assemble/writer.h"

#include <stdlib.h>
#include <string.h>

#define MESSAGE_FRAME_BYTES 64u /* of a message around its one long field */

/* The planner's input for one tensor: each rank has one slice of it. */
struct rows {
    uint32_t replicas, parts;
    struct slice *slices; /* per part */
    const struct slice **of_rank;
    uint32_t *counts;
};

static int init_rows(struct rows *rows, uint32_t replicas, uint32_t parts)
{
    uint32_t ranks = replicas * parts;
    *rows = (struct rows){.replicas = replicas, .parts = parts};
    rows->slices = calloc(parts, sizeof *rows->slices);
    rows->of_rank = calloc(ranks, sizeof *rows->of_rank);
    rows->counts = calloc(ranks, sizeof *rows->counts);
    if (rows->slices == NULL || rows->of_rank == NULL || rows->counts == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the slices of %s",
                            text_count(ranks, "rank").text);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        rows->of_rank[rank] = &rows->slices[rank % parts];
        rows->counts[rank] = 1;
    }
    return 0;
}

static void deinit_rows(struct rows *rows)
{
    free(rows->slices);
    free(rows->of_rank);
    free(rows->counts);
}

static int plan_layout(struct layout *out, struct rows *rows, const struct tensor_meta *meta)
{
    struct layout_table *table = NULL;
    uint64_t count = meta->dims > 0 ? meta->shape[0] : 1;
    uint64_t each = (count + rows->parts - 1) / rows->parts;
    for (uint32_t part = 0; part < rows->parts; part++) {
        struct slice *slice = &rows->slices[part];
        *slice = (struct slice){.tensor = *meta};
        for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
            slice->box.extent[d] = d < meta->dims ? meta->shape[d] : 1;
        if (meta->dims == 0)
            continue; /* every rank has it */
        uint64_t first = part * each < count ? part * each : count;
        slice->box.offset[0] = first;
        slice->box.extent[0] = count - first < each ? count - first : each;
    }
    ERR_TRY(layout_plan_save(&table, rows->of_rank, rows->counts, rows->replicas * rows->parts,
                             LAYOUT_EQUAL_REPLICAS));
    CHECK(table->num_layouts == 1);
    *out = table->layouts[0];
    table->num_layouts = 0; /* the caller owns it now */
    layout_table_free(table);
    return 0;
}

static bool layout_is_of(const struct layout *layout, const struct tensor_meta *meta)
{
    bool is = layout->dims == meta->dims;
    for (uint32_t d = 0; is && d < meta->dims; d++)
        is = layout->cuts[d][layout->num_cuts[d] - 1] == meta->shape[d];
    return is;
}

/* A cut by rows depends only on the shape. So one tensor of each shape is planned: the slices of
 * all tensors and ranks at once need gigabytes, while each rank of a trainer has only its own. */
static int plan_layouts(struct layout_table *table, struct rows *rows)
{
    int error = 0;
    for (uint32_t i = 0; i < table->num_tensors && error == 0; i++) {
        uint32_t layout = 0;
        while (layout < table->num_layouts &&
               !layout_is_of(&table->layouts[layout], &table->tensors[i]))
            layout++;
        if (layout == table->num_layouts) {
            error = plan_layout(&table->layouts[layout], rows, &table->tensors[i]);
            table->num_layouts += error == 0;
        }
        table->layout_of[i] = layout;
    }
    return error;
}

int writer_plan_rows(struct layout_table **out, const struct layout_table *from, uint32_t replicas,
                     uint32_t parts)
{
    size_t count = from->num_tensors;
    struct rows rows;
    struct layout_table *table = calloc(1, sizeof *table);
    int error = init_rows(&rows, replicas, parts);
    if (table != NULL) {
        table->tensors = calloc(count + 1, sizeof *table->tensors);
        table->layout_of = calloc(count + 1, sizeof *table->layout_of);
        table->layouts = calloc(count + 1, sizeof *table->layouts);
    }
    if (error == 0 && (table == NULL || table->tensors == NULL || table->layout_of == NULL ||
                       table->layouts == NULL))
        error =
            report_error(ERR_MEMORY, NULL, "no memory for %s", text_count(count, "tensor").text);
    if (error == 0) {
        memcpy(table->tensors, from->tensors, count * sizeof *table->tensors);
        table->num_tensors = from->num_tensors;
        error = plan_layouts(table, &rows);
    }
    if (error == 0)
        error = layout_table_index(table);
    deinit_rows(&rows);
    if (error == 0)
        *out = table;
    else
        layout_table_free(table);
    return error;
}

static int plan_shards(struct writer *writer)
{
    struct manifest *manifest = &writer->manifest;
    uint32_t shards = manifest->summary.shards;
    int error = 0;
    manifest->shards = calloc(shards, sizeof *manifest->shards);
    manifest->digests = calloc(manifest->table->num_tensors + 1u, sizeof *manifest->digests);
    if (manifest->shards == NULL || manifest->digests == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %s", text_count(shards, "shard").text);
    manifest->summary.bytes = 0;
    for (uint32_t i = 0; i < shards && error == 0; i++) {
        struct shard_geometry geometry;
        error = shard_geometry(&geometry, manifest->table, i, manifest->summary.run, shards);
        if (error != 0)
            break;
        manifest->shards[i].bytes = geometry.file_bytes;
        manifest->shards[i].data_start = geometry.data_start;
        manifest->summary.bytes += geometry.file_bytes;
    }
    return error;
}

static int plan_digests(struct writer *writer)
{
    uint32_t num_workers = scan_workers() + 1;
    writer->digests = calloc(num_workers, sizeof *writer->digests);
    for (uint32_t i = 0; i < num_workers && writer->digests != NULL; i++) {
        writer->digests[i] =
            calloc(writer->manifest.table->num_tensors + 1u, sizeof **writer->digests);
        if (writer->digests[i] == NULL)
            return report_error(ERR_MEMORY, NULL, "no memory for the digests");
    }
    return writer->digests != NULL ? 0
                                   : report_error(ERR_MEMORY, NULL, "no memory for the digests");
}

/* Refuses now, before the data are written, a manifest that cannot be written, or sent to the ckptd
 * that publishes it. Its length is already final. */
static int check_manifest(const struct writer *writer)
{
    char *text = NULL;
    size_t bytes = 0;
    int error = manifest_write(&text, &bytes, &writer->manifest);
    free(text);
    return error == 0 && writer->served != NULL &&
                   bytes > RPC_MESSAGE_BYTES_MAX - MESSAGE_FRAME_BYTES
               ? report_error(ERR_INVALID, "give a smaller --shards",
                              "the manifest of %s is too long for a call of ckptd",
                              text_count(writer->manifest.summary.shards, "shard").text)
               : error;
}

int writer_plan(struct writer *writer)
{
    struct manifest *manifest = &writer->manifest;
    manifest->summary.version = MANIFEST_VERSION;
    manifest->summary.origin[0] = '\0'; /* the source may have one */
    manifest->digests = NULL;
    manifest->shards = NULL;
    manifest->part_sums = NULL; /* of a far tier's manifest */
    manifest->part_bytes = 0;
    snprintf(manifest->code_version, sizeof manifest->code_version, "%s", report_version);
    manifest_now(manifest->summary.time);
    int error = manifest_new_nonce(manifest->summary.nonce);
    if (error == 0)
        error = plan_shards(writer);
    if (error == 0)
        error = plan_digests(writer);
    if (error == 0)
        error = check_manifest(writer);
    return error != 0
               ? error
               : shard_dir_key(writer->directory, sizeof writer->directory, manifest->summary.run,
                               manifest->summary.step, manifest->summary.attempt);
}
