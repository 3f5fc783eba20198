/* SPDX-License-Identifier: Apache-2.0 */
/* See moment.h. */
#include "base/moment.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t read_once = PTHREAD_ONCE_INIT;
static char wanted[64];
static atomic_long left;

static void read_wish(void)
{
    const char *wish = getenv("PARTIALCOLL_DIE");
    const char *colon = wish ? strchr(wish, ':') : NULL;
    if (!colon || (size_t)(colon - wish) >= sizeof wanted)
        return;
    memcpy(wanted, wish, (size_t)(colon - wish));
    atomic_store(&left, atol(colon + 1));
}

void moment_pass(const char *name)
{
    pthread_once(&read_once, read_wish);
    if (*wanted && !strcmp(name, wanted) && atomic_fetch_sub(&left, 1) == 1)
        raise(SIGKILL);
}
