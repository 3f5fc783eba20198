/* SPDX-License-Identifier: Apache-2.0 */
/* See exclusion.h. */
#include "transport/mpi/exclusion.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/lock.h"
#include "include/partialcoll.h"

enum { PATIENCE_NS = 200000000, PAUSE_NS = 100000 };

static struct lock in_mpi = LOCK_INIT(LOCK_IN_MPI);
static pthread_once_t asked = PTHREAD_ONCE_INIT;
static bool ranks_may_die;

static void exclusion_ask(void)
{
    ranks_may_die = pcoll_tells_of_failures();
}

/* pthread_mutex_timedlock waits by the wall clock. */
static bool exclusion_wait(void)
{
    int64_t until = clock_ns() + PATIENCE_NS;
    bool held = false;
    lock_waits(LOCK_IN_MPI);
    while (!held && clock_ns() < until) {
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        held = lock_try(&in_mpi);
    }
    return held;
}

bool exclusion_begin(void)
{
    pthread_once(&asked, exclusion_ask);
    return ranks_may_die && (lock_try(&in_mpi) || exclusion_wait());
}

void exclusion_end(bool begun)
{
    if (begun)
        lock_release(&in_mpi);
}
