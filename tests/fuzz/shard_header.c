/* shard_header.c - fuzz target: the header of a shard file, its hash made right, of a file as long
 * as the header says; and the same bytes as the header of any safetensors file. */
#include "tests/fuzz/fuzz.h"

#include "proto/base/checksum.h"
#include "proto/format/shard.h"
#include "proto/layout/safetensors.h"

#define KEY "\"header_hash\":\""

static void try_header(const uint8_t *bytes, size_t count, uint64_t file_bytes)
{
    struct shard_header header = {0};
    uint64_t need = 0;
    if (shard_header_parse(&header, &need, bytes, count, file_bytes) != 0)
        return;
    fuzz_taken = true;
    shard_header_free(&header);
}

/* The end of the last data; a file's size is compared with it. 0: none is given. */
static uint64_t data_bytes_of(char *text, size_t count)
{
    static const char key[] = "\"data_offsets\":[";
    const char *at = fuzz_last(text, count, key, 0), *end = text + count;
    uint64_t bytes = 0;
    if (at == NULL)
        return 0;
    for (at += sizeof key - 1; at < end && *at != ']'; at++)
        bytes = *at == ',' ? 0 : bytes * 10 + (uint64_t)(*at - '0'); /* wraps, which is no harm */
    return bytes;
}

static void try_foreign(const uint8_t *bytes, size_t count, uint64_t file_bytes)
{
    struct safetensors header;
    uint64_t length = 0;
    if (count >= 8 && safetensors_length(&length, bytes, file_bytes) == 0 && length <= count - 8 &&
        safetensors_parse(&header, (const char *)bytes + 8, length, file_bytes) == 0)
        safetensors_free(&header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = fuzz_copy(data, bytes);
    char *at = fuzz_last((char *)copy, bytes, KEY, 16), digits[17];
    try_header(copy, bytes, bytes);
    if (at != NULL) {
        char *first = at + strlen(KEY);
        snprintf(digits, sizeof digits, "%016llx",
                 (unsigned long long)checksum_bytes(copy, (size_t)(first - (char *)copy)));
        memcpy(first, digits, 16);
    }
    try_header(copy, bytes, bytes + 4096); /* another size */
    try_header(copy, bytes, bytes + data_bytes_of((char *)copy, bytes));
    try_foreign(copy, bytes, bytes + data_bytes_of((char *)copy, bytes));
    free(copy);
    return 0;
}
