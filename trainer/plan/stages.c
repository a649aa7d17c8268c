/* stages.c - stages of a pipeline: by layers, by cost, by names (see stages.h). */
#include "trainer/plan/stages.h"
#include "proto/base/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 64

/* ---- by layers ---- */

static int cut_layers(uint32_t *first_block, const struct stages_options *o)
{
    uint32_t stages = o->num_stages, layers = o->table->shape.layers;
    int64_t first_less = stages > 1 ? o->first_less : 0, last_less = stages > 1 ? o->last_less : 0;
    int64_t cost = layers + first_less + last_less, next = 1;
    for (uint32_t s = 0; s < stages; s++) {
        int64_t count = cost / stages + (s < cost % stages);
        count -= s == 0 ? first_less : 0;
        count -= s == stages - 1 ? last_less : 0;
        bool has_end = s == 0 || s == stages - 1;
        if (count < 0 || (count == 0 && !has_end))
            return report_error(ERR_INVALID, "use fewer stages",
                                "%u layers in %u pipeline stages, the first with %lld less and the "
                                "last with %lld: stage %u would have %lld",
                                layers, stages, (long long)first_less, (long long)last_less, s,
                                (long long)count);
        first_block[s] = s == 0 ? 0 : (uint32_t)next;
        next += count;
    }
    return 0;
}

/* ---- by cost ---- */

double stages_cost(const struct model_table *table, uint32_t block, uint32_t seq)
{
    const struct model_shape *s = &table->shape;
    double q = (double)s->heads * s->head_dim, kv = (double)s->kv_heads * s->head_dim;
    double pairs = (double)seq * (seq + 1.0) / 2;
    if (block == 0)
        return 0; /* rows are copied */
    if (block == table->num_blocks - 1)
        return 2.0 * seq * s->vocab * s->dim;
    return 2.0 * seq * s->dim * (2 * q + 2 * kv + 3.0 * s->hidden) + 4 * q * pairs;
}

/* The number of blocks from `first` that one stage may have, if each stage after it needs at least
 * one block. */
static uint32_t fill_stage(const struct stages_options *o, uint32_t first, uint32_t last,
                           double most)
{
    double cost = stages_cost(o->table, first, o->seq);
    uint32_t end = first + 1;
    while (end < last && cost + stages_cost(o->table, end, o->seq) <= most)
        cost += stages_cost(o->table, end++, o->seq);
    return end;
}

/* Fills stage after stage up to a cost of `most`. Returns false if blocks are left. */
static bool fill_stages(uint32_t *first_block, const struct stages_options *o, double most)
{
    uint32_t blocks = o->table->num_blocks, at = 0;
    for (uint32_t s = 0; s < o->num_stages; s++) {
        if (at < blocks && stages_cost(o->table, at, o->seq) > most)
            return false;
        first_block[s] = at;
        at = fill_stage(o, at, blocks - (o->num_stages - 1 - s), most);
    }
    return at == blocks;
}

/* Tries the costs of all runs of blocks: the least bound that fits is one of them. */
static int cut_by_cost(uint32_t *first_block, const struct stages_options *o)
{
    uint32_t blocks = o->table->num_blocks;
    double least = INFINITY;
    if (o->num_stages > blocks)
        return report_error(ERR_INVALID, "use fewer stages",
                            "%u blocks (embedding, layers, output) in %u pipeline stages", blocks,
                            o->num_stages);
    for (uint32_t first = 0; first < blocks; first++) {
        double cost = 0;
        for (uint32_t end = first; end < blocks; end++) {
            cost += stages_cost(o->table, end, o->seq);
            if (cost < least && fill_stages(first_block, o, cost))
                least = cost;
        }
    }
    CHECK(fill_stages(first_block, o, least));
    return 0;
}

/* ---- by names ---- */

static uint32_t count_parts(const char *text, char separator)
{
    uint32_t parts = 1;
    for (; *text != '\0'; text++)
        parts += *text == separator;
    return parts;
}

uint32_t stages_named(const char *names, const char *split_points)
{
    if (names[0] != '\0')
        return count_parts(names, ';');
    return split_points[0] != '\0' ? 1 + count_parts(split_points, ',') : 0;
}

/* The name of place `place` in the list of modules: the blocks, with output as a module after
 * norm. */
static void name_of(char out[NAME_BYTES], const struct model_table *table, uint32_t place)
{
    uint32_t layers = table->shape.layers;
    if (place == 0)
        snprintf(out, NAME_BYTES, "tok_embeddings");
    else if (place <= layers)
        snprintf(out, NAME_BYTES, "layers.%u", place - 1);
    else
        snprintf(out, NAME_BYTES, "%s", place == layers + 1 ? "norm" : "output");
}

static size_t name_length(const char *at)
{
    return strcspn(at, ",; \"'");
}

static bool is_name(const char *at, const char *name)
{
    return name_length(at) == strlen(name) && strncmp(at, name, strlen(name)) == 0;
}

static int refuse_name(const char *at, const char *wanted)
{
    return report_error(ERR_INVALID,
                        "name tok_embeddings, layers.0 .., norm, output once each, in this order; "
                        "norm and output on one stage",
                        "parallelism.module_fqns_per_model_part: \"%.*s\" where %s is expected",
                        (int)name_length(at), at, wanted);
}

static int cut_by_names(uint32_t *first_block, const struct stages_options *o)
{
    char name[NAME_BYTES];
    uint32_t num = o->table->num_blocks + 1, stage = 0, place = 0;
    const char *at = o->names;
    for (first_block[0] = 0; place < num; place++) {
        name_of(name, o->table, place);
        if (place > 0 && *at == ';' && place < num - 1)
            first_block[++stage] = place;
        if (place > 0 && *at == ';' && place == num - 1)
            return refuse_name(";", "output on the stage of norm");
        at += place > 0 && (*at == ';' || *at == ',');
        at += strspn(at, " ");
        if (!is_name(at, name))
            return refuse_name(at, name);
        at += name_length(at);
        at += strspn(at, " ");
    }
    return *at == '\0' ? 0 : refuse_name(at + 1, "the end");
}

static int cut_by_points(uint32_t *first_block, const struct stages_options *o)
{
    char name[NAME_BYTES];
    uint32_t block = 1;
    const char *at = o->split_points;
    first_block[0] = 0;
    for (uint32_t s = 1; s < o->num_stages; s++) {
        at += strspn(at, ", ");
        for (; block < o->table->num_blocks; block++) {
            name_of(name, o->table, block);
            if (is_name(at, name))
                break;
        }
        if (block == o->table->num_blocks)
            return report_error(ERR_INVALID, "name modules after the first, in their order",
                                "parallelism.pipeline_parallel_split_points: \"%.*s\" cannot begin "
                                "a stage after the one before it",
                                (int)name_length(at), at);
        first_block[s] = block++;
        at += name_length(at);
    }
    return 0;
}

int stages_cut(uint32_t *first_block, const struct stages_options *o)
{
    int (*const cut)(uint32_t *, const struct stages_options *) = o->names[0] != '\0' ? cut_by_names
                                                                  : o->split_points[0] != '\0'
                                                                      ? cut_by_points
                                                                  : o->by_cost ? cut_by_cost
                                                                               : cut_layers;
    first_block[o->num_stages] = o->table->num_blocks;
    return cut(first_block, o);
}
