/* stream_copy.c - see stream_copy.h. */
#include "proto/base/stream_copy.h"

#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define STREAM_BYTES_MIN 4096u /* of a copy; smaller ones are probably in the cache */
#define LINE 64u               /* bytes of a cache line */
#define PAGE_LINES 64u
#define PAGES 8u /* copied in turns */
#define TURN 2u  /* lines */

#if defined(__SSE2__)
/* Copies whole lines to an aligned place. Each line is written whole, so the processor reads none
 * first. */
static inline void stream_lines(uint8_t *to, const uint8_t *from, uint64_t lines)
{
    for (; lines > 0; lines--, to += LINE, from += LINE) {
        __m128i part[LINE / sizeof(__m128i)];
        for (uint32_t i = 0; i < 4; i++)
            part[i] = _mm_loadu_si128((const __m128i *)from + i);
        for (uint32_t i = 0; i < 4; i++)
            _mm_stream_si128((__m128i *)to + i, part[i]);
    }
}

/* Copies several pages in turns: processors prefetch within a page, so more of the memory is under
 * way. */
static void stream(uint8_t *to, const uint8_t *from, uint64_t lines)
{
    const uint64_t stretch = PAGES * PAGE_LINES;
    for (; lines >= stretch; lines -= stretch, to += stretch * LINE, from += stretch * LINE)
        for (uint64_t line = 0; line < PAGE_LINES; line += TURN)
            for (uint64_t at = line; at < stretch; at += PAGE_LINES)
                stream_lines(to + at * LINE, from + at * LINE, TURN);
    stream_lines(to, from, lines);
    _mm_sfence(); /* orders the streaming stores */
}
#else
static void stream(uint8_t *to, const uint8_t *from, uint64_t lines)
{
    memcpy(to, from, lines * LINE);
}
#endif

void stream_copy(void *to, const void *from, uint64_t bytes)
{
    uint64_t head = bytes < STREAM_BYTES_MIN ? bytes : -(uintptr_t)to % LINE;
    uint64_t lines = (bytes - head) / LINE, done = head + lines * LINE;
    memcpy(to, from, head);
    if (lines > 0)
        stream((uint8_t *)to + head, (const uint8_t *)from + head, lines);
    memcpy((uint8_t *)to + done, (const uint8_t *)from + done, bytes - done);
}
