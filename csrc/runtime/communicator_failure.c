/* SPDX-License-Identifier: Apache-2.0 */
/* The failure that ends a communicator. */
#include <stdio.h>

#include "base/check.h"
#include "base/error.h"
#include "runtime/communicator.h"

int communicator_fail(struct communicator *c, int code)
{
    CHECK(code != PCOLL_OK);
    CHECK(!c->progress || progress_is_driven(c->progress));
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

int communicator_fail_undriven(struct communicator *c, int code)
{
    struct reason reason;
    struct failed_ranks who = *fail_last_ranks();
    int mpi_error = pcoll_last_mpi_error();
    fail_reason(&reason);
    progress_lock(c->progress);
    communicator_fail(c, code);
    progress_unlock(
        c->progress); /* it drives, which may change this thread's last error */
    if (code == PCOLL_EFAILED)
        return fail_ranks(&who);
    fail_set_mpi_error(mpi_error);
    return fail(code, "%s", reason.text);
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
