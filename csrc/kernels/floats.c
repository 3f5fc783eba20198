/* SPDX-License-Identifier: Apache-2.0 */
/* float32 and float64: SUM, PROD, MIN, MAX. NaN in MIN and MAX: see reduce.h. */
#include <math.h>

#include "kernels/dtypes.h"
#include "kernels/loops.h"

#define FLOAT_KERNELS(suffix, type)                                                    \
    KERNEL(sum_##suffix, type, x + y)                                                  \
    KERNEL(prod_##suffix, type, x *y)                                                  \
    KERNEL(min_##suffix, type, y < x ? y : x)                                          \
    KERNEL(max_##suffix, type, x < y ? y : x)                                          \
    IDENTITY(sum_identity_##suffix, type, 0)                                           \
    IDENTITY(prod_identity_##suffix, type, 1)                                          \
    IDENTITY(min_identity_##suffix, type, (type)INFINITY)                              \
    IDENTITY(max_identity_##suffix, type, (type) - INFINITY)

FLOAT_KERNELS(float32, float)
FLOAT_KERNELS(float64, double)

#define FLOAT_DTYPE(suffix, type)                                                      \
    {                                                                                  \
        .name = #suffix,                                                               \
        .size = sizeof(type),                                                          \
        .reduce = {[PCOLL_SUM] = sum_##suffix,                                         \
                   [PCOLL_PROD] = prod_##suffix,                                       \
                   [PCOLL_MIN] = min_##suffix,                                         \
                   [PCOLL_MAX] = max_##suffix},                                        \
        .identity = {[PCOLL_SUM] = sum_identity_##suffix,                              \
                     [PCOLL_PROD] = prod_identity_##suffix,                            \
                     [PCOLL_MIN] = min_identity_##suffix,                              \
                     [PCOLL_MAX] = max_identity_##suffix},                             \
    }

const struct dtype dtype_float32 = FLOAT_DTYPE(float32, float);
const struct dtype dtype_float64 = FLOAT_DTYPE(float64, double);
