/* safetensors.c - parses the header of any safetensors file (see safetensors.h). */
#include "proto/layout/safetensors.h"

#include "proto/base/json.h"
#include "proto/base/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int safetensors_fail(const char *message, const char *what, const char *name)
{
    char detail[LAYOUT_NAME_MAX + 128];
    if (name != NULL)
        snprintf(detail, sizeof(detail), "%s '%.200s'", what, name);
    else
        snprintf(detail, sizeof(detail), "%s", what);
    return report_set(ERR_CORRUPT, message, detail, NULL);
}

static int fail_header(const char *what, const char *name)
{
    return safetensors_fail("the header of a safetensors file is damaged", what, name);
}

int safetensors_length(uint64_t *out, const void *first, uint64_t file_bytes)
{
    const unsigned char *bytes = first;
    uint64_t length = 0;
    if (file_bytes < sizeof(length) + 2)
        return fail_header("the file is too short", NULL);
    for (int i = 7; i >= 0; i--)
        length = length << 8 | bytes[i];
    if (length > file_bytes - sizeof(length) || length < 2)
        return fail_header("its length is not possible", NULL);
    if (length > SAFETENSORS_HEADER_BYTES_MAX)
        return report_error(ERR_CORRUPT, NULL,
                            "a safetensors header of %" PRIu64 " bytes is over the limit of %u",
                            length, SAFETENSORS_HEADER_BYTES_MAX);
    *out = length;
    return 0;
}

int safetensors_read_json(json_t **out, const char *text, size_t bytes, const char **out_why)
{
    struct json_count count = json_count(text, bytes);
    json_error_t reason;
    *out = NULL;
    *out_why = "it has more objects and arrays than 100,000 tensors need";
    if (count.containers > SAFETENSORS_CONTAINERS_MAX)
        return ERR_CORRUPT;
    *out_why = "it has more values than 100,000 tensors need";
    if (count.commas > SAFETENSORS_COMMAS_MAX)
        return ERR_CORRUPT;
    int error = json_read(out, text, bytes, &reason);
    if (error == ERR_MEMORY || json_is_object(*out))
        return error;
    json_decref(*out);
    *out = NULL;
    *out_why = "it is not a JSON object";
    return ERR_CORRUPT;
}

static bool get_numbers(uint64_t *out, const json_t *array, size_t count)
{
    if (!json_is_array(array) || json_array_size(array) != count)
        return false;
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(array, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return false;
        out[i] = (uint64_t)json_integer_value(value);
    }
    return true;
}

bool safetensors_entry(enum dtype *out_dtype, uint64_t out_extent[LAYOUT_DIMS_MAX],
                       uint32_t *out_dims, uint64_t out_range[2], const json_t *entry)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape");
    size_t dims = json_array_size(shape);
    if (!json_is_object(entry) || json_object_size(entry) != 3 || dtype == NULL)
        return false;
    if (dtype_parse(out_dtype, dtype) != 0 || dims > LAYOUT_DIMS_MAX)
        return false;
    *out_dims = (uint32_t)dims;
    return get_numbers(out_extent, shape, dims) &&
           get_numbers(out_range, json_object_get(entry, "data_offsets"), 2) &&
           out_range[0] <= out_range[1];
}

static int parse_tensor(struct safetensors_tensor *out, const char *name, const json_t *entry)
{
    uint64_t range[2], bytes;
    struct tensor_meta *meta = &out->meta;
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
        meta->shape[d] = 1;
    if (strlen(name) >= LAYOUT_NAME_MAX)
        return fail_header("too long a name:", name);
    strcpy(meta->name, name);
    if (!safetensors_entry(&meta->dtype, meta->shape, &meta->dims, range, entry))
        return fail_header("bad description, or a type that is not known, of tensor", name);
    bytes = dtype_bytes(meta->dtype);
    for (uint32_t d = 0; d < meta->dims; d++) {
        if (__builtin_mul_overflow(bytes, meta->shape[d], &bytes))
            return fail_header("too large a tensor:", name);
    }
    if (tensor_meta_check(meta) != 0)
        return fail_header("bad name or size of tensor", name);
    if (range[1] - range[0] != bytes)
        return fail_header("data_offsets do not fit the shape of tensor", name);
    out->data_byte = range[0];
    out->bytes = bytes;
    return 0;
}

static int compare_places(const void *left, const void *right)
{
    const struct safetensors_tensor *a = left, *b = right;
    if (a->data_byte != b->data_byte)
        return a->data_byte < b->data_byte ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes); /* empty ones first */
}

/* Places are contiguous from the first byte to the last one. */
static int check_places(const struct safetensors *header, uint64_t data_bytes)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < header->num_tensors; i++) {
        const struct safetensors_tensor *tensor = &header->tensors[i];
        if (tensor->data_byte != at)
            return fail_header("hole or overlap before tensor", tensor->meta.name);
        if (tensor->bytes > data_bytes - at)
            return fail_header("the file ends within tensor", tensor->meta.name);
        at += tensor->bytes;
    }
    return at == data_bytes ? 0 : fail_header("bytes that belong to no tensor", NULL);
}

int safetensors_parse(struct safetensors *out, const char *text, uint64_t length,
                      uint64_t file_bytes)
{
    const char *name, *why;
    json_t *entry;
    json_t *root;
    memset(out, 0, sizeof(*out));
    if (length > SAFETENSORS_HEADER_BYTES_MAX || length + sizeof(length) > file_bytes)
        return fail_header("its length is not possible", NULL);
    int error = safetensors_read_json(&root, text, length, &why);
    if (error != 0)
        return error == ERR_CORRUPT ? fail_header(why, NULL) : error;
    out->data_start = length + sizeof(length);
    out->tensors = calloc(json_object_size(root) + 1, sizeof(*out->tensors));
    if (out->tensors == NULL)
        error = report_error(ERR_MEMORY, NULL, "no memory for a safetensors header");
    json_object_foreach(root, name, entry)
    {
        if (error == 0 && strcmp(name, "__metadata__") != 0)
            error = parse_tensor(&out->tensors[out->num_tensors++], name, entry);
    }
    json_decref(root);
    if (error == 0) {
        qsort(out->tensors, out->num_tensors, sizeof(*out->tensors), compare_places);
        error = check_places(out, file_bytes - out->data_start);
    }
    if (error != 0)
        safetensors_free(out);
    return error;
}

void safetensors_free(struct safetensors *header)
{
    free(header->tensors);
    memset(header, 0, sizeof(*header));
}
