/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data of a round: all buffers of a handle, one after the other in one block, each
 * at a 64-byte boundary.
 */
#ifndef PCOLL_KERNELS_PAYLOAD_H
#define PCOLL_KERNELS_PAYLOAD_H

#include "reduce.h"

struct payload_part {
    size_t offset, bytes, count;
    reduce_fn *reduce;
    identity_fn *identity;
};

struct payload {
    size_t bytes; /* of the block, a multiple of 64 */
    int parts;
    struct payload_part *part;
};

/* Lay the buffers out. PCOLL_EINVAL for an unknown dtype or op or a size that
 * overflows. */
int payload_init(struct payload *p, const pcoll_buffer *buffers, int nbuffers);
void payload_destroy(struct payload *p);
/* Make the block at least so long (a multiple of 64), by bytes that mean nothing. */
void payload_pad(struct payload *p, size_t bytes);

void payload_pack(const struct payload *p, void *block, const void *const *buffers);
void payload_unpack(const struct payload *p, void *const *buffers, const void *block);
/* Fill the buffers with what a round without contributions reduces to. */
void payload_identity(const struct payload *p, void *const *buffers);
/* out = a (+) b, each part with its own op; out may be a or b. */
void payload_reduce(const struct payload *p, void *out, const void *a, const void *b);

/*
 * Part of a block: the bytes from a cut to another one. The same cuts on every rank.
 */
/* Where slice i begins if the block is cut into `of` even ones: at a multiple of 64
 * bytes, between two elements. Slice `of` begins at the end of the block. */
size_t payload_cut(const struct payload *p, uint32_t i, uint32_t of);
/* Bytes of the longest of `of` slices; 0 for none. */
size_t payload_longest_slice(const struct payload *p, uint32_t of);
/* out = a (+) b for the bytes [begin, end) of the block; each points to byte `begin`.
 */
void payload_reduce_slice(const struct payload *p, void *out, const void *a,
                          const void *b, size_t begin, size_t end);
/* out = a (+) the buffers of an application. */
void payload_reduce_buffers(const struct payload *p, void *out, const void *a,
                            const void *const *buffers);

#endif
