/* manifest.c - fuzz target: a manifest, whole and as a summary. Its two hashes are recomputed, so
 * that the parser reaches the protected text. */
#include "tests/fuzz/fuzz.h"

#include "proto/format/manifest.h"

static void make_hashes_right(char *text, size_t bytes)
{
    char hex[CHECKSUM_SHA256_HEX], digits[17];
    char *at = fuzz_last(text, bytes, "\"summary_hash\":\"", 16);
    if (at != NULL) {
        char *first = at + strlen("\"summary_hash\":\"");
        snprintf(digits, sizeof digits, "%016llx",
                 (unsigned long long)checksum_bytes(text, (size_t)(first - text)));
        memcpy(first, digits, 16);
    }
    at = fuzz_last(text, bytes, "\"sha256\":\"", 64);
    if (at != NULL) {
        checksum_sha256_hex(hex, text, (size_t)(at - text));
        memcpy(at + strlen("\"sha256\":\""), hex, 64);
    }
}

/* A manifest that can be read can be written, and is then read as the same; except former
 * versions. */
static void try_again(const struct manifest *manifest)
{
    if (manifest->summary.version != MANIFEST_VERSION)
        return;
    struct manifest *second = NULL;
    char *again = NULL, *third = NULL;
    size_t again_bytes, third_bytes;
    if (manifest_write(&again, &again_bytes, manifest) != 0 ||
        manifest_read(&second, again, again_bytes) != 0 ||
        manifest_write(&third, &third_bytes, second) != 0 || again_bytes != third_bytes ||
        memcmp(again, third, again_bytes) != 0)
        abort();
    manifest_free(second);
    free(again);
    free(third);
}

static void try_text(const char *text, size_t bytes)
{
    struct manifest_summary summary;
    struct manifest *manifest = NULL;
    manifest_read_summary(&summary, text,
                          bytes < MANIFEST_SUMMARY_BYTES ? bytes : MANIFEST_SUMMARY_BYTES);
    if (manifest_read(&manifest, text, bytes) == 0) {
        fuzz_taken = true;
        try_again(manifest);
    }
    manifest_free(manifest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = fuzz_copy(data, bytes);
    try_text(text, bytes);
    make_hashes_right(text, bytes);
    try_text(text, bytes);
    free(text);
    return 0;
}
