/* policy.c - settings of one run, from a section [run.NAME] of the configuration file:
 *
 *     [run.big]
 *     quota = "2TiB"
 *     retention.keep_last = 3
 *
 * A run's name may contain dots, so the key is matched at the end of the name. */
#include "ckptd/core/policy.h"
#include "proto/base/options.h"
#include "proto/base/report.h"
#include "proto/base/toml.h"
#include "proto/format/shard.h"
#include "proto/wire/arena.h"

#include <stdio.h>
#include <string.h>

#define TIB (1024.0 * 1024 * 1024 * 1024)

/* clang-format off */
static const struct option table[] = {
    POLICY_RETENTION(struct policy, ),
    OPTION_BYTES(struct policy, quota, "quota", "0", 0, 1024 * 1024 * TIB,
                 "total bytes of the run's checkpoints; 0: no limit"),
    OPTION_END,
};
/* clang-format on */
#define NUM_KEYS (sizeof table / sizeof *table - 1)
_Static_assert(NUM_KEYS <= POLICY_KEYS_MAX, "a key of a run has its place in is_set");

/* Finds the key at the end of a name "NAME.<key>", or NULL. Takes the longest: a run's name may end
 * like a key. */
static const struct option *find_key(const char *name)
{
    const struct option *found = NULL;
    size_t length = strlen(name);
    for (const struct option *option = table; option->key; option++) {
        size_t bytes = strlen(option->key);
        if (length > bytes + 1 && name[length - bytes - 1] == '.' &&
            strcmp(name + length - bytes, option->key) == 0 &&
            (!found || bytes > strlen(found->key)))
            found = option;
    }
    return found;
}

static int find_run(struct run_policy **out, struct policies *policies, const char *name,
                    size_t bytes, const char *where)
{
    for (uint32_t i = 0; i < policies->num_runs; i++) {
        *out = &policies->runs[i];
        if (strlen((*out)->run) == bytes && memcmp((*out)->run, name, bytes) == 0)
            return 0;
    }
    if (bytes >= sizeof(*out)->run)
        return report_error(ERR_INVALID, "use a shorter name",
                            "%s: [run.%.40s...]: the name of the run is too long", where, name);
    if (policies->num_runs == POLICY_RUNS_MAX)
        return report_error(ERR_INVALID, "put the rules that most runs share into [retention]",
                            "%s: more than %u runs have a section", where, POLICY_RUNS_MAX);
    *out = &policies->runs[policies->num_runs];
    memset(*out, 0, sizeof **out);
    memcpy((*out)->run, name, bytes);
    if (!shard_run_is_valid((*out)->run))
        return report_error(ERR_INVALID, "use letters, digits, '_', '-' and '.'",
                            "%s: [run.\"%.40s\"]: this name of a run is invalid", where,
                            (*out)->run);
    policies->num_runs++;
    return 0;
}

int policy_set(struct policies *policies, const char *key, const char *value, const char *where)
{
    struct run_policy *run = NULL;
    if (strncmp(key, "run.", 4) != 0)
        return POLICY_NO_KEY;
    const struct option *option = find_key(key + 4);
    if (!option)
        return report_error(ERR_INVALID,
                            "a run has quota, the keys of [retention], tier.keep_*, trash_s",
                            "%s: key '%.200s' is unknown", where, key);
    ERR_TRY(find_run(&run, policies, key + 4, strlen(key + 4) - strlen(option->key) - 1, where));
    bool is_set[NUM_KEYS + 1] = {false};
    const struct options options = {.table = table, .config = &run->policy, .is_set = is_set};
    int error = options_set(&options, option->key, value, where);
    run->is_set[option - table] |= error == 0;
    return error;
}

void policy_inherit(struct policies *policies)
{
    for (uint32_t i = 0; i < policies->num_runs; i++) {
        struct run_policy *run = &policies->runs[i];
        for (size_t key = 0; key < NUM_KEYS; key++)
            if (!run->is_set[key])
                memcpy((char *)&run->policy + table[key].offset,
                       (const char *)&policies->all + table[key].offset, table[key].size);
    }
}

const struct policy *policy_of(const struct policies *policies, const char *run)
{
    for (uint32_t i = 0; i < policies->num_runs; i++)
        if (strcmp(policies->runs[i].run, run) == 0)
            return &policies->runs[i].policy;
    return &policies->all;
}

struct retain_rules policy_rules(const struct policy *policy, const struct policy_keep *keep)
{
    return (struct retain_rules){.keep_last = (uint32_t)keep->last,
                                 .keep_every = (uint64_t)keep->every,
                                 .keep_within = (uint64_t)keep->within,
                                 .keep_best = (uint32_t)keep->best,
                                 .best_is_highest = strcmp(policy->order, "highest") == 0,
                                 .may_remove_most = policy->may_remove_most};
}

bool policy_equal(const struct policies *a, const struct policies *b)
{
    return memcmp(a, b, sizeof *a) == 0; /* both were zeroed before they were filled */
}
