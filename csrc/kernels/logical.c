/* SPDX-License-Identifier: Apache-2.0 */
/* bool, one byte, 0 or 1: LAND, LOR, LXOR. Any other byte counts as true. */
#include "kernels/dtypes.h"
#include "kernels/loops.h"

KERNEL(land, uint8_t, (uint8_t)((x != 0) & (y != 0)))
KERNEL(lor, uint8_t, (uint8_t)((x | y) != 0))
KERNEL(lxor, uint8_t, (uint8_t)((x != 0) ^ (y != 0)))
IDENTITY(no, uint8_t, 0)
IDENTITY(yes, uint8_t, 1)

const struct dtype dtype_bool = {
    .name = "bool",
    .size = 1,
    .reduce = {[PCOLL_LAND] = land, [PCOLL_LOR] = lor, [PCOLL_LXOR] = lxor},
    .identity = {[PCOLL_LAND] = yes, [PCOLL_LOR] = no, [PCOLL_LXOR] = no},
};
