/* SPDX-License-Identifier: Apache-2.0 */
/* The payload: laying out the block of a handle's buffers, filling, emptying and reducing it. */
#include "kernels/payload.h"

#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

static const size_t align = 64;
/* Half the size of INT_MAX blocks of 64 bytes. */
static const size_t most_bytes = (size_t)1 << 36;

static int payload_use_kernels(struct payload_part *part, int i,
                               const pcoll_buffer *buffer)
{
    char why[200];
    if (pcoll_op_check(buffer->op, buffer->dtype) != PCOLL_OK) {
        snprintf(why, sizeof why, "%s", pcoll_last_error());
        return fail(PCOLL_EINVAL, "buffer %d: %s", i, why);
    }
    const struct dtype *dtype = dtype_find(buffer->dtype);
    part->element = dtype->held ? dtype->held->size : dtype->size;
    part->dtype = dtype->held ? PCOLL_FLOAT32 : buffer->dtype;
    part->op = buffer->op;
    part->reduce = reduce_kernel(buffer->op, buffer->dtype);
    part->identity = dtype->identity[buffer->op];
    part->widen = dtype->widen;
    part->narrow = dtype->narrow;
    return PCOLL_OK;
}

static int payload_lay_out(struct payload *p, int i, const pcoll_buffer *buffer,
                           user_reduction_fn *make_user)
{
    struct payload_part *part = &p->part[i];
    bool user = buffer->dtype == PCOLL_MPI_TYPE || buffer->op == PCOLL_MPI_OP;
    if (user && !make_user)
        return fail(PCOLL_EINVAL, "buffer %d: an MPI op or datatype needs MPI", i);
    int rc =
        user ? make_user(buffer, i, &part->user) : payload_use_kernels(part, i, buffer);
    if (rc != PCOLL_OK)
        return rc;
    if (user)
        part->element = part->user->element;
    if (buffer->count > most_bytes / part->element)
        return fail(PCOLL_EINVAL, "buffer %d: %llu elements are more than can be held",
                    i, (unsigned long long)buffer->count);
    part->offset = p->bytes;
    part->count = buffer->count;
    part->bytes = buffer->count * part->element;
    p->bytes += (part->bytes + align - 1) / align * align;
    if (p->bytes > most_bytes)
        return fail(PCOLL_EINVAL, "buffers: more bytes in all than can be held");
    return PCOLL_OK;
}

int payload_init(struct payload *p, const pcoll_buffer *buffers, int nbuffers,
                 user_reduction_fn *make_user)
{
    *p = (struct payload){.parts = nbuffers};
    if (nbuffers < 1)
        return fail(PCOLL_EINVAL, "a handle needs at least one buffer, got %d",
                    nbuffers);
    p->part = calloc((size_t)nbuffers, sizeof *p->part);
    if (!p->part)
        return fail(PCOLL_ENOMEM, "no memory for %d buffers", nbuffers);
    for (int i = 0; i < nbuffers; i++) {
        int rc = payload_lay_out(p, i, &buffers[i], make_user);
        if (rc != PCOLL_OK) {
            payload_destroy(p);
            return rc;
        }
    }
    return PCOLL_OK;
}

size_t payload_data_bytes(const struct payload *p)
{
    const struct payload_part *last = &p->part[p->parts - 1];
    return (last->offset + last->bytes + align - 1) / align * align;
}

int payload_share(struct payload *p, const struct payload *of)
{
    size_t bytes = (size_t)of->parts * sizeof *p->part;
    *p = *of;
    p->part = malloc(bytes);
    if (!p->part)
        return fail(PCOLL_ENOMEM, "no memory for %d buffers", of->parts);
    memcpy(p->part, of->part, bytes);
    p->bytes = payload_data_bytes(p);
    for (int i = 0; i < p->parts; i++)
        if (p->part[i].user)
            p->part[i].user->shared++;
    return PCOLL_OK;
}

void payload_destroy(struct payload *p)
{
    for (int i = 0; p->part && i < p->parts; i++)
        if (p->part[i].user && p->part[i].user->shared-- == 0)
            p->part[i].user->free(p->part[i].user);
    free(p->part);
    *p = (struct payload){0};
}

void payload_pad(struct payload *p, size_t bytes)
{
    p->bytes = bytes > p->bytes ? bytes : p->bytes;
}

/* Copy between buffers and a block in one direction. */
static void payload_copy(const struct payload *p, int i, convert_fn *convert, void *out,
                         const void *in)
{
    const struct payload_part *part = &p->part[i];
    if (convert)
        convert(out, in, part->count);
    else if (p->past_cache && part->bytes)
        memory_copy_past_cache(out, in, part->bytes);
    else if (part->bytes)
        memcpy(out, in, part->bytes);
}

void payload_pack(const struct payload *p, void *block, const void *const *buffers)
{
    for (int i = 0; i < p->parts; i++)
        payload_copy(p, i, p->part[i].widen, (char *)block + p->part[i].offset,
                     buffers[i]);
}

void payload_unpack(const struct payload *p, void *const *buffers, const void *block)
{
    for (int i = 0; i < p->parts; i++)
        payload_copy(p, i, p->part[i].narrow, buffers[i],
                     (const char *)block + p->part[i].offset);
}

void payload_identity(const struct payload *p, void *const *buffers)
{
    for (int i = 0; i < p->parts; i++)
        if (p->part[i].identity)
            p->part[i].identity(buffers[i], p->part[i].count);
}

/* Widen from the back to the front: the elements that a piece overwrites have been widened already,
 * except for its own, which are copied out first. */
