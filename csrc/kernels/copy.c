/* SPDX-License-Identifier: Apache-2.0 */
/* See copy.h. */
#include "kernels/copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

enum { LINE = 64 };

static void stream_line(char *out, const char *in)
{
    const __m128i_u *from = (const __m128i_u *)in;
    __m128i *to = (__m128i *)out;
    __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1),
            c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
}

/* Whole lines stream; what is before the first and after the last does not. */
void copy_past_cache(void *out, const void *in, size_t bytes)
{
    char *to = out;
    const char *from = in;
    size_t head = (LINE - (uintptr_t)to % LINE) % LINE;
    head = head < bytes ? head : bytes;
    memcpy(to, from, head);
    size_t at = head;
    for (; at + LINE <= bytes; at += LINE)
        stream_line(to + at, from + at);
    memcpy(to + at, from + at, bytes - at);
    _mm_sfence(); /* streaming stores are not ordered by what orders the others */
}

#else

void copy_past_cache(void *out, const void *in, size_t bytes)
{
    memcpy(out, in, bytes);
}

#endif
