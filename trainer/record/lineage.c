/* lineage.c - the orders that a run has had (see lineage.h). */
#include "trainer/record/lineage.h"

#include "proto/base/json.h"
#include "proto/base/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMERICS "training.numerics"
#define BALANCER "parallelism.context_parallel_load_balancer"
#define ORDERS_MAX 1000u /* older orders than the last so many are dropped from the list */

/* Values in use before a setting existed; checkpoints of that time lack the setting. All
 * checkpoints of a trainer have the others. */
static const struct {
    const char *key, *value;
} before_there_was[] = {
    {"canonical.groups", "1"},
    {"canonical.tp_blocks", "1"},
    {"canonical.cp_blocks", "1"},
    {"canonical.loss_chunks", "1"},
    {"training.batch_ramp", "\"\""},
    {BALANCER, "\"headtail\""},
    {NUMERICS, "1"},
};

static json_t *order_of(const struct config *config, int64_t step)
{
    return json_pack(
        "{sI sI sI sI sI sI sI sI ss ss sI}", "step", (json_int_t)step, "canonical.micro_batches",
        (json_int_t)config->micro_batches, "canonical.groups", (json_int_t)config->groups,
        "canonical.tp_blocks", (json_int_t)config->tp_blocks, "canonical.cp_blocks",
        (json_int_t)config->cp_blocks, "canonical.loss_chunks", (json_int_t)config->loss_chunks,
        "training.local_batch_size", (json_int_t)config->local_batch_size, "training.seq_len",
        (json_int_t)config->seq_len, "training.batch_ramp", config->batch_ramp, BALANCER,
        config->cp_blocks > 1 ? config->text.cp_load_balancer : "headtail", NUMERICS,
        (json_int_t)config->numerics);
}

/* New reference, or NULL: the value of a setting that the checkpoint's list lacks. */
static json_t *older_value(const char *key, const json_t *identity, const json_t *config)
{
    size_t section_length = strcspn(key, ".");
    bool is_canonical = strncmp(key, "canonical", section_length) == 0;
    const json_t *section =
        is_canonical ? json_object_get(identity, "canonical") : json_object_get(config, "training");
    json_t *value = json_object_get(section, key + section_length + 1);
    if (value != NULL)
        return json_incref(value);
    for (size_t i = 0; i < sizeof before_there_was / sizeof before_there_was[0]; i++)
        if (strcmp(before_there_was[i].key, key) == 0)
            return json_loads(before_there_was[i].value, JSON_DECODE_ANY, NULL);
    return NULL;
}

/* Adds settings that an older program did not list: values recorded elsewhere in the checkpoint, or
 * values in use before the setting existed. */
static void complete(json_t *theirs, const json_t *ours, const json_t *identity,
                     const struct ckpt_loaded *from)
{
    json_t *config = json_loads(from->config_json, 0, NULL);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)ours, key, value)
    {
        if (json_object_get(theirs, key) == NULL)
            json_object_set_new(theirs, key, older_value(key, identity, config));
    }
    json_decref(config);
}

/* The first setting that differs, or NULL. */
static const char *find_difference(const json_t *ours, const json_t *theirs)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)ours, key, value)
    {
        if (strcmp(key, "step") != 0 && !json_equal(value, json_object_get(theirs, key)))
            return key;
    }
    return NULL;
}

/* A setting of a newer trainer that affects bits, as the others do; or NULL. Notes of
 * add_other_samples() and lineage_note() are not settings. */
static const char *find_unknown(const json_t *ours, const json_t *theirs)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)theirs, key, value)
    {
        bool is_note = strncmp(key, "data.", strlen("data.")) == 0 ||
                       strcmp(key, LINEAGE_LEFT_OUT) == 0 || strcmp(key, LINEAGE_OUTLYING) == 0;
        if (!is_note && json_object_get(ours, key) == NULL)
            return key;
    }
    return NULL;
}

static bool may_begin_order(const struct config *config)
{
    return config->new_order || config->reduction == REDUCTION_FAST;
}

static int refuse_newer(const json_t *theirs, const char *key)
{
    char *is = json_dumps(json_object_get(theirs, key), JSON_ENCODE_ANY);
    int rc = report_error(ERR_MISMATCH,
                          "use a trainer as new as the one that made it; or begin a new order with "
                          "--checkpoint.new_order",
                          "the run has %s = %s, which this trainer does not know", key,
                          is != NULL ? is : "?");
    free(is);
    return rc;
}

