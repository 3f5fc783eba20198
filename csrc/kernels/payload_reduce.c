/* SPDX-License-Identifier: Apache-2.0 */
/* Reducing blocks, slices of blocks, and what is not yet in the form of a block. */
#include <stdalign.h>
#include <string.h>

#include "base/error.h"
#include "kernels/payload.h"

static const size_t align = 64;

static int reduce_elements(const struct payload_part *part, void *out, const void *a,
                           const void *b, size_t count)
{
    if (part->user)
        return user_reduce(part->user, out, a, b, count);
    part->reduce(out, a, b, count);
    return PCOLL_OK;
}

int payload_reduce(const struct payload *p, void *out, const void *a, const void *b)
{
    return payload_reduce_slice(p, out, a, b, 0, p->bytes);
}

/* The right operand in the application's form, widened piece by piece. */
static void reduce_narrow(const struct payload_part *part, char *out, const char *a,
                          const char *narrow)
{
    enum { PIECE = 1024 };
    alignas(64) float wide[PIECE];
    size_t step = 0;
    for (size_t done = 0; done < part->count; done += step) {
        step = part->count - done < PIECE ? part->count - done : PIECE;
        part->widen(wide, narrow + done * 2, step);
        part->reduce(out + done * sizeof *wide, a + done * sizeof *wide, wide, step);
    }
}

static int reduce_application(const struct payload_part *part, void *out, const void *a,
                              const void *b)
{
    char *to = (char *)out + part->offset;
    const char *left = (const char *)a + part->offset;
    if (!part->widen)
        return reduce_elements(part, to, left, b, part->count);
    reduce_narrow(part, to, left, b);
    return PCOLL_OK;
}

int payload_reduce_buffers(const struct payload *p, void *out, const void *a,
                           const void *const *buffers)
{
    int rc = PCOLL_OK;
    for (int i = 0; i < p->parts && rc == PCOLL_OK; i++)
        rc = reduce_application(&p->part[i], out, a, buffers[i]);
    return rc;
}

int payload_reduce_slot(const struct payload *p, void *out, const void *a,
                        const void *slot)
{
    int rc = PCOLL_OK;
    for (int i = 0; i < p->parts && rc == PCOLL_OK; i++)
        rc = reduce_application(&p->part[i], out, a,
                                (const char *)slot + p->part[i].offset);
    return rc;
}

/* Slices. */

static size_t common_divisor(size_t a, size_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

bool payload_evenly_cut(const struct payload *p)
{
    for (int i = 0; i < p->parts; i++)
        if (align % p->part[i].element)
            return false;
    return true;
}

/* The last place up to `at` that is a multiple of 64 and between two elements. */
static size_t round_within(const struct payload_part *part, size_t at)
{
    size_t step = align / common_divisor(align, part->element) * part->element;
    return part->offset + (at - part->offset) / step * step;
}

size_t payload_cut(const struct payload *p, uint32_t i, uint32_t of)
{
    size_t at = p->bytes / align * i / of * align;
    for (int k = 0; k < p->parts; k++) {
        const struct payload_part *part = &p->part[k];
        if (at > part->offset && at < part->offset + part->bytes)
            return round_within(part, at);
    }
    return at;
}

size_t payload_longest_slice(const struct payload *p, uint32_t of)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < of; i++) {
        size_t bytes = payload_cut(p, i + 1, of) - payload_cut(p, i, of);
        longest = bytes > longest ? bytes : longest;
    }
    return longest;
}

/* The elements of a part that lie in [begin, end). */
static int reduce_part(const struct payload_part *part, char *out, const char *a,
                       const char *b, size_t begin, size_t end)
{
    size_t first = part->offset > begin ? part->offset : begin;
    size_t last = part->offset + part->bytes;
    last = last < end ? last : end;
    if (first >= last)
        return PCOLL_OK;
    size_t at = first - begin;
    return reduce_elements(part, out + at, a + at, b + at,
                           (last - first) / part->element);
}

int payload_reduce_slice(const struct payload *p, void *out, const void *a,
                         const void *b, size_t begin, size_t end)
{
    int rc = PCOLL_OK;
    for (int i = 0; i < p->parts && rc == PCOLL_OK; i++)
        rc = reduce_part(&p->part[i], out, a, b, begin, end);
    return rc;
}
