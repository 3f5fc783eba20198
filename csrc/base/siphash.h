/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SipHash-2-4 with a tag of 128 bits (Aumasson, Bernstein: "SipHash: a fast short-input PRF",
 * 2012, and the authors' 128-bit variant). It is a keyed message authentication code: without
 * the key nobody can compute the tag of a message that the owner of the key has not tagged.
 * It does not encrypt.
 *
 * Its callers put a label that names the purpose first into each message, so that a tag made for
 * one purpose is never valid for another one.
 */
#ifndef PCOLL_BASE_SIPHASH_H
#define PCOLL_BASE_SIPHASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct siphash_key {
    uint64_t word[2];
};

struct siphash_tag {
    uint64_t word[2];
};

/* Return the tag of these bytes. */
struct siphash_tag siphash_tag_of(struct siphash_key key, const void *data,
                                  size_t bytes);
/* Compare two tags in a time that does not depend on where they differ. */
bool siphash_equal(struct siphash_tag a, struct siphash_tag b);
/* Use a tag as a key: SipHash as a key derivation function. */
struct siphash_key siphash_derive(struct siphash_key key, const void *data,
                                  size_t bytes);

#endif
