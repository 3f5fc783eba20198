/* SPDX-License-Identifier: Apache-2.0 */
/* What ends a communicator, unless it is an outage. */
#include <stdio.h>

#include "base/check.h"
#include "base/error.h"
#include "runtime/communicator.h"

int communicator_fail(struct communicator *c, int code)
{
    CHECK(code != PCOLL_OK);
    if (code == PCOLL_EFAILED && c->outage &&
        outage_begin(c->outage, fail_last_ranks()))
        return code;
    if (atomic_load(&c->failure) == PCOLL_OK) {
        snprintf(c->failure_text, sizeof c->failure_text, "%s", pcoll_last_error());
        c->failure_of_mpi = pcoll_last_mpi_error();
        if (code == PCOLL_EFAILED)
            c->failed = *fail_last_ranks();
        atomic_store(&c->failure, code);
        if (c->progress)
            progress_wake_waiters(c->progress);
    }
    return code;
}

int communicator_check(struct communicator *c)
{
    CHECK(c);
    int code = atomic_load(&c->failure);
    if (code == PCOLL_EFAILED)
        return fail_ranks(&c->failed);
    if (code == PCOLL_OK)
        return code;
    fail_set_mpi_error(c->failure_of_mpi);
    return fail(code, "%s", c->failure_text);
}
