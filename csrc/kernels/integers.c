/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Integers of 8 to 64 bits: all ops. They wrap around, as in MPI's own implementations:
 * what does not depend on the sign is computed without one, once for each width. 1u
 * keeps 16-bit factors from being multiplied as signed ints.
 */
#include "kernels/dtypes.h"
#include "kernels/loops.h"

#define WIDTH_KERNELS(bits, type)                                                      \
    KERNEL(sum_##bits, type, (type)(x + y))                                            \
    KERNEL(prod_##bits, type, (type)(1u * x * y))                                      \
    KERNEL(land_##bits, type, (type)((x != 0) & (y != 0)))                             \
    KERNEL(lor_##bits, type, (type)((x | y) != 0))                                     \
    KERNEL(lxor_##bits, type, (type)((x != 0) ^ (y != 0)))                             \
    KERNEL(band_##bits, type, (type)(x & y))                                           \
    KERNEL(bor_##bits, type, (type)(x | y))                                            \
    KERNEL(bxor_##bits, type, (type)(x ^ y))                                           \
    IDENTITY(zero_##bits, type, 0)                                                     \
    IDENTITY(one_##bits, type, 1)                                                      \
    IDENTITY(ones_##bits, type, (type) ~(type)0)

#define SIGN_KERNELS(suffix, type, lowest, highest)                                    \
    KERNEL(min_##suffix, type, y < x ? y : x)                                          \
    KERNEL(max_##suffix, type, x < y ? y : x)                                          \
    IDENTITY(min_identity_##suffix, type, highest)                                     \
    IDENTITY(max_identity_##suffix, type, lowest)

WIDTH_KERNELS(8, uint8_t)
WIDTH_KERNELS(16, uint16_t)
WIDTH_KERNELS(32, uint32_t)
WIDTH_KERNELS(64, uint64_t)
SIGN_KERNELS(int8, int8_t, INT8_MIN, INT8_MAX)
SIGN_KERNELS(int16, int16_t, INT16_MIN, INT16_MAX)
SIGN_KERNELS(int32, int32_t, INT32_MIN, INT32_MAX)
SIGN_KERNELS(int64, int64_t, INT64_MIN, INT64_MAX)
SIGN_KERNELS(uint8, uint8_t, 0, UINT8_MAX)
SIGN_KERNELS(uint16, uint16_t, 0, UINT16_MAX)
SIGN_KERNELS(uint32, uint32_t, 0, UINT32_MAX)
SIGN_KERNELS(uint64, uint64_t, 0, UINT64_MAX)

#define INTEGER_DTYPE(suffix, bits)                                                    \
    {                                                                                  \
        .name = #suffix,                                                               \
        .size = bits / 8,                                                              \
        .reduce = {[PCOLL_SUM] = sum_##bits,                                           \
                   [PCOLL_PROD] = prod_##bits,                                         \
                   [PCOLL_MIN] = min_##suffix,                                         \
                   [PCOLL_MAX] = max_##suffix,                                         \
                   [PCOLL_LAND] = land_##bits,                                         \
                   [PCOLL_LOR] = lor_##bits,                                           \
                   [PCOLL_LXOR] = lxor_##bits,                                         \
                   [PCOLL_BAND] = band_##bits,                                         \
                   [PCOLL_BOR] = bor_##bits,                                           \
                   [PCOLL_BXOR] = bxor_##bits},                                        \
        .identity = {[PCOLL_SUM] = zero_##bits,                                        \
                     [PCOLL_PROD] = one_##bits,                                        \
                     [PCOLL_MIN] = min_identity_##suffix,                              \
                     [PCOLL_MAX] = max_identity_##suffix,                              \
                     [PCOLL_LAND] = one_##bits,                                        \
                     [PCOLL_LOR] = zero_##bits,                                        \
                     [PCOLL_LXOR] = zero_##bits,                                       \
                     [PCOLL_BAND] = ones_##bits,                                       \
                     [PCOLL_BOR] = zero_##bits,                                        \
                     [PCOLL_BXOR] = zero_##bits},                                      \
    }

const struct dtype dtype_int8 = INTEGER_DTYPE(int8, 8);
const struct dtype dtype_int16 = INTEGER_DTYPE(int16, 16);
const struct dtype dtype_int32 = INTEGER_DTYPE(int32, 32);
const struct dtype dtype_int64 = INTEGER_DTYPE(int64, 64);
const struct dtype dtype_uint8 = INTEGER_DTYPE(uint8, 8);
const struct dtype dtype_uint16 = INTEGER_DTYPE(uint16, 16);
const struct dtype dtype_uint32 = INTEGER_DTYPE(uint32, 32);
const struct dtype dtype_uint64 = INTEGER_DTYPE(uint64, 64);
