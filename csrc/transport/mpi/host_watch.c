/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a transport with several hosts watch each other's hosts. */
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "transport/mpi/internal.h"
#include "transport/mpi/ulfm.h"
#include "transport/mpi/tree.h"

static bool host_watch_is_near(const struct mpi_transport *m, uint32_t rank)
{
    return m->neighborhoods[rank] == m->neighborhoods[m->base.rank];
}

static bool host_watch_has_one_host(const struct mpi_transport *m)
{
    for (uint32_t i = 0; i < m->base.size; i++)
        if (transport_lives(&m->base, i) && !host_watch_is_near(m, i))
            return false;
    return true;
}

enum { HOST_WATCH_MOST_MET = 512 };

/* At the first message to a rank Open MPI asks its host how to reach it, and waits for the answer
 * inside of that call, for ever if the host has vanished. So each rank exchanges a message with
 * all ranks of other hosts now. In a very large job that would take too long. */
static int host_watch_meet(struct mpi_transport *m)
{
    uint32_t living = m->base.living, own = (uint32_t)mpi_number_of(m, m->base.rank);
    int rc = PCOLL_OK;
    for (uint32_t k = 1; k < living && living <= HOST_WATCH_MOST_MET && rc == PCOLL_OK;
         k++) {
        int to = (int)((own + k) % living), from = (int)((own + living - k) % living);
        bool sends = !host_watch_is_near(m, mpi_rank_of(m, to));
        bool receives = !host_watch_is_near(m, mpi_rank_of(m, from));
        rc = tree_meet(m, sends ? to : -1, receives ? from : -1);
    }
    return rc;
}

int mpi_watch_hosts(struct mpi_transport *m)
{
    CHECK(m->neighborhoods && !m->group.size);
    enum { WORDS = sizeof(struct watch_card) / sizeof(uint64_t) };
    if (!m->watch || host_watch_has_one_host(m))
        return PCOLL_OK;
    m->rank_failure = ulfm_rank_failure();
    m->group = (struct watch_group){.rank = m->base.rank,
                                    .size = m->base.size,
                                    .hosts = m->neighborhoods,
                                    .owner = m};
    /* Announce the hosts before the exchange: see watch.h. */
    int rc = watch_announce(m->watch, &m->group);
    if (rc != PCOLL_OK)
        return rc;
    struct watch_card own = watch_own_card(m->watch);
    m->cards = calloc(m->base.size, sizeof *m->cards);
    rc = m->cards ? mpi_exchange(m, (const uint64_t *)(const void *)&own, WORDS,
                                 (uint64_t *)(void *)m->cards)
                  : fail(PCOLL_ENOMEM, "no memory for %u ranks", m->base.size);
    if (rc != PCOLL_OK)
        return rc;
    watch_join(m->watch, &m->group, m->cards);
    return host_watch_meet(m);
}

void mpi_end_watch(struct mpi_transport *m)
{
    if (m->group.size)
        watch_leave(m->watch, &m->group);
}
