/* SPDX-License-Identifier: Apache-2.0 */
/* Waits in C that no caller bounds: they say on standard error what they wait for. */
#ifndef PCOLL_RUNTIME_STALL_H
#define PCOLL_RUNTIME_STALL_H

#include <stddef.h>

#include "runtime/progress.h"

/* Drive and sleep until ready(arg). After PARTIALCOLL_STALL_WARN seconds (10 by default), and
 * each time that the wait has become twice as long, print this rank of the communicator and what explain(arg) writes. */
void stall_wait(struct progress *p, uint32_t rank, bool (*ready)(void *), void *arg,
                void (*explain)(void *arg, char *text, size_t capacity));

#endif