static int begin_order(const struct config *config, const json_t *ours, const json_t *theirs,
                       const char *key, uint64_t step)
{
    char *was = json_dumps(json_object_get(theirs, key), JSON_ENCODE_ANY);
    char *is = json_dumps(json_object_get(ours, key), JSON_ENCODE_ANY);
    const char *was_text = was != NULL ? was : "none", *is_text = is != NULL ? is : "none";
    int rc = 0;
    if (may_begin_order(config))
        log_warn("checkpoint",
                 "%s was %s, now it is %s: a new order of samples and sums begins after step "
                 "%" PRIu64,
                 key, was_text, is_text, step);
    else
        rc = report_error(ERR_MISMATCH,
                          "restore it; or begin a new order with --checkpoint.new_order, whose "
                          "bits are not those of the undisturbed run; or give job.run another name",
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

void lineage_note(json_t *orders, const char *what)
{
    size_t num = json_array_size(orders);
    if (num > 0)
        json_object_set_new(json_array_get(orders, num - 1), what, json_true());
}

int lineage_begin(char **out, const struct config *config)
{
    return pack(out, json_pack("[o]", order_of(config, 0)));
}

/* The list of a checkpoint: its own, or one order that complete() fills. NULL: no trainer made the
 * checkpoint, such as an imported one. */
static json_t *orders_of(const struct ckpt_loaded *from, const json_t *identity)
{
    json_t *state = json_loads(from->state_json, 0, NULL);
    json_t *orders = json_incref(json_object_get(state, "orders"));
    json_decref(state);
    if (json_is_array(orders) && json_array_size(orders) > 0)
        return orders;
    json_decref(orders);
    return json_is_object(json_object_get(identity, "canonical")) ? json_pack("[{si}]", "step", 0)
                                                                  : NULL;
}

int64_t lineage_numerics(const struct ckpt_loaded *from)
{
    json_t *identity = json_loads(from->identity_json, 0, NULL);
    json_t *orders = orders_of(from, identity);
    json_t *asked = json_pack("{si}", NUMERICS, 0);
    json_t *last = json_array_get(orders, json_array_size(orders) - 1);
    if (last != NULL)
        complete(last, asked, identity, from);
    int64_t value = json_integer_value(json_object_get(last, NUMERICS));
    json_decref(asked);
    json_decref(orders);
    json_decref(identity);
    return value;
}

static bool differs(const json_t *object, const char *key, const json_t *from, const char *theirs)
{
    const json_t *was = json_object_get(from, theirs);
    return was != NULL && !json_equal(json_object_get(object, key), was);
}

/* Notes in `order` the samples from here on, if they are not those of an uninterrupted run. Returns
 * false if they are. */
static bool add_other_samples(json_t *order, const struct config *config,
                              const struct ckpt_loaded *from, const struct lineage_data *data)
{
    json_t *state = json_loads(from->state_json, 0, NULL);
    json_t *run_data = json_loads(from->data_json, 0, NULL);
    const json_t *place = json_object_get(state, "data");
    int64_t was = json_integer_value(json_object_get(place, "next_sample"));
    int64_t is = (data->next_sample >= 0 ? data->next_sample : was) + data->skip;
    json_object_set_new(order, "data.next_sample", json_integer(is));
    json_object_set_new(order, "data.hash", json_string(data->hash));
    json_object_set_new(order, "data.seed", json_integer(config->seed));
    if (is < was)
        log_warn("checkpoint",
                 "samples from %" PRId64 " on are read again from step %" PRIu64
                 " on: the run has read %" PRId64 " (checkpoint.exclude_from_loading)",
                 is, from->info.step + 1, was);
    bool are_others = differs(order, "data.next_sample", place, "next_sample") ||
                      differs(order, "data.hash", run_data, "hash") ||
                      differs(order, "data.seed", place, "seed");
    json_decref(state);
    json_decref(run_data);
    return are_others;
}

/* Leaves the order of the first steps, for a replay that begins with them. */
static int keep_first(json_t *orders, int64_t replay_step)
{
    const json_t *first = json_array_get(orders, 0), *second = json_array_get(orders, 1);
    bool is_known = json_integer_value(json_object_get(first, "step")) == 0;
    if (!is_known ||
        (second != NULL && json_integer_value(json_object_get(second, "step")) < replay_step))
        return report_error(ERR_NOT_FOUND, "give an earlier step, or one after a checkpoint",
                            "the run began another order of samples and sums before step %" PRId64
                            ", and no checkpoint between them is left",
                            replay_step);
    while (json_array_size(orders) > 1)
        json_array_remove(orders, 1);
    return 0;
}

int lineage_continue(char **out, const struct config *config, const struct ckpt_loaded *from,
                     const struct lineage_data *data)
{
    json_t *identity = json_loads(from->identity_json, 0, NULL);
    json_t *ours = order_of(config, (int64_t)from->info.step);
    json_t *orders = orders_of(from, identity);
    const char *key = NULL;
    bool are_others = false;
    int rc = data->replay_step > 0 ? keep_first(orders, data->replay_step) : 0;
    if (rc == 0 && config->numerics > CONFIG_NUMERICS) {
        rc = report_error(ERR_MISMATCH, "use a trainer as new as the one that made it",
                          "the run has " NUMERICS " = %" PRId64 ", this trainer knows 1 to %d",
                          config->numerics, CONFIG_NUMERICS);
    } else if (rc == 0 && orders == NULL) {
        orders = json_pack("[O]", ours);
    } else if (rc == 0) {
        json_t *theirs = json_array_get(orders, json_array_size(orders) - 1);
        complete(theirs, ours, identity, from);
        const char *unknown = find_unknown(ours, theirs);
        key = unknown != NULL ? unknown : find_difference(ours, theirs);
        if (unknown != NULL && !may_begin_order(config))
            rc = refuse_newer(theirs, unknown);
        else if (key != NULL)
            rc = begin_order(config, ours, theirs, key, from->info.step);
        are_others = rc == 0 && add_other_samples(ours, config, from, data);
    }
    if (key != NULL || are_others)
        json_array_append(orders, ours);
    json_decref(ours);
    json_decref(identity);
    if (rc != 0) {
        json_decref(orders);
        return rc;
    }
    return pack(out, orders);
}
