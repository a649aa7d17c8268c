/* shard_header.c - fuzz target: the header of a shard file, its hash made right. */
#include "tests/fuzz/fuzz.h"

#include "proto/checksum.h"
#include "proto/shard.h"

#define KEY "\"header_hash\":\""

static void try_header(const uint8_t *bytes, size_t count, uint64_t file_bytes)
{
    struct shard_header header = {0};
    uint64_t need = 0;
    if (shard_header_parse(&header, &need, bytes, count, file_bytes) == 0)
        shard_header_free(&header);
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
    /* A file is longer than its header: sizes that fit, and some that do not. */
    for (uint64_t more = 0; more <= 1 << 20; more = more * 16 + 4096)
        try_header(copy, bytes, bytes + more);
    free(copy);
    return 0;
}
