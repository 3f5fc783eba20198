/* SPDX-License-Identifier: Apache-2.0 */
/* See exclusion.h. */
#include "transport/mpi/exclusion.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "include/partialcoll.h"

enum { PATIENCE_NS = 200000000, SECOND_NS = 1000000000 };

static pthread_mutex_t in_mpi = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t asked = PTHREAD_ONCE_INIT;
static bool ranks_may_die;

static void ask(void)
{
    ranks_may_die = pcoll_tells_of_failures();
}

static bool wait_a_while(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until); /* what pthread_mutex_timedlock takes */
    until.tv_nsec += PATIENCE_NS;
    until.tv_sec += until.tv_nsec / SECOND_NS;
    until.tv_nsec %= SECOND_NS;
    return pthread_mutex_timedlock(&in_mpi, &until) == 0;
}

bool exclusion_begin(void)
{
    pthread_once(&asked, ask);
    return ranks_may_die && (pthread_mutex_trylock(&in_mpi) == 0 || wait_a_while());
}

void exclusion_end(bool begun)
{
    if (begun)
        pthread_mutex_unlock(&in_mpi);
}
