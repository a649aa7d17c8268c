/* wire.c - see wire.h. Pure: it only checks headers. */
#include "proto/bulk/wire.h"
#include "proto/base/report.h"
#include "proto/bulk/bulk.h"

/* The most bytes of each verb. */
static const struct {
    uint64_t least, most;
} bytes_of[NUM_BULK_VERBS] = {[BULK_GET] = {1, BULK_GET_BYTES_MAX},
                              [BULK_PUT] = {1, BULK_BLOCK_BYTES},
                              [BULK_WINDOW] = {0, BULK_WINDOW_MS}};

int bulk_check_request(const struct bulk_request *request)
{
    if (request->magic != BULK_MAGIC || request->verb == 0 || request->verb >= NUM_BULK_VERBS)
        return report_error(ERR_CORRUPT, NULL, "what came is no request of the bulk plane");
    uint64_t least = bytes_of[request->verb].least, most = bytes_of[request->verb].most;
    if (request->bytes < least || request->bytes > most ||
        request->offset > UINT64_MAX - request->bytes ||
        request->image_byte > UINT64_MAX - request->bytes ||
        (request->verb != BULK_WINDOW && request->number >= BULK_NUMBERS_MAX))
        return report_error(ERR_CORRUPT, NULL,
                            "a request of the bulk plane has impossible numbers: verb %u, %llu "
                            "bytes at %llu, number %u",
                            request->verb, (unsigned long long)request->bytes,
                            (unsigned long long)request->offset, request->number);
    return 0;
}

/* The bytes of the block in the answer to a GET at `offset`. */
static uint64_t block_bytes(const struct bulk_request *request, uint64_t offset)
{
    uint64_t left = request->offset + request->bytes - offset;
    return left < BULK_BLOCK_BYTES ? left : BULK_BLOCK_BYTES;
}

int bulk_check_answer(const struct bulk_answer *answer, const struct bulk_request *request,
                      uint64_t offset)
{
    bool fits = answer->magic == BULK_MAGIC && answer->error <= 0;
    if (answer->error != 0)
        fits &= answer->bytes <= BULK_TEXT_MAX;
    else if (request->verb == BULK_GET)
        fits &= answer->offset == offset && answer->bytes == block_bytes(request, offset);
    else
        fits &= answer->bytes <= 1;
    if (fits)
        return 0;
    return report_error(ERR_CORRUPT, "both ends may be of different versions",
                        "an impossible answer came over the bulk plane");
}
