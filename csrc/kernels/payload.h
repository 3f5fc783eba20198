/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The payload of a round: all buffers of a handle one after the other in one block, each at a
 * 64-byte boundary, in the form in which they are reduced: float16 and bfloat16 as float32, all
 * others as the application has them.
 *
 * Functions that reduce return a result code, because an op of MPI may fail. The library's own
 * ops cannot.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "include/partialcoll.h"
#include "kernels/reduce.h"

/* A reduction by MPI, which a part of a payload has in place of a kernel (mpi_reduction.c). */
struct user_reduction {
    size_t element;  /* bytes from one element to the next */
    uint32_t shared; /* payloads that use it, not counting the first */
    /* Set inout to left (+) inout, element by element. Returns a result code. Several threads
     * may call it at once. */
    int (*combine)(struct user_reduction *self, void *inout, const void *left,
                   size_t count);
    void (*free)(struct user_reduction *self);
};

/* Make the reduction of a buffer whose dtype or op is MPI's. `index` is the number of the buffer,
 * for messages. PCOLL_EINVAL, PCOLL_EMPI, PCOLL_ENOMEM. */
typedef int user_reduction_fn(const pcoll_buffer *buffer, int index,
                              struct user_reduction **out);

/* Set out to a (+) b. out may be exactly a or b; the bits are the same in all cases. */
int user_reduce(struct user_reduction *user, void *out, const void *a, const void *b,
                size_t count);

struct payload_part {
    size_t offset;  /* in the block, a multiple of 64 */
    size_t bytes;   /* in the block, without the padding to 64 */
    size_t count;   /* elements */
    size_t element; /* bytes of one in the block */
    int dtype, op;  /* in the block */
    reduce_fn *reduce;
    identity_fn *identity;       /* in the application's form; NULL: there is none */
    convert_fn *widen, *narrow;  /* between the two forms; NULL: they are the same */
    struct user_reduction *user; /* instead of reduce and identity; may be NULL */
};

struct payload {
    size_t bytes; /* of the block, a multiple of 64 */
    int parts;
    struct payload_part *part;
    bool past_cache; /* copy from and to the application past the cache */
};

/* Lay out the buffers. make_user makes the reductions of MPI's ops and datatypes, which the
 * payload frees; NULL refuses them. PCOLL_EINVAL: an unknown dtype or op, an op that is not
 * defined for a dtype, a size that overflows. */
int payload_init(struct payload *p, const pcoll_buffer *buffers, int nbuffers,
                 user_reduction_fn *make_user);
/* Make a payload of the same form, without padding. Both share the reductions, which the last one
 * frees. Not for concurrent threads. PCOLL_ENOMEM. */
int payload_share(struct payload *p, const struct payload *of);
void payload_destroy(struct payload *p);
/* Return the number of bytes of the block without padding. */
size_t payload_data_bytes(const struct payload *p);
/* Pad the block to at least `bytes` bytes (a multiple of 64). */
void payload_pad(struct payload *p, size_t bytes);

/* Copy buffers to a block, and a block to buffers. */
void payload_pack(const struct payload *p, void *block, const void *const *buffers);
void payload_unpack(const struct payload *p, void *const *buffers, const void *block);
/* Convert a slot to a block, once. A slot has been filled in place by an application: each part
 * begins where it does in a block, but has the application's form. */
void payload_pack_slot(const struct payload *p, void *slot);

/* Fill buffers, or a block, with the result of a round without contributions. Buffers of user
 * reductions, which have no such value, stay unchanged. */
void payload_identity(const struct payload *p, void *const *buffers);
void payload_identity_block(const struct payload *p, void *block);

/* Set out to a (+) b, each part with its own op. out may be a or b. */
int payload_reduce(const struct payload *p, void *out, const void *a, const void *b);
/* Set out to a (+) the buffers of an application. out may be a. */
int payload_reduce_buffers(const struct payload *p, void *out, const void *a,
                           const void *const *buffers);
/* Set out to a (+) a slot (see payload_pack_slot), which stays unchanged. out may be a. */
int payload_reduce_slot(const struct payload *p, void *out, const void *a,
                        const void *slot);

/* Slices of a block: the bytes from one cut to another. All ranks have the same cuts. */

/* Return where slice i begins if the block is cut into `of` even slices: at a multiple of 64
 * bytes, between two elements. Slice `of` begins at the end of the block. */
size_t payload_cut(const struct payload *p, uint32_t i, uint32_t of);
/* Return whether MPI's own allreduce can reduce all parts, including identities. */
bool payload_is_native(const struct payload *p);
/* Return the number of bytes of the longest of `of` slices. */
size_t payload_longest_slice(const struct payload *p, uint32_t of);
/* Return whether the sizes of all elements divide 64, so that every multiple of 64 is a cut. */
bool payload_evenly_cut(const struct payload *p);
/* Set out to a (+) b for the bytes [begin, end) of the block. Each pointer is to byte `begin`. */
int payload_reduce_slice(const struct payload *p, void *out, const void *a,
                         const void *b, size_t begin, size_t end);
