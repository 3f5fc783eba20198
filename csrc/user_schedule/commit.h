/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Committing a builder: every rank checks its own, then all compare their messages,
 * agree on slots, and enter the program in their tables. A rank that fails takes part
 * all the same, so that it fails on every rank. Collective.
 */
#ifndef PCOLL_USER_SCHEDULE_COMMIT_H
#define PCOLL_USER_SCHEDULE_COMMIT_H

#include "user_schedule/run.h"

/* local: this rank's own decision so far. The builder is taken if all is well, and
 * stays as it is if not. */
int schedule_run_commit(struct communicator *c, int local, struct builder *d,
                        struct schedule_run **out);

#endif
