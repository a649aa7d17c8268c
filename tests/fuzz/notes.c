/* notes.c - fuzz target: the small files of a store that name a directory's owner, and the places
 * of shards: the mark of unfinished work, also of a node's part, and places.json. The first byte
 * selects which. */
#include "tests/fuzz/fuzz.h"

#include "proto/format/mark.h"
#include "proto/format/places.h"

#define DIRECTORY "run/step-00000010-a0003"

static void try_mark(const char *text)
{
    struct shard_identity identity;
    char coordinator[MARK_NODE_BYTES];
    fuzz_taken = mark_is_of(DIRECTORY, text);
    if (mark_read_part(&identity, coordinator, DIRECTORY, text))
        fuzz_taken = memchr(coordinator, 0, sizeof coordinator) != NULL;
}

static void try_places(const char *text, size_t bytes)
{
    struct places places;
    const struct manifest_summary summary = {.run = "run",
                                             .step = 10,
                                             .attempt = 3,
                                             .nonce = "0123456789abcdef0123456789abcdef",
                                             .shards = 4};
    if (places_read(&places, text, bytes, &summary) != 0)
        return;
    fuzz_taken = true;
    for (uint32_t i = 0; i < places.num_shards; i++)
        if (places.shards[i] >= places.num_nodes)
            abort();
    places_free(&places);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    char *text = calloc(bytes + 1, 1); /* with a NUL after it */
    if (text == NULL)
        abort();
    memcpy(text, data, bytes);
    if (data[0] % 2 == 0)
        try_mark(text + 1);
    else
        try_places(text + 1, bytes - 1);
    free(text);
    return 0;
}
