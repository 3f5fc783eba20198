/* SPDX-License-Identifier: Apache-2.0 */
/* Reducing elements as a user's buffer holds them. */
#include "kernels/dtypes.h"

#include <stdint.h>

enum { PIECE = 512, WIDEST = 4 };

/* Halves are widened, reduced and rounded, piece by piece. */
static void reduce_wide(const struct dtype *t, reduce_fn *reduce, char *out,
                        const char *a, const char *b, size_t count)
{
    _Alignas(64) char wide_a[PIECE * WIDEST], wide_b[PIECE * WIDEST];
    for (size_t first = 0; first < count; first += PIECE) {
        size_t now = count - first < PIECE ? count - first : PIECE;
        t->widen(wide_a, a + first * t->size, now);
        t->widen(wide_b, b + first * t->size, now);
        reduce(wide_a, wide_a, wide_b, now);
        t->narrow(out + first * t->size, wide_a, now);
    }
}

void reduce_buffer(int op, int dtype, void *out, const void *a, const void *b,
                   size_t count)
{
    const struct dtype *t = dtype_find(dtype);
    reduce_fn *reduce = reduce_kernel(op, dtype);
    if (t->held)
        reduce_wide(t, reduce, out, a, b, count);
    else
        reduce(out, a, b, count);
}
