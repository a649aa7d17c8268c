/* leak.c - the growth of a process's own memory over the last hours; see the header. */
#include "proto/base/leak.h"

#include <string.h>

#define MS_PER_HOUR 3600000.0

static void end_window(struct leak *leak)
{
    if (leak->num_past == LEAK_WINDOWS)
        memmove(leak->past, leak->past + 1, --leak->num_past * sizeof *leak->past);
    leak->past[leak->num_past++] = leak->now;
}

void leak_note(struct leak *leak, int64_t now_ms, uint64_t bytes, uint64_t bytes_max)
{
    bool is_first = leak->now.bytes == 0;
    bool is_new = is_first || now_ms - leak->now.ms >= LEAK_WINDOW_MS;
    if (is_new && !is_first)
        end_window(leak);
    if (is_new)
        leak->now = (struct leak_window){.ms = now_ms, .bytes = bytes};
    leak->now.bytes = bytes < leak->now.bytes ? bytes : leak->now.bytes;
    leak->num_over = bytes_max > 0 && bytes > bytes_max ? leak->num_over + 1 : 0;
}

double leak_rate(const struct leak *leak)
{
    const struct leak_window *first = &leak->past[0], *last = &leak->past[LEAK_WINDOWS - 1];
    if (leak->num_past < LEAK_WINDOWS)
        return 0;
    for (uint32_t i = 1; i < LEAK_WINDOWS; i++)
        if (leak->past[i].bytes < leak->past[i - 1].bytes + LEAK_STEP_BYTES)
            return 0;
    return (double)(last->bytes - first->bytes) * MS_PER_HOUR / (double)(last->ms - first->ms);
}

bool leak_is_over(const struct leak *leak)
{
    return leak->num_over >= LEAK_LOOKS;
}
