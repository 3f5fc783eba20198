/* SPDX-License-Identifier: Apache-2.0 */
/* The one piece of state that cannot hang on a communicator: a forked child must know
 * without calling MPI. */
#include "runtime/process.h"

static _Atomic bool in_child;

static void note_fork(void)
{
    atomic_store(&in_child, true);
}

void process_note_forks(void)
{
    pthread_atfork(NULL, NULL, note_fork);
}

bool process_forked(void)
{
    return atomic_load(&in_child);
}
