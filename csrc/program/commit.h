/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Committing a draft: every rank checks its own, then all compare their messages, agree
 * on slots, and enter the program in their tables. A rank that fails takes part all the
 * same, so that it fails on every rank. Collective.
 */
#ifndef PCOLL_PROGRAM_COMMIT_H
#define PCOLL_PROGRAM_COMMIT_H

#include "program.h"

/* local: this rank's own verdict so far. The draft is taken if all is well, and stays
 * as it is if not. */
int program_commit(struct context *c, int local, struct draft *d, struct program **out);

#endif
