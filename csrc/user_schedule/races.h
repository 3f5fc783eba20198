/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Do two operations of a schedule use the same memory, at least one of them to write,
 * without an order between them? Then its result would depend on chance.
 *
 * A comes before B for certain if B's gate cannot open without A: if so many of its n
 * predecessors are A, or come after A for certain, that less than the k that it needs
 * are left over. Reductions with the same op into the same memory may come in any
 * order: operations on one rank are carried out one at a time.
 *
 * Takes time quadratic in the number of operations at worst.
 */
#ifndef PCOLL_USER_SCHEDULE_RACES_H
#define PCOLL_USER_SCHEDULE_RACES_H

#include "user_schedule/builder.h"

/* s is the committed schedule of d. PCOLL_EINVAL names two operations. */
int races_check(const struct builder *d, const struct sched *s);

#endif
