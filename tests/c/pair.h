/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A domain of two ranks in one process and one thread: the smallest that gathers and
 * publishes for more than one rank. It shows that the seam of domain/domain.h holds; it
 * is no model for a shared-memory domain, which has to synchronise.
 */
#ifndef PCOLL_TESTS_PAIR_H
#define PCOLL_TESTS_PAIR_H

#include "../../csrc/domain/domain.h"

/* A domain_create_fn; arg points to the lower of its two ranks. */
int pair_create(const struct round_shape *shape, const pcoll_options *options,
                void *arg, struct domain **out);

#endif
