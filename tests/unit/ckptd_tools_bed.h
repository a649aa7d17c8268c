/* ckptd_tools_bed.h - requests of tools to a daemon that serves: Gc, Adopt, Release. It also makes
 * a checkpoint as a tool brings it: the shards are in the store before the manifest. */
#ifndef HOLDFAST_TESTS_CKPTD_TOOLS_BED_H
#define HOLDFAST_TESTS_CKPTD_TOOLS_BED_H

#include "storage/store/store.h"
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/mark_bed.h"
#include "tests/unit/suite.h"

#include <inttypes.h>

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

/* Makes <root>/made: the shards of the store's first checkpoint without its manifest. */
static inline void copy_made(struct bed *bed)
{
    char folder[200];
    snprintf(folder, sizeof folder, "%s/store/" STEP_DIR, bed->root);
    free(manifest);
    manifest = read_text(folder, MANIFEST_NAME);
    shell("cd '%s' && mkdir -p made/" RUN " && cp -r store/" STEP_DIR " made/" RUN
          " && rm made/" STEP_DIR "/manifest.json",
          bed->root);
    char made[200];
    snprintf(made, sizeof made, "%s/made", bed->root);
    put_mark(made, RUN, 1, 1);
}

/* A bed with a new store, and the files of copy_made. */
static inline int open_with_made(void **state)
{
    struct bed *bed = bed_new();
    struct peer peers[RANKS];
    *state = bed;
    bed->config.pool_bytes = 8 * MIB;
    assert_int_equal(bed_start(bed), 0);
    bed_save_steps(bed, peers, RANKS, 1, 1);
    bed_stop(bed);
    copy_made(bed);
    shell("rm -r '%s/store'", bed->root);
    return bed_start(bed);
}

static inline int close_with_made(void **state)
{
    free(manifest);
    manifest = NULL;
    return bed_tear_down(state);
}

/* Copies them into the store that is being served, as a tool writes them. */
static inline void put_shards(const struct bed *bed, const char *store)
{
    shell("rm -rf '%s/" RUN "' && cp -r '%s/made/" RUN "' '%s'", store, bed->root, store);
}

static inline int adopt_as(struct bed *bed, const char *text, bool begins_run)
{
    Holdfast__V1__AdoptRequest request = HOLDFAST__V1__ADOPT_REQUEST__INIT;
    request.manifest = (ProtobufCBinaryData){strlen(text), (uint8_t *)(uintptr_t)text};
    request.begins_run = begins_run;
    return try_call(bed, "Adopt", &request.base);
}

static inline int adopt(struct bed *bed, const char *text)
{
    return adopt_as(bed, text, false);
}

/* 0 and the answer, or an error code. */
static inline int ask_gc(Holdfast__V1__GcReply **out, struct bed *bed, bool is_dry)
{
    Holdfast__V1__GcRequest request = HOLDFAST__V1__GC_REQUEST__INIT;
    request.dry_run = is_dry;
    return call(bed, "Gc", &request.base, &holdfast__v1__gc_reply__descriptor, out);
}

/* The number of findings that were removed, or could be; or an error. */
static inline int gc(struct bed *bed, bool is_dry, uint64_t *out_bytes)
{
    Holdfast__V1__GcReply *reply;
    int error = ask_gc(&reply, bed, is_dry);
    if (error != 0)
        return error;
    uint64_t files = 0, bytes = 0;
    int count = 0;
    for (size_t i = 0; i < reply->n_entries; i++) {
        if (reply->entries[i]->error[0] || reply->entries[i]->what == STORE_ASIDE)
            continue;
        files += reply->entries[i]->files;
        bytes += reply->entries[i]->bytes;
        count++;
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
    request.run = RUN;
    request.step = step;
    request.attempt = 1;
    return try_call(bed, "Release", &request.base);
}

/* ---- a tool that reads or writes a checkpoint, with a lease on it ---- */

struct tool_lease {
    struct storage *store;
    struct storage_hold *hold;
};

static inline void tool_lease_take(struct tool_lease *out, const char *path, uint64_t step)
{
    char prefix[100];
    static const struct storage_options options = {
        .is_quiet = true, .force_pwrite = true, .num_threads = 1};
    snprintf(prefix, sizeof prefix, RUN "/step-%08" PRIu64 "-a0001", step);
    assert_int_equal(storage_open(&out->store, &storage_local, path, &options), 0);
    assert_int_equal(store_lease(out->store, &out->hold, prefix, "a tool"), 0);
}

static inline void tool_lease_end(struct tool_lease *lease)
{
    storage_release(lease->store, lease->hold);
    storage_close(lease->store);
}

#endif
