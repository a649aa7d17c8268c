/* lineage.c - the orders that a run has had (see lineage.h). */
#include "trainer/save/lineage.h"

#include "proto/json.h"
#include "proto/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ORDERS_MAX 1000u /* an older one than the last so many is dropped from the list */

static json_t *order_of(const struct config *config, int64_t step)
{
    return json_pack("{sI sI sI sI sI sI sI ss}", "step", (json_int_t)step,
                     "canonical.micro_batches", (json_int_t)config->micro_batches,
                     "canonical.groups", (json_int_t)config->groups, "canonical.tp_blocks",
                     (json_int_t)config->tp_blocks, "canonical.cp_blocks",
                     (json_int_t)config->cp_blocks, "training.local_batch_size",
                     (json_int_t)config->local_batch_size, "training.seq_len",
                     (json_int_t)config->seq_len, "training.batch_ramp", config->batch_ramp);
}

/* Of a checkpoint whose program kept no list: what it says elsewhere. */
static json_t *derive_order(const struct ckpt_loaded *from)
{
    static const char *const canonical[] = {"micro_batches", "groups", "tp_blocks", "cp_blocks"};
    static const char *const training[] = {"local_batch_size", "seq_len"};
    json_t *identity = json_loads(from->identity_json, 0, NULL);
    json_t *config = json_loads(from->config_json, 0, NULL);
    json_t *order = json_pack("{si}", "step", 0);
    char key[64];
    for (size_t i = 0; i < sizeof canonical / sizeof canonical[0]; i++) {
        json_t *value = json_object_get(json_object_get(identity, "canonical"), canonical[i]);
        snprintf(key, sizeof key, "canonical.%s", canonical[i]);
        if (value != NULL)
            json_object_set(order, key, value);
    }
    for (size_t i = 0; i < sizeof training / sizeof training[0]; i++) {
        json_t *value = json_object_get(json_object_get(config, "training"), training[i]);
        snprintf(key, sizeof key, "training.%s", training[i]);
        if (value != NULL)
            json_object_set(order, key, value);
    }
    json_decref(identity);
    json_decref(config);
    return order;
}

/* The first setting that differs, or NULL. What a checkpoint does not say is not compared, but for
 * a ramp, which it says when it has one. */
static const char *find_difference(const json_t *ours, const json_t *theirs)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)ours, key, value)
    {
        const json_t *other = json_object_get(theirs, key);
        bool has_ramp = json_is_string(value) && json_string_length(value) > 0;
        if (strcmp(key, "step") == 0 || (other == NULL && !has_ramp))
            continue;
        if (other == NULL || !json_equal(value, other))
            return key;
    }
    return NULL;
}

static int judge(const struct config *config, const json_t *ours, const json_t *theirs,
                 const char *key, uint64_t step)
{
    char *was = json_dumps(json_object_get(theirs, key), JSON_ENCODE_ANY);
    char *is = json_dumps(json_object_get(ours, key), JSON_ENCODE_ANY);
    const char *was_text = was != NULL ? was : "none", *is_text = is != NULL ? is : "none";
    int rc = 0;
    if (config->new_order || strcmp(config->reduction, "fast") == 0)
        log_warn("checkpoint",
                 "%s was %s, now it is %s: a new order of samples and sums begins after step "
                 "%" PRIu64,
                 key, was_text, is_text, step);
    else
        rc = report_error(ERR_MISMATCH,
                          "restore it; or begin a new order with --checkpoint.new_order, which "
                          "leaves the undisturbed run's bits; or give job.run another name",
                          "the run has %s = %s, this configuration has %s", key, was_text, is_text);
    free(was);
    free(is);
    return rc;
}

static int pack(char **out, json_t *orders)
{
    while (json_array_size(orders) > ORDERS_MAX)
        json_array_remove(orders, 0);
    *out = orders != NULL ? json_dumps(orders, JSON_COMPACT) : NULL;
    json_decref(orders);
    return *out != NULL ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the run's orders");
}

int lineage_begin(char **out, const struct config *config)
{
    return pack(out, json_pack("[o]", order_of(config, 0)));
}

int lineage_go_on(char **out, const struct config *config, const struct ckpt_loaded *from)
{
    json_t *state = json_loads(from->state_json, 0, NULL);
    json_t *orders = json_incref(json_object_get(state, "orders"));
    json_t *ours = order_of(config, (int64_t)from->info.step);
    if (!json_is_array(orders) || json_array_size(orders) == 0) {
        json_decref(orders);
        orders = json_pack("[o]", derive_order(from));
    }
    json_decref(state);
    const json_t *theirs = json_array_get(orders, json_array_size(orders) - 1);
    const char *key = find_difference(ours, theirs);
    int rc = key != NULL ? judge(config, ours, theirs, key, from->info.step) : 0;
    if (key != NULL)
        json_array_append(orders, ours);
    json_decref(ours);
    if (rc != 0) {
        json_decref(orders);
        return rc;
    }
    return pack(out, orders);
}
