/* SPDX-License-Identifier: Apache-2.0 */
/*
 * combine() overwrites its right operand. Where the left one is to be overwritten, the
 * right one is copied to a scratch first, piece by piece: swapping the two would give
 * other bits than on the partner of an exchange.
 */
#include "kernels/user_reduction.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static const size_t scratch_bytes = 1 << 16;

static int reduce_onto_left(struct user_reduction *user, char *left, const char *right,
                            size_t count)
{
    size_t element = user->element;
    size_t piece = element < scratch_bytes ? scratch_bytes / element : 1;
    piece = piece < count ? piece : count;
    void *scratch = malloc(piece * element);
    if (!scratch)
        return fail(PCOLL_ENOMEM, "no memory for %zu bytes of a reduction",
                    piece * element);
    int rc = PCOLL_OK;
    for (size_t done = 0; done < count && rc == PCOLL_OK; done += piece) {
        size_t now = piece < count - done ? piece : count - done;
        memcpy(scratch, right + done * element, now * element);
        rc = user->combine(user, scratch, left + done * element, now);
        memcpy(left + done * element, scratch, now * element);
    }
    free(scratch);
    return rc;
}

int user_reduce(struct user_reduction *user, void *out, const void *a, const void *b,
                size_t count)
{
    if (!count)
        return PCOLL_OK;
    if (out == a)
        return reduce_onto_left(user, out, b, count);
    if (out != b)
        memcpy(out, b, count * user->element);
    return user->combine(user, out, a, count);
}
