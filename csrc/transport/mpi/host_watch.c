/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a transport whose hosts are several have them watched. */
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "transport/mpi/internal.h"
#include "transport/mpi/ulfm.h"
#include "transport/mpi/tree.h"

static bool is_near(const struct mpi_transport *m, uint32_t rank)
{
    return m->neighborhoods[rank] == m->neighborhoods[m->base.rank];
}

static bool is_on_one_host(const struct mpi_transport *m)
{
    for (uint32_t i = 0; i < m->base.size; i++)
        if (transport_lives(&m->base, i) && !is_near(m, i))
            return false;
    return true;
}

enum { MOST_MET = 512 };

/* Open MPI asks the other host how a rank is reached when it is first sent something, and waits
 * for the answer inside of that call, for ever if the host has vanished: so all ranks of other hosts
 * meet before that. In a job of very many that would take too long. */
static int meet(struct mpi_transport *m)
{
    uint32_t living = m->base.living, own = (uint32_t)mpi_number_of(m, m->base.rank);
    int rc = PCOLL_OK;
    for (uint32_t k = 1; k < living && living <= MOST_MET && rc == PCOLL_OK; k++) {
        int to = (int)((own + k) % living), from = (int)((own + living - k) % living);
        bool sends = !is_near(m, mpi_rank_of(m, to));
        bool receives = !is_near(m, mpi_rank_of(m, from));
        rc = tree_meet(m, sends ? to : -1, receives ? from : -1);
    }
    return rc;
}

int mpi_watch_hosts(struct mpi_transport *m)
{
    CHECK(m->neighborhoods && !m->party.size);
    enum { WORDS = sizeof(struct watch_card) / sizeof(uint64_t) };
    if (!m->watch || is_on_one_host(m))
        return PCOLL_OK;
    struct watch_card own = watch_own_card(m->watch);
    m->cards = calloc(m->base.size, sizeof *m->cards);
    int rc = m->cards ? mpi_exchange(m, (const uint64_t *)(const void *)&own, WORDS,
                                     (uint64_t *)(void *)m->cards)
                      : fail(PCOLL_ENOMEM, "no memory for %u ranks", m->base.size);
    if (rc != PCOLL_OK)
        return rc;
    m->rank_failure = ulfm_rank_failure();
    m->party = (struct watch_party){.rank = m->base.rank,
                                    .size = m->base.size,
                                    .hosts = m->neighborhoods,
                                    .cards = m->cards,
                                    .owner = m};
    watch_join(m->watch, &m->party);
    return meet(m);
}

void mpi_watch_no_more(struct mpi_transport *m)
{
    if (m->party.size)
        watch_leave(m->watch, &m->party);
}
