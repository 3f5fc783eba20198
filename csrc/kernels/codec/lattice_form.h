/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The form of a payload of pcoll_lattice_encode, and nothing of what is in its planes:
 *
 *   magic    4 bytes, a number in the writer's byte order
 *   version  1   dtype 1   bits 1   flags 1
 *   count    8   seed  8
 *   checksum 8   of all that stands before the planes, itself left out
 *   hashes   8 for each block
 *   steps    4 for each block
 *   planes   the low ones of all blocks, then the high ones if there are any
 *
 * Low planes come first, so that a reader may fetch them alone.
 */
#ifndef PCOLL_KERNELS_CODEC_LATTICE_FORM_H
#define PCOLL_KERNELS_CODEC_LATTICE_FORM_H

#include <stddef.h>
#include <stdint.h>

#include "include/partialcoll.h"

/* Where things are in a payload. */
struct lattice_layout {
    uint64_t blocks, bytes;
    uint64_t hashes, steps, low, high; /* offsets */
    size_t low_each, high_each;        /* bytes of a full block */
};

/* PCOLL_EINVAL: a member is out of its range. */
int lattice_layout(const pcoll_lattice *l, struct lattice_layout *at);
/* Elements of a block: fewer in the last one. */
size_t lattice_block_count(const pcoll_lattice *l, uint64_t block);

/* Write the header, last: the checksum covers hashes and steps as well. */
void lattice_seal(const pcoll_lattice *l, const struct lattice_layout *at,
                  char *payload);
/* Read and check all that stands before the planes. PCOLL_EPROTOCOL. */
int lattice_open(const char *payload, uint64_t bytes, pcoll_lattice *l,
                 struct lattice_layout *at);

#endif
