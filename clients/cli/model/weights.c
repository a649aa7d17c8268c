/* weights.c - see weights.h. */
#include "clients/cli/model/weights.h"
#include "clients/cli/engine/cli.h"
#include "proto/base/memfile.h"
#include "proto/base/report.h"
#include "proto/format/shard.h"

#define HEADER_BYTES_MAX (100u << 20) /* limit of the safetensors library */

int weights_header_begin(struct weights_header *header, const char *run, uint64_t step,
                         uint64_t attempt, const char *nonce)
{
    *header = (struct weights_header){NULL, 0, NULL};
    FILE *out = memfile_open(&header->text, &header->bytes);
    if (out == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a header");
    header->out = out;
    fwrite("\0\0\0\0\0\0\0", 1, 8, out);
    fprintf(out, "{\"__metadata__\":{\"format\":\"pt\",\"run\":");
    text_json(out, run);
    fprintf(out, ",\"step\":\"%llu\",\"attempt\":\"%llu\",\"nonce\":", (unsigned long long)step,
            (unsigned long long)attempt);
    text_json(out, nonce);
    fputc('}', out);
    return 0;
}

void weights_header_add(struct weights_header *header, const char *name, enum dtype dtype,
                        const char *shape, uint64_t start, uint64_t bytes)
{
    FILE *out = header->out;
    fputc(',', out);
    text_json(out, name);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%llu,%llu]}", dtype_name(dtype),
            shape, (unsigned long long)start, (unsigned long long)(start + bytes));
}

int weights_header_end(struct weights_header *header)
{
    FILE *out = header->out;
    fputc('}', out);
    fflush(out);
    for (size_t at = header->bytes; at % SHARD_ALIGN != 0; at++)
        fputc(' ', out);
    header->out = NULL;
    if (!memfile_close(out))
        return report_error(ERR_MEMORY, NULL, "no memory for a header");
    uint64_t length = header->bytes - 8;
    if (length > HEADER_BYTES_MAX)
        return report_error(ERR_INVALID, "safetensors allows no more: export with --weights-only",
                            "a header of %llu bytes is over the limit of %u",
                            (unsigned long long)length, HEADER_BYTES_MAX);
    for (int i = 0; i < 8; i++)
        header->text[i] = (char)(length >> (8 * i));
    return 0;
}
