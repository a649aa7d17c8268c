/* replay.c - main() for a fuzz target without a fuzzer: runs it over files, and over each of them
 * damaged in simple ways: every truncation at a stride, every byte at a stride flipped. A file
 * called genuine-* fails when the target does not take it.
 *
 *     target FILE...       prints TAP, a line per file */
#include "tests/fuzz/fuzz.h"

#define VARIANTS 256u /* of each kind, per file */

static uint8_t *read_file(const char *path, size_t *out_bytes)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    long bytes = -1;
    if (file != NULL && fseek(file, 0, SEEK_END) == 0)
        bytes = ftell(file);
    if (bytes >= 0) {
        rewind(file);
        data = malloc((size_t)bytes + 1);
        if (data != NULL && fread(data, 1, (size_t)bytes, file) != (size_t)bytes) {
            free(data);
            data = NULL;
        }
    }
    if (file != NULL)
        fclose(file);
    *out_bytes = bytes > 0 ? (size_t)bytes : 0;
    return data;
}

/* False: it should have been taken. */
static bool run_whole(const char *path, const uint8_t *data, size_t bytes)
{
    const char *slash = strrchr(path, '/');
    fuzz_taken = false;
    LLVMFuzzerTestOneInput(data, bytes);
    return fuzz_taken || strncmp(slash != NULL ? slash + 1 : path, "genuine-", 8) != 0;
}

static void run_variants(uint8_t *data, size_t bytes)
{
    size_t stride = bytes / VARIANTS + 1;
    for (size_t at = 0; at < bytes; at += stride) {
        LLVMFuzzerTestOneInput(data, at);
        data[at] ^= (uint8_t)(1u << (at % 8));
        LLVMFuzzerTestOneInput(data, bytes);
        data[at] ^= (uint8_t)(1u << (at % 8));
    }
}

int main(int argc, char **argv)
{
    int failed = 0;
    printf("1..%d\n", argc - 1);
    for (int i = 1; i < argc; i++) {
        size_t bytes;
        uint8_t *data = read_file(argv[i], &bytes);
        bool good = data != NULL && run_whole(argv[i], data, bytes);
        if (data != NULL)
            run_variants(data, bytes);
        failed += !good;
        printf("%sok %d - %s\n", good ? "" : "not ", i, argv[i]);
        fflush(stdout);
        free(data);
    }
    return failed != 0;
}
