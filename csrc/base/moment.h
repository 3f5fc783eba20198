/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MOMENT("name"): a point at which a process may die, for the tests: PARTIALCOLL_DIE="name:n" has
 * the process kill itself when it comes there for the n-th time. Every state that docs/faults.md
 * lists has one. Nothing but in builds with checks (check.h).
 */
#ifndef PCOLL_BASE_MOMENT_H
#define PCOLL_BASE_MOMENT_H

#ifdef PCOLL_CHECKS
#define MOMENT(name) moment_pass(name)
#else
#define MOMENT(name) ((void)0)
#endif

void moment_pass(const char *name);

#endif
