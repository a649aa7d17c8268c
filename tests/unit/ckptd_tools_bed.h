/* ckptd_tools_bed.h - what tools ask of a daemon that serves: Gc, Adopt, Release; and a checkpoint
 * as a tool brings it, whose shards are in the store before its manifest is. */
#ifndef HOLDFAST_TESTS_CKPTD_TOOLS_BED_H
#define HOLDFAST_TESTS_CKPTD_TOOLS_BED_H

#include "tests/unit/ckptd_bed.h"

#define STEP_DIR RUN "/step-00000001-a0001"

static char *manifest; /* of the checkpoint in <root>/made */

static inline char *read_text(const char *folder, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    size_t bytes = fread(text, 1, (1 << 20) - 1, file);
    assert_true(bytes > 0);
    fclose(file);
    return text;
}

/* A bed whose store is new, and <root>/made: the shards of one checkpoint without a manifest. */
static inline int open_with_made(void **state)
{
    struct bed *bed = bed_new();
    struct peer peers[RANKS];
    char folder[200];
    *state = bed;
    bed->config.pool_bytes = 8 * MIB;
    assert_int_equal(bed_start(bed), 0);
    bed_save_steps(bed, peers, RANKS, 1, 1);
    bed_stop(bed);
    snprintf(folder, sizeof folder, "%s/store/" STEP_DIR, bed->root);
    free(manifest);
    manifest = read_text(folder, MANIFEST_NAME);
    shell("cd '%s' && mkdir -p made/" RUN " && mv store/" STEP_DIR " made/" RUN
          " && rm made/" STEP_DIR "/manifest.json && rm -r store",
          bed->root);
    return bed_start(bed);
}

static inline int close_with_made(void **state)
{
    free(manifest);
    manifest = NULL;
    return bed_tear_down(state);
}

/* Into the store that is being served, as a tool would have written them. */
static inline void put_shards(const struct bed *bed, const char *store)
{
    shell("rm -rf '%s/" RUN "' && cp -r '%s/made/" RUN "' '%s'", store, bed->root, store);
}

static inline int adopt_as(struct bed *bed, const char *text, bool begins_run)
{
    Holdfast__V1__AdoptRequest request = HOLDFAST__V1__ADOPT_REQUEST__INIT;
    Holdfast__V1__AdoptReply *reply;
    request.manifest = (ProtobufCBinaryData){strlen(text), (uint8_t *)(uintptr_t)text};
    request.begins_run = begins_run;
    int error = call(bed, "Adopt", &request.base, &holdfast__v1__adopt_reply__descriptor, &reply);
    if (error == 0)
        FREE_REPLY(reply);
    return error;
}

static inline int adopt(struct bed *bed, const char *text)
{
    return adopt_as(bed, text, false);
}

/* As many findings, or an error code. */
static inline int gc(struct bed *bed, bool is_dry, uint64_t *out_bytes)
{
    Holdfast__V1__GcRequest request = HOLDFAST__V1__GC_REQUEST__INIT;
    Holdfast__V1__GcReply *reply;
    request.dry_run = is_dry;
    int error = call(bed, "Gc", &request.base, &holdfast__v1__gc_reply__descriptor, &reply);
    if (error != 0)
        return error;
    uint64_t files = 0, bytes = 0;
    int count = (int)reply->n_entries;
    for (size_t i = 0; i < reply->n_entries; i++) {
        files += reply->entries[i]->files;
        bytes += reply->entries[i]->bytes;
    }
    assert_int_equal(reply->files, files);
    assert_int_equal(reply->bytes, bytes);
    if (out_bytes)
        *out_bytes = bytes;
    FREE_REPLY(reply);
    return count;
}

static inline int release(struct bed *bed, uint64_t step)
{
    Holdfast__V1__ReleaseRequest request = HOLDFAST__V1__RELEASE_REQUEST__INIT;
    Holdfast__V1__ReleaseReply *reply;
    request.run = RUN;
    request.step = step;
    request.attempt = 1;
    int error =
        call(bed, "Release", &request.base, &holdfast__v1__release_reply__descriptor, &reply);
    if (error == 0)
        FREE_REPLY(reply);
    return error;
}

#endif
