/* SPDX-License-Identifier: Apache-2.0 */
/* Packing, unpacking and reducing the block of a handle's buffers. */
#include "payload.h"

#include <stdlib.h>
#include <string.h>

#include "../base/error.h"

static const size_t align = 64;
/* Half of what a message of INT_MAX blocks of 64 bytes could hold. */
static const size_t most_bytes = (size_t)1 << 36;

static int lay_out(struct payload *p, int i, const pcoll_buffer *buffer)
{
    reduce_fn *reduce = reduce_kernel(buffer->op, buffer->dtype);
    if (!reduce)
        return fail(PCOLL_EINVAL, "buffer %d: unknown dtype %d or op %d", i,
                    buffer->dtype, buffer->op);
    size_t element = dtype_size(buffer->dtype);
    if (buffer->count > most_bytes / element)
        return fail(PCOLL_EINVAL, "buffer %d: %llu elements are more than can be held",
                    i, (unsigned long long)buffer->count);
    p->part[i] =
        (struct payload_part){.offset = p->bytes,
                              .bytes = buffer->count * element,
                              .count = buffer->count,
                              .reduce = reduce,
                              .identity = identity_kernel(buffer->op, buffer->dtype)};
    p->bytes += (p->part[i].bytes + align - 1) / align * align;
    return PCOLL_OK;
}

int payload_init(struct payload *p, const pcoll_buffer *buffers, int nbuffers)
{
    *p = (struct payload){.parts = nbuffers};
    if (nbuffers < 1)
        return fail(PCOLL_EINVAL, "a handle needs at least one buffer, got %d",
                    nbuffers);
    p->part = calloc((size_t)nbuffers, sizeof *p->part);
    if (!p->part)
        return fail(PCOLL_ENOMEM, "no memory for %d buffers", nbuffers);
    for (int i = 0; i < nbuffers; i++) {
        int rc = lay_out(p, i, &buffers[i]);
        if (rc == PCOLL_OK && p->bytes > most_bytes)
            rc = fail(PCOLL_EINVAL, "buffers: more bytes in all than can be held");
        if (rc != PCOLL_OK) {
            payload_destroy(p);
            return rc;
        }
    }
    return PCOLL_OK;
}

void payload_destroy(struct payload *p)
{
    free(p->part);
    *p = (struct payload){0};
}

void payload_pad(struct payload *p, size_t bytes)
{
    p->bytes = bytes > p->bytes ? bytes : p->bytes;
}

void payload_pack(const struct payload *p, void *block, const void *const *buffers)
{
    for (int i = 0; i < p->parts; i++)
        if (p->part[i].bytes)
            memcpy((char *)block + p->part[i].offset, buffers[i], p->part[i].bytes);
}

void payload_unpack(const struct payload *p, void *const *buffers, const void *block)
{
    for (int i = 0; i < p->parts; i++)
        if (p->part[i].bytes)
            memcpy(buffers[i], (const char *)block + p->part[i].offset,
                   p->part[i].bytes);
}

void payload_identity(const struct payload *p, void *const *buffers)
{
    for (int i = 0; i < p->parts; i++)
        p->part[i].identity(buffers[i], p->part[i].count);
}

void payload_reduce(const struct payload *p, void *out, const void *a, const void *b)
{
    payload_reduce_slice(p, out, a, b, 0, p->bytes);
}

size_t payload_cut(const struct payload *p, uint32_t i, uint32_t of)
{
    return p->bytes / align * i / of * align;
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

/* The elements of part i that lie in [begin, end). */
static void reduce_part(const struct payload_part *part, char *out, const char *a,
                        const char *b, size_t begin, size_t end)
{
    size_t first = part->offset > begin ? part->offset : begin;
    size_t last = part->offset + part->bytes;
    last = last < end ? last : end;
    if (first >= last)
        return;
    size_t at = first - begin, element = part->bytes / part->count;
    part->reduce(out + at, a + at, b + at, (last - first) / element);
}

void payload_reduce_slice(const struct payload *p, void *out, const void *a,
                          const void *b, size_t begin, size_t end)
{
    for (int i = 0; i < p->parts; i++)
        reduce_part(&p->part[i], out, a, b, begin, end);
}

void payload_reduce_buffers(const struct payload *p, void *out, const void *a,
                            const void *const *buffers)
{
    for (int i = 0; i < p->parts; i++) {
        size_t at = p->part[i].offset;
        p->part[i].reduce((char *)out + at, (const char *)a + at, buffers[i],
                          p->part[i].count);
    }
}
