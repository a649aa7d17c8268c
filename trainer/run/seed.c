/* seed.c - chooses the seed of a run without a given one (see seed.h). */
#include "trainer/run/seed.h"
#include "clients/ckpt.h"
#include "proto/base/json.h"
#include "proto/base/report.h"
#include "trainer/parallel/parallel.h"

#include <sys/random.h>

#define SEED_BITS 53 /* all readers of JSON keep this many */

/* The seed in the checkpoint's configuration; -1: none. */
static int64_t seed_in(const char *config_json)
{
    json_t *config = json_loads(config_json, 0, NULL);
    const json_t *seed = json_object_get(json_object_get(config, "debug"), "seed");
    int64_t value = json_is_integer(seed) ? json_integer_value(seed) : -1;
    json_decref(config);
    return value;
}

/* *out -1: the run has no checkpoint. */
static int find_run_seed(int64_t *out, const struct config *config)
{
    struct ckpt_tensor none = {0};
    struct ckpt_options options = {
        .server = config->ckptd_address, .run = config->run, .world_size = 1};
    struct ckpt_load_options load = {.step = config->load_step, .tensors = &none};
    struct ckpt_loaded *loaded = NULL;
    struct ckpt *ckpt = NULL;
    *out = -1;
    if (!config->checkpoint_enable)
        return 0;
    ERR_TRY(ckpt_open(&ckpt, &options));
    int rc = ckpt_load(ckpt, &load, &loaded);
    if (rc == 0) {
        *out = seed_in(loaded->config_json);
        ckpt_loaded_free(loaded);
    }
    ckpt_close(ckpt);
    return rc == ERR_NOT_FOUND ? 0 : rc;
}

static int find_seed(int64_t *out, const struct config *config)
{
    uint64_t drawn = 0;
    ERR_TRY(find_run_seed(out, config));
    if (*out >= 0) {
        log_info("train", "debug.seed = -1: the run has %lld", (long long)*out);
        return 0;
    }
    if (config->replay_step > 0)
        return report_error(
            ERR_NOT_FOUND, "give the seed that the log of its start has",
            "debug.seed = -1: run %s has no checkpoint with the seed that was drawn", config->run);
    if (getrandom(&drawn, sizeof(drawn), 0) != sizeof(drawn))
        return report_errno(ERR_IO, "could not draw debug.seed", "getrandom");
    *out = (int64_t)(drawn >> (64 - SEED_BITS));
    log_info("train", "debug.seed = -1: %lld was drawn", (long long)*out);
    return 0;
}

int seed_settle(struct config *config, struct comm *world)
{
    int64_t seed = config->seed;
    if (seed >= 0)
        return 0;
    int rc = world->rank == 0 ? find_seed(&seed, config) : 0;
    ERR_TRY(parallel_agree(world, rc));
    ERR_TRY(comm_broadcast(world, &seed, sizeof(seed), 0));
    config->seed = seed;
    return 0;
}
