/* objects.c - the bytes objects of a checkpoint (ckpt_object_describe): names and lengths for show,
 * and the contents of one for stdout.
 *
 * The manifest has the room of an object. Its length is in the first 8 bytes of the stored tensor,
 * so show reads, and verifies, a block for each object. Both use libckpt, which reads a store and a
 * ckptd alike. */
#include "clients/ckpt.h"
#include "clients/cli/engine/cli.h"

#include "proto/base/json.h"
#include "proto/format/retain.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int open_reader(struct ckpt **out, const struct cli *cli, const char *run)
{
    char address[sizeof cli->store + 8];
    return ckpt_open(out, &(struct ckpt_options){
                              .server = cli_address(address, sizeof address, cli),
                              .run = run,
                              .world_size = 1,
                              .connect_ms = CLI_CALL_MS,
                          });
}

/* Reads the first bytes of each into `heads`, by one load. */
static int read_heads(const struct objects *objects, unsigned char *heads, const struct cli *cli,
                      const struct manifest *manifest)
{
    const struct manifest_summary *summary = &manifest->summary;
    struct ckpt *ckpt = NULL;
    struct ckpt_loaded *loaded = NULL;
    struct ckpt_array *arrays = calloc(objects->count, sizeof *arrays);
    if (arrays == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a load");
    for (uint32_t i = 0; i < objects->count; i++)
        arrays[i] = (struct ckpt_array){.size = sizeof *arrays,
                                        .dims = 1,
                                        .name = objects->list[i].stored->name,
                                        .dtype = "U8",
                                        .shape = {objects->list[i].stored->shape[0]},
                                        .extent = {LAYOUT_OBJECT_LENGTH_BYTES},
                                        .data = heads + (size_t)i * LAYOUT_OBJECT_LENGTH_BYTES};
    int error = open_reader(&ckpt, cli, summary->run);
    if (error == 0)
        error = ckpt_load_arrays(ckpt,
                                 &(struct ckpt_load_request){
                                     .size = sizeof(struct ckpt_load_request),
                                     .num_arrays = objects->count,
                                     .step = (int64_t)summary->step,
                                     .attempt = summary->attempt,
                                     .arrays = arrays,
                                 },
                                 &loaded);
    if (loaded != NULL)
        ckpt_loaded_free(loaded);
    ckpt_close(ckpt);
    free(arrays);
    return error;
}

static void measure(struct object *object, unsigned char *head)
{
    const void *data;
    const struct ckpt_object stored = {.size = sizeof stored,
                                       .name = object->name,
                                       .memory = head,
                                       .room = object->stored->shape[0]};
    object->is_measured = ckpt_object_get(&stored, &data, &object->bytes) == 0;
}

int objects_read(struct objects *out, const struct cli *cli, const struct manifest *manifest)
{
    const struct layout_table *table = manifest->table;
    bool have_heads = true;
    *out = (struct objects){calloc((size_t)table->num_tensors + 1, sizeof *out->list), 0};
    for (uint32_t i = 0; out->list != NULL && i < table->num_tensors; i++) {
        const struct tensor_meta *stored = &table->tensors[i];
        if (!tensor_is_object(stored))
            continue;
        out->list[out->count++] =
            (struct object){.name = stored->name + strlen(LAYOUT_OBJECT_PREFIX),
                            .stored = stored,
                            .digest = &manifest->digests[i]};
        have_heads = have_heads && stored->shape[0] >= LAYOUT_OBJECT_LENGTH_BYTES;
    }
    unsigned char *heads = calloc((size_t)out->count + 1, LAYOUT_OBJECT_LENGTH_BYTES);
    int error = out->list != NULL && heads != NULL
                    ? 0
                    : report_error(ERR_MEMORY, NULL, "no memory for the objects");
    if (error == 0 && out->count > 0 && have_heads) {
        error = read_heads(out, heads, cli, manifest);
        for (uint32_t i = 0; i < out->count && error == 0; i++)
            measure(&out->list[i], heads + (size_t)i * LAYOUT_OBJECT_LENGTH_BYTES);
        if (error != ERR_MEMORY) /* an unreadable object has a name, but no length */
            error = 0;
    }
    free(heads);
    return error;
}

void objects_free(struct objects *objects)
{
    free(objects->list);
}

void objects_print(const struct objects *objects)
{
    if (objects->count > 0)
        printf("\n%-54s %20s  %s\n", "OBJECT", "BYTES", "DIGEST");
    for (uint32_t i = 0; i < objects->count; i++) {
        const struct object *object = &objects->list[i];
        char name[LAYOUT_NAME_MAX], bytes[24] = "unreadable";
        if (object->is_measured)
            snprintf(bytes, sizeof bytes, "%" PRIu64, object->bytes);
        printf("%-54s %20s  %016llx%016llx\n", text_safe(name, sizeof name, object->name), bytes,
               (unsigned long long)object->digest->sum[0],
               (unsigned long long)object->digest->sum[1]);
    }
}

/* Call it after json_begin(). */
void objects_add_json(json_t *root, const struct objects *objects)
{
    if (objects->count == 0)
        return;
    json_t *list = json_array();
    for (uint32_t i = 0; i < objects->count; i++) {
        const struct object *object = &objects->list[i];
        json_t *one = json_pack("{ss}", "name", object->name);
        if (object->is_measured)
            json_object_set_new(one, "bytes", json_integer((json_int_t)object->bytes));
        json_array_append_new(list, one);
    }
    json_object_set_new(root, "objects", list);
}

int objects_write_one(const struct cli *cli)
{
    struct selection selection;
    struct ckpt *ckpt = NULL;
    void *data = NULL;
    uint64_t bytes = 0;
    if (cli->is_json)
        return report_error(ERR_INVALID, "leave out --json: stdout has the bytes as they are",
                            "an object is not printed as JSON");
    ERR_TRY(selection_parse(&selection, cli->args[0]));
    int error = open_reader(&ckpt, cli, selection.run);
    if (error == 0)
        error =
            ckpt_object_load(ckpt, selection.step, selection.attempt, cli->object, &data, &bytes);
    if (error == 0)
        fwrite(data, 1, bytes, stdout); /* main() checks the stream for errors */
    ckpt_object_free(data);
    ckpt_close(ckpt);
    return error;
}
