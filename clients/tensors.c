/* tensors.c - converts a rank's tensors between three forms: the user's (struct ckpt_array, or
 * ckpt_tensor of version 1), the planner's (struct slice) and the wire's (message Slice).
 *
 * It checks the user's tensors once, with errors that name the tensor. It also checks ckptd's
 * places in the image, so that no answer of ckptd makes a copy leave the tensor's memory or the
 * image. */
#include "clients/session.h"

#include "proto/base/report.h"

#include <stdlib.h>
#include <string.h>

/* 0 when the tensor's numbers are valid; the error text names the tensor. */
static int check_array(const struct ckpt_array *tensor, uint32_t index)
{
    if (tensor->name == NULL || tensor->name[0] == '\0')
        return report_error(ERR_INVALID, "give every tensor its global name",
                            "tensor %u has no name", index);
    if (strlen(tensor->name) >= LAYOUT_NAME_MAX)
        return report_error(ERR_INVALID, "names have at most 191 bytes",
                            "the name of tensor %u is too long: %.64s...", index, tensor->name);
    if (tensor->dims > CKPT_ARRAY_DIMS_MAX)
        return report_error(ERR_INVALID, "flatten some dimensions",
                            "tensor %s has %u dimensions, at most %u are supported", tensor->name,
                            tensor->dims, CKPT_ARRAY_DIMS_MAX);
    for (uint32_t d = 0; d < tensor->dims; d++) {
        if (tensor->offset[d] > tensor->shape[d] ||
            tensor->extent[d] > tensor->shape[d] - tensor->offset[d])
            return report_error(ERR_INVALID, "offset + extent must lie within the global shape",
                                "the slice of tensor %s exceeds the tensor in dimension %u",
                                tensor->name, d);
    }
    return 0;
}

/* The bytes of a slice; ERR_INVALID when they come near the limit of 64 bits. */
static int slice_size(uint64_t *out, const struct slice *slice)
{
    uint64_t bytes = dtype_bytes(slice->tensor.dtype);
    for (uint32_t d = 0; d < slice->tensor.dims; d++) {
        if (slice->box.extent[d] == 0) {
            *out = 0;
            return 0;
        }
        if (bytes > (UINT64_MAX >> 8) / slice->box.extent[d])
            return report_error(ERR_INVALID, "check the extents",
                                "the slice of tensor %s is too large", slice->tensor.name);
        bytes *= slice->box.extent[d];
    }
    *out = bytes;
    return 0;
}

static int copy_array(struct slice *out, const struct ckpt_array *tensor, uint32_t index,
                      bool needs_data)
{
    ERR_TRY(check_array(tensor, index));
    memset(out, 0, sizeof *out);
    strcpy(out->tensor.name, tensor->name);
    out->tensor.dims = tensor->dims;
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++) {
        bool used = d < tensor->dims;
        out->tensor.shape[d] = used ? tensor->shape[d] : 1;
        out->box.offset[d] = used ? tensor->offset[d] : 0;
        out->box.extent[d] = used ? tensor->extent[d] : 1;
    }
    if (tensor->dtype == NULL || dtype_parse(&out->tensor.dtype, tensor->dtype) != 0)
        return report_error(ERR_INVALID, "use a safetensors name such as F32 or BF16",
                            "tensor %s has the unknown dtype %s", tensor->name,
                            tensor->dtype != NULL ? tensor->dtype : "(null)");
    uint64_t bytes;
    int error = slice_size(&bytes, out);
    if (error == 0 && bytes > 0 && tensor->data == NULL && needs_data)
        error = report_error(ERR_INVALID, "an empty slice has an extent of 0",
                             "tensor %s has no data", tensor->name);
    return error;
}

/* From version 1, which has four dimensions. */
static int widen_tensor(struct ckpt_array *out, const struct ckpt_tensor *tensor)
{
    *out = (struct ckpt_array){.size = sizeof *out,
                               .dims = tensor->dims,
                               .name = tensor->name,
                               .dtype = tensor->dtype,
                               .data = tensor->data};
    if (tensor->dims > CKPT_DIMS_MAX)
        return report_error(ERR_INVALID, "use ckpt_describe_arrays, or flatten some dimensions",
                            "tensor %s has %u dimensions, at most %u are supported",
                            tensor->name != NULL ? tensor->name : "(null)", tensor->dims,
                            CKPT_DIMS_MAX);
    memcpy(out->shape, tensor->shape, sizeof tensor->shape);
    memcpy(out->offset, tensor->offset, sizeof tensor->offset);
    memcpy(out->extent, tensor->extent, sizeof tensor->extent);
    return 0;
}

