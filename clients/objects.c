/* objects.c - named bytes: the layout of an object in its U8 tensor (ckpt.h).
 *
 *     8 bytes      the length, little-endian
 *     the object   as many bytes
 *     zeros        room to grow, so that another length needs no new description
 *
 * The tensor's name is LAYOUT_OBJECT_PREFIX followed by the object's name. */
#include "clients/session.h"

#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_MIN 4096u

uint64_t ckpt_object_room(uint64_t bytes)
{
    uint64_t room = ROOM_MIN;
    while (room < LAYOUT_OBJECT_LENGTH_BYTES + 2 * bytes && room < LAYOUT_TENSOR_BYTES_MAX)
        room *= 2;
    return room;
}

int ckpt_object_set(struct ckpt_object *object, const void *data, uint64_t bytes)
{
    unsigned char *to = object->memory;
    if (object->size != sizeof *object || to == NULL || object->name == NULL)
        return report_error(ERR_INVALID, "set size to sizeof(struct ckpt_object)",
                            "a ckpt_object has a wrong size, or lacks its name or memory");
    if (object->room < LAYOUT_OBJECT_LENGTH_BYTES ||
        bytes > object->room - LAYOUT_OBJECT_LENGTH_BYTES)
        return report_error(ERR_SPACE, "describe it anew with ckpt_object_room",
                            "object %s of %llu bytes does not fit into its room of %llu",
                            object->name, (unsigned long long)bytes,
                            (unsigned long long)object->room);
    for (uint32_t i = 0; i < LAYOUT_OBJECT_LENGTH_BYTES; i++)
        to[i] = (unsigned char)(bytes >> 8 * i);
    if (bytes > 0)
        memcpy(to + LAYOUT_OBJECT_LENGTH_BYTES, data, bytes);
    memset(to + LAYOUT_OBJECT_LENGTH_BYTES + bytes, 0,
           object->room - LAYOUT_OBJECT_LENGTH_BYTES - bytes);
    return 0;
}

int ckpt_object_describe(struct ckpt_object *object, struct ckpt_array *out)
{
    int length =
        snprintf(object->stored, sizeof object->stored, LAYOUT_OBJECT_PREFIX "%s", object->name);
    if (length < 0 || (size_t)length >= sizeof object->stored)
        return report_error(ERR_INVALID, "names of objects have at most 184 bytes",
                            "the name of object %.64s... is too long", object->name);
    *out = (struct ckpt_array){.size = sizeof *out,
                               .dims = 1,
                               .name = object->stored,
                               .dtype = "U8",
                               .shape = {object->room},
                               .extent = {object->room},
                               .data = object->memory};
    return 0;
}

const char *ckpt_object_name(const struct ckpt_tensor_info *tensor)
{
    bool is_one = tensor->dims == 1 && strcmp(tensor->dtype, "U8") == 0 &&
                  strncmp(tensor->name, LAYOUT_OBJECT_PREFIX, strlen(LAYOUT_OBJECT_PREFIX)) == 0;
    return is_one ? tensor->name + strlen(LAYOUT_OBJECT_PREFIX) : NULL;
}

/* The bytes of the object's tensor in a checkpoint. */
static int find_room(uint64_t *out, struct ckpt_info *found, struct ckpt *ckpt, int64_t step,
                     uint64_t attempt, const char *name)
{
    struct ckpt_metadata *metadata = NULL;
    ERR_TRY(ckpt_metadata(ckpt, step, attempt, &metadata));
    *found = metadata->info;
    *out = 0;
    for (uint32_t i = 0; i < metadata->num_tensors; i++) {
        const char *one = ckpt_object_name(&metadata->tensors[i]);
        if (one != NULL && strcmp(one, name) == 0)
            *out = metadata->tensors[i].shape[0];
    }
    ckpt_metadata_free(metadata);
    return *out >= LAYOUT_OBJECT_LENGTH_BYTES
               ? 0
               : report_error(ERR_NOT_FOUND, "ckpt_metadata lists what it has",
                              "%s@%llu-a%llu has no object %s", found->run,
                              (unsigned long long)found->step, (unsigned long long)found->attempt,
                              name);
}

int ckpt_object_get(const struct ckpt_object *object, const void **out, uint64_t *out_bytes)
{
    const unsigned char *memory = object->memory;
    uint64_t bytes = 0;
    for (uint32_t i = 0;
         i < LAYOUT_OBJECT_LENGTH_BYTES && object->room >= LAYOUT_OBJECT_LENGTH_BYTES; i++)
        bytes |= (uint64_t)memory[i] << 8 * i;
    if (object->room < LAYOUT_OBJECT_LENGTH_BYTES ||
        bytes > object->room - LAYOUT_OBJECT_LENGTH_BYTES)
        return report_error(ERR_CORRUPT, NULL, "the tensor of object %s does not hold an object",
                            object->name);
    *out = memory + LAYOUT_OBJECT_LENGTH_BYTES;
    *out_bytes = bytes;
    return 0;
}

int ckpt_object_load(struct ckpt *ckpt, int64_t step, uint64_t attempt, const char *name,
                     void **out, uint64_t *out_bytes)
{
    struct ckpt_info info;
    struct ckpt_array array;
    struct ckpt_loaded *loaded = NULL;
    struct ckpt_object object = {.size = sizeof object, .name = name};
    *out = NULL;
    ERR_TRY(find_room(&object.room, &info, ckpt, step, attempt, name));
    object.memory = malloc(object.room);
    if (object.memory == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for object %s", name);
    int error = ckpt_object_describe(&object, &array);
    const struct ckpt_load_request request = {.size = sizeof request,
                                              .num_arrays = 1,
                                              .step = (int64_t)info.step,
                                              .attempt = info.attempt,
                                              .arrays = &array};
    if (error == 0)
        error = ckpt_load_arrays(ckpt, &request, &loaded);
    ckpt_loaded_free(loaded);
    const void *data = NULL;
    if (error == 0)
        error = ckpt_object_get(&object, &data, out_bytes);
    if (error == 0)
        *out = memmove(object.memory, data, *out_bytes);
    else
        free(object.memory);
    return error;
}

void ckpt_object_free(void *data)
{
    free(data);
}
