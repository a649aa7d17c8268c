/* folder_files.c - see folder_files.h. */
#include "trainer/save/folder_files.h"
#include "proto/base/report.h"
#include "proto/layout/layout.h"

#include <stdlib.h>
#include <string.h>

static int load_object(struct folder_files *files, struct ckpt *ckpt, const struct ckpt_info *from,
                       const char *name)
{
    struct ckpt_object *object = &files->objects[files->count];
    void *data;
    uint64_t bytes;
    ERR_TRY(ckpt_object_load(ckpt, (int64_t)from->step, from->attempt, name, &data, &bytes));
    *object = (struct ckpt_object){
        .size = sizeof(*object), .name = strdup(name), .room = LAYOUT_OBJECT_LENGTH_BYTES + bytes};
    object->memory = malloc(object->room);
    files->count++;
    int rc = object->name != NULL && object->memory != NULL
                 ? ckpt_object_set(object, data, bytes)
                 : report_error(ERR_MEMORY, NULL, "no memory for %s", name);
    ckpt_object_free(data);
    return rc;
}

int folder_files_load(struct folder_files *inout, struct ckpt *ckpt, const struct ckpt_info *from)
{
    struct ckpt_metadata *metadata;
    folder_files_free(inout);
    ERR_TRY(ckpt_metadata(ckpt, (int64_t)from->step, from->attempt, &metadata));
    inout->objects = calloc((size_t)metadata->num_tensors + 1, sizeof(*inout->objects));
    int rc = inout->objects != NULL
                 ? 0
                 : report_error(ERR_MEMORY, NULL, "no memory for the objects of a checkpoint");
    for (uint32_t i = 0; i < metadata->num_tensors && rc == 0; i++) {
        const char *name = ckpt_object_name(&metadata->tensors[i]);
        if (name != NULL && strncmp(name, LAYOUT_HF_OBJECT, strlen(LAYOUT_HF_OBJECT)) == 0)
            rc = load_object(inout, ckpt, from, name);
    }
    ckpt_metadata_free(metadata);
    if (rc != 0)
        folder_files_free(inout);
    return rc;
}

void folder_files_describe(struct ckpt_tensor *out, struct folder_files *files)
{
    for (uint32_t i = 0; i < files->count; i++) {
        struct ckpt_object *object = &files->objects[i];
        struct ckpt_array array;
        CHECK(ckpt_object_describe(object, &array) == 0); /* such a name was read before */
        out[i] = (struct ckpt_tensor){.name = object->stored,
                                      .dtype = "U8",
                                      .dims = 1,
                                      .shape = {object->room, 1},
                                      .extent = {object->room, 1},
                                      .data = object->memory};
    }
}

void folder_files_free(struct folder_files *files)
{
    for (uint32_t i = 0; i < files->count; i++) {
        free((char *)files->objects[i].name);
        free(files->objects[i].memory);
    }
    free(files->objects);
    *files = (struct folder_files){0};
}
