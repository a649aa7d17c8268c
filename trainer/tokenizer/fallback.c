/* fallback.c - shared by vocabularies with byte fallback: the names of bytes, and spaces. */
#include "trainer/tokenizer/model.h"

#include "proto/base/report.h"

#include <stdio.h>
#include <string.h>

int tokenizer_find_byte_names(struct tokenizer *out, const char *name)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        char token[8];
        int bytes = snprintf(token, sizeof token, "<0x%02X>", byte);
        out->byte_symbols[byte] = vocab_find(&out->vocab, token, (size_t)bytes);
        if (out->byte_symbols[byte] == VOCAB_NONE)
            return report_error(ERR_INVALID, NULL, "%s has no token %s for that byte", name, token);
    }
    return 0;
}

bool tokenizer_crosses_space(const void *bytes, size_t length)
{
    for (size_t at = 1; at + META_SPACE_BYTES <= length; at++) {
        const char *here = (const char *)bytes + at;
        bool is_space = memcmp(here, META_SPACE, META_SPACE_BYTES) == 0;
        bool follows = at >= META_SPACE_BYTES &&
                       memcmp(here - META_SPACE_BYTES, META_SPACE, META_SPACE_BYTES) == 0;
        if (is_space && !follows)
            return true;
    }
    return false;
}

int tokenizer_byte_of_name(const char *bytes, size_t length)
{
    static const char digits[] = "0123456789ABCDEF";
    if (length != 6 || memcmp(bytes, "<0x", 3) != 0 || bytes[5] != '>')
        return -1;
    const char *high = memchr(digits, bytes[3], 16), *low = memchr(digits, bytes[4], 16);
    return high != NULL && low != NULL ? (int)(high - digits) << 4 | (int)(low - digits) : -1;
}