static int make_room(struct session_tensors *out, uint32_t count)
{
    memset(out, 0, sizeof *out);
    out->slices = calloc(count + 1, sizeof *out->slices);
    out->data = calloc(count + 1, sizeof *out->data);
    out->count = count;
    if (out->slices == NULL || out->data == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the description of %u tensors", count);
    return 0;
}

int session_tensors_copy(struct session_tensors *out, const struct ckpt_tensor *tensors,
                         uint32_t count)
{
    struct ckpt_array array;
    int error = make_room(out, count);
    for (uint32_t i = 0; i < count && error == 0; i++) {
        error = widen_tensor(&array, &tensors[i]);
        if (error == 0)
            error = copy_array(&out->slices[i], &array, i, true);
        out->data[i] = tensors[i].data;
    }
    if (error != 0)
        session_tensors_free(out);
    return error;
}

int session_arrays_copy(struct session_tensors *out, const struct ckpt_array *arrays,
                        uint32_t count, bool needs_data)
{
    int error = make_room(out, count);
    if (error == 0 && count > 0 && arrays[0].size != sizeof *arrays)
        error = report_error(ERR_INVALID, "set it to sizeof(struct ckpt_array)",
                             "the size of a ckpt_array is %zu, and %u was given", sizeof *arrays,
                             arrays[0].size);
    for (uint32_t i = 0; i < count && error == 0; i++) {
        error = copy_array(&out->slices[i], &arrays[i], i, needs_data);
        out->data[i] = arrays[i].data;
    }
    if (error != 0)
        session_tensors_free(out);
    return error;
}

void session_tensors_free(struct session_tensors *tensors)
{
    free(tensors->slices);
    free(tensors->data);
    memset(tensors, 0, sizeof *tensors);
}

int session_tensors_pack(Holdfast__V1__Slice ***out, const struct session_tensors *tensors)
{
    size_t count = tensors->count;
    Holdfast__V1__Slice **list =
        calloc(count + 1, sizeof(Holdfast__V1__Slice *) + sizeof(Holdfast__V1__Slice));
    if (list == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a request about %zu tensors", count);
    Holdfast__V1__Slice *messages = (Holdfast__V1__Slice *)(list + count + 1);
    for (size_t i = 0; i < count; i++) {
        struct slice *slice = &tensors->slices[i];
        holdfast__v1__slice__init(&messages[i]);
        messages[i].name = slice->tensor.name;
        messages[i].dtype = (char *)dtype_name(slice->tensor.dtype);
        messages[i].n_shape = messages[i].n_offset = messages[i].n_extent = slice->tensor.dims;
        messages[i].shape = slice->tensor.shape;
        messages[i].offset = slice->box.offset;
        messages[i].extent = slice->box.extent;
        list[i] = &messages[i];
    }
    *out = list;
    return 0;
}

static int compare_items(const void *left, const void *right)
{
    const struct session_item *a = left, *b = right;
    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    return (a->image_byte > b->image_byte) - (a->image_byte < b->image_byte);
}

static int read_item(struct session_item *out, const struct session_tensors *tensors,
                     const Holdfast__V1__ImageItem *item, uint64_t image_bytes)
{
    uint64_t size = 0;
    if (item->slice >= tensors->count || slice_size(&size, &tensors->slices[item->slice]) != 0 ||
        item->slice_byte > size || item->bytes > size - item->slice_byte ||
        item->image_byte > image_bytes || item->bytes > image_bytes - item->image_byte)
        return report_error(ERR_CORRUPT, "client and ckptd may be of different versions",
                            "ckptd answered with a place outside the image or the tensor (item of "
                            "slice %u)",
                            item->slice);
    *out = (struct session_item){item->slice, item->slice_byte, item->image_byte, item->bytes};
    return 0;
}

/* Where a tensor begins in the image. */
struct place {
    uint64_t image_byte;
    uint32_t tensor;
};

static int compare_places(const void *left, const void *right)
{
    const struct place *a = left, *b = right;
    if (a->image_byte != b->image_byte)
        return a->image_byte < b->image_byte ? -1 : 1;
    return (a->tensor > b->tensor) - (a->tensor < b->tensor);
}

/* Call it after the items are sorted. */
static int order_tensors(struct ckpt *ckpt)
{
    uint32_t count = ckpt->tensors.count;
    struct place *places = calloc((size_t)count + 1, sizeof *places);
    ckpt->order = calloc((size_t)count + 1, sizeof *ckpt->order);
    ckpt->left = calloc((size_t)count + 1, sizeof *ckpt->left);
    if (places == NULL || ckpt->order == NULL || ckpt->left == NULL) {
        free(places);
        return report_error(ERR_MEMORY, NULL, "no memory for the order of %u tensors", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        bool has_place = ckpt->first_item[i] < ckpt->first_item[i + 1];
        places[i].image_byte = has_place ? ckpt->items[ckpt->first_item[i]].image_byte : UINT64_MAX;
        places[i].tensor = i;
    }
    qsort(places, count, sizeof *places, compare_places);
    for (uint32_t i = 0; i < count; i++)
        ckpt->order[i] = places[i].tensor;
    free(places);
    return 0;
}

void session_items_free(struct ckpt *ckpt)
{
    free(ckpt->items);
    free(ckpt->first_item);
    free(ckpt->order);
    free(ckpt->left);
    ckpt->items = NULL;
    ckpt->first_item = NULL;
    ckpt->order = NULL;
    ckpt->left = NULL;
    ckpt->num_items = 0;
    replicas_free(ckpt);
}

int session_items_read(struct ckpt *ckpt, const Holdfast__V1__DescribeReply *reply)
{
    uint32_t count = ckpt->tensors.count;
    int error = 0;
    session_items_free(ckpt);
    ckpt->items = calloc(reply->n_items + 1, sizeof *ckpt->items);
    ckpt->first_item = calloc((size_t)count + 1, sizeof *ckpt->first_item);
    if (ckpt->items == NULL || ckpt->first_item == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %zu places", reply->n_items);
    for (size_t i = 0; i < reply->n_items && error == 0; i++)
        error = read_item(&ckpt->items[i], &ckpt->tensors, reply->items[i], reply->image_bytes);
    if (error != 0)
        return error;
    ckpt->num_items = (uint32_t)reply->n_items;
    qsort(ckpt->items, ckpt->num_items, sizeof *ckpt->items, compare_items);
    for (uint32_t tensor = 0, item = 0; tensor <= count; tensor++) {
        while (item < ckpt->num_items && ckpt->items[item].tensor < tensor)
            item++;
        ckpt->first_item[tensor] = item;
    }
    error = order_tensors(ckpt);
    return error == 0 ? replicas_read(ckpt, reply) : error;
}
