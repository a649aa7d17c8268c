/* manifest_header.c - compares a shard's header with the manifest: the one check of all readers.
 *
 * The manifest determines the header of each of its shards. The hash at a header's end proves only
 * that the header is unchanged, and a manifest with that hash may still describe other tensors. So
 * the header is compared with the one that a writer makes for this manifest. A different one is
 * parsed and must have the same meaning, because the format allows several spellings. */
#include "proto/format/manifest.h"

#include "proto/base/report.h"
#include "proto/format/origin.h"

#include <stdlib.h>
#include <string.h>

static bool means_the_same(const struct shard_header *header, const struct manifest *manifest,
                           uint32_t shard, const struct shard_tensor *tensors, uint32_t count)
{
    const struct shard_identity *identity = &header->identity;
    bool fits = strcmp(identity->run, origin_run(&manifest->summary)) == 0 &&
                strcmp(identity->nonce, manifest->summary.nonce) == 0 &&
                identity->step == manifest->summary.step &&
                identity->attempt == manifest->summary.attempt && identity->shard == shard &&
                identity->shards == manifest->summary.shards && header->num_tensors == count;
    for (uint32_t i = 0; i < count && fits; i++) {
        const struct tensor_meta *want = &manifest->table->tensors[tensors[i].tensor];
        const struct slice *have = &header->tensors[i];
        fits = strcmp(have->tensor.name, want->name) == 0 && have->tensor.dtype == want->dtype &&
               have->tensor.dims == want->dims &&
               memcmp(have->tensor.shape, want->shape, want->dims * sizeof *want->shape) == 0 &&
               box_equal(&have->box, &tensors[i].box, want->dims) &&
               header->data_byte[i] == tensors[i].data_byte;
    }
    return fits;
}

/* Finds the fault of a header that differs from the expected one; 0: only the spelling differs. */
static int find_fault(const struct manifest *manifest, uint32_t shard,
                      const struct shard_geometry *geometry, const struct shard_tensor *tensors,
                      uint32_t count, const void *bytes)
{
    struct shard_header header;
    uint64_t need = 0;
    int error =
        shard_header_parse(&header, &need, bytes, geometry->data_start, geometry->file_bytes);
    if (error != 0 && need > geometry->data_start)
        error = report_error(ERR_CORRUPT, NULL, "the header is longer than the manifest says");
    else if (error == 0 && !means_the_same(&header, manifest, shard, tensors, count))
        error = report_error(ERR_CORRUPT, NULL, "the header does not agree with the manifest");
    shard_header_free(&header);
    return error;
}

static int compare(struct shard_expected *expected, const struct manifest *manifest, uint32_t shard,
                   const struct shard_tensor *tensors, uint32_t count, uint64_t tensor_bytes,
                   const void *header)
{
    struct shard_geometry geometry;
    struct shard_identity identity;
    uint64_t bytes = manifest->shards[shard].data_start;
    manifest_identity(&identity, &manifest->summary, shard);
    ERR_TRY(shard_geometry_derive(&geometry, bytes, tensor_bytes));
    int error =
        shard_header_expect(expected, &geometry, manifest->table, tensors, count, &identity);
    if (error == ERR_MEMORY)
        return error;
    if (error != 0 || memcmp(header, expected->header, bytes) != 0)
        ERR_TRY(find_fault(manifest, shard, &geometry, tensors, count, header));
    return manifest_header_fits(manifest, shard, header, bytes)
               ? 0
               : report_error(ERR_CORRUPT, NULL, "the manifest has another hash of the header");
}

int manifest_check_header(struct shard_expected *expected, const struct manifest *manifest,
                          uint32_t shard, const void *header)
{
    struct shard_tensor *tensors = NULL;
    uint32_t count;
    uint64_t bytes;
    int error = layout_shard_tensors(&tensors, &count, &bytes, manifest->table, shard);
    if (error == 0)
        error = compare(expected, manifest, shard, tensors, count, bytes, header);
    free(tensors);
    return error;
}
