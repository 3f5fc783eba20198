/* SPDX-License-Identifier: Apache-2.0 */
/* Who goes on when ranks have died, and whether anybody does; see recovery.h. */
#include "runtime/recovery_state.h"

#include "base/check.h"
#include "transport/mpi/recovery.h"

int recovery_last_word(struct recovery *r)
{
    CHECK(r->current);
    int bits = (atomic_load(&r->parting) ? PARTING : 0) | (r->able ? ABLE : 0) |
               (mpi_has_lost_hosts(r->current) ? 0 : WHOLE);
    int rc = mpi_agree_bits(r->current, &bits);
    r->parted = rc == PCOLL_OK && (bits & PARTING);
    r->whole = bits & WHOLE;
    if (rc == PCOLL_OK && !(bits & ABLE))
        rc = fail(PCOLL_ENOMEM, "ranks have died, and not all others could go on%s%s",
                  *r->why.text ? ": " : "", r->why.text);
    bool unanswered = rc == PCOLL_EFAILED && !mpi_has_lost_hosts(r->current);
    r->over = r->parted || (rc != PCOLL_OK && !unanswered);
    return rc;
}

bool recovery_may_go_on(const struct recovery *r, const struct transport *before,
                        const struct transport *left)
{
    CHECK(left->living <= before->living);
    uint64_t twice = 2 * (uint64_t)left->living;
    return r->whole || twice > before->living ||
           (twice == before->living &&
            transport_lowest(before) == transport_lowest(left));
}

int recovery_check_hosts(struct recovery *r)
{
    CHECK(r->current);
    if (!mpi_has_lost_hosts(r->current))
        return PCOLL_OK;
    struct failed_ranks lost = *fail_last_ranks();
    uint32_t living = r->current->living;
    uint64_t twice = 2 * ((uint64_t)living - (uint32_t)lost.count);
    bool has_first = (uint32_t)lost.rank[0] != transport_lowest(r->current);
    if (twice > living || (twice == living && has_first))
        return mpi_await_deaths(r->current);
    return fail_ranks(&lost);
}
