/* places.c - {"format":"holdfast-places","version":1,"nonce":"...","here":"n1","nodes":["n1","n2"],
 * "shards":[0,0,1,1]}: the number of its node for each shard. */
#include "proto/format/places.h"
#include "proto/base/json.h"
#include "proto/base/report.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT_NAME "holdfast-places"
#define FORMAT_VERSION 1

void places_free(struct places *places)
{
    free(places->nodes);
    free(places->shards);
    memset(places, 0, sizeof *places);
}

int places_make(struct places *out, uint32_t num_nodes, uint32_t num_shards)
{
    *out = (struct places){.num_nodes = num_nodes, .num_shards = num_shards};
    out->nodes = calloc((size_t)num_nodes + 1, sizeof *out->nodes);
    out->shards = calloc((size_t)num_shards + 1, sizeof *out->shards);
    if (out->nodes && out->shards)
        return 0;
    places_free(out);
    return report_error(ERR_MEMORY, NULL, "no memory for the places of %u shards", num_shards);
}

int places_copy(struct places *out, const struct places *places)
{
    memset(out, 0, sizeof *out);
    if (places->num_shards == 0)
        return 0;
    ERR_TRY(places_make(out, places->num_nodes, places->num_shards));
    memcpy(out->here, places->here, sizeof out->here);
    memcpy(out->nodes, places->nodes, places->num_nodes * sizeof *out->nodes);
    memcpy(out->shards, places->shards, places->num_shards * sizeof *out->shards);
    return 0;
}

bool places_is_here(const struct places *places, uint32_t shard)
{
    return places->num_shards == 0 ||
           strcmp(places->nodes[places->shards[shard]], places->here) == 0;
}

int places_key(char *out, size_t size, const struct manifest_summary *summary)
{
    char key[512];
    ERR_TRY(manifest_key(key, sizeof key, summary));
    char *name = strrchr(key, '/');
    int length = snprintf(out, size, "%.*s/" PLACES_NAME, (int)(name - key), key);
    return (size_t)length < size
               ? 0
               : report_error(ERR_INVALID, NULL, "the name of a file of places is too long");
}

int places_write(char **out, const struct places *places, const char *nonce)
{
    json_begin();
    json_t *root = json_object(), *nodes = json_array(), *shards = json_array();
    for (uint32_t i = 0; i < places->num_nodes; i++)
        json_array_append_new(nodes, json_string(places->nodes[i]));
    for (uint32_t i = 0; i < places->num_shards; i++)
        json_array_append_new(shards, json_integer(places->shards[i]));
    json_object_set_new(root, "format", json_string(FORMAT_NAME));
    json_object_set_new(root, "version", json_integer(FORMAT_VERSION));
    json_object_set_new(root, "nonce", json_string(nonce));
    json_object_set_new(root, "here", json_string(places->here));
    json_object_set_new(root, "nodes", nodes);
    json_object_set_new(root, "shards", shards);
    *out = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (json_end() && *out)
        return 0;
    free(*out);
    *out = NULL;
    return report_error(ERR_MEMORY, NULL, "no memory to write where shards lie");
}

/* ---- reading ---- */

static int refuse_file(const char *why)
{
    return report_error(ERR_CORRUPT, "fetch it from another node of the attempt",
                        "its " PLACES_NAME " %s", why);
}

static bool read_name(char out[PLACES_NODE_BYTES], const json_t *value)
{
    const char *text = json_string_value(value);
    if (!text || text[0] == '\0' || strlen(text) >= PLACES_NODE_BYTES)
        return false;
    strcpy(out, text);
    return true;
}

static int read_nodes(struct places *out, const json_t *nodes)
{
    size_t count = json_array_size(nodes);
    for (size_t i = 0; i < count; i++)
        if (!read_name(out->nodes[i], json_array_get(nodes, i)))
            return refuse_file("names an impossible node");
    return 0;
}

static int read_shards(struct places *out, const json_t *shards)
{
    for (uint32_t i = 0; i < out->num_shards; i++) {
        const json_t *value = json_array_get(shards, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) >= (json_int_t)out->num_nodes)
            return refuse_file("has a shard on no node");
        out->shards[i] = (uint16_t)json_integer_value(value);
    }
    return 0;
}

static int read_members(struct places *out, const json_t *root,
                        const struct manifest_summary *summary)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    const char *nonce = json_string_value(json_object_get(root, "nonce"));
    if (!format || strcmp(format, FORMAT_NAME) != 0)
        return refuse_file("is not one");
    if (json_integer_value(json_object_get(root, "version")) != FORMAT_VERSION)
        return report_error(ERR_VERSION, "use a newer version",
                            "its " PLACES_NAME " is of another version");
    if (!nonce || strcmp(nonce, summary->nonce) != 0)
        return refuse_file("is of another checkpoint");
    const json_t *nodes = json_object_get(root, "nodes"), *shards = json_object_get(root, "shards");
    if (json_array_size(nodes) == 0 || json_array_size(nodes) > PLACES_NODES_MAX)
        return refuse_file("names no nodes, or too many");
    if (json_array_size(shards) != summary->shards || summary->shards == 0)
        return refuse_file("tells of another number of shards");
    ERR_TRY(places_make(out, (uint32_t)json_array_size(nodes), summary->shards));
    if (!read_name(out->here, json_object_get(root, "here")))
        return refuse_file("does not say where it lies");
    ERR_TRY(read_nodes(out, nodes));
    return read_shards(out, shards);
}

int places_read(struct places *out, const char *text, size_t bytes,
                const struct manifest_summary *summary)
{
    json_error_t reason;
    json_t *root = NULL;
    memset(out, 0, sizeof *out);
    int error = json_read(&root, text, bytes, &reason);
    if (error == ERR_CORRUPT)
        return refuse_file("is no JSON");
    if (error == 0)
        error = read_members(out, root, summary);
    json_decref(root);
    if (error != 0)
        places_free(out);
    return error;
}
