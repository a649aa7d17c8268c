/* fuzz.h - shared by the fuzz targets. A target is one function over untrusted bytes; it may return
 * anything, but must not crash, leak, hang or read outside of the bytes.
 *
 * `make fuzz` links the targets with libFuzzer (clang) and lets each look for new inputs; `make
 * test` links them with replay.c and runs them over the inputs in tests/fuzz/corpus, which holds
 * small genuine files and inputs that once made a target fail. A target reports whether its parser
 * accepted the input: a genuine file that is refused tests nothing after the first check. */
#ifndef HOLDFAST_TESTS_FUZZ_H
#define HOLDFAST_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
/* Set by the target, for replay.c: this input is valid. */
__attribute__((weak)) bool fuzz_taken;

/* A copy that ends with its last byte, so that the sanitizer detects a read beyond it. The caller
 * frees it. */
static inline void *fuzz_copy(const uint8_t *data, size_t bytes)
{
    void *copy = calloc(bytes + (bytes == 0), 1);
    if (copy == NULL)
        abort();
    if (bytes > 0)
        memcpy(copy, data, bytes);
    return copy;
}

/* A file with these bytes, at a path that lasts as long as the descriptor returned. */
static inline int fuzz_file(char *path, size_t size, const uint8_t *data, size_t bytes)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
        abort();
    snprintf(path, size, "/proc/self/fd/%d", fd);
    return fd;
}

/* The last place of `key` in the text with `room` bytes after it, or NULL. For hashes, which a
 * fuzzer would never guess: a target puts the right one there. */
static inline char *fuzz_last(char *text, size_t bytes, const char *key, size_t room)
{
    size_t length = strlen(key);
    for (size_t at = bytes; at-- > 0;)
        if (at + length + room <= bytes && memcmp(text + at, key, length) == 0)
            return text + at;
    return NULL;
}

#endif
