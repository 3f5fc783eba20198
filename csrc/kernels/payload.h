/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data of a round: all buffers of a handle, one after the other in one block, each
 * at a 64-byte boundary, in the form in which they are reduced: float16 and bfloat16 as
 * float32, all others as the application has them.
 *
 * What reduces returns a result code, because an op of MPI may fail; our own cannot.
 */
#ifndef PCOLL_KERNELS_PAYLOAD_H
#define PCOLL_KERNELS_PAYLOAD_H

#include <stdbool.h>
#include <stddef.h>

#include "include/partialcoll.h"
#include "kernels/reduce.h"

/*
 * A reduction that is not ours: what a part of a payload carries in place of a kernel.
 * transport/mpi/mpi_reduction.c makes them of MPI's ops and datatypes.
 */

struct user_reduction {
    size_t element;  /* bytes from one element to the next */
    uint32_t shared; /* payloads that have it, beside the first */
    /* inout = left (+) inout, element by element. A result code. Several threads may
     * call at once. */
    int (*combine)(struct user_reduction *self, void *inout, const void *left,
                   size_t count);
    void (*free)(struct user_reduction *self);
};

/* Makes the reduction of a buffer whose dtype or op is MPI's. PCOLL_EINVAL, PCOLL_EMPI,
 * PCOLL_ENOMEM; `index` is for the message. */
typedef int user_reduction_fn(const pcoll_buffer *buffer, int index,
                              struct user_reduction **out);

/* out = a (+) b; out may be a or b exactly, and the bits are the same in all cases. */
int user_reduce(struct user_reduction *user, void *out, const void *a, const void *b,
                size_t count);

struct payload_part {
    size_t offset;  /* in the block, a multiple of 64 */
    size_t bytes;   /* in the block, without what fills up to 64 */
    size_t count;   /* elements */
    size_t element; /* bytes of one in the block */
    int dtype, op;  /* in the block */
    reduce_fn *reduce;
    identity_fn *identity;       /* of the application's form; NULL: there is none */
    convert_fn *widen, *narrow;  /* between the two forms; NULL: they are the same */
    struct user_reduction *user; /* instead of reduce and identity, or NULL */
};

struct payload {
    size_t bytes; /* of the block, a multiple of 64 */
    int parts;
    struct payload_part *part;
    bool
        past_cache; /* what the application hands over and is given: see base/memory.h */
};

/* Lay the buffers out. PCOLL_EINVAL for an unknown dtype or op, an op that is not
 * defined for a dtype, a size that overflows. make_user makes the reductions of MPI's
 * ops and datatypes, which the payload frees; NULL refuses them. */
int payload_init(struct payload *p, const pcoll_buffer *buffers, int nbuffers,
                 user_reduction_fn *make_user);
/* Another one of the same form, without padding; both have the reductions, which the last
 * one frees. One thread. PCOLL_ENOMEM. */
int payload_share(struct payload *p, const struct payload *of);
void payload_destroy(struct payload *p);
/* Bytes of the block without padding. */
size_t payload_data_bytes(const struct payload *p);
/* Make the block at least so long (a multiple of 64), by bytes that mean nothing. */
void payload_pad(struct payload *p, size_t bytes);

void payload_pack(const struct payload *p, void *block, const void *const *buffers);
void payload_unpack(const struct payload *p, void *const *buffers, const void *block);
/*
 * A slot is a block that an application has filled in place: each part begins where it
 * does in a block, but in the application's form. This makes a block of it, once.
 */
void payload_pack_slot(const struct payload *p, void *slot);

/* Fill the buffers with what a round without contributions reduces to; those that have
 * no such value (user reductions) are left as they are. */
void payload_identity(const struct payload *p, void *const *buffers);

/* The same for a block. */
void payload_identity_block(const struct payload *p, void *block);

/* out = a (+) b, each part with its own op; out may be a or b. */
int payload_reduce(const struct payload *p, void *out, const void *a, const void *b);
/* out = a (+) the buffers of an application; out may be a. */
int payload_reduce_buffers(const struct payload *p, void *out, const void *a,
                           const void *const *buffers);
/* out = a (+) a slot (see payload_pack_slot), which stays as it is; out may be a. */
int payload_reduce_slot(const struct payload *p, void *out, const void *a,
                        const void *slot);

/*
 * Part of a block: the bytes from a cut to another one. The same cuts on every rank.
 */
/* Where slice i begins if the block is cut into `of` even ones: at a multiple of 64
 * bytes, between two elements. Slice `of` begins at the end of the block. */
size_t payload_cut(const struct payload *p, uint32_t i, uint32_t of);
/* Could a vendor reduce all of it, identities included? */
bool payload_is_native(const struct payload *p);
/* Bytes of the longest of `of` slices; 0 for none. */
size_t payload_longest_slice(const struct payload *p, uint32_t of);
/* Do all elements divide 64, so that every multiple of 64 is a cut? */
bool payload_evenly_cut(const struct payload *p);
/* out = a (+) b for the bytes [begin, end) of the block; each points to byte `begin`.
 */
int payload_reduce_slice(const struct payload *p, void *out, const void *a,
                         const void *b, size_t begin, size_t end);

#endif
