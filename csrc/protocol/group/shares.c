/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of a group and their bounds. */
#include "protocol/group/shares.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"

static int grid_check_bandwidths(const double *bandwidth, uint32_t members)
{
    if (members == 0)
        return fail(PCOLL_EINVAL, "bandwidth: expected at least one, got none");
    for (uint32_t i = 0; i < members; i++)
        if (!(bandwidth[i] > 0) || !isfinite(bandwidth[i]))
            return fail(PCOLL_EINVAL,
                        "bandwidth: expected finite numbers above 0, got %g for member "
                        "%u",
                        bandwidth[i], i);
    return PCOLL_OK;
}

static int grid_compare_bandwidths(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/*
 * xi with which the shares add up to 1: with the k fastest above 0 it is (M - 2 + k) /
 * their bandwidth, and it is right if the next one would get nothing. Members are added
 * while they still get something, which they do less and less.
 */
static double grid_share_level(const double *fast, uint32_t members)
{
    double sum = 0, xi = INFINITY;
    for (uint32_t k = 1; k <= members && xi * fast[k - 1] > 1; k++) {
        sum += fast[k - 1];
        xi = ((double)(members - 2) + k) / sum;
    }
    return xi;
}

int grid_shares(const double *bandwidth, uint32_t members, double *share)
{
    int rc = grid_check_bandwidths(bandwidth, members);
    if (rc != PCOLL_OK)
        return rc;
    double *fast = malloc(members * sizeof *fast), sum = 0;
    if (!fast)
        return fail(PCOLL_ENOMEM, "no memory for %u shares", members);
    memcpy(fast, bandwidth, members * sizeof *fast);
    qsort(fast, members, sizeof *fast, grid_compare_bandwidths);
    double most = fast[0]; /* relative to it nothing overflows */
    for (uint32_t i = 0; i < members; i++)
        fast[i] /= most;
    double xi = members > 2 ? grid_share_level(fast, members) : 0;
    for (uint32_t i = 0; i < members; i++) {
        share[i] = members > 2 ? fmax(0, xi * (bandwidth[i] / most) - 1) : 1;
        sum += share[i];
    }
    CHECK(sum > 0 && isfinite(sum));
    for (uint32_t i = 0; i < members; i++)
        share[i] /= sum;
    free(fast);
    return PCOLL_OK;
}

void grid_bounds(const double *share, uint32_t members, uint64_t count, uint64_t grain,
                 uint64_t *bound)
{
    uint64_t unit = grain ? grain : 1, units = count / unit;
    double sum = 0, before = 0;
    uint32_t last = 0; /* with a share: it has what is left over */
    for (uint32_t i = 0; i < members; i++) {
        sum += share[i];
        last = share[i] > 0 ? i : last;
    }
    CHECK(members >= 1 && sum > 0);
    bound[0] = 0;
    for (uint32_t i = 0; i < members; i++) {
        before += share[i];
        double part = before / sum * (double)units + 0.5;
        uint64_t whole = part < (double)units ? (uint64_t)part : units;
        bound[i + 1] = i < last ? whole * unit : count;
        CHECK(bound[i] <= bound[i + 1] && bound[i + 1] <= count);
    }
}
