/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pseudo-random functions: splitmix64 for draws and hashes that need no secret, SipHash for
 * tags that nobody can forge without the key.
 *
 * splitmix64 (Steele, Lea, Flood 2014) is used as a counter-based generator: the n-th number of
 * a stream is a function of (stream, n), so ranks that share a seed draw the same numbers
 * without communication. It is not for cryptography.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline uint64_t splitmix_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t splitmix_text(uint64_t hash, const char *text)
{
    for (; *text; text++)
        hash = splitmix_mix(hash ^ (unsigned char)*text);
    return hash;
}

/* Return the n-th number of a stream. */
static inline uint64_t splitmix_at(uint64_t stream, uint64_t n)
{
    return splitmix_mix(splitmix_mix(stream) + (n + 1) * 0x9e3779b97f4a7c15u);
}

/* Return a number that is uniform in [0, bound), up to a bias of 2^-32; bound >= 1. */
static inline uint32_t splitmix_below(uint64_t stream, uint64_t n, uint32_t bound)
{
    return (uint32_t)(((splitmix_at(stream, n) >> 32) * bound) >> 32);
}

/*
 * SipHash-2-4 with a tag of 128 bits (Aumasson, Bernstein: "SipHash: a fast short-input PRF",
 * 2012, and the authors' 128-bit variant). It is a keyed message authentication code: without
 * the key nobody can compute the tag of a message that the owner of the key has not tagged.
 * It does not encrypt.
 *
 * Its callers put a label that names the purpose first into each message, so that a tag made for
 * one purpose is never valid for another one.
 */

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
