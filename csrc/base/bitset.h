/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of ranks as arrays of 64-bit words. All sets of one communicator have the same
 * number of words, which the caller keeps.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline size_t bitset_words(uint32_t bits)
{
    return ((size_t)bits + 63) / 64;
}

static inline void bitset_clear(uint64_t *set, size_t words)
{
    memset(set, 0, words * sizeof *set);
}

/* Clear a set in allocated memory. Words that are zero already are not written, so that
 * the memory of a large set that stays empty is never touched. */
static inline void bitset_clear_sparse(uint64_t *set, size_t words)
{
    for (size_t i = 0; i < words; i++)
        if (set[i])
            set[i] = 0;
}

static inline void bitset_add(uint64_t *set, uint32_t bit)
{
    set[bit / 64] |= (uint64_t)1 << (bit % 64);
}

static inline bool bitset_has(const uint64_t *set, uint32_t bit)
{
    return (set[bit / 64] >> (bit % 64)) & 1;
}

static inline uint32_t bitset_count(const uint64_t *set, size_t words)
{
    uint32_t count = 0;
    for (size_t i = 0; i < words; i++)
        count += (uint32_t)__builtin_popcountll(set[i]);
    return count;
}

static inline bool bitset_empty(const uint64_t *set, size_t words)
{
    for (size_t i = 0; i < words; i++)
        if (set[i])
            return false;
    return true;
}

/* Set the bits 0 to bits - 1. */
static inline void bitset_fill(uint64_t *set, uint32_t bits)
{
    memset(set, 0xff, bits / 64 * sizeof *set);
    if (bits % 64)
        set[bits / 64] = ((uint64_t)1 << bits % 64) - 1;
}

/* Return the lowest bit that is in both sets, or UINT32_MAX if there is none. */
static inline uint32_t bitset_first_common(const uint64_t *a, const uint64_t *b,
                                           size_t words)
{
    for (size_t i = 0; i < words; i++)
        if (a[i] & b[i])
            return (uint32_t)(64 * i) + (uint32_t)__builtin_ctzll(a[i] & b[i]);
    return UINT32_MAX;
}
