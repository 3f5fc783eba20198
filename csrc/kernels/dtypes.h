/* SPDX-License-Identifier: Apache-2.0 */
/* The dtypes, one file for each kind of them; reduce.c puts them into one table. */
#ifndef PCOLL_KERNELS_DTYPES_H
#define PCOLL_KERNELS_DTYPES_H

#include "kernels/reduce.h"

extern const struct dtype dtype_float32, dtype_float64;      /* floats.c */
extern const struct dtype dtype_float16, dtype_bfloat16;     /* halves.c */
extern const struct dtype dtype_complex64, dtype_complex128; /* complex.c */
extern const struct dtype dtype_int8, dtype_int16, dtype_int32, dtype_int64;
extern const struct dtype dtype_uint8, dtype_uint16, dtype_uint32, dtype_uint64;
extern const struct dtype dtype_bool; /* logical.c; the rest in integers.c */

#endif
