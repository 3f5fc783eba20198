/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot loops are written plainly, for the compiler to vectorize. `ivdep` states what
 * reduce.h requires (out is a, or b, or does not overlap them); without it the compiler would
 * use scalar code if out is a. target_clones selects AVX2 or AVX-512 at load time. Builds with
 * sanitizers cannot use it, because they would instrument its resolver. The loops that are
 * vectorized are listed in bench/results/kernels/any.json.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/reduce.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PCOLL_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PCOLL_SANITIZED
#endif

#if defined(__x86_64__) && !defined(PCOLL_SANITIZED) && !defined(PCOLL_TEST_ONE_TARGET)
#define CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define CLONES
#define CLONES_NONE
#endif

/* For loops with products of 64 bits or words of 16 bits: with AVX-512 F alone gcc splits them
 * into shorter vectors; with the rest of AVX-512 the codec is 15 to 20 % faster. */
#if defined(__x86_64__) && !defined(CLONES_NONE) && !defined(__clang__) &&             \
    __GNUC__ >= 12
#define CLONES_V4 __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define CLONES_V4 CLONES
#endif

/* The iterations of the next loop do not depend on each other. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Unroll the next loop, of at most 16 iterations, before the loop around it is vectorized. */
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

/* A part of functions with clones: it is compiled once for each clone. */
#define INLINE static inline __attribute__((always_inline))

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

#define KERNEL(name, type, expression)                                                 \
    CLONES static void name(void *out, const void *a, const void *b, size_t count)     \
    {                                                                                  \
        type *o = out;                                                                 \
        const type *p = a, *q = b;                                                     \
        INDEPENDENT                                                                    \
        for (size_t i = 0; i < count; i++) {                                           \
            type x = p[i], y = q[i];                                                   \
            o[i] = expression;                                                         \
        }                                                                              \
    }

#define CONVERSION(name, to, from, convert)                                            \
    CLONES static void name(void *out, const void *in, size_t count)                   \
    {                                                                                  \
        to *restrict o = out;                                                          \
        const from *restrict p = in;                                                   \
        for (size_t i = 0; i < count; i++)                                             \
            o[i] = convert(p[i]);                                                      \
    }

#define IDENTITY(name, type, value)                                                    \
    static void name(void *out, size_t count)                                          \
    {                                                                                  \
        type *o = out;                                                                 \
        for (size_t i = 0; i < count; i++)                                             \
            o[i] = value;                                                              \
    }
