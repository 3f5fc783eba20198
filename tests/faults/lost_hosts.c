/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Count the ranks on a lost host if there are more than a message names. This file defines the
 * called functions of MPI and of the watch: a communicator of 256 ranks, of which the watch
 * reports 128, from the last to the first.
 */
#include "transport/mpi/mpi_create.c"
#include "transport/mpi/mpi_recovery.c"

enum { RANKS = 256, LOST = 128 };

static struct watch_card cards[RANKS];
static uint64_t known[RANKS / 64]; /* The dead ranks that MPI knows. */
static int chances;                /* How often MPI has made progress. */

uint32_t watch_lost(const struct watch *w)
{
    (void)w;
    return 1;
}

void watch_each_lost(struct watch *w,
                     void (*each)(void *arg, const struct watch_group *g,
                                  uint32_t rank),
                     void *arg)
{
    const struct watch_group *g = (const void *)w;
    for (uint32_t rank = RANKS; rank-- > RANKS - LOST;)
        each(arg, g, rank);
}

int MPI_Comm_size(MPI_Comm comm, int *size)
{
    (void)comm;
    *size = RANKS;
    return MPI_SUCCESS;
}

int mpi_translate(MPI_Comm from, int number, MPI_Comm to)
{
    (void)from, (void)to;
    return number;
}

int ulfm_rank_failure(void)
{
    return MPI_ERR_OTHER;
}

uint64_t *mpi_find_failed(MPI_Comm comm)
{
    uint64_t *set = malloc(sizeof known);
    (void)comm;
    memcpy(set, known, sizeof known);
    return set;
}

bool completion_enter(void)
{
    return false;
}

int completion_leave(bool alone, int rc)
{
    (void)alone;
    return rc;
}

/* MPI makes progress. */
int MPI_Iprobe(int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status)
{
    (void)source, (void)tag, (void)comm, (void)flag, (void)status;
    chances++;
    for (int i = RANKS - LOST; chances > 2 && i < RANKS; i++)
        bitset_add(known, (uint32_t)i);
    return MPI_SUCCESS;
}

void mpi_back_off(long *us, long most)
{
    (void)us, (void)most;
}

void mpi_name_ranks(const uint64_t *set, uint32_t size, struct failed_ranks *who)
{
    (void)size;
    who->count = 1;
    who->rank[0] = (int32_t)bitset_first_common(set, set, RANKS / 64);
}

int main(void)
{
    struct mpi_transport m = {.comm = MPI_COMM_SELF, .base.size = RANKS};
    struct watch_group group = {.owner = &m, .cards = cards};
    uint32_t count, first;
    m.watch = (struct watch *)(void *)&group;
    if (mpi_count_lost(&m.base, &count, &first) != PCOLL_EFAILED || count != LOST ||
        first != RANKS - LOST)
        return printf("%u ranks from %u on\n", count, first), 1;
    if (mpi_await_deaths(&m.base) != PCOLL_OK || chances != 3)
        return printf("MPI was asked %d times\n", chances), 1;
    memset(known, 0, sizeof known);
    chances = -100000; /* MPI never learns of the deaths. */
    if (mpi_await_deaths(&m.base) != PCOLL_EFAILED || chances != -100000 + 3000)
        return printf("given up after %d times\n", chances + 100000), 1;
    return 0;
}
