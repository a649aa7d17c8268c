/* manifest.c - the position in the data as JSON (see manifest.h). */
#include "trainer/data/manifest.h"

#include "proto/base/report.h"

#include <string.h>

static json_t *source_json(const struct data_source *source, uint64_t draws)
{
    json_t *json = json_pack("{ss ss sI sI sI}", "name", source->name, "hash", source->hash,
                             "weight", (json_int_t)source->weight, "base", (json_int_t)source->base,
                             "draws", (json_int_t)draws);
    if (json != NULL && source->num_samples > 0)
        json_object_set_new(json, "epochs", json_real((double)draws / (double)source->num_samples));
    return json;
}

json_t *data_state_json(const struct data *data, uint64_t next_sample, uint64_t tokens,
                        int64_t seed)
{
    const struct data_place *place = data_place(data);
    json_t *sources = json_array();
    for (uint32_t i = 0; i < place->num_sources; i++)
        json_array_append_new(sources,
                              source_json(&place->sources[i], data_drawn(data, i, next_sample)));
    return json_pack("{sI sI sI sI sI so}", "next_sample", (json_int_t)next_sample, "seed",
                     (json_int_t)seed, "tokens", (json_int_t)tokens, "seq_len",
                     (json_int_t)place->seq_len, "start", (json_int_t)place->start, "sources",
                     sources);
}

json_t *data_run_json(const struct data *data, const char *path)
{
    const struct data_info *info = data_info(data);
    const struct data_place *place = data_place(data);
    json_t *json = json_pack("{ss ss ss sI sI}", "path", path, "hash", info->hash, "tokenizer",
                             info->tokenizer_hash, "tokens", (json_int_t)info->num_tokens,
                             "seq_len", (json_int_t)info->seq_len);
    if (info->bos >= 0)
        json_object_set_new(json, "bos", json_integer(info->bos));
    if (info->eos >= 0)
        json_object_set_new(json, "eos", json_integer(info->eos));
    if (json == NULL || info->num_sources == 1)
        return json;
    json_t *hashes = json_array();
    for (uint32_t i = 0; i < info->num_sources; i++)
        json_array_append_new(hashes, json_string(place->sources[i].hash));
    json_object_set_new(json, "sources", hashes);
    return json;
}

static uint64_t number_in(const json_t *object, const char *key, uint64_t missing)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) && json_integer_value(value) >= 0
               ? (uint64_t)json_integer_value(value)
               : missing;
}

static void copy_text(char *out, size_t bytes, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    size_t length = text != NULL ? strlen(text) : 0;
    if (length >= bytes)
        length = bytes - 1;
    memcpy(out, text != NULL ? text : "", length);
    out[length] = 0;
}

/* Reads a checkpoint of an older program with one source. */
static void read_single(struct data_place *out, const json_t *run_data, uint32_t seq_len)
{
    *out = (struct data_place){.seq_len = seq_len, .num_sources = 1};
    out->sources[0].weight = DATA_WEIGHT_UNIT;
    copy_text(out->sources[0].hash, sizeof out->sources[0].hash, run_data, "hash");
}

int data_state_read(struct data_place *out, uint64_t *out_tokens, const json_t *state,
                    const json_t *run_data, uint64_t next_sample)
{
    const json_t *data = json_object_get(state, "data"), *source;
    const json_t *sources = json_object_get(data, "sources");
    uint64_t seq_len = number_in(data, "seq_len", number_in(run_data, "seq_len", 1)), total = 0;
    size_t i;
    *out_tokens = number_in(data, "tokens", next_sample * seq_len);
    if (sources == NULL) {
        read_single(out, run_data, (uint32_t)seq_len);
        return 0;
    }
    *out = (struct data_place){.seq_len = (uint32_t)seq_len, .start = number_in(data, "start", 0)};
    json_array_foreach(sources, i, source)
    {
        struct data_source *to = &out->sources[out->num_sources];
        if (out->num_sources == DATA_SOURCES_MAX)
            break;
        out->num_sources++;
        copy_text(to->name, sizeof to->name, source, "name");
        copy_text(to->hash, sizeof to->hash, source, "hash");
        to->weight = number_in(source, "weight", 0);
        to->base = number_in(source, "base", 0);
        total += to->weight;
    }
    if (total == 0 || total > UINT32_MAX * (uint64_t)DATA_WEIGHT_UNIT || out->seq_len == 0 ||
        out->start > next_sample)
        return report_error(ERR_CORRUPT, "inspect it with ckpt-cli show",
                            "the checkpoint's data position is inconsistent");
    return 0;
}