static void payload_widen_in_place(const struct payload_part *part, char *at)
{
    enum { PIECE = 1024, NARROW = 2 };
    char narrow[PIECE * NARROW];
    for (size_t first = (part->count + PIECE - 1) / PIECE * PIECE; first > 0;) {
        first -= PIECE;
        size_t now = part->count - first < PIECE ? part->count - first : PIECE;
        memcpy(narrow, at + first * NARROW, now * NARROW);
        part->widen(at + first * part->element, narrow, now);
    }
}

void payload_pack_slot(const struct payload *p, void *slot)
{
    for (int i = 0; i < p->parts; i++)
        if (p->part[i].widen)
            payload_widen_in_place(&p->part[i], (char *)slot + p->part[i].offset);
}

void payload_identity_block(const struct payload *p, void *block)
{
    for (int i = 0; i < p->parts; i++)
        if (p->part[i].identity)
            p->part[i].identity((char *)block + p->part[i].offset, p->part[i].count);
    payload_pack_slot(p, block);
}

bool payload_is_native(const struct payload *p)
{
    for (int i = 0; i < p->parts; i++)
        if (p->part[i].user || p->part[i].count > INT32_MAX)
            return false;
    return true;
}

/* Reducing blocks, slices of blocks, and operands in the form of the application. */

static int payload_reduce_elements(const struct payload_part *part, void *out,
                                   const void *a, const void *b, size_t count)
{
    if (part->user)
        return user_reduce(part->user, out, a, b, count);
    part->reduce(out, a, b, count);
    return PCOLL_OK;
}

/* The right operand has the application's form, and is widened piece by piece. */
int payload_reduce_buffers(const struct payload *p, void *out, const void *a,
                           const void *const *buffers)
{
    enum { PIECE = 1024 };
    alignas(64) float wide[PIECE];
    int rc = PCOLL_OK;
    for (int i = 0; i < p->parts && rc == PCOLL_OK; i++) {
        const struct payload_part *part = &p->part[i];
        char *to = (char *)out + part->offset;
        const char *left = (const char *)a + part->offset, *narrow = buffers[i];
        if (!part->widen)
            rc = payload_reduce_elements(part, to, left, narrow, part->count);
        for (size_t done = 0, step; part->widen && done < part->count; done += step) {
            step = part->count - done < PIECE ? part->count - done : PIECE;
            part->widen(wide, narrow + done * 2, step);
            part->reduce(to + done * sizeof *wide, left + done * sizeof *wide, wide,
                         step);
        }
    }
    return rc;
}

int payload_reduce_slot(const struct payload *p, void *out, const void *a,
                        const void *slot)
{
    const void *buffers[p->parts];
    for (int i = 0; i < p->parts; i++)
        buffers[i] = (const char *)slot + p->part[i].offset;
    return payload_reduce_buffers(p, out, a, buffers);
}

/* Slices. */

static size_t payload_common_divisor(size_t a, size_t b)
{
    return b ? payload_common_divisor(b, a % b) : a;
}

bool payload_evenly_cut(const struct payload *p)
{
    for (int i = 0; i < p->parts; i++)
        if (align % p->part[i].element)
            return false;
    return true;
}

size_t payload_cut(const struct payload *p, uint32_t i, uint32_t of)
{
    size_t at = p->bytes / align * i / of * align;
    for (int k = 0; k < p->parts; k++) {
        const struct payload_part *part = &p->part[k];
        if (at <= part->offset || at >= part->offset + part->bytes)
            continue;
        /* The last place up to `at` that is a multiple of 64 and between two elements. */
        size_t step =
            align / payload_common_divisor(align, part->element) * part->element;
        return part->offset + (at - part->offset) / step * step;
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

int payload_reduce_slice(const struct payload *p, void *out, const void *a,
                         const void *b, size_t begin, size_t end)
{
    int rc = PCOLL_OK;
    for (int i = 0; i < p->parts && rc == PCOLL_OK; i++) {
        const struct payload_part *part = &p->part[i];
        size_t first = part->offset > begin ? part->offset : begin;
        size_t last = part->offset + part->bytes;
        last = last < end ? last : end;
        if (first < last)
            rc = payload_reduce_elements(
                part, (char *)out + (first - begin), (const char *)a + (first - begin),
                (const char *)b + (first - begin), (last - first) / part->element);
    }
    return rc;
}

int payload_reduce(const struct payload *p, void *out, const void *a, const void *b)
{
    return payload_reduce_slice(p, out, a, b, 0, p->bytes);
}

/*
 * User reductions. combine() overwrites its right operand. To overwrite the left operand, the
 * right one is copied to a scratch buffer first, piece by piece: swapping the operands would give
 * other bits than the partner of an exchange gets.
 */

static const size_t scratch_bytes = 1 << 16;

static int user_reduce_onto_left(struct user_reduction *user, char *left,
                                 const char *right, size_t count)
{
    size_t element = user->element;
    size_t piece = element < scratch_bytes ? scratch_bytes / element : 1;
    piece = piece < count ? piece : count;
    void *scratch = malloc(piece * element);
    if (!scratch)
        return fail(PCOLL_ENOMEM, "no memory for %zu bytes of a reduction",
                    piece * element);
    int rc = PCOLL_OK;
    for (size_t done = 0; done < count && rc == PCOLL_OK; done += piece) {
        size_t now = piece < count - done ? piece : count - done;
        memcpy(scratch, right + done * element, now * element);
        rc = user->combine(user, scratch, left + done * element, now);
        memcpy(left + done * element, scratch, now * element);
    }
    free(scratch);
    return rc;
}

int user_reduce(struct user_reduction *user, void *out, const void *a, const void *b,
                size_t count)
{
    if (!count)
        return PCOLL_OK;
    if (out == a)
        return user_reduce_onto_left(user, out, b, count);
    if (out != b)
        memcpy(out, b, count * user->element);
    return user->combine(user, out, a, count);
}
