/* SPDX-License-Identifier: Apache-2.0 */
/*
 * splitmix64 (Steele, Lea, Flood 2014) as a counter-based generator: the n-th number of a stream is
 * a function of (stream, n), so ranks that share a seed draw the same numbers without
 * communication. It is not for cryptography.
 */
#pragma once

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
